"""A miss, and what is said of one whose key the bundle lacks as a whole, or holds."""

import re
from dataclasses import dataclass
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.families import usable_families
from aotpack.manifest import Entry, Manifest
from aotpack.misses.differences import Difference
from aotpack.receipts import read_receipts
from aotpack.tritoncache import directory_name

_INDUCTOR = re.compile(r"triton_([a-z]{3}_|mm|bmm|flex)")
"""How Inductor names the kernels that it writes (torch/_inductor/codegen/triton.py): triton_poi_fused_add_0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A kernel that Triton compiled, and why.

    Attributes:
        kernel: ``module:qualname``, or the name alone where the module is not known.
        cache_key: what Triton looked up, 64 hex digits.
        cache: the cache directory.
        milliseconds: how long the compile took; None where it is not known.
        nearest: the bundle's entry with the fewest differing parts; None where the bundle lacks the kernel.
        differences: the parts that differ.
        unknown: what may differ beside them and cannot be known.
    """

    kernel: str
    cache_key: str
    cache: Path
    milliseconds: float | None
    nearest: Entry | None
    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]


def driven_kernels() -> list[tuple[str, str]]:
    """The kernels that aotpack's families drive, each with its family."""
    return [(kernel.name, family.name) for family in usable_families()[0] for kernel in family.kernels]


def not_packed(manifest: Manifest, kernel: str, problem: str) -> Difference:
    """Why the bundle has no key of a kernel; ``problem`` says why its launches cannot be keys, or is empty."""
    module, _, function = kernel.rpartition(":")
    family = next((family for name, family in driven_kernels() if name == kernel), None)
    if problem:
        text = f"is not packed: {problem}"
    elif _INDUCTOR.match(function) and not module.startswith(manifest.engine):
        text = "is not packed: Inductor wrote it when it compiled the model's graph"
    elif kernel in {packed.name for packed in manifest.kernels}:
        text = "is packed, but not one key of it"
    elif family:
        text = f"is not packed: it belongs to family {family}, and the bundle has {', '.join(manifest.families)}"
    else:
        text = "is not packed: no family of aotpack drives it"
    return Difference(part="kernel", name=kernel, bundle=text, here="launched")


def not_installed(bundle: Bundle, cache: Path, cache_key: str) -> Difference:
    """Why a key that the bundle holds was not found in a cache directory.

    Raises:
        CacheError: a receipt in it is damaged.
    """
    listed = [
        {file.path.partition("/")[0] for file in receipt.files}
        for receipt in read_receipts(cache)
        if receipt.bundle == bundle.digest
    ]
    if not listed:
        text = f"holds this key, and is not installed in {cache}"
    elif directory_name(cache_key) in listed[0]:
        text = f"is installed in {cache} with this entry: later than the compile, or the entry was broken"
    else:
        text = f"is installed in {cache} and left the entry that Triton had compiled there before"
    return Difference(part="installation", name="", bundle=text, here="compiled")
