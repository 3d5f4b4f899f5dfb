"""What requests ask for, as runner and sampler read it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

GREEDY: Mapping[str, Any] = {"temperature": 0.0}
EVERYTHING: Mapping[str, Any] = {
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
SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": GREEDY,
    "everything": EVERYTHING,
    "stop tokens under a grammar": {
        "min_tokens": 2,
        "all_stop_token_ids": [0],
        "structured_outputs": "a grammar",
    },
}


def make_sampling(changes: Mapping[str, Any]) -> SimpleNamespace:
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
