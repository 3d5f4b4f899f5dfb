"""Signatures: one spelling, nothing in them that can be changed or moved, and a clear word for each way to be wrong."""

import base64
import json
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from aotpack.digests import digest_bytes
from aotpack.errors import (
    AlteredError,
    AotpackError,
    DocumentError,
    ExpiredSignatureError,
    UnsignedError,
    UnsupportedFormatError,
    UntrustedError,
    UsageError,
)
from aotpack.signatures import (
    MAX_COMMENT,
    MAX_SIGNATURES,
    MAX_SIZE,
    Signature,
    Signatures,
    check_signatures,
    find_signatures,
    parse_signatures,
    read_signatures,
    sign,
)
from aotpack.signingkeys import PrivateKey, PublicKey
from tests.signing import IN_A_YEAR, YESTERDAY

BUNDLE, ANOTHER = digest_bytes(b"bundle"), digest_bytes(b"another")


def fixed_key(seed: int) -> PrivateKey:
    """A key that is the same in every run, and so are its signatures (RFC 8032)."""
    key = Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32))
    return PrivateKey(public=PublicKey(raw=key.public_key().public_bytes_raw()), sign=key.sign)


ONE, TWO = fixed_key(1), fixed_key(2)


def check(found: Signatures | None, *keys: PrivateKey, bundle: str = BUNDLE) -> Signature:
    return check_signatures("b.tar.zst", bundle, found, [key.public for key in keys], "the test")


def test_the_format_does_not_change_unnoticed(golden: Callable[[str, str], None]) -> None:
    first = sign(BUNDLE, ONE, comment="kernel team, 2026")
    both = sign(BUNDLE, TWO, before=first, expires=datetime(2027, 6, 30, tzinfo=timezone.utc))
    statements = "".join(f"\nsigned: {one.statement(BUNDLE).decode()}" for one in both.signatures)
    golden("signatures.txt", f"{both.to_bytes().decode()}{statements}\n")


def test_each_of_two_trusted_keys_will_do_alone_and_together() -> None:
    both = sign(BUNDLE, TWO, before=sign(BUNDLE, ONE))
    for keys in ([ONE], [TWO], [ONE, TWO]):
        assert check(both, *keys).key in {key.public.identity for key in keys}
    assert check(sign(BUNDLE, TWO), ONE, TWO).key == TWO.public.identity


def test_signing_again_replaces_what_the_same_key_has_signed_and_what_is_of_another_bundle() -> None:
    first = sign(BUNDLE, TWO, before=sign(BUNDLE, ONE, comment="old"))
    again = sign(BUNDLE, ONE, before=first, comment="new")
    assert sorted(one.comment for one in again.signatures) == ["", "new"]
    assert [one.key for one in sign(ANOTHER, ONE, before=again).signatures] == [ONE.public.identity]


def test_an_unsigned_bundle_is_called_so() -> None:
    with pytest.raises(UnsignedError, match=r"b\.tar\.zst: is not signed, and the test demands that it is"):
        check(None, ONE)


def test_an_unknown_key_is_named_with_its_comment_beside_those_that_are_trusted() -> None:
    with pytest.raises(UntrustedError) as error:
        check(sign(BUNDLE, TWO, comment="who?"), ONE)
    assert f"is signed by {TWO.public.identity} (who?), which the test does not trust" in str(error.value)
    assert f"trusted: {ONE.public.identity};" in str(error.value)


def test_a_signature_of_another_bundle_is_none_of_this_whatever_the_file_says() -> None:
    with pytest.raises(AlteredError, match="its signature is that of another bundle"):
        check(sign(ANOTHER, ONE), ONE)
    with pytest.raises(AlteredError, match="is wrong: the bundle or the signature was altered"):
        check(replace(sign(ANOTHER, ONE), bundle=BUNDLE), ONE)


