"""memcpy: many small copies in one launch, for the state blocks of models with linear attention.

The kernel is ``batch_memcpy_kernel`` (vLLM, v1/worker/mamba_utils.py), reached from ``do_mamba_copy_block`` and
from vLLM's own warm-up (model_executor/warmup/mamba_triton_warmup.py) for every model that has such state.

Nothing varies. The element types are part of the key: addresses are uint64 and sizes int32, as
``MambaCopyBuffers.create`` makes them; the buffers' first elements are handed on, so their bases are aligned.
"""

from types import SimpleNamespace

from aotpack.families import ExpectedKernel, Family, Trace
from aotpack.models import Deployment

_UTILS = "vllm.v1.worker.mamba_utils"


def _serves(deployment: Deployment) -> bool:
    return deployment.model.gdn is not None


def _drive(trace: Trace, deployment: Deployment) -> None:
    import torch

    del deployment  # the same key for all
    copy = trace.module(_UTILS).do_mamba_copy_block
    for copies in (1, 2, 16):
        buffers = SimpleNamespace(
            src_ptrs=_buffer(torch.zeros(copies, dtype=torch.uint64)),
            dst_ptrs=_buffer(torch.zeros(copies, dtype=torch.uint64)),
            sizes=_buffer(torch.zeros(copies, dtype=torch.int32)),
            offset=copies,
        )
        with trace.input(copies=copies):
            copy(buffers)


def _buffer(tensor: object) -> SimpleNamespace:
    """The one method of vLLM's ``CpuGpuBuffer`` (v1/utils.py) that the caller uses: the device's first n elements."""
    return SimpleNamespace(copy_to_gpu=lambda count: tensor[:count])  # type: ignore[index]  # a torch tensor


FAMILY = Family(
    name="memcpy",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=f"{_UTILS}:batch_memcpy_kernel", parameters=("src_ptrs", "dst_ptrs", "sizes", "BLOCK_SIZE")
        ),
    ),
    modules=(_UTILS,),
    serves=_serves,
    drive=_drive,
)
