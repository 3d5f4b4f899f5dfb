"""Attacks on a bundle: each takes a real bundle apart and makes the bytes of an altered one.

``ATTACKS`` has them by name, each with where it is stopped at the latest.
"""

# ruff: noqa: ARG005, RUF001  # each maker is given the bundle, whether it needs it or not; lookalikes are meant

import copy
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import zstandard

from aotpack.digests import digest_bytes
from tests.alterations import (
    BLOCK,
    END,
    MAGIC,
    MIB,
    Maker,
    Original,
    archive,
    block,
    frame,
    frames_of,
    head,
    header,
    member,
    padded,
    patched,
    path_of,
    skippable,
)
from tests.archives import spelled


class Stop(Enum):
    """Where an attack is stopped at the latest."""

    READING = "its content is never handed out"
    LAYING = "every digest holds, and it is neither installed nor unpacked nor put into a wheel"
    FITTING = "it could be unpacked, and is not installed"
    NOWHERE = "it is read as the very bundle that it was made from"


@dataclass(frozen=True)
class Attack:
    make: Maker
    stop: Stop = Stop.READING


# Members


def with_members(change: Callable[[Original], Sequence[bytes]], original: Original) -> bytes:
    return archive(original.manifest, change(original))


def first_is(change: Callable[[bytes, bytes], bytes], original: Original) -> bytes:
    """The archive with another first member: made from the one that it has, and its content."""
    first, *others = original.members
    return archive(original.manifest, [change(first, original.blobs[0]), *others])


def named(name: str, original: Original) -> bytes:
    return first_is(lambda first, blob: member(name.replace("HEX", first[13:77].decode()), blob), original)


def typed(kind: bytes, original: Original) -> bytes:
    return first_is(lambda first, blob: patched(first[:BLOCK], 156, kind) + padded(blob), original)


def linked(kind: bytes, target: str, original: Original) -> bytes:
    """A link in place of a blob, without content and with."""
    return first_is(lambda first, _: header(first[:77].decode(), 0, type=kind, linkname=target), original)


def extended(kind: bytes, content: bytes, original: Original) -> bytes:
    """A header in front of a member that gives it another path."""
    return first_is(lambda first, _: member("././@Extended", content, type=kind) + first, original)


def at(offset: int, data: bytes, original: Original) -> bytes:
    return first_is(lambda first, _: patched(first[:BLOCK], offset, data) + first[BLOCK:], original)


def sized(more: int, original: Original) -> bytes:
    """A member whose header and content are larger or smaller than the manifest says."""

    def change(first: bytes, blob: bytes) -> bytes:
        return member(first[:77].decode(), blob[:more] if more < 0 else blob + bytes(more))

    return first_is(change, original)


# Manifests


def altered(change: Callable[[Any], object], original: Original, *blobs: bytes) -> bytes:
    """The archive with another manifest, whose blobs are those of the original unless they are given."""
    document = original.document()
    change(document)
    return archive(spelled(document), [member(path_of(blob), blob) for blob in blobs or original.blobs])


def entry_with(field: str, value: Any) -> Maker:
    return partial(altered, lambda document: document["entries"][0].update({field: value}))


def key_with(field: str, value: Any) -> Maker:
    return partial(altered, lambda document: document["entries"][0]["key"].update({field: value}))


def artifact_with(field: str, value: Any) -> Maker:
    return partial(altered, lambda document: document["entries"][0]["artifacts"]["cubin"].update({field: value}))


def option(name: str, value: Any) -> Maker:
    return partial(altered, lambda document: document["entries"][0]["key"]["options"].update({name: value}))


def helped(field: str, value: Any) -> Maker:
    def change(document: Any) -> None:
        helper = {
            "artifact": document["entries"][0]["artifacts"]["cubin"],
            "glibc": "2.17",
            "machine": "x86_64",
            "name": "cuda_utils",
            "source": digest_bytes(b""),
            "suffix": ".cpython-311-x86_64-linux-gnu.so",
        }
        document["helpers"] = [helper | {field: value}]

    return partial(altered, change)


def kernel_called(name: str, original: Original) -> bytes:
    def change(document: Any) -> None:
        old = document["entries"][0]["key"]["kernel"]
        document["kernels"] = {name: document["kernels"][old]}
        document["sources"]["functions"] = {name: document["sources"]["functions"][old]}
        for entry in document["entries"]:
            entry["key"]["kernel"] = name

    return altered(change, original)


