"""An install that has nothing to do knows it without Triton; and one that may have something to do, does it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from aotpack.build import Built
from aotpack.bundle import Bundle
from aotpack.cli import main
from aotpack.engines import Engine
from aotpack.install import install_bundle
from aotpack.receipts import read_receipts
from aotpack.stamps import Summary, ask, find_stamp
from aotpack.verify import verify_cache
from tests.alterations import tiny
from tests.archives import tree
from tests.conftest import ROOT


@dataclass(frozen=True)
class Place:
    """A bundle, a copy of the engine's files that it rests on, and a cache."""

    bundle: Bundle
    engine: Path
    cache: Path

    @property
    def stamp(self) -> Path:
        (found,) = (self.cache / ".aotpack" / "receipts").glob("*.stamp")
        return found

    def install(self, *options: str, bundle: Path | None = None) -> str:
        arguments = [str(bundle or self.bundle.path), "--cache-dir", str(self.cache), "--engine", str(self.engine)]
        done = CliRunner().invoke(main, ["install", *arguments, *options], prog_name="aotpack")
        assert done.exit_code == 0, done.stderr
        return done.stderr

    def found(self, *, bundle: Path | None = None, other_ptxas: str | None = None) -> Summary | None:
        path = bundle or self.bundle.path
        return find_stamp(ask(path, self.cache, demands=(), engine=str(self.engine), other_ptxas=other_ptxas))


@pytest.fixture
def place(built: Built, engine: Engine, tmp_path: Path) -> Place:
    bundle = tiny(built.bundle, tmp_path / "bundle.tar.zst")
    copied = tmp_path / "engine"
    for module, _ in bundle.manifest.sources.modules:
        for file in (Path(*module.split(".")).with_suffix(".py"), Path(*module.split("."), "__init__.py")):
            if (engine.root / file).is_file():
                (copied / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(engine.root / file, copied / file)
    (copied / engine.name).mkdir(parents=True, exist_ok=True)
    (copied / engine.name / "__init__.py").touch()
    (copied / engine.name / "_version.py").write_text(f'__version__ = "{engine.version}"\n')
    return Place(bundle=bundle, engine=copied, cache=tmp_path / "cache")


def test_an_install_that_has_nothing_to_do_says_so_without_triton(place: Place) -> None:
    first = place.install()
    before = tree(place.cache)
    code = "import sys; from aotpack.cli import main\ntry: main()\nfinally: print(sorted({*sys.modules} & {'triton'}))"
    arguments = ["install", place.bundle.path, "--cache-dir", place.cache, "--engine", place.engine]
    command = [sys.executable, "-c", code, *map(str, arguments)]
    runs = [subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout.strip() for run in runs] == [
        "['triton']",
        "[]",
    ]  # another sys.path than this process's, at first
    laid = f"installed {len(place.bundle.manifest.entries)} kernels into {place.cache}"
    again = f"installed 0 kernels into {place.cache}, {len(place.bundle.manifest.entries)} were there"
    assert [run.stderr for run in runs] == [first.replace(laid, again)] * 2
    assert tree(place.cache).keys() == before.keys()


def test_what_was_found_is_what_an_install_would_say(place: Place) -> None:
    place.install()
    found = place.found()
    assert found is not None
    assert (found.written, found.present) == (0, len(place.bundle.manifest.entries))
    stamp = place.stamp.read_bytes()
    place.stamp.unlink()
    place.install()
    assert place.stamp.read_bytes() == stamp


def _damage(place: Place) -> None:
    path = next(place.cache.glob("*/*.cubin"))
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def _damage_and_set_back_its_time(place: Place) -> None:
    path = next(place.cache.glob("*/*.cubin"))
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    _damage(place)
    os.utime(path, ns=times)


def _remove(place: Place) -> None:
    next(place.cache.glob("*/__grp__*")).unlink()


def _cut_the_stamp(place: Place) -> None:
    place.stamp.write_bytes(place.stamp.read_bytes()[:-10])


def _alter_the_receipt(place: Place) -> None:
    (receipt,) = read_receipts(place.cache)
    receipt.path.write_bytes(receipt.path.read_bytes().replace(b'"accepted":[]', b'"accepted":["x"]'))


def _copy_the_cache(place: Place) -> None:
    copy = place.cache.with_name("copy")
    shutil.copytree(place.cache, copy)
    shutil.rmtree(place.cache)
    copy.rename(place.cache)
    next(place.cache.glob("*/*.cubin")).touch()


@pytest.mark.parametrize(
    "change",
    [
        _damage,
        _damage_and_set_back_its_time,
        _remove,
        _cut_the_stamp,
        _alter_the_receipt,
        _copy_the_cache,
    ],
)
def test_a_cache_that_is_not_as_it_was_left_is_made_whole(place: Place, change: Callable[[Place], None]) -> None:
    place.install()
    assert place.found() is not None
    change(place)
    assert place.found() is None
    place.install()
    assert verify_cache(place.cache).findings == ()
    assert place.found() is not None


def test_what_a_link_leads_to_may_change_unseen_so_each_install_looks_itself(place: Place, tmp_path: Path) -> None:
    place.install()
    path = next(place.cache.glob("*/*.cubin"))
    path.symlink_to(path.rename(tmp_path / "moved.cubin"))
    for _ in range(2):
        assert place.found() is None
        assert ", 2 were there" in place.install()


@pytest.mark.parametrize("name", ["TRITON_DEFAULT_FP_FUSION", "PTXAS_OPTIONS", "ANYTHING"])
def test_another_environment_asks_triton_again(place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place.install()
    monkeypatch.setenv(name, "0")
    assert place.found() is None
    monkeypatch.delenv(name)
    monkeypatch.setenv("SHLVL", "9")
    assert place.found() is not None


def test_other_options_another_bundle_and_another_place_are_other_installs(place: Place, tmp_path: Path) -> None:
    place.install()
    assert place.found(other_ptxas="a reason") is None
    moved = Path(shutil.copy(place.bundle.path, tmp_path / "moved.tar.zst"))
    assert place.found(bundle=moved) is None
    other = tiny(place.bundle, tmp_path / "other.tar.zst", entries=slice(1))
    assert place.found(bundle=other.path) is None


def test_a_file_of_the_engine_that_changes_is_compared_again(place: Place) -> None:
    for path in [path for path in place.engine.rglob("*.py") if path.name != "__init__.py"]:
        place.install()
        assert place.found() is not None
        path.write_text(path.read_text() + "\n")
        assert place.found() is None


def test_where_something_is_left_as_triton_made_it_there_is_no_stamp(place: Place) -> None:
    receipt = install_bundle(place.bundle, place.cache).receipt
    group = next(path for path in place.cache.glob("*/__grp__*"))
    stem = group.name.removeprefix("__grp__").removesuffix(".json")
    (group.parent / f"{stem}.ptx").write_text("text")
    names = [f"{stem}.{kind}" for kind in ("cubin", "json", "ptx")]
    children = ", ".join(f'"{name}": "{group.parent / name}"' for name in names)
    group.write_text(f'{{"child_paths": {{{children}}}}}')
    receipt.path.unlink()
    place.install()
    assert place.found() is None


def test_an_uninstall_takes_the_stamp_along(place: Place) -> None:
    place.install()
    done = CliRunner().invoke(main, ["uninstall", place.bundle.path.name, "--cache-dir", str(place.cache)])
    assert done.exit_code == 0
    assert tree(place.cache) == {}
