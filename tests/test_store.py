"""Stores: a bundle unpacked, whole and readable by all, and refused where it is not what was unpacked."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aotpack.archive import ArchiveReader
from aotpack.build import Built
from aotpack.bundle import Bundle
from aotpack.digests import canonical_json, digest_file, hex_of
from aotpack.errors import AotpackError, BundleError, OutputError, UnsupportedFormatError
from aotpack.store import Store, is_store, open_store, unpack_store
from tests.archives import tree


@pytest.fixture(scope="module")
def bundle(built: Built) -> Bundle:
    return built.bundle


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def store(bundle: Bundle, tmp_path: Path) -> Store:
    return unpack_store(bundle, tmp_path / "a" / "store")


def test_a_store_has_the_very_manifest_and_every_artifact_by_its_kind(bundle: Bundle, store: Store) -> None:
    with ArchiveReader(bundle.path) as reader:
        assert (store.directory / "manifest.json").read_bytes() == reader.read_manifest()
    assert open_store(store.directory) == store
    assert (store.digest, store.manifest) == (bundle.digest, bundle.manifest)
    expected = {"manifest.json"}
    for entry in bundle.manifest.entries:
        for kind, artifact in entry.artifacts:
            assert digest_file(store.path(artifact, kind)) == artifact.digest
            expected.add(f"blobs/{hex_of(artifact.digest)}.{kind}")
    files = {str(path.relative_to(store.directory)) for path in store.directory.rglob("*") if path.is_file()}
    assert files == expected


def test_helpers_are_shared_objects(helped: Bundle, tmp_path: Path) -> None:
    store = unpack_store(helped, tmp_path / "store")
    for helper in helped.manifest.helpers:
        assert digest_file(store.path(helper.artifact, "so")) == helper.artifact.digest


@pytest.mark.usefixtures("umask")
def test_whatever_the_umask_all_can_read_it(bundle: Bundle, tmp_path: Path) -> None:
    directory = unpack_store(bundle, tmp_path / "store").directory
    modes = {path.is_dir(): path.stat().st_mode & 0o777 for path in [directory, *directory.rglob("*")]}
    assert modes == {True: 0o755, False: 0o644}


def test_unpacking_again_changes_nothing(bundle: Bundle, store: Store) -> None:
    before = tree(store.directory)
    assert unpack_store(bundle, store.directory) == store
    assert tree(store.directory) == before


def test_what_is_in_the_way_stays(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    with pytest.raises(OutputError, match=r"is in the way: .*manifest\.json: cannot be read"):
        unpack_store(bundle, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_another_bundles_store_stays(bundle: Bundle, helped: Bundle, store: Store) -> None:
    before = tree(store.directory)
    with pytest.raises(OutputError, match="holds another bundle's store"):
        unpack_store(helped, store.directory)
    assert tree(store.directory) == before
    assert bundle.digest == store.digest


def test_of_a_damaged_bundle_nothing_is_left(bundle: Bundle, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tar.zst"
    damaged.write_bytes(bundle.path.read_bytes()[:-100])
    with pytest.raises(BundleError):
        unpack_store(Bundle(path=damaged, manifest=bundle.manifest, digest=bundle.digest, size=0), tmp_path / "store")
    assert list(tmp_path.iterdir()) == [damaged]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b'"format":1', b'"format":2', UnsupportedFormatError),
        (b'"engine"', b'"engin"', BundleError),
        (b"}\n", b"", BundleError),
        (b"{", b"{ ", BundleError),
    ],
)
def test_a_manifest_that_was_changed_is_refused_with_its_path(
    store: Store, old: bytes, new: bytes, error: type[AotpackError]
) -> None:
    path = store.directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert is_store(store.directory)
    with pytest.raises(error, match=str(path)):
        open_store(store.directory)


def test_a_directory_of_something_else_is_no_store(tmp_path: Path) -> None:
    assert not is_store(tmp_path)
    with pytest.raises(BundleError, match=r"manifest\.json: cannot be read: No such file"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(more=1), "more: no such field"),
        (lambda it: it.pop("targets"), "targets: missing"),
        (lambda it: it.pop("helpers"), "helpers: missing"),
        (lambda it: it.update(helpers=3), "helpers: expected a string"),
        (lambda it: it.update(targets=["cuda:80"]), "targets: expected some of the bundle's targets"),
        (lambda it: it.update(targets=["cuda:90", "cuda:90"]), "targets: expected some of the bundle's targets"),
        (lambda it: it.update(targets=["../x"]), r"targets\[0\]: expected a target"),
        (lambda it: it.update(bundle="sha256:" + "0" * 64), "bundle: expected the digest of the manifest beside it"),
    ],
)
def test_what_a_store_carries_is_said_strictly(
    bundle: Bundle, store: Store, change: Callable[[Any], object], message: str
) -> None:
    document = {"bundle": bundle.digest, "helpers": None, "targets": ["cuda:90"]}
    path = store.directory / "carries.json"
    path.write_text(canonical_json(document) + "\n")
    assert open_store(store.directory) == store
    path.write_text(json.dumps(document))
    with pytest.raises(BundleError, match=r"carries\.json: expected the canonical spelling"):
        open_store(store.directory)
    change(document)
    path.write_text(canonical_json(document) + "\n")
    with pytest.raises(BundleError, match=rf"carries\.json: {message}"):
        open_store(store.directory)
