"""Installing where it is made hard: strange users, directories that cannot be written, and others at work."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.build import Built, Selection, build_bundle
from aotpack.bundle import Bundle, open_bundle, write_bundle
from aotpack.cachedirectory import effective_directory
from aotpack.deployments import make_services
from aotpack.engines import Engine
from aotpack.errors import CacheError
from aotpack.install import install_bundle, uninstall
from aotpack.models import load_model
from aotpack.receipts import OURS
from aotpack.targets import Target
from aotpack.verify import verify_bundle, verify_cache
from tests.archives import tree
from tests.conftest import ROOT

STRANGER = 1000800000

# Everything is imported and asked once before the user changes: a stranger may not be able to read this Python.
AS_STRANGER = """
import os, shutil, sys
from pathlib import Path
from click.testing import CliRunner
import aotpack.report.install, aotpack.verify
from aotpack.bundle import open_bundle
from aotpack.cli import main
from aotpack.install import install_bundle
bundle, scratch, *arguments = sys.argv[1:]
install_bundle(open_bundle(Path(bundle)), Path(scratch) / "warm")
shutil.rmtree(Path(scratch) / "warm")
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(STRANGER, STRANGER, STRANGER)
if os.environ.get("HOME") == "unset":
    del os.environ["HOME"]
result = CliRunner().invoke(main, arguments, prog_name="aotpack")
print(result.output, end="")
sys.exit(result.exit_code)
""".replace("STRANGER", str(STRANGER))


@pytest.fixture(scope="session")
def small(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    bundle = open_bundle(built.bundle.path)
    manifest = replace(bundle.manifest, entries=bundle.manifest.entries[:3])
    folder = tmp_path_factory.mktemp("small")
    return write_bundle(folder / "small.tar.zst", manifest, dict(bundle.blobs()))


def as_stranger(
    bundle: Bundle, scratch: Path, arguments: Sequence[object], home: str
) -> subprocess.CompletedProcess[str]:
    """A command line run by a user that no passwd file knows."""
    opened = [path for path in (bundle.path.parent, scratch, *scratch.parents) if path.stat().st_uid == os.getuid()]
    for path in opened:
        if path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    command = [sys.executable, "-c", AS_STRANGER, str(bundle.path), str(scratch), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "VLLM_"))}
    environment |= {"HOME": home, "TMPDIR": "/tmp"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_root_directory_as_home_is_one_line_that_says_what_works(small: Bundle, tmp_path: Path) -> None:
    done = as_stranger(small, tmp_path, ["install", small.path], "/")
    assert done.returncode == 3, done.stderr
    assert done.stdout.count("\n") == 1
    for part in ("Error: /.triton: Permission denied", "/.triton/cache (where Triton looks", "HOME is /"):
        assert part in done.stdout
    uid = STRANGER if os.getuid() == 0 else os.getuid()
    assert f"give the server the same one: TRITON_CACHE_DIR=/tmp/triton-{uid} works here" in done.stdout


def test_no_home_at_all_is_refused_since_triton_would_look_anywhere(small: Bundle, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become a user that no passwd file knows")
    done = as_stranger(small, tmp_path, ["install", small.path], "unset")
    assert done.returncode == 3, done.stderr
    assert f"Error: no home directory: HOME is unset and user {STRANGER} has no passwd entry" in done.stdout
    assert "TRITON_CACHE_DIR=/tmp/triton-" in done.stdout


def test_a_home_of_someone_else_is_one_line_for_every_command(small: Bundle, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a directory of someone else")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for arguments in (["install", small.path], ["verify"], ["verify", "--fix"], ["uninstall", "small"]):
        done = as_stranger(small, tmp_path, arguments, str(home))
        assert done.returncode == 3, done.stderr
        assert done.stdout.count("\n") == 1
        assert "Permission denied" in done.stdout
    assert list(home.iterdir()) == []


def test_an_unknown_user_installs_and_verifies_where_it_may_write(small: Bundle, tmp_path: Path) -> None:
    cache = tmp_path / "open"
    cache.mkdir()
    cache.chmod(0o777)
    done = as_stranger(small, tmp_path, ["install", small.path, "--cache-dir", cache / "a b"], "/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.stat().st_mode & 0o777 for path in cache.rglob("*") if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in cache.rglob("*") if path.is_file()} == {0o644}
    assert as_stranger(small, tmp_path, ["verify", "--cache-dir", cache / "a b"], "/").returncode == 0


def test_a_directory_of_someone_else_is_refused_and_stays_as_it_is(small: Bundle, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a directory of someone else")
    cache = tmp_path / "cache"
    install_bundle(small, cache)
    (cache / OURS / f"staging-{os.uname().nodename}-theirs").mkdir(mode=0o700)
    before = tree(cache)
    uninstalled = as_stranger(small, tmp_path, ["uninstall", "small.tar.zst", "--cache-dir", cache], "/")
    assert uninstalled.returncode == 3
    assert "Permission denied; the cache" in uninstalled.stdout
    next(cache.glob("*/*.cubin")).unlink()
    fixed = as_stranger(small, tmp_path, ["verify", "--fix", "--cache-dir", cache], "/")
    assert fixed.returncode == 3
    assert "Permission denied; the cache" in fixed.stdout
    assert set(before) - set(tree(cache)) == {str(next(iter(set(before) - set(tree(cache)))))}


def test_the_staging_of_a_foreign_owner_is_passed_over(small: Bundle, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a directory of someone else")
    home = tmp_path / "cache" / OURS
    theirs = home / f"staging-{os.uname().nodename}-theirs"
    theirs.mkdir(parents=True, mode=0o700)
    (theirs / "half").write_text("")
    for path in (tmp_path / "cache", home):
        path.chmod(0o777)
    done = as_stranger(small, tmp_path, ["install", small.path, "--cache-dir", tmp_path / "cache"], "/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (theirs / "half").exists()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TRITON_CACHE_DIR": "/a b/c"}, "/a b/c"),
        ({"TRITON_CACHE_DIR": "", "TRITON_HOME": "/h"}, "/h/.triton/cache"),
        ({"HOME": "/"}, "/.triton/cache"),
        ({"HOME": ""}, "/.triton/cache"),
    ],
)
def test_the_directory_is_the_one_that_triton_takes(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert effective_directory() == Path(expected)
    asked = [sys.executable, "-c", "import os; from triton import knobs; print(os.path.abspath(knobs.cache.dir))"]
    if expected.startswith("/.triton"):  # Triton reads HOME as it is imported
        assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip() == expected


def test_a_cache_below_links_and_with_a_space_is_used_as_it_is_spelled(small: Bundle, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "a link").symlink_to(tmp_path / "real")
    cache = tmp_path / "a link" / "my cache"
    install_bundle(small, cache)
    group = next(cache.glob("*/__grp__*"))
    paths = json.loads(group.read_text())["child_paths"].values()
    assert {Path(path).parent for path in paths} == {group.parent}
    assert verify_cache(cache).findings == ()


INSTALL = """
import sys
from pathlib import Path
from aotpack.bundle import open_bundle
from aotpack.install import install_bundle
bundle = open_bundle(Path(sys.argv[1]))
sys.stdin.readline()
print(install_bundle(bundle, Path(sys.argv[2])).written)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Let all go on at once, and what each of them said."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate() for process in processes]
    assert [error for _, error in outputs] == [""] * len(processes)
    return [output.strip() for output, _ in outputs]


