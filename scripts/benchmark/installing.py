"""How fast a bundle is installed, against tar, Triton's own ``put``, and cp; and how that grows."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from aotpack.bundle import Bundle
from benchmark.figures import Figure, Goal
from benchmark.spending import peak_of, python, spend, take_turns
from benchmark.workplace import Workplace

TAR = Goal(word="at most", limit=2)
PUT = Goal(word="at most", limit=0.1)
STORE = Goal(word="at most", limit=1.2)
NO_OP = Goal(word="at most", limit=0.3)
MEMORY = Goal(word="at most", limit=200)
LINEAR = Goal(word="at most", limit=1.3)
_NOISE = 0.2
MANY = 1000
"""The keys of the bundle for which something is asked of an install; with fewer, Python and Triton take most of it."""

_MIB = 1 << 20

KEEP = """
import json, sys, time
from pathlib import Path
from aotpack.packed import keep_packed
start = time.perf_counter()
keep_packed(Path(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def measure(place: Workplace) -> Iterator[Figure]:
    """The figures of installing."""
    grown: dict[str, list[tuple[int, float]]] = {}
    for keys in place.sizes:
        bundle = place.multiplied(keys)
        taken = _times(place, bundle)
        peak = _peak(place, bundle)
        for name in ("install", "no-op", "packed beside"):
            grown.setdefault(name, []).append((keys, taken[name]))
        yield from _figures(keys, taken)
        yield Figure(name=f"peak memory of an install, {keys:,} keys", value=peak / _MIB, unit="MiB", goal=MEMORY)
    labels = {"install": "install", "no-op": "no-op reinstall", "packed beside": "install --packed"}
    for name, label in labels.items():
        yield from growth(label, grown[name])


def _figures(keys: int, taken: dict[str, float]) -> Iterator[Figure]:
    for rival, name, goal in (("tar --zstd -x of the same files", "tar", TAR), ("Triton's put", "put", PUT)):
        whole = Figure(
            name=f"install, {keys:,} keys",
            value=taken["install"],
            unit="s",
            rival=rival,
            rival_value=taken[name],
            goal=goal if keys >= MANY else None,
        )
        yield whole
        yield replace(whole, name=f"install in a process that has Triton, {keys:,} keys", value=taken["install beside"])
    for rival, name, goal in (("cp and sha256sum of the bundle", "cp", STORE), ("Triton's put", "put", PUT)):
        whole = Figure(
            name=f"install --packed, {keys:,} keys",
            value=taken["packed"],
            unit="s",
            rival=rival,
            rival_value=taken[name],
        )
        yield whole
        yield replace(
            whole,
            name=f"install --packed in a process that has aotpack, {keys:,} keys",
            value=taken["packed beside"],
            goal=goal if keys >= MANY else None,
        )
    yield Figure(name=f"no-op reinstall, {keys:,} keys", value=taken["no-op"], unit="s")
    yield Figure(
        name=f"no-op reinstall in a process that has Triton, {keys:,} keys",
        value=taken["no-op beside"],
        unit="s",
        goal=NO_OP if keys <= MANY else None,
    )


def growth(what: str, grown: Sequence[tuple[int, float]]) -> Iterator[Figure]:
    """What each further key costs between two sizes, against what it does between the two before.

    Where the step before is small beside what it is a difference of, that is noise, and nothing is told.
    """
    steps = [
        (before, after, 1000 * (later - earlier) / (after - before), later - earlier > _NOISE * later)
        for (before, earlier), (after, later) in pairwise(grown)
    ]
    for (_, _, rival, is_step), (before, after, value, _) in pairwise(steps):
        if is_step:
            yield Figure(
                name=f"{what}, each key from {before:,} to {after:,}",
                value=value,
                unit="ms",
                rival=f"each key up to {before:,}",
                rival_value=rival,
                goal=LINEAR,
            )


def _times(place: Workplace, bundle: Bundle) -> dict[str, float]:
    """Medians of all that is compared, in turns."""
    with place.fresh() as folder:
        cache, packed = folder / "cache", folder / "cache.tar.zst"
        spend(_install(bundle, cache))
        subprocess.run(["tar", "-C", cache, "--exclude", ".aotpack", "--zstd", "-cf", packed, "."], check=True)

        def into(command: Callable[[Path], Sequence[str | Path]]) -> float:
            with place.fresh() as target:
                return spend(command(target)).seconds

        def copied() -> float:
            with place.fresh() as target:
                copy = spend(["cp", bundle.path, target / "bundle"])
                return copy.seconds + spend(["sha256sum", target / "bundle"]).seconds

        def beside() -> float:
            with place.fresh() as target:
                return _beside_triton(bundle, target)

        def kept() -> float:
            with place.fresh() as target:
                return float(spend(python("-c", KEEP, bundle.path, target / "packed")).reported()["seconds"])

        def put() -> float:
            with place.fresh() as target:
                return float(spend(python("-m", "benchmark.putting", cache, target)).reported()["seconds"])

        cases = {
            "install": lambda: into(lambda target: _install(bundle, target)),
            "tar": lambda: into(lambda target: ["tar", "-C", target, "--zstd", "-xf", packed]),
            "put": put,
            "install beside": beside,
            "no-op": lambda: spend(_install(bundle, cache)).seconds,
            "no-op beside": lambda: _beside_triton(bundle, cache),
            "packed": lambda: into(
                lambda target: python("-m", "aotpack", "install", bundle.path, "--packed", target / "packed")
            ),
            "packed beside": kept,
            "cp": copied,
        }
        return take_turns({name: _settled(case) for name, case in cases.items()}, place.runs)


def _settled(case: Callable[[], float]) -> Callable[[], float]:
    """The case, once what others have written is on the disk."""

    def run() -> float:
        subprocess.run(["sync"], check=True)
        time.sleep(0.1)
        return case()

    return run


def _peak(place: Workplace, bundle: Bundle) -> int:
    with place.fresh() as target:
        return peak_of(_install(bundle, target))


def _beside_triton(bundle: Bundle, cache: Path) -> float:
    """The seconds of an install in a process that has Triton already."""
    command = python("-m", "benchmark.commanding", "install", bundle.path, "--cache-dir", cache)
    return float(spend(command).reported()["seconds"])


def _install(bundle: Bundle, cache: Path) -> list[str | Path]:
    return python("-m", "aotpack", "install", bundle.path, "--cache-dir", cache)
