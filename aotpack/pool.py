"""The pool: workers, each turned into one target once, that trace deployments and compile keys.

Work goes over ``concurrent.futures`` executors, which a crew holds: worker processes of this machine, or those of a
cluster (``aotpack.cluster``). Results come back in the order asked for tracing and as they are done for compiling. A
worker that dies (out of memory, a crash in LLVM) takes no other key with it: the keys that were under way are tried
once more, one at a time, and the one that kills again is reported as failed.

Keys that may share work travel together, and what takes longest goes first, so that no worker is left alone with a
long one at the end.
"""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from aotpack.autotuner import Keeper, Kept
from aotpack.compiler import CompileFailed, Outcome, alike, compile_keys
from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.errors import TracingError
from aotpack.families import load_families
from aotpack.helpers import BuiltHelper, HelperSource, Launch, build_helper, helper_sources
from aotpack.interpreters import Interpreter
from aotpack.keys import CompileKey
from aotpack.limits import cores, memory
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


Batch = tuple[CompileKey, ...]
"""Keys that one worker compiles together."""

WORKER_BYTES = 1200 << 20
"""Memory that a worker may hold: half of it when it has loaded torch, Triton and an engine, the rest for LLVM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a worker did with a batch.

    Attributes:
        outcomes: of each key.
        resident: bytes of memory that the worker holds afterwards.
    """

    outcomes: tuple[Outcome, ...]
    resident: int


_spec: WorkerSpec | None = None


def start(spec: WorkerSpec, cache: str) -> None:
    """Set a fresh process up; what can fail is left to the first task, which can say so."""
    global _spec  # noqa: PLW0603  # one process, one target
    _spec = spec
    follow_parent()
    clean_environment(cache)


@lru_cache(maxsize=1)
def _tracer() -> Tracer:
    assert _spec is not None
    return Tracer(_spec.engine, _spec.target, load_families(_spec.families), _spec.device)


def describe() -> Description:
    """What this process is, which ``WorkerSpec`` made, and can compile."""
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


def compile_batch(keys: Batch) -> Work:
    """Compile keys in this process, which ``WorkerSpec`` made; they are of its target."""
    return Work(outcomes=tuple(compile_keys(_tracer(), keys)), resident=resident_bytes())


