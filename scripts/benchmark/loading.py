"""How fast a process that serves comes to its kernels: activation, preload, first hits."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from check_launches import build_fake

from aotpack.bundle import Bundle, open_bundle
from aotpack.install import install_bundle
from aotpack.packed import keep_packed
from aotpack.store import unpack_store
from aotpack.tracing import LINE_INFO
from benchmark.building import compile_plainly
from benchmark.figures import Figure, Goal
from benchmark.installing import growth
from benchmark.spending import Spent, python, spend, take_turns
from benchmark.workplace import Workplace

COMPILED = 24
"""Keys that are compiled to hold hits against."""

NOTHING = Goal(word="at most", limit=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A bundle as processes find it.

    Attributes:
        bundle: the bundle.
        cache: a cache directory in which it is installed.
        store: a store of it.
        packed: a directory that has it packed.
        empty: an empty cache directory.
        fake: the directory of a fake libcuda.
    """

    bundle: Bundle
    cache: Path
    store: Path
    packed: Path
    empty: Path
    fake: Path
    ways: dict[str, dict[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        ways = {
            "nothing": {"TRITON_CACHE_DIR": str(self.empty)},
            "installed": {"TRITON_CACHE_DIR": str(self.cache)},
            "store": {"TRITON_CACHE_DIR": str(self.empty), "AOTPACK_BUNDLE_PATH": str(self.store)},
            "packed": {"TRITON_CACHE_DIR": str(self.empty), "AOTPACK_BUNDLE_PATH": str(self.packed)},
        }
        object.__setattr__(self, "ways", ways)


def serve(bundle: Bundle, folder: Path) -> Served:
    """Lay a bundle into a directory in each way."""
    served = Served(
        bundle=bundle,
        cache=folder / "cache",
        store=folder / "store",
        packed=folder / "packed",
        empty=folder / "empty",
        fake=folder / "fake",
    )
    served.empty.mkdir()
    served.fake.mkdir()
    install_bundle(bundle, served.cache, libcuda=[str(build_fake(served.fake))])
    unpack_store(bundle, served.store)
    keep_packed(bundle.path, served.packed)
    return served


def measure(place: Workplace) -> Iterator[Figure]:
    """The figures of loading."""
    with place.fresh() as folder:
        served = serve(place.bundle, folder)
        yield from _activation(place, served)
    with place.fresh() as folder:
        yield from _hits(place, folder)
    grown: dict[str, list[tuple[int, float]]] = {}
    for keys in place.sizes:
        with place.fresh() as folder:
            taken = _grown(place, serve(place.multiplied(keys), folder))
        for name, seconds in taken.items():
            grown.setdefault(name, []).append((keys, seconds))
            yield Figure(name=f"{name} of what is installed, {keys:,} keys", value=1000 * seconds, unit="ms")
    for name, sizes in grown.items():
        yield from growth(name, sizes)


def _grown(place: Workplace, served: Served) -> dict[str, float]:
    """What grows with the number of keys, in seconds."""
    cases = {
        "activation": lambda: _activate(served, "installed", "torch"),
        "preload": lambda: _preload(place, served),
        "first hits": lambda: _found(spend(_hitting(place, served.bundle), served.ways["installed"])),
    }
    return take_turns(cases, place.runs)


def _activation(place: Workplace, served: Served) -> Iterator[Figure]:
    keys = len(served.bundle.manifest.entries)
    cases: dict[str, Callable[[], float]] = {}
    for way in served.ways:
        for modules in ((), ("torch",), ("torch", "triton")):
            process = f"in a process that has {' and '.join(modules)}" if modules else "in a bare process"
            what = {
                "nothing": "nothing to do",
                "installed": f"{keys} keys installed",
                "store": f"{keys} keys in a store",
                "packed": f"{keys} keys packed, unpacked by this process",
            }
            cases[f"activation, {what[way]}, {process}"] = _activation_case(served, way, modules)
    for name, seconds in take_turns(cases, place.runs).items():
        yield Figure(name=name, value=1000 * seconds, unit="ms", goal=NOTHING if "nothing to do" in name else None)


def _activation_case(served: Served, way: str, modules: tuple[str, ...]) -> Callable[[], float]:
    return lambda: _activate(served, way, *modules)


def _activate(served: Served, way: str, *modules: str) -> float:
    with tempfile.TemporaryDirectory(dir=served.empty.parent) as temporary:  # where packed bundles are unpacked
        environment = {**served.ways[way], "TMPDIR": temporary}
        done = spend(python("-m", "benchmark.activating", *modules), environment).reported()
    if bool(done["served"]) != (way != "nothing"):
        raise SystemExit(f"activation with {way}: {done['served']} places are served")
    return float(done["seconds"])


def _hits(place: Workplace, folder: Path) -> Iterator[Figure]:
    """First hits against those in Triton's own directory and against compiles; all of the same few keys."""
    place = replace(place, sample=min(place.sample or COMPILED, COMPILED))
    compiled = compile_plainly(place)
    sampled = place.sampled_bundle()
    served = serve(sampled, folder)
    plain = {"TRITON_CACHE_DIR": str(place.plain), LINE_INFO: "1"}
    cases = {
        "plain": lambda: _found(spend(_hitting(place, sampled), plain)),
        "installed": lambda: _found(spend(_hitting(place, sampled), served.ways["installed"])),
        "store": lambda: _found(spend(_hitting(place, sampled), served.ways["store"])),
    }
    keys = len(sampled.manifest.entries)
    taken = {name: 1000 * seconds / keys for name, seconds in take_turns(cases, place.runs).items()}
    rivals = {
        "first hit in Triton's own directory": taken["plain"],
        "a compile": 1000 * compiled["seconds"] / compiled["keys"],
    }
    for way, name in (("installed", "first hit of what is installed"), ("store", "first hit of what a store has")):
        for rival, value in rivals.items():
            yield Figure(name=f"{name}, each key", value=taken[way], unit="ms", rival=rival, rival_value=value)


def _hitting(place: Workplace, bundle: Bundle) -> list[str | Path]:
    return python("-m", "benchmark.hitting", bundle.path, place.engine.root)


def _found(spent: Spent) -> float:
    done = spent.reported()
    if done["found"] != done["keys"]:
        raise SystemExit(f"of {done['keys']} keys {done['found']} were found; the others were compiled")
    return float(done["seconds"])


def _preload(place: Workplace, served: Served) -> float:
    environment = {**served.ways["installed"], "LD_LIBRARY_PATH": str(served.fake), "FAKE_LIBCUDA_ARCH": "90"}
    command = python("-m", "benchmark.preloading", served.bundle.path, place.engine.root)
    done = spend(command, environment).reported()
    keys = len(open_bundle(served.bundle.path).manifest.entries)
    if done["ready"] != keys:
        raise SystemExit(f"of {keys} keys {done['ready']} were preloaded")
    return float(done["seconds"])
