"""Landing: directories laid into a cache so that a reader finds each of them whole, or not at all.

A directory is staged beside its place, synced, and renamed to it. Where something lies there already, its files
are replaced one by one, and the commit mark, the file that readers look for first, goes first and comes last. So
at whatever moment a process is killed or the disk fills, an entry is either there or missing, and the next
install ends as if nothing had happened.

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

from aotpack.atomic import sync_directory, sync_file, write_atomically
from aotpack.digests import digest_bytes
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


def _reads(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
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
    if path.parent != path:
        make_directory(path.parent)
    try:
        _patiently(path.mkdir)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        _open_to_all(path)


def _open_to_all(directory: Path) -> None:
    with suppress(OSError):  # some file systems have no modes
        directory.chmod(0o755)


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

    Our directory in the cache is made where it is missing, and removed at the end where it is empty; what killed
    processes have staged there is removed.

    Raises:
        CacheError: another process was at work all the while.
        OSError: our directory cannot be made.
    """
    home = cache / OURS
    until = time.monotonic() + LONGEST_WAIT
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
    """Lay directories into the cache, and the receipt before the first of them.

    Everything is on the disk before anything appears in the cache, so a disk that is full is noticed in time.

    Args:
        place: where to stage.
        cache: the cache.
        landings: what to lay.
        receipt: what to write before, or None to leave it as it is.

    Raises:
        OSError: something cannot be written; each landing is whole or missing.
    """
    for index, landing in enumerate(landings):
        _stage(place / str(index), landing)
    if receipt is not None:
        staged = place / "receipt"
        data = receipt.to_bytes()
        _patiently(lambda: _write(staged, data))
        make_directory(receipt.path.parent)
        _put(staged, receipt.path, data)
        sync_directory(receipt.path.parent)
    for index, landing in enumerate(landings):
        _land(place / str(index), cache, landing)
    sync_directory(cache)


def _stage(directory: Path, landing: Landing) -> None:
    make_directory(directory)
    for name, data in landing.files:
        _patiently(lambda path=directory / name, data=data: _write(path, data))  # type: ignore[misc]


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        with suppress(OSError):  # some file systems have no modes
            os.fchmod(file.fileno(), 0o644)
        sync_file(file.fileno())


def _land(staged: Path, cache: Path, landing: Landing) -> None:
    """Move a staged directory to its place: in one rename, or file by file where something is in the way."""
    place = cache / landing.directory
    if landing.lies_in(cache):
        return  # a process of another host was faster; its readers are not to be disturbed
    try:
        _patiently(lambda: staged.rename(place))  # over an empty directory too: Triton makes one for each miss
    except OSError:
        # A network file system may answer a rename that it has done with an error.
        if landing.lies_in(cache):
            return
    else:
        return
    make_directory(place)
    remove_file(place / landing.mark)
    for name, data in landing.files:
        _put(staged / name, place / name, data)
    sync_directory(place)


def _put(staged: Path, path: Path, data: bytes) -> None:
    try:
        _patiently(lambda: staged.replace(path))
    except OSError as error:
        if error.errno == errno.EXDEV:  # quota projects and overlays refuse renames within what looks like one system
            _patiently(lambda: write_atomically(path, [data]))
        elif not _reads(path, data):
            raise
