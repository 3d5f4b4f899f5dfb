"""A real registry on this machine, and a wire to it that can be cut."""

import base64
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from aotpack.digests import hex_of

PROGRAM = "docker-registry"
PASSWORD = "secret"
HTPASSWD = "builder:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"
"""The password above, as registries keep it."""


def needs_registry() -> None:
    """Skip where there is no registry to talk to."""
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"needs {PROGRAM} (apt-get install docker-registry)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A registry that runs.

    Attributes:
        host: of references.
        folder: where it keeps things.
    """

    host: str
    folder: Path

    def blob(self, digest: str) -> Path:
        """The file that is a blob, in the registry's own storage."""
        name = hex_of(digest)
        return self.folder / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def tags(self, repository: str) -> list[str]:
        """What a repository lists, by its storage."""
        folder = self.folder / "docker/registry/v2/repositories" / repository / "_manifests/tags"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def registry(folder: Path, *, more: str = "", tls: str = "") -> Iterator[Served]:
    """Run a registry until the block ends.

    Args:
        folder: where it keeps things.
        more: of its configuration.
        tls: of the part on HTTP.
    """
    port = free_port()
    config = folder / "config.yml"
    config.write_text(
        "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'{tls}}}\n{more}"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, "serve", str(config)], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.02)
        yield Served(host=f"localhost:{port}", folder=folder)
    finally:
        process.terminate()
        process.wait(timeout=20)


@dataclass(slots=True, kw_only=True)
class Wire:
    """A wire to a registry. What it does is changed while it is used.

    Attributes:
        port: its end here.
        cuts: how many more connections are cut.
        up: bytes towards the registry after which a connection is cut, or None.
        down: the same of bytes from it.
        busy: how many more connections are answered without asking the registry.
        answer: what with.
    """

    port: int
    cuts: int = 0
    up: int | None = None
    down: int | None = None
    busy: int = 0
    answer: bytes = b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    @property
    def host(self) -> str:
        """Of references."""
        return f"localhost:{self.port}"


@contextmanager
def wire_to(served: Served) -> Iterator[Wire]:
    """A wire to a registry, until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wire = Wire(port=server.getsockname()[1])
        threading.Thread(target=_accept, args=(server, wire, served), daemon=True).start()
        try:
            yield wire
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, wire: Wire, served: Served) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        if wire.busy > 0:
            wire.busy -= 1
            near.recv(65536)
            near.sendall(wire.answer)
            near.close()
            continue
        threading.Thread(target=_connect, args=(near, wire, served), daemon=True).start()


def _connect(near: socket.socket, wire: Wire, served: Served) -> None:
    with near, socket.create_connection(("127.0.0.1", int(served.host.partition(":")[2]))) as far:
        down = threading.Thread(target=_carry, args=(far, near, wire, "down"), daemon=True)
        down.start()
        _carry(near, far, wire, "up")
        down.join()


def _carry(source: socket.socket, sink: socket.socket, wire: Wire, limit: str) -> None:
    carried = 0
    with suppress(OSError):
        while piece := source.recv(1024):
            carried += len(piece)
            most = getattr(wire, limit)
            if wire.cuts > 0 and most is not None and carried > most:
                wire.cuts -= 1
                break
            sink.sendall(piece)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


# Who may


def make_certificate(folder: Path) -> None:
    """A certificate of localhost that nobody knows, ``ca.pem``, and its ``key.pem``."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/ca.pem"]
    subprocess.run([*make, *files], capture_output=True, check=True)


def tls(folder: Path) -> str:
    """The part of a registry's configuration that makes it use that certificate."""
    return f", tls: {{certificate: {folder}/ca.pem, key: {folder}/key.pem}}"


@contextmanager
def token_server(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What gives tokens for a registry to whoever knows the password, and to nobody else but for pulling.

    Yields:
        the registry's configuration, and the scopes that were asked for.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # as the base class has it
            query = parse_qs(urlsplit(self.path).query)
            asked.extend(query.get("scope", []))
            given = self.headers.get("Authorization")
            known = given == "Basic " + base64.b64encode(f"builder:{PASSWORD}".encode()).decode()
            answer = json.dumps({"token": _token(folder, query, push=known)}).encode()
            self.send_response(200 if known or given is None else 401)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        realm = f"https://localhost:{server.server_port}/token"
        yield (
            f"auth: {{token: {{realm: '{realm}', service: here, issuer: tests, rootcertbundle: {folder}/ca.pem}}}}\n",
            asked,
        )
        server.shutdown()


def _token(folder: Path, query: dict[str, list[str]], *, push: bool) -> str:
    """A JSON Web Token for what the scopes ask for, as registries read it."""
    access = []
    for scope in query.get("scope", []):
        kind, name, actions = scope.split(":")
        granted = [action for action in actions.split(",") if push or action == "pull"]
        access.append({"type": kind, "name": name, "actions": granted})
    der = ssl.PEM_cert_to_DER_cert((folder / "ca.pem").read_text())
    head = {"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}
    now = int(time.time())
    claims = {"iss": "tests", "sub": "", "aud": "here", "exp": now + 60, "nbf": now, "iat": now, "access": access}
    signed = f"{_base64(json.dumps(head).encode())}.{_base64(json.dumps(claims).encode())}"
    sign = ["openssl", "dgst", "-sha256", "-sign", str(folder / "key.pem")]
    done = subprocess.run(sign, input=signed.encode(), capture_output=True, check=True)
    return f"{signed}.{_base64(done.stdout)}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
