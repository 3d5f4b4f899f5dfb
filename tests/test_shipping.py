"""Shipping, against a real registry: what arrives is what was sent, and what goes wrong leaves nothing behind."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests
import zstandard
from click.testing import Result

from aotpack import registry as registry_module
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.digests import canonical_json, digest_bytes, digest_file
from aotpack.engines import Engine
from aotpack.image import ARTIFACT_TYPE, DIGEST, MANIFEST_TYPE, MAX_MANIFEST, Descriptor, make_image
from aotpack.store import open_store
from tests.archives import tree
from tests.conftest import ROOT
from tests.registries import HTPASSWD, PASSWORD, Served, Wire, free_port, needs_registry, registry, wire_to
from tests.test_cli import one_error, run

pytestmark = pytest.mark.usefixtures("_no_credentials")


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is logged in, and what passes by itself is waited for but not long."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "SOURCE_DATE_EPOCH", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(registry_module, "PAUSES", (0.01, 0.02))


@pytest.fixture(scope="module")
def bundle(helped: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A real bundle of a few kernels and all its helpers, with a file beside it that signs it."""
    manifest = replace(helped.manifest, entries=helped.manifest.entries[:3])
    path = tmp_path_factory.mktemp("shipped") / "mine.tar.zst"
    path.with_name("mine.tar.zst.sig").write_text('{"any":"signature"}\n')
    return write_bundle(path, manifest, dict(helped.blobs()))


@pytest.fixture
def unsigned(bundle: Bundle, tmp_path: Path) -> Bundle:
    """The same without its signature, of this test alone."""
    (tmp_path / "mine").mkdir()
    return open_bundle(Path(shutil.copy(bundle.path, tmp_path / "mine")))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    needs_registry()
    with registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def repository(request: pytest.FixtureRequest) -> str:
    """One that no other test uses: in a repository of its own, a test knows which blobs are there."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.name.lower())
    return f"tests/{name.strip('-')}"


@pytest.fixture
def wire(served: Served) -> Iterator[Wire]:
    with wire_to(served) as carrying:
        yield carrying


def push(bundle: Bundle, reference: str, *more: object) -> Result:
    return run("push", bundle.path, reference, "--plain-http", *more)


def pull(reference: str, output: Path, *more: object) -> Result:
    return run("pull", reference, "-o", output, "--plain-http", *more)


def lay(bundle: Bundle, layout: Path, *name: str) -> str:
    done = run("push", bundle.path, *name, "--oci-layout", layout)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 3, result.output
    error = one_error(result)
    for part in parts:
        assert part in error
    assert "/.aotpack-" not in error


def put(served: Served, repository: str, tag: str, manifest: bytes, media_type: str = MANIFEST_TYPE) -> None:
    """A manifest that aotpack would not push."""
    done = requests.put(
        f"http://{served.host}/v2/{repository}/manifests/{tag}",
        data=manifest,
        headers={"Content-Type": media_type},
        timeout=20,
    )
    assert done.status_code == 201, done.text


# There and back


def test_what_is_pulled_is_what_was_pushed_by_tag_and_by_digest(
    served: Served, repository: str, bundle: Bundle, tmp_path: Path
) -> None:
    reference = f"{served.host}/{repository}"
    pushed = push(bundle, f"{reference}:1")
    assert pushed.exit_code == 0, pushed.stderr
    pinned = pushed.stdout.strip()
    assert pinned == f"{reference}@{make_image(bundle).digest}"
    assert f"the bundle {bundle.digest}" in pushed.stderr
    for name in (f"{reference}:1", pinned):
        output = tmp_path / digest_bytes(name.encode())
        pulled = pull(name, output, "--expect-digest", bundle.digest)
        assert pulled.exit_code == 0, pulled.stderr
        path = Path(pulled.stdout.strip())
        assert path.read_bytes() == bundle.path.read_bytes()
        assert path.name == "aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst"
        signature = path.with_name(f"{path.name}.sig")
        assert signature.read_text() == '{"any":"signature"}\n'
        assert sorted(output.iterdir()) == [path, signature]
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert pinned in pulled.stderr
        assert "and its signature" in pulled.stderr


def test_what_is_there_is_not_sent_again(served: Served, repository: str, bundle: Bundle) -> None:
    first, second = (
        json.loads(push(bundle, f"{served.host}/{repository}:{tag}", "--json").stdout) for tag in ("1", "2")
    )
    assert first["reference"] == second["reference"]
    assert (first["present"], second["sent"]) == (0, 0)
    assert first["sent"] == second["present"] > bundle.size
    assert served.tags(repository) == ["1", "2"]


def test_a_pull_takes_the_place_of_an_older_file_and_of_its_signature(
    bundle: Bundle, unsigned: Bundle, tmp_path: Path
) -> None:
    lay(bundle, tmp_path / "layout", "signed")
    lay(unsigned, tmp_path / "layout", "unsigned")
    output = tmp_path / "output"
    signed = json.loads(run("pull", "signed", "--oci-layout", tmp_path / "layout", "-o", output, "--json").stdout)
    assert Path(signed["signature"]).is_file()
    assert (signed["version"], signed["bundle"]) == (1, bundle.digest)
    Path(signed["path"]).write_text("older")
    pulled = json.loads(run("pull", "unsigned", "--oci-layout", tmp_path / "layout", "-o", output, "--json").stdout)
    assert (pulled["path"], pulled["signature"]) == (signed["path"], None)
    assert tree(output) == {Path(pulled["path"]).name: (0o100644, unsigned.path.read_bytes())}


# The image


def layers(layout: Path, digest: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """An image's layers and the tars in them, as a container runtime reads them."""
    blobs = layout / "blobs/sha256"
    manifest = json.loads((blobs / digest.partition(":")[2]).read_bytes())
    config = json.loads((blobs / manifest["config"]["digest"].partition(":")[2]).read_bytes())
    assert len(config["rootfs"]["diff_ids"]) == len(manifest["layers"])
    for layer, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
        data = (blobs / layer["digest"].partition(":")[2]).read_bytes()
        assert (digest_bytes(data), len(data)) == (layer["digest"], layer["size"])
        tar = (
            subprocess.run(["gzip", "-dc"], input=data, capture_output=True, check=True).stdout
            if (layer["mediaType"].endswith("+gzip"))
            else zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        )
        assert digest_bytes(tar) == diff_id
        yield layer, tar


