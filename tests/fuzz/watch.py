"""Watching where a process writes: by the audit events of Python itself, which nothing of ours can leave out."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# The arguments of each event that are paths, and the one that is the directory they are relative to, if there is one
# (https://docs.python.org/3/library/audit_events.html).
_CHANGING: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
}

_RUNNING = {"os.exec", "os.posix_spawn", "os.system", "pty.spawn", "socket.connect", "subprocess.Popen"}
"""What no reading of a file has to do with."""


class _Watch:
    """The one hook of this process: hooks cannot be taken out again, so it rests between two watches."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.seen: list[str] = []
        self.hooked = False

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.root is None:
            return
        if event == "open" and arguments[2] & _WRITING:
            self._note(event, arguments[0], None)
        elif event in _CHANGING:
            for place, directory in _CHANGING[event]:
                self._note(event, arguments[place], None if directory is None else arguments[directory])
        elif event in _RUNNING:
            self.seen.append(f"{event} {arguments[0]}")

    def _note(self, event: str, path: object, directory: int | None) -> None:
        if isinstance(path, int):
            return  # a file that was opened before, and seen then
        text = os.fsdecode(path)  # type: ignore[arg-type]  # what os itself was given
        if directory not in (None, -1):
            text = f"{os.readlink(f'/proc/self/fd/{directory}')}/{text}"  # noqa: PTH115  # Path would audit itself
        text = os.path.normpath(os.path.join(os.getcwd(), text))  # noqa: PTH109, PTH118  # as above
        if text != self.root and not text.startswith(f"{self.root}/") and text != os.devnull:
            self.seen.append(f"{event} {text}")


_WATCH = _Watch()


@contextmanager
def writes_elsewhere(root: Path) -> Iterator[list[str]]:
    """What a block writes, makes, moves or removes elsewhere than below ``root``, and what it runs or connects to.

    Links are not followed: a link out of ``root`` is made below it, and no target makes one.
    """
    if not _WATCH.hooked:
        sys.addaudithook(_WATCH.hook)
        _WATCH.hooked = True
    seen: list[str] = []
    _WATCH.root, _WATCH.seen = str(root), seen
    try:
        yield seen
    finally:
        _WATCH.root = None
