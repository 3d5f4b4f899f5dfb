"""JSON documents from outside, read field by field; every error names its place in the document.

A ``Node`` is one value and where it stands. Asking it for a field, a text or a number either gives just
that or raises a ``DocumentError`` such as ``entries[4].artifacts.cubin.digest: expected a digest, found ""``.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json, is_digest
from aotpack.errors import DocumentError

MAX_DEPTH = 40
"""Levels that a value may stand below the root; a manifest's deepest, a constexpr in a tuple, stands some ten below."""

_LONGEST_SHOWN = 60
_LONGEST_NUMBER = 40


def read_start(path: Path, most: int) -> bytes:
    """A file's bytes, and of one that has more than ``most`` one byte more than that: so that it can be told.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(most + 1)


def read_whole(path: Path, most: int) -> bytes:
    """A file's bytes.

    Raises:
        DocumentError: it has more than ``most``.
        OSError: it cannot be read.
    """
    data = read_start(path, most)
    if len(data) > most:
        raise DocumentError(f"has more than {most} bytes, and no more are read")
    return data


def parse_document(text: str | bytes) -> "Node":
    """The root of a JSON document.

    Raises:
        DocumentError: it is not JSON, not UTF-8, nested too deeply, has a key twice, or a number that is none of JSON
            or needs more than 40 digits.
    """
    try:
        return Node(_parse(text))
    except DocumentError:
        raise
    except RecursionError:
        raise DocumentError("expected a document nested at most a few hundred deep") from None
    except ValueError as error:
        raise DocumentError(f"expected JSON: {error}") from None


def _parse(text: str | bytes) -> Any:
    # Bundles have thousands of small documents: ``json`` makes a parser for each, and calls out for each number.
    if isinstance(text, bytes) and text.isascii() and b"\0" not in text and not _FOUR_DIGITS.search(text[::_STRIDE]):
        return _PLAIN.decode(text.decode())
    return json.loads(text, **READING)


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


def parse_canonical(data: bytes) -> "Node":
    """The root of a small document of ours, in the one spelling that it has: canonical JSON and a line's end.

    Raises:
        DocumentError: as ``parse_document``, or it is spelled in another way.
    """
    root = parse_document(data)
    if f"{canonical_json(root.value)}\n".encode() != data:
        raise DocumentError("expected the canonical spelling of what it says, found another one")
    return root


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DocumentError(f"the key {_cut(ascii(twice))} stands twice in one object")
    return value


def _refuse_constant(name: str) -> Any:
    raise DocumentError(f"expected JSON, found {name}")


def _read_integer(text: str) -> int:
    # The time that Python takes for an integer grows with the square of its length.
    if len(text) > _LONGEST_NUMBER:
        raise DocumentError(f"expected a number of at most {_LONGEST_NUMBER} digits, found {len(text)}")
    return int(text)


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise DocumentError(f"expected a number that a double can hold, found {_cut(text)}")
    return value


READING: dict[str, Any] = {
    "object_pairs_hook": _without_duplicates,
    "parse_constant": _refuse_constant,
    "parse_float": _read_float,
    "parse_int": _read_integer,
}
"""How documents are read, for ``json``."""

_STRIDE = _LONGEST_NUMBER // 4
_FOUR_DIGITS = re.compile(rb"[0-9]{4}")
"""Found in each ``_STRIDE``-th byte of what has a longer number than ``_LONGEST_NUMBER``, in a tenth of the time."""
_PLAIN = json.JSONDecoder(**{**READING, "parse_int": int})
"""Reads as ``READING`` says what has no long number."""


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _shown(value: Any) -> str:
    """The beginning of a value's spelling, in one line, and no more work than that."""
    if isinstance(value, str):
        return _cut(json.dumps(value[: _LONGEST_SHOWN + 1]))
    try:
        return _cut("".join(islice(json.JSONEncoder(default=str).iterencode(value), _LONGEST_SHOWN)))
    except RecursionError:
        return "a value that is nested too deeply"


