"""Trust from end to end: signed, unsigned, untrusted, altered and expired, in every command, with real bundles."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from aotpack.archive import pack, pack_manifest
from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.digests import digest_file
from aotpack.doctor.trust import probe_trust
from aotpack.errors import AlteredError, BundleError, UsageError
from aotpack.heal import heal
from aotpack.install import install_bundle, uninstall
from aotpack.receipts import SIGNATURES, read_receipts, signatures_path
from aotpack.sign import sign_bundle
from aotpack.signatures import IN_STORE, read_signatures
from aotpack.store import unpack_store
from aotpack.verify import verify_cache
from aotpack.wheel import write_wheels
from tests.archives import tree
from tests.conftest import ROOT
from tests.signing import YESTERDAY, Pair, make_pair, put_beside, write_policy
from tests.test_cli import one_error, run


@pytest.fixture(scope="module")
def original(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    bundle = built.bundle
    manifest = replace(bundle.manifest, entries=bundle.manifest.entries[:3])
    return write_bundle(tmp_path_factory.mktemp("original") / "b.tar.zst", manifest, dict(bundle.blobs()))


@pytest.fixture
def bundle(original: Bundle, tmp_path: Path) -> Bundle:
    """A small real one, alone in its directory."""
    (tmp_path / "bundles").mkdir()
    return open_bundle(Path(shutil.copy(original.path, tmp_path / "bundles")))


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("trusted"), "ours")


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("unknown"), "theirs")


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "site"))
    return tmp_path / "user" / "aotpack"


@dataclass(frozen=True)
class World:
    """What a state is made of."""

    bundle: Bundle
    trusted: Pair
    unknown: Pair
    folder: Path

    def policy(self, expires: str = "") -> None:
        write_policy(self.folder / "user" / "aotpack", keys=[self.trusted.public], expires=expires)


def signed(world: World) -> None:
    world.policy()
    put_beside(world.bundle, world.trusted.signed(world.bundle.digest))


def signed_by_an_old_and_a_new_key(world: World) -> None:
    world.policy()
    old = world.unknown.signed(world.bundle.digest)
    put_beside(world.bundle, world.trusted.signed(world.bundle.digest, before=old))


def unsigned(world: World) -> None:
    world.policy()


def untrusted(world: World) -> None:
    world.policy()
    put_beside(world.bundle, world.unknown.signed(world.bundle.digest))


def of_another_bundle(world: World) -> None:
    world.policy()
    put_beside(world.bundle, world.trusted.signed(f"sha256:{'0' * 64}"))


def forged(world: World) -> None:
    world.policy()
    theirs = world.unknown.signed(world.bundle.digest)
    claimed = replace(theirs.signatures[0], key=world.trusted.key.identity)
    put_beside(world.bundle, replace(theirs, signatures=(claimed,)))


def with_another_manifest(world: World) -> None:
    signed(world)
    manifest = replace(world.bundle.manifest, built_by="evil")
    write_bundle(world.bundle.path, manifest, dict(world.bundle.blobs()))


def with_other_machine_code(world: World) -> None:
    """The manifest is what was signed, and an artifact is not; neither zstd nor tar can tell."""
    signed(world)
    blobs = dict(world.bundle.blobs())
    cubin = world.bundle.manifest.entries[0].cubin.digest
    blobs[cubin] = bytes(reversed(blobs[cubin]))
    frames = [[blobs[artifact.digest] for artifact in frame] for frame in world.bundle.manifest.frames()]
    world.bundle.path.write_bytes(b"".join([pack_manifest(world.bundle.manifest_bytes()), *pack(frames)]))


def with_a_damaged_file(world: World) -> None:
    signed(world)
    path = world.bundle.path.with_name("b.tar.zst.sig")
    path.write_bytes(path.read_bytes()[:-1])


def expired(world: World) -> None:
    world.policy()
    put_beside(world.bundle, world.trusted.signed(world.bundle.digest, expires=YESTERDAY))


def under_an_expired_policy(world: World) -> None:
    signed(world)
    world.policy(expires=f"{YESTERDAY:%Y-%m-%d}")


def under_a_policy_that_is_none(world: World) -> None:
    signed(world)
    (world.folder / "user" / "aotpack" / "policy.toml").write_text("require-signature = no\n")


State = Callable[[World], None]

STATES: dict[State, tuple[int, str, str]] = {
    signed: (0, "", ""),
    signed_by_an_old_and_a_new_key: (0, "", ""),
    unsigned: (4, "S101", "policy.toml demands that it is"),
    untrusted: (5, "S102", "policy.toml does not trust"),
    of_another_bundle: (6, "S103", "is the signature of another bundle: expected"),
    forged: (6, "S103", "is wrong: the bundle or the signature was altered"),
    with_another_manifest: (6, "S103", "is the signature of another bundle: expected"),
    with_other_machine_code: (6, "V101", "(its manifest is what was signed, and its content is not)"),
    with_a_damaged_file: (6, "S103", "is damaged: expected the canonical spelling"),
    under_an_expired_policy: (7, "", "policy.toml: this policy has expired: it held until"),
    expired: (8, "S105", "has expired: it held until"),
    under_a_policy_that_is_none: (3, "", "policy.toml: is no policy: expected TOML"),
}


@pytest.fixture
def world(bundle: Bundle, trusted: Pair, unknown: Pair, tmp_path: Path) -> World:
    return World(bundle=bundle, trusted=trusted, unknown=unknown, folder=tmp_path)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_each_state_has_its_message_and_exit_code_in_install_and_verify(world: World, state: State) -> None:
    state(world)
    code, finding, message = STATES[state]
    cache = world.folder / "cache"
    installed = run("install", world.bundle.path, "--cache-dir", cache)
    kept = run("install", world.bundle.path, "--packed", world.folder / "packed")
    checked = run("verify", world.bundle.path)
    document = run("verify", world.bundle.path, "--json")
    codes = (installed.exit_code, kept.exit_code, checked.exit_code, document.exit_code)
    assert codes == (code, code, code, code)
    if code:
        assert message in one_error(installed)
        assert message in one_error(kept)
        assert not cache.exists()
        assert list((world.folder / "packed").glob("*")) == []
        assert message in checked.output
    if finding:
        assert checked.stdout.startswith(f"{finding} {world.bundle.path}: ")
        assert [found["code"] for found in json.loads(document.stdout)["findings"]] == [finding]


def test_an_unsigned_bundle_is_installed_where_nothing_is_demanded(bundle: Bundle, tmp_path: Path) -> None:
    assert run("install", bundle.path, "--cache-dir", tmp_path / "cache").exit_code == 0
    assert not (tmp_path / "cache" / SIGNATURES).exists()
    assert run("verify", bundle.path).exit_code == 0


def test_a_signature_of_something_else_is_refused_even_where_none_is_demanded(world: World) -> None:
    of_another_bundle(world)
    shutil.rmtree(world.folder / "user")
    result = run("install", world.bundle.path, "--cache-dir", world.folder / "cache")
    assert (result.exit_code, "another bundle" in one_error(result)) == (6, True)


def test_keys_and_demands_on_the_command_line(bundle: Bundle, trusted: Pair, unknown: Pair, tmp_path: Path) -> None:
    made = run("sign", bundle.path, "--key", trusted.private, "--comment", "kernel team", "--expires", "2999-01-01")
    assert (made.exit_code, made.stdout) == (0, f"{bundle.path}.sig\n")
    assert f"signed {bundle.digest} with the key {trusted.key.identity}" in made.stderr
    for command in (["verify", bundle.path], ["install", bundle.path, "--cache-dir", tmp_path / "cache"]):
        assert run(*command, "--trusted-key", trusted.public).exit_code == 0
        assert run(*command, "--trusted-key", unknown.public, "--trusted-key", trusted.public).exit_code == 0
        refused = run(*command, "--trusted-key", unknown.public)
        assert refused.exit_code == 5
        assert f"{trusted.key.identity} (kernel team), which --trusted-key does not trust" in refused.output
        none = run(*command, "--require-signature")
        assert (none.exit_code, "no key is trusted; put public keys into" in one_error(none)) == (3, True)


def test_the_variable_of_a_fleet_demands_what_the_trusted_keys_can_satisfy(
    world: World, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configuration / "trusted-keys").mkdir(parents=True)
    shutil.copy(world.trusted.public, configuration / "trusted-keys")
    monkeypatch.setenv("AOTPACK_REQUIRE_SIGNATURE", "1")
    refused = run("verify", world.bundle.path)
    assert (refused.exit_code, "AOTPACK_REQUIRE_SIGNATURE demands that it is" in refused.stdout) == (4, True)
    put_beside(world.bundle, world.trusted.signed(world.bundle.digest))
    assert run("verify", world.bundle.path).exit_code == 0


def test_a_signature_may_lie_elsewhere(bundle: Bundle, trusted: Pair, tmp_path: Path) -> None:
    elsewhere = put_beside(bundle, trusted.signed(bundle.digest)).rename(tmp_path / "elsewhere")
    assert run("verify", bundle.path, "--trusted-key", trusted.public).exit_code == 4
    arguments = ("--trusted-key", trusted.public, "--signature", elsewhere)
    assert run("verify", bundle.path, *arguments).exit_code == 0
    assert run("install", bundle.path, "--cache-dir", tmp_path / "cache", *arguments).exit_code == 0
    assert read_signatures(signatures_path(tmp_path / "cache", bundle.digest)) == trusted.signed(bundle.digest)
    assert run("verify", bundle.path, "--signature", tmp_path / "none").exit_code == 2
    assert run("verify", "--cache-dir", tmp_path / "cache", "--signature", elsewhere).exit_code == 2


# Signing


def test_keygen_prints_the_identity_and_keeps_what_is_there(tmp_path: Path) -> None:
    made = run("keygen", "--out", tmp_path / "release")
    assert (made.exit_code, made.stdout.startswith("sha256:")) == (0, True)
    again = run("keygen", "--out", tmp_path / "release")
    assert (again.exit_code, "keys are never overwritten" in one_error(again)) == (3, True)


def test_signing_with_a_second_key_keeps_the_first(bundle: Bundle, trusted: Pair, unknown: Pair) -> None:
    sign_bundle(bundle, trusted.private)
    both = sign_bundle(bundle, unknown.private)
    assert {one.key for one in both.signatures.signatures} == {trusted.key.identity, unknown.key.identity}
    assert read_signatures(both.path) == both.signatures
    for pair in (trusted, unknown):
        assert run("verify", bundle.path, "--trusted-key", pair.public).exit_code == 0


def test_what_is_damaged_is_not_signed_and_what_was_signed_stays(bundle: Bundle, trusted: Pair) -> None:
    sign_bundle(bundle, trusted.private)
    data = bytearray(bundle.path.read_bytes())
    data[-100] ^= 1
    bundle.path.write_bytes(data)
    before = tree(bundle.path.parent)
    with pytest.raises(BundleError):
        sign_bundle(bundle, trusted.private)
    assert tree(bundle.path.parent) == before


def test_a_damaged_file_of_signatures_is_not_overwritten(world: World) -> None:
    with_a_damaged_file(world)
    with pytest.raises(AlteredError, match="is damaged"):
        sign_bundle(world.bundle, world.trusted.private)


def test_what_has_expired_already_is_not_signed(bundle: Bundle, trusted: Pair) -> None:
    with pytest.raises(UsageError, match="has expired already; name a later day"):
        sign_bundle(bundle, trusted.private, expires=YESTERDAY)
    slip = run("sign", bundle.path, "--key", trusted.private, "--expires", "tomorrow")
    assert (slip.exit_code, "is neither a day nor a moment in UTC" in slip.stderr) == (2, True)


def test_what_lies_where_the_signature_belongs_is_one_line(bundle: Bundle, trusted: Pair) -> None:
    (bundle.path.parent / "b.tar.zst.sig").mkdir()
    result = run("sign", bundle.path, "--key", trusted.private)
    assert (result.exit_code, "b.tar.zst.sig: cannot be read: Is a directory" in one_error(result)) == (3, True)


# Elsewhere


def test_the_doctor_tells_what_is_demanded_and_what_would_not_be_served(world: World) -> None:
    cache = world.folder / "cache"
    install_bundle(world.bundle, cache)
    (receipt,) = read_receipts(cache)
    nothing = probe_trust([receipt], world.bundle)
    assert (nothing.rows, nothing.findings) == ((("demanded", "nothing"),), ())
    unsigned(world)
    refused = probe_trust([receipt], world.bundle)
    policy = world.folder / "user" / "aotpack" / "policy.toml"
    assert refused.rows == (("demanded", f"a signature by one of 1 keys ({policy})"),)
    assert [finding.code for finding in refused.findings] == ["S101", "S101"]
    cache.chmod(0o777)
    assert "D208" in {finding.code for finding in probe_trust([receipt], None).findings}
    world.policy(expires=f"{YESTERDAY:%Y-%m-%d}")
    assert [finding.code for finding in probe_trust([], None).findings] == ["S104"]
    policy.write_text("")
    result = run("doctor", "--cache-dir", cache)
    assert (result.exit_code, f"D120 policy: {policy}: is no policy" in result.stdout) == (1, True)


# Along the way


def test_the_signature_goes_into_the_cache_and_is_taken_out_with_the_rest(world: World) -> None:
    signed(world)
    cache = world.folder / "cache"
    install_bundle(world.bundle, cache)
    kept = signatures_path(cache, world.bundle.digest)
    assert kept.read_bytes() == world.bundle.path.with_name("b.tar.zst.sig").read_bytes()
    assert verify_cache(cache).findings == ()
    put_beside(world.bundle, world.unknown.signed(world.bundle.digest, before=read_signatures(kept)))
    again = install_bundle(world.bundle, cache)
    assert kept.read_bytes() == world.bundle.path.with_name("b.tar.zst.sig").read_bytes()
    uninstall(again.receipt)
    assert tree(cache) == {}


def test_a_signature_that_was_altered_in_the_cache_is_healed_from_the_bundle(world: World) -> None:
    signed(world)
    cache = world.folder / "cache"
    install_bundle(world.bundle, cache)
    kept = signatures_path(cache, world.bundle.digest)
    data = kept.read_bytes()
    kept.write_bytes(data[:-1])
    result = run("verify", "--cache-dir", cache)
    assert result.exit_code == 6
    assert heal(cache).after.findings == ()
    assert kept.read_bytes() == data


def test_what_was_installed_before_a_policy_is_told_apart_by_verify(world: World) -> None:
    cache = world.folder / "cache"
    install_bundle(world.bundle, cache)
    unsigned(world)
    result = run("verify", "--cache-dir", cache)
    assert (result.exit_code, result.stdout.startswith("S101 ")) == (4, True)
    put_beside(world.bundle, world.trusted.signed(world.bundle.digest))
    install_bundle(world.bundle, cache)
    assert run("verify", "--cache-dir", cache).exit_code == 0


def test_a_receipt_that_lists_what_was_not_signed_is_refused(world: World) -> None:
    signed(world)
    cache = world.folder / "cache"
    receipt = install_bundle(world.bundle, cache).receipt
    cubin = next(file for file in receipt.files if file.path.endswith(".cubin"))
    for path, digest in ((cubin.path, f"sha256:{'0' * 64}"), ("A" * 52 + "/evil.so", cubin.digest)):
        files = [replace(file, digest=digest) if file.path == path else file for file in receipt.files]
        files += [] if path == cubin.path else [replace(cubin, path=path)]
        receipt.path.write_bytes(replace(receipt, files=tuple(files)).to_bytes())
        checked = verify_cache(cache)
        assert checked.exit_code == 6
        assert f"lists {path}, which is not in the manifest that was signed" in str(checked.findings[0])


def test_metadata_that_was_altered_with_its_receipt_is_refused(world: World) -> None:
    signed(world)
    cache = world.folder / "cache"
    receipt = install_bundle(world.bundle, cache).receipt
    metadata = next(file for file in receipt.files if file.path.endswith(".json") and "/__grp__" not in file.path)
    path = cache / metadata.path
    document = json.loads(path.read_bytes())
    document["shared"] = document["shared"] + 1
    path.write_bytes(json.dumps(document, sort_keys=True).encode())
    files = [replace(file, digest=digest_file(path)) if file == metadata else file for file in receipt.files]
    receipt.path.write_bytes(replace(receipt, files=tuple(files)).to_bytes())
    checked = verify_cache(cache)
    assert checked.exit_code == 6
    assert f"lists {metadata.path}, which is not in the manifest that was signed" in str(checked.findings[0])


def test_a_store_and_a_wheel_carry_the_signature_and_the_wheel_is_the_same_again(world: World) -> None:
    signed(world)
    made = read_signatures(world.bundle.path.with_name("b.tar.zst.sig"))
    assert made is not None
    store = unpack_store(world.bundle, world.folder / "store", made)
    assert read_signatures(store.directory / IN_STORE) == made
    for name in ("one", "two"):
        (world.folder / name).mkdir()
    wheels = [write_wheels(world.bundle, world.folder / name)[0].path for name in ("one", "two")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f"/store/{IN_STORE}"))
        assert archive.read(name) == made.to_bytes()
        archive.extractall(world.folder / "site")
    package = name.partition("/")[0]
    checked = subprocess.run(
        [sys.executable, "-m", package], cwd=world.folder / "site", capture_output=True, text=True, check=False
    )
    assert checked.stdout.endswith("all is well\n"), checked.stderr


def test_a_wheel_takes_the_signature_that_is_named_and_refuses_another_bundles(world: World) -> None:
    of_another_bundle(world)
    result = run("wheel", world.bundle.path, "-o", world.folder)
    assert (result.exit_code, "another bundle" in one_error(result)) == (6, True)
    named = world.folder / "named.sig"
    named.write_bytes(world.trusted.signed(world.bundle.digest).to_bytes())
    assert run("wheel", world.bundle.path, "-o", world.folder, "--signature", named).exit_code == 0
    assert [path.suffix for path in world.folder.glob("*.whl")] == [".whl"]


def test_without_the_library_what_is_demanded_says_what_to_install_and_the_rest_works(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "shadow" / "cryptography").mkdir(parents=True)
    (tmp_path / "shadow" / "cryptography" / "__init__.py").write_text("raise ImportError('not here')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "shadow")}

    def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aotpack", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    put_beside(world.bundle, world.trusted.signed(world.bundle.digest))
    assert bare("verify", world.bundle.path).returncode == 0
    cache = tmp_path / "cache"
    assert bare("install", world.bundle.path, "--cache-dir", cache).returncode == 0
    for arguments, what in (
        (("verify", world.bundle.path, "--trusted-key", world.trusted.public), "checking a signature"),
        (("keygen", "--out", tmp_path / "key"), "making a key"),
        (("sign", world.bundle.path, "--key", world.trusted.private), "signing"),
    ):
        done = bare(*arguments)
        assert done.returncode == 3, done.stderr
        assert f"{what} needs the package cryptography, which this environment lacks; install aotpack[sign]" in (
            done.stderr
        )
    assert not (tmp_path / "key").exists()
