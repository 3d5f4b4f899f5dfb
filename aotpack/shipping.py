"""Shipping: bundles pushed to a registry or a layout as images, and pulled from there.

What always holds: an image is listed under its name only once every blob of it is there, so an upload that is
interrupted leaves no image. A pulled bundle appears in its directory whole, under the name that its own manifest
gives it, after its bytes have the digest that the image says, aotpack has read it, and its identity is the one that
was announced, and expected; or nothing appears at all.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Protocol

from aotpack.atomic import sync_directory, sync_file, write_atomically
from aotpack.bundle import Bundle, bundle_name, open_bundle
from aotpack.errors import BundleError, DocumentError, OutputError, RegistryError, UnsupportedFormatError
from aotpack.image import Descriptor, Listing, make_image, read_listing, read_signature_layer
from aotpack.layout import Layout
from aotpack.references import Reference
from aotpack.signatures import Signatures, parse_signatures, signatures_beside


class Remote(Protocol):
    """Where images are kept, and the one there that is meant: ``Registry`` or ``Layout``."""

    def pinned(self, digest: str) -> str:
        """What names the image for good."""

    def require_name(self) -> None:
        """Refuse where what is meant cannot be what a new image is called."""

    def put_blob(self, descriptor: Descriptor, content: Path | bytes) -> bool:
        """Bring a blob there; False where it was there."""

    def put_manifest(self, manifest: bytes) -> None:
        """Bring a manifest there and list it under the name that is meant."""

    def read_manifest(self) -> bytes:
        """The manifest of the image that is meant."""

    def fetch(self, descriptor: Descriptor, file: IO[bytes]) -> None:
        """Fetch a blob into a file, checked against its digest on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What a push did.

    Attributes:
        reference: the image, pinned.
        bundle: what was pushed.
        sent: bytes of blobs that were brought there.
        present: bytes of blobs that were there.
    """

    reference: str
    bundle: Bundle
    sent: int
    present: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What a pull did.

    Attributes:
        reference: the image, pinned.
        bundle: the bundle, where it lies now.
        signature: the signature beside it, or None where the image has none.
    """

    reference: str
    bundle: Bundle
    signature: Path | None


@contextmanager
def registry(reference: Reference, *, plain_http: bool = False, ca_file: Path | None = None) -> Iterator[Remote]:
    """An image in a registry.

    Args:
        reference: the image.
        plain_http: speak HTTP, to a registry on this machine.
        ca_file: certificates to trust in place of the system's, in PEM.

    Raises:
        UsageError: plain HTTP to another machine, or there is no such file.
        RegistryError: what speaks with registries is not installed.
    """
    try:
        from aotpack.registry import Registry  # noqa: PLC0415  # the one thing that needs the extra
    except ModuleNotFoundError as error:
        raise RegistryError(
            f"{reference}: registries need the package {error.name}; run: pip install 'aotpack[oci]', "
            "or use --oci-layout"
        ) from None
    with Registry(reference, plain_http=plain_http, ca_file=ca_file) as opened:
        yield opened


def layout(directory: Path, name: str | None) -> Remote:
    """An image in a layout; arguments as for ``Layout``."""
    return Layout(directory, name)


def push_bundle(bundle: Bundle, remote: Remote) -> Pushed:
    """Push a bundle, with the signature that lies beside it.

    Raises:
        UsageError: what is meant is a digest.
        BundleError: the bundle is damaged; nothing is pushed.
        RegistryError: the registry does not take it.
        OutputError: the layout cannot be written.
    """
    remote.require_name()
    image = make_image(bundle)
    sent = present = 0
    for descriptor, content in image.blobs:
        if remote.put_blob(descriptor, content):
            sent += descriptor.size
        else:
            present += descriptor.size
    remote.put_manifest(image.manifest)
    return Pushed(reference=remote.pinned(image.digest), bundle=bundle, sent=sent, present=present)


def pull_bundle(remote: Remote, directory: Path, *, expected: str | None = None) -> Pulled:
    """Pull a bundle into a directory, in the place of a file of the same name there.

    Args:
        remote: the image.
        directory: where the bundle goes; it is made where it is missing.
        expected: the identity that the bundle must have, or None.

    Raises:
        RegistryError: the registry does not serve it.
        BundleError: it is no bundle, altered, or another one than expected.
        OutputError: the directory cannot be written.
    """
    listing = _listing(remote)
    if expected is not None and listing.identity != expected:
        raise BundleError(f"{remote}: expected the bundle {expected}, found {listing.identity}")
    try:
        with _staging(directory, listing.bundle.size) as staged:
            _fetch(remote, listing.bundle, staged)
            bundle = _opened(remote, staged, listing)
            signature = _signature(remote, listing)
            path = directory / bundle_name(bundle.manifest)
            signed = signatures_beside(path)
            # One that is there belongs to what is replaced.
            signed.unlink(missing_ok=True)
            if signature is not None:
                write_atomically(signed, [signature.to_bytes()])
            staged.replace(path)
        sync_directory(directory)
    except OSError as error:
        raise OutputError(
            f"{error.filename or directory}: cannot be written: {error.strerror}; nothing was pulled"
        ) from None
    return Pulled(
        reference=remote.pinned(listing.digest),
        bundle=open_bundle(path),
        signature=None if signature is None else signed,
    )


def _listing(remote: Remote) -> Listing:
    data = remote.read_manifest()
    try:
        return read_listing(data)
    except (DocumentError, BundleError) as error:
        raise BundleError(f"{remote}: {error}") from None


@contextmanager
def _staging(directory: Path, size: int) -> Iterator[Path]:
    """A file to fill, in the directory that it will be moved within; what is left of it at the end is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if size > free:
        raise OutputError(f"{directory}: the bundle has {size} bytes, and {free} are free; name another with -o")
    with tempfile.TemporaryDirectory(prefix=".aotpack-", suffix=".partial", dir=directory) as name:
        yield Path(name) / "bundle"


def _fetch(remote: Remote, descriptor: Descriptor, staged: Path) -> None:
    try:
        with staged.open("w+b") as file:
            remote.fetch(descriptor, file)
            file.flush()
            staged.chmod(0o644)
            sync_file(file.fileno())
    except BundleError as error:
        raise BundleError(f"{remote}: {error}; push the bundle again") from None


def _signature(remote: Remote, listing: Listing) -> Signatures | None:
    """The signatures of the bundle that was announced; whose they are is for an install to check."""
    if listing.signature is None:
        return None
    buffer = BytesIO()
    try:
        remote.fetch(listing.signature, buffer)
        found = parse_signatures(read_signature_layer(buffer.getvalue()))
    except (BundleError, DocumentError) as error:
        raise BundleError(f"{remote}: {error}; push the bundle again") from None
    if found.bundle != listing.identity:
        raise BundleError(f"{remote}: its signature is that of another bundle, {found.bundle}; push the bundle again")
    return found


def _opened(remote: Remote, staged: Path, listing: Listing) -> Bundle:
    """The bundle that was fetched, if aotpack can read it and it is the one that was announced."""
    try:
        bundle = open_bundle(staged)
    except BundleError as error:
        kind = UnsupportedFormatError if isinstance(error, UnsupportedFormatError) else BundleError
        raise kind(f"{remote}: {str(error).removeprefix(f'{staged}: ')}") from None
    if bundle.digest != listing.identity:
        raise BundleError(f"{remote}: announces the bundle {listing.identity}, and holds {bundle.digest}")
    return bundle
