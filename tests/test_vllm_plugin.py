"""The plug-in: it waits for vLLM's worker, in whatever process, and puts the preload before what must find it done.

The modules of worker and core cannot be imported without a GPU. So their texts are read for what the plug-in relies on,
and modules of the same names and with the same methods are really imported.
"""

import ast
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from aotpack.engines import Engine
from aotpack.runtime import vllm_warmup
from aotpack.runtime.vllm_plugin import ARM, CORE, LOOP, WARM_UP, WORKER, register
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


# The engine's core


def class_of(engine: Engine, module: str, name: str) -> ast.ClassDef:
    text = (engine.root / Path(*module.split("."))).with_suffix(".py").read_text()
    return next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)


def test_the_engine_has_what_a_warm_up_calls(engine: Engine) -> None:
    core = class_of(engine, CORE, "EngineCore")
    methods = {node.name: ast.unparse(node) for node in core.body if isinstance(node, ast.FunctionDef)}
    assert {"add_request", "preprocess_add_request", "post_step", "abort_requests"} <= methods.keys()
    made = {
        name for name in ("vllm_config", "scheduler", "batch_queue", "step_fn") if f"self.{name}" in methods["__init__"]
    }
    assert made == {"vllm_config", "scheduler", "batch_queue", "step_fn"}
    process = class_of(engine, CORE, "EngineCoreProc")
    assert LOOP in [node.name for node in process.body if isinstance(node, ast.FunctionDef)]


def test_a_request_of_a_warm_up_gives_all_that_the_engine_asks_for(engine: Engine) -> None:
    text = (engine.root / "vllm/v1/engine/__init__.py").read_text()
    request = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == "EngineCoreRequest")
    fields = {
        n.target.id: n.value for n in request.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    ours = ast.parse(Path(vllm_warmup.__file__).read_text())
    (call,) = [n for n in ast.walk(ours) if isinstance(n, ast.Call) and ast.unparse(n.func) == "EngineCoreRequest"]
    given = {keyword.arg for keyword in call.keywords}
    assert {name for name, default in fields.items() if default is None} <= given <= fields.keys()


CORE_STAND_IN = """
import made
from types import SimpleNamespace as Made
class Scheduler:
    def __init__(self):
        self.left = []
    def has_requests(self):
        return bool(self.left)
class EngineCore:
    def __init__(self, config):
        made.append("made")
        self.vllm_config, self.scheduler, self.batch_queue = config, Scheduler(), None
        self.step_fn = self.step
    def preprocess_add_request(self, request):
        return request, 0
    def add_request(self, request, wave):
        self.scheduler.left = [request] * 3
    def step(self):
        made.append(len(self.scheduler.left[0].prompt_token_ids))
        if made.broken:
            raise MemoryError("none left")
        self.scheduler.left.pop()
        return {}, True
    def post_step(self, executed):
        assert executed
    def abort_requests(self, names):
        made.append(*names)
class EngineCoreProc(EngineCore):
    def __init__(self, config):
        import aotpack.runtime.vllm_plugin as plugin
        if made.late:
            plugin.register()
        super().__init__(config)
    def run_busy_loop(self):
        made.append("loop")
"""


@pytest.fixture
def engine_core(serving: Path) -> Path:
    """What ``serving`` is, with a core besides, and with what a request is made of."""
    package = serving / "vllm" / "v1" / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("from types import SimpleNamespace as EngineCoreRequest\n")
    (package / "core.py").write_text(CORE_STAND_IN)
    (serving / "vllm" / "__init__.py").write_text("from types import SimpleNamespace as SamplingParams\n")
    (serving / "made.py").write_text("late = broken = False\ncalls = []\nappend = calls.append\n")
    return serving


SERVED = f"""
from types import SimpleNamespace as Made
from aotpack import runtime
runtime.served_places = lambda: ("a place",)
def config(eager=True, kind="generate", ranks=1, connector=None, longest=8192):
    model = Made(enforce_eager=eager, runner_type=kind, is_encoder_decoder=False, max_model_len=longest)
    return Made(model_config=model, parallel_config=Made(data_parallel_size=ranks), kv_transfer_config=connector)
plugin.register()
from {CORE} import EngineCore, EngineCoreProc
"""


def test_an_eager_engine_gets_its_first_requests_when_it_is_made(engine_core: Path) -> None:
    text = f"{SERVED}EngineCoreProc(config()).{LOOP}()\nprint(*made.calls)"
    assert run(engine_core, text) == ["made 16 16 16 64 64 64 256 256 256 loop"]
    text = f"{SERVED}EngineCore(config(longest=100))\nprint(*made.calls)"
    assert run(engine_core, text) == ["made 16 16 16 64 64 64 97 97 97"]


def test_where_the_engine_loads_the_plug_in_itself_it_gets_them_before_its_loop(engine_core: Path) -> None:
    text = SERVED.replace("plugin.register()", "made.late = True")
    assert run(engine_core, f"{text}EngineCoreProc(config()).{LOOP}()\nprint(*made.calls)") == [
        "made 16 16 16 64 64 64 256 256 256 loop"
    ]


@pytest.mark.parametrize("other", ["eager=False", "kind='pooling'", "ranks=2", "connector='one'"])
def test_others_are_left_alone(engine_core: Path, other: str) -> None:
    text = f"{SERVED}EngineCoreProc(config({other})).{LOOP}()\nprint(*made.calls)"
    assert run(engine_core, text) == ["made loop"]


@pytest.mark.parametrize("why", ["runtime.served_places = lambda: ()", "AOTPACK_WARM_UP"])
def test_where_nothing_is_served_or_it_is_switched_off_so_is_an_eager_one(engine_core: Path, why: str) -> None:
    off = why == "AOTPACK_WARM_UP"
    text = f"{SERVED}{'' if off else why}\nEngineCoreProc(config()).{LOOP}()\nprint(*made.calls)"
    assert run(engine_core, text, AOTPACK_WARM_UP="0" if off else "") == ["made loop"]


def test_a_warm_up_that_fails_is_one_warning_and_its_request_is_taken_out(engine_core: Path) -> None:
    text = f"{SERVED}made.broken = True\nEngineCoreProc(config()).{LOOP}()\nprint(*made.calls)"
    assert run(engine_core, text) == [
        "made 16 aotpack-warm-up-16 loop",
        "the engine is not warmed up: MemoryError: none left",
    ]
