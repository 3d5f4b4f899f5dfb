"""Engines are found where they are said to be, and unpacked without trusting a wheel's paths."""

import zipfile
from pathlib import Path

import pytest

from aotpack.engines import cache_root, find_engine, same_release
from aotpack.errors import EngineError, UsageError

silent: list[str] = []


def wheel(folder: Path, members: dict[str, str], name: str = "vllm-0.33.0-py3-none-any.whl") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_CACHE_DIR", str(tmp_path / "cache"))


def test_a_wheels_python_files_are_unpacked_once_and_nothing_else(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"vllm/__init__.py": "x", "vllm/_C.so": "elf", "vllm-0.33.0.dist-info/METADATA": ""})
    said: list[str] = []
    engine = find_engine(str(path), said.append)
    assert (engine.name, engine.version) == ("vllm", "0.33.0")
    assert [file.name for file in engine.package.iterdir()] == ["__init__.py"]
    assert find_engine(str(path), said.append) == engine
    assert said == ["unpacking the Python files of vllm-0.33.0-py3-none-any.whl"]


@pytest.mark.parametrize("member", ["vllm/../../escape.py", "vllm/..\\escape.py"])
def test_a_wheel_that_points_out_of_itself_is_refused(tmp_path: Path, member: str) -> None:
    path = wheel(tmp_path, {"vllm/__init__.py": "", member: "evil"})
    with pytest.raises(EngineError, match="refused a member"):
        find_engine(str(path), silent.append)
    assert list(tmp_path.rglob("*escape*")) == []
    assert list((cache_root() / "engines").iterdir()) == []


def test_an_unreadable_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    path.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(EngineError, match="not a readable wheel"):
        find_engine(str(path), silent.append)


def test_a_truncated_wheel_leaves_nothing(tmp_path: Path) -> None:
    path = wheel(tmp_path, {"vllm/__init__.py": "x" * 5000, "vllm/a.py": "y" * 5000})
    path.write_bytes(path.read_bytes().replace(b"y" * 50, b"z" * 50))  # the checksum no longer holds
    with pytest.raises(EngineError, match="not a readable wheel"):
        find_engine(str(path), silent.append)
    assert list((cache_root() / "engines").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "members", "message"),
    [
        ("sglang-0.5.0-py3-none-any.whl", {"sglang/__init__.py": ""}, "a wheel of sglang; expected one of vllm"),
        ("vllm-0.33.0-py3-none-any.whl", {"other/__init__.py": ""}, "holds no Python file of vllm"),
        ("vllm.whl", {"vllm/__init__.py": ""}, "Invalid wheel filename"),
    ],
)
def test_a_wheel_of_something_else_is_refused(tmp_path: Path, name: str, members: dict[str, str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        find_engine(str(wheel(tmp_path, members, name)), silent.append)


@pytest.mark.parametrize("spec", ["no/such/dir", "sglang", "sglang==1.0", "vllm>=0.30", "vllm==0.33.*", "", "!"])
def test_what_is_no_engine_is_a_usage_error(spec: str) -> None:
    with pytest.raises(UsageError, match="vllm"):
        find_engine(spec, silent.append)


def test_a_missing_wheel_is_named() -> None:
    with pytest.raises(EngineError, match=r"none\.whl: no such wheel"):
        find_engine("none.whl", silent.append)


def test_a_directory_without_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no engine in this directory; expected one that holds vllm"):
        find_engine(str(tmp_path), silent.append)


def test_a_source_tree_is_taken_with_the_release_it_says(tmp_path: Path) -> None:
    package = tmp_path / "tree" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    assert find_engine(str(package.parent), silent.append).version == "0+unknown"
    (package / "_version.py").write_text("__version__ = version = '0.34.1'\n")
    assert find_engine(str(package.parent), silent.append).version == "0.34.1"
    assert find_engine(str(package), silent.append) == find_engine(str(package.parent), silent.append)


def test_a_release_other_than_tested_is_a_finding_and_so_is_another_triton(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_version.py").write_text("version = '0.34.1'\n")
    engine = find_engine(str(tmp_path), silent.append)
    (finding,) = engine.check("3.8.0")
    assert finding.code == "E101"
    assert "kernels' parameters were checked" in finding.detail
    (package / "_version.py").write_text("version = '0.33.0'\n")
    known = find_engine(str(tmp_path), silent.append)
    assert known.check("3.8.0") == []
    assert [finding.code for finding in known.check("3.6.0")] == ["E102"]
    assert [finding.code for finding in known.check("3.80.0")] == ["E102"]


@pytest.mark.slow
def test_a_release_is_downloaded_once_without_its_dependencies() -> None:
    said: list[str] = []
    engine = find_engine("vllm==0.33.0", said.append)
    assert (engine.package / "v1" / "worker" / "mamba_utils.py").is_file()
    assert {path.suffix for path in engine.root.rglob("*") if path.is_file()} == {".py"}
    said.clear()
    assert find_engine("vllm==0.33.0", said.append) == engine
    assert said == []


@pytest.mark.slow
def test_a_release_that_does_not_exist_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"pip could not download vllm==0\.0\.99 .*give the wheel itself"):
        find_engine("vllm==0.0.99", silent.append)
    assert not (cache_root() / "engines").exists()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.33.0+cu130", "0.33.0", True),
        ("0.33", "0.33.0", True),
        ("0.6.10", "0.6.1", False),
        ("0.33.0rc1", "0.33.0", False),
        ("0+unknown", "0.33.0", False),
        ("no version", "0.33.0", False),
    ],
)
def test_releases_are_compared_without_their_local_part_and_whole(one: str, other: str, same: bool) -> None:
    assert same_release(one, other) == same
