"""Installing: a bundle's kernels laid into Triton's cache directory, and taken out again.

What always holds: nothing is written into the cache before every digest has been checked and every demand of a
signature satisfied; an entry appears in it whole; an entry that Triton compiled itself is left as it is; and what an
install wrote stands in a receipt, written before the first entry, so that even an install that was killed can be taken
out.

Beside the entries the cache directory gets one directory of ours, ``.aotpack``, with the receipts, the bundles'
manifests and signatures and, while an install runs, what it stages. Triton never looks there.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aotpack.admission import admit_bundle, as_signed
from aotpack.artifacts import refuse_unfit
from aotpack.bundle import Bundle
from aotpack.devices import Chosen, choose_devices
from aotpack.digests import digest_bytes
from aotpack.engines import Engine
from aotpack.errors import BundleError, CacheError, IncompatibleError
from aotpack.findings import Finding
from aotpack.fitting import NOTHING, Fit, Placement, ResultPlacement, fit_bundle
from aotpack.helpers import Placed, place_helpers
from aotpack.landing import Landing, at_work, lay, remove_empty, remove_file, staging
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
from aotpack.targets import Target
from aotpack.tritoncache import GROUP_PREFIX, CacheEntry, directory_name, group_root, is_whole, reported, stem_of


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
    """

    receipt: Receipt
    written: int
    present: int
    fit: Fit
    helpers: Placed
    chosen: Chosen

    @property
    def refused(self) -> tuple[Finding, ...]:
        """What of the bundle does not serve here, and why."""
        return (*self.fit.refused, *self.helpers.refused)


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
    with as_signed(demands):
        blobs = _blobs(bundle, fit.placements)
    refuse_unfit(bundle.path, (placement.entry for placement in fit.placements), blobs)
    launches = [(placement.entry.key, blobs[placement.entry.metadata.digest]) for placement in fit.placements]
    helpers = place_helpers(bundle.manifest.helpers, launches, blobs, libcuda=libcuda)
    with reported(cache):
        if not fit.placements:
            _withdraw(bundle, cache, fit.withdrawn)
            raise IncompatibleError(f"{bundle.path}: {NOTHING}: {fit.refused[0]}")
        kernels = _landings(bundle, cache, fit.placements, blobs)
        results = list(_result_landings(fit.results, chosen, blobs))
        beside = [_manifest(bundle, cache), *_signatures(bundle, cache, signatures)]
        written, receipt = _install(bundle, cache, kernels, (*results, *helpers.landings, *beside), fit)
    present = len(kernels) - written
    return Installed(receipt=receipt, written=written, present=present, fit=fit, helpers=helpers, chosen=chosen)


def _withdraw(bundle: Bundle, cache: Path, cache_keys: Iterable[str]) -> set[str]:
    """Take out entries of an earlier install that must not serve this engine; the paths that are gone.

    Their keys are the engine's still where Triton's key does not hold what has changed, so they would be found.
    """
    earlier = _earlier(bundle, cache)
    directories = {directory_name(cache_key) for cache_key in cache_keys}
    files = [file for file in earlier.files if file.directory in directories] if earlier else []
    for file in sorted(files, key=lambda file: not file.name.startswith(GROUP_PREFIX)):
        _remove_if_ours(cache / file.path, file)
    remove_empty({cache / file.directory for file in files})
    return {file.path for file in files}


def _blobs(bundle: Bundle, placements: Sequence[Placement]) -> dict[str, bytes]:
    """The contents of what is placed and of the helpers, after every digest in the bundle has been checked."""
    needed = {artifact.digest for placement in placements for _, artifact in placement.entry.artifacts}
    needed |= {helper.artifact.digest for helper in bundle.manifest.helpers}
    needed |= {kept.artifact.digest for kept in bundle.manifest.results}
    return {digest: data for digest, data in bundle.blobs() if digest in needed}


