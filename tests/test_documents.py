"""Every error in a document from outside names its place."""

import pytest

from aotpack.documents import MAX_DEPTH, Node, parse_canonical, parse_document
from aotpack.errors import DocumentError

DOCUMENT = '{"entries": [{"digest": "", "size": -1, "names": {"a": true}}], "format": 1.5, "none": null}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[NaN]", "found NaN"),
        ("[-Infinity]", "found -Infinity"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        (b"\xff\xfe", "expected JSON"),
        ("[" * 100_000, "nested"),
        ("[1e999]", "found 1e999"),
        ("9" * 100_000, "at most 40 digits, found 100000"),
        ("{" + ",".join(f'"{n}": 0' for n in [*range(50_000), 49_999]) + "}", "'49999' stands twice"),
    ],
)
def test_what_is_no_document_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        parse_document(text)


@pytest.mark.parametrize("before", range(25))
def test_a_number_that_is_too_long_is_found_wherever_it_stands(before: int) -> None:
    text = f"[{' ' * before}{'7' * 40}]"
    assert parse_document(text.encode()).value == [int("7" * 40)]
    with pytest.raises(DocumentError, match="at most 40 digits, found 41"):
        parse_document(text.replace("]", "7]").encode())


def entry() -> Node:
    return next(parse_document(DOCUMENT).field("entries").items())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: entry().field("digest").digest(), r'entries\[0\].digest: expected "sha256:<64 hex>", found ""'),
        (lambda: entry().field("size").integer(), r"entries\[0\].size: expected a whole number from 0 .*, found -1"),
        (lambda: entry().field("key"), r"entries\[0\].key: missing"),
        (lambda: entry().only("digest"), r"entries\[0\].size: no such field"),
        (lambda: entry().field("names").field("a").text(), r"names.a: expected a string, found true"),
        (lambda: entry().field("names").field("a").integer(), r"names.a: expected a whole number"),
        (lambda: entry().field("names").items(), r"names: expected an array"),
        (lambda: entry().field("digest").text(), r"digest: expected a string"),
        (lambda: entry().field("digest").one_of("x", "y"), r"digest: expected one of x, y"),
        (lambda: parse_document(DOCUMENT).field("format").integer(), r"format: expected a whole number.*found 1.5"),
        (lambda: parse_document(DOCUMENT).field("format").boolean(), r"format: expected true or false"),
        (lambda: parse_document("[]").field("a"), r"the document: expected an object"),
        (lambda: parse_document("[]").only("a"), r"the document: expected an object"),
        (lambda: parse_document("3").fields(), r"expected an object"),
        (lambda: parse_document('"x"').number(), r"expected a number"),
        (lambda: parse_document("3").string(), r"expected a string"),
        (lambda: parse_document(r'"\ud800"').string(), r"expected a string of whole characters, found \"\\ud800\""),
        (lambda: parse_document(r'"a\nb"').line(), r"expected a string of characters that can be shown in a line"),
        (lambda: parse_document('""').line(), r"expected a string"),
        (lambda: parse_document(r'{"a\nb": 1}').only(), r'"a\\nb": no such field'),
        (lambda: parse_document(r'{"a\nb": 1}').field("a\nb").text(), r'"a\\nb": expected a string'),
    ],
)
def test_an_error_says_where_what_was_wanted_and_what_was_found(ask: object, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        ask()  # type: ignore[operator]  # a parameter of pytest


def test_null_counts_as_absent_where_a_field_may_be_absent() -> None:
    root = parse_document(DOCUMENT)
    assert not root.has("none")
    assert root.has("format")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_document('"' + "x" * 1000 + '"').integer()
    assert len(str(caught.value)) < 200


def test_a_large_value_is_shown_by_its_beginning() -> None:
    with pytest.raises(DocumentError, match=r"expected a string, found \[0, 0, 0.*\.\.\.$") as caught:
        Node([0] * 1_000_000).text()
    assert len(str(caught.value)) < 200


def test_a_value_is_asked_for_at_most_so_deep() -> None:
    node = parse_document("[" * 60 + "]" * 60)
    with pytest.raises(DocumentError, match=rf"nested at most {MAX_DEPTH} deep"):
        for _ in range(60):
            node = next(iter(node.items()))


def test_a_document_of_ours_has_one_spelling() -> None:
    assert parse_canonical(b'{"a":1,"b":[]}\n').value == {"a": 1, "b": []}
    for other in (b'{"a":1,"b":[]}', b'{"b":[],"a":1}\n', b'{"a": 1,"b":[]}\n', b'{"a":1.0e0,"b":[]}\n'):
        with pytest.raises(DocumentError, match="canonical spelling"):
            parse_canonical(other)
