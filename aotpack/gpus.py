"""GPUs: those of this machine and their driver, asked through libcuda itself: no CUDA tool, no torch.

The driver is asked in a child process, so that one that crashes or hangs costs its answer and nothing else. The
child runs this very file, alone, which is why nothing but the standard library is imported here.
"""

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE`` (cuda.h): the driver works, and there is no GPU that this process may see."""

_TIMEOUT = 20  # seconds; a node of eight GPUs without persistence mode needs a few
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)


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
    command = [sys.executable, "-I", "-S", __file__]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Driver(trouble=f"no answer in {_TIMEOUT} s")
    except OSError as error:
        return Driver(trouble=f"cannot be asked: {error}")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
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
        for ordinal in range(_number(nvml, "nvmlDeviceGetCount_v2")):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            _check("nvmlDeviceGetHandleByIndex_v2", nvml.nvmlDeviceGetHandleByIndex_v2(ordinal, ctypes.byref(device)))
            capability = nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
            _check("nvmlDeviceGetCudaComputeCapability", capability)
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
        count = _number(cuda, "cuDeviceGetCount")
        names = {_name(cuda, _number(cuda, "cuDeviceGet", ordinal)) for ordinal in range(count)}
        # A thread that has launched nothing has no context; that matters where GPUs differ.
        return names.pop() if len(names) == 1 else _name(cuda, _number(cuda, "cuCtxGetDevice"))
    except (OSError, AttributeError, RuntimeError):
        return None


def _name(cuda: ctypes.CDLL, device: int) -> str:
    name = ctypes.create_string_buffer(256)
    _check("cuDeviceGetName", cuda.cuDeviceGetName(name, len(name), device))
    return name.value.decode(errors="replace")


def _ask() -> dict[str, Any] | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if str(error).startswith("libcuda.so.1:") and "No such file" in str(error):
            return None
        return {"cuda": None, "gpus": [], "trouble": f"libcuda.so.1 cannot be loaded: {error}"}
    answer: dict[str, Any] = {"cuda": None, "gpus": [], "trouble": ""}
    try:
        version = _number(cuda, "cuDriverGetVersion")
        answer["cuda"] = [version // 1000, version % 1000 // 10]
        if (code := cuda.cuInit(0)) == NO_DEVICE:
            return answer
        _check("cuInit", code)
        for ordinal in range(_number(cuda, "cuDeviceGetCount")):
            device = _number(cuda, "cuDeviceGet", ordinal)
            name = _name(cuda, device)
            major, minor = (_number(cuda, "cuDeviceGetAttribute", which, device) for which in (_MAJOR, _MINOR))
            answer["gpus"].append({"name": name, "arch": major * 10 + minor})
    except (AttributeError, RuntimeError) as error:  # a symbol that is not there, a call that failed
        answer["trouble"] = str(error)
    return answer


def _number(cuda: ctypes.CDLL, function: str, *arguments: int) -> int:
    value = ctypes.c_int()
    _check(function, getattr(cuda, function)(ctypes.byref(value), *arguments))
    return value.value


def _check(function: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{function} fails with CUDA error {code}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask()))
