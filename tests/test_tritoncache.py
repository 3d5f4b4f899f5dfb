"""The cache directory is the one that Triton would use, and an entry lies in it as Triton reads it."""

import json
from pathlib import Path

import pytest

from aotpack.tritoncache import CacheEntry, directory_name, effective_directory, is_whole

ENTRY = CacheEntry(cache_key="ab" * 32, name="kernel", cubin=b"\x7fELF", metadata=b'{"shared":0}')


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TRITON_CACHE_DIR": "/a", "TRITON_HOME": "/b"}, "/a"),
        ({"TRITON_CACHE_DIR": "", "TRITON_HOME": "/b"}, "/b/.triton/cache"),
        ({"TRITON_HOME": "/b/"}, "/b/.triton/cache"),
        ({"TRITON_HOME": ""}, "~/.triton/cache"),
        ({}, "~/.triton/cache"),
    ],
)
def test_the_directory_is_found_as_triton_finds_it(environment: dict[str, str], expected: str) -> None:
    assert effective_directory(None, environment) == Path(expected).expanduser()


def test_an_option_comes_before_the_environment() -> None:
    assert effective_directory(Path("/c"), {"TRITON_CACHE_DIR": "/a"}) == Path("/c")


def test_a_relative_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert effective_directory(Path("cache"), {}) == tmp_path / "cache"


def test_triton_itself_resolves_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert Path(knobs.cache.dir) == effective_directory()


def test_triton_itself_names_directories_the_same() -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    assert directory_name("0123456789abcdef" * 4) == cache._base32("0123456789abcdef" * 4)


def test_an_entrys_group_file_comes_last_and_names_its_files_where_they_land() -> None:
    files = ENTRY.files(Path("/cache"))
    assert list(files) == ["kernel.cubin", "kernel.json", "__grp__kernel.json"]
    children = json.loads(files["__grp__kernel.json"])["child_paths"]
    assert children == {name: f"/cache/{ENTRY.directory}/{name}" for name in ("kernel.cubin", "kernel.json")}


def test_the_metadata_gets_the_local_cache_key() -> None:
    assert json.loads(ENTRY.files(Path("/cache"))["kernel.json"]) == {"shared": 0, "hash": ENTRY.cache_key}


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
