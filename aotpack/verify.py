"""Verifying and healing: whether a bundle is whole, and whether what was installed still is what it was.

Triton itself asks only whether files exist: a truncated cubin is a hit that fails at the launch, and truncated JSON
raises out of the first request. So every file is held against the receipt's digest, and each cubin against the
architecture that its metadata names.

Healing needs no Triton, no engine and no network. With the bundle at hand the broken entries are laid anew under
the keys that the receipt has; a group file is written for the directory where it lies; and an entry that cannot be
restored is taken out, so that Triton compiles it instead of failing on it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aotpack.admission import admit_bundle, admit_installed, as_signed
from aotpack.artifacts import check_artifacts, metadata_target, wrong_code
from aotpack.bundle import Bundle, open_bundle
from aotpack.cachedirectory import receipt_paths
from aotpack.digests import digest_bytes
from aotpack.engines import installed_engine
from aotpack.errors import (
    AlteredError,
    BundleError,
    CacheError,
    DocumentError,
    SignatureError,
    TrustError,
    UnsupportedFormatError,
    UsageError,
)
from aotpack.findings import Finding
from aotpack.install import install_bundle
from aotpack.landing import Landing, at_work, lay, remove_empty, remove_file, staging
from aotpack.manifest import Entry
from aotpack.policy import Demand, demands_here
from aotpack.receipts import InstalledFile, Receipt, find_receipt, read_receipt
from aotpack.signatures import find_signatures
from aotpack.tritoncache import (
    GROUP_PREFIX,
    CacheEntry,
    cache_key_of,
    group_file,
    group_root,
    is_tritons,
    reported,
    same_directory,
    stem_of,
)

_HEAL = "aotpack verify --fix lays it anew from its bundle, or takes it out so that Triton compiles it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check saw.

    Attributes:
        subject: what was checked: a bundle's path, or a cache directory.
        entries: how many entries were looked at.
        findings: what is wrong; none means whole.
        refusal: the first demand of a signature that is not satisfied, which is among the findings too.
    """

    subject: Path
    entries: int
    findings: tuple[Finding, ...]
    refusal: SignatureError | None = None

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        return self.refusal.exit_code if self.refusal else 1 if self.findings else 0


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


def verify_bundle(path: Path, *, demands: Sequence[Demand] | None = None, signature: Path | None = None) -> Checked:
    """Check a bundle file whole: every digest, every metadata document, every cubin's architecture, its signatures.

    Args:
        path: the file.
        demands: what its signatures must satisfy; None means what this machine demands.
        signature: where its signatures lie; None means beside it, if anywhere.

    Raises:
        ExpiredPolicyError, TrustError: what this machine demands cannot be told.
        UnsupportedFormatError: it is of another format, so nothing can be said about it.
    """
    demands = demands_here() if demands is None else demands
    try:
        bundle = open_bundle(path)
        refusal = _refusal(bundle, demands, signature)
        with as_signed(() if refusal else demands):
            blobs = dict(bundle.blobs())
    except UnsupportedFormatError:
        raise
    except (BundleError, AlteredError) as error:
        refusal = error if isinstance(error, AlteredError) else None
        damaged = Finding(code="V101", subject=str(path), detail=str(error).removeprefix(f"{path}: "))
        return Checked(subject=path, entries=0, findings=(damaged,), refusal=refusal)
    entries = bundle.manifest.entries
    findings = [_refused(path, refusal)] if refusal else []
    findings += [finding for entry in entries for finding in check_artifacts(entry, blobs)]
    return Checked(subject=path, entries=len(entries), findings=tuple(findings), refusal=refusal)


def _refusal(bundle: Bundle, demands: Sequence[Demand], signature: Path | None) -> SignatureError | None:
    try:
        admit_bundle(bundle, demands, signature)
    except SignatureError as error:
        return error
    return None


def _refused(path: Path, error: SignatureError) -> Finding:
    detail, _, hint = str(error).removeprefix(f"{path}: ").partition("; ")
    return Finding(code=error.finding, subject=str(path), detail=detail, hint=hint)


def verify_cache(cache: Path, wanted: str | None = None, *, demands: Sequence[Demand] | None = None) -> Checked:
    """Check what the receipts of a cache directory say was installed.

    Args:
        cache: the cache directory; it may have been moved since.
        wanted: one bundle, as ``find_receipt`` takes it; None means all.
        demands: what the bundles' signatures must satisfy; None means what this machine demands.

    Raises:
        UsageError: no such bundle is installed.
        CacheError: the receipt asked for is damaged.
        ExpiredPolicyError, TrustError: what this machine demands cannot be told.
    """
    demands = demands_here() if demands is None else demands
    receipts, findings = _receipts(cache, wanted)
    entries, refusal = 0, None
    for receipt in receipts:
        try:
            admit_installed(receipt, demands)
        except SignatureError as error:
            refusal = refusal or error
            findings.append(_refused(receipt.path, error))
        states = _states(receipt)
        entries += sum(state.is_kernel for state in states)
        findings += [state.finding(cache) for state in states if state.code not in ("", "V113")]
        moved = [state for state in states if state.code == "V113"]
        if moved:
            detail = f"{len(moved)} entries of {receipt.name} were installed for another directory: {moved[0].detail}"
            hint = "aotpack verify --fix writes their group files for this one; the bundle is not needed"
            findings.append(Finding(code="V113", subject=str(cache), detail=detail, hint=hint))
    return Checked(subject=cache, entries=entries, findings=tuple(findings), refusal=refusal)


