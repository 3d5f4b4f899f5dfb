"""The manifest: what is written reads back, and nothing but what would be written is read."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotpack.build import Built
from aotpack.digests import canonical_json, digest_bytes
from aotpack.documents import MAX_DEPTH
from aotpack.errors import DocumentError, UnsupportedFormatError
from aotpack.manifest import Manifest, read_manifest
from tests.alterations import tiny
from tests.archives import spelled
from tests.manifests import manifests


@pytest.fixture(scope="module")
def real(built: Built, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path: Path = tmp_path_factory.mktemp("manifest") / "tiny.tar.zst"
    return tiny(built.bundle, path, entries=slice(1)).manifest.to_bytes()


@settings(max_examples=50)
@given(manifests())
def test_what_is_written_reads_back(manifest: Manifest) -> None:
    assert read_manifest(manifest.to_bytes()) == manifest


@settings(max_examples=50)
@given(manifests())
def test_a_manifest_is_canonical_json_but_for_its_format_which_is_first(manifest: Manifest) -> None:
    document = json.loads(manifest.to_bytes())
    assert next(iter(document)) == "format"
    assert sorted(document) == sorted(manifest.to_json())
    assert canonical_json(document) == canonical_json(manifest.to_json())
    assert spelled(document) == manifest.to_bytes()


def test_the_digest_of_a_key_is_that_of_its_line_whether_it_was_spelled_or_read(built: Built) -> None:
    entries = built.bundle.manifest.entries
    read = read_manifest(built.bundle.manifest.to_bytes()).entries
    lines = [digest_bytes(entry.key.line.encode()) for entry in entries]
    assert lines == [entry.key.digest for entry in entries] == [entry.key.digest for entry in read]


PIECES = st.sampled_from(
    [b"", b"0", b"1", b"-", b".0", b"e9", b'"', b",", b":", b"[]", b"{}", b"null", b" ", b"\\u0061"]
)


@settings(max_examples=300)
@given(data=st.data())
def test_whatever_is_changed_in_a_manifest_is_refused_or_is_the_spelling_of_what_it_says(
    real: bytes, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(real) - 1))
    end = min(len(real), start + data.draw(st.integers(0, 12)))
    altered = real[:start] + data.draw(PIECES | st.binary(max_size=3)) + real[end:]
    try:
        manifest = read_manifest(altered)
    except (DocumentError, UnsupportedFormatError) as error:
        assert "\n" not in str(error)  # noqa: PT017  # what is accepted has another promise
    else:
        assert manifest.to_bytes() == altered


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_whatever_follows_the_format_ends_in_an_error_of_ours(tail: bytes) -> None:
    with pytest.raises(DocumentError):
        read_manifest(b'{"format":1,' + tail)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it["entries"][0]["artifacts"]["cubin"].update(digest=""), r'cubin\.digest: expected "sha256:<64'),
        (lambda it: it["entries"][0]["key"]["attrs"][0].append(1), r"entries\[0\]\.key\.attrs\[0\]: expected a pair"),
        (lambda it: it["entries"][0].pop("reached"), r"entries\[0\]\.reached: missing"),
        (lambda it: it.update(entries={}), r'entries: expected an array, found "\{\}'),
        (lambda it: it.update(engine=[]), r"engine: expected an object, found \[\]"),
        (lambda it: it.pop("engine"), "engine: missing"),
        (lambda it: it.pop("deployments"), "deployments: missing"),
        (lambda it: it.pop("unknowns"), "unknowns: missing"),
        (lambda it: it.update(aaa=1), "aaa: no such field in this format"),
        (lambda it: it.update(zzz=1), "zzz: no such field in this format"),
        (lambda it: it["targets"].append("cuda:80"), "targets: expected each once, ascending"),
        (lambda it: it["families"].append("two\nlines"), r"families\[\d\]: expected a string of characters that"),
        (lambda it: it["deployments"].append([]), r"deployments\[1\]: expected an object"),
        (lambda it: it["deployments"].append({"a": "\udc80"}), r"deployments\[1\]\.a: expected a string of whole"),
        (lambda it: it["deployments"].append({"a\x1b": 1}), r'deployments\[1\]\."a\\u001b": expected a name'),
        (lambda it: it["toolchain"]["environment"].update(A="\x1b[31m"), r"environment\.A: expected a string of char"),
        (lambda it: it["sources"]["modules"].update({"../x": it["toolchain"]["libdevice"]}), r"modules\.\.\./x: exp"),
    ],
)
def test_an_error_names_its_place(real: bytes, change: object, message: str) -> None:
    document = json.loads(real)
    change(document)  # type: ignore[operator]  # a parameter of pytest
    with pytest.raises(DocumentError, match=message):
        read_manifest(spelled(document))


def test_what_only_its_owner_understands_is_held_to_the_depth_of_documents(real: bytes) -> None:
    document = json.loads(real)
    for depth, is_read in ((MAX_DEPTH - 2, True), (MAX_DEPTH, False)):
        document["deployments"][0]["deep"] = json.loads("[" * depth + "]" * depth)
        if is_read:
            assert read_manifest(spelled(document)).deployments[0]["deep"]
        else:
            with pytest.raises(DocumentError, match=f"nested at most {MAX_DEPTH} deep"):
                read_manifest(spelled(document))


@pytest.mark.parametrize(("number", "age"), [(0, "older"), (2, "newer"), (999_999_999, "newer")])
def test_another_format_is_refused_by_its_number_whatever_follows(number: int, age: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=rf"format {number} is {age} than this aotpack reads \(1\)"):
        read_manifest(b'{"format":%d,\xff' % number)
