"""The same input gives the same bytes, whatever the circumstances. The slow test builds; the fast one packs anew."""

import importlib
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.bundle import Bundle, write_bundle
from aotpack.digests import digest_file
from aotpack.engines import Engine
from tests.conftest import ROOT, needs_compiler

# The manifest is read and written, the blobs are handed over in another order, and wheels are made of it all.
PACK_ANEW = """
import random, sys
from pathlib import Path
from aotpack.bundle import open_bundle, write_bundle
from aotpack.wheel import write_wheels
given, folder, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
bundle = open_bundle(given)
blobs = list(bundle.blobs())
random.Random(seed).shuffle(blobs)
again = write_bundle(folder / given.name, bundle.manifest, dict(blobs))
write_wheels(again, folder)
"""


def pack_anew(bundle: Bundle, folder: Path, number: int, **environment: str) -> dict[str, tuple[int, bytes]]:
    """What comes of packing a bundle anew: each file's mode and content, by name."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", PACK_ANEW, str(bundle.path), str(folder), str(number)]
    subprocess.run(
        ["sh", "-c", f"umask {'077' if number else '022'} && exec {shlex.join(command)}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder), **environment},
        check=True,
    )
    return {path.name: (path.stat().st_mode, path.read_bytes()) for path in folder.iterdir()}


def test_packing_anew_elsewhere_gives_the_same_bundle_and_wheels(helped: Bundle, tmp_path: Path) -> None:
    one = pack_anew(helped, tmp_path / "a", 0, TZ="UTC", LC_ALL="C", PYTHONHASHSEED="0")
    other = pack_anew(helped, tmp_path / "b" / "longer name", 1, TZ="XXX-13:45", LC_ALL="C.UTF-8", PYTHONHASHSEED="1")
    assert len(one) > 1
    assert one == other
    assert one[helped.path.name][1] == helped.path.read_bytes()


def test_a_date_changes_wheels_alone_and_in_every_time_zone_alike(helped: Bundle, tmp_path: Path) -> None:
    one, other = (
        pack_anew(helped, tmp_path / zone, number, TZ=zone, SOURCE_DATE_EPOCH="1700000000")
        for number, zone in enumerate(("UTC", "XXX-13:45"))
    )
    assert one == other
    assert one[helped.path.name][1] == helped.path.read_bytes()


def test_a_difference_is_shown_and_fails(
    helped: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("check_reproducible")
    other = write_bundle(tmp_path / "b", replace(helped.manifest, built_by="9.9"), dict(helped.blobs()))
    made = [
        script.Made(case=case, python="3.11", bundle=path, digests=(digest_file(path), "sha256:a", "sha256:a"))
        for case, path in zip(script.cases(each=False), (helped.path, other.path), strict=True)
    ]
    assert script.show([made[0], made[0]])
    assert " !" not in capsys.readouterr().out
    assert not script.show(made)
    shown = capsys.readouterr().out
    assert shown.count(" !") == 1
    assert "~ built by\n    a  aotpack" in shown


def test_the_second_case_differs_from_the_first_in_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("check_reproducible")
    first, everything, *alone = script.cases(each=True)
    assert len(alone) == len(script.OTHERWISE)
    for name in ("umask", "jobs", "place", "shuffled"):
        assert getattr(first, name) != getattr(everything, name)
    assert all(everything.environment[name] != value for name, value in first.environment.items())
    assert "SOURCE_DATE_EPOCH" in everything.environment


@pytest.mark.slow
def test_builds_in_other_circumstances_and_another_python_give_the_same_bytes(engine: Engine) -> None:
    needs_compiler()
    script = ROOT / "scripts" / "check_reproducible.py"
    done = subprocess.run(
        [sys.executable, script, "--engine", str(engine.root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("built") == 2
    assert " !" not in done.stdout
