"""The cluster: compiling on the workers of a Dask cluster that is there already.

The cluster's own ``concurrent.futures`` interface takes the tasks, so a build here and one there share their code
(``aotpack.pool``). A Dask worker is a long-lived process that others use too, so it is not turned into a target:
it keeps child processes for that, as many as it has threads. A compiler that crashes takes such a child with it, and
not the worker.

Before a worker is given a key it must say that it would compile the same: its aotpack, its Triton with libdevice and
assembler, and the engine's kernels as its own files have them are compared with those of the machine that builds. A
worker that differs is refused by its name, and so is one that joins later. A worker that is lost takes nothing with
it: Dask gives its tasks to another one.

Whoever may talk to a Dask scheduler may run anything on its workers: it is trusted, as the workers' answers are.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing import current_process, get_context
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aotpack import __version__
from aotpack.engines import Engine, Say, find_engine, installed_engine
from aotpack.errors import AotpackError, ClusterError, EngineError, UsageError
from aotpack.findings import Finding
from aotpack.fingerprint import own_digest
from aotpack.pool import WORKER_BYTES, Description, Recruit, Work, WorkerSpec, default_jobs, describe, start

_T = TypeVar("_T")

SCHEME = "dask://"
_LOOK = 2.0
"""Seconds between two looks at who is in the cluster."""
_PATIENCE = 60.0
"""Seconds to wait for a worker where all are lost: they may be being restarted."""
_CONNECT = "30s"
_ANSWER = 300.0
"""Seconds for a worker to say what it is: it may have to download an engine and load it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker is.

    Attributes:
        host: the machine's name, and its process.
        aotpack: the release of aotpack there.
        code: the digest of its files.
        description: its Triton and kernels.
        processes: how many keys it compiles at once.
    """

    host: str
    aotpack: str
    code: str
    description: Description
    processes: int

    def differences(self, found: "Identity") -> Iterator[str]:
        """What makes another worker's results unfit for this one, part by part."""
        if (self.aotpack, self.code) != (found.aotpack, found.code):
            yield f"aotpack {self.aotpack} ({self.code[:19]}) is wanted, it has {found.aotpack} ({found.code[:19]})"
        wanted_triton, triton = self.description.toolchain, found.description.toolchain
        if wanted_triton.triton != triton.triton:
            yield f"Triton {wanted_triton.triton} is wanted, it has {triton.triton}"
        else:
            yield from map(str, wanted_triton.differences(triton))
        if self.description.sources != found.description.sources:
            wanted, there = (dict(one.description.sources.modules) for one in (self, found))
            changed = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
            yield f"the engine's files differ: {next(iter(changed), 'a constant that a kernel reads')}"
        elif self.description.kernels != found.description.kernels:
            yield "the engine's kernels have other source keys there"


# On the worker


