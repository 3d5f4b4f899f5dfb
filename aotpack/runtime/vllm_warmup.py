"""The first requests of a vLLM that does not warm itself up: made by its own engine, before it takes any.

In eager mode vLLM leaves its kernel warm-up off (vllm/config/vllm.py, ``VllmConfig.__post_init__``), because it would
compile for seconds. With packed kernels it does not, but the first request still waits for what is loaded at first use
beside Triton: the code of cuBLAS's and torch's own kernels, which CUDA loads lazily, kernel by kernel. So a few small
requests go through the engine's core (vllm/v1/engine/core.py, ``EngineCore``) when it is ready to serve: through its
scheduler and its executor, so that all ranks of tensor and pipeline parallelism take part as in any request, whatever
runner they have. Nobody gets their answers; they draw no random numbers.
"""

import time
from typing import Any

from aotpack.runtime.trouble import LOG, tolerated

PROMPTS = (16, 64, 256)
"""Tokens of the prompts. Matrix products of few, of some and of many rows are different kernels of cuBLAS."""

ANSWER = 3
"""Tokens of each answer: the first comes out of the prompt's pass, the others out of passes of one token each."""


def lacks_warm_up(core: Any) -> bool:
    """Whether an engine's core serves a model in eager mode, alone and by itself, and generates.

    Ranks of data parallelism step in waves that their coordinator starts, and a connector would carry what is cached
    elsewhere: they are left alone.

    Args:
        core: an ``EngineCore``.
    """
    config = core.vllm_config
    return bool(
        config.model_config.enforce_eager
        and config.model_config.runner_type == "generate"
        and not config.model_config.is_encoder_decoder
        and config.parallel_config.data_parallel_size == 1
        and config.kv_transfer_config is None
    )


def warm_up(core: Any) -> None:
    """Send requests through an engine's core, one after the other, and take them out again where one fails.

    Args:
        core: an ``EngineCore`` that has no requests yet.
    """
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    began = time.monotonic()
    longest = core.vllm_config.model_config.max_model_len - ANSWER
    for tokens in PROMPTS:
        name = f"aotpack-warm-up-{tokens}"
        request = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=list(range(min(tokens, longest))),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True, detokenize=False),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        core.add_request(*core.preprocess_add_request(request))
        try:
            while core.scheduler.has_requests() or core.batch_queue:
                _, executed = core.step_fn()
                core.post_step(executed)
        except BaseException:
            with tolerated("the engine is not rid of a warm-up's request"):
                core.abort_requests([name])
            raise
    LOG.info("warmed up with %d requests in %.2f s", len(PROMPTS), time.monotonic() - began)
