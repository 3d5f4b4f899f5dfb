"""Steps of the runner: what a scheduler hands it, and the two halves of what it does with that."""

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aotpack.families.runner.requests import make_sampling


def schedule(
    runner: Any,
    samplings: Iterable[Mapping[str, Any]],
    *,
    prompt: int,
    drafts: Sequence[int] = (),
    computed: int = 0,
) -> Any:
    """A scheduler's output that replaces every request by new ones, one for each sampling (or for pooling).

    Args:
        runner: the runner.
        samplings: what each request asks for.
        prompt: tokens of each prompt.
        drafts: draft tokens of each request; they come with the one token last sampled.
        computed: tokens of each prompt that earlier steps have computed.
    """
    blocks: tuple[list[int], ...] = tuple([1] for _ in range(runner.block_tables.num_kv_cache_groups))
    requests = [
        SimpleNamespace(
            req_id=str(index),
            prompt_len=prompt,
            prompt_token_ids=[0] * prompt,
            prefill_token_ids=[0] * prompt,
            num_computed_tokens=prompt if drafts else computed,
            sampling_params=None if runner.sampler is None else make_sampling(sampling),
            block_ids=blocks,
            lora_request=None,
        )
        for index, sampling in enumerate(samplings)
    ]
    tokens = {
        request.req_id: 1 + drafts[index] if drafts else prompt - computed for index, request in enumerate(requests)
    }
    return SimpleNamespace(
        scheduled_new_reqs=requests,
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[]),
        new_block_ids_to_zero=[],
        kv_cache_block_copies=[],
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens={str(index): [0] * count for index, count in enumerate(drafts) if count},
        finished_req_ids=set(runner.req_states.req_id_to_index),
        preempted_req_ids=None,
        has_structured_output_requests=False,
    )


def prepare(runner: Any, scheduled: Any) -> Any:
    """The first half of a step, up to the model: ``execute_model``."""
    runner.finish_requests(scheduled)
    runner.add_requests(scheduled)
    runner.update_requests(scheduled)
    runner.block_tables.apply_staged_writes()
    state, _ = runner.gather_batch_req_state(scheduled, dummy_run=False)
    graph = SimpleNamespace(num_tokens=state.num_tokens, num_reqs=None)
    batch = runner.prepare_inputs(scheduled, state, graph, 0)
    # The kernels that fill these were not run, and they index tensors from here on.
    for indices in (batch.logits_indices, batch.expanded_idx_mapping, batch.expanded_local_pos):
        indices.zero_()
    runner.prepare_attn(batch)
    return batch


def finish(runner: Any, batch: Any, grammar: Any = None) -> Any:
    """The second half of a step, from the model on: ``sample_tokens``."""
    import torch

    hidden = torch.empty(batch.num_tokens, 1)
    output, sampled, rejected = runner.sample(hidden, batch, grammar)
    states, prompts = runner.req_states, runner.prompt_logprobs_worker
    prompts.compute_prompt_logprobs(
        runner.model.compute_logits,
        hidden,
        batch,
        states.all_token_ids.gpu,
        states.num_computed_tokens.gpu,
        states.prompt_len.np,
    )
    prompts.compute_prompt_token_id_logprobs(runner.model.compute_logits, hidden, batch, states.prompt_len.np)
    runner.postprocess_sampled(batch.idx_mapping, output.sampled_token_ids, sampled, rejected, batch.query_start_loc)
    return sampled, rejected


def step(runner: Any, *samplings: Mapping[str, Any], prompt: int = 1) -> None:
    """A whole step of new requests, one for each sampling."""
    finish(runner, prepare(runner, schedule(runner, samplings, prompt=prompt)))
