"""Preload: after it no launch looks a key up, nothing is compiled for it, and what it leaves out it says."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle
from aotpack.engines import Engine
from aotpack.errors import DocumentError
from aotpack.heal import heal
from aotpack.install import install_bundle, uninstall
from aotpack.manifest import read_manifest
from aotpack.receipts import manifest_path
from aotpack.store import unpack_store
from aotpack.verify import verify_cache
from tests.archives import spelled, tree
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


# The record


def test_a_bundle_says_of_each_key_how_it_is_launched(built: Built) -> None:
    assert all(entry.launches for entry in built.bundle.manifest.entries)


def launches_of(built: Built, launches: Any) -> bytes:
    document = json.loads(built.bundle.manifest.to_bytes())
    document["entries"][0]["launches"] = launches
    return spelled(document)


@pytest.mark.parametrize(
    ("launches", "said"),
    [
        (None, r"entries\[0\]\.launches: expected an array, found null"),
        ([[["num_warps"]]], r"entries\[0\]\.launches\[0\]\[0\]: expected a pair"),
        ([[[1, 4]]], r"entries\[0\]\.launches\[0\]\[0\]\[0\]: expected a string"),
        ([[["num_warps", {"dtype": "bf16"}]]], r"entries\[0\]\.launches\[0\]\[0\]\[1\]: expected an option's value"),
        ([[["num_warps", 4], ["num_warps", 8]]], r"entries\[0\]\.launches\[0\]: expected each option once"),
        ([[], [["num_warps", 4]]], r"entries\[0\]\.launches: expected each launch once, in canonical order"),
        ([[], []], r"entries\[0\]\.launches: expected each launch once, in canonical order"),
    ],
)
def test_a_record_that_is_none_is_refused_by_its_place(built: Built, launches: Any, said: str) -> None:
    with pytest.raises(DocumentError, match=said):
        read_manifest(launches_of(built, launches))


# The manifest beside the receipt


def test_an_install_keeps_the_manifest_and_an_uninstall_takes_it_out(built: Built, tmp_path: Path) -> None:
    installed = install_bundle(built.bundle, tmp_path / "cache")
    kept = manifest_path(tmp_path / "cache", built.bundle.digest)
    assert read_manifest(kept.read_bytes()) == built.bundle.manifest
    assert kept.stat().st_mode & 0o777 == 0o644
    uninstall(installed.receipt)
    assert tree(tmp_path / "cache") == {}


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")])
def test_a_damaged_manifest_is_found_and_laid_anew(built: Built, tmp_path: Path, damage: Any) -> None:
    install_bundle(built.bundle, tmp_path)
    whole = tree(tmp_path)
    damage(manifest_path(tmp_path, built.bundle.digest))
    (finding,) = verify_cache(tmp_path).findings
    assert finding.subject == str(tmp_path / ".aotpack" / "manifests")
    assert heal(tmp_path).after.findings == ()
    assert tree(tmp_path) == whole
    damage(manifest_path(tmp_path, built.bundle.digest))
    install_bundle(built.bundle, tmp_path)
    assert tree(tmp_path) == whole


# Launching


def launch(helped: Bundle, root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "check_launches.py", helped.path, "--engine", root, *options]
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)


def test_after_a_preload_every_kernel_launches_under_vllms_own_monitor(helped: Bundle, engine: Engine) -> None:
    done = launch(helped, engine.root, "--preload", "--monitor")
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    keys = len(helped.manifest.entries)
    assert (report["preloaded"], report["hits"], report["events"]) == (keys, 0, 0)
    assert report["misses"] == report["built"] == []
    assert report["launched"] == report["asked"] > report["loaded"] == keys


def test_so_do_those_of_a_store_and_nothing_is_written(helped: Bundle, engine: Engine, tmp_path: Path) -> None:
    unpack_store(helped, tmp_path / "store")
    done = launch(helped, engine.root, "--store", str(tmp_path / "store"), "--preload", "--monitor")
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert (report["preloaded"], report["hits"]) == (len(helped.manifest.entries), 0)
    # Triton puts a copy of what it asked to be built.
    assert [name for name in report["written"] if not name.endswith(".so")] == []


def test_without_a_preload_the_monitor_takes_a_hit_for_a_compile(helped: Bundle, engine: Engine) -> None:
    done = launch(helped, engine.root, "--monitor")
    assert done.returncode == 1
    assert "RuntimeError: Triton kernel JIT compilation during inference" in done.stderr


# What it does and leaves


@pytest.fixture(scope="module")
def ways(helped: Bundle, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``tests.preloads`` prints."""
    folder = tmp_path_factory.mktemp("preload")
    fake = ROOT / "tests" / "fake_libcuda.c"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(fake), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    install_bundle(helped, folder / "cache", libcuda=[str(folder)])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "AOTPACK_"))},
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "FAKE_LIBCUDA_ARCH": "90",
    }
    command = [sys.executable, "-m", "tests.preloads", str(helped.path), str(engine.root)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "way",
    [
        "of_what_is_installed",
        "of_a_manifest",
        "of_two_bundles_with_the_same_keys",
        "with_a_time_that_is_no_number",
    ],
)
def test_every_key_is_ready(ways: dict[str, Any], helped: Bundle, way: str) -> None:
    keys = len(helped.manifest.entries)
    assert ways[way]["result"] == {"ready": keys}
    assert ways[way]["kernels"] == keys
    assert re.fullmatch(
        rf"INFO: {keys} of {keys} keys are preloaded after \d+\.\d\d s; left out: none", ways[way]["log"][-1]
    )


