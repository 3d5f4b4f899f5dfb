"""The overlay: Triton's cache manager in a process that serves, which looks among what is served before all else.

It stands before the manager that was configured (``TRITON_CACHE_MANAGER``, else Triton's own directory), which is not
even made for what is served: nothing is written, and where ``TRITON_CACHE_DIR`` points does not matter. What is not
served goes to the manager that was configured; where that cannot write, a kernel is compiled into a directory of this
process alone, instead of ending in an error.

Of each file, kernel or helper, preloaded or not, it is checked when it is first handed out that its digest is the one
that was promised, and that nobody but root and this user may write on the way to it. So what was checked is what Triton
reads, although it opens the file again: nobody else can replace it in between, or later.

What Triton asks of a manager is in triton/runtime/cache.py (``CacheManager``); it makes one for each lookup, for the
name of an entry's directory.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aotpack.digests import digest_bytes
from aotpack.runtime.lock import Lock
from aotpack.runtime.places import File, Place
from aotpack.runtime.trouble import complain, tolerated, warn
from aotpack.runtime.trust import WHAT_NOW
from aotpack.writers import objection

_T = TypeVar("_T")


class Served:
    """What is served in this process. Threads may ask it at once."""

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()
        self._whole: set[File] = set()
        self._refused: set[_State] = set()
        self._sound: set[Path] = set()

    def add(self, places: Sequence[Place]) -> None:
        """Serve from these places too, and hand out none of what they refuse."""
        self._refuse(path for place in places for path in place.refused)
        self.places += tuple(places)

    def group(self, directory: str, name: str) -> dict[str, str] | None:
        """The paths of an entry's files by name, or None where no place has it whole.

        Args:
            directory: the name of the entry's directory.
            name: of its metadata file.
        """
        for place in self.places:
            files = place.entry(directory)
            if name in files and self._are_whole(files.values()):
                return {file: str(found.path) for file, found in files.items()}
        return None

    def file(self, directory: str, name: str) -> str | None:
        """The path of one file of an entry, or None where no place has it whole."""
        for place in self.places:
            file = place.entry(directory).get(name)
            if file is not None and self._is_whole(file):
                return str(file.path)
        return None

    def helper(self, source: str, name: str) -> Path | None:
        """The path of a native helper, or None where no place has it whole.

        Args:
            source: the digest of its C text.
            name: its file name.
        """
        for place in self.places:
            file = place.helper(source, name)
            if file is not None and self._is_whole(file):
                return file.path
        return None

    def _are_whole(self, files: Collection[File]) -> bool:
        if all(self._is_whole(file) for file in files):
            return True
        # Up to Triton 3.7 its own directory would hand out the rest of the entry.
        self._refuse(file.path for file in files)
        return False

    def _refuse(self, paths: Iterable[Path]) -> None:
        self._refused |= {state for path in paths if (state := _state(path)) is not None}

    def _is_whole(self, file: File) -> bool:
        if file in self._whole:
            return file.path.exists()
        try:
            writers = objection(file.path, self._sound)
            content = file.path.read_bytes()
        except OSError as error:
            complain(f"{file.path}: cannot be read: {error.strerror}; install the bundle again; it is compiled")
            return False
        if writers or digest_bytes(content) != file.digest:
            self._refuse([file.path])
            wrong = f"{writers}; {WHAT_NOW}" if writers else "is not what was installed; install the bundle again"
            complain(f"{file.path}: {wrong}; it is compiled")
            return False
        self._whole.add(file)
        return True

    def is_refused(self, path: str) -> bool:
        """Whether a file, by whatever path, must not be handed out and is still the same, or is not there."""
        state = _state(Path(path))
        return state is None or state in self._refused


_State = tuple[int, int, int]


def _state(path: Path) -> _State | None:
    """What changes when a file is replaced or written, whatever path leads to it; None where it is not there."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns


