"""Signatures: who vouches for a bundle, in a file beside it that says so in one canonical spelling.

A signature is made of a statement: the bundle's digest, which its manifest and so every artifact in it decides, and
everything that the file says about the signature itself; none of it can be changed, moved to another bundle, or passed
off as something else that the same key has signed (a fixed text comes first). A file holds a signature for each of
several keys, so that keys can be changed without a moment in which nobody's signature is there.

The file is found as ``<bundle>.sig`` beside a bundle, and goes along with it into stores, wheels and caches. It is
read strictly: what is not spelled as it would be written is refused.
"""

import base64
import binascii
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aotpack.digests import canonical_json
from aotpack.documents import Node, parse_document, read_start
from aotpack.errors import (
    AlteredError,
    DocumentError,
    ExpiredSignatureError,
    TrustError,
    UnsignedError,
    UnsupportedFormatError,
    UntrustedError,
    UsageError,
)
from aotpack.signingkeys import SIGNATURE_SIZE, PrivateKey, PublicKey

FORMAT = 1

SUFFIX = ".sig"
"""What a bundle's file name and this make the name of its signatures."""

IN_STORE = "signatures.json"
"""Their name beside the manifest of a store."""

MAX_SIZE = 64 << 10
MAX_SIGNATURES = 32
MAX_COMMENT = 200

_ALGORITHM = "ed25519"
_PURPOSE = "aotpack bundle signature\n"
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One key's signature of a bundle.

    Attributes:
        key: the identity of the key.
        value: the signature itself, 64 bytes.
        comment: what whoever signed wanted to say, in one line, or "".
        expires: the moment from which it holds no more, in UTC and whole seconds; None means never.
    """

    key: str
    value: bytes
    comment: str = ""
    expires: datetime | None = None

    def statement(self, bundle: str) -> bytes:
        """What is signed, for a bundle's digest: everything but the signature itself."""
        return (_PURPOSE + canonical_json({"format": FORMAT, "bundle": bundle, **self._said()})).encode()

    def to_json(self) -> dict[str, Any]:
        """As the file has it."""
        return {**self._said(), "signature": base64.b64encode(self.value).decode()}

    def _said(self) -> dict[str, Any]:
        expires = None if self.expires is None else spell_moment(self.expires)
        return {"algorithm": _ALGORITHM, "key": self.key, "comment": self.comment, "expires": expires}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """All signatures of one bundle.

    Attributes:
        bundle: its digest.
        signatures: by the keys' identities, one for each key.
    """

    bundle: str
    signatures: tuple[Signature, ...]

    def to_bytes(self) -> bytes:
        """The one canonical spelling; ``parse_signatures`` undoes it."""
        signatures = [signature.to_json() for signature in self.signatures]
        return (canonical_json({"format": FORMAT, "bundle": self.bundle, "signatures": signatures}) + "\n").encode()


def spell_moment(moment: datetime) -> str:
    """A moment in UTC as documents have it.

    >>> spell_moment(datetime(2027, 1, 31, tzinfo=timezone.utc))
    '2027-01-31T00:00:00Z'
    """
    return moment.strftime(_MOMENT)


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(timezone.utc)


def parse_signatures(data: bytes) -> Signatures:
    """The signatures that a file has.

    Raises:
        UnsupportedFormatError: they are of another format.
        DocumentError: they are not what aotpack writes.
    """
    if len(data) > MAX_SIZE:
        raise DocumentError(f"expected signatures, found more than {MAX_SIZE} bytes")
    root = parse_document(data)
    if (found := root.field("format").integer()) != FORMAT:
        raise UnsupportedFormatError(f"format {found} of signatures is not one that this aotpack reads ({FORMAT})")
    root.only("format", "bundle", "signatures")
    signatures = tuple(_read_signature(node) for node in root.field("signatures").items())
    keys = [signature.key for signature in signatures]
    if keys != sorted(set(keys)) or not 0 < len(keys) <= MAX_SIGNATURES:
        raise DocumentError(f"signatures: expected 1 to {MAX_SIGNATURES}, by key, one for each")
    read = Signatures(bundle=root.field("bundle").digest(), signatures=signatures)
    if read.to_bytes() != data:
        raise DocumentError("expected the canonical spelling, found another")
    return read


def _read_signature(node: Node) -> Signature:
    node.only("algorithm", "key", "comment", "expires", "signature")
    node.field("algorithm").one_of(_ALGORITHM)
    comment = node.field("comment")
    return Signature(
        key=node.field("key").digest(),
        value=_read_value(node.field("signature")),
        comment=check_comment(comment.string()),
        expires=_read_moment(node.field("expires")) if node.has("expires") else None,
    )


def check_comment(text: str) -> str:
    """A comment that may stand in a signature: short, and nothing that a terminal would act on.

    Raises:
        DocumentError: it may not.
    """
    if len(text) > MAX_COMMENT or not text.isprintable():
        raise DocumentError(f"comment: expected at most {MAX_COMMENT} printable characters, found {json.dumps(text)}")
    return text


def _read_value(node: Node) -> bytes:
    try:
        value = base64.b64decode(node.text(), validate=True)
    except (binascii.Error, ValueError):
        value = b""
    if len(value) != SIGNATURE_SIZE:
        raise node.error(f"{SIGNATURE_SIZE} bytes in base64")
    return value


