"""Load time: what is served to Triton in a process, wherever its cache is, whoever it is, and whatever is damaged."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aotpack.build import Built
from aotpack.bundle import Bundle, write_bundle
from aotpack.engines import Engine
from aotpack.fitting import fit_bundle
from aotpack.install import install_bundle
from aotpack.packed import keep_packed
from aotpack.record import read_launches
from aotpack.store import Store, open_store, unpack_store
from tests.archives import tree
from tests.conftest import ROOT
from tests.engines import change, copy_engine

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

Serve = Callable[..., Any]

ACTIVATE = "import aotpack; aotpack.activate()"
LOOK_UP = f"{ACTIVATE}; say(**serving.look_up())"


@pytest.fixture(scope="module")
def bundle(built: Built) -> Bundle:
    return built.bundle


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that every user may read, as those of pytest are not."""
    directory = Path(tempfile.mkdtemp(prefix="aotpack-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def original(bundle: Bundle, place: Path) -> Store:
    return unpack_store(bundle, place / "store")


@pytest.fixture
def store(original: Store, tmp_path: Path) -> Store:
    """One to be damaged."""
    return open_store(Path(shutil.copytree(original.directory, tmp_path / "a-store")))


@pytest.fixture
def serve(bundle: Bundle, engine: Engine, tmp_path: Path) -> Serve:
    """Runs code in a process of its own, with ``serving`` and with variables."""

    def run(code: str, *, check: bool = True, start: bool = False, **variables: object) -> Any:
        script = f"from tests.serving import *; serving = Serving()\n{code}"
        environment = {
            **os.environ,
            "TRITON_CACHE_DIR": str(tmp_path / "triton"),
            "AOTPACK_LOG_LEVEL": "INFO",
            **{name: str(value) for name, value in variables.items()},
        }
        command = [sys.executable, "-c", script, str(bundle.path), str(engine.root)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if start:
            return process
        out, err = process.communicate(timeout=300)
        assert not check or process.returncode == 0, err
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


def said(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout.splitlines()[-1])


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("WARNING aotpack ")]


# What is served


def test_a_store_serves_every_key_in_place_and_nothing_is_written(
    serve: Serve, bundle: Bundle, original: Store, tmp_path: Path
) -> None:
    before = tree(original.directory)
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=original.directory)
    assert said(done) == {"found": len(bundle.manifest.entries), "errors": [], "in": [f"{original.directory}/blobs"]}
    assert not (tmp_path / "triton").exists()
    assert tree(original.directory) == before
    assert warnings(done) == []
    (line,) = done.stderr.splitlines()
    served = f"serving {len(bundle.manifest.entries)} keys of vllm 0.33.0 for sm90 in {original.directory}"
    assert line.startswith("INFO aotpack [")
    assert line.endswith(f"]: {served}")


def test_a_bundle_is_unpacked_once_into_a_directory_of_this_user(serve: Serve, bundle: Bundle, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for _ in range(2):
        done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=bundle.path, TMPDIR=temporary)
        assert said(done)["found"] == len(bundle.manifest.entries)
    (home,) = temporary.iterdir()
    assert (home.name, home.stat().st_mode & 0o777) == (f"aotpack-{os.getuid()}", 0o700)
    assert [path.name for path in home.iterdir()] == [bundle.digest.removeprefix("sha256:")]


def test_a_directory_of_packed_bundles_serves_what_fits_and_the_rest_stays_packed(
    serve: Serve, bundle: Bundle, tmp_path: Path
) -> None:
    toolchain = replace(bundle.manifest.toolchain, triton="3.1.0")
    other = write_bundle(
        tmp_path / "another-triton.tar.zst", replace(bundle.manifest, toolchain=toolchain), dict(bundle.blobs())
    )
    for one in (other, bundle):
        keep_packed(one.path, tmp_path / "packed")
    (tmp_path / "packed" / "damaged.tar.zst").write_bytes(bundle.path.read_bytes()[:100])
    (tmp_path / "packed" / "notes.txt").write_text("not for us")
    (tmp_path / "tmp").mkdir()
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=tmp_path / "packed", TMPDIR=tmp_path / "tmp")
    assert said(done)["found"] == len(bundle.manifest.entries)
    warned = warnings(done)
    assert ["another-triton.tar.zst: is for Triton 3.1.0" in line for line in warned] == [True, False]
    assert ["damaged.tar.zst" in line for line in warned] == [False, True]
    (home,) = (tmp_path / "tmp").iterdir()
    assert [path.name for path in home.iterdir()] == [bundle.digest.removeprefix("sha256:")]


