"""memcpy: the state of gated delta net layers, moved by both runners, with and without speculation."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.families import Trace
from aotpack.families.memcpy import FAMILY
from aotpack.models import load_model
from aotpack.pool import Pool
from aotpack.targets import Target
from tests.recorded import comparable, recorded_keys
from tests.traced import constant, divisible, keys_of, recorded_deployment, sweep, tracing

COPY = "batch_memcpy_kernel"
BEFORE = "preprocess_mamba_align_fused_kernel"
COPY_BEFORE = "precopy_mamba_align_fused_kernel"
COPY_AFTER = "postprocess_mamba_fused_kernel"
INDICES = "get_aligned_state_indices_multi_group_kernel"
TABLE = "_mamba_align_block_table_kernel"
SCATTER = "_scatter_num_accepted_kernel"
FILL = "_fill_num_accepted_kernel"
ALL = (COPY, BEFORE, COPY_BEFORE, COPY_AFTER, INDICES, TABLE, SCATTER, FILL)

QWEN = Deployment(model=load_model("qwen3.5-27b"))
NEXT = Deployment(model=load_model("qwen3-next-80b-a3b"))


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    with tracing(engine, "memcpy") as pool:
        yield pool


def counts(pool: Pool, deployment: Deployment) -> Counter[str]:
    return Counter(key.function for key in keys_of(pool, deployment))


def test_every_recorded_key_is_enumerated_field_by_field(pool: Pool, tmp_path: Path) -> None:
    enumerated = [comparable(key) for key in keys_of(pool, recorded_deployment(tmp_path))]
    named = {kernel.name for kernel in FAMILY.kernels}
    recorded = [record for record in recorded_keys() if record["kernel"] in named]
    # The run was of the V2 runner on one rank: no block tables of V1, no rank before the last.
    assert Counter(record["kernel"].partition(":")[2] for record in recorded) == Counter(
        (COPY, BEFORE, COPY_BEFORE, COPY_AFTER, INDICES, SCATTER)
    )
    assert [record for record in recorded if record not in enumerated] == []


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("deployment", [QWEN, NEXT], ids=str)
def test_nothing_that_varies_at_run_time_is_part_of_a_key(pool: Pool, deployment: Deployment, tp: int) -> None:
    assert counts(pool, replace(deployment, tp=tp)) == Counter(ALL)


def test_an_older_architecture_meets_the_same_classes(engine: Engine) -> None:
    with tracing(engine, "memcpy", Target("cuda", 80)) as pool:
        assert counts(pool, QWEN) == Counter(ALL)


def test_under_speculation_the_v1_runner_copies_by_kernels_of_its_own(pool: Pool) -> None:
    speculating = replace(QWEN, speculative_tokens=2)
    assert counts(pool, speculating) == Counter((*ALL, COPY_BEFORE, COPY_AFTER))
    for function in (COPY_BEFORE, COPY_AFTER):
        mapped = {constant(key, "HAS_IDX_MAPPING") for key in keys_of(pool, speculating, function)}
        assert mapped == {True, False}


def test_without_prefix_caching_states_stay_where_they_are(pool: Pool) -> None:
    # The first is warmed up all the same, and the V2 runner counts accepted tokens all the same.
    assert counts(pool, replace(QWEN, prefix_caching=False)) == Counter((COPY, SCATTER, FILL))


def test_a_pooling_model_accepts_no_tokens(pool: Pool) -> None:
    assert counts(pool, replace(QWEN, pooling=True)) == Counter((COPY, BEFORE, COPY_BEFORE, INDICES, TABLE))


def test_a_model_without_such_layers_launches_nothing(pool: Pool) -> None:
    assert keys_of(pool, Deployment(model=load_model("qwen3-vl-8b"))) == []


def test_element_types_are_part_of_the_copy_kernels_key(pool: Pool) -> None:
    (key,) = keys_of(pool, QWEN, COPY)
    assert dict(key.signature) == {
        "src_ptrs": "*u64",
        "dst_ptrs": "*u64",
        "sizes": "*i32",
        "BLOCK_SIZE": "constexpr",
    }


@pytest.mark.parametrize("blocks", [1, 16, 17])
def test_the_width_of_block_tables_follows_from_the_longest_sequence(pool: Pool, blocks: int) -> None:
    deployment = replace(NEXT, max_model_len=blocks * NEXT.block_tokens)
    strides = {
        INDICES: "block_table_stride_req",
        COPY_AFTER: "block_table_stride_req",
        TABLE: "block_table_stride_0",
    }
    for function, stride in strides.items():
        (key,) = keys_of(pool, deployment, function)
        # The kernels declare it an i64, which Triton does not fold even where it is 1.
        assert (dict(key.signature)[stride], divisible(key, stride)) == ("i64", blocks == 16)


def test_draft_tokens_widen_block_tables_and_take_slots(pool: Pool) -> None:
    deployment = replace(NEXT, speculative_tokens=2, max_num_seqs=64)
    deployment = replace(deployment, max_model_len=14 * deployment.block_tokens)
    (key,) = keys_of(pool, deployment, INDICES)
    assert divisible(key, "block_table_stride_req")
    assert constant(key, "NUM_STATE_SLOTS") == 3
    assert [constant(key, f"state_indices_stride_{axis}") for axis in range(3)] == [64 * 3, 3, 1]


def test_three_layers_for_each_layer_of_attention_make_three_groups(pool: Pool) -> None:
    (key,) = keys_of(pool, QWEN, INDICES)
    assert (constant(key, "NUM_GROUPS"), constant(key, "BLOCK_GROUPS")) == (3, 4)


def test_the_block_of_the_kv_cache_is_a_constant_of_kernels(pool: Pool) -> None:
    for deployment in (QWEN, replace(QWEN, gdn_prefill="flashinfer"), replace(QWEN, kv_cache_dtype="fp8")):
        names = {BEFORE: "MAMBA_BLOCK_SIZE", INDICES: "CACHE_BLOCK_SIZE", COPY_AFTER: "block_size"}
        for function, name in names.items():
            (key,) = keys_of(pool, deployment, function)
            assert constant(key, name) == deployment.block_tokens


def test_the_one_number_that_earlier_ranks_fill_in_is_a_constant(pool: Pool) -> None:
    (key,) = keys_of(pool, QWEN, FILL)
    assert constant(key, "num_sampled") == 1


def test_an_odd_number_of_requests_leaves_every_buffer_aligned(pool: Pool) -> None:
    odd = {key.digest for key in keys_of(pool, replace(QWEN, max_num_seqs=255)) if key.function != INDICES}
    even = {key.digest for key in keys_of(pool, replace(QWEN, max_num_seqs=256)) if key.function != INDICES}
    assert odd == even


def drive_every_batch(trace: Trace, deployment: Deployment) -> None:
    import aotpack.families.memcpy

    vars(aotpack.families.memcpy).update(_BATCHES=range(1, deployment.max_num_seqs + 1))
    FAMILY.drive(trace, deployment)


@pytest.mark.slow
@pytest.mark.parametrize("speculative_tokens", [0, 3])
def test_every_number_of_requests_dispatches_to_an_enumerated_key(
    pool: Pool, engine: Engine, speculative_tokens: int
) -> None:
    deployment = replace(QWEN, speculative_tokens=speculative_tokens)
    swept = sweep(engine, replace(FAMILY, drive=drive_every_batch), deployment)
    assert swept == {key.digest for key in keys_of(pool, deployment)}
