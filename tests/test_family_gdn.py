"""The gated delta net's keys, held against a real run's, and against every batch of a step."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.families import Trace, gdn, load_families
from aotpack.families.gdn.batch import Batch
from aotpack.keys import CompileKey
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from aotpack.targets import Target
from aotpack.tracing import Tracer, clean_environment
from aotpack.tracing.trials import TensorValue
from tests.conftest import SM90, needs_compiler
from tests.recorded import comparable, recorded_keys
from tests.traced import keys_of, recorded_deployment, tracing

SM80, SM100 = Target("cuda", 80), Target("cuda", 100)

CONV = "_causal_conv1d_fwd_kernel"
UPDATE = "_causal_conv1d_update_kernel"
GATES = "_fused_post_conv_kernel"
MIXED = "fused_sigmoid_gating_delta_rule_update_kernel"
PACKED = "fused_recurrent_gated_delta_rule_packed_decode_kernel"
EXPORT = "store_cache_checkpoints_kernel"
CHUNKS = {
    "chunk_local_cumsum_scalar_kernel": 4,
    "chunk_scaled_dot_kkt_fwd_kernel": 27,
    "merge_16x16_to_64x64_inverse_kernel": 12,
    "recompute_w_u_fwd_kernel": 9,
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": 12,
    "chunk_fwd_kernel_o": 24,
}
"""One key for each configuration of each autotuner, on compute capability 9.0 and later."""

PARAMETERS = {kernel.name.partition(":")[2]: kernel.parameters for kernel in gdn.FAMILY.kernels}

Enumerate = Callable[..., list[CompileKey]]


@pytest.fixture(scope="module")
def enumerate_keys(engine: Engine) -> Iterator[Enumerate]:
    """The keys of a deployment of a preset, from one worker for each target."""
    needs_compiler()
    pools: dict[Target, Pool] = {}

    def keys(model: str = "qwen3.5-27b", target: Target = SM90, **served: Any) -> list[CompileKey]:
        if target not in pools:
            pools[target] = Pool(WorkerSpec(engine=engine, target=target, families=("gdn",)), 1)
        deployment = Deployment(model=load_model(model), **served)
        return [key for traced in next(pools[target].trace([deployment])) for key, _ in traced.keys]

    yield keys
    for pool in pools.values():
        pool.__exit__(None, None, None)


def of(kernel: str, keys: list[CompileKey]) -> list[CompileKey]:
    return [key for key in keys if key.function == kernel]


def constant(key: CompileKey, parameter: str) -> Any:
    return dict(key.constexprs)[(list(dict(key.signature)).index(parameter),)]


def constants(keys: list[CompileKey], parameter: str) -> set[Any]:
    return {constant(key, parameter) for key in keys}


def aligned(key: CompileKey, parameter: str) -> bool:
    place = list(dict(key.signature)).index(parameter)
    return dict(key.attrs).get((place,), ()) == (("tt.divisibility", 16),)


def counts(keys: list[CompileKey]) -> dict[str, int]:
    return dict(Counter(key.function for key in keys))


def test_every_recorded_key_is_enumerated_field_by_field(engine: Engine, tmp_path: Path) -> None:
    with tracing(engine, "gdn") as pool:
        enumerated = [comparable(key) for key in keys_of(pool, recorded_deployment(tmp_path))]
    ours = {kernel.name for kernel in gdn.FAMILY.kernels}
    recorded = [record for record in recorded_keys() if record["kernel"] in ours]
    assert Counter(record["kernel"].partition(":")[2] for record in recorded) == {
        **CHUNKS,
        CONV: 1,
        # One request and any other number differ in an attr that is empty for both.
        UPDATE: 2,
        GATES: 3,
        MIXED: 1,
        PACKED: 1,
    }
    assert [record for record in recorded if record not in enumerated] == []


@pytest.mark.parametrize(
    ("model", "tp", "gates", "packed"),
    [
        # A prefill has one token, a multiple of 16, or any other number. A single token decoded in eager mode
        # has gates with the row stride of their projection.
        ("qwen3.5-27b", 1, 3, 2),
        # 24 heads: that row stride is a multiple of 16 and the gates' own is not.
        ("qwen3.5-27b", 2, 4, 2),
        # 12 and 6 heads: gates of a prefill behind decodes may begin unaligned, as does the second half
        # of a single token's projection.
        ("qwen3.5-27b", 4, 7, 2),
        ("qwen3.5-27b", 8, 7, 2),
        # Qwen3-Next interleaves its gates by key head, so they are always copied.
        ("qwen3-next-80b-a3b", 1, 3, 1),
        ("qwen3-next-80b-a3b", 2, 3, 1),
        ("qwen3-next-80b-a3b", 4, 3, 1),
        ("qwen3-next-80b-a3b", 8, 6, 1),
        # With a single key head there is nothing to interleave.
        ("qwen3-next-80b-a3b", 16, 7, 2),
    ],
)
def test_the_number_of_keys_follows_from_the_classes(
    enumerate_keys: Enumerate, model: str, tp: int, gates: int, packed: int
) -> None:
    # A decode has one request, a multiple of 16, or any other number.
    expected = {**CHUNKS, CONV: 1, UPDATE: 3, GATES: gates, MIXED: 1, PACKED: packed}
    assert counts(enumerate_keys(model, tp=tp)) == expected
    # Before compute capability 9.0 the output kernel also tries 8 warps.
    assert counts(enumerate_keys(model, SM80, tp=tp)) == {**expected, "chunk_fwd_kernel_o": 36}
    # Data center Blackwell has another tile for few requests.
    assert counts(enumerate_keys(model, SM100, tp=tp)) == {**expected, PACKED: packed + 1}


@pytest.mark.parametrize("model", ["qwen3.5-27b", "qwen3-next-80b-a3b"])
def test_speculation_adds_its_own_variants_and_a_stride_of_the_indices(enumerate_keys: Enumerate, model: str) -> None:
    plain, speculative = enumerate_keys(model), enumerate_keys(model, speculative_tokens=2)
    assert counts(speculative) == {
        **counts(plain),
        # The convolution of a prefill: indices of a table, and of a batch that also verifies drafts.
        CONV: 2,
        # Each of three classes of requests: at stride 3, at stride 1 in a graph, and to verify drafts.
        UPDATE: 9,
        # Decodes before a prefill, and requests that verify drafts.
        MIXED: 2,
        PACKED: 2 * counts(plain)[PACKED],
    }
    assert constants(of(CONV, speculative), "stride_cache_indices") == {1, 3}
    assert constants(of(PACKED, speculative), "stride_indices_seq") == {1, 3}
    verifying = [key for key in of(UPDATE, speculative) if constant(key, "IS_SPEC_DECODING")]
    assert {(constant(key, "seqlen"), constant(key, "state_len")) for key in verifying} == {(3, 5)}
    assert constants(verifying, "stride_state_indices") == {3}


def test_without_speculation_indices_always_have_stride_one(enumerate_keys: Enumerate) -> None:
    keys = enumerate_keys()
    assert constants(of(UPDATE, keys), "stride_state_indices") == {1}
    assert constants(of(MIXED, keys), "stride_indices_seq") == {1}


@pytest.mark.parametrize("model", ["qwen3.5-27b", "qwen3-next-80b-a3b"])
@pytest.mark.parametrize("served", [{"tp": 8}, {"tp": 4, "speculative_tokens": 3, "kv_cache_dtype": "fp8"}])
def test_states_lie_a_page_of_the_kv_cache_apart(enumerate_keys: Enumerate, model: str, served: dict[str, Any]) -> None:
    deployment = Deployment(model=load_model(model), **served)
    keys = enumerate_keys(model, **served)
    size = {"float32": 4, "bfloat16": 2}[deployment.state_dtype]
    assert constants(of(CONV, keys), "stride_istate_seq") == {deployment.kv_page // 2}
    assert constants(of(UPDATE, keys), "stride_conv_state_seq") == {deployment.kv_page // 2}
    assert constants(of(MIXED, keys), "stride_init_state_token") == {deployment.kv_page // size}
    assert constants(of(PACKED, keys), "stride_final_state_token") == {deployment.kv_page // size}


def test_the_recurrent_state_has_its_own_dtype(enumerate_keys: Enumerate) -> None:
    for ssm_dtype, pointer in (("auto", "*fp32"), ("bfloat16", "*bf16")):
        keys = enumerate_keys(ssm_dtype=ssm_dtype)
        assert {dict(key.signature)["h0"] for key in of(PACKED, keys)} == {pointer}
        assert {dict(key.signature)["conv_state_ptr"] for key in of(UPDATE, keys)} == {"*bf16"}


def test_a_single_eager_token_keeps_its_gates_in_their_projection(enumerate_keys: Enumerate) -> None:
    keys = of(PACKED, enumerate_keys(tp=8))
    # Six heads: b is the projection's first half, a its second, 12 bytes on.
    assert {(constant(key, "stride_a_tok"), aligned(key, "b"), aligned(key, "a")) for key in keys} == {
        (12, True, False),
        (6, True, True),
    }


def test_gates_of_a_prefill_behind_decodes_may_begin_unaligned(enumerate_keys: Enumerate) -> None:
    both = {(aligned(key, "a_ptr"), aligned(key, "b_ptr")) for key in of(GATES, enumerate_keys(tp=4))}
    assert (False, False) in both
    # 48 heads: 96 bytes to a row.
    whole = {(aligned(key, "a_ptr"), aligned(key, "b_ptr")) for key in of(GATES, enumerate_keys(tp=1))}
    assert whole == {(True, True)}


@pytest.mark.parametrize(("model", "row"), [("qwen3.5-27b", 16384), ("qwen3-next-80b-a3b", 8192)])
def test_qkv_are_a_view_of_the_projection_unless_it_is_interleaved(
    enumerate_keys: Enumerate, model: str, row: int
) -> None:
    keys = enumerate_keys(model)
    assert constants(of(UPDATE, keys), "stride_x_seq") == {row}
    assert constants(of(PACKED, keys), "stride_mixed_qkv_tok") == {row}


def test_a_second_group_of_layers_may_have_unaligned_indices(enumerate_keys: Enumerate) -> None:
    def alignments(**served: Any) -> set[bool]:
        return {aligned(key, "ssm_state_indices") for key in of(PACKED, enumerate_keys(**served))}

    assert alignments(max_num_seqs=33) == {True, False}
    assert alignments(max_num_seqs=32) == {True}
    # Without prefix caching each group has an allocation of its own.
    assert alignments(max_num_seqs=33, prefix_caching=False) == {True}


def test_the_packed_grid_is_split_past_65535_requests_times_heads(enumerate_keys: Enumerate) -> None:
    def split(requests: int) -> set[bool]:
        keys = enumerate_keys("qwen3.5-397b-a17b", max_num_seqs=requests)
        return constants(of(PACKED, keys), "SPLIT_BATCH_HEAD_GRID")

    assert split(1023) == {False}
    assert split(1024) == {False, True}


@pytest.mark.parametrize(("ssm_dtype", "tiles"), [("float32", {4, 8}), ("bfloat16", {4, 32})])
def test_blackwell_decodes_few_requests_with_a_small_tile(
    enumerate_keys: Enumerate, ssm_dtype: str, tiles: set[int]
) -> None:
    keys = enumerate_keys(target=SM100, ssm_dtype=ssm_dtype)
    assert constants(of(PACKED, keys), "BV") == tiles
    assert constants(of(PACKED, enumerate_keys(ssm_dtype=ssm_dtype)), "BV") == {32}


def test_flashinfer_replaces_the_chunk_kernels_and_exports_checkpoints(enumerate_keys: Enumerate) -> None:
    keys = enumerate_keys(gdn_prefill="flashinfer")
    assert counts(keys) == {CONV: 1, UPDATE: 3, GATES: 3, MIXED: 1, PACKED: 2, EXPORT: 2}
    # The plan's rows stand behind one 64-bit start for each prefill and one more.
    assert {aligned(key, "recurrent_rows_ptr") for key in of(EXPORT, keys)} == {True, False}


def test_there_are_no_checkpoints_without_prefix_caching_or_prefills_past_a_block(
    enumerate_keys: Enumerate,
) -> None:
    assert of(EXPORT, enumerate_keys(gdn_prefill="flashinfer", prefix_caching=False)) == []
    assert of(EXPORT, enumerate_keys(gdn_prefill="flashinfer", max_model_len=512)) == []


@pytest.mark.parametrize(("model", "rows"), [("qwen3.5-27b", {16384, 10240}), ("qwen3-next-80b-a3b", {8192})])
def test_a_batch_that_also_verifies_drafts_exports_from_gathered_rows(
    enumerate_keys: Enumerate, model: str, rows: set[int]
) -> None:
    keys = enumerate_keys(model, gdn_prefill="flashinfer", speculative_tokens=2)
    assert constants(of(EXPORT, keys), "x_stride_0") == rows
    assert len(of(EXPORT, keys)) == 2 * len(rows)


def test_flashinfer_falls_back_to_triton_where_it_does_not_run(enumerate_keys: Enumerate) -> None:
    asked = enumerate_keys(target=SM80, gdn_prefill="flashinfer")
    assert asked == enumerate_keys(target=SM80, gdn_prefill="triton")


def test_embedding_models_decode_but_do_not_speculate(enumerate_keys: Enumerate) -> None:
    decodes = of(UPDATE, enumerate_keys(pooling=True, speculative_tokens=2))
    assert len(decodes) == 3
    assert constants(decodes, "IS_SPEC_DECODING") == {False}


def test_nothing_serves_float32_which_the_kernels_of_prefill_refuse(enumerate_keys: Enumerate) -> None:
    assert enumerate_keys(dtype="float32") == []


def test_states_indices_do_not_depend_on_what_memory_held_before(engine: Engine) -> None:
    # Every family in one process: what the others freed is what new tensors are made of.
    families = tuple(family.name for family in load_families())
    deployment = Deployment(model=load_model("qwen3.5-0.8b"))
    with (
        tracing(engine, "gdn") as alone,
        Pool(WorkerSpec(engine=engine, target=SM90, families=families), 1) as beside,
    ):
        keys = {
            key for key in keys_of(beside, deployment) if key.kernel in {kernel.name for kernel in gdn.FAMILY.kernels}
        }
        assert keys == set(keys_of(alone, deployment))


def test_a_step_never_holds_more_than_the_deployment_allows(enumerate_keys: Enumerate) -> None:
    keys = enumerate_keys(max_num_seqs=1)
    assert not any(aligned(key, "batch") for key in of(UPDATE, keys))
    # One request is a prefill or a decode, never both.
    assert of(MIXED, keys) == []


def every_size(deployment: Deployment) -> Iterator[Batch]:
    verified = 1 + deployment.speculative_tokens
    for requests in range(1, deployment.max_num_seqs + 1):
        yield Batch(decodes=requests)
        yield Batch(drafted=(verified,) * requests)
        yield Batch(drafted=(1,) * requests)
    for requests in range(1, 18):
        yield Batch(decodes=requests, prefills=(requests,))
        yield Batch(drafted=(verified,) * requests, prefills=(requests,))


def every_length(deployment: Deployment) -> Iterator[Batch]:
    for tokens in range(1, deployment.max_num_batched_tokens + 1):
        yield Batch(prefills=(tokens,))
    for decodes in range(1, 34):
        for tokens in range(1, 18):
            yield Batch(decodes=decodes, prefills=(tokens,))


def drive_every_batch(trace: Trace, deployment: Deployment) -> None:
    """The family's own driving, with every batch in place of those that it chose."""
    vars(gdn).update(batches=every_size, more_batches=every_length)
    gdn.FAMILY.drive(trace, deployment)


