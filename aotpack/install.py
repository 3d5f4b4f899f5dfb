"""Installing: a bundle's kernels laid into Triton's cache directory, and taken out again.

What always holds: nothing appears in the cache before every digest has been checked and every demand of a signature
satisfied; an entry appears in it whole; an entry that Triton compiled itself is left as it is; and what an install
wrote stands in a receipt, written before the first entry, so that even an install that was killed can be taken out.

A bundle is read once: each artifact goes, as it is unpacked and its digest checked, into the staged directories of all
the entries that have it, and is not kept. So an install takes the memory of a manifest and a receipt, whatever the
artifacts have.

Beside the entries the cache directory gets one directory of ours, ``.aotpack``, with the receipts, the bundles'
manifests and signatures and, while an install runs, what it stages. Triton never looks there.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from aotpack.admission import admit_bundle, as_signed
from aotpack.artifacts import refuse_unfit
from aotpack.bundle import Bundle, open_bundle
from aotpack.devices import Chosen, choose_devices
from aotpack.digests import digest_bytes
from aotpack.engines import Engine
from aotpack.errors import BundleError, CacheError, IncompatibleError
from aotpack.findings import Finding
from aotpack.fitting import NOTHING, Fit, Placement, ResultPlacement, fit_bundle
from aotpack.garbage import searched_later
from aotpack.helpers import Placed, are_launchers_needed, place_helpers
from aotpack.landing import (
    Landing,
    Staged,
    at_work,
    commit,
    remove_empty,
    remove_file,
    stage,
    stage_directory,
    stage_file,
    staging,
)
from aotpack.manifest import Entry
from aotpack.policy import Demand, demands_here
from aotpack.receipts import (
    MANIFESTS,
    OURS,
    SIGNATURES,
    InstalledFile,
    Receipt,
    manifest_path,
    read_receipt,
    read_receipts,
    receipt_path,
    signatures_path,
)
from aotpack.signatures import Signatures
from aotpack.sources import EngineSources
from aotpack.stamps import Asked, Summary, basis, leave_stamp, remove_stamp
from aotpack.targets import Target
from aotpack.tritoncache import (
    GROUP_PREFIX,
    directory_name,
    group_file,
    group_name,
    group_root,
    is_tritons,
    metadata_file,
    original_metadata,
    read_metadata,
    reported,
    stem_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An install's result.

    Attributes:
        receipt: what it wrote, or had written before.
        written: entries that were laid into the cache now.
        present: entries that were there already: from an earlier install, or compiled by Triton.
        fit: what of the bundle's kernels serves here, and what was refused.
        helpers: where its native helpers went, and what of them was refused.
        chosen: whose results of autotuned kernels it wrote.
        is_whole: whether all that lies there for the bundle is listed in the receipt: nothing was left as somebody
            else had put it there.
    """

    receipt: Receipt
    written: int
    present: int
    fit: Fit
    helpers: Placed
    chosen: Chosen
    is_whole: bool

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What of the bundle does not serve here, and why."""
        return (*self.fit.refused, *self.helpers.refused)

    @property
    def summary(self) -> Summary:
        """What it has to say."""
        return Summary(
            bundle=self.receipt.bundle,
            cache=self.receipt.cache,
            written=self.written,
            present=self.present,
            findings=(*self.fit.accepted, *self.refused, *self.helpers.notes, *self.chosen.findings),
            refused=bool(self.refused),
            shifted=len(self.fit.shifted),
            compared=self.fit.compared,
        )


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


@searched_later()
def install_bundle(
    bundle: Bundle,
    cache: Path,
    *,
    targets: Sequence[Target] = (),
    engine: Engine | None = None,
    other_ptxas: str | None = None,
    libcuda: Sequence[str] = (),
    demands: Sequence[Demand] | None = None,
    signature: Path | None = None,
    devices: Sequence[str] = (),
) -> Installed:
    """Lay a bundle's kernels into a cache directory, under the keys that this machine's Triton will ask for.

    Installing what is installed changes nothing.

    Args:
        bundle: the bundle.
        cache: the cache directory; it is created where it is missing.
        targets: of the bundle's, which to install; none means all.
        engine: the engine that will serve, whose files the kernels are compared with; None where it is not here.
        other_ptxas: the reason why kernels may serve although the assembler here is another one; None refuses them.
        libcuda: where libcuda will be, see ``aotpack.helpers.place_helpers``.
        demands: what the bundle's signatures must satisfy; None means what this machine demands.
        signature: where its signatures lie; None means beside it, if anywhere.
        devices: what will serve, as ``choose_devices`` takes it.

    Raises:
        SignatureError, TrustError: as ``demands_here``, ``admit_bundle`` and ``as_signed``; the cache is as it was.
        UsageError, ToolchainError: as ``fit_bundle``.
        UsageError: as ``choose_devices``.
        IncompatibleError: as ``fit_bundle``, and where the engine has none of the kernels as they were.
        BundleError: the bundle is damaged, or what it holds is not what it should be; the cache is as it was.
        CacheError: the cache cannot be written, or the disk is full; no half entry is left.
    """
    demands = demands_here() if demands is None else demands
    signatures = admit_bundle(bundle, demands, signature)
    fit = fit_bundle(bundle, targets=targets, engine=engine, other_ptxas=other_ptxas)
    chosen = choose_devices(bundle.manifest, devices)
    blobs = _blobs(bundle, fit, demands)
    if not fit.placements:
        for _ in blobs:  # a bundle that is damaged is no reason to change anything
            pass
        with reported(cache):
            _withdraw(cache, _earlier(bundle, cache), fit.withdrawn)
        raise IncompatibleError(f"{bundle.path}: {NOTHING}: {fit.refused[0]}")
    kernels = _kernels(bundle, fit.placements)
    with reported(cache), at_work(cache):
        earlier = _earlier(bundle, cache)
        found = _look(cache, kernels)
        with staging(cache) if found.lacking else nullcontext() as place:
            staged, contents = _unpack(blobs, _needed(bundle, fit), cache, found.lacking, place)
            launches = [
                (placement.entry.key, contents[placement.entry.metadata.digest])
                for placement in fit.placements
                if placement.entry.metadata.digest in contents
            ]
            helpers = place_helpers(bundle.manifest.helpers, launches, contents, libcuda=libcuda)
            others = [*_result_landings(fit.results, chosen, contents), *helpers.landings, _manifest(bundle, cache)]
            others += _signatures(bundle, cache, signatures)
            gone = _withdraw(cache, earlier, fit.withdrawn)
            files, missing = _reckon(cache, earlier, gone, found, staged, others)
            receipt = _receipt(bundle, cache, earlier, fit, files)
            is_whole = all(file.path in files for one in others for file in one.installed()) and not found.theirs
            others.clear()
            changes = bool(staged or missing)
            if changes or earlier != receipt:
                try:
                    _commit(cache, place, staged, missing, receipt)
                except OSError:
                    # All may lie there, on a system that is read-only by now: where the bundle is can stay untold.
                    if changes or earlier is None or not _tells_of_one_install(earlier, receipt):
                        raise
                    receipt = earlier
    return Installed(
        receipt=receipt,
        written=len(found.lacking),
        present=len(kernels) - len(found.lacking),
        fit=fit,
        helpers=helpers,
        chosen=chosen,
        is_whole=is_whole,
    )


def install_as_asked(
    asked: Asked, engine: Callable[[str], Engine | None], demands: Sequence[Demand], signature: Path | None = None
) -> Summary:
    """Install as ``install_bundle`` does, and leave a stamp: so that ``find_stamp`` knows what was done.

    Args:
        asked: what is asked for.
        engine: gives the engine that will serve, by the name that the bundle has.
        demands: as ``install_bundle`` takes them.
        signature: as ``install_bundle`` takes it.

    Raises:
        UnsupportedFormatError, BundleError: as ``open_bundle``.
        AotpackError: as ``install_bundle``, or what ``engine`` raises.
    """
    bundle = open_bundle(asked.path)
    name = bundle.manifest.engine
    served = engine(name)
    files = [] if served is None else [*map(str, _files(served, bundle))]
    followed = basis(asked, name, files)
    installed = install_bundle(
        bundle,
        asked.cache,
        targets=asked.targets,
        engine=served,
        other_ptxas=asked.other_ptxas,
        libcuda=asked.libcuda,
        demands=demands,
        signature=signature,
        devices=asked.devices,
    )
    if installed.is_whole:
        leave_stamp(asked, name, files, followed, installed.summary, installed.receipt.to_bytes())
    return installed.summary


def _files(engine: Engine, bundle: Bundle) -> list[Path]:
    """The files of an engine that an install looks at, whether or not they are there."""
    return [*EngineSources(engine.root).candidates(bundle.manifest.sources), *engine.version_files]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """A kernel on its way into the cache.

    Attributes:
        entry: of the manifest.
        cache_key: 64 hex digits.
        directory: the name of its directory, which spells the key.
    """

    entry: Entry
    cache_key: str
    directory: str

    @property
    def names(self) -> tuple[str, str, str]:
        """Its files: machine code, metadata, and the group file, its commit mark."""
        return _names(self.entry.name)

    def files(self, digests: Sequence[str]) -> tuple[InstalledFile, ...]:
        """Its files as a receipt lists them."""
        return tuple(
            InstalledFile(path=f"{self.directory}/{name}", digest=digest)
            for name, digest in zip(self.names, digests, strict=True)
        )


@lru_cache(maxsize=256)
def _names(stem: str) -> tuple[str, str, str]:
    return f"{stem}.cubin", f"{stem}.json", group_name(stem)


def _kernels(bundle: Bundle, placements: Sequence[Placement]) -> list[_Kernel]:
    """The kernels by the keys that reach them, each once.

    Raises:
        BundleError: two entries with other code would lie in one place.
    """
    found: dict[tuple[str, str], _Kernel] = {}
    for placement in placements:
        entry = placement.entry
        for cache_key in placement.cache_keys:
            kernel = _Kernel(entry=entry, cache_key=cache_key, directory=directory_name(cache_key))
            if found.setdefault((kernel.directory, entry.name), kernel).entry.artifacts != entry.artifacts:
                raise BundleError(
                    f"{bundle.path}: two entries of it would lie in {kernel.directory}, and their code differs; "
                    "build the bundle again"
                )
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a cache has of kernels.

    Attributes:
        lying: files that are what would be laid, as a receipt lists them.
        theirs: paths of files of entries that Triton has compiled there, which stay as they are.
        lacking: the kernels that are not there, or are broken.
    """

    lying: tuple[InstalledFile, ...]
    theirs: tuple[str, ...]
    lacking: tuple[_Kernel, ...]


