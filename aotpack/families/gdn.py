"""gdn: the gated delta net layer, from its convolution to its recurrence, and the export of its checkpoints.

The layer is driven from its own ``forward_cuda`` (vLLM, layers/mamba/gdn/qwen_gdn_linear_attn.py under
model_executor) down to the launches, with metadata that vLLM's own builder makes of a batch
(v1/attention/backends/gdn_attn.py) and with states that the layer itself cuts from pages of the KV cache.
Stood in for are the projections, the norm (family layernorm), FlashInfer's prefill, and the server's
configuration.

What varies, beside what is constant for a deployment:

- The tokens of a prefill (``_fused_post_conv_kernel``: 1, a multiple of 16, other), and whether decodes stand
  before it in the batch: its gates are views from there on, and a row of gates need not be a multiple of 16
  bytes.
- The requests of a decode (``_causal_conv1d_update_kernel``: 1, a multiple of 16, other), which times the
  value heads also decide the packed decode kernel's grid, and its tile on compute capability 10.x.
- A single token. In eager mode its gates are still the two halves of their projection, since
  ``contiguous()`` does nothing to one row: they keep the row stride of the whole, and the second half its
  offset. Compiled code has them in tensors of their own.
- Where the states' indices lie. A full CUDA graph reads a buffer with stride 1; anything else reads a column
  of a table that is as wide as a request has states, one and another for each draft token. In a batch of
  speculative and other requests each kind has a table of its own. The V2 runner keeps the tables of all
  groups of layers in one tensor (v1/worker/mamba_utils.py, ``aligned_state_indices``), so that a group's may
  begin unaligned.
- The prefills of a batch with checkpoints: the rows of the plan are a view behind one start for each and one
  more (``store_cache_checkpoints_kernel``).

In 0.26.0 the keys of both convolution kernels hold the number of the KV cache's blocks, which a server learns when it
has measured its memory: they are not packed. Nothing exports checkpoints, whatever the back end of prefill, and the V2
runner has no tensor of all groups. Of a server's warm-up (``_warmup_prefill_kernels``, and model_executor/warmup/
qwen_triton_warmup.py) no request reaches two keys: a prefill of a single token, which is a decode in that release, and
a decode with the stride 1 of one state, under speculation too. Releases with compile keys of their own to warm up by
(warmup/jit_warmup.py) are not driven through it.

Embedding models decode too: where a prompt is prefilled in chunks, a last chunk of one token is a decode (the
builder's ``build``). They never speculate.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace, Unbounded, without

_FLA = "vllm.third_party.flash_linear_attention.ops"
_MAMBA = "vllm.model_executor.layers.mamba"
_LAYER = f"{_MAMBA}.gdn.qwen_gdn_linear_attn"
_BUILDER = "vllm.v1.attention.backends.gdn_attn"
_BACKEND = "vllm.v1.attention.backend"
_CONTEXT = "vllm.forward_context"
_CHECKPOINT = f"{_MAMBA}.checkpoint"
_CACHES = "vllm.v1.worker.gpu.attn_utils"
_WARM_UP = "vllm.model_executor.warmup.qwen_triton_warmup"
_JIT_WARM_UP = "vllm.model_executor.warmup.jit_warmup"

_CACHE_LINES = {
    "0.26.0": Unbounded(
        setting="cache-lines",
        fixed_by="the number of the KV cache's blocks, which a server learns when it has measured its memory",
    )
}
"""Constexpr ``num_cache_lines`` of the convolutions; later releases pass it at run time."""

_NAME = "layer"
_PAGES = 3
_TABLE = "table"
_CLASSES = (1, 2, 16)
_STEP = 8192
"""Tokens of a step under load: vLLM's default for a server on a large GPU (engine/arg_utils.py)."""
_SHARERS = 4
"""Requests whose prefills share such a step."""
_MANY = 65
"""Too many requests for the packed decode kernel's tile for few, which is for 64 value heads in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The requests of one step, in the order in which runners lay them out.

    Attributes:
        drafted: query lengths of requests that verify draft tokens.
        decodes: how many requests have one token and a state.
        prefills: query lengths of requests without a state.
    """

    drafted: tuple[int, ...] = ()
    decodes: int = 0
    prefills: tuple[int, ...] = ()

    @property
    def queries(self) -> list[int]:
        """The query length of each request."""
        return [*self.drafted, *[1] * self.decodes, *self.prefills]

    def fits(self, deployment: Deployment) -> bool:
        """Whether one step of the deployment can hold it."""
        return (
            len(self.queries) <= deployment.max_num_seqs
            and sum(self.queries) <= deployment.max_num_batched_tokens
            and max(self.queries) <= deployment.model_len
        )


