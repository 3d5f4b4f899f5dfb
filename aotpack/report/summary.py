"""What an install says, whether or not it had anything to do."""

import click

from aotpack.digests import hex_of
from aotpack.report.words import count, show_findings
from aotpack.stamps import Summary


def show_installed(summary: Summary) -> None:
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
