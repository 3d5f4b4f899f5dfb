"""Installing on the real thing: a real bundle, a real cache directory, Triton itself as the judge."""

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.digests import canonical_json, digest_bytes
from aotpack.errors import BundleError, CacheError, IncompatibleError, UsageError
from aotpack.install import install_bundle, uninstall
from aotpack.manifest import Artifact, Entry, Manifest
from aotpack.receipts import OURS, find_receipt, read_receipts
from aotpack.targets import Target
from aotpack.toolchain import Toolchain
from tests.archives import tree
from tests.conftest import ROOT


@pytest.fixture
def bundle(built: Built) -> Bundle:
    return open_bundle(built.bundle.path)


def entries_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.name != OURS}


def test_triton_itself_finds_every_kernel_without_compiling(built: Built) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "check_hits.py"), str(built.bundle.path)]
    if engine := os.environ.get("AOTPACK_TEST_ENGINE"):
        command += ["--engine", engine]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["misses"] == []
    assert report["hits"] == report["keys"] == len(built.bundle.manifest.entries)
    assert done.returncode == 0


def test_each_entry_has_three_files_and_the_group_names_the_landing_directory(bundle: Bundle, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    installed = install_bundle(bundle, cache)
    assert installed.written == len(entries_in(cache)) == len(bundle.manifest.entries)
    for name in entries_in(cache):
        files = sorted(path.name for path in (cache / name).iterdir())
        assert [Path(file).suffix for file in files] == [".json", ".cubin", ".json"]
        children = json.loads((cache / name / files[0]).read_text())["child_paths"]
        assert all(Path(path).parent == cache / name and Path(path).is_file() for path in children.values())


def test_installing_twice_changes_nothing(bundle: Bundle, tmp_path: Path) -> None:
    install_bundle(bundle, tmp_path)
    before = tree(tmp_path)
    again = install_bundle(bundle, tmp_path)
    assert (again.written, again.present) == (0, len(bundle.manifest.entries))
    assert tree(tmp_path) == before


def test_files_can_be_read_by_everyone_whatever_the_umask(bundle: Bundle, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install_bundle(bundle, tmp_path)
    finally:
        os.umask(before)
    for name in entries_in(tmp_path):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o755
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {0o644}


def test_an_uninstall_leaves_what_was_there_before(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "kernel.cubin").write_bytes(b"theirs")
    before = tree(tmp_path)
    removed = uninstall(install_bundle(bundle, tmp_path).receipt)
    assert removed.removed == 3 * len(bundle.manifest.entries) + 1  # the manifest
    assert tree(tmp_path) == before


def test_a_file_that_changed_since_is_named_and_stays(bundle: Bundle, tmp_path: Path) -> None:
    receipt = install_bundle(bundle, tmp_path).receipt
    changed = tmp_path / next(file.path for file in receipt.files if file.path.endswith(".cubin"))
    changed.write_bytes(b"changed")
    removed = uninstall(receipt)
    assert [finding.subject for finding in removed.findings] == [str(changed)]
    assert changed.read_bytes() == b"changed"


def test_what_two_bundles_share_stays_until_both_are_out(bundle: Bundle, tmp_path: Path) -> None:
    half = manifest_with(bundle, entries=bundle.manifest.entries[::2])
    cache = tmp_path / "cache"
    other = write_bundle(tmp_path / "half", half, dict(bundle.blobs()))
    first, second = install_bundle(bundle, cache), install_bundle(other, cache)
    assert second.written == 0
    assert uninstall(first.receipt).shared == 3 * len(half.entries)
    assert len(entries_in(cache)) == len(half.entries)
    uninstall(second.receipt)
    assert tree(cache) == {}


def test_a_receipt_is_found_by_digest_and_by_name(bundle: Bundle, tmp_path: Path) -> None:
    receipt = install_bundle(bundle, tmp_path).receipt
    hexes = bundle.digest.removeprefix("sha256:")
    for means in (hexes[:8], bundle.digest, bundle.path.name, str(bundle.path)):
        assert find_receipt(tmp_path, means) == receipt
    with pytest.raises(UsageError, match=rf"means 0 of the bundles.*{hexes[:12]}"):
        find_receipt(tmp_path, "0000")


def test_an_entry_that_triton_compiled_itself_is_left_alone(bundle: Bundle, tmp_path: Path) -> None:
    receipt = install_bundle(bundle, tmp_path).receipt
    directory, name = receipt.files[0].path.split("/")
    stem = name.removesuffix(".cubin")
    folder = tmp_path / directory
    metadata = (folder / f"{stem}.json").read_bytes()
    with_line_info = (folder / name).read_bytes() + b"line info"
    uninstall(receipt)
    folder.mkdir()
    files = {f"{stem}.cubin": with_line_info, f"{stem}.json": metadata, f"{stem}.ptx": b"text"}
    for file, content in files.items():
        (folder / file).write_bytes(content)
    children = {file: str(folder / file) for file in files}
    (folder / f"__grp__{stem}.json").write_text(json.dumps({"child_paths": children}))
    before = tree(folder)
    installed = install_bundle(bundle, tmp_path)
    assert installed.present == 1
    assert tree(folder) == before
    uninstall(installed.receipt)
    assert tree(folder) == before


@pytest.mark.parametrize("damage", ["truncate the group", "remove the cubin", "move the cache", "empty the metadata"])
def test_a_broken_entry_in_the_way_is_replaced(bundle: Bundle, tmp_path: Path, damage: str) -> None:
    cache = tmp_path / "cache"
    receipt = install_bundle(bundle, cache).receipt
    whole = tree(cache)
    directory = cache / receipt.files[0].path.split("/")[0]
    group = next(directory.glob("__grp__*"))
    if damage == "truncate the group":
        group.write_text(group.read_text()[:20])
    elif damage == "remove the cubin":
        next(directory.glob("*.cubin")).unlink()
    elif damage == "move the cache":
        group.write_text(group.read_text().replace(str(cache), "/elsewhere"))
    else:
        next(path for path in directory.glob("*.json") if path != group).write_text("")
    assert install_bundle(bundle, cache).written == 1
    assert tree(cache) == whole


def altered(toolchain: Toolchain, part: str) -> Toolchain:
    digest = "sha256:" + "0" * 64
    match part:
        case "triton":
            return replace(toolchain, triton="3.7.1")
        case "sources":
            return replace(toolchain, sources=((toolchain.sources[0][0], digest), *toolchain.sources[1:]))
        case "libdevice":
            return replace(toolchain, libdevice=digest)
        case "assembler":
            return replace(toolchain, assemblers=(("cuda:90", "ptxas: release 11.8, V11.8.89\n-90"),))
        case _:
            return replace(toolchain, environment=(("TRITON_DEFAULT_FP_FUSION", "0"),))


def manifest_with(bundle: Bundle, **changes: object) -> Manifest:
    return replace(bundle.manifest, **changes)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("triton", r"built with Triton 3\.7\.1, this environment has 3\."),
        ("sources", r"Triton .*'s own sources differ here: triton\."),
        ("libdevice", "libdevice differs: built with sha256:000"),
        ("assembler", r"the assembler for cuda:90 differs: built with 11\.8, V11\.8\.89, found 12\."),
        ("environment", "variables .* differ: built with TRITON_DEFAULT_FP_FUSION=0, found none"),
    ],
)
def test_a_bundle_of_another_toolchain_is_refused_by_the_part_that_differs(
    bundle: Bundle, tmp_path: Path, part: str, message: str
) -> None:
    manifest = manifest_with(bundle, toolchain=altered(bundle.manifest.toolchain, part))
    other = write_bundle(tmp_path / "other", manifest, dict(bundle.blobs()))
    cache = tmp_path / "cache"
    with pytest.raises(IncompatibleError, match=message):
        install_bundle(other, cache)
    assert not cache.exists()


