"""Large documents, read front to back: one spelling, and an end where a limit is reached."""

import pytest

from aotpack.canonical import LONGEST_ELEMENT, LONGEST_FIELD, MOST_ELEMENTS, CanonicalReader
from aotpack.documents import Node
from aotpack.errors import DocumentError


def reader(fields: str) -> CanonicalReader:
    return CanonicalReader(f"{{{fields}}}\n".encode(), 1)


def numbers(document: CanonicalReader, name: str = "a") -> tuple[int, ...]:
    return document.items(name, Node.integer, int)


def test_fields_are_read_in_their_order_and_one_may_be_missing() -> None:
    document = reader('"a":[1,2],"b":[],"d":"x"')
    assert numbers(document) == (1, 2)
    assert (document.has("b"), document.has("c")) == (True, False)
    assert numbers(document, "b") == ()
    assert (document.has("c"), document.has("d")) == (False, True)
    assert document.value("d", Node.text, str) == "x"
    assert not document.has("e")
    document.end()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"a":[1 ,2]', r"a\[0\]: expected the canonical spelling"),
        ('"a":[1,2', r"a\[1\]: expected the canonical spelling: a comma"),
        ('"a":[1,]', r"a\[1\]: expected JSON"),
        ('"a":[01]', r"a\[0\]: expected the canonical spelling"),
        ('"a":[-0]', r"a\[0\]: expected the canonical spelling of what it says"),
        ('"a":[1.0]', r"a\[0\]: expected a whole number"),
        ('"a":1', "a: expected an array"),
        ('"a": [1]', "a: expected an array"),
        ('"b":[1]', "a: missing"),
        ('"0":[1],"a":[]', "0: no such field"),
        ("", "a: missing"),
        ('"a":["\u00e9"]', r"a\[0\]: expected JSON in ASCII"),
        (f'"a":[{"1," * MOST_ELEMENTS}1]', f"a: expected at most {MOST_ELEMENTS} elements"),
        (f'"a":["{"x" * LONGEST_ELEMENT}"]', rf"a\[0\]: expected JSON in ASCII of at most {LONGEST_ELEMENT} bytes"),
        ('"a":[1],"b":1', "b: no such field"),
        ('"a":[1]}', "expected the document's end"),
    ],
)
def test_what_is_spelled_otherwise_or_too_long_is_refused_with_its_place(fields: str, message: str) -> None:
    document = reader(fields)

    def read() -> None:
        numbers(document)
        document.end()

    with pytest.raises(DocumentError, match=message):
        read()


def test_a_field_or_an_array_that_is_too_long_is_refused() -> None:
    with pytest.raises(DocumentError, match=f"a: expected JSON in ASCII of at most {LONGEST_FIELD} bytes"):
        reader(f'"a":"{"x" * LONGEST_FIELD}"').value("a", Node.text, str)
    half = "x" * (LONGEST_ELEMENT // 2)
    several = ",".join([f'"{half}"'] * 9)
    with pytest.raises(DocumentError, match=f"a: expected at most {LONGEST_FIELD} bytes"):
        reader(f'"a":[{several}]').items("a", Node.text, str)
    assert len(reader(f'"a":[{several}]').items("a", Node.text, str, longest=None)) == 9
