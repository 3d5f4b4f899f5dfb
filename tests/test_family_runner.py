"""runner: what runners and samplers launch beside the model, against a real run and over whole ranges."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.families import Trace
from aotpack.families.runner import FAMILY, sampling
from aotpack.families.runner.requests import EVERYTHING, GREEDY
from aotpack.families.runner.state import make_runner
from aotpack.families.runner.steps import finish, prepare, schedule, step
from aotpack.keys import CompileKey
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from aotpack.targets import Target
from tests.recorded import comparable, recorded_keys
from tests.traced import constant, divisible, keys_of, recorded_deployment, sweep, tracing

QWEN = Deployment(model=load_model("qwen3.5-27b"))
NEXT = Deployment(model=load_model("qwen3-next-80b-a3b"))
VL = Deployment(model=load_model("qwen3-vl-2b"))

WRITE = "_apply_write_kernel"
TOP = "_topk_topp_kernel"
SPLITS = ("_topp_sb_stats_kernel", "_topp_sb_step_kernel", "_topp_sb_mask_kernel")
GUMBEL = "_gumbel_sample_kernel"
SCORES = "_topk_log_softmax_kernel"
NAMED = "_fill_logprob_token_ids_kernel"
BIAS = "_bias_kernel"
REJECT = "_rejection_kernel"
STATS = "_compute_local_logits_stats_kernel"
SLOTS_V1 = "ComputeSlotMappingKernel.kernel"


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    with tracing(engine, "runner") as pool:
        yield pool


def counts(pool: Pool, deployment: Deployment) -> Counter[str]:
    return Counter(key.function for key in keys_of(pool, deployment))


def type_of(key: CompileKey, argument: str) -> Any:
    return dict(key.signature)[argument]


def test_every_recorded_key_is_enumerated_field_by_field(pool: Pool, tmp_path: Path) -> None:
    enumerated = [comparable(key) for key in keys_of(pool, recorded_deployment(tmp_path))]
    named = {kernel.name for kernel in FAMILY.kernels}
    recorded = [record for record in recorded_keys() if record["kernel"] in named]
    # 21 kernels: five keys to write with, two to sample, two to score, and top-k/top-p of one row and more.
    assert len(recorded) == 28
    assert [record for record in recorded if record not in enumerated] == []


def test_no_kernel_of_the_runner_that_the_run_met_is_without_a_family() -> None:
    elsewhere = ("mamba_utils", "mamba_hybrid", "mm.rope")
    met = {record["kernel"] for record in recorded_keys() if ".v1." in record["kernel"]}
    assert {name for name in met if not any(part in name for part in elsewhere)} <= {k.name for k in FAMILY.kernels}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("deployment", [QWEN, NEXT, VL], ids=str)
def test_no_key_depends_on_how_heads_are_split(pool: Pool, deployment: Deployment, tp: int) -> None:
    def without_blocks(tp: int) -> set[str]:
        # The V1 runner's slot mappings alone have the block size as a constant, and that follows the ranks.
        return {key.digest for key in keys_of(pool, replace(deployment, tp=tp)) if key.function != SLOTS_V1}

    assert without_blocks(tp) == without_blocks(1)


@pytest.mark.parametrize(
    ("deployment", "total"),
    [
        # 26 kernels, and more than one key for: writing, sampling, bias, scores, named ids, top-k/top-p.
        (QWEN, 90),
        # A row of 151936 is split in 32 where there are few, else in 16: three kernels' eight keys twice.
        (NEXT, 98),
        # No state to zero, and the one group of blocks is written by a key that serves other tensors too.
        (VL, 96),
        # One request, so top-k/top-p of one row alone.
        (replace(QWEN, max_num_seqs=1), 86),
    ],
    ids=str,
)
def test_counts(pool: Pool, deployment: Deployment, total: int) -> None:
    assert len(keys_of(pool, deployment)) == total


@pytest.mark.parametrize("arch", [80, 100, 120])
def test_other_architectures_meet_as_many_classes(engine: Engine, pool: Pool, arch: int) -> None:
    spec = WorkerSpec(engine=engine, target=Target("cuda", arch), families=("runner",))
    with Pool(spec, 1) as other:
        assert counts(other, QWEN) == counts(pool, QWEN)


def test_logits_are_sampled_in_the_models_dtype_until_something_processes_them(pool: Pool) -> None:
    assert {type_of(key, "logits_ptr") for key in keys_of(pool, QWEN, GUMBEL)} == {"*bf16", "*fp32"}
    assert {type_of(key, "logits_ptr") for key in keys_of(pool, QWEN, "_penalties_kernel")} == {"*fp32"}
    assert {type_of(key, "logits_ptr") for key in keys_of(pool, QWEN, "_apply_grammar_bitmask_kernel")} == {"*bf16"}
    half = replace(QWEN, dtype="float16")
    assert {type_of(key, "logits_ptr") for key in keys_of(pool, half, GUMBEL)} == {"*fp16", "*fp32"}


def test_top_k_top_p_has_the_tiles_of_a_gpu(pool: Pool) -> None:
    for key in keys_of(pool, QWEN, TOP):
        assert (constant(key, "BLOCK_SIZE"), constant(key, "BLOCK_SIZE_TRUNC")) == (8192, 4096)
        assert dict(key.options)["num_warps"] == 8


def test_top_p_alone_takes_one_program_for_a_row_only_past_64_rows(pool: Pool) -> None:
    def modes(deployment: Deployment) -> Counter[tuple[bool, bool]]:
        names = ("TOPK_ENABLED", "TOPP_ENABLED")
        keys = keys_of(pool, deployment, TOP)
        return Counter((constant(key, names[0]), constant(key, names[1])) for key in keys)

    # One row or more; with top-p also more than 64 rows.
    assert modes(QWEN) == {(True, False): 2, (True, True): 3, (False, True): 1}
    assert modes(replace(QWEN, max_num_seqs=64)) == {(True, False): 2, (True, True): 2}
    # Draft tokens bring a row each.
    drafting = replace(QWEN, max_num_seqs=64, speculative_tokens=1)
    assert modes(drafting) == modes(QWEN)


def test_rows_of_a_small_vocabulary_are_split_by_how_many_there_are(pool: Pool) -> None:
    for kernel in SPLITS:
        assert {constant(key, "S") for key in keys_of(pool, QWEN, kernel)} == {32}
        assert {constant(key, "S") for key in keys_of(pool, VL, kernel)} == {16, 32}


def test_the_rows_of_logprobs_are_covered_by_powers_of_two_and_16_ids_are_aligned(pool: Pool) -> None:
    keys = keys_of(pool, QWEN, SCORES)
    assert {constant(key, "TOPK_BLOCK_SIZE") for key in keys} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    whole = {
        constant(key, "TOPK_BLOCK_SIZE") for key in keys if type_of(key, "topk") == "i32" and divisible(key, "topk")
    }
    assert whole == {16, 32, 64, 128}


def test_token_ids_scored_from_a_later_row_on_are_unaligned_where_a_row_has_an_odd_number(pool: Pool) -> None:
    unaligned = [key for key in keys_of(pool, QWEN, SCORES) if not divisible(key, "topk_ids_ptr")]
    # 1, 3, 5, 9 and 17 of them: one to each power of two but two.
    assert sorted(constant(key, "TOPK_BLOCK_SIZE") for key in unaligned) == [1, 4, 8, 16, 32]


def test_each_number_of_logprobs_is_a_constant_where_a_request_names_token_ids_too(pool: Pool) -> None:
    assert {constant(key, "NUM_TOPK") for key in keys_of(pool, QWEN, NAMED)} == set(range(21))


def test_stop_tokens_under_a_grammar_have_a_kernel_of_their_own(pool: Pool) -> None:
    assert {constant(key, "CHECK_ALL_MASKED_ROWS") for key in keys_of(pool, QWEN, BIAS)} == {False, True}


def test_groups_of_blocks_are_written_together_and_one_group_by_its_stride(pool: Pool) -> None:
    assert Counter(constant(key, "MULTI_GROUP") for key in keys_of(pool, QWEN, WRITE)) == {False: 4, True: 1}
    assert {constant(key, "MULTI_GROUP") for key in keys_of(pool, VL, WRITE)} == {False}


def test_the_stride_of_a_block_table_follows_the_longest_sequence(pool: Pool) -> None:
    # 8200 tokens are 513 blocks of 16, in rows of a multiple of 128 tokens: 520 blocks, no multiple of 16.
    odd = replace(VL, max_model_len=8200)
    assert {type_of(key, "block_table_stride") for key in keys_of(pool, odd, SLOTS_V1)} == {"i32"}
    assert [divisible(key, "block_table_stride") for key in keys_of(pool, odd, SLOTS_V1)] == [False]
    assert [divisible(key, "block_table_stride") for key in keys_of(pool, VL, SLOTS_V1)] == [True]


def test_only_state_of_linear_attention_is_zeroed(pool: Pool) -> None:
    assert [constant(key, "BLOCK_SIZE") for key in keys_of(pool, QWEN, "_zero_kv_blocks_kernel")] == [1024]
    assert keys_of(pool, VL, "_zero_kv_blocks_kernel") == []


@pytest.mark.parametrize(("deployment", "block"), [(QWEN, QWEN.block_tokens), (VL, 16)], ids=str)
def test_slots_of_the_v1_runner_have_the_block_size_as_a_constant(
    pool: Pool, deployment: Deployment, block: int
) -> None:
    assert [constant(key, "KV_CACHE_BLOCK_SIZE") for key in keys_of(pool, deployment, SLOTS_V1)] == [block]


def test_of_a_padded_vocabulary_processed_logits_have_its_stride_in_one_row_and_their_own_in_several(
    pool: Pool,
) -> None:
    # 151669 tokens are padded to 151680. A copy of one row keeps its stride, a copy of several is packed.
    padded = replace(VL, model=replace(VL.model, vocab=151669))
    strides = Counter(
        (type_of(key, "logits_ptr"), divisible(key, "logits_stride")) for key in keys_of(pool, padded, GUMBEL)
    )
    assert strides == {("*bf16", True): 1, ("*fp32", True): 1, ("*fp32", False): 1}
    for kernel in ("_penalties_kernel", "_temperature_kernel", "_min_p_kernel", "_bad_words_kernel"):
        assert {divisible(key, "logits_stride") for key in keys_of(pool, padded, kernel)} == {True, False}
    # Only for top-k/top-p of one row is the number of rows known.
    for key in keys_of(pool, padded, TOP):
        assert divisible(key, "LOGITS_STRIDE_0") == (type_of(key, "BATCH_SIZE") == "constexpr")


def test_an_odd_limit_of_requests_is_an_odd_stride(pool: Pool) -> None:
    kernel = "_gather_block_tables_kernel"
    assert [divisible(key, "num_blocks_stride") for key in keys_of(pool, QWEN, kernel)] == [True]
    odd = replace(QWEN, max_num_seqs=100)
    assert [divisible(key, "num_blocks_stride") for key in keys_of(pool, odd, kernel)] == [False]
    assert [type_of(key, "num_blocks_stride") for key in keys_of(pool, replace(odd, max_num_seqs=1), kernel)] == [
        "constexpr"
    ]


def test_a_model_that_only_embeds_samples_nothing(pool: Pool) -> None:
    assert counts(pool, replace(VL, pooling=True)) == {
        WRITE: 2,
        SLOTS_V1: 1,
        "_combine_sampled_and_draft_tokens_kernel": 1,
        "_compute_slot_mappings_kernel": 1,
        "_gather_block_tables_kernel": 1,
        "_post_update_num_computed_tokens_kernel": 1,
        "_prepare_pos_seq_lens_kernel": 1,
        "_prepare_prefill_inputs_kernel": 1,
    }


def test_nothing_of_speculation_is_there_without_draft_tokens(pool: Pool) -> None:
    drafted = set(counts(pool, replace(QWEN, speculative_tokens=2))) - set(counts(pool, QWEN))
    assert drafted == {
        "_expand_idx_mapping_kernel",
        "_flatten_sampled_kernel",
        "_gather_draft_sampled_kernel",
        "_insert_resampled_kernel",
        "_prepare_decode_inputs_kernel",
        "_resample_kernel",
        "_update_draft_inputs_kernel",
        REJECT,
        STATS,
    }


def test_a_single_draft_token_needs_no_second_step_of_the_drafter(pool: Pool) -> None:
    one, two = (counts(pool, replace(QWEN, speculative_tokens=count)) for count in (1, 2))
    drafting = {"_prepare_decode_inputs_kernel", "_update_draft_inputs_kernel"}
    assert drafting & set(one) == set()
    assert drafting <= set(two)
    # The same name is a kernel of the batch and one of the drafter.
    assert one["_prepare_prefill_inputs_kernel"] == two["_prepare_prefill_inputs_kernel"] == 2


def alignments(pool: Pool, deployment: Deployment) -> set[tuple[bool, bool, bool]]:
    """Whether tokens (4 bytes a row), positions (8) and the requests' mapping (8 a request) are aligned."""
    names = ("draft_sampled_ptr", "pos_ptr", "idx_mapping_ptr")
    keys = keys_of(pool, deployment, REJECT)
    return {(divisible(key, names[0]), divisible(key, names[1]), divisible(key, names[2])) for key in keys}


