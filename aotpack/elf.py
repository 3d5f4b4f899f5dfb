"""ELF headers of cubins: for which architecture the machine code in them is.

The header says more than Triton asks: it loads whatever lies under the right key, and code for another
architecture fails at the launch, or runs and computes nonsense.
"""

import struct

_HEADER = struct.Struct("<4s3BBB7xHHIQQQIHHHHHH")
_CLASS_64, _LITTLE_ENDIAN = 2, 1
_EM_CUDA = 190

# Where the architecture stands in e_flags, by the header's OS ABI: measured with ptxas 12.8 to 13.4, sm_50 to
# sm_121. ptxas up to 12.9 writes 51 below sm_100; from sm_100 on, and ptxas 13 for all, it is 65.
_SHIFTS = {51: 0, 65: 8}


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
