"""Fuzzing, a little of it: the corpus is read again, and changed; ``scripts/fuzz.py`` goes on for as long as told."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotpack.errors import BundleError
from tests.fuzz.mutators import archive, blob, member, take_apart
from tests.fuzz.targets import CORPUS, TARGETS, Target, attempt
from tests.fuzz.watch import writes_elsewhere

SEEDS = [(target, seed.name) for target in TARGETS.values() for seed in target.seeds()]


@pytest.mark.parametrize(("target", "seed"), SEEDS, ids=[f"{target.name}-{seed}" for target, seed in SEEDS])
def test_the_corpus_breaks_no_promise(target: Target, seed: str, tmp_path: Path) -> None:
    attempt(target, (CORPUS / target.name / seed).read_bytes(), tmp_path)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(number=st.integers(0, 2**32), changes=st.integers(1, 4))
def test_the_corpus_changed_breaks_no_promise(target: Target, number: int, changes: int, tmp_path: Path) -> None:
    random = Random(number)
    data = random.choice(target.seeds()).read_bytes()
    for _ in range(changes):
        data = target.mutate(data, random)
    attempt(target, data, tmp_path)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_break_no_promise(target: Target, data: bytes, tmp_path: Path) -> None:
    attempt(target, data, tmp_path)


def test_each_target_has_a_seed_that_is_read_to_its_end(tmp_path: Path) -> None:
    # Else a corpus of another format would be refused at once, and nothing be tested any more.
    for name in ("archive", "manifest", "store", "receipt"):
        (tmp_path / name).mkdir()
        TARGETS[name].read((CORPUS / name / "whole").read_bytes(), tmp_path / name)
    TARGETS["signatures"].read((CORPUS / "signatures" / "two").read_bytes(), tmp_path)
    TARGETS["policy"].read((CORPUS / "policy" / "whole").read_bytes(), tmp_path)
    TARGETS["record"].read((CORPUS / "record" / "launches").read_bytes(), tmp_path)
    TARGETS["elf"].read((CORPUS / "elf" / "shared-object").read_bytes(), tmp_path)


def test_the_corpus_holds_no_code_of_a_kernel() -> None:
    assert all(seed.stat().st_size < 20_000 for target in TARGETS.values() for seed in target.seeds())
    members, _ = take_apart((CORPUS / "archive" / "whole").read_bytes())
    cubins = [one.content for one in members[1:] if one.content.startswith(b"\x7fELF") and one.content[18] == 190]
    assert len(cubins) == 2
    assert all(cubin[64:].replace(b"made up", b"") == b"" for cubin in cubins)


def test_the_mutator_of_archives_gets_past_zstd_and_digests(tmp_path: Path) -> None:
    whole = (CORPUS / "archive" / "whole").read_bytes()
    members, rest = take_apart(whole)
    TARGETS["archive"].read(archive(members, rest), tmp_path)  # taken apart and put together, it is read
    refusals = set()
    for number in range(120):
        (tmp_path / "changed").mkdir()
        try:
            TARGETS["archive"].read(TARGETS["archive"].mutate(whole, Random(number)), tmp_path / "changed")
        except BundleError as error:
            refusals.add(str(error).partition("expected")[2][:12] or str(error)[-20:])
        for path in sorted((tmp_path / "changed").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "changed").rmdir()
    assert len(refusals) > 10, refusals  # for many reasons, and not for one that comes before all others


def test_the_watch_sees_what_is_written_made_moved_removed_and_run_elsewhere(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    with writes_elsewhere(inside) as seen:
        (inside / "a").write_bytes(b"x")
        (inside / "a").rename(inside / "b")
        (inside / "b").read_bytes()
        (outside / "none").exists()
    assert seen == []
    with writes_elsewhere(inside) as seen:
        (outside / "a").write_bytes(b"x")
        (inside / ".." / "outside" / "d").mkdir()
        (outside / "a").rename(inside / "c")
        (inside / "c").rename(outside / "a")
        (outside / "a").unlink()
        (outside / "d").rmdir()
    assert [event.split()[0] for event in seen] == [
        "open",
        "os.mkdir",
        "os.rename",
        "os.rename",
        "os.remove",
        "os.rmdir",
    ]


def _raise(_data: bytes, _scratch: Path) -> None:
    raise KeyError("not an error of ours")


def _write(_data: bytes, scratch: Path) -> None:
    (scratch.parent / "elsewhere").write_bytes(b"")


def _say_nothing(_data: bytes, _scratch: Path) -> None:
    raise BundleError("")


@pytest.mark.parametrize("read", [_raise, _write, _say_nothing])
def test_a_target_that_breaks_a_promise_is_seen(read: Callable[[bytes, Path], None], tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    target = Target(name="broken", read=read, mutate=lambda data, _: data)
    with pytest.raises((KeyError, AssertionError)):
        attempt(target, b"", tmp_path / "scratch")


def test_messages_with_names_from_outside_stay_one_line() -> None:
    assert str(BundleError("a\nb \x1b[2J \ud800 \u202e ünï")) == "a\\nb \\x1b[2J \\ud800 \\u202e ünï"


def test_a_blob_in_an_archive_is_under_its_digest() -> None:
    one = blob(b"x")
    assert one.header.startswith(b"blobs/sha256/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881\0")
    assert member("manifest.json", b"").header[124:135] == b"0" * 11
