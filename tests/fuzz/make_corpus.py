"""Make the corpus anew: small seeds for each target, out of the manifest of a real bundle.

    python -m tests.fuzz.make_corpus BUNDLE

No code of a kernel goes in: of BUNDLE the manifest alone is read, cut to a few entries, and what it lists are blobs
made up here. What a fuzzer found stays: those seeds begin with ``found-``.
"""

import argparse
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from aotpack.bundle import open_bundle
from aotpack.digests import canonical_json, digest_bytes
from aotpack.keys import CompileKey
from aotpack.manifest import Artifact, Entry, Helper, Manifest
from aotpack.receipts import InstalledFile, Receipt
from aotpack.targets import Target
from tests.fuzz.mutators import Member, archive, blob, member, put_together
from tests.fuzz.targets import CORPUS

SM90, SM100 = Target("cuda", 90), Target("cuda", 100)
SUFFIX = ".cpython-311-x86_64-linux-gnu.so"


def elf(machine: int, flags: int, content: bytes = b"") -> bytes:
    """The header of an ELF file, with no section and no program header, and what follows it."""
    ident = b"\x7fELF" + bytes([2, 1, 1, 65]) + bytes(8)
    fields = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 64, flags, 64, 0, 0, 64, 0, 0)
    return ident + fields + content


def shared_object() -> bytes:
    """An ELF file that needs GLIBC_2.14: a section of strings, and one that names the version."""
    strings = b"\0libc.so.6\0GLIBC_2.14\0"
    needs = struct.pack("<HHIII", 1, 1, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 0, 11, 0)
    sections = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64, len(strings), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 0, 0x6FFFFFFE, 0, 0, 64 + len(strings), len(needs), 0, 1, 1, 0)
    header = bytearray(elf(62, 0))
    struct.pack_into("<Q", header, 40, 64 + len(strings) + len(needs))
    struct.pack_into("<HH", header, 58, 64, 2)
    return bytes(header) + strings + needs + sections


def cut(manifest: Manifest) -> Manifest:
    """A manifest with one entry, and nothing of what others need."""
    name = min(manifest.entries, key=lambda entry: len(entry.key.line)).key.kernel
    reached = {function.name for function in manifest.sources.closure(name)}
    modules = {name.partition(":")[0] for name in reached}
    return replace(
        manifest,
        toolchain=replace(manifest.toolchain, sources=manifest.toolchain.sources[:2]),
        families=tuple(kernel.family for kernel in manifest.kernels if kernel.name == name),
        deployments=manifest.deployments[:1],
        kernels=tuple(kernel for kernel in manifest.kernels if kernel.name == name),
        sources=replace(
            manifest.sources,
            functions=tuple(function for function in manifest.sources.functions if function.name in reached),
            modules=tuple(pair for pair in manifest.sources.modules if pair[0] in modules),
        ),
        entries=tuple(
            replace(entry, reached=replace(entry.reached, deployment=0))
            for entry in manifest.entries
            if entry.key.kernel == name
        )[:1],
        helpers=(),
        results=(),
    )


def artifact(content: bytes) -> Artifact:
    """A blob as a manifest lists it."""
    return Artifact(digest=digest_bytes(content), size=len(content))


def with_blobs(manifest: Manifest) -> tuple[Manifest, dict[str, bytes]]:
    """A manifest with blobs made up, for two targets and with a native helper."""
    blobs: dict[str, bytes] = {}

    def put(content: bytes) -> Artifact:
        blobs[digest_bytes(content)] = content
        return artifact(content)

    def entry(old: Entry, target: Target, number: int) -> Entry:
        key: CompileKey = replace(old.key, target=target)
        described = {"backend": "cuda", "arch": target.arch, "warp_size": 32}
        metadata = {"name": old.name, "num_ctas": 1, "num_warps": 4, "shared": number, "target": described}
        cubin = elf(190, target.arch << 8, b"made up" * number)
        return replace(
            old, key=key, artifacts=(("cubin", put(cubin)), ("json", put(canonical_json(metadata).encode())))
        )

    entries = tuple(
        entry(old, target, number) for target in (SM90, SM100) for number, old in enumerate(manifest.entries, start=1)
    )
    helper = Helper(
        name="cuda_utils",
        source=digest_bytes(b"C"),
        machine="x86_64",
        suffix=SUFFIX,
        glibc="2.14",
        artifact=put(shared_object()),
    )
    text = dict(manifest.toolchain.assemblers)[str(SM90)]
    toolchain = replace(manifest.toolchain, assemblers=((str(SM100), text), (str(SM90), text)))
    made = replace(manifest, toolchain=toolchain, targets=(SM90, SM100), entries=entries, helpers=(helper,))
    return made, blobs


