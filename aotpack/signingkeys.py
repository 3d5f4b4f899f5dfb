"""Signing keys: Ed25519 key pairs in the files that every other tool reads too.

A private key is PKCS #8 and a public key SubjectPublicKeyInfo, both in PEM (RFC 8410), as ``openssl genpkey
-algorithm ed25519`` and ``openssl pkey -pubout`` write them. A key is named by its identity, the digest of the public
key's DER; ``openssl pkey -pubin -outform DER | sha256sum`` gives the same.

What is made with keys is left to the package ``cryptography``, which is imported when something is to be signed or
checked, and never before. To read and to name a public key takes nothing.
"""

import base64
import binascii
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotpack.digests import digest_bytes
from aotpack.documents import read_start
from aotpack.errors import OutputError, TrustError

PUBLIC_SUFFIX = ".pub"

MAX_KEY_FILE = 16 << 10
"""Bytes that a key file may have; those of Ed25519 have about a hundred."""

SIGNATURE_SIZE = 64

_DER = bytes.fromhex("302a300506032b6570032100")
"""What precedes the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo: two sequences, OID 1.3.101.112."""

_RAW_SIZE = 32
_BEGIN, _END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """What signatures are checked with.

    Attributes:
        raw: the 32 bytes of the key.
    """

    raw: bytes

    @property
    def identity(self) -> str:
        """What the key is named by: the digest of its DER."""
        return digest_bytes(_DER + self.raw)

    def to_pem(self) -> str:
        """The key as its file has it; ``parse_public_key`` undoes it."""
        return f"{_BEGIN}\n{base64.b64encode(_DER + self.raw).decode()}\n{_END}\n"

    def has_signed(self, message: bytes, signature: bytes) -> bool:
        """Whether ``signature`` is this key's of ``message``.

        Raises:
            TrustError: the package that checks is not installed.
        """
        ed25519, invalid = _library("checking a signature")
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (invalid, ValueError):  # the second for 32 bytes that are no key
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateKey:
    """What is signed with. It does not print what must stay secret.

    Attributes:
        public: what its signatures are checked with.
        sign: gives the signature of a message.
    """

    public: PublicKey
    sign: Callable[[bytes], bytes]


def parse_public_key(text: str) -> PublicKey:
    """The key that a public key's file has.

    Raises:
        TrustError: it is none, or not of Ed25519.
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) < 3 or (lines[0], lines[-1]) != (_BEGIN, _END):  # noqa: PLR2004  # two marks and what they hold
        secret = any("PRIVATE KEY" in line for line in lines[:1])
        found = "a private key, which must never be given away" if secret else "something else"
        raise TrustError(f"expected one public key in PEM, found {found}; aotpack keygen writes the one to give away")
    try:
        der = base64.b64decode("".join(lines[1:-1]), validate=True)
    except binascii.Error:
        der = b""
    if not der.startswith(_DER) or len(der) != len(_DER) + _RAW_SIZE:
        raise TrustError("expected an Ed25519 key, found a key of another kind, or a damaged one")
    return PublicKey(raw=der[len(_DER) :])


def read_public_key(path: Path) -> PublicKey:
    """The public key in a file.

    Raises:
        TrustError: it cannot be read, or is none of Ed25519.
    """
    try:
        return parse_public_key(_read(path).decode("ascii", "replace"))
    except TrustError as error:
        raise TrustError(f"{path}: {error}") from None


def read_private_key(path: Path) -> PrivateKey:
    """The private key in a file, which is not encrypted.

    Raises:
        TrustError: it cannot be read, or is none of Ed25519; or the package that signs is not installed.
    """
    ed25519, _ = _library("signing")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = _read(path)
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise TrustError(f"{path}: is encrypted; decrypt it with openssl pkey -in {path.name}") from None
    except Exception:  # noqa: BLE001  # the package raises its own, which it may only have been built with
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise TrustError(f"{path}: expected an Ed25519 private key in PEM; aotpack keygen --out NAME makes one")
    return _private(key)


def _private(key: Any) -> PrivateKey:
    return PrivateKey(public=PublicKey(raw=key.public_key().public_bytes_raw()), sign=key.sign)


def make_key_pair(path: Path) -> PublicKey:
    """Make a key pair: the private key at ``path``, which this user alone may read, and the public one beside it.

    Nothing that is there is ever overwritten; of a pair that cannot be written nothing is left.

    Raises:
        OutputError: one of the files is there, or cannot be written.
        TrustError: the package that makes keys is not installed.
    """
    ed25519, _ = _library("making a key")
    from cryptography.hazmat.primitives import serialization

    made = ed25519.Ed25519PrivateKey.generate()
    secret = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = _private(made).public
    _write_new(path, secret, 0o600)
    try:
        _write_new(public_path(path), public.to_pem().encode(), 0o644)
    except BaseException:
        path.unlink()
        raise
    return public


def public_path(path: Path) -> Path:
    """Where the public key lies whose private key lies at ``path``."""
    return path.with_name(path.name + PUBLIC_SUFFIX)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise OutputError(f"{path}: is there already, and keys are never overwritten; choose another --out") from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}; choose another --out") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {error.strerror}; choose another --out") from None


def _read(path: Path) -> bytes:
    try:
        data = read_start(path, MAX_KEY_FILE)
    except OSError as error:
        raise TrustError(f"{path}: cannot be read: {error.strerror}; name a key's file") from None
    if len(data) > MAX_KEY_FILE:
        raise TrustError(f"{path}: expected a key, found more than {MAX_KEY_FILE} bytes")
    return data


def _library(what: str) -> tuple[Any, type[Exception]]:
    """The part of ``cryptography`` for Ed25519, and what it raises for a signature that is none.

    Raises:
        TrustError: it is not installed.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise TrustError(
            f"{what} needs the package cryptography, which this environment lacks; install aotpack[sign]"
        ) from None
    return ed25519, InvalidSignature
