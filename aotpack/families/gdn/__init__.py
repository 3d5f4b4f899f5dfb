"""gdn: the gated delta net layer, from its convolution to its recurrence, and the export of its checkpoints.

The layer is driven from its own ``forward_cuda`` (vLLM, layers/mamba/gdn/qwen_gdn_linear_attn.py under
model_executor) down to the launches, with metadata that vLLM's own builder makes of a batch
(v1/attention/backends/gdn_attn.py) and with states that the layer itself cuts from pages of the KV cache.
Stood in for are the projections, the norm (family layernorm), FlashInfer's prefill, and the server's
configuration.

What varies, beside what is constant for a deployment:

- The tokens of a prefill (``_fused_post_conv_kernel``: 1, a multiple of 16, other), and whether decodes stand
  before it in the batch: its gates are views from there on, and a row of gates need not be a multiple of 16
  bytes.
- The requests of a decode (``_causal_conv1d_update_kernel``: 1, a multiple of 16, other), which times the
  value heads also decide the packed decode kernel's grid, and its tile on compute capability 10.x.
- A single token. In eager mode its gates are still the two halves of their projection, since
  ``contiguous()`` does nothing to one row: they keep the row stride of the whole, and the second half its
  offset. Compiled code has them in tensors of their own.
- Where the states' indices lie. A full CUDA graph reads a buffer with stride 1; anything else reads a column
  of a table that is as wide as a request has states, one and another for each draft token. In a batch of
  speculative and other requests each kind has a table of its own. The V2 runner keeps the tables of all
  groups of layers in one tensor (v1/worker/mamba_utils.py, ``aligned_state_indices``), so that a group's may
  begin unaligned.
- The prefills of a batch with checkpoints: the rows of the plan are a view behind one start for each and one
  more (``store_cache_checkpoints_kernel``).

In 0.26.0 the keys of both convolution kernels hold the number of the KV cache's blocks, which a server learns when it
has measured its memory: they are not packed. Nothing exports checkpoints, whatever the back end of prefill, and the V2
runner has no tensor of all groups. Of a server's warm-up (``_warmup_prefill_kernels``, and model_executor/warmup/
qwen_triton_warmup.py) no request reaches two keys: a prefill of a single token, which is a decode in that release, and
a decode with the stride 1 of one state, under speculation too. Releases with compile keys of their own to warm up by
(warmup/jit_warmup.py) are not driven through it.

Embedding models decode too: where a prompt is prefilled in chunks, a last chunk of one token is a decode (the
builder's ``build``). They never speculate.
"""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Family, Trace
from aotpack.families.gdn.batch import Batch, batches, more_batches
from aotpack.families.gdn.kernels import KERNELS
from aotpack.families.gdn.layer import NAME, dtype_of, make_config, make_layer, run_compiled
from aotpack.families.gdn.metadata import TABLE, make_builders, make_metadata
from aotpack.families.gdn.modules import CHECKPOINT, CONTEXT, JIT_WARM_UP, LAYER, MODULES, OPTIONAL, WARM_UP

_STEP = 8192
"""Tokens of a step under load: vLLM's default for a server on a large GPU (engine/arg_utils.py)."""

_SHARERS = 4
"""Requests whose prefills share such a step."""


def _serves(deployment: Deployment) -> bool:
    # The kernels of prefill take half precision alone (flash_linear_attention/ops/chunk.py).
    return deployment.model.gdn is not None and deployment.dtype != "float32"


def _drive(trace: Trace, deployment: Deployment) -> None:
    import torch

    # FlashInfer's prefill does not run on every target, and vLLM falls back to Triton's where it does not.
    _, prefill = trace.module(LAYER)._resolve_gdn_prefill_backend(make_config(deployment, deployment.gdn_prefill))  # noqa: SLF001
    # Blocks are longer, and checkpoints exported, for FlashInfer's prefill in releases that export any.
    deployment = replace(deployment, gdn_prefill=prefill if trace.has(CHECKPOINT) else "triton")
    layer = make_layer(trace, deployment, prefill)
    with torch.inference_mode():
        if not deployment.pooling and not trace.has(JIT_WARM_UP):
            _warm_up(trace, deployment, layer)
        for indices, builder in make_builders(trace, deployment, layer):
            tried = batches(deployment)
            for batch in chain(tried, more_batches(deployment)) if indices == TABLE else tried:
                if batch.fits(deployment):
                    _step(trace, deployment, layer, indices=indices, builder=builder, batch=batch)


def _tune(trace: Trace, deployment: Deployment) -> None:
    """Prefill as under load: a step of a server's usual size, shared by a few requests.

    A server tunes at its first prefill, which is one of 64 tokens that its warm-up makes, and keeps what it found
    for all: the tuning keys hold no number of tokens.
    """
    import torch

    _, prefill = trace.module(LAYER)._resolve_gdn_prefill_backend(make_config(deployment, deployment.gdn_prefill))  # noqa: SLF001
    if prefill == "flashinfer":
        return
    layer = make_layer(trace, deployment, prefill)
    tokens = min(deployment.max_num_batched_tokens, _STEP)
    requests = min(deployment.max_num_seqs, _SHARERS)
    batch = Batch(prefills=(min(tokens // requests, deployment.model_len),) * requests)
    with torch.inference_mode():
        indices, builder = next(make_builders(trace, deployment, layer))
        _step(trace, deployment, layer, indices=indices, builder=builder, batch=batch)


def _warm_up(trace: Trace, deployment: Deployment, layer: Any) -> None:
    """What a server launches before it serves: prefill while it measures its memory, then requests of its own."""
    import torch

    context = SimpleNamespace(no_compile_layers={NAME: layer}, attn_metadata=None)
    with trace.module(CONTEXT).override_forward_context(context), trace.input(warm_up="prefill"):
        layer.forward_cuda(torch.empty(1, 1, dtype=dtype_of(deployment.dtype)))
    warm_up, device = trace.module(WARM_UP), torch.device("cpu")
    config = warm_up._qwen_gdn_warmup_config({NAME: layer})  # noqa: SLF001
    for name in (
        "_warm_fused_post_conv_kernel",
        "_warm_fused_sigmoid_gating_delta_rule_update_kernel",
    ):
        with trace.input(warm_up=name):
            getattr(warm_up, name)(device, config)


def _step(trace: Trace, deployment: Deployment, layer: Any, *, indices: str, builder: Any, batch: Batch) -> None:
    """Run the layer on a batch, with the gates of a single token as eager and as compiled code make them."""
    import torch

    tokens = sum(batch.queries)
    quantities: dict[str, int | str | bool] = {
        "indices": indices,
        "drafted": len(batch.drafted),
        "decodes": batch.decodes,
        "prefills": len(batch.prefills),
        "tokens": tokens,
    }
    metadata = make_metadata(trace, deployment, builder, batch)
    context = SimpleNamespace(no_compile_layers={NAME: layer}, attn_metadata={NAME: metadata})
    with trace.module(CONTEXT).override_forward_context(context):
        with trace.input(**quantities, gates="views"):
            layer.forward_cuda(torch.empty(tokens, 1, dtype=dtype_of(deployment.dtype)))
        if tokens == 1:
            with trace.input(**quantities, gates="copies"):
                run_compiled(layer, deployment)


FAMILY = Family(
    name="gdn",
    engine="vllm",
    kernels=KERNELS,
    modules=MODULES,
    serves=_serves,
    drive=_drive,
    tune=_tune,
    optional=OPTIONAL,
)