def archives(manifest: Manifest, blobs: dict[str, bytes]) -> dict[str, bytes]:
    """An archive as written, and others that are not."""
    ordered = [artifact.digest for frame in manifest.frames() for artifact in frame]
    members = [member("manifest.json", manifest.to_bytes()), *(blob(blobs[digest]) for digest in ordered)]
    kernels, helper = members[1:-1], members[-1]
    sm90 = [one.spell() for one in kernels[: len(manifest.blobs(SM90))]]
    sm100 = [one.spell() for one in kernels[len(sm90) :]]
    whole = [members[0].spell(), b"".join(sm90), b"".join(sm100), helper.spell(), bytes(1024)]
    empty = replace(manifest, entries=(), helpers=())
    return {
        "whole": put_together(whole),
        "one-frame": put_together([b"".join(whole)]),
        "no-blobs": archive([member("manifest.json", empty.to_bytes())]),
        "manifest-alone": put_together(whole[:1]),
        "link": archive([members[0], Member(members[1].header[:156] + b"2/etc/passwd" + members[1].header[168:], b"")]),
        "swapped": archive([members[0], *reversed(members[1:])]),
        "twice": put_together(whole) * 2,
    }


POLICY = b"format = 1\nrequire-signature = false\nexpires = 2999-06-30T00:00:00Z\n"

RECORDS = (
    '{"kernel": "a.b.kernel", "signature": {"x": "*bf16"}, "constexprs": [[[1], 16], [[2], Infinity]], '
    '"attrs": [[[0], [["tt.divisibility", 16]]]], "options": {"num_warps": 4}}\n'
)


def launches(manifest: Manifest) -> bytes:
    """A file of records with the build, a launch that was a miss, and one that cannot be spelled."""
    build = {"toolchain": manifest.toolchain.to_json(), "libtriton": "", "python": "3.11.7"}
    function = {"name": "a:k", "line": 1, "text": digest_bytes(b""), "constants": {"BLOCK": "16"}}
    launch = {
        "kernel": manifest.entries[0].key.kernel,
        "name": manifest.entries[0].name,
        "cache_key": "0" * 64,
        "target": "cuda:90",
        "hit": False,
        "milliseconds": 12.5,
        "cache": "/cache",
        "key": manifest.entries[0].key.to_json(),
        "exact": True,
        "problem": "",
        "source": {"cache_key": "0" * 64, "functions": [function]},
        "build": digest_bytes(canonical_json(build).encode()),
    }
    lines = [{"meta": {"build": build}}, {"launch": launch}, {"launch": {**launch, "key": None, "problem": "odd"}}]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def receipts(manifest: Manifest) -> dict[str, bytes]:
    """A receipt as an install writes it, and others that point elsewhere."""
    digest = digest_bytes(b"")
    name = manifest.entries[0].name
    files = ("A" * 52 + f"/{name}.cubin", "A" * 52 + f"/__grp__{name}.json", ".aotpack/helpers/" + "0" * 64 + "/a.so")
    receipt = Receipt(
        bundle="sha256:" + "0" * 64,
        name="bundle.tar.zst",
        source=Path("/bundles/bundle.tar.zst"),
        cache=Path("/cache"),
        accepted=("another ptxas: it is the same",),
        files=tuple(InstalledFile(path=path, digest=digest) for path in files),
    )
    outside = InstalledFile(path="../x", digest=digest)
    return {
        "whole": receipt.to_bytes(),
        "bare": replace(receipt, source=None, accepted=(), files=()).to_bytes(),
        "outside": replace(receipt, files=(outside,)).to_bytes(),
    }


def carries(manifest: Manifest) -> dict[str, bytes]:
    """Stores: the manifest alone, and with what a wheel's carry."""
    data = manifest.to_bytes()
    part = {"bundle": digest_bytes(data), "targets": ["cuda:90"], "helpers": SUFFIX}
    return {
        "whole": data,
        "part": data + canonical_json(part).encode() + b"\n",
        "no-helpers": data + canonical_json({**part, "helpers": None}).encode() + b"\n",
    }


def main() -> None:
    """Write every seed that is made here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    manifest, blobs = with_blobs(cut(open_bundle(parser.parse_args().bundle).manifest))
    document: dict[str, Any] = {"a": [1, -1.5, True, None, "x"], "b": {"": digest_bytes(b"")}, "c": [[[]], {}]}
    made = {
        "archive": archives(manifest, blobs),
        "manifest": {
            "whole": manifest.to_bytes(),
            "empty": replace(manifest, entries=(), helpers=(), kernels=(), targets=()).to_bytes(),
            "newer": manifest.to_bytes().replace(b'"format":1', b'"format":2'),
        },
        "store": carries(manifest),
        "receipt": receipts(manifest),
        "document": {"all-kinds": canonical_json(document).encode(), "deep": b"[" * 2000, "twice": b'{"a":1,"a":2}'},
        "record": {"old": RECORDS.encode(), "launches": launches(manifest)},
        "signatures": {"two": (CORPUS.parents[1] / "golden" / "signatures.txt").read_bytes().splitlines(True)[0]},
        "policy": {"whole": POLICY},
        "elf": {"cubin": elf(190, 90 << 8), "shared-object": shared_object(), "truncated": elf(190, 0)[:40]},
    }
    for target, seeds in made.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if not old.name.startswith("found-"):
                old.unlink()
        for name, data in seeds.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
