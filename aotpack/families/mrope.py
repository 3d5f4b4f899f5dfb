"""mrope: rotary embedding with temporal, height and width positions, and the kernels around it.

Three kernels:

- ``_triton_mrope_forward`` (vLLM, model_executor/layers/rotary_embedding/mrope.py), from
  ``MRotaryEmbedding.forward_cuda`` whenever positions have three rows. It is live where the custom op is enabled
  (eager mode, ``-O0``, ``custom_ops=["all"]``); elsewhere Inductor compiles the native form.
- ``_fused_qk_rmsnorm_rope_gate_kernel`` (model_executor/layers/fused_qk_norm_rope.py), from the attention of
  Qwen3-Next and Qwen3.5 in half precision, which fuses norm, rotation and gate
  (model_executor/models/qwen3_next.py, ``use_fused_qk_norm_rope_gate``) and never launches the first. It is live
  in eager mode; compiled models have Inductor's own copy of it.
- ``_prepare_rope_positions_kernel`` (v1/worker/gpu/mm/rope.py), from the V2 runner before every step of a model
  whose positions have three rows.

Three rows of positions are a slice of one persistent buffer of max_num_batched_tokens + 1 columns, in both runners
(v1/worker/gpu_model_runner.py, v1/worker/gpu/mm/rope.py) and in the V1 drafter (v1/spec_decode/
llm_base_proposer.py), so their stride is a constant of a deployment. One row comes from a buffer of its own, with
stride 0 between rows in the fused kernel:

- Qwen3-Next has no sections;
- Qwen3.5 as a text model (``Qwen3_5ForCausalLM``) drops them (model_executor/models/config.py); serving the whole
  model with ``--language-model-only`` does not;
- the V2 runner's drafter hands its 1-D positions to Qwen3.5's MTP layer
  (v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py).

What varies: in the first kernel the token count (1, a multiple of 16, other). The row strides of q and k are
constants of a deployment, and depend on whether q and k are slices of one projection (Qwen2.5-VL, the fused kernel)
or come fresh from their own norms (Qwen3-VL). In the others nothing varies with tokens or requests; the strides of
positions follow from max_num_batched_tokens and, for the V2 runner's kernel, from the longest sequence.

Up to 0.26.0 the fused kernel knows one row of positions alone, and takes the first of three. There Qwen3.5 fuses
only where it is served without its tower (``--language-model-only``), and else launches the first kernel, on
queries and keys that come fresh from their norms; each deployment of it is driven in both ways.
"""

import inspect
from types import SimpleNamespace

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace, token_counts, without
from aotpack.models import MRope

_MROPE = "vllm.model_executor.layers.rotary_embedding.mrope"
_FUSED = "vllm.model_executor.layers.fused_qk_norm_rope"
_QWEN3_NEXT = "vllm.model_executor.models.qwen3_next"
_V2_ROPE = "vllm.v1.worker.gpu.mm.rope"
_BATCH = "vllm.v1.worker.gpu.input_batch"

_MAX_POSITIONS = 16
_BATCHES = (1, 2, 16)
_TEXT_MODELS = ("qwen3_5_text", "qwen3_5_moe_text")
"""Served as text models, whose sections vLLM drops."""


def _sections(deployment: Deployment) -> MRope | None:
    """The sections by which a deployment rotates, if it does by sections."""
    return None if deployment.model.model_type in _TEXT_MODELS else deployment.model.mrope


