"""The layer with its states, and what it asks of the server's configuration."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Trace
from aotpack.families.gdn.batch import exports_checkpoints, verified_tokens
from aotpack.families.gdn.modules import BUILDER, CACHES, LAYER

NAME = "layer"
_PAGES = 3


def make_config(deployment: Deployment, prefill: str) -> SimpleNamespace:
    """What the layer and the builder ask of vLLM's configuration (config/vllm.py, ``VllmConfig``)."""
    gdn, caching = deployment.gdn, deployment.prefix_caching
    block = deployment.block_tokens if caching else deployment.model_len
    drafts = max(0, verified_tokens(deployment) - 1)
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


def make_layer(trace: Trace, deployment: Deployment, prefill: str) -> Any:
    """The layer as its ``__init__`` leaves it, with weights and states but without what needs a server."""
    import torch

    module, config = trace.module(LAYER), make_config(deployment, prefill)
    gdn, dtype = deployment.gdn, dtype_of(deployment.dtype)
    heads = gdn.v_heads // deployment.tp
    gate = heads * gdn.v_dim

    def project(width: int) -> Callable[[Any], tuple[Any, None]]:
        return lambda hidden: (torch.empty(len(hidden), width, dtype=dtype), None)

    layer = object.__new__(module.QwenGatedDeltaNetAttention)
    vars(layer).update(
        prefix=NAME,
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
        get_state_dtype=lambda: (dtype, dtype_of(deployment.state_dtype)),
        _output_projection=lambda _core, _gate: None,
        _prefill_kernels_warmed_up=False,
        _checkpoint_alignment=None,
        _max_num_batched_tokens=deployment.max_num_batched_tokens,
    )
    if exports_checkpoints(deployment):
        vars(layer).update(
            _checkpoint_alignment=trace.module(BUILDER).FLASHINFER_GDN_CHECKPOINT_ALIGNMENT,
            _checkpoint_exporter=module.MambaPrefillCheckpointExporter(state_len=gdn.conv_kernel - 1),
        )
    config.compilation_config.static_forward_context[NAME] = layer
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
    group = SimpleNamespace(kv_cache_group_id=0, kv_cache_spec=spec, layer_names=[NAME])
    reshape = trace.module(CACHES)._reshape_kv_cache  # noqa: SLF001  # what initialize_kv_cache calls
    layer.kv_cache = reshape([group], {NAME: pages.flatten()}, "auto", [spec.block_size], {})[NAME]


def _prefill(rule: Any, prefill: str) -> Callable[..., Any]:
    """The back end of prefill, as ``ChunkGatedDeltaRule.__init__`` chooses it."""
    return partial(rule.forward_cuda if prefill == "flashinfer" else rule.forward_native, None)


def run_compiled(layer: Any, deployment: Deployment) -> None:
    """The core of the layer for one token, on tensors as compiled code makes them.

    Those are tensors of their own, but for Qwen3.5's q, k and v, which are a view of their projection too.
    """
    import torch

    gdn, dtype = deployment.gdn, dtype_of(deployment.dtype)
    heads = gdn.v_heads // deployment.tp
    width = deployment.conv_dim if gdn.interleaved else deployment.conv_dim + heads * gdn.v_dim
    layer._forward_core(  # noqa: SLF001
        mixed_qkv=torch.empty(1, width, dtype=dtype)[:, : deployment.conv_dim],
        b=torch.empty(1, heads, dtype=dtype),
        a=torch.empty(1, heads, dtype=dtype),
        core_attn_out=torch.empty(1, heads, gdn.v_dim, dtype=dtype),
    )


def dtype_of(name: str) -> Any:
    """Torch's dtype of a name."""
    import torch

    return getattr(torch, name)
