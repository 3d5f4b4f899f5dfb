"""JSON documents from outside, read field by field; every error names its place in the document.

A ``Node`` is one value and where it stands. Asking it for a field, a text or a number either gives just
that or raises a ``DocumentError`` such as ``entries[4].artifacts.cubin.digest: expected a digest, found ""``.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aotpack.digests import is_digest
from aotpack.errors import DocumentError

_LONGEST_SHOWN = 60


def parse_document(text: str | bytes) -> "Node":
    """The root of a JSON document.

    Raises:
        DocumentError: it is not JSON, not UTF-8, nested too deeply, or has a key twice.
    """
    try:
        return Node(json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant))
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError("expected a document nested at most a few hundred deep") from None
    except ValueError as error:
        raise DocumentError(f"expected JSON: {error}") from None


def parse_toml(text: str) -> "Node":
    """The root of a TOML document.

    Raises:
        DocumentError: it is not TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return Node(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise DocumentError(f"expected TOML: {error}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DocumentError(f"the key {twice!r} stands twice in one object")
    return value


def _refuse_constant(name: str) -> Any:
    raise DocumentError(f"expected JSON, found {name}")


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document and its place in it ("" for the root)."""

    value: Any
    place: str = ""

    def error(self, expected: str) -> DocumentError:
        """The error that this value is not what was expected here."""
        shown = json.dumps(self.value, default=str)
        if len(shown) > _LONGEST_SHOWN:
            shown = shown[:_LONGEST_SHOWN] + "..."
        return DocumentError(f"{self.place or 'the document'}: expected {expected}, found {shown}")

    def has(self, name: str) -> bool:
        """Whether this object has the field, and not null in it."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def field(self, name: str) -> "Node":
        """The field ``name`` of this object, which must be there."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        place = f"{self.place}.{name}" if self.place else name
        if name not in self.value:
            raise DocumentError(f"{place}: missing")
        return Node(self.value[name], place)

    def only(self, *names: str) -> "Node":
        """This object, which may have no other fields than ``names``."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        for name in self.value:
            if name not in names:
                raise DocumentError(f"{self.place}{'.' if self.place else ''}{name}: no such field in this format")
        return self

    def items(self) -> Iterator["Node"]:
        """The elements of this array."""
        if not isinstance(self.value, list):
            raise self.error("an array")
        return (Node(item, f"{self.place}[{index}]") for index, item in enumerate(self.value))

    def fields(self) -> Iterator[tuple[str, "Node"]]:
        """The names and values of this object."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return ((name, self.field(name)) for name in self.value)

    def text(self) -> str:
        """This string, which may not be empty."""
        if not isinstance(self.value, str) or not self.value:
            raise self.error("a string")
        return self.value

    def string(self) -> str:
        """This string, empty or not."""
        if not isinstance(self.value, str):
            raise self.error("a string")
        return self.value

    def integer(self, *, low: int = 0, high: int = 2**53) -> int:
        """This whole number from ``low`` to ``high``."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not low <= self.value <= high:
            raise self.error(f"a whole number from {low} to {high}")
        return self.value

    def number(self) -> float:
        """This number."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self.error("a number")
        try:
            return float(self.value)
        except OverflowError:
            raise self.error("a number of at most 1.8e308") from None

    def boolean(self) -> bool:
        """This true or false."""
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value

    def one_of(self, *values: str) -> str:
        """This string, which is one of ``values``."""
        if self.value not in values or not isinstance(self.value, str):
            raise self.error("one of " + ", ".join(values))
        return self.value

    def digest(self) -> str:
        """This digest, ``sha256:<64 hex>``."""
        if not is_digest(self.value):
            raise self.error('"sha256:<64 hex>"')
        return str(self.value)
