"""mrope: rotary embedding with temporal, height and width sections.

The kernel is ``_triton_mrope_forward`` (vLLM, model_executor/layers/rotary_embedding/mrope.py), reached from
``MRotaryEmbedding.forward_cuda`` whenever positions have three rows, which they do for every model with sections.
It is live where the custom op is enabled (eager mode, ``-O0``, ``custom_ops=["all"]``); elsewhere Inductor
compiles the native form.

Not launched by models whose attention fuses norm, rotation and gate into one kernel
(model_executor/models/qwen3_next.py, ``use_fused_qk_norm_rope_gate``): Qwen3.5 in half precision.

What varies: the token count (1, a multiple of 16, other). The row strides of q and k are constants of a
deployment, and depend on whether q and k are slices of one projection (Qwen2.5-VL) or come fresh from their own
norms (Qwen3-VL).
"""

from types import SimpleNamespace

from aotpack.families import ExpectedKernel, Family, Trace, token_counts
from aotpack.models import Deployment

_MROPE = "vllm.model_executor.layers.rotary_embedding.mrope"
_MAX_POSITIONS = 16


def _serves(deployment: Deployment) -> bool:
    model = deployment.model
    if model.mrope is None:
        return False
    fused = (
        model.attention.output_gate
        and deployment.dtype in ("float16", "bfloat16")
        and model.mrope.interleaved
        and sum(model.mrope.sections) == model.rotary_dim // 2
    )
    return not fused


def _drive(trace: Trace, deployment: Deployment) -> None:
    import torch

    mrope = deployment.model.mrope
    assert mrope is not None
    forward = trace.module(_MROPE).MRotaryEmbedding.forward_cuda
    dtype = getattr(torch, deployment.dtype)
    head = deployment.model.attention.head_dim
    q_size, kv_size = deployment.q_heads * head, deployment.kv_heads * head
    cache = torch.empty(_MAX_POSITIONS, deployment.model.rotary_dim, dtype=dtype)
    layer = SimpleNamespace(
        _match_cos_sin_cache_dtype=lambda _query: cache,
        mrope_section=list(mrope.sections),
        head_size=head,
        rotary_dim=deployment.model.rotary_dim,
        mrope_interleaved=mrope.interleaved,
        is_neox_style=True,
    )
    for tokens in token_counts(deployment.max_num_batched_tokens):
        positions = torch.zeros(3, tokens, dtype=torch.long)
        if "qwen2_5_vl" in deployment.model.model_type:
            # models/qwen2.py hands on the slices of the one projection.
            projection = torch.empty(tokens, q_size + 2 * kv_size, dtype=dtype)
            query, key, _ = projection.split([q_size, kv_size, kv_size], dim=-1)
        else:
            # models/qwen3.py normalises q and k first, which leaves them in tensors of their own.
            query = torch.empty(tokens, q_size, dtype=dtype)
            key = torch.empty(tokens, kv_size, dtype=dtype)
        with trace.input(tokens=tokens):
            forward(layer, positions, query, key)


FAMILY = Family(
    name="mrope",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=f"{_MROPE}:_triton_mrope_forward",
            parameters=(
                "q_ptr",
                "k_ptr",
                "cos",
                "sin",
                "num_tokens",
                "q_token_stride",
                "k_token_stride",
                "n_qh",
                "n_kh",
                "hd",
                "rd",
                "pad_n_qh",
                "pad_n_kh",
                "pad_rd",
                "mrope_section_t",
                "mrope_section_h",
                "mrope_section_w",
                "is_interleaved",
                "is_neox_style",
            ),
        ),
    ),
    modules=(_MROPE,),
    serves=_serves,
    drive=_drive,
)
