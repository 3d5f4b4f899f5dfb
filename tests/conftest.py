"""Options and shared fixtures: one engine on disk, one built bundle of it, keys as golden text."""

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock
from hypothesis import settings

from aotpack.build import Built, Selection, build_bundle
from aotpack.bundle import Bundle, write_bundle
from aotpack.deployments import make_services
from aotpack.engines import Engine, find_engine
from aotpack.errors import ToolchainError
from aotpack.helpers import BuiltHelper
from aotpack.interpreters import Interpreter, find_interpreter, running_minor
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from aotpack.targets import Target
from tests.signing import make_pair, put_beside

ROOT = Path(__file__).parent.parent
FAMILIES = ("layernorm", "memcpy", "mrope")
SM90 = Target("cuda", 90)

_T = TypeVar("_T")


settings.register_profile("aotpack", deadline=None)  # what a test takes on a busy machine says nothing
settings.load_profile("aotpack")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--gpu", action="store_true", help="also run the tests marked gpu")
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker in ("slow", "gpu"):
            if marker in item.keywords and not config.getoption(f"--{marker}"):
                item.add_marker(pytest.mark.skip(reason=f"run with --{marker}"))
    # The fast ones first: a slip shows before a sweep begins.
    items.sort(key=lambda item: "slow" in item.keywords)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a golden file, or write it with --update-golden."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, f"{name} differs; if that is meant, run pytest --update-golden"

    return check


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TRITON_", "AOTPACK_")) and name != "AOTPACK_CACHE_DIR":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AOTPACK_CACHE_SIZE", "0")  # each build does its own work, unless a test is about that


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], _T]) -> _T:
    """What ``make`` makes in the directory that it is given: made by one of the processes that share the tests.

    The others wait for it, and read it back.
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    made = folder / "made.pickle"
    with FileLock(f"{folder}.lock"):
        if not made.exists():
            folder.mkdir(exist_ok=True)
            made.write_bytes(pickle.dumps(make(folder)))
    found: _T = pickle.loads(made.read_bytes())
    return found


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """vLLM 0.33.0's Python files: downloaded once, then kept in the user's cache.

    AOTPACK_TEST_ENGINE names another place that has them, for runs without a network.
    """
    spec = os.environ.get("AOTPACK_TEST_ENGINE", "vllm==0.33.0")
    return once(tmp_path_factory, "engine", lambda _: find_engine(spec, print))


def needs_compiler() -> None:
    """Skip where there is nothing to build with: the core's own tests must run there too."""
    if find_spec("triton") is None or find_spec("torch") is None:
        pytest.skip("needs torch and triton")


@pytest.fixture(scope="session")
def built(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """One real bundle: three families, two models, TP 1 and 4, for sm90."""
    needs_compiler()
    models = [load_model("qwen3.5-27b"), load_model("qwen3-vl-2b")]
    services = make_services(models, [1, 4], gdn_prefill="triton")
    selection = Selection(engine=engine, targets=(SM90,), families=FAMILIES, services=services)
    return once(tmp_path_factory, "built", lambda folder: build_bundle(selection, output=folder, jobs=2))


@pytest.fixture(scope="session")
def interpreters() -> tuple[Interpreter, ...]:
    """This Python, and another one where the machine has its headers."""
    found = [find_interpreter(running_minor())]
    for minor in ("3.12", "3.11", "3.13", "3.10"):
        if minor != running_minor():
            with suppress(ToolchainError):
                return (*found, find_interpreter(minor))
    return tuple(found)


@pytest.fixture(scope="session")
def native_helpers(
    built: Built, engine: Engine, interpreters: tuple[Interpreter, ...], tmp_path_factory: pytest.TempPathFactory
) -> list[BuiltHelper]:
    """The native helpers that the bundle's kernels need, for each of the interpreters."""

    def build(_: Path) -> list[BuiltHelper]:
        manifest = built.bundle.manifest
        blobs = dict(built.bundle.blobs())
        launches = [(entry.key, blobs[entry.metadata.digest]) for entry in manifest.entries]
        with Pool(WorkerSpec(engine=engine, target=SM90, families=FAMILIES), 2) as pool:
            helpers = list(pool.build_helpers(pool.helper_sources(launches), interpreters))
        return sorted(helpers, key=lambda one: one.helper.order)

    return once(tmp_path_factory, "native-helpers", build)


@pytest.fixture(scope="session")
def helped(built: Built, native_helpers: list[BuiltHelper], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The real bundle with its native helpers."""
    manifest = replace(built.bundle.manifest, helpers=tuple(one.helper for one in native_helpers))
    blobs = dict(built.bundle.blobs()) | {one.helper.artifact.digest: one.content for one in native_helpers}
    return write_bundle(tmp_path_factory.mktemp("helped") / built.bundle.path.name, manifest, blobs)


@pytest.fixture(scope="session")
def shipped(helped: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A real bundle of a few kernels and all its helpers, with its signature beside it."""
    manifest = replace(helped.manifest, entries=helped.manifest.entries[:3])
    bundle = write_bundle(tmp_path_factory.mktemp("shipped") / "mine.tar.zst", manifest, dict(helped.blobs()))
    put_beside(bundle, make_pair(tmp_path_factory.mktemp("keys"), "key").signed(bundle.digest))
    return bundle
