"""Trust at load time: what a process does not serve, why it says so, and that Triton does not get it either."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle, write_bundle
from aotpack.engines import Engine
from aotpack.install import install_bundle
from aotpack.receipts import signatures_path
from aotpack.signatures import IN_STORE, Signatures
from aotpack.store import unpack_store
from aotpack.wheel import write_wheels
from tests.conftest import ROOT
from tests.signing import YESTERDAY, Pair, make_pair, put_beside, write_policy

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

LOOK_UP = "import aotpack; aotpack.activate(); say(**serving.look_up(), cryptography='cryptography' in sys.modules)"

Serve = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may read, as those of pytest are not."""
    directory = Path(tempfile.mkdtemp(prefix="aotpack-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def bundle(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    whole = built.bundle
    manifest = replace(whole.manifest, entries=whole.manifest.entries[:3])
    return write_bundle(tmp_path_factory.mktemp("bundle") / "b.tar.zst", manifest, dict(whole.blobs()))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture
def serve(bundle: Bundle, engine: Engine, tmp_path: Path) -> Serve:
    """Runs a process that serves, with variables, through a command that goes before."""

    def run(*before: str, **variables: object) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "XDG_CONFIG_HOME": str(tmp_path / "nothing"),
            "XDG_CONFIG_DIRS": str(tmp_path / "nothing"),
            **{name: str(value) for name, value in variables.items()},
        }
        script = f"from tests.serving import *; serving = Serving()\n{LOOK_UP}"
        command = [*before, sys.executable, "-c", script, str(bundle.path), str(engine.root)]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    return run


def said(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_in_every_state_a_store_is_left_out_with_its_reason_and_the_signed_one_serves(
    serve: Serve, bundle: Bundle, ours: Pair, theirs: Pair, place: Path
) -> None:
    other = ours.signed(f"sha256:{'0' * 64}")
    forged = theirs.signed(bundle.digest)
    forged = replace(forged, signatures=(replace(forged.signatures[0], key=ours.key.identity),))
    signatures: dict[str, tuple[Signatures | None, str]] = {
        "unsigned": (None, "is not signed, and"),
        "untrusted": (theirs.signed(bundle.digest), f"is signed by {theirs.key.identity}, which"),
        "another": (other, "its signature is that of another bundle"),
        "forged": (forged, "is wrong: the bundle or the signature was altered"),
        "expired": (ours.signed(bundle.digest, expires=YESTERDAY), "has expired: it held until"),
        "damaged": (ours.signed(bundle.digest), "is damaged: "),
        "signed": (ours.signed(bundle.digest), ""),
    }
    for name, (made, _) in signatures.items():
        unpack_store(bundle, place / name, made)
    (place / "damaged" / IN_STORE).write_text("{}")
    policy = write_policy(place / "policy", keys=[ours.public])
    listed = ":".join(str(place / name) for name in signatures)
    done = serve(AOTPACK_BUNDLE_PATH=listed, AOTPACK_POLICY=policy)
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert said(done)["in"] == [f"{place}/signed/blobs"]
    lines = done.stderr.splitlines()
    assert len(lines) == len(signatures) - 1
    for line, (name, (_, reason)) in zip(lines, signatures.items(), strict=False):
        assert line.startswith("an element of AOTPACK_BUNDLE_PATH is not served: ")
        assert f"{place / name}" in line
        assert reason in line


@pytest.mark.parametrize("state", ["expired", "invalid"])
def test_a_policy_that_does_not_hold_serves_nothing(
    serve: Serve, bundle: Bundle, ours: Pair, place: Path, tmp_path: Path, state: str
) -> None:
    unpack_store(bundle, place / "store", ours.signed(bundle.digest))
    install_bundle(bundle, tmp_path / "triton")
    expires = f"{YESTERDAY:%Y-%m-%d}" if state == "expired" else "'soon'"
    policy = write_policy(place / "policy", keys=[ours.public], expires=expires)
    done = serve(AOTPACK_BUNDLE_PATH=place / "store", AOTPACK_POLICY=policy)
    assert said(done)["found"] == 0
    reason = "this policy has expired" if state == "expired" else "is no policy: expires: expected a day"
    assert [reason in line for line in done.stderr.splitlines()] == [True, True]  # one of the cache, one of the store
    strict = serve(AOTPACK_BUNDLE_PATH=place / "store", AOTPACK_POLICY=policy, AOTPACK_STRICT=1)
    assert strict.returncode == 1
    assert f"{'ExpiredPolicy' if state == 'expired' else 'Trust'}Error: " in strict.stderr


def test_what_was_installed_unsigned_is_not_handed_out_by_tritons_own_directory_either(
    serve: Serve, bundle: Bundle, ours: Pair, place: Path, tmp_path: Path
) -> None:
    install_bundle(bundle, tmp_path / "triton")
    policy = write_policy(place / "policy", keys=[ours.public])
    without = serve()
    assert (said(without)["found"], said(without)["cryptography"]) == (len(bundle.manifest.entries), False)
    (tmp_path / "link").symlink_to("triton")
    for spelled in ("triton/", "link"):
        done = serve(AOTPACK_POLICY=policy, TRITON_CACHE_DIR=f"{tmp_path}/{spelled}")
        assert (said(done)["found"], len(said(done)["errors"])) == (0, len(bundle.manifest.entries))
        (line,) = done.stderr.splitlines()
        assert line.startswith("what was installed is not served: b.tar.zst in ")
        assert f"is not signed, and {policy} demands that it is" in line
    put_beside(bundle, ours.signed(bundle.digest))
    try:
        install_bundle(bundle, tmp_path / "triton")
    finally:
        bundle.path.with_name("b.tar.zst.sig").unlink()
    done = serve(AOTPACK_POLICY=policy)
    assert (said(done)["found"], done.stderr) == (len(bundle.manifest.entries), "")
    cubins = sorted((tmp_path / "triton").glob("*/*.cubin"))
    cubin = cubins[0]
    metadata = cubins[1].with_suffix(".json")
    before = {path: path.read_bytes() for path in (metadata, cubin)}
    metadata.write_bytes(before[metadata].replace(b'"shared": ', b'"shared": 1'))
    cubin.write_bytes(before[cubin][:-1])
    done = serve(AOTPACK_POLICY=policy)
    assert (said(done)["found"], len(said(done)["errors"])) == (len(bundle.manifest.entries) - 2, 2)
    assert [line.partition(": is not what")[0] for line in sorted(done.stderr.splitlines())] == sorted(
        map(str, (cubin, metadata))
    )
    for path, data in before.items():
        path.write_bytes(data)
    kept = signatures_path(tmp_path / "triton", bundle.digest)
    kept.write_bytes(kept.read_bytes().replace(b'"comment":""', b'"comment":"x"'))
    done = serve(AOTPACK_POLICY=policy)
    assert (said(done)["found"], "is wrong: the bundle or the signature was altered" in done.stderr) == (0, True)


def test_a_bundle_and_a_wheel_are_served_where_they_are_signed(
    serve: Serve, bundle: Bundle, ours: Pair, place: Path
) -> None:
    (place / "dist").mkdir()
    copy = replace(bundle, path=Path(shutil.copy(bundle.path, place)))
    (place / "tmp").mkdir()
    policy = write_policy(place / "policy", keys=[ours.public])
    as_file = {"AOTPACK_BUNDLE_PATH": copy.path, "TMPDIR": place / "tmp", "AOTPACK_POLICY": policy}
    assert "is not signed" in serve(**as_file).stderr
    put_beside(copy, ours.signed(copy.digest))
    assert said(serve(**as_file))["found"] == len(bundle.manifest.entries)
    (wheel,) = write_wheels(copy, place / "dist")
    shutil.unpack_archive(wheel.path, place / "site", "zip")
    done = serve(PYTHONPATH=place / "site", AOTPACK_POLICY=policy)
    assert (said(done)["found"], done.stderr) == (len(bundle.manifest.entries), "")
    (signature,) = (place / "site").glob(f"*/store/{IN_STORE}")
    signature.unlink()
    done = serve(PYTHONPATH=place / "site", AOTPACK_POLICY=policy)
    assert said(done)["found"] == 0
    assert "the bundle of the package aotpack_kernels_vllm_sm90 is not served" in done.stderr


def test_places_that_others_may_write_are_left_out_with_the_reason(serve: Serve, bundle: Bundle, place: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give files away")
    for name in ("open", "given", "manifest", "installed", "receipt", "bundle"):
        (place / name).mkdir()
        if name in ("installed", "receipt"):
            install_bundle(bundle, place / name / "cache")
        elif name == "bundle":
            shutil.copy(bundle.path, place / name)
        else:
            unpack_store(bundle, place / name / "store")
    (place / "open").chmod(0o777)
    os.chown(place / "given" / "store", 54321, 54321)
    (place / "manifest" / "store" / "manifest.json").chmod(0o666)
    (place / "installed" / "cache").chmod(0o777)
    next((place / "receipt" / "cache" / ".aotpack" / "receipts").iterdir()).chmod(0o666)
    (place / "bundle" / "b.tar.zst").chmod(0o666)
    elements = {
        "open": ("open/store", f"{place}/open may be written by every user"),
        "given": ("given/store", f"{place}/given/store belongs to user 54321, who may change it"),
        "manifest": ("manifest/store", "manifest.json may be written by every user"),
        "installed": ("installed/cache", f"{place}/installed/cache may be written by every user"),
        "receipt": ("receipt/cache", ".json may be written by every user"),
        "bundle": ("bundle/b.tar.zst", "b.tar.zst may be written by every user"),
    }
    listed = ":".join(f"{place}/{element}" for element, _ in elements.values())
    done = serve(AOTPACK_BUNDLE_PATH=listed)
    assert said(done)["found"] == 0
    lines = done.stderr.splitlines()
    assert len(lines) == len(elements)
    for line, (_, reason) in zip(lines, elements.values(), strict=True):
        assert reason in line
        assert "mount it read-only, or vouch for its directory with AOTPACK_TRUST_PATH" in line
    vouched = serve(AOTPACK_BUNDLE_PATH=f"{place}/open/store", AOTPACK_TRUST_PATH=place)
    assert (said(vouched)["found"], vouched.stderr) == (len(bundle.manifest.entries), "")
    strict = serve(AOTPACK_BUNDLE_PATH=f"{place}/open/store", AOTPACK_STRICT=1)
    assert strict.returncode == 1
    assert "CacheError: " in strict.stderr


def test_a_volume_for_all_serves_where_it_is_mounted_read_only(serve: Serve, bundle: Bundle, place: Path) -> None:
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs to mount, which this container may not")
    (place / "kernels").mkdir()
    (place / "kernels").chmod(0o777)  # as kubelet makes an emptyDir
    install_bundle(bundle, place / "kernels")
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    done = serve("unshare", "-m", "sh", "-c", mount, str(place / "kernels"), AOTPACK_BUNDLE_PATH=place / "kernels")
    assert (said(done)["found"], done.stderr) == (len(bundle.manifest.entries), "")


def test_a_file_that_others_may_write_in_a_place_that_is_sound_is_not_handed_out(
    serve: Serve, bundle: Bundle, place: Path
) -> None:
    store = unpack_store(bundle, place / "store")
    cubin = bundle.manifest.entries[0].cubin
    store.path(cubin, "cubin").chmod(0o666)
    affected = sum(entry.cubin == cubin for entry in bundle.manifest.entries)
    done = serve(AOTPACK_BUNDLE_PATH=store.directory)
    assert said(done)["found"] == len(bundle.manifest.entries) - affected
    (line,) = done.stderr.splitlines()
    assert "may be written by every user; take that right away" in line
    assert line.endswith("it is compiled")
    (store.directory / "blobs").chmod(0o777)
    done = serve(AOTPACK_BUNDLE_PATH=store.directory)
    assert (said(done)["found"], f"{store.directory}/blobs may be written" in done.stderr) == (0, True)
