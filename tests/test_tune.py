"""From a measurement on a GPU to a launch that measures nothing: real commands and Triton, down to a fake libcuda."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from aotpack import admission
from aotpack.bundle import open_bundle
from aotpack.devices import choose_devices
from aotpack.engines import Engine
from aotpack.errors import AlteredError, UsageError
from aotpack.heal import heal
from aotpack.install import install_bundle, uninstall
from aotpack.results import read_results
from aotpack.selftest import check_store
from aotpack.store import unpack_store
from aotpack.tuning import Result
from aotpack.verify import verify_bundle, verify_cache
from aotpack.wheel import write_wheels
from tests.archives import tree
from tests.conftest import ROOT, needs_compiler

FAKE = ROOT / "tests" / "fake_libcuda.c"
GPU = ROOT / "tests" / "packages" / "fake-gpu"
MODEL = "qwen3.5-0.8b"
NAME = "Fake H200"
LAST = "num_warps: 8"
"""What the fake clock of ``aotpack tune`` finds the fastest; that of a launch finds the first, with one warp."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine with a GPU that is not there, on which commands run."""

    folder: Path
    engine: str

    def environment(self, **more: str) -> dict[str, str]:
        given = {"PYTHONPATH": f"{GPU}:{ROOT}", "LD_LIBRARY_PATH": str(self.folder), "FAKE_LIBCUDA_NAME": NAME}
        return {**os.environ, **given, **more}

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aotpack", *map(str, arguments)]
        kept = self.environment(**environment)
        return subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)

    def select(self, name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        selection = ("--engine", self.engine, "--family", "summing", "--model", MODEL, "--gdn-prefill", "triton", "-j1")
        return self.run(name, *selection, *arguments, **environment)

    def launch(self, cache: Path, *asked: str, **environment: str) -> dict[str, Any]:
        kept = self.environment(TRITON_CACHE_DIR=str(cache), **environment)
        command = [sys.executable, "-m", "tests.tuned", self.engine, MODEL, *asked]
        done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def machine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    needs_compiler()
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("driver")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", FAKE, "-o", folder / "libcuda.so.1"]
    subprocess.run(list(map(str, command)), check=True)
    return Machine(folder=folder, engine=str(engine.root))


@pytest.fixture(scope="module")
def measured(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of results that ``aotpack tune`` has written on the machine."""
    directory = tmp_path_factory.mktemp("tuning")
    done = machine.select("tune", "-o", directory, "--cache-dir", tmp_path_factory.mktemp("cache"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(path) for path in sorted(directory.rglob("*.json"))]
    return directory


def build(machine: Machine, measured: Path, output: Path, *arguments: str) -> Path:
    done = machine.select("build", "--arch", "sm90", "--tuning", measured, "-o", output, *arguments)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def every(machine: Machine, measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of all configurations, with the results, and without native helpers."""
    return build(machine, measured, tmp_path_factory.mktemp("every"), "--python", "none")


@pytest.fixture(scope="module")
def winners(machine: Machine, measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the winners for the device alone."""
    return build(machine, measured, tmp_path_factory.mktemp("winners"), "--device", NAME)


def results_of(directory: Path, engine: Engine) -> Sequence[Result]:
    return read_results(directory, engine.name, engine.version)


def test_tune_writes_what_tritons_autotuner_measured_and_how(measured: Path, engine: Engine) -> None:
    (result,) = results_of(measured, engine)
    assert result.tuning.kernel.endswith(".cumsum:chunk_local_cumsum_scalar_kernel")
    assert [str(one) for one in result.tuning.configurations] == [f"warps={warps} stages=3" for warps in (1, 2, 4, 8)]
    assert result.times == tuple((round(1 / tick, 6),) * 3 for tick in (1, 2, 3, 4))
    assert (result.device, str(result.fastest)) == (NAME, "warps=8 stages=3")
    assert result.tuning.key == (1, 16, 64, True, False, "torch.float32", "torch.float32", "torch.int32", "torch.int32")
    assert result.measured.input == f"{MODEL} tp1 bfloat16: tokens=4096"
    assert result.measured.cuda == "13.0"


@pytest.mark.slow
def test_tune_leaves_what_is_known_alone(machine: Machine, measured: Path, tmp_path: Path) -> None:
    directory = tmp_path / "tuning"
    shutil.copytree(measured, directory)
    before = tree(directory)
    known = machine.select("tune", "-o", directory, "--cache-dir", tmp_path / "cache")
    assert (known.returncode, known.stdout) == (0, "")
    assert "0 results for Fake H200, 1 known before" in known.stderr
    assert tree(directory) == before


@pytest.mark.slow
def test_a_launch_that_breaks_the_device_is_a_failure_by_name(machine: Machine, tmp_path: Path) -> None:
    done = machine.select("tune", "-o", tmp_path / "t", "--cache-dir", tmp_path / "c", FAKE_GPU_BREAKS="cumsum")
    assert done.returncode == 1
    assert "Failed: U101 vllm.third_party.flash_linear_attention.ops.cumsum:chunk_local_cumsum" in done.stderr
    assert "the process died that launched it" in done.stderr
    assert not (tmp_path / "t").exists()


def test_tune_says_in_one_line_that_there_is_no_gpu(machine: Machine, tmp_path: Path) -> None:
    done = machine.select("tune", "-o", tmp_path, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr == (
        "Error: tuning measures on a GPU, and this machine has no GPU; run it where the engine serves\n"
    )


def test_without_a_device_all_configurations_are_packed_and_with_one_the_fastest(every: Path, winners: Path) -> None:
    both = [open_bundle(path).manifest for path in (every, winners)]
    assert [len(manifest.entries) for manifest in both] == [4, 1]
    assert [manifest.devices for manifest in both] == [(), (NAME,)]
    assert both[0].results == both[1].results
    (entry,) = both[1].entries
    assert dict(entry.key.options)["num_warps"] == 8
    assert all(verify_bundle(path).findings == () for path in (every, winners))


@pytest.mark.slow
def test_what_is_left_out_on_purpose_is_not_missing(machine: Machine, winners: Path) -> None:
    done = machine.select("coverage", winners)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].split() == ["all", "1", "1", "0"]


def test_a_device_without_results_is_named(machine: Machine, measured: Path, tmp_path: Path) -> None:
    done = machine.select("build", "--arch", "sm90", "--tuning", measured, "-o", tmp_path, "--device", "H200")
    assert done.returncode == 2
    assert f"there are no results for 'H200' with vllm 0.33.0; there are for {NAME}" in done.stderr


@pytest.mark.slow
def test_a_build_says_which_decisions_have_no_result(machine: Machine, tmp_path: Path) -> None:
    done = machine.select("build", "--arch", "sm90", "--tuning", tmp_path, "-o", tmp_path, "--python", "none")
    assert done.returncode == 0, done.stderr
    said = "K103 any GPU of sm90: 1 of 1 decisions of autotuners have no result: chunk_local_cumsum_scalar_kernel"
    assert said in done.stderr


def test_without_results_a_launch_measures_every_configuration(machine: Machine, every: Path, tmp_path: Path) -> None:
    """The control of the tests below; and where Triton keeps what it measures is where an install lays results."""
    own, laid = tmp_path / "own", tmp_path / "laid"
    report = machine.launch(own)
    assert (report["measured"], report["compiled"]) == (4, 4)
    assert report["decided"]["chunk_local_cumsum_scalar_kernel"].startswith("num_warps: 1,")
    install_bundle(open_bundle(every), laid)
    tritons, ours = ([path.relative_to(cache) for path in cache.glob("*/*.autotune.json")] for cache in (own, laid))
    assert tritons == ours != []
    measured, installed = (json.loads((cache / ours[0]).read_bytes()) for cache in (own, laid))
    assert measured["key"] == installed["key"]
    configs = [[config for config, _ in kept["configs_timings"]] for kept in (measured, installed)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("asked", [(), ("activate", "preload")])
def test_an_installed_result_is_taken_and_nothing_is_measured_or_compiled(
    machine: Machine, winners: Path, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    install_bundle(open_bundle(winners), tmp_path, libcuda=[str(machine.folder)])
    report = machine.launch(tmp_path, *asked)
    assert (report["measured"], report["compiled"]) == (0, 0)
    assert report["decided"]["chunk_local_cumsum_scalar_kernel"].startswith(LAST)
    preloaded = "preload" in asked
    assert (report["tuned"], report["preloaded"]) == (preloaded, preloaded)
    # Preloaded, the first launch does not even look for it.
    assert len(report["looked"]) == (not preloaded)


def test_a_store_serves_the_result_of_the_device_that_launches(machine: Machine, winners: Path, tmp_path: Path) -> None:
    store = unpack_store(open_bundle(winners), tmp_path / "store")
    served = {"AOTPACK_BUNDLE_PATH": str(store.directory)}
    report = machine.launch(tmp_path / "cache", "activate", **served)
    assert (report["measured"], report["compiled"]) == (0, 0)
    assert report["looked"]
    assert not list((tmp_path / "cache").rglob("*.autotune.json"))


def test_a_store_serves_no_result_of_another_device(machine: Machine, every: Path, tmp_path: Path) -> None:
    store = unpack_store(open_bundle(every), tmp_path / "store")
    served = {"AOTPACK_BUNDLE_PATH": str(store.directory), "FAKE_LIBCUDA_NAME": "Fake H100"}
    report = machine.launch(tmp_path / "cache", "activate", **served)
    assert (report["measured"], report["compiled"]) == (4, 0)


def test_a_result_is_verified_healed_and_taken_out_as_any_other_file(every: Path, tmp_path: Path) -> None:
    installed = install_bundle(open_bundle(every), tmp_path)
    before = tree(tmp_path)
    (path,) = tmp_path.glob("*/*.autotune.json")
    path.write_text("{}")
    (finding,) = verify_cache(tmp_path).findings
    assert finding.subject == str(path.parent)
    assert path.name in finding.detail
    assert heal(tmp_path).after.findings == ()
    assert tree(tmp_path) == before
    assert install_bundle(open_bundle(every), tmp_path).receipt == installed.receipt
    assert uninstall(installed.receipt).findings == ()
    assert tree(tmp_path) == {}


def test_a_signed_bundle_vouches_for_the_results_that_were_installed(every: Path, tmp_path: Path) -> None:
    bundle = open_bundle(every)
    receipt = install_bundle(bundle, tmp_path).receipt
    assert {*admission._tied(receipt, bundle.manifest)} == {*receipt.files}
    with pytest.raises(AlteredError, match=r"lists .*\.autotune\.json, which is not in the manifest that was signed"):
        list(admission._tied(receipt, replace(bundle.manifest, results=())))


def test_a_wheel_carries_results_and_knows_them(every: Path, tmp_path: Path) -> None:
    (wheel,) = write_wheels(open_bundle(every), tmp_path)
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(tmp_path)
    (store,) = tmp_path.glob("*/store")
    assert check_store(store)[1] == []
    (result,) = store.glob("blobs/*.autotune.json")
    result.write_text("{}")
    assert check_store(store)[1] != []


def test_what_triton_has_measured_here_itself_stays(every: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    install_bundle(open_bundle(every), scratch)
    (path,) = scratch.glob("*/*.autotune.json")
    theirs = tmp_path / "cache" / path.relative_to(scratch)
    theirs.parent.mkdir(parents=True)
    theirs.write_text("measured here")
    receipt = install_bundle(open_bundle(every), tmp_path / "cache").receipt
    assert not any(file.name == path.name for file in receipt.files)
    uninstall(receipt)
    assert theirs.read_text() == "measured here"


def test_install_asks_for_the_device_where_it_cannot_tell(machine: Machine, winners: Path, tmp_path: Path) -> None:
    done = machine.run("install", winners, "--cache-dir", tmp_path, "--engine", machine.engine, FAKE_LIBCUDA_NAME="A40")
    assert done.returncode == 0, done.stderr
    assert f"I106 sm90: results of autotuned kernels are for {NAME}, and this machine has A40; none are" in done.stderr
    assert not list(tmp_path.glob("*/*.autotune.json"))
    named = ("--device", NAME)
    done = machine.run("install", winners, "--cache-dir", tmp_path, "--engine", machine.engine, *named)
    assert "I106" not in done.stderr
    assert list(tmp_path.glob("*/*.autotune.json"))


def test_a_device_that_the_bundle_has_no_results_for_is_refused(every: Path) -> None:
    with pytest.raises(UsageError, match=f"the bundle has no results for 'H200'; it has for {NAME}"):
        choose_devices(open_bundle(every).manifest, ["H200"])
