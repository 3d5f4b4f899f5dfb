"""The cache directory is the one that Triton would use."""

from pathlib import Path

import pytest

from aotpack.cachedirectory import effective_directory


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
