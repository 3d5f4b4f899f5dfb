#!/usr/bin/env python3
"""Write the locks: how many compile keys each preset has for each kernel, and their digest, as text to review.

    scripts/write_locks.py [--engine ENGINE] [--preset NAME]... [--arch ARCH]... [--check]

A change of any key, meant or not, then shows as a change of a line in artifacts/keys. With --check nothing is
written: the difference is printed, and the exit code is 1 where there is one. Seconds go to stderr.
"""

import argparse
import difflib
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from aotpack.deployments import Deployment, Service, misfit
from aotpack.digests import digest_json, hex_of
from aotpack.engines import Engine, find_engine
from aotpack.errors import AotpackError
from aotpack.families import load_families
from aotpack.keys import CompileKey
from aotpack.models import load_model, presets
from aotpack.pool import Pool, WorkerSpec
from aotpack.targets import Target, parse_archs

FOLDER = Path(__file__).resolve().parent.parent / "artifacts" / "keys"
SIZES = (1, 2, 4, 8)
ARCHS = (80, 86, 89, 90, 100, 103, 120)

FOLLOWING = ("arch", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes", "max_num_imprecise_acc_default")
"""Options that Triton derives from the target (backends/nvidia/compiler.py, ``parse_options``)."""

HEAD = """\
# {preset}: compile keys in {engine}, with triton {triton}.
# A line is a kernel (family:name), the tensor parallel sizes and the architectures that have the same keys of it, how
# many those are, and the first 16 digits of the digest of their sorted digests. A key's digest leaves out its target
# and what Triton derives from that. Deployments: the modes that a build packs where nothing is said.
# Written by: python scripts/write_locks.py --preset {preset}
"""

Place = tuple[str, int, int]
"""A kernel, a tensor parallel size, and an architecture."""

Lock = dict[Place, tuple[int, str]]
"""How many keys there are in a place, and their digest."""


def fingerprint(keys: Iterable[CompileKey]) -> tuple[int, str]:
    """How many keys there are, and a digest that is the same for targets which differ in nothing else."""
    digests = set()
    for key in keys:
        document = key.to_json()
        del document["target"]
        document["options"] = {name: value for name, value in document["options"].items() if name not in FOLLOWING}
        digests.add(digest_json(document))
    return len(digests), hex_of(digest_json(sorted(digests)))[:16]


def deployments_of(preset: str, target: Target) -> tuple[Deployment, ...]:
    """A preset at each size that fits, in each mode that a build packs where nothing is said."""
    model = load_model(preset)
    return tuple(
        deployment
        for tp in SIZES
        if not misfit(model, tp)
        for deployment in Service(model=model, tp=tp).deployments(target)
    )


def trace_target(engine: Engine, target: Target, names: Sequence[str]) -> tuple[str, dict[str, Lock]]:
    """Triton's release, and what each preset has for one target.

    Raises:
        EngineError, TracingError, ToolchainError: as ``Pool.trace``.
    """
    deployments = [deployment for name in names for deployment in deployments_of(name, target)]
    keys: dict[tuple[str, Place], set[CompileKey]] = defaultdict(set)
    families = tuple(family.name for family in load_families())
    begin = time.monotonic()
    with Pool(WorkerSpec(engine=engine, target=target, families=families), 1) as pool:
        triton = pool.describe().toolchain.triton
        marks = [time.monotonic()]
        for deployment, families_traced in zip(deployments, pool.trace(deployments), strict=True):
            for traced in families_traced:
                for key, _ in traced.keys:
                    place = f"{traced.family}:{key.function}", deployment.tp, target.arch
                    keys[deployment.model.name, place].add(key)
            marks.append(time.monotonic())
    seconds = [after - before for before, after in pairwise(marks)]
    say(
        f"{target.short}: loaded in {marks[0] - begin:.1f} s; {len(deployments)} deployments in {sum(seconds):.1f} s, "
        f"{sum(seconds) / len(seconds):.2f} s each, {max(seconds):.2f} s the slowest"
    )
    locks: dict[str, Lock] = {name: {} for name in names}
    for (name, place), reached in keys.items():
        locks[name][place] = fingerprint(reached)
    return triton, locks


def say(line: str) -> None:
    """A word on the way."""
    print(line, file=sys.stderr, flush=True)


def render(head: str, lock: Lock) -> str:
    """The text of a lock; places that differ in size and architecture alone share a line."""
    archs: dict[tuple[str, int, int, str], list[int]] = defaultdict(list)
    for (kernel, tp, arch), (count, digest) in sorted(lock.items()):
        archs[kernel, tp, count, digest].append(arch)
    sizes: dict[tuple[str, tuple[int, ...], int, str], list[int]] = defaultdict(list)
    for (kernel, tp, count, digest), same in archs.items():
        sizes[kernel, tuple(same), count, digest].append(tp)
    lines = [
        f"{kernel:<60} tp{spell(tps):<7}  sm{spell(same):<22} {count:>4} {digest}\n"
        for (kernel, same, count, digest), tps in sorted(sizes.items(), key=lambda item: (item[0][0], item[1], item[0]))
    ]
    return head + "".join(lines)


def spell(numbers: Iterable[int]) -> str:
    """A comma list."""
    return ",".join(map(str, numbers))


def parse(text: str) -> tuple[str, Lock]:
    """The head and the places of a lock's text.

    Raises:
        ValueError: a line is none of a lock.
    """
    lines = text.splitlines(keepends=True)
    lock: Lock = {}
    for line in lines:
        if line.startswith("#"):
            continue
        kernel, sizes, archs, count, digest = line.split()
        for tp in sizes.removeprefix("tp").split(","):
            for arch in archs.removeprefix("sm").split(","):
                lock[kernel, int(tp), int(arch)] = int(count), digest
    return "".join(line for line in lines if line.startswith("#")), lock


def head_of(preset: str, engine: Engine, triton: str) -> str:
    """The comment lines of a preset's lock."""
    return HEAD.format(preset=preset, engine=engine, triton=triton)


def main() -> int:
    """Enumerate one target after another, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", help="as for aotpack build")
    parser.add_argument("--preset", action="append", choices=presets(), help="only this one; repeatable")
    parser.add_argument("--arch", action="append", help="only this architecture; repeatable, or a comma list")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the locks are (default: artifacts/keys)")
    parser.add_argument("--check", action="store_true", help="print what differs, and write nothing")
    options = parser.parse_args()
    names = tuple(options.preset or presets())
    begin = time.monotonic()
    try:
        engine = find_engine(options.engine, say)
        targets = parse_archs(options.arch or [str(arch) for arch in ARCHS])
        traced = [trace_target(engine, target, names) for target in targets]
    except AotpackError as error:
        say(f"error: {error}")
        return 3
    say(f"{len(targets)} targets in {time.monotonic() - begin:.0f} s")
    differ = 0
    for name in names:
        path = options.folder / f"{name}.txt"
        text = path.read_text() if path.is_file() else ""
        head, lock = parse(text)
        # Of a lock that is there, the architectures that were not asked for stay as they are.
        kept = {place: found for place, found in lock.items() if place[2] not in {target.arch for target in targets}}
        fresh_head = head_of(name, engine, triton=traced[0][0])
        fresh = render(
            fresh_head, {**kept, **{place: found for _, locks in traced for place, found in locks[name].items()}}
        )
        if options.check:
            differ += show_difference(path, text, fresh)
        elif kept and head != fresh_head:
            say(f"error: {path} is of other releases; write it for all architectures")
            return 3
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(fresh)
    if differ:
        say(f"{differ} locks differ; if that is meant, write them anew; aotpack keys lists the keys themselves")
    return int(differ > 0)


def show_difference(path: Path, text: str, fresh: str) -> bool:
    """Print the lines in which a lock and what was enumerated differ; whether there are any."""
    lines = list(
        difflib.unified_diff(
            text.splitlines(keepends=True), fresh.splitlines(keepends=True), str(path), "enumerated", n=0
        )
    )
    sys.stdout.writelines(lines)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
