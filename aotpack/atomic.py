"""Files that appear whole or not at all: written aside in the same directory, synced, then renamed."""

import ctypes
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, chunks: Iterable[bytes], *, mode: int = 0o644) -> None:
    """Write ``chunks`` to ``path``, replacing what was there only once all of it is on disk.

    The mode does not depend on the umask, so that the same input leaves the same file for every user.

    Raises:
        OSError: the directory cannot be written, or the disk is full; nothing is left behind.
    """
    with written_aside(path, chunks, mode=mode) as aside:
        aside.replace(path)
    sync_directory(path.parent)


@contextmanager
def written_aside(path: Path, chunks: Iterable[bytes], *, mode: int = 0o644) -> Iterator[Path]:
    """A file beside ``path`` with all of ``chunks`` on disk, for the block to look at and to rename to ``path``.

    It is removed where it still lies there at the block's end.

    Raises:
        OSError: as ``write_atomically``.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fchmod(file.fileno(), mode)
            sync_file(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


_CANNOT = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
"""How a file system, or a sandbox, answers what it does not do at all."""


def sync_file(handle: int) -> None:
    """Bring a file's content to the disk, where the file system can.

    Raises:
        OSError: the content is lost: the disk is full or broken.
    """
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise


def sync_tree(directory: Path) -> None:
    """Bring all that lies below a directory to the disk, where the file system can.

    In one call for the whole file system (``syncfs``, Linux) where there is one: a disk that flushes its cache once
    for thousands of files takes as long as for one of them. It also waits for what others have written there.
    Elsewhere file by file.

    Raises:
        OSError: content is lost: the disk is full or broken.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = _sync_system(handle)
    finally:
        os.close(handle)
    if not done:
        for parent, _, names in os.walk(directory):
            for name in names:
                handle = os.open(os.path.join(parent, name), os.O_RDONLY)  # noqa: PTH118  # as os.walk gives them
                try:
                    sync_file(handle)
                finally:
                    os.close(handle)
            sync_directory(Path(parent))


def _sync_system(handle: int) -> bool:
    """Bring to the disk what the file system of an open directory has; False where there is no such call."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    while syncfs(handle) != 0:
        number = ctypes.get_errno()
        if number in _CANNOT:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True


def sync_directory(directory: Path) -> None:
    """Make renames in ``directory`` survive a crash, where the file system can."""
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


@contextmanager
def directory_that_lands(path: Path) -> Iterator[Path]:
    """A sibling directory to fill, renamed to ``path`` when the block ends well, removed when it does not.

    Where ``path`` has come into being meanwhile (another process was faster), it is kept.

    Raises:
        OSError: the parent cannot be written, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        filling = Path(name) / "content"
        filling.mkdir()
        yield filling
        try:
            filling.rename(path)
        except OSError:
            if not path.is_dir():
                raise
