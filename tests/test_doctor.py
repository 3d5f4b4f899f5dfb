"""The doctor in real circumstances: other users, mounts, drivers, and a Triton that is not there."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from base64 import urlsafe_b64encode
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from click.testing import Result

from aotpack.build import Built
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.doctor import diagnose
from aotpack.doctor.cache import probe_cache
from aotpack.doctor.launches import probe_gpus
from aotpack.doctor.sections import Section
from aotpack.doctor.tools import Tool, changed_files, probe_ptxas
from aotpack.engines import Engine
from aotpack.findings import CODES
from aotpack.gpus import Driver, Gpu
from aotpack.install import install_bundle
from aotpack.receipts import read_receipts
from aotpack.targets import Target
from tests.archives import tree
from tests.engines import copy_engine
from tests.test_cli import bare_python, private_mount, run
from tests.test_gpus import Fake
from tests.test_gpus import fake_driver as fake_driver  # noqa: PLC0414  # a fixture

SM90 = Target("cuda", 90)
DOCTOR = f"{sys.executable} -m aotpack doctor"


@pytest.fixture
def bundle(built: Built) -> Bundle:
    return open_bundle(built.bundle.path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that Triton would take."""
    directory = tmp_path / "cache"
    directory.mkdir()
    for name in ("TRITON_HOME", "TRITON_PTXAS_PATH", "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_MANAGER", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(directory))
    return directory


def codes(bundle: Bundle | None = None) -> list[str]:
    return [finding.code for finding in diagnose(bundle).findings]


def rows(section: str, bundle: Bundle | None = None) -> dict[str, str]:
    return next(dict(found.rows) for found in diagnose(bundle).sections if found.title == section)


def needs_gcc() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")


def test_a_machine_that_serves_an_installed_bundle_is_sound(bundle: Bundle, cache: Path) -> None:
    needs_gcc()
    install_bundle(bundle, cache)
    before = tree(cache)
    result = run("doctor", bundle.path)
    assert result.exit_code == 0, result.stdout
    assert "Error" not in result.stdout
    assert f"set by          TRITON_CACHE_DIR={cache}" in result.stdout
    assert f"{bundle.path.name}: {len(bundle.manifest.entries)} kernels, sm90 with Triton" in result.stdout
    assert "installs here   yes" in result.stdout
    assert "in the cache    {0} of {0}".format(len(bundle.manifest.entries)) in result.stdout
    assert tree(cache) == before