def mount(layout: Path, digest: str, directory: Path) -> Path:
    """Lay an image's layers over each other, as a container runtime does for an image volume."""
    for _, tar in layers(layout, digest):
        with tarfile.open(fileobj=BytesIO(tar)) as archive:
            for member in archive:
                assert not member.name.startswith("/")
                assert (member.uid, member.gid, member.mtime) == (0, 0, 0)
                archive.extract(member, directory, set_attrs=not member.issym())
    return directory


def test_an_image_is_the_same_wherever_and_whenever_it_is_made(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_image(bundle)
    other = Path(shutil.copy(bundle.path, tmp_path / "other.tar.zst"))
    shutil.copy(f"{bundle.path}.sig", tmp_path / "other.tar.zst.sig")
    other.chmod(0o600)
    os.utime(other, (1, 1))
    again = make_image(open_bundle(other))
    assert again.manifest == image.manifest
    assert [descriptor for descriptor, _ in again.blobs] == [descriptor for descriptor, _ in image.blobs]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1760000000")
    dated = json.loads(make_image(bundle).manifest)
    assert dated["annotations"]["org.opencontainers.image.created"] == "2025-10-09T08:53:20Z"
    assert "created" not in image.manifest.decode()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    result = run("push", bundle.path, "--oci-layout", tmp_path / "layout")
    assert (result.exit_code, "expected seconds since 1970, found 'yesterday'" in one_error(result)) == (2, True)


def test_an_image_says_what_it_is_to_those_who_look(bundle: Bundle) -> None:
    manifest = json.loads(make_image(bundle).manifest)
    assert manifest["artifactType"] == ARTIFACT_TYPE
    assert manifest["annotations"] == {
        "org.opencontainers.image.title": "aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst",
        "org.opencontainers.image.version": "0.33.0",
        "org.opencontainers.image.description": "Triton kernels of vllm 0.33.0 for sm90, compiled by Triton 3.8.0",
        "dev.aotpack.engine": "vllm",
        "dev.aotpack.engine.version": "0.33.0",
        "dev.aotpack.triton": "3.8.0",
        "dev.aotpack.architectures": "sm90",
        "dev.aotpack.bundle.digest": bundle.digest,
    }


def test_a_mounted_image_is_the_bundles_store(bundle: Bundle, tmp_path: Path) -> None:
    digest = lay(bundle, tmp_path / "layout")
    (first, _), *_ = layers(tmp_path / "layout", digest)
    assert first["digest"] == digest_file(bundle.path)
    directory = mount(tmp_path / "layout", digest, tmp_path / "mounted")
    store = open_store(directory)
    assert (store.digest, store.manifest) == (bundle.digest, bundle.manifest)
    for entry in bundle.manifest.entries:
        for kind, artifact in entry.artifacts:
            assert digest_file(store.path(artifact, kind)) == artifact.digest
    for helper in bundle.manifest.helpers:
        assert digest_file(store.path(helper.artifact, "so")) == helper.artifact.digest
    assert (directory / "signatures.json").read_text() == '{"any":"signature"}\n'
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o755 for path in directory.rglob("*") if path.is_dir())