def _serves(deployment: Deployment) -> bool:
    # The kernels of prefill take half precision alone (flash_linear_attention/ops/chunk.py).
    return deployment.model.gdn is not None and deployment.dtype != "float32"


def _batches(deployment: Deployment) -> Iterator[_Batch]:
    """Batches to try wherever the states' indices lie."""
    # The packed decode kernel has one tile for few requests, one for many, and another grid for very many.
    for requests in (*_CLASSES, _MANY, deployment.max_num_seqs):
        yield _Batch(decodes=requests)
    yield from _prefills((2,))
    if verified := _verified(deployment):
        yield _Batch(drafted=(1,))
        for requests in _CLASSES:
            yield _Batch(drafted=(verified,) * requests)
        yield _Batch(drafted=(verified,), prefills=(2,))


def _more_batches(deployment: Deployment) -> Iterator[_Batch]:
    """Batches to try once: what they add does not depend on where the states' indices lie."""
    for tokens in _CLASSES:
        yield from _prefills((tokens,))
    if _exports(deployment):
        # A prefill past the end of a block has a checkpoint there, exported from inside its chunks.
        past = deployment.block_tokens + 1
        for prefills in ((past,), (2, past)):
            yield _Batch(prefills=prefills)
            if verified := _verified(deployment):
                yield _Batch(drafted=(verified,), prefills=prefills)


def _prefills(prefills: tuple[int, ...]) -> Iterator[_Batch]:
    """Prefills alone, and behind one decode: gates unaligned from any row on are so from there."""
    yield _Batch(prefills=prefills)
    yield _Batch(decodes=1, prefills=prefills)


def _verified(deployment: Deployment) -> int:
    """Tokens of a request that verifies drafts, 0 where none does."""
    speculates = deployment.speculative_tokens and not deployment.pooling
    return 1 + deployment.speculative_tokens if speculates else 0


def _exports(deployment: Deployment) -> bool:
    """Whether prefills export checkpoints of their states."""
    return deployment.gdn_prefill == "flashinfer" and deployment.prefix_caching


def _drive(trace: Trace, deployment: Deployment) -> None:
    import torch

    # FlashInfer's prefill does not run on every target, and vLLM falls back to Triton's where it does not.
    _, prefill = trace.module(_LAYER)._resolve_gdn_prefill_backend(_config(deployment, deployment.gdn_prefill))  # noqa: SLF001
    # Blocks are longer, and checkpoints exported, for FlashInfer's prefill in releases that export any.
    deployment = replace(deployment, gdn_prefill=prefill if trace.has(_CHECKPOINT) else "triton")
    layer = _layer(trace, deployment, prefill)
    with torch.inference_mode():
        if not deployment.pooling and not trace.has(_JIT_WARM_UP):
            _warm_up(trace, deployment, layer)
        for indices, builder in _builders(trace, deployment, layer):
            batches = _batches(deployment)
            for batch in chain(batches, _more_batches(deployment)) if indices == _TABLE else batches:
                if batch.fits(deployment):
                    _step(trace, deployment, layer, indices=indices, builder=builder, batch=batch)


