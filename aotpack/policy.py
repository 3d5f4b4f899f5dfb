"""Policy: what this machine demands of signatures before a bundle's kernels are installed or served.

A policy is a file ``policy.toml`` in the configuration directory of the platform for this user or for the site
(``~/.config/aotpack``, ``/etc/xdg/aotpack``), or the one that ``AOTPACK_POLICY`` names in place of both::

    format = 1
    require-signature = true
    trusted-keys = ["build-2026.pub", "build-2027.pub"]
    expires = 2027-06-30T00:00:00Z

Keys are relative to the file; where it names none, those in ``trusted-keys/*.pub`` beside it are trusted, and so they
are where there is no such file. ``AOTPACK_REQUIRE_SIGNATURE=1`` demands signatures where no policy does.

Demands add up: a user's policy, ``AOTPACK_REQUIRE_SIGNATURE`` or an option can ask for more than the site does, and
never for less. There is nothing in a policy about engines, since an unsigned bundle could claim to be for any. Whatever
cannot be read, is not understood, can be written by others or has expired, refuses: a policy is never passed over.

It is about bundles. What Triton compiles itself, or finds in its own cache directory where no install of ours has put
it, is Triton's affair; and ``AOTPACK_DISABLE=1`` switches the policy off in a process that serves, with all the rest.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path

from aotpack.documents import Node, parse_toml, read_start
from aotpack.errors import DocumentError, ExpiredPolicyError, TrustError
from aotpack.signatures import Signatures, check_signatures, now, spell_moment
from aotpack.signingkeys import PUBLIC_SUFFIX, PublicKey, read_public_key
from aotpack.writers import objection

POLICY = "AOTPACK_POLICY"
REQUIRE = "AOTPACK_REQUIRE_SIGNATURE"

FILE = "policy.toml"
KEYS = "trusted-keys"

FORMAT = 1
MAX_SIZE = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one file, or the keys in one directory, say.

    Attributes:
        source: where it lies.
        required: whether signatures are demanded.
        keys: those that are trusted.
        expires: the moment from which it holds no more, in UTC; None means never.
    """

    source: Path
    required: bool
    keys: tuple[PublicKey, ...]
    expires: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One thing that every bundle must satisfy: a signature by one of some keys.

    Attributes:
        source: who demands it, for messages.
        keys: those that will do.
    """

    source: str
    keys: tuple[PublicKey, ...]


def demands_here(*, required: bool = False, trusted: Sequence[Path] = ()) -> tuple[Demand, ...]:
    """What a bundle must satisfy on this machine, all of it; nothing where nothing is demanded.

    Args:
        required: demand a signature even where no policy does.
        trusted: public keys' files; a signature by one of them is demanded.

    Raises:
        ExpiredPolicyError: a policy holds no more.
        TrustError: a policy or a key cannot be read, is invalid, or can be written by others; or a signature is
            demanded and no key is trusted.
    """
    policies = tuple(policies_in_force())
    given = tuple(read_public_key(path) for path in trusted)
    known = tuple(key for policy in policies for key in policy.keys)
    demands = [Demand(source=str(policy.source), keys=policy.keys) for policy in policies if policy.required]
    if not demands and os.environ.get(REQUIRE, "") not in {"", "0"}:
        demands.append(Demand(source=REQUIRE, keys=known or given))
    if given:
        demands.append(Demand(source="--trusted-key", keys=given))
    elif required and not demands:
        demands.append(Demand(source="--require-signature", keys=known))
    for demand in demands:
        if not demand.keys:
            raise TrustError(
                f"{demand.source}: demands a signature, and no key is trusted; put public keys into "
                f"{_keys_place(policies)}, or name one with --trusted-key"
            )
    return tuple(demands)


def _keys_place(policies: Sequence[Policy]) -> Path:
    places = [policy.source.parent for policy in policies if policy.required] or [*_directories()][-1:]
    return places[0] / KEYS if places else Path(KEYS)


def satisfy(subject: str, bundle: str, found: Signatures | None, demands: Iterable[Demand]) -> None:
    """Hold a bundle's signatures against every demand.

    Args:
        subject: what the bundle is called in messages.
        bundle: its digest.
        found: its signatures; None where there are none.
        demands: what must be satisfied.

    Raises:
        SignatureError: a demand is not satisfied; the class says how.
        TrustError: the package that checks is not installed.
    """
    for demand in demands:
        check_signatures(subject, bundle, found, demand.keys, demand.source)


def policies_in_force() -> Iterator[Policy]:
    """The policies of this machine and user, or the one that ``AOTPACK_POLICY`` names.

    Raises:
        ExpiredPolicyError: one holds no more.
        TrustError: one cannot be read, is invalid, or can be written by others.
    """
    named = os.environ.get(POLICY)
    if named:
        yield _read_policy(Path(os.path.abspath(named)))  # noqa: PTH100  # not through links
        return
    for directory in _directories():
        if _is_there(directory / FILE):
            yield _read_policy(directory / FILE)
        elif _is_there(directory / KEYS):
            yield Policy(source=directory / KEYS, required=False, keys=_keys_in(directory / KEYS))


def _directories() -> Iterator[Path]:
    """The configuration directories: this user's, then the site's.

    Where this user may not even look into the first, or has no home, he cannot have written a policy there.
    """
    # Here, since most processes have nothing to ask it for.
    from platformdirs import PlatformDirs

    directories = PlatformDirs("aotpack", appauthor=False, multipath=True)
    with suppress(RuntimeError):  # neither HOME nor a passwd entry; older releases leave the tilde as it is
        user = Path(directories.user_config_dir)
        if user.is_absolute() and os.access(_nearest(user), os.X_OK, effective_ids=True):
            yield user
    yield from map(Path, directories.site_config_dir.split(os.pathsep))


def _nearest(path: Path) -> Path:
    """The path, or what of it is there as far as can be seen."""
    return next(place for place in (path, *path.parents) if os.path.exists(place))  # noqa: PTH110  # never raises


def _is_there(path: Path) -> bool:
    """Whether something lies there; what cannot be told is not passed over."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise TrustError(
            f"{path}: cannot be looked for: {error.strerror}; let this user search {path.parent}"
        ) from None
    return True


