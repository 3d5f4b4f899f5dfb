"""What vLLM's kernel modules need of vLLM: a few small modules for real, and a platform that says it is CUDA.

The package's own ``__init__`` is not run: it imports ``env_override``, which sets up torch.compile and Triton's
autotuning cache and bears on no key.
"""

import logging
from typing import Any, NamedTuple, NoReturn

from aotpack.errors import TracingError
from aotpack.targets import Device, Target

PACKAGE = "vllm"

REAL = (
    "vllm.envs",
    "vllm.triton_utils",
    "vllm.triton_utils.importing",
    "vllm.triton_utils.tensor_descriptor",
    "vllm.utils.math_utils",
    "vllm.utils.platform_utils",
)
"""What every kernel module imports and computes with."""

SPARED = ("transformers",)
"""What vLLM's modules import of other projects and no key depends on."""


class DeviceCapability(NamedTuple):
    """Stands for vLLM's own (vllm/platforms/interface.py)."""

    major: int
    minor: int

    def to_int(self) -> int:
        """90 for 9.0."""
        return self.major * 10 + self.minor


class CudaPlatform:
    """Stands for ``vllm.platforms.current_platform`` on a CUDA device.

    The answers are those of vllm/platforms/cuda.py for the pretended device. A question that is not answered
    here raises, naming itself, rather than guess.
    """

    device_name = "cuda"
    device_type = "cuda"
    dispatch_key = "CUDA"

    def __init__(self, target: Target, device: Device) -> None:
        self._capability = DeviceCapability(*divmod(target.arch, 10))
        self._device = device

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TracingError(f"vllm.platforms.current_platform.{name} is asked, which aotpack does not answer")

    def is_cuda(self) -> bool:
        """It is CUDA."""
        return True

    def is_cuda_alike(self) -> bool:
        """It is CUDA."""
        return True

    def _no(self) -> bool:
        return False

    is_rocm = is_xpu = is_cpu = is_tpu = is_neuron = is_hpu = is_out_of_tree = _no

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability:
        """The compute capability."""
        del device_id
        return self._capability

    def has_device_capability(self, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Whether the device has at least that capability."""
        del device_id
        wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
        return tuple(self._capability) >= wanted

    def is_device_capability(self, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Whether the device has exactly that capability."""
        del device_id
        wanted = capability if isinstance(capability, tuple) else divmod(capability, 10)
        return tuple(self._capability) == wanted

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        """Whether the device is of that major capability."""
        del device_id
        return self._capability.major == capability // 10

    def is_arch_support_pdl(self) -> bool:
        """Programmatic dependent launch came with 9.0."""
        return self._capability.major >= 9  # noqa: PLR2004

    def num_compute_units(self, device_id: int = 0) -> int:
        """The SM count."""
        del device_id
        return self._device.sm_count

    def get_device_name(self, device_id: int = 0) -> str:
        """The product's name."""
        del device_id
        return self._device.name

    def current_device(self) -> int:
        """The one device."""
        return 0


def substitutes(version: str, target: Target, device: Device) -> dict[str, dict[str, Any]]:
    """What modules of vLLM give instead of what they would, by module and name."""
    return {
        "vllm": {"__version__": version},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {
            "current_platform": CudaPlatform(target, device),
            # Asked for "cpu": whether this is a build of vLLM for CPUs.
            "vllm_version_matches_substr": lambda _text: False,
        },
        # Registering with torch.library changes nothing of what a wrapper launches.
        "vllm.utils.torch_utils": {"direct_register_custom_op": lambda *_args, **_kwargs: None},
    }