def test_packed_bundles_beside_what_is_installed_serve_too(serve: Serve, bundle: Bundle, tmp_path: Path) -> None:
    half = len(bundle.manifest.entries) // 2
    for name, entries in (("a", bundle.manifest.entries[:half]), ("b", bundle.manifest.entries[half:])):
        manifest = replace(bundle.manifest, entries=entries)
        one = write_bundle(tmp_path / f"{name}.tar.zst", manifest, dict(bundle.blobs()))
        if name == "a":
            install_bundle(one, tmp_path / "both")
        else:
            keep_packed(one.path, tmp_path / "both")
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=tmp_path / "both", TMPDIR=tmp_path)
    assert (said(done)["found"], warnings(done)) == (len(bundle.manifest.entries), [])


def test_a_directory_that_others_may_write_in_is_not_unpacked_into(
    serve: Serve, bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / f"aotpack-{os.getuid()}").mkdir()
    (tmp_path / f"aotpack-{os.getuid()}").chmod(0o777)
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=bundle.path, TMPDIR=tmp_path)
    assert said(done)["found"] == 0
    assert "others may write in it" in warnings(done)[0]
    assert list((tmp_path / f"aotpack-{os.getuid()}").iterdir()) == []


def test_to_serve_what_is_installed_nothing_is_loaded_that_reads_bundles(bundle: Bundle, place: Path) -> None:
    install_bundle(bundle, place / "installed")
    script = (
        "import sys; import aotpack; aotpack.activate(); from aotpack import runtime\n"
        "print(len(runtime.served_places()), {'aotpack.manifest', 'aotpack.engines', 'zstandard'} & set(sys.modules))"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(place / "installed")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1 set()\n", "")


def test_what_is_installed_is_served_after_the_cache_directory_has_moved(
    serve: Serve, bundle: Bundle, tmp_path: Path
) -> None:
    install_bundle(bundle, tmp_path / "triton")
    moved = f"{ACTIVATE}; os.environ['TRITON_CACHE_DIR'] = '{tmp_path}/moved'; say(**serving.look_up())"
    assert said(serve(moved))["found"] == len(bundle.manifest.entries)
    assert not (tmp_path / "moved").exists()
    without = said(serve(moved, AOTPACK_DISABLE=1))
    assert (without["found"], len(without["errors"])) == (0, len(bundle.manifest.entries))


def test_several_places_serve_together_and_one_that_is_none_is_one_warning(
    serve: Serve, bundle: Bundle, original: Store, tmp_path: Path
) -> None:
    install_bundle(bundle, tmp_path / "installed")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    none = ["empty", "file", "missing"]
    listed = ":".join(["", *(str(tmp_path / name) for name in [*none, "installed"]), str(original.directory)])
    done = serve(f"{LOOK_UP}; {ACTIVATE}", AOTPACK_BUNDLE_PATH=listed)
    assert said(done)["in"] != []
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert len(warnings(done)) == len(none)
    for name, found in zip(none, ["a directory of something else", "another file", "nothing"], strict=True):
        assert any(
            f"{tmp_path / name}: expected a store" in line and f"found {found};" in line for line in warnings(done)
        )
    shutil.rmtree(tmp_path / "installed")
    strict = serve(ACTIVATE, check=False, AOTPACK_BUNDLE_PATH=tmp_path / "missing", AOTPACK_STRICT=1)
    assert strict.returncode == 1
    assert "BundleError" in strict.stderr


def test_what_is_named_later_is_served_from_then_on(serve: Serve, bundle: Bundle, original: Store) -> None:
    done = serve(
        f"{ACTIVATE}; say(**serving.look_up()); os.environ['AOTPACK_BUNDLE_PATH'] = '{original.directory}'\n{LOOK_UP}"
    )
    assert [json.loads(line)["found"] for line in done.stdout.splitlines()] == [0, len(bundle.manifest.entries)]


def wheel(site: Path, original: Store, package: str) -> None:
    """What pip leaves of a wheel that carries a bundle."""
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text("raise RuntimeError('imported')")
    (site / package / "store").symlink_to(original.directory)
    info = site / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[aotpack.bundles]\n{package} = {package}\n")


def test_a_wheel_is_found_without_being_imported_and_once_gone_it_is_gone(
    serve: Serve, bundle: Bundle, original: Store, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    wheel(site, original, "carrier")
    done = serve(LOOK_UP, PYTHONPATH=site)
    assert said(done)["in"] == [f"{site}/carrier/store/blobs"]
    assert said(done)["found"] == len(bundle.manifest.entries)
    shutil.rmtree(site)
    assert said(serve(LOOK_UP, PYTHONPATH=site))["found"] == 0


def test_a_wheel_without_its_store_is_one_warning(serve: Serve, original: Store, tmp_path: Path) -> None:
    wheel(tmp_path, original, "carrier")
    (tmp_path / "carrier" / "store").unlink()
    done = serve(f"{LOOK_UP}; {ACTIVATE}", PYTHONPATH=tmp_path)
    (line,) = warnings(done)
    assert "the bundle of the package carrier is not served" in line


def test_the_listener_tells_of_what_is_served(serve: Serve, bundle: Bundle, original: Store, tmp_path: Path) -> None:
    listening = f"from aotpack.listener import listen; listen('{tmp_path}/hits.jsonl', hits=True)"
    serve(f"{listening}; {LOOK_UP}", AOTPACK_BUNDLE_PATH=original.directory)
    launches = read_launches(tmp_path / "hits.jsonl")
    assert {launch.key for launch in launches} == {entry.key for entry in bundle.manifest.entries}
    expected = {key for placement in fit_bundle(bundle).placements for key in placement.cache_keys}
    assert {launch.cache_key for launch in launches} <= expected
    assert all(launch.hit and launch.exact and launch.cache == original.directory for launch in launches)


# What is not served


def test_where_there_is_nothing_to_serve_nothing_is_imported(tmp_path: Path) -> None:
    script = f"import sys\n{ACTIVATE}\nprint('\\n'.join(sys.modules))"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "triton", "zstandard", "packaging", "aotpack.manifest", "aotpack.fitting"}
    assert done.stderr == ""
    assert not (tmp_path / "triton").exists()


def changed(bundle: Bundle, folder: Path, **values: Any) -> Store:
    """The store of a bundle whose manifest says something else."""
    manifest = replace(bundle.manifest, **values)
    written = write_bundle(folder / "changed.tar.zst", manifest, dict(bundle.blobs()))
    return unpack_store(written, folder / "changed")


def test_a_store_for_another_triton_is_one_warning_and_everything_is_compiled(
    serve: Serve, bundle: Bundle, tmp_path: Path
) -> None:
    stale = changed(bundle, tmp_path, toolchain=replace(bundle.manifest.toolchain, triton="3.0.0"))
    done = serve(f"{LOOK_UP}; {ACTIVATE}; serving.compile_own()", AOTPACK_BUNDLE_PATH=stale.directory)
    assert said(done)["found"] == 0
    (line,) = warnings(done)
    assert "is for Triton 3.0.0 and this process has" in line
    strict = serve(ACTIVATE, check=False, AOTPACK_BUNDLE_PATH=stale.directory, AOTPACK_STRICT=1)
    assert strict.returncode == 1


def test_a_store_for_a_triton_with_other_sources_is_one_warning_at_the_first_lookup(
    serve: Serve, bundle: Bundle, tmp_path: Path
) -> None:
    toolchain = bundle.manifest.toolchain
    sources = tuple((name, f"sha256:{'0' * 64}") for name, _ in toolchain.sources)
    stale = changed(bundle, tmp_path, toolchain=replace(toolchain, sources=sources))
    done = serve(f"{LOOK_UP}; serving.compile_own()", AOTPACK_BUNDLE_PATH=stale.directory)
    assert said(done)["found"] == 0
    (line,) = warnings(done)
    assert "own sources differ here" in line
    strict = said(serve(LOOK_UP, AOTPACK_BUNDLE_PATH=stale.directory, AOTPACK_STRICT=1))
    assert all(error.startswith("IncompatibleError") for error in strict["errors"])


def test_kernels_that_the_engine_has_changed_are_left_out_with_one_warning(
    serve: Serve, bundle: Bundle, engine: Engine, original: Store, tmp_path: Path
) -> None:
    site = copy_engine(engine, tmp_path / "site")
    change(site, "vllm.v1.worker.mamba_utils", "def _memcpy_u64_tiled(", "def _memcpy_u64_tiled(  # patched\n")
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=original.directory, PYTHONPATH=site)
    assert 0 < said(done)["found"] < len(bundle.manifest.entries)
    (line,) = warnings(done)
    assert "_memcpy_u64_tiled is not in" in line


