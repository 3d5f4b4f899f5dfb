"""layernorm: three row blocks, and row counts that are a multiple of 16 or not."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from aotpack.deployments import Deployment, misfit
from aotpack.engines import Engine
from aotpack.families import Trace
from aotpack.families.layernorm import FAMILY
from aotpack.models import load_model, presets
from aotpack.pool import Pool
from aotpack.targets import DEVICES
from tests.traced import constant, divisible, keys_of, sweep, sweep_each, tracing

GUARD = "vllm.third_party.flash_linear_attention.ops.layernorm_guard"


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    with tracing(engine, "layernorm") as pool:
        yield pool


@pytest.mark.parametrize(
    ("model", "tp", "heads_divide"),
    [
        ("qwen3.5-27b", 1, True),  # 48 value heads on a rank
        ("qwen3.5-27b", 2, False),  # 24
        ("qwen3.5-27b", 8, False),  # 6
        ("qwen3-next-80b-a3b", 2, True),  # 16
        ("qwen3-next-80b-a3b", 8, False),  # 4
    ],
)
def test_a_row_count_is_always_a_multiple_of_16_where_the_heads_are(
    pool: Pool, model: str, tp: int, heads_divide: bool
) -> None:
    keys = keys_of(pool, Deployment(model=load_model(model), tp=tp))
    classes = Counter((constant(key, "ROWS_PER_BLOCK"), divisible(key, "M")) for key in keys)
    divides = (True,) if heads_divide else (True, False)
    assert classes == {(rows, divided): 1 for rows in (1, 2, 4) for divided in divides}


def test_a_model_without_gated_delta_net_launches_none(pool: Pool) -> None:
    assert keys_of(pool, Deployment(model=load_model("qwen3-vl-8b"))) == []


def test_the_gate_of_the_configuration_reaches_the_kernel(pool: Pool) -> None:
    model = load_model("qwen3.5-27b")
    assert model.gdn is not None
    for gate in ("silu", "sigmoid"):
        gated = replace(model, gdn=replace(model.gdn, gate=gate))
        assert {constant(key, "ACTIVATION") for key in keys_of(pool, Deployment(model=gated))} == {gate}


def _warm_up(trace: Trace, deployment: Deployment) -> None:
    """vLLM's own warm-up of the kernel, as model_executor/warmup/qwen_triton_warmup.py asks for it."""
    import torch

    dtype = getattr(torch, deployment.dtype)
    kernel = trace.module(GUARD).LayerNormFwdKernel()
    keys = kernel.get_warmup_keys(
        max_num_tokens=deployment.max_num_batched_tokens,
        rows_per_token=deployment.gdn.v_heads // deployment.tp,
        group_size=deployment.gdn.v_dim,
        x_dtype=dtype,
        weight_dtype=dtype,
        device=torch.device("cuda", 0),
        norm_before_gate=True,
        is_rms_norm=True,
        activation=deployment.gdn.gate,
    )
    for key in keys:
        kernel.compile(key)


def test_the_keys_that_the_engine_itself_warms_up_are_those_enumerated(pool: Pool, engine: Engine) -> None:
    models = [load_model(name) for name in presets()]
    deployments = [
        Deployment(model=model, tp=tp)
        for model in models
        for tp in (1, 2, 4, 8)
        if model.gdn is not None and not misfit(model, tp)
    ]
    warmed = sweep_each(engine, replace(FAMILY, drive=_warm_up), deployments)
    for deployment, keys in zip(deployments, warmed, strict=True):
        assert keys == {key.digest for key in keys_of(pool, deployment)}, deployment


def _every_count(trace: Trace, deployment: Deployment) -> None:
    """Both ways at every count; slices of buffers made once, since fresh ones would be copied each time."""
    import torch

    guard = trace.module(GUARD)
    gdn, limit = deployment.gdn, deployment.max_num_batched_tokens
    dtype = getattr(torch, deployment.dtype)
    shape = (limit, gdn.v_heads // deployment.tp, gdn.v_dim)
    core, gate, out, weight = (torch.empty(size, dtype=dtype) for size in (shape, shape, shape, gdn.v_dim))
    for tokens in range(1, limit + 1):
        with trace.input(tokens=tokens):
            guard.rmsnorm_fn(core[:tokens], weight, None, z=gate[:tokens], activation=gdn.gate)
            guard.layer_norm_fwd(
                core[:tokens].flatten(0, 1),
                weight,
                None,
                1e-6,
                z=gate[:tokens].flatten(0, 1),
                out=out[:tokens].flatten(0, 1),
                group_size=gdn.v_dim,
                is_rms_norm=True,
                activation=gdn.gate,
            )


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("model", ["qwen3.5-0.8b", "qwen3.5-27b"])
# Products of one architecture differ in their SM count: H100 SXM and H200, H100 PCIe, H20.
@pytest.mark.parametrize("sms", [132, 114, 78])
def test_every_token_count_to_the_limit_dispatches_to_an_enumerated_key(
    pool: Pool, engine: Engine, model: str, tp: int, sms: int
) -> None:
    deployment = Deployment(model=load_model(model), tp=tp)
    enumerated = {key.digest for key in keys_of(pool, deployment)}
    device = replace(DEVICES[90], sm_count=sms)
    assert sweep(engine, replace(FAMILY, drive=_every_count), deployment, device) == enumerated
