"""Draft tokens: made by a head on the target's hidden states, and verified."""

from collections.abc import Mapping
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Trace
from aotpack.families.runner.modules import DRAFTER, GPU, SPEC
from aotpack.families.runner.requests import EVERYTHING, GREEDY, SAMPLINGS
from aotpack.families.runner.state import make_logits
from aotpack.families.runner.steps import finish, prepare, schedule


def drive_drafts(trace: Trace, runner: Any) -> None:
    """Steps that verify draft tokens: in one piece, and in pieces where a batch may have too many rows."""
    for rows in (2, 16):
        drafts = _drafts(rows, runner.decode_query_len)
        if len(drafts) <= runner.max_num_reqs and rows <= runner.max_num_tokens:
            for name, sampling in (
                ("greedy", GREEDY),
                ("everything", EVERYTHING),
                ("logprobs", {"logprobs": 0}),
            ):
                scheduled = schedule(runner, [sampling] * len(drafts), prompt=1, drafts=drafts)
                with trace.input(rows=rows, sampling=name):
                    finish(runner, prepare(runner, scheduled))
    cuts = _cuts(trace, runner)
    for requests, rows in ((10, 16), (11, 16), (10, 17), (11, 17), (10, 18), (11, 18)):
        if (_alignment(rows), requests % 2) not in cuts:
            continue
        whole, rest = divmod(rows - requests, runner.num_speculative_steps)
        drafts = [runner.num_speculative_steps] * whole + [rest] * (rest > 0)
        drafts += [0] * (requests - len(drafts))
        for after in (1, 2, 16):
            for name, sampling in SAMPLINGS.items():
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
    limit = trace.module(f"{SPEC}.rejection_sampler").get_max_chunk_logits(runner.vocab_size)
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
    batch = prepare(runner, schedule(runner, [sampling] * len(drafts), prompt=1, drafts=drafts))
    tokens, positions = trace.module(f"{SPEC}.rejection_sampler").gather_draft_sampled(
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


def drive_drafter(trace: Trace, runner: Any, deployment: Deployment) -> None:
    """The drafter's bookkeeping around each draft token (spec_decode/target_dependent_ar/speculator.py)."""
    import torch

    drafter = trace.module(DRAFTER)
    states, steps, most = runner.req_states, runner.num_speculative_steps, runner.max_num_reqs
    buffers = trace.module(f"{GPU}.input_batch").InputBuffers(
        max_num_reqs=most, max_num_tokens=runner.max_num_tokens, device=runner.device
    )
    step = torch.tensor(0, dtype=torch.int64)
    draft_tokens = torch.zeros(most, steps, dtype=torch.int64)
    last_tokens, positions = torch.zeros(most, dtype=torch.int64), torch.zeros(most, dtype=torch.int64)
    hidden = torch.empty(runner.max_num_tokens, deployment.model.hidden, dtype=getattr(torch, deployment.dtype))
    batch = prepare(runner, schedule(runner, [GREEDY], prompt=1))
    sampled, rejected = finish(runner, batch)
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
            make_logits(deployment, 1).argmax(dim=-1),
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
