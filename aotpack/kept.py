"""What is kept of a build: a pool whose workers are asked only for what no earlier build has found out.

What workers are, what each deployment reaches, what each key compiles to, and native helpers lie in the compile cache,
and so do the compressed frames of bundles. Each is named by the digest of all that it follows from
(``aotpack.fingerprint``), so a rebuild with nothing changed starts no worker, imports no Triton and gives the same
bytes; one of an engine where a kernel has changed compiles that kernel. Keys are kept as they are done, which makes a
build that was killed resumable.
"""

import io
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import zstandard

from aotpack import archive
from aotpack.autotuner import Kept
from aotpack.compilecache import CompileCache
from aotpack.compiler import Compiled, Outcome
from aotpack.deployments import Deployment
from aotpack.digests import canonical_json, digest_bytes, digest_file, digest_json
from aotpack.fingerprint import Basis, helper_fingerprint, source_fingerprint
from aotpack.helpers import BuiltHelper, HelperSource, Launch
from aotpack.interpreters import Interpreter
from aotpack.keys import CompileKey
from aotpack.pool import Description, Pool, Recruit, WorkerSpec
from aotpack.tracing import Traced
from aotpack.tuning import Result

_T = TypeVar("_T")
_A = TypeVar("_A")


class KeptPool(Pool):
    """A pool that looks into the compile cache first, and keeps there what its workers find out."""

    def __init__(
        self, spec: WorkerSpec, jobs: int, cache: CompileCache, basis: Basis, recruit: Recruit | None = None
    ) -> None:
        """Prepare; processes start with the first work that has not been done before.

        Args:
            spec: what each worker becomes.
            jobs: how many there are at most.
            cache: where to look, and to keep.
            basis: what the workers' answers follow from.
            recruit: gives who compiles; None means the same workers.
        """
        super().__init__(spec, jobs, recruit)
        self._cache = cache
        self._basis = basis

    @property
    def _tracing(self) -> dict[str, str]:
        return {"tracing": self._basis.tracing, "target": str(self.spec.target), "device": repr(self.spec.device)}

    @cached_property
    def _compiling(self) -> dict[str, str]:
        """By kernel, the digest of what compiling it follows from, but for the key."""
        described = self.describe()
        common = [self._basis.compiling, described.toolchain.to_json()]
        return {
            kernel.name: digest_json([*common, source_fingerprint(described.sources, kernel.name)])
            for kernel in described.kernels
        }

    @cached_property
    def _description(self) -> Description:
        name = digest_json({**self._tracing, "what": "description"})
        found = self._load(name, Description)
        if found is None:
            found = super().describe()
            self._cache.put(name, pickle.dumps(found))
        return found

    def describe(self) -> Description:
        """What the workers are, and can compile; as ``Pool.describe``."""
        return self._description

    def trace(self, deployments: Sequence[Deployment]) -> Iterator[tuple[Traced, ...]]:
        """What each deployment reaches, in the order given; as ``Pool.trace``."""
        names = [digest_json({**self._tracing, "deployment": deployment.to_json()}) for deployment in deployments]
        yield from self._each(names, deployments, tuple, super().trace)

    def keep(self, results: Sequence[Result]) -> list[Kept]:
        """What Triton keeps of results; as ``Pool.keep``."""
        if not results:
            return []
        name = digest_json({**self._tracing, "results": repr(tuple(results))})
        found = self._load(name, list)
        if found is None:
            found = super().keep(results)
            self._cache.put(name, pickle.dumps(found))
        return found

    def helper_sources(self, launches: Sequence[Launch]) -> tuple[HelperSource, ...]:
        """The C text of each helper that launching these kernels needs; as ``Pool.helper_sources``."""
        given = sorted([key.digest, digest_bytes(metadata)] for key, metadata in launches)
        name = digest_json({**self._tracing, "what": "helper sources", "launches": given})
        found = self._load(name, tuple)
        if found is None:
            found = super().helper_sources(launches)
            self._cache.put(name, pickle.dumps(found))
        return found

    def build_each(self, asked: Sequence[tuple[HelperSource, Interpreter]]) -> Iterator[BuiltHelper]:
        """Helpers, each for one Python, in the order given; as ``Pool.build_each``."""
        compiling = {interpreter: helper_fingerprint(interpreter) for interpreter in {pair[1] for pair in asked}}
        names = [
            digest_json({**self._tracing, "helper": [source.name, source.digest], "compiling": compiling[interpreter]})
            for source, interpreter in asked
        ]
        yield from self._each(names, asked, BuiltHelper, super().build_each)

    def _each(
        self, names: Sequence[str], asked: Sequence[_A], kind: type[_T], make: Callable[[list[_A]], Iterator[_T]]
    ) -> Iterator[_T]:
        """What is asked for, in the order given: as it is kept by name, or made now, and kept then."""
        known = {name: found for name in names if (found := self._load(name, kind)) is not None}
        missing = [one for name, one in zip(names, asked, strict=True) if name not in known]
        made = make(missing) if missing else iter(())
        for name in names:
            if name in known:
                yield known[name]
            else:
                found = next(made)
                self._cache.put(name, pickle.dumps(found))
                yield found

    def _load(self, name: str, kind: type[_T]) -> _T | None:
        content = self._cache.get(name)
        if content is None:
            return None
        try:
            found = _Unpickler(io.BytesIO(content)).load()
        except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError):
            self._cache.damaged.append(self._cache.path(name))
            return None
        return found if isinstance(found, kind) else None

    def compile(self, keys: Iterable[CompileKey]) -> Iterator[Outcome]:
        """The outcome of each key, those first that were compiled before; as ``Pool.compile``."""
        missing = []
        for key in keys:
            content = self._cache.get(self._name(key))
            if content is None:
                missing.append(key)
            else:
                yield _read_compiled(key, content)
        if missing:
            yield from self._compile_and_keep(missing)

    def _compile_and_keep(self, keys: Sequence[CompileKey]) -> Iterator[Outcome]:
        name = digest_json({"what": "seconds", "target": str(self.spec.target)})
        usual = _read_seconds(self._cache.get(name))
        taken: dict[str, list[float]] = {}
        for outcome in self.compile_by(keys, usual):
            if isinstance(outcome, Compiled):
                self._cache.put(self._name(outcome.key), _spell_compiled(outcome))
                taken.setdefault(outcome.key.kernel, []).append(outcome.seconds)
            yield outcome
        means = {kernel: round(sum(times) / len(times), 3) for kernel, times in taken.items()}
        self._cache.put(name, canonical_json(usual | means).encode())

    def _name(self, key: CompileKey) -> str:
        return digest_json({"key": key.digest, "compiling": self._compiling[key.kernel]})


