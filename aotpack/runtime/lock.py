"""A lock that does not outlive its holder in a forked process."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Lock:
    """A lock for threads that a forked process gets anew, since whoever held it in the parent is not there."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it in the block."""
        with self._lock:
            yield
