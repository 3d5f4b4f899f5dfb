"""Images and layouts: the bundle as it stands, a store where it is mounted, and nothing believed unchecked."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from aotpack import image as image_module
from aotpack.bundle import Bundle, open_bundle
from aotpack.digests import canonical_json, digest_bytes, digest_file
from aotpack.engines import Engine
from aotpack.image import ARTIFACT_TYPE, DIGEST, MANIFEST_TYPE, Descriptor, make_image
from aotpack.signatures import MAX_SIZE, signatures_beside
from aotpack.store import open_store
from tests.archives import tree
from tests.conftest import ROOT
from tests.shipments import lay, layers, mount, refused
from tests.signing import make_pair, put_beside
from tests.test_cli import one_error, run


@pytest.fixture(autouse=True)
def _undated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


@pytest.fixture
def unsigned(shipped: Bundle, tmp_path: Path) -> Bundle:
    """The same without its signature, of this test alone."""
    (tmp_path / "mine").mkdir()
    return open_bundle(Path(shutil.copy(shipped.path, tmp_path / "mine")))


# The image


def test_an_image_is_the_same_wherever_and_whenever_it_is_made(
    shipped: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(shipped)
    other = Path(shutil.copy(shipped.path, tmp_path / "other.tar.zst"))
    shutil.copy(f"{shipped.path}.sig", tmp_path / "other.tar.zst.sig")
    other.chmod(0o600)
    os.utime(other, (1, 1))
    again = make_image(open_bundle(other))
    assert again.manifest == image.manifest
    assert [descriptor for descriptor, _ in again.blobs] == [descriptor for descriptor, _ in image.blobs]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1760000000")
    dated = json.loads(make_image(shipped).manifest)
    assert dated["annotations"]["org.opencontainers.image.created"] == "2025-10-09T08:53:20Z"
    assert "created" not in image.manifest.decode()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    result = run("push", shipped.path, "--oci-layout", tmp_path / "layout")
    assert (result.exit_code, "expected seconds since 1970, found 'yesterday'" in one_error(result)) == (2, True)


def test_an_image_says_what_it_is_to_those_who_look(shipped: Bundle) -> None:
    manifest = json.loads(make_image(shipped).manifest)
    assert manifest["artifactType"] == ARTIFACT_TYPE
    assert manifest["annotations"] == {
        "org.opencontainers.image.title": "aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst",
        "org.opencontainers.image.version": "0.33.0",
        "org.opencontainers.image.description": "Triton kernels of vllm 0.33.0 for sm90, compiled by Triton 3.8.0",
        "dev.aotpack.engine": "vllm",
        "dev.aotpack.engine.version": "0.33.0",
        "dev.aotpack.triton": "3.8.0",
        "dev.aotpack.architectures": "sm90",
        "dev.aotpack.bundle.digest": shipped.digest,
    }


def test_a_mounted_image_is_the_bundles_store(shipped: Bundle, tmp_path: Path) -> None:
    digest = lay(shipped, tmp_path / "layout")
    (first, _), *_ = layers(tmp_path / "layout", digest)
    assert first["digest"] == digest_file(shipped.path)
    directory = mount(tmp_path / "layout", digest, tmp_path / "mounted")
    store = open_store(directory)
    assert (store.digest, store.manifest) == (shipped.digest, shipped.manifest)
    for entry in shipped.manifest.entries:
        for kind, artifact in entry.artifacts:
            assert digest_file(store.path(artifact, kind)) == artifact.digest
    for helper in shipped.manifest.helpers:
        assert digest_file(store.path(helper.artifact, "so")) == helper.artifact.digest
    assert (directory / "signatures.json").read_bytes() == signatures_beside(shipped.path).read_bytes()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o755 for path in directory.rglob("*") if path.is_dir())


def test_a_mounted_image_serves_every_kernel_in_place(
    shipped: Bundle, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = lay(shipped, tmp_path / "layout")
    directory = mount(tmp_path / "layout", digest, tmp_path / "mounted")
    before = tree(directory)
    code = (
        "from tests.serving import *; serving = Serving(); import aotpack; aotpack.activate(); say(**serving.look_up())"
    )
    monkeypatch.setenv("AOTPACK_BUNDLE_PATH", str(directory))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    command = [sys.executable, "-c", code, str(shipped.path), str(engine.root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    found = {"found": len(shipped.manifest.entries), "errors": [], "in": [f"{directory}/blobs"]}
    assert json.loads(done.stdout.splitlines()[-1]) == found
    assert not (tmp_path / "triton").exists()
    assert tree(directory) == before


# What is altered


def relist(layout: Path, shipped: Bundle, change: Callable[[dict[str, Any]], None]) -> None:
    """List an image whose manifest says something else than it should."""
    lay(shipped, layout, "mine")
    manifest = json.loads(make_image(shipped).manifest)
    change(manifest)
    data = canonical_json(manifest).encode()
    entry = Descriptor.of(MANIFEST_TYPE, data)
    (layout / "blobs/sha256" / entry.digest.partition(":")[2]).write_bytes(data)
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry.to_json()]}))


def add(layout: Path, data: bytes) -> dict[str, Any]:
    """A further blob in a layout."""
    descriptor = Descriptor.of("application/vnd.oci.image.layer.v1.tar+gzip", data)
    (layout / "blobs/sha256" / descriptor.digest.partition(":")[2]).write_bytes(data)
    return descriptor.to_json()


def test_what_a_manifest_announces_and_does_not_hold_is_refused(shipped: Bundle, tmp_path: Path) -> None:
    layout, output = tmp_path / "layout", tmp_path / "output"
    other = digest_bytes(b"another bundle")

    def pulled(change: Callable[[dict[str, Any]], None], *more: object) -> Result:
        relist(layout, shipped, change)
        return run("pull", "--oci-layout", layout, "-o", output, *more)

    def announce(manifest: dict[str, Any]) -> None:
        manifest["annotations"][DIGEST] = other

    refused(pulled(announce), f"announces the bundle {other}, and holds {shipped.digest}")
    refused(pulled(announce, "--expect-digest", shipped.digest), f"expected the bundle {shipped.digest}, found {other}")

    def enlarge(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["size"] = 1 << 52

    refused(pulled(enlarge), f"the bundle has {1 << 52} bytes, and ", " are free")

    def swap(manifest: dict[str, Any]) -> None:
        first, second, *_ = manifest["layers"]
        first["digest"], first["size"] = second["digest"], second["size"]

    refused(pulled(swap), "not readable as zstd")

    def lose(manifest: dict[str, Any]) -> None:
        manifest["layers"][0]["digest"] = other

    refused(pulled(lose), f"the blob {other} cannot be read: No such file")

    def shorten(manifest: dict[str, Any]) -> None:
        del manifest["layers"][1:]

    refused(pulled(shorten), "layers: expected a bundle, its links, and perhaps a signature")

    def forget(manifest: dict[str, Any]) -> None:
        del manifest["annotations"][DIGEST]

    refused(pulled(forget), f"annotations.{DIGEST}: missing")
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no gzip", "no tar inside gzip"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x00\x00\xff\xff" + bytes(8), "no tar inside gzip"),
        (bytes(MAX_SIZE + 5000), "at most 65536 bytes of signature are read"),
    ],
)
def test_a_layer_that_is_no_signature_is_refused(shipped: Bundle, tmp_path: Path, data: bytes, said: str) -> None:
    layout = tmp_path / "layout"

    def forge(manifest: dict[str, Any]) -> None:
        manifest["layers"][2] = add(layout, data)

    relist(layout, shipped, forge)
    refused(run("pull", "--oci-layout", layout, "-o", tmp_path / "output"), said)
    assert not any(tmp_path.glob("output/*"))


def test_a_signature_that_is_not_spelled_as_ours_is_refused(shipped: Bundle, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as archive:
        member = tarfile.TarInfo("../../etc/passwd")
        member.size = 3
        archive.addfile(member, BytesIO(b"abc"))

    def forge(manifest: dict[str, Any]) -> None:
        manifest["layers"][2] = add(layout, buffer.getvalue())

    relist(layout, shipped, forge)
    result = run("pull", "--oci-layout", layout, "-o", tmp_path / "output")
    refused(result, "the layer of its signature holds something else than signatures.json")
    assert list((tmp_path / "output").iterdir()) == []


def test_what_is_too_large_for_a_signature_is_not_pushed(unsigned: Bundle, tmp_path: Path) -> None:
    unsigned.path.with_name(f"{unsigned.path.name}.sig").write_bytes(bytes(MAX_SIZE + 1))
    result = run("push", unsigned.path, "--oci-layout", tmp_path / "layout")
    assert "mine.tar.zst.sig: is damaged: expected signatures, found more than 65536 bytes" in result.stderr
    assert result.exit_code == 6
    signature = unsigned.path.with_name(f"{unsigned.path.name}.sig")
    signature.unlink()
    signature.mkdir()
    result = run("push", unsigned.path, "--oci-layout", tmp_path / "layout")
    refused(result, "mine.tar.zst.sig: cannot be read: Is a directory")
    assert not (tmp_path / "layout").exists()


def test_the_signature_of_another_bundle_is_neither_pushed_nor_pulled(
    shipped: Bundle, unsigned: Bundle, tmp_path: Path
) -> None:
    other = make_pair(tmp_path, "key").signed(f"sha256:{'5' * 64}")
    put_beside(unsigned, other)
    result = run("push", unsigned.path, "--oci-layout", tmp_path / "layout")
    assert (result.exit_code, "is the signature of another bundle" in one_error(result)) == (6, True)
    assert not (tmp_path / "layout").exists()

    layout = tmp_path / "forged"

    def forge(manifest: dict[str, Any]) -> None:
        manifest["layers"][2] = add(layout, image_module._stored(image_module._signature_tar(other.to_bytes())))

    relist(layout, shipped, forge)
    result = run("pull", "--oci-layout", layout, "-o", tmp_path / "output")
    refused(result, "its signature is that of another bundle, sha256:555")
    assert list((tmp_path / "output").iterdir()) == []


# Layouts


def test_a_layout_holds_several_images_and_keeps_what_others_have_put_there(
    shipped: Bundle, unsigned: Bundle, tmp_path: Path
) -> None:
    layout, output = tmp_path / "layout", tmp_path / "output"
    signed = lay(shipped, layout, "signed")
    index = json.loads((layout / "index.json").read_bytes())
    theirs = Descriptor.of(MANIFEST_TYPE, b"{}").to_json({"theirs": "yes"})
    index["manifests"].append(theirs)
    (layout / "index.json").write_text(json.dumps(index))
    lay(shipped, layout, "mine")
    mine = lay(unsigned, layout, "mine")
    assert mine != signed
    listed = json.loads((layout / "index.json").read_bytes())["manifests"]
    assert theirs in listed
    assert len(listed) == 3
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    refused(run("pull", "--oci-layout", layout, "-o", output), "expected one image, found 3: signed, ")
    refused(run("pull", "other", "--oci-layout", layout, "-o", output), "name one of them")
    for name, signature in (("signed", True), ("mine", False), (signed, True), (mine, False)):
        done = run("pull", name, "--oci-layout", layout, "-o", output, "--json")
        assert (json.loads(done.stdout)["signature"] is not None) == signature


def test_a_pull_takes_the_place_of_an_older_file_and_of_its_signature(
    shipped: Bundle, unsigned: Bundle, tmp_path: Path
) -> None:
    lay(shipped, tmp_path / "layout", "signed")
    lay(unsigned, tmp_path / "layout", "unsigned")
    output = tmp_path / "output"
    signed = json.loads(run("pull", "signed", "--oci-layout", tmp_path / "layout", "-o", output, "--json").stdout)
    assert Path(signed["signature"]).is_file()
    assert (signed["version"], signed["bundle"]) == (1, shipped.digest)
    Path(signed["path"]).write_text("older")
    pulled = json.loads(run("pull", "unsigned", "--oci-layout", tmp_path / "layout", "-o", output, "--json").stdout)
    assert (pulled["path"], pulled["signature"]) == (signed["path"], None)
    assert tree(output) == {Path(pulled["path"]).name: (0o100644, unsigned.path.read_bytes())}


def test_the_same_push_into_a_layout_changes_nothing(shipped: Bundle, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    first = lay(shipped, layout)
    before = tree(layout)
    assert lay(shipped, layout) == first
    assert tree(layout) == before
    assert run("pull", "--oci-layout", layout, "-o", tmp_path / "output").exit_code == 0


def test_a_layout_that_is_altered_is_refused_and_healed_by_a_push(shipped: Bundle, tmp_path: Path) -> None:
    layout, output = tmp_path / "layout", tmp_path / "output"
    digest = lay(shipped, layout)
    for blob in (digest, digest_file(shipped.path)):
        path = layout / "blobs/sha256" / blob.partition(":")[2]
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
        refused(run("pull", "--oci-layout", layout, "-o", output), "altered: its content has another digest")
        assert lay(shipped, layout) == digest
        path.unlink()
        refused(run("pull", "--oci-layout", layout, "-o", output), "cannot be read: No such file")
        assert lay(shipped, layout) == digest
    assert run("pull", "--oci-layout", layout, "-o", output).exit_code == 0


def test_what_is_no_layout_is_named(tmp_path: Path, shipped: Bundle) -> None:
    refused(run("pull", "--oci-layout", tmp_path, "-o", tmp_path / "out"), "has no oci-layout, so it is no layout")
    (tmp_path / "oci-layout").write_text("{}")
    (tmp_path / "index.json").write_text('{"manifests": [{}]}')
    refused(
        run("pull", "--oci-layout", tmp_path, "-o", tmp_path / "out"), "index.json: manifests[0].mediaType: missing"
    )
    refused(run("push", shipped.path, "--oci-layout", tmp_path), "index.json: manifests[0].mediaType: missing")
    (tmp_path / "file").write_text("")
    result = run("pull", "--oci-layout", tmp_path, "-o", tmp_path / "file")
    assert result.exit_code == 3


def test_where_nothing_can_be_written_is_one_line(shipped: Bundle, tmp_path: Path) -> None:
    lay(shipped, tmp_path / "layout")
    (tmp_path / "file").write_text("")
    result = run("pull", "--oci-layout", tmp_path / "layout", "-o", tmp_path / "file" / "below")
    refused(result, "cannot be written: Not a directory; nothing was pulled")
    refused(
        run("push", shipped.path, "--oci-layout", tmp_path / "file" / "below"), "cannot be written: Not a directory"
    )
