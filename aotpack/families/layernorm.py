"""layernorm: the gated RMS norm that ends every gated delta net layer.

The kernel is ``layer_norm_fwd_kernel`` (vLLM, third_party/flash_linear_attention/ops/layernorm_guard.py). It is
reached in two ways: ``rmsnorm_fn``, from ``RMSNormGated.forward_cuda`` (model_executor/layers/layernorm.py), and
``layer_norm_fwd``, from the fused-norm paths of the gated delta net layer
(model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py, ``_rms_norm_gated_cuda``).

What varies: the row count M, which is tokens times value heads of a rank (1, a multiple of 16, other), and the
rows of a block, which the wrapper derives from M and the device's SM count (1, 2 or 4).

The weight is in the dtype of the activations, whatever the checkpoint holds: the layer makes ``RMSNormGated``
without a dtype, which leaves torch's default, and that is the model's dtype while vLLM builds a model
(``set_default_torch_dtype``, model_executor/model_loader/base_loader.py); loading copies into it. A norm in
float32 beside activations in half precision is a layer of OLMo's, whose configuration names the dtype.
"""

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace, token_counts

_OPS = "vllm.third_party.flash_linear_attention.ops"
_GUARD = f"{_OPS}.layernorm_guard"
_SLICED = 64


def _serves(deployment: Deployment) -> bool:
    return deployment.model.gdn is not None


def _drive(trace: Trace, deployment: Deployment) -> None:
    import torch

    gdn = deployment.gdn
    guard = trace.module(_GUARD)
    dtype = getattr(torch, deployment.dtype)
    heads, width = gdn.v_heads // deployment.tp, gdn.v_dim
    projected = deployment.conv_dim
    weight = torch.empty(width, dtype=dtype)
    epsilon = 1e-6
    for tokens in token_counts(deployment.max_num_batched_tokens):
        core = torch.empty(tokens, heads, width, dtype=dtype)
        # The gate is a slice of the layer's one projection: a view with the row stride of the whole. The wrappers
        # copy such a slice where it has several rows; large ones are made as the copy would be, to move no gigabytes.
        aside = projected if tokens <= _SLICED else 0
        gate = torch.empty(tokens, aside + heads * width, dtype=dtype)[:, aside:].reshape(tokens, -1, width)
        with trace.input(tokens=tokens, path="RMSNormGated"):
            guard.rmsnorm_fn(
                core,
                weight,
                None,
                z=gate,
                eps=epsilon,
                group_size=None,
                norm_before_gate=True,
                activation=gdn.gate,
            )
        with trace.input(tokens=tokens, path="fused norm"):
            guard.layer_norm_fwd(
                core.reshape(-1, width),
                weight,
                None,
                epsilon,
                z=gate.reshape(-1, width),
                out=torch.empty_like(core).reshape(-1, width),
                group_size=width,
                norm_before_gate=True,
                is_rms_norm=True,
                activation=gdn.gate,
            )


FAMILY = Family(
    name="layernorm",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=f"{_GUARD}:layer_norm_fwd_kernel",
            parameters=(
                "X",
                "Y",
                "W",
                "B",
                "Z",
                "Mean",
                "Rstd",
                "stride_x_row",
                "stride_y_row",
                "stride_z_row",
                "M",
                "N",
                "eps",
                "BLOCK_N",
                "ROWS_PER_BLOCK",
                "HAS_BIAS",
                "HAS_Z",
                "NORM_BEFORE_GATE",
                "IS_RMS_NORM",
                "ACTIVATION",
            ),
        ),
    ),
    modules=(_GUARD, f"{_OPS}.utils"),
    serves=_serves,
    drive=_drive,
    optional=(
        "vllm.model_executor.warmup.jit_warmup",
        "vllm.model_executor.warmup.jit_warmup_triton_helper",
    ),
)
