"""How fast a build compiles, against a plain loop of ``triton.compile`` on one core."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmark.figures import Figure, Goal
from benchmark.spending import python, spend, take_turns
from benchmark.workplace import Workplace, build_command

DISTINCT = Goal(word="at least", limit=1.9)
COUNTED = Goal(word="at least", limit=2.5)
REBUILD = Goal(word="at most", limit=5)
WORKER = Goal(word="at most", limit=1.2)
JOBS = 2
_GIB = 1 << 30


def measure(place: Workplace) -> Iterator[Figure]:
    """The figures of building."""
    done: dict[int, dict[str, Any]] = {}

    def ours() -> None:
        done[JOBS] = compile_with(place, JOBS)

    plain = compile_plainly(place, ours)
    one, two = compile_with(place, 1), done[JOBS]
    rate = plain["keys"] / plain["seconds"]
    rival = f"plain loop on one core, {plain['keys']} keys"
    for made, jobs, distinct, counted in ((one, 1, None, None), (two, JOBS, DISTINCT, COUNTED)):
        compiles = (made["keys"] - made["shared"]) / made["seconds"]
        keys = made["keys"] / made["seconds"]
        for what, value, goal in (("distinct compiles", compiles, distinct), ("keys", keys, counted)):
            yield Figure(
                name=f"{what} a second, jobs {jobs}",
                value=value,
                unit="/s",
                rival=rival,
                rival_value=rate,
                goal=goal,
            )
        yield Figure(
            name=f"processor seconds a key, jobs {jobs}",
            value=made["processor"] / made["keys"],
            unit="s",
            rival="plain loop",
            rival_value=plain["processor"] / plain["keys"],
        )
    efficiency = one["seconds"] / (JOBS * two["seconds"])
    yield Figure(name=f"parallel efficiency at {JOBS}", value=efficiency, unit="")
    yield Figure(name="keys that share a back-end compile", value=100 * two["shared"] / two["keys"], unit="%")
    yield Figure(
        name="peak memory of a worker",
        value=two["peak"] / _GIB,
        unit="GiB",
        goal=WORKER,
    )
    yield Figure(name="peak memory of the plain loop", value=plain["peak"] / _GIB, unit="GiB")
    yield rebuild(place)


def compile_plainly(place: Workplace, between: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What the plain loop took; its cache directory stays, since Triton names files there by absolute path.

    Args:
        place: what to measure with.
        between: what is done when half of the keys are compiled. A machine's speed drifts within minutes, and what
            runs in the middle of its rival meets the same.
    """
    shutil.rmtree(place.plain, ignore_errors=True)
    first = _compile(place, "plain", 1, str(place.plain), "0")
    between()
    second = _compile(place, "plain", 1, str(place.plain), "1")
    sums = {name: first[name] + second[name] for name in ("keys", "shared", "seconds", "processor")}
    return {**sums, "peak": max(first["peak"], second["peak"])}


def compile_with(place: Workplace, jobs: int) -> dict[str, Any]:
    """What aotpack's workers took."""
    return _compile(place, str(jobs), jobs)


def _compile(place: Workplace, way: str, cores: int, *cache: str) -> dict[str, Any]:
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    command = python("-m", "benchmark.compiling", way, place.bundle.path, place.engine.root, str(place.sample or 0))
    return spend(["taskset", "-c", ",".join(map(str, allowed)), *command, *cache]).reported()


def rebuild(place: Workplace) -> Figure:
    """A whole build where nothing has changed since the last one."""
    with place.fresh() as folder:
        command = build_command(place.engine, folder / "again.tar.zst", small=place.quick)
        environment = {"AOTPACK_CACHE_DIR": str(place.kept)}
        spend(command, environment)
        seconds = take_turns({"again": lambda: spend(command, environment).seconds}, place.runs)["again"]
    what = "two families of one preset" if place.quick else "all presets"
    return Figure(name=f"rebuild of {what}, nothing changed", value=seconds, unit="s", goal=REBUILD)


def archive(directory: Path, path: Path, compressor: str) -> int:
    """The size of a tar of a directory's files; names, owners and times are as tar takes them."""
    subprocess.run(["tar", "-C", directory, "-I", compressor, "-cf", path, "."], check=True)
    return path.stat().st_size