def test_batches_too_large_to_verify_at_once_are_cut_at_any_row(pool: Pool) -> None:
    # A gigabyte of float32 holds 1081 rows; 1024 requests of 3 have 3072.
    assert alignments(pool, replace(QWEN, speculative_tokens=2)) == {
        (tokens, positions, mapping)
        for tokens, positions in ((True, True), (False, True), (False, False))
        for mapping in (True, False)
    }


def test_with_one_draft_token_a_batch_is_cut_once_at_row_1080_or_1081(pool: Pool) -> None:
    # After 540 requests of two rows each, or after requests of two and of one.
    assert alignments(pool, replace(QWEN, speculative_tokens=1)) == {
        (True, True, True),
        (False, False, True),
        (False, False, False),
    }


def test_batches_that_are_verified_at_once_are_never_cut(pool: Pool) -> None:
    assert alignments(pool, replace(QWEN, speculative_tokens=2, max_num_seqs=256)) == {(True, True, True)}


def drive_every_request(trace: Trace, deployment: Deployment) -> None:
    """Every number of requests, tokens, logprobs and token ids that a request may name, and of rows."""
    import torch

    sampling.LOGPROBS = range(21)
    sampling.NAMED = range(1, 129)
    sampling.SCORED = range(1, 21)
    FAMILY.drive(trace, deployment)
    runner = make_runner(trace, deployment)
    for requests in range(1, 65):
        step(runner, *[GREEDY] * requests)
        step(runner, *[{"logprobs": requests % 21}] * min(requests, 3))
    for prompt in (*range(1, 130), 8192):
        step(runner, {"prompt_logprobs": prompt % 21, "temperature": 0.0}, prompt=prompt)
    for requests in range(2, 7):
        step(runner, *[EVERYTHING] * requests)
    split = trace.module("vllm.v1.sample.ops.topk_topp_sampler").apply_top_k_top_p
    for rows in range(1, deployment.max_num_seqs + 1):
        k, p = torch.ones(rows, dtype=torch.int32), torch.ones(rows)
        for chosen in ((k, None), (None, p), (k, p)):
            split(sampling.processed_logits(deployment, rows), *chosen)


