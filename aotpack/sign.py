"""Signing: a bundle that is whole gets a signature into the file beside it."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aotpack.atomic import write_atomically
from aotpack.bundle import Bundle
from aotpack.errors import OutputError, UsageError
from aotpack.signatures import Signatures, now, read_signatures, sign, signatures_beside, spell_moment
from aotpack.signingkeys import read_private_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A bundle that was signed.

    Attributes:
        path: the file of its signatures.
        key: the identity of the key that has signed it now.
        signatures: all that it has.
    """

    path: Path
    key: str
    signatures: Signatures


def sign_bundle(bundle: Bundle, key: Path, *, comment: str = "", expires: datetime | None = None) -> Signed:
    """Sign a bundle, after every digest in it has been checked.

    The signatures that other keys have made of it stay; one by the same key is replaced, and so are those of another
    bundle that was at the same path. The file appears whole or not at all.

    Args:
        bundle: the bundle.
        key: the private key's file.
        comment: one line to sign along.
        expires: the moment from which the signature is to hold no more.

    Raises:
        UsageError: the moment has passed, the comment may not stand there, or there are too many signatures.
        BundleError: the bundle is damaged.
        AlteredError: the file of signatures that is there is damaged.
        TrustError: the key cannot be read, or the package that signs is not installed.
        OutputError: the file cannot be written.
    """
    if expires is not None and expires <= now():
        raise UsageError(f"a signature that holds until {spell_moment(expires)} has expired already; name a later day")
    path, secret = signatures_beside(bundle.path), read_private_key(key)
    before = read_signatures(path)
    for _ in bundle.blobs():
        pass  # each is checked on the way
    made = sign(bundle.digest, secret, before=before, comment=comment, expires=expires)
    try:
        write_atomically(path, [made.to_bytes()])
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}; sign a copy of the bundle") from None
    return Signed(path=path, key=secret.public.identity, signatures=made)
