"""Reports: what the command line shows. The only module that prints.

Data goes to stdout, as text or as JSON with ``"version": 1``; words go to stderr. Progress is shown on a terminal
alone.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from aotpack.build import Built, Enumeration
from aotpack.bundle import Bundle
from aotpack.coverage import Coverage
from aotpack.diff import Change, Diff
from aotpack.digests import hex_of
from aotpack.doctor import Diagnosis
from aotpack.doctor.sections import is_error
from aotpack.elf import release
from aotpack.errors import printable
from aotpack.findings import Finding
from aotpack.install import Installed, Removed
from aotpack.manifest import Manifest, Reached
from aotpack.misses import Miss
from aotpack.shipping import Pulled, Pushed
from aotpack.sign import Signed
from aotpack.signingkeys import PublicKey
from aotpack.tritoncache import directory_name
from aotpack.tune import Tuned
from aotpack.verify import Checked, Healed
from aotpack.wheel import Wheel

VERSION = 1


class Words:
    """What is said while a command works: lines and a progress bar, on stderr.

    Use as a context manager, so that a bar that was begun is ended.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._what = ""

    def __enter__(self) -> "Words":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_bar()

    def say(self, line: str) -> None:
        """One line, unless quiet."""
        if not self._quiet:
            self._end_bar()
            click.echo(line, err=True)

    def tick(self, what: str, done: int, total: int) -> None:
        """Progress of one kind of work: a bar with counts and time left, on a terminal."""
        if self._quiet or not sys.stderr.isatty():
            return
        if what != self._what:
            self._end_bar()
            self._bar = click.progressbar(
                length=total, label=what, show_pos=True, show_eta=True, file=sys.stderr, item_show_func=None
            )
            self._bar.__enter__()
            self._what = what
        self._bar.update(done - self._bar.pos)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
            self._what = ""


def _show_line(text: str, *, err: bool = False) -> None:
    """One line that may hold names from outside, which shall neither break it nor steer the terminal."""
    click.echo(printable(text), err=err)


def show_error(message: str) -> None:
    """What went wrong, on stderr."""
    _show_line(f"Error: {message}", err=True)


def show_findings(findings: Iterable[Finding]) -> None:
    """What a check saw, a line each, on stderr."""
    for finding in findings:
        click.echo(f"Warning: {finding}", err=True)


def _show_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps({"version": VERSION, **document}, indent=2))


def show_built(built: Built, words: Words) -> None:
    """A build's result: the bundle's path as data, the rest as words."""
    show_findings(built.findings)
    for failure in built.failures:
        finding = Finding(code="K101", subject=failure.key.describe(), detail=failure.reason)
        click.echo(f"Failed: {finding}", err=True)
    held, lacking = len(built.bundle.manifest.entries), len(built.failures)
    missing = f", {lacking} missing" if lacking else ""
    words.say(f"{_count(held, 'key')}{missing}, {built.bundle.size:,} bytes, {built.bundle.digest}")
    click.echo(str(built.bundle.path))


def show_tuned(tuned: Tuned, words: Words) -> None:
    """What was measured: the files as data, the rest as words."""
    for failure in tuned.failures:
        tuning = failure.trial.tuning
        finding = Finding(code="U101", subject=f"{tuning.kernel} {tuning.key}", detail=failure.reason)
        click.echo(f"Failed: {finding}", err=True)
    for result in tuned.results:
        times = next(
            time for one, time in zip(result.tuning.configurations, result.times, strict=True) if one == result.fastest
        )
        kernel = result.tuning.kernel.rpartition(":")[2]
        words.say(f"{kernel} {result.tuning.key}: {result.fastest}, {1000 * (times or (0.0,))[0]:.1f} us")
    known = f", {tuned.known} known before" if tuned.known else ""
    failed = f", {len(tuned.failures)} failed" if tuned.failures else ""
    words.say(f"{_count(len(tuned.results), 'result')} for {tuned.device}{known}{failed}")
    for path in tuned.files:
        click.echo(str(path))


