"""What an install says, whether or not it had anything to do."""

from typing import TYPE_CHECKING

import click

from aotpack.digests import hex_of
from aotpack.report.words import count, show_findings, show_line

if TYPE_CHECKING:  # each kind of install imports what it needs alone
    from aotpack.packed import Kept
    from aotpack.stamps import Summary


def show_kept(kept: "Kept") -> None:
    """Where a packed bundle lies, and how processes find it."""
    done = "there already" if kept.was_there else "kept packed"
    show_line(
        f"{kept.path}: {done}, {kept.digest}; for processes to serve from it: AOTPACK_BUNDLE_PATH={kept.path.parent}",
        err=True,
    )


def show_installed(summary: "Summary") -> None:
    """What an install refused, and what it did in one line."""
    show_findings(summary.findings)
    if summary.shifted:
        click.echo(f"{count(summary.shifted, 'kernel')} stand in other lines here, and got keys of their own", err=True)
    if not summary.compared:
        click.echo(
            "the engine is not installed here, so its files were not compared; name its directory with --engine",
            err=True,
        )
    there = f", {summary.present} were there" if summary.present else ""
    click.echo(
        f"installed {count(summary.written, 'kernel')} into {summary.cache}{there}; "
        f"to take them out: aotpack uninstall {hex_of(summary.bundle)[:12]}",
        err=True,
    )
