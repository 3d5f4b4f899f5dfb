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

from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Family, Trace
from aotpack.families.runner.blocks import drive_v1_slots, drive_zeroing
from aotpack.families.runner.drafts import drive_drafter, drive_drafts
from aotpack.families.runner.kernels import KERNELS
from aotpack.families.runner.modules import MODULES
from aotpack.families.runner.sampling import drive_sampling, drive_top_k_top_p, drive_v1_top_k_top_p
from aotpack.families.runner.state import make_runner
from aotpack.families.runner.steps import prepare, schedule


def _serves(deployment: Deployment) -> bool:
    del deployment  # every model is run by a runner
    return True


def _drive(trace: Trace, deployment: Deployment) -> None:
    runner = make_runner(trace, deployment)
    if deployment.pooling:
        _drive_pooling(trace, runner)
    else:
        drive_sampling(trace, runner)
        drive_top_k_top_p(trace, runner, deployment)
        if runner.num_speculative_steps:
            drive_drafts(trace, runner)
            drive_drafter(trace, runner, deployment)
    drive_zeroing(trace, runner, deployment)
    drive_v1_slots(trace, deployment)
    if not deployment.pooling:
        drive_v1_top_k_top_p(trace, deployment)


def _drive_pooling(trace: Trace, runner: Any) -> None:
    with trace.input(requests=1):
        runner.postprocess_num_computed_tokens(prepare(runner, schedule(runner, [{}], prompt=1)))


FAMILY = Family(
    name="runner",
    engine="vllm",
    kernels=KERNELS,
    modules=MODULES,
    serves=_serves,
    drive=_drive,
    undriven={"0.26.0": "its runners prepare, sample and draft by other steps and with other kernels"},
)
