"""Every token count, driven in a process of its own: ``python -m tests.sweep ENGINE FAMILY MODEL TP LIMIT SMS``.

Prints the digest of each key reached, a line each. What a family tries are a few counts; this is all of them.
"""

import sys
import tempfile
from dataclasses import replace

from aotpack.engines import find_engine
from aotpack.families import Family, Trace, load_families
from aotpack.models import Deployment, load_model
from aotpack.targets import DEVICES, Target
from aotpack.tracing import Tracer, clean_environment

MROPE = "vllm.model_executor.layers.rotary_embedding.mrope"
GUARD = "vllm.third_party.flash_linear_attention.ops.layernorm_guard"


def every_norm(trace: Trace, deployment: Deployment) -> None:
    """The gated norm at every count; slices of buffers made once, since fresh ones would be copied 8192 times."""
    import torch

    guard = trace.module(GUARD)
    gdn, limit = deployment.gdn, deployment.max_num_batched_tokens
    dtype = getattr(torch, deployment.dtype)
    shape = (limit, gdn.v_heads // deployment.tp, gdn.v_dim)
    core, gate, weight = (
        torch.empty(shape, dtype=dtype),
        torch.empty(shape, dtype=dtype),
        torch.empty(gdn.v_dim, dtype=dtype),
    )
    for tokens in range(1, limit + 1):
        with trace.input(tokens=tokens):
            guard.rmsnorm_fn(core[:tokens], weight, None, z=gate[:tokens], activation=gdn.gate)


def every_rotation(trace: Trace, deployment: Deployment) -> None:
    """The rotation at every count, of slices as models/qwen2.py and models/qwen3.py hand them on."""
    import torch

    triton_mrope = trace.module(MROPE).triton_mrope
    model, limit = deployment.model, deployment.max_num_batched_tokens
    assert model.mrope is not None
    dtype = getattr(torch, deployment.dtype)
    head, half = model.attention.head_dim, model.rotary_dim // 2
    q_size, kv_size = deployment.q_heads * head, deployment.kv_heads * head
    if "qwen2_5_vl" in model.model_type:
        projection = torch.empty(limit, q_size + 2 * kv_size, dtype=dtype)
        query, key, _ = projection.split([q_size, kv_size, kv_size], dim=-1)
    else:
        query, key = torch.empty(limit, q_size, dtype=dtype), torch.empty(limit, kv_size, dtype=dtype)
    angles = torch.empty(3 * limit * half, dtype=dtype)
    sections = list(model.mrope.sections)
    for tokens in range(1, limit + 1):
        cos = angles[: 3 * tokens * half].view(3, tokens, half)
        with trace.input(tokens=tokens):
            triton_mrope(
                query[:tokens], key[:tokens], cos, cos, sections, head, 2 * half, model.mrope.interleaved, True
            )


def main() -> None:
    """Sweep and print."""
    engine, name, model, tp, limit, sms = sys.argv[1:]
    (family,) = load_families([name])
    drives = {"layernorm": every_norm, "mrope": every_rotation}
    sweeping: Family = replace(family, drive=drives[name])
    device = replace(DEVICES[90], sm_count=int(sms))
    deployment = Deployment(model=load_model(model), tp=int(tp), max_num_batched_tokens=int(limit))
    with tempfile.TemporaryDirectory() as cache:
        clean_environment(cache)
        tracer = Tracer(find_engine(engine, print), Target("cuda", 90), (sweeping,), device)
        for traced in tracer.trace(deployment):
            for key, _ in traced.keys:
                print(key.digest)


if __name__ == "__main__":
    main()