def listing_anothers_digest(document: Any) -> None:
    one, other = (entry["artifacts"] for entry in document["entries"][:2])
    one["json"] = other["json"] = dict(one["cubin"])


def entry_twice(document: Any) -> None:
    document["entries"].insert(1, copy.deepcopy(document["entries"][0]))


def replaced(kind: str, data: bytes, original: Original) -> bytes:
    """The first entry with another artifact of its own, its digest and size right."""
    document = original.document()
    artifact = document["entries"][0]["artifacts"][kind]
    old = artifact["digest"]
    for entry in document["entries"]:
        if entry["artifacts"][kind]["digest"] == old:
            entry["artifacts"][kind] = {"digest": digest_bytes(data), "size": len(data)}
    blobs = {digest_bytes(blob): blob for blob in original.blobs} | {digest_bytes(data): data}
    order = [entry["artifacts"][part]["digest"] for part in ("cubin", "json") for entry in document["entries"]]
    return archive(
        spelled(document), [member(path_of(blobs[digest]), blobs[digest]) for digest in dict.fromkeys(order)]
    )


def of_another_architecture(original: Original) -> bytes:
    def change(document: Any) -> None:
        document["targets"] = ["cuda:80"]
        document["toolchain"]["assemblers"] = {"cuda:80": document["toolchain"]["assemblers"]["cuda:90"]}
        for entry in document["entries"]:
            entry["key"]["target"] = "cuda:80"

    return altered(change, original)


def same_place_twice(original: Original) -> bytes:
    """Two entries whose keys differ in what Triton ignores, and whose code differs: they would share their files."""
    document = original.document()
    entry = copy.deepcopy(document["entries"][0])
    entry["key"]["options"]["zzz"] = 1
    padding = original.blobs[0] + bytes(16)
    entry["artifacts"]["cubin"] = {"digest": digest_bytes(padding), "size": len(padding)}
    document["entries"].insert(1, entry)
    blobs = {digest_bytes(blob): blob for blob in (*original.blobs, padding)}
    order = [one["artifacts"][part]["digest"] for part in ("cubin", "json") for one in document["entries"]]
    return archive(
        spelled(document), [member(path_of(blobs[digest]), blobs[digest]) for digest in dict.fromkeys(order)]
    )


# Frames


def between(piece: bytes, place: int, original: Original) -> bytes:
    frames = frames_of(original.whole)
    return b"".join([*frames[:place], piece, *frames[place:]])


def reframed(original: Original, **parameters: Any) -> bytes:
    return b"".join(
        frame(zstandard.ZstdDecompressor().decompress(one), **parameters) for one in frames_of(original.whole)
    )


