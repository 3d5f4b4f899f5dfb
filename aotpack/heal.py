"""Healing: what is broken in a cache directory is made whole, or taken out.

It needs no Triton, no engine and no network. With the bundle at hand the broken entries are laid anew under the keys
that the receipt has; a group file is written for the directory where it lies; and an entry that cannot be restored is
taken out, so that Triton compiles it instead of failing on it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aotpack.bundle import Bundle, open_bundle
from aotpack.digests import digest_bytes
from aotpack.engines import installed_engine
from aotpack.errors import BundleError, SignatureError, TrustError, UsageError
from aotpack.install import install_bundle
from aotpack.landing import Landing, at_work, lay, remove_empty, remove_file, staging
from aotpack.manifest import Entry
from aotpack.policy import Demand, demands_here
from aotpack.receipts import Receipt
from aotpack.signatures import find_signatures
from aotpack.tritoncache import GROUP_PREFIX, CacheEntry, cache_key_of, group_file, reported, stem_of
from aotpack.verify import Checked, State, known_receipts, states_of, verify_cache

Action = Literal["laid anew", "group file written", "taken out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What was done to one entry.

    Attributes:
        entry: its directory's name.
        action: what was done.
        reason: why, in a few words.
    """

    entry: str
    action: Action
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """What healing did.

    Attributes:
        before: what was wrong.
        remedies: what was done, entry by entry.
        after: what is wrong still.
    """

    before: Checked
    remedies: tuple[Remedy, ...]
    after: Checked


def heal(
    cache: Path,
    *,
    bundle: Bundle | None = None,
    wanted: str | None = None,
    demands: Sequence[Demand] | None = None,
) -> Healed:
    """Make what is broken in a cache directory whole, or take it out.

    Args:
        cache: the cache directory; it may have been moved since.
        bundle: where to take from what is broken. Otherwise the bundle that the receipt remembers, if it is still
            there and still the same.
        wanted: one bundle, as ``find_receipt`` takes it; None means all.
        demands: what signatures must satisfy, that of ``bundle`` too; None means what this machine demands.

    Raises:
        SignatureError: ``bundle`` is not installed, and a demand is not satisfied.
        ExpiredPolicyError, TrustError: what this machine demands cannot be told.
        UsageError: no such bundle is installed, or ``bundle`` is not one that is installed.
        BundleError: ``bundle`` is damaged.
        CacheError: the cache cannot be written.
    """
    demands = demands_here() if demands is None else demands
    before = verify_cache(cache, wanted, demands=demands)
    receipts, damaged = known_receipts(cache, wanted)
    known = bundle is None or bundle.digest in {receipt.bundle for receipt in receipts}
    if bundle is not None and not known and not damaged:
        installed = ", ".join(f"{receipt.bundle} ({receipt.name})" for receipt in receipts)
        raise UsageError(
            f"{bundle.path}: is {bundle.digest}, which is not installed in {cache}; installed: {installed}; "
            f"to install it: aotpack install {bundle.path}"
        )
    remedies: list[Remedy] = []
    if receipts:
        with reported(cache), at_work(cache):
            for receipt in receipts:
                remedies += _heal(receipt, bundle)
    if bundle is not None and not known:
        install_bundle(bundle, cache, engine=installed_engine(bundle.manifest.engine), demands=demands)
    return Healed(before=before, remedies=tuple(remedies), after=verify_cache(cache, wanted, demands=demands))


def _heal(receipt: Receipt, given: Bundle | None) -> list[Remedy]:
    cache = receipt.cache
    states = [state for state in states_of(receipt) if state.code]
    lacking = [state for state in states if not state.by_group and state.code != "V102"]
    restored = _restored(receipt, lacking, given)
    landings: list[Landing] = []
    remedies: list[Remedy] = []
    for state in states:
        if state.by_group:
            landings += _groups(cache, state)
            action: Action = "group file written"
        elif state.directory in restored:
            landings.append(restored[state.directory])
            action = "laid anew"
        elif state.code == "V114":
            continue  # it works, and without the bundle there is nothing to put in its place
        else:
            _take_out(cache, state)
            action = "taken out"
        remedies.append(Remedy(entry=state.directory, action=action, reason=state.detail))
    if landings:
        with staging(cache) as place:
            lay(place, cache, landings, _with(receipt, landings))
    return remedies


