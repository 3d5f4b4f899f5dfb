"""runner: the small kernels between a request and the model: batch preparation, block tables, sampling.

vLLM's V2 model runner (v1/worker/gpu/) keeps its state on the device and moves it with Triton kernels, and
so does its sampler; most are launched on the way to the first token. Driven are the runner's own methods,
in the order of a step (model_runner.py, ``execute_model`` and ``sample_tokens``), on a runner that has
every buffer these kernels read, made as ``__init__``, ``load_model`` and ``initialize_kv_cache`` make them.
Beside it stand the slot mappings of the V1 runner (v1/worker/block_table.py); its sampler launches the same
top-k/top-p kernels.

What varies:

- nothing by the number of requests or tokens, for most: they are grids, or lie in tensors. Buffers are
  handed on whole or cut from their first element. Strides are the vocabulary, the limits of the deployment,
  or constants;
- what a request asks for: which kernels run; logits in the model's dtype as they come, or float32 once
  anything processes them; how many logprobs (1, a multiple of 16, other, and the power of two that covers
  them);
- the rows of the logits in top-k/top-p: one or more, up to 64 or more, and the splits of a row, which
  follow from rows, vocabulary and SM count; where the vocabulary is padded, also the stride of processed
  logits of one row;
- the offset of a chunk of prompt rows, whose own token ids are then scored from there
  (``prompt_logprob_token_ids``);
- with draft tokens: the rows of the logits (a multiple of 16 or other), and where a batch has more rows
  than are verified at once, the offsets at which it is cut, which leave row arrays of 4 and 8 byte elements
  aligned or not.

Left out:

- what a server flag turns on that a deployment does not say: processed logprobs and logits modes, more than
  20 logprobs, sampling masks, trace replay, watermarks, thinking budgets (a reasoning parser names their
  tokens), NaN counts, float64 Gumbel noise, batch-sharded sampling, prompt embeddings, pipeline and context
  parallelism;
- batches that mix requests with ``logprob_token_ids`` with requests for another number of logprobs: each
  pair of numbers is a key, and no request alone reaches one;
- draft tokens by other means than a head on the target's hidden states with greedy drafts and standard
  rejection (MTP, EAGLE), and draft tokens on the V1 runner.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace

_V1 = "vllm.v1"
_GPU = f"{_V1}.worker.gpu"
_SAMPLE = f"{_GPU}.sample"
_SPEC = f"{_GPU}.spec_decode"
_DRAFTER = f"{_SPEC}.target_dependent_ar.speculator"
_TOPK_TOPP = f"{_V1}.sample.ops.topk_topp_triton"

_VOCAB_PADDING = 64  # model_executor/layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE
_ATTENTION_BLOCK = 16  # config/cache.py, CacheConfig.DEFAULT_BLOCK_SIZE
_MAX_LOGPROBS = 20  # config/model.py, ModelConfig.max_logprobs
_GREEDY: Mapping[str, Any] = {"temperature": 0.0}
_EVERYTHING: Mapping[str, Any] = {
    "temperature": 0.9,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {0: -1.0, 1: 0.5},
    "allowed_token_ids": [0, 1],
    "bad_words_token_ids": [[0], [1, 2]],
    "min_tokens": 2,
    "all_stop_token_ids": [0],
}
"""Every way to process logits but top-k and top-p (sampling_params.py, ``for_sampler_warmup``)."""
_SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": _GREEDY,
    "everything": _EVERYTHING,
    "stop tokens under a grammar": {
        "min_tokens": 2,
        "all_stop_token_ids": [0],
        "structured_outputs": "a grammar",
    },
}

_LOGPROBS: Sequence[int] = (0, 1, 2, 4, 8, 15, 16)
"""With the sampled token they fill a row of 1, of less than each power of two, and of 16 exactly."""
_NAMED: Sequence[int] = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)
"""Token ids whose logprobs a request asks for: to each power of two, alone and with the sampled token beside
them, some fewer, and some that make a row a multiple of 16."""
_SCORED: Sequence[int] = (1, 2, 3, 5, 9, 16, 17)
"""Token ids scored in each row of a prompt: as with logprobs, and odd, so that later rows are unaligned."""


def _serves(deployment: Deployment) -> bool:
    del deployment  # every model is run by a runner
    return True


def _drive(trace: Trace, deployment: Deployment) -> None:
    runner = _make_runner(trace, deployment)
    if deployment.pooling:
        _drive_pooling(trace, runner)
    else:
        _drive_sampling(trace, runner)
        _drive_top_k_top_p(trace, runner, deployment)
        if runner.num_speculative_steps:
            _drive_drafts(trace, runner)
            _drive_drafter(trace, runner, deployment)
    _drive_zeroing(trace, runner, deployment)
    _drive_v1(trace, deployment)


def _make_runner(trace: Trace, deployment: Deployment) -> Any:
    """A ``GPUModelRunner`` with what its steps use (v1/worker/gpu/model_runner.py)."""
    import torch

    device = torch.device("cpu")
    drafts = 0 if deployment.pooling else deployment.speculative_tokens
    runner: Any = object.__new__(trace.module(f"{_GPU}.model_runner").GPUModelRunner)
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
    runner.model = SimpleNamespace(compute_logits=lambda hidden: _logits(deployment, hidden.shape[0]))
    runner.req_states = trace.module(f"{_GPU}.states").RequestState(
        max_num_reqs=runner.max_num_reqs,
        max_model_len=deployment.model_len,
        max_num_batched_tokens=runner.max_num_tokens,
        num_speculative_steps=drafts,
        vocab_size=runner.vocab_size,
        device=device,
        num_prefill_lookahead=1,
        use_dense_all_token_ids=False,
    )
    runner.input_buffers = trace.module(f"{_GPU}.input_batch").InputBuffers(
        max_num_reqs=runner.max_num_reqs, max_num_tokens=runner.max_num_tokens, device=device
    )
    block = _block(deployment)
    width = trace.module(f"{_V1}.worker.block_table").get_block_table_width(-(-deployment.model_len // block), block)
    # Of the number of KV cache groups it matters only whether there is one: linear attention has its own.
    groups = 1 if deployment.model.gdn is None else 2
    runner.block_tables = trace.module(f"{_GPU}.block_table").BlockTables(
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
        runner.sampler = trace.module(f"{_SAMPLE}.sampler").Sampler(
            vllm_config=SimpleNamespace(reasoning_config=None),
            max_num_reqs=runner.max_num_reqs,
            vocab_size=runner.vocab_size,
            device=runner.device,
            req_states=runner.req_states,
            num_speculative_tokens=runner.decode_query_len,
        )
    runner.prompt_logprobs_worker = trace.module(f"{_SAMPLE}.prompt_logprob").PromptLogprobsWorker(
        runner.max_num_reqs, runner.device
    )
    runner.structured_outputs_worker = trace.module(f"{_GPU}.structured_outputs").StructuredOutputsWorker(
        max_num_logits=runner.max_num_reqs * runner.decode_query_len,
        vocab_size=runner.vocab_size,
        device=runner.device,
        mask_stride=runner.decode_query_len,
    )
    if runner.num_speculative_steps:
        runner.speculator = SimpleNamespace(draft_logits=None)
        runner.rejection_sampler = trace.module(f"{_SPEC}.rejection_sampler").RejectionSampler(
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


def _block(deployment: Deployment) -> int:
    """Tokens of one block of the full attention layers' KV cache."""
    return _ATTENTION_BLOCK if deployment.model.gdn is None else deployment.block_tokens


