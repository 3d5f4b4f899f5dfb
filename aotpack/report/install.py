"""What was installed, taken out, checked and healed."""

from typing import Any

import click

from aotpack.heal import Healed
from aotpack.install import Removed
from aotpack.report.words import count, show_findings, show_json
from aotpack.verify import Checked


def show_removed(removed: Removed) -> None:
    """What an uninstall did."""
    show_findings(removed.findings)
    shared = f", {count(removed.shared, 'file')} stay for another bundle" if removed.shared else ""
    click.echo(f"removed {count(removed.removed, 'file')} from {removed.receipt.cache}{shared}", err=True)


def show_checked(checked: Checked, *, as_json: bool) -> None:
    """What a check saw."""
    if as_json:
        show_json(_checked(checked))
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
    found = f"found {count(len(checked.findings), 'thing')} wrong" if checked.findings else "all is well"
    click.echo(f"checked {count(checked.entries, 'kernel')} in {checked.subject}: {found}", err=True)


def show_healed(healed: Healed, *, as_json: bool) -> None:
    """What healing did, entry by entry, and what is wrong still."""
    if as_json:
        remedies = [
            {"entry": remedy.entry, "action": remedy.action, "reason": remedy.reason} for remedy in healed.remedies
        ]
        show_json({"before": _checked(healed.before), "remedies": remedies, "after": _checked(healed.after)})
        return
    for remedy in healed.remedies:
        click.echo(f"{remedy.action}: {remedy.entry}: {remedy.reason}")
    _show_seen(healed.after)
