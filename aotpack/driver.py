"""The CUDA driver, asked through libcuda itself, in the process that calls or in one of its own.

Run alone, this file prints what the driver of this machine says, as a Python literal. Each install waits for that,
and most of it is Python that starts: so nothing is imported here but what the answer takes.
"""

import ctypes
import sys

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE`` (cuda.h): the driver works, and there is no GPU that this process may see."""

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR (cuda.h)


def _ask() -> dict[str, object] | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if str(error).startswith("libcuda.so.1:") and "No such file" in str(error):
            return None
        return {"cuda": None, "gpus": [], "trouble": f"libcuda.so.1 cannot be loaded: {error}"}
    cuda_version: list[int] | None = None
    gpus: list[dict[str, object]] = []
    trouble = ""
    try:
        version = number(cuda, "cuDriverGetVersion")
        cuda_version = [version // 1000, version % 1000 // 10]
        if (code := cuda.cuInit(0)) != NO_DEVICE:
            check("cuInit", code)
            for ordinal in range(number(cuda, "cuDeviceGetCount")):
                device = number(cuda, "cuDeviceGet", ordinal)
                name = device_name(cuda, device)
                major, minor = (number(cuda, "cuDeviceGetAttribute", which, device) for which in (_MAJOR, _MINOR))
                gpus.append({"name": name, "arch": major * 10 + minor})
    except (AttributeError, RuntimeError) as error:  # a symbol that is not there, a call that failed
        trouble = str(error)
    return {"cuda": cuda_version, "gpus": gpus, "trouble": trouble}


def device_name(cuda: ctypes.CDLL, device: int) -> str:
    """A GPU's name, as the driver spells it.

    Raises:
        AttributeError, RuntimeError: as ``number``.
    """
    name = ctypes.create_string_buffer(256)
    check("cuDeviceGetName", cuda.cuDeviceGetName(name, len(name), device))
    return name.value.decode(errors="replace")


def number(cuda: ctypes.CDLL, function: str, *arguments: int) -> int:
    """What a function of libcuda or NVML gives, which takes the place for it first.

    Raises:
        AttributeError: the library has no such function.
        RuntimeError: it fails.
    """
    value = ctypes.c_int()
    check(function, getattr(cuda, function)(ctypes.byref(value), *arguments))
    return value.value


def check(function: str, code: int) -> None:
    """Take a function's result for what it is.

    Raises:
        RuntimeError: it is an error.
    """
    if code:
        raise RuntimeError(f"{function} fails with CUDA error {code}")


if __name__ == "__main__":
    sys.stdout.write(ascii(_ask()))