def _fuses(deployment: Deployment) -> bool:
    """Whether attention fuses norm, rotation and gate."""
    sections = _sections(deployment)
    return (
        deployment.model.attention.output_gate
        and deployment.dtype in ("float16", "bfloat16")
        and (sections is None or (sections.interleaved and sum(sections.sections) == deployment.model.rotary_dim // 2))
    )


def _serves(deployment: Deployment) -> bool:
    return _sections(deployment) is not None or _fuses(deployment)


def _drive(trace: Trace, deployment: Deployment) -> None:
    sections = _sections(deployment)
    fuses_sections = "mrope_section" in inspect.signature(trace.module(_FUSED).fused_qk_rmsnorm_rope_gate).parameters
    if _fuses(deployment):
        _rotate_fused(trace, deployment, sections)
    if sections is not None and not (_fuses(deployment) and fuses_sections):
        _rotate(trace, deployment, sections)
    if sections is not None:
        _prepare(trace, deployment)


def _rotate(trace: Trace, deployment: Deployment, mrope: MRope) -> None:
    import torch

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


def _rotate_fused(trace: Trace, deployment: Deployment, mrope: MRope | None) -> None:
    import torch

    rotate = trace.module(_QWEN3_NEXT).Qwen3NextAttention._project_qkv_gate  # noqa: SLF001  # what forward calls
    dtype = getattr(torch, deployment.dtype)
    head, rotary = deployment.model.attention.head_dim, deployment.model.rotary_dim
    q_size, kv_size = deployment.q_heads * head, deployment.kv_heads * head
    # GemmaRMSNorm makes its weight in the default dtype, which is the model's while a model is built.
    q_norm, k_norm = (
        SimpleNamespace(weight=torch.empty(head, dtype=dtype), variance_epsilon=deployment.model.norm_epsilon)
        for _ in range(2)
    )
    layer = SimpleNamespace(
        use_fused_qk_norm_rope_gate=True,
        q_size=q_size,
        kv_size=kv_size,
        num_heads=deployment.q_heads,
        num_kv_heads=deployment.kv_heads,
        head_dim=head,
        q_norm=q_norm,
        k_norm=k_norm,
        rotary_emb=SimpleNamespace(
            cos_sin_cache=torch.empty(_MAX_POSITIONS, rotary, dtype=dtype),
            rotary_dim=rotary,
            mrope_section=list(mrope.sections) if mrope is not None else None,
        ),
    )
    limit = deployment.max_num_batched_tokens
    buffers = {"one row": torch.zeros(limit, dtype=torch.int64)}
    if mrope is not None:
        buffers["three rows"] = torch.zeros(3, limit + 1, dtype=torch.int64)
    for tokens in _BATCHES:
        # Queries come with their gates.
        projection = torch.empty(tokens, 2 * q_size + 2 * kv_size, dtype=dtype)
        for rows, buffer in buffers.items():
            with trace.input(tokens=tokens, positions=rows):
                rotate(layer, projection, buffer[..., :tokens])


def _prepare(trace: Trace, deployment: Deployment) -> None:
    import torch

    prepare = trace.module(_V2_ROPE).RopeState.prepare_positions
    # Only the base of the prompts' positions is handed on, of a tensor that holds every request's longest sequence.
    state = SimpleNamespace(
        num_dims=3,
        max_model_len=deployment.model_len,
        positions=torch.zeros(3, deployment.max_num_batched_tokens + 1, dtype=torch.int64),
        prefill_positions=SimpleNamespace(gpu=torch.zeros(3, 1, dtype=torch.int32)),
        prefill_delta=SimpleNamespace(gpu=torch.zeros(deployment.max_num_seqs, dtype=torch.int32)),
    )
    limit, batches = deployment.max_num_seqs, trace.module(_BATCH)
    lengths, computed = (torch.zeros(limit, dtype=torch.int32) for _ in range(2))
    buffers = batches.InputBuffers(max_num_reqs=limit, max_num_tokens=limit, device=torch.device("cpu"))
    for requests in (requests for requests in _BATCHES if requests <= limit):
        batch = batches.InputBatch.make_dummy(requests, requests, buffers)
        with trace.input(requests=requests):
            prepare(state, batch.idx_mapping, batch.query_start_loc, lengths, computed)


_FUSED_PARAMETERS = (
    "q_gate_ptr",
    "k_ptr",
    "q_out_ptr",
    "k_out_ptr",
    "gate_out_ptr",
    "q_weight_ptr",
    "k_weight_ptr",
    "cos_sin_cache_ptr",
    "positions_ptr",
    "q_gate_stride_t",
    "k_stride_t",
    "q_out_stride_t",
    "k_out_stride_t",
    "gate_out_stride_t",
    "cache_stride_p",
    "positions_stride_m",
    "positions_stride_t",
    "num_q_heads",
    "num_kv_heads",
    "head_dim",
    "rotary_dim",
    "half_rotary",
    "eps",
    "norm_beta",
    "INPUT_DTYPE",
    "HEAD_BLOCK",
    "ROT_HALF_BLOCK",
    "HAS_PASS",
    "HAS_MROPE",
    "MROPE_SECTION_H",
    "MROPE_SECTION_W",
)


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
            others=(
                (
                    "q_ptr",
                    "k_ptr",
                    "cos",
                    "sin",
                    "num_tokens",
                    "n_qh",
                    "n_kh",
                    "hd",
                    "rd",
                    "pad_n_qh",
                    "pad_n_kh",
                    "pad_hd",
                    "mrope_section_t",
                    "mrope_section_h",
                    "mrope_section_w",
                    "is_interleaved",
                ),
            ),
        ),
        ExpectedKernel(
            name=f"{_FUSED}:_fused_qk_rmsnorm_rope_gate_kernel",
            parameters=_FUSED_PARAMETERS,
            others=(
                without(
                    _FUSED_PARAMETERS,
                    "positions_stride_m",
                    "positions_stride_t",
                    "norm_beta",
                    "HAS_MROPE",
                    "MROPE_SECTION_H",
                    "MROPE_SECTION_W",
                ),
            ),
        ),
        ExpectedKernel(
            name=f"{_V2_ROPE}:_prepare_rope_positions_kernel",
            parameters=(
                "positions_ptr",
                "positions_stride",
                "prefill_positions_ptr",
                "prefill_positions_stride0",
                "prefill_positions_stride1",
                "prefill_delta_ptr",
                "idx_mapping_ptr",
                "query_start_loc_ptr",
                "prefill_lens_ptr",
                "num_computed_tokens_ptr",
                "BLOCK_SIZE",
                "NUM_DIMS",
            ),
        ),
    ),
    modules=(_MROPE, _FUSED, _QWEN3_NEXT, _V2_ROPE, _BATCH),
    serves=_serves,
    drive=_drive,
)
