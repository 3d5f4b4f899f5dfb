"""The listener: what a serving process writes down of the kernels that Triton looks up, and above all compiles.

In the process that serves, before its first launch::

    from aotpack.listener import listen

    listen("/tmp/misses.jsonl")

Each compile then adds a line to the file, with everything that its cache key is made of; ``aotpack explain-miss``
tells from it which part kept a bundle's kernel from being found, and ``aotpack coverage --recorded`` which keys a run
met. Several processes may write to one file. Nothing here can break serving: what goes wrong is one warning.
"""

import hashlib
import logging
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json, digest_bytes
from aotpack.errors import AotpackError
from aotpack.record import Build, Function, Launch, Source, spell_build, spell_launch
from aotpack.sourcekeys import reached
from aotpack.targets import Target
from aotpack.toolchain import backend_of, local_libtriton, local_toolchain
from aotpack.tracing.recorder import compile_key_of, kernel_name

_LOG = logging.getLogger(__name__)


def listen(path: str | os.PathLike[str], *, hits: bool = False) -> None:
    """Add a line to a file for each kernel that Triton compiles in this process from now on.

    A listener that was there before is still told of everything.

    Args:
        path: the file of records; it is created where it is missing.
        hits: also a line for each kernel that the cache had.
    """
    from triton import knobs

    knobs.compilation.listener = _Listener(Path(path), knobs.compilation.listener, hits=hits)


class _Listener:
    """What Triton calls after each lookup (triton/knobs.py, ``CompilationListener``)."""

    def __init__(self, path: Path, before: Callable[..., None] | None, *, hits: bool) -> None:
        self._path = path
        self._before = before
        self._hits = hits
        self._builds: set[tuple[int, str]] = set()
        self._warned = False

    def __call__(self, **event: Any) -> None:
        try:
            if (self._hits or not event["cache_hit"]) and hasattr(event["src"], "fn"):
                self._write(describe(**event))
        except Exception as error:  # noqa: BLE001  # serving goes on whatever happens here
            if not self._warned:
                self._warned = True
                _LOG.warning("%s: compiles are not recorded: %s: %s", self._path, type(error).__name__, error)
        if self._before is not None:
            self._before(**event)

    def _write(self, launch: Launch) -> None:
        lines = [spell_launch(launch)]
        # A forked process writes its build anew: where its parent's line lies it cannot know.
        build = (os.getpid(), launch.build.digest)
        if build not in self._builds:
            lines.insert(0, spell_build(launch.build))
        # One write, so that lines of processes that share the file do not mix.
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, "".join(canonical_json(line) + "\n" for line in lines).encode())
        finally:
            os.close(handle)
        self._builds.add(build)


def describe(
    *, src: Any, metadata: Mapping[str, Any], metadata_group: Mapping[str, str], times: Any, cache_hit: bool, **_: Any
) -> Launch:
    """A lookup, from what Triton tells a listener of it (triton/compiler/compiler.py, ``compile``).

    Args:
        src: an ``ASTSource``.
        metadata: the back end's options by name among others; after a hit as JSON kept them, which in a store is
            without the cache key.
        metadata_group: the entry's files.
        times: how long the stages took, in microseconds.
        cache_hit: whether the cache had it.

    Raises:
        ToolchainError: this Triton cannot say what its keys are made of.
    """
    function = src.fn
    told = metadata["target"]
    target = Target(backend=told.backend, arch=told.arch, warp_size=told.warp_size)
    backend = backend_of(target)
    options = {name: _tuples(metadata[name]) for name in vars(backend.parse_options({})) if name in metadata}
    computed = _hash(src, backend, options)
    key, problem = None, ""
    try:
        key = compile_key_of(function, target, src.signature, src.constants, src.attrs, options)
    except AotpackError as error:
        problem = str(error)
    return Launch(
        kernel=kernel_name(function),
        name=str(src.name)[:150],
        cache_key=metadata.get("hash", computed),
        target=target,
        hit=cache_hit,
        milliseconds=times.total / 1000,
        cache=next((Path(path).parent.parent for path in metadata_group.values()), Path()),
        key=key,
        exact=computed == metadata.get("hash", computed),
        problem=problem,
        source=_source_of(function),
        build=Build(toolchain=local_toolchain([target]), libtriton=local_libtriton(), python=platform.python_version()),
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def _hash(src: Any, backend: Any, options: dict[str, Any]) -> str:
    """The cache key that the recorded parts give."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key

    given = {name: value for name, value in options.items() if name != "extern_libs"}
    text = get_cache_key(src, backend, backend.parse_options(given), env_vars=get_cache_invalidating_env_vars())
    return hashlib.sha256(text.encode()).hexdigest()


def _source_of(function: Any) -> Source:
    return Source(
        cache_key=function.cache_key,
        functions=tuple(
            Function(
                name=name,
                line=item.starting_line_number,
                text=digest_bytes(item.src.encode()),
                constants=tuple(sorted({one.spelling: repr(one.value) for one in references if one.keyed}.items())),
            )
            for name, item, references in reached([function])
        ),
    )
