"""Launch an engine's autotuned kernels on a real GPU, out of a bundle that has their results: nothing is measured.

    python -m tests.gpu.tuned BUNDLE --engine ENGINE [--model MODEL]... [--tp 1,2] [--out FILE]

Installs BUNDLE into an empty cache directory and launches every decision that the models' autotuners take there, in a
process with no compiler on PATH, by Triton's own autotuner with its results kept on disk, as vLLM has it. The same
launches follow out of an empty cache, for comparison. Prints a JSON report: how often the autotuner measured, what was
compiled (neither may happen out of the bundle), what it decided, and how long all first launches took.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from aotpack import measuring, tune
from aotpack.build import Selection
from aotpack.bundle import open_bundle
from aotpack.deployments import make_services
from aotpack.engines import find_engine
from aotpack.measuring import Bench
from aotpack.memorykeys import look_up
from aotpack.models import load_model
from aotpack.tracing.trials import Trial


def launch_all(bench: Bench, trials: Sequence[Trial], path: str) -> dict[str, Any]:
    """Launch each trial once, in a process that has nothing ready."""
    os.environ |= {"TRITON_CACHE_AUTOTUNING": "1", "PATH": path}
    import torch
    from triton import knobs
    from triton.runtime.autotuner import Autotuner

    from aotpack.autotuner import configuration_of, find_autotuner

    modules = measuring._modules(bench)
    measured: list[str] = []
    compiled: list[str] = []
    decided: list[str] = []
    benchmark = Autotuner._bench

    def counted(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        measured.append(tuner.base_fn.__name__)
        return benchmark(tuner, *args, **kwargs)

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled.append(src.name)

    Autotuner._bench, knobs.compilation.listener = counted, listen
    launches = []
    for trial in trials:
        module, _, qualname = trial.tuning.kernel.partition(":")
        tuner = find_autotuner(look_up(modules[module], qualname))
        launches.append((trial, tuner, *trial.arguments(bench.place)))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for trial, tuner, positional, named in launches:
        tuner.run(*positional, **named, grid=trial.grid(), warmup=False)
        decided.append(str(configuration_of(tuner.best_config)))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 3), "measured": measured, "compiled": compiled, "decided": decided}


def in_a_process(bench: Bench, trials: Sequence[Trial], path: str) -> dict[str, Any]:
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=measuring.prepare, initargs=(bench,)) as pool:
        return pool.submit(launch_all, bench, trials, path).result()


def main() -> None:
    """Install, launch, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--tp", default="1")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    engine, gpu = find_engine(arguments.engine, print), tune.this_gpu()
    bundle = open_bundle(arguments.bundle)
    models = [load_model(model) for model in arguments.model or ["qwen3.5-27b"]]
    services = make_services(models, [int(size) for size in arguments.tp.split(",")], gdn_prefill="triton")
    selection = Selection(engine=engine, targets=(gpu.target,), families=("gdn",), services=services)
    trials = tune._trials(selection, gpu, 2, lambda *_: None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "empty").mkdir()
        command = [sys.executable, "-m", "aotpack", "install", str(arguments.bundle), "--engine", arguments.engine]
        subprocess.run([*command, "--cache-dir", str(folder / "bundle")], check=True)

        def bench(cache: str) -> Bench:
            return Bench(
                engine=engine,
                target=gpu.target,
                families=("gdn",),
                cache=folder / cache,
                cuda=gpu.cuda,
                milliseconds=100,
            )

        ours = in_a_process(bench("bundle"), trials, str(folder / "empty"))
        cold = in_a_process(bench("cold"), trials, os.environ["PATH"])
    packed = {kept.result.tuning: kept.result for kept in bundle.manifest.results if kept.result.device == gpu.name}
    report = {
        "gpu": gpu.name,
        "triton": bundle.manifest.toolchain.triton,
        "python": sys.version.split()[0],
        "decisions": len(trials),
        "with results": sum(trial.tuning in packed for trial in trials),
        "as packed": sum(
            trial.tuning in packed and str(packed[trial.tuning].fastest) == one
            for trial, one in zip(trials, ours["decided"], strict=True)
        ),
        "keys": len(bundle.manifest.entries),
        "bundle": {**ours, "measured": len(ours["measured"])},
        "empty cache": {**cold, "measured": len(cold["measured"]), "compiled": len(cold["compiled"])},
    }
    print(json.dumps(report, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if ours["measured"] or ours["compiled"] else 0)


if __name__ == "__main__":
    main()
