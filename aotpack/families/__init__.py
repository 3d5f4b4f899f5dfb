"""Families: kernels that belong together, and the code that drives their launches.

A family only says which inputs to try, and why those reach every class of key; what is launched for an input is
decided by the engine's own wrappers, which a tracing process calls for real (see ``aotpack.tracing``). To add a
family is to add a module with a ``FAMILY`` in it and name that under the entry point group ``aotpack.families``;
the families here come in by the same door.

What varies at run time falls into few classes for Triton's binder: an int is 1, a multiple of 16, or other; a
tensor's data pointer is a multiple of 16 or not; None or given. Beside it, wrappers derive constexprs from
run-time quantities. ``token_counts`` reaches every combination of the two for anything that grows with tokens.

One family serves several releases of its engine. What differs between them it reads off the engine: whether a
module or a name is there (``Trace.has``), what a wrapper takes (``fitting``). What cannot be read off is declared
by release: kernels that one is known not to have, values that nobody knows ahead of serving, releases that a family
does not drive. Findings say all of these, so that nothing is silently left out.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Protocol

from aotpack.deployments import Deployment
from aotpack.engines import Engine
from aotpack.errors import AotpackError, UsageError
from aotpack.findings import Finding

GROUP = "aotpack.families"


class Trace(Protocol):
    """What a family is given to drive an engine with, in a process that pretends to be one target."""

    def module(self, name: str) -> ModuleType:
        """One of the engine's modules that the family declared, loaded for real."""

    def has(self, name: str) -> bool:
        """Whether this release has a module, or ``module:qualname`` in one that the family declared."""

    def input(self, **quantities: int | str | bool) -> AbstractContextManager[None]:
        """Name the input that is tried in the block; keys recorded in it are reached by it."""

    def setting(self, name: str, fixed_by: str) -> int | None:
        """A value that only the serving machine fixes, where the user gave it.

        Where not, it is noted as unknown, and the family leaves out what depends on it: the manifest and the
        coverage report then say so.

        Args:
            name: what the value is, in a few words with hyphens: ``cache-lines``.
            fixed_by: what fixes it on the serving machine.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbounded:
    """A value in a kernel's keys that only the serving machine fixes.

    Attributes:
        setting: its name, by which a user gives it.
        fixed_by: what fixes it on the serving machine.
    """

    setting: str
    fixed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedKernel:
    """A kernel that a family drives, and the parameters by which it knows it.

    Attributes:
        name: ``module:qualname``.
        parameters: the names of its parameters, in order.
        others: the same in other releases, each as different from the rest as the family has allowed for.
        absent: releases that are known not to have it; it is not looked for there.
        unbounded: releases where its keys hold a value that the serving machine alone fixes; there it is packed
            for a value that is given, and else not.
    """

    name: str
    parameters: tuple[str, ...]
    others: tuple[tuple[str, ...], ...] = ()
    absent: tuple[str, ...] = ()
    unbounded: Mapping[str, Unbounded] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Kernels that belong together.

    Attributes:
        name: how people call it.
        engine: the engine whose kernels they are.
        kernels: what is packed; anything else that the wrappers launch is an error.
        modules: the engine's modules that tracing needs for real, the kernels' own included; every other
            module of the engine is stubbed.
        serves: whether a deployment launches these kernels at all.
        drive: calls the engine's wrappers for one deployment, with inputs that reach every class of key.
        optional: modules like ``modules`` that some releases lack.
        undriven: releases that ``drive`` is known not to fit, and why.
        tune: calls the wrappers of autotuned kernels with inputs of the size that a server meets under load; None
            where no kernel is autotuned.
    """

    name: str
    engine: str
    kernels: tuple[ExpectedKernel, ...]
    modules: tuple[str, ...]
    serves: Callable[[Deployment], bool]
    drive: Callable[[Trace, Deployment], None]
    optional: tuple[str, ...] = ()
    undriven: Mapping[str, str] = field(default_factory=dict)
    tune: Callable[[Trace, Deployment], None] | None = None


def gaps(families: Iterable[Family], engine: Engine) -> list[Finding]:
    """What a bundle of those families lacks for an engine's release, where that is known ahead."""
    release = engine.version
    findings = []
    for family in families:
        if release in family.undriven:
            findings.append(
                Finding(
                    code="E104",
                    subject=str(engine),
                    detail=f"family {family.name} does not drive this release: {family.undriven[release]}",
                    hint="its kernels are not packed; a server compiles them when it first launches them",
                )
            )
            continue
        absent = [kernel.name for kernel in family.kernels if release in kernel.absent]
        if absent:
            findings.append(
                Finding(
                    code="E103",
                    subject=str(engine),
                    detail=f"has no kernel {', '.join(absent)} of family {family.name}",
                    hint="nothing is missing: a server of this release launches none of them",
                )
            )
    return findings


def fitting(function: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Of the arguments offered, those that this release's function takes.

    An argument that it takes besides and has no default for is missed when it is called.
    """
    taken = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in taken}


def without(parameters: tuple[str, ...], *names: str) -> tuple[str, ...]:
    """Parameters but for those names: what a release takes that came before them, or after."""
    return tuple(parameter for parameter in parameters if parameter not in names)


def load_families(names: Iterable[str] = ()) -> tuple[Family, ...]:
    """The families of those names, or all that are installed; in the order of their names.

    Raises:
        UsageError: there is no family of that name.
        AotpackError: a distribution's family cannot be loaded; the message names the distribution.
    """
    installed = {point.name: point for point in entry_points(group=GROUP)}
    wanted = sorted(set(names)) or sorted(installed)
    for name in wanted:
        if name not in installed:
            raise UsageError(f"{name!r} is not a family; installed are {', '.join(sorted(installed))}")
    return tuple(_load(installed[name]) for name in wanted)


def usable_families() -> tuple[tuple[Family, ...], tuple[Finding, ...]]:
    """Every installed family that can be loaded, and a finding for each that cannot."""
    families: list[Family] = []
    findings: list[Finding] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            families.append(_load(point))
        except AotpackError as error:
            hint = "its kernels are not packed"
            findings.append(Finding(code="F101", subject=f"family {point.name}", detail=str(error), hint=hint))
    return tuple(families), tuple(findings)


def _load(point: EntryPoint) -> Family:
    owner = point.dist.name if point.dist is not None else "an unknown distribution"
    try:
        family = point.load()
    except Exception as error:
        raise AotpackError(
            f"family {point.name} of {owner} cannot be loaded: {error!r}; update or remove it"
        ) from error
    if not isinstance(family, Family):
        raise AotpackError(
            f"family {point.name} of {owner}: {point.value} is not an aotpack Family; update or remove it"
        )
    return family


def token_counts(limit: int) -> tuple[int, ...]:
    """Token counts that reach every class of anything that grows with the number of tokens.

    All of the first 64, where a class may be a single count, then the neighbours of each power of two: a wrapper
    that derives a constexpr from the count does it in steps of at least two (a power of two of the rows, a tile
    per so many tokens), so each step's range holds a power of two, which is a multiple of 16, and a neighbour,
    which is not. The slow tests drive every count up to the limit and find nothing more.

    >>> token_counts(70)[-6:]
    (61, 62, 63, 64, 65, 70)
    """
    powers = [1 << exponent for exponent in range(6, limit.bit_length() + 1)]
    counts = {*range(1, 65), *(power + step for power in powers for step in (-1, 0, 1)), limit}
    return tuple(sorted(count for count in counts if count <= limit))
