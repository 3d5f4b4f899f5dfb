"""Every error in a document from outside names its place."""

import pytest

from aotpack.documents import Node, parse_document
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
    ],
)
def test_what_is_no_document_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        parse_document(text)


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