def _look(cache: Path, kernels: Iterable[_Kernel]) -> _Found:
    """Look for kernels in a cache; what the manifest lists is enough for that."""
    try:
        there = frozenset(path.name for path in cache.iterdir())
    except FileNotFoundError:
        there = frozenset()
    lying: list[InstalledFile] = []
    theirs: list[str] = []
    lacking: list[_Kernel] = []
    for kernel in kernels:
        place = cache / kernel.directory
        if kernel.directory not in there:
            lacking.append(kernel)
        elif files := _lying(cache, kernel):
            lying += files
        elif is_tritons(place, kernel.entry.name):
            theirs += (f"{kernel.directory}/{name}" for name in kernel.names)
        else:
            lacking.append(kernel)
    return _Found(lying=tuple(lying), theirs=tuple(theirs), lacking=tuple(lacking))


def _lying(cache: Path, kernel: _Kernel) -> tuple[InstalledFile, ...]:
    """A kernel's files where they are what would be laid; else none."""
    entry = kernel.entry
    try:
        cubin, metadata, group = ((cache / kernel.directory / name).read_bytes() for name in kernel.names)
    except OSError:
        return ()
    if digest_bytes(cubin) != entry.cubin.digest or group != group_file(cache, kernel.directory, entry.name):
        return ()
    if digest_bytes(original_metadata(metadata, kernel.cache_key)) != entry.metadata.digest:
        return ()
    return kernel.files((entry.cubin.digest, digest_bytes(metadata), digest_bytes(group)))


