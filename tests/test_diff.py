"""Diffs: whatever two bundles differ in is said, and nothing else. On a real bundle, changed in one place a time."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from aotpack.bundle import Bundle, write_bundle
from aotpack.diff import Change, Diff, Side, compare, open_side
from aotpack.digests import canonical_json, digest_bytes
from aotpack.errors import BundleError
from aotpack.manifest import Artifact, Entry, KeptResult, Manifest
from aotpack.results import read_results
from aotpack.store import open_store, unpack_store
from aotpack.targets import Target
from aotpack.wheel import write_wheels
from tests.conftest import ROOT
from tests.test_cli import one_error, run


@pytest.fixture(scope="module")
def few(helped: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A real bundle of few keys, some of them of one kernel, with native helpers."""
    manifest = replace(helped.manifest, entries=helped.manifest.entries[:4])
    return write_bundle(tmp_path_factory.mktemp("few") / "few.tar.zst", manifest, dict(helped.blobs()))


def side(manifest: Manifest) -> Side:
    return Side(path=Path("b"), digest=manifest.digest, manifest=manifest)


def subjects(diff: Diff) -> list[str]:
    return [change.subject for change in diff.changes]


def with_entry(manifest: Manifest, entry: Entry) -> Manifest:
    return replace(manifest, entries=(entry, *manifest.entries[1:]))


def artifact(content: bytes) -> Artifact:
    return Artifact(digest=digest_bytes(content), size=len(content))


def measured() -> KeptResult:
    """The first of the results that were measured on a GPU."""
    result = min(read_results(ROOT / "artifacts" / "tuning", "vllm", "0.33.0"), key=lambda result: result.order)
    return KeptResult(result=result, name="kernel.autotune.json", artifact=artifact(b"{}"))


def test_a_bundle_does_not_differ_from_itself_nor_from_its_store(few: Bundle, tmp_path: Path) -> None:
    unpack_store(few, tmp_path / "store")
    for path in (few.path, tmp_path / "store"):
        diff = compare(open_side(few.path), open_side(path))
        assert diff.same
        assert (diff.changes, diff.only_a, diff.only_b, diff.entries) == ((), (), (), ())
        assert sum(row.keys[0] for row in diff.families) == len(few.manifest.entries)


def test_results_and_the_devices_that_a_bundle_is_for_are_told(few: Bundle) -> None:
    kept = measured()
    more = replace(few.manifest, results=(kept,), devices=(kept.result.device,))
    tuning = kept.result.tuning
    devices, result = compare(side(few.manifest), side(more)).changes
    assert devices == Change(subject="devices", a="none", b="NVIDIA H200")
    assert result.subject == f"result {tuning.kernel} {canonical_json(list(tuning.key))} sm90 on NVIDIA H200"
    assert (result.a, result.b.startswith(f"{kept.result.fastest}, sha256:")) == ("none", True)


CHANGES: dict[str, tuple[Callable[[Manifest], Manifest], list[str]]] = {
    "engine": (lambda manifest: replace(manifest, engine_version="0.33.1"), ["engine"]),
    "triton": (
        lambda manifest: replace(manifest, toolchain=replace(manifest.toolchain, triton="3.9.9", environment=())),
        ["triton"],
    ),
    "environment": (
        lambda manifest: replace(manifest, toolchain=replace(manifest.toolchain, environment=(("A", "1"),))),
        ["environment A"],
    ),
    "targets": (lambda manifest: replace(manifest, targets=(*manifest.targets, Target("cuda", 100))), ["targets"]),
    "deployments": (
        lambda manifest: replace(manifest, deployments=(*manifest.deployments, {"model": "new"})),
        ['deployment {"model":"new"}'],
    ),
    "families": (lambda manifest: replace(manifest, families=(*manifest.families, "new")), ["families"]),
    "aotpack": (lambda manifest: replace(manifest, built_by="9.9"), ["built by"]),
    "order": (
        lambda manifest: replace(manifest, entries=tuple(reversed(manifest.entries))),
        ["order of what they hold"],
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_of_the_whole_is_named(few: Bundle, name: str) -> None:
    change, expected = CHANGES[name]
    diff = compare(open_side(few.path), side(change(few.manifest)))
    assert not diff.same
    assert subjects(diff) == expected
    assert (diff.only_a, diff.only_b, diff.entries) == ((), (), ())


def test_a_helper_that_one_side_lacks_is_named_with_its_file(few: Bundle) -> None:
    gone, *kept = few.manifest.helpers
    diff = compare(open_side(few.path), side(replace(few.manifest, helpers=tuple(kept))))
    assert subjects(diff) == [f"helper {gone.file} of {gone.source}"]
    assert diff.changes[0].b == "none"
    assert gone.artifact.digest in diff.changes[0].a


def test_a_source_that_differs_names_the_function(few: Bundle) -> None:
    sources = few.manifest.sources
    moved = replace(sources, functions=(sources.functions[0].at(10_000), *sources.functions[1:]))
    diff = compare(open_side(few.path), side(replace(few.manifest, sources=moved)))
    assert subjects(diff) == [f"source of functions {sources.functions[0].name}"]


def test_keys_of_one_side_alone_are_told_apart(few: Bundle) -> None:
    first, second, *_ = few.manifest.entries
    less = replace(few.manifest, entries=few.manifest.entries[1:])
    diff = compare(side(less), open_side(few.path))
    assert (diff.only_a, diff.only_b) == ((), (first.key,))
    other = replace(few.manifest, entries=(first, *few.manifest.entries[2:]))
    diff = compare(side(less), side(other))
    assert (diff.only_a, diff.only_b) == ((second.key,), (first.key,))


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        (lambda entry: replace(entry, artifacts=(("cubin", artifact(b"x")), ("json", entry.metadata))), "cubin"),
        (lambda entry: replace(entry, artifacts=(("cubin", entry.cubin), ("json", artifact(b"x")))), "metadata"),
        (lambda entry: replace(entry, launches=()), "launches"),
        (lambda entry: replace(entry, name="other"), "name"),
        (lambda entry: replace(entry, reached=replace(entry.reached, input=(("tokens", 77),))), "reached by"),
    ],
)
def test_a_key_that_both_have_says_in_what_it_differs(
    few: Bundle, change: Callable[[Entry], Entry], subject: str
) -> None:
    entry = few.manifest.entries[0]
    diff = compare(open_side(few.path), side(with_entry(few.manifest, change(entry))))
    (changed,) = diff.entries
    assert changed.key == entry.key
    assert [item.subject for item in changed.changes] == [subject]
    assert (diff.changes, diff.only_a, diff.only_b) == ((), (), ())


