"""Frames: the zstd frames of a file, read one block at a time, with every limit held before memory is set aside.

A frame says in its header how much it holds and how large a window it needs, and each block how many bytes it has; a
block gives 128 KiB at most (RFC 8878, 3.1.1). So nothing is read ahead or unpacked that was not asked for, the end of
a frame is known to the byte, and what is read takes a window and a block of memory, whatever the file claims.

Refused are frames that do not say what they hold, hold nothing, need a dictionary, or are to be skipped, and blocks
that are empty for no reason: none of them is written here, and all of them can be repeated at will.
"""

import io
import os
from typing import IO, Any

import zstandard

WINDOW_LOG = 23
"""Of the window that a frame may need: 8 MiB, which is set aside whole. The kernels of all presets on one architecture,
14 MB, take 1.38 MB with it and 0.03 per cent less with one that spans them all."""

MAX_RATIO = 100
"""How many times its own size a file may unpack to: real bundles 3 to 11 times, manifests alone 28, zeros 30,000."""

_ALWAYS = 1 << 20
"""Bytes that a file of any size may unpack to."""

_BLOCK = 128 << 10
_LONGEST_HEADER = 18
_MAGIC = zstandard.MAGIC_NUMBER.to_bytes(4, "little")


class FrameError(Exception):
    """The file is not made of frames as they are written here; the message says what is wrong."""


class FrameReader:
    """The content of a file's frames, front to back.

    Between the calls of ``read`` the file stands just behind the block that gave the last byte.

    Attributes:
        size: bytes of the file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        """Prepare; nothing is read yet.

        Args:
            file: a regular file, at its beginning.
        """
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self._allowed = max(_ALWAYS, MAX_RATIO * self.size)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
        self._frame: Any = None
        self._has_checksum = False
        self._left = 0
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer where the file ends before.

        Raises:
            FrameError: the file is damaged, or would take more memory than it may.
            OSError: the file cannot be read.
        """
        if size <= len(self._ready):
            data, self._ready = bytes(self._ready[:size]), self._ready[size:]
            return data
        buffer = io.BytesIO()
        while (left := size - buffer.tell()) > 0 and (self._ready or self._more()):
            buffer.write(self._ready[:left])
            self._ready = self._ready[left:]
        return buffer.getvalue()

    def at_hand(self, size: int) -> memoryview | None:
        """The next ``size`` bytes where they have been unpacked already, else None; they are read by ``pass_over``."""
        return self._ready[:size] if size <= len(self._ready) else None

    def pass_over(self, size: int) -> None:
        """Have read ``size`` bytes that were ``at_hand``."""
        self._ready = self._ready[size:]

    def at_frame_end(self) -> bool:
        """Whether all of a frame has been read; then the file stands just behind it.

        Raises:
            FrameError, OSError: as ``read``.
        """
        while self._frame is not None and not self._ready:
            self._next_block()
        return not self._ready

    def at_end(self) -> bool:
        """Whether all has been read, to the last byte of the file.

        Raises:
            FrameError, OSError: as ``read``.
        """
        return self.at_frame_end() and not self._file.read(1)

    def _more(self) -> bool:
        while not self._ready:
            if self._frame is None and not self._next_frame():
                return False
            self._next_block()
        return True

    def _next_frame(self) -> bool:
        """Begin the next frame; False at the end of the file."""
        place = self._file.tell()
        start = self._file.read(_LONGEST_HEADER)
        if not start:
            return False
        if not start.startswith(_MAGIC):
            raise FrameError("no frame begins where one should")
        try:
            found = zstandard.get_frame_parameters(start)
            length = zstandard.frame_header_size(start)
        except zstandard.ZstdError as error:
            raise FrameError(str(error)) from None
        if found.dict_id or not 0 < found.content_size <= self._allowed or found.window_size > 1 << WINDOW_LOG:
            raise FrameError(
                f"a frame of {found.content_size} bytes with a window of {found.window_size} and the dictionary "
                f"{found.dict_id}; read are those of 1 to {self._allowed} bytes, with a window of at most "
                f"{1 << WINDOW_LOG} and without a dictionary"
            )
        self._allowed -= found.content_size
        self._has_checksum, self._left = found.has_checksum, found.content_size
        self._frame = self._decompressor.decompressobj()
        self._feed(start[:length])
        self._file.seek(place + length)
        return True

    def _next_block(self) -> None:
        """Unpack the next block of the frame."""
        header = self._exactly(3)
        number = int.from_bytes(header, "little")
        is_last, kind, size = number & 1, number >> 1 & 3, number >> 3
        if size > _BLOCK or not (size or is_last):
            raise FrameError(f"a block of {size} bytes")
        content = self._exactly(1 if kind == 1 else size)  # kind 1 is one byte, to be repeated
        self._feed(header + content + (self._exactly(4) if is_last and self._has_checksum else b""))
        if is_last:
            if self._left or not self._frame.eof:
                raise FrameError(f"a frame that ends {self._left} bytes too early")
            self._frame = None

    def _feed(self, data: bytes) -> None:
        try:
            piece = self._frame.decompress(data)
        except zstandard.ZstdError as error:
            raise FrameError(str(error)) from None
        self._left -= len(piece)
        if self._left < 0:
            raise FrameError(f"a frame that holds {-self._left} bytes more than it says")
        self._ready = memoryview(piece)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise FrameError("truncated in a frame")
        return data
