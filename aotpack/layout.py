"""Layouts: a directory that holds images as OCI lays them out, for what has no registry at hand.

``oci-layout`` says its version, ``index.json`` lists the images by name, and each blob is a file
``blobs/sha256/<hex>`` (OCI image specification 1.1, image-layout.md). skopeo, podman, buildah and crane copy such
directories to and from registries. What other tools have put into one is kept.
"""

from pathlib import Path
from typing import IO

from aotpack.atomic import write_atomically
from aotpack.digests import canonical_json, digest_bytes, digest_file, hex_of, is_digest
from aotpack.documents import Node, parse_document, read_start
from aotpack.errors import BundleError, DocumentError, OutputError, UsageError
from aotpack.image import ARTIFACT_TYPE, MANIFEST_TYPE, MAX_MANIFEST, Descriptor, receive

NAME = "org.opencontainers.image.ref.name"
"""The annotation that names an image in an index."""

_VERSION = "1.0.0"
_MARK = "oci-layout"
_INDEX = "index.json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_MAX_INDEX = 16 << 20
_CHUNK = 1 << 20


class Layout:
    """A layout, and the image in it that is meant."""

    def __init__(self, directory: Path, name: str | None) -> None:
        """Mean an image; nothing is read or written yet.

        Args:
            directory: the layout.
            name: the image's name in it, or its digest; None is the only one there.
        """
        self._directory = directory
        self._name = name

    def __str__(self) -> str:
        """For messages."""
        return f"{self._directory}:{self._name}" if self._name else str(self._directory)

    def pinned(self, digest: str) -> str:
        """What names the image for good: in a layout, its digest alone."""
        return digest

    def require_name(self) -> None:
        """Refuse to call a new image by a digest.

        Raises:
            UsageError: a digest is meant.
        """
        if is_digest(self._name):
            raise UsageError(f"{self._name}: is a digest; name the image, or leave the name out")

    def put_blob(self, descriptor: Descriptor, content: Path | bytes) -> bool:
        """Lay a blob into the layout; False where it was there.

        Raises:
            OutputError: it cannot be written.
        """
        path = self._blob(descriptor.digest)
        try:
            self._prepare()
            if path.is_file() and path.stat().st_size == descriptor.size and digest_file(path) == descriptor.digest:
                return False
            if isinstance(content, bytes):
                write_atomically(path, [content])
            else:
                with content.open("rb") as file:
                    write_atomically(path, iter(lambda: file.read(_CHUNK), b""))
        except OSError as error:
            raise self._unwritten(error) from None
        return True

    def put_manifest(self, manifest: bytes) -> None:
        """Lay an image's manifest into the layout and list it, in the place of one of the same name.

        Raises:
            OutputError: it cannot be written.
            BundleError: the index there cannot be read.
        """
        descriptor = Descriptor.of(MANIFEST_TYPE, manifest)
        self.put_blob(descriptor, manifest)
        name = {NAME: self._name} if self._name else None
        entry = descriptor.to_json(name) | {"artifactType": ARTIFACT_TYPE}
        others = [
            node.value
            for node, listed, found in self._listed()
            if (listed, found) != (self._name, descriptor) and (listed is None or listed != self._name)
        ]
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [*others, entry]}
        try:
            write_atomically(self._directory / _INDEX, [canonical_json(index).encode()])
        except OSError as error:
            raise self._unwritten(error) from None

    def read_manifest(self) -> bytes:
        """The manifest of the image that is meant, checked against its digest.

        Raises:
            BundleError: there is none, or it is altered.
        """
        found = self._find()
        if found.size > MAX_MANIFEST:
            raise BundleError(f"{self}: its manifest has {found.size} bytes; at most {MAX_MANIFEST} are read")
        path = self._blob(found.digest)
        data = self._read(path, MAX_MANIFEST)
        if digest_bytes(data) != found.digest:
            raise BundleError(f"{path}: altered: its content has another digest; push the bundle again")
        return data

    def fetch(self, descriptor: Descriptor, file: IO[bytes]) -> None:
        """Copy a blob to a file, checked on the way.

        Raises:
            BundleError: it is missing or altered.
            OSError: the file cannot be written.
        """
        try:
            blob = self._blob(descriptor.digest).open("rb")
        except OSError as error:
            raise BundleError(f"the blob {descriptor.digest} cannot be read: {error.strerror}") from None
        with blob:
            receive(iter(lambda: blob.read(_CHUNK), b""), descriptor, file)

    def _prepare(self) -> None:
        (self._directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        mark = self._directory / _MARK
        if not mark.exists():
            write_atomically(mark, [canonical_json({"imageLayoutVersion": _VERSION}).encode()])

    def _blob(self, digest: str) -> Path:
        return self._directory / "blobs" / "sha256" / hex_of(digest)

    def _unwritten(self, error: OSError) -> OutputError:
        return OutputError(f"{error.filename or self._directory}: cannot be written: {error.strerror}")

    def _listed(self) -> list[tuple[Node, str | None, Descriptor]]:
        """What the index lists: as it stands there, its name, and what it is."""
        path = self._directory / _INDEX
        if not path.exists():
            return []
        try:
            nodes = list(parse_document(self._read(path, _MAX_INDEX)).field("manifests").items())
            return [(node, _name_of(node), Descriptor.from_json(node)) for node in nodes]
        except DocumentError as error:
            raise BundleError(f"{path}: {error}; this is no layout of images") from None

    def _find(self) -> Descriptor:
        if not (self._directory / _MARK).is_file():
            raise BundleError(
                f"{self._directory}: has no {_MARK}, so it is no layout of images; name another directory"
            )
        listed = self._listed()
        meant = [one for _, name, one in listed if self._name in (None, name, one.digest)]
        if not meant or (self._name is None and len(meant) > 1):
            names = ", ".join(name or one.digest for _, name, one in listed)
            raise BundleError(f"{self}: expected one image, found {len(listed)}: {names}; name one of them")
        return meant[-1]

    def _read(self, path: Path, limit: int) -> bytes:
        try:
            data = read_start(path, limit)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror}; push the bundle again") from None
        if len(data) > limit:
            raise BundleError(f"{path}: has more than {limit} bytes, and no more are read")
        return data


def _name_of(node: Node) -> str | None:
    annotations = node.field("annotations") if node.has("annotations") else None
    if annotations is None or not annotations.has(NAME):
        return None
    return annotations.field(NAME).text()
