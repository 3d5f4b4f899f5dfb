"""GPUs: those of this machine and their driver, asked through libcuda itself: no CUDA tool, no torch.

The driver is asked in a child process, so that one that crashes or hangs costs its answer and nothing else. The
child runs the file of ``driver`` alone.
"""

import ast
import ctypes
import subprocess
import sys
from dataclasses import dataclass

from aotpack import driver
from aotpack.driver import check, device_name, number

_TIMEOUT = 20  # seconds; a node of eight GPUs without persistence mode needs a few


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        name: as the driver calls it.
        arch: its compute capability without the point: 90 for 9.0.
    """

    name: str
    arch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The CUDA driver of this machine.

    Attributes:
        cuda: the newest CUDA that it supports, (12, 9); None where it did not say.
        gpus: those that this process may see, in the driver's order.
        trouble: why it cannot be used, or "".
    """

    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    trouble: str = ""


def read_driver() -> Driver | None:
    """The driver, or None where there is no ``libcuda.so.1``; whatever it does, this answers."""
    command = [sys.executable, "-I", "-S", driver.__file__]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Driver(trouble=f"no answer in {_TIMEOUT} s")
    except OSError as error:
        return Driver(trouble=f"cannot be asked: {error}")
    try:
        answer = ast.literal_eval(done.stdout.decode())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        return Driver(trouble=f"it ended the process that asked ({ended})")
    if answer is None:
        return None
    return Driver(
        cuda=tuple(answer["cuda"]) if answer["cuda"] else None,
        gpus=tuple(Gpu(**gpu) for gpu in answer["gpus"]),
        trouble=answer["trouble"],
    )


def read_archs() -> frozenset[int] | None:
    """The compute capabilities, without the point, of the GPUs that NVML tells of; None where it tells of none.

    NVML answers in the process that asks without making anything of CUDA's, so that it may still fork
    (nvml.h, ``nvmlDeviceGetCudaComputeCapability``). It tells of more GPUs than ``CUDA_VISIBLE_DEVICES`` names.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return None
    except (OSError, AttributeError):
        return None
    found = set()
    try:
        for ordinal in range(number(nvml, "nvmlDeviceGetCount_v2")):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            check("nvmlDeviceGetHandleByIndex_v2", nvml.nvmlDeviceGetHandleByIndex_v2(ordinal, ctypes.byref(device)))
            capability = nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
            check("nvmlDeviceGetCudaComputeCapability", capability)
            found.add(major.value * 10 + minor.value)
    except (AttributeError, RuntimeError):  # a symbol that is not there, a GPU that this user may not ask
        return None
    finally:
        nvml.nvmlShutdown()
    return frozenset(found) or None


def current_gpu() -> str | None:
    """The name of the GPU that this thread uses, as its driver spells it; None where that cannot be told.

    The driver must be initialised in this process: nothing is made of CUDA's here.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count = number(cuda, "cuDeviceGetCount")
        names = {device_name(cuda, number(cuda, "cuDeviceGet", ordinal)) for ordinal in range(count)}
        # A thread that has launched nothing has no context; that matters where GPUs differ.
        return names.pop() if len(names) == 1 else device_name(cuda, number(cuda, "cuCtxGetDevice"))
    except (OSError, AttributeError, RuntimeError):
        return None
