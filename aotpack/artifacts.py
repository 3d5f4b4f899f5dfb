"""Artifacts held against what the manifest says of them: that they are what Triton will take them for.

Digests say that a bundle is what somebody packed, and not that it was packed well: metadata that Triton would raise on
in the first request, or machine code of another architecture, is refused before it is laid anywhere.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from aotpack.documents import Node
from aotpack.elf import cuda_architecture
from aotpack.errors import BundleError, DocumentError
from aotpack.findings import Finding
from aotpack.manifest import Entry
from aotpack.targets import Target
from aotpack.tritoncache import read_metadata


def check_artifacts(entry: Entry, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    """What is wrong with the artifacts of an entry.

    Args:
        entry: the entry.
        contents: of its artifacts, by digest.
    """
    for kind, artifact in entry.artifacts:
        if problem := _problem(kind, contents[artifact.digest], entry.key.target):
            yield _finding(problem, entry)


def refuse_unfit(
    path: Path, entries: Iterable[Entry], blobs: Iterable[tuple[str, bytes]]
) -> Iterator[tuple[str, bytes]]:
    """A bundle's blobs, each held against what entries say that it is before it is handed on.

    Args:
        path: of the bundle, for the message.
        entries: the entries.
        blobs: digests and contents.

    Raises:
        BundleError: something is wrong with one; the message says what of the first.
    """
    # What an artifact must be hangs on its kind and its target alone, and many entries may share it.
    uses: dict[str, dict[tuple[str, Target], Entry]] = {}
    for entry in entries:
        for kind, artifact in entry.artifacts:
            uses.setdefault(artifact.digest, {}).setdefault((kind, entry.key.target), entry)
    for digest, data in blobs:
        for (kind, target), entry in uses.get(digest, {}).items():
            if problem := _problem(kind, data, target):
                raise BundleError(f"{path}: {_finding(problem, entry)}")
        yield digest, data


def _finding(problem: tuple[str, str], entry: Entry) -> Finding:
    code, detail = problem
    return Finding(code=code, subject=entry.key.describe(), detail=detail, hint="build the bundle again")


def _problem(kind: str, data: bytes, target: Target) -> tuple[str, str] | None:
    """What is wrong with an artifact, as a code and in words."""
    if kind == "cubin":
        wrong = wrong_code(data, target.arch)
        return ("V102", wrong) if wrong else None
    try:
        found = metadata_target(data)
    except DocumentError as error:
        return "V103", str(error)
    return None if found == target else ("V102", f"its metadata says {found}, its key {target}")


def metadata_target(metadata: bytes) -> Target:
    """The target in an entry's metadata, all of whose fields that every Triton reads at load time are there.

    Those are ``CompiledKernel.__init__`` and ``_init_handles`` (triton/compiler/compiler.py) and ``pack_metadata``
    (backends/nvidia/compiler.py).

    Raises:
        DocumentError: Triton would raise on it.
    """
    root = Node(read_metadata(metadata))
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