def for_sm80(bundle: Bundle, folder: Path) -> Store:
    """A store that says that its code is for another GPU."""
    from aotpack.targets import Target
    from aotpack.toolchain import backend_of

    other = Target("cuda", 80)
    entries = tuple(replace(entry, key=replace(entry.key, target=other)) for entry in bundle.manifest.entries)
    assemblers = ((str(other), str(backend_of(other).hash())),)
    toolchain = replace(bundle.manifest.toolchain, assemblers=assemblers)
    manifest = replace(bundle.manifest, targets=(other,), entries=entries, toolchain=toolchain)
    # Unpacking would refuse code that is not for what the manifest says.
    store = unpack_store(bundle, folder / "changed")
    (store.directory / "manifest.json").write_bytes(manifest.to_bytes())
    return open_store(store.directory)


def test_stores_for_two_architectures_live_together(
    serve: Serve, bundle: Bundle, original: Store, tmp_path: Path
) -> None:
    other = for_sm80(bundle, tmp_path)
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=f"{other.directory}:{original.directory}")
    assert said(done)["in"] == [f"{original.directory}/blobs"]
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert " for sm80 in " in done.stderr


def test_a_store_for_none_of_the_gpus_here_is_left_alone(
    serve: Serve, bundle: Bundle, original: Store, tmp_path: Path
) -> None:
    (tmp_path / "nvml.c").write_text(
        "int nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n"
        "int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }\n"
        "int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = device; return 0; }\n"
        "int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { *a = 9; *b = 0; return 0; }\n"
    )
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "nvml.c"), "-o", library], check=True)
    other = for_sm80(bundle, tmp_path)
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=f"{other.directory}:{original.directory}", LD_LIBRARY_PATH=str(tmp_path))
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert f"{other.directory} is for sm80, and is left alone here" in done.stderr
    assert warnings(done) == []


