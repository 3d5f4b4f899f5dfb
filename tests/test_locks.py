"""Locks: what artifacts/keys says of each preset's keys is what tracing finds."""

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from aotpack.deployments import misfit
from aotpack.engines import Engine
from aotpack.models import load_model, presets
from tests.conftest import ROOT, needs_compiler

LOCKS = ROOT / "artifacts" / "keys"
SCRIPT = ROOT / "scripts" / "write_locks.py"


def check(engine: Engine, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script that compares, where the Triton is that the locks are of."""
    needs_compiler()
    if f"triton {version('triton')}." not in next(LOCKS.iterdir()).read_text():
        pytest.skip("the locks are of another Triton")
    command = [sys.executable, SCRIPT, "--check", "--engine", engine.root, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_preset_has_a_lock() -> None:
    assert sorted(path.stem for path in LOCKS.iterdir()) == list(presets())


@pytest.mark.parametrize("name", presets())
def test_a_lock_covers_each_size_that_fits_and_each_architecture(name: str) -> None:
    lines = [line.split() for line in (LOCKS / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]
    covered = {
        (tp, arch)
        for _, sizes, archs, _, _ in lines
        for tp in sizes.removeprefix("tp").split(",")
        for arch in archs.removeprefix("sm").split(",")
    }
    fitting = [tp for tp in (1, 2, 4, 8) if not misfit(load_model(name), tp)]
    archs = (80, 86, 89, 90, 100, 103, 120)
    assert covered == {(str(tp), str(arch)) for tp in fitting for arch in archs}


def test_two_presets_have_the_keys_of_their_locks(engine: Engine) -> None:
    done = check(engine, "--arch", "sm90", "--preset", "qwen3.5-27b", "--preset", "qwen3-vl-8b")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_lock_that_differs_is_shown_by_the_lines_that_do_and_left_alone(engine: Engine, tmp_path: Path) -> None:
    lock = tmp_path / "qwen3-vl-2b.txt"
    shutil.copy(LOCKS / lock.name, lock)
    (right,) = [line for line in lock.read_text().splitlines() if line.startswith("runner:_penalties_kernel")]
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    lock.write_text(lock.read_text().replace(right, wrong))
    altered = lock.read_text()
    done = check(engine, "--arch", "sm90", "--preset", "qwen3-vl-2b", "--folder", tmp_path)
    assert done.returncode == 1, done.stderr
    shown = done.stdout.splitlines()
    assert f"-{wrong}" in shown
    # The other architectures are taken from the lock as they are.
    assert right.split()[-1] in {line.split()[-1] for line in shown}
    assert all("_penalties_kernel" in line for line in shown if line[0] in "+-" and line[:3] not in ("+++", "---"))
    assert lock.read_text() == altered


@pytest.mark.slow
def test_every_preset_has_the_keys_of_its_lock_on_every_architecture(engine: Engine) -> None:
    done = check(engine)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
