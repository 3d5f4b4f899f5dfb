"""Verifying: whether a bundle is whole, and whether what was installed still is what it was.

Triton itself asks only whether files exist: a truncated cubin is a hit that fails at the launch, and truncated JSON
raises out of the first request. So every file is held against the receipt's digest, and each cubin against the
architecture that its metadata names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aotpack.admission import admit_bundle, admit_installed, as_signed
from aotpack.artifacts import check_artifacts, metadata_target, wrong_code
from aotpack.bundle import Bundle, open_bundle
from aotpack.cachedirectory import receipt_paths
from aotpack.digests import digest_bytes
from aotpack.errors import AlteredError, BundleError, CacheError, DocumentError, SignatureError, UnsupportedFormatError
from aotpack.findings import Finding
from aotpack.policy import Demand, demands_here
from aotpack.receipts import InstalledFile, Receipt, find_receipt, read_receipt
from aotpack.tritoncache import GROUP_PREFIX, group_root, is_tritons, same_directory, stem_of

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
    receipts, findings = known_receipts(cache, wanted)
    entries, refusal = 0, None
    for receipt in receipts:
        try:
            admit_installed(receipt, demands)
        except SignatureError as error:
            refusal = refusal or error
            findings.append(_refused(receipt.path, error))
        states = states_of(receipt)
        entries += sum(state.is_kernel for state in states)
        findings += [state.finding(cache) for state in states if state.code not in ("", "V113")]
        moved = [state for state in states if state.code == "V113"]
        if moved:
            detail = f"{len(moved)} entries of {receipt.name} were installed for another directory: {moved[0].detail}"
            hint = "aotpack verify --fix writes their group files for this one; the bundle is not needed"
            findings.append(Finding(code="V113", subject=str(cache), detail=detail, hint=hint))
    return Checked(subject=cache, entries=entries, findings=tuple(findings), refusal=refusal)


def states_of(receipt: Receipt) -> list["State"]:
    """How each entry of a receipt lies there."""
    return [_examine(receipt.cache, tuple(files)) for files in receipt.entries.values()]


def known_receipts(cache: Path, wanted: str | None) -> tuple[list[Receipt], list[Finding]]:
    """The receipts of a cache directory, or the one asked for; and what is wrong with the rest.

    Raises:
        UsageError: no such bundle is installed.
        CacheError: the receipt asked for is damaged.
    """
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
class State:
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
        """The name of the directory where it lies."""
        return self.files[0].directory

    @property
    def is_kernel(self) -> bool:
        """Whether it is an entry of a kernel, and not a native helper, a manifest or signatures."""
        return any(file.name.startswith(GROUP_PREFIX) for file in self.files)

    def finding(self, cache: Path) -> Finding:
        """What is wrong with it, in a cache directory."""
        return Finding(code=self.code, subject=str(cache / self.directory), detail=self.detail, hint=_HEAL)


def _examine(cache: Path, files: tuple[InstalledFile, ...]) -> State:
    place = cache / files[0].directory
    stems = {file.name: stem_of(file.name) for file in files if file.name.startswith(GROUP_PREFIX)}
    problems = {file.name: problem for file in files if (problem := _problem(cache, file))}
    by_group = problems.keys() <= stems.keys()
    if by_group and (wrong := next((found for stem in stems.values() if (found := _mismatch(place, stem))), "")):
        return State(files=files, code="V102", detail=wrong)
    if not by_group and stems and all(is_tritons(place, stem) for stem in stems.values()):
        return State(files=files, code="V114", detail="Triton has compiled it here since; it works")
    # The gravest problem gives the code: V111, V112, V113.
    code = min((code for code, _ in problems.values()), default="")
    return State(files=files, code=code, detail=", ".join(what for _, what in problems.values()), by_group=by_group)


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
