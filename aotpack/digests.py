"""Digests: ``sha256:<hex>``, of bytes, of files, and of JSON values in their canonical spelling."""

import hashlib
import json
import re
from pathlib import Path

PREFIX = "sha256:"
_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK = 1 << 20
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_bytes(data: bytes) -> str:
    """The digest of ``data``.

    >>> digest_bytes(b"")
    'sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
    """
    return PREFIX + hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """The digest of a file's content.

    Raises:
        OSError: the file cannot be read.
    """
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return PREFIX + hasher.hexdigest()


def is_digest(text: object) -> bool:
    """Whether ``text`` is spelled as a digest."""
    return isinstance(text, str) and _PATTERN.fullmatch(text) is not None


def hex_of(digest: str) -> str:
    """The 64 hex digits of a digest, for file names."""
    return digest.removeprefix(PREFIX)


def canonical_json(value: object) -> str:
    """The one spelling of a JSON value: keys sorted, no spaces, ASCII, no NaN.

    >>> canonical_json({"b": [1, None], "a": True})
    '{"a":true,"b":[1,null]}'
    """
    return _CANONICAL.encode(value)


def digest_json(value: object) -> str:
    """The digest of a JSON value's canonical spelling."""
    return digest_bytes(canonical_json(value).encode())
