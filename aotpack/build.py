"""Building: engine and deployments in, a bundle out.

This is the road's first half in one place: trace every deployment for every target, merge the keys, compile
each once, write one bundle. The same input gives the same bytes whatever the number of workers.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aotpack import __version__
from aotpack.archive import compress
from aotpack.autotuner import Kept
from aotpack.bundle import Bundle, bundle_name, write_bundle
from aotpack.compilecache import CompileCache
from aotpack.compiler import Compiled, CompileFailed, Outcome
from aotpack.deployments import Deployment, Service, canonical_deployments
from aotpack.digests import digest_bytes
from aotpack.engines import Engine
from aotpack.errors import EngineError, ModelError, OutputError
from aotpack.families import gaps, load_families
from aotpack.findings import Finding
from aotpack.fingerprint import basis_of
from aotpack.helpers import BuiltHelper, Launch
from aotpack.interpreters import Interpreter
from aotpack.kept import KeptPool, kept_frames
from aotpack.keys import CompileKey, LaunchOptions
from aotpack.manifest import (
    Artifact,
    Entry,
    KeptResult,
    Kernel,
    Manifest,
    Missing,
    Reached,
    Unknown,
    launches_in_order,
)
from aotpack.pool import Pool, Recruit, WorkerSpec
from aotpack.results import lacking, read_results, results_for, shipped_results
from aotpack.sources import Sources
from aotpack.targets import Target
from aotpack.toolchain import Toolchain
from aotpack.tuning import Result, Tuning, losing

Ticker = Callable[[str, int, int], None]
"""Told of progress: what is done ("tracing", "compiling"), how many are, out of how many."""


def silent(_what: str, _done: int, _total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enumeration:
    """The keys of some deployments, for some targets.

    Attributes:
        engine: where the kernels come from.
        toolchain: the Triton that asks for these keys.
        targets: the targets, ascending.
        families: the names of the families that were driven.
        deployments: the deployments, in canonical order.
        kernels: the families' kernels, by name.
        sources: what they are made of.
        keys: each key once, by kernel and key, with the first input that reached it.
        launches: the options of the launches that ask for each of them, see ``aotpack.memorykeys``.
        decisions: the keys of each configuration of each decision that autotuners take.
        unknowns: values that decide further keys, and that only the serving machine fixes.
        gaps: what the families are known to lack for this release.
    """

    engine: Engine
    toolchain: Toolchain
    targets: tuple[Target, ...]
    families: tuple[str, ...]
    deployments: tuple[Deployment, ...]
    kernels: tuple[Kernel, ...]
    sources: Sources
    keys: tuple[tuple[CompileKey, Reached], ...]
    launches: Mapping[CompileKey, frozenset[LaunchOptions]]
    decisions: Mapping[Tuning, tuple[frozenset[CompileKey], ...]]
    unknowns: tuple[Unknown, ...]
    gaps: tuple[Finding, ...]

    def findings(self) -> list[Finding]:
        """What a user should know of it before trusting a bundle of it."""
        return [*self.engine.check(self.toolchain.triton), *self.gaps, *map(_finding, self.unknowns)]


def _finding(unknown: Unknown) -> Finding:
    return Finding(
        code="K102",
        subject=f"family {unknown.family}",
        detail=f"{unknown.name} is fixed by {unknown.fixed_by}; keys that depend on it are left out",
        hint=f"give it with --set {unknown.name}=VALUE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A build's result.

    Attributes:
        bundle: what was written.
        failures: the keys that it lacks.
        findings: what a user should know of it.
    """

    bundle: Bundle
    failures: tuple[CompileFailed, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to enumerate or build.

    Attributes:
        engine: where the kernels are.
        targets: what to compile for.
        families: names of the families to drive.
        services: what is served.
    """

    engine: Engine
    targets: tuple[Target, ...]
    families: tuple[str, ...]
    services: tuple[Service, ...]


def enumerate_keys(
    selection: Selection, *, jobs: int, tick: Ticker = silent, cache: CompileCache | None = None
) -> Enumeration:
    """Every key of a selection, without compiling.

    Args:
        selection: what to enumerate.
        jobs: worker processes for each target.
        tick: told of progress.
        cache: what earlier ones found out, where it is still so, and where this one keeps it.

    Raises:
        ModelError: none of the families serves any of the deployments.
        EngineError, TracingError, ToolchainError: as ``aotpack.tracing.Tracer``.
    """
    parts = []
    pools = _Pools(selection, jobs, cache)
    for target in sorted(set(selection.targets)):
        with pools.pool(target) as pool:
            parts.append(_enumerate(pool, selection, target, tick))
    return _merge(parts)


def build_bundle(
    selection: Selection,
    *,
    output: Path,
    jobs: int,
    tick: Ticker = silent,
    interpreters: Sequence[Interpreter] = (),
    tuning: Path | None = None,
    devices: Sequence[str] = (),
    cache: CompileCache | None = None,
    recruit: Recruit | None = None,
) -> Built:
    """Compile every key of a selection and pack the result.

    Args:
        selection: what to build.
        output: the bundle's path, or a directory that exists, where it gets its usual name.
        jobs: worker processes.
        tick: told of progress.
        interpreters: what to build native helpers for; none means a bundle of kernels alone.
        tuning: a directory of results of autotuned kernels; None means those that come with aotpack.
        devices: what serves, as the driver spells it: configurations that lose on each of them are left out. None
            means every product of the targets.
        cache: what earlier builds found out, where it is still so, and where this one keeps it. The bundle is the
            same to the byte with and without.
        recruit: gives the workers that compile for a target; None means worker processes of this machine.

    Raises:
        UsageError: there are no results for one of the devices.
        DocumentError: the results cannot be read.
        ModelError, EngineError, TracingError, ToolchainError: as ``enumerate_keys``.
        ToolchainError: a native helper cannot be compiled.
        OutputError: the bundle cannot be written; nothing is left behind.
    """
    folder = output if output.is_dir() else output.parent
    if not folder.is_dir():
        raise OutputError(f"{folder}: no such directory; create it, or choose another --output")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{folder}: is not writable; choose another --output")
    engine = selection.engine
    results = results_for(read_results(tuning or shipped_results(), engine.name, engine.version), devices, str(engine))
    parts = []
    kept: list[Kept] = []
    outcomes: list[Outcome] = []
    helpers: dict[str, list[BuiltHelper]] = {}
    pools = _Pools(selection, jobs, cache)
    for target in sorted(set(selection.targets)):
        with pools.pool(target, recruit) as pool:
            _add_helpers(helpers, pool, interpreters, (), tick)  # where a compiler fails, before the long work
            part = _enumerate(pool, selection, target, tick)
            parts.append(part)
            launches: list[Launch] = []
            losers = losing(part.decisions, results, devices)
            needed = [key for key, _ in part.keys if key not in losers]
            for done, outcome in enumerate(pool.compile(needed), start=1):
                outcomes.append(outcome)
                if isinstance(outcome, Compiled):
                    launches.append((outcome.key, outcome.metadata))
                tick(f"compiling for {target.short}", done, len(needed))
            kept += pool.keep([result for result in results if result.tuning in part.decisions])
            _add_helpers(helpers, pool, interpreters, launches, tick)
    enumeration = _merge(parts)
    used = [result for result in results if result.tuning in enumeration.decisions]
    manifest, blobs, failures = _pack(enumeration, outcomes)
    manifest = replace(manifest, results=_kept(used, kept), devices=tuple(sorted(set(devices))))
    blobs |= {digest_bytes(one.content): one.content for one in kept}
    built = sorted((one for several in helpers.values() for one in several), key=lambda one: one.helper.order)
    manifest = replace(manifest, helpers=tuple(one.helper for one in built))
    blobs |= {one.helper.artifact.digest: one.content for one in built}
    path = output / bundle_name(manifest) if output.is_dir() else output
    try:
        bundle = write_bundle(path, manifest, blobs, kept_frames(cache) if cache else compress)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written: {error.strerror}; nothing is left there; free space or use another --output"
        ) from None
    findings = [*enumeration.findings(), *lacking(enumeration.decisions, used, devices, enumeration.toolchain.triton)]
    if cache:
        cache.prune()
        findings += cache.findings()
    return Built(bundle=bundle, failures=failures, findings=tuple(findings))


def _kept(results: Sequence[Result], kept: Sequence[Kept]) -> tuple[KeptResult, ...]:
    """Results with their files, in order; both are by target and in order, and so are targets."""
    return tuple(
        KeptResult(
            result=result,
            name=one.name,
            artifact=Artifact(digest=digest_bytes(one.content), size=len(one.content)),
        )
        for result, one in zip(results, kept, strict=True)
    )


def _add_helpers(
    helpers: dict[str, list[BuiltHelper]],
    pool: Pool,
    interpreters: Sequence[Interpreter],
    launches: Sequence[Launch],
    tick: Ticker,
) -> None:
    """Build what launches need and ``helpers``, by the digest of the C text, lacks."""
    if not interpreters:
        return
    fresh = [source for source in pool.helper_sources(launches) if source.digest not in helpers]
    total = len(fresh) * len(interpreters)
    for done, built in enumerate(pool.build_helpers(fresh, interpreters), start=1):
        helpers.setdefault(built.helper.source, []).append(built)
        tick("building native helpers", done, total)


class _Pools:
    """The pool for each target of a selection."""

    def __init__(self, selection: Selection, jobs: int, cache: CompileCache | None) -> None:
        self._selection = selection
        self._jobs = jobs
        self._cache = cache
        self._basis = basis_of(selection.engine, selection.families) if cache else None

    def pool(self, target: Target, recruit: Recruit | None = None) -> Pool:
        families = tuple(sorted(self._selection.families))
        spec = WorkerSpec(engine=self._selection.engine, target=target, families=families)
        if self._cache is None or self._basis is None:
            return Pool(spec, self._jobs, recruit)
        return KeptPool(spec, self._jobs, self._cache, self._basis, recruit)


def _enumerate(pool: Pool, selection: Selection, target: Target, tick: Ticker) -> Enumeration:
    deployments = canonical_deployments(
        deployment for service in selection.services for deployment in service.deployments(target)
    )
    described = pool.describe()
    reached: dict[CompileKey, Reached] = {}
    launches: dict[CompileKey, set[LaunchOptions]] = {}
    decisions: dict[Tuning, tuple[frozenset[CompileKey], ...]] = {}
    unknowns: set[Unknown] = set()
    for index, families_traced in enumerate(pool.trace(deployments)):
        for traced in families_traced:
            unknowns |= set(traced.unknowns)
            for key, quantities in traced.keys:
                reached.setdefault(key, Reached(deployment=index, input=quantities))
            for key, launch in traced.launches:
                launches.setdefault(key, set()).add(launch)
            for decision in traced.decisions:
                before = decisions.get(decision.tuning, (frozenset(),) * len(decision.keys))
                pairs = zip(before, decision.keys, strict=True)
                decisions[decision.tuning] = tuple(one | other for one, other in pairs)
        tick(f"tracing for {target.short}", index + 1, len(deployments))
    if not reached:
        raise ModelError(
            f"none of the families {', '.join(selection.families)} serves {', '.join(map(str, deployments))}; "
            "there is nothing to compile"
        )
    loaded = load_families(selection.families)
    return Enumeration(
        engine=selection.engine,
        toolchain=described.toolchain,
        targets=(target,),
        families=tuple(family.name for family in loaded if selection.engine.version not in family.undriven),
        deployments=deployments,
        kernels=described.kernels,
        sources=described.sources,
        keys=tuple(sorted(reached.items(), key=lambda item: _order(item[0]))),
        launches={key: frozenset(options) for key, options in launches.items()},
        decisions=decisions,
        unknowns=tuple(sorted(unknowns, key=lambda unknown: (unknown.family, unknown.name))),
        gaps=tuple(gaps(loaded, selection.engine)),
    )


def _order(key: CompileKey) -> tuple[Target, str, str]:
    return key.target, key.kernel, key.line


def _merge(parts: Sequence[Enumeration]) -> Enumeration:
    """One enumeration of several targets'."""
    for part in parts[1:]:
        differing = sorted(kernel.name for kernel in {*part.kernels} ^ {*parts[0].kernels})
        if differing or part.sources != parts[0].sources:
            raise EngineError(
                f"{parts[0].engine}: the source of {next(iter(differing), 'a helper')} is not the same for "
                f"{parts[0].targets[0].short} and {part.targets[0].short}; build one bundle for each architecture"
            )
    assemblers = tuple(pair for part in parts for pair in part.toolchain.assemblers)
    deployments = canonical_deployments(deployment for part in parts for deployment in part.deployments)
    places = {deployment: index for index, deployment in enumerate(deployments)}
    return replace(
        parts[0],
        toolchain=replace(parts[0].toolchain, assemblers=tuple(sorted(assemblers))),
        targets=tuple(target for part in parts for target in part.targets),
        deployments=deployments,
        keys=tuple(
            (key, replace(reached, deployment=places[part.deployments[reached.deployment]]))
            for part in parts
            for key, reached in part.keys
        ),
        launches={key: options for part in parts for key, options in part.launches.items()},
        decisions={tuning: keys for part in parts for tuning, keys in part.decisions.items()},
        unknowns=tuple(dict.fromkeys(unknown for part in parts for unknown in part.unknowns)),
    )


def _pack(
    enumeration: Enumeration, outcomes: Sequence[Outcome]
) -> tuple[Manifest, dict[str, bytes], tuple[CompileFailed, ...]]:
    blobs: dict[str, bytes] = {}
    compiled: dict[CompileKey, Compiled] = {}
    failed: dict[CompileKey, CompileFailed] = {}
    for outcome in outcomes:
        match outcome:
            case Compiled():
                compiled[outcome.key] = outcome
            case CompileFailed():
                failed[outcome.key] = outcome

    def entries() -> Iterator[Entry]:
        for key, reached in enumeration.keys:
            if key in compiled:
                done = compiled[key]
                artifacts = []
                for kind, data in (("cubin", done.cubin), ("json", done.metadata)):
                    artifact = Artifact(digest=digest_bytes(data), size=len(data))
                    blobs[artifact.digest] = data
                    artifacts.append((kind, artifact))
                yield Entry(
                    key=key,
                    name=done.name,
                    reached=reached,
                    launches=launches_in_order(enumeration.launches.get(key, ())),
                    artifacts=tuple(artifacts),
                )

    failures = tuple(failed[key] for key, _ in enumeration.keys if key in failed)
    manifest = Manifest(
        engine=enumeration.engine.name,
        engine_version=enumeration.engine.version,
        toolchain=enumeration.toolchain,
        targets=enumeration.targets,
        families=enumeration.families,
        deployments=tuple(deployment.to_json() for deployment in enumeration.deployments),
        kernels=enumeration.kernels,
        sources=enumeration.sources,
        entries=tuple(entries()),
        helpers=(),
        missing=tuple(Missing(key=failure.key, reason=failure.reason) for failure in failures),
        unknowns=enumeration.unknowns,
        built_by=__version__,
    )
    return manifest, blobs, failures
