"""Bundles: a manifest and its artifacts in one archive, written whole and read with every digest checked."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aotpack.archive import MAX_MANIFEST, ArchiveReader, compress, pack, pack_manifest
from aotpack.atomic import write_atomically
from aotpack.digests import digest_bytes
from aotpack.errors import BundleError, DocumentError, OutputError, UnsupportedFormatError
from aotpack.garbage import searched_later
from aotpack.manifest import Frame, Manifest, read_manifest

SUFFIX = ".tar.zst"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle on disk whose manifest has been read and checked; its artifacts have not.

    Attributes:
        path: the file.
        manifest: its index.
        digest: its identity, the digest of the manifest.
        size: bytes of the file.
    """

    path: Path
    manifest: Manifest
    digest: str
    size: int

    def blobs(self) -> Iterator[tuple[str, bytes]]:
        """Every artifact's digest and content, in the archive's order, each checked against its digest.

        Raises:
            BundleError: the archive is not what its manifest says.
        """
        expected = [(artifact.digest, artifact.size) for frame in self.manifest.frames() for artifact in frame]
        with ArchiveReader(self.path) as reader:
            self._check(reader.read_manifest())
            yield from reader.read_blobs(expected)

    def manifest_bytes(self) -> bytes:
        """The manifest as the archive has it, which takes far less memory than to spell it again.

        Raises:
            BundleError: the archive is another one by now.
        """
        with ArchiveReader(self.path) as reader:
            return self._check(reader.read_manifest())

    def _check(self, manifest: bytes) -> bytes:
        if digest_bytes(manifest) != self.digest:
            raise BundleError(f"{self.path}: changed while it was read")
        return manifest


def bundle_name(manifest: Manifest) -> str:
    """``aotpack-vllm-0.33.0-triton-3.8.0-sm90.tar.zst``."""
    archs = "+".join(target.short for target in manifest.targets)
    version = manifest.engine_version
    return f"aotpack-{manifest.engine}-{version}-triton-{manifest.toolchain.triton}-{archs}{SUFFIX}"


def write_bundle(
    path: Path, manifest: Manifest, blobs: Mapping[str, bytes], compress: Callable[[bytes], bytes] = compress
) -> Bundle:
    """Write a bundle to ``path``; it appears there whole or not at all.

    Args:
        path: where it goes; the directory must exist.
        manifest: its index; which frames its file has is filled in.
        blobs: the content of every artifact that the manifest lists, by digest.
        compress: gives what ``aotpack.archive.compress`` does.

    Raises:
        OutputError: its manifest would be larger than readers take.
        OSError: it cannot be written; nothing is left behind.
    """
    # Compressed before the file is opened: a build that is killed meanwhile leaves nothing at all.
    frames = list(pack(([blobs[artifact.digest] for artifact in frame] for frame in manifest.frames()), compress))
    manifest = replace(manifest, archive=tuple(Frame(digest=digest_bytes(frame), size=len(frame)) for frame in frames))
    data = manifest.to_bytes()
    if len(data) > MAX_MANIFEST:
        raise OutputError(
            f"{path}: its manifest would have {len(data):,} bytes, and at most {MAX_MANIFEST:,} are read; build a "
            "bundle for each architecture"
        )
    write_atomically(path, [pack_manifest(data, compress), *frames])
    return Bundle(path=path, manifest=manifest, digest=digest_bytes(data), size=path.stat().st_size)


def open_bundle(path: Path) -> Bundle:
    """Read a bundle's manifest, and nothing else of it.

    Raises:
        UnsupportedFormatError: it is of another format.
        BundleError: it cannot be opened, or is no bundle.
    """
    with ArchiveReader(path) as reader:
        data, size = reader.read_manifest(), reader.size
    with manifest_of(path), searched_later():
        manifest = read_manifest(data)
    return Bundle(path=path, manifest=manifest, digest=digest_bytes(data), size=size)


@contextmanager
def manifest_of(path: Path) -> Iterator[None]:
    """Say of what is wrong with a manifest which bundle's it is.

    Raises:
        UnsupportedFormatError: in place of one of the manifest.
        BundleError: in place of a ``DocumentError``.
    """
    try:
        yield
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{path}: manifest.json: {error}") from None
    except DocumentError as error:
        raise BundleError(f"{path}: manifest.json: {error}") from None
