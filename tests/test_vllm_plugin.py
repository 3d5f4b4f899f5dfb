"""The plug-in: it waits for vLLM's worker, in whatever process, and puts the preload before what must find it done.

The worker's module cannot be imported without a GPU. So its text is read for what the plug-in relies on, and a module
of the same name and with the same two methods is really imported.
"""

import ast
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from aotpack.engines import Engine
from aotpack.runtime.vllm_plugin import ARM, WARM_UP, WORKER, register
from tests.conftest import ROOT

STAND_IN = f"""
import made
class Worker:
    def {WARM_UP}(self):
        "vLLM's own words"
        made.append("warm-up")
        self.{ARM}()
        return "times"
    def {ARM}(self):
        made.append("armed")
class Derived(Worker):
    pass
"""


def test_the_engine_has_the_methods_and_arms_at_the_end_of_the_warm_up(engine: Engine) -> None:
    text = (engine.root / Path(*WORKER.split("."))).with_suffix(".py").read_text()
    (worker,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == "Worker"]
    methods = {node.name: ast.unparse(node) for node in worker.body if isinstance(node, ast.FunctionDef)}
    assert WARM_UP in methods
    assert f"self.{ARM}()" in "".join(text for name, text in methods.items() if name.endswith(WARM_UP))
    assert "activate_jit_monitor(" in methods[ARM]


def test_vllm_finds_the_plug_in_by_its_entry_point() -> None:
    found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "aotpack"]
    assert [point.load() for point in found] == [register]


@pytest.fixture
def serving(tmp_path: Path) -> Path:
    """A directory with a package ``vllm`` that has a worker, and a list that tells what was called."""
    package = tmp_path.joinpath(*WORKER.split(".")[:-1])
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    (package / "gpu_worker.py").write_text(STAND_IN)
    (tmp_path / "made.py").write_text("calls = []\nappend = calls.append\n")
    return tmp_path


def run(serving: Path, text: str, **environment: str) -> list[str]:
    """What a process says, in lines, that has the plug-in and stands in for the preload itself."""
    before = (
        "import sys, made, aotpack.runtime.vllm_plugin as plugin\n"
        "from aotpack.runtime.preload import Preloader\n"
        "Preloader.run = lambda self: made.append('preload')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", before + text],
        cwd=ROOT,
        env={"PATH": "", "HOME": str(serving), "PYTHONPATH": f"{serving}:{ROOT}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


IN_ORDER = "preload warm-up preload armed times"
SERVE = "print(*made.calls, worker)"


@pytest.mark.parametrize(
    "text",
    [
        f"plugin.register(); from {WORKER} import Worker",
        f"plugin.register(); plugin.register(); from {WORKER} import Worker",
        f"from {WORKER} import Worker; plugin.register(); plugin.register()",
        f"plugin.register(); import {WORKER}; plugin.register(); Worker = {WORKER}.Worker",
        f"plugin.register(); from {WORKER} import Derived as Worker",
    ],
)
def test_the_preload_comes_before_the_warm_up_and_before_the_monitor_is_armed(serving: Path, text: str) -> None:
    assert run(serving, f"{text}\nworker = Worker().{WARM_UP}()\n{SERVE}") == [IN_ORDER]


def test_a_forked_process_that_imports_the_worker_later_has_it_too(serving: Path) -> None:
    text = f"""
import os
plugin.register()
if os.fork():
    os.wait()
else:
    from {WORKER} import Worker
    worker = Worker().{WARM_UP}()
    {SERVE}
"""
    assert run(serving, text) == [IN_ORDER]


def test_the_methods_keep_their_names_and_the_module_its_source(serving: Path) -> None:
    text = f"""
import inspect
plugin.register()
import {WORKER} as worker
print(worker.Worker.{WARM_UP}.__name__, worker.Worker.{WARM_UP}.__doc__)
print(inspect.getsource(worker) == open(worker.__file__).read(), worker.__spec__.origin == worker.__file__)
"""
    assert run(serving, text) == [f"{WARM_UP} vLLM's own words", "True True"]


def test_a_process_without_a_worker_imports_nothing_of_the_engine_or_of_torch(serving: Path) -> None:
    text = """
plugin.register()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"vllm", "torch", "triton"}))
"""
    assert run(serving, text) == ["[]"]


def test_a_release_without_the_monitor_is_preloaded_before_its_warm_up(serving: Path) -> None:
    (serving / Path(*WORKER.split("."))).with_suffix(".py").write_text(
        f"import made\nclass Worker:\n    def {WARM_UP}(self): made.append('warm-up')\n"
    )
    text = f"plugin.register(); from {WORKER} import Worker\nworker = Worker().{WARM_UP}()\n{SERVE}"
    assert run(serving, text) == ["preload warm-up None"]


@pytest.mark.parametrize("module", ["", "class Worker: pass\n"])
def test_a_release_without_the_warm_up_is_one_warning(serving: Path, module: str) -> None:
    (serving / Path(*WORKER.split("."))).with_suffix(".py").write_text(module)
    (said,) = run(serving, f"plugin.register(); import {WORKER}")
    assert said == f"kernels are not preloaded: this vLLM's {WORKER} has no Worker.{WARM_UP}"


@pytest.mark.parametrize(("strict", "end"), [("0", "warm-up preload armed times"), ("1", "RuntimeError")])
def test_what_goes_wrong_is_one_warning_or_an_error_where_that_is_asked_for(
    serving: Path, strict: str, end: str
) -> None:
    text = f"""
def run(self):
    made.append("preload")
    if made.calls.count("preload") == 1:
        raise RuntimeError("broken")
Preloader.run = run
plugin.register()
from {WORKER} import Worker
try:
    worker = Worker().{WARM_UP}()
except RuntimeError as error:
    worker = type(error).__name__
{SERVE}
"""
    said = run(serving, text, AOTPACK_STRICT=strict)
    assert said[0] == f"preload {end}"
    assert said[1:] == ["kernels are not preloaded: RuntimeError: broken"] * (strict == "0")


def test_switched_off_the_worker_is_as_it_was(serving: Path) -> None:
    text = f"plugin.register(); from {WORKER} import Worker\nworker = Worker().{WARM_UP}()\n{SERVE}"
    assert run(serving, text, AOTPACK_DISABLE="1") == ["warm-up armed times"]
