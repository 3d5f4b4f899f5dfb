"""Registries: an image's blobs and manifest, sent and fetched over HTTPS.

The protocol and its authentication are python-dxf's (extra ``oci``): uploads and downloads that stream, tokens and
passwords that never go over plain HTTP. What it leaves to its callers is done here: credentials are found, a manifest
is read up to a limit and checked against its digest, what passes by itself is tried again, and every failure is one
line. Nothing that a registry says of itself is believed: content is held against digests.
"""

import io
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

import requests
from dxf import DXF, DXFBase
from dxf.exceptions import DXFAuthInsecureError, DXFDigestMismatchError, DXFError, DXFUnauthorizedError

from aotpack.credentials import Credentials, find_credentials
from aotpack.digests import digest_bytes
from aotpack.errors import BundleError, RegistryError, UsageError
from aotpack.image import MANIFEST_TYPE, MAX_MANIFEST, Descriptor, receive
from aotpack.references import Reference

_T = TypeVar("_T")

PATIENCE = 120.0
"""Seconds without a byte after which a registry is taken for dead; one that moves a blob to its store is silent."""

PAUSES = (0.25, 1.0, 3.0)
"""Seconds to wait before what has failed in passing is tried again."""

_LONGEST_PAUSE = 30.0
_PASSING = frozenset({429, 500, 502, 503, 504})
_CHUNK = 1 << 20
_KNOWN = (
    MANIFEST_TYPE,
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
"""What is asked for: what is not a bundle's image is served too, so that it can be told from nothing."""

_HUB = "registry-1.docker.io"
"""Where docker.io serves images."""


class _Repository(DXF):
    """A repository, by python-dxf; adds a manifest's very bytes, bounded."""

    def __enter__(self) -> "_Repository":
        super().__enter__()
        # Else requests would put the password that a .netrc has for the host in the place of a token.
        self._sessions[0].auth = lambda request: request  # type: ignore[union-attr]  # a session, once entered
        return self

    def read_manifest(self, name: str) -> bytes:
        """The manifest of that tag or digest, or its first bytes where it has more than ``MAX_MANIFEST``."""
        path, headers = f"manifests/{name}", {"Accept": ", ".join(_KNOWN)}
        response = self._request("get", path, headers=headers, stream=True)  # type: ignore[no-untyped-call]  # dxf's
        with response:
            data = b""
            for chunk in response.iter_content(_CHUNK):
                data += chunk
                if len(data) > MAX_MANIFEST:
                    break
            return data


class Registry:
    """A repository of a registry, and the image in it that is meant. Use as a context manager."""

    def __init__(self, reference: Reference, *, plain_http: bool, ca_file: Path | None) -> None:
        """Mean an image; nothing is sent yet.

        Args:
            reference: the image.
            plain_http: speak HTTP, to a registry on this machine.
            ca_file: certificates to trust in place of the system's, in PEM.

        Raises:
            UsageError: plain HTTP to another machine, or there is no such file.
        """
        if plain_http and not reference.loopback:
            raise UsageError(
                f"{reference}: --plain-http is for registries on this machine alone, since anyone between could "
                "alter what is sent; serve it with TLS and --ca-file, or use --oci-layout"
            )
        if ca_file is not None and not ca_file.is_file():
            raise UsageError(f"{ca_file}: is no file; name the certificates to trust, in PEM")
        self._reference = reference
        self._credentials: Credentials | None = None
        self._dxf = _Repository(
            _HUB if reference.host == "docker.io" else reference.host,
            reference.repository,
            self._authenticate,
            insecure=plain_http,
            tlsverify=str(ca_file) if ca_file else True,
            timeout=PATIENCE,
        )

    def __str__(self) -> str:
        """For messages."""
        return str(self._reference)

    def __enter__(self) -> "Registry":
        self._dxf.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dxf.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]  # dxf's

    def pinned(self, digest: str) -> str:
        """What names the image for good."""
        return str(self._reference.pinned(digest))

    def require_name(self) -> None:
        """Refuse to push an image under anything but a tag.

        Raises:
            UsageError: a digest is meant.
        """
        if self._reference.tag is None or self._reference.digest is not None:
            raise UsageError(f"{self}: a bundle is pushed under a tag; write {self._reference.repository}:tag")

    def put_blob(self, descriptor: Descriptor, content: Path | bytes) -> bool:
        """Send a blob; False where the registry has it.

        Raises:
            RegistryError: the registry does not take it.
        """

        def send() -> bool:
            if self._has(descriptor):
                return False
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                self._dxf.push_blob(data=file, digest=descriptor.digest, check_exists=False)
            return True

        return self._persistently(send, f"while {descriptor.size} bytes were sent; no tag was set")

    def put_manifest(self, manifest: bytes) -> None:
        """Send an image's manifest, which is what makes it appear under its tag.

        Raises:
            RegistryError: the registry does not take it.
        """
        tag = str(self._reference.tag)
        self._persistently(lambda: self._dxf.set_manifest(tag, manifest.decode()), "while the tag was set")

    def read_manifest(self) -> bytes:
        """The manifest of the image that is meant, checked against the reference's digest where it has one.

        Raises:
            RegistryError: the registry does not serve it.
            BundleError: it is altered, or too large.
        """
        name = self._reference.digest or self._reference.tag
        data = self._persistently(lambda: self._dxf.read_manifest(str(name)), "while its manifest was fetched")
        if len(data) > MAX_MANIFEST:
            raise BundleError(f"{self}: its manifest has more than {MAX_MANIFEST} bytes, and no more are read")
        if self._reference.digest is not None and digest_bytes(data) != self._reference.digest:
            raise BundleError(f"{self}: the manifest that the registry serves has the digest {digest_bytes(data)}")
        return data

    def fetch(self, descriptor: Descriptor, file: IO[bytes]) -> None:
        """Fetch a blob into a file, checked on the way.

        Raises:
            RegistryError: the registry does not serve it.
            BundleError: it is altered.
            OSError: the file cannot be written.
        """

        def fetch() -> None:
            file.seek(0)
            file.truncate()
            receive(self._pulled(descriptor.digest), descriptor, file)

        self._persistently(fetch, f"while {descriptor.size} bytes were fetched; nothing was written")

    def _pulled(self, digest: str) -> Iterator[bytes]:
        chunks = self._dxf.pull_blob(digest, chunk_size=_CHUNK)
        assert not isinstance(chunks, tuple)  # which it is for those who ask for the size
        try:
            yield from chunks
        except DXFDigestMismatchError:
            return  # which receive says in words of ours

    def _has(self, descriptor: Descriptor) -> bool:
        try:
            return self._dxf.blob_size(descriptor.digest) == descriptor.size
        except requests.HTTPError as error:
            if error.response.status_code == requests.codes.not_found:
                return False
            raise

    def _authenticate(self, dxf: DXFBase, response: requests.Response) -> None:
        found = find_credentials(self._reference.host, self._reference.repository)
        self._credentials = found
        user, secret = (found.user, found.secret) if found else (None, None)
        dxf.authenticate(user, secret, response=response)

    def _persistently(self, act: Callable[[], _T], when: str) -> _T:
        """Do ``act``, again after a pause where the failure may pass.

        Args:
            act: can be done again from its start.
            when: what a broken connection interrupts.

        Raises:
            RegistryError: it failed for good.
        """
        for pause in (*PAUSES, None):
            try:
                return act()
            except (requests.RequestException, DXFError, LookupError, ValueError) as error:
                if pause is None or not _passes(error):
                    raise self._said(error, when) from None
                time.sleep(max(pause, _asked_pause(error)))
        raise AssertionError  # the last pause is none

    def _said(self, error: Exception, when: str) -> RegistryError:
        """A failure in one line."""
        host = self._reference.host
        known = self._credentials
        if isinstance(error, DXFAuthInsecureError):
            what = f"{host} asks for credentials, which are not sent over plain HTTP; use TLS, with --ca-file"
        elif isinstance(error, DXFUnauthorizedError) and known is None:
            what = f"{host} asks for credentials, and there are none for it; log in with docker login or podman login"
        elif isinstance(error, DXFUnauthorizedError) and known is not None:
            what = f"{host} refuses the credentials of {known.user} in {known.source}; log in again"
        elif isinstance(error, requests.HTTPError):
            what = self._status(error.response)
        elif isinstance(error, requests.exceptions.SSLError):
            what = f"{host}: {_reason(error)}; name its CA with --ca-file, or its protocol with --plain-http"
        elif isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.ReadTimeout):
            what = f"{host} did not answer for {PATIENCE:.0f} seconds {when}; run this again"
        elif isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
            what = f"{host} cannot be reached, or broke off {when}: {_reason(error)}; run this again"
        else:  # what python-dxf or requests cannot read
            what = f"{host} answered otherwise than a registry does {when} ({type(error).__name__}: {error})"
        return RegistryError(f"{self}: {_one_line(what)}")

    def _status(self, response: requests.Response) -> str:
        host, code = self._reference.host, response.status_code
        if code == requests.codes.not_found:
            return f"{host} has no such image: {_told(response)}; correct the name"
        if code == requests.codes.forbidden:
            user = self._credentials.user if self._credentials else "nobody"
            return f"{host} forbids this to {user}; ask for the right, or log in as another"
        if code == requests.codes.request_entity_too_large:
            return f"{host} takes no blob as large as this; build fewer architectures into a bundle"
        return f"{host} answered {code} {response.reason}: {_told(response)}"


def _passes(error: Exception) -> bool:
    """Whether a failure may be over in a moment."""
    if isinstance(error, requests.HTTPError):
        return error.response.status_code in _PASSING
    if isinstance(error, requests.exceptions.SSLError | requests.exceptions.Timeout):
        return False
    return isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError)


def _asked_pause(error: Exception) -> float:
    """The pause that a registry asks for (RFC 9110, Retry-After), bounded; 0 where it asks for none."""
    asked = error.response.headers.get("Retry-After", "") if isinstance(error, requests.HTTPError) else ""
    return min(float(asked), _LONGEST_PAUSE) if asked.isdecimal() else 0.0


def _reason(error: BaseException) -> str:
    """What lies behind an error of requests: the operating system's word for it, where there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return _one_line(re.sub(r" \(_ssl\.c:\d+\)", "", cause.strerror))
        cause = cause.__cause__ or cause.__context__
    return _one_line(str(error))


def _told(response: requests.Response) -> str:
    """What a registry says of an error (OCI Distribution specification, "Error Codes")."""
    try:
        return _one_line(str(response.json()["errors"][0]["message"]))
    except (ValueError, LookupError, TypeError):
        return "it does not say why"


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())[:300]
