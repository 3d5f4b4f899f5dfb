"""Native helpers: built ahead for several Pythons, packed, laid where Triton looks, and enough to launch with."""

import json
import os
import platform
import re
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import aotpack
from aotpack import runtime
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.cli import main
from aotpack.digests import canonical_json, digest_bytes
from aotpack.elf import glibc_baseline, release
from aotpack.errors import AotpackError, BundleError, DocumentError, ToolchainError
from aotpack.heal import heal
from aotpack.helpers import BuiltHelper, HelperSource, build_helper, choose_interpreters
from aotpack.install import install_bundle, uninstall
from aotpack.interpreters import Interpreter, find_interpreter, running_minor
from aotpack.manifest import Helper, read_manifest
from aotpack.receipts import HELPERS, read_receipts
from aotpack.runtime import trouble
from aotpack.store import unpack_store
from aotpack.tritoncache import directory_name
from aotpack.verify import verify_cache
from tests.archives import members_of, spelled, tree
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def with_helpers(bundle: Bundle, path: Path, helpers: list[Helper]) -> Bundle:
    """The same bundle, saying something else of its helpers; their contents are the first's."""
    blobs = dict(bundle.blobs())
    manifest = replace(bundle.manifest, helpers=tuple(sorted(helpers, key=lambda helper: helper.order)))
    return write_bundle(path, manifest, blobs)


def helper_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.so"))


def ours(bundle: Bundle, interpreters: tuple[Interpreter, ...]) -> list[Helper]:
    return [helper for helper in bundle.manifest.helpers if helper.suffix == interpreters[0].suffix]


# Building


def test_each_python_gets_each_helper(helped: Bundle, interpreters: tuple[Interpreter, ...]) -> None:
    sources = {(helper.name, helper.source) for helper in helped.manifest.helpers}
    assert ("cuda_utils",) in {name[:1] for name in sources}
    assert len(helped.manifest.helpers) == len(sources) * len(interpreters)
    assert {helper.suffix for helper in helped.manifest.helpers} == {one.suffix for one in interpreters}
    contents = {helper.artifact.digest for helper in helped.manifest.helpers if helper.name == "cuda_utils"}
    assert len(contents) == len(interpreters), "another Python's headers give other code"


def test_releases_up_to_3_6_get_launchers_too(helped: Bundle) -> None:
    launchers = [helper for helper in helped.manifest.helpers if helper.name == "__triton_launcher"]
    assert bool(launchers) == (helped.manifest.toolchain.triton in {"3.4.0", "3.5.1", "3.6.0"})


def test_a_helper_needs_libcuda_by_name_and_an_old_glibc(native_helpers: list[BuiltHelper]) -> None:
    for built in native_helpers:
        assert b"\0libcuda.so.1\0" in built.content
        assert release(built.helper.glibc) <= (2, 17)
        assert built.helper.glibc == glibc_baseline(built.content)


