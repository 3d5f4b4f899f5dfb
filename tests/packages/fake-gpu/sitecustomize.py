"""A GPU for each process that has this directory on its path: torch's side of the fake libcuda.

Triton's autotuner, launch path, driver and launcher are the real ones, and so is the worker that measures. Tensors are
on the CPU, and the clock is not Triton's: it calls each launch twice, and of two launches the later is the faster.
FAKE_GPU_BREAKS names a kernel whose launch breaks the device.
"""

import functools
import itertools
import os
from dataclasses import replace
from typing import Any

from aotpack import measuring
from aotpack.measuring import Bench
from aotpack.targets import DEVICES
from aotpack.tracing.device import PretendStream, pretend
from aotpack.tracing.trials import Trial

_TICKS = itertools.count(1)


def _clock(call: Any, *, quantiles: Any, warmup: int = 0, rep: int = 0) -> list[float]:
    assert (warmup * 4, quantiles) == (rep, (0.5, 0.2, 0.8))
    call()
    call()
    return [1.0 / next(_TICKS)] * 3


@functools.wraps(measuring.prepare)
def prepare(bench: Bench) -> None:
    prepare.__wrapped__(bench)
    pretend(bench.target, replace(DEVICES[bench.target.arch], name=os.environ["FAKE_LIBCUDA_NAME"]))
    import torch
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver as drivers

    PretendStream.cuda_stream = 0  # type: ignore[attr-defined]  # the default stream
    torch.cuda.synchronize = lambda: None
    driver = CudaDriver()
    driver.get_benchmarker = lambda: _clock
    drivers.set_active(driver)


@functools.wraps(measuring.measure)
def measure(bench: Bench, trial: Trial) -> Any:
    if os.environ.get("FAKE_GPU_BREAKS", "none") in trial.tuning.kernel:
        os.abort()
    return measure.__wrapped__(replace(bench, place="cpu"), trial)


measuring.prepare, measuring.measure = prepare, measure