class _Children:
    """The processes that a Dask worker compiles in: those of the build that asked last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spec: WorkerSpec | None = None
        self._executor: ProcessPoolExecutor | None = None
        self._cache: TemporaryDirectory[str] | None = None

    def of(self, spec: WorkerSpec) -> ProcessPoolExecutor:
        """Processes that ``spec`` made."""
        with self._lock:
            if self._executor is None or self._spec != spec:
                self._end()
                # Dask's workers are daemons, which multiprocessing denies children, lest these stay behind; ours end
                # with their parent.
                current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # noqa: SLF001
                # One for good: processes that were replaced may still be at work in it.
                self._cache = self._cache or TemporaryDirectory(prefix="aotpack-", ignore_cleanup_errors=True)
                self._executor = ProcessPoolExecutor(
                    max_workers=_processes(),
                    mp_context=get_context("spawn"),
                    initializer=start,
                    initargs=(_localised(spec), self._cache.name),
                )
                self._spec = spec
            return self._executor

    def renew(self, worn: ProcessPoolExecutor) -> None:
        """Have the next task start fresh processes; those that still work end when they are done."""
        with self._lock:
            if self._executor is worn:
                self._end()

    def _end(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        self._executor = self._spec = None


_children = _Children()


def _processes() -> int:
    from distributed import get_worker

    return max(1, min(int(get_worker().state.nthreads), default_jobs()))


def _localised(spec: WorkerSpec) -> WorkerSpec:
    """The same with the engine where this machine has it."""
    return replace(spec, engine=_engine_here(spec.engine))


def _engine_here(engine: Engine) -> Engine:
    if (engine.package / "__init__.py").is_file():
        return engine
    if engine.origin == f"{engine.name}=={engine.version}":
        return find_engine(engine.origin, lambda _: None)
    found = installed_engine(engine.name)
    if found is None:
        raise EngineError(
            f"{engine} ({engine.origin}) is neither at {engine.root} nor installed; build from a release such as "
            f"{engine.name}=={engine.version}, or put its files at the same path on every worker"
        )
    return found


def identify(spec: WorkerSpec) -> Identity:
    """What this worker is, and would compile for a target with.

    Raises:
        AotpackError: it cannot compile for it at all.
    """
    missing = [name for name in ("torch", "triton") if find_spec(name) is None]
    if missing:
        raise ClusterError(f"it lacks {' and '.join(missing)}; install aotpack[build,dask] there")
    description = run(spec, describe)
    return Identity(
        host=f"{socket.gethostname()} (process {os.getpid()})",
        aotpack=__version__,
        code=own_digest(),
        description=description,
        processes=_processes(),
    )


def run(spec: WorkerSpec, task: Callable[..., _T], *arguments: Any) -> _T:
    """Run a task in one of this worker's children.

    Raises:
        BrokenProcessPool: the child died.
    """
    executor = _children.of(spec)
    try:
        result = executor.submit(task, *arguments).result()
    except BrokenProcessPool:
        _children.renew(executor)
        raise
    if isinstance(result, Work) and result.resident > WORKER_BYTES:
        _children.renew(executor)
    return result


# On the machine that builds


class ClusterCrew:
    """The workers of a Dask cluster that compile for one target."""

    def __init__(self, client: Any, wanted: Identity, spec: WorkerSpec, refused: list[Finding]) -> None:
        """Ask who is there.

        Args:
            client: Dask's client of the cluster.
            wanted: what a worker must be.
            spec: what its children become.
            refused: gets a finding for each worker that is another.

        Raises:
            ClusterError: none of them may compile.
        """
        self._client = client
        self._wanted = wanted
        self._spec = spec
        self._refused = refused
        self._asked: dict[str, int] = {}
        self._where: dict[Future[Any], frozenset[str]] = {}
        self._looked = self._seen = time.monotonic()
        self._present: frozenset[str] = frozenset()
        self._look()
        if not self._present:
            raise self._alone()

    def _look(self) -> None:
        """See who is in the cluster, and ask those that are new.

        Raises:
            ClusterError: none of them has been one that may compile for a while.
        """
        present = frozenset(self._client.nthreads())
        new = sorted(present - self._asked.keys())
        asked = {
            address: self._client.submit(identify, self._spec, workers=[address], allow_other_workers=False, pure=False)
            for address in new
        }
        for address, answer in asked.items():
            self._asked[address] = self._admit(address, answer)
        self._present = frozenset(address for address in present if self._asked[address])
        self._looked = time.monotonic()
        if self._present:
            self._seen = self._looked
        elif self._looked - self._seen > _PATIENCE:
            raise self._alone()

    def _alone(self) -> ClusterError:
        reasons = "; ".join(f"{finding.subject}: {finding.detail}" for finding in self._refused)
        return ClusterError(
            f"{self._client.scheduler.address}: no worker may compile ({reasons or 'there is none'}); start workers "
            "that have the aotpack, Triton and engine of this machine, and build again: what was compiled is kept"
        )

    def _admit(self, address: str, answer: Any) -> int:
        """How many keys a worker may compile at once: none where it is refused."""
        from distributed import TimeoutError as DaskTimeoutError

        subject = address
        try:
            found = answer.result(timeout=_ANSWER)
        except AotpackError as error:
            detail = str(error)
        except DaskTimeoutError:
            detail = f"it did not say what it is within {_ANSWER:.0f} s"
        except Exception as error:  # noqa: BLE001  # whatever went wrong there comes as itself
            detail = f"it cannot say what it is: {type(error).__name__}: {error}"
        else:
            subject, detail = f"{address} on {found.host}", "; ".join(self._wanted.differences(found))
            if not detail:
                return int(found.processes)
        self._refused.append(
            Finding(
                code="C103",
                subject=subject,
                detail=f"gets no key: {detail}",
                hint="have it run what the machine that builds runs",
            )
        )
        return 0

    @property
    def slots(self) -> int:
        """How many tasks run at once."""
        return max(1, sum(self._asked[address] for address in self._present))

    def submit(self, task: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Give a task to a worker that was accepted.

        Raises:
            ClusterError: no worker is left that may compile.
        """
        while not self._present:
            time.sleep(_LOOK)
            self._look()
        executor = self._client.get_executor(workers=sorted(self._present), allow_other_workers=False, pure=False)
        future: Future[_T] = executor.submit(run, self._spec, task, *arguments)
        self._where[future] = self._present
        return future

    def wait(self, running: Collection[Future[_T]]) -> set[Future[_T]]:
        """Wait for at least one of them to end.

        Raises:
            ClusterError: no worker is left that may compile.
        """
        while True:
            done = wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED).done
            if time.monotonic() - self._looked > _LOOK:
                self._look()
                for future in running:
                    if not self._where[future] & self._present:
                        future.cancel()  # all that might have run it are gone: Dask would wait for them
            if done:
                for future in done:
                    self._where.pop(future, None)
                return done

    def result(self, future: Future[_T]) -> _T:
        """What a task gave.

        Raises:
            BrokenProcessPool: the process that ran it died.
        """
        from distributed import KilledWorker

        try:
            return future.result()
        except KilledWorker as error:  # Dask has given it to several workers, and each was lost
            raise BrokenProcessPool(str(error)) from None

    def renew(self) -> None:
        """Nothing to do: each worker renews its own processes."""

    def close(self, *, abruptly: bool) -> None:
        """Take back what runs, where the build ends abruptly."""
        if abruptly:
            for future in self._where:
                future.cancel()


