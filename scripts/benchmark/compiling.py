"""A process that compiles keys of a bundle, the plain way or with aotpack's workers.

    python -m benchmark.compiling plain BUNDLE ENGINE SAMPLE CACHE HALF
    python -m benchmark.compiling JOBS BUNDLE ENGINE SAMPLE

The plain way is a loop of ``triton.compile`` in the environment that workers have, for an empty cache directory, where
it leaves all that Triton leaves; HALF, 0 or 1, says which half of the keys it compiles. Both get ready first and
compile some keys that are not counted. Prints a JSON object: how many keys, how many of them shared work, seconds,
those of the processor (ptxas's included), and the peak of memory of whoever compiled.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aotpack.bundle import Bundle, open_bundle
from aotpack.compiler import Compiled, alike
from aotpack.engines import Engine, find_engine
from aotpack.families import load_families
from aotpack.keys import CompileKey
from aotpack.pool import Pool, WorkerSpec
from aotpack.toolchain import attrs_of, constexprs_of, gpu_target, signature_of
from aotpack.tracing import Tracer, clean_environment
from benchmark.workplace import sampled

_UNCOUNTED = 4
"""Groups of keys that are compiled first, so that each of two workers has compiled something."""


def divided(keys: Sequence[CompileKey]) -> tuple[list[CompileKey], list[CompileKey]]:
    """Keys to get ready with, and those that count."""
    groups = list(dict.fromkeys(alike(key) for key in keys))
    first = set(groups[:: max(1, len(groups) // _UNCOUNTED)][:_UNCOUNTED]) if len(groups) > _UNCOUNTED else set()
    return [key for key in keys if alike(key) in first], [key for key in keys if alike(key) not in first]


def plainly(bundle: Bundle, engine: Engine, keys: Sequence[CompileKey], cache: str, half: str) -> dict[str, Any]:
    """A loop of ``triton.compile`` over every second of the keys that count."""
    clean_environment(cache)
    del os.environ["TRITON_STORE_BINARY_ONLY"]  # a plain loop keeps what Triton keeps
    tracer = Tracer(engine, bundle.manifest.targets[0], load_families(bundle.manifest.families))
    from triton import compile as triton_compile  # noqa: PLC0415  # after the environment is clean
    from triton.compiler import ASTSource  # noqa: PLC0415

    ready, counted = divided(keys)
    counted = counted[int(half) :: 2]
    start, used = time.perf_counter(), processor_seconds()
    for number, key in enumerate((*ready, *counted)):
        if number == len(ready):
            start, used = time.perf_counter(), processor_seconds()
        source = ASTSource(tracer.function(key.kernel), signature_of(key), constexprs_of(key), attrs_of(key))
        triton_compile(source, target=gpu_target(key.target), options=dict(key.options))
    return {
        "keys": len(counted),
        "shared": 0,
        "seconds": time.perf_counter() - start,
        "processor": processor_seconds() - used,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def processor_seconds() -> float:
    """What this process and those that it waited for have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def with_workers(bundle: Bundle, engine: Engine, keys: Sequence[CompileKey], jobs: int) -> dict[str, Any]:
    """The pool, as a build without a compile cache has it."""
    ready, counted = divided(keys)
    spec = WorkerSpec(engine=engine, target=bundle.manifest.targets[0], families=bundle.manifest.families)
    with Pool(spec, jobs) as pool:
        pool.describe()
        list(pool.compile(ready))
        start = time.perf_counter()
        outcomes = list(pool.compile(counted))
        seconds = time.perf_counter() - start
    compiled = [outcome for outcome in outcomes if isinstance(outcome, Compiled)]
    if len(compiled) < len(outcomes):
        raise SystemExit(f"{len(outcomes) - len(compiled)} of {len(outcomes)} keys failed")
    return {
        "keys": len(counted),
        "shared": sum(outcome.shared for outcome in compiled),
        "seconds": seconds,
        "processor": sum(outcome.seconds for outcome in compiled),
        "peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }


def main(way: str, path: str, root: str, sample: str, *cache: str) -> None:
    """Compile, and say what it took."""
    bundle, engine = open_bundle(Path(path)), find_engine(root, lambda line: print(line, file=sys.stderr))
    keys = sampled([entry.key for entry in bundle.manifest.entries], int(sample) or None)
    done = plainly(bundle, engine, keys, *cache) if way == "plain" else with_workers(bundle, engine, keys, int(way))
    print(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