def _states(receipt: Receipt) -> list["_State"]:
    return [_examine(receipt.cache, tuple(files)) for files in receipt.entries.values()]


def _receipts(cache: Path, wanted: str | None) -> tuple[list[Receipt], list[Finding]]:
    if wanted is not None:
        return [find_receipt(cache, wanted)], []
    receipts: list[Receipt] = []
    findings: list[Finding] = []
    for path in receipt_paths(cache):
        try:
            receipts.append(read_receipt(path, cache))
        except CacheError as error:
            detail = str(error).removeprefix(f"{path}: ").partition("; remove it")[0]
            hint = "aotpack verify --fix --bundle FILE installs its bundle again; or remove it and install anew"
            findings.append(Finding(code="V115", subject=str(path), detail=detail, hint=hint))
    if not receipts and not findings:
        detail = "no receipt lies in it: nothing was installed here, or this is not the directory that was meant"
        hint = "aotpack install BUNDLE installs; --cache-dir names another directory"
        findings.append(Finding(code="V116", subject=str(cache), detail=detail, hint=hint))
    return receipts, findings


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """How one installed entry lies there.

    Attributes:
        files: what the receipt lists of it.
        code: of the finding, or "" where all is well.
        detail: what is wrong.
        by_group: whether writing its group file anew is all that it takes.
    """

    files: tuple[InstalledFile, ...]
    code: str = ""
    detail: str = ""
    by_group: bool = False

    @property
    def directory(self) -> str:
        return self.files[0].directory

    @property
    def is_kernel(self) -> bool:
        """Whether it is an entry of a kernel, and not a native helper, a manifest or signatures."""
        return any(file.name.startswith(GROUP_PREFIX) for file in self.files)

    def finding(self, cache: Path) -> Finding:
        return Finding(code=self.code, subject=str(cache / self.directory), detail=self.detail, hint=_HEAL)


def _examine(cache: Path, files: tuple[InstalledFile, ...]) -> _State:
    place = cache / files[0].directory
    stems = {file.name: stem_of(file.name) for file in files if file.name.startswith(GROUP_PREFIX)}
    problems = {file.name: problem for file in files if (problem := _problem(cache, file))}
    by_group = problems.keys() <= stems.keys()
    if by_group and (wrong := next((found for stem in stems.values() if (found := _mismatch(place, stem))), "")):
        return _State(files=files, code="V102", detail=wrong)
    if not by_group and stems and all(is_tritons(place, stem) for stem in stems.values()):
        return _State(files=files, code="V114", detail="Triton has compiled it here since; it works")
    # The gravest problem gives the code: V111, V112, V113.
    code = min((code for code, _ in problems.values()), default="")
    return _State(files=files, code=code, detail=", ".join(what for _, what in problems.values()), by_group=by_group)


def _problem(cache: Path, file: InstalledFile) -> tuple[str, str] | None:
    """What is wrong with one file, as a code and in words."""
    try:
        data = (cache / file.path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return "V111", f"{file.name} is missing"
    except OSError as error:
        return "V112", f"{file.name} cannot be read: {error.strerror}"
    if not file.name.startswith(GROUP_PREFIX):
        return None if digest_bytes(data) == file.digest else ("V112", f"{file.name} is not what was installed")
    root = group_root(data, file.directory, stem_of(file.name))
    if root is None:
        return "V112", f"{file.name} is not what was installed"
    return None if same_directory(root, cache) else ("V113", f"{file.name} names {root}")


def _mismatch(place: Path, stem: str) -> str:
    """What is wrong with an entry whose files are what was installed; nothing where they fit each other."""
    try:
        return wrong_code(
            (place / f"{stem}.cubin").read_bytes(), metadata_target((place / f"{stem}.json").read_bytes()).arch
        )
    except (OSError, DocumentError) as error:
        return f"its metadata cannot be loaded: {error}"


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
    receipts, damaged = _receipts(cache, wanted)
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
    states = [state for state in _states(receipt) if state.code]
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


def _groups(cache: Path, state: _State) -> Iterator[Landing]:
    for file in state.files:
        if file.name.startswith(GROUP_PREFIX):
            content = group_file(cache, file.directory, stem_of(file.name))
            yield Landing(directory=file.directory, files=((file.name, content),))


def _take_out(cache: Path, state: _State) -> None:
    for file in reversed(state.files):  # the group file first: without it the rest is no entry
        remove_file(cache / file.path)
    remove_empty([cache / state.directory])


def _restored(receipt: Receipt, states: Sequence[_State], given: Bundle | None) -> dict[str, Landing]:
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


def _restore(cache: Path, state: _State, by_cubin: dict[str, list[Entry]], blobs: dict[str, bytes]) -> Landing | None:
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