@contextmanager
def connected(address: str, refused: list[Finding], say: Say) -> Iterator[Recruit]:
    """The cluster of an address, while the block lasts.

    Args:
        address: ``dask://host:port`` of its scheduler.
        refused: gets a finding for each worker that may not compile.
        say: told how many there are.

    Yields:
        What gives the workers for a target.

    Raises:
        UsageError: the address is none.
        ClusterError: there is no scheduler, or the extra ``dask`` is not installed.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    if not address.startswith(SCHEME) or not host or not port.isdecimal():
        raise UsageError(f"{address!r} is no executor: expected local, or {SCHEME}HOST:PORT")
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError(f"{address} needs Dask ({error}); install aotpack[dask]") from None
    try:
        client = Client(f"tcp://{host}:{port}", set_as_default=False, timeout=_CONNECT)
    except OSError as error:
        raise ClusterError(f"{address}: no Dask scheduler answers: {error}; check the address and the port") from None

    def recruit(spec: WorkerSpec, description: Description) -> ClusterCrew:
        wanted = Identity(
            host=socket.gethostname(), aotpack=__version__, code=own_digest(), description=description, processes=0
        )
        say(f"asking the workers of {address} what they are")
        crew = ClusterCrew(client, wanted, spec, refused)
        say(f"compiling in {crew.slots} processes of {address}")
        return crew

    with client:
        yield recruit