def drive_every_number_of_requests(trace: Trace, deployment: Deployment) -> None:
    """Up to the limit: decoded, decoded before a prefill, and verified with all their drafts."""

    def batches(deployment: Deployment) -> Iterator[Batch]:
        for requests in range(1, deployment.max_num_seqs + 1):
            yield Batch(decodes=requests)
            yield Batch(decodes=requests, prefills=(2,))
            if deployment.speculative_tokens:
                yield Batch(drafted=(1 + deployment.speculative_tokens,) * requests)

    vars(gdn).update(batches=batches, more_batches=lambda _: iter(()))
    gdn.FAMILY.drive(trace, deployment)


def drive_every_prefill(trace: Trace, deployment: Deployment) -> None:
    """Every length of a prefill up to the limit, and up to 512 behind a decode."""

    def batches(deployment: Deployment) -> Iterator[Batch]:
        for tokens in range(1, deployment.max_num_batched_tokens + 1):
            yield Batch(prefills=(tokens,))
            if tokens <= 512:
                yield Batch(decodes=1, prefills=(tokens,))

    vars(gdn).update(batches=lambda _: iter(()), more_batches=batches)
    gdn.FAMILY.drive(trace, deployment)


def swept_keys(
    engine: Engine, target: Target, deployment: Deployment, drive: Callable[[Trace, Deployment], None]
) -> set[str]:
    with tempfile.TemporaryDirectory() as cache:
        clean_environment(cache)
        family = replace(gdn.FAMILY, drive=drive)
        (traced,) = Tracer(engine, target, (family,)).trace(deployment)
        return {key.digest for key, _ in traced.keys}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tp", "target"),
    [("qwen3.5-27b", 8, SM100), ("qwen3-next-80b-a3b", 8, SM90)],
)
def test_every_batch_dispatches_to_an_enumerated_key(
    enumerate_keys: Enumerate, engine: Engine, model: str, tp: int, target: Target
) -> None:
    served = {"tp": tp, "speculative_tokens": 2, "max_num_seqs": 99, "max_num_batched_tokens": 600}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        deployment = Deployment(model=load_model(model), **served)  # type: ignore[arg-type]  # each is an int
        swept = executor.submit(swept_keys, engine, target, deployment, drive_every_batch).result()
    assert swept == {key.digest for key in enumerate_keys(model, target, **served)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drive", "limits"),
    [
        (drive_every_number_of_requests, {"max_num_seqs": 1024}),
        (drive_every_number_of_requests, {"max_num_seqs": 1024, "speculative_tokens": 1}),
        (drive_every_prefill, {"max_num_batched_tokens": 8192}),
    ],
)
@pytest.mark.parametrize("model", ["qwen3.5-27b", "qwen3-next-80b-a3b"])
def test_no_step_up_to_the_limits_dispatches_to_another_key(
    enumerate_keys: Enumerate,
    engine: Engine,
    model: str,
    drive: Callable[[Trace, Deployment], None],
    limits: dict[str, int],
) -> None:
    deployment = Deployment(model=load_model(model), tp=8, **limits)  # type: ignore[arg-type]  # each is an int
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        swept = executor.submit(swept_keys, engine, SM90, deployment, drive).result()
    assert swept
    assert swept <= {key.digest for key in enumerate_keys(model, tp=8, **limits)}


