"""Trouble: what goes wrong of ours in a process that serves is one warning, and an error only where that is asked for.

The logger is ``aotpack``. ``AOTPACK_LOG_LEVEL`` sets its level, and shows its lines where nothing else would;
``AOTPACK_STRICT=1`` asks for errors.
"""

import logging
import os
from types import TracebackType

from aotpack.errors import AotpackError, UsageError

LOG = logging.getLogger("aotpack")

_SAID: set[str] = set()


def switched_on(name: str) -> bool:
    """Whether a variable of ours is set to anything but nothing and ``0``."""
    return os.environ.get(name, "") not in {"", "0"}


def switched_off(name: str) -> bool:
    """Whether a variable of ours is set to ``0``."""
    return os.environ.get(name) == "0"


def warn(message: str) -> None:
    """Warn of something once in this process."""
    if message not in _SAID:
        _SAID.add(message)
        LOG.warning("%s", message)


def complain(message: str) -> None:
    """Warn of a failure of ours once in this process.

    Raises:
        AotpackError: with ``AOTPACK_STRICT=1``, instead of the warning and each time.
    """
    if switched_on("AOTPACK_STRICT"):
        raise AotpackError(message)
    warn(message)


class tolerated:  # noqa: N801  # read as a verb: with tolerated("...")
    """Turns whatever goes wrong in a block into one warning, or leaves it alone with ``AOTPACK_STRICT=1``."""

    def __init__(self, what: str) -> None:
        """Prepare.

        Args:
            what: what then is not done, in a few words.
        """
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or switched_on("AOTPACK_STRICT"):
            return False
        described = str(error) if isinstance(error, AotpackError) else f"{type(error).__name__}: {error}"
        warn(f"{self._what}: {described}")
        return True


def set_log_level() -> None:
    """Have the logger show what ``AOTPACK_LOG_LEVEL`` asks for; unset, whoever set up logging decides.

    Raises:
        UsageError: it names no level.
    """
    wanted = os.environ.get("AOTPACK_LOG_LEVEL", "").upper()
    if not wanted:
        return
    try:
        LOG.setLevel(wanted)
    except ValueError:
        raise UsageError(
            f"AOTPACK_LOG_LEVEL={wanted} is no level of logging; set DEBUG, INFO, WARNING or ERROR"
        ) from None
    if not LOG.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s [%(process)d]: %(message)s"))
        LOG.addHandler(handler)
