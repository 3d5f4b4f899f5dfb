"""Verifying and healing on the real thing: a real bundle, real damage, Triton's own lookup as the judge."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.digests import digest_bytes
from aotpack.elf import cuda_architecture
from aotpack.errors import BundleError, UnsupportedFormatError, UsageError
from aotpack.heal import heal
from aotpack.install import install_bundle, uninstall
from aotpack.landing import Landing, at_work, lay, staging
from aotpack.manifest import Artifact, Entry
from aotpack.receipts import OURS, read_receipts
from aotpack.tritoncache import GROUP_PREFIX
from aotpack.verify import Checked, verify_bundle, verify_cache
from tests.archives import tree


@pytest.fixture
def bundle(built: Built, tmp_path: Path) -> Bundle:
    """Four entries of the real bundle, at a path of its own."""
    whole = open_bundle(built.bundle.path)
    manifest = replace(whole.manifest, entries=whole.manifest.entries[:4])
    return write_bundle(tmp_path / "small.tar.zst", manifest, dict(whole.blobs()))


def codes(checked: Checked) -> list[str]:
    return [finding.code for finding in checked.findings]


def hits(cache: Path, clean: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many entries Triton itself finds; it raises where Triton would. ``clean`` tells which there should be."""
    from tests.faults import expected, lookup

    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    return sum(lookup(entry) for entry in expected(clean))


# A bundle file.


def test_a_whole_bundle_has_no_findings(built: Built) -> None:
    checked = verify_bundle(built.bundle.path)
    assert (checked.findings, checked.entries) == ((), len(built.bundle.manifest.entries))


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_bundle_is_found(bundle: Bundle, tmp_path: Path, cut: float) -> None:
    data = bundle.path.read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(len(data) * cut)])
    assert codes(verify_bundle(tmp_path / "cut")) == ["V101"]