class _Unpickler(pickle.Unpickler):
    """Reads values of aotpack's own frozen classes and of Python's plain ones, and can call nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of a value.

        Raises:
            UnpicklingError: it is not one of those.
        """
        if module.partition(".")[0] == "aotpack" and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and is_dataclass(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not kept in the compile cache")


def _spell_compiled(outcome: Compiled) -> bytes:
    header = {"name": outcome.name, "seconds": outcome.seconds, "shared": outcome.shared, "cubin": len(outcome.cubin)}
    data = zstandard.ZstdCompressor().compress(outcome.cubin + outcome.metadata)
    return canonical_json(header).encode() + b"\n" + data


def _read_compiled(key: CompileKey, content: bytes) -> Compiled:
    """What ``_spell_compiled`` spelled; the cache has checked that nobody else did."""
    line, _, compressed = content.partition(b"\n")
    data = zstandard.ZstdDecompressor().decompress(compressed)
    header = json.loads(line)
    size = header.pop("cubin")
    return Compiled(key=key, cubin=data[:size], metadata=data[size:], **header)


def _read_seconds(content: bytes | None) -> dict[str, float]:
    return json.loads(content) if content else {}


def kept_frames(cache: CompileCache) -> Callable[[bytes], bytes]:
    """The archive's compression, done once for the same bytes.

    The same frame comes out of it as without a cache: its name holds the code and the release of what compresses.
    """
    compressor = [digest_file(Path(archive.__file__)), zstandard.__version__, list(zstandard.ZSTD_VERSION)]

    def compress(data: bytes) -> bytes:
        name = digest_json({"frame": digest_bytes(data), "compressor": compressor})
        frame = cache.get(name)
        if frame is None:
            frame = archive.compress(data)
            cache.put(name, frame)
        return frame

    return compress