def test_a_variable_that_changes_code_is_refused_here_too(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    with pytest.raises(IncompatibleError, match="built with none, found TRITON_DEFAULT_FP_FUSION"):
        install_bundle(bundle, tmp_path / "cache")


def test_a_target_that_the_bundle_lacks_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no kernels for sm80; it has sm90"):
        install_bundle(bundle, tmp_path / "cache", targets=[Target("cuda", 80)])


@pytest.mark.parametrize("cut", [0.3, 0.9, 0.999])
def test_a_damaged_bundle_leaves_the_cache_as_it_was(bundle: Bundle, tmp_path: Path, cut: float) -> None:
    cache = tmp_path / "cache"
    (cache / "OTHER").mkdir(parents=True)
    before = tree(cache)
    data = bundle.path.read_bytes()
    (tmp_path / "cut").write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(BundleError):
        install_bundle(open_bundle(tmp_path / "cut"), cache)
    assert {name for name in tree(cache) if not name.startswith(OURS)} == set(before)
    assert not list((cache / OURS).glob("*/*"))


def test_many_installs_at_once_end_in_one_result(bundle: Bundle, tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    install_bundle(bundle, one)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: install_bundle(bundle, many), range(16)))
    assert {result.receipt for result in results} == {results[0].receipt}
    assert [path for path in tree(many) if "staging" in path] == []
    assert set(tree(many)) == set(tree(one))
    assert install_bundle(bundle, many).written == 0


