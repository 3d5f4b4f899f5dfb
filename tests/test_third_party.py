"""Families from elsewhere come in by the door that our own use, and a broken one does not keep it shut."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aotpack.engines import Engine
from tests.conftest import needs_compiler

PACKAGES = Path(__file__).parent / "packages"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which pip has installed both packages."""
    needs_compiler()
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    packages = [str(PACKAGES / name) for name in ("extra-family", "broken-family")]
    subprocess.run([*command, "--target", str(target), *packages], check=True)
    return target


def aotpack(installed: Path, engine: Engine, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aotpack", *arguments, "--arch", "sm90", "--engine", str(engine.root)]
    return subprocess.run(
        [*command, "--model", "qwen3.5-0.8b", "--gdn-prefill", "triton"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_family_that_is_installed_beside_ours_is_driven_and_packed(
    installed: Path, engine: Engine, tmp_path: Path
) -> None:
    built = aotpack(installed, engine, "build", "--family", "l2norm", "-o", str(tmp_path))
    assert built.returncode == 0
    command = [sys.executable, "-m", "aotpack", "inspect", "--json", built.stdout.strip()]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert shown["manifest"]["families"] == ["l2norm"]
    # One row, a multiple of 16, any other number.
    assert len(shown["manifest"]["entries"]) == 3
    assert [unknown["name"] for unknown in shown["manifest"]["unknowns"]] == ["l2norm-width"]


def test_a_value_that_only_the_serving_machine_fixes_is_named_and_can_be_given(installed: Path, engine: Engine) -> None:
    without = aotpack(installed, engine, "keys", "--family", "l2norm", "--json")
    assert "Warning: K102 family l2norm: l2norm-width is fixed by an adapter that the serving" in without.stderr
    assert "--set l2norm-width=VALUE" in without.stderr
    given = aotpack(installed, engine, "keys", "--family", "l2norm", "--json", "--set", "l2norm-width=256")
    assert "K102" not in given.stderr
    assert len(json.loads(given.stdout)["keys"]) == 2 * len(json.loads(without.stdout)["keys"])


def test_a_family_that_cannot_be_loaded_is_a_finding_that_names_its_distribution(
    installed: Path, engine: Engine
) -> None:
    listed = aotpack(installed, engine, "keys", "--json")
    assert listed.returncode == 0
    assert "Warning: F101 family broken: family broken of broken-family cannot be loaded: ImportError" in listed.stderr
    kernels = {entry["key"]["kernel"].rpartition(":")[2] for entry in json.loads(listed.stdout)["keys"]}
    assert {"l2norm_fwd_kernel2", "layer_norm_fwd_kernel"} <= kernels


def test_a_family_that_cannot_be_loaded_is_an_error_where_it_is_asked_for(installed: Path, engine: Engine) -> None:
    listed = aotpack(installed, engine, "keys", "--family", "broken")
    assert listed.returncode == 3
    assert "Error: family broken of broken-family cannot be loaded" in listed.stderr
