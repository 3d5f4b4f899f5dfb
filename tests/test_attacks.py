"""Attacks: a real bundle, altered in every way that we could think of, is refused and leaves everything as it was.

What each attack does is in ``tests/attacks.py`` and ``tests/bombs.py``, by the same name. For each: reading,
``aotpack install`` into a cache that has another bundle, ``aotpack verify``, ``aotpack wheel`` and unpacking a store;
then the whole tree around them is what it was byte for byte, nothing was opened for writing outside of a staging
directory on the way (an audit hook sees each call), and the command line said one line and ended with 3.

================================================  =====================================================================
attack                                            test
================================================  =====================================================================
any byte changed, to its complement               test_a_byte_that_is_changed_anywhere_is_refused_or_harmless
any bit changed (slow)                            test_a_bit_that_is_changed_anywhere_is_refused_or_harmless
any byte changed below zstd's checksums (slow)    test_a_byte_that_is_changed_below_zstd_changes_no_artifact
truncation at every 512 bytes, at every frame     test_a_bundle_that_is_cut_anywhere_is_refused
names: traversal in each spelling, absolute, NUL, test_an_attack_is_refused_and_leaves_everything_as_it_was[name: ...]
case clash, very long, lookalikes
links, devices, fifos, sparse files               ...[type: ...]
pax and GNU headers, owners, modes, odd sizes     ...[header: ...]
duplicate, missing, unlisted, reordered members   ...[members: ...]
larger or smaller than promised, swapped blobs    ...[content: ...]
trailing data, two bundles, skippable and empty   ...[frames: ...]
frames, dictionaries
older and newer formats, other spellings, types   ...[manifest: ...]
and ranges, another's digest
file names that would escape                      ...[stem: ...], ...[kernel: ...], ...[helper: ...]
artifacts that Triton would fail on               ...[artifact: ...]
keys that Triton cannot take, or that collide     ...[key: ...]
bombs of memory and of time                       test_a_bomb_is_refused_within_64_mib_and_2_seconds[...]
damaged receipts and carries.json                 test_receipts.py, test_store.py
any text changed in a manifest                    test_manifest.py
================================================  =====================================================================
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle
from aotpack.cli import main
from aotpack.errors import AotpackError, BundleError
from aotpack.install import install_bundle
from aotpack.receipts import OURS
from aotpack.store import unpack_store
from aotpack.verify import verify_bundle
from tests.alterations import Original, frames_of, reassembled, stored, tiny
from tests.archives import tar_of, tree
from tests.attacks import ATTACKS, Stop
from tests.bombs import BOMBS
from tests.conftest import ROOT

_MODES = frozenset("wax+")
_CHANGES = frozenset(
    ["os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate", "os.utime"]
)
_writes: list[Path] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _writes is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writing = flags & os.O_ACCMODE or flags & os.O_CREAT if mode is None else _MODES & set(mode)
        if writing and not isinstance(path, int):  # a number is of a file that was opened by its path before
            _writes.append(Path(os.fsdecode(path)))
    elif event in _CHANGES:
        paths = [os.fsdecode(path) for path in arguments if isinstance(path, str | bytes | os.PathLike)]
        if event == "os.mkdir" and Path(paths[0]).is_dir():
            return  # it is there, and stays as it is
        # Below an open directory, if the call says so with its last argument.
        above = Path(f"/proc/self/fd/{arguments[-1]}").resolve() if arguments[-1] not in (-1, None) else Path()
        if event == "os.rmdir" and not _is_empty(above / paths[0]):
            return  # it stays
        _writes.extend(above / path for path in paths)


def _is_empty(directory: Path) -> bool:
    try:
        return not any(directory.iterdir())
    except OSError:
        return False


sys.addaudithook(_hook)


@contextmanager
def watched() -> Iterator[list[Path]]:
    """The paths that are opened for writing or changed meanwhile."""
    global _writes  # noqa: PLW0603  # an audit hook stays for good, and knows no argument of ours
    seen: list[Path] = []
    _writes = seen
    # What is imported for the first time meanwhile leaves bytecode, which is Python's and not ours.
    keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield seen
    finally:
        _writes, sys.dont_write_bytecode = None, keeps


@dataclass(frozen=True)
class Arena:
    """A directory with a cache in which another bundle is installed, and what is to be attacked."""

    root: Path
    bundle: Bundle
    original: Original

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def victim(self) -> Path:
        return self.root / "attack.tar.zst"

    def run(self, *arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="aotpack")
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stderr


@pytest.fixture(scope="module")
def arena(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Arena:
    root = tmp_path_factory.mktemp("arena")
    (root / "cache").mkdir()
    warm = tmp_path_factory.mktemp("warm")
    bundle = tiny(built.bundle, root / "original.tar.zst")
    other = tiny(built.bundle, root / "other.tar.zst", entries=slice(3, 5))
    arena = Arena(root=root, bundle=bundle, original=Original.of(bundle.path))
    # Once for good: what is loaded late is loaded, and the original does what its alterations must not.
    install_bundle(bundle, warm / "cache")
    unpack_store(bundle, warm / "store")
    assert arena.run("wheel", "-q", bundle.path, "-o", warm)[0] == 0
    install_bundle(other, arena.cache)
    return arena


def read_all(path: Path) -> dict[str, bytes]:
    return dict(open_bundle(path).blobs())


def unpack(path: Path, directory: Path) -> None:
    unpack_store(open_bundle(path), directory)


def is_refused(act: Callable[..., object], *arguments: Path) -> bool:
    try:
        act(*arguments)
    except AotpackError as error:
        said = str(error)
    else:
        return False
    assert said.isprintable()
    return True


def refusals(arena: Arena, out: Path) -> set[str]:
    """Who refuses what lies in the arena; each that does at the command line says so in one line, and ends with 3.

    Args:
        arena: the arena.
        out: where a store and a wheel would go.
    """
    found = {"read": is_refused(read_all, arena.victim)}
    for name, arguments in {
        "install": ("install", arena.victim, "--cache-dir", arena.cache),
        "wheel": ("wheel", "-q", arena.victim, "-o", out),
    }.items():
        code, said = arena.run(*arguments)
        assert (code, said.count("\n")) in ((0, said.count("\n")), (3, 1)), said
        assert code == 0 or said.startswith("Error: ")
        found[name] = code == 3
    found["unpack"] = is_refused(unpack, arena.victim, out / "store")
    code, said = arena.run("verify", arena.victim)
    assert code in (0, 1, 3)
    found["verify"] = code != 0
    return {who for who, refuses in found.items() if refuses}


EXPECTED = {
    Stop.READING: {"read", "install", "wheel", "unpack", "verify"},
    Stop.LAYING: {"install", "wheel", "unpack", "verify"},
    Stop.FITTING: {"install"},
}


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.stop is not Stop.NOWHERE])
def test_an_attack_is_refused_and_leaves_everything_as_it_was(arena: Arena, tmp_path: Path, name: str) -> None:
    attack = ATTACKS[name]
    arena.victim.write_bytes(attack.make(arena.original))
    before = tree(arena.root)
    with watched() as writes:
        found = refusals(arena, tmp_path)
    assert found == EXPECTED[attack.stop]
    assert tree(arena.root) == before
    if attack.stop is Stop.FITTING:  # what is installed nowhere is unpacked and packed all the same
        writes = [path for path in writes if not path.is_relative_to(tmp_path)]
    else:
        assert list(tmp_path.iterdir()) == []
    staging = (str(tmp_path / ".store."), str(arena.cache / OURS / "staging-"))
    assert [path for path in writes if not str(path).startswith(staging)] == []


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.stop is Stop.NOWHERE])
def test_what_another_writer_may_do_is_read_as_the_very_bundle(arena: Arena, name: str) -> None:
    arena.victim.write_bytes(ATTACKS[name].make(arena.original))
    assert open_bundle(arena.victim).digest == arena.bundle.digest
    assert read_all(arena.victim) == read_all(arena.bundle.path)


def test_the_attacks_start_from_what_aotpack_writes(arena: Arena) -> None:
    assert reassembled(arena.original) == arena.original.whole


@pytest.fixture(scope="module")
def smallest(arena: Arena) -> Arena:
    """The arena with a bundle of one entry."""
    bundle = tiny(arena.bundle, arena.root / "smallest.tar.zst", entries=slice(1))
    return replace(arena, bundle=bundle, original=Original.of(bundle.path))


def escaped(arena: Arena, changes: Iterator[bytes]) -> list[bytes]:
    """Which of the altered bundles are read, and as another bundle."""
    expected = read_all(arena.bundle.path)
    found = []
    for altered in changes:
        arena.victim.write_bytes(altered)
        with suppress(BundleError):
            bundle = open_bundle(arena.victim)
            if dict(bundle.blobs()) != expected or bundle.digest != arena.bundle.digest:
                found.append(altered)
    return found


def changed(whole: bytes, masks: list[int]) -> Iterator[bytes]:
    for position in range(len(whole)):
        for mask in masks:
            yield whole[:position] + bytes([whole[position] ^ mask]) + whole[position + 1 :]


def test_a_byte_that_is_changed_anywhere_is_refused_or_harmless(smallest: Arena) -> None:
    assert escaped(smallest, changed(smallest.original.whole, [0xFF])) == []


@pytest.mark.slow
def test_a_bit_that_is_changed_anywhere_is_refused_or_harmless(smallest: Arena) -> None:
    assert escaped(smallest, changed(smallest.original.whole, [1 << bit for bit in range(8)])) == []


@pytest.mark.slow
def test_a_byte_that_is_changed_below_zstd_changes_no_artifact(smallest: Arena) -> None:
    """What zstd's checksums cannot see: digests, headers and the spelling stand for themselves.

    A manifest may say something else, and is another bundle's then; the artifacts are those of the original still.
    """
    plain, expected, others = tar_of(smallest.bundle.path), read_all(smallest.bundle.path), 0
    for altered in changed(plain, [0x01]):
        smallest.victim.write_bytes(stored(altered))
        with suppress(BundleError):
            bundle = open_bundle(smallest.victim)
            assert dict(bundle.blobs()) == expected
            assert bundle.digest != smallest.bundle.digest
            others += 1
    assert 0 < others < len(smallest.original.manifest)


def test_a_byte_that_is_changed_neither_installs_nor_writes(arena: Arena) -> None:
    whole = arena.original.whole
    before = tree(arena.cache)
    for position in range(0, len(whole), 97):
        arena.victim.write_bytes(whole[:position] + bytes([whole[position] ^ 0x01]) + whole[position + 1 :])
        try:
            bundle = open_bundle(arena.victim)
            read_all(arena.victim)
        except BundleError:
            assert arena.run("install", arena.victim, "--cache-dir", arena.cache)[0] == 3
            assert verify_bundle(arena.victim).findings
            continue
        assert bundle.digest == arena.bundle.digest
    assert tree(arena.cache) == before


def test_a_bundle_that_is_cut_anywhere_is_refused(arena: Arena, tmp_path: Path) -> None:
    whole = arena.original.whole
    ends = [0]
    for frame in frames_of(whole):
        ends.append(ends[-1] + len(frame))
    cuts = sorted({*ends[:-1], *(end - 1 for end in ends[1:]), *range(0, len(whole), 512)})
    before = tree(arena.cache)
    for length in cuts:
        arena.victim.write_bytes(whole[:length])
        assert is_refused(read_all, arena.victim)
        assert is_refused(unpack, arena.victim, tmp_path / "store")
        code, said = arena.run("install", arena.victim, "--cache-dir", arena.cache)
        assert (code, said.count("\n")) == (3, 1)
        assert verify_bundle(arena.victim).findings
    assert tree(arena.cache) == before
    assert list(tmp_path.iterdir()) == []


# Each bomb is read in a fork of one process that has loaded everything, so that what it takes is its own.
MEASURE = """
import gc, json, os, resource, sys
from pathlib import Path
from aotpack.bundle import open_bundle
from aotpack.errors import BundleError

