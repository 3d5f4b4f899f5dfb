"""A device that is not there: what makes Triton, torch and an engine believe in one GPU of a target.

Installed once in a process of its own, before the engine's modules are imported, since some of them choose
configurations by the device at import.
"""

import contextlib
import functools
import os
from types import SimpleNamespace
from typing import Any

from aotpack.targets import Device, Target
from aotpack.toolchain import gpu_target

_LARGE = 1 << 25


class PretendDriver:
    """Triton's active driver for a device that is not there (triton/backends/driver.py, ``DriverBase``).

    The methods are those that Triton's binder and engines ask at trace time; nothing can be launched on it.
    """

    def __init__(self, target: Target, device: Device) -> None:
        self._target = gpu_target(target)
        self.utils = SimpleNamespace(get_device_properties=lambda _index: self._properties())
        self._device = device

    def _properties(self) -> dict[str, int]:
        return {
            "max_shared_mem": self._device.shared_memory,
            "multiprocessor_count": self._device.sm_count,
            "max_num_regs": 65536,
            "warpSize": self._target.warp_size,
        }

    @staticmethod
    def is_active() -> bool:
        """A driver that is active, as far as anyone asks."""
        return True

    def get_current_target(self) -> Any:
        """The target."""
        return self._target

    def get_current_device(self) -> int:
        """The one device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        del device
        return 0

    def get_active_torch_device(self) -> Any:
        """Tensors are made on the CPU: of real size and with real addresses, so views keep their alignment."""
        import torch

        return torch.device("cpu")


class PretendStream:
    """A stream of a device that is not there: nothing runs on it, so there is nothing to wait for."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        """Streams differ in nothing."""

    def wait_stream(self, stream: "PretendStream") -> None:
        """Nothing runs on the other either."""


def _without_pinning(make: Any) -> Any:
    """A tensor factory that takes pageable memory where pinned is asked for: it is aligned just as well."""

    @functools.wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        del pin_memory
        return make(*args, **kwargs)

    return made


def _untouched(zeros: Any) -> Any:
    """``torch.zeros`` in memory that the system gives zeroed and counts only once it is written.

    A deployment's buffers take gigabytes, of which tracing writes next to nothing.
    """
    import numpy as np
    import torch

    @functools.wraps(zeros)
    def made(*args: Any, **kwargs: Any) -> Any:
        like = zeros(*args, **{**kwargs, "device": "meta"})
        if like.nbytes < _LARGE:
            return zeros(*args, **kwargs)
        memory = torch.from_numpy(np.zeros(like.nbytes, dtype=np.uint8))
        return memory.view(like.dtype).as_strided(like.shape, like.stride())

    return made


def _zeroed(make: Any) -> Any:
    """A factory whose tensors of whole numbers are zeros.

    A kernel that is recorded does not run, so what it would have written stays as it was made; where callers use
    that as indices, whatever stood in the memory must not decide what they do.
    """

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        tensor = make(*args, **kwargs)
        if not tensor.is_floating_point() and tensor.nbytes < _LARGE:
            tensor.zero_()
        return tensor

    return made


def pretend(target: Target, device: Device) -> None:
    """Make this process believe that it has one GPU.

    ``CUDA_VISIBLE_DEVICES`` is set and empty, which is how vLLM keeps Triton enabled with no active driver
    (vllm/triton_utils/importing.py).

    Raises:
        ToolchainError: Triton cannot be imported.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    driver = PretendDriver(target, device)
    import torch
    from triton.runtime import driver as drivers

    # A pool has a worker for each core; threads of torch's would only wait for one another.
    torch.set_num_threads(1)
    drivers.set_active(driver)
    capability = divmod(target.arch, 10)
    properties = SimpleNamespace(
        name=device.name,
        major=capability[0],
        minor=capability[1],
        multi_processor_count=device.sm_count,
        total_memory=device.memory,
        shared_memory_per_block_optin=device.shared_memory,
    )
    pretended: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda _device=None: capability,
        "get_device_name": lambda _device=None: device.name,
        "get_device_properties": lambda _device=None: properties,
        "device": lambda _device: contextlib.nullcontext(),
        "Stream": PretendStream,
        "stream": lambda _stream: contextlib.nullcontext(),
        "current_stream": lambda _device=None: PretendStream(),
    }
    for name, value in pretended.items():
        setattr(torch.cuda, name, value)
    torch.zeros = _untouched(torch.zeros)
    for name in ("empty", "tensor", "zeros"):
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        setattr(owner, name, _zeroed(getattr(owner, name)))
    torch.accelerator.device_index = lambda _index: contextlib.nullcontext()
    torch.accelerator.empty_cache = lambda: None
    # Wrappers that serve CPU tensors too choose their way by this.
    torch.Tensor.is_cuda = property(lambda _tensor: True)
