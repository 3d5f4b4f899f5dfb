"""Packed bundles: put into a directory as they are, whole or not at all, and served from there."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aotpack import packed
from aotpack.admission import admit_file
from aotpack.archive import pack, pack_manifest
from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.digests import digest_bytes
from aotpack.errors import AotpackError, BundleError, OutputError, UnsignedError, UnsupportedFormatError
from aotpack.manifest import read_frames
from aotpack.packed import keep_packed, packed_bundles
from aotpack.policy import demands_here
from aotpack.verify import verify_bundle
from tests.archives import tree
from tests.conftest import ROOT
from tests.signing import make_pair, put_beside
from tests.test_cli import one_error, run


@pytest.fixture(scope="module")
def bundle(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small real one."""
    manifest = replace(built.bundle.manifest, entries=built.bundle.manifest.entries[:3])
    return write_bundle(tmp_path_factory.mktemp("packed") / "b.tar.zst", manifest, dict(built.bundle.blobs()))


def altered(bundle: Bundle, folder: Path, data: bytes) -> Path:
    (folder / "altered").mkdir(exist_ok=True)
    path = folder / "altered" / bundle.path.name
    path.write_bytes(data)
    return path


# What lies there


def test_it_lies_there_as_it_was_and_all_can_read_it(bundle: Bundle, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        kept = keep_packed(bundle.path, tmp_path / "deep" / "down")
    finally:
        os.umask(before)
    assert (kept.path, kept.digest, kept.was_there) == (tmp_path / "deep/down/b.tar.zst", bundle.digest, False)
    assert tree(tmp_path / "deep") == {
        "down": (0o40755, ""),
        "down/b.tar.zst": (0o100644, bundle.path.read_bytes()),
    }
    assert not verify_bundle(kept.path).findings


def test_a_second_time_changes_nothing(bundle: Bundle, tmp_path: Path) -> None:
    kept = keep_packed(bundle.path, tmp_path / "d")
    seen = kept.path.stat()
    assert keep_packed(bundle.path, tmp_path / "d") == replace(kept, was_there=True)
    assert kept.path.stat() == seen
    assert packed_bundles(tmp_path / "d") == [kept.path]


def test_one_of_the_same_name_is_replaced_with_its_signatures(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    manifest = replace(bundle.manifest, built_by="another")
    other = write_bundle(tmp_path / "new" / bundle.path.name, manifest, dict(bundle.blobs()))
    signatures = make_pair(tmp_path / "keys", "k").signed(other.digest)
    put_beside(other, signatures)
    keep_packed(bundle.path, tmp_path / "d")
    keep_packed(other.path, tmp_path / "d")
    assert open_bundle(tmp_path / "d/b.tar.zst").digest == other.digest
    assert (tmp_path / "d/b.tar.zst.sig").read_bytes() == signatures.to_bytes()
    keep_packed(bundle.path, tmp_path / "d")
    assert sorted(tree(tmp_path / "d")) == ["b.tar.zst"]


def test_a_name_that_says_no_bundle_is_given_one(bundle: Bundle, tmp_path: Path) -> None:
    source = Path(shutil.copy(bundle.path, tmp_path / "download"))
    assert keep_packed(source, tmp_path / "d").path.name == "download.tar.zst"


def test_the_manifest_says_which_frames_follow_its_own(bundle: Bundle) -> None:
    rest = bundle.path.read_bytes()
    frames = []
    while rest:
        unpacking = zstandard.ZstdDecompressor(max_window_size=1 << 23).decompressobj()
        unpacking.decompress(rest)
        frames.append(rest[: len(rest) - len(unpacking.unused_data)])
        rest = unpacking.unused_data
    said = [(frame.digest, frame.size) for frame in bundle.manifest.archive]
    assert said == [(digest_bytes(frame), len(frame)) for frame in frames[1:]]
    assert read_frames(bundle.manifest_bytes()) == bundle.manifest.archive


# What is refused


@given(st.data())
def test_whatever_is_altered_it_is_refused_and_nothing_is_left(
    bundle: Bundle, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bundle.path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    changed = data.draw(
        st.sampled_from(
            [
                whole[:place],
                whole[:place] + bytes([whole[place] ^ other]) + whole[place + 1 :],
                whole + whole[: place + 1],
                whole[:place] + whole[place + 1 :],
            ]
        )
    )
    folder = tmp_path_factory.mktemp("altered")
    path = altered(bundle, folder, changed)
    with pytest.raises(AotpackError) as raised:
        keep_packed(path, folder / "d")
    assert str(raised.value).startswith(f"{path}: ")
    assert not (folder / "d").exists() or tree(folder / "d") == {}


def test_what_lies_there_stays_when_a_damaged_one_comes(bundle: Bundle, tmp_path: Path) -> None:
    keep_packed(bundle.path, tmp_path / "d")
    before = tree(tmp_path / "d")
    whole = bundle.path.read_bytes()
    with pytest.raises(BundleError, match="fetch the bundle again"):
        keep_packed(altered(bundle, tmp_path, whole[:-40]), tmp_path / "d")
    assert tree(tmp_path / "d") == before


def test_the_same_artifacts_packed_otherwise_are_as_good(bundle: Bundle, tmp_path: Path) -> None:
    blobs = dict(bundle.blobs())
    frames = [[blobs[artifact.digest] for artifact in frame] for frame in bundle.manifest.frames()]
    again = [pack_manifest(bundle.manifest_bytes()), *pack(frames, zstandard.ZstdCompressor(level=1).compress)]
    path = altered(bundle, tmp_path, b"".join(again))
    assert keep_packed(path, tmp_path / "d").digest == bundle.digest
    assert (tmp_path / "d/b.tar.zst").read_bytes() == b"".join(again)
    less = [pack_manifest(bundle.manifest_bytes()), *pack([frames[0][1:]], zstandard.ZstdCompressor(level=1).compress)]
    with pytest.raises(BundleError, match="expected the member"):
        keep_packed(altered(bundle, tmp_path, b"".join(less)), tmp_path / "e")


def test_another_format_and_no_bundle_at_all(bundle: Bundle, tmp_path: Path) -> None:
    newer = bundle.manifest_bytes().replace(b'{"format":1,', b'{"format":2,', 1)
    with pytest.raises(UnsupportedFormatError, match="format 2 is newer"):
        keep_packed(altered(bundle, tmp_path, pack_manifest(newer)), tmp_path / "d")
    garbled = bundle.manifest_bytes().replace(b'"archive":', b'"archives":', 1)
    with pytest.raises(BundleError, match=r"manifest\.json: archive: missing|no such field"):
        keep_packed(altered(bundle, tmp_path, pack_manifest(garbled)), tmp_path / "d")
    with pytest.raises(BundleError, match="cannot be opened"):
        keep_packed(tmp_path / "nothing.tar.zst", tmp_path / "d")
    with pytest.raises(BundleError, match="no regular file"):
        keep_packed(tmp_path, tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_one_that_changes_while_it_is_copied(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_bundle(
        tmp_path / "other.tar.zst", replace(bundle.manifest, built_by="another"), dict(bundle.blobs())
    ).path.read_bytes()
    path = altered(bundle, tmp_path, bundle.path.read_bytes())

    def replaced_meanwhile(*args: Any) -> Any:
        path.write_bytes(other)
        return admit_file(*args)

    monkeypatch.setattr(packed, "admit_file", replaced_meanwhile)
    with pytest.raises(BundleError, match="changed while it was read"):
        keep_packed(path, tmp_path / "d")
    assert tree(tmp_path / "d") == {}


def test_a_demanded_signature_that_is_not_there(bundle: Bundle, tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "keys", "k")
    demands = demands_here(trusted=[pair.public])
    with pytest.raises(UnsignedError):
        keep_packed(bundle.path, tmp_path / "d", demands=demands)
    assert not (tmp_path / "d").exists()
    source = open_bundle(altered(bundle, tmp_path, bundle.path.read_bytes()))
    put_beside(source, pair.signed(bundle.digest))
    kept = keep_packed(source.path, tmp_path / "d", demands=demands)
    assert verify_bundle(kept.path, demands=demands).exit_code == 0


def test_a_directory_that_cannot_be_is_said(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        keep_packed(bundle.path, tmp_path / "file" / "d")
    (tmp_path / "d" / bundle.path.name).mkdir(parents=True)
    with pytest.raises(OutputError, match="cannot be written"):
        keep_packed(bundle.path, tmp_path / "d")
    assert sorted(tree(tmp_path / "d")) == [bundle.path.name]


def test_a_disk_that_is_full(bundle: Bundle, tmp_path: Path) -> None:
    # The limit holds for this call alone: what measures coverage writes when the process ends.
    script = (
        "import resource, signal, sys; from pathlib import Path; from aotpack.packed import keep_packed\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); before = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))\n"
        "try:\n    keep_packed(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except Exception as error:\n    resource.setrlimit(resource.RLIMIT_FSIZE, before); print(repr(error))"
    )
    command = [sys.executable, "-c", script, str(bundle.path), str(tmp_path / "d")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"OutputError('{tmp_path}/d: cannot be written: ")
    assert tree(tmp_path / "d") == {}


# The command


def test_the_command(bundle: Bundle, tmp_path: Path) -> None:
    for said in ("kept packed", "there already"):
        done = run("install", bundle.path, "--packed", tmp_path / "d")
        assert (done.exit_code, done.stdout) == (0, "")
        assert done.stderr == (
            f"{tmp_path}/d/b.tar.zst: {said}, {bundle.digest}; "
            f"for processes to serve from it: AOTPACK_BUNDLE_PATH={tmp_path}/d\n"
        )
    clash = run("install", bundle.path, "--packed", tmp_path / "d", "--arch", "sm90")
    assert clash.exit_code == 2
    assert "leave out" in one_error(clash)
    truncated = altered(bundle, tmp_path, bundle.path.read_bytes()[:-1])
    refused = run("install", truncated, "--packed", tmp_path / "d")
    assert refused.exit_code == 3
    assert str(truncated) in one_error(refused)


def test_it_needs_no_triton(bundle: Bundle, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['triton'] = sys.modules['torch'] = None\n"
        "from pathlib import Path; from aotpack.packed import keep_packed; keep_packed(*map(Path, sys.argv[1:]))"
    )
    subprocess.run([sys.executable, "-c", script, bundle.path, tmp_path / "d"], cwd=ROOT, check=True)
