"""What bundles hold, in what two differ, and the wheels that carry them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click

from aotpack.bundle import Bundle
from aotpack.diff import Change, Diff
from aotpack.elf import release
from aotpack.manifest import Manifest
from aotpack.report.words import Words, count, show_json, show_line
from aotpack.wheel import Wheel


def show_bundle(bundle: Bundle, *, as_json: bool) -> None:
    """A bundle's manifest."""
    manifest = bundle.manifest
    if as_json:
        show_json(
            {
                "digest": bundle.digest,
                "size": bundle.size,
                "bytes_per_key": _each(bundle.size, len(manifest.entries)),
                "families": [_spell_size(size) for size in _per_family(manifest)],
                "manifest": manifest.to_json(),
            }
        )
        return
    cubins = {entry.cubin.digest: entry.cubin.size for entry in manifest.entries}
    per_key = _each(bundle.size, len(manifest.entries))
    rows = [
        ("digest", bundle.digest),
        ("engine", f"{manifest.engine} {manifest.engine_version}"),
        ("triton", manifest.toolchain.triton),
        ("targets", ", ".join(target.short for target in manifest.targets)),
        (
            "keys",
            f"{len(manifest.entries)}, in {count(len(cubins), 'distinct cubin')} of {sum(cubins.values()):,} bytes",
        ),
        ("size", f"{bundle.size:,} bytes, {per_key:,} a key"),
        ("helpers", _helpers(manifest)),
        *(("results", text) for text in _results(manifest)),
        ("families", f"{'':<12}{'keys':>8}{'unpacked bytes':>16}{'a key':>12}"),
        *(
            ("", f"{size.family:<12}{size.keys:>8,}{size.unpacked:>16,}{_each(size.unpacked, size.keys):>12,}")
            for size in _per_family(manifest)
        ),
        ("deployments", str(len(manifest.deployments))),
        *(("", _deployment(deployment)) for deployment in manifest.deployments),
        ("missing", str(len(manifest.missing)) if manifest.missing else "none"),
        *(("", f"{missing.key.describe()}: {missing.reason}") for missing in manifest.missing),
        ("unknown", str(len(manifest.unknowns)) if manifest.unknowns else "none"),
        *(("", f"{item.name} ({item.family}), fixed by {item.fixed_by}") for item in manifest.unknowns),
        ("built by", f"aotpack {manifest.built_by}"),
    ]
    for title, text in rows:
        show_line(f"{title:<12}{text}")


def _helpers(manifest: Manifest) -> str:
    """Of which Pythons, how many, and what they need: ``2 for .cpython-311-x86_64-linux-gnu.so (glibc 2.2.5)``."""
    counts = Counter(helper.suffix for helper in manifest.helpers)
    needs = {
        suffix: max((helper.glibc for helper in manifest.helpers if helper.suffix == suffix), key=release)
        for suffix in counts
    }
    return ", ".join(f"{count} for {suffix} (glibc {needs[suffix]})" for suffix, count in counts.items()) or "none"