def _read_policy(path: Path) -> Policy:
    try:
        root = parse_toml(_read(path))
        if (found := root.field("format").integer()) != FORMAT:
            raise root.field("format").error(f"{FORMAT}, which this aotpack reads, and not {found}")
        root.only("format", "require-signature", "trusted-keys", "expires")
        required = root.field("require-signature").boolean()
        expires = _read_moment(root.field("expires")) if root.has("expires") else None
        listed = [path.parent / node.text() for node in root.field(KEYS).items()] if root.has(KEYS) else None
    except DocumentError as error:
        raise TrustError(f"{path}: is no policy: {error}; correct it") from None
    if expires is not None and expires <= now():
        raise ExpiredPolicyError(
            f"{path}: this policy has expired: it held until {spell_moment(expires)}; put a new one in its place"
        )
    beside = path.parent / KEYS
    keys = _keys_of(listed) if listed is not None else _keys_in(beside) if _is_there(beside) else ()
    return Policy(source=path, required=required, keys=keys, expires=expires)


def _read_moment(node: Node) -> datetime:
    """A moment with its offset, or a day, of which the beginning in UTC counts."""
    value = node.value
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return value.astimezone(timezone.utc)
    elif isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    raise node.error("a day, or a moment with its offset, such as 2027-06-30T00:00:00Z")


def _keys_in(directory: Path) -> tuple[PublicKey, ...]:
    _refuse_others(directory)
    try:
        names = sorted(path for path in directory.iterdir() if path.name.endswith(PUBLIC_SUFFIX))
    except OSError as error:
        raise TrustError(f"{directory}: cannot be listed: {error.strerror}; make it readable for this user") from None
    return _keys_of(names)


def _keys_of(paths: Iterable[Path]) -> tuple[PublicKey, ...]:
    keys: dict[str, PublicKey] = {}
    for path in paths:
        _refuse_others(path)
        key = read_public_key(path)
        keys[key.identity] = key
    return tuple(keys.values())


def _read(path: Path) -> str:
    _refuse_others(path)
    try:
        data = read_start(path, MAX_SIZE)
    except OSError as error:
        raise TrustError(
            f"{path}: this policy cannot be read: {error.strerror}; make it readable for this user"
        ) from None
    if len(data) > MAX_SIZE:
        raise TrustError(f"{path}: expected a policy, found more than {MAX_SIZE} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TrustError(f"{path}: expected a policy, which is TOML in UTF-8, found other bytes") from None


def _refuse_others(path: Path) -> None:
    """Raise where others than root and this user may change what is trusted here."""
    try:
        found = objection(path)
    except OSError as error:
        raise TrustError(f"{path}: cannot be read: {error.strerror}; put it there, or correct what names it") from None
    if found:
        raise TrustError(f"{path}: decides what is trusted here, and {found}; take that right away")
