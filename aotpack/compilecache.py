"""The compile cache: what builds found out and keep for later builds, under the user's cache directory.

Each thing kept is a file of its own, named by the digest of all that it follows from, so nothing in it is ever
outdated: what has changed has another name. A file begins with the digest of its name and content, and one that does
not agree with it counts as not there. It appears whole, by a rename, so that many processes can share a directory
and a build that is killed has kept what it had.

A cache never makes a build fail: what cannot be read is made again, what cannot be written is not kept, and either
is a finding. What lies there ends up in bundles, so a directory that others may write is not used at all
(``aotpack.writers``).
"""

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aotpack.digests import digest_bytes, hex_of
from aotpack.findings import Finding
from aotpack.writers import objection

DEFAULT_LIMIT = 4 << 30
"""Bytes: some 300,000 keys."""

_PARTIAL = ".partial"
_ABANDONED = 3600
"""Seconds after which a half written file is taken for one that a killed process left."""

_SLACK = 0.9
"""The part of the limit that pruning leaves, so that not every build has to prune."""


@dataclass(slots=True, kw_only=True)
class CompileCache:
    """A directory of what builds keep.

    Attributes:
        root: the directory; it need not exist.
        limit: bytes that are left in it after a build, see ``prune``.
        hits: how many things were found.
        misses: how many were not.
        damaged: files that were not what their digest says.
        unusable: why nothing could be kept, or used, where that happened.
    """

    root: Path
    limit: int = DEFAULT_LIMIT
    hits: int = 0
    misses: int = 0
    damaged: list[Path] = field(default_factory=list)
    unusable: str = ""
    _checked: bool = False
    _barred: bool = False

    def path(self, name: str) -> Path:
        """Where something is kept.

        Args:
            name: the digest of all that it follows from.
        """
        digits = hex_of(name)
        return self.root / digits[:2] / digits[2:]

    def get(self, name: str) -> bytes | None:
        """What was kept under a name, or None; it then counts as used now."""
        path = self.path(name)
        try:
            self._check()
            seal, _, content = path.read_bytes().partition(b"\n")
        except OSError:
            self.misses += 1
            return None
        if seal != _seal(name, content):
            self.damaged.append(path)
            self.misses += 1
            return None
        with suppress(OSError):  # someone else's, or pruned just now
            os.utime(path)
        self.hits += 1
        return content

    def put(self, name: str, content: bytes) -> None:
        """Keep something under a name."""
        path = self.path(name)
        partial = None
        try:
            self._check()
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(prefix=".", suffix=_PARTIAL, dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(_seal(name, content) + b"\n")
                file.write(content)
            # Not synced: what a crash of the machine leaves is told by its digest.
            Path(partial).replace(path)
        except OSError as error:
            self.unusable = self.unusable or f"{path.parent}: {error.strerror or error}"
            if partial is not None:
                with suppress(OSError):
                    Path(partial).unlink()

    def _check(self) -> None:
        """Make sure, once, that the directory is there and nobody else may write in it.

        Raises:
            OSError: it cannot be made, or others may.
        """
        if not self._checked:
            self.root.mkdir(parents=True, exist_ok=True)
            found = objection(self.root)
            self._checked, self._barred = True, bool(found)
            self.unusable = found
        if self._barred:
            raise PermissionError(errno.EPERM, self.unusable)

    def prune(self) -> None:
        """Remove what was used longest ago, where there is more than ``limit``; and what killed processes left."""
        if self._barred:
            return
        files: list[tuple[float, int, Path]] = []
        for entry in _files(self.root):
            with suppress(OSError):  # pruned by another process
                status = entry.stat(follow_symlinks=False)
                if not entry.name.endswith(_PARTIAL):
                    files.append((status.st_mtime, status.st_size, Path(entry.path)))
                elif status.st_mtime < time.time() - _ABANDONED:
                    Path(entry.path).unlink()
        total = sum(size for _, size, _ in files)
        if total <= self.limit:
            return
        for _, size, path in sorted(files):
            with suppress(OSError):
                path.unlink()
            total -= size
            if total <= self.limit * _SLACK:
                return

    def findings(self) -> list[Finding]:
        """What a user should know of it."""
        found = []
        if self.damaged:
            found.append(
                Finding(
                    code="C101",
                    subject=str(self.damaged[0]),
                    detail=f"damaged, {len(self.damaged)} of the files kept here in all; what they held was made anew",
                    hint=f"check the disk; to start over, remove {self.root}",
                )
            )
        if self.unusable:
            found.append(
                Finding(
                    code="C102",
                    subject=str(self.root),
                    detail=f"not used by this build, nor by the next one: {self.unusable}",
                    hint="set AOTPACK_CACHE_DIR to a directory of your own, or give --no-compile-cache",
                )
            )
        return found


def _seal(name: str, content: bytes) -> bytes:
    # The name too, so that a file that came under another's name is told.
    return digest_bytes(name.encode() + b"\n" + content).encode()


def _files(root: Path) -> Iterator[os.DirEntry[str]]:
    """The files that a cache keeps."""
    with suppress(OSError), os.scandir(root) as folders:
        for folder in folders:
            if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):  # noqa: PLR2004  # see path
                with suppress(OSError), os.scandir(folder.path) as entries:
                    yield from entries