@pytest.mark.slow
@pytest.mark.parametrize("deployment", [QWEN, VL, replace(QWEN, max_num_seqs=100, max_model_len=10001)], ids=str)
def test_every_request_dispatches_to_an_enumerated_key(engine: Engine, pool: Pool, deployment: Deployment) -> None:
    swept = sweep(engine, replace(FAMILY, drive=drive_every_request), deployment)
    assert swept == {key.digest for key in keys_of(pool, deployment)}


def drive_every_number(trace: Trace, deployment: Deployment) -> None:
    """Every number of requests and every length of a prompt up to the limits, sampled greedily."""
    runner = make_runner(trace, deployment)
    for requests in range(1, deployment.max_num_seqs + 1):
        step(runner, *[GREEDY] * requests)
    for prompt in range(1, deployment.max_num_batched_tokens + 1):
        step(runner, GREEDY, prompt=prompt)


@pytest.mark.slow
def test_no_number_of_requests_or_tokens_up_to_the_limits_dispatches_to_another_key(engine: Engine, pool: Pool) -> None:
    swept = sweep(engine, replace(FAMILY, drive=drive_every_number), QWEN)
    assert swept
    assert swept <= {key.digest for key in keys_of(pool, QWEN)}


def drive_full_batches(trace: Trace, deployment: Deployment) -> None:
    """Batches as large as they come, with the limit as it is, sampled greedily.

    Of 20000 that are thought of, those that are cut where none was before, and each 200th.
    """
    import random

    import numpy as np

    runner = make_runner(trace, deployment)
    sampler = trace.module("vllm.v1.worker.gpu.spec_decode.rejection_sampler")
    limit = sampler.get_max_chunk_logits(runner.vocab_size)
    chance, steps, most = random.Random(0), runner.num_speculative_steps, runner.max_num_reqs
    met: set[tuple[int, int]] = set()
    for number in range(20000):
        whole = chance.randint(1, most)
        # A grammar may cut off any request's draft tokens.
        some = chance.randint(0, most - whole) if steps > 1 else 0
        drafts = [steps] * whole + [1] * some + [0] * (most - whole - some)
        rows = np.cumsum([0, *(count + 1 for count in drafts)])
        starts = [start for start, _ in sampler._iter_request_chunks(rows, limit)]
        cuts = {(int(rows[start]) % 4, start % 2) for start in starts}
        if cuts <= met and number % 200:
            continue
        met |= cuts
        scheduled = schedule(runner, [GREEDY] * most, prompt=1, drafts=drafts)
        finish(runner, prepare(runner, scheduled))


@pytest.mark.slow
@pytest.mark.parametrize("speculative_tokens", [1, 2])
def test_batches_of_full_size_are_cut_where_small_ones_stand_for_them(
    engine: Engine, pool: Pool, speculative_tokens: int
) -> None:
    deployment = replace(QWEN, speculative_tokens=speculative_tokens)
    enumerated = {key.digest: key for key in keys_of(pool, deployment)}
    swept = sweep(engine, replace(FAMILY, drive=drive_full_batches), deployment)
    assert swept <= set(enumerated)
    # Each cut that small batches stand for is met. A last piece of just one row would take luck.
    greedy = {
        digest
        for digest, key in enumerated.items()
        if key.function in (REJECT, "_resample_kernel") and type_of(key, "target_logits_ptr") == "*bf16"
    }
    assert greedy <= swept