# What is damaged


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "missing": Path.unlink}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["cubin", "json"])
def test_a_damaged_artifact_is_one_warning_and_its_keys_are_compiled(
    serve: Serve, bundle: Bundle, store: Store, kind: str, damage: str
) -> None:
    artifact = dict(bundle.manifest.entries[0].artifacts)[kind]
    path = store.path(artifact, kind)
    DAMAGE[damage](path)
    affected = sum(dict(entry.artifacts)[kind] == artifact for entry in bundle.manifest.entries)
    done = serve(f"{LOOK_UP}; serving.look_up()", AOTPACK_BUNDLE_PATH=store.directory)
    assert (said(done)["found"], len(said(done)["errors"])) == (len(bundle.manifest.entries) - affected, affected)
    (line,) = warnings(done)
    assert str(path) in line
    strict = said(serve(LOOK_UP, AOTPACK_BUNDLE_PATH=store.directory, AOTPACK_STRICT=1))
    assert strict["found"] == len(bundle.manifest.entries) - affected
    assert all(error.startswith(f"AotpackError: {path}") for error in strict["errors"])


def test_a_store_whose_manifest_is_damaged_is_one_warning(serve: Serve, store: Store) -> None:
    path = store.directory / "manifest.json"
    path.write_bytes(path.read_bytes()[:-1000])
    done = serve(f"{LOOK_UP}; {ACTIVATE}; serving.compile_own()", AOTPACK_BUNDLE_PATH=store.directory)
    assert said(done)["found"] == 0
    (line,) = warnings(done)
    assert f"{store.directory}/manifest.json" in line
    assert serve(ACTIVATE, check=False, AOTPACK_BUNDLE_PATH=store.directory, AOTPACK_STRICT=1).returncode == 1


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_not_handed_out_by_its_own_directory_either(
    serve: Serve, bundle: Bundle, tmp_path: Path, damage: str
) -> None:
    installed = install_bundle(bundle, tmp_path / "triton").receipt
    path = tmp_path / "triton" / next(file.path for file in installed.files if file.path.endswith(".cubin"))
    DAMAGE[damage](path)
    done = serve(LOOK_UP)
    assert (said(done)["found"], len(said(done)["errors"])) == (len(bundle.manifest.entries) - 1, 1)
    (line,) = warnings(done)
    assert str(path) in line


