"""An entry lies in the cache directory as Triton reads it."""

import errno
import json
import os
import struct
from pathlib import Path

import pytest

from aotpack.errors import CacheError
from aotpack.tritoncache import (
    CacheEntry,
    cache_key_of,
    directory_name,
    group_file,
    group_root,
    is_whole,
    reported,
)

HEADER = struct.pack(
    "<4s3BBB7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 51, 7, 2, 190, 129, 0, 0, 0, 90, 64, 56, 0, 64, 0, 0
)
METADATA = b'{"shared":0,"target":{"arch":90}}'
ENTRY = CacheEntry(cache_key="ab" * 32, name="kernel", cubin=HEADER, metadata=METADATA)


def test_triton_itself_names_directories_the_same() -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    assert directory_name("0123456789abcdef" * 4) == cache._base32("0123456789abcdef" * 4)


def test_an_entrys_group_file_comes_last_and_names_its_files_where_they_land() -> None:
    files = ENTRY.files(Path("/cache"))
    assert list(files) == ["kernel.cubin", "kernel.json", "__grp__kernel.json"]
    children = json.loads(files["__grp__kernel.json"])["child_paths"]
    assert children == {name: f"/cache/{ENTRY.directory}/{name}" for name in ("kernel.cubin", "kernel.json")}


@pytest.mark.parametrize("cache", ["/c", '/with "quotes" and \\', "/kernel-\u00e4\U0001f600", "/no-utf-8-\udcff"])
@pytest.mark.parametrize("name", ["kernel", "\u00e4_kernel"])
def test_a_group_file_is_spelled_as_triton_spells_it(cache: str, name: str) -> None:
    files = {file: f"{cache}/DIRECTORY/{file}" for file in (f"{name}.json", f"{name}.cubin")}
    expected = json.dumps({"child_paths": files}, sort_keys=True).encode()
    assert group_file(Path(cache), "DIRECTORY", name) == expected


def test_the_metadata_gets_the_local_cache_key() -> None:
    assert json.loads(ENTRY.files(Path("/cache"))["kernel.json"]) == {
        **json.loads(METADATA),
        "hash": ENTRY.cache_key,
    }


def lay(cache: Path) -> Path:
    directory = cache / ENTRY.directory
    directory.mkdir()
    for name, data in ENTRY.files(cache).items():
        (directory / name).write_bytes(data)
    return directory


def test_an_entry_as_we_lay_it_is_whole(tmp_path: Path) -> None:
    assert is_whole(lay(tmp_path), "kernel")


@pytest.mark.parametrize("name", ["kernel.cubin", "kernel.json", "__grp__kernel.json"])
def test_an_entry_with_a_file_missing_or_empty_is_not_whole(tmp_path: Path, name: str) -> None:
    directory = lay(tmp_path)
    (directory / name).write_bytes(b"")
    assert not is_whole(directory, "kernel")
    (directory / name).unlink()
    assert not is_whole(directory, "kernel")


@pytest.mark.parametrize("name", ["kernel.json", "__grp__kernel.json"])
@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff"])
def test_an_entry_with_a_damaged_document_is_not_whole(tmp_path: Path, name: str, content: bytes) -> None:
    directory = lay(tmp_path)
    (directory / name).write_bytes(content)
    assert not is_whole(directory, "kernel")


def test_an_entry_that_was_moved_is_not_whole(tmp_path: Path) -> None:
    lay(tmp_path).rename(tmp_path / "elsewhere")
    assert not is_whole(tmp_path / "elsewhere", "kernel")


@pytest.mark.parametrize("change", [{"arch": 80}, {}, 5], ids=["another architecture", "no architecture", "no target"])
def test_an_entry_whose_metadata_is_for_other_code_is_not_whole(tmp_path: Path, change: object) -> None:
    directory = lay(tmp_path)
    (directory / "kernel.json").write_text(json.dumps({"target": change}))
    assert not is_whole(directory, "kernel")


def test_a_directorys_name_spells_its_key() -> None:
    assert cache_key_of(ENTRY.directory) == ENTRY.cache_key
    with pytest.raises(ValueError, match=r"base32|padding"):
        cache_key_of("not a key")


def test_a_group_file_of_ours_tells_where_it_was_written_for() -> None:
    group = group_file(Path("/a cache"), ENTRY.directory, "kernel")
    assert group_root(group, ENTRY.directory, "kernel") == Path("/a cache")
    for other in (("OTHER", "kernel"), (ENTRY.directory, "other")):
        assert group_root(group, *other) is None


@pytest.mark.parametrize(
    "children",
    [
        {"kernel.cubin": "/c/D/kernel.cubin"},
        {"kernel.cubin": "/c/D/kernel.cubin", "kernel.json": "/c/D/kernel.json", "kernel.ttir": "/c/D/kernel.ttir"},
        {"kernel.cubin": "/c/D/kernel.cubin", "kernel.json": "/elsewhere/D/kernel.json"},
        {"kernel.cubin": "/c/D/kernel.json", "kernel.json": "/c/D/kernel.cubin"},
        {"kernel.cubin": "D/kernel.cubin", "kernel.json": "D/kernel.json"},
        {"kernel.cubin": 1, "kernel.json": 2},
        [],
        None,
    ],
)
def test_a_group_file_that_triton_or_nobody_writes_is_not_ours(children: object) -> None:
    assert group_root(json.dumps({"child_paths": children}).encode(), "D", "kernel") is None


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free space or inodes there, or choose a writable directory"),
        (errno.EDQUOT, "free space or inodes there, or choose"),
        (errno.ESTALE, "run this again, or choose"),
        (errno.EROFS, "holds no half entry: choose a writable directory"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_what_the_file_system_refuses_is_one_line_with_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    with pytest.raises(CacheError) as raised, reported(Path("/cache")):
        raise OSError(number, os.strerror(number), "/cache/file")
    assert words in str(raised.value)
    assert str(raised.value).startswith(f"/cache/file: {os.strerror(number)}; the cache /cache ")
    assert str(raised.value).endswith(f"TRITON_CACHE_DIR={tmp_path}/vllm/triton works here")


def test_where_nothing_can_be_written_a_mount_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "HOME", "TMPDIR"):
        monkeypatch.setenv(name, "/dev/null/nowhere")
    with pytest.raises(CacheError, match="mount a writable directory"), reported(Path("/cache")):
        raise OSError(errno.EROFS, "Read-only file system")
