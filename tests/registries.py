"""A real registry on this machine, and a wire to it that can be cut."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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
        busy: how many more connections are answered with 503.
    """

    port: int
    cuts: int = 0
    up: int | None = None
    down: int | None = None
    busy: int = 0

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
            near.sendall(b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
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
