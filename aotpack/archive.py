"""The archive: a plain tar inside zstd that ``tar --zstd -t`` lists, written and read in one fixed shape.

The manifest is the first member and has a zstd frame of its own; each further frame holds blobs that belong
together: those of one target, or the native helpers. Members carry no owner, mode or time. Because the shape is
fixed, a reader knows every header byte for byte before it reads it: whatever differs (a path, a link, a device,
another order, a size, trailing data) is refused, and nothing is unpacked by name. Nothing here knows what a kernel
is.
"""

import hashlib
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import zstandard

from aotpack.digests import digest_bytes, hex_of
from aotpack.errors import BundleError
from aotpack.frames import WINDOW_LOG, FrameError, FrameReader

MANIFEST = "manifest.json"
BLOBS = "blobs/sha256/"

MAX_MANIFEST = 20 << 20
"""Bytes that a manifest may have. All presets on one architecture make 702 entries and 1.5 MB of it, so it holds those
for thirteen. One that is full of real entries, some 10,600, is read in 80 MiB and a second, and installed within 200
MiB; what is no manifest is refused at its first wrong entry."""

_LEVEL = 19
_PIECE = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    return member.tobuf(tarfile.USTAR_FORMAT)


class _BlobHeaders:
    """Headers of blobs, which differ in little: what ``_header`` gives, in a tenth of the time.

    A checksum is the sum of a header's bytes, its own field taken for spaces (POSIX, ustar).
    """

    def __init__(self) -> None:
        name = BLOBS + "0" * 64
        header = _header(name, 0)
        self._start, self._middle, self._end = header[len(name) : 124], header[135:148], header[155:]
        self._sum = int(header[148:154], 8) - sum(name.encode()) - sum(header[124:135])

    def of(self, digest: str, size: int) -> bytes:
        """The header of a blob of less than 8 GiB."""
        name, number = (BLOBS + hex_of(digest)).encode(), b"%011o" % size
        checksum = b"%06o\0" % (self._sum + sum(name) + sum(number))
        return b"".join((name, self._start, number, self._middle, checksum, self._end))


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _member(name: str, data: bytes) -> bytes:
    return _header(name, len(data)) + data + _padding(len(data))


