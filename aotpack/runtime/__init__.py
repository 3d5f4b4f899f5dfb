"""Load time: what makes bundles effective inside the process that serves.

Nothing here may break serving: whatever fails is one warning, and Triton goes on as if aotpack were not there,
unless ``AOTPACK_STRICT`` asks for the error.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aotpack.runtime.candidates import Candidates, find_candidates
from aotpack.runtime.lock import Lock
from aotpack.runtime.trouble import LOG, set_log_level, switched_on, tolerated

if TYPE_CHECKING:  # a process that has nothing to serve does not pay for them
    from aotpack.runtime.overlay import Served
    from aotpack.runtime.places import Place

_LOCK = Lock()
_SERVED: "list[Served]" = []
"""What is served in this process: nothing, or one."""
_LOOKED: set[tuple[str | None, ...]] = set()
"""Where was looked, as the variables that decide it said."""
_DECIDING = ("AOTPACK_BUNDLE_PATH", "TRITON_CACHE_DIR", "TRITON_HOME", "HOME")


def activate() -> None:
    """Make the bundles that this process can find effective in it.

    They are looked for in Triton's cache directory as it is now, where ``AOTPACK_BUNDLE_PATH`` says, and among
    installed wheels. Those that fit are served to Triton, with their native helpers, wherever its cache directory is
    moved later. Where there are none, Triton is not even imported. It may be called again, and in each thread: what
    it did stays as it is, and where the variables say otherwise by then, it looks there too.

    ``AOTPACK_DISABLE=1`` switches it off.

    Raises:
        Exception: with ``AOTPACK_STRICT=1`` alone, whatever went wrong.
    """
    if switched_on("AOTPACK_DISABLE"):
        return
    with tolerated("aotpack is not active in this process"), _LOCK.held():
        where = tuple(os.environ.get(name) for name in _DECIDING)
        if where not in _LOOKED:
            with tolerated("AOTPACK_LOG_LEVEL is not heeded"):
                set_log_level()
            candidates = find_candidates()
            if candidates:
                _serve(candidates)
            else:
                LOG.debug("there is nothing to serve")
            _LOOKED.add(where)


def served_places() -> "tuple[Place, ...]":
    """What is served in this process, in the order in which it is asked."""
    return _SERVED[0].places if _SERVED else ()


def _serve(candidates: Candidates) -> None:
    from aotpack.runtime.overlay import Served

    known = {place.identity for place in served_places()}
    found: dict[str, Place] = {}
    for place in _find_places(candidates):
        found.setdefault(place.identity, place)
    places = tuple(place for identity, place in found.items() if identity not in known)
    if not places:
        LOG.info("there is nothing more to serve")
        return
    if not _SERVED:
        served = Served()
        _install(served)
        _SERVED.append(served)
    _SERVED[0].add(places)
    LOG.info("serving %s", "; ".join(map(str, places)))


def _find_places(candidates: Candidates) -> "Iterator[Place]":
    """Every place that this process can be served from, the cheapest to ask first.

    What cannot be used is left out with a warning.
    """
    from aotpack.runtime.installed import InstalledPlace
    from aotpack.runtime.trust import Demanded

    demanded = Demanded()
    for cache in candidates.caches:
        with tolerated("what is installed in Triton's cache is not served"):
            yield InstalledPlace(cache, demanded)
    if candidates.named or candidates.wheels:
        from aotpack.runtime.stores import find_stores

        yield from find_stores(candidates, demanded)


def _install(served: "Served") -> None:
    from triton import knobs

    from aotpack.runtime.helpers import build_impl
    from aotpack.runtime.overlay import manager_class

    # A class is not written to the environment (triton/knobs.py, ``toenv``): child processes activate themselves.
    knobs.cache.manager_class = manager_class(served, knobs.cache.manager_class)
    knobs.build.impl = build_impl(served.helper, knobs.build.impl)
