"""Policies: found where they lie, never passed over, and adding up to what a bundle must satisfy."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aotpack.digests import digest_bytes
from aotpack.errors import ExpiredPolicyError, TrustError, UntrustedError
from aotpack.policy import demands_here, policies_in_force, satisfy
from tests.conftest import ROOT
from tests.signing import IN_A_YEAR, YESTERDAY, Pair, make_pair, write_policy

BUNDLE = digest_bytes(b"bundle")


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path / 'site'}:{tmp_path / 'other'}")


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "user" / "aotpack"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site" / "aotpack"


@pytest.fixture
def one(tmp_path: Path) -> Pair:
    return make_pair(tmp_path / "keys", "one")


@pytest.fixture
def two(tmp_path: Path) -> Pair:
    return make_pair(tmp_path / "keys", "two")


def sources() -> list[str]:
    return [demand.source for demand in demands_here()]


def test_where_nothing_is_said_nothing_is_demanded() -> None:
    assert demands_here() == ()


def test_a_policy_is_found_in_each_place_and_all_of_them_hold(
    user: Path, site: Path, tmp_path: Path, one: Pair, two: Pair
) -> None:
    found = [write_policy(folder, keys=[one.public]) for folder in (user, site, tmp_path / "other" / "aotpack")]
    assert sources() == [str(path) for path in found]
    write_policy(site, keys=[two.public])
    demands = demands_here()
    for pair in (one, two):
        with pytest.raises(UntrustedError):
            satisfy("b", BUNDLE, pair.signed(BUNDLE), demands)
    satisfy("b", BUNDLE, two.signed(BUNDLE, before=one.signed(BUNDLE)), demands)


def test_a_policy_that_is_named_stands_in_place_of_those_that_are_found(
    site: Path, tmp_path: Path, one: Pair, two: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_policy(site, keys=[one.public])
    named = write_policy(tmp_path / "fleet", keys=[two.public], name="fleet.toml")
    monkeypatch.setenv("AOTPACK_POLICY", str(named))
    assert [(demand.source, demand.keys) for demand in demands_here()] == [(str(named), (two.key,))]
    monkeypatch.setenv("AOTPACK_POLICY", "")
    assert sources() == [str(site / "policy.toml")]


def test_keys_lie_beside_a_policy_that_names_none_or_relative_to_it(user: Path, one: Pair, two: Pair) -> None:
    (user / "trusted-keys").mkdir(parents=True)
    (user / "trusted-keys" / "one.pub").write_bytes(one.public.read_bytes())
    (user / "trusted-keys" / "README").write_text("not a key")
    (user / "policy.toml").write_text("format = 1\nrequire-signature = true\n")
    assert demands_here()[0].keys == (one.key,)
    (user / "two.pub").write_bytes(two.public.read_bytes())
    write_policy(user, keys=[Path("two.pub")])
    assert demands_here()[0].keys == (two.key,)


def test_keys_alone_demand_nothing_and_are_what_an_option_and_a_variable_ask_for(
    user: Path, site: Path, one: Pair, two: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, pair in ((user, one), (site, two)):
        (folder / "trusted-keys").mkdir(parents=True)
        (folder / "trusted-keys" / "key.pub").write_bytes(pair.public.read_bytes())
    assert demands_here() == ()
    (demand,) = demands_here(required=True)
    assert (demand.source, set(demand.keys)) == ("--require-signature", {one.key, two.key})
    monkeypatch.setenv("AOTPACK_REQUIRE_SIGNATURE", "0")
    assert demands_here() == ()
    monkeypatch.setenv("AOTPACK_REQUIRE_SIGNATURE", "1")
    (demand,) = demands_here()
    assert (demand.source, set(demand.keys)) == ("AOTPACK_REQUIRE_SIGNATURE", {one.key, two.key})


def test_an_option_asks_for_more_than_a_policy_and_never_for_less(user: Path, one: Pair, two: Pair) -> None:
    policy = write_policy(user, keys=[one.public])
    demands = demands_here(trusted=[two.public])
    assert [(demand.source, demand.keys) for demand in demands] == [
        (str(policy), (one.key,)),
        ("--trusted-key", (two.key,)),
    ]
    assert demands_here(required=True) == demands_here()


def test_a_key_on_the_command_line_is_a_demand(one: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    (demand,) = demands_here(trusted=[one.public])
    assert demand.keys == (one.key,)
    monkeypatch.setenv("AOTPACK_REQUIRE_SIGNATURE", "1")
    assert {demand.keys for demand in demands_here(trusted=[one.public])} == {(one.key,)}


def test_a_demand_that_no_key_can_satisfy_says_where_keys_belong(
    user: Path, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "other" / "aotpack" / "trusted-keys"
    with pytest.raises(TrustError, match=f"--require-signature: .*no key is trusted; put public keys into {where}"):
        demands_here(required=True)
    write_policy(user)
    with pytest.raises(TrustError, match=rf"policy\.toml: .*put public keys into {user / 'trusted-keys'}"):
        demands_here()
    (user / "policy.toml").unlink()
    monkeypatch.setenv("AOTPACK_REQUIRE_SIGNATURE", "1")
    with pytest.raises(TrustError, match="AOTPACK_REQUIRE_SIGNATURE: demands a signature, and no key is trusted"):
        demands_here()
    assert not site.exists()


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    "spelled", [f"{YESTERDAY:%Y-%m-%d}", f"{YESTERDAY:%Y-%m-%dT%H:%M:%S}+00:00"], ids=["a date", "a time"]
)
def test_a_policy_that_has_expired_refuses_whatever_it_demands(
    user: Path, one: Pair, spelled: str, required: bool
) -> None:
    write_policy(user, keys=[one.public], expires=spelled, required=required)
    with pytest.raises(ExpiredPolicyError, match=r"policy\.toml: this policy has expired: it held until 20"):
        demands_here()


def test_a_policy_holds_until_it_expires(user: Path, one: Pair) -> None:
    write_policy(user, keys=[one.public], expires=f"{IN_A_YEAR:%Y-%m-%d}")
    (policy,) = policies_in_force()
    assert policy.expires == IN_A_YEAR.replace(hour=0, minute=0, second=0)
    assert policy.required


TEXT = "format = 1\nrequire-signature = true\n"
INVALID = {
    "no TOML": ("format = ", "expected TOML"),
    "nothing": ("", "format: missing"),
    "another format": ("format = 2\nrequire-signatures = 'all'\n", "format: expected 1, which this aotpack reads"),
    "a slip": ("format = 1\nrequire-signatures = true\n", "require-signatures: no such field"),
    "no word on signatures": ("format = 1\n", "require-signature: missing"),
    "a word": ("format = 1\nrequire-signature = 'yes'\n", "require-signature: expected true or false"),
    "no moment": (f"{TEXT}expires = 'never'\n", "expires: expected a day, or a moment with its offset"),
    "a moment somewhere": (f"{TEXT}expires = 2099-01-01T00:00:00\n", "expires: expected a day, or a moment"),
    "no list": (f"{TEXT}trusted-keys = 'one.pub'\n", "trusted-keys: expected an array"),
    "a number": (f"{TEXT}trusted-keys = [1]\n", r"trusted-keys\[0\]: expected a string"),
    "a key that is missing": (f"{TEXT}trusted-keys = ['none.pub']\n", r"none\.pub: cannot be read: No such file"),
    "a key that is none": (f"{TEXT}trusted-keys = ['policy.toml']\n", r"policy\.toml: expected one public key"),
    "too much": (f"{TEXT}#{'x' * (64 << 10)}", "more than 65536 bytes"),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_policy_that_is_not_understood_refuses(user: Path, name: str) -> None:
    text, message = INVALID[name]
    user.mkdir(parents=True)
    (user / "policy.toml").write_text(text)
    with pytest.raises(TrustError, match=message):
        demands_here()


def not_utf8(policy: Path) -> None:
    policy.write_bytes(b"\xff\xfe")


def a_directory(policy: Path) -> None:
    policy.mkdir()


def a_link_to_nothing(policy: Path) -> None:
    policy.symlink_to("nothing")


def for_all_to_write(policy: Path) -> None:
    policy.write_text(TEXT)
    policy.chmod(0o666)


def in_a_directory_for_all(policy: Path) -> None:
    policy.write_text(TEXT)
    policy.parent.chmod(0o777)


def of_someone_else(policy: Path) -> None:
    policy.write_text(TEXT)
    if os.getuid() != 0:
        pytest.skip("needs root, to give a file away")
    os.chown(policy, 54321, 54321)


UNREADABLE: dict[Callable[[Path], None], str] = {
    not_utf8: "TOML in UTF-8",
    a_directory: "cannot be read: Is a directory",
    a_link_to_nothing: "cannot be read: No such file",
    for_all_to_write: "decides what is trusted here, and .*policy.toml may be written by every user; take that right",
    in_a_directory_for_all: "decides what is trusted here, and .*aotpack may be written by every user",
    of_someone_else: "policy.toml belongs to user 54321, who may change it",
}


@pytest.mark.parametrize("make", UNREADABLE, ids=lambda make: make.__name__)
def test_a_policy_that_cannot_be_read_or_relied_on_refuses(user: Path, make: Callable[[Path], None]) -> None:
    user.mkdir(parents=True)
    make(user / "policy.toml")
    with pytest.raises(TrustError, match=UNREADABLE[make]):
        demands_here()


def test_a_key_that_others_may_write_refuses(user: Path, one: Pair) -> None:
    one.public.chmod(0o666)
    write_policy(user, keys=[one.public])
    with pytest.raises(TrustError, match=r"one\.pub: decides what is trusted here"):
        demands_here()


def test_a_policy_that_is_named_and_missing_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_POLICY", str(tmp_path / "none.toml"))
    with pytest.raises(TrustError, match=r"none\.toml: cannot be read: No such file"):
        demands_here()


AS_STRANGER = """
import os, platformdirs
from aotpack.errors import AotpackError
from aotpack.policy import demands_here
os.setgroups([]); os.setgid(54321); os.setuid(54321)
try:
    print(len(demands_here()))
except AotpackError as error:
    print(type(error).__name__, error)
"""


def as_stranger(**variables: object) -> str:
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command = [sys.executable, "-c", AS_STRANGER]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_closed_home_of_someone_else_holds_no_policy_of_this_user(tmp_path: Path) -> None:
    # pytest's directories are closed to others, as /root is where an image sets HOME to it.
    assert as_stranger(XDG_CONFIG_HOME=tmp_path / "user", XDG_CONFIG_DIRS="/nowhere") == "0"


def test_a_closed_directory_of_the_site_refuses_since_nobody_can_tell_what_is_demanded(tmp_path: Path) -> None:
    said = as_stranger(XDG_CONFIG_HOME="/nowhere", XDG_CONFIG_DIRS=tmp_path)
    assert said.startswith("TrustError")
    assert "cannot be looked for: Permission denied" in said


def test_without_a_home_there_is_no_policy_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert as_stranger(HOME="", XDG_CONFIG_DIRS="/nowhere") == "0"