def test_a_mounted_image_serves_every_kernel_in_place(
    bundle: Bundle, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = lay(bundle, tmp_path / "layout")
    directory = mount(tmp_path / "layout", digest, tmp_path / "mounted")
    before = tree(directory)
    code = (
        "from tests.serving import *; serving = Serving(); import aotpack; aotpack.activate(); say(**serving.look_up())"
    )
    monkeypatch.setenv("AOTPACK_BUNDLE_PATH", str(directory))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    command = [sys.executable, "-c", code, str(bundle.path), str(engine.root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    found = {"found": len(bundle.manifest.entries), "errors": [], "in": [f"{directory}/blobs"]}
    assert json.loads(done.stdout.splitlines()[-1]) == found
    assert not (tmp_path / "triton").exists()
    assert tree(directory) == before


def test_another_tool_copies_the_image_and_keeps_its_digest(
    served: Served, repository: str, bundle: Bundle, tmp_path: Path
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo (apt-get install skopeo)")
    digest = lay(bundle, tmp_path / "layout", "mine")
    copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
    target = f"docker://{served.host}/{repository}:1"
    subprocess.run([*copy, f"oci:{tmp_path / 'layout'}:mine", target], check=True, timeout=60)
    pulled = pull(f"{served.host}/{repository}@{digest}", tmp_path / "output")
    assert pulled.exit_code == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == bundle.path.read_bytes()


# What is altered


@pytest.mark.parametrize("pinned", [False, True])
def test_a_blob_that_the_registry_has_altered_is_refused(
    served: Served, bundle: Bundle, repository: str, tmp_path: Path, pinned: bool
) -> None:
    name = push(bundle, f"{served.host}/{repository}:1").stdout.strip()
    with altered(served.blob(digest_file(bundle.path)), lambda data: data[:5000] + b"?" + data[5001:]):
        result = pull(name if pinned else f"{served.host}/{repository}:1", tmp_path / "output")
    refused(result, f"the blob {digest_file(bundle.path)} is altered", "push the bundle again")
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda data: data[:-1], "is truncated: "), (lambda data: data + b"more", "has more than the ")],
)
def test_a_blob_of_another_size_is_refused(
    served: Served, bundle: Bundle, repository: str, tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    push(bundle, f"{served.host}/{repository}:1")
    with altered(served.blob(digest_file(bundle.path)), change):
        refused(pull(f"{served.host}/{repository}:1", tmp_path / "output"), said, f"{bundle.size} bytes")
    assert list((tmp_path / "output").iterdir()) == []


def test_a_manifest_that_the_registry_has_altered_is_refused_by_digest(
    served: Served, repository: str, bundle: Bundle, tmp_path: Path
) -> None:
    pinned = push(bundle, f"{served.host}/{repository}:1").stdout.strip()
    digest = pinned.partition("@")[2]
    with altered(served.blob(digest), lambda data: data.replace(b"0.33.0", b"0.33.1")):
        refused(pull(pinned, tmp_path / "output"), pinned)
    assert not (tmp_path / "output").exists()


class altered:  # noqa: N801  # reads as what it does
    """A file changed for as long as the block lasts."""

    def __init__(self, path: Path, change: Callable[[bytes], bytes]) -> None:
        self.path, self.change, self.before = path, change, path.read_bytes()

    def __enter__(self) -> None:
        assert self.change(self.before) != self.before
        self.path.write_bytes(self.change(self.before))

    def __exit__(self, *_: object) -> None:
        self.path.write_bytes(self.before)


def relist(layout: Path, bundle: Bundle, change: Callable[[dict[str, Any]], None]) -> None:
    """List an image whose manifest says something else than it should."""
    lay(bundle, layout, "mine")
    manifest = json.loads(make_image(bundle).manifest)
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


def test_what_a_manifest_announces_and_does_not_hold_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    layout, output = tmp_path / "layout", tmp_path / "output"
    other = digest_bytes(b"another bundle")

    def pulled(change: Callable[[dict[str, Any]], None], *more: object) -> Result:
        relist(layout, bundle, change)
        return run("pull", "--oci-layout", layout, "-o", output, *more)

    def announce(manifest: dict[str, Any]) -> None:
        manifest["annotations"][DIGEST] = other

    refused(pulled(announce), f"announces the bundle {other}, and holds {bundle.digest}")
    refused(pulled(announce, "--expect-digest", bundle.digest), f"expected the bundle {bundle.digest}, found {other}")

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
    assert list(output.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no gzip", "no tar inside gzip"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x00\x00\xff\xff" + bytes(8), "no tar inside gzip"),
        (bytes((1 << 20) + 5000), "at most 1048576 bytes of signature are read"),
    ],
)
def test_a_layer_that_is_no_signature_is_refused(bundle: Bundle, tmp_path: Path, data: bytes, said: str) -> None:
    layout = tmp_path / "layout"

    def forge(manifest: dict[str, Any]) -> None:
        manifest["layers"][2] = add(layout, data)

    relist(layout, bundle, forge)
    refused(run("pull", "--oci-layout", layout, "-o", tmp_path / "output"), said)
    assert not any(tmp_path.glob("output/*"))


