"""Large documents, read front to back: one spelling, and an end where a limit is reached."""

import pytest

from aotpack.canonical import LONGEST_ELEMENT, LONGEST_FIELD, MOST_ELEMENTS, CanonicalReader, Form, Part
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


def read_pair(node: Node) -> tuple[str, tuple[int, ...]]:
    node.only("name", "of")
    return node.field("name").text(), tuple(item.integer() for item in node.field("of").items())


def spell_pair(pair: tuple[str, tuple[int, ...]]) -> dict[str, object]:
    return {"name": pair[0], "of": list(pair[1])}


class Counted:
    """A form of elements such as {"name":"a","of":[1,2]}, and how often each part was read."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        name = Part(before=b'{"name":', read=lambda node: self.note(node.text()), spell=str)
        of = Part(before=b',"of":', read=lambda node: self.note(node.integer()), spell=int, joint=b",")
        self.form = Form(parts=(name, of), after=b"]}", within=1, put=lambda values, _: (values[0], values[1]))

    def note(self, value: object) -> object:
        self.seen.append(value)
        return value


def test_elements_of_a_form_share_what_was_read_once() -> None:
    counted = Counted()
    document = reader('"a":[{"name":"x","of":[7,8]},{"name":"x","of":[]},{"name":"y","of":[8,9,8]}]')
    assert document.items("a", read_pair, spell_pair, form=counted.form) == (
        ("x", (7, 8)),
        ("x", ()),
        ("y", (8, 9, 8)),
    )
    document.end()
    assert counted.seen == ["x", 7, 8, "y", 9]


@pytest.mark.parametrize(
    ("element", "meaning"),
    [
        ('{"name":",\\"of\\":[1]}","of":[1]}', (',"of":[1]}', (1,))),
        (f'{{"name":"{"x" * 20_000}","of":[1]}}', ("x" * 20_000, (1,))),
    ],
    ids=["what stands between parts in a string", "longer than usual"],
)
def test_an_element_that_is_not_of_the_form_is_read_as_any_other(
    element: str, meaning: tuple[str, tuple[int, ...]]
) -> None:
    document = reader(f'"a":[{element}]')
    assert document.items("a", read_pair, spell_pair, form=Counted().form) == (meaning,)
    document.end()


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ('{"name":"x","of":[01]}', r"a\[0\]: expected JSON|a\[0\]: expected the canonical"),
        ('{"name":"x","of":[1, 2]}', r"a\[0\]: expected the canonical spelling"),
        ('{"name":"x","of":["1"]}', r"a\[0\]\.of\[0\]: expected a whole number"),
        ('{"name":"","of":[]}', r"a\[0\]\.name: expected a string"),
        ('{"name":"x","of":[1],"z":0}', r"a\[0\]\.z: no such field"),
    ],
)
def test_what_an_element_of_a_form_has_wrong_is_refused_with_its_place(element: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        reader(f'"a":[{element}]').items("a", read_pair, spell_pair, form=Counted().form)
