"""Spending: what a process takes, and processes that take turns."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a process took.

    Attributes:
        seconds: from its start to its end.
        output: what it wrote on stdout.
    """

    seconds: float
    output: str

    def reported(self) -> dict[str, Any]:
        """The JSON object in the last line of the output."""
        found: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return found


def spend(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> Spent:
    """Run a command, and say what it took.

    Args:
        command: the program and its arguments.
        environment: variables that it gets besides this process's own.

    Raises:
        SystemExit: it failed.
    """
    words = list(map(str, command))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(words, env=os.environ | dict(environment or {}), stdout=output, stderr=errors)
        process.wait()
        seconds = time.perf_counter() - start
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{shlex.join(words)}: exit code {process.returncode}\n{errors.read()}")
        return Spent(seconds=seconds, output=output.read())


_WATCH = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(json.dumps({"peak": used.ru_maxrss * 1024}))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_of(command: Sequence[str | Path]) -> int:
    """The bytes of memory that a command holds at most.

    A small process starts it: what the kernel says of one that was started begins with what its parent held.

    Raises:
        SystemExit: it failed.
    """
    found: int = spend(python("-c", _WATCH, *command)).reported()["peak"]
    return found


def python(*arguments: str | Path) -> list[str | Path]:
    """The command that runs this Python."""
    return [sys.executable, *arguments]


def take_turns(cases: Mapping[str, Callable[[], float]], runs: int) -> dict[str, float]:
    """The median of what each case gives, each run ``runs`` times, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, case in cases.items():
            taken[name].append(case())
    return {name: median(values) for name, values in taken.items()}
