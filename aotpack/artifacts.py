"""Artifacts held against what the manifest says of them: that they are what Triton will take them for.

Digests say that a bundle is what somebody packed, and not that it was packed well: metadata that Triton would raise on
in the first request, or machine code of another architecture, is refused before it is laid anywhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from aotpack.documents import parse_document
from aotpack.elf import cuda_architecture
from aotpack.errors import BundleError, DocumentError
from aotpack.findings import Finding
from aotpack.manifest import Entry
from aotpack.targets import Target


def check_artifacts(entry: Entry, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    """What is wrong with the artifacts of an entry.

    Args:
        entry: the entry.
        contents: of its artifacts, by digest.
    """
    target = entry.key.target
    hint = "build the bundle again"
    if problem := wrong_code(contents[entry.cubin.digest], target.arch):
        yield Finding(code="V102", subject=entry.key.describe(), detail=problem, hint=hint)
    try:
        found = metadata_target(contents[entry.metadata.digest])
    except DocumentError as error:
        yield Finding(code="V103", subject=entry.key.describe(), detail=str(error), hint=hint)
    else:
        if found != target:
            detail = f"its metadata says {found}, its key {target}"
            yield Finding(code="V102", subject=entry.key.describe(), detail=detail, hint=hint)


def refuse_unfit(path: Path, entries: Iterable[Entry], contents: Mapping[str, bytes]) -> None:
    """Make sure that nothing is wrong with the artifacts of entries.

    Args:
        path: of their bundle, for the message.
        entries: the entries.
        contents: of their artifacts, by digest.

    Raises:
        BundleError: something is; the message says what of the first.
    """
    for entry in entries:
        for finding in check_artifacts(entry, contents):
            raise BundleError(f"{path}: {finding}")


def metadata_target(metadata: bytes) -> Target:
    """The target in an entry's metadata, all of whose fields that every Triton reads at load time are there.

    Those are ``CompiledKernel.__init__`` and ``_init_handles`` (triton/compiler/compiler.py) and ``pack_metadata``
    (backends/nvidia/compiler.py).

    Raises:
        DocumentError: Triton would raise on it.
    """
    root = parse_document(metadata)
    root.field("name").text()
    for name in ("num_warps", "num_ctas", "shared"):
        root.field(name).integer()
    target = root.field("target")
    return Target(
        target.field("backend").text(), target.field("arch").integer(), target.field("warp_size").integer(low=1)
    )


def wrong_code(cubin: bytes, arch: int) -> str:
    """What is wrong with a cubin that should be for ``arch``; nothing where it is right."""
    found = cuda_architecture(cubin)
    if found is None:
        return "its cubin is no whole ELF file of CUDA machine code"
    return "" if found == arch else f"its cubin is for sm_{found}, its metadata for sm_{arch}"