def show_keys(enumeration: Enumeration, words: Words, *, as_json: bool) -> None:
    """The keys of an enumeration, each with an input that reaches it."""
    show_findings(enumeration.findings())
    if as_json:
        _show_json(
            {
                "engine": {"name": enumeration.engine.name, "version": enumeration.engine.version},
                "triton": enumeration.toolchain.triton,
                "deployments": [deployment.to_json() for deployment in enumeration.deployments],
                "keys": [
                    {
                        "digest": key.digest,
                        "reached": {"deployment": reached.deployment, "input": dict(reached.input)},
                        "key": key.to_json(),
                    }
                    for key, reached in enumeration.keys
                ],
            }
        )
        return
    for key, reached in enumeration.keys:
        _show_line(key.describe())
        _show_line(f"  {key.digest}  reached by {_reached(reached, enumeration)}")
    words.say(f"{_count(len(enumeration.keys), 'key')} for Triton {enumeration.toolchain.triton}")


def _reached(reached: Reached, enumeration: Enumeration) -> str:
    quantities = ", ".join(f"{name}={value}" for name, value in reached.input)
    return f"{enumeration.deployments[reached.deployment]}: {quantities}"


def show_bundle(bundle: Bundle, *, as_json: bool) -> None:
    """A bundle's manifest."""
    manifest = bundle.manifest
    if as_json:
        _show_json({"digest": bundle.digest, "size": bundle.size, "manifest": manifest.to_json()})
        return
    cubins = {entry.cubin.digest: entry.cubin.size for entry in manifest.entries}
    per_key = bundle.size // max(1, len(manifest.entries))
    rows = [
        ("digest", bundle.digest),
        ("engine", f"{manifest.engine} {manifest.engine_version}"),
        ("triton", manifest.toolchain.triton),
        ("targets", ", ".join(target.short for target in manifest.targets)),
        (
            "keys",
            f"{len(manifest.entries)}, in {_count(len(cubins), 'distinct cubin')} of {sum(cubins.values()):,} bytes",
        ),
        ("size", f"{bundle.size:,} bytes, {per_key:,} a key"),
        ("helpers", _helpers(manifest)),
        *(("results", text) for text in _results(manifest)),
        ("families", ", ".join(f"{name} {count}" for name, count in _per_family(manifest).items())),
        ("deployments", str(len(manifest.deployments))),
        *(("", _deployment(deployment)) for deployment in manifest.deployments),
        ("missing", str(len(manifest.missing)) if manifest.missing else "none"),
        *(("", f"{missing.key.describe()}: {missing.reason}") for missing in manifest.missing),
        ("unknown", str(len(manifest.unknowns)) if manifest.unknowns else "none"),
        *(("", f"{item.name} ({item.family}), fixed by {item.fixed_by}") for item in manifest.unknowns),
        ("built by", f"aotpack {manifest.built_by}"),
    ]
    for title, text in rows:
        _show_line(f"{title:<12}{text}")


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


def _per_family(manifest: Manifest) -> dict[str, int]:
    owners = {kernel.name: kernel.family for kernel in manifest.kernels}
    counts = Counter(owners[entry.key.kernel] for entry in manifest.entries)
    return {family: counts[family] for family in manifest.families}


def _deployment(deployment: dict[str, Any]) -> str:
    model = deployment.get("model")
    name = model.get("name", "?") if isinstance(model, dict) else "?"
    return f"{name} tp{deployment.get('tp', '?')} {deployment.get('dtype', '?')}"


def show_diff(diff: Diff, *, as_json: bool) -> None:
    """In what two bundles differ; keys that the first alone has are marked ``-``, the second ``+``, both ``~``."""
    if as_json:
        _show_json(_spell_diff(diff))
        return
    for name, side in (("a", diff.a), ("b", diff.b)):
        _show_line(f"{name}  {side.path}  {side.digest}, {_count(len(side.manifest.entries), 'key')}")
    _show_changes(diff.changes, "~ ")
    for mark, keys in (("-", diff.only_a), ("+", diff.only_b)):
        for key in keys:
            _show_line(f"{mark} {key.describe()}")
    for entry in diff.entries:
        _show_line(f"~ {entry.key.describe()}")
        _show_changes(entry.changes, "  ")
    if diff.same:
        _show_line("they hold the same", err=True)
        return
    _show_line(f"{'family':<16}{'keys a':>10}{'keys b':>10}{'cubins a':>16}{'cubins b':>16}")
    for row in diff.families:
        sizes = "".join(f"{size:>16,}" for size in row.cubins)
        _show_line(f"{row.family:<16}{row.keys[0]:>10}{row.keys[1]:>10}{sizes}")
    _show_line(
        f"{_count(len(diff.only_a), 'key')} in a alone, {len(diff.only_b)} in b alone, {len(diff.entries)} changed; "
        f"{_count(len(diff.changes), 'change')} of the whole",
        err=True,
    )


