"""Directories land whole: beside what lies there, and whoever else is at work."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aotpack import landing
from aotpack.errors import CacheError
from aotpack.landing import Landing, at_work, lay, staging
from aotpack.receipts import OURS
from tests.archives import tree
from tests.conftest import ROOT

PYTHON_311 = Landing(directory="HELPER", files=(("utils.cpython-311.so", b"three eleven"),))
PYTHON_312 = Landing(directory="HELPER", files=(("utils.cpython-312.so", b"three twelve"),))


def lay_all(cache: Path, *landings: Landing) -> None:
    with at_work(cache), staging(cache) as place:
        lay(place, cache, landings, None)


def test_landings_may_share_a_directory_and_need_no_group_file(tmp_path: Path) -> None:
    lay_all(tmp_path, PYTHON_311, PYTHON_312)
    assert {path.name: path.read_bytes() for path in (tmp_path / "HELPER").iterdir()} == {
        "utils.cpython-311.so": b"three eleven",
        "utils.cpython-312.so": b"three twelve",
    }
    assert not (tmp_path / OURS).exists()


def test_a_landing_leaves_what_it_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "HELPER" / "tmp.pid_1").mkdir(parents=True)
    (tmp_path / "HELPER" / "lock").write_bytes(b"theirs")
    lay_all(tmp_path, PYTHON_311)
    assert (tmp_path / "HELPER" / "tmp.pid_1").is_dir()
    assert (tmp_path / "HELPER" / "lock").read_bytes() == b"theirs"
    assert PYTHON_311.lies_in(tmp_path)


def test_what_lies_there_already_is_not_touched(tmp_path: Path) -> None:
    lay_all(tmp_path, PYTHON_311)
    before = (tmp_path / "HELPER" / PYTHON_311.mark).stat()
    lay_all(tmp_path, PYTHON_311)
    assert (tmp_path / "HELPER" / PYTHON_311.mark).stat().st_ino == before.st_ino


def test_a_file_in_the_way_of_a_directory_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / "HELPER").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        lay_all(tmp_path, PYTHON_311)
    assert tree(tmp_path) == {"HELPER": ((tmp_path / "HELPER").stat().st_mode, b"theirs")}


def test_one_process_waits_for_another_and_says_so_when_it_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing, "LONGEST_WAIT", 0.2)
    with at_work(tmp_path), pytest.raises(CacheError, match=r"another aotpack has been at work .* run this again"):
        lay_all(tmp_path, PYTHON_311)
    lay_all(tmp_path, PYTHON_311)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from aotpack.landing import at_work, staging\n"
    code += "with at_work(Path(sys.argv[1])), staging(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert list((tmp_path / OURS).iterdir()) != []
    lay_all(tmp_path, PYTHON_311)
    assert not (tmp_path / OURS).exists()


@pytest.mark.parametrize(
    ("name", "age", "locked", "stays"),
    [
        (f"staging-{os.uname().nodename}-x", 0, True, False),
        (f"staging-{os.uname().nodename}-x", 0, False, True),
        ("staging-other-host-x", 0, True, True),
        ("staging-other-host-x", 2 * landing.ABANDONED, False, False),
    ],
    ids=["of a dead process here", "of a process that may live", "of another host", "of another host, long ago"],
)
def test_what_is_staged_is_removed_once_nobody_can_be_at_work_in_it(
    tmp_path: Path, name: str, age: int, locked: bool, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, f"{handle} {operation}")

    left = tmp_path / OURS / name
    left.mkdir(parents=True)
    os.utime(left, (time.time() - age,) * 2)
    if not locked:
        monkeypatch.setattr("fcntl.flock", refused)
    with at_work(tmp_path):
        pass
    assert left.exists() is stays


def test_a_passing_error_is_outlasted_and_a_lasting_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "_PAUSES", (0.0, 0.0, 0.0, 0.0))
    errors = [OSError(errno.EBUSY, "busy"), OSError(errno.ESTALE, "stale")]

    def act() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert landing._patiently(act) == "done"
    errors += [OSError(errno.EBUSY, "busy")] * 9
    with pytest.raises(OSError, match="busy"):
        landing._patiently(act)