def _tune(trace: Trace, deployment: Deployment) -> None:
    """Prefill as under load: a step of a server's usual size, shared by a few requests.

    A server tunes at its first prefill, which is one of 64 tokens that its warm-up makes, and keeps what it found
    for all: the tuning keys hold no number of tokens.
    """
    import torch

    _, prefill = trace.module(_LAYER)._resolve_gdn_prefill_backend(_config(deployment, deployment.gdn_prefill))  # noqa: SLF001
    if prefill == "flashinfer":
        return
    layer = _layer(trace, deployment, prefill)
    tokens = min(deployment.max_num_batched_tokens, _STEP)
    requests = min(deployment.max_num_seqs, _SHARERS)
    batch = _Batch(prefills=(min(tokens // requests, deployment.model_len),) * requests)
    with torch.inference_mode():
        indices, builder = next(_builders(trace, deployment, layer))
        _step(trace, deployment, layer, indices=indices, builder=builder, batch=batch)


def _warm_up(trace: Trace, deployment: Deployment, layer: Any) -> None:
    """What a server launches before it serves: prefill while it measures its memory, then requests of its own."""
    import torch

    context = SimpleNamespace(no_compile_layers={_NAME: layer}, attn_metadata=None)
    with trace.module(_CONTEXT).override_forward_context(context), trace.input(warm_up="prefill"):
        layer.forward_cuda(torch.empty(1, 1, dtype=_dtype(deployment.dtype)))
    warm_up, device = trace.module(_WARM_UP), torch.device("cpu")
    config = warm_up._qwen_gdn_warmup_config({_NAME: layer})  # noqa: SLF001
    for name in (
        "_warm_fused_post_conv_kernel",
        "_warm_fused_sigmoid_gating_delta_rule_update_kernel",
    ):
        with trace.input(warm_up=name):
            getattr(warm_up, name)(device, config)


def _step(trace: Trace, deployment: Deployment, layer: Any, *, indices: str, builder: Any, batch: _Batch) -> None:
    """Run the layer on a batch, with the gates of a single token as eager and as compiled code make them."""
    import torch

    tokens = sum(batch.queries)
    quantities: dict[str, int | str | bool] = {
        "indices": indices,
        "drafted": len(batch.drafted),
        "decodes": batch.decodes,
        "prefills": len(batch.prefills),
        "tokens": tokens,
    }
    metadata = _metadata(trace, deployment, builder, batch)
    context = SimpleNamespace(no_compile_layers={_NAME: layer}, attn_metadata={_NAME: metadata})
    with trace.module(_CONTEXT).override_forward_context(context):
        with trace.input(**quantities, gates="views"):
            layer.forward_cuda(torch.empty(tokens, 1, dtype=_dtype(deployment.dtype)))
        if tokens == 1:
            with trace.input(**quantities, gates="copies"):
                _run_compiled(layer, deployment)


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _config(deployment: Deployment, prefill: str) -> SimpleNamespace:
    """What the layer and the builder ask of vLLM's configuration (config/vllm.py, ``VllmConfig``)."""
    gdn, caching = deployment.gdn, deployment.prefix_caching
    block = deployment.block_tokens if caching else deployment.model_len
    drafts = max(0, _verified(deployment) - 1)
    speculative = SimpleNamespace(
        num_speculative_tokens=drafts, parallel_drafting=False, use_eagle_block_drop=lambda: False
    )
    text = SimpleNamespace(linear_key_head_dim=gdn.k_dim, linear_value_head_dim=gdn.v_dim)
    return SimpleNamespace(
        additional_config={"gdn_prefill_backend": prefill},
        cache_config=SimpleNamespace(
            mamba_cache_mode="align" if caching else "none",
            mamba_block_size=block,
            mamba_page_size_padded=deployment.kv_page,
            hash_block_size=block,
            cache_hit_alignment_tokens=block,
            prefix_match_unit=None,
            use_replayssm=False,
        ),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: False),
            max_cudagraph_capture_size=None,
            static_forward_context={},
        ),
        model_config=SimpleNamespace(hf_text_config=text),
        num_hash_lookahead_tokens=0,
        num_speculative_tokens=drafts,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(
            max_num_seqs=deployment.max_num_seqs, max_num_batched_tokens=deployment.max_num_batched_tokens
        ),
        speculative_config=speculative if drafts else None,
        use_v2_model_runner=False,
    )


def _layer(trace: Trace, deployment: Deployment, prefill: str) -> Any:
    """The layer as its ``__init__`` leaves it, with weights and states but without what needs a server."""
    import torch

    module, config = trace.module(_LAYER), _config(deployment, prefill)
    gdn, dtype = deployment.gdn, _dtype(deployment.dtype)
    heads = gdn.v_heads // deployment.tp
    gate = heads * gdn.v_dim

    def project(width: int) -> Callable[[Any], tuple[Any, None]]:
        return lambda hidden: (torch.empty(len(hidden), width, dtype=dtype), None)

    layer = object.__new__(module.QwenGatedDeltaNetAttention)
    vars(layer).update(
        prefix=_NAME,
        tp_size=deployment.tp,
        tp_rank=0,
        vllm_config=config,
        activation="silu",
        num_spec=config.num_speculative_tokens,
        num_k_heads=gdn.k_heads,
        num_v_heads=gdn.v_heads,
        head_k_dim=gdn.k_dim,
        head_v_dim=gdn.v_dim,
        conv_kernel_size=gdn.conv_kernel,
        key_dim=gdn.k_heads * gdn.k_dim,
        value_dim=gdn.v_heads * gdn.v_dim,
        gqa_interleaved_layout=gdn.interleaved,
        disable_tp_for_ba_proj=False,
        enable_packed_recurrent_decode=True,
        # The CUDA kernel that verifies drafts is built for CUDA 13 alone, and not for batches with prefills;
        # what Triton launches before it is launched without it too.
        enable_fused_gdn_spec_decode=False,
        gdn_prefill_backend=prefill,
        in_proj_qkvz=project(deployment.conv_dim + gate),
        in_proj_ba=project(2 * heads),
        conv1d=SimpleNamespace(weight=torch.empty(deployment.conv_dim, 1, gdn.conv_kernel, dtype=dtype), bias=None),
        # Parameters are made in the default dtype, which is the model's while a model is built.
        dt_bias=torch.empty(heads, dtype=dtype),
        A_log=torch.empty(heads, dtype=torch.float32),
        chunk_gated_delta_rule=_prefill(module.ChunkGatedDeltaRule, prefill),
        get_state_dtype=lambda: (dtype, _dtype(deployment.state_dtype)),
        _output_projection=lambda _core, _gate: None,
        _prefill_kernels_warmed_up=False,
        _checkpoint_alignment=None,
        _max_num_batched_tokens=deployment.max_num_batched_tokens,
    )
    if _exports(deployment):
        vars(layer).update(
            _checkpoint_alignment=trace.module(_BUILDER).FLASHINFER_GDN_CHECKPOINT_ALIGNMENT,
            _checkpoint_exporter=module.MambaPrefillCheckpointExporter(state_len=gdn.conv_kernel - 1),
        )
    config.compilation_config.static_forward_context[_NAME] = layer
    _bind(trace, layer, deployment)
    return layer


def _bind(trace: Trace, layer: Any, deployment: Deployment) -> None:
    """Give the layer its states, cut from pages of the KV cache: by itself, or by the runner where that does it."""
    import torch

    lines = dict(deployment.settings).get("cache-lines", _PAGES)
    pages = torch.zeros(lines, 1, 1, deployment.kv_page, dtype=torch.int8)
    if hasattr(layer, "bind_kv_cache"):
        layer.bind_kv_cache(pages)
        return
    spec = layer.get_kv_cache_spec(layer.vllm_config)
    group = SimpleNamespace(kv_cache_group_id=0, kv_cache_spec=spec, layer_names=[_NAME])
    reshape = trace.module(_CACHES)._reshape_kv_cache  # noqa: SLF001  # what initialize_kv_cache calls
    layer.kv_cache = reshape([group], {_NAME: pages.flatten()}, "auto", [spec.block_size], {})[_NAME]


def _prefill(rule: Any, prefill: str) -> Callable[..., Any]:
    """The back end of prefill, as ``ChunkGatedDeltaRule.__init__`` chooses it."""
    return partial(rule.forward_cuda if prefill == "flashinfer" else rule.forward_native, None)


def _builders(trace: Trace, deployment: Deployment, layer: Any) -> Iterator[tuple[str, Any]]:
    """Builders of metadata, by where the states' indices lie."""
    import torch

    def build() -> Any:
        return trace.module(_BUILDER).GDNAttentionMetadataBuilder(
            layer.get_kv_cache_spec(layer.vllm_config), [_NAME], layer.vllm_config, torch.device("cpu")
        )

    yield _TABLE, build()
    captured = build()
    captured.use_full_cuda_graph = True
    yield "graph", captured
    if deployment.prefix_caching:
        # The V2 runner's second group; the first begins as aligned as a table.
        second = build()
        second.mamba_aligned_state_indices = torch.zeros(
            2, deployment.max_num_seqs, 1 + layer.num_spec, dtype=torch.int32
        )[1]
        yield "second group", second


def _metadata(trace: Trace, deployment: Deployment, builder: Any, batch: _Batch) -> Any:
    """The metadata of a batch."""
    import torch

    queries = torch.tensor(batch.queries, dtype=torch.int32)
    starts = torch.zeros(len(queries) + 1, dtype=torch.int32)
    torch.cumsum(queries, dim=0, out=starts[1:])
    fresh = torch.arange(len(queries)) >= len(queries) - len(batch.prefills)
    lengths = torch.where(fresh, queries, queries + 1)
    width = builder.kv_cache_spec.max_num_blocks_per_req(builder.vllm_config, deployment.model_len)
    drafts: dict[str, Any] = {}
    if builder.use_spec_decode:
        drafts = {
            "num_accepted_tokens": torch.ones(len(queries), dtype=torch.int32),
            "num_decode_draft_tokens_cpu": torch.where(
                torch.arange(len(queries)) < len(batch.drafted), queries - 1, -1
            ),
        }
    common = trace.module(_BACKEND).CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(queries),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(queries.max()),
        max_seq_len=int(lengths.max()),
        block_table_tensor=_on_host(torch.zeros(len(queries), width, dtype=torch.int32)),
        slot_mapping=torch.empty(0, dtype=torch.int64),
        is_prefilling=fresh,
    )
    return builder.build(0, common, **drafts)


