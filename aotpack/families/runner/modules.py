"""The engine's modules that the family calls, and those that must be real beside them."""

V1 = "vllm.v1"
GPU = f"{V1}.worker.gpu"
SAMPLE = f"{GPU}.sample"
SPEC = f"{GPU}.spec_decode"
DRAFTER = f"{SPEC}.target_dependent_ar.speculator"
TOPK_TOPP = f"{V1}.sample.ops.topk_topp_triton"

MODULES: tuple[str, ...] = (
    "vllm.model_executor.warmup.jit_warmup",
    "vllm.model_executor.warmup.jit_warmup_triton_helper",
    "vllm.utils.gpu_sync_debug",
    f"{V1}.attention.backend",
    f"{V1}.attention.backends.registry",
    f"{V1}.attention.backends.utils",
    f"{V1}.kv_cache_interface",
    f"{V1}.kv_cache_layout",
    f"{V1}.kv_cache_spec_registry",
    f"{V1}.outputs",
    f"{V1}.sample.ops.topk_topp_sampler",
    TOPK_TOPP,
    # Kernels call functions of these two.
    f"{V1}.watermarking.prfs.philox",
    f"{SAMPLE}.watermark",
    f"{V1}.worker.block_table",
    f"{V1}.worker.utils",
    f"{GPU}.block_table",
    f"{GPU}.buffer_utils",
    f"{GPU}.input_batch",
    f"{GPU}.model_runner",
    f"{GPU}.states",
    f"{GPU}.structured_outputs",
    f"{SAMPLE}.bad_words",
    f"{SAMPLE}.gumbel",
    f"{SAMPLE}.logit_bias",
    f"{SAMPLE}.logits_processor.interface",
    f"{SAMPLE}.logprob",
    f"{SAMPLE}.min_p",
    f"{SAMPLE}.output",
    f"{SAMPLE}.penalties",
    f"{SAMPLE}.prompt_logprob",
    f"{SAMPLE}.sampler",
    f"{SAMPLE}.states",
    f"{SAMPLE}.thinking_budget",
    f"{SPEC}.rejection_sampler",
    f"{SPEC}.rejection_sampler_utils",
    DRAFTER,
)