@pytest.mark.slow
def test_sixteen_processes_install_at_once_and_leave_one_result(small: Bundle, tmp_path: Path) -> None:
    install_bundle(small, tmp_path / "cache")
    one = tree(tmp_path / "cache")
    (tmp_path / "cache").rename(tmp_path / "one")
    written = finish([start(INSTALL, small.path, tmp_path / "cache") for _ in range(16)])
    assert sorted(written) == ["0"] * 15 + ["3"]
    assert tree(tmp_path / "cache") == one


COMPILE = """
import os, sys, time
from pathlib import Path
os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
from tests.faults import compile_it, expected, lookup
entries = expected(Path(sys.argv[2]))
sys.stdin.readline()
until = time.monotonic() + 8
while time.monotonic() < until:
    for entry in entries:
        if not lookup(entry):
            compile_it(entry)
"""

LOOK_UP = """
import os, sys
from pathlib import Path
os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
from tests.faults import expected, lookup
assert all(lookup(entry) for entry in expected(Path(sys.argv[2])))
"""

INSTALL_AND_UNINSTALL = """
import sys, time
from pathlib import Path
from aotpack.bundle import open_bundle
from aotpack.install import install_bundle, uninstall
bundle = open_bundle(Path(sys.argv[1]))
sys.stdin.readline()
until = time.monotonic() + 6
while time.monotonic() < until:
    uninstall(install_bundle(bundle, Path(sys.argv[2])).receipt)
install_bundle(bundle, Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_triton_compiles_while_others_install_and_uninstall_and_nobody_raises(small: Bundle, tmp_path: Path) -> None:
    install_bundle(small, tmp_path / "clean")
    cache = tmp_path / "cache"
    finish(
        [start(COMPILE, cache, tmp_path / "clean") for _ in range(2)]
        + [start(INSTALL_AND_UNINSTALL, small.path, cache) for _ in range(2)]
    )
    # Whoever was last: an install, a compile, or, where the two met, the one's group file and the other's code.
    assert {finding.code for finding in verify_cache(cache).findings} <= {"V112", "V114"}
    finish([start(LOOK_UP, cache, tmp_path / "clean")])


@pytest.mark.slow
def test_a_bundle_for_two_architectures_of_one_node_lands_whole(engine: Engine, tmp_path: Path) -> None:
    targets = (Target("cuda", 80), Target("cuda", 90), Target("cuda", 100))
    services = make_services([load_model("qwen3.5-0.8b")], [1])
    selection = Selection(engine=engine, targets=targets, families=("layernorm",), services=services)
    bundle = build_bundle(selection, output=tmp_path, jobs=2).bundle
    assert verify_bundle(bundle.path).findings == ()
    cache = tmp_path / "cache"
    install_bundle(bundle, cache)
    assert verify_cache(cache).findings == ()
    found = {json.loads(path.read_text())["target"]["arch"] for path in cache.glob("*/[!_]*.json")}
    assert found == {80, 90, 100}
    one = tmp_path / "one"
    install_bundle(bundle, one, targets=[targets[1]])
    assert verify_cache(one).entries == verify_cache(cache).entries // 3
    receipt = install_bundle(bundle, one, targets=[targets[0]]).receipt
    assert verify_cache(one).entries == verify_cache(cache).entries // 3 * 2
    uninstall(receipt)
    assert tree(one) == {}


@pytest.mark.parametrize("made", ["file", "file below"])
def test_a_file_in_the_way_is_named(small: Bundle, tmp_path: Path, made: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"file.*(Not a directory|File exists).*choose a writable directory"):
        install_bundle(small, tmp_path / "file" / "cache" if made == "file below" else tmp_path / "file")
