"""Cores and memory are what a container may use, read from the files that Linux shows of its cgroup."""

import os
from pathlib import Path

import pytest

from aotpack.limits import cores, memory

MIB = 1 << 20


def system(folder: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {64 << 20} kB\n", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    root = system(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"})
    assert (cores(root), memory(root)) == (16, 64 << 30)


def test_a_container_of_version_2_sees_its_own_group_at_the_root(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/system.slice/docker-0123.scope\n",
        "sys/fs/cgroup/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/memory.max": f"{4096 * MIB}\n",
        "sys/fs/cgroup/memory.current": f"{1024 * MIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon {600 * MIB}\nfile {424 * MIB}\ninactive_file {400 * MIB}\n",
    }
    root = system(tmp_path, files)
    assert (cores(root), memory(root)) == (3, (4096 - 1024 + 400) * MIB)


def test_the_tightest_ancestor_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/jobs.slice/build\n",
        "sys/fs/cgroup/jobs.slice/build/cpu.max": "max 100000\n",
        "sys/fs/cgroup/jobs.slice/build/memory.max": "max\n",
        "sys/fs/cgroup/jobs.slice/build/memory.current": "1\n",
        "sys/fs/cgroup/jobs.slice/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/jobs.slice/memory.max": f"{2048 * MIB}\n",
        "sys/fs/cgroup/jobs.slice/memory.current": f"{2000 * MIB}\n",
    }
    root = system(tmp_path, files)
    assert (cores(root), memory(root)) == (1, 48 * MIB)


def test_version_1_is_read_by_controller(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "7:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n1:name=systemd:/docker/0123\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes": f"{512 * MIB}\n",
        "sys/fs/cgroup/memory/docker/0123/memory.usage_in_bytes": f"{500 * MIB}\n",
        "sys/fs/cgroup/memory/docker/0123/memory.stat": f"cache 9\ninactive_file {100 * MIB}\n",
    }
    root = system(tmp_path, files)
    assert (cores(root), memory(root)) == (2, 112 * MIB)


def test_version_1_spells_no_limit_as_a_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "7:memory:/\n4:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
    }
    root = system(tmp_path, files)
    assert (cores(root), memory(root)) == (16, 64 << 30)


def test_where_nothing_can_be_read_nothing_is_limited(tmp_path: Path) -> None:
    assert (cores(tmp_path), memory(tmp_path)) == (16, None)


def test_this_machine_can_be_read() -> None:
    assert cores() >= 1
    assert (memory() or 0) > MIB
