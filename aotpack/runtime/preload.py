"""Preload: kernels made ready in the process that serves, before its first launch of them.

A key that lies in Triton's cache still costs its first launch a lookup and the driver's load of the code, and
Triton's ``jit_post_compile_hook`` fires for it, which vLLM's JIT monitor takes for a compile. What is here fills the
dictionary in which a launch looks before anything else (``JITFunction.device_caches``), with kernels whose code is
loaded. It does what ``triton.compile`` does for an entry that it finds (triton/compiler/compiler.py, ``compile``) and
stops where that would begin to compile, so nothing is ever compiled here, and no hook is called.

Triton's own ``JITFunction.preload`` is not used: it compiles what it does not find, and calls the hook.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotpack import runtime
from aotpack.errors import ToolchainError
from aotpack.keys import CompileKey, LaunchOptions
from aotpack.manifest import Manifest
from aotpack.memorykeys import jit_function, look_up, memory_key
from aotpack.runtime.results import settle
from aotpack.runtime.trouble import LOG, switched_on, tolerated, warn
from aotpack.targets import Target
from aotpack.toolchain import KeyMaker, attrs_of, constexprs_of, signature_of
from aotpack.tritoncache import directory_name
from aotpack.tuning import Tuning

SECONDS = 10.0
"""How long a preload may take; what is not ready by then is loaded by its first launch, as without it."""

THREADS = 4
"""Reading files and the driver's load of code leave Python's lock alone; the rest does not, so more gain nothing."""

Outcome = str | Exception
"""What became of a key: which count of ``Preloaded`` it belongs to, or what was raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preloaded:
    """What a preload did, in keys.

    Attributes:
        ready: loaded now.
        present: the process had launched or loaded them before.
        unimported: their kernel's module is not imported in this process, or the kernel is not in it.
        unfound: not in the cache (never installed, or the engine's source or the toolchain is another one), or Triton
            is told not to look there.
        unrecorded: the bundle does not say how they are launched.
        late: there was no time left.
        failed: they lie in the cache and could not be loaded.
        tuned: decisions of autotuners that are taken, out of what was measured on this device.
        seconds: how long it took.
    """

    ready: int = 0
    present: int = 0
    unimported: int = 0
    unfound: int = 0
    unrecorded: int = 0
    late: int = 0
    failed: int = 0
    tuned: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """One line for a log."""
        left_out = [
            (self.unimported, "of modules that are not imported"),
            (self.unfound, "not in the cache"),
            (self.unrecorded, "whose launches are not recorded"),
            (self.late, "for want of time"),
            (self.failed, "could not be loaded"),
        ]
        every = self.ready + self.present + sum(count for count, _ in left_out)
        said = ", ".join(f"{count} {why}" for count, why in left_out if count) or "none"
        tuned = f", {self.tuned} autotuned" if self.tuned else ""
        return (
            f"{self.ready + self.present} of {every} keys are preloaded{tuned} after {self.seconds:.2f} s; "
            f"left out: {said}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One key to make ready.

    Attributes:
        key: the compile key.
        name: the stem of its files in the cache.
        function: the ``JITFunction``.
        ready: where launches look, by in-memory key.
        wanted: the in-memory keys.
    """

    key: CompileKey
    name: str
    function: Any
    ready: dict[Any, Any]
    wanted: tuple[Any, ...]


class Preloader:
    """Makes what some bundles cover ready in this process; what a run leaves for want of its module, the next tries."""

    def __init__(self, manifests: Iterable[Manifest] | None = None) -> None:
        """Prepare; nothing is read yet.

        Args:
            manifests: of the bundles; None means those that are effective in this process.
        """
        self._manifests = manifests
        self._waiting: dict[CompileKey, tuple[str, frozenset[LaunchOptions]]] | None = None
        self._unsettled: list[Tuning] = []

    def run(self, *, device: int | None = None, seconds: float | None = None, threads: int = THREADS) -> Preloaded:
        """Make ready what can be, and tell of it in one line of the log.

        Nothing is raised: what goes wrong is one warning, and launches do as they did without this.

        Args:
            device: for which device; None means the current one.
            seconds: how long it may take; None means ``AOTPACK_PRELOAD_SECONDS``, else ``SECONDS``.
            threads: how many load at once.

        Raises:
            Exception: with ``AOTPACK_STRICT=1`` alone, whatever went wrong.
        """
        done = Preloaded()
        if not switched_on("AOTPACK_DISABLE"):
            with tolerated("kernels are not preloaded"):
                done, errors = self._run(device, _seconds() if seconds is None else seconds, threads)
                if done != Preloaded(seconds=done.seconds):
                    LOG.info("%s", done)
                for error in errors[:1]:
                    raise error
        return done

    def _run(self, device: int | None, seconds: float, threads: int) -> tuple[Preloaded, list[Exception]]:
        started = time.monotonic()
        if self._waiting is None:
            manifests = list(effective_manifests() if self._manifests is None else self._manifests)
            self._waiting = _launches(manifests)
            self._unsettled = list({kept.result.tuning: None for one in manifests for kept in one.results})
            self._manifests = ()
        if not self._waiting:
            return Preloaded(), []
        from triton.runtime.driver import driver

        active = driver.active
        before = active.get_current_device()
        device = before if device is None else device
        _use(active, device)
        try:
            outcomes: list[Outcome] = []
            tuned = self._settle(active.get_current_target(), outcomes)
            jobs = list(self._jobs(active.get_current_target(), device, outcomes))
            outcomes += _load(jobs, active, device, started + seconds, threads)
        finally:
            _use(active, before)
        errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        counts = Counter("failed" if isinstance(outcome, Exception) else outcome for outcome in outcomes)
        return Preloaded(**counts, tuned=tuned, seconds=time.monotonic() - started), errors

    def _settle(self, found: Any, outcomes: list[Outcome]) -> int:
        """Have autotuners take what was measured; how many decisions that are."""
        target = Target(found.backend, found.arch, found.warp_size)
        try:
            ours = [tuning for tuning in self._unsettled if tuning.target == target]
            taken, self._unsettled = settle(ours, imported_value) if ours else (0, [])
        except Exception as error:  # noqa: BLE001  # kernels are made ready all the same
            outcomes.append(error)
            return 0
        return taken

    def _jobs(self, found: Any, device: int, outcomes: list[Outcome]) -> Iterator[_Job]:
        """What is to be made ready; of the other keys, ``outcomes`` gets why not."""
        target = Target(found.backend, found.arch, found.warp_size)
        asked = {key: asked for key, asked in (self._waiting or {}).items() if key.target == target}
        functions = {kernel: imported_function(kernel) for kernel in {key.kernel for key in asked}}
        self._waiting = {key: waiting for key, waiting in asked.items() if functions[key.kernel] is None}
        outcomes += ["unimported"] * len(self._waiting)
        for key, (name, launches) in asked.items():
            function = functions[key.kernel]
            if function is None:
                continue
            if tuple(function.arg_names) != tuple(parameter for parameter, _ in key.signature):
                outcomes.append("unfound")
                continue
            ready = function.device_caches[device][0]
            wanted = {memory_key(function, key, launch) for launch in launches} - {None}
            if wanted - ready.keys():
                yield _Job(key=key, name=name, function=function, ready=ready, wanted=tuple(wanted))
            else:
                outcomes.append("present" if wanted else "unfound" if launches else "unrecorded")


def _load(jobs: Sequence[_Job], active: Any, device: int, until: float, threads: int) -> Iterator[Outcome]:
    """What becomes of each job."""
    if _compiles_always():
        yield from ["unfound"] * len(jobs)
        return
    maker = KeyMaker()

    def load(job: _Job) -> Outcome:
        try:
            return "late" if time.monotonic() > until else _make_ready(job, maker)
        except Exception as error:  # noqa: BLE001  # one key that cannot be loaded keeps no other
            return error

    # What Triton hashes once, it hashes in this thread: itself for the first key, and each kernel for its first. Up to
    # Triton 3.7 a kernel's hash depends on which others have been hashed by then.
    firsts = {id(job.function): job for job in reversed(jobs)}
    yield from map(load, reversed(firsts.values()))
    with ThreadPoolExecutor(threads, "aotpack-preload", _use, (active, device)) as pool:
        yield from pool.map(load, [job for job in jobs if job is not firsts[id(job.function)]])


def _use(active: Any, device: int) -> None:
    """Make a device this thread's current one."""
    if active.get_current_device() != device:
        active.set_current_device(device)


def preload(
    manifests: Iterable[Manifest] | None = None,
    *,
    device: int | None = None,
    seconds: float | None = None,
    threads: int = THREADS,
) -> Preloaded:
    """Make ready what bundles cover of the modules that this process has imported, for its current device.

    To be called when the engine has loaded its model, and its device is chosen; see ``Preloader``.
    """
    return Preloader(manifests).run(device=device, seconds=seconds, threads=threads)


def effective_manifests() -> Iterator[Manifest]:
    """The manifests of the bundles that are effective in this process, which is activated for it.

    What cannot be read is left out with a warning.
    """
    runtime.activate()
    for place in runtime.served_places():
        yield from place.manifests()


def _launches(manifests: Iterable[Manifest]) -> dict[CompileKey, tuple[str, frozenset[LaunchOptions]]]:
    """The keys that bundles hold, each with the stem of its files and the launches of all of them that ask for it."""
    found: dict[CompileKey, tuple[str, frozenset[LaunchOptions]]] = {}
    for manifest in manifests:
        for entry in manifest.entries:
            _, launches = found.get(entry.key, ("", frozenset()))
            found[entry.key] = (entry.name, launches.union(entry.launches))
    return found


def imported_value(kernel: str) -> Any:
    """What the module of a kernel, ``module:qualname``, has under its name; None unless it is imported."""
    module, _, qualname = kernel.partition(":")
    return look_up(sys.modules.get(module), qualname)


def imported_function(kernel: str) -> Any:
    """The ``JITFunction`` of a kernel, ``module:qualname``, under what wraps it; None unless its module is imported."""
    return jit_function(imported_value(kernel))


def _compiles_always() -> bool:
    """Whether this process has asked Triton to compile whatever lies in the cache, or to compile otherwise."""
    from triton import knobs

    other_stages = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    return bool(knobs.compilation.always_compile or knobs.compilation.override or other_stages is not None)


def _make_ready(job: _Job, maker: KeyMaker) -> Outcome:
    """Load one key, and say what it counts as; it is found by launches only when it can be launched."""
    from triton.compiler.compiler import ASTSource, CompiledKernel
    from triton.runtime.errors import OutOfResources

    try:
        cache_key = maker.key_of(job.key, job.function.cache_key)
    except ToolchainError:
        return "unfound"  # an option of the back end has another value here
    group = _group(cache_key, f"{job.name}.json")
    if group is None:
        return "unfound"
    source = ASTSource(job.function, signature_of(job.key), constexprs_of(job.key), attrs_of(job.key))
    kernel = CompiledKernel(source, group, cache_key)
    with suppress(OutOfResources):  # launches raise it again from the kernel; an autotuner counts on that
        kernel._init_handles()  # noqa: SLF001  # what ``run`` does at the first launch, only before it
    for wanted in job.wanted:
        job.ready.setdefault(wanted, kernel)
    return "ready"


def _group(cache_key: str, file: str) -> dict[str, str] | None:
    """The files of a cache entry by name; None where it is not there. A plain cache directory is left as it is."""
    from triton import knobs
    from triton.runtime.cache import FileCacheManager, get_cache_manager

    manager = knobs.cache.manager_class or FileCacheManager
    served, directory = getattr(manager, "served", None), directory_name(cache_key)
    if served is not None and (found := served.group(directory, file)) is not None:
        return found  # type: ignore[no-any-return]
    # Triton's own manager makes a directory for whatever it is asked.
    if getattr(manager, "configured", manager) is FileCacheManager and not Path(knobs.cache.dir, directory).is_dir():
        return None
    group: dict[str, str] = get_cache_manager(cache_key).get_group(file) or {}
    return group if file in group else None


def _seconds() -> float:
    given = os.environ.get("AOTPACK_PRELOAD_SECONDS", "")
    try:
        return float(given) if given else SECONDS
    except ValueError:
        warn(f"AOTPACK_PRELOAD_SECONDS={given} is no number of seconds; {SECONDS} is taken")
        return SECONDS