def test_each_byte_that_is_altered_is_found(bundle: Bundle, tmp_path: Path) -> None:
    data = bytearray(bundle.path.read_bytes())
    for place in range(len(data) // 7, len(data), len(data) // 7):
        altered = bytearray(data)
        altered[place] ^= 0xFF
        (tmp_path / "altered").write_bytes(altered)
        assert codes(verify_bundle(tmp_path / "altered")) == ["V101"]


def test_a_bundle_that_cannot_be_opened_is_found_and_one_of_a_newer_format_is_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes(verify_bundle(tmp_path / "none")) == ["V101"]
    monkeypatch.setattr("aotpack.manifest.FORMAT", 0)
    with pytest.raises(UnsupportedFormatError, match="newer"):
        verify_bundle(bundle.path)


def with_artifact(bundle: Bundle, path: Path, kind: str, change: Callable[[bytes], bytes]) -> Bundle:
    """A bundle whose digests are all right, and whose first entry is not."""
    blobs = dict(bundle.blobs())
    first = bundle.manifest.entries[0]
    changed = change(blobs[dict(first.artifacts)[kind].digest])
    artifact = Artifact(digest=digest_bytes(changed), size=len(changed))
    entry: Entry = replace(first, artifacts=tuple({**dict(first.artifacts), kind: artifact}.items()))
    manifest = replace(bundle.manifest, entries=(entry, *bundle.manifest.entries[1:]))
    return write_bundle(path, manifest, {**blobs, artifact.digest: changed})


def for_sm80(cubin: bytes) -> bytes:
    flags = bytearray(cubin)
    flags[48 if cubin[7] == 51 else 49] = 80
    assert cuda_architecture(bytes(flags)) == 80
    return bytes(flags)


def edited(changes: Mapping[str, object]) -> Callable[[bytes], bytes]:
    def edit(metadata: bytes) -> bytes:
        fields = {**json.loads(metadata), **changes}
        return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()

    return edit


@pytest.mark.parametrize(
    ("kind", "change", "code", "words"),
    [
        ("cubin", for_sm80, "V102", "its cubin is for sm_80, its metadata for sm_90"),
        ("cubin", lambda cubin: cubin[:100], "V102", "no whole ELF file"),
        ("json", edited({"target": {"backend": "cuda", "arch": 80, "warp_size": 32}}), "V102", "says cuda:80"),
        ("json", edited({"shared": None}), "V103", "shared: missing"),
        ("json", lambda _: b"{", "V103", "expected JSON"),
    ],
    ids=["another architecture", "truncated", "metadata for another", "metadata lacks a field", "no metadata"],
)
def test_a_bundle_whose_digests_are_right_may_still_be_wrong(
    bundle: Bundle, tmp_path: Path, kind: str, change: Callable[[bytes], bytes], code: str, words: str
) -> None:
    wrong = with_artifact(bundle, tmp_path / "wrong", kind, change)
    findings = verify_bundle(wrong.path).findings
    assert [finding.code for finding in findings] == [code]
    assert words in findings[0].detail


# What was installed: the damage table of the field reports, row by row.


def group_of(entry: Path) -> Path:
    return next(entry.glob(f"{GROUP_PREFIX}*"))


def file_of(entry: Path, kind: str) -> Path:
    return next(path for path in entry.glob(f"*.{kind}") if not path.name.startswith(GROUP_PREFIX))


def lists_what_is_gone(entry: Path) -> None:
    group = json.loads(group_of(entry).read_text())
    group["child_paths"]["kernel.ttir"] = str(entry / "kernel.ttir")
    group_of(entry).write_text(json.dumps(group))


def becomes_a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("")


DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "the group lists a file that is gone": (lists_what_is_gone, "V112", "group file written"),
    "the group names another directory": (
        lambda entry: group_of(entry).write_text(group_of(entry).read_text().replace(str(entry.parent), "/gone")),
        "V113",
        "group file written",
    ),
    "the group is missing": (lambda entry: group_of(entry).unlink(), "V111", "group file written"),
    "the group is truncated": (lambda entry: group_of(entry).write_text('{"child_'), "V112", "group file written"),
    "the group is no UTF-8": (lambda entry: group_of(entry).write_bytes(b"\xff\xfe\x00"), "V112", "group file written"),
    "the metadata is missing": (lambda entry: file_of(entry, "json").unlink(), "V111", "taken out"),
    "the metadata is truncated": (lambda entry: file_of(entry, "json").write_text('{"arch"'), "V112", "taken out"),
    "the metadata is zeros": (lambda entry: file_of(entry, "json").write_bytes(bytes(99)), "V112", "taken out"),
    "the cubin is missing": (lambda entry: file_of(entry, "cubin").unlink(), "V111", "taken out"),
    "the cubin is truncated": (
        lambda entry: file_of(entry, "cubin").write_bytes(file_of(entry, "cubin").read_bytes()[:100]),
        "V112",
        "taken out",
    ),
    "the cubin is empty": (lambda entry: file_of(entry, "cubin").write_bytes(b""), "V112", "taken out"),
    "the cubin is for another architecture": (
        lambda entry: file_of(entry, "cubin").write_bytes(for_sm80(file_of(entry, "cubin").read_bytes())),
        "V112",
        "taken out",
    ),
    "the entry is gone": (shutil.rmtree, "V111", "taken out"),
    "the entry is a file": (becomes_a_file, "V111", ""),
}


def damaged(bundle: Bundle, cache: Path, damage: str) -> Path:
    """An installed cache with one damaged entry, and a clean copy of it."""
    receipt = install_bundle(bundle, cache).receipt
    clean = shutil.copytree(cache, cache.with_name("clean"))
    DAMAGE[damage][0](cache / receipt.files[0].directory)
    return clean


