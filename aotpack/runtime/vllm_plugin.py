"""The plug-in that vLLM loads by itself in each of its processes (entry point group ``vllm.general_plugins``).

vLLM calls ``register`` before it makes a worker (vllm/v1/worker/worker_base.py, ``init_worker``), when neither a
device is chosen nor a model's modules are imported. So what must wait is hung before two methods of its GPU worker
(vllm/v1/worker/gpu_worker.py), which both of its model runners and every tensor parallel rank go through, in eager
mode too: the warm-up, which follows the load of the model, and the arming of the JIT monitor, which ends it. And the
engine's core (vllm/v1/engine/core.py) gets its first requests from here in eager mode, see ``vllm_warmup``: when it is
made, or, where the plug-in is loaded by that itself, in a process of its own, before its loop begins.

The modules are changed when something imports them, and never imported from here: the API server does without.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

from aotpack import runtime
from aotpack.runtime.imports import when_imported
from aotpack.runtime.trouble import complain, switched_off, switched_on, tolerated

WORKER = "vllm.v1.worker.gpu_worker"
WARM_UP = "compile_or_warm_up_model"
ARM = "_maybe_activate_jit_monitor"
CORE = "vllm.v1.engine.core"
LOOP = "run_busy_loop"


def register() -> None:
    """Make aotpack effective in this process; called by vLLM, any number of times."""
    if switched_on("AOTPACK_DISABLE"):
        return
    runtime.activate()
    when_imported(WORKER, prepare_worker)
    if not switched_off("AOTPACK_WARM_UP"):
        when_imported(CORE, prepare_core)


def prepare_worker(module: ModuleType) -> None:
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


def prepare_core(module: ModuleType) -> None:
    """Have the engine's core warmed up when it is made, or at the latest before its loop."""
    for name, method in (("EngineCore", "__init__"), ("EngineCoreProc", LOOP)):
        owner = getattr(module, name, None)
        found = vars(owner).get(method) if isinstance(owner, type) else None
        if callable(found) and not hasattr(found, "before_aotpack"):
            setattr(owner, method, _warming_up(found, first=method == LOOP))


def _warming_up(method: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
    @wraps(method)
    def called(core: Any, *args: Any, **kwargs: Any) -> Any:
        if first:
            _warm_up(core)
        done = method(core, *args, **kwargs)
        if not first:
            _warm_up(core)
        return done

    called.before_aotpack = method  # type: ignore[attr-defined]
    return called


def _warm_up(core: Any) -> None:
    """Warm up a core, once, where packed kernels are served."""
    with tolerated("the engine is not warmed up"):
        if vars(core).setdefault("warmed_up_by_aotpack", False) or not runtime.served_places():
            return
        core.warmed_up_by_aotpack = True
        from aotpack.runtime.vllm_warmup import lacks_warm_up, warm_up

        if lacks_warm_up(core):
            warm_up(core)
