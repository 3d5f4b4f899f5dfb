"""Stamps: that an install was done, so that one like it has nothing to do.

What an install writes follows from the bundle, its options, this Python's Triton with its tools, the engine's files,
the environment, and what lay in the cache. To ask Triton takes longer than to install, so an install that is done
leaves a stamp beside its receipt: a digest of all that it followed from (of files, what the file system says of them),
that of the receipt, and what it had to say. The next one compares, and reads nothing else: no artifact, no kernel, no
compiler. Where anything differs, or a file of the receipt is not older than the stamp, it does its work as if there
were none. So a stamp that is lost, copied or damaged costs time alone.

What changes without the file system's knowing is found by ``aotpack verify``, and not here.
"""

import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aotpack import __version__
from aotpack.archive import ArchiveReader
from aotpack.atomic import write_atomically
from aotpack.digests import canonical_json, digest_bytes, digest_json, hex_of
from aotpack.documents import Node, parse_canonical, read_whole
from aotpack.errors import CacheError, DocumentError
from aotpack.findings import Finding
from aotpack.landing import at_work, remove_file
from aotpack.policy import Demand, satisfy
from aotpack.receipts import receipt_path
from aotpack.signatures import find_signatures
from aotpack.targets import Target

FORMAT = 1
MAX_STAMP = 16 << 20

