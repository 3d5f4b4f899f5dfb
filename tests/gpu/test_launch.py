"""On a GPU: what was built without one launches there, compiles nothing, and computes the right thing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aotpack.build import Built
from tests.conftest import ROOT

BOUNDS = {"layer_norm_fwd_kernel": 2**-7, "_triton_mrope_forward": 2**-7, "batch_memcpy_kernel": 0.0}
"""Of results in bfloat16, which has eight bits of mantissa; copies are exact."""


def check(reports: dict[str, dict[str, object]]) -> None:
    report, cold = reports["bundle"], reports["cold"]
    assert report["gcc"] is None
    assert (report["compiled"], report["built"]) == ([], [])
    assert report["hits"] == report["keys"]
    # The rival compiles each of them, so the bundle is what made the difference.
    compiled = cold["compiled"]
    assert isinstance(compiled, list)
    assert len(compiled) == report["keys"]
    worst = report["worst_error"]
    assert isinstance(worst, dict)
    assert set(worst) == set(BOUNDS)
    assert all(worst[family] <= bound for family, bound in BOUNDS.items())


@pytest.mark.gpu
def test_every_kernel_launches_out_of_the_cache_with_right_results(built: Built, tmp_path: Path) -> None:
    bundle = os.environ.get("AOTPACK_TEST_BUNDLE", str(built.bundle.path))
    engine = os.environ.get("AOTPACK_TEST_ENGINE", "vllm==0.33.0")
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.gpu.launch", bundle, "--engine", engine, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    check(json.loads(out.read_text()))
