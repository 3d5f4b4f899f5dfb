"""vision: interpolation and rotation for grids of every class, whole towers and shares of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.families import Trace
from aotpack.families.vision import FAMILY
from aotpack.models import load_model
from aotpack.pool import Pool
from aotpack.targets import Target
from tests.traced import constant, divisible, keys_of, sweep, tracing

ROTARY = "rotary_kernel"
TABLE = "_bilinear_pos_embed_kernel"


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    with tracing(engine, "vision") as pool:
        yield pool


@pytest.mark.parametrize(
    ("model", "tp", "expected"),
    [
        # Patches, the height and the width are each a multiple of 16 or not: 2 keys, and 2 by 2.
        ("qwen3-vl-2b", 1, {ROTARY: 2, TABLE: 4}),
        ("qwen3-vl-235b-a22b", 8, {ROTARY: 2, TABLE: 4}),
        ("qwen3.5-27b", 4, {ROTARY: 2, TABLE: 4}),
        # No table of positions.
        ("qwen2.5-vl-7b", 4, {ROTARY: 2}),
        # No tower.
        ("qwen3-next-80b-a3b", 1, {}),
    ],
)
def test_the_number_of_keys_follows_from_the_classes(pool: Pool, model: str, tp: int, expected: dict[str, int]) -> None:
    keys = keys_of(pool, Deployment(model=load_model(model), tp=tp))
    assert Counter(key.function for key in keys) == expected


def test_an_older_architecture_meets_the_same_classes(engine: Engine) -> None:
    with tracing(engine, "vision", Target("cuda", 80)) as pool:
        keys = keys_of(pool, Deployment(model=load_model("qwen3-vl-8b")))
    assert Counter(key.function for key in keys) == {ROTARY: 2, TABLE: 4}


def test_height_and_width_are_classes_apart(pool: Pool) -> None:
    keys = keys_of(pool, Deployment(model=load_model("qwen3-vl-8b")), TABLE)
    assert {(divisible(key, "H"), divisible(key, "W")) for key in keys} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }


def test_the_table_is_a_square_in_the_dtype_of_the_model(pool: Pool) -> None:
    deployment = Deployment(model=load_model("qwen3-vl-8b"), dtype="float16")
    for key in keys_of(pool, deployment, TABLE):
        assert constant(key, "NUM_GRID") == 48  # of 2304 positions
        assert dict(key.signature)["embed_ptr"] == dict(key.signature)["output_ptr"] == "*fp16"


def test_rotation_covers_whole_heads_in_the_smallest_block_that_holds_them(pool: Pool) -> None:
    # Heads of 64, 72 and 80 elements; narrow ones are rotated by half as many warps.
    blocks = {}
    for model in ("qwen3-vl-2b", "qwen3-vl-8b", "qwen2.5-vl-7b"):
        keys = keys_of(pool, Deployment(model=load_model(model)), ROTARY)
        blocks[model] = {
            (constant(key, "BLOCK_K"), dict(key.options)["num_warps"], divisible(key, "rotary_dim")) for key in keys
        }
    assert blocks == {
        "qwen3-vl-2b": {(64, 2, True)},
        "qwen3-vl-8b": {(128, 4, False)},
        "qwen2.5-vl-7b": {(128, 4, True)},
    }


def test_a_share_of_the_heads_rotates_by_the_keys_of_the_whole_tower(pool: Pool) -> None:
    whole = Deployment(model=load_model("qwen3-vl-8b"))
    assert set(keys_of(pool, replace(whole, tp=8))) == set(keys_of(pool, whole))


def test_a_single_head_of_72_elements_has_rows_that_are_no_multiple_of_16(pool: Pool) -> None:
    deployment = Deployment(model=load_model("qwen3-vl-8b"), tp=16)
    assert {divisible(key, "stride_x_seqlen") for key in keys_of(pool, deployment, ROTARY)} == {False}


def test_a_data_parallel_tower_keeps_all_its_heads(pool: Pool) -> None:
    whole = Deployment(model=load_model("qwen3-vl-8b"))
    parallel = replace(whole, tp=16, vision_data_parallel=True)
    assert set(keys_of(pool, parallel)) == set(keys_of(pool, whole))


def test_heads_that_cannot_be_split_are_served_whole(pool: Pool) -> None:
    # 12 heads at 8 ranks: the model runs with a data-parallel tower or without one.
    whole = Deployment(model=load_model("qwen3.5-0.8b"))
    assert set(keys_of(pool, replace(whole, tp=8))) == set(keys_of(pool, whole))


def drive_videos(trace: Trace, deployment: Deployment) -> None:
    import torch

    vision = deployment.model.vision
    assert vision is not None
    dtype = getattr(torch, deployment.dtype)
    tower = SimpleNamespace(
        pos_embed=SimpleNamespace(weight=torch.empty(vision.positions, vision.hidden, dtype=dtype)),
        num_grid_per_side=int(vision.positions**0.5),
        spatial_merge_size=vision.merge,
        dtype=dtype,
    )
    interpolate = trace.module("vllm.model_executor.models.qwen3_vl").Qwen3_VisionTransformer.fast_pos_embed_interpolate
    for frames in range(1, 33):
        with trace.input(frames=frames):
            interpolate(tower, [[frames, height, width] for height in (14, 16) for width in (14, 16)])


def test_a_video_reaches_the_keys_of_its_frames(pool: Pool, engine: Engine) -> None:
    deployment = Deployment(model=load_model("qwen3-vl-2b"))
    swept = sweep(engine, replace(FAMILY, drive=drive_videos), deployment)
    assert swept == {key.digest for key in keys_of(pool, deployment, TABLE)}


@pytest.mark.slow
def test_a_batch_of_2_31_elements_needs_wide_strides_where_a_step_can_hold_it(pool: Pool) -> None:
    deployment = Deployment(model=load_model("qwen3.5-27b"), max_num_batched_tokens=1 << 19)
    strides = [dict(key.signature)["stride_x_batch"] for key in keys_of(pool, deployment, ROTARY)]
    assert sorted(strides) == ["i32", "i32", "i64", "i64"]
    # Half of the tower's heads hold half of the elements.
    assert len(keys_of(pool, replace(deployment, tp=2), ROTARY)) == 2


def drive_every_batch(trace: Trace, deployment: Deployment) -> None:
    """Every number of patches that 8192 tokens can stand for, without the copies that the attention makes."""
    import torch

    vision = deployment.model.vision
    assert vision is not None
    dtype = getattr(torch, deployment.dtype)
    heads, head = vision.heads // deployment.tp, vision.hidden // vision.heads
    rotary = trace.module("vllm.model_executor.layers.rotary_embedding.common").ApplyRotaryEmb
    layer = rotary.__new__(rotary)
    layer.is_neox_style, layer.enable_fp32_compute = True, False
    unit = vision.merge**2
    for patches in range(unit, 8192 * unit + 1, unit):
        turns = torch.empty(patches, head // 2, dtype=dtype)
        with trace.input(patches=patches):
            layer.forward_cuda(torch.empty(2, patches, heads, head, dtype=dtype), turns, turns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tp"), [("qwen3-vl-2b", 1), ("qwen3.5-27b", 4), ("qwen3-vl-8b", 16), ("qwen2.5-vl-7b", 4)]
)
def test_every_batch_of_patches_rotates_by_an_enumerated_key(pool: Pool, engine: Engine, model: str, tp: int) -> None:
    deployment = Deployment(model=load_model(model), tp=tp)
    swept = sweep(engine, replace(FAMILY, drive=drive_every_batch), deployment)
    assert swept == {key.digest for key in keys_of(pool, deployment, ROTARY)}


def drive_every_grid(trace: Trace, deployment: Deployment) -> None:
    import aotpack.families.vision

    vars(aotpack.families.vision).update(_SIDES=range(1, 65), _rotate=lambda *_: None)
    FAMILY.drive(trace, deployment)


@pytest.mark.slow
def test_every_grid_to_128_by_128_is_interpolated_by_an_enumerated_key(pool: Pool, engine: Engine) -> None:
    deployment = Deployment(model=load_model("qwen3-vl-2b"))
    swept = sweep(engine, replace(FAMILY, drive=drive_every_grid), deployment)
    assert swept == {key.digest for key in keys_of(pool, deployment, TABLE)}