def test_what_a_killed_install_staged_is_removed_by_the_next(bundle: Bundle, tmp_path: Path) -> None:
    left = tmp_path / OURS / f"staging-{os.uname().nodename}-left"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    install_bundle(bundle, tmp_path)
    assert not left.exists()


def test_a_cache_that_cannot_be_made_is_refused_in_one_line(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"file.*(Not a directory|File exists).*choose a writable directory"):
        install_bundle(bundle, tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"format":2}', b'{"format":1,"bundle":"x","name":"n","cache":"/c","files":[]}']
)
def test_a_damaged_receipt_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / OURS / "receipts" / "x.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"x\.json: not a receipt"):
        read_receipts(tmp_path)


@pytest.mark.parametrize("hostile", ["../x", "a/../../x", "/etc/passwd", "a/b/c", "a", "a/", "./x", "a/\x00"])
def test_a_receipt_cannot_point_out_of_the_cache(bundle: Bundle, tmp_path: Path, hostile: str) -> None:
    receipt = install_bundle(bundle, tmp_path).receipt
    document = json.loads(receipt.path.read_bytes())
    document["files"][0]["path"] = hostile
    receipt.path.write_text(canonical_json(document) + "\n")
    with pytest.raises(CacheError, match=r"files\[0\]\.path: expected an entry's directory and a file in it"):
        read_receipts(tmp_path)


INSTALL_BOTH = """
import resource, sys
from pathlib import Path
from aotpack.bundle import open_bundle
from aotpack.install import install_bundle

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

for path in map(Path, sys.argv[1:]):
    before = peak()
    install_bundle(open_bundle(path), path.with_suffix(".cache"))
    print(peak() - before)
"""


def test_an_install_takes_no_memory_for_what_artifacts_have(bundle: Bundle, tmp_path: Path) -> None:
    blobs = dict(bundle.blobs())

    def larger(entry: Entry) -> Entry:
        data = blobs[entry.cubin.digest] + random.Random(entry.key.digest).randbytes(4 << 20)
        blobs[digest_bytes(data)] = data
        return replace(
            entry, artifacts=(("cubin", Artifact(digest=digest_bytes(data), size=len(data))), *entry.artifacts[1:])
        )

    entries = bundle.manifest.entries[:24]
    small, large = tmp_path / "small", tmp_path / "large"
    write_bundle(small, manifest_with(bundle, entries=entries), blobs)
    write_bundle(large, manifest_with(bundle, entries=tuple(map(larger, entries))), blobs, zstandard.compress)
    assert large.stat().st_size > 96 << 20
    command = [sys.executable, "-c", INSTALL_BOTH, str(small), str(large)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    _, taken = map(int, done.stdout.split())
    assert taken < 40 << 20
