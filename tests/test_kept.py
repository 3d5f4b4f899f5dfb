"""A build that uses what earlier ones kept: the same bytes, less work, and nothing of what has changed."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.build import Built, Selection, build_bundle, enumerate_keys
from aotpack.bundle import Bundle
from aotpack.compilecache import CompileCache
from aotpack.deployments import make_services
from aotpack.engines import Engine, find_engine
from aotpack.fingerprint import basis_of, source_fingerprint
from aotpack.helpers import c_compiler
from aotpack.interpreters import Interpreter
from aotpack.kept import KeptPool
from aotpack.models import load_model
from aotpack.pool import LocalCrew, WorkerSpec
from aotpack.sources import Global
from tests.conftest import FAMILIES, SM90, needs_compiler
from tests.engines import change, copy_engine


def selection(engine: Engine) -> Selection:
    """What the fixture ``built`` is a bundle of."""
    services = make_services([load_model("qwen3.5-27b"), load_model("qwen3-vl-2b")], [1, 4], gdn_prefill="triton")
    return Selection(engine=engine, targets=(SM90,), families=FAMILIES, services=services)


def build(selection: Selection, cache: CompileCache, folder: Path, jobs: int = 2) -> Built:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # as above
    folder.mkdir()
    return build_bundle(selection, output=folder, jobs=jobs, cache=cache)


def count(root: Path) -> int:
    return sum(path.is_file() and path.suffix != ".partial" for path in root.rglob("*"))


@pytest.fixture(scope="module")
def resumed(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, CompileCache, int]:
    """A build that went on where another was killed, its cache, and how much was kept before."""
    needs_compiler()
    folder = tmp_path_factory.mktemp("resumed")
    command = [sys.executable, "-m", "aotpack", "build", "--quiet", "--arch", "sm90", "--tp", "1,4", "--python", "none"]
    command += [*(f"--model={name}" for name in ("qwen3.5-27b", "qwen3-vl-2b")), "--gdn-prefill", "triton"]
    command += [*(f"--family={name}" for name in FAMILIES), "--engine", str(engine.root), "-o", str(folder)]
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # a build rests on its environment, and this changes with each test
    environment = {**os.environ, "AOTPACK_CACHE_DIR": str(folder), "AOTPACK_CACHE_SIZE": "1GB"}
    killed = subprocess.Popen(command, env=environment)
    root = folder / "compiles"
    traced = 1 + 4  # the description and each deployment
    while count(root) < traced + 3 and killed.poll() is None:
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    before = count(root)
    cache = CompileCache(root=root)
    return build(selection(engine), cache, folder / "out"), cache, before


def test_a_build_goes_on_where_another_was_killed(resumed: tuple[Built, CompileCache, int], built: Built) -> None:
    again, cache, before = resumed
    assert before >= 8
    assert cache.hits == before
    assert again.bundle.path.read_bytes() == built.bundle.path.read_bytes()


def test_a_rebuild_asks_no_worker_and_gives_the_same_bytes(
    engine: Engine,
    resumed: tuple[Built, CompileCache, int],
    built: Built,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit(*_: object) -> None:
        pytest.fail("a worker was asked")

    monkeypatch.setattr(LocalCrew, "submit", submit)
    cache = CompileCache(root=resumed[1].root)
    again = build(selection(engine), cache, tmp_path / "out", jobs=1)
    assert cache.misses == 0
    assert again.bundle.path.read_bytes() == built.bundle.path.read_bytes()
    assert again.findings == built.findings


def test_helpers_are_compiled_once_for_a_compiler(
    engine: Engine,
    helped: Bundle,
    interpreters: tuple[Interpreter, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # as above
    spec, basis = WorkerSpec(engine=engine, target=SM90, families=FAMILIES), basis_of(engine, FAMILIES)
    blobs = dict(helped.blobs())
    launches = [(entry.key, blobs[entry.metadata.digest]) for entry in helped.manifest.entries]

    def build_helpers() -> dict[str, bytes]:
        with KeptPool(spec, 1, CompileCache(root=tmp_path / "kept"), basis) as pool:
            built = pool.build_helpers(pool.helper_sources(launches), interpreters)
            return {one.helper.artifact.digest: one.content for one in built}

    def submit(*_: object) -> None:
        raise AskedError

    expected = {helper.artifact.digest for helper in helped.manifest.helpers}
    assert build_helpers().keys() == expected
    with monkeypatch.context() as patched:
        patched.setattr(LocalCrew, "submit", submit)
        launches.reverse()  # they come as they are compiled
        assert build_helpers().keys() == expected
        other = tmp_path / "cc"
        other.write_text(f'#!/bin/sh\nexec {c_compiler()} "$@"\n')
        other.chmod(0o755)
        patched.setenv("CC", str(other))
        with pytest.raises(AskedError):
            build_helpers()


class AskedError(Exception):
    """A worker was asked."""


def test_what_is_damaged_is_made_again(
    engine: Engine, resumed: tuple[Built, CompileCache, int], built: Built, tmp_path: Path
) -> None:
    root = resumed[1].root
    spec = WorkerSpec(engine=engine, target=SM90, families=FAMILIES)
    cache = CompileCache(root=root)
    pool = KeptPool(spec, 1, cache, basis_of(engine, FAMILIES))
    with pool:
        paths = [cache.path(pool._name(entry.key)) for entry in built.bundle.manifest.entries]
    paths[0].write_bytes(paths[1].read_bytes())
    again = build(selection(engine), cache, tmp_path / "out")
    assert [finding.code for finding in again.findings if finding not in built.findings] == ["C101"]
    assert cache.damaged == [paths[0]]
    assert again.bundle.path.read_bytes() == built.bundle.path.read_bytes()


def test_of_a_changed_engine_the_changed_kernel_alone_is_compiled(
    engine: Engine, resumed: tuple[Built, CompileCache, int], tmp_path: Path
) -> None:
    tree = copy_engine(engine, tmp_path / "engine")
    more = "    tl.static_assert(BLOCK_SIZE > 0)\n    is_left_overlap = dst"
    change(tree, "vllm.v1.worker.mamba_utils", "    is_left_overlap = dst", more)
    change(
        tree, "vllm.third_party.flash_linear_attention.ops.layernorm_guard", "import torch\n", "# moved\nimport torch\n"
    )
    changed = selection(find_engine(str(tree), print))
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # as above
    enumeration = enumerate_keys(changed, jobs=2, cache=CompileCache(root=resumed[1].root))
    cache = CompileCache(root=resumed[1].root)
    again = build(changed, cache, tmp_path / "out")
    affected = [key for key, _ in enumeration.keys if key.function == "batch_memcpy_kernel"]
    assert affected
    manifest = 1  # the frame of the manifest; that of the blobs is as it was, since an assertion leaves no code
    assert cache.misses == len(affected) + manifest
    assert not again.failures


def test_nothing_but_line_numbers_is_left_out_of_a_kernels_source(built: Built) -> None:
    sources, name = built.bundle.manifest.sources, built.bundle.manifest.kernels[0].name
    before = source_fingerprint(sources, name)
    kernel = next(function for function in sources.functions if function.name == name)
    rest = tuple(function for function in sources.functions if function.name != name)
    moved = replace(sources, functions=(*rest, kernel.at(kernel.line + 7)))
    assert source_fingerprint(moved, name) == before
    for other in (
        replace(kernel, text="sha256:" + "0" * 64),
        replace(kernel, noinline=True),
        replace(kernel, calls=(("f", "m:g"),)),
        replace(kernel, globals=(*kernel.globals, _global())),
    ):
        assert source_fingerprint(replace(sources, functions=(*rest, other)), name) != before


def _global() -> Global:
    return Global(spelling="X", shown="1", keyed=False, definition="sha256:" + "0" * 64)


def test_a_file_of_the_cache_can_call_nothing(engine: Engine, tmp_path: Path) -> None:
    class Call:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "called"),)

    cache = CompileCache(root=tmp_path / "cache")
    pool = KeptPool(WorkerSpec(engine=engine, target=SM90, families=FAMILIES), 1, cache, basis_of(engine, FAMILIES))
    with pool:
        cache.put("sha256:" + "0" * 64, pickle.dumps(Call()))
        assert pool._load("sha256:" + "0" * 64, tuple) is None
    assert [finding.code for finding in cache.findings()] == ["C101"]
    assert not (tmp_path / "called").exists()


def test_the_basis_of_a_build_holds_the_environment_that_may_be_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needs_compiler()
    before = basis_of(engine, FAMILIES)
    for name in ("TERM", "SSH_TTY", "AOTPACK_CACHE_DIR", "VLLM_USE_V1", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "x")  # of the session, or dropped by workers
    assert basis_of(engine, FAMILIES) == before
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    assert basis_of(engine, FAMILIES).tracing != before.tracing
    monkeypatch.delenv("DISABLE_LLVM_OPT")
    (tmp_path / "ptxas").write_bytes(b"another")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "ptxas"))
    after = basis_of(engine, FAMILIES)
    (tmp_path / "ptxas").unlink()
    assert basis_of(engine, FAMILIES) not in (before, after)  # a worker will say that it is missing
    assert after.compiling != before.compiling
    assert after.tracing != before.tracing
