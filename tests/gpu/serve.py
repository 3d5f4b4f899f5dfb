"""Serve with a real vLLM on a real GPU, without and with aotpack, and time start-up and first requests.

    python -m tests.gpu.serve MODEL --wheel DIR --out FILE [--runs 3] [--modes eager,default]

MODEL is a directory with a config.json; its weights are random. DIR is where a wheel that ``aotpack wheel`` made was
installed (``pip install --no-deps --target DIR``); only the runs with aotpack see it. Each run is a process of its own:

- ``cold``: an empty Triton cache, no aotpack;
- ``bundle``: an empty Triton cache, the wheel, vLLM's JIT monitor armed to raise once the engine serves, and in eager
  mode no C compiler on PATH;
- ``warm``: the Triton cache that a run before has left, no aotpack.

vLLM's own torch.compile cache is warm in all of them. The first bundle run of each mode also sends requests of many
sizes and drives a vision tower. Prints and writes the table and every run as JSON.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

CASES = ("cold", "bundle", "warm")
COMPILERS = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|c99|c89|nvcc)(-[\d.]+)?$")


def once(model: Path, *, eager: bool, strict: bool, sweep: bool, options: dict[str, Any]) -> dict[str, Any]:
    """One run in this process."""
    for name, value in (
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("VLLM_USE_FLASHINFER_SAMPLER", "0"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("HF_HUB_OFFLINE", "1"),
    ):
        os.environ.setdefault(name, value)
    from triton import knobs
    from triton.runtime import build

    from tests.gpu import record

    compiled: list[tuple[str, str, str]] = []
    hits: Counter[str] = Counter()
    built: list[str] = []
    recording = record.Recording()

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
        "first_request_ms": record._request(engine, recording, "first request", 17),
        "second_request_ms": record._request(engine, recording, "second request", 17),
    }
    if sweep:
        record._send(engine, recording)
        recording.phase = "vision"
        record._see(engine)
    return report | {
        "compiled": [entry for entry in compiled if entry[1].startswith("vllm.")],
        "compiled_by_inductor": sum(not entry[1].startswith("vllm.") for entry in compiled),
        "hits": dict(hits),
        "helpers_built": built,
        "monitor": "error" if strict else "off",
        "gcc": shutil.which("gcc"),
        "versions": {name: meta[name] for name in ("engine", "gpu", "torch", "triton")},
    }


def without_compilers(folder: Path) -> str:
    """A PATH with all that this process's has but compilers."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for path in sorted(Path(directory).iterdir()) if Path(directory).is_dir() else []:
            if not COMPILERS.match(path.name) and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return str(folder)


def run(case: str, mode: str, number: int, arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One run in a process of its own."""
    cache = work / f"warm-{mode}" if case in ("prime", "warm") else Path(tempfile.mkdtemp(prefix=case, dir=work))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "VLLM_CACHE_ROOT": str(work / "vllm")}
    command = [sys.executable, "-m", "tests.gpu.serve", str(arguments.model), "--once", "--options", arguments.options]
    command += ["--eager"] * (mode == "eager")
    if case == "bundle":
        environment["PYTHONPATH"] = f"{arguments.wheel}:{environment['PYTHONPATH']}"
        environment["AOTPACK_LOG_LEVEL"] = "INFO"
        if mode == "eager":
            environment["PATH"] = str(work / "path")
        command += ["--strict", *["--sweep"] * (number == 0)]
    else:
        environment["AOTPACK_DISABLE"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (arguments.out.parent / f"{mode}-{case}-{number}.log").write_text(done.stdout[-20_000:] + done.stderr[-60_000:])
    if done.returncode:
        return {"case": case, "mode": mode, "failed": done.stderr.strip().splitlines()[-1:] or [done.returncode]}
    return {"case": case, "mode": mode, **json.loads(done.stdout.strip().splitlines()[-1])}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table: medians, and what was compiled in all."""
    rows = []
    for mode in dict.fromkeys(run["mode"] for run in runs):
        for case in CASES:
            ours = [run for run in runs if (run["mode"], run["case"]) == (mode, case) and "failed" not in run]
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
    """Prime the caches, then run each case in turn, so that all share the same hour."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--modes", default="eager,default")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--options", default="{}", help="further arguments of vllm.LLM, as JSON")
    for name in ("--once", "--eager", "--strict", "--sweep"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        options = json.loads(arguments.options)
        report = once(
            arguments.model, eager=arguments.eager, strict=arguments.strict, sweep=arguments.sweep, options=options
        )
        print(json.dumps(report))
        return
    with tempfile.TemporaryDirectory() as name:
        work, runs = Path(name), []
        without_compilers(work / "path")
        for mode in arguments.modes.split(","):
            order = ["prime"] * ("warm" in arguments.cases) + arguments.cases.split(",") * arguments.runs
            for place, case in enumerate(order):
                number = sum(earlier == case for earlier in order[:place])
                runs.append(run(case, mode, number, arguments, work))
                print(json.dumps({key: value for key, value in runs[-1].items() if key != "hits"}), flush=True)
                arguments.out.write_text(json.dumps({"table": summary(runs), "runs": runs}, indent=2) + "\n")
        for row in summary(runs):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
