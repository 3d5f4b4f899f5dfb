"""What starting costs: the commands that need no compiler import none."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "triton", "numpy", "zstandard", "packaging.requirements"}


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_command_line_loads_no_compiler_and_little_else() -> None:
    loaded = {name for name in loaded_by("import aotpack.cli") if not name.startswith("aotpack.cli.")}
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("aotpack.")} <= {
        "aotpack.cli",
        "aotpack.deployments",
        "aotpack.errors",
        "aotpack.models",
        "aotpack.targets",
        "aotpack.documents",
        "aotpack.digests",
    }


@pytest.mark.parametrize(
    "module",
    [
        "bundle",
        "install",
        "doctor",
        "report.build",
        "report.doctor",
        "engines",
        "families",
        "build",
        "pool",
        "cluster",
        "kept",
        "compiler",
        "listener",
        "misses",
        "store",
        "runtime.overlay",
        "runtime.helpers",
        "wheel",
        "shipping",
        "registry",
    ],
)
def test_no_module_imports_torch_or_triton_before_it_is_used(module: str) -> None:
    assert not loaded_by(f"import aotpack.{module}") & {"torch", "triton"}


def test_what_speaks_with_registries_is_loaded_where_it_does_alone() -> None:
    assert not loaded_by("import aotpack.report.registry, aotpack.shipping") & {"dxf", "requests", "urllib3"}


def test_dask_is_loaded_where_a_cluster_compiles_alone() -> None:
    assert not loaded_by("import aotpack.build, aotpack.cluster, aotpack.kept") & {"dask", "distributed"}


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-Im", "aotpack", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("aotpack, version ")
