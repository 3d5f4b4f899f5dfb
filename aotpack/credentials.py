"""Credentials of registries, where docker and podman keep them; read when asked, and never written.

The files are those of containers-auth.json(5), in its order: ``REGISTRY_AUTH_FILE``, podman's below
``XDG_RUNTIME_DIR`` and then the user's configuration directory, docker's ``config.json`` (``DOCKER_CONFIG``). The
first that knows the registry decides. A secret is handed on, and stands in no message.
"""

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aotpack.documents import Node, parse_document
from aotpack.errors import DocumentError, RegistryError

_HUB = "https://index.docker.io/v1/"
"""What docker calls docker.io."""

_HELPER = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_PATIENCE = 60.0
"""Seconds that a credential helper gets: some ask a person or a cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a registry knows a user by.

    Attributes:
        user: the name.
        secret: the password or token.
        source: the file that says so.
    """

    user: str
    secret: str = field(repr=False)
    source: Path


def find_credentials(host: str, repository: str) -> Credentials | None:
    """The credentials for a repository of a registry, or None where no file knows any.

    Raises:
        RegistryError: a file cannot be read, or a credential helper fails.
    """
    for path in _files():
        try:
            root = parse_document(path.read_bytes())
            found = _look_up(root, path, host, repository)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RegistryError(f"{path}: cannot be read: {error.strerror}; correct its owner or mode") from None
        except DocumentError as error:
            raise RegistryError(f"{path}: {error}; log in again, with docker login or podman login") from None
        if found is not None:
            return found
    return None


def _files() -> Iterator[Path]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # Path.expanduser raises where a user has no home
    yield Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json"
    yield Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _names(host: str, repository: str) -> list[str]:
    """What a file may call a repository's registry, the closest name first."""
    parts = repository.split("/")
    names = ["/".join([host, *parts[:count]]) for count in range(len(parts), -1, -1)]
    names += [f"https://{host}", f"https://{host}/v1/", f"https://{host}/v2/"]
    return [*names, _HUB] if host == "docker.io" else names


def _look_up(root: Node, path: Path, host: str, repository: str) -> Credentials | None:
    names = _names(host, repository)
    helpers = root.field("credHelpers") if root.has("credHelpers") else None
    for name in names:
        if helpers is not None and helpers.has(name):
            return _ask_helper(helpers.field(name).text(), name, path)
    auths = dict(root.field("auths").fields()) if root.has("auths") else {}
    known = [name for name in names if name in auths]
    for name in known:
        entry = auths[name]
        if entry.has("identitytoken") and entry.field("identitytoken").string():
            raise RegistryError(
                f"{path}: holds an identity token for {name}, which only docker can use; "
                "log in with a password or an access token"
            )
        if entry.has("auth") and entry.field("auth").string():
            return _decode(entry.field("auth"), path)
    if root.has("credsStore"):
        asked = known[0] if known else _HUB if host == "docker.io" else host
        return _ask_helper(root.field("credsStore").text(), asked, path)
    return None


def _decode(node: Node, path: Path) -> Credentials:
    try:
        joined = base64.b64decode(node.text(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        joined = ""
    user, colon, secret = joined.partition(":")
    if not colon:
        # Not Node.error, which would show it.
        raise DocumentError(f"{node.place}: expected a user and a password joined by a colon, in base64")
    return Credentials(user=user, secret=secret.rstrip("\0"), source=path)


def _ask_helper(helper: str, name: str, path: Path) -> Credentials | None:
    """What a credential helper says of a registry (docker-credential-helpers, "get")."""
    program = f"docker-credential-{helper}"
    if not _HELPER.fullmatch(helper):
        raise RegistryError(f"{path}: {helper!r} names no credential helper; correct it")
    try:
        done = subprocess.run(  # noqa: S603  # the file of the user names it
            [program, "get"], input=name, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {_PATIENCE:.0f} seconds"
        raise RegistryError(f"{path}: {program}: {why}; install it, or log in again") from None
    if done.returncode != 0:
        if "credentials not found" in done.stdout + done.stderr:
            return None
        raise RegistryError(f"{path}: {program} failed with exit code {done.returncode}; log in again")
    try:
        said = json.loads(done.stdout)
        return Credentials(user=str(said["Username"]), secret=str(said["Secret"]), source=path)
    except (ValueError, KeyError, TypeError):
        raise RegistryError(f"{path}: {program}: expected a user and a secret in JSON, found something else") from None
