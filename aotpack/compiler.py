"""The compiler: compile keys become artifacts. Worker side: it imports Triton, in a process that is traced.

No GPU is asked: Triton is told the target, and ptxas comes with it. Line info is off in these processes (see
``aotpack.tracing.clean_environment``), so a cubin carries no path and is the same from any directory, for any
user, under any Python minor.

Keys that are ``alike`` are compiled together, since Triton's back end often has one and the same work for them.
"""

import json
import re
import resource
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json
from aotpack.keys import CompileKey
from aotpack.stages import shared_stages
from aotpack.toolchain import attrs_of, backend_of, constexprs_of, gpu_target, signature_of
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
        seconds: processor time that it took, the assembler's included.
        shared: whether part of that work had been done for a key like it.
    """

    key: CompileKey
    name: str
    cubin: bytes
    metadata: bytes
    seconds: float = 0.0
    shared: bool = False


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


_LATE = "num_stages"
"""The option that Triton's back end has done with once loops are pipelined, and that autotuned kernels vary most."""


def alike(key: CompileKey) -> Hashable:
    """What keys have in common that may share work: everything but the number of pipeline stages."""
    options = tuple(option for option in key.options if option[0] != _LATE)
    return key.kernel, key.target, key.signature, key.constexprs, key.attrs, options


def compile_keys(tracer: Tracer, keys: Sequence[CompileKey]) -> list[Outcome]:
    """Compile keys of one target with Triton, doing what is the same for several of them once.

    Whatever Triton raises is an outcome, not an error: the rest of a build goes on.
    """
    outcomes: list[Outcome] = []
    with shared_stages(backend_of(tracer.target)) as skipped:
        for key in keys:
            outcome = compile_key(tracer, key)
            if isinstance(outcome, Compiled):
                outcome = replace(outcome, shared=bool(skipped))
            outcomes.append(outcome)
            skipped.clear()
    return outcomes


def compile_key(tracer: Tracer, key: CompileKey) -> Outcome:
    """Compile one key with Triton.

    Whatever Triton raises is an outcome, not an error: the rest of a build goes on.
    """
    import triton
    from triton.compiler import ASTSource

    start = _processor_seconds()
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
        seconds=round(_processor_seconds() - start, 3),
    )


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


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