def _show_changes(changes: Iterable[Change], indent: str) -> None:
    for change in changes:
        _show_line(f"{indent}{change.subject}")
        _show_line(f"    a  {change.a}")
        _show_line(f"    b  {change.b}")


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


def show_coverage(coverage: Coverage, *, as_json: bool) -> None:
    """What a bundle holds of what is needed, by kernel, and each key that it lacks."""
    if as_json:
        _show_json(
            {
                "complete": coverage.complete,
                "kernels": [
                    {"kernel": row.kernel, "needed": row.needed, "held": row.held, "missing": list(row.missing)}
                    for row in coverage.kernels
                ],
                "unknowns": [
                    {"family": unknown.family, "name": unknown.name, "fixed_by": unknown.fixed_by}
                    for unknown in coverage.unknowns
                ],
            }
        )
        return
    width = max((len(row.kernel) for row in coverage.kernels), default=6)
    _show_line(f"{'kernel':<{width}}  needed    held missing")
    for row in coverage.kernels:
        _show_line(f"{row.kernel:<{width}} {row.needed:>7} {row.held:>7} {len(row.missing):>7}")
    needed, held = (sum(getattr(row, name) for row in coverage.kernels) for name in ("needed", "held"))
    _show_line(f"{'all':<{width}} {needed:>7} {held:>7} {needed - held:>7}")
    for row in coverage.kernels:
        for missing in row.missing:
            _show_line(f"missing: {missing}")
    for unknown in coverage.unknowns:
        _show_line(f"unknown: {unknown.name} (family {unknown.family}) is fixed by {unknown.fixed_by}")


def show_wheels(wheels: Iterable[Wheel], words: Words) -> None:
    """Wheels that were written: their paths as data, the rest as words."""
    for wheel in wheels:
        helpers = f" and {_count(wheel.helpers, 'native helper')}" if wheel.helpers else ""
        words.say(f"{wheel.path.name}: {_count(wheel.entries, 'key')}{helpers}, {wheel.size:,} bytes")
        click.echo(str(wheel.path))


def show_key(key: PublicKey, private: Path, public: Path) -> None:
    """A key pair that was made: its identity as data, where it is as words."""
    click.echo(key.identity)
    click.echo(f"the private key is {private}, to be kept secret; the public key is {public}", err=True)


def show_signed(signed: Signed) -> None:
    """What signing left: the file's path as data, the rest as words."""
    others = len(signed.signatures.signatures) - 1
    beside = f", beside {_count(others, 'signature')} by other keys" if others else ""
    click.echo(f"signed {signed.signatures.bundle} with the key {signed.key}{beside}", err=True)
    click.echo(str(signed.path))


def show_installed(installed: Installed) -> None:
    """What an install refused, and what it did in one line."""
    receipt, fit = installed.receipt, installed.fit
    show_findings([*fit.accepted, *installed.refused, *installed.helpers.notes, *installed.chosen.findings])
    if fit.shifted:
        click.echo(
            f"{_count(len(fit.shifted), 'kernel')} stand in other lines here, and got keys of their own", err=True
        )
    if not fit.compared:
        click.echo(
            "the engine is not installed here, so its files were not compared; name its directory with --engine",
            err=True,
        )
    there = f", {installed.present} were there" if installed.present else ""
    click.echo(
        f"installed {_count(installed.written, 'kernel')} into {receipt.cache}{there}; "
        f"to take them out: aotpack uninstall {hex_of(receipt.bundle)[:12]}",
        err=True,
    )


def show_pushed(pushed: Pushed, *, as_json: bool) -> None:
    """What a push did: the image's name with its digest as data."""
    if as_json:
        _show_json(
            {
                "reference": pushed.reference,
                "bundle": pushed.bundle.digest,
                "sent": pushed.sent,
                "present": pushed.present,
            }
        )
        return
    there = f", {pushed.present:,} were there" if pushed.present else ""
    click.echo(f"sent {pushed.sent:,} bytes{there}: the bundle {pushed.bundle.digest}", err=True)
    click.echo(pushed.reference)


def show_pulled(pulled: Pulled, *, as_json: bool) -> None:
    """What a pull did: the bundle's path as data."""
    if as_json:
        _show_json(
            {
                "reference": pulled.reference,
                "path": str(pulled.bundle.path),
                "bundle": pulled.bundle.digest,
                "signature": None if pulled.signature is None else str(pulled.signature),
            }
        )
        return
    signed = " and its signature" if pulled.signature else ""
    click.echo(f"pulled the bundle {pulled.bundle.digest}{signed} from {pulled.reference}", err=True)
    click.echo(str(pulled.bundle.path))


