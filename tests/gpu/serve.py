"""Serve with a real vLLM on a real GPU, without and with aotpack, and time start-up and first requests.

    python -m tests.gpu.serve MODEL --wheel DIR --work DIR --out FILE TASK...

MODEL is a directory with a config.json; its weights are random. ``--wheel`` is where a wheel that ``aotpack wheel``
made was installed (``pip install --no-deps --target``); only the runs with aotpack see it. A task is ``MODE:CASE`` with
the mode ``eager`` or ``default``, a process of its own for each:

- ``prime``: empty caches, no aotpack; leaves what ``warm`` finds, and vLLM's own torch.compile cache for all others;
- ``cold``: an empty Triton cache, no aotpack;
- ``bundle``: an empty Triton cache, the wheel, vLLM's JIT monitor armed to raise once the engine serves, and in eager
  mode no C compiler on PATH; ``sweep`` is the same, and sends requests of many sizes and drives a vision tower besides;
  ``profile`` is the same under torch's profiler, and ``calls`` under Python's, whose table of either request goes into
  the log: their times are no measurement, and say where a first request's go;
- ``warm``: the Triton cache that ``prime`` has left, no aotpack.

Prints each run, and writes the table of medians with every run as JSON; a file that is there is added to, so that a
long plan can be split. In eager mode nothing is kept between runs but Triton's cache, so ``prime`` counts as ``cold``.
"""

import argparse
import cProfile
import json
import os
import pstats
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aotpack
from tests.gpu import record

CASES = ("cold", "bundle", "warm", "sweep")
WITH_WHEEL = {"bundle": [], "sweep": ["--sweep"], "profile": ["--profiler", "torch"], "calls": ["--profiler", "calls"]}
COMPILERS = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|c99|c89|nvcc)(-[\d.]+)?$")


def spend_in_triton(recording: record.Recording) -> dict[str, float]:
    """Milliseconds of the host that launches take in Triton, by phase: autotuning and loading of code included."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    spent: dict[str, float] = defaultdict(float)
    within = threading.local()

    def timed(launch: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if getattr(within, "launch", False):
                return launch(*args, **kwargs)
            within.launch, began = True, time.perf_counter()
            try:
                return launch(*args, **kwargs)
            finally:
                within.launch = False
                spent[recording.phase] += (time.perf_counter() - began) * 1e3

        return run

    for kind in (JITFunction, Autotuner):
        kind.run = timed(kind.run)
    return spent


def request(engine: Any, recording: record.Recording, phase: str, *, profiler: str | None) -> float:
    """One request of 17 tokens; its milliseconds."""
    if profiler is None:
        return record._request(engine, recording, phase, 17)
    if profiler == "calls":
        calls = cProfile.Profile()
        took = calls.runcall(record._request, engine, recording, phase, 17)
        print(phase)
        pstats.Stats(calls).sort_stats("tottime").print_stats(60)
        return took
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    with profiling(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        took = record._request(engine, recording, phase, 17)
    print(phase, profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=40), sep="\n")
    return took


def once(
    model: Path, *, eager: bool, strict: bool, sweep: bool, profiler: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """One run in this process."""
    from triton import knobs
    from triton.runtime import build

    record.prepare()
    compiled: list[tuple[str, str, str]] = []
    hits: Counter[str] = Counter()
    built: list[str] = []
    recording = record.Recording()
    spent = spend_in_triton(recording)

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            hits[recording.phase] += 1
        else:
            compiled.append((recording.phase, str(src.fn.__module__), src.name))

    compile_helper = build._build

    def compiling(name: str, *args: Any, **kwargs: Any) -> Any:
        found = compile_helper(name, *args, **kwargs)
        if knobs.build.impl is None:
            built.append(name)
        return found

    knobs.compilation.listener, build._build = listen, compiling
    if strict:
        options = {**options, "jit_monitor_mode": "error"}
    engine, meta = record._start(model, eager=eager, options=options)
    if strict:
        from vllm.utils import jit_monitor

        jit_monitor.activate(mode="error")  # in eager mode vLLM leaves it off
        assert jit_monitor.is_active()
    report = {
        "startup_seconds": meta["startup_seconds"],
        "first_request_ms": request(engine, recording, "first request", profiler=profiler),
        "second_request_ms": request(engine, recording, "second request", profiler=profiler),
    }
    if sweep:
        record._send(engine, recording)
        recording.phase = "vision"
        # What the tower's modules bring is as new to the plug-in as a model that an engine loads later.
        record._see(engine, aotpack.preload)
    return report | {
        "compiled": [entry for entry in compiled if entry[1].startswith("vllm.")],
        "compiled_by_inductor": sum(not entry[1].startswith("vllm.") for entry in compiled),
        "hits": dict(hits),
        "triton_ms": {phase: round(took, 1) for phase, took in spent.items()},
        "helpers_built": built,
        "monitor": "error" if strict else "off",
        "gcc": shutil.which("gcc"),
        "versions": {name: meta[name] for name in ("engine", "gpu", "torch", "triton")},
    }


def without_compilers(folder: Path) -> str:
    """A PATH with all that this process's has but compilers."""
    folder.mkdir(exist_ok=True)
    for directory in os.environ["PATH"].split(os.pathsep):
        for path in sorted(Path(directory).iterdir()) if Path(directory).is_dir() else []:
            if not COMPILERS.match(path.name) and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return str(folder)


