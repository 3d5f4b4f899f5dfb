"""What the families enumerate, held against what a real engine met and against every token count there is."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotpack.engines import Engine
from aotpack.errors import UsageError
from aotpack.families import load_families, token_counts
from aotpack.keys import CompileKey
from aotpack.models import Deployment, load_model
from aotpack.pool import Pool, WorkerSpec
from tests.conftest import FAMILIES, ROOT, SM90, needs_compiler
from tests.recorded import H200, comparable, recorded_keys

NORM = "vllm.third_party.flash_linear_attention.ops.layernorm_guard:layer_norm_fwd_kernel"
ROPE = "vllm.model_executor.layers.rotary_embedding.mrope:_triton_mrope_forward"
COPY = "vllm.v1.worker.mamba_utils:batch_memcpy_kernel"


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    needs_compiler()
    with Pool(WorkerSpec(engine=engine, target=SM90, families=FAMILIES), 1) as pool:
        yield pool


def keys_of(pool: Pool, deployment: Deployment) -> list[CompileKey]:
    return [key for traced in next(pool.trace([deployment])) for key, _ in traced.keys]


def recorded_deployment(folder: Path) -> Deployment:
    """The deployment that the recorded run served, from the configuration that its first line holds."""
    meta: dict[str, Any] = json.loads(H200.read_text().splitlines()[0])["meta"]
    text = {**meta["text_config"], "dtype": meta["dtype"], "max_position_embeddings": 32768}
    text["rope_parameters"] = {
        name: text.pop(name) for name in ("mrope_section", "mrope_interleaved", "partial_rotary_factor")
    }
    config = {"model_type": meta["model_type"], "text_config": text, "vision_config": meta["vision_config"]}
    (folder / "config.json").write_text(json.dumps(config))
    return Deployment(
        model=load_model(str(folder)),
        tp=meta["tensor_parallel_size"],
        max_num_seqs=meta["max_num_seqs"],
        max_num_batched_tokens=meta["max_num_batched_tokens"],
        max_model_len=meta["max_model_len"],
        gdn_prefill=meta["gdn_prefill_backend"],
    )


def test_every_recorded_key_of_these_kernels_is_enumerated_field_by_field(pool: Pool, tmp_path: Path) -> None:
    enumerated = [comparable(key) for key in keys_of(pool, recorded_deployment(tmp_path))]
    recorded = [record for record in recorded_keys() if record["kernel"] in (NORM, ROPE, COPY)]
    assert Counter(record["kernel"] for record in recorded) == {NORM: 3, COPY: 1}
    assert [record for record in recorded if record not in enumerated] == []


@pytest.mark.parametrize(
    ("model", "tp", "expected"),
    [
        # Value heads that are a multiple of 16 keep the row count one: the rows of a block alone vary.
        ("qwen3.5-27b", 1, {NORM: 3, COPY: 1}),
        # 24, 12 and 6 heads: a row count may be a multiple of 16 or not, for each of three row blocks.
        ("qwen3.5-27b", 2, {NORM: 6, COPY: 1}),
        ("qwen3.5-27b", 8, {NORM: 6, COPY: 1}),
        ("qwen3-next-80b-a3b", 1, {NORM: 3, COPY: 1}),
        ("qwen3-next-80b-a3b", 8, {NORM: 6, COPY: 1}),
        # One token, a multiple of 16, any other number.
        ("qwen3-vl-8b", 1, {ROPE: 3}),
        ("qwen2.5-vl-7b", 4, {ROPE: 3}),
    ],
)
def test_the_number_of_keys_follows_from_the_classes(pool: Pool, model: str, tp: int, expected: dict[str, int]) -> None:
    keys = keys_of(pool, Deployment(model=load_model(model), tp=tp))
    assert Counter(key.kernel for key in keys) == expected


def test_qwen35_rotates_in_a_fused_kernel_unless_it_runs_in_float32(pool: Pool) -> None:
    deployment = Deployment(model=load_model("qwen3.5-27b"))
    assert ROPE not in {key.kernel for key in keys_of(pool, deployment)}
    assert ROPE in {key.kernel for key in keys_of(pool, replace(deployment, dtype="float32"))}


def test_element_types_are_part_of_the_copy_kernels_key(pool: Pool) -> None:
    (key,) = [key for key in keys_of(pool, Deployment(model=load_model("qwen3.5-27b"))) if key.kernel == COPY]
    assert dict(key.signature) == {
        "src_ptrs": "*u64",
        "dst_ptrs": "*u64",
        "sizes": "*i32",
        "BLOCK_SIZE": "constexpr",
    }


def test_the_dtype_of_a_deployment_reaches_the_signature(pool: Pool) -> None:
    deployment = Deployment(model=load_model("qwen3.5-27b"), dtype="float16")
    norms = [key for key in keys_of(pool, deployment) if key.kernel == NORM]
    assert {dict(key.signature)["X"] for key in norms} == {"*fp16"}


def test_keys_do_not_depend_on_what_was_traced_before(pool: Pool) -> None:
    first, second = (Deployment(model=load_model(name)) for name in ("qwen3.5-27b", "qwen3-vl-8b"))
    alone = keys_of(pool, second)
    keys_of(pool, first)
    assert keys_of(pool, second) == alone


def test_token_counts_reach_one_sixteen_and_the_limit() -> None:
    counts = token_counts(100)
    assert {1, 16, 64, 100} <= set(counts)
    assert max(token_counts(7)) == 7


def test_an_unknown_family_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'conv' is not a family; installed are .*layernorm"):
        load_families(["conv"])


SWEEPS = [
    *(("layernorm", model, tp, 132) for model in ("qwen3.5-27b", "qwen3.5-0.8b") for tp in (1, 2, 4, 8)),
    # Products of the same architecture differ in their SM count: H100 PCIe, H20.
    ("layernorm", "qwen3.5-27b", 2, 114),
    ("layernorm", "qwen3.5-27b", 2, 78),
    *(("mrope", model, tp, 132) for model in ("qwen3-vl-8b", "qwen2.5-vl-3b") for tp in (1, 2, 4, 8)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "model", "tp", "sms"), SWEEPS)
def test_every_token_count_to_8192_dispatches_to_an_enumerated_key(
    pool: Pool, engine: Engine, family: str, model: str, tp: int, sms: int
) -> None:
    deployment = Deployment(model=load_model(model), tp=tp, max_num_batched_tokens=8192)
    enumerated = {
        key.digest for traced in next(pool.trace([deployment])) if traced.family == family for key, _ in traced.keys
    }
    command = [sys.executable, "-m", "tests.sweep", str(engine.root), family, model, str(tp), "8192", str(sms)]
    swept = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert set(swept) == enumerated
