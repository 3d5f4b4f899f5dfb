"""Fitting: which entries of a bundle serve on this machine, and under which cache keys its Triton will ask for them.

What always holds: a key is computed by the local Triton, for the local toolchain, out of the kernel as the local
engine has it; and an entry whose code might not be what Triton would compile here is refused by name, with the part
that differs. Nothing is written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aotpack.autotuner import Keeper
from aotpack.bundle import Bundle
from aotpack.engines import Engine, same_release
from aotpack.errors import IncompatibleError, UsageError
from aotpack.findings import Finding
from aotpack.manifest import Entry, KeptResult, Manifest
from aotpack.sourcekeys import SourceKeys
from aotpack.sources import Changed, EngineSources, Same, Shifted
from aotpack.targets import Target
from aotpack.toolchain import KeyMaker, Toolchain, local_toolchain

ASSEMBLER = "assembler"
NOTHING = "nothing in it serves here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One entry and the cache keys that reach it here.

    Attributes:
        entry: the entry.
        cache_keys: 64 hex digits each; up to Triton 3.7 there can be several, see ``aotpack.sourcekeys``.
    """

    entry: Entry
    cache_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultPlacement:
    """What was measured of an autotuned kernel, and the cache keys under which Triton looks for that here.

    Attributes:
        kept: the result.
        cache_keys: 64 hex digits each, as many as the kernel has source keys. The device is not in them.
    """

    kept: KeptResult
    cache_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a bundle can do on a machine.

    Attributes:
        placements: what serves here.
        results: what was measured of the kernels that serve here, on whichever device.
        refused: what does not, and why.
        accepted: differences that were accepted on purpose, with the reason given.
        shifted: kernels that stand in other lines here, and were given other keys.
        compared: whether the engine's files were here to compare with.
        withdrawn: cache keys under which a kernel that is refused for its source would still be found, were it
            installed: Triton's key does not hold all that decides its code.
    """

    placements: tuple[Placement, ...]
    results: tuple[ResultPlacement, ...]
    refused: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    shifted: tuple[str, ...]
    compared: bool
    withdrawn: tuple[str, ...]


def fit_bundle(
    bundle: Bundle, *, targets: Sequence[Target] = (), engine: Engine | None = None, other_ptxas: str | None = None
) -> Fit:
    """Fit a bundle to this machine, as ``fit_manifest`` does."""
    return fit_manifest(bundle.manifest, str(bundle.path), targets=targets, engine=engine, other_ptxas=other_ptxas)


def fit_manifest(
    manifest: Manifest,
    name: str,
    *,
    targets: Sequence[Target] = (),
    engine: Engine | None = None,
    other_ptxas: str | None = None,
) -> Fit:
    """Fit a bundle's manifest to this machine.

    Args:
        manifest: the manifest.
        name: where it is from, for messages.
        targets: of the bundle's, which to fit; none means all.
        engine: the engine that will serve, whose files the kernels are compared with; None where it is not here.
        other_ptxas: the reason why kernels may serve although the assembler here is another one; None refuses them.

    Raises:
        UsageError: the bundle does not have such a target.
        ToolchainError: there is no Triton here.
        IncompatibleError: nothing of the bundle serves here, whatever the engine; the message says which part of the
            toolchain differs.
    """
    wanted = wanted_targets(manifest, name, targets)
    local = local_toolchain(wanted)
    refused, accepted, unfit = _weigh(manifest, name, local, wanted, other_ptxas)
    fit_targets = [target for target in wanted if target not in unfit]
    if not fit_targets:
        raise IncompatibleError(f"{name}: {NOTHING}: {refused[0]}")
    source_keys, shifted, findings = _source_keys(manifest, engine)
    maker = KeyMaker()
    placements: list[Placement] = []
    withdrawn: list[str] = []
    for entry in manifest.entries:
        if entry.key.target not in fit_targets:
            continue
        kernel = entry.key.kernel
        if kernel in source_keys:
            cache_keys = tuple(maker.key_of(entry.key, source_key) for source_key in source_keys[kernel])
            placements.append(Placement(entry=entry, cache_keys=cache_keys))
        else:
            withdrawn += [maker.key_of(entry.key, key) for key in manifest.kernel(kernel).cache_keys]
    return Fit(
        placements=tuple(placements),
        results=tuple(_place_results(manifest, fit_targets, source_keys)),
        refused=(*refused, *findings),
        accepted=tuple(accepted),
        shifted=shifted,
        compared=engine is not None,
        withdrawn=tuple(withdrawn),
    )


def _place_results(
    manifest: Manifest, targets: Sequence[Target], source_keys: Mapping[str, tuple[str, ...]]
) -> Iterator[ResultPlacement]:
    keeper = Keeper() if manifest.results else None
    for kept in manifest.results:
        tuning = kept.result.tuning
        if keeper is not None and tuning.target in targets and tuning.kernel in source_keys:
            keys = (keeper.keep(kept.result, source_key).cache_key for source_key in source_keys[tuning.kernel])
            yield ResultPlacement(kept=kept, cache_keys=tuple(dict.fromkeys(keys)))


def wanted_targets(manifest: Manifest, name: str, targets: Sequence[Target]) -> tuple[Target, ...]:
    """The targets asked for, ascending; all of the manifest's where none is.

    Raises:
        UsageError: the manifest does not have such a target.
    """
    available = manifest.targets
    for target in targets:
        if target not in available:
            raise UsageError(
                f"{name}: has no kernels for {target.short}; it has {', '.join(t.short for t in available)}"
            )
    return tuple(sorted(set(targets))) or available


def _weigh(
    manifest: Manifest, name: str, local: Toolchain, targets: Sequence[Target], other_ptxas: str | None
) -> tuple[list[Finding], list[Finding], set[Target]]:
    """What the toolchains' differences mean: refused, accepted, and the targets that do not serve."""
    refused: list[Finding] = []
    accepted: list[Finding] = []
    unfit: set[Target] = set()
    for difference in manifest.toolchain.differences(local):
        if difference.part != ASSEMBLER:
            raise IncompatibleError(
                f"{name}: {difference}; its kernels would not be found, or not be the right ones: "
                f"use a bundle for Triton {local.triton}, or this bundle in the image it was built for"
            )
        target = Target.parse(difference.subject)
        if target not in targets:
            continue
        if other_ptxas is None:
            unfit.add(target)
            refused.append(
                Finding(
                    code="I102",
                    subject=target.short,
                    detail=str(difference),
                    hint="unset TRITON_PTXAS_PATH, build with that ptxas, or accept it: --other-ptxas 'the reason'",
                )
            )
        else:
            accepted.append(Finding(code="I103", subject=target.short, detail=f"{difference}; accepted: {other_ptxas}"))
    return refused, accepted, unfit


