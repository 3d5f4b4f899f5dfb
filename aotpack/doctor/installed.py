"""Probes of what is installed in a cache directory, and of a bundle that is to be."""

import json
from collections.abc import Iterable
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.cachedirectory import RECEIPTS
from aotpack.digests import hex_of
from aotpack.doctor.sections import Findings, Section, files_found, find_distribution
from aotpack.documents import parse_document
from aotpack.engines import installed_engine, same_release
from aotpack.errors import AotpackError, CacheError, DocumentError, IncompatibleError, ToolchainError
from aotpack.findings import Finding
from aotpack.fitting import fit_bundle
from aotpack.receipts import Receipt, read_receipt
from aotpack.runtime.candidates import find_candidates
from aotpack.runtime.stores import store_of
from aotpack.store import open_store
from aotpack.targets import Target
from aotpack.toolchain import Toolchain
from aotpack.tritoncache import GROUP_PREFIX, directory_name, is_whole, same_directory


def probe_receipts(cache: Path) -> tuple[list[Receipt], Section]:
    """The bundles installed in a cache directory."""
    here = find_distribution("triton", "pytorch-triton")
    receipts: list[Receipt] = []
    rows: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for path in files_found(cache / RECEIPTS, "*.json"):
        try:
            receipt = read_receipt(path, cache)
            before = Path(parse_document(path.read_bytes()).field("cache").text())
        except (CacheError, DocumentError, OSError) as error:
            findings.append(Finding(code="D115", subject=str(path), detail=str(error)))
            continue
        receipts.append(receipt)
        entries = sum(f"/{GROUP_PREFIX}" in file.path for file in receipt.files)
        digest = hex_of(receipt.bundle)[:12]
        kinds = installed_for(cache, [receipt])
        whose = ", ".join(f"{target.short} with Triton {triton}" for target, triton in kinds) or "none that can be read"
        rows.append((digest, f"{receipt.name}: {entries} kernels, {whose}"))
        others = sorted({triton for _, triton in kinds if here and not same_release(here.version, triton)})
        if here and others:
            findings.append(
                Finding(
                    code="D108",
                    subject=digest,
                    detail=f"its kernels are of Triton {', '.join(others)}, and this environment has {here.version}",
                    hint=f"install a bundle for Triton {here.version}",
                )
            )
        if not same_directory(before, cache):
            findings.append(
                Finding(
                    code="D116",
                    subject=digest,
                    detail=f"was installed into {before}, and lies in {cache} now; its entries name the old place",
                    hint="aotpack verify --fix writes them for this place",
                )
            )
    return receipts, Section(title="installed", rows=tuple(rows) or (("bundles", "none"),), findings=tuple(findings))


def probe_wheels() -> Section:
    """The bundles of installed wheels, which a process that is activated serves in place."""
    here = find_distribution("triton", "pytorch-triton")
    rows: list[tuple[str, str]] = []
    findings: list[Finding] = []
    for point in find_candidates().wheels:
        name = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            manifest = open_store(store_of(point)).manifest
        except AotpackError as error:
            hint = "install the wheel again, or uninstall it"
            findings.append(Finding(code="D119", subject=name, detail=str(error), hint=hint))
            continue
        triton = manifest.toolchain.triton
        archs = ", ".join(target.short for target in manifest.targets)
        rows.append((name, f"{len(manifest.entries)} kernels of {manifest.engine}, {archs} with Triton {triton}"))
        if here and not same_release(here.version, triton):
            detail = f"its kernels are of Triton {triton}, and this environment has {here.version}"
            hint = f"install a wheel for Triton {here.version}, or uninstall it"
            findings.append(Finding(code="D207", subject=name, detail=detail, hint=hint))
    return Section(title="wheels", rows=tuple(rows) or (("bundles", "none"),), findings=tuple(findings))


def installed_for(cache: Path, receipts: Iterable[Receipt]) -> tuple[tuple[Target, str], ...]:
    """The targets and Triton releases of what receipts list, as Triton's own metadata beside each cubin says."""
    found = set()
    for receipt in receipts:
        for file in receipt.files:
            if file.path.endswith(".json") and f"/{GROUP_PREFIX}" not in file.path:
                try:
                    metadata = json.loads((cache / file.path).read_bytes())
                    target = metadata["target"]
                    target = Target(str(target["backend"]), int(target["arch"]), int(target["warp_size"]))
                    found.add((target, str(metadata["triton_version"])))
                except (OSError, ValueError, KeyError, TypeError):
                    continue  # verify's business
    return tuple(sorted(found))


def probe_bundle(bundle: Bundle, cache: Path, local: Toolchain | str, *, installed: bool) -> Section:
    """Whether an install of a bundle would take it here, and whether its kernels lie where Triton will look."""
    manifest = bundle.manifest
    rows = [
        ("file", str(bundle.path)),
        ("digest", bundle.digest),
        ("holds", f"{len(manifest.entries)} kernels of {manifest.engine} {manifest.engine_version}"),
        ("for", f"{', '.join(target.short for target in manifest.targets)}, Triton {manifest.toolchain.triton}"),
    ]
    if isinstance(local, str):  # a finding of Triton's own section
        return Section(title="bundle", rows=(*rows, ("installs here", "no: there is no Triton to ask for its keys")))
    findings: list[Finding] = []
    say = Findings(findings, bundle.path.name)
    try:
        fit = fit_bundle(bundle, engine=installed_engine(manifest.engine))
    except (IncompatibleError, ToolchainError) as error:
        say("D108", str(error))
        return Section(title="bundle", rows=(*rows, ("installs here", "no")), findings=tuple(findings))
    findings += fit.refused
    serving = [(entry.entry.name, key) for entry in fit.placements for key in entry.cache_keys]
    missing = sum(not is_whole(cache / directory_name(key), name) for name, key in serving)
    rows += [
        ("installs here", f"yes, {len(fit.placements)} of {len(manifest.entries)} kernels"),
        ("in the cache", f"{len(serving) - missing} of {len(serving)}"),
    ]
    if installed and missing:
        detail = f"{missing} of its kernels are not where this Triton will look, though it was installed"
        say("D117", f"{detail}: with another Python or engine, or damaged since", "install it again with this Python")
    return Section(title="bundle", rows=tuple(rows), findings=tuple(findings))
