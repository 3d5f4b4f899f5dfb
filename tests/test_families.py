"""What holds for every family: complete, minimal, and independent of what was traced before."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.engines import Engine
from aotpack.errors import UsageError
from aotpack.families import load_families, token_counts
from aotpack.models import Deployment, load_model
from aotpack.pool import Pool, WorkerSpec
from tests.conftest import SM90, needs_compiler
from tests.recorded import comparable, recorded_keys
from tests.traced import keys_of, recorded_deployment

NAMES = tuple(family.name for family in load_families())


@pytest.fixture(scope="module")
def pool(engine: Engine) -> Iterator[Pool]:
    needs_compiler()
    with Pool(WorkerSpec(engine=engine, target=SM90, families=NAMES), 1) as pool:
        yield pool


def test_every_recorded_key_is_enumerated_field_by_field(pool: Pool, tmp_path: Path) -> None:
    enumerated = [comparable(key) for key in keys_of(pool, recorded_deployment(tmp_path))]
    packed = {kernel.name for family in load_families() for kernel in family.kernels}
    recorded = [record for record in recorded_keys() if record["kernel"] in packed]
    assert recorded
    assert [json.dumps(record) for record in recorded if record not in enumerated] == []


def test_each_key_names_an_input_that_reaches_it(pool: Pool) -> None:
    for name in ("qwen3.5-27b", "qwen3-vl-8b"):
        for traced in next(pool.trace([Deployment(model=load_model(name), tp=4)])):
            assert traced.keys
            assert all(reached for _, reached in traced.keys)


def test_the_source_of_every_kernel_is_known_to_its_last_helper(pool: Pool) -> None:
    # A helper of a module that is stubbed could not be compiled; hashing the source already trips over it.
    _, kernels = pool.describe()
    assert [kernel.name for kernel in kernels] == sorted(k.name for family in load_families() for k in family.kernels)


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
