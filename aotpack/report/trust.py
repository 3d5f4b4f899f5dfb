"""Keys that were made, and bundles that were signed."""

from pathlib import Path

import click

from aotpack.report.words import count
from aotpack.sign import Signed
from aotpack.signingkeys import PublicKey


def show_key(key: PublicKey, private: Path, public: Path) -> None:
    """A key pair that was made: its identity as data, where it is as words."""
    click.echo(key.identity)
    click.echo(f"the private key is {private}, to be kept secret; the public key is {public}", err=True)


def show_signed(signed: Signed) -> None:
    """What signing left: the file's path as data, the rest as words."""
    others = len(signed.signatures.signatures) - 1
    beside = f", beside {count(others, 'signature')} by other keys" if others else ""
    click.echo(f"signed {signed.signatures.bundle} with the key {signed.key}{beside}", err=True)
    click.echo(str(signed.path))