def compress(data: bytes) -> bytes:
    """One frame of an archive."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=len(data),
        window_log=max(10, min(WINDOW_LOG, len(data).bit_length())),
        enable_ldm=True,
        write_checksum=True,
        write_content_size=True,
        threads=0,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def pack_manifest(manifest: bytes, compress: Callable[[bytes], bytes] = compress) -> bytes:
    """The first frame of an archive.

    The same input gives the same bytes on every machine that has the same libzstd.

    Args:
        manifest: the first member.
        compress: gives what this module's ``compress`` does.
    """
    return compress(_member(MANIFEST, manifest))


def pack(frames: Iterable[Iterable[bytes]], compress: Callable[[bytes], bytes] = compress) -> Iterator[bytes]:
    """The frames of an archive behind the manifest's own: the blobs of each in the order given, and the archive's end.

    Args:
        frames: the blobs.
        compress: gives what this module's ``compress`` does.
    """
    for frame in frames:
        data = b"".join(_member(BLOBS + hex_of(digest_bytes(blob)), blob) for blob in frame)
        if data:
            yield compress(data)
    yield compress(_END)


class ArchiveReader:
    """Reads an archive from front to back, holding it against what it must be.

    Use as a context manager. ``read_manifest`` comes first; ``read_blobs`` may follow once.
    """

    def __init__(self, path: Path, *, name: Path | None = None) -> None:
        """Open the archive; nothing is read yet.

        Args:
            path: the file.
            name: what errors call it, where that is not its path.

        Raises:
            BundleError: the file cannot be opened, or is none that can be read twice.
        """
        self._path = name or path
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for whoever writes to it
                raise BundleError(f"{self._path}: cannot be opened: it is no regular file; name a bundle")
            self._file: IO[bytes] = path.open("rb")
        except (OSError, ValueError) as error:
            detail = error.strerror if isinstance(error, OSError) else error
            raise BundleError(f"{self._path}: cannot be opened: {detail}") from None
        self._frames = FrameReader(self._file)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._frames.size

    def __enter__(self) -> "ArchiveReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read(self, size: int, what: str) -> bytes:
        try:
            data = self._frames.read(size)
        except (FrameError, OSError) as error:
            raise BundleError(f"{self._path}: {what}: not readable as zstd: {error}; fetch the bundle again") from None
        if len(data) < size:
            raise BundleError(
                f"{self._path}: truncated: {what} should have {size} bytes, {len(data)} are there; "
                "fetch the bundle again"
            )
        return data

    def _member(self, name: str, size: int, expected: bytes) -> bytes:
        padding, end = _padding(size), _BLOCK + size
        whole = self._frames.at_hand(end + len(padding))
        if whole is not None and whole[:_BLOCK] == expected and whole[end:] == padding:
            self._frames.pass_over(len(whole))
            return bytes(whole[_BLOCK:end])
        # Step by step what is not at hand in one piece, and what is not as expected, so that it can be said what.
        header = self._read(_BLOCK, f"the header of {name}")
        if header != expected:
            raise BundleError(
                f"{self._path}: expected the member {name} of {size} bytes, found {_describe(header)}; "
                "this is not a bundle as aotpack writes it"
            )
        return self._content(name, size)

    def _content(self, name: str, size: int) -> bytes:
        """A member's content, after its header; zeros must follow up to the next block."""
        data = self._read(size, name)
        if any(self._read(-size % _BLOCK, f"the padding of {name}")):
            raise BundleError(f"{self._path}: {name}: expected zeros after it, found other bytes")
        return data

    def read_manifest(self) -> bytes:
        """The bytes of the manifest.

        Raises:
            BundleError: the file is no archive of ours, is truncated, or its manifest is too large.
        """
        header = self._read(_BLOCK, f"the header of {MANIFEST}")
        try:
            size = int(header[124:135], 8)
        except ValueError:
            size = -1
        if header != _header(MANIFEST, max(size, 0)) or size < 0:
            raise BundleError(
                f"{self._path}: expected {MANIFEST} as first member, found {_describe(header)}; "
                "this is not a bundle as aotpack writes it"
            )
        if size > MAX_MANIFEST:
            raise BundleError(f"{self._path}: {MANIFEST} claims {size} bytes; at most {MAX_MANIFEST} are read")
        return self._content(MANIFEST, size)

    def has_frames(self, expected: Iterable[tuple[str, int]]) -> bool:
        """Whether what follows the manifest is these frames, and nothing else; none is unpacked.

        Args:
            expected: digest and size of each frame of the archive behind the manifest's own, as packed.

        Raises:
            BundleError: the file cannot be read, or the manifest's frame is damaged behind the manifest.
        """
        try:
            if not self._frames.at_frame_end():
                return False
            for digest, size in expected:
                summed, left = hashlib.sha256(), size
                while left and (piece := self._file.read(min(left, _PIECE))):
                    summed.update(piece)
                    left -= len(piece)
                if left or summed.hexdigest() != hex_of(digest):
                    return False
            return not self._file.read(1)
        except (FrameError, OSError) as error:
            raise BundleError(f"{self._path}: cannot be read: {error}; fetch the bundle again") from None

    def read_blobs(self, expected: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
        """Each blob with its digest, in order; after the last the archive must end.

        Args:
            expected: digest and size of every blob of the archive, in the manifest's order.

        Raises:
            BundleError: a blob is missing, altered, out of place or of another size, or something follows.
        """
        headers = _BlobHeaders()
        for digest, size in expected:
            data = self._member(BLOBS + hex_of(digest), size, headers.of(digest, size))
            if digest_bytes(data) != digest:
                raise BundleError(f"{self._path}: {BLOBS}{hex_of(digest)}: altered: its content has another digest")
            yield digest, data
        if self._read(len(_END), "the end of the archive") != _END:
            raise BundleError(f"{self._path}: expected the end of the archive, found more members")
        try:
            ends = self._frames.at_end()
        except (FrameError, OSError):
            ends = False
        if not ends:
            raise BundleError(f"{self._path}: expected the end of the file, found trailing data")


def _describe(header: bytes) -> str:
    try:
        member = tarfile.TarInfo.frombuf(header, "utf-8", "replace")
    except tarfile.HeaderError:
        return "no tar header"
    kind = "file" if member.isfile() else f"member of type {member.type!r}"
    return f"a {kind} {member.name!r} of {member.size} bytes"
