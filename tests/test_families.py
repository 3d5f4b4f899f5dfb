"""What holds for every family: complete, minimal, and independent of what was traced before."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.errors import UsageError
from aotpack.families import load_families, token_counts
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from tests.conftest import ROOT, SM90, needs_compiler
from tests.recorded import H200, H200_FP16, comparable, recorded_keys
from tests.traced import keys_of, recorded_deployment

NAMES = tuple(family.name for family in load_families())


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    needs_compiler()
    with Pool(WorkerSpec(engine=engine, target=SM90, families=NAMES), 1) as pool:
        yield pool


def keys_met(pool: Pool, deployment: Deployment, path: Path) -> tuple[list[str], list[str]]:
    """What a run met of the packed kernels, and what of it is not enumerated."""
    enumerated = [comparable(key) for key in keys_of(pool, deployment)]
    packed = {kernel.name for family in load_families() for kernel in family.kernels}
    recorded = [record for record in recorded_keys(path) if record["kernel"] in packed]
    missing = [json.dumps(record) for record in recorded if record not in enumerated]
    return [record["kernel"].partition(":")[2] for record in recorded], missing


def test_every_key_that_a_real_run_met_is_enumerated_field_by_field(pool: Pool, tmp_path: Path) -> None:
    met, missing = keys_met(pool, recorded_deployment(tmp_path), H200)
    assert missing == []
    assert Counter(met) == {
        "_apply_grammar_bitmask_kernel": 1,
        "_apply_write_kernel": 5,
        "_bad_words_kernel": 1,
        "_bias_kernel": 1,
        "_bincount_kernel": 1,
        "_causal_conv1d_fwd_kernel": 1,
        "_causal_conv1d_update_kernel": 2,
        "_combine_sampled_and_draft_tokens_kernel": 1,
        "_compute_slot_mappings_kernel": 1,
        "_fused_post_conv_kernel": 3,
        "_gather_block_tables_kernel": 1,
        "_get_num_sampled_and_rejected_kernel": 1,
        "_gumbel_sample_kernel": 2,
        "_min_p_kernel": 1,
        "_penalties_kernel": 1,
        "_post_update_kernel": 1,
        "_prepare_pos_seq_lens_kernel": 1,
        "_prepare_prefill_inputs_kernel": 1,
        "_prepare_rope_positions_kernel": 1,
        "_prompt_logprobs_token_ids_kernel": 1,
        "_ranks_kernel": 1,
        "_scatter_num_accepted_kernel": 1,
        "_temperature_kernel": 1,
        "_topk_log_softmax_kernel": 2,
        "_topk_topp_kernel": 2,
        "_zero_kv_blocks_kernel": 1,
        "batch_memcpy_kernel": 1,
        "chunk_fwd_kernel_o": 24,
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": 12,
        "chunk_local_cumsum_scalar_kernel": 4,
        "chunk_scaled_dot_kkt_fwd_kernel": 27,
        "fused_recurrent_gated_delta_rule_packed_decode_kernel": 1,
        "fused_sigmoid_gating_delta_rule_update_kernel": 1,
        "get_aligned_state_indices_multi_group_kernel": 1,
        "layer_norm_fwd_kernel": 3,
        "merge_16x16_to_64x64_inverse_kernel": 12,
        "postprocess_mamba_fused_kernel": 1,
        "precopy_mamba_align_fused_kernel": 1,
        "preprocess_mamba_align_fused_kernel": 1,
        "recompute_w_u_fwd_kernel": 9,
    }


def test_every_key_that_a_run_of_another_deployment_met_is_enumerated_too(pool: Pool) -> None:
    meta = json.loads(H200_FP16.read_text().splitlines()[0])["meta"]
    served = meta["served"]
    deployment = Deployment(
        model=load_model(str(ROOT / meta["config"])),
        dtype="float16",
        max_num_seqs=served["max_num_seqs"],
        max_num_batched_tokens=served["max_num_batched_tokens"],
        max_model_len=served["max_model_len"],
        gdn_prefill=served["gdn_prefill_backend"],
    )
    met, missing = keys_met(pool, deployment, H200_FP16)
    assert missing == []
    # In eager mode the gates of a single token keep their views, and rotation is fused: keys that no default run has.
    assert Counter(met)["_fused_post_conv_kernel"] == 4
    assert Counter(met)["_fused_qk_rmsnorm_rope_gate_kernel"] == 1
    assert {"rotary_kernel", "_bilinear_pos_embed_kernel"} <= set(met)
    assert len(met) == 152


def test_each_key_names_an_input_that_reaches_it(pool: Pool) -> None:
    for name in ("qwen3.5-27b", "qwen3-vl-8b"):
        for traced in next(pool.trace([Deployment(model=load_model(name), tp=4)])):
            assert traced.keys
            assert all(reached for _, reached in traced.keys)


def test_the_source_of_every_kernel_is_known_to_its_last_helper(pool: Pool) -> None:
    # A helper of a module that is stubbed could not be compiled; hashing the source already trips over it.
    assert [kernel.name for kernel in pool.describe().kernels] == sorted(
        k.name for family in load_families() for k in family.kernels
    )


def test_keys_do_not_depend_on_what_was_traced_before(pool: Pool) -> None:
    first, second = (Deployment(model=load_model(name)) for name in ("qwen3.5-27b", "qwen3-vl-8b"))
    alone, _, again = pool.trace([second, first, second])
    assert alone == again


def test_the_dtype_of_a_deployment_reaches_the_keys(pool: Pool) -> None:
    deployment = Deployment(model=load_model("qwen3.5-27b"))
    half, other = (
        {key.digest for key in keys_of(pool, replace(deployment, dtype=dtype))} for dtype in ("float16", "bfloat16")
    )
    assert half - other
    assert other - half


def test_token_counts_reach_one_sixteen_and_the_limit() -> None:
    assert {1, 16, 64, 100} <= set(token_counts(100))
    assert max(token_counts(7)) == 7


def test_an_unknown_family_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'conv' is not a family; installed are .*layernorm"):
        load_families(["conv"])