def _blobs(bundle: Bundle, fit: Fit, demands: Sequence[Demand]) -> Iterator[tuple[str, bytes]]:
    """Every artifact of a bundle, after its digest has been checked, and that it is what entries that serve say."""

    def signed() -> Iterator[tuple[str, bytes]]:
        with as_signed(demands):
            yield from bundle.blobs()

    return refuse_unfit(bundle.path, (placement.entry for placement in fit.placements), signed())


def _needed(bundle: Bundle, fit: Fit) -> set[str]:
    """The digests of the artifacts that are needed at once: few and small ones."""
    manifest = bundle.manifest
    needed = {kept.artifact.digest for kept in manifest.results}
    if manifest.helpers:
        needed |= {helper.artifact.digest for helper in manifest.helpers}
        if are_launchers_needed():
            needed |= {placement.entry.metadata.digest for placement in fit.placements}
    return needed


def _unpack(
    blobs: Iterable[tuple[str, bytes]],
    needed: AbstractSet[str],
    cache: Path,
    kernels: Sequence[_Kernel],
    place: Path | None,
) -> tuple[list[Staged], dict[str, bytes]]:
    """Stage kernels while their artifacts go by.

    Args:
        blobs: digests and contents of artifacts.
        needed: of which to keep the content.
        cache: where the kernels will lie.
        kernels: what to stage.
        place: where to stage; it may be None where there are no kernels.

    Returns:
        What is staged, and what is kept, by digest.
    """
    cubins: dict[str, list[int]] = {}
    metadata: dict[str, list[int]] = {}
    places = [f"{place}/{index}" for index in range(len(kernels))]
    for index, kernel in enumerate(kernels):
        stage_directory(places[index])
        cubins.setdefault(kernel.entry.cubin.digest, []).append(index)
        metadata.setdefault(kernel.entry.metadata.digest, []).append(index)
    kept: dict[str, bytes] = {}
    staged: list[Staged] = []
    for digest, data in blobs:
        for index in cubins.get(digest, ()):
            stage_file(places[index], kernels[index].names[0], data)
        if digest in metadata:
            described = read_metadata(data)
            for index in metadata[digest]:
                kernel = kernels[index]
                contents = (
                    metadata_file(described, kernel.cache_key),
                    group_file(cache, kernel.directory, kernel.entry.name),
                )
                for name, content in zip(kernel.names[1:], contents, strict=True):
                    stage_file(places[index], name, content)
                files = kernel.files((kernel.entry.cubin.digest, *map(digest_bytes, contents)))
                staged.append(Staged(place=places[index], directory=kernel.directory, files=files))
        if digest in needed:
            kept[digest] = data
    return staged, kept


