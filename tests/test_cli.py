"""The command line: what users read, and one clear line with the right exit code for every bad input."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from aotpack.build import Built
from aotpack.cli import main
from aotpack.engines import Engine
from aotpack.findings import CODES
from aotpack.models import presets
from tests.archives import tree
from tests.conftest import ROOT, needs_compiler
from tests.engines import change, copy_engine

CORE = ("click", "packaging", "platformdirs", "zstandard")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="aotpack")


def one_error(result: Result) -> str:
    """The one line on stderr, without a traceback or a word on stdout."""
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert "Traceback" not in result.stderr
    return lines[0]


@pytest.mark.parametrize("command", ["", *sorted(main.commands)])
def test_help_does_not_change_unnoticed(command: str, golden: Callable[[str, str], None]) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    golden(f"help{'-' if command else ''}{command}.txt", result.stdout)


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_examples_and_every_option_a_help(command: str) -> None:
    found = main.commands[command]
    assert f"aotpack {command} " in (found.help or "")
    assert all(option.help for option in found.params if isinstance(option, click.Option))


def test_every_finding_code_says_what_it_is_about() -> None:
    assert all(text and not text.endswith(".") for text in CODES.values())


def test_a_missing_architecture_is_a_usage_error() -> None:
    result = run("build")
    assert result.exit_code == 2
    assert "Missing option '--arch'" in result.stderr


@pytest.mark.parametrize("arch", ["sm_9", "hopper", "sm90,", ""])
def test_an_unknown_architecture_lists_what_can_be_built(arch: str) -> None:
    result = run("build", "--arch", arch)
    assert result.exit_code == 2
    assert "choose from sm80, sm86" in one_error(result)


@pytest.mark.parametrize("tp", ["0", "1,x", "-1", ""])
def test_a_size_that_is_no_number_is_a_usage_error(tp: str) -> None:
    result = run("keys", "--arch", "sm90", "--tp", tp)
    assert result.exit_code == 2
    assert "is not a comma list of whole numbers such as 1,2,4,8" in one_error(result)


def test_an_unknown_model_is_a_usage_error_that_lists_the_presets() -> None:
    needs_compiler()
    result = run("build", "--arch", "sm90", "--model", "qwen9")
    assert result.exit_code == 2
    assert all(name in one_error(result) for name in presets())


def test_a_configuration_without_a_needed_field_names_it(tmp_path: Path) -> None:
    needs_compiler()
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    result = run("build", "--arch", "sm90", "--model", tmp_path, "-o", tmp_path)
    assert result.exit_code == 3
    assert "config.json: num_attention_heads: missing" in one_error(result)


def test_an_unreadable_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_compiler()
    monkeypatch.setenv("AOTPACK_CACHE_DIR", str(tmp_path / "cache"))
    wheel = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    wheel.write_text("no zip")
    result = run("build", "--arch", "sm90", "--engine", wheel, "-o", tmp_path)
    assert result.exit_code == 3
    assert "not a readable wheel" in one_error(result)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [wheel.name]


def test_an_engine_without_the_kernel_is_named(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    folder = copy_engine(engine, tmp_path / "engine")
    change(folder, "vllm.v1.worker.mamba_utils", "batch_memcpy_kernel", "renamed_kernel")
    out = tmp_path / "out"
    out.mkdir()
    result = run("build", "--arch", "sm90", "--engine", folder, "--family", "memcpy", "-o", out)
    assert result.exit_code == 3
    assert "has no kernel vllm.v1.worker.mamba_utils:batch_memcpy_kernel" in one_error(result)
    assert list(out.iterdir()) == []


def test_an_engine_that_was_not_tested_is_a_warning_that_says_what_was_checked(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    folder = copy_engine(engine, tmp_path / "engine", version="0.34.0")
    result = run("keys", "--arch", "sm90", "--engine", folder, "--family", "memcpy", "--model", "qwen3.5-0.8b")
    assert result.exit_code == 0
    assert (
        "Warning: E101 vllm 0.34.0: aotpack has been tested with 0.26.0, 0.33.0; of this release only the kernels'"
        in (result.stderr)
    )


def bare_python(folder: Path) -> Path:
    """A Python that has aotpack and its core dependencies, and neither torch nor Triton."""
    venv.create(folder, symlinks=True)
    packages = folder / "packages"
    packages.mkdir()
    for name in CORE:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    (site / "bare.pth").write_text(f"{packages}\n{ROOT}\n")
    return folder / "bin" / "python"


def test_without_triton_inspect_works_and_build_and_install_say_what_is_missing(built: Built, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")

    def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "aotpack", *map(str, arguments)], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    assert bare("--help").returncode == 0
    shown = bare("inspect", built.bundle.path)
    assert shown.returncode == 0
    assert built.bundle.digest in shown.stdout
    building = bare("build", "--arch", "sm90")
    assert building.returncode == 3
    assert "needs torch, triton and numpy, which this environment lacks; install aotpack[build]" in building.stderr
    installing = bare("install", built.bundle.path, "--cache-dir", tmp_path / "cache")
    assert installing.returncode == 3
    assert "Triton cannot be imported in this environment" in installing.stderr
    assert not (tmp_path / "cache").exists()


def test_inspect_shows_what_a_bundle_holds(built: Built) -> None:
    text = run("inspect", built.bundle.path)
    assert text.exit_code == 0
    for shown in (built.bundle.digest, "vllm 0.33.0", "sm90", "qwen3.5-27b tp4 bfloat16", "missing     none"):
        assert shown in text.stdout
    document = json.loads(run("inspect", "--json", built.bundle.path).stdout)
    assert document["version"] == 1
    assert document["digest"] == built.bundle.digest
    assert document["manifest"] == built.bundle.manifest.to_json()


def test_inspect_tells_the_bytes_of_a_key_and_of_each_family(built: Built) -> None:
    manifest = built.bundle.manifest
    document = json.loads(run("inspect", "--json", built.bundle.path).stdout)
    assert document["bytes_per_key"] == built.bundle.path.stat().st_size // len(manifest.entries)
    families = {family.pop("family"): family for family in document["families"]}
    assert list(families) == list(manifest.families)
    assert sum(family["keys"] for family in families.values()) == len(manifest.entries)
    # No artifact of these is another family's too.
    artifacts = {artifact for entry in manifest.entries for _, artifact in entry.artifacts}
    assert sum(family["unpacked_bytes"] for family in families.values()) == sum(one.size for one in artifacts)
    text = run("inspect", built.bundle.path).stdout
    for name, family in families.items():
        each = family["unpacked_bytes"] // family["keys"]
        assert family["unpacked_bytes_per_key"] == each
        assert re.search(rf"^ +{name} +{family['keys']} +{family['unpacked_bytes']:,} +{each:,}$", text, re.MULTILINE)


def test_a_truncated_bundle_is_refused(built: Built, tmp_path: Path) -> None:
    (tmp_path / "cut.tar.zst").write_bytes(built.bundle.path.read_bytes()[:-100])
    result = run("install", tmp_path / "cut.tar.zst", "--cache-dir", tmp_path / "cache")
    assert result.exit_code == 3
    assert "truncated" in one_error(result)
    assert [path for path in tree(tmp_path / "cache") if not path.startswith(".aotpack")] == []


def test_install_and_uninstall_say_what_they_did(built: Built, tmp_path: Path) -> None:
    first = run("install", built.bundle.path, "--cache-dir", tmp_path)
    count = len(built.bundle.manifest.entries)
    assert (first.exit_code, first.stdout) == (0, "")
    assert f"installed {count} kernels into {tmp_path}; to take them out: aotpack uninstall" in first.stderr
    again = run("install", built.bundle.path, "--cache-dir", tmp_path)
    assert f"installed 0 kernels into {tmp_path}, {count} were there" in again.stderr
    word = first.stderr.split()[-1]
    removed = run("uninstall", word, "--cache-dir", tmp_path)
    assert removed.exit_code == 0
    assert f"removed {3 * count + 1} files from {tmp_path}" in removed.stderr  # the manifest too
    assert run("uninstall", word, "--cache-dir", tmp_path).exit_code == 2


def test_an_uninstall_that_found_a_changed_file_exits_with_1(built: Built, tmp_path: Path) -> None:
    word = run("install", built.bundle.path, "--cache-dir", tmp_path).stderr.split()[-1]
    next(tmp_path.rglob("*.cubin")).write_bytes(b"changed")
    result = run("uninstall", word, "--cache-dir", tmp_path)
    assert result.exit_code == 1
    assert "Warning: I101" in result.stderr


def test_the_cache_directory_comes_from_the_environment(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert run("install", built.bundle.path).exit_code == 0
    assert list((tmp_path / ".triton" / "cache").glob("*/*.cubin"))


def private_mount(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    command = ["unshare", "--mount", "sh", "-euc", script]
    if os.geteuid():
        command.insert(1, "--map-root-user")
    if subprocess.run([*command[:-1], "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode:
        pytest.skip("needs a mount namespace")
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_cache_that_cannot_be_written_is_refused(built: Built) -> None:
    install = f"{sys.executable} -m aotpack install {built.bundle.path} --cache-dir /mnt/cache"
    done = private_mount(f"mount -t tmpfs -o ro none /mnt; {install}")
    assert done.returncode == 3
    assert "Error: /mnt/cache: Read-only file system" in done.stderr
    assert "choose a writable directory with --cache-dir" in done.stderr


def test_a_disk_that_fills_up_leaves_no_half_entry(built: Built) -> None:
    install = f"{sys.executable} -m aotpack install {built.bundle.path} --cache-dir /mnt/cache"
    done = private_mount(f"mount -t tmpfs -o size=100k none /mnt; {install} || code=$?; find /mnt -type f; exit $code")
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert done.stdout == ""


def test_a_disk_that_fills_up_leaves_no_half_bundle(engine: Engine) -> None:
    needs_compiler()
    build = f"{sys.executable} -m aotpack build -q --arch sm90 --family layernorm --model qwen3.5-0.8b"
    build += f" --python none --engine {engine.root} -o /mnt"
    done = private_mount(f"mount -t tmpfs -o size=4k none /mnt; {build} || code=$?; find /mnt -type f; exit $code")
    assert done.returncode == 3
    assert "cannot be written: No space left on device; nothing is left there" in done.stderr
    assert done.stdout == ""


def living(group: int) -> list[str]:
    """The processes of a process group that still run, as Linux's /proc tells."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(") ")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(process_group) == group and state != "Z":
            found.append(stat.parent.name)
    return found