def test_json_has_each_row_and_each_finding(bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    result = run("doctor", bundle.path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert (document["version"], document["sound"]) == (1, False)
    sections = {section["title"]: section for section in document["sections"]}
    assert {"name": "directory", "value": str(cache)} in sections["cache"]["rows"]
    (finding,) = sections["Triton"]["findings"]
    assert (finding["code"], finding["error"]) == ("D107", True)
    assert finding["hint"] == "unset it"


def test_nothing_there_is_no_finding(tmp_path: Path) -> None:
    environment = {"PATH": "/nonexistent", "TRITON_CACHE_DIR": str(tmp_path / "not" / "there")}
    command = [str(bare_python(tmp_path / "bare")), "-m", "aotpack", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "0 errors, 0 warnings\n")
    assert "none in this environment" in done.stdout
    assert not (tmp_path / "not").exists()


def test_a_bundle_without_a_triton_to_serve_is_an_error(built: Built, tmp_path: Path) -> None:
    command = [str(bare_python(tmp_path / "bare")), "-m", "aotpack", "doctor", str(built.bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "Error: D106 Triton: is not installed in this environment; run aotpack with the Python" in done.stdout
    assert "installs here   no" in done.stdout


def test_neither_torch_nor_what_is_heavy_is_imported() -> None:
    script = "import sys\nfrom aotpack.cli import main\ntry: main(['doctor'])\nexcept SystemExit: pass\n"
    script += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


# --- the cache directory


@pytest.mark.parametrize(
    ("environment", "chooser"),
    [
        ({"TRITON_CACHE_DIR": "/a", "TRITON_HOME": "/b", "HOME": "/c"}, "TRITON_CACHE_DIR=/a"),
        ({"TRITON_HOME": "/b", "HOME": "/c"}, "TRITON_HOME=/b"),
        ({"HOME": "/c"}, "HOME=/c"),
        ({"HOME": ""}, "HOME, which is set to nothing and so means /"),
        ({}, "the passwd entry of uid"),
    ],
)
def test_who_sets_the_cache_directory_is_said(environment: dict[str, str], chooser: str, tmp_path: Path) -> None:
    section = probe_cache(tmp_path, None, environment, "")
    assert dict(section.rows)["set by"].startswith(chooser)


def test_a_variable_that_is_set_to_nothing_is_an_error_and_triton_refuses_it(cache: Path) -> None:
    del cache
    pytest.importorskip("triton")
    script = "from triton.runtime.cache import get_cache_manager as get; get('00' * 32)"
    environment = {**os.environ, "TRITON_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "Could not create or locate cache dir" in done.stderr
    doctor = subprocess.run(DOCTOR.split(), env=environment, capture_output=True, text=True, check=False)
    assert doctor.returncode == 1
    assert "Error: D105" in doctor.stdout


def test_a_directory_that_the_serving_process_will_not_look_in_is_a_warning(tmp_path: Path, cache: Path) -> None:
    result = run("doctor", "--cache-dir", tmp_path / "other")
    assert f"D202 {tmp_path / 'other'}: a process that serves with this environment looks in {cache}" in result.stdout


def test_a_directory_that_vllm_would_move_is_a_warning(tmp_path: Path) -> None:
    section = probe_cache(tmp_path / ".triton" / "cache", None, {"HOME": str(tmp_path)}, "")
    assert [finding.code for finding in section.findings if finding.code == "D202"] == ["D202"]
    section = probe_cache(tmp_path, None, {"TRITON_CACHE_DIR": str(tmp_path)}, "")
    assert [finding.code for finding in section.findings] == []


def test_a_relative_directory_is_a_warning(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cache)
    monkeypatch.setenv("TRITON_CACHE_DIR", "here")
    assert "D203" in codes()


def as_unknown_user(environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The doctor as a user without a passwd entry; what it imports was read before, as root."""
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    script = (
        "import os, aotpack.doctor, aotpack.report.doctor; from aotpack.cli import main; aotpack.doctor.diagnose(); "
        "os.setgroups([]); os.setgid(54321); os.setuid(54321); main(['doctor'])"
    )
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env={**kept, **environment}, cwd=cwd, capture_output=True, text=True, check=False)


def test_home_at_the_root_with_an_unknown_user_names_the_next_directory() -> None:
    done = as_unknown_user({"HOME": "/"}, Path("/"))
    assert done.returncode == 1, done.stderr
    assert "directory       /.triton/cache (not there yet)" in done.stdout
    assert "Error: D101 /.triton/cache: cannot be created in / by uid 54321: Permission denied" in done.stdout
    assert "set TRITON_CACHE_DIR=/tmp/triton-54321, which can be written here" in done.stdout


def test_no_home_and_an_unknown_user_is_said() -> None:
    done = as_unknown_user({}, Path("/"))
    assert "set by          nothing: HOME is not set, and uid 54321 has no passwd entry" in done.stdout
    assert "D203" in done.stdout


def test_a_directory_of_another_user_cannot_be_read() -> None:
    with tempfile.TemporaryDirectory() as name:  # not below tmp_path, which other users cannot reach at all
        Path(name).chmod(0o700)
        done = as_unknown_user({"TRITON_CACHE_DIR": name}, Path("/"))
    assert "access          not readable, not writable" in done.stdout
    assert "Error: D102" in done.stdout


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("ro", "Error: D101 /mnt/cache: cannot be created in /mnt by uid"),
        ("noexec", "Error: D103 /mnt/cache: /mnt is mounted noexec"),
        ("size=64k", "Error: D104 /mnt/cache: has 65,536 bytes free and needs"),
        ("nr_inodes=20", "Error: D104 /mnt/cache: has 19 inodes free and needs"),
    ],
)
def test_a_mount_that_will_not_do_is_an_error(options: str, found: str) -> None:
    done = private_mount(f"mount -t tmpfs -o {options} none /mnt; {DOCTOR} --cache-dir /mnt/cache")
    assert done.returncode == 1
    assert found in done.stdout
    assert done.stdout.count("Error: ") - done.stdout.count("Error: D113") == 1


def test_a_full_disk_is_a_matter_of_space_and_not_of_rights() -> None:
    fill = "dd if=/dev/zero of=/mnt/big bs=1M count=2 2> /dev/null || true"
    done = private_mount(f"mount -t tmpfs -o size=1m none /mnt; {fill}; {DOCTOR} --cache-dir /mnt")
    assert "D104 /mnt: has 0 bytes free" in done.stdout
    assert "D101" not in done.stdout


def test_a_bundle_that_does_not_fit_is_told_before_it_is_installed(bundle: Bundle) -> None:
    entries = len(bundle.manifest.entries)
    options = f"nr_inodes={4 * entries + 100}"
    done = private_mount(f"mount -t tmpfs -o {options} none /mnt; {DOCTOR} {bundle.path} --cache-dir /mnt")
    assert f"inodes free and needs {4 * entries + 256}" in done.stdout


def test_a_network_file_system_is_a_warning_that_names_a_local_directory(tmp_path: Path) -> None:
    table = f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    section = probe_cache(tmp_path / "cache", None, {"TRITON_CACHE_DIR": str(tmp_path / "cache")}, table)
    (finding,) = section.findings
    assert finding.code == "D201"
    assert "nfs4" in finding.detail
    assert str(tmp_path) not in finding.hint


@pytest.mark.parametrize("kind", ["file", "dangling"])
def test_something_else_in_the_place_of_the_directory_is_an_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache"
    if kind == "file":
        place.write_text("")
    else:
        place.symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(place))
    assert "D101" in codes()


# --- Triton and its tools


@pytest.mark.parametrize(("value", "wrong"), [("1", True), ("On", True), ("0", False), ("", False)])
def test_always_compiling_is_an_error_where_triton_takes_it_for_true(
    value: str, wrong: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cache
    pytest.importorskip("triton")
    from triton import knobs

    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", value)
    assert knobs.compilation.always_compile == wrong
    assert ("D107" in codes()) == wrong


def test_variables_that_enter_the_key_and_a_foreign_cache_manager_are_shown(
    bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cache
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "true")
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "theirs:Manager")
    shown = rows("Triton")
    assert shown["in the key"] == "TRITON_DEFAULT_FP_FUSION=true"
    assert shown["variables"] == "TRITON_CACHE_MANAGER=theirs:Manager"
    assert {"D205", "D108"} <= set(codes(bundle))


def record(root: Path, *names: str) -> Distribution:
    """A distribution of some files, as pip writes its RECORD."""
    lines = []
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n")
        digest = urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{file.stat().st_size}")
    info = root / "triton-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 9.9\n")
    (info / "RECORD").write_text("\n".join([*lines, "triton-9.9.dist-info/RECORD,,", "../bin/tool,sha256=x,1"]))
    return Distribution.at(info)


FILES = ("triton/__init__.py", "triton/compiler/compiler.py", "triton/language/core.py", "triton/_C/libtriton.so")


def test_a_wheel_s_own_files_are_pristine(tmp_path: Path) -> None:
    assert list(changed_files(record(tmp_path, *FILES), tmp_path / "triton")) == []


def test_files_that_were_changed_removed_or_added_are_named(tmp_path: Path) -> None:
    found = record(tmp_path, *FILES)
    (tmp_path / "triton/compiler/compiler.py").write_text("# triton/compiler/compilex.py\n")  # of the same size
    (tmp_path / "triton/language/core.py").unlink()
    (tmp_path / "triton/_C/libtriton.so").write_text("other")
    (tmp_path / "triton/backends/mine").mkdir(parents=True)
    (tmp_path / "triton/backends/mine/compiler.py").write_text("")
    assert set(changed_files(found, tmp_path / "triton")) == {
        "triton/compiler/compiler.py",
        "triton/language/core.py",
        "triton/_C/libtriton.so",
        "triton/backends/mine/compiler.py",
    }


def test_the_triton_of_this_environment_is_pristine(cache: Path) -> None:
    del cache
    pytest.importorskip("triton")
    assert rows("Triton")["sources"] == "as in its wheel"


def test_a_ptxas_that_does_not_run_is_a_warning_and_triton_takes_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cache
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/nonexistent/ptxas")
    from triton import knobs

    shown = rows("assembler")["ptxas"]
    assert shown == f"{knobs.nvidia.ptxas.version} at {knobs.nvidia.ptxas.path}, from the wheel"
    assert "D206" in codes()


def test_no_ptxas_at_all_is_an_error() -> None:
    pytest.importorskip("triton")
    tools = [Tool(name="ptxas"), Tool(name="ptxas-blackwell", path=Path("/x"), chosen_by="the wheel", release="13.3")]
    assert [finding.code for finding in probe_ptxas(tools, {}, None).findings] == ["D118"]


def test_a_ptxas_of_another_release_makes_the_bundle_unfit(
    bundle: Bundle, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cache
    pytest.importorskip("triton")
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    # In a process of its own, since Triton remembers what its ptxas said.
    command = [*DOCTOR.split(), str(bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"ptxas           11.8 at {tool}, from TRITON_PTXAS_PATH" in done.stdout
    assert done.stdout.count("Error: D108") == 1
    assert "the assembler for cuda:90 differs: built with 12.9" in done.stdout


def test_an_option_that_the_environment_changes_makes_the_bundle_unfit(
    bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del cache
    pytest.importorskip("triton")
    monkeypatch.setenv("PTXAS_OPTIONS", "-O1")  # read when Triton is imported
    done = subprocess.run([*DOCTOR.split(), str(bundle.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "option ptx_options was None at the build and is '-O1' here" in done.stdout
    assert "installs here   no" in done.stdout


def test_a_bundle_of_another_triton_is_an_error(bundle: Bundle, cache: Path, tmp_path: Path) -> None:
    del cache
    toolchain = replace(bundle.manifest.toolchain, triton="3.1.0")
    path = tmp_path / "other.tar.zst"
    other = write_bundle(path, replace(bundle.manifest, toolchain=toolchain), dict(bundle.blobs()))
    assert "D108" in codes(other)
    assert rows("bundle", other)["installs here"] == "no"


# --- the engine


@pytest.mark.parametrize(("release", "found"), [("0.33.0+cu130", False), ("0.33.1", True)])
def test_an_engine_of_another_release_is_an_error(
    engine: Engine,
    release: str,
    found: bool,
    bundle: Bundle,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del cache
    info = copy_engine(engine, tmp_path / "site", version=release) / f"vllm-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}\n")
    monkeypatch.syspath_prepend(info.parent)
    assert rows("engine", bundle)["installed"] == f"vllm {release}"
    assert ("I105" in codes(bundle)) == found


# --- GPUs


def test_each_gpu_of_a_mixed_node_is_checked_against_the_bundle(fake_driver: Fake, bundle: Bundle, cache: Path) -> None:
    del cache
    fake_driver("90,86", 12040)
    diagnosis = diagnose(bundle)
    (finding,) = [finding for finding in diagnosis.findings if finding.code in {"D110", "D111", "D112"}]
    assert (finding.code, finding.subject) == ("D110", "Fake A10")
    assert "is sm86, and the kernels are for sm90" in finding.detail
    (section,) = [section for section in diagnosis.sections if section.title == "GPU"]
    assert section.rows == (
        ("driver", "CUDA 12.4"),
        ("GPU", "1 x Fake H100 (sm90)"),
        ("GPU", "1 x Fake A10 (sm86)"),
        ("sm90", "assembled with CUDA 12.9, which this driver loads"),
    )


def test_what_is_installed_is_checked_too(fake_driver: Fake, bundle: Bundle, cache: Path) -> None:
    install_bundle(bundle, cache)
    fake_driver("86", 12040)
    assert "D110" in codes()


def test_a_driver_that_crashes_does_not_crash_the_doctor(fake_driver: Fake, cache: Path) -> None:
    del cache
    fake_driver("90", 12040, "abort()")
    assert "D112" in codes()


@pytest.mark.parametrize(
    ("cuda", "toolkit", "found"),
    [
        ((12, 4), "12.9", []),
        ((13, 0), "12.9", []),
        ((12, 9), "13.3", ["D111"]),
        ((11, 8), "12.0", ["D111"]),
        ((12, 9), "", []),
        (None, "12.9", []),
    ],
)
def test_a_driver_loads_what_its_own_or_an_older_major_assembled(
    cuda: tuple[int, int] | None, toolkit: str, found: list[str]
) -> None:
    driver = Driver(cuda=cuda, gpus=(Gpu(name="H100", arch=90),))
    assert [finding.code for finding in probe_gpus(driver, [SM90], {SM90: toolkit}).findings] == found


def test_no_driver_is_said_and_no_finding() -> None:
    section: Section = probe_gpus(None, [SM90], {SM90: "12.9"})
    assert section.findings == ()
    assert "nothing can be launched here" in dict(section.rows)["driver"]


# --- native helpers


@pytest.mark.parametrize("environment", [{"PATH": "/nonexistent"}, {"CC": "/nonexistent/cc"}])
def test_without_a_compiler_and_without_helpers_triton_cannot_start(
    environment: dict[str, str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert "D113" in codes()
    for name in ("cuda_utils", "__triton_launcher"):
        helper = cache / name / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        helper.parent.mkdir()
        helper.write_bytes(b"")
    assert "D113" not in codes()


def test_without_ldconfig_triton_cannot_look_for_the_driver() -> None:
    pytest.importorskip("triton")
    hide = "mount -t tmpfs none /mnt; for at in /sbin /usr/sbin; do mount --bind /mnt $at; done"
    done = private_mount(f"{hide}; {DOCTOR} || true; TRITON_LIBCUDA_PATH=/lib {DOCTOR} || true")
    assert done.stdout.count("ldconfig        none") == 2
    assert done.stdout.count("Error: D114") == 1


# --- what is installed


def test_a_damaged_receipt_is_named_and_hides_no_other(bundle: Bundle, cache: Path) -> None:
    install_bundle(bundle, cache)
    (receipt,) = read_receipts(cache)
    damaged = receipt.path.with_name("0" * 64 + ".json")
    damaged.write_bytes(receipt.path.read_bytes()[:100])
    diagnosis = diagnose()
    assert [finding.subject for finding in diagnosis.errors if finding.code == "D115"] == [str(damaged)]
    assert any(bundle.path.name in value for value in rows("installed").values())


def test_a_directory_that_was_moved_is_an_error_and_a_link_to_it_is_not(
    bundle: Bundle, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_bundle(bundle, cache)
    link = tmp_path / "link"
    link.symlink_to(cache)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(link))
    assert "D116" not in codes()
    moved = cache.rename(tmp_path / "moved")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(moved))
    (finding,) = [finding for finding in diagnose().errors if finding.code == "D116"]
    assert f"was installed into {cache}, and lies in {moved} now" in finding.detail


def test_what_was_installed_for_another_triton_is_an_error_without_the_bundle_too(bundle: Bundle, cache: Path) -> None:
    install_bundle(bundle, cache)
    assert "D108" not in codes()
    name = next(file.path for file in read_receipts(cache)[0].files if file.path.endswith(".json"))
    metadata = json.loads((cache / name).read_text())
    (cache / name).write_text(json.dumps({**metadata, "triton_version": "3.1.0"}))
    (finding,) = [finding for finding in diagnose().errors if finding.code == "D108"]
    assert "its kernels are of Triton 3.1.0, and this environment has" in finding.detail


def test_an_installed_bundle_that_triton_would_not_find_is_an_error(bundle: Bundle, cache: Path) -> None:
    entries = len(bundle.manifest.entries)
    assert rows("bundle", bundle)["in the cache"] == f"0 of {entries}"
    assert "D117" not in codes(bundle)  # it is not installed yet
    install_bundle(bundle, cache)
    next(cache.glob("*/*.cubin")).unlink()
    assert rows("bundle", bundle)["in the cache"] == f"{entries - 1} of {entries}"
    assert "D117" in codes(bundle)


def test_a_file_that_is_no_bundle_could_not_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    result: Result = run("doctor", tmp_path / "x")
    assert result.exit_code == 3


def test_errors_and_warnings_of_the_doctor_are_told_apart_by_their_codes() -> None:
    assert {code[1] for code in CODES if code.startswith("D")} == {"1", "2"}
