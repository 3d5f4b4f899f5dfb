"""Candidates: wheels are found wherever Python would find them, and a process without any pays next to nothing."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from aotpack.runtime.candidates import GROUP, find_candidates

METADATA = "Metadata-Version: 2.1\nName: kernels\nVersion: 1\n"
OFFER = f"[{GROUP}]\nkernels = kernels_of_a_test\n"


@pytest.fixture(autouse=True)
def _nothing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def put(directory: Path, offer: str = OFFER) -> Path:
    directory.mkdir(parents=True)
    (directory / ("METADATA" if directory.name.endswith("dist-info") else "PKG-INFO")).write_text(METADATA)
    (directory / "entry_points.txt").write_text(offer)
    return directory


def in_a_wheels_directory(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.syspath_prepend(put(folder / "kernels-1.dist-info").parent)


def in_the_directory_of_an_old_installer(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.syspath_prepend(put(folder / "kernels-1.egg-info").parent)


def in_an_egg(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.syspath_prepend(put(folder / "kernels-1.egg" / "EGG-INFO").parent)


def in_the_working_directory(folder: Path, patch: pytest.MonkeyPatch) -> None:
    put(folder / "kernels-1.dist-info")
    patch.chdir(folder)
    patch.setattr(sys, "path", ["", *sys.path])


def in_an_archive(folder: Path, patch: pytest.MonkeyPatch) -> None:
    with ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("kernels-1.dist-info/METADATA", METADATA)
        archive.writestr("kernels-1.dist-info/entry_points.txt", OFFER)
    patch.syspath_prepend(folder / "all.zip")


def by_an_import_hook(folder: Path, patch: pytest.MonkeyPatch) -> None:
    directory = put(folder / "elsewhere" / "kernels-1.dist-info")

    class Hook:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

        @staticmethod
        def find_distributions(_: object) -> list[PathDistribution]:
            return [PathDistribution(directory)]

    patch.setattr(sys, "meta_path", [*sys.meta_path, Hook])


@pytest.mark.parametrize(
    "way",
    [
        in_a_wheels_directory,
        in_the_directory_of_an_old_installer,
        in_an_egg,
        in_the_working_directory,
        in_an_archive,
        by_an_import_hook,
    ],
)
def test_a_wheel_is_found(
    way: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not find_candidates()
    way(tmp_path, monkeypatch)
    assert [point.value for point in find_candidates().wheels] == ["kernels_of_a_test"]


def test_a_group_of_almost_that_name_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(put(tmp_path / "kernels-1.dist-info", f"[{GROUP}.other]\na = b\n").parent)
    assert not find_candidates()


def test_what_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-1.egg-info").write_text(METADATA)
    (tmp_path / "b-1.dist-info" / "entry_points.txt").mkdir(parents=True)
    (tmp_path / "c-1.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "missing")
    assert not find_candidates()


@pytest.mark.parametrize("backport", ["", "importlib_metadata"])
def test_where_there_is_nothing_to_serve_next_to_nothing_is_loaded(tmp_path: Path, backport: str) -> None:
    if backport:  # many packages import it, and it changes how Python finds distributions
        pytest.importorskip(backport)
    script = (
        f"import sys, {backport or 'os'}; before = set(sys.modules)\n"
        "import aotpack; aotpack.activate()\n"
        "print('\\n'.join(set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("aotpack.")} == {
        "aotpack.cachedirectory",
        "aotpack.errors",
        "aotpack.runtime",
        "aotpack.runtime.candidates",
        "aotpack.runtime.lock",
        "aotpack.runtime.trouble",
    }
    assert not loaded & {"triton", "torch", "dataclasses", "inspect", "importlib.metadata", "hashlib", "json"}
