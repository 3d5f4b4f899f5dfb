"""Images: a bundle as an OCI image, to be pulled as a bundle and mounted as a store.

A bundle's file is a tar inside zstd, so it is a layer of an image as it stands: the first layer is the file, byte for
byte, and pulling it gives back what was pushed. A second layer makes of it, once both are laid over each other, a
store (see ``aotpack.store``): links ``blobs/<hex>.<kind>`` to the artifacts ``blobs/sha256/<hex>``. So what a
container runtime unpacks for an image volume is served in place, and a registry keeps the kernels once. A signature
that lies beside the bundle is a third layer of one file.

It is an image and not an artifact with an empty configuration, since runtimes mount images alone: a configuration
that lists the layers' contents (``rootfs.diff_ids``) is what containerd asks for. The ``artifactType`` is what says
that it is a bundle. Its platform is that of the native helpers; kernels run beside any processor.

The same bundle gives the same image, byte for byte, on every machine: the layers that are made here are gzip streams
that store and do not compress, so no release of a compressor shows, and nothing says when, unless
``SOURCE_DATE_EPOCH`` does. They are gzip all the same, since skopeo compresses layers that are not when it copies an
image, which gives the image another digest.

Sources: OCI image specification 1.1, manifest.md, config.md, layer.md and annotations.md.
"""

import hashlib
import os
import struct
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import zstandard

from aotpack.bundle import Bundle, bundle_name
from aotpack.digests import PREFIX, canonical_json, digest_bytes, hex_of
from aotpack.documents import Node, parse_document
from aotpack.errors import BundleError, DocumentError, UsageError
from aotpack.manifest import Manifest
from aotpack.signatures import IN_STORE, MAX_SIZE, find_signatures
from aotpack.store import blob_path, kinds_of

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
BUNDLE_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
MADE_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
ARTIFACT_TYPE = "application/vnd.aotpack.bundle.v1"

MAX_MANIFEST = 1 << 20
"""Bytes that a manifest may have; ours have about 2 kB."""

_MAX_SIGNATURE_LAYER = MAX_SIZE + 4096

TITLE = "org.opencontainers.image.title"
DIGEST = "dev.aotpack.bundle.digest"
"""The annotation that holds the bundle's identity."""

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "riscv64": "riscv64", "s390x": "s390x"}
"""What Go calls the machines that ``platform.machine`` names; kernels without helpers go by the first."""

_CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_STORED = 0xFFFF
"""Bytes that a block of deflate can store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What a manifest says of one blob.

    Attributes:
        media_type: what it is.
        digest: of its content.
        size: in bytes.
    """

    media_type: str
    digest: str
    size: int

    def to_json(self, annotations: dict[str, str] | None = None) -> dict[str, Any]:
        """As it stands in a manifest."""
        document: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return document | ({"annotations": annotations} if annotations else {})

    @classmethod
    def of(cls, media_type: str, data: bytes) -> "Descriptor":
        """The descriptor of some bytes."""
        return cls(media_type=media_type, digest=digest_bytes(data), size=len(data))

    @classmethod
    def from_json(cls, node: Node) -> "Descriptor":
        """Undoes ``to_json``, but for annotations.

        Raises:
            DocumentError: it is no descriptor.
        """
        return cls(
            media_type=node.field("mediaType").text(),
            digest=node.field("digest").digest(),
            size=node.field("size").integer(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A bundle as an image.

    Attributes:
        bundle: whose file is the first layer.
        manifest: the image's manifest, as it is pushed.
        blobs: what the manifest lists, in the order in which it goes up: a file, or bytes that were made for it.
    """

    bundle: Bundle
    manifest: bytes
    blobs: tuple[tuple[Descriptor, Path | bytes], ...]

    @property
    def digest(self) -> str:
        """What pins the image: the digest of its manifest."""
        return digest_bytes(self.manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a manifest says that somebody serves: of it, only this is believed, and checked.

    Attributes:
        digest: of the manifest.
        identity: of the bundle.
        bundle: the layer that is the bundle's file.
        signature: the layer that holds its signature, or None.
    """

    digest: str
    identity: str
    bundle: Descriptor
    signature: Descriptor | None


def make_image(bundle: Bundle) -> Image:
    """A bundle, with the signature that lies beside it, as an image. Every artifact is checked.

    Raises:
        BundleError: the bundle is damaged, or its signature cannot be read.
        UsageError: ``SOURCE_DATE_EPOCH`` is no time.
        OSError: a file cannot be read.
    """
    for _ in bundle.blobs():
        pass
    packed, unpacked = _digests(bundle.path)
    layer = Descriptor(media_type=BUNDLE_TYPE, digest=packed, size=bundle.size)
    tars = [_links(bundle.manifest)]
    signatures = find_signatures(bundle.path, bundle.digest)
    if signatures is not None:
        tars.append(_signature_tar(signatures.to_bytes()))
    made = [_stored(tar) for tar in tars]
    contents = [unpacked, *map(digest_bytes, tars)]
    config = canonical_json(_config(bundle, contents)).encode()
    above = [Descriptor.of(MADE_TYPE, data) for data in made]
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": Descriptor.of(CONFIG_TYPE, config).to_json(),
        "layers": [layer.to_json({TITLE: bundle_name(bundle.manifest)}), *(one.to_json() for one in above)],
        "annotations": _annotations(bundle),
    }
    return Image(
        bundle=bundle,
        manifest=canonical_json(manifest).encode(),
        blobs=(
            (layer, bundle.path),
            *zip(above, made, strict=True),
            (Descriptor.of(CONFIG_TYPE, config), config),
        ),
    )


def read_listing(data: bytes) -> Listing:
    """What the manifest of an image says of its bundle.

    Raises:
        BundleError: it is no image of a bundle.
        DocumentError: it is no manifest at all.
    """
    root = parse_document(data)
    media_type = root.field("mediaType").text() if root.has("mediaType") else "none"
    kind = root.field("artifactType").text() if root.has("artifactType") else "none"
    if media_type != MANIFEST_TYPE or kind != ARTIFACT_TYPE:
        raise BundleError(
            f"holds no bundle: expected {MANIFEST_TYPE} of the artifact type {ARTIFACT_TYPE}, "
            f"found {media_type} of {kind}; pull what aotpack push has named"
        )
    layers = [Descriptor.from_json(layer) for layer in root.field("layers").items()]
    types = [layer.media_type for layer in layers]
    if types not in ([BUNDLE_TYPE, MADE_TYPE], [BUNDLE_TYPE, MADE_TYPE, MADE_TYPE]):
        raise DocumentError(f"layers: expected a bundle, its links, and perhaps a signature, found {types}")
    signature = layers[2] if len(layers) > 2 else None  # noqa: PLR2004  # the third, where there is one
    if signature is not None and signature.size > _MAX_SIGNATURE_LAYER:
        raise DocumentError(f"layers[2].size: at most {MAX_SIZE} bytes of signature are read")
    identity = root.field("annotations").field(DIGEST).digest()
    return Listing(digest=digest_bytes(data), identity=identity, bundle=layers[0], signature=signature)


def read_signature_layer(data: bytes) -> bytes:
    """The signature in its layer, which has one fixed shape.

    Raises:
        BundleError: it is not what ``make_image`` makes.
    """
    inflated = zlib.decompressobj(wbits=31)
    try:
        tar = inflated.decompress(data, len(data))
        member = tarfile.TarInfo.frombuf(tar[:_BLOCK], "ascii", "strict")
    except (zlib.error, tarfile.HeaderError, UnicodeDecodeError):
        raise BundleError("the layer of its signature is no tar inside gzip") from None
    signature = tar[_BLOCK : _BLOCK + max(member.size, 0)]
    if data != _stored(_signature_tar(signature)):
        raise BundleError(f"the layer of its signature holds something else than {IN_STORE}")
    return signature


def receive(chunks: Iterable[bytes], descriptor: Descriptor, file: IO[bytes]) -> None:
    """Write a blob to a file while it is hashed; no byte more is written than its descriptor says.

    Raises:
        BundleError: it is longer, shorter, or altered.
        OSError: the file cannot be written.
    """
    hasher = hashlib.sha256()
    left = descriptor.size
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise BundleError(f"the blob {descriptor.digest} has more than the {descriptor.size} bytes it should have")
        hasher.update(chunk)
        file.write(chunk)
    if left:
        raise BundleError(
            f"the blob {descriptor.digest} is truncated: {descriptor.size - left} of {descriptor.size} bytes are there"
        )
    if PREFIX + hasher.hexdigest() != descriptor.digest:
        raise BundleError(f"the blob {descriptor.digest} is altered: its content has another digest")


def _digests(path: Path) -> tuple[str, str]:
    """The digest of a bundle's file, and of the tar in it: a layer's ``diff_id``."""
    packed, unpacked = hashlib.sha256(), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            packed.update(chunk)
        file.seek(0)
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
            while chunk := stream.read(_CHUNK):
                unpacked.update(chunk)
    return PREFIX + packed.hexdigest(), PREFIX + unpacked.hexdigest()


def _links(manifest: Manifest) -> bytes:
    """The layer that makes a bundle's members a store, with the directories that the bundle leaves unsaid."""
    kinds = kinds_of(manifest)
    members = [_directory("blobs"), _directory("blobs/sha256")]
    for digest in sorted(kinds):
        for kind in sorted(kinds[digest]):
            link = tarfile.TarInfo(blob_path(digest, kind))
            link.type, link.mode, link.linkname = tarfile.SYMTYPE, 0o777, f"sha256/{hex_of(digest)}"
            members.append(link)
    return b"".join(member.tobuf(tarfile.USTAR_FORMAT) for member in members) + bytes(2 * _BLOCK)


def _directory(name: str) -> tarfile.TarInfo:
    directory = tarfile.TarInfo(name)
    directory.type, directory.mode = tarfile.DIRTYPE, 0o755
    return directory


def _signature_tar(signature: bytes) -> bytes:
    member = tarfile.TarInfo(IN_STORE)
    member.size, member.mode = len(signature), 0o644
    padding = bytes(-len(signature) % _BLOCK + 2 * _BLOCK)
    return member.tobuf(tarfile.USTAR_FORMAT) + signature + padding


def _stored(data: bytes) -> bytes:
    """A gzip stream that stores ``data`` as it is (RFC 1952, and 1951 section 3.2.4)."""
    pieces = [data[start : start + _STORED] for start in range(0, len(data), _STORED)]
    blocks = [
        struct.pack("<BHH", index == len(pieces) - 1, len(piece), len(piece) ^ _STORED) + piece
        for index, piece in enumerate(pieces)
    ]
    trailer = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"".join(blocks) + trailer


def _config(bundle: Bundle, contents: list[str]) -> dict[str, Any]:
    machines = sorted({helper.machine for helper in bundle.manifest.helpers})
    machine = machines[0] if machines else next(iter(_MACHINES))
    created = _created()
    return {
        "architecture": _MACHINES.get(machine, machine),
        "os": "linux",
        "config": {"Labels": _annotations(bundle)},
        "rootfs": {"type": "layers", "diff_ids": contents},
        **({"created": created} if created else {}),
    }


def _annotations(bundle: Bundle) -> dict[str, str]:
    """What registries and cluster tools show of an image, and its labels."""
    manifest = bundle.manifest
    archs = " ".join(target.short for target in manifest.targets)
    triton = manifest.toolchain.triton
    engine = f"{manifest.engine} {manifest.engine_version}"
    created = _created()
    return {
        TITLE: bundle_name(manifest),
        "org.opencontainers.image.version": manifest.engine_version,
        "org.opencontainers.image.description": f"Triton kernels of {engine} for {archs}, compiled by Triton {triton}",
        "dev.aotpack.engine": manifest.engine,
        "dev.aotpack.engine.version": manifest.engine_version,
        "dev.aotpack.triton": triton,
        "dev.aotpack.architectures": archs,
        DIGEST: bundle.digest,
        **({"org.opencontainers.image.created": created} if created else {}),
    }


def _created() -> str | None:
    """When the image was made, where ``SOURCE_DATE_EPOCH`` says so: in RFC 3339."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    try:
        return datetime.fromtimestamp(int(text), tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"SOURCE_DATE_EPOCH: expected seconds since 1970, found {text!r}; correct or unset it"
        ) from None
