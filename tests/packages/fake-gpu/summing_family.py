"""summing: one autotuned kernel of the gated delta net with four configurations, which compile in a few seconds."""

from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace

_FLA = "vllm.third_party.flash_linear_attention.ops"
KERNEL = f"{_FLA}.cumsum:chunk_local_cumsum_scalar_kernel"


def launch(trace: Trace, deployment: Deployment, tokens: int) -> Any:
    import torch

    gates = torch.zeros(1, tokens, deployment.gdn.v_heads // deployment.tp, dtype=torch.float32)
    starts = torch.tensor([0, tokens], dtype=torch.int32)
    with trace.input(tokens=tokens):
        return trace.module(f"{_FLA}.cumsum").chunk_local_cumsum(gates, chunk_size=64, cu_seqlens=starts)


FAMILY = Family(
    name="summing",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=KERNEL,
            parameters=(
                "s",
                "o",
                "cu_seqlens",
                "chunk_indices",
                "T",
                "B",
                "H",
                "BT",
                "REVERSE",
                "IS_VARLEN",
                "HEAD_FIRST",
            ),
        ),
    ),
    modules=(_FLA, *(f"{_FLA}.{name}" for name in ("utils", "index", "cumsum"))),
    serves=lambda deployment: deployment.model.gdn is not None,
    drive=lambda trace, deployment: launch(trace, deployment, 64),
    tune=lambda trace, deployment: launch(trace, deployment, 4096),
)