def _on_host(tensor: Any) -> Any:
    """The tensor, not claiming to be on the device, so that torch cuts the states' blocks out of their table.

    On the device a kernel of family memcpy does, with the same shape and strides, and would leave them unfilled
    here (v1/attention/backends/utils.py, ``mamba_get_block_table_tensor``); the layer indexes its states by them.
    """
    import torch

    plain = torch._C._disabled_torch_function_impl  # noqa: SLF001  # results are tensors like any other
    return tensor.as_subclass(type("OnHost", (torch.Tensor,), {"is_cuda": False, "__torch_function__": plain}))


def _run_compiled(layer: Any, deployment: Deployment) -> None:
    """The core of the layer for one token, on tensors as compiled code makes them.

    Those are tensors of their own, but for Qwen3.5's q, k and v, which are a view of their projection too.
    """
    import torch

    gdn, dtype = deployment.gdn, _dtype(deployment.dtype)
    heads = gdn.v_heads // deployment.tp
    width = deployment.conv_dim if gdn.interleaved else deployment.conv_dim + heads * gdn.v_dim
    layer._forward_core(  # noqa: SLF001
        mixed_qkv=torch.empty(1, width, dtype=dtype)[:, : deployment.conv_dim],
        b=torch.empty(1, heads, dtype=dtype),
        a=torch.empty(1, heads, dtype=dtype),
        core_attn_out=torch.empty(1, heads, gdn.v_dim, dtype=dtype),
    )