def _source_keys(
    manifest: Manifest, engine: Engine | None
) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...], list[Finding]]:
    """The source keys of each kernel that serves, the kernels that were shifted, and those that do not serve."""
    recorded = {kernel.name: kernel.cache_keys for kernel in manifest.kernels}
    if engine is None:
        return recorded, (), []
    files = EngineSources(engine.root)
    if files.holds(manifest.sources):
        return recorded, (), _other_release(manifest, engine, len(recorded))
    keys: dict[str, tuple[str, ...]] = {}
    shifted: list[str] = []
    findings: list[Finding] = []
    entries = Counter(entry.key.kernel for entry in manifest.entries)
    maker = SourceKeys(manifest.sources, files)
    for name, cache_keys in recorded.items():
        match files.compare(manifest.sources.closure(name)):
            case Same():
                keys[name] = cache_keys
            case Shifted(lines):
                keys[name] = maker.of(name, dict(lines))
                shifted.append(name)
            case Changed(what):
                findings += _refusals(name, what, entries, engine)
    return keys, tuple(shifted), [*_other_release(manifest, engine, len(keys)), *findings]


def _refusals(name: str, what: str, entries: Mapping[str, int], engine: Engine) -> list[Finding]:
    count = entries.get(name, 0)
    if not count:
        return []
    keys = "1 key" if count == 1 else f"{count} keys"
    return [
        Finding(
            code="I104",
            subject=name,
            detail=f"{what} is not in {engine.root} as it was at the build; its {keys} would be other code",
            hint="build a bundle from this engine",
        )
    ]


def _other_release(manifest: Manifest, engine: Engine, same: int) -> list[Finding]:
    """What to say where the engine here is of another release; a local suffix (+cu130) makes none."""
    if same_release(manifest.engine_version, engine.version):
        return []
    return [
        Finding(
            code="I105",
            subject=str(engine),
            detail=f"the bundle is of {manifest.engine} {manifest.engine_version}; {same} of its "
            f"{len(manifest.kernels)} kernels have the same source here, and it may launch others",
            hint="build a bundle for this release",
        )
    ]
