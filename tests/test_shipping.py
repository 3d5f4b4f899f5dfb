"""Shipping, against a real registry: what arrives is what was sent, and what goes wrong leaves nothing behind."""

import base64
import json
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from click.testing import Result

from aotpack import registry as registry_module
from aotpack.bundle import Bundle, open_bundle
from aotpack.digests import canonical_json, digest_bytes, digest_file
from aotpack.image import MANIFEST_TYPE, MAX_MANIFEST, make_image
from aotpack.signatures import signatures_beside
from tests.registries import (
    HTPASSWD,
    PASSWORD,
    Served,
    Wire,
    free_port,
    make_certificate,
    needs_registry,
    registry,
    tls,
    token_server,
    wire_to,
)
from tests.shipments import lay, refused
from tests.test_cli import one_error, run


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody is logged in, and what passes by itself is waited for but not long."""
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "SOURCE_DATE_EPOCH", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(registry_module, "PAUSES", (0.01, 0.02))


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


def push(shipped: Bundle, reference: str, *more: object) -> Result:
    return run("push", shipped.path, reference, "--plain-http", *more)


def pull(reference: str, output: Path, *more: object) -> Result:
    return run("pull", reference, "-o", output, "--plain-http", *more)


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
    served: Served, repository: str, shipped: Bundle, tmp_path: Path
) -> None:
    reference = f"{served.host}/{repository}"
    pushed = push(shipped, f"{reference}:1")
    assert pushed.exit_code == 0, pushed.stderr
    pinned = pushed.stdout.strip()
    assert pinned == f"{reference}@{make_image(shipped).digest}"
    assert f"the bundle {shipped.digest}" in pushed.stderr
    for name in (f"{reference}:1", pinned):
        output = tmp_path / digest_bytes(name.encode())
        pulled = pull(name, output, "--expect-digest", shipped.digest)
        assert pulled.exit_code == 0, pulled.stderr
        path = Path(pulled.stdout.strip())
        assert path.read_bytes() == shipped.path.read_bytes()
        assert path.name == "aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst"
        signature = path.with_name(f"{path.name}.sig")
        assert signature.read_bytes() == signatures_beside(shipped.path).read_bytes()
        assert sorted(output.iterdir()) == [path, signature]
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert pinned in pulled.stderr
        assert "and its signature" in pulled.stderr


def test_what_is_there_is_not_sent_again(served: Served, repository: str, shipped: Bundle) -> None:
    first, second = (
        json.loads(push(shipped, f"{served.host}/{repository}:{tag}", "--json").stdout) for tag in ("1", "2")
    )
    assert first["reference"] == second["reference"]
    assert (first["present"], second["sent"]) == (0, 0)
    assert first["sent"] == second["present"] > shipped.size
    assert served.tags(repository) == ["1", "2"]


def test_another_tool_copies_the_image_and_keeps_its_digest(
    served: Served, repository: str, shipped: Bundle, tmp_path: Path
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo (apt-get install skopeo)")
    digest = lay(shipped, tmp_path / "layout", "mine")
    copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
    target = f"docker://{served.host}/{repository}:1"
    subprocess.run([*copy, f"oci:{tmp_path / 'layout'}:mine", target], check=True, timeout=60)
    pulled = pull(f"{served.host}/{repository}@{digest}", tmp_path / "output")
    assert pulled.exit_code == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == shipped.path.read_bytes()


# What is altered


class altered:  # noqa: N801  # reads as what it does
    """A file changed for as long as the block lasts."""

    def __init__(self, path: Path, change: Callable[[bytes], bytes]) -> None:
        self.path, self.change, self.before = path, change, path.read_bytes()

    def __enter__(self) -> None:
        assert self.change(self.before) != self.before
        self.path.write_bytes(self.change(self.before))

    def __exit__(self, *_: object) -> None:
        self.path.write_bytes(self.before)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_blob_that_the_registry_has_altered_is_refused(
    served: Served, shipped: Bundle, repository: str, tmp_path: Path, pinned: bool
) -> None:
    name = push(shipped, f"{served.host}/{repository}:1").stdout.strip()
    with altered(served.blob(digest_file(shipped.path)), lambda data: data[:5000] + b"?" + data[5001:]):
        result = pull(name if pinned else f"{served.host}/{repository}:1", tmp_path / "output")
    refused(result, f"the blob {digest_file(shipped.path)} is altered", "push the bundle again")
    assert list((tmp_path / "output").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda data: data[:-1], "is truncated: "), (lambda data: data + b"more", "has more than the ")],
)
def test_a_blob_of_another_size_is_refused(
    served: Served, shipped: Bundle, repository: str, tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    push(shipped, f"{served.host}/{repository}:1")
    with altered(served.blob(digest_file(shipped.path)), change):
        refused(pull(f"{served.host}/{repository}:1", tmp_path / "output"), said, f"{shipped.size} bytes")
    assert list((tmp_path / "output").iterdir()) == []


def test_a_manifest_that_the_registry_has_altered_is_refused_by_digest(
    served: Served, repository: str, shipped: Bundle, tmp_path: Path
) -> None:
    pinned = push(shipped, f"{served.host}/{repository}:1").stdout.strip()
    digest = pinned.partition("@")[2]
    with altered(served.blob(digest), lambda data: data.replace(b"0.33.0", b"0.33.1")):
        refused(pull(pinned, tmp_path / "output"), pinned)
    assert not (tmp_path / "output").exists()


def test_what_is_no_bundle_is_told_by_its_kind(
    served: Served, repository: str, shipped: Bundle, tmp_path: Path
) -> None:
    push(shipped, f"{served.host}/{repository}:mine")
    image = json.loads(make_image(shipped).manifest)
    del image["artifactType"]
    index_type = "application/vnd.oci.image.index.v1+json"
    index = {"schemaVersion": 2, "mediaType": index_type, "manifests": []}
    large = json.loads(make_image(shipped).manifest)
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


def test_a_damaged_bundle_is_not_pushed(served: Served, repository: str, shipped: Bundle, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tar.zst"
    damaged.write_bytes(shipped.path.read_bytes()[:-100])
    refused(push(open_bundle(damaged), f"{served.host}/{repository}:1"), "damaged.tar.zst: ")
    assert not (served.folder / "docker/registry/v2/repositories" / repository).exists()


# What breaks off


def test_an_upload_that_breaks_off_leaves_no_image_and_the_next_one_completes_it(
    served: Served, repository: str, wire: Wire, shipped: Bundle, tmp_path: Path
) -> None:
    wire.up, wire.cuts = 8000, 1000
    result = push(shipped, f"{wire.host}/{repository}:1")
    refused(result, "broke off while ", f"{shipped.size} bytes were sent; no tag was set", "run this again")
    assert wire.cuts == 1000 - 3
    assert served.tags(repository) == []
    wire.cuts = 0
    assert push(shipped, f"{wire.host}/{repository}:1").exit_code == 0
    pulled = pull(f"{served.host}/{repository}:1", tmp_path)
    assert Path(pulled.stdout.strip()).read_bytes() == shipped.path.read_bytes()


def test_what_breaks_off_once_is_done_again(
    served: Served, repository: str, wire: Wire, shipped: Bundle, tmp_path: Path
) -> None:
    wire.up, wire.cuts = 8000, 1
    pushed = push(shipped, f"{wire.host}/{repository}:1")
    assert (pushed.exit_code, wire.cuts) == (0, 0), pushed.stderr
    assert served.tags(repository) == ["1"]
    wire.up, wire.down, wire.cuts = None, 8000, 1
    pulled = pull(f"{wire.host}/{repository}:1", tmp_path)
    assert (pulled.exit_code, wire.cuts) == (0, 0), pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == shipped.path.read_bytes()


def test_a_download_that_breaks_off_leaves_nothing(
    served: Served, repository: str, wire: Wire, shipped: Bundle, tmp_path: Path
) -> None:
    push(shipped, f"{served.host}/{repository}:1")
    wire.down, wire.cuts = 8000, 1000
    result = pull(f"{wire.host}/{repository}:1", tmp_path / "output")
    refused(result, f"broke off while {shipped.size} bytes were fetched; nothing was written")
    assert list((tmp_path / "output").iterdir()) == []


def test_a_registry_that_is_busy_is_asked_again(served: Served, repository: str, wire: Wire, shipped: Bundle) -> None:
    wire.busy = 2
    assert push(shipped, f"{wire.host}/{repository}:1").exit_code == 0
    assert (wire.busy, served.tags(repository)) == (0, ["1"])
    wire.busy = 1000
    refused(push(shipped, f"{wire.host}/{repository}:2"), "answered 503 Busy: it does not say why")
    assert wire.busy == 1000 - 3


def test_a_registry_that_is_not_there_is_one_line(shipped: Bundle, tmp_path: Path) -> None:
    nobody = f"localhost:{free_port()}"
    refused(push(shipped, f"{nobody}/kernels:1"), f"{nobody} cannot be reached", "Connection refused")
    refused(pull(f"{nobody}/kernels:1", tmp_path), f"{nobody} cannot be reached", "Connection refused")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n", "forbids this to nobody; ask for the right"),
        (b"HTTP/1.1 413 Too Large\r\n", "takes no blob as large as this"),
        (b"HTTP/1.1 400 Bad\r\n", "answered 400 Bad: it does not say why"),
        (b"HTTP/1.1 401 Who\r\n", "credentials, which are not sent over plain HTTP"),
        (b"SSH-2.0-OpenSSH\r\n", "broke off while its manifest was fetched"),
    ],
)
def test_whatever_a_registry_answers_is_one_line(
    wire: Wire, repository: str, tmp_path: Path, answer: bytes, said: str
) -> None:
    wire.busy, wire.answer = 1000, answer + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    refused(pull(f"{wire.host}/{repository}:1", tmp_path / "output"), f"{wire.host}/{repository}:1: {wire.host} ", said)
    assert not (tmp_path / "output").exists()


def test_a_registry_that_is_none_is_told_so(wire: Wire, repository: str, shipped: Bundle) -> None:
    wire.busy, wire.answer = 1000, b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    refused(push(shipped, f"{wire.host}/{repository}:1"), "answered otherwise than a registry does", "'location'")


def test_what_a_registry_says_of_an_error_is_told_in_one_line(wire: Wire, repository: str, tmp_path: Path) -> None:
    told = json.dumps({"errors": [{"code": "X", "message": "too\nmany\x1b[31m " + "words " * 200}]}).encode()
    head = b"HTTP/1.1 400 Bad\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(told)
    wire.busy, wire.answer = 1, head + told
    result = pull(f"{wire.host}/{repository}:1", tmp_path)
    refused(result, "answered 400 Bad: too many [31m words words")
    assert len(result.stderr) < 600


def test_a_registry_that_is_silent_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        reference = f"127.0.0.1:{server.getsockname()[1]}/kernels:1"
        refused(pull(reference, tmp_path), "did not answer for 0 seconds while its manifest was fetched")


# Who may


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A registry with TLS, by a certificate that nobody knows, and with a password."""
    needs_registry()
    folder = tmp_path_factory.mktemp("guarded")
    make_certificate(folder)
    (folder / "htpasswd").write_text(HTPASSWD)
    more = f"auth: {{htpasswd: {{realm: here, path: {folder / 'htpasswd'}}}}}\n"
    with registry(folder, more=more, tls=tls(folder)) as running:
        yield running