# What is set anew for each process or container, and means nothing to a compiler. Whatever else is set counts.
_PASSING = frozenset({"_", "COLUMNS", "HOSTNAME", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM"})
_PASSING_PREFIX = "KUBERNETES_"

_LOADER_CACHE = "/etc/ld.so.cache"
"""Where ``ldconfig -p`` reads which directory has libcuda."""

_GPUS = Path("/proc/driver/nvidia/gpus")
_GPUS_UNTOLD = Path("/dev/dxg")
"""Where this is, under WSL, the driver tells nothing of its GPUs below /proc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What an install has to say.

    Attributes:
        bundle: the bundle's digest.
        cache: the cache directory.
        written: kernels that were laid into the cache now.
        present: kernels that were there already.
        findings: what was accepted or refused, and what else is to be known.
        refused: whether anything was refused.
        shifted: how many kernels stand in other lines of the engine here.
        compared: whether the engine's files were here to compare with.
    """

    bundle: str
    cache: Path
    written: int
    present: int
    findings: tuple[Finding, ...]
    refused: bool
    shifted: int
    compared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an install is asked for.

    Attributes:
        path: the bundle's file.
        bundle: its digest.
        signatures: the digest of its signatures, or "".
        cache: the cache directory.
        targets: of the bundle's, which to install.
        engine: the engine that will serve as it was named: a directory, a wheel, a release; None where none was.
        other_ptxas: as ``fit_bundle`` takes it.
        libcuda: as ``place_helpers`` takes it.
        devices: as ``choose_devices`` takes it.
    """

    path: Path
    bundle: str
    signatures: str
    cache: Path
    targets: tuple[Target, ...]
    engine: str | None
    other_ptxas: str | None
    libcuda: tuple[str, ...]
    devices: tuple[str, ...]


def ask(
    path: Path,
    cache: Path,
    *,
    demands: Iterable[Demand],
    signature: Path | None = None,
    targets: Sequence[Target] = (),
    engine: str | None = None,
    other_ptxas: str | None = None,
    libcuda: Sequence[str] = (),
    devices: Sequence[str] = (),
) -> Asked:
    """What an install is asked for, of a bundle whose signatures satisfy every demand.

    Raises:
        BundleError: the bundle cannot be opened, or is none.
        SignatureError, TrustError, UsageError: as ``find_signatures`` and ``satisfy``.
    """
    with ArchiveReader(path) as reader:
        bundle = digest_bytes(reader.read_manifest())
    signatures = find_signatures(path, bundle, signature)
    satisfy(str(path), bundle, signatures, demands)
    return Asked(
        path=path,
        bundle=bundle,
        signatures=digest_bytes(signatures.to_bytes()) if signatures else "",
        cache=cache,
        targets=tuple(targets),
        engine=engine,
        other_ptxas=other_ptxas,
        libcuda=tuple(libcuda),
        devices=tuple(devices),
    )


def find_stamp(asked: Asked) -> Summary | None:
    """What an install would say that has nothing to do; None where it may have something to do."""
    path = _path(asked.cache, asked.bundle)
    try:
        root = parse_canonical(read_whole(path, MAX_STAMP))
        if root.field("format").integer() != FORMAT:
            return None
        root.only(
            *("format", "followed", "receipt", "engine", "files"),
            *("present", "findings", "refused", "shifted", "compared"),
        )
        files = [file.text() for file in root.field("files").items()]
        if root.field("followed").digest() != basis(asked, root.field("engine").text(), files):
            return None
        receipt = receipt_path(asked.cache, asked.bundle).read_bytes()
        if digest_bytes(receipt) != root.field("receipt").digest():
            return None
        before = path.stat().st_ctime_ns
        if not all(_is_older(f"{asked.cache}/{file['path']}", before) for file in json.loads(receipt)["files"]):
            return None
        return Summary(
            bundle=asked.bundle,
            cache=asked.cache,
            written=0,
            present=root.field("present").integer(),
            findings=tuple(_read_finding(finding) for finding in root.field("findings").items()),
            refused=root.field("refused").boolean(),
            shifted=root.field("shifted").integer(),
            compared=root.field("compared").boolean(),
        )
    except (OSError, DocumentError, ValueError):
        return None


def leave_stamp(
    asked: Asked, engine: str, files: Sequence[str], followed: str | None, summary: Summary, receipt: bytes
) -> None:
    """Leave a stamp for an install that was done; none where that is refused, or something has changed since.

    Args:
        asked: what it was asked for.
        engine: as ``basis`` takes it.
        files: as ``basis`` takes them.
        followed: the ``basis`` as it was before.
        summary: what it said.
        receipt: the content of its receipt.
    """
    if followed is None or followed != basis(asked, engine, files):
        return
    document = {
        "format": FORMAT,
        "followed": followed,
        "receipt": digest_bytes(receipt),
        "engine": engine,
        "files": list(files),
        "present": summary.written + summary.present,
        "findings": [[finding.code, finding.subject, finding.detail, finding.hint] for finding in summary.findings],
        "refused": summary.refused,
        "shifted": summary.shifted,
        "compared": summary.compared,
    }
    data = f"{canonical_json(document)}\n".encode()
    path = _path(asked.cache, asked.bundle)
    with suppress(OSError, CacheError), at_work(asked.cache):
        if receipt_path(asked.cache, asked.bundle).read_bytes() == receipt:
            write_atomically(path, [data])


def remove_stamp(cache: Path, bundle: str) -> None:
    """Remove the stamp of a bundle, by its digest, if there is one.

    Raises:
        OSError: it cannot be removed.
    """
    remove_file(_path(cache, bundle))


def _path(cache: Path, bundle: str) -> Path:
    return receipt_path(cache, bundle).with_name(f"{hex_of(bundle)}.stamp")


def _read_finding(node: Node) -> Finding:
    code, subject, detail, hint = (part.string() for part in node.items())
    return Finding(code=code, subject=subject, detail=detail, hint=hint)


def _is_older(path: str, moment: int) -> bool:
    found = os.lstat(path)
    return stat.S_ISREG(found.st_mode) and found.st_ctime_ns < moment


def basis(asked: Asked, engine: str, files: Sequence[str]) -> str | None:
    """The digest of all that an install follows from; None where that cannot be told.

    Args:
        asked: what it is asked for.
        engine: the name of the engine that it looks for in this environment, where none is named.
        files: the engine's that it is compared with, whether or not they are there.
    """
    triton = _place_of("triton")
    if triton is None or _GPUS_UNTOLD.exists():
        return None
    return digest_json(
        {
            "aotpack": __version__,
            "path": os.path.abspath(asked.path),  # noqa: PTH100  # as the receipt has it
            "bundle": asked.bundle,
            "signatures": asked.signatures,
            "cache": str(asked.cache),
            "targets": [str(target) for target in asked.targets],
            "engine": _describe_engine(
                engine if asked.engine is None else asked.engine, named=asked.engine is not None
            ),
            "other_ptxas": asked.other_ptxas,
            "libcuda": list(asked.libcuda),
            "devices": list(asked.devices),
            "python": [sys.executable, sys.version, *sys.path],
            "environment": _environment(),
            "gpus": _gpus(),
            "triton": list(_tree(str(triton))),
            "files": [_described(path) for path in (*files, *_tools())],
        }
    )


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _PASSING and not name.startswith(_PASSING_PREFIX)
    }


def _tools() -> Iterator[str]:
    """Files outside of Triton that its keys and native helpers may hang on, whether or not they are there."""
    yield _LOADER_CACHE
    values = [value for name, value in sorted(os.environ.items()) if name.startswith("TRITON_")]
    yield from filter(os.path.isfile, values)


def _gpus() -> list[str]:
    try:
        return sorted((place / "information").read_text("utf-8", "replace") for place in _GPUS.iterdir())
    except OSError:
        return []


def _place_of(package: str) -> Path | None:
    """The directory of a package of this environment, which is not imported."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found is not None and found.origin else None


def _describe_engine(engine: str, *, named: bool) -> list[Any]:
    """Where an engine is, and what tells its release: the names of what describes distributions, or its wheel."""
    found = None if named else _place_of(engine)
    if found is None and not named:
        return [engine]
    place = os.path.abspath(engine if found is None else found.parent)  # noqa: PTH100  # as the bundle's
    try:
        return [engine, place, *sorted(name for name in os.listdir(place) if name.endswith("-info"))]  # noqa: PTH208
    except OSError:
        return [engine, *_described(place)]


def _tree(directory: str) -> Iterator[list[Any]]:
    """Every file below a directory but compiled Python, in an order of their own."""
    with os.scandir(directory) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _tree(entry.path)
            else:
                yield _described(entry.path)


def _described(path: str) -> list[Any]:
    """What the file system says of a file: more than its time, which some build systems set to one for all."""
    try:
        found = os.stat(path)  # noqa: PTH116  # of hundreds
    except (OSError, ValueError):
        return [path]
    return [path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
