"""The compiler: one compile key becomes artifacts. Worker side: it imports Triton, in a process that is traced.

No GPU is asked: Triton is told the target, and ptxas comes with it. Line info is off in these processes (see
``aotpack.tracing.clean_environment``), so a cubin carries no path and is the same from any directory, for any
user, under any Python minor.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json
from aotpack.keys import CompileKey
from aotpack.toolchain import attrs_of, constexprs_of, gpu_target, signature_of
from aotpack.tracing import Tracer

_LONGEST_REASON = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A key that compiled.

    Attributes:
        key: the compile key.
        name: the stem of the entry's files in Triton's cache.
        cubin: the machine code.
        metadata: Triton's metadata, canonical JSON, without the cache key and without paths.
    """

    key: CompileKey
    name: str
    cubin: bytes
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFailed:
    """A key that did not compile.

    Attributes:
        key: the compile key.
        reason: the compiler's own message, in one line.
    """

    key: CompileKey
    reason: str


Outcome = Compiled | CompileFailed


def compile_key(tracer: Tracer, key: CompileKey) -> Outcome:
    """Compile one key with Triton.

    Whatever Triton raises is an outcome, not an error: the rest of a build goes on.
    """
    import triton
    from triton.compiler import ASTSource

    source = ASTSource(
        tracer.function(key.kernel),
        signature=signature_of(key),
        constexprs=constexprs_of(key),
        attrs=attrs_of(key),
    )
    try:
        compiled = triton.compile(source, target=gpu_target(key.target), options=dict(key.options))
    except Exception as error:  # noqa: BLE001  # Triton, LLVM and ptxas raise anything
        return CompileFailed(key=key, reason=one_line(f"{type(error).__name__}: {error}"))
    name = str(source.name)[:150]
    metadata = json.loads(Path(compiled.metadata_group[f"{name}.json"]).read_bytes())
    return Compiled(
        key=key,
        name=name,
        cubin=bytes(compiled.asm["cubin"]),
        metadata=canonical_json(_scrub(metadata)).encode(),
    )


def _scrub(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata without what belongs to the build machine.

    The hash is the cache key, which the installing machine knows; a variable of the environment was set for the
    build alone; the path of libdevice is informational (its content is in the key).
    """
    from triton._C.libtriton import get_cache_invalidating_env_vars

    kept = {
        name: value
        for name, value in metadata.items()
        if name != "hash" and name not in get_cache_invalidating_env_vars()
    }
    kept["extern_libs"] = [[name, Path(path).name] for name, path in metadata["extern_libs"]]
    return kept


def one_line(message: str) -> str:
    """A message of several lines in one, with the directories of the build machine left out."""
    text = "".join(character if character.isprintable() else " " for character in " ".join(message.split()))
    text = re.sub(r"(?<![\w.])/(?:[\w.+@~-]+/)+", "", text)
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."
