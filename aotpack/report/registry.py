"""What was pushed and pulled."""

import click

from aotpack.report.words import show_json
from aotpack.shipping import Pulled, Pushed


def show_pushed(pushed: Pushed, *, as_json: bool) -> None:
    """What a push did: the image's name with its digest as data."""
    if as_json:
        show_json(
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
        show_json(
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
