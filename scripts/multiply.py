#!/usr/bin/env python3
"""Multiply a bundle: one of as many keys as asked for, each with machine code and metadata of its own.

    scripts/multiply.py BUNDLE KEYS -o FILE

For measuring how reading, installing and loading grow. Each copy of an entry has another value of a constexpr, so its
key is as real as the entry's own and Triton makes a cache key of it. Its cubin has the entry's size and headers and
other bytes in its largest section, as many as BUNDLE's zstd did not find elsewhere, so that the copies compress as
real kernels do; its metadata has a field more. The code is no code: it is for measuring what never runs it.
"""

import argparse
import json
import random
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from aotpack.archive import compress
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.digests import canonical_json, digest_bytes
from aotpack.errors import AotpackError, UsageError
from aotpack.keys import CompileKey
from aotpack.manifest import Artifact, Entry

# Elf64_Ehdr's e_shoff and e_shentsize, e_shnum; Elf64_Shdr's sh_type, sh_offset and sh_size.
_SECTIONS, _SECTION_SIZES = (struct.Struct("<Q"), 40), (struct.Struct("<HH"), 58)
_SECTION = struct.Struct("<4xI16xQQ")
_PROGBITS = 1

_STEP = 1 << 20
"""Between the values of a constexpr in copies: no power of two up to this one divides them otherwise than before."""


def multiply(bundle: Bundle, keys: int, out: Path) -> Bundle:
    """Write a bundle of ``keys`` entries made of those of ``bundle``, which has their proportions.

    The same input gives the same bytes.

    Args:
        bundle: a real one.
        keys: how many entries; fewer than ``bundle`` has are chosen evenly over it.
        out: where the new bundle goes.

    Raises:
        UsageError: there is no entry to copy: none has a constexpr that is a number.
        BundleError: the bundle is damaged.
        OutputError: the new bundle would be larger than readers take.
        OSError: it cannot be written.
    """
    contents = dict(bundle.blobs())
    whole = sum(len(data) for data in contents.values())
    noise = bundle.size / whole
    blobs: dict[str, bytes] = {}

    def put(data: bytes) -> Artifact:
        digest = digest_bytes(data)
        blobs[digest] = data
        return Artifact(digest=digest, size=len(data))

    def entries() -> Iterator[Entry]:
        for number, (entry, key) in enumerate(_chosen(bundle.manifest.entries, keys)):
            cubin = _vary(contents[entry.cubin.digest], noise, number)
            metadata = json.loads(contents[entry.metadata.digest]) | {"copy": number}
            artifacts = (("cubin", put(cubin)), ("json", put(canonical_json(metadata).encode())))
            yield replace(entry, key=key, artifacts=artifacts)

    made = tuple(sorted(entries(), key=lambda entry: (entry.key.target, entry.key.kernel, entry.key.line)))
    others = [helper.artifact for helper in bundle.manifest.helpers]
    others += [kept.artifact for kept in bundle.manifest.results]
    blobs |= {artifact.digest: contents[artifact.digest] for artifact in others}
    return write_bundle(out, replace(bundle.manifest, entries=made, missing=()), blobs, compress)


def _chosen(entries: tuple[Entry, ...], keys: int) -> Iterator[tuple[Entry, CompileKey]]:
    """As many entries as asked for with their keys: the given ones, then copies of those that can be copied."""
    if keys <= len(entries):
        yield from ((entry, entry.key) for entry in (entries[index * len(entries) // keys] for index in range(keys)))
        return
    yield from ((entry, entry.key) for entry in entries)
    templates = [entry for entry in entries if _number_in(entry.key) is not None]
    if not templates:
        raise UsageError("no entry of the bundle has a constexpr that is a number above 1, so none can be copied")
    left = keys - len(entries)
    for copy in count(1):
        for entry in templates[:left]:
            yield entry, _renumbered(entry.key, copy)
        left -= len(templates)
        if left <= 0:
            return


def _number_in(key: CompileKey) -> int | None:
    """Which constexpr of a key has a number; 1 stands for a run-time argument that Triton has specialized."""
    for index, (_, value) in enumerate(key.constexprs):
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            return index
    return None


def _renumbered(key: CompileKey, copy: int) -> CompileKey:
    chosen = _number_in(key)
    return replace(
        key,
        constexprs=tuple(
            (path, value + copy * _STEP if index == chosen and isinstance(value, int) else value)
            for index, (path, value) in enumerate(key.constexprs)
        ),
    )


def _vary(cubin: bytes, noise: float, seed: int) -> bytes:
    """A cubin with other bytes in its largest section: ``noise`` times its size of them."""
    start, size = _largest_section(cubin)
    length = max(min(int(noise * len(cubin)), size), 1)
    return cubin[:start] + random.Random(seed).randbytes(length) + cubin[start + length :]  # noqa: S311


def _largest_section(cubin: bytes) -> tuple[int, int]:
    """Where the largest section that has content begins, and how long it is."""
    (table,), (size, number) = (layout.unpack_from(cubin, place) for layout, place in (_SECTIONS, _SECTION_SIZES))
    sections = (_SECTION.unpack_from(cubin, table + index * size) for index in range(number))
    length, start = max((length, start) for kind, start, length in sections if kind == _PROGBITS)
    return start, length


def main() -> int:
    """Write the bundle that the command line asks for, and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("keys", type=int)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        made = multiply(open_bundle(options.bundle), options.keys, options.output)
    except AotpackError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 3
    content = sum({artifact.digest: artifact.size for frame in made.manifest.frames() for artifact in frame}.values())
    print(f"{made.path}: {len(made.manifest.entries)} keys, {made.size:,} bytes, {content:,} unpacked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