def _result_landings(results: Iterable[ResultPlacement], chosen: Chosen, blobs: dict[str, bytes]) -> Iterator[Landing]:
    """Files of results, which are no entries: each is its own commit mark."""
    for placement in results:
        if placement.kept.result.device in chosen.devices:
            for cache_key in placement.cache_keys:
                file = (placement.kept.name, blobs[placement.kept.artifact.digest])
                yield Landing(directory=directory_name(cache_key), files=(file,))


def _withdraw(cache: Path, earlier: Receipt | None, cache_keys: Iterable[str]) -> set[str]:
    """Take out entries of an earlier install that must not serve this engine; the paths that are gone.

    Their keys are the engine's still where Triton's key does not hold what has changed, so they would be found.
    """
    directories = {directory_name(cache_key) for cache_key in cache_keys}
    files = [file for file in earlier.files if file.directory in directories] if earlier else []
    for file in sorted(files, key=lambda file: not file.name.startswith(GROUP_PREFIX)):
        _remove_if_ours(cache / file.path, file)
    remove_empty({cache / file.directory for file in files})
    return {file.path for file in files}


def _reckon(
    cache: Path,
    earlier: Receipt | None,
    gone: AbstractSet[str],
    found: _Found,
    staged: Iterable[Staged],
    others: Iterable[Landing],
) -> tuple[dict[str, InstalledFile], list[Landing]]:
    """What is ours in a cache once everything is laid, by path; and which of the others are to be laid for that."""
    # What an earlier install of this bundle wrote, for another architecture or engine, is ours still.
    files = {file.path: file for file in earlier.files if file.path not in gone} if earlier else {}
    ours = frozenset(files)
    for path in found.theirs:
        files.pop(path, None)
    for file in (*found.lying, *(file for one in staged for file in one.files)):
        files[file.path] = file
    missing = []
    for landing in others:
        listed = {file.path: file for file in landing.installed()}
        if landing.lies_in(cache):
            files |= listed
        elif _is_anothers(cache, landing, ours):
            for path in listed:
                files.pop(path, None)
        else:
            files |= listed
            missing.append(landing)
    return files, missing


def _receipt(
    bundle: Bundle, cache: Path, earlier: Receipt | None, fit: Fit, files: Mapping[str, InstalledFile]
) -> Receipt:
    accepted = (*(earlier.accepted if earlier else ()), *(str(finding) for finding in fit.accepted))
    return Receipt(
        bundle=bundle.digest,
        name=bundle.path.name,
        source=Path(os.path.abspath(bundle.path)),  # noqa: PTH100  # resolve() would follow links
        cache=cache,
        accepted=tuple(dict.fromkeys(accepted)),
        files=tuple(sorted(files.values(), key=_order)),
    )


