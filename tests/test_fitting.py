"""A bundle is fitted to the engine, the Triton and the assembler that are here, kernel by kernel."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.engines import Engine, find_engine
from aotpack.errors import IncompatibleError
from aotpack.fitting import Fit, fit_bundle
from aotpack.install import install_bundle
from aotpack.targets import Target
from aotpack.tritoncache import directory_name
from tests.conftest import ROOT
from tests.engines import change, copy_engine

MEMCPY = "vllm.v1.worker.mamba_utils"
HELPED = {f"{MEMCPY}:postprocess_mamba_fused_kernel", f"{MEMCPY}:precopy_mamba_align_fused_kernel"}
"""Kernels that call ``_memcpy_u64_tiled``."""


@pytest.fixture
def bundle(built: Built) -> Bundle:
    return open_bundle(built.bundle.path)


@pytest.fixture
def installed(engine: Engine, tmp_path: Path) -> Path:
    """A copy of the engine's files, to be changed."""
    return copy_engine(engine, tmp_path / "site-packages")


def fit(bundle: Bundle, folder: Path) -> Fit:
    return fit_bundle(bundle, engine=find_engine(str(folder), print))


def keys_of(fitted: Fit) -> dict[str, tuple[str, ...]]:
    return {placement.entry.key.digest: placement.cache_keys for placement in fitted.placements}


def test_an_engine_that_is_the_same_changes_nothing(bundle: Bundle, installed: Path) -> None:
    fitted = fit(bundle, installed)
    assert fitted.compared
    assert (fitted.refused, fitted.shifted) == ((), ())
    assert keys_of(fitted) == keys_of(fit_bundle(bundle))


def test_kernels_in_other_lines_get_other_keys(bundle: Bundle, installed: Path) -> None:
    change(installed, MEMCPY, "@triton.jit\ndef batch_memcpy_kernel", "\n@triton.jit\ndef batch_memcpy_kernel")
    fitted = fit(bundle, installed)
    assert f"{MEMCPY}:batch_memcpy_kernel" in fitted.shifted
    assert fitted.refused == ()
    before, after = keys_of(fit_bundle(bundle)), keys_of(fitted)
    assert before.keys() == after.keys()
    moved = {
        placement.entry.key.kernel
        for placement in fitted.placements
        if before[placement.entry.key.digest] != after[placement.entry.key.digest]
    }
    assert moved == {kernel for kernel in fitted.shifted if kernel in {e.key.kernel for e in bundle.manifest.entries}}


def test_triton_finds_every_kernel_of_an_engine_whose_lines_were_shifted(bundle: Bundle, installed: Path) -> None:
    for module in {entry.key.module for entry in bundle.manifest.entries}:
        path = installed.joinpath(*module.split(".")).with_suffix(".py")
        path.write_text("\n" + path.read_text())
    assert len(fit(bundle, installed).shifted) == len(bundle.manifest.kernels)
    script = str(ROOT / "scripts" / "check_hits.py")
    command = [sys.executable, script, str(bundle.path), "--engine", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert (report["hits"], report["misses"]) == (len(bundle.manifest.entries), [])


def test_kernels_with_a_changed_helper_are_refused_and_the_others_installed(
    bundle: Bundle, installed: Path, tmp_path: Path
) -> None:
    change(installed, MEMCPY, "def _memcpy_u64_tiled(", "def _memcpy_u64_tiled(  # patched\n")
    command = [sys.executable, "-m", "aotpack", "install", str(bundle.path), "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, "--engine", str(installed)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    refused = [line for line in done.stderr.splitlines() if "I104" in line]
    assert {next(name for name in HELPED if name in line) for line in refused} == HELPED & {
        entry.key.kernel for entry in bundle.manifest.entries
    }
    assert all(f"the text of {MEMCPY}:_memcpy_u64_tiled is not in {installed}" in line for line in refused)
    others = sum(entry.key.kernel not in HELPED for entry in bundle.manifest.entries)
    assert f"installed {others} kernels" in done.stderr


def test_another_release_is_named_and_its_unchanged_kernels_serve(
    engine: Engine, bundle: Bundle, tmp_path: Path
) -> None:
    fitted = fit(bundle, copy_engine(engine, tmp_path / "newer", version="0.34.0"))
    (finding,) = fitted.refused
    assert (finding.code, finding.subject) == ("I105", "vllm 0.34.0")
    assert len(fitted.placements) == len(bundle.manifest.entries)


def test_a_local_suffix_makes_no_other_release(engine: Engine, bundle: Bundle, tmp_path: Path) -> None:
    assert fit(bundle, copy_engine(engine, tmp_path / "local", version="0.33.0+cu130")).refused == ()


def test_an_engine_without_any_of_the_kernels_is_refused_and_nothing_stays_for_it(
    bundle: Bundle, tmp_path: Path
) -> None:
    root, cache = tmp_path / "engine", tmp_path / "cache"
    (root / "vllm").mkdir(parents=True)
    (root / "vllm" / "__init__.py").write_text("")
    (root / "vllm" / "_version.py").write_text("__version__ = '0.33.0'\n")
    install_bundle(bundle, cache)
    with pytest.raises(IncompatibleError, match=r"nothing in it serves here: I104 .*: the text of"):
        install_bundle(bundle, cache, engine=find_engine(str(root), print))
    assert not list(cache.glob("*/*.cubin"))


def test_a_kernel_that_is_refused_now_does_not_stay_from_an_earlier_install(
    bundle: Bundle, installed: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    before = install_bundle(bundle, cache)
    change(installed, MEMCPY, "def _memcpy_u64_tiled(", "def _memcpy_u64_tiled(  # patched\n")
    after = install_bundle(bundle, cache, engine=find_engine(str(installed), print))
    held = {placement.entry.key.digest: placement.cache_keys for placement in before.fit.placements}
    refused = [entry for entry in bundle.manifest.entries if entry.key.kernel in HELPED]
    assert refused
    assert len(after.fit.placements) == len(held) - len(refused)
    for entry in refused:
        directories = {directory_name(key) for key in held[entry.key.digest]}
        assert not any((cache / directory).exists() for directory in directories)
        assert directories.isdisjoint(after.receipt.entries)


@pytest.fixture
def other_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real ptxas under another version text, as an image that sets TRITON_PTXAS_PATH has it."""
    triton = pytest.importorskip("triton")
    real = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    script = tmp_path / "ptxas"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Cuda compilation tools, release 12.0, V12.0.76" && exit\n'
        f'exec "{real}" "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(script))
    return script


def install(bundle: Bundle, cache: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aotpack", "install", str(bundle.path), "--cache-dir", str(cache), *options]
    return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("other_ptxas")
def test_another_ptxas_is_refused_with_both_releases(bundle: Bundle, tmp_path: Path) -> None:
    done = install(bundle, tmp_path / "cache")
    assert done.returncode == 3
    assert "nothing in it serves here: I102 sm90: the assembler for cuda:90 differs: built with 12." in done.stderr
    assert "found 12.0, V12.0.76" in done.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("other_ptxas")
def test_another_ptxas_is_accepted_for_a_reason_that_is_said(bundle: Bundle, tmp_path: Path) -> None:
    done = install(bundle, tmp_path / "cache", "--other-ptxas", "the image pins it, same major")
    assert done.returncode == 0
    assert "I103 sm90" in done.stderr
    assert "accepted: the image pins it, same major" in done.stderr
    plain = tmp_path / "plain"
    assert install_without_it(bundle, plain).returncode == 0
    directories = {path.name for path in (tmp_path / "cache").iterdir() if path.name.isupper() or path.name.isalnum()}
    # The keys are those of the ptxas that is here, not of the one that compiled.
    assert directories.isdisjoint(path.name for path in plain.iterdir() if not path.name.startswith("."))


def install_without_it(bundle: Bundle, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_PTXAS_PATH"}
    command = [sys.executable, "-m", "aotpack", "install", str(bundle.path), "--cache-dir", str(cache)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_an_assembler_that_differs_for_one_architecture_leaves_the_others(bundle: Bundle, tmp_path: Path) -> None:
    manifest, old = bundle.manifest, Target("cuda", 80)
    sm80 = [replace(entry, key=replace(entry.key, target=old)) for entry in manifest.entries[:2]]
    toolchain = replace(
        manifest.toolchain,
        assemblers=(("cuda:80", "ptxas: release 11.8, V11.8.89\n-80"), *manifest.toolchain.assemblers),
    )
    both = replace(manifest, targets=(old, *manifest.targets), toolchain=toolchain, entries=(*sm80, *manifest.entries))
    fitted = fit_bundle(write_bundle(tmp_path / "both", both, dict(bundle.blobs())))
    assert [(finding.code, finding.subject) for finding in fitted.refused] == [("I102", "sm80")]
    assert len(fitted.placements) == len(manifest.entries)
