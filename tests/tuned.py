"""Launch the fake GPU's family through Triton's autotuner, launch path and launcher, and tell what it took.

    python -m tests.tuned ENGINE MODEL [activate] [preload]

TRITON_CACHE_DIR says where Triton looks. Prints how often the autotuner measured, what was compiled, what it decided.
"""

import json
import os
import sys
from typing import Any

import aotpack
from aotpack.deployments import Deployment
from aotpack.engines import find_engine
from aotpack.families import load_families
from aotpack.models import load_model
from aotpack.runtime.preload import Preloaded, Preloader
from aotpack.targets import Target
from aotpack.tracing import Tracer
from aotpack.tracing.device import PretendStream


def main(engine: str, model: str, *asked: str) -> None:
    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"  # as vLLM's env_override does, before kernels are imported
    if "activate" in asked:
        aotpack.activate()
    from triton import knobs
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver as drivers
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launch, decide, bench = JITFunction.run, Autotuner.run, Autotuner._bench
    families = load_families(["summing"])
    tracer = Tracer(find_engine(engine, print), Target("cuda", 90), families)
    measured: list[str] = []
    misses: list[str] = []
    decided: dict[str, str] = {}

    def counted(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        measured.append(str(kwargs["config"]))
        return bench(tuner, *args, **kwargs)

    def noted(tuner: Any, *args: Any, **kwargs: Any) -> None:
        decide(tuner, *args, **kwargs)
        decided[tuner.base_fn.__name__] = str(tuner.best_config)

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            misses.append(src.name)

    def clock(call: Any, quantiles: Any) -> list[float]:
        call()
        return [float(len(measured))] * len(quantiles)  # the first is the fastest

    JITFunction.run, Autotuner.run, Autotuner._bench = launch, noted, counted
    PretendStream.cuda_stream = 0  # type: ignore[attr-defined]  # the default stream
    driver = CudaDriver()
    driver.get_benchmarker = lambda: clock
    drivers.set_active(driver)
    knobs.compilation.listener = listen
    preloaded = Preloader().run() if "preload" in asked else Preloaded()
    looked: list[str] = []
    check = Autotuner.check_disk_cache

    def looking(tuner: Any, *args: Any) -> Any:
        looked.append(tuner.base_fn.__name__)
        return check(tuner, *args)

    Autotuner.check_disk_cache = looking
    families[0].drive(tracer, Deployment(model=load_model(model)))
    report = {"measured": len(measured), "compiled": len(misses), "decided": decided, "looked": looked}
    print(json.dumps({**report, "preloaded": preloaded.ready, "tuned": preloaded.tuned}))


if __name__ == "__main__":
    main(*sys.argv[1:])
