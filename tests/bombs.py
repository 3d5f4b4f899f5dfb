"""Bombs: bundles of 1 MiB that would take far more memory or time than that, were they believed."""

# ruff: noqa: ARG005  # each maker is given the bundle, whether it needs it or not

import copy
from typing import Any

from aotpack.digests import digest_bytes
from tests.alterations import (
    END,
    MAGIC,
    MIB,
    Maker,
    Original,
    block,
    frame,
    head,
    header,
    member,
    path_of,
    repeated,
    skippable,
)
from tests.archives import spelled
from tests.attacks import altered, between

GIB = 1 << 30
FORMAT = b'{"format":1,'


def manifest_of(content: bytes) -> bytes:
    """A bundle of a manifest alone, padded to a file of 1 MiB."""
    return frame(member("manifest.json", content)).ljust(MIB, b"\0")


def filled(beginning: bytes, byte: bytes, size: int, ending: bytes = b"") -> bytes:
    """A manifest of a size that begins and ends in some way and is one byte between; padded to a file of 1 MiB."""
    middle = size - len(beginning) - len(ending)
    file = frame(header("manifest.json", size) + beginning) + repeated(byte, middle) + frame(ending + END)
    return file + bytes(MIB - len(file))


def promise_too_much(document: Any) -> None:
    entry = document["entries"][0]
    for number in range(1, 34):
        more = copy.deepcopy(entry)
        more["key"]["options"]["zzz"] = number
        more["artifacts"]["cubin"] = {"digest": digest_bytes(b"%d" % number), "size": 16 * MIB}
        document["entries"].append(more)


def blob_of_zeros(original: Original) -> bytes:
    """A whole bundle, every digest right, that is small because there is nothing in it."""
    zeros = bytes(16 * MIB)
    document = original.document()
    for entry in document["entries"]:
        entry["artifacts"]["cubin"] = {"digest": digest_bytes(zeros), "size": len(zeros)}
    documents = [blob for blob in original.blobs if blob.startswith(b"{")]
    head_of_it = frame(member("manifest.json", spelled(document)) + header(path_of(zeros), len(zeros)))
    return (
        head_of_it + repeated(b"\0", len(zeros)) + frame(b"".join(member(path_of(one), one) for one in documents) + END)
    )


BOMBS: dict[str, Maker] = {
    "1 GiB of manifest": lambda it: frame(header("manifest.json", GIB)) + repeated(b"\0", GIB) + bytes(MIB),
    "1 GiB of manifest in one frame": lambda it: repeated(b"\0", GIB) + bytes(MIB),
    "as much zeros of manifest as is read": lambda it: filled(b"", b"\0", 24 * MIB),
    "a manifest of one string": lambda it: filled(FORMAT + b'"deployments":[{"a":"', b"a", 24 * MIB),
    "a manifest of one number": lambda it: filled(FORMAT + b'"deployments":[{"a":', b"9", 24 * MIB),
    "a manifest of one string as its engine": lambda it: filled(
        FORMAT + b'"deployments":[],"engine":{"name":"', b"a", 24 * MIB
    ),
    "a manifest nested as deeply as it is long": lambda it: filled(FORMAT + b'"deployments":', b"[", 24 * MIB),
    "a manifest of empty objects": lambda it: manifest_of(FORMAT + b'"deployments":[' + b"{}," * (7 * MIB)),
    "a manifest of empty entries": lambda it: manifest_of(
        FORMAT + b'"deployments":[],"engine":{"name":"a","version":"1"},"entries":[' + b"{}," * (7 * MIB)
    ),
    "a field as dense as can be": lambda it: manifest_of(
        FORMAT + b'"deployments":[],"engine":[' + b"{}," * (349_000) + b"{}]"
    ),
    "a field that repeats its names": lambda it: manifest_of(
        FORMAT + b'"deployments":[{' + b",".join(b'"%d":0' % (n % 15_000) for n in range(20_000)) + b"}]"
    ),
    "1 GiB of blob": lambda it: (
        altered(lambda document: document["entries"][0]["artifacts"]["cubin"].update(size=16 * MIB), it)
        + repeated(b"\0", GIB)
        + bytes(MIB)
    ),
    "a blob of zeros under its right digest": blob_of_zeros,
    "512 MiB of blobs promised": lambda it: altered(promise_too_much, it) + bytes(MIB),
    "1 GiB of trailing data": lambda it: it.whole + repeated(b"\0", GIB) + bytes(MIB),
    "empty frames": lambda it: frame(b"", write_checksum=False, write_content_size=True) * 120_000,
    "empty frames behind it": lambda it: it.whole + frame(b"") * 120_000,
    "skippable frames": lambda it: skippable(b"") * 131_072,
    "empty blocks": lambda it: head(MIB) + block(0, 0, b"") * (MIB // 3),
    "blocks of one byte": lambda it: (
        frame(header("manifest.json", MIB // 4)) + head(MIB // 4) + block(0, 1, b"m") * (MIB // 4)
    ),
    "tiny members": lambda it: between(frame(header("blobs/sha256/" + "a" * 64, 0) * 200_000), 1, it),
    "a window of 2 GiB": lambda it: MAGIC + bytes([0b11000000, 21 << 3]) + (1 << 20).to_bytes(8, "little") + bytes(MIB),
    "a window of 128 MiB": lambda it: head(MIB, window_log=27) + block(1, MIB // 8, b"\0") * 8 + bytes(MIB),
    "a frame of 16 EiB": lambda it: head((1 << 64) - 2) + block(1, 128 << 10, b"\0") * 8192,
}
