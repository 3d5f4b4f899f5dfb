"""mrope: positions of one row and of three, fused with norm and gate or not, and their preparation."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.families import Trace
from aotpack.families.mrope import FAMILY
from aotpack.models import load_model
from aotpack.pool import Pool
from aotpack.targets import Target
from tests.recorded import comparable, recorded_keys
from tests.traced import constant, divisible, keys_of, recorded_deployment, sweep, sweep_each, tracing

ROTATE = "_triton_mrope_forward"
FUSED = "_fused_qk_rmsnorm_rope_gate_kernel"
PREPARE = "_prepare_rope_positions_kernel"


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    with tracing(engine, "mrope") as pool:
        yield pool


def test_every_recorded_key_is_enumerated_field_by_field(pool: Pool, tmp_path: Path) -> None:
    enumerated = [comparable(key) for key in keys_of(pool, recorded_deployment(tmp_path))]
    named = {kernel.name for kernel in FAMILY.kernels}
    recorded = [record for record in recorded_keys() if record["kernel"] in named]
    # The run was compiled by Inductor, which leaves the preparation of positions alone to Triton.
    assert [record["kernel"].partition(":")[2] for record in recorded] == [PREPARE]
    assert [record for record in recorded if record not in enumerated] == []


@pytest.mark.parametrize(
    ("model", "dtype", "expected"),
    [
        # One token, a multiple of 16, any other number.
        ("qwen3-vl-8b", "bfloat16", {ROTATE: 3, PREPARE: 1}),
        ("qwen2.5-vl-7b", "bfloat16", {ROTATE: 3, PREPARE: 1}),
        # Three rows of positions, or one.
        ("qwen3.5-27b", "bfloat16", {FUSED: 2, PREPARE: 1}),
        # Positions have one row alone.
        ("qwen3-next-80b-a3b", "bfloat16", {FUSED: 1}),
        # The fused kernel is for half precision.
        ("qwen3.5-27b", "float32", {ROTATE: 3, PREPARE: 1}),
        ("qwen3-next-80b-a3b", "float32", {}),
    ],
)
@pytest.mark.parametrize("tp", [1, 4])
def test_the_number_of_keys_follows_from_the_classes(
    pool: Pool, model: str, dtype: str, tp: int, expected: dict[str, int]
) -> None:
    keys = keys_of(pool, Deployment(model=load_model(model), tp=tp, dtype=dtype))
    assert Counter(key.function for key in keys) == expected


def test_an_older_architecture_meets_the_same_classes(engine: Engine) -> None:
    with tracing(engine, "mrope", Target("cuda", 80)) as pool:
        keys = keys_of(pool, Deployment(model=load_model("qwen3.5-27b")))
    assert Counter(key.function for key in keys) == {FUSED: 2, PREPARE: 1}


def test_a_text_model_drops_its_sections(pool: Pool) -> None:
    whole = load_model("qwen3.5-27b")
    deployment = Deployment(model=replace(whole, model_type="qwen3_5_text", vision=None))
    (key,) = keys_of(pool, deployment)
    assert (key.function, constant(key, "HAS_MROPE")) == (FUSED, False)


def test_the_stride_of_three_rows_follows_from_the_longest_step(pool: Pool) -> None:
    # The buffer has one column more than a step has tokens.
    for tokens, multiple in ((8192, False), (8191, True)):
        deployment = Deployment(model=load_model("qwen3.5-27b"), max_num_batched_tokens=tokens)
        (fused,) = [key for key in keys_of(pool, deployment, FUSED) if constant(key, "HAS_MROPE")]
        (prepare,) = keys_of(pool, deployment, PREPARE)
        assert divisible(fused, "positions_stride_m") is divisible(prepare, "positions_stride") is multiple


def test_one_row_has_no_stride_between_rows(pool: Pool) -> None:
    (key,) = keys_of(pool, Deployment(model=load_model("qwen3-next-80b-a3b"), max_num_batched_tokens=8191))
    assert divisible(key, "positions_stride_m")  # 0 is a multiple of 16


def test_the_strides_of_prompts_follow_from_the_longest_sequence(pool: Pool) -> None:
    for length, multiple in ((8192, True), (8200, False)):
        deployment = Deployment(model=load_model("qwen3-vl-2b"), max_model_len=length)
        (key,) = keys_of(pool, deployment, PREPARE)
        assert divisible(key, "prefill_positions_stride1") is multiple


def test_the_epsilon_of_the_norms_is_part_of_the_fused_kernels_key(pool: Pool, tmp_path: Path) -> None:
    deployment = recorded_deployment(tmp_path)
    other = replace(deployment, model=replace(deployment.model, norm_epsilon=1e-5))
    assert {constant(key, "eps") for key in keys_of(pool, deployment, FUSED)} == {1e-6}
    assert {constant(key, "eps") for key in keys_of(pool, other, FUSED)} == {1e-5}


def drive_every_batch(trace: Trace, deployment: Deployment) -> None:
    import aotpack.families.mrope

    vars(aotpack.families.mrope).update(_BATCHES=range(1, 1025), token_counts=lambda limit: range(1, limit + 1))
    FAMILY.drive(trace, deployment)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tp"), [("qwen3.5-27b", 4), ("qwen3-next-80b-a3b", 1), ("qwen3-vl-8b", 2)])
def test_every_batch_dispatches_to_an_enumerated_key(pool: Pool, engine: Engine, model: str, tp: int) -> None:
    deployment = Deployment(model=load_model(model), tp=tp, max_num_batched_tokens=1024)
    swept = sweep(engine, replace(FAMILY, drive=drive_every_batch), deployment)
    assert swept == {key.digest for key in keys_of(pool, deployment)}


def drive_every_count(trace: Trace, deployment: Deployment) -> None:
    """Every number of tokens, without the copies that looking angles up makes: they are tensors of their own too."""
    import torch

    dtype = getattr(torch, deployment.dtype)
    model, mrope = deployment.model, deployment.model.mrope
    assert mrope is not None
    head, rotary = model.attention.head_dim, model.rotary_dim
    sizes = [deployment.q_heads * head, deployment.kv_heads * head, deployment.kv_heads * head]

    class Angles:
        def __getitem__(self, positions: Any) -> Any:
            halves = [torch.empty(*positions.shape, rotary // 2, dtype=dtype) for _ in range(2)]
            return SimpleNamespace(chunk=lambda *_, **__: halves)

    layer = SimpleNamespace(
        _match_cos_sin_cache_dtype=lambda _query: Angles(),
        mrope_section=list(mrope.sections),
        head_size=head,
        rotary_dim=rotary,
        mrope_interleaved=mrope.interleaved,
        is_neox_style=True,
    )
    forward = trace.module("vllm.model_executor.layers.rotary_embedding.mrope").MRotaryEmbedding.forward_cuda
    for tokens in range(1, deployment.max_num_batched_tokens + 1):
        query, key, _ = torch.empty(tokens, sum(sizes), dtype=dtype).split(sizes, dim=-1)
        if "qwen2_5_vl" not in model.model_type:
            query, key = torch.empty(tokens, sizes[0], dtype=dtype), torch.empty(tokens, sizes[1], dtype=dtype)
        with trace.input(tokens=tokens):
            forward(layer, torch.zeros(3, tokens, dtype=torch.long), query, key)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3-vl-8b", "qwen2.5-vl-72b"])
def test_every_token_count_to_the_limit_rotates_by_an_enumerated_key(pool: Pool, engine: Engine, model: str) -> None:
    deployments = [Deployment(model=load_model(model), tp=tp) for tp in (1, 2, 4, 8)]
    for deployment, swept in zip(
        deployments, sweep_each(engine, replace(FAMILY, drive=drive_every_count), deployments), strict=True
    ):
        assert swept == {key.digest for key in keys_of(pool, deployment, ROTATE)}, deployment
