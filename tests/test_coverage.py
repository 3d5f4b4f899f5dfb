"""Coverage says what is needed, held and missing, by tracing and against what a real run met."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aotpack.build import Built
from aotpack.bundle import write_bundle
from aotpack.cli import main
from aotpack.coverage import cover_records
from aotpack.engines import Engine
from aotpack.errors import AotpackError
from aotpack.keys import CompileKey
from aotpack.record import comparable, read_records
from tests.conftest import FAMILIES
from tests.recorded import H200


def cover(built: Built, engine: Engine, *arguments: str) -> Result:
    families = [part for family in FAMILIES for part in ("--family", family)]
    command = ["coverage", str(built.bundle.path), "--engine", str(engine.root), *families, *arguments]
    return CliRunner().invoke(main, command)


def test_a_bundle_covers_what_it_was_built_for(built: Built, engine: Engine) -> None:
    result = cover(built, engine, "--model", "qwen3.5-27b", "--tp", "1,4", "--gdn-prefill", "triton", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["version"] == 1
    assert document["complete"] is True
    assert all(row["held"] == row["needed"] > 0 for row in document["kernels"])


def test_what_a_bundle_lacks_is_named_and_the_exit_code_is_1(built: Built, engine: Engine) -> None:
    result = cover(built, engine, "--model", "qwen3-vl-8b")
    assert result.exit_code == 1
    assert "missing: vllm.model_executor.layers.rotary_embedding.mrope:_triton_mrope_forward(q_ptr" in result.stdout
    counts = next(line for line in result.stdout.splitlines() if "_triton_mrope_forward " in line).split()
    assert counts[1:] == ["3", "0", "3"]


def test_another_architecture_is_not_covered(built: Built, engine: Engine) -> None:
    result = cover(built, engine, "--model", "qwen3.5-27b", "--arch", "sm80", "--json")
    assert result.exit_code == 1
    assert all(row["held"] == 0 for row in json.loads(result.stdout)["kernels"])


def test_a_recorded_run_is_compared_kernel_by_kernel(built: Built, tmp_path: Path) -> None:
    records = tmp_path / "keys.jsonl"
    lines = [json.dumps({"meta": {"engine": "vllm"}})]
    lines += [entry.key.line for entry in built.bundle.manifest.entries]
    as_recorded = [json.loads(line) for line in lines]
    for record in as_recorded[1:]:
        record["signature"] = dict(record["signature"])
    records.write_text("\n".join(json.dumps(record) for record in as_recorded))
    assert cover_records(built.bundle.manifest, read_records(records)).complete
    half = replace(built.bundle.manifest, entries=built.bundle.manifest.entries[1:])
    found = cover_records(half, read_records(records))
    assert sum(len(row.missing) for row in found.kernels) == 1


def test_a_recorded_run_of_other_kernels_is_not_counted(built: Built) -> None:
    result = CliRunner().invoke(main, ["coverage", str(built.bundle.path), "--recorded", str(H200), "--json"])
    counted = {row["kernel"] for row in json.loads(result.stdout)["kernels"]}
    assert counted <= {kernel.name for kernel in built.bundle.manifest.kernels}
    assert "vllm.v1.worker.mamba_utils:batch_memcpy_kernel" in counted


def test_empty_attrs_do_not_make_a_difference(built: Built) -> None:
    key = built.bundle.manifest.entries[0].key
    fewer = CompileKey(
        kernel=key.kernel,
        target=key.target,
        signature=key.signature,
        constexprs=key.constexprs,
        attrs=tuple((path, attrs) for path, attrs in key.attrs if attrs),
        options=key.options,
    )
    assert fewer != key
    assert comparable(fewer) == comparable(key)


@pytest.mark.parametrize("line", ["{", "[]", '{"kernel": "a.b"}', '{"kernel": 3, "signature": {}}'])
def test_a_file_that_holds_no_records_is_refused_by_the_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys.jsonl").write_text('{"meta": {}}\n' + line)
    with pytest.raises(AotpackError, match="line 2 is not a recorded key"):
        read_records(tmp_path / "keys.jsonl")


def test_a_bundle_that_lacks_a_key_says_so_in_its_manifest(built: Built, tmp_path: Path) -> None:
    manifest = built.bundle.manifest
    lacking = replace(manifest, entries=manifest.entries[1:])
    needed = {artifact.digest for entry in lacking.entries for _, artifact in entry.artifacts}
    blobs = {digest: data for digest, data in built.bundle.blobs() if digest in needed}
    bundle = write_bundle(tmp_path / "lacking.tar.zst", lacking, blobs)
    shown = CliRunner().invoke(main, ["inspect", str(bundle.path)])
    assert f"keys        {len(manifest.entries) - 1}, in" in shown.stdout