def _kernel(
    module: str, name: str, parameters: str, *older: str, newer: tuple[str, ...] = (), **known: Any
) -> ExpectedKernel:
    """A kernel, with its parameters in older releases, or those that older releases lack."""
    names = tuple(parameters.split())
    others = tuple(tuple(text.split()) for text in older) + ((without(names, *newer),) if newer else ())
    return ExpectedKernel(name=f"{module}:{name}", parameters=names, others=others, **known)


FAMILY = Family(
    name="gdn",
    engine="vllm",
    kernels=(
        _kernel(
            f"{_MAMBA}.ops.causal_conv1d",
            "_causal_conv1d_fwd_kernel",
            "x_ptr w_ptr bias_ptr initial_states_ptr cache_indices_ptr has_initial_states_ptr "
            "query_start_loc_ptr batch_ptr token_chunk_offset_ptr o_ptr dim num_cache_lines "
            "stride_x_dim stride_x_token stride_w_dim stride_w_width stride_istate_seq "
            "stride_istate_dim stride_istate_token stride_cache_indices stride_o_dim stride_o_token "
            "pad_slot_id null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION HAS_NULL_BLOCK "
            "NP2_STATELEN BLOCK_M BLOCK_N launch_pdl",
            "x_ptr w_ptr bias_ptr initial_states_ptr cache_indices_ptr has_initial_states_ptr "
            "query_start_loc_ptr batch_ptr token_chunk_offset_ptr block_idx_first_scheduled_token "
            "block_idx_last_scheduled_token initial_state_idx num_computed_tokens o_ptr dim num_cache_lines "
            "stride_x_dim stride_x_token stride_w_dim stride_w_width stride_istate_seq "
            "stride_istate_dim stride_istate_token stride_cache_indices stride_o_dim stride_o_token "
            "stride_block_m pad_slot_id null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION IS_APC_ENABLED "
            "HAS_NULL_BLOCK NP2_STATELEN BLOCK_M BLOCK_N",
            unbounded=_CACHE_LINES,
        ),
        _kernel(
            f"{_MAMBA}.ops.causal_conv1d",
            "_causal_conv1d_update_kernel",
            "x_ptr w_ptr bias_ptr conv_state_ptr conv_state_indices_ptr num_accepted_tokens_ptr "
            "query_start_loc_ptr o_ptr batch dim seqlen state_len num_cache_lines stride_x_seq "
            "stride_x_dim stride_x_token stride_w_dim stride_w_width stride_conv_state_seq "
            "stride_conv_state_dim stride_conv_state_tok stride_state_indices stride_o_seq "
            "stride_o_dim stride_o_token null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION "
            "IS_VARLEN IS_SPEC_DECODING NP2_STATELEN HAS_NULL_BLOCK BLOCK_N launch_pdl",
            "x_ptr w_ptr bias_ptr conv_state_ptr conv_state_indices_ptr num_accepted_tokens_ptr "
            "query_start_loc_ptr block_idx_last_scheduled_token initial_state_idx o_ptr batch dim seqlen "
            "state_len num_cache_lines stride_x_seq stride_x_dim stride_x_token stride_w_dim stride_w_width "
            "stride_conv_state_seq stride_conv_state_dim stride_conv_state_tok stride_state_indices stride_o_seq "
            "stride_o_dim stride_o_token null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION IS_VARLEN "
            "IS_APC_ENABLED IS_SPEC_DECODING NP2_STATELEN HAS_NULL_BLOCK BLOCK_N",
            unbounded=_CACHE_LINES,
        ),
        _kernel(
            f"{_FLA}.fused_gdn_prefill_post_conv",
            "_fused_post_conv_kernel",
            "mixed_qkv_ptr a_ptr b_ptr A_log_ptr dt_bias_ptr q_ptr k_ptr v_ptr g_ptr beta_ptr "
            "stride_x_tok stride_a_tok stride_b_tok stride_q_tok stride_k_tok stride_v_tok L H HV K V "
            "APPLY_L2NORM L2NORM_EPS OUTPUT_G_EXP SOFTPLUS_THRESHOLD BLOCK_T BK BV",
        ),
        _kernel(
            f"{_FLA}.fused_sigmoid_gating",
            "fused_sigmoid_gating_delta_rule_update_kernel",
            "A_log a b dt_bias beta threshold q k v o h0 ht cu_seqlens ssm_state_indices "
            "num_accepted_tokens scale N T B H HV K V BK BV stride_init_state_token "
            "stride_final_state_token stride_indices_seq stride_indices_tok USE_INITIAL_STATE "
            "INPLACE_FINAL_STATE USE_QK_L2NORM_IN_KERNEL IS_VARLEN IS_CONTINUOUS_BATCHING "
            "IS_SPEC_DECODING IS_KDA",
        ),
        _kernel(
            f"{_FLA}.fused_recurrent",
            "fused_recurrent_gated_delta_rule_packed_decode_kernel",
            "mixed_qkv a b A_log dt_bias o h0 ht ssm_state_indices scale stride_mixed_qkv_tok "
            "stride_a_tok stride_b_tok stride_init_state_token stride_final_state_token "
            "stride_indices_seq H HV K V BK BV SOFTPLUS_THRESHOLD USE_QK_L2NORM_IN_KERNEL "
            "SPLIT_BATCH_HEAD_GRID",
            newer=("SPLIT_BATCH_HEAD_GRID",),
        ),
        _kernel(
            f"{_FLA}.cumsum",
            "chunk_local_cumsum_scalar_kernel",
            "s o cu_seqlens chunk_indices T B H BT REVERSE IS_VARLEN HEAD_FIRST",
        ),
        _kernel(
            f"{_FLA}.chunk_scaled_dot_kkt",
            "chunk_scaled_dot_kkt_fwd_kernel",
            "k beta g A cu_seqlens chunk_indices T H Hg K BT BK IS_VARLEN USE_G CAST_DOT_TO_K_DTYPE",
        ),
        _kernel(
            f"{_FLA}.solve_tril",
            "merge_16x16_to_64x64_inverse_kernel",
            "A Ai cu_seqlens chunk_indices T H BT USE_TMA IS_VARLEN DOT_PRECISION",
        ),
        _kernel(
            f"{_FLA}.wy_fast",
            "recompute_w_u_fwd_kernel",
            "k v beta w u A g cu_seqlens chunk_indices T H Hg K V BT BK BV IS_VARLEN",
        ),
        _kernel(
            f"{_FLA}.chunk_delta_h",
            "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
            "k v w v_new g gk h h0 ht cu_seqlens chunk_offsets T H Hg K V BT BV USE_G USE_GK "
            "USE_INITIAL_STATE STORE_FINAL_STATE SAVE_NEW_VALUE IS_VARLEN USE_EXP2",
        ),
        _kernel(
            f"{_FLA}.chunk_o",
            "chunk_fwd_kernel_o",
            "q k v h g o cu_seqlens chunk_indices scale T H Hg K V BT BK BV USE_G IS_VARLEN",
        ),
        _kernel(
            _CHECKPOINT,
            "store_cache_checkpoints_kernel",
            "x_ptr conv_state_ptr recurrent_checkpoint_ptr recurrent_state_ptr query_start_loc_ptr "
            "checkpoint_offsets_ptr checkpoint_state_indices_ptr recurrent_rows_ptr token_indices_ptr "
            "x_stride_0 x_stride_1 state_stride_0 state_stride_1 state_stride_2 checkpoint_stride_0 "
            "recurrent_state_stride_0 checkpoint_offset_stride STATE_LEN WIDTH RECURRENT_ROW_SIZE "
            "NULL_STATE_IDX HAS_RECURRENT HAS_RECURRENT_ROWS HAS_TOKEN_MAP BLOCK_SIZE",
            absent=("0.26.0",),
        ),
    ),
    modules=(
        *(
            f"{_FLA}.{name}"
            for name in (
                "utils",
                "op",
                "index",
                "l2norm",
                "cumsum",
                "chunk_scaled_dot_kkt",
                "solve_tril",
                "wy_fast",
                "chunk_delta_h",
                "chunk_o",
                "chunk",
                "fused_gdn_prefill_post_conv",
                "fused_recurrent",
                "fused_sigmoid_gating",
                "layernorm_guard",
            )
        ),
        _FLA,
        "vllm.model_executor.layers.attention_layer_base",
        "vllm.v1.attention.backends.registry",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.v1.kv_cache_interface",
        _BACKEND,
        "vllm.v1.attention.backends.utils",
        _CONTEXT,
        f"{_MAMBA}.mamba_utils",
        f"{_MAMBA}.abstract",
        f"{_MAMBA}.ops.causal_conv1d",
        f"{_MAMBA}.gdn.base",
        _BUILDER,
        _LAYER,
    ),
    serves=_serves,
    drive=_drive,
    tune=_tune,
    optional=(
        f"{_FLA}.fused_gdn_decode_post_conv_mtp",
        _JIT_WARM_UP,
        f"{_JIT_WARM_UP}_triton_helper",
        "vllm.v1.kv_cache_layout",
        _CHECKPOINT,
        _CACHES,
        _WARM_UP,
    ),
)
