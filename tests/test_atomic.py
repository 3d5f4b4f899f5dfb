"""Files appear whole or not at all, whatever happens in between."""

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aotpack import atomic
from aotpack.atomic import directory_that_lands, sync_tree, write_atomically


def test_a_file_has_the_same_mode_for_every_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            write_atomically(tmp_path / f"{umask}", [b"content"])
        finally:
            os.umask(before)
        assert (tmp_path / f"{umask}").stat().st_mode & 0o777 == 0o644


def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, chunks())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_lands_when_its_block_ends_well(tmp_path: Path) -> None:
    with directory_that_lands(tmp_path / "a" / "b") as folder:
        (folder / "file").write_text("x")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"


def test_a_directory_does_not_land_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), directory_that_lands(tmp_path / "a") as folder:
        (folder / "file").write_text("x")
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_another_process_landed_first_is_kept(tmp_path: Path) -> None:
    with directory_that_lands(tmp_path / "a") as folder:
        (folder / "file").write_text("ours")
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_text("theirs")
    assert (tmp_path / "a" / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what is brought to the disk one by one."""
    paths: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: paths.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    return paths


def test_a_tree_is_brought_to_the_disk_in_one_call(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "file").write_text("content")
    sync_tree(tmp_path)
    assert synced == []


def test_a_tree_is_brought_to_the_disk_file_by_file_where_there_is_no_such_call(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_text("content")
    monkeypatch.setattr(atomic, "_sync_system", lambda _: False)
    sync_tree(tmp_path)
    assert set(synced) == {str(tmp_path / "below" / "file"), str(tmp_path / "below"), str(tmp_path)}


@pytest.mark.parametrize(
    ("number", "done"), [(errno.ENOSYS, False), (errno.EPERM, False), (errno.ENOSPC, None), (0, True)]
)
def test_a_disk_that_is_full_is_told_and_a_call_that_is_not_there_is_not(
    number: int, done: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Library:
        def syncfs(self, _: int) -> int:
            ctypes.set_errno(number)
            return -1 if number else 0

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Library())
    if done is None:
        with pytest.raises(OSError, match="No space left"):
            atomic._sync_system(0)
    else:
        assert atomic._sync_system(0) is done