def test_an_entry_that_triton_has_compiled_anew_is_its_own(serve: Serve, bundle: Bundle, tmp_path: Path) -> None:
    installed = install_bundle(bundle, tmp_path / "triton").receipt
    path = tmp_path / "triton" / next(file.path for file in installed.files if file.path.endswith(".cubin"))
    flip(path)
    group = path.parent / f"__grp__{path.stem}.json"
    children = json.loads(group.read_bytes())["child_paths"]
    (path.parent / f"{path.stem}.ptx").write_text("")
    children[f"{path.stem}.ptx"] = str(path.parent / f"{path.stem}.ptx")
    group.write_text(json.dumps({"child_paths": children}))
    done = serve(LOOK_UP)
    assert said(done)["errors"] == []
    assert warnings(done) == []


# Whose directory it is


def test_in_a_directory_that_cannot_be_written_a_miss_is_compiled_privately(
    serve: Serve, bundle: Bundle, place: Path
) -> None:
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    cache = place / "installed"
    install_bundle(bundle, cache)
    before = tree(cache)
    done = serve(
        f"{ACTIVATE}; serving.become_another_user(); say(**serving.look_up())\n"
        "first = serving.compile_own(); serving.compile_own(2)\n"
        "say(private=first, again=serving.compile_own(), kept=os.path.isdir(first))",
        TRITON_CACHE_DIR=cache,
    )
    found, private = map(json.loads, done.stdout.splitlines())
    assert found["found"] == len(bundle.manifest.entries)
    assert private["private"] == private["again"]
    assert private["private"].startswith(f"{tempfile.gettempdir()}/aotpack-")
    assert private["kept"]
    assert not Path(private["private"]).parent.exists()  # it goes when the process ends
    (line,) = warnings(done)
    assert f"Triton's cache {cache} cannot be written (Permission denied)" in line
    assert tree(cache) == before


def test_a_store_of_root_serves_another_user_whose_cache_cannot_be_made(
    serve: Serve, bundle: Bundle, original: Store, place: Path
) -> None:
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    done = serve(
        f"serving.become_another_user(); {LOOK_UP}",
        AOTPACK_BUNDLE_PATH=original.directory,
        TRITON_CACHE_DIR=place / "none",
    )
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert warnings(done) == []


# Processes and threads


def test_eight_processes_at_once_are_all_served_from_one_bundle(serve: Serve, bundle: Bundle, tmp_path: Path) -> None:
    running = [serve(LOOK_UP, start=True, AOTPACK_BUNDLE_PATH=bundle.path, TMPDIR=tmp_path) for _ in range(8)]
    ended = [process.communicate(timeout=300) for process in running]
    assert [json.loads(out)["found"] for out, _ in ended] == [len(bundle.manifest.entries)] * 8
    assert [path.name for path in (tmp_path / f"aotpack-{os.getuid()}").iterdir()] == [
        bundle.digest.removeprefix("sha256:")
    ]


@pytest.mark.parametrize("before", ["pass", "serving.look_up(1)"])
def test_a_forked_process_is_served_as_its_parent_is(
    serve: Serve, bundle: Bundle, original: Store, before: str
) -> None:
    done = serve(
        f"import aotpack; aotpack.activate(); {before}\n"
        "if not os.fork(): aotpack.activate(); say(**serving.look_up()); os._exit(0)\n"
        "os.wait(); say(**serving.look_up())",
        AOTPACK_BUNDLE_PATH=original.directory,
    )
    counts = [json.loads(line)["found"] for line in done.stdout.splitlines()]
    assert counts == [len(bundle.manifest.entries)] * 2


