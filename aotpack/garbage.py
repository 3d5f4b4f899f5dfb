"""Garbage: Python's search for cycles of objects, put off while many are made that stay.

The search begins anew whenever so many more objects were made, and looks at all that live: of ten thousand entries it
takes a seventh of an install, and finds nothing, since neither manifests nor receipts have cycles.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def searched_later() -> Iterator[None]:
    """Put the search off until the block ends, in the whole process; where it was off before, it stays off."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
