"""How many bytes a key takes, against archives of Triton's own cache directory; and what other choices would give."""

import time
from collections.abc import Callable, Iterator, Sequence

import zstandard

from aotpack.archive import compress, pack, pack_manifest
from aotpack.bundle import Bundle
from aotpack.manifest import Artifact
from benchmark.building import archive, compile_plainly
from benchmark.figures import Figure, Goal
from benchmark.workplace import Workplace

GZIP = Goal(word="at most", limit=0.1)
A_KEY = Goal(word="at most", limit=4000)

Frame = list[Artifact]


def measure(place: Workplace) -> Iterator[Figure]:
    """The figures of sizes."""
    if not place.plain.exists():
        compile_plainly(place)
    bundle = place.sampled_bundle()
    keys = len(bundle.manifest.entries)
    for name, compressor, goal in (("tar.gz", "gzip", GZIP), ("tar.zst -19", "zstd -19", None)):
        with place.fresh() as folder:
            size = archive(place.plain, folder / "plain", compressor)
        yield Figure(
            name=f"bytes a key, {keys} keys",
            value=bundle.size / keys,
            unit="bytes",
            rival=f"{name} of Triton's cache directory",
            rival_value=size / keys,
            goal=goal,
        )
    whole = place.bundle
    entries = whole.manifest.entries
    yield Figure(
        name=f"bytes a key of the whole bundle, {len(entries)} keys",
        value=whole.size / len(entries),
        unit="bytes",
        goal=A_KEY,
    )
    yield from alternatives(whole)


def alternatives(bundle: Bundle) -> Iterator[Figure]:
    """What other levels, windows and orders would give, against the bundle as it is."""
    blobs = dict(bundle.blobs())
    data = bundle.manifest.to_bytes()

    def packing(frames: Sequence[Frame], compressor: Callable[[bytes], bytes]) -> tuple[int, float, float]:
        """Bytes, seconds of compression and of decompression."""
        start = time.process_time()
        contents = [[blobs[one.digest] for one in frame] for frame in frames]
        packed = [pack_manifest(data, compressor), *pack(contents, compressor)]
        middle = time.process_time()
        for frame in packed:
            zstandard.ZstdDecompressor(max_window_size=1 << 31).decompress(frame)
        return sum(map(len, packed)), middle - start, time.process_time() - middle

    frames = bundle.manifest.frames()
    size, slow, fast = packing(frames, compress)
    yield Figure(name="compressing the whole bundle", value=slow, unit="s")
    yield Figure(name="decompressing it", value=1000 * fast, unit="ms")
    for name, order, compressor in _choices(bundle, frames):
        other, other_slow, other_fast = packing(order, compressor)
        yield Figure(
            name=f"{name} (compressed in {other_slow:.1f} s, decompressed in {1000 * other_fast:.0f} ms)",
            value=other,
            unit="bytes",
            rival="as it is",
            rival_value=size,
        )


def _choices(
    bundle: Bundle, frames: Sequence[Frame]
) -> Iterator[tuple[str, Sequence[Frame], Callable[[bytes], bytes]]]:
    for level in (9, 15, 22):
        yield f"level {level}", frames, compressor_of(level=level)
    for window in (20, 22, 27):
        yield f"window of 2^{window} bytes", frames, compressor_of(window=window)
    yield "without long-distance matching", frames, compressor_of(long_distance=False)
    metadata = {entry.metadata.digest for entry in bundle.manifest.entries}
    largest_first = [sorted(frame, key=lambda one: -one.size) for frame in frames]
    yield "largest first", largest_first, compress
    yield "by digest", [sorted(frame, key=lambda one: one.digest) for frame in frames], compress
    apart = [sorted(frame, key=lambda one: one.digest in metadata) for frame in frames]
    yield "metadata after code, in one frame", apart, compress
    split = [[one for one in frame if (one.digest in metadata) is last] for frame in frames for last in (False, True)]
    yield "metadata in a frame of its own", split, compress


def compressor_of(*, level: int = 19, window: int = 23, long_distance: bool = True) -> Callable[[bytes], bytes]:
    """As ``aotpack.archive.compress``, with another choice."""

    def pack(data: bytes) -> bytes:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level,
            source_size=len(data),
            window_log=max(10, min(window, len(data).bit_length())),
            enable_ldm=long_distance,
            write_checksum=True,
            write_content_size=True,
        )
        return zstandard.ZstdCompressor(compression_params=parameters).compress(data)

    return pack
