"""Large documents in their canonical spelling, read front to back and never held as a whole tree of values.

A document that says in a few bytes that it has millions of empty objects takes a hundred times its own size once it
is read. Here the reader knows the outermost fields and their order, and turns them into what they mean one value or
one element of an array at a time; the first that is not what it should be ends the reading. Each is held against the
spelling of what was read from it, so that no two documents mean the same.

Since a value has one spelling, what was read once need not be read again where the same bytes stand: the elements of
a large array are alike, and are put together of parts that many of them share (see ``Form``). That takes a tenth of
the time, and of the memory.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aotpack.digests import canonical_json
from aotpack.documents import READING, Node, spell_name
from aotpack.errors import DocumentError

T = TypeVar("T")

LONGEST_FIELD = 1 << 20
"""Bytes that a field has that is read at once, the largest of real manifests having 30 kB; one that is as dense as can
be takes some 24 times that when it is read."""

LONGEST_ELEMENT = 256 << 10
"""Bytes that an element of an array has; an entry of a manifest has 2,000, the longest 2,900."""

MOST_ELEMENTS = 50_000
"""Elements that an array has; a manifest of all presets on ten architectures has 7,020 entries."""

_USUAL_ELEMENT = 8 << 10
_ELEMENT_DEPTH = 2
_NAME = re.compile(rb'"([^"\\]{1,60})":')


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of each element of an array.

    Attributes:
        before: what stands before it in every element, after the part before that.
        read: makes what it means of its node.
        spell: undoes ``read``.
        depth: levels below the element at which it stands.
        joint: where it is an array whose elements are shared, and not it as a whole: what stands between two of
            these, with the beginning of the second. ``read`` and ``spell`` are for an element then, and what it
            means is a tuple.
        glance: what a spelling means that needs no reading to be told, or None: for parts that are others in every
            element. It gives what ``read`` does.
    """

    before: bytes
    read: Callable[[Node], Any]
    spell: Callable[[Any], Any]
    depth: int = 1
    joint: bytes = b""
    glance: Callable[[bytes], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """How the spelling of most elements of an array is made of parts.

    Only quotes and brackets that no string can hold unescaped may stand between the parts. Where that splits an
    element in another way than its spelling means it, a part is no whole value, and the element is read as any other.

    Attributes:
        parts: in their order, which is that of the canonical spelling.
        after: what the element ends with, from within its last part on.
        within: how much of that belongs to the last part.
        put: makes an element of what its parts mean, and of their spelling.
    """

    parts: tuple[Part, ...]
    after: bytes
    within: int
    put: Callable[[Sequence[Any], Sequence[bytes]], T]


class CanonicalReader:
    """Reads one object whose fields follow each other in the order in which they are asked for."""

    def __init__(self, data: bytes, position: int) -> None:
        """Prepare.

        Args:
            data: the document.
            position: where its first field begins that will be asked for.
        """
        self._data = data
        self._position = position
        self._decoder = json.JSONDecoder(**READING)
        self._is_first = True

    def has(self, name: str) -> bool:
        """Whether the next field is ``name``: for one that a document may lack."""
        return self._data.startswith(f'"{name}":'.encode(), self._position + (not self._is_first))

    def value(self, name: str, read: Callable[[Node], T], spell: Callable[[T], Any]) -> T:
        """The field ``name``, as ``read`` understands it and ``spell`` spells it again.

        Raises:
            DocumentError: it is missing, longer than ``LONGEST_FIELD``, not understood, or spelled in another way.
        """
        self._begin(name)
        return self._read(name, 1, LONGEST_FIELD, read, spell)

    def items(
        self,
        name: str,
        read: Callable[[Node], T],
        spell: Callable[[T], Any],
        *,
        longest: int | None = LONGEST_FIELD,
        form: Form[T] | None = None,
    ) -> tuple[T, ...]:
        """The elements of the array in the field ``name``, as ``value``.

        Args:
            name: of the field.
            read: makes an element of its node.
            spell: undoes ``read``.
            longest: bytes that the whole array may have; None where its elements take no more memory than a few times
                what they have in the document.
            form: of most elements; it gives what ``read`` does, and takes less time.
        """
        self._begin(name)
        assembler = _Assembler(self._decoder, form) if form else None
        return tuple(self._items(name, read, spell, longest, assembler))

    def _items(
        self,
        name: str,
        read: Callable[[Node], T],
        spell: Callable[[T], Any],
        longest: int | None,
        assembler: "_Assembler[T] | None",
    ) -> Iterator[T]:
        start = self._position
        self._expect(b"[", f"{name}: expected an array")
        if self._skip(b"]"):
            return
        for index in range(MOST_ELEMENTS):
            place = f"{name}[{index}]"
            found = assembler.assemble(self._data, self._position) if assembler else None
            if found is None:
                yield self._read(place, _ELEMENT_DEPTH, LONGEST_ELEMENT, read, spell)
            else:
                element, self._position = found
                yield element
            if longest is not None and self._position - start > longest:
                raise DocumentError(f"{name}: expected at most {longest} bytes, found more")
            if self._skip(b"]"):
                return
            self._expect(b",", f"{place}: expected the canonical spelling: a comma or the array's end after it")
        raise DocumentError(f"{name}: expected at most {MOST_ELEMENTS} elements, found more")

    def end(self) -> None:
        """The document ends here, with a line's end.

        Raises:
            DocumentError: something else follows.
        """
        if self._data[self._position :] != b"}\n":
            found = self._name_here()
            raise DocumentError(
                f"{found}: no such field in this format"
                if found
                else "expected the document's end after its last field"
            )

    def _begin(self, name: str) -> None:
        if not self._is_first and not self._skip(b","):
            raise DocumentError(f"{name}: missing, or what stands before it is not spelled canonically")
        self._is_first = False
        if not self._skip(f'"{name}":'.encode()):
            found = self._name_here()
            known = found is None or found > name
            raise DocumentError(f"{name}: missing" if known else f"{found}: no such field in this format")

    def _name_here(self) -> str | None:
        found = _NAME.match(self._data, self._position + self._data.startswith(b",", self._position))
        return spell_name(found[1].decode("ascii", "replace")) if found else None

    def _read(self, place: str, depth: int, longest: int, read: Callable[[Node], T], spell: Callable[[T], Any]) -> T:
        start = self._position
        value = read(Node(self._decode(place, longest), place, depth))
        if canonical_json(spell(value)).encode() != self._data[start : self._position]:
            raise DocumentError(f"{place}: expected the canonical spelling of what it says, found another one")
        return value

    def _decode(self, place: str, longest: int) -> Any:
        """The value that begins here; as much of the document is looked at as that takes."""
        size = min(_USUAL_ELEMENT, longest)
        while True:
            window = self._data[self._position : self._position + size]
            try:
                value, length = self._decoder.raw_decode(window.decode("ascii"))
            except DocumentError as error:
                raise DocumentError(f"{place}: {error}") from None
            except RecursionError:
                raise DocumentError(f"{place}: expected a value nested at most a few hundred deep") from None
            except ValueError as error:
                if len(window) < size or size == longest:
                    detail = f"JSON in ASCII of at most {longest} bytes: {error}"
                    raise DocumentError(f"{place}: expected {detail}") from None
                size = min(4 * size, longest)
            else:
                self._position += length
                return value

    def _skip(self, expected: bytes) -> bool:
        """Whether this stands here; then what follows it is next."""
        here = self._data.startswith(expected, self._position)
        self._position += len(expected) * here
        return here

    def _expect(self, expected: bytes, problem: str) -> None:
        if not self._skip(expected):
            shown = self._data[self._position : self._position + 20].decode("ascii", "replace")
            raise DocumentError(f"{problem}, found {json.dumps(shown)}")


class _Assembler(Generic[T]):
    """Puts elements together of parts, and remembers what these mean."""

    def __init__(self, decoder: json.JSONDecoder, form: Form[T]) -> None:
        self._decoder = decoder
        self._form = form
        ends = [*(part.before for part in form.parts[1:]), form.after]
        insides = [*(0 for _ in form.parts[1:]), form.within]
        self._steps: list[tuple[Part, dict[bytes, Any], bytes, int]] = [
            (part, {}, end, inside) for part, end, inside in zip(form.parts, ends, insides, strict=True)
        ]

    def assemble(self, data: bytes, position: int) -> tuple[T, int] | None:
        """The element that begins here, and where it ends; None where it is not of the form, or not what it should be.

        No more of the document is looked at than an element usually has.
        """
        first = self._form.parts[0].before
        if not data.startswith(first, position):
            return None
        begin, limit = position + len(first), position + _USUAL_ELEMENT
        values: list[Any] = []
        texts: list[bytes] = []
        try:
            for part, known, end_mark, inside in self._steps:
                end = data.find(end_mark, begin, limit)
                if end < 0:
                    return None
                text = data[begin : end + inside]
                if part.joint:
                    values.append(self._all(part, known, text))
                else:
                    seen = known.get(text)
                    values.append(self._value(part, known, text) if seen is None else seen)
                texts.append(text)
                begin = end + len(end_mark)
        except (DocumentError, RecursionError, ValueError):
            return None  # read as a whole, it is refused with its place
        return self._form.put(values, texts), begin

    def _value(self, part: Part, known: dict[bytes, Any], text: bytes) -> Any:
        seen = None if part.glance is None else part.glance(text)
        return self._one(part, known, text) if seen is None else seen

    def _one(self, part: Part, known: dict[bytes, Any], text: bytes, deeper: int = 0) -> Any:
        if text not in known:
            value = part.read(
                Node(self._decoder.decode(text.decode("ascii")), "", _ELEMENT_DEPTH + part.depth + deeper)
            )
            if canonical_json(part.spell(value)).encode() != text:
                raise DocumentError("expected the canonical spelling")
            known[text] = value
        return known[text]

    def _all(self, part: Part, known: dict[bytes, Any], text: bytes) -> tuple[Any, ...]:
        if text[:1] != b"[" or text[-1:] != b"]":
            raise DocumentError("expected an array")
        if len(text) == len(b"[]"):
            return ()
        start = part.joint[1:]
        first, *others = text[1:-1].split(part.joint)
        return tuple(self._one(part, known, item, 1) for item in (first, *(start + other for other in others)))
