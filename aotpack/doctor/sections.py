"""What a probe saw, and how probes look for what may be absent."""

from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from aotpack.findings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one probe saw.

    Attributes:
        title: its subject.
        rows: names and values, in order.
        findings: what is wrong with it.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...] = ()


class Findings:
    """Adds findings about one subject to a list."""

    def __init__(self, findings: list[Finding], subject: str) -> None:
        self._findings = findings
        self._subject = subject

    def __call__(self, code: str, detail: str, hint: str = "") -> None:
        """Add one."""
        self._findings.append(Finding(code=code, subject=self._subject, detail=detail, hint=hint))


def package(name: str) -> Path | None:
    """Where a package lies, without importing it."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def find_distribution(*names: str) -> Distribution | None:
    """The first of these distributions that is installed."""
    for name in names:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


def files_found(directory: Path, pattern: str) -> list[Path]:
    """The files of a pattern, none where this user may not look, which is a finding of its own."""
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []
