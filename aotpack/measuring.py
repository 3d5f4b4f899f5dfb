"""Measuring: Triton's own autotuner, run on this machine's GPU. Worker side: a process of its own that has the device.

Nothing is pretended here but the engine's other modules. What is launched are trials (see ``aotpack.tracing.trials``),
whose tensors of indices hold what the engine's wrappers computed, and only autotuned kernels.
"""

import os
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from aotpack import __version__
from aotpack.autotuner import configuration_of, find_autotuner
from aotpack.compiler import one_line
from aotpack.engines import Engine
from aotpack.errors import ToolchainError
from aotpack.families import load_families
from aotpack.memorykeys import look_up
from aotpack.targets import DEVICES, Device, Target
from aotpack.tracing import LINE_INFO, clean_environment, follow_parent, import_kernels
from aotpack.tracing.trials import Trial
from aotpack.tuning import Measured, Quantiles, Result

_DRIVER = ("TRITON_LIBCUDA_PATH",)
"""Variables that say where the driver is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where trials are measured.

    Attributes:
        engine: the engine whose kernels they launch.
        target: the GPU's.
        families: the families that name the kernels.
        cache: Triton's cache directory; what lies there is not compiled.
        cuda: the newest CUDA that the driver supports, as ``Measured`` has it.
        milliseconds: how long each configuration is launched again and again.
        place: what torch calls the device.
    """

    engine: Engine
    target: Target
    families: tuple[str, ...]
    cache: Path
    cuda: str
    milliseconds: int
    place: str = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureFailed:
    """A trial that could not be measured.

    Attributes:
        trial: the trial.
        reason: what was raised, in one line.
    """

    trial: Trial
    reason: str


def prepare(bench: Bench) -> None:
    """Make this process's environment what a bench needs, before torch is imported.

    Lines are in the code as where an engine serves, so that what a bundle has installed for it is found here too; and
    what Triton has remembered of earlier measurements is not.
    """
    follow_parent()
    driver = {name: os.environ[name] for name in _DRIVER if name in os.environ}
    clean_environment(str(bench.cache))
    del os.environ[LINE_INFO]
    os.environ |= driver


def measure(bench: Bench, trial: Trial) -> Result | MeasureFailed:
    """Have Triton's autotuner measure a trial on this process's current device.

    Whatever it raises is an outcome. The device may not be usable in this process after that.
    """
    try:
        return _measure(bench, trial)
    except Exception as error:  # noqa: BLE001  # Triton, torch and the driver raise anything
        return MeasureFailed(trial=trial, reason=one_line(f"{type(error).__name__}: {error}"))


@lru_cache(maxsize=1)
def _modules(bench: Bench) -> dict[str, Any]:
    """The engine's modules, told of this machine's device, and the device."""
    import torch

    device = _device(torch, bench.target)
    modules, _ = import_kernels(bench.engine, bench.target, load_families(bench.families), device)
    torch.manual_seed(0)
    return {**modules, "": device}


def _device(torch: Any, target: Target) -> Device:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return replace(
        DEVICES[target.arch],
        name=properties.name,
        sm_count=properties.multi_processor_count,
        memory=properties.total_memory,
    )


def _measure(bench: Bench, trial: Trial) -> Result:
    import torch
    import triton

    modules = _modules(bench)
    module, _, qualname = trial.tuning.kernel.partition(":")
    tuner = find_autotuner(look_up(modules[module], qualname))
    if tuner is None:
        raise ToolchainError(f"{trial.tuning.kernel} is not autotuned in {bench.engine}")
    positional, named = trial.arguments(bench.place)
    tuner.cache.clear()
    tuner.cache_results = False
    tuner.do_bench = stopwatch(bench.milliseconds)
    tuner.run(*positional, **named, grid=trial.grid(), warmup=False)
    torch.cuda.synchronize()
    times = {configuration_of(config): found for config, found in tuner.configs_timings.items()}
    if set(tuner.cache) != {trial.tuning.key} or set(times) != set(trial.tuning.configurations):
        raise ToolchainError(
            f"{trial.tuning.kernel}: Triton has measured for {', '.join(map(str, tuner.cache))}, and tracing "
            f"had expected {trial.tuning.key} with {len(trial.tuning.configurations)} configurations"
        )
    return Result(
        tuning=trial.tuning,
        device=modules[""].name,
        times=tuple(_quantiles(times[one]) for one in trial.tuning.configurations),
        measured=Measured(
            date=datetime.now(timezone.utc).date().isoformat(),
            aotpack=__version__,
            triton=str(triton.__version__),
            torch=str(torch.__version__),
            cuda=bench.cuda,
            input=trial.input,
        ),
    )


def stopwatch(milliseconds: int) -> Any:
    """What an autotuner is to measure with: Triton's own for the active driver, for so long."""
    from triton.runtime.driver import driver

    benchmark = driver.active.get_benchmarker()
    return lambda call, quantiles: benchmark(call, warmup=milliseconds // 4, rep=milliseconds, quantiles=quantiles)


def _quantiles(found: Any) -> Quantiles | None:
    """To a nanosecond, which is finer than any clock there; None where nothing was measured."""
    median, low, high = (round(float(time), 6) for time in found)
    return None if median == float("inf") else (median, low, high)
