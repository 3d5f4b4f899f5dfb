"""Coverage: which keys are needed, which of them a bundle holds, and which are missing.

What is needed is either what deployments reach, by tracing, or what a real run met, from a file of records.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from aotpack.build import Enumeration
from aotpack.manifest import Manifest, Unknown
from aotpack.record import RecordedKey, comparable
from aotpack.tuning import losing


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCoverage:
    """The coverage of one kernel.

    Attributes:
        kernel: ``module:qualname``.
        needed: how many of its keys are needed.
        missing: those that the bundle does not hold, for people.
    """

    kernel: str
    needed: int
    missing: tuple[str, ...]

    @property
    def held(self) -> int:
        """How many of the needed keys the bundle holds."""
        return self.needed - len(self.missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a bundle holds of what is needed.

    Attributes:
        kernels: by kernel.
        unknowns: values that decide further keys and are not known, so that those keys are not counted.
    """

    kernels: tuple[KernelCoverage, ...]
    unknowns: tuple[Unknown, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing that is needed is missing."""
        return not any(kernel.missing for kernel in self.kernels)


def cover_deployments(manifest: Manifest, enumeration: Enumeration) -> Coverage:
    """What a bundle holds of what deployments reach."""
    held = {entry.key for entry in manifest.entries}
    # What a bundle leaves out on purpose, its devices do not need.
    losers = losing(enumeration.decisions, [kept.result for kept in manifest.results], manifest.devices)
    needed = {key: key.describe() for key, _ in enumeration.keys if key not in losers}
    return Coverage(
        kernels=_by_kernel(
            ((key.kernel, text) for key, text in needed.items()),
            ((key.kernel, text) for key, text in needed.items() if key not in held),
        ),
        unknowns=enumeration.unknowns,
    )


def cover_records(manifest: Manifest, records: Iterable[RecordedKey]) -> Coverage:
    """What a bundle holds of what a run met, of the kernels that the bundle's families pack.

    Other kernels of the run (those of Inductor, of attention back ends) are not counted.
    """
    held = {comparable(entry.key) for entry in manifest.entries}
    packed = {kernel.name for kernel in manifest.kernels}
    needed = [record for record in records if record.kernel in packed]
    return Coverage(
        kernels=_by_kernel(
            ((record.kernel, record.form) for record in needed),
            ((record.kernel, record.form) for record in needed if record not in held),
        ),
        unknowns=manifest.unknowns,
    )


def _by_kernel(needed: Iterable[tuple[str, str]], missing: Iterable[tuple[str, str]]) -> tuple[KernelCoverage, ...]:
    counts = Counter(kernel for kernel, _ in needed)
    lacking: dict[str, list[str]] = {}
    for kernel, text in missing:
        lacking.setdefault(kernel, []).append(text)
    return tuple(
        KernelCoverage(kernel=kernel, needed=counts[kernel], missing=tuple(lacking.get(kernel, ())))
        for kernel in sorted(counts)
    )
