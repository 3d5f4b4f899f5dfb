"""The pool: worker processes, each turned into one target once, that trace deployments and compile keys.

Work goes over a ``concurrent.futures`` executor; results come back in the order asked for tracing and as they are
done for compiling. A worker that dies (out of memory, a crash in LLVM) takes no other key with it: the keys that
were under way are tried once more, one at a time, and the one that kills again is reported as failed.
"""

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from types import TracebackType
from typing import TypeVar

from aotpack.autotuner import Keeper, Kept
from aotpack.compiler import CompileFailed, Outcome, compile_key
from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.errors import TracingError
from aotpack.families import load_families
from aotpack.helpers import BuiltHelper, HelperSource, Launch, build_helper, helper_sources
from aotpack.interpreters import Interpreter
from aotpack.keys import CompileKey
from aotpack.manifest import Kernel
from aotpack.sources import Sources
from aotpack.targets import Device, Target
from aotpack.toolchain import Toolchain, local_toolchain
from aotpack.tracing import LINE_INFO, Traced, Tracer, clean_environment, follow_parent
from aotpack.tracing.trials import Trial
from aotpack.tuning import Result

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker turns its process into.

    Attributes:
        engine: the engine whose modules it loads.
        target: the target it pretends to be.
        families: the names of the families it can drive.
        device: the product it pretends to be; None takes the target's common one.
    """

    engine: Engine
    target: Target
    families: tuple[str, ...]
    device: Device | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What workers are, and can compile.

    Attributes:
        toolchain: their Triton build.
        kernels: the families' kernels, by name.
        sources: what the kernels are made of.
    """

    toolchain: Toolchain
    kernels: tuple[Kernel, ...]
    sources: Sources


_spec: WorkerSpec | None = None


def _start(spec: WorkerSpec, cache: str) -> None:
    """Set a fresh process up; what can fail is left to the first task, which can say so."""
    global _spec  # noqa: PLW0603  # one process, one target
    _spec = spec
    follow_parent()
    clean_environment(cache)


@lru_cache(maxsize=1)
def _tracer() -> Tracer:
    assert _spec is not None
    return Tracer(_spec.engine, _spec.target, load_families(_spec.families), _spec.device)


def _describe() -> Description:
    tracer = _tracer()
    kernels, sources = tracer.kernels()
    toolchain = local_toolchain([tracer.target], ignored_environment=[LINE_INFO])
    return Description(toolchain=toolchain, kernels=kernels, sources=sources)


def _trace(deployment: Deployment) -> tuple[Traced, ...]:
    return _tracer().trace(deployment)


def _trials(deployment: Deployment) -> tuple[Trial, ...]:
    return _tracer().trials(deployment)


def _keep(results: Sequence[Result]) -> list[Kept]:
    keeper = Keeper()
    return [keeper.keep(result) for result in results]


def _compile(key: CompileKey) -> Outcome:
    return compile_key(_tracer(), key)


def default_jobs() -> int:
    """Worker processes to use: ``AOTPACK_JOBS``, else the cores that this process may run on."""
    given = os.environ.get("AOTPACK_JOBS", "")
    return int(given) if given.isdecimal() and int(given) else len(os.sched_getaffinity(0))