def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime

def measure(path):
    memory, seconds = used()
    try:
        dict(open_bundle(path).blobs())
        said = ""
    except BundleError as error:
        said = str(error)
    after, ended = used()
    found = {"name": path.name, "said": said, "memory": after - memory, "seconds": ended - seconds}
    print(json.dumps(found), flush=True)

first, *bombs = map(Path, sys.argv[1:])
dict(open_bundle(first).blobs())
for path in bombs:
    child = os.fork()
    if child == 0:
        measure(path)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def measured(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each bomb took, in bytes of memory and seconds of processor time."""
    folder = tmp_path_factory.mktemp("bombs")
    paths = []
    for name, make in BOMBS.items():
        paths.append(folder / name)
        paths[-1].write_bytes(make(arena.original))
        assert paths[-1].stat().st_size < 2 << 20
    command = [sys.executable, "-c", MEASURE, str(arena.bundle.path), *map(str, paths)]
    # Coverage would measure itself: it takes a multiple of the time of what it watches.
    watched = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(command, cwd=ROOT, env=watched, capture_output=True, text=True, check=True)
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_64_mib_and_2_seconds(measured: dict[str, dict[str, Any]], name: str) -> None:
    taken = measured[name]
    assert taken["said"].count("\n") == 0
    assert taken["said"]
    assert taken["memory"] < 64 << 20
    assert taken["seconds"] < 2