SOME_KEYS = ("--arch", "sm90", "--model", "qwen3.5-27b", "--family", "gdn", "--gdn-prefill", "triton")
"""Of a build that takes far longer than to its first key."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_leaves_nothing(engine: Engine, tmp_path: Path, number: int, code: int) -> None:
    needs_compiler()
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    out.mkdir()
    scratch.mkdir()
    build = subprocess.Popen(
        [sys.executable, "-m", "aotpack", "build", "--engine", engine.root, *SOME_KEYS, "-o", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,
    )
    try:
        while not list(scratch.rglob("*.cubin")) and build.poll() is None:
            time.sleep(0.05)  # until it is in the middle of compiling
        if number == signal.SIGINT:
            os.killpg(build.pid, number)  # as a terminal does
        else:
            build.send_signal(number)
        stdout, stderr = build.communicate(timeout=300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(build.pid, signal.SIGKILL)
    assert (build.returncode, stdout) == (code, "")
    assert "Traceback" not in stderr
    assert list(out.iterdir()) == []
    assert list(scratch.iterdir()) == []
    deadline = time.monotonic() + 10
    while living(build.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living(build.pid) == []


def test_keys_lists_keys_with_their_inputs_as_text_and_as_json(engine: Engine) -> None:
    needs_compiler()
    selection = ["--arch", "9.0", "--model", "qwen3-vl-2b", "--tp", "1,2", "--family", "mrope"]
    arguments = ("keys", "--engine", engine.root, *selection)
    text = run(*arguments)
    assert text.exit_code == 0
    assert text.stdout.count("reached by qwen3-vl-2b tp2 bfloat16: tokens=") == 3
    document = json.loads(run(*arguments, "--json").stdout)
    assert (document["version"], document["engine"]["version"], len(document["keys"])) == (1, "0.33.0", 7)


def test_presets_that_a_size_does_not_fit_are_left_out_without_model(engine: Engine) -> None:
    needs_compiler()
    result = run("keys", "--arch", "sm90", "--engine", engine.root, "--tp", "8", "--json", "--family", "mrope")
    names = {deployment["model"]["name"] for deployment in json.loads(result.stdout)["deployments"]}
    assert names == set(presets()) - {"qwen2.5-vl-7b"}


def test_completion_offers_architectures_and_presets() -> None:
    environment = {**os.environ, "_AOTPACK_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    script = "from aotpack.cli import main; main(prog_name='aotpack')"
    for words, offered in (
        ("aotpack build --arch sm9", "plain,sm90"),
        ("aotpack keys --model qwen3-next", "plain,qwen3-next"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**environment, "COMP_WORDS": words},
            capture_output=True,
            text=True,
            check=False,
        )
        assert offered in done.stdout


def test_verify_of_a_bundle_file_says_that_all_is_well(built: Built) -> None:
    result = run("verify", built.bundle.path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "all is well" in result.stderr


def test_verify_names_what_is_wrong_and_heals_it(built: Built, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert run("install", built.bundle.path, "--cache-dir", cache).exit_code == 0
    next(cache.glob("*/*.cubin")).unlink()
    result = run("verify", "--cache-dir", cache)
    assert result.exit_code == 1
    assert result.stdout.startswith("V111 ")
    assert ".cubin is missing; aotpack verify --fix" in result.stdout
    document = json.loads(run("verify", "--cache-dir", cache, "--json").stdout)
    assert (document["version"], [finding["code"] for finding in document["findings"]]) == (1, ["V111"])
    healed = run("verify", "--cache-dir", cache, "--fix", "--json")
    assert healed.exit_code == 0
    document = json.loads(healed.stdout)
    assert [remedy["action"] for remedy in document["remedies"]] == ["laid anew"]
    assert (len(document["before"]["findings"]), document["after"]["findings"]) == (1, [])
    assert run("verify", "--cache-dir", cache, built.bundle.path.name).exit_code == 0


def test_verify_says_what_it_took_out(built: Built, tmp_path: Path) -> None:
    cache, bundle = tmp_path / "cache", tmp_path / "bundle.tar.zst"
    shutil.copy(built.bundle.path, bundle)
    assert run("install", bundle, "--cache-dir", cache).exit_code == 0
    bundle.unlink()
    broken = next(cache.glob("*/*.cubin"))
    broken.write_bytes(b"")
    result = run("verify", "--cache-dir", cache, "--fix")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"taken out: {broken.parent.name}: {broken.name} is not what was installed\n")


def test_verify_without_anything_installed_says_what_to_do(tmp_path: Path) -> None:
    result = run("verify", "--cache-dir", tmp_path)
    assert result.exit_code == 1
    assert "V116" in result.stdout
    assert "aotpack install BUNDLE installs" in result.stdout


def test_a_bundle_to_heal_from_needs_fix(built: Built) -> None:
    result = run("verify", "--bundle", built.bundle.path)
    assert result.exit_code == 2
    assert "add --fix" in one_error(result)
