"""vLLM 0.26.0 is driven by the families of 0.33.0: what it has is enumerated, and what it lacks is said.

Its Python files are downloaded once, then kept in the user's cache; AOTPACK_TEST_ENGINE_0_26 names another place that
has them.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotpack.build import Selection, enumerate_keys
from aotpack.compiler import Compiled
from aotpack.deployments import Deployment, make_services
from aotpack.engines import Engine, find_engine
from aotpack.errors import EngineError
from aotpack.families import fitting, gaps, load_families
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from tests.conftest import SM90, needs_compiler
from tests.traced import constant, divisible, keys_of, tracing

DRIVEN = ("gdn", "layernorm", "memcpy", "mrope", "vision")
QWEN = Deployment(model=load_model("qwen3.5-27b"))


@pytest.fixture(scope="module")
def old() -> Engine:
    return find_engine(os.environ.get("AOTPACK_TEST_ENGINE_0_26", "vllm==0.26.0"), print)


@pytest.fixture(scope="module")
def pool(old: Engine) -> Iterator[Pool]:
    needs_compiler()
    with Pool(WorkerSpec(engine=old, target=SM90, families=DRIVEN), 1) as pool:
        yield pool


def counted(pool: Pool, deployment: Deployment, family: str) -> dict[str, int]:
    """The number of keys of each kernel of a family."""
    named = {kernel.name for part in load_families([family]) for kernel in part.kernels}
    return Counter(key.function for key in keys_of(pool, deployment) if key.kernel in named)


def test_what_a_release_lacks_is_said_by_family() -> None:
    release = Engine(name="vllm", version="0.26.0", root=Path(), origin="")
    said = [(finding.code, finding.detail) for finding in gaps(load_families(), release)]
    assert [code for code, _ in said] == ["E103", "E103", "E104"]
    assert said[0][1].startswith(
        "has no kernel vllm.model_executor.layers.mamba.checkpoint:store_cache_checkpoints_kernel"
    )
    assert said[1][1].endswith(":_mamba_align_block_table_kernel of family memcpy")
    assert said[2][1].startswith("family runner does not drive this release: ")


def test_the_newest_release_lacks_nothing() -> None:
    assert gaps(load_families(), Engine(name="vllm", version="0.33.0", root=Path(), origin="")) == []


def test_arguments_that_a_function_does_not_take_are_left_out() -> None:
    assert fitting(lambda *, copies: copies, copies=1, context=2) == {"copies": 1}


@pytest.mark.slow
def test_the_convolutions_are_packed_for_the_number_of_blocks_that_is_given(pool: Pool) -> None:
    # Their keys hold the number of the KV cache's blocks, which nobody knows ahead of serving.
    assert [key for key in keys_of(pool, QWEN) if "conv1d" in key.function] == []
    given = keys_of(pool, replace(QWEN, settings=(("cache-lines", 1000),)))
    convolutions = [key for key in given if "conv1d" in key.function]
    assert {constant(key, "num_cache_lines") for key in convolutions} == {1000}
    assert Counter(key.function for key in convolutions)["_causal_conv1d_fwd_kernel"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "changes", "expected"),
    [
        # A decode reads its indices with stride 1 in every batch of it, and one token's gates are the halves of
        # their projection or not. Qwen3-Next's are laid out anew, so those of one token are no halves.
        ("qwen3.5-27b", {}, (1, 2)),
        ("qwen3-next-80b-a3b", {}, (1, 1)),
        # Under speculation the table is three wide; a full CUDA graph's buffer has stride 1, so each of the packed
        # decode's keys comes twice. The update verifies drafts, decodes beside prefills, and is warmed up with 1.
        ("qwen3.5-27b", {"speculative_tokens": 2}, (3, 4)),
    ],
)
def test_the_delta_nets_keys_follow_from_the_classes(
    pool: Pool, model: str, changes: dict[str, Any], expected: tuple[int, int]
) -> None:
    update, packed = expected
    assert counted(pool, replace(QWEN, model=load_model(model), **changes), "gdn") == {
        # Tokens of a prefill: 1 (in the warm-up alone), a multiple of 16, other.
        "_fused_post_conv_kernel": 3,
        "fused_sigmoid_gating_delta_rule_update_kernel": update,
        "fused_recurrent_gated_delta_rule_packed_decode_kernel": packed,
        # One call, and as many keys as configurations to choose from.
        "chunk_local_cumsum_scalar_kernel": 4,
        "chunk_scaled_dot_kkt_fwd_kernel": 27,
        "merge_16x16_to_64x64_inverse_kernel": 12,
        "recompute_w_u_fwd_kernel": 9,
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": 12,
        "chunk_fwd_kernel_o": 24,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The number of requests is 1, a multiple of 16, or other.
        (
            {},
            {
                "batch_memcpy_kernel": 1,
                "preprocess_mamba_align_fused_kernel": 3,
                "precopy_mamba_align_fused_kernel": 3,
                "postprocess_mamba_fused_kernel": 3,
                "_scatter_num_accepted_kernel": 1,
            },
        ),
        # The V1 runner copies back too, without a mapping of requests.
        (
            {"speculative_tokens": 2},
            {
                "batch_memcpy_kernel": 1,
                "preprocess_mamba_align_fused_kernel": 3,
                "precopy_mamba_align_fused_kernel": 3,
                "postprocess_mamba_fused_kernel": 6,
                "_scatter_num_accepted_kernel": 1,
            },
        ),
        # No state is aligned to blocks, and nothing is copied in a warm-up.
        ({"prefix_caching": False}, {"_scatter_num_accepted_kernel": 1}),
    ],
)
def test_copies_are_specialised_by_the_number_of_requests(
    pool: Pool, changes: dict[str, Any], expected: dict[str, int]
) -> None:
    assert counted(pool, replace(QWEN, **changes), "memcpy") == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mrope", "vision"),
    [
        # Served whole it rotates by sections, tokens being 1, a multiple of 16, or other; without its tower it fuses.
        ("qwen3.5-27b", (3, 1, 1), (2, 4)),
        # No sections, no tower.
        ("qwen3-next-80b-a3b", (0, 1, 0), (0, 0)),
        # No gate to fuse with.
        ("qwen3-vl-8b", (3, 0, 1), (2, 4)),
        # No table of positions.
        ("qwen2.5-vl-7b", (3, 0, 1), (2, 0)),
    ],
)
def test_rotations_follow_from_how_the_model_is_served(
    pool: Pool, model: str, mrope: tuple[int, int, int], vision: tuple[int, int]
) -> None:
    deployment = Deployment(model=load_model(model))
    rotated = counted(pool, deployment, "mrope")
    names = ("_triton_mrope_forward", "_fused_qk_rmsnorm_rope_gate_kernel", "_prepare_rope_positions_kernel")
    assert tuple(rotated.get(name, 0) for name in names) == mrope
    towers = counted(pool, deployment, "vision")
    assert tuple(towers.get(name, 0) for name in ("rotary_kernel", "_bilinear_pos_embed_kernel")) == vision


@pytest.mark.slow
def test_the_norm_has_the_classes_of_later_releases(pool: Pool) -> None:
    keys = keys_of(pool, QWEN, "layer_norm_fwd_kernel")
    assert {(divisible(key, "M"), constant(key, "ROWS_PER_BLOCK")) for key in keys} == {(True, 1), (True, 2), (True, 4)}


@pytest.mark.slow
def test_requests_are_mapped_by_numbers_of_the_size_that_its_runner_makes(pool: Pool) -> None:
    for name in ("_scatter_num_accepted_kernel", "_prepare_rope_positions_kernel"):
        (key,) = keys_of(pool, QWEN, name)
        assert dict(key.signature)["idx_mapping_ptr"] == "*i32"


@pytest.mark.slow
def test_flashinfers_prefill_makes_no_longer_blocks(pool: Pool) -> None:
    # 784 tokens of 4096 bytes, where checkpoints would need blocks of whole 64 tokens.
    other = replace(QWEN, gdn_prefill="flashinfer")
    packed = "fused_recurrent_gated_delta_rule_packed_decode_kernel"
    assert {constant(key, "stride_init_state_token") for key in keys_of(pool, other, packed)} == {784 * 4096 // 4}
    assert {constant(key, "MAMBA_BLOCK_SIZE") for key in keys_of(pool, other) if "preprocess" in key.function} == {784}
    # Its prefill is no Triton kernel, and nothing of it is exported by one.
    assert not [key for key in keys_of(pool, other) if key.function.startswith(("chunk_", "store_"))]


@pytest.mark.slow
def test_one_key_of_each_kernel_compiles(pool: Pool) -> None:
    models = ("qwen3.5-27b", "qwen3-vl-8b")
    keys = {key.kernel: key for model in models for key in keys_of(pool, Deployment(model=load_model(model)))}
    packed = {
        kernel.name
        for part in load_families(DRIVEN)
        for kernel in part.kernels
        if "0.26.0" not in kernel.absent and not kernel.unbounded
    }
    assert set(keys) == packed
    assert all(isinstance(outcome, Compiled) for outcome in pool.compile(keys.values()))


@pytest.mark.slow
def test_an_enumeration_says_what_it_lacks_and_claims_no_more(old: Engine) -> None:
    names = [family.name for family in load_families()]
    services = make_services([QWEN.model], [1], gdn_prefill="triton")
    selection = Selection(engine=old, targets=(SM90,), families=tuple(names), services=services)
    enumeration = enumerate_keys(selection, jobs=1)
    assert enumeration.families == DRIVEN
    codes = [finding.code for finding in enumeration.findings() if finding.code != "E102"]
    assert codes == ["E103", "E103", "E104", "K102"]


@pytest.mark.slow
def test_a_family_that_does_not_drive_the_release_is_refused_alone(old: Engine) -> None:
    with (
        tracing(old, "runner") as pool,
        pytest.raises(EngineError, match=r"vllm 0\.26\.0 is not driven by family runner; choose another"),
    ):
        pool.describe()
