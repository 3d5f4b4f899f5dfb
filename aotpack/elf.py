"""ELF files: what a shared object needs of the C library. 64-bit little-endian alone, which is all that is built here.

The layout is that of the System V ABI and of the Linux Standard Base's symbol versioning (``Elf64_Verneed``).
"""

import re
import struct
from collections.abc import Iterator

from aotpack.errors import DocumentError

MAGIC = b"\x7fELF"

_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_VERNEED = 0x6FFFFFFE


def glibc_baseline(data: bytes) -> str:
    """The oldest glibc that has every versioned symbol a shared object needs: ``2.14``; ``0`` where it needs none.

    Raises:
        DocumentError: this is no ELF file of the kind that is read here, or a damaged one.
    """
    if data[:6] != MAGIC + b"\x02\x01":
        raise DocumentError("expected a 64-bit little-endian ELF file, found another file")
    try:
        names = list(_version_names(data))
    except (struct.error, IndexError, ValueError) as error:
        raise DocumentError(f"expected an ELF file, found a damaged one: {error}") from None
    versions = [name.removeprefix("GLIBC_") for name in names if re.fullmatch(r"GLIBC_[0-9.]+", name)]
    return max(versions, key=release, default="0")


def release(version: str) -> tuple[int, ...]:
    """A version of glibc as numbers, which compare.

    >>> release("2.4") < release("2.17")
    True
    """
    return tuple(int(part) for part in version.split("."))


def _version_names(data: bytes) -> Iterator[str]:
    """The versions named in the version needs section, of all libraries."""
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]
    for _, kind, _, _, offset, _, link, entries, _, _ in sections:
        if kind != _VERNEED:
            continue
        strings = sections[link][4]
        need = offset
        for _ in range(entries):
            _, auxiliaries, _, first, following = _NEED.unpack_from(data, need)
            aux = need + first
            for _ in range(auxiliaries):
                _, _, _, name, next_aux = _AUX.unpack_from(data, aux)
                begin = strings + name
                yield data[begin : data.index(b"\0", begin)].decode("ascii")
                aux += next_aux
            need += following