def test_a_fork_while_another_thread_is_at_work_hangs_nobody(serve: Serve, bundle: Bundle, original: Store) -> None:
    done = serve(
        "import aotpack, threading; aotpack.activate()\n"
        "from aotpack import runtime; from aotpack.runtime import overlay, stores\n"
        "at_work, go_on = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with runtime._LOCK.held(), stores._LOCK.held(), overlay._LOCK.held(): at_work.set(); go_on.wait()\n"
        "thread = threading.Thread(target=hold); thread.start(); at_work.wait()\n"
        "child = os.fork()\n"
        "if not child: import signal; signal.alarm(120); aotpack.activate(); say(**serving.look_up()); os._exit(0)\n"
        "print(os.waitpid(child, 0)[1], flush=True); go_on.set(); thread.join(); say(**serving.look_up())",
        AOTPACK_BUNDLE_PATH=original.directory,
    )
    child, status, parent = map(json.loads, done.stdout.splitlines())
    assert status == 0
    assert child["found"] == parent["found"] == len(bundle.manifest.entries)


def test_a_thread_compiles_while_others_activate(serve: Serve, bundle: Bundle, original: Store, tmp_path: Path) -> None:
    done = serve(
        "import aotpack; from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    own = [pool.submit(serving.compile_own, value) for value in range(2, 6)]\n"
        "    activated = [pool.submit(aotpack.activate) for _ in range(4)]\n"
        "    found = [pool.submit(serving.look_up) for _ in range(2)]\n"
        "    places = [future.result() for future in own]; [future.result() for future in activated]\n"
        "aotpack.activate(); say(own=places, **serving.look_up())",
        AOTPACK_BUNDLE_PATH=original.directory,
    )
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert len({Path(place) for place in said(done)["own"]}) == 4
    assert all(Path(place).parent == tmp_path / "triton" for place in said(done)["own"])
    assert warnings(done) == []


# What was configured before


def test_a_manager_that_was_configured_is_asked_for_what_is_not_served(
    serve: Serve, bundle: Bundle, original: Store
) -> None:
    done = serve(
        f"{ACTIVATE}; found = serving.look_up(); before = list(Counting.made)\n"
        "say(found=found['found'], before=before, own=serving.compile_own(), made=Counting.made)",
        AOTPACK_BUNDLE_PATH=original.directory,
        TRITON_CACHE_MANAGER="tests.serving:Counting",
    )
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert said(done)["before"] == []
    assert set(said(done)["made"]) == {Path(said(done)["own"]).name}


def test_a_remote_cache_gets_what_is_compiled_and_is_asked_for_it(
    serve: Serve, bundle: Bundle, original: Store, tmp_path: Path
) -> None:
    done = serve(
        f"{ACTIVATE}; found = serving.look_up(); own = serving.compile_own()\n"
        "import shutil; shutil.rmtree(own); again = serving.compile_own()\n"
        "say(found=found['found'], own=own, again=again, kept=sorted({key for key, _ in Remote.kept}))",
        AOTPACK_BUNDLE_PATH=original.directory,
        TRITON_CACHE_MANAGER="triton.runtime.cache:RemoteCacheManager",
        TRITON_REMOTE_CACHE_BACKEND="tests.serving:Remote",
    )
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert said(done)["own"] == said(done)["again"]
    assert said(done)["kept"] == [Path(said(done)["own"]).name]
    assert Path(said(done)["own"]).parent == tmp_path / "triton"


def test_a_manager_that_cannot_be_loaded_is_one_warning(serve: Serve, original: Store) -> None:
    done = serve(
        f"{ACTIVATE}; {ACTIVATE}; del os.environ['TRITON_CACHE_MANAGER']; say(**serving.look_up())",
        AOTPACK_BUNDLE_PATH=original.directory,
        TRITON_CACHE_MANAGER="no.such:Manager",
    )
    assert said(done)["found"] == 0
    (line,) = warnings(done)
    assert "aotpack is not active in this process: ModuleNotFoundError" in line


def test_the_environment_is_left_as_it_is(serve: Serve, original: Store) -> None:
    done = serve(
        f"before = dict(os.environ); {ACTIVATE}; serving.look_up(1); say(same=before == dict(os.environ))",
        AOTPACK_BUNDLE_PATH=original.directory,
    )
    assert said(done) == {"same": True}


def test_a_level_that_is_none_is_one_warning(serve: Serve, bundle: Bundle, original: Store) -> None:
    done = serve(LOOK_UP, AOTPACK_BUNDLE_PATH=original.directory, AOTPACK_LOG_LEVEL="LOUD")
    assert said(done)["found"] == len(bundle.manifest.entries)
    assert done.stderr.count("AOTPACK_LOG_LEVEL is not heeded") == 1
