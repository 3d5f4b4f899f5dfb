"""The engine's modules that the family calls, and those that must be real beside them."""

FLA = "vllm.third_party.flash_linear_attention.ops"
MAMBA = "vllm.model_executor.layers.mamba"
LAYER = f"{MAMBA}.gdn.qwen_gdn_linear_attn"
BUILDER = "vllm.v1.attention.backends.gdn_attn"
BACKEND = "vllm.v1.attention.backend"
CONTEXT = "vllm.forward_context"
CHECKPOINT = f"{MAMBA}.checkpoint"
CACHES = "vllm.v1.worker.gpu.attn_utils"
WARM_UP = "vllm.model_executor.warmup.qwen_triton_warmup"
JIT_WARM_UP = "vllm.model_executor.warmup.jit_warmup"

MODULES: tuple[str, ...] = (
    *(
        f"{FLA}.{name}"
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
    FLA,
    "vllm.model_executor.layers.attention_layer_base",
    "vllm.v1.attention.backends.registry",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.kv_cache_interface",
    BACKEND,
    "vllm.v1.attention.backends.utils",
    CONTEXT,
    f"{MAMBA}.mamba_utils",
    f"{MAMBA}.abstract",
    f"{MAMBA}.ops.causal_conv1d",
    f"{MAMBA}.gdn.base",
    BUILDER,
    LAYER,
)

OPTIONAL: tuple[str, ...] = (
    f"{FLA}.fused_gdn_decode_post_conv_mtp",
    JIT_WARM_UP,
    f"{JIT_WARM_UP}_triton_helper",
    "vllm.v1.kv_cache_layout",
    CHECKPOINT,
    CACHES,
    WARM_UP,
)
"""Those that some releases lack."""
