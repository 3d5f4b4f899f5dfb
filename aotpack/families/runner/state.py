"""The runner and what it keeps between steps: requests, buffers, block tables, samplers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Trace
from aotpack.families.runner.modules import GPU, SAMPLE, SPEC, V1

_VOCAB_PADDING = 64  # model_executor/layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
_ATTENTION_BLOCK = 16  # config/cache.py, CacheConfig.DEFAULT_BLOCK_SIZE


def make_runner(trace: Trace, deployment: Deployment) -> Any:
    """A ``GPUModelRunner`` with what its steps use (v1/worker/gpu/model_runner.py)."""
    import torch

    device = torch.device("cpu")
    drafts = 0 if deployment.pooling else deployment.speculative_tokens
    runner: Any = object.__new__(trace.module(f"{GPU}.model_runner").GPUModelRunner)
    runner.device = device
    runner.max_num_reqs = deployment.max_num_seqs
    runner.max_num_tokens = deployment.max_num_batched_tokens
    runner.vocab_size = deployment.model.vocab
    runner.num_speculative_steps = drafts
    runner.decode_query_len = drafts + 1
    runner.is_last_pp_rank = True
    runner.use_pp = False
    for absent in (
        "adaptive_verification",
        "batch_sharder",
        "encoder_cache",
        "fast_prefill",
        "kv_block_zeroer",
        "pcp_manager",
        "pooling_runner",
        "pp_handler",
        "prompt_logprobs_worker",
        "rejection_sampler",
        "sampler",
        "speculator",
    ):
        setattr(runner, absent, None)
    # The states of models and adapters are other families' kernels, or none.
    runner.model_state = _mute("add_request", "remove_request", "apply_staged_writes", "postprocess_state")
    runner.model_state.num_new_sampled_tokens_per_step = 1
    runner.lora_state = _mute("add_request", "remove_request")
    runner.model_config = SimpleNamespace(rswa_window=None)
    runner.model = SimpleNamespace(compute_logits=lambda hidden: make_logits(deployment, hidden.shape[0]))
    runner.req_states = trace.module(f"{GPU}.states").RequestState(
        max_num_reqs=runner.max_num_reqs,
        max_model_len=deployment.model_len,
        max_num_batched_tokens=runner.max_num_tokens,
        num_speculative_steps=drafts,
        vocab_size=runner.vocab_size,
        device=device,
        num_prefill_lookahead=1,
        use_dense_all_token_ids=False,
    )
    runner.input_buffers = trace.module(f"{GPU}.input_batch").InputBuffers(
        max_num_reqs=runner.max_num_reqs, max_num_tokens=runner.max_num_tokens, device=device
    )
    block = attention_block(deployment)
    width = trace.module(f"{V1}.worker.block_table").get_block_table_width(-(-deployment.model_len // block), block)
    # Of the number of KV cache groups it matters only whether there is one: linear attention has its own.
    groups = 1 if deployment.model.gdn is None else 2
    runner.block_tables = trace.module(f"{GPU}.block_table").BlockTables(
        block_sizes=[block] * groups,
        max_num_reqs=runner.max_num_reqs,
        max_num_batched_tokens=runner.max_num_tokens,
        max_num_blocks_per_group=[width] * groups,
        device=device,
    )
    if not deployment.pooling:
        _add_samplers(trace, runner)
    return runner


def _add_samplers(trace: Trace, runner: Any) -> None:
    with _triton_sampling():
        runner.sampler = trace.module(f"{SAMPLE}.sampler").Sampler(
            vllm_config=SimpleNamespace(reasoning_config=None),
            max_num_reqs=runner.max_num_reqs,
            vocab_size=runner.vocab_size,
            device=runner.device,
            req_states=runner.req_states,
            num_speculative_tokens=runner.decode_query_len,
        )
    runner.prompt_logprobs_worker = trace.module(f"{SAMPLE}.prompt_logprob").PromptLogprobsWorker(
        runner.max_num_reqs, runner.device
    )
    runner.structured_outputs_worker = trace.module(f"{GPU}.structured_outputs").StructuredOutputsWorker(
        max_num_logits=runner.max_num_reqs * runner.decode_query_len,
        vocab_size=runner.vocab_size,
        device=runner.device,
        mask_stride=runner.decode_query_len,
    )
    if runner.num_speculative_steps:
        runner.speculator = SimpleNamespace(draft_logits=None)
        runner.rejection_sampler = trace.module(f"{SPEC}.rejection_sampler").RejectionSampler(
            runner.sampler,
            SimpleNamespace(
                num_speculative_tokens=runner.num_speculative_steps,
                enable_adaptive_verification=False,
                rejection_sample_method="standard",
                fly_entropy_threshold=0.3,
                fly_entropy_top_k=3,
            ),
            runner.device,
        )


@contextmanager
def _triton_sampling() -> Iterator[None]:
    """Turn FlashInfer's sampler off, as a seed in a request does: it only takes launches away."""
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    try:
        yield
    finally:
        del os.environ["VLLM_USE_FLASHINFER_SAMPLER"]


def _mute(*methods: str) -> SimpleNamespace:
    return SimpleNamespace(**dict.fromkeys(methods, lambda *_args: None))


def attention_block(deployment: Deployment) -> int:
    """Tokens of one block of the full attention layers' KV cache."""
    return _ATTENTION_BLOCK if deployment.model.gdn is None else deployment.block_tokens


def make_logits(deployment: Deployment, rows: int) -> Any:
    """The model's logits: those of the padded vocabulary, cut to the vocabulary.

    vLLM, model_executor/layers/logits_processor.py, ``_get_logits``; gathered from ranks, they are as long.
    """
    import torch

    padded = -(-deployment.model.vocab // _VOCAB_PADDING) * _VOCAB_PADDING
    return torch.empty(rows, padded, dtype=getattr(torch, deployment.dtype))[..., : deployment.model.vocab]