def test_a_second_time_there_is_nothing_to_do(ways: dict[str, Any], helped: Bundle) -> None:
    keys = len(helped.manifest.entries)
    assert ways["twice"]["result"] == [{"ready": keys}, {"present": keys}]


def test_a_module_that_is_not_imported_is_left_for_the_next_run(ways: dict[str, Any], helped: Bundle) -> None:
    first, second, third = ways["of_a_module_that_comes_later"]["result"]
    assert first["ready"] + second["ready"] == len(helped.manifest.entries)
    assert first["unimported"] == second["ready"] > 0
    assert third == {}
    assert len(ways["of_a_module_that_comes_later"]["log"]) == 2


@pytest.mark.parametrize(
    ("way", "count", "said"),
    [
        ("without_time", "late", "for want of time"),
        ("with_the_variables_of_no_time", "late", "for want of time"),
        ("where_triton_compiles_always", "unfound", "not in the cache"),
        ("with_a_variable_that_changes_keys", "unfound", "not in the cache"),
        ("with_a_knob_that_changes_keys", "unfound", "not in the cache"),
    ],
)
def test_what_cannot_be_had_is_left_out_and_counted(
    ways: dict[str, Any], helped: Bundle, way: str, count: str, said: str
) -> None:
    keys = len(helped.manifest.entries)
    assert ways[way]["result"] == {count: keys}
    assert ways[way]["kernels"] == 0
    assert ways[way]["log"][0].endswith(f"left out: {keys} {said}")


def test_a_key_that_is_not_in_the_cache_is_not_compiled_and_leaves_no_trace(
    ways: dict[str, Any], helped: Bundle
) -> None:
    done, same = ways["with_one_key_taken_out"]["result"]
    assert done == {"ready": len(helped.manifest.entries) - 1, "unfound": 1}
    assert same


def test_one_that_cannot_be_loaded_keeps_no_other_and_is_one_warning(ways: dict[str, Any], helped: Bundle) -> None:
    way = ways["with_one_damaged"]
    assert way["result"] == {"ready": len(helped.manifest.entries) - 1, "failed": 1}
    counted, warned = way["log"]
    assert counted.endswith("left out: 1 could not be loaded")
    assert warned == "WARNING: kernels are not preloaded: RuntimeError: Triton Error [CUDA]: a fake driver's error"


def test_strictly_it_is_an_error(ways: dict[str, Any]) -> None:
    assert ways["with_one_damaged_strictly"]["result"] == "Triton Error [CUDA]: a fake driver's error"


def test_a_damaged_manifest_is_one_warning(ways: dict[str, Any]) -> None:
    way = ways["with_a_manifest_that_is_another"]
    assert way["result"] == {}
    (line,) = way["log"]
    assert re.fullmatch(
        r"WARNING: what was installed is not preloaded: /\S+\.json is not what was installed: "
        "aotpack verify --fix lays it anew",
        line,
    )


def test_switched_off_it_does_nothing(ways: dict[str, Any]) -> None:
    assert ways["switched_off"] == {"result": {}, "kernels": 0, "log": []}


def test_a_key_that_launches_spell_in_two_ways_is_recorded_in_both(ways: dict[str, Any]) -> None:
    assert ways["recorded_in_two_spellings"]["result"] == [["num_warps"], ["num_stages", "num_warps"]]
