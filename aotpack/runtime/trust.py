"""Trust at load time: what must hold of a place before this process serves from it.

Nobody but root and this user may write there (``aotpack.writers``), whoever signed it; and its signatures satisfy what
is demanded here (``aotpack.policy``). Where nothing is demanded, no signature is looked at.
"""

from pathlib import Path

from aotpack.errors import AotpackError, CacheError
from aotpack.policy import Demand, demands_here
from aotpack.writers import TRUST_PATH, objection


class Demanded:
    """What this process demands of signatures, asked once; where that cannot be told, nothing satisfies it."""

    def __init__(self) -> None:
        self._error: AotpackError | None = None
        self._demands: tuple[Demand, ...] = ()
        try:
            self._demands = demands_here()
        except AotpackError as error:
            self._error = error

    def __bool__(self) -> bool:
        """Whether anything is demanded."""
        return self._error is not None or bool(self._demands)

    def get(self) -> tuple[Demand, ...]:
        """The demands.

        Raises:
            AotpackError: they cannot be told, or the policy has expired.
        """
        if self._error is not None:
            raise self._error
        return self._demands


def refuse_writers(path: Path) -> None:
    """See to it that only root and this user can change what lies at ``path``.

    Raises:
        CacheError: others can, or it cannot be looked at.
    """
    try:
        found = objection(path)
    except OSError as error:
        raise CacheError(f"{path}: cannot be read: {error.strerror}; make it readable for this user") from None
    if found:
        raise CacheError(f"{path}: {found}; {WHAT_NOW}")


WHAT_NOW = f"take that right away, mount it read-only, or vouch for its directory with {TRUST_PATH}"