def show_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """What the doctor saw, a section for each subject, each finding below its section."""
    if as_json:
        _show_json(
            {
                "sound": not diagnosis.errors,
                "sections": [
                    {
                        "title": section.title,
                        "rows": [{"name": name, "value": value} for name, value in section.rows],
                        "findings": [_finding(finding) for finding in section.findings],
                    }
                    for section in diagnosis.sections
                ],
            }
        )
        return
    for section in diagnosis.sections:
        click.echo(section.title)
        for name, value in section.rows:
            click.echo(f"  {name:<16}{value}")
        for finding in section.findings:
            click.echo(f"  {'Error' if is_error(finding) else 'Warning'}: {finding}")
    errors = len(diagnosis.errors)
    warnings = len(diagnosis.findings) - errors
    click.echo(f"{_count(errors, 'error')}, {_count(warnings, 'warning')}", err=True)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "error": is_error(finding),
        "subject": finding.subject,
        "detail": finding.detail,
        "hint": finding.hint,
    }


def show_removed(removed: Removed) -> None:
    """What an uninstall did."""
    show_findings(removed.findings)
    shared = f", {_count(removed.shared, 'file')} stay for another bundle" if removed.shared else ""
    click.echo(f"removed {_count(removed.removed, 'file')} from {removed.receipt.cache}{shared}", err=True)


def show_checked(checked: Checked, *, as_json: bool) -> None:
    """What a check saw."""
    if as_json:
        _show_json(_checked(checked))
        return
    _show_seen(checked)


def _checked(checked: Checked) -> dict[str, Any]:
    findings = [
        {"code": finding.code, "subject": finding.subject, "detail": finding.detail, "hint": finding.hint}
        for finding in checked.findings
    ]
    return {"subject": str(checked.subject), "entries": checked.entries, "findings": findings}


def _show_seen(checked: Checked) -> None:
    for finding in checked.findings:
        click.echo(str(finding))
    found = f"found {_count(len(checked.findings), 'thing')} wrong" if checked.findings else "all is well"
    click.echo(f"checked {_count(checked.entries, 'kernel')} in {checked.subject}: {found}", err=True)


def show_healed(healed: Healed, *, as_json: bool) -> None:
    """What healing did, entry by entry, and what is wrong still."""
    if as_json:
        remedies = [
            {"entry": remedy.entry, "action": remedy.action, "reason": remedy.reason} for remedy in healed.remedies
        ]
        _show_json({"before": _checked(healed.before), "remedies": remedies, "after": _checked(healed.after)})
        return
    for remedy in healed.remedies:
        click.echo(f"{remedy.action}: {remedy.entry}: {remedy.reason}")
    _show_seen(healed.after)


def show_misses(misses: Iterable[Miss], *, as_json: bool) -> None:
    """Why kernels were compiled: for each the nearest entry, the parts that differ, and what to do about each."""
    if as_json:
        _show_json({"misses": [_spell_miss(miss) for miss in misses]})
        return
    for miss in misses:
        took = "" if miss.milliseconds is None else f", compiled in {miss.milliseconds:.0f} ms"
        _show_line(f"{miss.kernel}{took}")
        _show_line(f"  compiled as  {miss.cache / directory_name(miss.cache_key)}")
        if miss.nearest is not None:
            _show_line(f"  nearest      {miss.nearest.key.describe()}")
        for item in miss.differences:
            _show_line(f"  {item.part} {item.name}".rstrip())
            _show_line(f"    bundle     {item.bundle}")
            _show_line(f"    here       {item.here}")
            _show_line(f"    advice     {item.advice}")
        if miss.unknown:
            _show_line(f"  not known    {', '.join(miss.unknown)}; a listener's record tells (see --help)")


def _spell_miss(miss: Miss) -> dict[str, Any]:
    return {
        "kernel": miss.kernel,
        "cache_key": miss.cache_key,
        "cache": str(miss.cache),
        "milliseconds": miss.milliseconds,
        "nearest": miss.nearest.key.to_json() if miss.nearest else None,
        "differences": [
            {"part": item.part, "name": item.name, "bundle": item.bundle, "here": item.here, "advice": item.advice}
            for item in miss.differences
        ],
        "unknown": list(miss.unknown),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
