"""Sampling: logits processed, tokens drawn, and logprobs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Trace
from aotpack.families.runner.modules import TOPK_TOPP, V1
from aotpack.families.runner.requests import GREEDY, SAMPLINGS, make_sampling
from aotpack.families.runner.state import make_logits
from aotpack.families.runner.steps import finish, prepare, schedule, step

_MAX_LOGPROBS = 20  # config/model.py, ModelConfig.max_logprobs

LOGPROBS: Sequence[int] = (0, 1, 2, 4, 8, 15, 16)
"""With the sampled token they fill a row of 1, of less than each power of two, and of 16 exactly."""
NAMED: Sequence[int] = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)
"""Token ids whose logprobs a request asks for: to each power of two, alone and with the sampled token beside
them, some fewer, and some that make a row a multiple of 16."""
SCORED: Sequence[int] = (1, 2, 3, 5, 9, 16, 17)
"""Token ids scored in each row of a prompt: as with logprobs, and odd, so that later rows are unaligned."""


def drive_sampling(trace: Trace, runner: Any) -> None:
    """Every way to process logits, and every class of number of logprobs."""
    import numpy as np

    # Of a padded vocabulary one row of processed logits keeps its stride, and several have the vocabulary's.
    for requests in range(1, min(2, runner.max_num_reqs, runner.max_num_tokens) + 1):
        for name, sampling in SAMPLINGS.items():
            with trace.input(requests=requests, sampling=name):
                step(runner, *[sampling] * requests)
    for logprobs in LOGPROBS:
        with trace.input(requests=1, logprobs=logprobs):
            step(runner, {"logprobs": logprobs})
    for named in NAMED:
        with trace.input(requests=1, logprob_token_ids=named):
            step(runner, {"logprob_token_ids": [0] * named})
    for named in range(1, _MAX_LOGPROBS + 1):
        # With both, a request must ask for as many as it names (sampling_params.py, ``_validate_logprobs``).
        with trace.input(requests=1, logprobs=named, logprob_token_ids=named):
            step(runner, {"logprobs": named, "logprob_token_ids": [0] * named})
    with trace.input(requests=1, prompt_logprobs=1):
        step(runner, {"prompt_logprobs": 1}, prompt=2)
    # The prompt's first rows were scored in an earlier step, as many as that step had room for.
    scores = runner.prompt_logprobs_worker.token_id_scores
    for count in SCORED:
        for start in (0, 1):
            sampling = {"prompt_logprob_token_ids": np.zeros((3, count), dtype=np.int32)}
            with trace.input(requests=1, prompt_logprob_token_ids=count, first_row=start):
                batch = prepare(runner, schedule(runner, [sampling], prompt=3, computed=start))
                for score in scores.values():
                    score.scores = score.token_ids.float()
                finish(runner, batch)
    words = -(-runner.vocab_size // 32)
    grammar = SimpleNamespace(
        structured_output_request_ids=["0"],
        grammar_bitmask=np.full((runner.decode_query_len, words), -1, dtype=np.int32),
        num_acceptable_drafts=None,
    )
    with trace.input(requests=1, sampling="grammar"):
        finish(runner, prepare(runner, schedule(runner, [GREEDY], prompt=1)), grammar)


def drive_top_k_top_p(trace: Trace, runner: Any, deployment: Deployment) -> None:
    """Top-k and top-p of every number of rows up to one that is too many to split a row for."""
    import numpy as np
    import torch

    split = trace.module(TOPK_TOPP)._SPLIT_MAX_BATCH  # noqa: SLF001
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
            states.add_request(index, make_sampling(sampling))
        states.apply_staged_writes()
        for rows in range(1, min(split + 1, most) + 1):
            requests = min(rows, runner.max_num_reqs, 2)
            row_requests = np.array([0] * (rows - 1) + [requests - 1])
            with trace.input(rows=rows, sampling=name):
                states.apply_top_k_top_p(
                    processed_logits(deployment, rows),
                    torch.from_numpy(row_requests),
                    np.unique(row_requests),
                )


def processed_logits(deployment: Deployment, rows: int) -> Any:
    """Logits in float32, as ``Sampler.apply_sampling_params`` makes them, that say they are on the device.

    For the CPU, top-k/top-p has other tiles, and splits no rows.
    """
    import torch

    class OnDevice(torch.Tensor):  # type: ignore[misc]  # torch is not followed
        __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001
        device = torch.device("cuda", 0)

    return torch.empty_like(make_logits(deployment, rows), dtype=torch.float32).as_subclass(OnDevice)


def drive_v1_top_k_top_p(trace: Trace, deployment: Deployment) -> None:
    """Top-k and top-p of the V1 runner, which splits any row."""
    import torch

    with trace.input(rows=1, sampling="top_k and top_p", runner="V1"):
        trace.module(f"{V1}.sample.ops.topk_topp_sampler").apply_top_k_top_p(
            processed_logits(deployment, 1),
            torch.zeros(1, dtype=torch.int32),
            torch.zeros(1),
        )