def test_the_bytes_do_not_depend_on_the_directory_and_hold_none(
    native_helpers: list[BuiltHelper],
    interpreters: tuple[Interpreter, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.backends.nvidia import driver

    text = (Path(driver.dirname) / "driver.c").read_bytes()
    deep = tmp_path / "another" / "and much longer place"
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    again = build_helper(HelperSource(name="cuda_utils", text=text), interpreters[0])
    assert again in native_helpers
    words = re.findall(rb"[\x20-\x7e]{4,}", again.content)
    assert not [word for word in words if re.search(rb"(?<![\w.])/(tmp|home|root|usr|opt|var)/", word)]


def test_a_python_that_is_not_here_is_named_with_where_it_was_looked_for() -> None:
    with pytest.raises(ToolchainError, match=r"Python 3\.99 .*no such interpreter.*pyenv.*install python3\.99"):
        choose_interpreters(["3.99"])


def test_a_python_without_headers_is_named(
    interpreters: tuple[Interpreter, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interpreter that answers as one of another minor, whose headers are not where it says.
    fake = tmp_path / "python3.99"
    answer = json.dumps(["3.99", str(tmp_path), interpreters[0].suffix, False])
    fake.write_text(f"#!/bin/sh\necho '{answer}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ToolchainError, match=rf"{fake} has no Python\.h beside it"):
        find_interpreter("3.99")
    (tmp_path / "Python.h").touch()
    assert find_interpreter("3.99").include == tmp_path


def test_without_a_compiler_a_build_goes_on_unless_it_was_asked_for_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    interpreters, findings = choose_interpreters(None)
    assert interpreters == ()
    assert [finding.code for finding in findings] == ["H101"]
    assert "neither gcc nor clang is on PATH" in findings[0].detail
    with pytest.raises(ToolchainError, match=r"neither gcc nor clang is on PATH.*--python none"):
        choose_interpreters([running_minor()])
    assert choose_interpreters([]) == ((), ())


def test_a_compiler_that_fails_is_one_line(
    interpreters: tuple[Interpreter, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolchainError, match=r"cuda_utils for Python 3\.\d+ could not be compiled"):
        build_helper(HelperSource(name="cuda_utils", text=b"#error no\n"), interpreters[0])
    assert "#error no" in capfd.readouterr().err


@pytest.mark.parametrize("minors", ["2.7", "3", "3.11,", "3.11.4", "3.11 3.12", "none,3.11"])
def test_pythons_that_cannot_be_meant_are_a_usage_error(minors: str) -> None:
    result = CliRunner().invoke(main, ["build", "--arch", "sm90", "--python", minors])
    assert result.exit_code == 2
    assert "is not a comma list of Python releases" in result.stderr


# The C library's baseline


def compile_c(folder: Path, text: str) -> bytes:
    (folder / "x.c").write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostartfiles", "x.c", "-o", "x.so"], cwd=folder, check=True)
    return (folder / "x.so").read_bytes()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the versions are those of x86_64")
def test_the_baseline_is_the_newest_version_that_any_symbol_needs(tmp_path: Path) -> None:
    pin = '__asm__(".symver {0},{0}@GLIBC_{1}");\n'
    used = "void *memcpy(void *, const void *, unsigned long); int puts(const char *);\n"
    used += "void *use(void *p, void *q, unsigned long n) { puts(p); return memcpy(p, q, n); }\n"
    assert glibc_baseline(compile_c(tmp_path, pin.format("memcpy", "2.14") + used)) == "2.14"
    assert glibc_baseline(compile_c(tmp_path, pin.format("memcpy", "2.2.5") + used)) == "2.2.5"
    assert glibc_baseline(compile_c(tmp_path, "int nothing(void) { return 0; }")) == "0"


def test_a_file_that_is_no_shared_object_is_refused_wherever_it_is_cut(native_helpers: list[BuiltHelper]) -> None:
    whole = native_helpers[0].content
    for other in (b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)):
        with pytest.raises(DocumentError):
            glibc_baseline(other)
    for length in range(64, len(whole), 1009):
        with pytest.raises(DocumentError, match="damaged"):  # the section headers come last
            glibc_baseline(whole[:length])


# The bundle


def test_helpers_come_after_the_kernels_in_a_frame_of_their_own(helped: Bundle) -> None:
    digests = [digest_bytes(data) for _, data in members_of(helped.path)[1:]]
    helpers = list(dict.fromkeys(helper.artifact.digest for helper in helped.manifest.helpers))
    assert digests[-len(helpers) :] == helpers
    assert open_bundle(helped.path).manifest == helped.manifest


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "os", r"helpers\[0\]\.name: expected one of"),
        ("source", "x", r"helpers\[0\]\.source: expected"),
        ("machine", "../x", r"helpers\[0\]\.machine: expected"),
        ("suffix", "/../../x.so", r"helpers\[0\]\.suffix: expected the end of"),
        ("suffix", "", r"helpers\[0\]\.suffix: expected a string"),
        ("glibc", "2.x", r"helpers\[0\]\.glibc: expected a release"),
        ("artifact", {}, r"helpers\[0\]\.artifact\.digest: missing"),
        ("more", 1, r"helpers\[0\]\.more: no such field"),
    ],
)
def test_a_helper_that_is_not_as_written_is_refused(helped: Bundle, field: str, value: object, message: str) -> None:
    document = json.loads(helped.manifest.to_bytes())
    document["helpers"][0][field] = value
    with pytest.raises(DocumentError, match=message):
        read_manifest(spelled(document))


def twice(helpers: list[Any]) -> None:
    helpers.append(helpers[0])


def out_of_order(helpers: list[Any]) -> None:
    helpers.sort(key=lambda helper: str(helper["suffix"]), reverse=True)
    helpers.reverse()
    helpers.insert(0, {**helpers.pop(), "suffix": ".zzz.so"})


def another_size(helpers: list[Any]) -> None:
    helpers.append({**helpers[-1], "suffix": ".zzz.so", "artifact": {**helpers[-1]["artifact"], "size": 5}})


@pytest.mark.parametrize(
    ("change", "message"),
    [(twice, "helpers: expected each once"), (out_of_order, "helpers: expected"), (another_size, "another size")],
)
def test_helpers_that_contradict_each_other_are_refused(
    helped: Bundle, change: Callable[[list[Any]], None], message: str
) -> None:
    document = json.loads(helped.manifest.to_bytes())
    change(document["helpers"])
    with pytest.raises(DocumentError, match=message):
        read_manifest(spelled(document))


def test_inspect_shows_the_helpers(helped: Bundle, interpreters: tuple[Interpreter, ...]) -> None:
    shown = CliRunner().invoke(main, ["inspect", str(helped.path)]).stdout
    assert re.search(rf"^helpers +.*\d+ for {re.escape(interpreters[0].suffix)} \(glibc 2\.", shown, re.MULTILINE)


# Installing


def expected_keys(libcuda: str, linkage: str) -> set[str]:
    """What Triton of a process of its own looks for: ``cuda_utils`` alone, found by a cache manager that notes it."""
    script = f"""
import platform
platform.architecture = lambda *a, **k: ("64bit", {linkage!r})
from triton.runtime import build
class Note:
    def __init__(self, key): self.key = key
    def get_file(self, name): print(self.key, name); raise SystemExit
build.get_cache_manager = Note
from triton.backends.nvidia.driver import CudaUtils
CudaUtils()
"""
    environment = {**os.environ, "TRITON_LIBCUDA_PATH": libcuda}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    key, name = done.stdout.split()
    return {f"{directory_name(key)}/{name}"}


@pytest.mark.parametrize("linkage", ["ELF", ""])
def test_helpers_lie_under_the_keys_with_and_without_the_program_file(
    helped: Bundle, tmp_path: Path, linkage: str
) -> None:
    receipt = install_bundle(helped, tmp_path, libcuda=["/somewhere/lib"]).receipt
    assert expected_keys("/somewhere/lib", linkage) <= {file.path for file in receipt.files}


def test_a_fixed_libcuda_directory_needs_no_guess(
    helped: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", "/fixed")
    installed = install_bundle(helped, tmp_path)
    assert installed.helpers.notes == ()
    assert len([path for path in helper_files(tmp_path) if path.name.startswith("cuda_utils")]) == 3


def test_where_no_driver_tells_the_usual_places_serve_and_a_note_says_so(helped: Bundle, tmp_path: Path) -> None:
    if "libcuda.so.1" in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("this machine has a driver")
    installed = install_bundle(helped, tmp_path)
    paths = {file.path for file in installed.receipt.files}
    for directory in (f"/lib/{platform.machine()}-linux-gnu", "/lib64"):
        assert expected_keys(directory, "ELF") <= paths
    keyed = release(helped.manifest.toolchain.triton) >= (3, 8)
    assert [note.code for note in installed.helpers.notes] == ["H105"] * keyed
    assert installed.refused == ()


def test_installing_helpers_twice_changes_nothing_and_an_uninstall_takes_them_out(
    helped: Bundle, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        installed = install_bundle(helped, tmp_path)
    finally:
        os.umask(before)
    whole = tree(tmp_path)
    assert helper_files(tmp_path)
    for path in helper_files(tmp_path):
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.parent.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / HELPERS).stat().st_mode & 0o777 == 0o755
    assert install_bundle(helped, tmp_path).receipt == installed.receipt
    assert tree(tmp_path) == whole
    assert read_receipts(tmp_path) == [installed.receipt]
    uninstall(installed.receipt)
    assert tree(tmp_path) == {}


def test_a_helper_that_triton_built_itself_is_left_alone(helped: Bundle, tmp_path: Path) -> None:
    receipt = install_bundle(helped, tmp_path, libcuda=["/x"]).receipt
    theirs = next(path for path in helper_files(tmp_path) if ".aotpack" not in path.parts)
    uninstall(receipt)
    theirs.parent.mkdir()
    theirs.write_bytes(b"built here")
    again = install_bundle(helped, tmp_path, libcuda=["/x"]).receipt
    assert theirs.read_bytes() == b"built here"
    uninstall(again)
    assert [path for path, (_, content) in tree(tmp_path).items() if content] == [str(theirs.relative_to(tmp_path))]


@pytest.mark.parametrize("damage", [b"", b"altered"])
def test_a_damaged_helper_of_ours_is_healed(helped: Bundle, tmp_path: Path, damage: bytes) -> None:
    install_bundle(helped, tmp_path)
    whole = tree(tmp_path)
    for mend in (lambda: install_bundle(helped, tmp_path), lambda: heal(tmp_path)):
        for path in helper_files(tmp_path):
            path.write_bytes(damage)
        checked = verify_cache(tmp_path)
        assert checked.entries == len(helped.manifest.entries)
        assert {finding.code for finding in checked.findings} == {"V112"}
        mend()
        assert tree(tmp_path) == whole
        assert verify_cache(tmp_path).findings == ()


def test_another_pythons_helper_is_never_installed(helped: Bundle, tmp_path: Path) -> None:
    other = [replace(helper, suffix=".cpython-309-x86_64-linux-gnu.so") for helper in helped.manifest.helpers]
    bundle = with_helpers(helped, tmp_path / "other", list({helper.order: helper for helper in other}.values()))
    installed = install_bundle(bundle, tmp_path / "cache")
    assert helper_files(tmp_path / "cache") == []
    (note,) = installed.helpers.notes
    assert note.code == "H102"
    assert ".cpython-309-x86_64-linux-gnu.so" in note.detail
    assert note.hint == f"build the bundle with --python {running_minor()}"
    assert installed.refused == ()


def test_a_helper_of_a_newer_glibc_is_refused_and_the_kernels_are_installed(
    helped: Bundle, interpreters: tuple[Interpreter, ...], tmp_path: Path
) -> None:
    bundle = with_helpers(
        helped, tmp_path / "new", [replace(helper, glibc="2.999") for helper in ours(helped, interpreters)]
    )
    result = CliRunner().invoke(main, ["install", str(bundle.path), "--cache-dir", str(tmp_path / "cache")])
    assert result.exit_code == 1
    assert re.search(r"H104 cuda_utils\S+: needs glibc 2\.999, and this machine has glibc 2\.\d+:", result.stderr)
    assert f"installed {len(bundle.manifest.entries)} kernels" in result.stderr
    assert helper_files(tmp_path / "cache") == []


def test_a_helper_of_another_c_text_is_refused(
    helped: Bundle, interpreters: tuple[Interpreter, ...], tmp_path: Path
) -> None:
    changed = [
        replace(helper, source="sha256:" + "0" * 64) if helper.name == "cuda_utils" else helper
        for helper in ours(helped, interpreters)
    ]
    installed = install_bundle(with_helpers(helped, tmp_path / "odd", changed), tmp_path / "cache")
    assert [(finding.code, finding.subject) for finding in installed.refused] == [("H103", "cuda_utils")]
    assert not [path for path in helper_files(tmp_path / "cache") if path.name.startswith("cuda_utils")]


def test_a_helper_with_another_content_than_listed_is_refused_before_anything_is_written(
    helped: Bundle, native_helpers: list[BuiltHelper], tmp_path: Path
) -> None:
    blobs = dict(helped.blobs())
    digest = native_helpers[-1].helper.artifact.digest
    blobs[digest] = bytes(len(blobs[digest]))
    bundle = write_bundle(tmp_path / "odd", helped.manifest, blobs)
    with pytest.raises(BundleError, match=r"expected the member blobs/sha256/"):
        install_bundle(bundle, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


# Launching, with no compiler on PATH


def launch(helped: Bundle, root: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "check_launches.py", helped.path, "--engine", root, *options]
    return subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)


def assert_all_launched(done: subprocess.CompletedProcess[str], bundle: Bundle) -> None:
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["misses"] == report["built"] == []
    assert report["hits"] == report["keys"] == len(bundle.manifest.entries)
    assert report["launched"] == report["asked"] > report["keys"]
    assert report["loaded"] >= report["keys"]
    assert report["archs"] == [90]


def test_every_kernel_launches_without_a_compiler(helped: Bundle, engine: Any) -> None:
    assert_all_launched(launch(helped, engine.root), helped)


def test_without_helpers_the_same_launch_fails_for_want_of_a_compiler(
    helped: Bundle, engine: Any, tmp_path: Path
) -> None:
    done = launch(with_helpers(helped, tmp_path / "none", []), engine.root)
    assert done.returncode == 1
    assert "Failed to find C compiler" in done.stderr


def test_where_the_key_cannot_be_known_the_load_time_path_serves(helped: Bundle, engine: Any, tmp_path: Path) -> None:
    install_bundle(helped, tmp_path, libcuda=["/not/where/it/is"])
    assert_all_launched(launch(helped, engine.root, "--cache", tmp_path, "--activate"), helped)


def test_a_store_serves_every_launch_in_place(helped: Bundle, engine: Any, tmp_path: Path) -> None:
    store = unpack_store(helped, tmp_path / "store")
    done = launch(helped, engine.root, "--store", store.directory)
    assert_all_launched(done, helped)
    # Triton keeps what it was handed for a C text under its own key.
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert all(name.endswith(suffix) for name in json.loads(done.stdout)["written"])


# Load time


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    from triton import knobs

    monkeypatch.setattr(knobs.build, "impl", None)
    monkeypatch.setattr(knobs.cache, "manager_class", None)
    # As in a process that has not activated yet.
    monkeypatch.setattr(runtime, "_SERVED", [])
    monkeypatch.setattr(runtime, "_LOOKED", set())
    monkeypatch.setattr(trouble, "_SAID", set())
    return knobs


def ask_triton(output: Path, name: str = "cuda_utils", text: bytes | None = None) -> Path:
    """Have Triton compile a helper, as it does where its cache has none."""
    from triton.backends.nvidia import driver
    from triton.runtime import build

    source = Path(driver.dirname) / "driver.c"
    if text is not None:
        source = output / f"{name}.c"
        source.write_bytes(text)
    return Path(build._build(name, str(source), str(output), [], driver.include_dirs, [], []))


@pytest.fixture
def cache(helped: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    install_bundle(helped, folder, libcuda=["/x"])
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return folder


@pytest.mark.usefixtures("knobs", "cache")
def test_triton_is_handed_the_installed_helper(
    helped: Bundle, interpreters: tuple[Interpreter, ...], tmp_path: Path
) -> None:
    aotpack.activate()
    aotpack.activate()
    got = ask_triton(tmp_path)
    (helper,) = [helper for helper in ours(helped, interpreters) if helper.name == "cuda_utils"]
    assert got.parent == tmp_path
    assert digest_bytes(got.read_bytes()) == helper.artifact.digest


@pytest.mark.usefixtures("cache")
def test_what_is_not_installed_goes_to_the_one_that_was_asked_before(knobs: Any, tmp_path: Path) -> None:
    asked = []

    def before(name: str, *_: Any) -> str:
        asked.append(name)
        return "theirs"

    knobs.build.impl = before
    aotpack.activate()
    assert str(ask_triton(tmp_path, "other", b"int other;")) == "theirs"
    assert str(ask_triton(tmp_path, "cuda_utils", b"int other;")) == "theirs"
    assert ask_triton(tmp_path).parent == tmp_path
    assert asked == ["other", "cuda_utils"]


@pytest.mark.usefixtures("cache")
def test_what_is_not_installed_is_compiled_by_triton_as_ever(knobs: Any, tmp_path: Path) -> None:
    aotpack.activate()
    ours_now = knobs.build.impl
    got = ask_triton(tmp_path, "other", b"int other;")
    assert got.read_bytes()[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", got.read_bytes(), 16) == (3,)  # a shared object
    assert knobs.build.impl is ours_now


def test_a_helper_that_was_changed_is_not_handed_out(
    knobs: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    knobs.build.impl = lambda *_: "theirs"
    aotpack.activate()
    for path in (cache / HELPERS).rglob("*.so"):
        path.write_bytes(b"\x7fELF another")
    for _ in range(2):
        assert str(ask_triton(tmp_path)) == "theirs"
    assert caplog.text.count("is not what was installed; install the bundle again") == 1
    monkeypatch.setenv("AOTPACK_STRICT", "1")
    with pytest.raises(AotpackError, match="is not what was installed"):
        ask_triton(tmp_path)


def test_a_damaged_receipt_is_a_warning_and_not_the_end(
    knobs: Any, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    knobs.build.impl = lambda *_: "theirs"
    next((cache / ".aotpack" / "receipts").iterdir()).write_text("{")
    aotpack.activate()
    assert caplog.text.count("not a receipt") == 1
    assert str(ask_triton(tmp_path)) == "theirs"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("value", "active"), [("1", False), ("", True), ("0", True)])
def test_activation_can_be_switched_off(knobs: Any, monkeypatch: pytest.MonkeyPatch, value: str, active: bool) -> None:
    monkeypatch.setenv("AOTPACK_DISABLE", value)
    aotpack.activate()
    assert (knobs.build.impl is not None) is active


def test_without_triton_activation_is_one_warning(cache: Path) -> None:
    script = "import sys; sys.modules['triton'] = None; import aotpack; aotpack.activate(); print('served')"
    command = [sys.executable, "-c", script]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "served\n"
    assert done.stderr.count("aotpack is not active in this process") == 1
    environment["AOTPACK_STRICT"] = "1"
    strict = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert strict.returncode == 1
    assert "ImportError" in strict.stderr or "ModuleNotFoundError" in strict.stderr


@pytest.mark.parametrize("hostile", [f"{HELPERS}/x", f"{HELPERS}/../x", f"{HELPERS}/a/b/c", f"{HELPERS}/../../x/y"])
def test_a_receipt_cannot_point_past_the_helpers(helped: Bundle, tmp_path: Path, hostile: str) -> None:
    receipt = install_bundle(helped, tmp_path).receipt
    document = json.loads(receipt.path.read_bytes())
    document["files"][0]["path"] = hostile
    receipt.path.write_text(canonical_json(document) + "\n")
    with pytest.raises(Exception, match=r"files\[0\]\.path: expected an entry's directory and a file in it"):
        read_receipts(tmp_path)
