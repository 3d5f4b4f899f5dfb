"""Candidates: where bundles may be for this process, as cheaply as that can be told.

Most processes that import us have none, and shall not pay for what they do not need: nothing is opened here, and
nothing is imported but the standard library's metadata.
"""

import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from aotpack.receipts import receipt_paths
from aotpack.runtime.trouble import tolerated
from aotpack.tritoncache import effective_directory

GROUP = "aotpack.bundles"
"""The entry points of wheels that carry bundles: each names the package that has the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Where bundles may be.

    Attributes:
        caches: the cache directory that is effective now, where it has receipts.
        named: what ``AOTPACK_BUNDLE_PATH`` names, in its order.
        wheels: entry points of installed wheels.
    """

    caches: tuple[Path, ...]
    named: tuple[Path, ...]
    wheels: tuple[EntryPoint, ...]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.caches or self.named or self.wheels)


def find_candidates() -> Candidates:
    """Where bundles may be for this process, as its variables are now."""
    caches: tuple[Path, ...] = ()
    with tolerated("what is installed in Triton's cache is not served"):
        cache = effective_directory()
        caches = (cache,) if receipt_paths(cache) else ()
    wheels: tuple[EntryPoint, ...] = ()
    with tolerated("the bundles of installed wheels are not served"):
        wheels = tuple(entry_points(group=GROUP))
    elements = [element for element in os.environ.get("AOTPACK_BUNDLE_PATH", "").split(":") if element]
    return Candidates(
        caches=caches,
        named=tuple(Path(os.path.abspath(element)) for element in elements),  # noqa: PTH100  # not through links
        wheels=wheels,
    )
