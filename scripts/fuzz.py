#!/usr/bin/env python3
"""Fuzz everything that reads bytes from outside, guided by coverage, for as long as it is told.

    scripts/fuzz.py [--minutes N] [--jobs N] [--target NAME]... [--out DIRECTORY]

Needs atheris (pip install -r tests/fuzz/requirements.txt), which drives libFuzzer, and a Python that it has wheels for.
Targets, seeds and what must hold are in tests/fuzz. The minutes are shared out between the targets; one target runs in
one process. Prints for each how often it ran, the most memory that its process had, and its slowest input. What a
target should have refused and did not, an input that took over 2 s of CPU, and a process over 256 MiB are kept below
the directory, and the exit code is 1. To see one again: scripts/fuzz.py --target NAME --again FILE
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
MOST_SECONDS = 2.0
MOST_MEBIBYTES = 256
LONGEST_INPUT = 1 << 16
"""Bytes; the largest seeds have a tenth of it."""

HANGS = 60
"""Seconds of wall time after which libFuzzer gives an input up; on a busy machine these are no measure, CPU time is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of fuzzing one target.

    Attributes:
        target: its name.
        executions: how often it was given an input.
        mebibytes: the most memory that its process had.
        seconds: CPU time of the slowest input.
        found: inputs that broke a promise.
        log: where its output is.
        code: libFuzzer's exit code.
    """

    target: str
    executions: int
    mebibytes: int
    seconds: float
    found: tuple[Path, ...]
    log: Path
    code: int


def fuzz(target: str, seconds: float, out: Path) -> Ran:
    """Fuzz one target in a process of its own, going on from what earlier runs kept."""
    kept, found = out / target / "corpus", out / target / "found"
    for folder in (kept, found):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    (out / target / "slowest-seconds").unlink(missing_ok=True)
    log = out / target / "log"
    command = [
        *(sys.executable, __file__, "--target", target, "--out", str(out), "--work"),
        *(str(kept), str(ROOT / "tests" / "fuzz" / "corpus" / target)),
        *(f"-max_total_time={max(1, int(seconds))}", f"-timeout={HANGS}", f"-rss_limit_mb={MOST_MEBIBYTES}"),
        *(f"-max_len={LONGEST_INPUT}", "-print_final_stats=1", f"-artifact_prefix={found}/"),
    ]
    with log.open("wb") as file:
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    return Ran(
        target=target,
        executions=_stat(text, "number_of_executed_units"),
        mebibytes=_stat(text, "peak_rss_mb"),
        seconds=_slowest(out, target),
        found=tuple(sorted(set(found.iterdir()) - before)),
        log=log,
        code=done.returncode,
    )


def _stat(text: str, name: str) -> int:
    match = re.search(rf"stat::{name}:\s*(\d+)", text)
    return int(match[1]) if match else 0


def _slowest(out: Path, target: str) -> float:
    try:
        return float((out / target / "slowest-seconds").read_text())
    except FileNotFoundError:
        return 0.0


def work(target_name: str, out: Path, arguments: Sequence[str]) -> None:
    """Be the process that fuzzes one target; does not return."""
    import atheris  # noqa: PLC0415  # here alone, so that --help works without

    with atheris.instrument_imports(include=["aotpack"]):
        from tests.fuzz.targets import TARGETS, attempt  # noqa: PLC0415  # what is imported now is instrumented

    target = TARGETS[target_name]
    place = Path("/dev/shm")  # noqa: S108  # memory, where there is some; the directory below is this process's alone
    scratch = Path(tempfile.mkdtemp(prefix=f"fuzz-{target_name}-", dir=place if place.is_dir() else None))
    slowest = 0.0

    def read(data: bytes) -> None:
        nonlocal slowest
        began = time.process_time()
        attempt(target, data, scratch)
        took = time.process_time() - began
        if took > slowest:
            slowest = took
            (out / target_name / "slowest").write_bytes(data)
            (out / target_name / "slowest-seconds").write_text(f"{took:.3f}")
        if took > MOST_SECONDS:
            raise TimeoutError(f"took {took:.1f} s of CPU")

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        random = Random(seed)  # noqa: S311  # no secret
        if random.random() < 0.3:  # noqa: PLR2004  # libFuzzer's own changes, with what it learned from comparisons
            return bytes(atheris.Mutate(data, longest))
        changed = target.mutate(data, random)
        return changed if len(changed) <= longest else data

    atheris.Setup([sys.argv[0], *arguments], read, custom_mutator=mutate)
    atheris.Fuzz()


def see_again(target_name: str, path: Path) -> None:
    """Give one input to a target, without a fuzzer."""
    from tests.fuzz.targets import TARGETS, attempt  # noqa: PLC0415  # what fuzzes imports it itself, instrumented

    with tempfile.TemporaryDirectory() as scratch:
        began = time.process_time()
        attempt(TARGETS[target_name], path.read_bytes(), Path(scratch))
        print(f"{path}: all is well, in {time.process_time() - began:.3f} s")


def main() -> int:
    """Share the time out, fuzz, and show what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="in all (default: 5)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at a time")
    parser.add_argument("--target", action="append", default=[], help="fuzz this one alone; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / ".fuzz", help="what is kept (default: .fuzz)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="give FILE to the target and fuzz nothing")
    parser.add_argument("--work", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    known = sorted(path.name for path in (ROOT / "tests" / "fuzz" / "corpus").iterdir())
    targets = options.target or known
    for name in targets:
        if name not in known:
            parser.error(f"{name!r} is no target: there are {', '.join(known)}")
    if options.again:
        see_again(targets[0], options.again)
        return 0
    if options.work is not None:
        work(targets[0], options.out, options.work)
    jobs = max(1, min(options.jobs, len(targets)))
    each = options.minutes * 60 * jobs / len(targets)
    print(f"{len(targets)} targets, {each:.0f} s each, {jobs} at a time", file=sys.stderr)
    with ThreadPoolExecutor(jobs) as pool:
        ran = list(pool.map(lambda name: fuzz(name, each, options.out.resolve()), targets))
    print(f"{'target':<12}{'executions':>12}{'peak MiB':>10}{'slowest s':>11}  found")
    for one in ran:
        broken = [str(path) for path in one.found] or ([f"exit code {one.code}, see {one.log}"] if one.code else [])
        figures = f"{one.executions:>12,}{one.mebibytes:>10}{one.seconds:>11.3f}"
        print(f"{one.target:<12}{figures}  {' '.join(broken) or 'nothing'}")
    print(f"{'all':<12}{sum(one.executions for one in ran):>12,}")
    return int(any(one.code or one.found for one in ran))


if __name__ == "__main__":
    sys.exit(main())
