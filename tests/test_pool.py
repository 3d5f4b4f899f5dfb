"""How work is spread over workers: what goes first, what a worker that dies or grows costs, and how many there are."""

import os
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import Any

import pytest

from aotpack import limits, pool
from aotpack.build import Built
from aotpack.compiler import Compiled, CompileFailed
from aotpack.engines import Engine
from aotpack.keys import CompileKey
from aotpack.pool import WORKER_BYTES, Batch, LocalCrew, Work, WorkerSpec, batches, compile_over, default_jobs
from aotpack.targets import Target


class Crew:
    """Workers that end each task at once, as a test has it; it stands for processes, and the loop over it is real."""

    slots = 2

    def __init__(self, deadly: Collection[CompileKey] = (), *, resident: int = 0) -> None:
        self.deadly = deadly
        self.resident = resident
        self.given: list[Batch] = []
        self.waiting: dict[Future[Any], Work | None] = {}
        self.renewed = 0

    def submit(self, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        del task
        (batch,) = arguments
        self.given.append(batch)
        future: Future[Any] = Future()
        outcomes = tuple(Compiled(key=key, name="", cubin=b"", metadata=b"") for key in batch)
        dies = any(key in self.deadly for key in batch)
        self.waiting[future] = None if dies else Work(outcomes=outcomes, resident=self.resident)
        return future

    def wait(self, running: Collection[Future[Any]]) -> set[Future[Any]]:
        if any(self.waiting[future] is None for future in running):  # one that dies takes its executor with it
            for future in running:
                future.set_exception(BrokenProcessPool())
            return set(running)
        future = next(iter(running))
        future.set_result(self.waiting[future])
        return {future}

    def result(self, future: Future[Any]) -> Any:
        del self.waiting[future]
        return future.result()

    def renew(self) -> None:
        assert not self.waiting, "something was still running"
        self.renewed += 1

    def close(self, *, abruptly: bool) -> None:
        del abruptly


def keys_of(built: Built) -> list[CompileKey]:
    return [entry.key for entry in built.bundle.manifest.entries]


def with_stages(key: CompileKey, number: int) -> CompileKey:
    return replace(key, options=tuple(sorted({**dict(key.options), "num_stages": number}.items())))


def test_what_took_longest_goes_first_and_alike_keys_go_together(built: Built) -> None:
    keys = keys_of(built)
    slow = keys[-1].kernel
    ordered = batches(keys, {key.kernel: 0.1 for key in keys} | {slow: 5.0})
    assert ordered[0][0].kernel == slow
    assert sorted(key.digest for batch in ordered for key in batch) == sorted(key.digest for key in keys)
    staged = [with_stages(keys[0], number) for number in (2, 3)]
    assert batches([staged[0], keys[1], staged[1]], {})[0] == tuple(staged)


def test_every_key_has_one_outcome_whatever_dies(built: Built) -> None:
    keys = keys_of(built)
    staged = [with_stages(keys[0], number) for number in (2, 3, 4)]
    crew = Crew(deadly=[staged[1], keys[3]])
    outcomes = list(compile_over(crew, batches([*staged, *keys[1:]], {})))
    assert sorted(outcome.key.digest for outcome in outcomes) == sorted(key.digest for key in [*staged, *keys[1:]])
    failed = [outcome for outcome in outcomes if isinstance(outcome, CompileFailed)]
    assert {failure.key for failure in failed} == {staged[1], keys[3]}
    assert all("died on this key" in failure.reason for failure in failed)
    assert (staged[1],) in crew.given
    assert (staged[2],) in crew.given


def test_no_more_is_under_way_than_keeps_the_workers_busy(built: Built) -> None:
    crew = Crew()
    for _ in compile_over(crew, batches(keys_of(built), {})):
        assert len(crew.waiting) <= 2 * crew.slots
    assert crew.renewed == 0


def test_workers_that_have_grown_too_large_are_replaced(built: Built) -> None:
    keys = keys_of(built)
    crew = Crew(resident=WORKER_BYTES + 1)
    assert len(list(compile_over(crew, batches(keys, {})))) == len(keys)
    assert crew.renewed == -(-len(crew.given) // (2 * crew.slots)) - 1


@pytest.mark.parametrize(
    ("cores", "room", "jobs"), [(8, None, 8), (8, 4 * WORKER_BYTES + 1, 4), (8, 5, 1), (2, 1 << 40, 2)]
)
def test_workers_are_as_many_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, room: int | None, jobs: int
) -> None:
    monkeypatch.setattr(pool, "cores", lambda: cores)
    monkeypatch.setattr(pool, "memory", lambda: room)
    assert default_jobs() == jobs
    monkeypatch.setenv("AOTPACK_JOBS", "3")
    assert default_jobs() == 3


def test_what_a_process_holds_is_told() -> None:
    before = pool.resident_bytes()
    held = bytearray(os.urandom(1) * (64 << 20))
    assert pool.resident_bytes() - before > 48 << 20
    assert len(held) < (limits.memory() or len(held) + 1)


def test_workers_ask_for_huge_pages_unless_glibc_is_tuned_already(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = WorkerSpec(engine=engine, target=Target("cuda", 90), families=())
    for given, seen in ((None, "glibc.malloc.hugetlb=1"), ("glibc.malloc.check=0", "glibc.malloc.check=0")):
        monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
        if given:
            monkeypatch.setenv("GLIBC_TUNABLES", given)
        crew = LocalCrew(spec, 1)
        try:
            assert crew.result(crew.submit(os.getenv, "GLIBC_TUNABLES")) == seen
        finally:
            crew.close(abruptly=False)
        assert os.environ.get("GLIBC_TUNABLES") == given
