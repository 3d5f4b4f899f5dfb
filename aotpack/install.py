"""Installing: a bundle's kernels laid into Triton's cache directory, and taken out again.

What always holds: nothing is written into the cache before every digest has been checked; an entry appears in it
whole, by one rename; an entry that Triton compiled itself is left as it is; and what an install wrote stands in a
receipt, written before the first entry, so that even an install that was killed can be taken out.

Beside the entries the cache directory gets one directory of ours, ``.aotpack``, with the receipts and, while an
install runs, what it stages. Triton never looks there.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aotpack.atomic import sync_directory, write_atomically
from aotpack.bundle import Bundle
from aotpack.digests import digest_bytes, digest_file
from aotpack.errors import CacheError, IncompatibleError, UsageError
from aotpack.findings import Finding
from aotpack.helpers import Placed, place_helpers
from aotpack.manifest import Entry
from aotpack.receipts import HELPERS, OURS, InstalledFile, Receipt, read_receipts
from aotpack.targets import Target
from aotpack.toolchain import KeyMaker, local_toolchain
from aotpack.tritoncache import GROUP_PREFIX, CacheEntry, is_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An install's result.

    Attributes:
        receipt: what it wrote, or had written before.
        written: entries that were laid into the cache now.
        present: entries that were there already: from an earlier install, or compiled by Triton.
        findings: what the bundle has and this machine cannot use.
        notes: what a user should know, without anything having been left out.
    """

    receipt: Receipt
    written: int
    present: int
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """An uninstall's result.

    Attributes:
        receipt: what had been installed.
        removed: files that were taken out.
        shared: files that stay, because another bundle's receipt lists them too.
        findings: files that stay, because they are not what was installed.
    """

    receipt: Receipt
    removed: int
    shared: int
    findings: tuple[Finding, ...]


def install_bundle(
    bundle: Bundle, cache: Path, *, targets: Sequence[Target] = (), libcuda: Sequence[str] = ()
) -> Installed:
    """Lay a bundle's kernels into a cache directory, under the keys that this machine's Triton will ask for.

    Installing what is installed changes nothing.

    Args:
        bundle: the bundle.
        cache: the cache directory; it is created where it is missing.
        targets: of the bundle's, which to install; none means all.
        libcuda: where libcuda will be, see ``aotpack.helpers.place_helpers``.

    Raises:
        UsageError: the bundle does not have such a target.
        ToolchainError: there is no Triton here.
        IncompatibleError: the kernels would not be found here, or must not be used; the message says which part
            of the toolchain differs.
        BundleError: the bundle is damaged; the cache is as it was.
        CacheError: the cache cannot be written, or the disk is full; no half entry is left.
    """
    entries = _entries_for(bundle, targets)
    keys = _cache_keys(bundle, entries)
    blobs = _blobs(bundle, entries)
    placed = place_helpers(
        bundle.manifest.helpers,
        [(entry.key, blobs[entry.metadata.digest]) for entry in entries],
        blobs,
        libcuda=libcuda,
    )
    with _reported(cache):
        receipt, written, present = _install(bundle, cache, _cache_entries(blobs, entries, keys), placed)
    return Installed(receipt=receipt, written=written, present=present, findings=placed.refused, notes=placed.notes)


def _entries_for(bundle: Bundle, targets: Sequence[Target]) -> list[Entry]:
    available = bundle.manifest.targets
    for target in targets:
        if target not in available:
            raise UsageError(
                f"{bundle.path}: has no kernels for {target.short}; it has {', '.join(t.short for t in available)}"
            )
    wanted = set(targets) or set(available)
    return [entry for entry in bundle.manifest.entries if entry.key.target in wanted]


def _cache_keys(bundle: Bundle, entries: Sequence[Entry]) -> list[str]:
    toolchain = bundle.manifest.toolchain
    local = local_toolchain(bundle.manifest.targets)
    for difference in toolchain.differences(local):
        raise IncompatibleError(
            f"{bundle.path}: {difference}; its kernels would not be found, or not be the right ones: "
            f"use a bundle for Triton {local.triton}, or this bundle in the image it was built for"
        )
    maker = KeyMaker()
    sources = {kernel.name: kernel.cache_key for kernel in bundle.manifest.kernels}
    return [maker.key_of(entry.key, sources[entry.key.kernel]) for entry in entries]