def _results(manifest: Manifest) -> list[str]:
    """What was measured of autotuned kernels, a line for each device."""
    counts = Counter(kept.result.device for kept in manifest.results)
    alone = dict.fromkeys(manifest.devices, ", and only for it its fastest configurations")
    return [f"{count} for {device}{alone.get(device, '')}" for device, count in sorted(counts.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What a bundle holds of a family.

    Attributes:
        family: its name.
        keys: how many keys.
        unpacked: bytes of their artifacts, each once, as they are before compression: a frame has those of all
            families, and bytes of it belong to none.
    """

    family: str
    keys: int
    unpacked: int


def _per_family(manifest: Manifest) -> list[_Size]:
    owners = {kernel.name: kernel.family for kernel in manifest.kernels}
    counts = Counter(owners[entry.key.kernel] for entry in manifest.entries)
    sizes: dict[str, dict[str, int]] = {family: {} for family in manifest.families}
    for entry in manifest.entries:
        for _, artifact in entry.artifacts:
            sizes[owners[entry.key.kernel]][artifact.digest] = artifact.size
    return [_Size(family=family, keys=counts[family], unpacked=sum(found.values())) for family, found in sizes.items()]


def _spell_size(size: _Size) -> dict[str, str | int]:
    return {
        "family": size.family,
        "keys": size.keys,
        "unpacked_bytes": size.unpacked,
        "unpacked_bytes_per_key": _each(size.unpacked, size.keys),
    }


def _each(total: int, number: int) -> int:
    """Bytes for each, where there are any."""
    return total // max(1, number)


def _deployment(deployment: dict[str, Any]) -> str:
    model = deployment.get("model")
    name = model.get("name", "?") if isinstance(model, dict) else "?"
    return f"{name} tp{deployment.get('tp', '?')} {deployment.get('dtype', '?')}"


def show_diff(diff: Diff, *, as_json: bool) -> None:
    """In what two bundles differ; keys that the first alone has are marked ``-``, the second ``+``, both ``~``."""
    if as_json:
        show_json(_spell_diff(diff))
        return
    for name, side in (("a", diff.a), ("b", diff.b)):
        show_line(f"{name}  {side.path}  {side.digest}, {count(len(side.manifest.entries), 'key')}")
    _show_changes(diff.changes, "~ ")
    for mark, keys in (("-", diff.only_a), ("+", diff.only_b)):
        for key in keys:
            show_line(f"{mark} {key.describe()}")
    for entry in diff.entries:
        show_line(f"~ {entry.key.describe()}")
        _show_changes(entry.changes, "  ")
    if diff.same:
        show_line("they hold the same", err=True)
        return
    show_line(f"{'family':<16}{'keys a':>10}{'keys b':>10}{'cubins a':>16}{'cubins b':>16}")
    for row in diff.families:
        sizes = "".join(f"{size:>16,}" for size in row.cubins)
        show_line(f"{row.family:<16}{row.keys[0]:>10}{row.keys[1]:>10}{sizes}")
    show_line(
        f"{count(len(diff.only_a), 'key')} in a alone, {len(diff.only_b)} in b alone, {len(diff.entries)} changed; "
        f"{count(len(diff.changes), 'change')} of the whole",
        err=True,
    )


def _show_changes(changes: Iterable[Change], indent: str) -> None:
    for change in changes:
        show_line(f"{indent}{change.subject}")
        show_line(f"    a  {change.a}")
        show_line(f"    b  {change.b}")


def _spell_diff(diff: Diff) -> dict[str, Any]:
    return {
        "same": diff.same,
        **{
            name: {"path": str(side.path), "digest": side.digest, "keys": len(side.manifest.entries)}
            for name, side in (("a", diff.a), ("b", diff.b))
        },
        "changes": [_spell_change(change) for change in diff.changes],
        "only_a": [{"digest": key.digest, "key": key.to_json()} for key in diff.only_a],
        "only_b": [{"digest": key.digest, "key": key.to_json()} for key in diff.only_b],
        "entries": [
            {
                "digest": entry.key.digest,
                "kernel": entry.key.kernel,
                "changes": [_spell_change(change) for change in entry.changes],
            }
            for entry in diff.entries
        ],
        "families": [
            {"family": row.family, "keys": list(row.keys), "cubin_bytes": list(row.cubins)} for row in diff.families
        ],
    }


def _spell_change(change: Change) -> dict[str, str]:
    return {"subject": change.subject, "a": change.a, "b": change.b}


def show_wheels(wheels: Iterable[Wheel], words: Words) -> None:
    """Wheels that were written: their paths as data, the rest as words."""
    for wheel in wheels:
        helpers = f" and {count(wheel.helpers, 'native helper')}" if wheel.helpers else ""
        words.say(f"{wheel.path.name}: {count(wheel.entries, 'key')}{helpers}, {wheel.size:,} bytes")
        click.echo(str(wheel.path))