def test_a_signature_that_is_not_spelled_as_ours_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as archive:
        member = tarfile.TarInfo("../../etc/passwd")
        member.size = 3
        archive.addfile(member, BytesIO(b"abc"))

    def forge(manifest: dict[str, Any]) -> None:
        manifest["layers"][2] = add(layout, buffer.getvalue())

    relist(layout, bundle, forge)
    result = run("pull", "--oci-layout", layout, "-o", tmp_path / "output")
    refused(result, "the layer of its signature holds something else than signatures.json")
    assert list((tmp_path / "output").iterdir()) == []


def test_what_is_no_bundle_is_told_by_its_kind(served: Served, repository: str, bundle: Bundle, tmp_path: Path) -> None:
    push(bundle, f"{served.host}/{repository}:mine")
    image = json.loads(make_image(bundle).manifest)
    del image["artifactType"]
    index_type = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": index_type, "manifests": []}
    large = json.loads(make_image(bundle).manifest)
    large["annotations"]["long"] = "x" * MAX_MANIFEST
    put(served, repository, "image", canonical_json(image).encode())
    put(served, repository, "index", canonical_json(index).encode(), index_type)
    put(served, repository, "large", canonical_json(large).encode())
    reference = f"{served.host}/{repository}"
    refused(pull(f"{reference}:image", tmp_path / "out"), "holds no bundle", f"found {MANIFEST_TYPE} of none")
    refused(pull(f"{reference}:index", tmp_path / "out"), "holds no bundle", f"found {index_type} of none")
    refused(pull(f"{reference}:large", tmp_path / "out"), f"has more than {MAX_MANIFEST} bytes")
    refused(pull(f"{reference}:missing", tmp_path / "out"), "has no such image")
    refused(pull(f"{reference}@{digest_bytes(b'')}", tmp_path / "out"), "has no such image")
    assert not (tmp_path / "out").exists()


