"""Stores: a bundle unpacked for reading in place, so that nothing is unpacked when a process loads.

``manifest.json`` is the bundle's, byte for byte, and each artifact is a file ``blobs/<64 hex>.<kind>``: Triton takes
what a file of an entry is from the end of its name (triton/compiler/compiler.py, ``CompiledKernel``). A store holds
no path and no cache key, so it serves from wherever it lies: it is what a wheel carries. It is only ever read.

A wheel may carry a part: some of the bundle's targets, and the native helpers of one Python or of none. A file
``carries.json`` says which; the manifest is the bundle's all the same, so that its digest is the bundle's identity.

``signatures.json`` beside the manifest has the bundle's signatures, where it has any (see ``aotpack.signatures``).

The metadata in a store has no ``hash``, the cache key that Triton's own has. Triton 3.6, 3.8 and 3.9 do not read it:
they are handed the hash beside the metadata.
"""

from dataclasses import dataclass
from pathlib import Path

from aotpack.archive import MANIFEST, MAX_MANIFEST
from aotpack.artifacts import refuse_unfit
from aotpack.atomic import directory_that_lands
from aotpack.bundle import Bundle
from aotpack.digests import digest_bytes, hex_of
from aotpack.documents import Node, parse_canonical, read_start
from aotpack.errors import BundleError, DocumentError, OutputError, UnsupportedFormatError
from aotpack.keys import read_target
from aotpack.landing import stage_file
from aotpack.manifest import Artifact, Manifest, narrow, read_manifest
from aotpack.selftest import CARRIES
from aotpack.signatures import IN_STORE, Signatures

SHARED_OBJECT = "so"
"""The kind of a native helper; those of kernels are ``manifest.ARTIFACT_KINDS``."""

TUNED = "autotune.json"
"""The kind of what was measured of an autotuned kernel."""

_BLOBS = "blobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A store on disk whose manifest has been read and checked; its artifacts have not.

    Attributes:
        directory: where it lies.
        manifest: its index: of what it carries alone, where that is a part of the bundle.
        digest: the bundle's identity.
    """

    directory: Path
    manifest: Manifest
    digest: str

    @property
    def identity(self) -> str:
        """What no store has that carries something else."""
        suffixes = {helper.suffix for helper in self.manifest.helpers}
        return " ".join([self.digest, *map(str, self.manifest.targets), *sorted(suffixes)])

    def path(self, artifact: Artifact, kind: str) -> Path:
        """The file of an artifact.

        Args:
            artifact: of the manifest's.
            kind: ``cubin``, ``json``, ``so``, or ``autotune.json``.
        """
        return self.directory / blob_path(artifact.digest, kind)


def blob_path(digest: str, kind: str) -> str:
    """Where an artifact lies below a store."""
    return f"{_BLOBS}/{hex_of(digest)}.{kind}"


def is_store(directory: Path) -> bool:
    """Whether a directory looks like a store; ``open_store`` says whether it is one."""
    return (directory / MANIFEST).is_file()


def unpack_store(bundle: Bundle, directory: Path, signatures: Signatures | None = None) -> Store:
    """Unpack a bundle into a directory, which appears whole or not at all; one that holds its store is kept.

    Every digest is checked on the way. The files can be read by all, whatever the umask.

    Args:
        bundle: the bundle.
        directory: where the store goes.
        signatures: of the bundle, which the store is to keep.

    Raises:
        BundleError: the bundle is damaged, or what it holds is not what it should be.
        OutputError: something else is in the way.
        OSError: the directory cannot be made, or the disk is full.
    """
    kinds = kinds_of(bundle.manifest)
    with directory_that_lands(directory) as filling:
        blobs = filling / _BLOBS
        blobs.mkdir()
        for digest, data in refuse_unfit(bundle.path, bundle.manifest.entries, bundle.blobs()):
            for kind in sorted(kinds[digest]):
                stage_file(str(filling), blob_path(digest, kind), data)
        manifest = bundle.manifest_bytes()
        stage_file(str(filling), MANIFEST, manifest)
        if signatures is not None:
            stage_file(str(filling), IN_STORE, signatures.to_bytes())
        for place in (blobs, filling):
            place.chmod(0o755)
    if _has_whole(directory, manifest):
        return Store(directory=directory, manifest=bundle.manifest, digest=bundle.digest)
    try:
        store = open_store(directory)
    except BundleError as error:
        raise OutputError(f"{directory}: is in the way: {error}; remove it, or name another directory") from None
    if store.digest != bundle.digest:
        raise OutputError(f"{directory}: holds another bundle's store; remove it, or name another directory")
    return store


def kinds_of(manifest: Manifest) -> dict[str, set[str]]:
    """What each artifact is, by digest."""
    found: dict[str, set[str]] = {}
    for entry in manifest.entries:
        for kind, artifact in entry.artifacts:
            found.setdefault(artifact.digest, set()).add(kind)
    for helper in manifest.helpers:
        found.setdefault(helper.artifact.digest, set()).add(SHARED_OBJECT)
    for kept in manifest.results:
        found.setdefault(kept.artifact.digest, set()).add(TUNED)
    return found


def _has_whole(directory: Path, manifest: bytes) -> bool:
    """Whether a store carries all of what a manifest lists: no need to read one that has just been read."""
    try:
        return (directory / MANIFEST).read_bytes() == manifest and not (directory / CARRIES).exists()
    except OSError:
        return False


def open_store(directory: Path) -> Store:
    """Read a store's manifest, and nothing else of it.

    Raises:
        UnsupportedFormatError: it is of another format.
        BundleError: there is none, it cannot be read, or it is damaged.
    """
    path = directory / MANIFEST
    try:
        data = _read(path)
        manifest = read_manifest(data)
        path = directory / CARRIES
        if path.exists():
            manifest = _narrowed(manifest, digest_bytes(data), parse_canonical(_read(path)))
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}; unpack the bundle again") from None
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{path}: {error}") from None
    except DocumentError as error:
        raise BundleError(f"{path}: {error}; unpack the bundle again") from None
    return Store(directory=directory, manifest=manifest, digest=digest_bytes(data))


def _read(path: Path) -> bytes:
    data = read_start(path, MAX_MANIFEST)
    if len(data) > MAX_MANIFEST:
        raise BundleError(f"{path}: has more than {MAX_MANIFEST} bytes, and no more are read; unpack it again")
    return data


def _narrowed(manifest: Manifest, digest: str, carries: Node) -> Manifest:
    """What a manifest says of what a store carries."""
    carries.only("bundle", "targets", "helpers")
    if carries.field("bundle").digest() != digest:
        raise carries.field("bundle").error(f"the digest of the manifest beside it, {digest}")
    targets = [read_target(target) for target in carries.field("targets").items()]
    if targets != [target for target in manifest.targets if target in targets]:
        raise carries.field("targets").error("some of the bundle's targets, each once, ascending")
    suffix = carries.field("helpers")
    return narrow(manifest, targets, None if suffix.value is None else suffix.line())