def spell_name(name: str) -> str:
    """A field's name for a place: as it is where it can be read in a line, else in its JSON spelling."""
    return _cut(name if name.isprintable() else json.dumps(name[:_LONGEST_SHOWN]))


class Node:
    """One value of a document, its place in it ("" for the root), and how many levels below the root it stands.

    A manifest has some two hundred an entry, so the place is spelled when it is asked for, which an error does.
    """

    __slots__ = ("_name", "_parent", "depth", "value")

    def __init__(self, value: Any, name: str | int = "", depth: int = 0, parent: "Node | None" = None) -> None:
        """Prepare.

        Args:
            value: the value.
            name: its field's name, or its index in an array; without a parent, its place.
            depth: how many levels below the root it stands.
            parent: what it is in.

        Raises:
            DocumentError: it is deeper in the document than any value may be.
        """
        self.value = value
        self.depth = depth
        self._name = name
        self._parent = parent
        if depth > MAX_DEPTH:
            raise DocumentError(f"{_cut(self.place)}: expected a document nested at most {MAX_DEPTH} deep")

    @property
    def place(self) -> str:
        """Where it stands: ``entries[4].artifacts.cubin``."""
        if self._parent is None:
            return str(self._name)
        above = self._parent.place
        if isinstance(self._name, int):
            return f"{above}[{self._name}]"
        return f"{above}{'.' if above else ''}{spell_name(self._name)}"

    def error(self, expected: str) -> DocumentError:
        """The error that this value is not what was expected here."""
        return DocumentError(f"{self.place or 'the document'}: expected {expected}, found {_shown(self.value)}")

    def has(self, name: str) -> bool:
        """Whether this object has the field, and not null in it."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def field(self, name: str) -> "Node":
        """The field ``name`` of this object, which must be there."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        if name not in self.value:
            raise DocumentError(f"{Node(None, name, parent=self).place}: missing")
        return Node(self.value[name], name, self.depth + 1, self)

    def only(self, *names: str) -> "Node":
        """This object, which may have no other fields than ``names``."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        for name in self.value:
            if name not in names:
                raise DocumentError(f"{Node(None, name, parent=self).place}: no such field in this format")
        return self

    def items(self) -> Iterator["Node"]:
        """The elements of this array."""
        if not isinstance(self.value, list):
            raise self.error("an array")
        return (Node(item, index, self.depth + 1, self) for index, item in enumerate(self.value))

    def pair(self) -> tuple["Node", "Node"]:
        """The two elements of this array."""
        if not isinstance(self.value, list):
            raise self.error("an array")
        if len(self.value) != 2:  # noqa: PLR2004
            raise self.error("a pair")
        one, other = self.value
        return Node(one, 0, self.depth + 1, self), Node(other, 1, self.depth + 1, self)

    def fields(self) -> Iterator[tuple[str, "Node"]]:
        """The names and values of this object; a name shows in one line as it is."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        if not all(map(str.isprintable, self.value)):
            name = next(name for name in self.value if not name.isprintable())
            raise self.field(name).error("a name of characters that can be shown in a line")
        return ((name, Node(value, name, self.depth + 1, self)) for name, value in self.value.items())

    def text(self) -> str:
        """This string, which may not be empty."""
        if not self.string():
            raise self.error("a string")
        return str(self.value)

    def string(self) -> str:
        """This string, empty or not, of characters that files and terminals can take: no half of a surrogate pair."""
        if not isinstance(self.value, str):
            raise self.error("a string")
        if not self.value.isascii() and any("\ud800" <= character <= "\udfff" for character in self.value):
            raise self.error("a string of whole characters")
        return self.value

    def line(self) -> str:
        """This string, which may not be empty and shows in one line as it is."""
        if not self.text().isprintable():
            raise self.error("a string of characters that can be shown in a line")
        return str(self.value)

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