@pytest.mark.parametrize("model", ["qwen3.5-0.8b", "qwen3-next-80b-a3b"])
def test_trials_are_what_a_server_tunes_and_hold_the_indices_of_a_real_batch(engine: Engine, model: str) -> None:
    deployment = Deployment(model=load_model(model))
    with tracing(engine, "gdn") as pool:
        (trials,) = pool.trials([deployment])
        (traced,) = pool.trace([deployment])
    decisions = [decision for part in traced for decision in part.decisions]
    assert {trial.tuning for trial in trials} == {decision.tuning for decision in decisions}
    assert {trial.tuning.kernel.partition(":")[2]: len(trial.tuning.configurations) for trial in trials} == CHUNKS
    assert all(len(keys) == 1 for decision in decisions for keys in decision.keys)
    chunks = [(sequence, chunk) for sequence in range(4) for chunk in range(32)]
    batch = {
        "cu_seqlens": (0, 2048, 4096, 6144, 8192),
        "chunk_indices": tuple(number for pair in chunks for number in pair),
        "chunk_offsets": (0, 32, 64, 96, 128),
    }
    for trial in trials:
        function = trial.tuning.kernel.partition(":")[2]
        names = dict(zip(PARAMETERS[function], trial.positional, strict=False)) | dict(trial.named)
        tensors = {name: value for name, value in names.items() if isinstance(value, TensorValue)}
        held = {name: value.numbers for name, value in tensors.items() if value.numbers is not None}
        assert held
        assert held.items() <= batch.items()
        assert names["T"] == 8192


def test_a_deployment_whose_prefill_is_not_tritons_tunes_nothing(engine: Engine) -> None:
    deployment = Deployment(model=load_model("qwen3.5-0.8b"), gdn_prefill="flashinfer")
    with tracing(engine, "gdn") as pool:
        assert next(pool.trials([deployment])) == ()
