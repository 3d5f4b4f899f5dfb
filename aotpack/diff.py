"""Diffs: in what two bundles differ, told from their manifests alone.

A manifest lists every digest of its bundle, so nothing else need be read: what two manifests agree on, the files agree
on. A store, unpacked or of a wheel, is compared by what it carries.

An entry is the same entry where its compile key is: then its code, its metadata, or how it is launched may differ. A
key that one side alone has is told as such, unless the other side alone has exactly one key that differs from it in
nothing but options: then those options are what differs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aotpack.bundle import open_bundle
from aotpack.digests import canonical_json
from aotpack.keys import CompileKey, spell_launch_options
from aotpack.manifest import Artifact, Entry, Helper, KeptResult, Manifest
from aotpack.store import is_store, open_store

ABSENT = "none"
"""What is shown for a side that lacks something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two that are compared.

    Attributes:
        path: the bundle, or the store.
        digest: the identity of the bundle, of which a store may carry a part.
        manifest: of what is in it.
    """

    path: Path
    digest: str
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that is not the same on both sides.

    Attributes:
        subject: what it is the value of: ``triton``, ``cubin``, ``option num_warps``.
        a: the value in the first.
        b: the value in the second.
    """

    subject: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedEntry:
    """An entry that both sides have, and that is not the same in them.

    Attributes:
        key: its compile key; where options differ, that of the first.
        changes: in what it differs.
    """

    key: CompileKey
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySize:
    """What each side has of a family.

    Attributes:
        family: its name.
        keys: how many entries, in the first and in the second.
        cubins: bytes of their distinct cubins, in the first and in the second.
    """

    family: str
    keys: tuple[int, int]
    cubins: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """In what two bundles differ.

    Attributes:
        a: the first.
        b: the second.
        changes: values of the whole that differ: engine, toolchain, targets, families, deployments, kernels, helpers,
            results.
        only_a: keys that the first alone has, by kernel.
        only_b: keys that the second alone has, by kernel.
        entries: entries that differ, by kernel.
        families: what each side has of each family, by name.
    """

    a: Side
    b: Side
    changes: tuple[Change, ...]
    only_a: tuple[CompileKey, ...]
    only_b: tuple[CompileKey, ...]
    entries: tuple[ChangedEntry, ...]
    families: tuple[FamilySize, ...]

    @property
    def same(self) -> bool:
        """Whether both hold the same, to the last byte of every artifact."""
        return self.a.manifest == self.b.manifest


def open_side(path: Path) -> Side:
    """A bundle or a store to compare; its artifacts are not read.

    Raises:
        BundleError: it cannot be read, or is neither.
    """
    if is_store(path):
        store = open_store(path)
        return Side(path=path, digest=store.digest, manifest=store.manifest)
    bundle = open_bundle(path)
    return Side(path=path, digest=bundle.digest, manifest=bundle.manifest)


def compare(a: Side, b: Side) -> Diff:
    """In what two bundles differ."""
    ours, theirs = (_entries(side.manifest) for side in (a, b))
    only_a = [entry for key, entry in ours.items() if key not in theirs]
    only_b = [entry for key, entry in theirs.items() if key not in ours]
    pairs = list(_pairs(only_a, only_b))
    paired = {entry.key for pair in pairs for entry in pair}
    pairs += [(entry, theirs[key]) for key, entry in ours.items() if key in theirs]
    documents = a.manifest.deployments, b.manifest.deployments
    changed = [
        ChangedEntry(key=one.key, changes=changes)
        for one, other in pairs
        if (changes := tuple(_entry_changes(one, other, documents)))
    ]
    changes = tuple(_changes(a.manifest, b.manifest))
    if not (changes or only_a or only_b or changed) and a.manifest != b.manifest:
        # Nothing that has a meaning: the order of deployments, say. It is another bundle all the same.
        packed = replace(a.manifest, archive=b.manifest.archive) == b.manifest
        what = "how they are packed: by another libzstd, perhaps" if packed else "order of what they hold"
        changes = (Change(subject=what, a=a.manifest.digest, b=b.manifest.digest),)
    return Diff(
        a=a,
        b=b,
        changes=changes,
        only_a=_keys(entry.key for entry in only_a if entry.key not in paired),
        only_b=_keys(entry.key for entry in only_b if entry.key not in paired),
        entries=tuple(sorted(changed, key=lambda item: _order(item.key))),
        families=tuple(_families(a.manifest, b.manifest)),
    )


def _entries(manifest: Manifest) -> dict[CompileKey, Entry]:
    return {entry.key: entry for entry in manifest.entries}


def _order(key: CompileKey) -> tuple[str, str]:
    return key.kernel, key.line


def _keys(keys: Iterable[CompileKey]) -> tuple[CompileKey, ...]:
    return tuple(sorted(keys, key=_order))