@contextmanager
def _reported(cache: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line."""
    try:
        yield
    except OSError as error:
        where = error.filename or cache
        raise CacheError(
            f"{where}: {error.strerror or error}; the cache {cache} holds no half entry: "
            "free space or choose a writable directory with --cache-dir"
        ) from None


def _install(bundle: Bundle, cache: Path, entries: Sequence[CacheEntry], placed: Placed) -> tuple[Receipt, int, int]:
    with _staging(cache) as staging:
        earlier = {receipt.bundle: receipt for receipt in read_receipts(cache)}.get(bundle.digest)
        ours = set(earlier.files) if earlier else set()
        files: list[InstalledFile] = []
        staged: list[CacheEntry] = []
        present = 0
        for entry in entries:
            contents = entry.files(cache)
            listed = [
                InstalledFile(path=f"{entry.directory}/{name}", digest=digest_bytes(data))
                for name, data in contents.items()
            ]
            landing = cache / entry.directory
            if _lies_there(landing, contents):
                present += 1
                files += listed
            elif is_whole(landing, entry.name) and not ours.intersection(listed):
                present += 1  # Triton compiled it here: it works, and it is not ours to replace
            else:
                _stage(staging / entry.directory, contents)
                staged.append(entry)
                files += listed
        helpers = [
            (placement, InstalledFile(path=f"{placement.directory}/{placement.name}", digest=placement.digest))
            for placement in placed.placements
        ]
        # One that is there and not ours was compiled here: it works, and is not ours to replace.
        helpers = [(placement, file) for placement, file in helpers if not _is_theirs(cache / file.path, file, ours)]
        files += [file for _, file in helpers]
        receipt = Receipt(
            bundle=bundle.digest, name=bundle.path.name, cache=cache, files=tuple(sorted(files, key=_order))
        )
        if earlier != receipt:
            receipt.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(receipt.path, [receipt.to_bytes()])
        for entry in staged:
            _land(staging / entry.directory, cache / entry.directory, entry.name)
        for placement, file in helpers:
            if not _lies_there(cache / placement.directory, {placement.name: placement.content}):
                _make_directories(cache, placement.directory)
                write_atomically(cache / file.path, [placement.content])
        sync_directory(cache)
    return receipt, len(staged), present


def _order(file: InstalledFile) -> tuple[str, bool, str]:
    directory, _, name = file.path.partition("/")
    return directory, name.startswith(GROUP_PREFIX), name


def _is_theirs(path: Path, file: InstalledFile, ours: set[InstalledFile]) -> bool:
    return file not in ours and path.is_file() and path.stat().st_size > 0 and digest_file(path) != file.digest


def _make_directories(cache: Path, directory: str) -> None:
    """Make the directories down to one in the cache, for everyone to read whatever the umask."""
    below = cache
    for part in directory.split("/"):
        below /= part
        if not below.is_dir():
            below.mkdir(exist_ok=True)
            below.chmod(0o755)


def _blobs(bundle: Bundle, entries: Sequence[Entry]) -> dict[str, bytes]:
    """The contents of the entries and the helpers, after every digest in the bundle has been checked."""
    needed = {artifact.digest for entry in entries for _, artifact in entry.artifacts}
    needed |= {helper.artifact.digest for helper in bundle.manifest.helpers}
    return {digest: data for digest, data in bundle.blobs() if digest in needed}


def _cache_entries(blobs: dict[str, bytes], entries: Sequence[Entry], cache_keys: Sequence[str]) -> list[CacheEntry]:
    return [
        CacheEntry(
            cache_key=cache_key,
            name=entry.name,
            cubin=blobs[entry.cubin.digest],
            metadata=blobs[entry.metadata.digest],
        )
        for entry, cache_key in zip(entries, cache_keys, strict=True)
    ]


@contextmanager
def _staging(cache: Path) -> Iterator[Path]:
    """A directory beside the entries to stage in; what killed installs left there is removed."""
    home = cache / OURS
    if not cache.is_dir():
        cache.mkdir(parents=True)
    home.mkdir(exist_ok=True)
    for left in home.glob("staging-*"):
        _remove_if_abandoned(left)
    staging = Path(tempfile.mkdtemp(prefix="staging-", dir=home))
    try:
        handle = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # tells other installs that this one lives
            yield staging
        finally:
            os.close(handle)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_if_abandoned(left: Path) -> None:
    try:
        handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left, ignore_errors=True)
    except OSError:
        pass  # another install is at work in it
    finally:
        os.close(handle)


def _stage(directory: Path, contents: dict[str, bytes]) -> None:
    directory.mkdir()
    directory.chmod(0o755)
    for name, data in contents.items():
        with (directory / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())


def _lies_there(directory: Path, contents: dict[str, bytes]) -> bool:
    try:
        return all((directory / name).read_bytes() == data for name, data in contents.items())
    except OSError:
        return False


def _land(staged: Path, landing: Path, name: str) -> None:
    """Move a staged entry to its place: in one rename, or file by file where a broken entry is in the way."""
    try:
        staged.rename(landing)
    except OSError:
        if not landing.is_dir():
            raise
    else:
        return
    # The group file goes first and comes last, so that Triton never reads a mixture as an entry.
    group = f"{GROUP_PREFIX}{name}.json"
    (landing / group).unlink(missing_ok=True)
    for file in sorted(staged.iterdir(), key=lambda file: file.name == group):
        file.replace(landing / file.name)


def uninstall(receipt: Receipt) -> Removed:
    """Take out what an install wrote, and nothing else.

    A file that another receipt lists too stays, and so does one whose content is not what was installed.

    Raises:
        CacheError: the cache cannot be written.
    """
    cache = receipt.cache
    with _reported(cache):
        elsewhere = {file for other in read_receipts(cache) if other.bundle != receipt.bundle for file in other.files}
        removed = shared = 0
        findings: list[Finding] = []
        # Group files first: without one an entry is no entry, whatever happens in between.
        for file in sorted(receipt.files, key=lambda file: f"/{GROUP_PREFIX}" not in file.path):
            path = cache / file.path
            if file in elsewhere:
                shared += 1
            elif not path.exists():
                continue
            elif digest_file(path) != file.digest:
                findings.append(
                    Finding(code="I101", subject=str(path), detail="is not what was installed, and stays", hint="")
                )
            else:
                path.unlink()
                removed += 1
        _remove_empty({(cache / file.path).parent for file in receipt.files})
        receipt.path.unlink(missing_ok=True)
        _remove_empty([cache / HELPERS, receipt.path.parent, cache / OURS])
    return Removed(receipt=receipt, removed=removed, shared=shared, findings=tuple(findings))


def _remove_empty(directories: Iterable[Path]) -> None:
    for directory in directories:
        with suppress(OSError):  # not empty, or gone
            directory.rmdir()