class _Overlay:
    """Answers for one key; ``manager_class`` completes it with what Triton has."""

    served: Served
    configured: Callable[..., Any]
    private: Callable[[str], Any]

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:  # noqa: FBT001, FBT002
        self._key = key
        # Overrides and dumps lie under other keys, and who asks for them is not served but told what fails.
        self._other = type(self).configured(key, override=override, dump=dump) if override or dump else None
        self._made: Any = None
        self._cannot_write = False

    def get_file(self, filename: str) -> str | None:
        if self._other is not None:
            return self._other.get_file(filename)  # type: ignore[no-any-return]
        with tolerated(f"{filename} is not served"):
            if (found := self.served.file(self._key, filename)) is not None:
                return found
        return self._read(lambda manager: manager.get_file(filename), lambda path: [path])

    def get_group(self, filename: str) -> dict[str, str] | None:
        if self._other is not None:
            return self._other.get_group(filename)  # type: ignore[no-any-return]
        with tolerated(f"{filename} is not served"):
            if (found := self.served.group(self._key, filename)) is not None:
                return found
        return self._read(lambda manager: manager.get_group(filename), lambda group: list(group.values()))

    def put(self, data: Any, filename: str, binary: bool = True) -> str:  # noqa: FBT001, FBT002
        return self._write(lambda manager: manager.put(data, filename, binary=binary))  # type: ignore[no-any-return]

    def put_group(self, filename: str, group: dict[str, str]) -> Any:
        return self._write(lambda manager: manager.put_group(filename, group))

    def _ordinary(self) -> Any:
        if self._made is None:
            self._made = type(self).configured(self._key)
        return self._made

    def _kept(self) -> Any:
        """This process's own, where it has compiled the key into it."""
        place = _PRIVATE.get(os.getpid())
        return type(self).private(self._key) if place is not None and (place / self._key).is_dir() else None

    def _read(self, ask: Callable[[Any], _T | None], paths: Callable[[_T], list[str]]) -> _T | None:
        for make in (self._ordinary, self._kept):
            try:
                manager = make()
                found = None if manager is None else ask(manager)
            except OSError:  # what cannot be made or read is not found
                continue
            if found is not None and not any(self.served.is_refused(path) for path in paths(found)):
                return found
        return None

    def _write(self, act: Callable[[Any], Any]) -> Any:
        if self._other is not None:
            return act(self._other)
        if not self._cannot_write:
            try:
                return act(self._ordinary())
            except OSError as error:
                self._cannot_write = True
                why = error.strerror or error
                warn(
                    f"Triton's cache {_directory()} cannot be written ({why}): what is in no bundle is compiled into "
                    f"{_private_directory()}, for this process alone"
                )
        return act(type(self).private(self._key))


def _directory() -> str:
    from triton import knobs

    return str(knobs.cache.dir)


def manager_class(served: Served, before: Callable[..., Any] | None) -> type:
    """The class of cache managers that Triton is to use.

    Args:
        served: what is served.
        before: the class that was configured; None means Triton's own.

    Raises:
        ImportError: there is no Triton.
    """
    from triton.runtime.cache import CacheManager, FileCacheManager

    class Private(FileCacheManager):  # type: ignore[misc]  # triton has no stubs
        """Triton's own manager, in this process's own directory."""

        def __init__(self, key: str) -> None:
            self.key = key
            self.cache_dir = str(_private_directory() / key)
            self.lock_path = os.path.join(self.cache_dir, "lock")  # noqa: PTH118  # as Triton keeps it
            os.makedirs(self.cache_dir, exist_ok=True)  # noqa: PTH103

    parts = {"served": served, "configured": before or FileCacheManager, "private": Private}
    return type("OverlayCacheManager", (_Overlay, CacheManager), parts)


_LOCK = Lock()
_PRIVATE: dict[int, Path] = {}
"""The directory of each process, by its id: a forked one has inherited its parent's, and may not rely on it."""


def _private_directory() -> Path:
    with _LOCK.held():
        process = os.getpid()
        if process not in _PRIVATE:
            _PRIVATE[process] = Path(tempfile.mkdtemp(prefix="aotpack-"))
            atexit.register(_remove_private, process)
        return _PRIVATE[process]


def _remove_private(process: int) -> None:
    if process == os.getpid():
        shutil.rmtree(_PRIVATE[process], ignore_errors=True)
