"""A multiplied bundle is a bundle: read, verified and installed as any other."""

import subprocess
import sys
from pathlib import Path

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle
from aotpack.install import install_bundle
from aotpack.verify import verify_bundle
from tests.conftest import ROOT


def multiplied(built: Built, keys: int, out: Path) -> Bundle:
    script = ROOT / "scripts" / "multiply.py"
    command = [sys.executable, str(script), str(built.bundle.path), str(keys), "-o", str(out)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"{keys} keys" in said
    return open_bundle(out)


def test_each_key_is_another_and_has_code_of_its_own_and_all_install(built: Built, tmp_path: Path) -> None:
    keys = 3 * len(built.bundle.manifest.entries) + 1
    bundle = multiplied(built, keys, tmp_path / "more.tar.zst")
    entries = bundle.manifest.entries
    assert len({entry.key.digest for entry in entries}) == keys
    assert len({entry.cubin.digest for entry in entries}) == len({entry.metadata.digest for entry in entries}) == keys
    assert verify_bundle(bundle.path).findings == ()
    assert install_bundle(bundle, tmp_path / "cache").written == keys
    assert sum(1 for _ in (tmp_path / "cache").glob("*/__grp__*")) == keys


def test_fewer_keys_are_some_of_the_real_ones(built: Built, tmp_path: Path) -> None:
    bundle = multiplied(built, 5, tmp_path / "fewer.tar.zst")
    assert {entry.key for entry in bundle.manifest.entries} < {entry.key for entry in built.bundle.manifest.entries}
    assert verify_bundle(bundle.path).findings == ()
