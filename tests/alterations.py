"""Real bundles taken apart, and the pieces that altered ones are made of: members and frames, byte by byte."""

import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import zstandard

from aotpack.archive import pack, pack_manifest
from aotpack.bundle import Bundle, write_bundle
from aotpack.digests import digest_bytes, hex_of
from tests.archives import members_of

BLOCK = 512
MIB = 1 << 20
END = bytes(2 * BLOCK)
MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Original:
    """A real bundle, taken apart."""

    whole: bytes
    manifest: bytes
    blobs: tuple[bytes, ...]

    @classmethod
    def of(cls, path: Path) -> "Original":
        (_, manifest), *blobs = members_of(path)
        return cls(path.read_bytes(), manifest, tuple(data for _, data in blobs))

    def document(self) -> Any:
        return json.loads(self.manifest)

    @property
    def members(self) -> list[bytes]:
        return [member(path_of(blob), blob) for blob in self.blobs]


Maker = Callable[[Original], bytes]


def tiny(bundle: Bundle, path: Path, *, entries: slice = slice(2)) -> Bundle:
    """A bundle cut down to some of its entries, and to what they rest on."""
    manifest = bundle.manifest
    kept = [replace(entry, reached=replace(entry.reached, deployment=0)) for entry in manifest.entries[entries]]
    names = {entry.key.kernel for entry in kept}
    reached = {function for name in names for function in manifest.sources.closure(name)}
    sources = replace(
        manifest.sources,
        functions=tuple(function for function in manifest.sources.functions if function in reached),
        modules=tuple(module for module in manifest.sources.modules if module[0] in {one.module for one in reached}),
    )
    small = replace(
        manifest,
        entries=tuple(kept),
        deployments=manifest.deployments[:1],
        kernels=tuple(kernel for kernel in manifest.kernels if kernel.name in names),
        sources=sources,
    )
    return write_bundle(path, small, dict(bundle.blobs()))


def reassembled(original: Original) -> bytes:
    """The bundle taken apart and put together by aotpack's own writer: what alterations start from."""
    return b"".join([pack_manifest(original.manifest), *pack([original.blobs])])


def path_of(blob: bytes) -> str:
    return f"blobs/sha256/{hex_of(digest_bytes(blob))}"


def header(name: str, size: int, **changes: Any) -> bytes:
    """A member's header as aotpack writes it, but for the changes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    for field, value in changes.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT)


def patched(block: bytes, offset: int, data: bytes) -> bytes:
    """A header with other bytes in one place, and the checksum that fits."""
    block = block[:offset] + data + block[offset + len(data) :]
    blank = block[:148] + b" " * 8 + block[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def member(name: str, data: bytes, **changes: Any) -> bytes:
    return header(name, len(data), **changes) + padded(data)


def archive(manifest: bytes, members: Iterable[bytes], end: bytes = END) -> bytes:
    """An archive in the frames that aotpack writes, of whatever members."""
    frames = [member("manifest.json", manifest), b"".join(members), end]
    return b"".join(frame(content) for content in frames if content)


def frame(content: bytes, **parameters: Any) -> bytes:
    return zstandard.ZstdCompressor(level=1, **parameters).compress(content)


def frames_of(data: bytes) -> list[bytes]:
    """The frames of an archive, one by one."""
    frames = []
    while data:
        unpacking = zstandard.ZstdDecompressor().decompressobj()
        unpacking.decompress(data)
        frames.append(data[: len(data) - len(unpacking.unused_data)])
        data = unpacking.unused_data
    return frames


def stored(content: bytes) -> bytes:
    """A frame that does not compress and has no checksum."""
    pieces = [content[start : start + (64 << 10)] for start in range(0, len(content), 64 << 10)]
    blocks = [block(0, len(piece), piece, last=piece is pieces[-1]) for piece in pieces]
    return head(len(content)) + b"".join(blocks)


def skippable(content: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content


def head(size: int, *, window_log: int = 17) -> bytes:
    """A frame's header: how much it holds, in eight bytes, and a window."""
    return MAGIC + bytes([0b11000000, (window_log - 10) << 3]) + size.to_bytes(8, "little")


def block(kind: int, size: int, content: bytes, *, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + content


def repeated(byte: bytes, size: int) -> bytes:
    """A frame of one byte, again and again: 4 bytes for each 128 KiB."""
    full, rest = divmod(size, 128 << 10)
    blocks = [block(1, 128 << 10, byte)] * full
    return head(size) + b"".join(blocks) + block(1, rest, byte, last=True)