@pytest.mark.parametrize("damage", [name for name, (_, _, action) in DAMAGE.items() if action])
def test_damage_is_found_and_healed_from_the_bundle_that_the_receipt_remembers(
    bundle: Bundle, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    clean = damaged(bundle, cache, damage)
    assert codes(verify_cache(cache)) == [DAMAGE[damage][1]]
    healed = heal(cache)
    assert (codes(healed.before), codes(healed.after)) == ([DAMAGE[damage][1]], [])
    assert [remedy.action for remedy in healed.remedies] == [
        "laid anew" if DAMAGE[damage][2] == "taken out" else "group file written"
    ]
    assert hits(cache, clean, monkeypatch) == 4
    assert tree(cache) == tree(clean)


@pytest.mark.parametrize("damage", [name for name, (_, _, action) in DAMAGE.items() if action])
def test_without_the_bundle_damage_is_healed_or_taken_out_so_that_triton_compiles(
    bundle: Bundle, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    clean = damaged(bundle, cache, damage)
    bundle.path.unlink()
    healed = heal(cache)
    assert [remedy.action for remedy in healed.remedies] == [DAMAGE[damage][2]]
    restored = DAMAGE[damage][2] == "group file written"
    assert hits(cache, clean, monkeypatch) == (4 if restored else 3)
    assert codes(healed.after) == ([] if restored else ["V111"])


@pytest.mark.parametrize("damage", [name for name, (_, _, action) in DAMAGE.items() if action])
def test_an_install_heals_damage_too(
    bundle: Bundle, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    clean = damaged(bundle, cache, damage)
    assert install_bundle(bundle, cache).written == 1
    assert hits(cache, clean, monkeypatch) == 4
    assert tree(cache) == tree(clean)


def test_what_stands_in_an_entrys_place_is_named_and_not_removed(bundle: Bundle, tmp_path: Path) -> None:
    damaged(bundle, tmp_path / "cache", "the entry is a file")
    bundle.path.unlink()
    healed = heal(tmp_path / "cache")
    assert (codes(healed.before), codes(healed.after)) == (["V111"], ["V111"])


def test_a_whole_install_has_no_findings_and_nothing_is_done(bundle: Bundle, tmp_path: Path) -> None:
    install_bundle(bundle, tmp_path / "cache")
    before = tree(tmp_path / "cache")
    healed = heal(tmp_path / "cache")
    assert (healed.before.findings, healed.remedies, healed.after.findings) == ((), (), ())
    assert healed.before.entries == 4
    assert tree(tmp_path / "cache") == before


# A directory that was moved, copied, or reached by another way.


def test_a_cache_that_was_moved_is_one_finding_and_is_healed_without_the_bundle(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_bundle(bundle, tmp_path / "old")
    moved = (tmp_path / "old").rename(tmp_path / "a new place")
    bundle.path.unlink()
    checked = verify_cache(moved)
    assert codes(checked) == ["V113"]
    assert f"names {tmp_path / 'old'}" in checked.findings[0].detail
    assert hits(moved, moved, monkeypatch) == 0
    healed = heal(moved)
    assert {remedy.action for remedy in healed.remedies} == {"group file written"}
    assert healed.after.findings == ()
    assert hits(moved, moved, monkeypatch) == 4
    uninstall(read_receipts(moved)[0])
    assert tree(moved) == {path: state for path, state in tree(moved).items() if not path.endswith((".cubin", ".json"))}


def test_a_copy_whose_original_is_still_there_is_found_too(bundle: Bundle, tmp_path: Path) -> None:
    install_bundle(bundle, tmp_path / "old")
    copy = shutil.copytree(tmp_path / "old", tmp_path / "copy")
    assert codes(verify_cache(copy)) == ["V113"]
    assert heal(copy).after.findings == ()
    assert verify_cache(tmp_path / "old").findings == ()


def test_a_moved_cache_can_be_uninstalled_as_it_is(bundle: Bundle, tmp_path: Path) -> None:
    install_bundle(bundle, tmp_path / "old")
    moved = (tmp_path / "old").rename(tmp_path / "new")
    assert uninstall(read_receipts(moved)[0]).findings == ()
    assert tree(moved) == {}


def test_a_link_to_the_cache_is_the_cache(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a real place").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a real place")
    cache = tmp_path / "link" / "cache"
    install_bundle(bundle, cache)
    assert verify_cache(cache).findings == ()
    assert verify_cache(tmp_path / "a real place" / "cache").findings == ()
    assert hits(cache, cache, monkeypatch) == 4


# Receipts, bundles, and what Triton compiled meanwhile.


def test_a_damaged_receipt_is_found_and_the_bundle_installed_again(bundle: Bundle, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    receipt = install_bundle(bundle, cache).receipt
    receipt.path.write_text("{")
    checked = verify_cache(cache)
    assert codes(checked) == ["V115"]
    assert "verify --fix --bundle FILE" in checked.findings[0].hint
    assert codes(heal(cache).after) == ["V115"]
    assert heal(cache, bundle=bundle).after.findings == ()
    assert read_receipts(cache) == [receipt]


def test_a_cache_without_a_receipt_is_found_and_the_bundle_installed(bundle: Bundle, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert codes(verify_cache(cache)) == codes(heal(cache).after) == ["V116"]
    assert not cache.exists()
    install_bundle(bundle, cache)
    shutil.rmtree(cache / OURS)
    assert codes(verify_cache(cache)) == ["V116"]
    assert heal(cache, bundle=bundle).after.findings == ()
    assert len(read_receipts(cache)) == 1


def test_a_bundle_that_is_not_installed_heals_nothing(bundle: Bundle, built: Built, tmp_path: Path) -> None:
    install_bundle(bundle, tmp_path / "cache")
    with pytest.raises(
        UsageError, match=r"is sha256:\w+, which is not installed in .*; to install it: aotpack install"
    ):
        heal(tmp_path / "cache", bundle=open_bundle(built.bundle.path))


def test_another_bundle_where_the_installed_one_was_is_not_used(bundle: Bundle, built: Built, tmp_path: Path) -> None:
    damaged(bundle, tmp_path / "cache", "the cubin is missing")
    shutil.copy(built.bundle.path, bundle.path)
    assert [remedy.action for remedy in heal(tmp_path / "cache").remedies] == ["taken out"]


def test_a_damaged_bundle_is_refused_where_it_was_given_and_passed_over_where_it_was_remembered(
    bundle: Bundle, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    damaged(bundle, cache, "the cubin is missing")
    bundle.path.write_bytes(bundle.path.read_bytes()[:-100])
    before = tree(cache)
    with pytest.raises(BundleError):
        heal(cache, bundle=open_bundle(bundle.path))
    assert tree(cache) == before
    assert [remedy.action for remedy in heal(cache).remedies] == ["taken out"]


def test_an_entry_that_triton_compiled_anew_is_named_and_stays_unless_the_bundle_is_there(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.faults import compile_it, expected

    cache = tmp_path / "cache"
    install_bundle(bundle, cache)
    hidden = bundle.path.rename(tmp_path / "hidden")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    compile_it(expected(cache)[0])
    before = tree(cache)
    healed = heal(cache)
    assert (codes(healed.before), healed.remedies, codes(healed.after)) == (["V114"], (), ["V114"])
    assert tree(cache) == before
    assert heal(cache, bundle=open_bundle(hidden)).after.findings == ()
    assert hits(cache, cache, monkeypatch) == 4


def test_an_installed_cubin_for_another_architecture_is_taken_out_even_if_it_is_what_was_installed(
    bundle: Bundle, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    receipt = install_bundle(bundle, cache).receipt
    cubin = next(file for file in receipt.files if file.name.endswith(".cubin"))
    changed = for_sm80((cache / cubin.path).read_bytes())
    (cache / cubin.path).write_bytes(changed)
    wrong = replace(cubin, digest=digest_bytes(changed))
    files = tuple(wrong if file == cubin else file for file in receipt.files)
    receipt.path.write_bytes(replace(receipt, files=files).to_bytes())
    healed = heal(cache)
    assert codes(healed.before) == ["V102"]
    assert [remedy.action for remedy in healed.remedies] == ["taken out"]
    assert codes(healed.after) == ["V111"]


def test_an_installed_file_without_a_group_is_held_against_its_digest_and_restored(
    bundle: Bundle, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    receipt = install_bundle(bundle, cache).receipt
    blob = next(iter(dict(bundle.blobs()).values()))
    helper = Landing(directory="HELPER", files=(("other.so", blob), ("utils.so", blob)))
    with at_work(cache), staging(cache) as place:
        lay(place, cache, [helper], replace(receipt, files=(*receipt.files, *helper.installed())))
    assert verify_cache(cache).findings == ()
    (cache / "HELPER" / "utils.so").write_bytes(b"")
    assert codes(verify_cache(cache)) == ["V112"]
    assert [remedy.action for remedy in heal(cache).remedies] == ["laid anew"]
    assert verify_cache(cache).findings == ()
    uninstall(install_bundle(bundle, cache).receipt)  # an install forgets nothing that an earlier one wrote
    assert tree(cache) == {}


def test_one_bundle_of_several_can_be_asked_for(bundle: Bundle, built: Built, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    install_bundle(bundle, cache)
    install_bundle(open_bundle(built.bundle.path), cache)
    assert verify_cache(cache, bundle.digest).entries == 4
    assert verify_cache(cache).entries == 4 + len(built.bundle.manifest.entries)
    with pytest.raises(UsageError, match="means 0 of the bundles"):
        verify_cache(cache, "0000")
