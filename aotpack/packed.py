"""Packed bundles: kept in a directory as they are, for processes to serve from.

Nothing is unpacked when one is put there, so it takes no longer than to copy a file and to read it once: the manifest
lists the digest of each frame of the file (``manifest.Frame``), and the copy is held against these. A bundle's own
digest, which is what a signature signs, is that of its manifest, so this says of every byte that it is what was built.
The first process that serves from such a directory unpacks what fits it, and checks each artifact's own digest at its
first use (``aotpack.runtime.stores``).
"""

import filecmp
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aotpack.admission import admit_file, as_signed
from aotpack.archive import ArchiveReader
from aotpack.atomic import sync_directory, write_atomically, written_aside
from aotpack.bundle import SUFFIX, manifest_of, open_bundle
from aotpack.digests import digest_bytes
from aotpack.errors import BundleError, OutputError
from aotpack.landing import make_directory, remove_file
from aotpack.manifest import read_frames
from aotpack.policy import Demand, demands_here
from aotpack.signatures import signatures_beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A packed bundle in its directory.

    Attributes:
        path: the file.
        digest: the bundle's identity.
        was_there: whether the file lay there as it is, so that nothing was written.
    """

    path: Path
    digest: str
    was_there: bool


def packed_bundles(directory: Path) -> list[Path]:
    """The packed bundles in a directory, by name; none where it cannot be read."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))  # noqa: PTH208
    except OSError:
        return []
    return [directory / name for name in names if not name.startswith(".")]


def keep_packed(
    bundle: Path, directory: Path, *, demands: Iterable[Demand] | None = None, signature: Path | None = None
) -> Kept:
    """Put a bundle into a directory as it is, where it appears whole or not at all; all can read it.

    One of the same name is replaced: processes that serve from it have opened it, and go on. Its signatures go along.

    Args:
        bundle: the file.
        directory: where to; it is made where it is missing.
        demands: what the bundle's signatures must satisfy; None means what this machine demands.
        signature: where its signatures lie; None means beside it, if anywhere.

    Raises:
        SignatureError, TrustError: as ``demands_here``, ``admit_file`` and ``as_signed``.
        UnsupportedFormatError: it is of another format.
        BundleError: it cannot be read, is damaged, or is no bundle.
        OutputError: the directory cannot be written, or the disk is full.
    """
    demands = demands_here() if demands is None else tuple(demands)
    place = directory / (bundle.name if bundle.name.endswith(SUFFIX) else bundle.name + SUFFIX)
    with ArchiveReader(bundle) as reader:
        digest, _ = _identity(bundle, reader)
    signatures = admit_file(bundle, digest, demands, signature)
    try:
        make_directory(directory)
        with bundle.open("rb") as source, written_aside(place, iter(lambda: source.read(_PIECE), b"")) as copy:
            with as_signed(demands):
                _check(bundle, copy, digest)
            was_there = place.is_file() and filecmp.cmp(copy, place, shallow=False)
            beside = signatures_beside(place)
            if signatures is None:
                remove_file(beside)
            elif not (beside.is_file() and beside.read_bytes() == signatures.to_bytes()):
                write_atomically(beside, [signatures.to_bytes()])
            if not was_there:
                copy.replace(place)
                sync_directory(directory)
    except OSError as error:
        raise OutputError(
            f"{directory}: cannot be written: {error.strerror or error}; make room or a directory that can be "
            "written, and run this again"
        ) from None
    return Kept(path=place, digest=digest, was_there=was_there)


def _identity(bundle: Path, reader: ArchiveReader) -> tuple[str, tuple[tuple[str, int], ...]]:
    """The digest of a bundle, and digest and size of each of its frames."""
    data = reader.read_manifest()
    with manifest_of(bundle):
        frames = read_frames(data)
    return digest_bytes(data), tuple((frame.digest, frame.size) for frame in frames)


_PIECE = 1 << 20


def _check(bundle: Path, copy: Path, digest: str) -> None:
    """Hold a copy against what its manifest says of it.

    Raises:
        BundleError: it is not that, or not a copy of what was there before.
    """
    with ArchiveReader(copy, name=bundle) as reader:
        found, frames = _identity(bundle, reader)
        if found != digest:
            raise BundleError(f"{bundle}: changed while it was read")
        if reader.has_frames(frames):
            return
    # Packed by somebody else, perhaps, out of the same artifacts; else what is wrong is said by reading it all.
    for _ in open_bundle(bundle).blobs():
        pass
    if not filecmp.cmp(bundle, copy, shallow=False):
        raise BundleError(f"{bundle}: changed while it was read")
