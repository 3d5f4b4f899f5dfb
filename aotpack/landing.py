"""Landing: directories laid into a cache so that a reader finds each of them whole, or not at all.

A directory is staged beside its place, brought to the disk, and renamed to it. Where something lies there already,
its files are replaced one by one, and the commit mark, the file that readers look for first, goes first and comes
last. So at whatever moment a process is killed or the disk fills, an entry is either there or missing, and the next
install ends as if nothing had happened.

A machine that loses its power is a process killed whose last writes are lost too, and a rename may survive what it
renamed. So all that is staged is on the disk before the first rename. Not file by file: each of those would wait for
the disk's own cache, thousands of times. The file system is asked once, when everything is staged, and again for each
directory in which names change: for the receipt, and for the entries.

One process of a host works in a cache at a time. Where the file system has no locks, and between hosts, two may:
that is sound too, since each step is, and only costs the work of both. Nothing here knows what the files are.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aotpack.atomic import sync_directory, sync_tree, write_atomically
from aotpack.digests import digest_bytes, digest_file
from aotpack.errors import CacheError
from aotpack.receipts import HELPERS, MANIFESTS, OURS, SIGNATURES, InstalledFile, Receipt

_T = TypeVar("_T")

LONGEST_WAIT = 600.0
"""Seconds to wait for another process that installs; the largest bundles take some ten on a network file system."""

ABANDONED = 24 * 3600
"""Seconds after which what another host staged is taken for abandoned."""

# Network file systems answer so while a server restarts or another client holds a file open.
_PASSING = frozenset({errno.EBUSY, errno.ESTALE, errno.EAGAIN, errno.EINTR})
_PAUSES = (0.02, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A directory of a cache, and files that are to lie in it.

    Attributes:
        directory: its name below the cache; several landings may share one.
        files: names and contents; the last is the commit mark, without which the others are no entry.
    """

    directory: str
    files: tuple[tuple[str, bytes], ...]

    @property
    def mark(self) -> str:
        """The name of the commit mark."""
        return self.files[-1][0]

    def installed(self) -> list[InstalledFile]:
        """The files as a receipt lists them."""
        return [InstalledFile(path=f"{self.directory}/{name}", digest=digest_bytes(data)) for name, data in self.files]

    def lies_in(self, cache: Path) -> bool:
        """Whether every file lies in the cache with this very content."""
        return all(_reads(cache / self.directory / name, data) for name, data in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A landing whose files are staged.

    Attributes:
        place: the directory where they are.
        directory: that of the landing.
        files: as a receipt lists them; the last is the commit mark.
    """

    place: str
    directory: str
    files: tuple[InstalledFile, ...]

    def lies_in(self, cache: Path) -> bool:
        """Whether every file lies in the cache with this very content."""
        return all(_has(cache / file.path, file.digest) for file in self.files)


def _reads(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _has(path: Path, digest: str) -> bool:
    try:
        return digest_file(path) == digest
    except OSError:
        return False


def _patiently(act: Callable[[], _T]) -> _T:
    """Do ``act``, again after a pause where a network file system says that it cannot just now."""
    for pause in _PAUSES:
        try:
            return act()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause)
    return act()


def make_directory(path: Path) -> None:
    """Make a directory and those above it, each readable by all whatever the umask; one that is there stays as it is.

    Raises:
        OSError: it cannot be made, or something else is in the way.
    """
    if path.is_dir():
        return
    for is_last in (False, False, True):
        if path.parent != path:
            make_directory(path.parent)
        try:
            _patiently(path.mkdir)
        except FileExistsError:
            if not path.is_dir():
                raise
        except FileNotFoundError:  # somebody has removed the one above it meanwhile
            if is_last:
                raise
            continue
        else:
            _open_to_all(path)
        return


def _open_to_all(directory: Path | str) -> None:
    with suppress(OSError):  # some file systems have no modes
        os.chmod(directory, 0o755)  # noqa: PTH101, S103  # as above


def remove_file(path: Path) -> None:
    """Remove a file that may be gone already.

    Raises:
        OSError: it cannot be removed.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        _patiently(path.unlink)


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove those of the directories that are empty, and nothing above them."""
    for directory in directories:
        with suppress(OSError):  # not empty, gone, or still listed by a network file system
            directory.rmdir()


@contextmanager
def at_work(cache: Path) -> Iterator[None]:
    """Be the one process of this host that changes the cache.

    Our directory in the cache is made where it is missing, and removed at the end where it is empty; so is the cache
    itself where what is done there fails. What killed processes have staged there is removed.

    Raises:
        CacheError: another process was at work all the while.
        OSError: our directory cannot be made.
    """
    home = cache / OURS
    until = time.monotonic() + LONGEST_WAIT
    made = _missing(home)
    try:
        with _locked(cache, home, until):
            yield
    except BaseException:
        remove_empty(made)
        raise


def _missing(directory: Path) -> list[Path]:
    """Which of a directory and those above it are not there, the lowest first."""
    return [path for path in (directory, *directory.parents) if not os.path.lexists(path)]


@contextmanager
def _locked(cache: Path, home: Path, until: float) -> Iterator[None]:
    while True:
        make_directory(home)
        try:
            handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # the process before us was the last and removed it
        try:
            locked = _lock(handle, home, until)
            if not _is_at(handle, home):
                continue
            _remove_abandoned(home, locked=locked)
            try:
                yield
            finally:
                remove_empty([*(cache / place for place in (HELPERS, MANIFESTS, SIGNATURES)), home / "receipts", home])
        finally:
            os.close(handle)
        return


def _lock(handle: int, home: Path, until: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise CacheError(
                    f"{home}: another aotpack has been at work in this cache for {LONGEST_WAIT:.0f} seconds; "
                    "wait for it, or end it, and run this again"
                ) from None
            time.sleep(0.05)
        except OSError:
            return False  # a file system without locks
        else:
            return True


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _remove_abandoned(home: Path, *, locked: bool) -> None:
    for left in home.glob("staging-*"):
        # Whoever holds the lock is the only one of this host that can be alive.
        if (locked and left.name.rpartition("-")[0] == _prefix()) or _age(left) > ABANDONED:
            shutil.rmtree(left, ignore_errors=True)


def _prefix() -> str:
    return f"staging-{os.uname().nodename}"


@contextmanager
def staging(cache: Path) -> Iterator[Path]:
    """A directory beside the entries to stage in, for one who is ``at_work`` there.

    Raises:
        OSError: it cannot be made.
    """
    place = Path(_patiently(lambda: tempfile.mkdtemp(prefix=f"{_prefix()}-", dir=cache / OURS)))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def lay(place: Path, cache: Path, landings: Sequence[Landing], receipt: Receipt | None) -> None:
    """Lay directories into the cache, and the receipt before the first of them: ``stage``, then ``commit``.

    Args:
        place: where to stage.
        cache: the cache.
        landings: what to lay.
        receipt: what to write before, or None to leave it as it is.

    Raises:
        OSError: something cannot be written; each landing is whole or missing.
    """
    commit(place, cache, [stage(f"{place}/{index}", landing) for index, landing in enumerate(landings)], receipt)


def stage(place: str, landing: Landing) -> Staged:
    """Stage a landing.

    Args:
        place: a directory to make, below that of ``staging``.
        landing: what goes there.

    Raises:
        OSError: it cannot be written.
    """
    stage_directory(place)
    for name, data in landing.files:
        stage_file(place, name, data)
    return Staged(place=place, directory=landing.directory, files=tuple(landing.installed()))


def stage_directory(place: str) -> None:
    """Make a directory in which files are to be staged, which all can read whatever the umask.

    Raises:
        OSError: it cannot be made.
    """
    _patiently(lambda: _make_anew(place))


def _make_anew(place: str) -> None:
    with suppress(FileExistsError):  # a network file system has done it, and its answer was lost
        os.mkdir(place)  # noqa: PTH102  # of thousands, a Path would take a good part of the time
    _open_to_all(place)


def stage_file(place: str, name: str, data: bytes) -> None:
    """Write a file that all can read; it is on the disk only after ``commit``.

    Args:
        place: a directory that ``stage_directory`` has made.
        name: the file's name.
        data: its content.

    Raises:
        OSError: it cannot be written.
    """
    _patiently(lambda: _write(f"{place}/{name}", data))


def _write(path: str, data: bytes) -> None:
    # Without the layers of ``open``, which take longer than the file system for files as small as these.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(handle, data) if data else 0
        while written < len(data):
            written += os.write(handle, memoryview(data)[written:])
        try:  # noqa: SIM105  # it takes as long as the call
            os.fchmod(handle, 0o644)
        except OSError:  # some file systems have no modes
            pass
    finally:
        os.close(handle)


def commit(place: Path, cache: Path, staged: Sequence[Staged], receipt: Receipt | None) -> None:
    """Move what is staged into the cache, and the receipt before the first of it.

    Everything is on the disk before anything appears in the cache, so a disk that is full is noticed in time.

    Args:
        place: the directory of ``staging``.
        cache: the cache.
        staged: what to move.
        receipt: what to write before, or None to leave it as it is.

    Raises:
        OSError: something cannot be written; each landing is whole or missing.
    """
    data = b"" if receipt is None else receipt.to_bytes()
    if receipt is not None:
        stage_file(str(place), _RECEIPT, data)
    sync_tree(place)
    if receipt is not None:
        make_directory(receipt.path.parent)
        _put(f"{place}/{_RECEIPT}", receipt.path, digest_bytes(data))
        sync_directory(receipt.path.parent)
    for landing in staged:
        _land(cache, landing)
    sync_directory(cache)


_RECEIPT = "receipt"


def _land(cache: Path, staged: Staged) -> None:
    """Move a staged directory to its place: in one rename, or file by file where something is in the way."""
    place = f"{cache}/{staged.directory}"
    try:
        # Over an empty directory too: Triton makes one for each miss.
        _patiently(lambda: os.rename(staged.place, place))  # noqa: PTH104
    except OSError:
        # A process of another host was faster, and its readers are not to be disturbed; or a network file system
        # answers a rename that it has done with an error.
        if staged.lies_in(cache):
            return
    else:
        return
    make_directory(Path(place))
    remove_file(cache / staged.files[-1].path)
    for file in staged.files:
        _put(f"{staged.place}/{file.name}", cache / file.path, file.digest)
    sync_directory(Path(place))


def _put(staged: str, path: Path, digest: str) -> None:
    try:
        _patiently(lambda: Path(staged).replace(path))
    except OSError as error:
        if error.errno == errno.EXDEV:  # quota projects and overlays refuse renames within what looks like one system
            data = Path(staged).read_bytes()
            _patiently(lambda: write_atomically(path, [data]))
        elif not _has(path, digest):
            raise
