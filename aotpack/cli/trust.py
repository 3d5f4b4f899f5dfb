"""Commands on who vouches for a bundle."""

from datetime import datetime
from pathlib import Path

import click

from aotpack.cli.options import Moment


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="NAME",
    help="The private key's file; the public key goes to NAME.pub.",
)
def keygen(out: Path) -> None:
    """Make a key pair to sign bundles with.

    The private key, which this user alone may read and which is not encrypted, signs; it belongs where secrets are
    kept. The public key is given to whoever installs or serves: with --trusted-key, or into the directory trusted-keys
    of aotpack's configuration. Files that are there are never overwritten. Prints the key's identity. Needs
    aotpack[sign]; keys that openssl genpkey -algorithm ed25519 makes will do too.

    \b
    Examples:
      aotpack keygen --out release-2027
      openssl pkey -in release-2027 -pubout
    """
    from aotpack.report.trust import show_key
    from aotpack.signingkeys import make_key_pair, public_path

    show_key(make_key_pair(out), out, public_path(out))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The private key: Ed25519, PKCS #8 in PEM, as aotpack keygen or openssl writes it.",
)
@click.option("--comment", default="", metavar="TEXT", help="One line to sign along, such as who signs.")
@click.option(
    "--expires",
    type=Moment(),
    metavar="DAY",
    help="From when the signature is to hold no more: 2027-06-30 (its beginning in UTC), or 2027-06-30T12:00:00Z.",
)
def sign(bundle: Path, key: Path, comment: str, expires: datetime | None) -> None:
    """Sign BUNDLE, after checking that it is whole.

    The signature goes into a file beside it, BUNDLE.sig, which is to go along with it. A bundle may have signatures by
    several keys: sign with the new key too before the old one is trusted no more. Prints the file's path. Needs
    aotpack[sign].

    \b
    Examples:
      aotpack sign bundle.tar.zst --key release-2027
      aotpack sign bundle.tar.zst --key release-2027 --expires 2027-06-30 --comment "kernel team"
    """
    from aotpack.bundle import open_bundle
    from aotpack.report.trust import show_signed
    from aotpack.sign import sign_bundle

    show_signed(sign_bundle(open_bundle(bundle), key, comment=comment, expires=expires))
