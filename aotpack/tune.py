"""Tuning on a GPU: which configurations of the engine's autotuned kernels are the fastest, written down as text.

Wrappers are driven as for a build, in processes that have no device; what they hand to autotuned kernels is then
launched in a process that has one, by Triton's own autotuner. A launch that breaks the device's context costs its own
result and nothing else.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from aotpack.build import Selection, Ticker, silent
from aotpack.deployments import Deployment, canonical_deployments
from aotpack.errors import ModelError, ToolchainError
from aotpack.gpus import read_driver
from aotpack.measuring import Bench, MeasureFailed, measure, prepare
from aotpack.pool import Pool, WorkerSpec, end_workers
from aotpack.results import read_results, write_results
from aotpack.targets import DEVICES, Target
from aotpack.tracing.trials import Trial
from aotpack.tuning import Result, Tuning

Outcome = Result | MeasureFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was measured.

    Attributes:
        device: on which product.
        files: that hold the results.
        results: what was measured now.
        known: decisions that had a result for the device before, and were left alone.
        failures: what could not be measured.
    """

    device: str
    files: tuple[Path, ...]
    results: tuple[Result, ...]
    known: int
    failures: tuple[MeasureFailed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The GPU that is measured on.

    Attributes:
        name: the product, as the driver spells it.
        target: what is compiled for it.
        cuda: the newest CUDA that its driver supports.
    """

    name: str
    target: Target
    cuda: str


def this_gpu() -> Meter:
    """The first of the GPUs that this process may see.

    Raises:
        ToolchainError: there is none, or kernels cannot be built for it.
    """
    driver = read_driver()
    if driver is None or not driver.gpus:
        why = driver.trouble if driver is not None and driver.trouble else "no GPU"
        raise ToolchainError(f"tuning measures on a GPU, and this machine has {why}; run it where the engine serves")
    gpu = driver.gpus[0]
    if gpu.arch not in DEVICES:
        listed = ", ".join(f"sm{arch}" for arch in DEVICES)
        raise ToolchainError(f"{gpu.name} is of sm{gpu.arch}, which aotpack does not build for; it does for {listed}")
    return Meter(name=gpu.name, target=Target("cuda", gpu.arch), cuda=".".join(map(str, driver.cuda or ("unknown",))))


def tune(
    selection: Selection,
    gpu: Meter,
    *,
    directory: Path,
    cache: Path,
    milliseconds: int = 100,
    jobs: int = 1,
    again: bool = False,
    tick: Ticker = silent,
) -> Tuned:
    """Measure every decision that a selection's autotuners take, and write the results, each as it comes.

    Args:
        selection: what to measure for; its targets are not asked.
        gpu: this machine's.
        directory: of results, see ``aotpack.tuning``.
        cache: Triton's cache directory; what a bundle has installed there is not compiled.
        milliseconds: how long each configuration is launched.
        jobs: worker processes for tracing.
        again: measure also what has a result for the device.
        tick: told of progress.

    Raises:
        ModelError: none of the deployments launches an autotuned kernel.
        DocumentError, OutputError: as ``write_results``.
        EngineError, TracingError, ToolchainError: as ``aotpack.tracing.Tracer``.
    """
    engine = selection.engine
    trials = _trials(selection, gpu, jobs, tick)
    found = read_results(directory, engine.name, engine.version)
    known = set() if again else {result.tuning for result in found if result.device == gpu.name}
    waiting = [trial for trial in trials if trial.tuning not in known]
    bench = Bench(
        engine=engine,
        target=gpu.target,
        families=tuple(sorted(selection.families)),
        cache=cache,
        cuda=gpu.cuda,
        milliseconds=milliseconds,
    )
    files: dict[Path, None] = {}
    outcomes: list[Outcome] = []
    for outcome in run_trials(bench, waiting):
        outcomes.append(outcome)
        if isinstance(outcome, Result):
            files |= dict.fromkeys(write_results(directory, engine.name, engine.version, [outcome]))
        tick(f"measuring on {gpu.name}", len(outcomes), len(waiting))
    return Tuned(
        device=gpu.name,
        files=tuple(files),
        results=tuple(outcome for outcome in outcomes if isinstance(outcome, Result)),
        known=len(trials) - len(waiting),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, MeasureFailed)),
    )


def _trials(selection: Selection, gpu: Meter, jobs: int, tick: Ticker) -> list[Trial]:
    """One trial for each decision, in the order of the deployments."""
    # In the order that the user gave: what matters most is measured first.
    deployments: list[Deployment] = []
    for service in selection.services:
        deployments += [one for one in canonical_deployments(service.deployments(gpu.target)) if one not in deployments]
    spec = WorkerSpec(
        engine=selection.engine,
        target=gpu.target,
        families=tuple(sorted(selection.families)),
        device=replace(DEVICES[gpu.target.arch], name=gpu.name),
    )
    found: dict[Tuning, Trial] = {}
    with Pool(spec, jobs) as pool:
        for done, trials in enumerate(pool.trials(deployments), start=1):
            for trial in trials:
                found.setdefault(trial.tuning, trial)
            tick(f"tracing for {gpu.name}", done, len(deployments))
    if not found:
        raise ModelError(
            f"{', '.join(map(str, deployments))}: launches no autotuned kernel on {gpu.target.short}; "
            "nothing is measured"
        )
    return list(found.values())


def run_trials(bench: Bench, trials: Sequence[Trial]) -> Iterator[Outcome]:
    """The outcome of each trial, in order; after one that failed, the next are measured in a new process."""
    executor: ProcessPoolExecutor | None = None
    done = 0
    try:
        for trial in trials:
            if executor is None:
                executor = ProcessPoolExecutor(
                    1, mp_context=get_context("spawn"), initializer=prepare, initargs=(bench,)
                )
            try:
                outcome = executor.submit(measure, bench, trial).result()
            except BrokenProcessPool:
                outcome = MeasureFailed(trial=trial, reason="the process died that launched it")
            if isinstance(outcome, MeasureFailed):
                end_workers(executor, abruptly=True)
                executor = None
            done += 1
            yield outcome
    finally:
        if executor is not None:
            end_workers(executor, abruptly=done < len(trials))