def log_in(path: Path, host: str, password: str) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    auth = base64.b64encode(f"builder:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))


def test_over_tls_with_a_password_it_comes_there_and_back(
    guarded: Served, repository: str, shipped: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = f"{guarded.host}/{repository}:1"
    trusted = ("--ca-file", guarded.folder / "ca.pem")
    refused(run("push", shipped.path, reference), "certificate verify failed", "name its CA with --ca-file")
    refused(run("push", shipped.path, reference, *trusted), "asks for credentials, and there are none for it")
    log_in(tmp_path / "docker" / "config.json", guarded.host, "wrong")
    result = run("push", shipped.path, reference, *trusted)
    refused(result, "refuses the credentials of builder in ", "config.json; log in again")
    assert "wrong" not in result.output
    log_in(tmp_path / "docker" / "config.json", guarded.host, PASSWORD)
    pushed = run("push", shipped.path, reference, *trusted)
    assert pushed.exit_code == 0, pushed.stderr
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nowhere"))
    refused(run("pull", reference, "-o", tmp_path, *trusted), "asks for credentials")
    log_in(tmp_path / "auth.json", guarded.host, PASSWORD)
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    pulled = run("pull", reference, "-o", tmp_path, *trusted)
    assert pulled.exit_code == 0, pulled.stderr
    assert PASSWORD not in pushed.output + pulled.output
    assert Path(pulled.stdout.strip()).read_bytes() == shipped.path.read_bytes()


def test_a_registry_that_takes_tokens_gets_one_for_just_what_is_done(
    shipped: Bundle, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs_registry()
    folder = tmp_path_factory.mktemp("tokens")
    make_certificate(folder)
    with token_server(folder) as (more, asked), registry(folder, more=more, tls=tls(folder)) as running:
        reference = f"{running.host}/team/kernels:1"
        trusted = ("--ca-file", folder / "ca.pem")
        refused(run("push", shipped.path, reference, *trusted), "asks for credentials, and there are none for it")
        log_in(tmp_path / "docker" / "config.json", running.host, "wrong")
        refused(run("push", shipped.path, reference, *trusted), "refuses the credentials of builder")
        log_in(tmp_path / "docker" / "config.json", running.host, PASSWORD)
        pushed = run("push", shipped.path, reference, *trusted)
        assert pushed.exit_code == 0, pushed.stderr
        assert {frozenset(scope.split(":")[2].split(",")) for scope in asked} <= {
            frozenset({"pull"}),
            frozenset({"pull", "push"}),
        }
        (tmp_path / "docker" / "config.json").unlink()
        asked.clear()
        pulled = run("pull", reference, "-o", tmp_path, *trusted)
        assert pulled.exit_code == 0, pulled.stderr
        assert asked == ["repository:team/kernels:pull"]
        assert Path(pulled.stdout.strip()).read_bytes() == shipped.path.read_bytes()


def test_a_password_does_not_go_over_plain_http(shipped: Bundle, tmp_path: Path) -> None:
    needs_registry()
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "htpasswd").write_text(HTPASSWD)
    with registry(folder, more=f"auth: {{htpasswd: {{realm: here, path: {folder / 'htpasswd'}}}}}\n") as running:
        log_in(tmp_path / "docker" / "config.json", running.host, PASSWORD)
        refused(push(shipped, f"{running.host}/kernels:1"), "credentials, which are not sent over plain HTTP")


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
    shipped: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("push", shipped.path, *arguments)
    assert result.exit_code == 2, result.output
    assert said in one_error(result)
    assert not (tmp_path / "layout").exists()


def test_what_is_no_digest_is_a_usage_error() -> None:
    result = run("pull", "localhost:1/kernels:1", "--expect-digest", "3f9c2a71d004")
    assert (result.exit_code, "is not sha256:<64 hex>, as aotpack inspect shows it" in result.stderr) == (2, True)


def test_without_the_extra_the_line_says_what_to_install(shipped: Bundle, tmp_path: Path) -> None:
    code = "import sys; sys.modules['dxf'] = None; from aotpack.cli import main; main()"
    command = [sys.executable, "-c", code, "push", str(shipped.path)]
    done = subprocess.run([*command, "localhost:1/kernels:1"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "registries need the package dxf; run: pip install 'aotpack[oci]'" in done.stderr
    assert done.stderr.count("\n") == 1
    done = subprocess.run([*command, "--oci-layout", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_pull_that_is_terminated_leaves_nothing(served: Served, repository: str, wire: Wire, shipped: Bundle) -> None:
    push(shipped, f"{served.host}/{repository}:1")
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
