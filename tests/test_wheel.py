"""Wheels: what pip installs is whole, is found, and leaves nothing; the same bundle gives the same bytes."""

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from aotpack.build import Built, Selection, build_bundle
from aotpack.bundle import Bundle, write_bundle
from aotpack.deployments import make_services
from aotpack.engines import Engine
from aotpack.errors import BundleError, OutputError, UsageError
from aotpack.models import load_model
from aotpack.selftest import check_store
from aotpack.store import open_store
from aotpack.targets import Target
from aotpack.wheel import Wheel, wheel_version, write_wheels
from tests.conftest import ROOT, SM90, needs_compiler
from tests.engines import change, copy_engine
from tests.test_cli import one_error, run

SM100 = Target("cuda", 100)
ACTIVATE = """
import aotpack
aotpack.activate()
aotpack.activate()
from triton.runtime.cache import get_cache_manager
for _ in range(2):
    assert get_cache_manager("0" * 64).get_group("absent.json") is None
"""


@pytest.fixture(scope="module")
def two_archs(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small real bundle for two architectures."""
    needs_compiler()
    services = make_services([load_model("qwen3.5-0.8b")], [1])
    selection = Selection(engine=engine, targets=(SM90, SM100), families=("layernorm",), services=services)
    return build_bundle(selection, output=tmp_path_factory.mktemp("two"), jobs=2).bundle


def the_wheel(bundle: Bundle, directory: Path, *targets: Target) -> Wheel:
    """The one wheel of a bundle without its helpers."""
    (wheel,) = write_wheels(bundle, directory, targets=targets, minors=())
    return wheel


def unpacked(wheel: Wheel, directory: Path) -> Path:
    """Its store, as an installer leaves it."""
    with zipfile.ZipFile(wheel.path) as archive:
        archive.extractall(directory)
    return next(directory.glob("*/store"))


class Environment:
    """A fresh virtual environment with the packages of this one in reach, and nothing else of it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.python = folder / "bin" / "python"
        self.site = next((folder / "lib").glob("python*")) / "site-packages"
        others = [path for path in sys.path if path.endswith("-packages")]
        (self.site / "others.pth").write_text("\n".join([str(ROOT), *others]) + "\n")

    def run(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), *map(str, arguments)]
        environment = {**os.environ, "TRITON_CACHE_DIR": str(self.python.parent / "cache"), **variables}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=self.site.parent, env=environment
        )

    def activate(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Activate twice in a process, and look something up as Triton does; the lines of the log are on stderr."""
        variables = {"AOTPACK_LOG_LEVEL": "INFO", **variables}
        return self.run("-c", ACTIVATE, **variables)

    def pip(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.python)]
        return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)

    def install(self, wheel: Wheel) -> None:
        done = self.pip("install", "--no-index", "--no-deps", wheel.path)
        assert done.returncode == 0, done.stderr

    def found(self) -> list[str]:
        """The packages of the entry point group."""
        script = "from importlib.metadata import entry_points\n"
        script += "print(*sorted(point.value for point in entry_points(group='aotpack.bundles')))"
        return self.run("-c", script).stdout.split()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


def test_an_installed_wheel_is_found_and_whole_and_uninstalled_it_is_gone(
    built: Built, tmp_path: Path, environment: Environment
) -> None:
    before = {path.name for path in environment.site.iterdir()}
    environment.install(the_wheel(built.bundle, tmp_path))
    assert environment.found() == ["aotpack_kernels_vllm_sm90"]
    assert "aotpack" not in environment.pip("check").stdout  # whatever it says of other packages here
    tested = environment.run("-m", "aotpack_kernels_vllm_sm90")
    assert (tested.returncode, tested.stderr) == (0, "")
    held = f"{len(built.bundle.manifest.entries)} entries for cuda:90, 0 native helpers"
    assert tested.stdout.startswith(f"aotpack_kernels_vllm_sm90: {held}, in ")
    environment.pip("uninstall", "--yes", "aotpack-kernels-vllm-sm90")
    assert environment.found() == []
    assert {path.name for path in environment.site.iterdir()} == before


def test_wheels_for_two_architectures_live_together(
    two_archs: Bundle, tmp_path: Path, environment: Environment
) -> None:
    wheels = [the_wheel(two_archs, tmp_path, target) for target in two_archs.manifest.targets]
    for wheel in wheels:
        environment.install(wheel)
    names = ["aotpack_kernels_vllm_sm100", "aotpack_kernels_vllm_sm90"]
    assert environment.found() == names
    assert [environment.run("-m", name).returncode for name in names] == [0, 0]
    environment.pip("uninstall", "--yes", "aotpack-kernels-vllm-sm100")
    assert environment.found() == names[1:]
    assert environment.run("-m", names[1]).returncode == 0


def test_wheels_of_one_bundle_for_two_architectures_are_both_served(
    two_archs: Bundle, tmp_path: Path, environment: Environment
) -> None:
    for target in two_archs.manifest.targets:
        environment.install(the_wheel(two_archs, tmp_path, target))
    done = environment.activate()
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    for target in two_archs.manifest.targets:
        keys = sum(entry.key.target == target for entry in two_archs.manifest.entries)
        store = environment.site / f"aotpack_kernels_vllm_{target.short}" / "store"
        assert f"{keys} keys of vllm 0.33.0 for {target.short} in {store}" in line
    seen = environment.run("-m", "aotpack", "doctor").stdout
    for target in two_archs.manifest.targets:
        keys = sum(entry.key.target == target for entry in two_archs.manifest.entries)
        assert f"{keys} kernels of vllm, {target.short} with Triton" in seen
    for target in two_archs.manifest.targets:
        environment.pip("uninstall", "--yes", f"aotpack-kernels-vllm-{target.short}")
    assert environment.activate(AOTPACK_LOG_LEVEL="DEBUG").stderr.endswith("there is nothing to serve\n")


def test_a_wheel_for_another_triton_warns_once_and_breaks_nothing(
    built: Built, tmp_path: Path, environment: Environment
) -> None:
    manifest = numbered(built, "0.33.0", "3.5.1").manifest
    other = write_bundle(tmp_path / "other.tar.zst", manifest, dict(built.bundle.blobs()))
    environment.install(the_wheel(other, tmp_path))
    assert environment.run("-m", "aotpack_kernels_vllm_sm90").returncode == 0
    done = environment.activate(AOTPACK_LOG_LEVEL="WARNING")
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert "is for Triton 3.5.1 and this process has 3." in line
    assert (
        "its kernels are of Triton 3.5.1, and this environment has" in environment.run("-m", "aotpack", "doctor").stdout
    )
    assert environment.activate(AOTPACK_STRICT="1").returncode == 1
    off = environment.activate(AOTPACK_STRICT="1", AOTPACK_DISABLE="1")
    assert (off.returncode, off.stderr) == (0, "")


def test_a_wheel_for_an_older_engine_warns_once_and_breaks_nothing(
    built: Built, engine: Engine, tmp_path: Path, environment: Environment
) -> None:
    environment.install(the_wheel(built.bundle, tmp_path))
    copy = copy_engine(engine, tmp_path / "engine", version="0.34.0")
    change(copy, "vllm.v1.worker.mamba_utils", "tl.load(", "tl.load((")  # no longer Python, even
    (environment.site / "vllm").symlink_to(copy / "vllm")
    done = environment.activate(AOTPACK_LOG_LEVEL="WARNING")
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert "compiled" in line


def test_a_wheel_that_is_damaged_warns_once_and_breaks_nothing(
    built: Built, tmp_path: Path, environment: Environment
) -> None:
    environment.install(the_wheel(built.bundle, tmp_path))
    store = environment.site / "aotpack_kernels_vllm_sm90" / "store"
    for name in ("carries.json", "manifest.json"):
        whole = (store / name).read_bytes()
        (store / name).write_bytes(whole[:-9])
        done = environment.activate(AOTPACK_LOG_LEVEL="WARNING")
        assert (done.returncode, done.stdout) == (0, "")
        (line,) = done.stderr.splitlines()
        assert f"the bundle of the package aotpack_kernels_vllm_sm90 is not served: {store / name}: " in line
        assert "aotpack-kernels-vllm-sm90 0.33.0.post" in (seen := environment.run("-m", "aotpack", "doctor").stdout)
        assert f"{store / name}: " in seen
        (store / name).write_bytes(whole)
    assert environment.activate(AOTPACK_LOG_LEVEL="WARNING").stderr == ""


def test_a_newer_wheel_replaces_the_older_one(built: Built, tmp_path: Path, environment: Environment) -> None:
    triton = built.bundle.manifest.toolchain.triton
    environment.install(the_wheel(numbered(built, "0.32.0", triton), tmp_path))
    environment.install(the_wheel(built.bundle, tmp_path))
    assert environment.found() == ["aotpack_kernels_vllm_sm90"]
    assert [path.name for path in environment.site.glob("aotpack_kernels*.dist-info")] == [
        f"aotpack_kernels_vllm_sm90-{wheel_version(built.bundle)}.dist-info"
    ]


def test_the_self_test_needs_the_standard_library_alone(built: Built, tmp_path: Path) -> None:
    store = unpacked(the_wheel(built.bundle, tmp_path), tmp_path / "site")
    command = [sys.executable, "-I", "-S", str(store.parent / "__main__.py")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_byte_that_flips_in_any_file_is_told(two_archs: Bundle, tmp_path: Path) -> None:
    store = unpacked(the_wheel(two_archs, tmp_path, SM90), tmp_path / "site")
    files = [path for path in store.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".cubin", ".json"}
    for path in files:
        whole = path.read_bytes()
        for position in {0, len(whole) // 3, len(whole) // 2, len(whole) - 3}:
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            assert wrong_with(store), (path, position)
        path.write_bytes(whole)
    assert wrong_with(store) == []


def wrong_with(store: Path) -> list[str]:
    try:
        return check_store(store)[1]
    except (LookupError, TypeError, ValueError) as error:  # as ``selftest.main`` does
        return [str(error)]


@pytest.mark.parametrize("name", ["carries.json", "manifest.json", "blobs/*.cubin"])
def test_a_damaged_wheel_ends_with_1_and_a_line(built: Built, tmp_path: Path, name: str) -> None:
    store = unpacked(the_wheel(built.bundle, tmp_path), tmp_path / "site")
    next(store.glob(name)).write_bytes(b"[]")
    command = [sys.executable, "-I", str(store.parent / "__main__.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("aotpack_kernels_vllm_sm90: ")
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_missing_or_strange_is_told(two_archs: Bundle, tmp_path: Path) -> None:
    store = unpacked(the_wheel(two_archs, tmp_path, SM90), tmp_path / "site")
    gone = next(store.rglob("*.cubin"))
    gone.rename(gone.with_suffix(".so"))
    assert check_store(store)[1] == [
        f"blobs/{gone.name}: missing",
        f"blobs/{gone.stem}.so: not among what the wheel carries",
    ]


def test_the_manifest_is_the_bundles_own_and_the_artifacts_are_those_of_the_architecture(
    two_archs: Bundle, tmp_path: Path
) -> None:
    store = unpacked(the_wheel(two_archs, tmp_path, SM100), tmp_path / "site")
    assert (store / "manifest.json").read_bytes() == two_archs.manifest.to_bytes()
    assert json.loads((store / "carries.json").read_bytes()) == {
        "bundle": two_archs.digest,
        "helpers": None,
        "targets": ["cuda:100"],
    }
    entries = [entry for entry in two_archs.manifest.entries if entry.key.target == SM100]
    expected = {
        f"{artifact.digest.removeprefix('sha256:')}.{kind}" for entry in entries for kind, artifact in entry.artifacts
    }
    assert {path.name for path in (store / "blobs").iterdir()} == expected
    assert 0 < len(entries) < len(two_archs.manifest.entries)


def test_a_store_in_a_wheel_answers_for_what_it_carries_alone(
    two_archs: Bundle, helped: Bundle, tmp_path: Path
) -> None:
    half = open_store(unpacked(the_wheel(two_archs, tmp_path, SM100), tmp_path / "half"))
    assert half.digest == two_archs.digest
    assert half.manifest.targets == (SM100,)
    assert {entry.key.target for entry in half.manifest.entries} == {SM100}
    whole = open_store(unpacked(the_wheel(two_archs, tmp_path), tmp_path / "whole"))
    assert whole.manifest == two_archs.manifest
    assert len({half.identity, whole.identity, two_archs.digest}) == 3
    without = open_store(unpacked(the_wheel(helped, tmp_path), tmp_path / "without"))
    assert without.manifest == replace(helped.manifest, helpers=())


def test_a_store_that_says_what_another_bundles_part_is_is_refused(
    built: Built, helped: Bundle, tmp_path: Path
) -> None:
    stores = [unpacked(the_wheel(bundle, tmp_path), tmp_path / bundle.digest) for bundle in (built.bundle, helped)]
    shutil.copy(stores[1] / "carries.json", stores[0])
    with pytest.raises(BundleError, match=r"carries\.json: bundle: expected the digest of the manifest beside it"):
        open_store(stores[0])


def test_a_bundle_with_helpers_makes_a_wheel_for_each_python(helped: Bundle, tmp_path: Path) -> None:
    wheels = write_wheels(helped, tmp_path)
    suffixes = sorted({helper.suffix for helper in helped.manifest.helpers})
    assert len(wheels) == len(suffixes)
    for wheel, suffix in zip(wheels, suffixes, strict=True):
        _, _, _, tags = parse_wheel_filename(wheel.path.name)
        (tag,) = tags
        python = suffix.split("-")[1]
        assert (tag.interpreter, tag.abi) == (f"cp{python}", f"cp{python}")
        assert tag.platform == f"manylinux_2_17_{helped.manifest.helpers[0].machine}"
        store = unpacked(wheel, tmp_path / python)
        mine = {helper.artifact.digest for helper in helped.manifest.helpers if helper.suffix == suffix}
        assert {f"sha256:{path.stem}" for path in store.rglob("*.so")} == mine
        assert check_store(store)[1] == []
    some = write_wheels(helped, tmp_path, minors=[f"3.{sys.version_info.minor}"])
    assert [wheel.path for wheel in some] == [
        wheel.path for wheel in wheels if f"cp3{sys.version_info.minor}" in wheel.path.name
    ]


def test_a_wheel_with_helpers_installs_where_its_python_runs(
    helped: Bundle, tmp_path: Path, environment: Environment
) -> None:
    (wheel,) = write_wheels(helped, tmp_path, minors=[f"3.{sys.version_info.minor}"])
    environment.install(wheel)
    tested = environment.run("-m", "aotpack_kernels_vllm_sm90")
    assert tested.returncode == 0
    assert f"{wheel.helpers} native helpers" in tested.stdout


def test_kernels_of_an_installed_wheel_launch_without_any_compile(
    helped: Bundle, engine: Engine, tmp_path: Path, environment: Environment
) -> None:
    (wheel,) = write_wheels(helped, tmp_path, minors=[f"3.{sys.version_info.minor}"])
    environment.install(wheel)
    cache = tmp_path / "cache"
    cache.mkdir()
    script = ROOT / "scripts" / "check_launches.py"
    done = environment.run(script, helped.path, "--engine", engine.root, "--cache", cache, "--activate")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["hits"] == len(helped.manifest.entries)
    assert (report["misses"], report["built"]) == ([], [])


def test_without_helpers_a_wheel_is_for_every_python(helped: Bundle, tmp_path: Path) -> None:
    wheel = the_wheel(helped, tmp_path)
    assert wheel.path.name.endswith("-py3-none-any.whl")
    assert wheel.helpers == 0
    assert not list(unpacked(wheel, tmp_path / "site").rglob("*.so"))


def test_a_helper_that_needs_a_newer_glibc_says_so_in_the_tag(helped: Bundle, tmp_path: Path) -> None:
    helpers = tuple(replace(helper, glibc="2.34.1") for helper in helped.manifest.helpers)
    wheels = write_wheels(replace(helped, manifest=replace(helped.manifest, helpers=helpers)), tmp_path)
    assert all("-manylinux_2_34_" in wheel.path.name for wheel in wheels)


def test_pythons_that_a_bundle_lacks_or_no_wheel_has_are_refused(helped: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no native helpers for Python 3\.9; it has 3\.\d+.*: choose from them"):
        write_wheels(helped, tmp_path, minors=["3.9"])
    helpers = tuple(replace(helper, suffix=".pypy311-pp73-linux.so") for helper in helped.manifest.helpers)
    with pytest.raises(UsageError, match="no wheel can be tagged for; leave native helpers out with --python none"):
        write_wheels(replace(helped, manifest=replace(helped.manifest, helpers=helpers)), tmp_path)
    with pytest.raises(UsageError, match="has no kernels for sm80; it has sm90"):
        write_wheels(helped, tmp_path, targets=[Target("cuda", 80)])
    assert list(tmp_path.iterdir()) == []


VERSIONS = {
    ("0.33.0.dev5+g1234", "3.8.0"): "0.33.0.dev5030800",
    ("0.33.0rc1", "3.8.0"): "0.33.0rc1.post30800",
    ("0.33.0", "3.6.0"): "0.33.0.post30600",
    ("0.33.0+cu129", "3.8.0"): "0.33.0.post30800",
    ("0.33.0", "3.8.1"): "0.33.0.post30801",
    ("0.33.0", "3.10.0"): "0.33.0.post31000",
    ("0.33.0.post1", "3.6.0"): "0.33.0.post1030600",
    ("0.33.0.post2.dev1", "3.6.0"): "0.33.0.post2030600.dev1",
    ("0.33.0.post2", "3.6.0"): "0.33.0.post2030600",
    ("0.33.1", "3.6.0+git12"): "0.33.1.post30600",
    ("1!0.1", "3.6.0"): "1!0.1.post30600",
}


def numbered(built: Built, release: str, triton: str) -> Bundle:
    manifest = built.bundle.manifest
    toolchain = replace(manifest.toolchain, triton=triton)
    return replace(built.bundle, manifest=replace(manifest, engine_version=release, toolchain=toolchain))


def test_versions_say_engine_and_triton_and_sort_by_the_engine_first(built: Built) -> None:
    found = [wheel_version(numbered(built, engine, triton)) for engine, triton in VERSIONS]
    assert found == list(VERSIONS.values())
    assert found == sorted(found, key=Version)
    assert all(Version(version).local is None for version in found)


@pytest.mark.parametrize(("release", "triton"), [("main", "3.8.0"), ("0.33.0", "nightly")])
def test_releases_that_no_package_can_have_are_refused(built: Built, release: str, triton: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a wheel cannot be numbered: Invalid version"):
        write_wheels(numbered(built, release, triton), tmp_path)


def test_an_engine_that_no_package_can_be_named_after_is_refused(built: Built, tmp_path: Path) -> None:
    manifest = replace(built.bundle.manifest, engine="vllm+")
    with pytest.raises(UsageError, match=r"cannot be named after the engine 'vllm\+'"):
        write_wheels(replace(built.bundle, manifest=manifest), tmp_path)


def test_what_a_wheel_says_about_itself_does_not_change_unnoticed(
    helped: Bundle, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    if helped.manifest.toolchain.triton != "3.8.0":
        pytest.skip("the golden file is of Triton 3.8.0")
    wheel = the_wheel(helped, tmp_path)
    with zipfile.ZipFile(wheel.path) as archive:
        about = {name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    text = f"{wheel.path.name}\n"
    for name, content in about.items():
        if not name.endswith("/RECORD"):
            text += f"\n== {name}\n{content.replace(helped.digest, 'DIGEST')}"
    entries = f"| entries | {len(helped.manifest.entries)} |"
    assert entries in text
    golden("wheel-triton-3.8.0.txt", text.replace(entries, "| entries | ENTRIES |"))


def test_the_record_lists_every_file_with_its_digest_and_size(helped: Bundle, tmp_path: Path) -> None:
    for wheel in write_wheels(helped, tmp_path):
        with zipfile.ZipFile(wheel.path) as archive:
            assert archive.testzip() is None
            names = archive.namelist()
            rows = list(csv.reader(archive.read(names[-1]).decode().splitlines()))
            assert [row[0] for row in rows] == names
            assert rows[-1][1:] == ["", ""]
            for name, digest, size in rows[:-1]:
                data = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                assert (digest, int(size)) == (f"sha256={expected}", len(data))


def test_members_have_fixed_times_modes_and_order(built: Built, tmp_path: Path) -> None:
    with zipfile.ZipFile(the_wheel(built.bundle, tmp_path).path) as archive:
        members = archive.infolist()
    assert {(member.date_time, member.external_attr >> 16, member.create_system) for member in members} == {
        ((1980, 1, 1, 0, 0, 0), 0o100644, 3)
    }
    package = [member.filename for member in members if ".dist-info/" not in member.filename]
    assert package == sorted(package)
    assert [member.filename for member in members][: len(package)] == package


def test_the_same_bundle_gives_the_same_bytes_anywhere(built: Built, tmp_path: Path) -> None:
    names = set()
    for index, (mask, environment) in enumerate(
        [
            ("022", {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "0"}),
            ("077", {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1", "PYTHONOPTIMIZE": "2"}),
        ]
    ):
        out = tmp_path / str(index)
        out.mkdir()
        command = f"umask {mask}; cd {out}; exec {sys.executable} -m aotpack wheel {built.bundle.path} -q"
        done = subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        (path,) = out.iterdir()
        assert done.stdout == f"{path.name}\n"
        names.add((path.name, path.read_bytes(), path.stat().st_mode))
    assert len(names) == 1


@pytest.mark.parametrize(
    ("epoch", "first"), [("0", (1980, 1, 1)), ("1767225600", (2026, 1, 1)), ("99999999999", (2107, 12, 31))]
)
def test_source_date_epoch_is_the_time_of_the_files(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str, first: tuple[int, ...]
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with zipfile.ZipFile(the_wheel(built.bundle, tmp_path).path) as archive:
        assert {member.date_time[:3] for member in archive.infolist()} == {first}


def test_a_source_date_epoch_that_is_no_time_is_refused(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH: expected seconds since 1970, found 'yesterday'"):
        the_wheel(built.bundle, tmp_path)


def test_a_wheel_that_would_be_too_large_is_refused_before_any_is_written(helped: Bundle, tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    sizes = [wheel.size for wheel in write_wheels(helped, tmp_path / "probe")]
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(OutputError, match=rf"would have {max(sizes):,} bytes, more than the {max(sizes) - 1:,} allow"):
        write_wheels(helped, out, max_size=max(sizes) - 1)
    assert list(out.iterdir()) == []
    assert [wheel.size for wheel in write_wheels(helped, out, max_size=max(sizes))] == sizes


def test_a_damaged_bundle_makes_no_wheel(built: Built, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.zst"
    bundle.write_bytes(built.bundle.path.read_bytes()[:-100])
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(BundleError, match="truncated"):
        write_wheels(replace(built.bundle, path=bundle), out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(("text", "size"), [("7", 7), ("20kB", 20_000), ("3 KiB", 3072), ("1mb", 10**6), ("1G", 10**9)])
def test_sizes_are_read_with_their_units(built: Built, tmp_path: Path, text: str, size: int) -> None:
    result = run("wheel", built.bundle.path, "-o", tmp_path, "--max-size", text)
    if size < 10**6:
        assert result.exit_code == 3
        assert f"more than the {size:,} allowed; nothing was written" in one_error(result)
        assert list(tmp_path.iterdir()) == []
    else:
        assert result.exit_code == 0


@pytest.mark.parametrize("text", ["", "many", "1.5MB", "-1", "1TB"])
def test_a_size_that_is_none_is_a_usage_error(built: Built, text: str) -> None:
    result = run("wheel", built.bundle.path, "--max-size", text)
    assert result.exit_code == 2
    assert "is not a size such as 100MB or 2GiB" in one_error(result)


def test_the_command_says_what_it_wrote_and_prints_the_paths(helped: Bundle, tmp_path: Path) -> None:
    result = run("wheel", helped.path, "-o", tmp_path, "--arch", "sm90", "--python", f"3.{sys.version_info.minor}")
    assert result.exit_code == 0
    (path,) = tmp_path.iterdir()
    assert result.stdout == f"{path}\n"
    assert f"{path.name}: {len(helped.manifest.entries)} keys and " in result.stderr


def test_a_directory_that_is_missing_or_full_is_one_error(built: Built, tmp_path: Path) -> None:
    result = run("wheel", built.bundle.path, "-o", tmp_path / "none")
    assert result.exit_code == 3
    assert "no such directory; create it, or choose another --output" in one_error(result)


def test_pip_of_another_python_prefers_the_wheel_with_its_helpers(helped: Bundle, tmp_path: Path) -> None:
    """pip, given both, takes the one with the helpers of its Python, and the other where there is none."""
    both = tmp_path / "both"
    both.mkdir()
    the_wheel(helped, both)
    (special,) = write_wheels(helped, both, minors=[f"3.{sys.version_info.minor}"])
    chosen = tmp_path / "chosen"
    command = [sys.executable, "-m", "pip", "download", "--no-index", "--no-deps"]
    command += ["--find-links", str(both), "-d", str(chosen)]
    subprocess.run([*command, "aotpack-kernels-vllm-sm90==0.33.0.*"], capture_output=True, check=True)
    assert [path.name for path in chosen.iterdir()] == [special.path.name]
    shutil.rmtree(chosen)
    special.path.unlink()
    subprocess.run([*command, "aotpack-kernels-vllm-sm90"], capture_output=True, check=True)
    assert [path.name for path in chosen.iterdir()] == [the_wheel(helped, both).path.name]
