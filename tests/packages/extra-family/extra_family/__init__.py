"""l2norm: a norm of flash-linear-attention's that Qwen's prefill does without, and that others launch.

It asks for a value that only a serving machine fixes, as such a family may have to.
"""

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace

_L2NORM = "vllm.third_party.flash_linear_attention.ops.l2norm"


def _drive(trace: Trace, deployment: Deployment) -> None:
    import torch

    width = trace.setting("l2norm-width", "an adapter that the serving machine loads")
    for columns in (deployment.gdn.k_dim, *([width] if width else [])):
        for rows in (1, 2, 16):
            with trace.input(rows=rows, columns=columns):
                trace.module(_L2NORM).l2norm_fwd(torch.empty(rows, columns, dtype=torch.bfloat16))


FAMILY = Family(
    name="l2norm",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=f"{_L2NORM}:l2norm_fwd_kernel2",
            parameters=("X", "Y", "eps", "M", "N", "BD", "MBLOCK"),
        ),
    ),
    modules=(_L2NORM, "vllm.third_party.flash_linear_attention.ops.utils"),
    serves=lambda deployment: deployment.model.gdn is not None,
    drive=_drive,
)