def test_a_damaged_bundle_is_not_pushed(served: Served, repository: str, bundle: Bundle, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tar.zst"
    damaged.write_bytes(bundle.path.read_bytes()[:-100])
    refused(push(open_bundle(damaged), f"{served.host}/{repository}:1"), "damaged.tar.zst: ")
    assert not (served.folder / "docker/registry/v2/repositories" / repository).exists()


# What breaks off


def test_an_upload_that_breaks_off_leaves_no_image_and_the_next_one_completes_it(
    served: Served, repository: str, wire: Wire, bundle: Bundle, tmp_path: Path
) -> None:
    wire.up, wire.cuts = 8000, 1000
    result = push(bundle, f"{wire.host}/{repository}:1")
    refused(result, "broke off while ", f"{bundle.size} bytes were sent; no tag was set", "run this again")
    assert wire.cuts == 1000 - 3
    assert served.tags(repository) == []
    wire.cuts = 0
    assert push(bundle, f"{wire.host}/{repository}:1").exit_code == 0
    pulled = pull(f"{served.host}/{repository}:1", tmp_path)
    assert Path(pulled.stdout.strip()).read_bytes() == bundle.path.read_bytes()


def test_what_breaks_off_once_is_done_again(
    served: Served, repository: str, wire: Wire, bundle: Bundle, tmp_path: Path
) -> None:
    wire.up, wire.cuts = 8000, 1
    pushed = push(bundle, f"{wire.host}/{repository}:1")
    assert (pushed.exit_code, wire.cuts) == (0, 0), pushed.stderr
    assert served.tags(repository) == ["1"]
    wire.up, wire.down, wire.cuts = None, 8000, 1
    pulled = pull(f"{wire.host}/{repository}:1", tmp_path)
    assert (pulled.exit_code, wire.cuts) == (0, 0), pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == bundle.path.read_bytes()


def test_a_download_that_breaks_off_leaves_nothing(
    served: Served, repository: str, wire: Wire, bundle: Bundle, tmp_path: Path
) -> None:
    push(bundle, f"{served.host}/{repository}:1")
    wire.down, wire.cuts = 8000, 1000
    result = pull(f"{wire.host}/{repository}:1", tmp_path / "output")
    refused(result, f"broke off while {bundle.size} bytes were fetched; nothing was written")
    assert list((tmp_path / "output").iterdir()) == []


def test_a_registry_that_is_busy_is_asked_again(served: Served, repository: str, wire: Wire, bundle: Bundle) -> None:
    wire.busy = 2
    assert push(bundle, f"{wire.host}/{repository}:1").exit_code == 0
    assert (wire.busy, served.tags(repository)) == (0, ["1"])
    wire.busy = 1000
    refused(push(bundle, f"{wire.host}/{repository}:2"), "answered 503 Busy: it does not say why")
    assert wire.busy == 1000 - 3


def test_a_registry_that_is_not_there_is_one_line(bundle: Bundle, tmp_path: Path) -> None:
    nobody = f"localhost:{free_port()}"
    refused(push(bundle, f"{nobody}/kernels:1"), f"{nobody} cannot be reached", "Connection refused")
    refused(pull(f"{nobody}/kernels:1", tmp_path), f"{nobody} cannot be reached", "Connection refused")


# Who may


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A registry with TLS, by a certificate that nobody knows, and with a password."""
    needs_registry()
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "htpasswd").write_text(HTPASSWD)
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")]
    subprocess.run([*make, *names, *files], capture_output=True, check=True)
    tls = f", tls: {{certificate: {folder / 'ca.pem'}, key: {folder / 'key.pem'}}}"
    more = f"auth: {{htpasswd: {{realm: here, path: {folder / 'htpasswd'}}}}}\n"
    with registry(folder, more=more, tls=tls) as running:
        yield running


def log_in(path: Path, host: str, password: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    joined = subprocess.run(["base64", "-w0"], input=f"builder:{password}".encode(), capture_output=True, check=True)
    path.write_text(json.dumps({"auths": {host: {"auth": joined.stdout.decode()}}}))


def test_over_tls_with_a_password_it_comes_there_and_back(
    guarded: Served, repository_of_mine: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"{guarded.host}/{repository_of_mine}:1"
    trusted = ("--ca-file", guarded.folder / "ca.pem")
    refused(run("push", bundle.path, reference), "certificate verify failed", "name its CA with --ca-file")
    refused(run("push", bundle.path, reference, *trusted), "asks for credentials, and there are none for it")
    log_in(tmp_path / "docker" / "config.json", guarded.host, "wrong")
    result = run("push", bundle.path, reference, *trusted)
    refused(result, "refuses the credentials of builder in ", "config.json; log in again")
    assert "wrong" not in result.output
    log_in(tmp_path / "docker" / "config.json", guarded.host, PASSWORD)
    pushed = run("push", bundle.path, reference, *trusted)
    assert pushed.exit_code == 0, pushed.stderr
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nowhere"))
    refused(run("pull", reference, "-o", tmp_path, *trusted), "asks for credentials")
    log_in(tmp_path / "auth.json", guarded.host, PASSWORD)
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    pulled = run("pull", reference, "-o", tmp_path, *trusted)
    assert pulled.exit_code == 0, pulled.stderr
    assert PASSWORD not in pushed.output + pulled.output
    assert Path(pulled.stdout.strip()).read_bytes() == bundle.path.read_bytes()


@pytest.fixture
def repository_of_mine() -> str:
    return "team/kernels"


def test_a_password_does_not_go_over_plain_http(bundle: Bundle, tmp_path: Path) -> None:
    needs_registry()
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "htpasswd").write_text(HTPASSWD)
    with registry(folder, more=f"auth: {{htpasswd: {{realm: here, path: {folder / 'htpasswd'}}}}}\n") as running:
        log_in(tmp_path / "docker" / "config.json", running.host, PASSWORD)
        refused(push(bundle, f"{running.host}/kernels:1"), "credentials, which are not sent over plain HTTP")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["registry.example/kernels:1", "--plain-http"], "--plain-http is for registries on this machine alone"),
        (["registry.example/kernels"], "names neither a tag nor a digest"),
        (["kernels:1"], "names no registry"),
        ([f"localhost:1/kernels@sha256:{'0' * 64}"], "a bundle is pushed under a tag"),
        (["localhost:1/kernels:1", "--ca-file", "/nowhere.pem"], "/nowhere.pem: is no file"),
        ([], "name the image, as registry.example/team/kernels:tag, or a directory with --oci-layout"),
        (["--oci-layout", "layout", "--plain-http"], "--oci-layout speaks with no registry"),
        ([f"sha256:{'0' * 64}", "--oci-layout", "layout"], "is a digest; name the image"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("push", bundle.path, *arguments)
    assert result.exit_code == 2, result.output
    assert said in one_error(result)
    assert not (tmp_path / "layout").exists()


def test_without_the_extra_the_line_says_what_to_install(bundle: Bundle, tmp_path: Path) -> None:
    code = "import sys; sys.modules['dxf'] = None; from aotpack.cli import main; main()"
    command = [sys.executable, "-c", code, "push", str(bundle.path)]
    done = subprocess.run([*command, "localhost:1/kernels:1"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "registries need the package dxf; run: pip install 'aotpack[oci]'" in done.stderr
    assert done.stderr.count("\n") == 1
    done = subprocess.run([*command, "--oci-layout", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# Layouts


def test_a_layout_holds_several_images_and_keeps_what_others_have_put_there(
    bundle: Bundle, unsigned: Bundle, tmp_path: Path
) -> None:
    layout, output = tmp_path / "layout", tmp_path / "output"
    signed = lay(bundle, layout, "signed")
    index = json.loads((layout / "index.json").read_bytes())
    theirs = Descriptor.of(MANIFEST_TYPE, b"{}").to_json({"theirs": "yes"})
    index["manifests"].append(theirs)
    (layout / "index.json").write_text(json.dumps(index))
    lay(bundle, layout, "mine")
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


def test_the_same_push_into_a_layout_changes_nothing(bundle: Bundle, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    first = lay(bundle, layout)
    before = tree(layout)
    assert lay(bundle, layout) == first
    assert tree(layout) == before
    assert run("pull", "--oci-layout", layout, "-o", tmp_path / "output").exit_code == 0


def test_a_layout_that_is_altered_is_refused_and_healed_by_a_push(bundle: Bundle, tmp_path: Path) -> None:
    layout, output = tmp_path / "layout", tmp_path / "output"
    digest = lay(bundle, layout)
    for blob in (digest, digest_file(bundle.path)):
        path = layout / "blobs/sha256" / blob.partition(":")[2]
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
        refused(run("pull", "--oci-layout", layout, "-o", output), "altered: its content has another digest")
        assert lay(bundle, layout) == digest
    assert run("pull", "--oci-layout", layout, "-o", output).exit_code == 0


def test_what_is_no_layout_is_named(tmp_path: Path, bundle: Bundle) -> None:
    refused(run("pull", "--oci-layout", tmp_path, "-o", tmp_path / "out"), "has no oci-layout, so it is no layout")
    (tmp_path / "oci-layout").write_text("{}")
    (tmp_path / "index.json").write_text('{"manifests": [{}]}')
    refused(
        run("pull", "--oci-layout", tmp_path, "-o", tmp_path / "out"), "index.json: manifests[0].mediaType: missing"
    )
    refused(run("push", bundle.path, "--oci-layout", tmp_path), "index.json: manifests[0].mediaType: missing")
    (tmp_path / "file").write_text("")
    result = run("pull", "--oci-layout", tmp_path, "-o", tmp_path / "file")
    assert result.exit_code == 3


def test_where_nothing_can_be_written_is_one_line(bundle: Bundle, tmp_path: Path) -> None:
    lay(bundle, tmp_path / "layout")
    (tmp_path / "file").write_text("")
    result = run("pull", "--oci-layout", tmp_path / "layout", "-o", tmp_path / "file" / "below")
    refused(result, "cannot be written: Not a directory; nothing was pulled")
    refused(run("push", bundle.path, "--oci-layout", tmp_path / "file" / "below"), "cannot be written: Not a directory")


def test_a_pull_that_is_terminated_leaves_nothing(served: Served, repository: str, wire: Wire, bundle: Bundle) -> None:
    push(bundle, f"{served.host}/{repository}:1")
    with tempfile.TemporaryDirectory() as output:
        wire.down, wire.cuts = 8000, 1000
        code = "from aotpack import registry; registry.PAUSES = (60,); from aotpack.cli import main; main()"
        command = [sys.executable, "-c", code, "pull", f"{wire.host}/{repository}:1", "-o", output, "--plain-http"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while wire.cuts == 1000:
            assert process.poll() is None
        process.terminate()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (143, b"", b"")
        assert list(Path(output).iterdir()) == []