def _with(receipt: Receipt, landings: Sequence[Landing]) -> Receipt:
    """The receipt with the digests of what is laid: those of group files depend on the directory."""
    laid = {file.path: file for landing in landings for file in landing.installed()}
    return replace(receipt, files=tuple(laid.get(file.path, file) for file in receipt.files))


def _groups(cache: Path, state: State) -> Iterator[Landing]:
    for file in state.files:
        if file.name.startswith(GROUP_PREFIX):
            content = group_file(cache, file.directory, stem_of(file.name))
            yield Landing(directory=file.directory, files=((file.name, content),))


def _take_out(cache: Path, state: State) -> None:
    for file in reversed(state.files):  # the group file first: without it the rest is no entry
        remove_file(cache / file.path)
    remove_empty([cache / state.directory])


def _restored(receipt: Receipt, states: Sequence[State], given: Bundle | None) -> dict[str, Landing]:
    """What is to lie in some of a receipt's directories, as far as a bundle is at hand."""
    bundle = _bundle_of(receipt, given) if states else None
    if bundle is None:
        return {}
    try:
        blobs = {**dict(bundle.blobs()), bundle.digest: bundle.manifest.to_bytes(), **_signatures_of(bundle)}
    except BundleError:
        if bundle is given:
            raise
        return {}
    by_cubin: dict[str, list[Entry]] = {}
    for entry in bundle.manifest.entries:
        by_cubin.setdefault(entry.cubin.digest, []).append(entry)
    found = ((state.directory, _restore(receipt.cache, state, by_cubin, blobs)) for state in states)
    return {directory: landing for directory, landing in found if landing is not None}


def _signatures_of(bundle: Bundle) -> dict[str, bytes]:
    """The file of a bundle's signatures by its digest, where it has any; what lay in the cache may be another one."""
    with suppress(BundleError, SignatureError, TrustError):
        if (found := find_signatures(bundle.path, bundle.digest)) is not None:
            return {digest_bytes(found.to_bytes()): found.to_bytes()}
    return {}


def _bundle_of(receipt: Receipt, given: Bundle | None) -> Bundle | None:
    if given is not None and given.digest == receipt.bundle:
        return given
    if receipt.source is not None:
        with suppress(BundleError):
            bundle = open_bundle(receipt.source)
            return bundle if bundle.digest == receipt.bundle else None
    return None


def _restore(cache: Path, state: State, by_cubin: dict[str, list[Entry]], blobs: dict[str, bytes]) -> Landing | None:
    """One directory's files, exactly as the receipt has them; a group file is written for where it lies now."""
    digests = {file.digest for file in state.files if not file.name.startswith(GROUP_PREFIX)}
    if not any(file.name.startswith(GROUP_PREFIX) for file in state.files):  # what lies there is what is in the bundle
        files = tuple((file.name, blobs.get(file.digest, b"")) for file in state.files)
        return Landing(directory=state.directory, files=files) if digests <= blobs.keys() else None
    try:
        cache_key = cache_key_of(state.directory)
    except ValueError:
        return None  # not a receipt as an install writes it
    for entry in [entry for digest in sorted(digests) for entry in by_cubin.get(digest, [])]:
        landing = CacheEntry(
            cache_key=cache_key,
            name=entry.name,
            cubin=blobs[entry.cubin.digest],
            metadata=blobs[entry.metadata.digest],
        ).landing(cache)
        if digests == {digest_bytes(data) for name, data in landing.files if name != landing.mark}:
            return landing
    return None