def _landings(bundle: Bundle, cache: Path, placements: Sequence[Placement], blobs: dict[str, bytes]) -> list[Landing]:
    landings = [
        CacheEntry(
            cache_key=cache_key,
            name=placement.entry.name,
            cubin=blobs[placement.entry.cubin.digest],
            metadata=blobs[placement.entry.metadata.digest],
        ).landing(cache)
        for placement in placements
        for cache_key in placement.cache_keys
    ]
    taken: dict[tuple[str, str], Landing] = {}
    for landing in landings:
        if taken.setdefault((landing.directory, landing.mark), landing) != landing:
            raise BundleError(
                f"{bundle.path}: two entries of it would lie in {landing.directory}, and their code differs; "
                "build the bundle again"
            )
    return landings


def _result_landings(results: Iterable[ResultPlacement], chosen: Chosen, blobs: dict[str, bytes]) -> Iterator[Landing]:
    """Files of results, which are no entries: each is its own commit mark."""
    for placement in results:
        if placement.kept.result.device in chosen.devices:
            for cache_key in placement.cache_keys:
                file = (placement.kept.name, blobs[placement.kept.artifact.digest])
                yield Landing(directory=directory_name(cache_key), files=(file,))


def _install(
    bundle: Bundle, cache: Path, kernels: Sequence[Landing], others: Sequence[Landing], fit: Fit
) -> tuple[int, Receipt]:
    """Lay what is not there; how many of the kernels were laid, and the receipt."""
    missing: list[Landing] = []
    with at_work(cache):
        earlier = _earlier(bundle, cache)
        gone = _withdraw(bundle, cache, fit.withdrawn)
        # What an earlier install of this bundle wrote, for another architecture or engine, is ours still.
        files = {file.path: file for file in earlier.files if file.path not in gone} if earlier else {}
        ours = set(files)
        accepted = (*(earlier.accepted if earlier else ()), *(str(finding) for finding in fit.accepted))
        for landing in (*kernels, *others):
            lies_there = landing.lies_in(cache)
            if not lies_there and _is_anothers(cache, landing, ours):
                for file in landing.installed():
                    files.pop(file.path, None)
                continue
            files |= {file.path: file for file in landing.installed()}
            if not lies_there:
                missing.append(landing)
        receipt = Receipt(
            bundle=bundle.digest,
            name=bundle.path.name,
            source=Path(os.path.abspath(bundle.path)),  # noqa: PTH100  # resolve() would follow links
            cache=cache,
            accepted=tuple(dict.fromkeys(accepted)),
            files=tuple(sorted(files.values(), key=_order)),
        )
        if missing or earlier != receipt:
            try:
                with staging(cache) as place:
                    lay(place, cache, missing, receipt)
            except OSError:
                # All may lie there, on a system that is read-only by now: where the bundle is can stay untold.
                if missing or earlier is None or replace(earlier, name=receipt.name, source=receipt.source) != receipt:
                    raise
                receipt = earlier
    return sum(landing in missing for landing in kernels), receipt


def _manifest(bundle: Bundle, cache: Path) -> Landing:
    """The bundle's manifest, which tells a process that serves what it can have ready before the first launch."""
    name = manifest_path(cache, bundle.digest).name
    return Landing(directory=MANIFESTS, files=((name, bundle.manifest.to_bytes()),))


def _signatures(bundle: Bundle, cache: Path, signatures: Signatures | None) -> list[Landing]:
    """The bundle's signatures, which a process that serves may be told to demand."""
    if signatures is None:
        return []
    name = signatures_path(cache, bundle.digest).name
    return [Landing(directory=SIGNATURES, files=((name, signatures.to_bytes()),))]


def _is_anothers(cache: Path, landing: Landing, ours: set[str]) -> bool:
    """Whether what lies there was compiled there, and works: it is not ours to replace.

    Args:
        cache: the cache directory.
        landing: what should lie there.
        ours: the paths that an earlier install of the same bundle has written.
    """
    place = cache / landing.directory
    if landing.directory in (MANIFESTS, SIGNATURES):
        return False
    if not landing.mark.startswith(GROUP_PREFIX):
        return f"{landing.directory}/{landing.mark}" not in ours and _size(place / landing.mark) > 0
    stem = stem_of(landing.mark)
    try:
        group = (place / landing.mark).read_bytes()
    except OSError:
        return False
    return group_root(group, landing.directory, stem) is None and is_whole(place, stem)


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
    return file.directory.startswith(OURS), file.directory, file.name.startswith(GROUP_PREFIX), file.name


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
