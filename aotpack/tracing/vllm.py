"""What vLLM's kernel modules need of vLLM: a few small modules for real, and a platform that says it is CUDA.

The package's own ``__init__`` is not run: it imports ``env_override``, which sets up torch.compile and Triton's
autotuning cache and bears on no key.
"""

import logging
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

from aotpack.errors import TracingError
from aotpack.targets import Device, Target

PACKAGE = "vllm"

REAL = (
    "vllm.envs",
    "vllm.triton_utils",
    "vllm.triton_utils.importing",
    "vllm.triton_utils.tensor_descriptor",
    "vllm.utils.gpu_sync_debug",
    "vllm.utils.math_utils",
    "vllm.utils.platform_utils",
)
"""What every kernel module imports and computes with."""

SPARED = ("flashinfer", "transformers")
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
    simple_compile_backend = "inductor"

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

    def is_pin_memory_available(self) -> bool:
        """It is, everywhere but in WSL."""
        return True

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

    def get_cuda_runtime_major(self) -> int:
        """The CUDA that the torch of this release's requirements is built for."""
        return 13


class OnceLogger(logging.Logger):
    """Has the methods that vLLM gives its loggers (vllm/logger.py); what they log once is not logged."""

    def debug_once(self, message: str, *args: object, **options: object) -> None:
        """Say nothing."""

    info_once = warning_once = debug_once


class Lone:
    """A group of one rank, in place of a ``GroupCoordinator`` (vllm/distributed/parallel_state.py)."""

    world_size = 1
    rank_in_group = 0


def _copy_to_device(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Stands for ``async_tensor_h2d`` (vllm/utils/torch_utils.py): a tensor of its own, or ``out`` filled."""
    import torch

    del device
    tensor = torch.as_tensor(data, dtype=dtype if out is None else out.dtype)
    return tensor.clone() if out is None else out.copy_(tensor)


class TwoTensors:
    """Stands for ``CpuGpuBuffer`` (vllm/v1/utils.py): a tensor on the host and one on the device."""

    def __init__(self, *size: int, dtype: Any, device: Any, pin_memory: bool = False) -> None:
        """Make both."""
        import torch

        del device, pin_memory
        self.cpu, self.gpu = torch.zeros(*size, dtype=dtype), torch.zeros(*size, dtype=dtype)
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, count: int | None = None) -> Any:
        """The device's first elements, after the host's were copied there."""
        return self.gpu[:count].copy_(self.cpu[:count])


class NoRocm:
    """Stands for ``vllm._aiter_ops.rocm_aiter_ops`` where AMD's kernels are not installed."""

    def are_gdn_triton_kernels_available(self) -> bool:
        """They are not."""
        return False

    is_rdna_gdn_triton_kernels_available = are_gdn_triton_kernels_available


def _register_op(op_name: str, op_func: Callable[..., Any], **_: object) -> None:
    """Make ``torch.ops.vllm.NAME`` the function itself; no dispatcher changes what it launches."""
    import torch

    setattr(torch.ops.vllm, op_name, op_func)


def _workspaces(*wanted: tuple[tuple[int, ...], Any]) -> list[Any]:
    import torch

    return [torch.empty(shape, dtype=dtype) for shape, dtype in wanted]


def _flashinfer_prefill(**inputs: Any) -> tuple[Any, Any]:
    return inputs["v"], inputs["initial_state"]


def substitutes(version: str, target: Target, device: Device) -> dict[str, dict[str, Any]]:
    """What modules of vLLM give instead of what they would, by module and name."""
    import torch

    return {
        "vllm": {"__version__": version},
        # config/vllm.py; the layers are those of a configuration that a family made.
        "vllm.config": {
            "get_layers_from_vllm_config": lambda config, _kind: config.compilation_config.static_forward_context
        },
        # config/model.py; the modes of a server flag, and the default is none of them.
        "vllm.config.model": {"PROCESSED_LOGPROBS_MODES": ("processed_logits", "processed_logprobs")},
        # distributed/utils.py: a deployment's heads divide by its ranks.
        "vllm.distributed": {"divide": operator.floordiv, "get_dcp_group": Lone, "get_pcp_group": Lone},
        "vllm.logger": {"init_logger": OnceLogger},
        "vllm.platforms": {
            "current_platform": CudaPlatform(target, device),
            # Asked for "cpu": whether this is a build of vLLM for CPUs.
            "vllm_version_matches_substr": lambda _text: False,
        },
        "vllm.sampling_params": {"MAX_LOGPROB_TOKEN_IDS": 128},  # sampling_params.py
        "vllm.utils": {"random_uuid": lambda: ""},  # utils/__init__.py; it tells requests apart
        # Device and host are one here, and no memory is pinned (utils/torch_utils.py).
        "vllm.utils.torch_utils": {
            "PIN_MEMORY": False,
            "async_tensor_h2d": _copy_to_device,
            "direct_register_custom_op": _register_op,
            # A device's view of pinned memory has the address of that memory.
            "get_accelerator_view_from_cpu_tensor": lambda tensor: tensor,
            "get_dtype_size": lambda dtype: dtype.itemsize,
            "np_to_pinned_tensor": torch.from_numpy,
            # A layer's name is wrapped in an opaque type for torch.compile.
            "_encode_layer_name": lambda name: name,
            "_resolve_layer_name": lambda name: name,
        },
        "vllm.v1.utils": {"CpuGpuBuffer": TwoTensors},
        # One buffer that grows, cut at multiples of 256 bytes (v1/worker/workspace.py).
        "vllm.v1.worker.workspace": {
            "current_workspace_manager": lambda: SimpleNamespace(get_simultaneous=_workspaces)
        },
        "vllm._aiter_ops": {"rocm_aiter_ops": NoRocm()},
        # Its result is FlashInfer's; vLLM asks for its shape and dtype alone.
        "flashinfer.gdn_prefill": {"chunk_gated_delta_rule": _flashinfer_prefill},
    }
