"""Limits: how many cores and how much memory this process may use.

A container's share is not what ``os.cpu_count`` and ``/proc/meminfo`` say: its cgroup has a quota of processor time
and a ceiling of memory, its own or an ancestor's. Both versions of cgroups are read (kernel documentation,
admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1); what cannot be read is no limit.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
"""Bytes; version 1 spells "no limit" as the largest multiple of a page, above this."""


def cores(system: Path = Path("/")) -> int:
    """Cores that this process can keep busy: those it may run on, or fewer where a quota allows no more.

    Args:
        system: the root of the file system that ``/proc`` and ``/sys`` are read in.
    """
    allowed = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _folders(system, "cpu") for quota in _quotas(folder)]
    return max(1, min([allowed, *(int(quota + 0.5) for quota in quotas)]))


def memory(system: Path = Path("/")) -> int | None:
    """Bytes of memory that can still be taken: what the machine has available, or less where a cgroup allows less.

    Args:
        system: the root of the file system that ``/proc`` and ``/sys`` are read in.

    Returns:
        None where nothing says.
    """
    rooms = [room for folder in _folders(system, "memory") if (room := _room(folder)) is not None]
    lines = _text(system / "proc/meminfo").splitlines()
    rooms += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(rooms, default=None)


def _folders(system: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's cgroup and its ancestors that a controller's files may be in."""
    for line in _text(system / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        root = system / "sys/fs/cgroup" / (controllers if number != "0" else "")
        parts = Path(path.lstrip("/")).parts
        # In a container the path is the host's, and the mount shows the container's own group as its root.
        yield from (root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _quotas(folder: Path) -> Iterator[float]:
    quota, _, period = _text(folder / "cpu.max").partition(" ")  # version 2: "max 100000", "150000 100000"
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if quota.strip().isdecimal() and period.strip().isdecimal() and int(period):
        yield int(quota) / int(period)


def _room(folder: Path) -> int | None:
    """Bytes below a cgroup's ceiling; what the kernel can drop of its file cache counts as free."""
    ceiling, used = _number(folder / "memory.max"), _number(folder / "memory.current")
    if ceiling is None or used is None:
        ceiling, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
    if ceiling is None or used is None or ceiling >= _UNLIMITED:
        return None
    statistics = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    cached = int(statistics.get("inactive_file", 0))
    return max(0, ceiling - max(0, used - cached))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