class Pool:
    """Workers of one target. Use as a context manager; leaving it ends them."""

    def __init__(self, spec: WorkerSpec, jobs: int) -> None:
        """Prepare; processes start with the first work.

        Args:
            spec: what each worker becomes.
            jobs: how many there are at most.
        """
        self._spec = spec
        self._jobs = jobs
        self._cache = tempfile.TemporaryDirectory(prefix="aotpack-")
        self._executor = self._new_executor(jobs)

    def _new_executor(self, jobs: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            max_workers=jobs,
            mp_context=get_context("spawn"),
            initializer=_start,
            initargs=(self._spec, self._cache.name),
        )

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_workers(self._executor, abruptly=error is not None)
        self._cache.cleanup()

    def describe(self) -> Description:
        """What the workers are, and can compile.

        Raises:
            EngineError, TracingError, ToolchainError: as ``Tracer``.
        """
        return self._result(self._executor.submit(_describe))

    def trace(self, deployments: Sequence[Deployment]) -> Iterator[tuple[Traced, ...]]:
        """What each deployment reaches, in the order given.

        Raises:
            EngineError, TracingError, ToolchainError: as ``Tracer``.
        """
        futures = [self._executor.submit(_trace, deployment) for deployment in deployments]
        for future in futures:
            yield self._result(future)

    def trials(self, deployments: Sequence[Deployment]) -> Iterator[tuple[Trial, ...]]:
        """What is to be measured for each deployment, in the order given.

        Raises:
            EngineError, TracingError, ToolchainError: as ``Tracer``.
        """
        for future in [self._executor.submit(_trials, deployment) for deployment in deployments]:
            yield self._result(future)

    @staticmethod
    def _result(future: Future[_T]) -> _T:
        try:
            return future.result()
        except BrokenProcessPool:
            raise TracingError(
                "a worker died before it could say why; it may have run out of memory: try fewer --jobs"
            ) from None

    def keep(self, results: Sequence[Result]) -> list[Kept]:
        """What Triton would keep of each result."""
        return self._result(self._executor.submit(_keep, results))

    def helper_sources(self, launches: Sequence[Launch]) -> tuple[HelperSource, ...]:
        """The C text of each helper that launching these kernels needs.

        Raises:
            ToolchainError: as ``aotpack.helpers.helper_sources``.
        """
        return self._result(self._executor.submit(helper_sources, launches))

    def build_helpers(
        self, sources: Iterable[HelperSource], interpreters: Sequence[Interpreter]
    ) -> Iterator[BuiltHelper]:
        """Each helper for each Python, in the order given.

        Raises:
            ToolchainError: one of them cannot be compiled.
        """
        asked = [(source, interpreter) for source in sources for interpreter in interpreters]
        for future in [self._executor.submit(build_helper, *pair) for pair in asked]:
            yield self._result(future)

    def compile(self, keys: Iterable[CompileKey]) -> Iterator[Outcome]:
        """The outcome of each key, as they are done."""
        waiting = deque(keys)
        suspects: list[CompileKey] = []
        while waiting:
            try:
                yield from self._compile_until_broken(waiting, suspects)
            except BrokenProcessPool:
                self._executor = self._new_executor(self._jobs)
            for key in suspects:
                yield self._compile_alone(key)
            suspects.clear()

    def _compile_until_broken(self, waiting: deque[CompileKey], suspects: list[CompileKey]) -> Iterator[Outcome]:
        """Compile from ``waiting``; where a worker dies, leave what was under way in ``suspects`` and raise."""
        running: dict[Future[Outcome], CompileKey] = {}
        while waiting or running:
            while waiting and len(running) < 2 * self._jobs:
                key = waiting.popleft()
                try:
                    running[self._executor.submit(_compile, key)] = key
                except BrokenProcessPool:
                    suspects += [key, *running.values()]
                    raise
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    suspects += running.values()
                    raise
                del running[future]
                yield outcome

    def _compile_alone(self, key: CompileKey) -> Outcome:
        executor = self._new_executor(1)
        try:
            return executor.submit(_compile, key).result()
        except BrokenProcessPool:
            return CompileFailed(key=key, reason="the compiler's process died on this key (a crash, or out of memory)")
        finally:
            end_workers(executor, abruptly=False)


def end_workers(executor: Executor, *, abruptly: bool) -> None:
    """End an executor and its processes: when they have done what they are at, or at once."""
    if abruptly and isinstance(executor, ProcessPoolExecutor):
        for process in list((executor._processes or {}).values()):  # noqa: SLF001  # no public way before 3.14
            process.kill()
    executor.shutdown(wait=True, cancel_futures=True)