def _read_moment(node: Node) -> datetime:
    try:
        return datetime.strptime(node.text(), _MOMENT).replace(tzinfo=timezone.utc)
    except ValueError:
        raise node.error("a moment in UTC such as 2027-01-31T00:00:00Z") from None


def read_signatures(path: Path) -> Signatures | None:
    """The signatures in a file; None where there is none.

    Raises:
        AlteredError: the file is not what aotpack writes.
        UnsupportedFormatError: they are of another format.
        TrustError: it cannot be read.
    """
    try:
        data = read_start(path, MAX_SIZE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TrustError(f"{path}: cannot be read: {error.strerror}; make it readable for this user") from None
    try:
        return parse_signatures(data)
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(f"{path}: {error}; upgrade aotpack") from None
    except DocumentError as error:
        raise AlteredError(f"{path}: is damaged: {error}; fetch it again, or sign the bundle again") from None


def signatures_beside(bundle: Path) -> Path:
    """Where the signatures of a bundle file lie."""
    return bundle.with_name(bundle.name + SUFFIX)


def find_signatures(path: Path, bundle: str, given: Path | None = None) -> Signatures | None:
    """The signatures of a bundle file, which are of no other bundle; None where there are none. None is checked.

    Args:
        path: of the bundle.
        bundle: its digest.
        given: where they lie; None means beside it.

    Raises:
        AlteredError: they are damaged, or of another bundle.
        UnsupportedFormatError: they are of another format.
        TrustError: they cannot be read.
        UsageError: there are none where they should be.
    """
    where = given or signatures_beside(path)
    found = read_signatures(where)
    if found is None and given is not None:
        raise UsageError(f"{given}: there is no such file; --signature names one that aotpack sign has written")
    if found is not None and found.bundle != bundle:
        raise AlteredError(
            f"{where}: is the signature of another bundle: expected {bundle} ({path.name}), found {found.bundle}; "
            "fetch both again, or remove the file and sign the bundle"
        )
    return found


def sign(
    bundle: str,
    key: PrivateKey,
    *,
    before: Signatures | None = None,
    comment: str = "",
    expires: datetime | None = None,
) -> Signatures:
    """The signatures of a bundle with one more by ``key``, or with a new one in place of the key's old one.

    Args:
        bundle: the bundle's digest.
        key: what signs.
        before: the signatures that it has; those of another bundle are left out.
        comment: one line to sign along.
        expires: the moment from which the signature holds no more.

    Raises:
        UsageError: the comment may not stand there, or there are too many signatures.
    """
    try:
        check_comment(comment)
    except DocumentError as error:
        raise UsageError(str(error)) from None
    bare = Signature(key=key.public.identity, value=b"", comment=comment, expires=expires)
    made = replace(bare, value=key.sign(bare.statement(bundle)))
    kept = before.signatures if before is not None and before.bundle == bundle else ()
    by_key = {signature.key: signature for signature in (*kept, made)}
    if len(by_key) > MAX_SIGNATURES:
        raise UsageError(f"{bundle} has {MAX_SIGNATURES} signatures, and more are not read; remove the file of them")
    return Signatures(bundle=bundle, signatures=tuple(by_key[name] for name in sorted(by_key)))


def check_signatures(
    subject: str, bundle: str, found: Signatures | None, keys: Collection[PublicKey], whose: str
) -> Signature:
    """The signature that vouches for a bundle: by one of ``keys``, right, and in force. One such is enough.

    Args:
        subject: what the bundle is called in messages.
        bundle: its digest.
        found: its signatures; None where there are none.
        keys: those that are trusted.
        whose: who trusts them, for messages.

    Raises:
        UnsignedError: there are none.
        AlteredError: they are of another bundle, or those by trusted keys are wrong.
        ExpiredSignatureError: those by trusted keys were right, and hold no more.
        UntrustedError: none is by a trusted key.
        TrustError: the package that checks is not installed.
    """
    if found is None:
        raise UnsignedError(
            f"{subject}: is not signed, and {whose} demands that it is; bring its {SUFFIX} file along, or sign it: "
            "aotpack sign BUNDLE --key FILE"
        )
    if found.bundle != bundle:
        raise AlteredError(
            f"{subject}: its signature is that of another bundle: expected {bundle}, found {found.bundle}"
        )
    trusted = {key.identity: key for key in keys}
    known = [signature for signature in found.signatures if signature.key in trusted]
    right = [one for one in known if trusted[one.key].has_signed(one.statement(bundle), one.value)]
    for signature in right:
        if signature.expires is None or now() < signature.expires:
            return signature
    if right:
        raise ExpiredSignatureError(
            f"{subject}: its signature by {right[-1].key} has expired: it held until "
            f"{max(spell_moment(one.expires) for one in right if one.expires)}; sign the bundle again"
        )
    if known:
        raise AlteredError(
            f"{subject}: its signature by {known[0].key} is wrong: the bundle or the signature was altered; "
            "fetch both again"
        )
    raise UntrustedError(
        f"{subject}: is signed by {_listed(found.signatures)}, which {whose} does not trust; trusted: "
        f"{', '.join(sorted(trusted)) or 'none'}; trust the key if it is known, or have the bundle signed by another"
    )


def _listed(signatures: Collection[Signature]) -> str:
    return ", ".join(one.key + (f" ({one.comment})" if one.comment else "") for one in signatures)