def resident_bytes() -> int:
    """Memory that this process holds, without what it shares of files."""
    _, resident, shared = Path("/proc/self/statm").read_text().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def default_jobs() -> int:
    """Worker processes to use: ``AOTPACK_JOBS``, else as many as the cores and the memory that may be used allow."""
    given = os.environ.get("AOTPACK_JOBS", "")
    if given.isdecimal() and int(given):
        return int(given)
    room = memory()
    return max(1, cores() if room is None else min(cores(), room // WORKER_BYTES))


class Crew(Protocol):
    """Where tasks run, each in a process that ``WorkerSpec`` made."""

    @property
    def slots(self) -> int:
        """How many tasks run at once."""

    def submit(self, task: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Give a task to the next worker that is free."""

    def wait(self, running: Collection[Future[_T]]) -> set[Future[_T]]:
        """Wait for at least one of them to end.

        Raises:
            ClusterError: none of them ever will.
        """

    def result(self, future: Future[_T]) -> _T:
        """What a task gave.

        Raises:
            BrokenProcessPool: the process that ran it died.
        """

    def renew(self) -> None:
        """Go on with fresh processes; nothing may be running."""

    def close(self, *, abruptly: bool) -> None:
        """End the processes; abruptly, without waiting for what runs."""


Recruit = Callable[[WorkerSpec, Description], Crew]
"""Gives the workers that compile for a target, which must be as described."""


_TUNABLES = "GLIBC_TUNABLES"
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""LLVM walks over some hundred MB, and page tables with it: a compile takes 4 to 8 per cent less time where the kernel
gives transparent huge pages to those who ask (glibc 2.35, madvise)."""


@contextmanager
def _huge_pages() -> Iterator[None]:
    """Have processes that are started meanwhile ask for huge pages, unless the environment tunes glibc already."""
    if _TUNABLES in os.environ:
        yield
        return
    os.environ[_TUNABLES] = _HUGE_PAGES
    try:
        yield
    finally:
        os.environ.pop(_TUNABLES, None)


class LocalCrew:
    """Worker processes of this machine."""

    def __init__(self, spec: WorkerSpec, jobs: int) -> None:
        self._spec = spec
        self.slots = jobs
        self._cache = tempfile.TemporaryDirectory(prefix="aotpack-")
        self._executor = self._new_executor()

    def _new_executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            max_workers=self.slots,
            mp_context=get_context("spawn"),
            initializer=start,
            initargs=(self._spec, self._cache.name),
        )

    def submit(self, task: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Give a task to the next process that is free; it starts with the first one."""
        with _huge_pages():  # processes are started here and nowhere else
            return self._executor.submit(task, *arguments)

    def wait(self, running: Collection[Future[_T]]) -> set[Future[_T]]:
        """Wait for at least one of them to end."""
        return wait(running, return_when=FIRST_COMPLETED).done

    def result(self, future: Future[_T]) -> _T:
        """What a task gave.

        Raises:
            BrokenProcessPool: the process that ran it died.
        """
        return future.result()

    def renew(self) -> None:
        """Go on with fresh processes; nothing may be running."""
        self._executor.shutdown(wait=True)
        self._executor = self._new_executor()

    def close(self, *, abruptly: bool) -> None:
        """End the processes; abruptly, without waiting for what runs."""
        end_workers(self._executor, abruptly=abruptly)
        self._cache.cleanup()


class Pool:
    """Workers of one target. Use as a context manager; leaving it ends them."""

    def __init__(self, spec: WorkerSpec, jobs: int, recruit: Recruit | None = None) -> None:
        """Prepare; processes start with the first work.

        Args:
            spec: what each worker becomes.
            jobs: how many there are at most on this machine.
            recruit: gives who compiles; None means the workers of this machine.
        """
        self.spec = spec
        self._crew = LocalCrew(spec, jobs)
        self._recruit = recruit

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crew.close(abruptly=error is not None)

    def describe(self) -> Description:
        """What the workers are, and can compile.

        Raises:
            EngineError, TracingError, ToolchainError: as ``Tracer``.
        """
        return self._result(self._crew.submit(describe))

    def trace(self, deployments: Sequence[Deployment]) -> Iterator[tuple[Traced, ...]]:
        """What each deployment reaches, in the order given.

        Raises:
            EngineError, TracingError, ToolchainError: as ``Tracer``.
        """
        futures = [self._crew.submit(_trace, deployment) for deployment in deployments]
        for future in futures:
            yield self._result(future)

    def trials(self, deployments: Sequence[Deployment]) -> Iterator[tuple[Trial, ...]]:
        """What is to be measured for each deployment, in the order given.

        Raises:
            EngineError, TracingError, ToolchainError: as ``Tracer``.
        """
        for future in [self._crew.submit(_trials, deployment) for deployment in deployments]:
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
        return self._result(self._crew.submit(_keep, results)) if results else []

    def helper_sources(self, launches: Sequence[Launch]) -> tuple[HelperSource, ...]:
        """The C text of each helper that launching these kernels needs.

        Raises:
            ToolchainError: as ``aotpack.helpers.helper_sources``.
        """
        return self._result(self._crew.submit(helper_sources, launches))

    def build_helpers(
        self, sources: Iterable[HelperSource], interpreters: Sequence[Interpreter]
    ) -> Iterator[BuiltHelper]:
        """Each helper for each Python, in the order given.

        Raises:
            ToolchainError: one of them cannot be compiled.
        """
        yield from self.build_each([(source, interpreter) for source in sources for interpreter in interpreters])

    def build_each(self, asked: Sequence[tuple[HelperSource, Interpreter]]) -> Iterator[BuiltHelper]:
        """Helpers, each for one Python, in the order given.

        Raises:
            ToolchainError: one of them cannot be compiled.
        """
        for future in [self._crew.submit(build_helper, *pair) for pair in asked]:
            yield self._result(future)

    def compile(self, keys: Iterable[CompileKey]) -> Iterator[Outcome]:
        """The outcome of each key, as they are done.

        Raises:
            ClusterError: there are no workers left.
        """
        yield from self.compile_by(keys, {})

    def compile_by(self, keys: Iterable[CompileKey], seconds: Mapping[str, float]) -> Iterator[Outcome]:
        """The outcome of each key, as they are done.

        Args:
            keys: what to compile.
            seconds: what keys of a kernel took before, by kernel, where that is known.

        Raises:
            ClusterError: there are no workers left.
        """
        if self._recruit is None:
            yield from compile_over(self._crew, batches(keys, seconds))
            return
        crew = self._recruit(self.spec, self.describe())
        ended = False
        try:
            yield from compile_over(crew, batches(keys, seconds))
            ended = True
        finally:
            crew.close(abruptly=not ended)


def compile_over(crew: Crew, batches: Iterable[Batch]) -> Iterator[Outcome]:
    """The outcome of each key, as they are done, over whatever workers there are.

    Raises:
        ClusterError: there are no workers left.
    """
    waiting = deque(batches)
    while waiting:
        suspects: list[CompileKey] = []
        yield from _compile_until_worn(crew, waiting, suspects)
        if waiting or suspects:
            crew.renew()
        for key in suspects:
            yield from _compile_alone(crew, key)


def batches(keys: Iterable[CompileKey], seconds: Mapping[str, float]) -> list[Batch]:
    """Keys that may share work put together, what takes longest first.

    Where nothing is known of a kernel, it is taken for a long one if its launches are tuned: it has several keys
    then that are alike, and those are the kernels that engines compute most in.
    """
    grouped: dict[Hashable, list[CompileKey]] = {}
    for key in keys:
        grouped.setdefault(alike(key), []).append(key)
    usual = max(seconds.values(), default=1.0)
    return sorted(
        (tuple(batch) for batch in grouped.values()),
        key=lambda batch: len(batch) * seconds.get(batch[0].kernel, usual),
        reverse=True,
    )


def _compile_until_worn(crew: Crew, waiting: deque[Batch], suspects: list[CompileKey]) -> Iterator[Outcome]:
    """Compile from ``waiting``, up to where the workers need renewal.

    That is where one dies, which leaves what was under way in ``suspects``, or where one has grown too large: LLVM
    gives not all of its memory back.
    """
    running: dict[Future[Work], Batch] = {}
    worn = False
    while running or (waiting and not worn):
        while waiting and not worn and len(running) < 2 * crew.slots:
            batch = waiting.popleft()
            try:
                running[crew.submit(compile_batch, batch)] = batch
            except BrokenProcessPool:
                suspects += batch
                worn = True
        for future in crew.wait(running) if running else ():
            batch = running.pop(future)
            try:
                work = crew.result(future)
            except (BrokenProcessPool, CancelledError):
                suspects += batch
                worn = True
                continue
            worn |= work.resident > WORKER_BYTES
            yield from work.outcomes


def _compile_alone(crew: Crew, key: CompileKey) -> Iterator[Outcome]:
    try:
        future = crew.submit(compile_batch, (key,))
        crew.wait([future])
        yield from crew.result(future).outcomes
    except (BrokenProcessPool, CancelledError):
        yield CompileFailed(key=key, reason="the compiler's process died on this key (a crash, or out of memory)")
        crew.renew()


def end_workers(executor: Executor, *, abruptly: bool) -> None:
    """End an executor and its processes: when they have done what they are at, or at once."""
    if abruptly and isinstance(executor, ProcessPoolExecutor):
        for process in list((executor._processes or {}).values()):  # noqa: SLF001  # no public way before 3.14
            process.kill()
    executor.shutdown(wait=True, cancel_futures=True)
