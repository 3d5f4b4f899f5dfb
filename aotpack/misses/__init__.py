"""Misses: why Triton compiled a kernel although there is a bundle, told by the parts of its cache key that differ.

A miss is known from a record, which has all that its cache key was made of, or from the entry that the compile left
in a cache directory, which has the options, the variables and the code, but neither constants nor sources. Of an
entry the rest is guessed from the bundle's own entries; where a guess hashes to the entry's cache key it is no guess
any more, and where none does, the explanation says what it cannot know.

The answer is the nearest entry of the bundle, the one with the fewest differing parts, and each of these by name.
"""

from collections.abc import Sequence
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.leftovers import find_leftovers, read_leftover
from aotpack.misses.entries import explain_leftovers
from aotpack.misses.launches import explain_launches
from aotpack.misses.miss import Miss
from aotpack.record import read_launches


def explain_misses(bundle: Bundle, records: Sequence[Path], entries: Sequence[Path], cache: Path) -> tuple[Miss, ...]:
    """Why each miss of files of records and of entries was one; without either, of what is left in a cache directory.

    Args:
        bundle: what should have been found.
        records: files that a listener wrote.
        entries: directories in a cache directory.
        cache: a cache directory.

    Raises:
        AotpackError: one of the records or entries cannot be read.
        CacheError: a receipt in a cache is damaged.
    """
    launches = [launch for path in records for launch in read_launches(path)]
    left = [read_leftover(path) for path in entries]
    if not records and not entries:
        left = find_leftovers(cache, {entry.name for entry in bundle.manifest.entries})
    return (*explain_launches(bundle, launches), *explain_leftovers(bundle, left))