def run(mode: str, case: str, number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own."""
    work: Path = arguments.work
    warm = work / f"warm-{mode}"
    cache = warm if case in ("prime", "warm") else Path(tempfile.mkdtemp(prefix=case, dir=work))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "VLLM_CACHE_ROOT": str(work / "vllm")}
    command = [sys.executable, "-m", "tests.gpu.serve", str(arguments.model), "--once", "--options", arguments.options]
    command += ["--eager"] * (mode == "eager")
    if case in WITH_WHEEL:
        environment["PYTHONPATH"] = f"{arguments.wheel}:{environment['PYTHONPATH']}"
        environment["AOTPACK_LOG_LEVEL"] = "INFO"
        if mode == "eager":
            environment["PATH"] = without_compilers(work / "path")
        command += ["--strict", *WITH_WHEEL[case]]
    else:
        environment["AOTPACK_DISABLE"] = "1"
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    took = round(time.monotonic() - began, 1)
    log = arguments.out.parent / f"{mode}-{case}-{number}.log"
    log.write_text(done.stdout[-60_000:] + done.stderr[-60_000:])
    shutil.rmtree(cache) if cache != warm else None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"mode": mode, "case": case, "failed": last[0]}
    report = next(line for line in reversed(done.stdout.splitlines()) if line.startswith('{"startup'))
    return {"mode": mode, "case": case, "process_seconds": took, **json.loads(report)}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table: medians, and the most that any run compiled."""
    counted = {("eager", "prime"): "cold"}
    rows = []
    for mode in ("default", "eager"):
        for case in CASES:
            ours = [
                run
                for run in runs
                if run["mode"] == mode and counted.get((mode, run["case"]), run["case"]) == case and "failed" not in run
            ]
            if ours:
                names = ("startup_seconds", "first_request_ms", "second_request_ms")
                rows.append(
                    {
                        "mode": mode,
                        "case": case,
                        "runs": len(ours),
                        **{name: round(statistics.median(run[name] for run in ours), 1) for name in names},
                        "compiled": max(len(run["compiled"]) for run in ours),
                        "compiled_by_inductor": max(run["compiled_by_inductor"] for run in ours),
                        "helpers_built": max(len(run["helpers_built"]) for run in ours),
                    }
                )
    return rows


def main() -> None:
    """Run the tasks one after the other, so that all share the same hour."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tasks", nargs="*")
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--options", default="{}", help="further arguments of vllm.LLM, as JSON")
    for name in ("--once", "--eager", "--strict", "--sweep"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profiler", choices=("torch", "calls"), help=argparse.SUPPRESS)
    arguments = parser.parse_intermixed_args()
    if arguments.once:
        options = json.loads(arguments.options)
        report = once(
            arguments.model,
            eager=arguments.eager,
            strict=arguments.strict,
            sweep=arguments.sweep,
            profiler=arguments.profiler,
            options=options,
        )
        print(json.dumps(report), flush=True)
        os._exit(0)  # what the engine does on its way out is not measured, and takes seconds
    arguments.work.mkdir(exist_ok=True)
    runs = json.loads(arguments.out.read_text())["runs"] if arguments.out.exists() else []
    for task in arguments.tasks:
        mode, _, case = task.partition(":")
        runs.append(run(mode, case, len(runs), arguments))
        print(json.dumps(runs[-1]), flush=True)
        arguments.out.write_text(json.dumps({"table": summary(runs), "runs": runs}, indent=2) + "\n")
    for row in summary(runs):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
