"""vision: what the towers of Qwen's vision models launch for every image and video.

- ``rotary_kernel`` (vLLM, vllm_flash_attn/ops/triton/rotary.py) rotates the queries and keys of every block of
  Qwen2.5-VL's, Qwen3-VL's and Qwen3.5's tower. The blocks share one attention, ``Qwen2_5_VisionAttention``
  (model_executor/models/qwen2_5_vl.py), which asks for its custom op whatever the compilation mode
  (``ApplyRotaryEmb(enforce_enable=True)``, model_executor/layers/rotary_embedding/common.py).
- ``_bilinear_pos_embed_kernel`` (model_executor/models/qwen3_vl.py) interpolates the learned position table to the
  grid of each image, once per image or video. Qwen2.5-VL has no such table.

What varies: for rotation the number of patches in a batch of images, a multiple of merge² (a multiple of 16 or
other; past 2^31 elements the stride between queries and keys is an i64), whether it is one image, many, or a
video. For interpolation the height and the width of the grid, each a multiple of merge and each a multiple of 16
or other; a video has more frames of the same grid, which changes no argument. Encoder CUDA graphs capture the
same launches for grids of their own.

Constant: queries and keys are copied into one tensor of two rows, which is why no stride is that of the
projection; cosines and sines are gathered into tensors of their own. The table, like every weight of the tower, is
in the model's dtype, which is also the output's (``patch_embed.proj.weight.dtype``); a tower's first convolution
and its table are never quantized.

A rank has its share of the heads, or all of them where the tower runs data-parallel. Heads that cannot be split
leave data-parallel as the only way to serve the model with its tower (vLLM's ``divide`` refuses the other).
"""

from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace
from aotpack.models import Vision

_ROTARY = "vllm.vllm_flash_attn.ops.triton.rotary"
_COMMON = "vllm.model_executor.layers.rotary_embedding.common"
_QWEN2_5_VL = "vllm.model_executor.models.qwen2_5_vl"
_QWEN3_VL = "vllm.model_executor.models.qwen3_vl"

_BATCHES = range(1, 17)
"""So many times merge² patches: every residue modulo 16 that there can be, since strides are multiples of them."""
_SIDES = (1, 2, 16)
"""So many times merge patches along a side: 1 where merge is 1, a multiple of 16, and any other where there is one."""


def _serves(deployment: Deployment) -> bool:
    return deployment.model.vision is not None


def _drive(trace: Trace, deployment: Deployment) -> None:
    vision = deployment.model.vision
    assert vision is not None
    _rotate(trace, deployment, vision)
    if vision.positions:
        _interpolate(trace, deployment, vision)


def _rotate(trace: Trace, deployment: Deployment, vision: Vision) -> None:
    import torch

    dtype = getattr(torch, deployment.dtype)
    split = deployment.tp if not deployment.vision_data_parallel and vision.heads % deployment.tp == 0 else 1
    heads, head = vision.heads // split, vision.hidden // vision.heads
    # Half of a head is rotated by the row's position and half by the column's (partial_rotary_factor 0.5), each
    # with half as many angles as elements.
    angles = 2 * (head // 2 // 2)
    rotary = trace.module(_COMMON).ApplyRotaryEmb
    layer = rotary.__new__(rotary)
    layer.is_neox_style, layer.enable_fp32_compute = True, False
    attention = SimpleNamespace(
        qkv=lambda hidden: (torch.empty(hidden.shape[0], 1, 3 * heads * head, dtype=dtype), None),
        num_attention_heads_per_partition=heads,
        hidden_size_per_attention_head=head,
        apply_rotary_emb=layer.forward_cuda,
        attn=lambda *, query, **_: query,
        proj=lambda context: (context, None),
    )
    forward = trace.module(_QWEN2_5_VL).Qwen2_5_VisionAttention.forward
    unit = vision.merge**2
    for patches in (unit * units for units in _BATCHES):
        hidden = torch.empty(patches, 1, vision.hidden, dtype=dtype)
        cos, sin = (torch.empty(patches, angles, dtype=dtype) for _ in range(2))
        with trace.input(patches=patches):
            forward(attention, hidden, None, cos, sin, None, None)
    for patches in _long_batches(deployment, unit, heads * head):
        # As the attention hands them on; the projection itself would only add to what is allocated.
        cos, sin = (torch.empty(patches, angles, dtype=dtype) for _ in range(2))
        with trace.input(patches=patches):
            layer.forward_cuda(torch.empty(2, patches, heads, head, dtype=dtype), cos, sin)


def _long_batches(deployment: Deployment, unit: int, elements: int) -> tuple[int, ...]:
    """The shortest batches of patches whose queries hold 2^31 elements, one of each class, where they can be met.

    An encoder's batch holds as many tokens as a step or as the longest image or video
    (vLLM, v1/core/encoder_cache_manager.py), which is no longer than a sequence; a token is ``unit`` patches.
    """
    most = unit * max(deployment.max_num_batched_tokens, deployment.model_len)
    first = -(-(2**31) // (unit * elements))
    return tuple(unit * units for units in range(first, first + len(_BATCHES)) if unit * units <= most)


def _interpolate(trace: Trace, deployment: Deployment, vision: Vision) -> None:
    import torch

    interpolate = trace.module(_QWEN3_VL).Qwen3_VisionTransformer.fast_pos_embed_interpolate
    dtype = getattr(torch, deployment.dtype)
    tower: Any = SimpleNamespace(
        pos_embed=SimpleNamespace(weight=torch.empty(vision.positions, vision.hidden, dtype=dtype)),
        num_grid_per_side=int(vision.positions**0.5),
        spatial_merge_size=vision.merge,
        dtype=dtype,
    )
    for height in (vision.merge * units for units in _SIDES):
        for width in (vision.merge * units for units in _SIDES):
            with trace.input(height=height, width=width):
                interpolate(tower, [[1, height, width]])


FAMILY = Family(
    name="vision",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=f"{_QWEN3_VL}:_bilinear_pos_embed_kernel",
            parameters=(
                "embed_ptr",
                "output_ptr",
                "H",
                "W",
                "h_scale",
                "w_scale",
                "NUM_GRID",
                "M_SIZE",
                "HIDDEN_DIM",
                "BLOCK_D",
            ),
        ),
        ExpectedKernel(
            name=f"{_ROTARY}:rotary_kernel",
            parameters=(
                "OUT",
                "X",
                "COS",
                "SIN",
                "CU_SEQLENS",
                "SEQLEN_OFFSETS",
                "seqlen",
                "rotary_dim",
                "seqlen_ro",
                "stride_out_batch",
                "stride_out_seqlen",
                "stride_out_nheads",
                "stride_out_headdim",
                "stride_x_batch",
                "stride_x_seqlen",
                "stride_x_nheads",
                "stride_x_headdim",
                "BLOCK_K",
                "IS_SEQLEN_OFFSETS_TENSOR",
                "IS_VARLEN",
                "INTERLEAVED",
                "CONJUGATE",
                "BLOCK_M",
            ),
        ),
    ),
    modules=(
        _QWEN3_VL,
        "vllm.model_executor.models.qwen2_vl",
        _QWEN2_5_VL,
        _COMMON,
        "vllm.vllm_flash_attn.layers.rotary",
        _ROTARY,
    ),
    serves=_serves,
    drive=_drive,
)
