"""The same input gives the same bytes, whatever the circumstances. The slow test builds; the fast one packs anew."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aotpack.bundle import Bundle
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
