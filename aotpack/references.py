"""References: where an image lies in a registry, as ``host/repository:tag`` or ``host/repository@sha256:<hex>``.

The registry is always named, since a default one would be somebody's, and so is the tag or the digest, since a
default tag says nothing about what is behind it.
"""

import ipaddress
import re
from dataclasses import dataclass, replace

from aotpack.digests import is_digest
from aotpack.errors import UsageError

TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
"""What a tag may be (OCI Distribution specification, "Pulling manifests")."""

_HOST = re.compile(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_LONGEST = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image in a registry.

    Attributes:
        host: the registry, with its port where that is another than the protocol's.
        repository: of the registry.
        tag: of the repository, or None.
        digest: of the image's manifest, or None; where both are given, the digest decides.
    """

    host: str
    repository: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        """As ``parse`` reads it."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.host}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """The reference that is spelled so.

        Raises:
            UsageError: it is none, or names no registry, or neither a tag nor a digest.
        """
        rest, at, digest = text.partition("@")
        host, _, path = rest.partition("/")
        path, colon, tag = path.partition(":")
        named = "." in host or ":" in host or host == "localhost"
        if not path or not named or not _HOST.fullmatch(host):
            raise UsageError(f"{text!r}: names no registry; write registry.example/team/kernels:tag")
        if not _REPOSITORY.fullmatch(path) or len(path) > _LONGEST:
            raise UsageError(f"{text!r}: {path!r} is no repository: lower case, digits, '.', '_', '-' between slashes")
        if (colon and not TAG.fullmatch(tag)) or (at and not is_digest(digest)):
            raise UsageError(f"{text!r}: expected a tag, or a digest sha256:<64 hex>")
        if not colon and not at:
            raise UsageError(f"{text!r}: names neither a tag nor a digest; write {text}:tag or {text}@sha256:<hex>")
        return cls(host=host, repository=path, tag=tag or None, digest=digest or None)

    def pinned(self, digest: str) -> "Reference":
        """The same image by its digest alone."""
        return replace(self, tag=None, digest=digest)

    @property
    def loopback(self) -> bool:
        """Whether the registry is on this machine, where nobody stands between."""
        name = self.host.rpartition("]")[0].lstrip("[") if self.host.startswith("[") else self.host.partition(":")[0]
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"