def test_a_cubin_that_differs_shows_both_digests_and_sizes(few: Bundle) -> None:
    entry = few.manifest.entries[0]
    other = replace(entry, artifacts=(("cubin", artifact(b"abc")), ("json", entry.metadata)))
    (changed,) = compare(open_side(few.path), side(with_entry(few.manifest, other))).entries
    assert changed.changes == (
        Change(
            subject="cubin",
            a=f"{entry.cubin.digest} of {entry.cubin.size:,} bytes",
            b=f"{digest_bytes(b'abc')} of 3 bytes",
        ),
    )


def test_keys_that_differ_in_options_alone_are_one_entry_with_other_options(few: Bundle) -> None:
    entry = few.manifest.entries[0]
    options = tuple((name, 16 if name == "num_warps" else value) for name, value in entry.key.options)
    other = with_entry(few.manifest, replace(entry, key=replace(entry.key, options=options)))
    diff = compare(open_side(few.path), side(other))
    assert (diff.only_a, diff.only_b) == ((), ())
    (changed,) = diff.entries
    assert [(item.subject, item.b) for item in changed.changes] == [("option num_warps", "16")]


def test_keys_that_differ_in_options_alone_stay_apart_where_there_are_several(few: Bundle) -> None:
    entry, *rest = few.manifest.entries

    def warps(number: int) -> Entry:
        options = tuple((name, number if name == "num_warps" else value) for name, value in entry.key.options)
        return replace(entry, key=replace(entry.key, options=options))

    diff = compare(
        side(replace(few.manifest, entries=(warps(16), *rest))),
        side(replace(few.manifest, entries=(warps(32), warps(64), *rest))),
    )
    assert diff.entries == ()
    assert (len(diff.only_a), len(diff.only_b)) == (1, 2)


def test_a_store_of_a_part_is_compared_by_what_it_carries(few: Bundle, tmp_path: Path) -> None:
    import zipfile

    (wheel,) = write_wheels(few, tmp_path, minors=())
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(tmp_path)
    store = open_store(next(tmp_path.glob("*/store")))
    diff = compare(open_side(few.path), open_side(store.directory))
    assert diff.a.digest == diff.b.digest
    assert not diff.same
    assert all(subject.startswith("helper ") for subject in subjects(diff))
    assert len(diff.changes) == len(few.manifest.helpers)


def test_the_same_packed_otherwise_is_said_to_be_that(few: Bundle, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "b", few.manifest, dict(few.blobs()), zstandard.ZstdCompressor(level=1).compress)
    diff = compare(open_side(few.path), open_side(other.path))
    assert not diff.same
    assert subjects(diff) == ["how they are packed: by another libzstd, perhaps"]


def test_the_command_exits_with_0_1_or_3(few: Bundle, tmp_path: Path) -> None:
    other = write_bundle(tmp_path / "b.tar.zst", replace(few.manifest, built_by="9.9"), dict(few.blobs()))
    same = run("diff", few.path, few.path)
    assert (same.exit_code, same.stderr) == (0, "they hold the same\n")
    differing = run("diff", few.path, other.path)
    assert differing.exit_code == 1
    assert "~ built by\n    a  aotpack 0.1.0\n    b  aotpack 9.9\n" in differing.stdout
    assert differing.stderr == "0 keys in a alone, 0 in b alone, 0 changed; 1 change of the whole\n"
    (tmp_path / "cut").write_bytes(few.path.read_bytes()[:100])
    cut = run("diff", few.path, tmp_path / "cut")
    assert cut.exit_code == 3
    assert "cut: " in one_error(cut)
    with pytest.raises(BundleError):
        open_side(tmp_path)


def test_the_json_says_all_that_the_text_says(few: Bundle, tmp_path: Path) -> None:
    entry = few.manifest.entries[0]
    less = replace(few.manifest, entries=(replace(entry, launches=()), *few.manifest.entries[2:]))
    other = write_bundle(tmp_path / "b.tar.zst", less, dict(few.blobs()))
    result = run("diff", "--json", few.path, other.path)
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["version"] == 1
    assert document["same"] is False
    assert document["a"] == {"path": str(few.path), "digest": few.digest, "keys": 4}
    assert [item["digest"] for item in document["only_a"]] == [few.manifest.entries[1].key.digest]
    assert document["only_b"] == document["changes"] == []
    assert [(item["digest"], item["changes"][0]["subject"]) for item in document["entries"]] == [
        (entry.key.digest, "launches")
    ]
    assert sum(row["keys"][0] for row in document["families"]) == 4
