"""The toolchain names what Triton hashes, and the keys are Triton's own."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aotpack.build import Built
from aotpack.digests import PREFIX
from aotpack.documents import Node
from aotpack.errors import DocumentError, ToolchainError
from aotpack.targets import Target
from aotpack.toolchain import KeyMaker, Toolchain, local_toolchain

pytest.importorskip("triton")

SM90 = Target("cuda", 90)


def test_the_sources_are_those_that_tritons_key_hashes() -> None:
    from triton.runtime.cache import triton_key

    toolchain = local_toolchain([SM90])
    assert {"triton.runtime.cache", "triton.compiler.compiler", "triton.language.core"} <= dict(
        toolchain.sources
    ).keys()
    hashed = triton_key().removeprefix(toolchain.triton).split("-")
    missing = set(hashed) - {digest.removeprefix(PREFIX) for _, digest in toolchain.sources}
    assert len(missing) == 1  # libtriton.so, which differs between Python minors


def test_a_source_is_named_rightly() -> None:
    import triton.compiler.code_generator as module

    digest = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    assert dict(local_toolchain([SM90]).sources)["triton.compiler.code_generator"] == PREFIX + digest


def test_a_toolchain_that_is_spelled_can_be_read_back() -> None:
    toolchain = local_toolchain([SM90, Target("cuda", 100)])
    assert Toolchain.from_json(Node(toolchain.to_json())) == toolchain
    assert [target for target, _ in toolchain.assemblers] == ["cuda:100", "cuda:90"]


def test_a_toolchain_fits_itself() -> None:
    toolchain = local_toolchain([SM90])
    assert list(toolchain.differences(local_toolchain([SM90]))) == []


def test_a_toolchain_that_is_spelled_wrongly_is_refused_with_its_place() -> None:
    document = local_toolchain([SM90]).to_json()
    with pytest.raises(DocumentError, match=r"toolchain\.libdevice: expected"):
        Toolchain.from_json(Node({**document, "libdevice": "x"}, "toolchain"))


def test_a_variable_that_enters_the_key_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    toolchain = local_toolchain([SM90], ignored_environment=["TRITON_DISABLE_LINE_INFO"])
    assert [name for name, _ in toolchain.environment] == ["TRITON_DEFAULT_FP_FUSION"]


def test_an_option_enters_the_key(built: Built) -> None:
    entry = built.bundle.manifest.entries[0]
    kernel = built.bundle.manifest.kernel(entry.key.kernel)
    options = tuple((name, "-O1" if name == "ptx_options" else value) for name, value in entry.key.options)
    maker = KeyMaker()
    changed = replace(entry.key, options=options)
    assert maker.key_of(entry.key, kernel.cache_key) != maker.key_of(changed, kernel.cache_key)


def test_an_option_that_this_process_would_change_is_refused(built: Built, tmp_path: Path) -> None:
    # Triton takes the variable for the option's default, which stands wherever a key has none.
    done = subprocess.run(
        [sys.executable, "-m", "aotpack", "install", built.bundle.path, "--cache-dir", tmp_path / "cache"],
        env={**os.environ, "PTXAS_OPTIONS": "-O1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "option ptx_options was None at the build and is '-O1' here" in done.stderr
    assert not (tmp_path / "cache").exists()


def test_a_backend_that_triton_lacks_is_refused() -> None:
    with pytest.raises(ToolchainError, match="cannot compile for"):
        local_toolchain([Target("metal", 1)])