def _pairs(only_a: list[Entry], only_b: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Entries that differ in nothing of their keys but options, where just one of each side does."""
    groups: dict[str, tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, entries in enumerate((only_a, only_b)):
        for entry in entries:
            groups[canonical_json({**entry.key.to_json(), "options": {}})][side].append(entry)
    for ours, theirs in groups.values():
        if len(ours) == len(theirs) == 1:
            yield ours[0], theirs[0]


Documents = tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]
"""The deployments of both manifests."""


def _entry_changes(a: Entry, b: Entry, documents: Documents) -> Iterator[Change]:
    yield from _mapping_changes("option ", _options(a.key), _options(b.key))
    yield from _value("name", a.name, b.name)
    for kind, (ours, theirs) in zip(("cubin", "metadata"), ((a.cubin, b.cubin), (a.metadata, b.metadata)), strict=True):
        yield from _value(kind, _artifact(ours), _artifact(theirs))
    yield from _value("launches", _launches(a), _launches(b))
    yield from _value("reached by", *map(_reached, (a, b), documents))


def _options(key: CompileKey) -> dict[str, str]:
    return {name: canonical_json(value) for name, value in key.to_json()["options"].items()}


def _artifact(artifact: Artifact) -> str:
    return f"{artifact.digest} of {artifact.size:,} bytes"


def _launches(entry: Entry) -> str:
    return canonical_json([spell_launch_options(launch) for launch in entry.launches])


def _reached(entry: Entry, documents: tuple[dict[str, Any], ...]) -> str:
    """The input and the deployment itself, since its number may be another in the other bundle."""
    return canonical_json([dict(entry.reached.input), documents[entry.reached.deployment]])


def _value(subject: str, a: str, b: str) -> Iterator[Change]:
    if a != b:
        yield Change(subject=subject, a=a, b=b)


def _mapping_changes(prefix: str, a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[Change]:
    for name in sorted(a.keys() | b.keys()):
        yield from _value(f"{prefix}{name}", a.get(name, ABSENT), b.get(name, ABSENT))


def _changes(a: Manifest, b: Manifest) -> Iterator[Change]:
    """What differs of the whole; every part of a manifest but its entries is here."""
    plain: dict[str, Callable[[Manifest], str]] = {
        "engine": lambda manifest: f"{manifest.engine} {manifest.engine_version}",
        "triton": lambda manifest: manifest.toolchain.triton,
        "libdevice": lambda manifest: manifest.toolchain.libdevice,
        "targets": lambda manifest: _listed(target.short for target in manifest.targets),
        "families": lambda manifest: _listed(manifest.families),
        "devices": lambda manifest: _listed(manifest.devices),
        "built by": lambda manifest: f"aotpack {manifest.built_by}",
    }
    for subject, value in plain.items():
        yield from _value(subject, value(a), value(b))
    parts: dict[str, Callable[[Manifest], dict[str, str]]] = {
        "triton source ": lambda manifest: dict(manifest.toolchain.sources),
        "assembler ": lambda manifest: dict(manifest.toolchain.assemblers),
        "environment ": lambda manifest: dict(manifest.toolchain.environment),
        "deployment ": lambda manifest: {canonical_json(document): "there" for document in manifest.deployments},
        "kernel ": lambda manifest: {
            kernel.name: f"{kernel.family}, keys {_listed(kernel.cache_keys)}" for kernel in manifest.kernels
        },
        "source of ": _sources,
        "helper ": lambda manifest: {_helper(helper): _describe(helper) for helper in manifest.helpers},
        "result ": lambda manifest: {_result(kept): _measured(kept) for kept in manifest.results},
        "missing ": lambda manifest: {
            f"{item.key.describe()} {item.key.digest}": item.reason for item in manifest.missing
        },
        "unknown ": lambda manifest: {
            f"{item.family} {item.name}, fixed by {item.fixed_by}": "there" for item in manifest.unknowns
        },
    }
    for prefix, values in parts.items():
        yield from _mapping_changes(prefix, values(a), values(b))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or ABSENT


def _sources(manifest: Manifest) -> dict[str, str]:
    return {name: canonical_json(value) for name, value in _flat(manifest.sources.to_json())}


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The sources' parts, a line for each function or module."""
    for part, values in document.items():
        if isinstance(values, dict):
            yield from ((f"{part} {name}", value) for name, value in values.items())
        else:
            yield part, values


def _helper(helper: Helper) -> str:
    return f"{helper.file} of {helper.source}"


def _describe(helper: Helper) -> str:
    return f"{_artifact(helper.artifact)}, {helper.machine}, glibc {helper.glibc}"


def _result(kept: KeptResult) -> str:
    tuning = kept.result.tuning
    return f"{tuning.kernel} {canonical_json(list(tuning.key))} {tuning.target.short} on {kept.result.device}"


def _measured(kept: KeptResult) -> str:
    return f"{kept.result.fastest}, {_artifact(kept.artifact)}"


def _families(a: Manifest, b: Manifest) -> Iterator[FamilySize]:
    ours, theirs = _sizes(a), _sizes(b)
    for family in sorted(ours.keys() | theirs.keys()):
        (keys_a, bytes_a), (keys_b, bytes_b) = ours.get(family, (0, 0)), theirs.get(family, (0, 0))
        yield FamilySize(family=family, keys=(keys_a, keys_b), cubins=(bytes_a, bytes_b))


def _sizes(manifest: Manifest) -> dict[str, tuple[int, int]]:
    owners = {kernel.name: kernel.family for kernel in manifest.kernels}
    entries: dict[str, list[Entry]] = {family: [] for family in manifest.families}
    for entry in manifest.entries:
        entries.setdefault(owners[entry.key.kernel], []).append(entry)
    return {
        family: (len(several), sum({entry.cubin.digest: entry.cubin.size for entry in several}.values()))
        for family, several in entries.items()
    }
