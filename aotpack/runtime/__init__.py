"""Load time: what makes an install effective inside the process that serves.

Nothing here may break serving: whatever fails is one warning, and Triton goes on as if aotpack were not there,
unless ``AOTPACK_STRICT`` asks for the error.
"""

import os
import warnings
from functools import lru_cache

from aotpack.runtime.helpers import serve_helpers
from aotpack.tritoncache import effective_directory


def activate() -> None:
    """Make what is installed in Triton's cache directory effective in this process, once.

    Native helpers whose key could not be known at install are served from there, so that Triton needs no C
    compiler. ``AOTPACK_DISABLE=1`` switches it off.

    Raises:
        Exception: with ``AOTPACK_STRICT=1`` alone, whatever went wrong.
    """
    if not _switched_on("AOTPACK_DISABLE"):
        _activate()


@lru_cache(maxsize=1)
def _activate() -> None:
    try:
        serve_helpers(effective_directory())
    except Exception as error:
        if _switched_on("AOTPACK_STRICT"):
            raise
        warnings.warn(f"aotpack is not active in this process: {error}", RuntimeWarning, stacklevel=3)


def _switched_on(name: str) -> bool:
    return os.environ.get(name, "") not in {"", "0"}
