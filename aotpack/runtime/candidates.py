"""Candidates: where bundles may be for this process, as cheaply as that can be told.

Most processes that import us have none, and shall not pay for what they do not need: no bundle is opened here, and
nothing is imported beyond what Python has loaded anyway or loads in a few milliseconds. So neither dataclasses nor
``importlib.metadata``, which take longer than all the rest; the latter is asked where a distribution may have a wheel's
entry point.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aotpack.cachedirectory import effective_directory, receipt_paths
from aotpack.runtime.trouble import tolerated

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "aotpack.bundles"
"""The entry points of wheels that carry bundles: each names the package that has the store."""


class Candidates(NamedTuple):
    """Where bundles may be.

    Attributes:
        caches: the cache directory that is effective now, where it has receipts.
        named: what ``AOTPACK_BUNDLE_PATH`` names, in its order.
        wheels: entry points of installed wheels.
    """

    caches: tuple[Path, ...]
    named: tuple[Path, ...]
    wheels: "tuple[EntryPoint, ...]"

    def __bool__(self) -> bool:
        """Whether there are any."""
        return any(self)


def find_candidates() -> Candidates:
    """Where bundles may be for this process, as its variables are now."""
    caches: tuple[Path, ...] = ()
    with tolerated("what is installed in Triton's cache is not served"):
        cache = effective_directory()
        caches = (cache,) if receipt_paths(cache) else ()
    wheels: tuple[EntryPoint, ...] = ()
    with tolerated("the bundles of installed wheels are not served"):
        wheels = _entry_points() if _may_be_offered() else ()
    elements = [element for element in os.environ.get("AOTPACK_BUNDLE_PATH", "").split(":") if element]
    return Candidates(
        caches=caches,
        named=tuple(Path(os.path.abspath(element)) for element in elements),  # noqa: PTH100  # not through links
        wheels=wheels,
    )


def _entry_points() -> "tuple[EntryPoint, ...]":
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _may_be_offered() -> bool:
    """Whether a distribution may offer the entry points; False is certain.

    The name of the group stands in the ``entry_points.txt`` of whoever offers it, and those lie where
    ``importlib.metadata`` would look for them: in the directories of ``sys.path``. What else it can find, in archives
    or by an import hook, it is left to find.
    """
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    # The back port ``importlib_metadata`` puts a finder of its own in the place of Python's.
    known = all(finder is PathFinder or type(finder).__module__ == "importlib_metadata" for finder in finders)
    return not known or any(_mentions(place or ".") for place in sys.path)


def _mentions(place: str) -> bool:
    try:
        # Metadata lies in NAME.dist-info, NAME.egg-info, or an egg's EGG-INFO.
        names = [name for name in os.listdir(place) if name.lower().endswith("-info")]  # noqa: PTH208
    except NotADirectoryError:
        return True
    except OSError:
        return False
    return any(_contains(os.path.join(place, name, "entry_points.txt")) for name in names)  # noqa: PTH118


def _contains(file: str) -> bool:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123  # a Path takes longer than the rest
            return GROUP.encode() in opened.read()
    except OSError:
        return False
