"""Devices: for which product's results of autotuned kernels a bundle is installed.

Triton's key for a result does not hold the device, so a cache directory has room for one product's: the one that will
serve. Nothing is compiled for a device; any of an architecture runs all of its kernels.
"""

from collections.abc import Collection
from dataclasses import dataclass

from aotpack.errors import UsageError
from aotpack.findings import Finding
from aotpack.gpus import read_driver
from aotpack.manifest import Manifest
from aotpack.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Whose results are installed.

    Attributes:
        devices: the products, one of a target.
        findings: why there are none for a target, or others than might be thought.
    """

    devices: tuple[str, ...]
    findings: tuple[Finding, ...]


def choose_devices(manifest: Manifest, given: Collection[str] = ()) -> Chosen:
    """Choose among the products that a manifest has results for, one of each target.

    What is given, else the GPUs of this machine; where those are not among them or there are none, the only product
    that a target has results for.

    Raises:
        UsageError: there are no results for what is given, or two products of one target are given.
    """
    by_target: dict[Target, set[str]] = {}
    for kept in manifest.results:
        by_target.setdefault(kept.result.tuning.target, set()).add(kept.result.device)
    known = sorted(set().union(*by_target.values()))
    for name in given:
        if name not in known:
            raise UsageError(
                f"the bundle has no results for {name!r}; it has for {', '.join(known) or 'no GPU'}: spell it as the "
                "driver does, or leave out --device"
            )
    if not by_target:
        return Chosen(devices=(), findings=())
    here = set() if given else _here()
    devices: list[str] = []
    findings: list[Finding] = []
    for target, names in sorted(by_target.items()):
        wanted = names & (set(given) or {name for name, of in here if of == target})
        if len(wanted) > 1 and given:
            raise UsageError(f"{' and '.join(sorted(wanted))} are both {target.short}; a cache holds results for one")
        others = {name for name, of in here if of == target} - names
        if len(wanted) == 1 and not others:
            devices += wanted
        elif not given and not wanted and not others and len(names) == 1:
            devices += names
        elif not given:
            findings.append(_undecided(target, names, sorted(wanted | others), manifest))
    return Chosen(devices=tuple(devices), findings=tuple(findings))


def _here() -> set[tuple[str, Target]]:
    driver = read_driver()
    return {(gpu.name, Target("cuda", gpu.arch)) for gpu in (driver.gpus if driver is not None else ())}


def _undecided(target: Target, names: Collection[str], here: Collection[str], manifest: Manifest) -> Finding:
    """Why no results are installed for a target."""
    listed = ", ".join(sorted(names))
    found = f"this machine has {', '.join(here)}" if here else "no GPU is here to tell which"
    slower = "; it lacks configurations that lose on those" if manifest.devices else ""
    return Finding(
        code="I106",
        subject=target.short,
        detail=f"results of autotuned kernels are for {listed}, and {found}; none are installed{slower}",
        hint="name the GPU that will serve with --device, or measure on it: aotpack tune",
    )
