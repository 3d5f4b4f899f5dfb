"""The plug-in that vLLM loads by itself in each of its processes (entry point group ``vllm.general_plugins``).

vLLM calls ``register`` before it makes a worker (vllm/v1/worker/worker_base.py, ``init_worker``), when neither a
device is chosen nor a model's modules are imported. So what must wait is hung before two methods of its GPU worker
(vllm/v1/worker/gpu_worker.py), which both of its model runners and every tensor parallel rank go through, in eager
mode too: the warm-up, which follows the load of the model, and the arming of the JIT monitor, which ends it. The
worker's module is changed when something imports it, and never imported from here: the API server does without.
"""

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from aotpack import runtime
from aotpack.runtime.trouble import complain, switched_on, tolerated

WORKER = "vllm.v1.worker.gpu_worker"
WARM_UP = "compile_or_warm_up_model"
ARM = "_maybe_activate_jit_monitor"


def register() -> None:
    """Make aotpack effective in this process; called by vLLM, any number of times."""
    if switched_on("AOTPACK_DISABLE"):
        return
    runtime.activate()
    worker = sys.modules.get(WORKER)
    if worker is not None:
        prepare(worker)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Has the worker's module prepared when it is imported; answers for no other."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != WORKER:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader.exec_module = _then_prepare(spec.loader.exec_module)  # type: ignore[method-assign,assignment]
                return spec
        return None


def _then_prepare(execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def executed(module: ModuleType) -> None:
        execute(module)
        prepare(module)

    return executed


def prepare(module: ModuleType) -> None:
    """Hang the preload before the methods of the worker's class; where they are not there, say so and go on."""
    worker = getattr(module, "Worker", None)
    if not callable(getattr(worker, WARM_UP, None)):
        complain(f"kernels are not preloaded: this vLLM's {WORKER} has no Worker.{WARM_UP}")
        return
    for name in (WARM_UP, ARM):
        method = getattr(worker, name, None)  # releases without the monitor have only the first
        if callable(method) and not hasattr(method, "before_aotpack"):
            setattr(worker, name, _after_preload(method))


def _after_preload(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with tolerated("kernels are not preloaded"):
            _preloader().run()
        return method(*args, **kwargs)

    called.before_aotpack = method  # type: ignore[attr-defined]
    return called


@lru_cache(maxsize=1)
def _preloader() -> Any:
    # Imported where a model is served alone.
    from aotpack.runtime.preload import Preloader

    return Preloader()
