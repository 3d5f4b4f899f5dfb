"""ELF files: for which architecture the machine code in a cubin is, and what a native helper needs of the C library.

A cubin's header says more than Triton asks: it loads whatever lies under the right key, and code for another
architecture fails at the launch, or runs and computes nonsense. Layouts are those of the System V ABI and of the
Linux Standard Base's symbol versioning (``Elf64_Verneed``).
"""

import re
import struct
from collections.abc import Iterator

from aotpack.errors import DocumentError

_HEADER = struct.Struct("<4s3BBB7xHHIQQQIHHHHHH")
_CLASS_64, _LITTLE_ENDIAN = 2, 1
_EM_CUDA = 190

# Where the architecture stands in e_flags, by the header's OS ABI: measured with ptxas 12.8 to 13.4, sm_50 to
# sm_121. ptxas up to 12.9 writes 51 below sm_100; from sm_100 on, and ptxas 13 for all, it is 65.
_SHIFTS = {51: 0, 65: 8}

_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")
_AUX = struct.Struct("<IHHII")
_VERNEED = 0x6FFFFFFE


def cuda_architecture(data: bytes) -> int | None:
    """The architecture of a cubin, 90 for sm_90 and sm_90a; None where ``data`` is no whole cubin.

    A truncated file is no whole cubin: the section and program headers must lie in it.
    """
    if len(data) < _HEADER.size:
        return None
    magic, *rest = _HEADER.unpack_from(data)
    width, order, _, os_abi, _, _, machine, _, _, programs, sections, flags = rest[:12]
    _, program_size, program_count, section_size, section_count, _ = rest[12:]
    end = max(programs + program_size * program_count, sections + section_size * section_count)
    if (magic, width, order, machine) != (b"\x7fELF", _CLASS_64, _LITTLE_ENDIAN, _EM_CUDA):
        return None
    if os_abi not in _SHIFTS or end > len(data):
        return None
    return int(flags >> _SHIFTS[os_abi]) & 0xFF


def glibc_baseline(data: bytes) -> str:
    """The oldest glibc that has every versioned symbol a shared object needs: ``2.14``; ``0`` where it needs none.

    Raises:
        DocumentError: this is no ELF file of the kind that is read here, or a damaged one.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise DocumentError("expected a 64-bit little-endian ELF file, found another file")
    try:
        names = list(_version_names(data))
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise DocumentError(f"expected an ELF file, found a damaged one: {error}") from None
    versions = [name.removeprefix("GLIBC_") for name in names if re.fullmatch(r"GLIBC_[0-9]{1,9}(\.[0-9]{1,9})*", name)]
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
    left = len(data) // _AUX.size  # of the same size as _NEED, and each has its own place
    sections = [_SECTION.unpack_from(data, start + index * size) for index in range(count)]
    for _, kind, _, _, offset, _, link, entries, _, _ in sections:
        if kind != _VERNEED:
            continue
        strings = sections[link][4]
        need = offset
        for _ in range(entries):
            _, auxiliaries, _, first, following = _NEED.unpack_from(data, need)
            left -= 1 + auxiliaries
            if left < 0:
                raise ValueError("its table of versions has more entries than there is room for")
            aux = need + first
            for _ in range(auxiliaries):
                _, _, _, name, next_aux = _AUX.unpack_from(data, aux)
                begin = strings + name
                yield data[begin : data.index(b"\0", begin)].decode("ascii")
                aux += next_aux
            if not following:
                break
            need += following