def _tells_of_one_install(earlier: Receipt, receipt: Receipt) -> bool:
    """Whether two receipts differ at most in where the bundle was."""
    return replace(earlier, name=receipt.name, source=receipt.source) == receipt


def _commit(cache: Path, place: Path | None, staged: list[Staged], missing: list[Landing], receipt: Receipt) -> None:
    """Stage what is missing, which is let go then: a manifest can be large. Then lay it all."""
    with nullcontext(place) if place else staging(cache) as chosen:
        while missing:
            staged.append(stage(f"{chosen}/other-{len(missing)}", missing.pop(0)))
        commit(chosen, cache, staged, receipt)


def _manifest(bundle: Bundle, cache: Path) -> Landing:
    """The bundle's manifest, which tells a process that serves what it can have ready before the first launch."""
    name = manifest_path(cache, bundle.digest).name
    return Landing(directory=MANIFESTS, files=((name, bundle.manifest_bytes()),))


def _signatures(bundle: Bundle, cache: Path, signatures: Signatures | None) -> list[Landing]:
    """The bundle's signatures, which a process that serves may be told to demand."""
    if signatures is None:
        return []
    name = signatures_path(cache, bundle.digest).name
    return [Landing(directory=SIGNATURES, files=((name, signatures.to_bytes()),))]


def _is_anothers(cache: Path, landing: Landing, ours: AbstractSet[str]) -> bool:
    """Whether a file that lies there was put there by somebody else, and may work: it is not ours to replace.

    Args:
        cache: the cache directory.
        landing: what should lie there, which is no entry.
        ours: the paths that an earlier install of the same bundle has written.
    """
    if landing.directory in (MANIFESTS, SIGNATURES):
        return False
    return f"{landing.directory}/{landing.mark}" not in ours and _size(cache / landing.directory / landing.mark) > 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _earlier(bundle: Bundle, cache: Path) -> Receipt | None:
    """The receipt of an earlier install of the same bundle, if it can be read."""
    try:
        return read_receipt(receipt_path(cache, bundle.digest), cache)
    except CacheError:
        return None


def _order(file: InstalledFile) -> tuple[bool, str, bool, str]:
    directory, _, name = file.path.rpartition("/")
    return directory.startswith(OURS), directory, name.startswith(GROUP_PREFIX), name


def uninstall(receipt: Receipt) -> Removed:
    """Take out what an install wrote, and nothing else.

    A file that another receipt lists too stays, and so does one whose content is not what was installed.

    Raises:
        CacheError: the cache cannot be written.
    """
    cache = receipt.cache
    with reported(cache), at_work(cache):
        elsewhere = {
            file.path for other in read_receipts(cache) if other.bundle != receipt.bundle for file in other.files
        }
        removed = shared = 0
        findings: list[Finding] = []
        # Group files first: without one an entry is no entry, whatever happens in between.
        for file in sorted(receipt.files, key=lambda file: not file.name.startswith(GROUP_PREFIX)):
            path = cache / file.path
            if file.path in elsewhere:
                shared += 1
                continue
            was_ours = _remove_if_ours(path, file)
            removed += was_ours is True
            if was_ours is False:
                findings.append(Finding(code="I101", subject=str(path), detail="is not what was installed, and stays"))
        remove_empty({cache / file.directory for file in receipt.files})
        remove_stamp(cache, receipt.bundle)
        remove_file(receipt.path)
    return Removed(receipt=receipt, removed=removed, shared=shared, findings=tuple(findings))


def _remove_if_ours(path: Path, file: InstalledFile) -> bool | None:
    """Remove a file that is what was installed; None where it is gone, False where it is something else."""
    try:
        with path.open("rb") as opened:
            seen = os.fstat(opened.fileno())
            data = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    stem = stem_of(file.name)
    group = file.name.startswith(GROUP_PREFIX) and group_root(data, file.directory, stem) is not None
    if not group and digest_bytes(data) != file.digest:
        return False
    if not os.path.samestat(seen, path.stat()):
        return False  # Triton has compiled it anew just now
    remove_file(path)
    return True
