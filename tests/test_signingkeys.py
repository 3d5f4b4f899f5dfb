"""Signing keys: files that openssl reads and writes too, and that are never overwritten or given away."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aotpack.errors import OutputError, TrustError
from aotpack.signingkeys import (
    PublicKey,
    make_key_pair,
    parse_public_key,
    public_path,
    read_private_key,
    read_public_key,
)
from tests.archives import tree


def openssl(*arguments: object) -> bytes:
    found = shutil.which("openssl")
    if found is None:
        pytest.skip("needs openssl")
    return subprocess.run([found, *map(str, arguments)], capture_output=True, check=True).stdout


def test_a_pair_is_readable_for_its_owner_and_the_public_half_for_all(tmp_path: Path) -> None:
    key = make_key_pair(tmp_path / "release")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"release": 0o600, "release.pub": 0o644}
    assert read_public_key(public_path(tmp_path / "release")) == key
    private = read_private_key(tmp_path / "release")
    assert private.public == key
    assert key.has_signed(b"message", private.sign(b"message"))
    assert not key.has_signed(b"massage", private.sign(b"message"))
    assert key.raw.hex() not in str(private.sign)


@pytest.mark.parametrize("there", ["release", "release.pub"])
def test_what_is_there_is_never_overwritten_and_no_half_pair_is_left(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=f"{there}: is there already, and keys are never overwritten"):
        make_key_pair(tmp_path / "release")
    assert tree(tmp_path) == before


def test_a_link_is_not_followed_to_write_a_key(tmp_path: Path) -> None:
    (tmp_path / "release").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is there already"):
        make_key_pair(tmp_path / "release")
    assert not (tmp_path / "elsewhere").exists()


def test_a_pair_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="release: cannot be written: No such file or directory; choose another"):
        make_key_pair(tmp_path / "none" / "release")


def test_openssl_reads_our_keys_and_names_them_alike(tmp_path: Path) -> None:
    key = make_key_pair(tmp_path / "release")
    der = openssl("pkey", "-pubin", "-in", tmp_path / "release.pub", "-outform", "DER")
    assert key.identity == f"sha256:{hashlib.sha256(der).hexdigest()}"
    assert openssl("pkey", "-in", tmp_path / "release", "-pubout").decode() == key.to_pem()


def test_we_read_keys_of_openssl(tmp_path: Path) -> None:
    openssl("genpkey", "-algorithm", "ed25519", "-out", tmp_path / "theirs")
    (tmp_path / "theirs.pub").write_bytes(openssl("pkey", "-in", tmp_path / "theirs", "-pubout"))
    assert read_private_key(tmp_path / "theirs").public == read_public_key(tmp_path / "theirs.pub")


def test_keys_of_other_kinds_are_named(tmp_path: Path) -> None:
    openssl("genpkey", "-algorithm", "x25519", "-out", tmp_path / "other")
    (tmp_path / "other.pub").write_bytes(openssl("pkey", "-in", tmp_path / "other", "-pubout"))
    with pytest.raises(TrustError, match=r"other\.pub: expected an Ed25519 key, found a key of another kind"):
        read_public_key(tmp_path / "other.pub")
    with pytest.raises(TrustError, match="other: expected an Ed25519 private key in PEM"):
        read_private_key(tmp_path / "other")
    make_key_pair(tmp_path / "open")
    openssl("pkey", "-in", tmp_path / "open", "-aes128", "-passout", "pass:x", "-out", tmp_path / "closed")
    with pytest.raises(TrustError, match="closed: is encrypted; decrypt it"):
        read_private_key(tmp_path / "closed")


def test_a_private_key_where_a_public_one_belongs_is_called_so(tmp_path: Path) -> None:
    make_key_pair(tmp_path / "release")
    with pytest.raises(TrustError, match="release: expected one public key in PEM, found a private key, which must"):
        read_public_key(tmp_path / "release")


PEM = PublicKey(raw=bytes(range(32))).to_pem()


@pytest.mark.parametrize(
    "text", ["", "x", PEM * 2, PEM.replace("A", "*", 1), PEM.replace("MCow", "MCox"), PEM.replace("\n", "", 1)]
)
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(TrustError):
        parse_public_key(text)


def test_lines_may_end_and_be_broken_otherwise() -> None:
    assert parse_public_key(PEM.replace("\n", "\r\n") + "\n") == PublicKey(raw=bytes(range(32)))


def test_a_file_that_is_missing_or_huge_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TrustError, match="none: cannot be read: No such file"):
        read_public_key(tmp_path / "none")
    (tmp_path / "huge").write_text("-" * (1 << 20))
    with pytest.raises(TrustError, match="huge: expected a key, found more than"):
        read_public_key(tmp_path / "huge")


def test_what_cannot_be_a_point_of_the_curve_has_signed_nothing() -> None:
    assert not PublicKey(raw=b"\xff" * 32).has_signed(b"", bytes(64))


def test_nothing_of_the_library_is_loaded_to_read_and_name_a_key() -> None:
    script = (
        "import sys; from aotpack.signingkeys import PublicKey, parse_public_key\n"
        "parse_public_key(PublicKey(raw=bytes(32)).to_pem()).identity\n"
        "import aotpack.install, aotpack.verify, aotpack.wheel, aotpack.runtime.stores\n"
        "print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