def _logits(deployment: Deployment, rows: int) -> Any:
    """The model's logits: those of the padded vocabulary, cut to the vocabulary.

    vLLM, model_executor/layers/logits_processor.py, ``_get_logits``; gathered from ranks, they are as long.
    """
    import torch

    padded = -(-deployment.model.vocab // _VOCAB_PADDING) * _VOCAB_PADDING
    return torch.empty(rows, padded, dtype=getattr(torch, deployment.dtype))[..., : deployment.model.vocab]


def _sampling(changes: Mapping[str, Any]) -> SimpleNamespace:
    """The fields of ``SamplingParams`` that runner and sampler read, as a bare request leaves them."""
    defaults: dict[str, Any] = {
        "max_tokens": 16,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": None,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": None,
        "allowed_token_ids": None,
        "bad_words_token_ids": None,
        "min_tokens": 0,
        "all_stop_token_ids": [],
        "structured_outputs": None,
        "logprobs": None,
        "logprob_token_ids": None,
        "prompt_logprobs": None,
        "prompt_logprob_token_ids": None,
        "prompt_logprob_start": None,
    }
    return SimpleNamespace(**{**defaults, **changes})


def _schedule(
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
            sampling_params=None if runner.sampler is None else _sampling(sampling),
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


def _prepare(runner: Any, scheduled: Any) -> Any:
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


def _finish(runner: Any, batch: Any, grammar: Any = None) -> Any:
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


def _step(runner: Any, *samplings: Mapping[str, Any], prompt: int = 1) -> None:
    _finish(runner, _prepare(runner, _schedule(runner, samplings, prompt=prompt)))


def _drive_pooling(trace: Trace, runner: Any) -> None:
    with trace.input(requests=1):
        runner.postprocess_num_computed_tokens(_prepare(runner, _schedule(runner, [{}], prompt=1)))


def _drive_sampling(trace: Trace, runner: Any) -> None:
    import numpy as np

    # Of a padded vocabulary one row of processed logits keeps its stride, and several have the vocabulary's.
    for requests in range(1, min(2, runner.max_num_reqs, runner.max_num_tokens) + 1):
        for name, sampling in _SAMPLINGS.items():
            with trace.input(requests=requests, sampling=name):
                _step(runner, *[sampling] * requests)
    for logprobs in _LOGPROBS:
        with trace.input(requests=1, logprobs=logprobs):
            _step(runner, {"logprobs": logprobs})
    for named in _NAMED:
        with trace.input(requests=1, logprob_token_ids=named):
            _step(runner, {"logprob_token_ids": [0] * named})
    for named in range(1, _MAX_LOGPROBS + 1):
        # With both, a request must ask for as many as it names (sampling_params.py, ``_validate_logprobs``).
        with trace.input(requests=1, logprobs=named, logprob_token_ids=named):
            _step(runner, {"logprobs": named, "logprob_token_ids": [0] * named})
    with trace.input(requests=1, prompt_logprobs=1):
        _step(runner, {"prompt_logprobs": 1}, prompt=2)
    # The prompt's first rows were scored in an earlier step, as many as that step had room for.
    scores = runner.prompt_logprobs_worker.token_id_scores
    for count in _SCORED:
        for start in (0, 1):
            sampling = {"prompt_logprob_token_ids": np.zeros((3, count), dtype=np.int32)}
            with trace.input(requests=1, prompt_logprob_token_ids=count, first_row=start):
                batch = _prepare(runner, _schedule(runner, [sampling], prompt=3, computed=start))
                for score in scores.values():
                    score.scores = score.token_ids.float()
                _finish(runner, batch)
    words = -(-runner.vocab_size // 32)
    grammar = SimpleNamespace(
        structured_output_request_ids=["0"],
        grammar_bitmask=np.full((runner.decode_query_len, words), -1, dtype=np.int32),
        num_acceptable_drafts=None,
    )
    with trace.input(requests=1, sampling="grammar"):
        _finish(runner, _prepare(runner, _schedule(runner, [_GREEDY], prompt=1)), grammar)


def _drive_top_k_top_p(trace: Trace, runner: Any, deployment: Deployment) -> None:
    """Top-k and top-p of every number of rows up to one that is too many to split a row for."""
    import numpy as np
    import torch

    split = trace.module(_TOPK_TOPP)._SPLIT_MAX_BATCH  # noqa: SLF001
    most = min(runner.max_num_reqs * runner.decode_query_len, runner.max_num_tokens)
    states = runner.sampler.sampling_states
    both, only_p = {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9}
    for name, first, second in (
        ("top_k", {"top_k": 50}, {"top_k": 50}),
        ("top_p", only_p, only_p),
        ("top_k and top_p", both, both),
        ("top_k and top_p, top_p alone", both, only_p),
    ):
        # Two requests stand for all: the second has the last of several rows; where there is one, it has all.
        for index, sampling in enumerate((first, second)[-runner.max_num_reqs :]):
            states.add_request(index, _sampling(sampling))
        states.apply_staged_writes()
        for rows in range(1, min(split + 1, most) + 1):
            requests = min(rows, runner.max_num_reqs, 2)
            row_requests = np.array([0] * (rows - 1) + [requests - 1])
            with trace.input(rows=rows, sampling=name):
                states.apply_top_k_top_p(
                    _processed(deployment, rows),
                    torch.from_numpy(row_requests),
                    np.unique(row_requests),
                )


def _processed(deployment: Deployment, rows: int) -> Any:
    """Logits in float32, as ``Sampler.apply_sampling_params`` makes them, that say they are on the device.

    For the CPU, top-k/top-p has other tiles, and splits no rows.
    """
    import torch

    class OnDevice(torch.Tensor):  # type: ignore[misc]  # torch is not followed
        __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001
        device = torch.device("cuda", 0)

    return torch.empty_like(_logits(deployment, rows), dtype=torch.float32).as_subclass(OnDevice)


def _drive_drafts(trace: Trace, runner: Any) -> None:
    """Steps that verify draft tokens: in one piece, and in pieces where a batch may have too many rows."""
    for rows in (2, 16):
        drafts = _drafts(rows, runner.decode_query_len)
        if len(drafts) <= runner.max_num_reqs and rows <= runner.max_num_tokens:
            for name, sampling in (
                ("greedy", _GREEDY),
                ("everything", _EVERYTHING),
                ("logprobs", {"logprobs": 0}),
            ):
                scheduled = _schedule(runner, [sampling] * len(drafts), prompt=1, drafts=drafts)
                with trace.input(rows=rows, sampling=name):
                    _finish(runner, _prepare(runner, scheduled))
    cuts = _cuts(trace, runner)
    for requests, rows in ((10, 16), (11, 16), (10, 17), (11, 17), (10, 18), (11, 18)):
        if (_alignment(rows), requests % 2) not in cuts:
            continue
        whole, rest = divmod(rows - requests, runner.num_speculative_steps)
        drafts = [runner.num_speculative_steps] * whole + [rest] * (rest > 0)
        drafts += [0] * (requests - len(drafts))
        for after in (1, 2, 16):
            for name, sampling in _SAMPLINGS.items():
                with trace.input(requests_before=requests, rows_before=rows, rows=after, sampling=name):
                    _verify_in_pieces(trace, runner, sampling, drafts + [0] * after, rows)


def _drafts(rows: int, full: int) -> list[int]:
    """Draft tokens of as few requests as have so many rows of logits together."""
    counts = [full] * (rows // full)
    if rows % full:
        counts.append(rows % full)
    return [count - 1 for count in counts]


def _cuts(trace: Trace, runner: Any) -> set[tuple[int, int]]:
    """Where a batch of more rows than are verified at once may be cut: rows' alignment, requests' parity.

    A piece takes whole requests while they fit (spec_decode/rejection_sampler.py, ``_iter_request_chunks``),
    so it may fall short of the limit by as many rows as a request has, less one. The requests with all their
    draft tokens lead (model_runner.py, ``sort_batch_req_ids``): where one token is all, they alone are before
    such a cut. Where there are more, any number of requests is taken to be before any cut, which for some
    limits is more than can be.
    """
    full = runner.decode_query_len
    limit = trace.module(f"{_SPEC}.rejection_sampler").get_max_chunk_logits(runner.vocab_size)
    most = min(runner.max_num_reqs * full, runner.max_num_tokens)
    return {
        (_alignment(row), requests % 2)
        for pieces in range(1, most // max(1, limit - full + 1) + 1)
        for row in range(pieces * (limit - full + 1), pieces * limit + 1)
        for requests in ((row // full,) if full == 2 and row < pieces * limit else (0, 1))  # noqa: PLR2004
        if row < most
    }


def _alignment(row: int) -> int:
    """The elements, up to 4, that divide the rows before: 4 of 4 bytes are aligned, or 2 of 8 bytes."""
    return next(elements for elements in (4, 2, 1) if row % elements == 0)


def _verify_in_pieces(trace: Trace, runner: Any, sampling: Mapping[str, Any], drafts: list[int], limit: int) -> None:
    """What ``RejectionSampler.__call__`` does, with a limit of few rows in place of a gigabyte of them.

    Row arrays have elements of 4 and of 8 bytes, request arrays of 8.
    """
    batch = _prepare(runner, _schedule(runner, [sampling] * len(drafts), prompt=1, drafts=drafts))
    tokens, positions = trace.module(f"{_SPEC}.rejection_sampler").gather_draft_sampled(
        batch.input_ids,
        batch.positions,
        batch.logits_indices,
        batch.expanded_idx_mapping,
        batch.expanded_local_pos,
        runner.req_states.prefill_len.gpu,
    )
    rows = sum(drafts) + len(drafts)
    logits = runner.model.compute_logits(batch.logits_indices[:rows])
    verify = runner.rejection_sampler._verify_in_chunks  # noqa: SLF001
    verify(logits, batch, None, tokens, positions, limit, max_num_logprobs=-1)


def _drive_drafter(trace: Trace, runner: Any, deployment: Deployment) -> None:
    """The drafter's bookkeeping around each draft token (spec_decode/target_dependent_ar/speculator.py)."""
    import torch

    drafter = trace.module(_DRAFTER)
    states, steps, most = runner.req_states, runner.num_speculative_steps, runner.max_num_reqs
    buffers = trace.module(f"{_GPU}.input_batch").InputBuffers(
        max_num_reqs=most, max_num_tokens=runner.max_num_tokens, device=runner.device
    )
    step = torch.tensor(0, dtype=torch.int64)
    draft_tokens = torch.zeros(most, steps, dtype=torch.int64)
    last_tokens, positions = torch.zeros(most, dtype=torch.int64), torch.zeros(most, dtype=torch.int64)
    hidden = torch.empty(runner.max_num_tokens, deployment.model.hidden, dtype=getattr(torch, deployment.dtype))
    batch = _prepare(runner, _schedule(runner, [_GREEDY], prompt=1))
    sampled, rejected = _finish(runner, batch)
    with trace.input(requests=1, draft=1):
        drafter.prepare_prefill_inputs(
            last_tokens,
            step,
            buffers,
            batch,
            sampled,
            rejected,
            states.last_sampled_tokens,
            states.next_prefill_tokens,
            most,
        )
    if steps == 1:
        return
    with trace.input(requests=1, draft=2):
        drafter.prepare_decode_inputs(
            draft_tokens[:1, 0], batch.seq_lens, rejected, buffers, positions, deployment.model_len, most
        )
        runner.block_tables.compute_slot_mappings(
            batch.idx_mapping, buffers.query_start_loc[:2], buffers.positions[:1], 1
        )
        drafter.update_draft_inputs(
            _logits(deployment, 1).argmax(dim=-1),
            step,
            hidden[:1],
            draft_tokens,
            hidden,
            buffers,
            positions,
            1,
            deployment.model_len,
            steps,
        )


def _drive_zeroing(trace: Trace, runner: Any, deployment: Deployment) -> None:
    """New blocks are zeroed where the cache holds state of linear attention (v1/kv_cache_interface.py)."""
    import torch

    if deployment.model.gdn is None:
        return
    block, blocks = deployment.block_tokens, 2
    heads, head = deployment.kv_heads, deployment.model.attention.head_dim
    element = torch.uint8 if deployment.kv_cache_dtype.startswith("fp8") else getattr(torch, deployment.dtype)
    group = SimpleNamespace(
        kv_cache_spec=trace.module(f"{_V1}.kv_cache_interface").FullAttentionSpec(
            block_size=block, num_kv_heads=heads, head_size=head, dtype=element
        ),
        kv_cache_group_id=0,
        layer_names=["attention"],
        kernel_block_stride=0,
    )
    layer = SimpleNamespace(kv_cache=torch.empty(blocks, heads, block, 2 * head, dtype=element))
    zeroer = trace.module(f"{_V1}.worker.utils").KVBlockZeroer(
        runner.device, [group], [block], {"attention": layer}, blocks
    )
    with trace.input(blocks=1):
        zeroer.zero_block_ids([1])


def _drive_v1(trace: Trace, deployment: Deployment) -> None:
    """The V1 runner's slot mappings, of full attention alone, and its top-k/top-p, which splits any row."""
    import torch

    module, block = trace.module(f"{_V1}.worker.block_table"), _block(deployment)
    tables = module.MultiGroupBlockTable(
        max_num_reqs=deployment.max_num_seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        pin_memory=True,
        device=torch.device("cpu"),
        block_sizes=[block],
        max_num_blocks=[-(-deployment.model_len // block)],
    )
    starts = torch.zeros(deployment.max_num_seqs + 1, dtype=torch.int32)
    positions = torch.zeros(deployment.max_num_batched_tokens, dtype=torch.int64)
    with trace.input(requests=1, runner="V1"):
        tables.compute_slot_mapping(1, starts[:2], positions[:1])
    if not deployment.pooling:
        with trace.input(rows=1, sampling="top_k and top_p", runner="V1"):
            trace.module(f"{_V1}.sample.ops.topk_topp_sampler").apply_top_k_top_p(
                _processed(deployment, 1),
                torch.zeros(1, dtype=torch.int32),
                torch.zeros(1),
            )


def _kernel(module: str, name: str, parameters: str) -> ExpectedKernel:
    return ExpectedKernel(name=f"{module}:{name}", parameters=tuple(parameters.split()))


FAMILY = Family(
    name="runner",
    engine="vllm",
    kernels=(
        _kernel(
            _TOPK_TOPP,
            "_topk_topp_kernel",
            "LOGITS LOGITS_STRIDE_0 BUFFER PERCENTILE_TO_STD_TABLE NORMAL_CDF_TO_SIGMA_TABLE K P "
            "BATCH_SIZE VOCAB_SIZE MASK_VALUE BLOCK_SIZE BLOCK_SIZE_TRUNC TOPK_ENABLED TOPP_ENABLED "
            "SPLIT_COVERS_PONLY",
        ),
        _kernel(
            _TOPK_TOPP,
            "_topp_sb_stats_kernel",
            "LOGITS LOGITS_STRIDE_0 STATS K P HAS_K VOCAB_SIZE S BLOCK",
        ),
        _kernel(
            _TOPK_TOPP,
            "_topp_sb_step_kernel",
            "LOGITS LOGITS_STRIDE_0 STATS PARTS K P ROUND HAS_K S F NUM_ROUNDS VOCAB_SIZE BLOCK",
        ),
        _kernel(
            _TOPK_TOPP,
            "_topp_sb_mask_kernel",
            "LOGITS LOGITS_STRIDE_0 STATS PARTS K P HAS_K MASK_VALUE S F NUM_ROUNDS VOCAB_SIZE BLOCK",
        ),
        _kernel(
            f"{_V1}.worker.block_table",
            "ComputeSlotMappingKernel.kernel",
            "num_tokens max_num_tokens query_start_loc_ptr positions_ptr block_table_ptr "
            "block_table_stride slot_mapping_ptr KV_CACHE_BLOCK_SIZE TOTAL_CP_WORLD_SIZE TOTAL_CP_RANK "
            "CP_KV_CACHE_INTERLEAVE_SIZE PAD_ID BLOCK_SIZE",
        ),
        _kernel(
            f"{_V1}.worker.utils",
            "_zero_kv_blocks_kernel",
            "seg_addrs_ptr seg_block_strides_ptr seg_page_sizes_ptr block_ids_ptr BLOCK_SIZE",
        ),
        _kernel(
            f"{_GPU}.block_table",
            "_compute_slot_mappings_kernel",
            "max_num_tokens idx_mapping query_start_loc pos block_table_ptrs block_table_strides "
            "block_sizes slot_mapping_enabled dcp_sharded slot_mappings_ptr slot_mappings_stride "
            "cp_rank CP_SIZE CP_INTERLEAVE PAD_ID TRITON_BLOCK_SIZE",
        ),
        _kernel(
            f"{_GPU}.block_table",
            "_gather_block_tables_kernel",
            "batch_idx_to_req_idx src_block_table_ptrs dst_block_table_ptrs block_table_strides "
            "num_blocks_ptr num_blocks_stride num_reqs num_computed_tokens_ptr sliding_window_reach_ptr "
            "block_sizes_ptr MASK_SLIDING_WINDOW BLOCK_SIZE",
        ),
        _kernel(
            f"{_GPU}.buffer_utils",
            "_apply_write_kernel",
            "output_ptr output_stride write_indices_ptr write_starts_ptr write_contents_ptr "
            "write_cu_lens_ptr write_group_ids_ptr BLOCK_SIZE MULTI_GROUP",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_combine_sampled_and_draft_tokens_kernel",
            "input_ids_ptr idx_mapping_ptr last_sampled_tokens_ptr query_start_loc_ptr seq_lens_ptr "
            "prefill_len_ptr draft_tokens_ptr draft_tokens_stride cu_num_logits_ptr logits_indices_ptr "
            "BLOCK_SIZE NUM_NEW_SAMPLED_TOKENS",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_expand_idx_mapping_kernel",
            "idx_mapping_ptr expanded_idx_mapping_ptr expanded_local_pos_ptr cu_num_logits_ptr BLOCK_SIZE",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_get_num_sampled_and_rejected_kernel",
            "num_sampled_ptr num_rejected_ptr seq_lens_ptr cu_num_logits_ptr idx_mapping_ptr prefill_len_ptr",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_post_update_kernel",
            "idx_mapping_ptr num_computed_tokens_ptr last_sampled_tokens_ptr output_bin_counts_ptr "
            "output_bin_counts_stride sampled_tokens_ptr sampled_tokens_stride num_sampled_ptr "
            "num_rejected_ptr query_start_loc_ptr all_token_ids_ptr all_token_ids_stride total_len_ptr "
            "draft_tokens_ptr draft_tokens_out_ptr num_draft_tokens",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_post_update_num_computed_tokens_kernel",
            "idx_mapping_ptr num_computed_tokens_ptr query_start_loc_ptr",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_prepare_pos_seq_lens_kernel",
            "pos_ptr seq_lens_ptr idx_mapping_ptr query_start_loc_ptr num_computed_tokens_ptr max_num_reqs BLOCK_SIZE",
        ),
        _kernel(
            f"{_GPU}.input_batch",
            "_prepare_prefill_inputs_kernel",
            "input_ids_ptr next_prefill_tokens_ptr next_prefill_tokens_stride num_lookahead "
            "idx_mapping_ptr query_start_loc_ptr all_token_ids_ptr all_token_ids_stride "
            "prefill_lens_ptr num_computed_tokens_ptr BLOCK_SIZE LOOKAHEAD_BLOCK",
        ),
        _kernel(
            f"{_GPU}.structured_outputs",
            "_apply_grammar_bitmask_kernel",
            "logits_ptr logits_stride logits_indices_ptr cu_num_logits_ptr bitmask_ptr bitmask_stride "
            "vocab_size MASK_STRIDE BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.bad_words",
            "_bad_words_kernel",
            "logits_ptr logits_stride expanded_idx_mapping_ptr bad_word_token_ids_ptr "
            "bad_word_token_ids_stride bad_word_offsets_ptr bad_word_offsets_stride num_bad_words_ptr "
            "all_token_ids_ptr all_token_ids_stride prompt_len_ptr total_len_ptr input_ids_ptr "
            "expanded_local_pos_ptr",
        ),
        _kernel(
            f"{_SAMPLE}.gumbel",
            "_gumbel_sample_kernel",
            "local_argmax_ptr local_argmax_stride local_max_ptr local_max_stride logits_cache_ptr "
            "logits_cache_stride_0 logits_cache_stride_1 logits_cache_col_ptr logits_cache_source_ptr "
            "logits_cache_source_stride logits_ptr logits_stride expanded_idx_mapping_ptr seeds_ptr "
            "pos_ptr temp_ptr vocab_size BLOCK_SIZE IS_DRAFTING APPLY_TEMPERATURE USE_FP64 "
            "PER_TOKEN_COL",
        ),
        _kernel(
            f"{_SAMPLE}.gumbel",
            "_temperature_kernel",
            "logits_ptr logits_stride expanded_idx_mapping_ptr temperature_ptr vocab_size BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.logit_bias",
            "_bias_kernel",
            "logits_ptr logits_stride vocab_size expanded_idx_mapping_ptr num_allowed_token_ids_ptr "
            "allowed_token_ids_ptr allowed_token_ids_stride num_logit_bias_ptr bias_token_ids_ptr "
            "bias_token_ids_stride bias_ptr bias_stride pos_ptr min_lens_ptr num_stop_token_ids_ptr "
            "restore_when_all_masked_ptr stop_token_ids_ptr stop_token_ids_stride BLOCK_SIZE "
            "LOGITS_BLOCK_SIZE CHECK_ALL_MASKED_ROWS",
        ),
        _kernel(
            f"{_SAMPLE}.logprob",
            "_fill_logprob_token_ids_kernel",
            "out_token_ids_ptr out_token_ids_stride out_valid_mask_ptr out_valid_mask_stride "
            "sampled_token_ids_ptr topk_indices_ptr topk_indices_stride expanded_idx_mapping_ptr "
            "num_per_req_token_ids_ptr per_req_token_ids_ptr per_req_token_ids_stride NUM_TOPK "
            "PADDED_COLS",
        ),
        _kernel(
            f"{_SAMPLE}.logprob",
            "_ranks_kernel",
            "output_ptr logits_ptr logits_stride token_ids_ptr vocab_size BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.logprob",
            "_topk_log_softmax_kernel",
            "output_ptr logits_ptr logits_stride topk_ids_ptr topk_ids_stride topk vocab_size "
            "BLOCK_SIZE TOPK_BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.min_p",
            "_min_p_kernel",
            "logits_ptr logits_stride expanded_idx_mapping_ptr min_p_ptr vocab_size BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.penalties",
            "_bincount_kernel",
            "expanded_idx_mapping_ptr all_token_ids_ptr all_token_ids_stride prompt_len_ptr "
            "prefill_len_ptr prompt_bin_mask_ptr prompt_bin_mask_stride output_bin_counts_ptr "
            "output_bin_counts_stride BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.penalties",
            "_penalties_kernel",
            "logits_ptr logits_stride expanded_idx_mapping_ptr token_ids_ptr expanded_local_pos_ptr "
            "repetition_penalty_ptr frequency_penalty_ptr presence_penalty_ptr prompt_bin_mask_ptr "
            "prompt_bin_mask_stride output_bin_counts_ptr output_bin_counts_stride vocab_size "
            "BLOCK_SIZE",
        ),
        _kernel(
            f"{_SAMPLE}.prompt_logprob",
            "_prompt_logprobs_token_ids_kernel",
            "prompt_logprobs_token_ids_ptr query_start_loc_ptr idx_mapping_ptr num_computed_tokens_ptr "
            "all_token_ids_ptr all_token_ids_stride BLOCK_SIZE",
        ),
        _kernel(
            f"{_SPEC}.rejection_sampler",
            "_flatten_sampled_kernel",
            "flat_sampled_ptr sampled_ptr sampled_stride num_sampled_ptr cu_num_logits_ptr",
        ),
        _kernel(
            f"{_SPEC}.rejection_sampler",
            "_gather_draft_sampled_kernel",
            "draft_sampled_ptr pos_ptr input_ids_ptr positions_ptr logits_indices_ptr "
            "expanded_idx_mapping_ptr expanded_local_pos_ptr prefill_len_ptr num_logits BLOCK_SIZE",
        ),
        _kernel(
            f"{_SPEC}.rejection_sampler_utils",
            "_compute_local_logits_stats_kernel",
            "target_local_argmax_ptr target_local_argmax_stride target_local_max_ptr "
            "target_local_max_stride target_local_sumexp_ptr target_local_sumexp_stride "
            "draft_local_max_ptr draft_local_max_stride draft_local_sumexp_ptr "
            "draft_local_sumexp_stride target_logits_ptr target_logits_stride draft_logits_ptr "
            "draft_logits_stride_0 draft_logits_stride_1 expanded_idx_mapping_ptr "
            "expanded_local_pos_ptr temp_ptr vocab_size num_logits BLOCK_SIZE HAS_DRAFT_LOGITS",
        ),
        _kernel(
            f"{_SPEC}.rejection_sampler_utils",
            "_insert_resampled_kernel",
            "sampled_ptr sampled_stride num_sampled_ptr resampled_local_argmax_ptr "
            "resampled_local_argmax_stride resampled_local_max_ptr resampled_local_max_stride "
            "resample_num_blocks cu_num_logits_ptr expanded_idx_mapping_ptr temp_ptr "
            "PADDED_RESAMPLE_NUM_BLOCKS",
        ),
        _kernel(
            f"{_SPEC}.rejection_sampler_utils",
            "_rejection_kernel",
            "sampled_ptr sampled_stride rejected_steps_ptr target_rejected_logsumexp_ptr "
            "draft_rejected_logsumexp_ptr target_logits_ptr target_logits_stride "
            "target_local_argmax_ptr target_local_argmax_stride target_local_max_ptr "
            "target_local_max_stride target_local_sumexp_ptr target_local_sumexp_stride "
            "draft_sampled_ptr draft_logits_ptr draft_logits_stride_0 draft_logits_stride_1 "
            "draft_local_max_ptr draft_local_max_stride draft_local_sumexp_ptr "
            "draft_local_sumexp_stride cu_num_logits_ptr idx_mapping_ptr temp_ptr seed_ptr pos_ptr "
            "synthetic_conditional_rates_ptr cumulative_log_p_ptr local_residual_mass_ptr "
            "local_residual_mass_stride fly_entropy_ptr fly_entropy_threshold vocab_num_blocks "
            "PADDED_VOCAB_NUM_BLOCKS HAS_DRAFT_LOGITS SYNTHETIC_MODE USE_BLOCK_VERIFICATION "
            "FLY_WINDOW_SIZE",
        ),
        _kernel(
            f"{_SPEC}.rejection_sampler_utils",
            "_resample_kernel",
            "resampled_local_argmax_ptr resampled_local_argmax_stride resampled_local_max_ptr "
            "resampled_local_max_stride target_logits_ptr target_logits_stride "
            "target_rejected_logsumexp_ptr draft_logits_ptr draft_logits_stride_0 draft_logits_stride_1 "
            "draft_rejected_logsumexp_ptr rejected_step_ptr cu_num_logits_ptr expanded_idx_mapping_ptr "
            "draft_sampled_ptr temp_ptr seed_ptr pos_ptr cumulative_log_p_ptr contexts_ptr "
            "contexts_stride watermarking_ptr watermarking_skip_mask_ptr watermark_key_0 "
            "watermark_key_1 vocab_size BLOCK_SIZE HAS_DRAFT_LOGITS USE_FP64 USE_BLOCK_VERIFICATION "
            "CONTEXT_WIDTH WATERMARK DEDUPLICATE_CONTEXTS",
        ),
        _kernel(
            _DRAFTER,
            "_prepare_decode_inputs_kernel",
            "draft_tokens_ptr draft_tokens_stride target_seq_lens_ptr num_rejected_ptr input_ids_ptr "
            "positions_ptr sample_src_positions_ptr query_start_loc_ptr seq_lens_ptr max_model_len "
            "max_num_reqs BLOCK_SIZE ADVANCE_DRAFT_POSITIONS",
        ),
        _kernel(
            _DRAFTER,
            "_prepare_prefill_inputs_kernel",
            "last_token_indices_ptr draft_current_step_ptr draft_input_ids_ptr draft_positions_ptr "
            "draft_query_start_loc_ptr draft_seq_lens_ptr target_input_ids_ptr target_positions_ptr "
            "idx_mapping_ptr last_sampled_ptr next_prefill_tokens_ptr num_sampled_ptr num_rejected_ptr "
            "query_start_loc_ptr seq_lens_ptr max_num_reqs BLOCK_SIZE",
        ),
        _kernel(
            _DRAFTER,
            "_update_draft_inputs_kernel",
            "output_draft_tokens_ptr output_draft_tokens_stride next_input_hidden_states_ptr "
            "next_input_hidden_states_stride input_ids_ptr positions_ptr sample_src_positions_ptr "
            "seq_lens_ptr draft_tokens_ptr current_draft_step_ptr hidden_states_ptr "
            "hidden_states_stride hidden_size max_model_len num_speculative_steps BLOCK_SIZE "
            "ADVANCE_DRAFT_POSITIONS",
        ),
    ),
    modules=(
        "vllm.model_executor.warmup.jit_warmup",
        "vllm.model_executor.warmup.jit_warmup_triton_helper",
        "vllm.utils.gpu_sync_debug",
        f"{_V1}.attention.backend",
        f"{_V1}.attention.backends.registry",
        f"{_V1}.attention.backends.utils",
        f"{_V1}.kv_cache_interface",
        f"{_V1}.kv_cache_layout",
        f"{_V1}.kv_cache_spec_registry",
        f"{_V1}.outputs",
        f"{_V1}.sample.ops.topk_topp_sampler",
        _TOPK_TOPP,
        # Kernels call functions of these two.
        f"{_V1}.watermarking.prfs.philox",
        f"{_SAMPLE}.watermark",
        f"{_V1}.worker.block_table",
        f"{_V1}.worker.utils",
        f"{_GPU}.block_table",
        f"{_GPU}.buffer_utils",
        f"{_GPU}.input_batch",
        f"{_GPU}.model_runner",
        f"{_GPU}.states",
        f"{_GPU}.structured_outputs",
        f"{_SAMPLE}.bad_words",
        f"{_SAMPLE}.gumbel",
        f"{_SAMPLE}.logit_bias",
        f"{_SAMPLE}.logits_processor.interface",
        f"{_SAMPLE}.logprob",
        f"{_SAMPLE}.min_p",
        f"{_SAMPLE}.output",
        f"{_SAMPLE}.penalties",
        f"{_SAMPLE}.prompt_logprob",
        f"{_SAMPLE}.sampler",
        f"{_SAMPLE}.states",
        f"{_SAMPLE}.thinking_budget",
        f"{_SPEC}.rejection_sampler",
        f"{_SPEC}.rejection_sampler_utils",
        _DRAFTER,
    ),
    serves=_serves,
    drive=_drive,
    undriven={"0.26.0": "its runners prepare, sample and draft by other steps and with other kernels"},
)
