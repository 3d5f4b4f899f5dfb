"""Bundles: one fixed shape, deterministic bytes, and nothing else accepted. All on a real bundle."""

import copy
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from aotpack.archive import BLOBS, _BlobHeaders, _header
from aotpack.build import Built
from aotpack.bundle import bundle_name, open_bundle, write_bundle
from aotpack.digests import digest_bytes, hex_of
from aotpack.errors import BundleError, UnsupportedFormatError
from tests.archives import members_of, spelled, tar_of, write_members


def read_all(path: Path) -> dict[str, bytes]:
    return dict(open_bundle(path).blobs())


def test_what_is_written_reads_back(built: Built, tmp_path: Path) -> None:
    bundle = open_bundle(built.bundle.path)
    assert bundle.manifest == built.bundle.manifest
    again = write_bundle(tmp_path / "again", bundle.manifest, read_all(built.bundle.path))
    assert again.path.read_bytes() == built.bundle.path.read_bytes()


def test_every_blob_is_there_once_under_its_digest(built: Built) -> None:
    blobs = read_all(built.bundle.path)
    listed = {artifact.digest for entry in built.bundle.manifest.entries for _, artifact in entry.artifacts}
    assert set(blobs) == listed
    assert all(digest_bytes(data) == digest for digest, data in blobs.items())


@pytest.mark.parametrize("size", [0, 1, 511, 12345, 16 << 20])
def test_the_header_of_a_blob_is_what_tarfile_writes(size: int) -> None:
    digest = digest_bytes(b"%d" % size)
    assert _BlobHeaders().of(digest, size) == _header(BLOBS + hex_of(digest), size)


def test_plain_tar_lists_a_bundle_with_the_manifest_first(built: Built) -> None:
    listing = subprocess.run(
        ["tar", "--zstd", "-tvf", built.bundle.path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert listing[0].startswith("-rw-r--r-- 0/0")
    assert listing[0].endswith(" manifest.json")
    assert all(" blobs/sha256/" in line for line in listing[1:])


def test_the_manifest_has_a_frame_of_its_own(built: Built) -> None:
    # Reading the first frame alone is enough for the manifest.
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    first = decompressor.decompress(built.bundle.path.read_bytes())
    assert first[512:].rstrip(b"\0") == built.bundle.manifest.to_bytes()
    assert decompressor.unused_data


def test_the_identity_of_a_bundle_is_its_manifests_digest(built: Built) -> None:
    assert built.bundle.digest == digest_bytes(members_of(built.bundle.path)[0][1])


def test_the_usual_name_says_engine_triton_and_architectures(built: Built) -> None:
    triton = built.bundle.manifest.toolchain.triton
    assert built.bundle.path.name == bundle_name(built.bundle.manifest)
    assert bundle_name(built.bundle.manifest) == f"aotpack-vllm-0.33.0-triton-{triton}-sm90.tar.zst"


def test_a_file_that_is_missing_or_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be opened: No such file"):
        open_bundle(tmp_path / "none.tar.zst")
    for content in (b"", b"PK\x03\x04 a zip", b"\x28\xb5\x2f\xfd", zstandard.compress(b"no tar at all")):
        (tmp_path / "bad.tar.zst").write_bytes(content)
        with pytest.raises(BundleError, match=r"bad\.tar\.zst: .*(zstd|truncated|not a bundle)"):
            open_bundle(tmp_path / "bad.tar.zst")


def test_a_bundle_with_something_after_it_is_refused(built: Built, tmp_path: Path) -> None:
    whole = built.bundle.path.read_bytes()
    for extra in (b"x", zstandard.compress(b"more"), whole):
        (tmp_path / "longer").write_bytes(whole + extra)
        with pytest.raises(BundleError, match=r"trailing data|not readable"):
            read_all(tmp_path / "longer")


def with_manifest(built: Built, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    members = members_of(built.bundle.path)
    document = json.loads(members[0][1])
    change(document)
    data = spelled(document)
    member = copy.copy(members[0][0])
    member.size = len(data)
    return write_members(path, [(member, data), *members[1:]])


def test_another_format_is_refused_by_its_number(built: Built, tmp_path: Path) -> None:
    newer = with_manifest(built, tmp_path / "newer", lambda document: document.update(format=2, more="fields"))
    with pytest.raises(UnsupportedFormatError, match=r"format 2 is newer than this aotpack reads \(1\); upgrade"):
        open_bundle(newer)


def test_an_unknown_field_is_refused_with_its_place(built: Built, tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["entries"][1]["surprise"] = 1

    path = with_manifest(built, tmp_path / "odd", change)
    with pytest.raises(BundleError, match=r"manifest.json: entries\[1\].surprise: no such field"):
        open_bundle(path)


def test_a_manifest_in_another_spelling_is_refused(built: Built, tmp_path: Path) -> None:
    members = members_of(built.bundle.path)
    data = json.dumps(json.loads(members[0][1]), indent=1).encode()
    member = copy.copy(members[0][0])
    member.size = len(data)
    with pytest.raises(BundleError, match="canonical spelling"):
        open_bundle(write_members(tmp_path / "pretty", [(member, data), *members[1:]]))


def test_a_blob_with_another_content_is_refused(built: Built, tmp_path: Path) -> None:
    members = members_of(built.bundle.path)
    member, data = members[1]
    path = write_members(tmp_path / "odd", [members[0], (member, bytes(len(data))), *members[2:]])
    with pytest.raises(BundleError, match="altered: its content has another digest"):
        read_all(path)


def test_a_manifest_that_claims_a_huge_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    member = tarfile.TarInfo("manifest.json")
    member.size, member.mode = 1 << 32, 0o644
    (tmp_path / "huge").write_bytes(zstandard.compress(member.tobuf(tarfile.USTAR_FORMAT) + bytes(1 << 19)))
    with pytest.raises(BundleError, match="claims 4294967296 bytes"):
        open_bundle(tmp_path / "huge")


def test_a_window_larger_than_ours_is_refused(built: Built, tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    buffer = io.BytesIO()
    with compressor.stream_writer(buffer, closefd=False) as writer:
        writer.write(tar_of(built.bundle.path))
    (tmp_path / "wide").write_bytes(buffer.getvalue())
    with pytest.raises(BundleError, match="not readable as zstd"):
        open_bundle(tmp_path / "wide")


def test_a_bundle_cannot_be_written_over_a_directory(built: Built, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_bundle(tmp_path / "folder", built.bundle.manifest, read_all(built.bundle.path))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
