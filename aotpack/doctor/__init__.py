"""The doctor: this machine against its bundles, one row for each thing that decides hit, miss or failure.

Each probe looks at one subject and answers with a ``Section``. None raises because a thing is absent or broken:
no Triton, no engine, no GPU, no cache directory are rows, and findings only where a bundle needs them.

Codes D1xx and S1xx are errors: kernels would not be found, would be refused, or a launch would fail. Codes D2xx are
warnings.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from aotpack.bundle import Bundle
from aotpack.cachedirectory import resolved_directory
from aotpack.doctor.cache import probe_cache
from aotpack.doctor.installed import installed_for, probe_bundle, probe_receipts, probe_wheels
from aotpack.doctor.launches import probe_gpus, probe_helpers
from aotpack.doctor.sections import Section
from aotpack.doctor.tools import (
    find_tool,
    find_toolchain,
    probe_engine,
    probe_ptxas,
    probe_python,
    probe_triton,
    toolkit_of,
)
from aotpack.doctor.trust import probe_trust
from aotpack.findings import Finding, is_error
from aotpack.gpus import read_driver
from aotpack.mounts import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that the doctor saw, in the order in which a launch depends on it."""

    sections: tuple[Section, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong, in order."""
        return tuple(finding for section in self.sections for finding in section.findings)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings with which kernels would not be found, or launches would fail."""
        return tuple(finding for finding in self.findings if is_error(finding))


def diagnose(bundle: Bundle | None = None, given: Path | None = None) -> Diagnosis:
    """Look at this machine.

    Args:
        bundle: the bundle that is to serve here; without one, the bundles installed in the cache directory count.
        given: the cache directory to look at, in place of the one that Triton would take.
    """
    environment = dict(os.environ)
    cache = resolved_directory(given)
    receipts, installed = probe_receipts(cache)
    held = {target for target, _ in installed_for(cache, receipts)}
    targets = bundle.manifest.targets if bundle else tuple(sorted(held))
    there = bundle is not None and bundle.digest in {receipt.bundle for receipt in receipts}
    local = find_toolchain(targets)
    tools = [find_tool(name, environment) for name in ("ptxas", "ptxas-blackwell")]
    sections = [
        probe_cache(cache, given, environment, read_table(), None if there else bundle),
        probe_triton(environment, local, needed=bundle is not None or bool(receipts)),
        probe_ptxas(tools, environment, bundle),
        probe_python(),
        probe_engine(bundle),
        probe_gpus(read_driver(), targets, {target: toolkit_of(target, tools, bundle) for target in targets}),
        probe_helpers(cache, environment, bundle),
        installed,
        probe_wheels(),
        probe_trust(receipts, bundle),
    ]
    if bundle:
        sections.append(probe_bundle(bundle, cache, local, installed=there))
    return Diagnosis(sections=tuple(sections))
