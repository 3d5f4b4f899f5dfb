"""GPUs, asked of a small libcuda that stands in for the driver: C code, built here, loaded as the real one is."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aotpack.gpus import Driver, Gpu, read_driver

SOURCE = r"""
#include <stdlib.h>
#include <string.h>
static const int archs[] = {ARCHS};
static const int count = sizeof archs / sizeof *archs;
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuInit(unsigned flags) { INIT; }
int cuDeviceGetCount(int *number) { *number = count; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, archs[device] == 90 ? "Fake H100" : "Fake A10", length);
    return 0;
}
#ifndef OLD
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? archs[device] / 10 : which == 76 ? archs[device] % 10 : -1;
    return 0;
}
#endif
"""

Fake = Callable[..., None]


@pytest.fixture
def fake_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a libcuda of the given make where the loader finds it first."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")

    def build(archs: str = "90", version: int = 12080, init: str = "return 0", *defines: str) -> None:
        folder = tmp_path / "driver"
        folder.mkdir()
        (folder / "cuda.c").write_text(SOURCE)
        macros = (f"-DARCHS={archs}", f"-DVERSION={version}", f"-DINIT={init}", *(f"-D{name}" for name in defines))
        command = ["gcc", "-shared", "-fPIC", *macros, "cuda.c", "-o", "libcuda.so.1"]
        subprocess.run(command, check=True, cwd=folder)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))

    return build


def test_each_gpu_is_named_with_its_architecture(fake_driver: Fake) -> None:
    fake_driver("90,86,86", 13000)
    h100, a10 = Gpu(name="Fake H100", arch=90), Gpu(name="Fake A10", arch=86)
    assert read_driver() == Driver(cuda=(13, 0), gpus=(h100, a10, a10))


def test_a_driver_without_a_gpu_is_no_trouble(fake_driver: Fake) -> None:
    fake_driver("90", 12040, "return 100")
    assert read_driver() == Driver(cuda=(12, 4))


@pytest.mark.parametrize(
    ("init", "trouble"),
    [
        ("return 803", "cuInit fails with CUDA error 803"),
        ("abort()", "ended the process that asked (signal 6)"),
        ("exit(7)", "ended the process that asked (exit 7)"),
    ],
)
def test_a_driver_that_fails_costs_its_answer_alone(fake_driver: Fake, init: str, trouble: str) -> None:
    fake_driver("90", 12040, init)
    driver = read_driver()
    assert driver is not None
    assert trouble in driver.trouble
    assert driver.gpus == ()


def test_a_driver_that_lacks_a_function_is_a_trouble(fake_driver: Fake) -> None:
    fake_driver("90", 12040, "return 0", "OLD")
    driver = read_driver()
    assert driver is not None
    assert "cuDeviceGetAttribute" in driver.trouble


def test_a_file_that_is_no_library_is_a_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    driver = read_driver()
    assert driver is not None
    assert "cannot be loaded" in driver.trouble
