"""Receipts: one spelling, and nothing in them that leads out of the cache."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotpack.digests import canonical_json, digest_bytes
from aotpack.errors import CacheError
from aotpack.receipts import MAX_RECEIPT, InstalledFile, Receipt, read_receipt, receipt_path

RECEIPT = Receipt(
    bundle=digest_bytes(b"bundle"),
    name="bundle.tar.zst",
    source=Path("/somewhere/bundle.tar.zst"),
    cache=Path("/cache"),
    accepted=("F102: because",),
    files=(InstalledFile(path="AAAA/kernel.cubin", digest=digest_bytes(b"cubin")),),
)


def lay(cache: Path, data: bytes) -> Path:
    path = receipt_path(cache, RECEIPT.bundle)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_what_is_written_reads_back_for_the_cache_where_it_lies(tmp_path: Path) -> None:
    found = read_receipt(lay(tmp_path, RECEIPT.to_bytes()), tmp_path)
    assert (found.cache, found.files, found.source) == (tmp_path, RECEIPT.files, RECEIPT.source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(format=2), "format: expected format 1, found 2"),
        (lambda it: it.update(format=True), "format: expected a whole number"),
        (lambda it: it.update(more=1), "more: no such field"),
        (lambda it: it.pop("cache"), "cache: missing"),
        (lambda it: it.update(cache=3), "cache: expected a file's name"),
        (lambda it: it.update(source="a\0b"), "source: expected a file's name"),
        (lambda it: it.update(name=""), "name: expected a file's name"),
        (lambda it: it.update(bundle="sha256:../../x"), "bundle: expected"),
        (lambda it: it["files"][0].update(path="../../escape"), r"files\[0\]\.path: expected an entry's directory"),
        (lambda it: it["files"][0].update(mode=1), r"files\[0\]\.mode: no such field"),
        (lambda it: it["files"][0].update(digest=None), r"files\[0\]\.digest: expected"),
    ],
)
def test_a_receipt_that_says_something_else_is_refused_with_the_place(
    tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    document = json.loads(RECEIPT.to_bytes())
    change(document)
    with pytest.raises(CacheError, match=f"not a receipt: .*{message}"):
        read_receipt(lay(tmp_path, canonical_json(document).encode() + b"\n"), tmp_path)


def test_a_receipt_of_endless_size_is_not_read_whole(tmp_path: Path) -> None:
    path = lay(tmp_path, b"")
    with path.open("wb") as file:
        file.truncate(MAX_RECEIPT + 1)
    with pytest.raises(CacheError, match=f"more than {MAX_RECEIPT} bytes"):
        read_receipt(path, tmp_path)


@given(data=st.data())
def test_whatever_is_changed_in_a_receipt_is_refused_or_is_the_spelling_of_what_it_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cache = tmp_path_factory.getbasetemp() / "receipts"
    written = RECEIPT.to_bytes()
    start = data.draw(st.integers(0, len(written) - 1))
    altered = written[:start] + data.draw(st.binary(max_size=3)) + written[start + data.draw(st.integers(0, 8)) :]
    try:
        found = read_receipt(lay(cache, altered), cache)
    except CacheError:
        return
    assert json.loads(found.to_bytes()) == json.loads(altered) | {"cache": str(cache)}