ALTERATIONS: dict[str, Callable[[Signature], Signature]] = {
    "the signature": lambda one: replace(one, value=bytes([one.value[0] ^ 1]) + one.value[1:]),
    "the comment": lambda one: replace(one, comment="trust me"),
    "a later end": lambda one: replace(one, expires=IN_A_YEAR.replace(year=IN_A_YEAR.year + 1)),
    "no end": lambda one: replace(one, expires=None),
    "another key": lambda one: replace(one, key=TWO.public.identity),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_nothing_that_a_signature_says_can_be_altered(alteration: str) -> None:
    made = sign(BUNDLE, ONE, comment="a", expires=IN_A_YEAR)
    assert check(made, ONE, TWO) == made.signatures[0]
    with pytest.raises(AlteredError, match="is wrong"):
        check(replace(made, signatures=(ALTERATIONS[alteration](made.signatures[0]),)), ONE, TWO)


def test_what_the_same_key_has_signed_for_something_else_is_no_signature_of_a_bundle() -> None:
    made = sign(BUNDLE, ONE)
    for message in (BUNDLE.encode(), bytes.fromhex(BUNDLE[7:]), b""):
        forged = replace(made.signatures[0], value=ONE.sign(message))
        with pytest.raises(AlteredError):
            check(replace(made, signatures=(forged,)), ONE)


def test_a_signature_that_has_expired_is_called_so_unless_another_holds() -> None:
    expired = sign(BUNDLE, ONE, expires=YESTERDAY)
    with pytest.raises(ExpiredSignatureError, match=f"has expired: it held until {YESTERDAY:%Y-%m-%dT%H:%M:%SZ}"):
        check(expired, ONE)
    assert check(sign(BUNDLE, TWO, before=expired), ONE, TWO).key == TWO.public.identity
    with pytest.raises(ExpiredSignatureError):
        check(sign(BUNDLE, TWO, before=expired), ONE)


MADE = sign(BUNDLE, TWO, before=sign(BUNDLE, ONE, comment="a comment", expires=IN_A_YEAR))


def test_every_flip_of_a_bit_is_refused_or_leaves_nothing_to_trust() -> None:
    data = MADE.to_bytes()
    accepted = 0
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            try:
                found = parse_signatures(flipped)
                vouching = check(found, ONE, TWO)
            except AotpackError:
                continue
            accepted += 1
            # One of the two was hit: the other, which was not, vouches still.
            assert vouching in MADE.signatures
    assert accepted


@pytest.mark.parametrize("size", range(0, len(MADE.to_bytes()), 37))
def test_a_truncated_file_is_refused(size: int) -> None:
    with pytest.raises(DocumentError):
        parse_signatures(MADE.to_bytes()[:size])


def changed(**values: object) -> bytes:
    return (
        json.dumps({**json.loads(MADE.to_bytes()), **values}, sort_keys=True, separators=(",", ":")) + "\n"
    ).encode()


def first(**values: object) -> bytes:
    document = json.loads(MADE.to_bytes())
    return changed(signatures=[{**document["signatures"][0], **values}, *document["signatures"][1:]])


REFUSED = {
    "spaces": (MADE.to_bytes().replace(b":", b": ", 1), "canonical spelling"),
    "another field": (changed(more=1), "more: no such field"),
    "another field of a signature": (first(more=1), r"signatures\[0\].more: no such field"),
    "no signatures": (changed(signatures=[]), "expected 1 to 32"),
    "one key twice": (changed(signatures=json.loads(MADE.to_bytes())["signatures"][:1] * 2), "one for each"),
    "another order": (changed(signatures=json.loads(MADE.to_bytes())["signatures"][::-1]), "by key"),
    "too many": (changed(signatures=[{}] * (MAX_SIGNATURES + 1)), r"signatures\[0\].algorithm: missing"),
    "another algorithm": (first(algorithm="none"), r"signatures\[0\].algorithm: expected one of ed25519"),
    "a short signature": (first(signature="AAAA"), r"signatures\[0\].signature: expected 64 bytes"),
    "base64 with more bits": (
        first(signature=base64.b64encode(bytes(64)).decode().replace("A==", "B==")),
        "canonical spelling",
    ),
    "no digest": (changed(bundle="sha256:0"), "bundle: expected"),
    "no moment": (first(expires="2027-13-01T00:00:00Z"), "expires: expected a moment"),
    "a moment in other words": (first(expires="2027-1-1T00:00:00Z"), "canonical spelling"),
    "a long comment": (first(comment="x" * (MAX_COMMENT + 1)), "at most 200 printable characters"),
    "a comment for a terminal": (first(comment="\x1b[2J"), "printable"),
    "too large": (b" " * (MAX_SIZE + 1), f"more than {MAX_SIZE}"),
    "no JSON": (b"\xff", "expected JSON"),
    "an array": (b"[]\n", "format: |an object"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_aotpack_would_not_write_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    data, message = REFUSED[name]
    with pytest.raises(DocumentError, match=message):
        parse_signatures(data)
    (tmp_path / "b.sig").write_bytes(data)
    with pytest.raises(AlteredError, match=r"b\.sig: is damaged: .*; fetch it again"):
        read_signatures(tmp_path / "b.sig")


def test_another_format_is_refused_by_number(tmp_path: Path) -> None:
    (tmp_path / "b.sig").write_bytes(changed(format=2, new="field"))
    with pytest.raises(UnsupportedFormatError, match=r"b\.sig: format 2 of signatures is not one .* \(1\); upgrade"):
        read_signatures(tmp_path / "b.sig")


def test_signatures_are_found_beside_a_bundle_or_where_it_is_said(tmp_path: Path) -> None:
    bundle = tmp_path / "b.tar.zst"
    assert find_signatures(bundle, BUNDLE) is None
    (tmp_path / "b.tar.zst.sig").write_bytes(MADE.to_bytes())
    assert find_signatures(bundle, BUNDLE) == MADE == find_signatures(bundle, BUNDLE, tmp_path / "b.tar.zst.sig")
    with pytest.raises(AlteredError, match=f"zst.sig: is the signature of another bundle: expected {ANOTHER}"):
        find_signatures(bundle, ANOTHER)
    with pytest.raises(UsageError, match="none: there is no such file"):
        find_signatures(bundle, BUNDLE, tmp_path / "none")


@pytest.mark.parametrize("comment", ["a\nb", "x" * (MAX_COMMENT + 1)])
def test_a_comment_that_would_not_be_read_is_not_signed(comment: str) -> None:
    with pytest.raises(UsageError, match="printable"):
        sign(BUNDLE, ONE, comment=comment)


DIGESTS = st.binary(max_size=8).map(digest_bytes)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(timezone.utc))  # noqa: DTZ001
SIGNATURES = st.builds(
    Signature,
    key=DIGESTS,
    value=st.binary(min_size=64, max_size=64),
    comment=st.text(string.printable[:95] + "äλ", max_size=MAX_COMMENT),
    expires=st.none() | MOMENTS.map(lambda moment: moment.replace(microsecond=0)),
)
FILES = st.builds(
    lambda bundle, signatures: Signatures(bundle=bundle, signatures=tuple(sorted(signatures, key=lambda one: one.key))),
    DIGESTS,
    st.lists(SIGNATURES, min_size=1, max_size=4, unique_by=lambda one: one.key),
)


@given(FILES)
def test_what_is_written_is_read_back(signatures: Signatures) -> None:
    assert parse_signatures(signatures.to_bytes()) == signatures


@given(FILES, FILES)
def test_statements_are_alike_only_where_all_is(one: Signatures, other: Signatures) -> None:
    left, right = one.signatures[0], other.signatures[0]
    same = one.bundle == other.bundle and replace(left, value=b"") == replace(right, value=b"")
    assert (left.statement(one.bundle) == right.statement(other.bundle)) == same


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(DocumentError, UnsupportedFormatError):
        assert parse_signatures(data).to_bytes() == data