def with_a_dictionary(original: Original) -> bytes:
    trained = zstandard.ZstdCompressionDict(original.manifest * 4, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    first, *others = frames_of(original.whole)
    content = zstandard.ZstdDecompressor().decompress(first)
    return b"".join([frame(content, dict_data=trained), *others])


def with_a_dictionary_id(original: Original) -> bytes:
    first, *others = frames_of(original.whole)
    content = zstandard.ZstdDecompressor().decompress(first)
    raw = block(0, len(content), content, last=True)
    return b"".join([MAGIC + bytes([0b10100001]) + b"\x07" + len(content).to_bytes(4, "little") + raw, *others])


NAMES = {
    "traversal": "../escape",
    "traversal with backslashes": "..\\..\\escape",
    "traversal inside": "blobs/sha256/../../../escape",
    "traversal of percent signs": "%2e%2e/%2e%2e/escape",
    "traversal of full stops of full width": "．．/escape",
    "lookalike": "blobѕ/sha256/HEX",
    "dot and slash": "./blobs/sha256/HEX",
    "two slashes": "blobs//sha256/HEX",
    "trailing slash": "blobs/sha256/HEX/",
    "trailing dot": "blobs/sha256/HEX.",
    "trailing space": "blobs/sha256/HEX ",
    "absolute": "/etc/escape",
    "absolute of the usual name": "/blobs/sha256/HEX",
    "drive": "C:\\escape",
    "newline": "blobs/sha256/HEX\nescape",
    "case clash": "BLOBS/sha256/HEX",
    "very long": "blobs/sha256/" + "a" * 84 + "/" + "b" * 90,
    "empty": "",
}

ATTACKS: dict[str, Attack] = {
    **{f"name: {title}": Attack(partial(named, name)) for title, name in NAMES.items()},
    "name: in upper case": Attack(
        partial(first_is, lambda first, blob: member("blobs/sha256/" + first[13:77].decode().upper(), blob))
    ),
    "name: NUL and more": Attack(partial(at, 77, b"\0/../../escape")),
    "name: in the prefix field": Attack(partial(at, 345, b"../../escape")),
    "type: hard link": Attack(partial(linked, tarfile.LNKTYPE, "manifest.json")),
    "type: symbolic link": Attack(partial(linked, tarfile.SYMTYPE, "/etc/passwd")),
    "type: symbolic link to a directory above": Attack(partial(linked, tarfile.SYMTYPE, "../..")),
    **{
        f"type: {title}": Attack(partial(typed, kind))
        for title, kind in {
            "hard link with content": tarfile.LNKTYPE,
            "character device": tarfile.CHRTYPE,
            "block device": tarfile.BLKTYPE,
            "fifo": tarfile.FIFOTYPE,
            "directory": tarfile.DIRTYPE,
            "contiguous": tarfile.CONTTYPE,
            "sparse": tarfile.GNUTYPE_SPARSE,
            "old plain file": tarfile.AREGTYPE,
            "unknown": b"Z",
        }.items()
    },
    "header: pax path": Attack(partial(extended, tarfile.XHDTYPE, b"18 path=../escape\n")),
    "header: pax for all": Attack(partial(extended, tarfile.XGLTYPE, b"18 path=../escape\n")),
    "header: pax size": Attack(partial(extended, tarfile.XHDTYPE, b"10 size=1\n")),
    "header: pax sparse": Attack(partial(extended, tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n")),
    "header: GNU long name": Attack(partial(extended, tarfile.GNUTYPE_LONGNAME, b"../" * 99 + b"escape\0")),
    "header: GNU long link": Attack(partial(extended, tarfile.GNUTYPE_LONGLINK, b"/etc/passwd\0")),
    "header: executable": Attack(partial(at, 100, b"0004755\0")),
    "header: owner": Attack(partial(at, 108, b"0001750\0")),
    "header: time": Attack(partial(at, 136, b"00000000001\0")),
    "header: size in base 256": Attack(partial(at, 124, b"\x80" + bytes(9) + b"\x1b\xa8")),
    "header: size in spaces": Attack(partial(at, 124, b"      15650 ")),
    "header: negative size": Attack(partial(at, 124, b"-0000000001\0")),
    "header: wrong checksum": Attack(partial(first_is, lambda first, _: first[:148] + b"000000\0 " + first[156:])),
    "members: duplicate": Attack(partial(with_members, lambda it: [it.members[0], *it.members])),
    "members: duplicate at the end": Attack(partial(with_members, lambda it: [*it.members, it.members[0]])),
    "members: another manifest at the end": Attack(
        partial(with_members, lambda it: [*it.members, member("manifest.json", it.manifest)])
    ),
    "members: none": Attack(partial(with_members, lambda it: [])),
    "members: one missing": Attack(partial(with_members, lambda it: it.members[1:])),
    "members: one that is not listed": Attack(
        partial(with_members, lambda it: [*it.members, member(path_of(b"stranger"), b"stranger")])
    ),
    "members: in another order": Attack(partial(with_members, lambda it: it.members[::-1])),
    "members: the manifest last": Attack(
        lambda it: b"".join(map(frame, [*it.members, member("manifest.json", it.manifest), END]))
    ),
    "members: no end": Attack(lambda it: archive(it.manifest, it.members, b"")),
    "members: something after the end": Attack(lambda it: archive(it.manifest, it.members, END + b"more")),
    "members: padding that is not zero": Attack(partial(first_is, lambda first, _: first[:-1] + b"x")),
    "content: larger than promised": Attack(partial(sized, 512)),
    "content: smaller than promised": Attack(partial(sized, -512)),
    "content: longer than its header says": Attack(
        partial(first_is, lambda first, blob: first[:BLOCK] + padded(blob + bytes(BLOCK)))
    ),
    "content: shorter than its header says": Attack(
        partial(first_is, lambda first, blob: first[:BLOCK] + padded(blob[:-BLOCK]))
    ),
    "content: empty": Attack(partial(sized, -(1 << 40))),
    "content: swapped": Attack(
        partial(
            with_members,
            lambda it: [header(path_of(it.blobs[0]), len(it.blobs[0])) + padded(it.blobs[0][::-1]), *it.members[1:]],
        )
    ),
    "content: names swapped": Attack(
        partial(
            with_members,
            lambda it: [
                member(path_of(it.blobs[1]), it.blobs[0]),
                member(path_of(it.blobs[0]), it.blobs[1]),
                *it.members[2:],
            ],
        )
    ),
    "frames: trailing byte": Attack(lambda it: it.whole + b"x"),
    "frames: trailing zeros": Attack(lambda it: it.whole + bytes(4096)),
    "frames: the bundle twice": Attack(lambda it: it.whole * 2),
    "frames: a tar after it": Attack(lambda it: it.whole + frame(member("../escape", b"x"))),
    **{
        f"frames: {title} {where}": Attack(partial(between, piece, place))
        for title, piece in {"skippable": skippable(b"hidden"), "empty": frame(b"")}.items()
        for where, place in {"first": 0, "inside": 1, "last": 3}.items()
    },
    "frames: sizes untold": Attack(partial(reframed, write_content_size=False)),
    "frames: a dictionary": Attack(with_a_dictionary),
    "frames: the id of a dictionary": Attack(with_a_dictionary_id),
    "frames: legacy magic": Attack(lambda it: b"\x27" + it.whole[1:]),
    "frames: more than the header says": Attack(
        lambda it: head(BLOCK) + block(0, 2 * BLOCK, bytes(2 * BLOCK), last=True) + it.whole
    ),
    "frames: less than the header says": Attack(
        lambda it: head(MIB) + block(0, BLOCK, bytes(BLOCK), last=True) + it.whole
    ),
    "frames: without checksums": Attack(partial(reframed, write_checksum=False), Stop.NOWHERE),
    "frames: at another level": Attack(partial(reframed, write_checksum=True), Stop.NOWHERE),
    "frames: one for all": Attack(
        lambda it: frame(member("manifest.json", it.manifest) + b"".join(it.members) + END), Stop.NOWHERE
    ),
    "manifest: a newer format": Attack(partial(altered, lambda document: document.update(format=2))),
    "manifest: an older format": Attack(partial(altered, lambda document: document.update(format=0))),
    "manifest: a format of other digits": Attack(partial(altered, lambda document: document.update(format="01"))),
    "manifest: a format that is no number": Attack(partial(altered, lambda document: document.update(format="true"))),
    "manifest: a huge format": Attack(partial(altered, lambda document: document.update(format="9" * 5000))),
    "manifest: format last": Attack(
        lambda it: archive(
            json.dumps(it.document(), sort_keys=True, separators=(",", ":")).encode() + b"\n", it.members
        )
    ),
    "manifest: pretty": Attack(lambda it: archive(json.dumps(it.document(), indent=1).encode(), it.members)),
    "manifest: empty": Attack(lambda it: archive(b"", it.members)),
    "manifest: no line's end": Attack(lambda it: archive(it.manifest[:-1], it.members)),
    "manifest: two of them": Attack(lambda it: archive(it.manifest * 2, it.members)),
    "manifest: field twice": Attack(
        lambda it: archive(it.manifest.replace(b'"size":', b'"size":1,"size":', 1), it.members)
    ),
    "manifest: field of the future": Attack(partial(altered, lambda document: document.update(zzz=1))),
    "manifest: field missing": Attack(partial(altered, lambda document: document.pop("sources"))),
    "manifest: escaped letters": Attack(
        lambda it: archive(it.manifest.replace(b"sha256:", b"sha25\\u0036:", 1), it.members)
    ),
    "manifest: half a surrogate pair": Attack(
        partial(altered, lambda document: document["deployments"][0].update({"x": "\ud800"}))
    ),
    "manifest: a number that no double holds": Attack(
        lambda it: archive(it.manifest.replace(b'"deployments":[{', b'"deployments":[{"a":1e999,', 1), it.members)
    ),
    "manifest: NaN": Attack(
        lambda it: archive(it.manifest.replace(b'"deployments":[{', b'"deployments":[{"a":NaN,', 1), it.members)
    ),
    "manifest: a line break in a field's name": Attack(entry_with("a\nb\x1b[31m", 1)),
    "manifest: another's digest": Attack(partial(altered, listing_anothers_digest)),
    "manifest: another digest": Attack(artifact_with("digest", digest_bytes(b"other"))),
    "manifest: a digest in upper case": Attack(artifact_with("digest", "sha256:" + "AB" * 32)),
    "manifest: a digest with a path": Attack(artifact_with("digest", "sha256:../../" + "a" * 58)),
    "manifest: a digest and a line's end": Attack(artifact_with("digest", "sha256:" + "a" * 64 + "\n")),
    "manifest: a size that is larger": Attack(artifact_with("size", 7081)),
    "manifest: a size of nothing": Attack(artifact_with("size", 0)),
    "manifest: a size below nothing": Attack(artifact_with("size", -1)),
    "manifest: a size with a point": Attack(artifact_with("size", 7080.0)),
    "manifest: a size that is true": Attack(artifact_with("size", True)),
    "manifest: a huge size": Attack(artifact_with("size", 1 << 60)),
    "manifest: an artifact of another kind": Attack(
        partial(altered, lambda document: document["entries"][0]["artifacts"].update({"../x": {}}))
    ),
    "manifest: an entry twice": Attack(partial(altered, entry_twice)),
    "manifest: a deployment that is not there": Attack(
        partial(altered, lambda document: document["entries"][0]["reached"].update(deployment=1))
    ),
    "manifest: a target that is not there": Attack(key_with("target", "cuda:80")),
    "manifest: a target in other digits": Attack(key_with("target", "cuda:９０")),
    "manifest: a target with zeros": Attack(key_with("target", "cuda:090")),
    "manifest: a target with a huge warp": Attack(key_with("target", "cuda:90/" + "9" * 5000)),
    **{
        f"stem: {title}": Attack(entry_with("name", stem))
        for title, stem in {
            "slash": "a/b",
            "traversal": "../escape",
            "two dots": "..",
            "absolute": "/etc/escape",
            "backslash": "a\\b",
            "NUL": "a\0b",
            "leading dot": ".hidden",
            "newline": "a\nb",
            "empty": "",
            "too long": "a" * 151,
            "too long in bytes": "ｋ" * 150,
            "a group file's": "__grp__a",
        }.items()
    },
    **{
        f"kernel: {title}": Attack(partial(kernel_called, name))
        for title, name in {
            "traversal": "../../escape:kernel",
            "absolute": "/etc/escape:kernel",
            "no module": ":kernel",
            "no colon": "kernel",
            "NUL": "a\0b:kernel",
            "escape sequence": "a.b:\x1b[31mkernel",
        }.items()
    },
    **{
        f"helper: {title}": Attack(helped(field, value))
        for title, (field, value) in {
            "of another name": ("name", "evil"),
            "with a slash": ("name", "../cuda_utils"),
            "with a slash at its end": ("suffix", ".x/../../escape.so"),
            "that is no shared object": ("suffix", ".py"),
            "with a very long end": ("suffix", "." + "a" * 300 + ".so"),
            "of a strange machine": ("machine", "../x86_64"),
            "of a strange glibc": ("glibc", "2.17; rm"),
            "of endless glibc": ("glibc", "2" + ".1" * 999),
            "whose source is no digest": ("source", "sha256:../../escape"),
        }.items()
    },
    "artifact: metadata that is no JSON": Attack(partial(replaced, "json", b"import os"), Stop.LAYING),
    "artifact: metadata that is a list": Attack(partial(replaced, "json", b"[]"), Stop.LAYING),
    "artifact: metadata without fields": Attack(partial(replaced, "json", b"{}"), Stop.LAYING),
    "artifact: metadata nested deeply": Attack(
        partial(replaced, "json", b'{"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), Stop.LAYING
    ),
    "artifact: metadata with a huge number": Attack(
        partial(replaced, "json", b'{"name":"k","num_warps":' + b"9" * 100_000 + b"}"), Stop.LAYING
    ),
    "artifact: code that is no ELF file": Attack(partial(replaced, "cubin", b"MZ"), Stop.LAYING),
    "artifact: code that is cut": Attack(
        lambda it: replaced("cubin", it.blobs[0][: len(it.blobs[0]) // 2], it), Stop.LAYING
    ),
    "artifact: code of another architecture": Attack(of_another_architecture, Stop.LAYING),
    "key: an option of another kind": Attack(option("num_warps", "four"), Stop.FITTING),
    "key: an option that Triton refuses": Attack(option("num_warps", 3), Stop.FITTING),
    "key: a dtype that Triton does not have": Attack(key_with("constexprs", [[[0], {"dtype": "evil"}]]), Stop.FITTING),
    "key: nested deeply": Attack(key_with("signature", [["a", json.loads("[" * 60 + "]" * 60)]])),
    "key: two entries that land on one file": Attack(same_place_twice, Stop.FITTING),
}
