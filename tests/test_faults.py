"""Faults at every call that changes the file system, and Triton as the judge of what they leave."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from tests.conftest import ROOT

ACTS = ("install", "install over damage", "uninstall", "fix", "fix without the bundle", "fix a moved cache")
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EBUSY)


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """faults.c as a library to preload."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = ROOT / "tests" / "faults.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def small(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of three entries of the real one."""
    bundle = open_bundle(built.bundle.path)
    manifest = replace(bundle.manifest, entries=bundle.manifest.entries[:3])
    return write_bundle(tmp_path_factory.mktemp("small") / "small.tar.zst", manifest, dict(bundle.blobs()))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory, where there is one: what is tested writes to the disk at each step."""
    memory = "/dev/shm"  # only a matter of speed
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def run(faults: Path, bundle: Bundle, scratch: Path, act: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.faults", str(bundle.path), str(scratch), act, *options]
    environment = {**os.environ, "LD_PRELOAD": str(faults), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["problems"] == [], done.stderr
    return report


@pytest.mark.parametrize("act", ["install over damage", "uninstall", "fix a moved cache"])
def test_a_process_killed_at_a_write_leaves_a_cache_that_hits_or_compiles(
    faults: Path, small: Bundle, scratch: Path, act: str
) -> None:
    assert run(faults, small, scratch, act, "--every", "7")["ends"]


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_so_does_one_killed_at_any_write(faults: Path, small: Bundle, scratch: Path, act: str) -> None:
    report = run(faults, small, scratch, act)
    assert len(report["ends"]) == report["calls"] > 10


@pytest.mark.parametrize("options", [["--error", str(errno.ENOSPC), "--lasting", "--every", "5"]])
def test_a_full_disk_is_one_error_and_no_half_entry(
    faults: Path, small: Bundle, scratch: Path, options: list[str]
) -> None:
    assert 10 in run(faults, small, scratch, "install", *options)["ends"]


def test_what_lies_there_already_is_installed_on_a_read_only_system_too(
    faults: Path, small: Bundle, scratch: Path
) -> None:
    options = ["--error", str(errno.EROFS), "--lasting"]
    assert set(run(faults, small, scratch, "install again from elsewhere", *options)["ends"]) == {0}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda number: errno.errorcode[number])
def test_whatever_fails_once_an_act_is_done_or_refused_and_the_cache_is_sound(
    faults: Path, small: Bundle, scratch: Path, act: str, error: int
) -> None:
    report = run(faults, small, scratch, act, "--error", str(error))
    if error in (errno.ESTALE, errno.EBUSY):  # a network file system's passing errors are outlasted
        assert report["ends"].count(0) > len(report["ends"]) / 2


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS], ids=lambda number: errno.errorcode[number])
def test_so_it_is_where_everything_fails_from_some_call_on(
    faults: Path, small: Bundle, scratch: Path, act: str, error: int
) -> None:
    assert 10 in run(faults, small, scratch, act, "--error", str(error), "--lasting")["ends"]


@pytest.mark.parametrize(
    ("only", "error"), [("rename", errno.ENOENT), ("unlink", errno.ENOENT), ("mkdir", errno.EEXIST)]
)
def test_a_call_that_a_network_file_system_has_done_and_calls_failed_is_done(
    faults: Path, small: Bundle, scratch: Path, only: str, error: int
) -> None:
    report = run(faults, small, scratch, "install over damage", "--error", str(error), "--only", only, "--done-anyway")
    assert set(report["ends"]) == {0}


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP], ids=lambda number: errno.errorcode[number])
def test_a_file_system_without_locks_will_do(faults: Path, small: Bundle, scratch: Path, error: int) -> None:
    options = ["--deny-locks", str(error), "--error", str(errno.EBUSY), "--every", "20"]
    assert run(faults, small, scratch, "install", *options)["ends"]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EXDEV, errno.EPERM], ids=lambda number: errno.errorcode[number])
def test_an_install_goes_on_where_a_file_system_cannot_sync_rename_or_set_modes(
    faults: Path, small: Bundle, scratch: Path, error: int
) -> None:
    calls = {errno.EINVAL: "sync", errno.EXDEV: "across", errno.EPERM: "chmod"}[error]
    report = run(faults, small, scratch, "install", "--error", str(error), "--lasting", "--only", calls, "--every", "3")
    assert set(report["ends"]) == {0}
