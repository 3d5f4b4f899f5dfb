"""Builds on real kernels: the same bytes from anywhere, no path in them, and an honest account of what is missing."""

import re
from collections import Counter
from pathlib import Path

import pytest

from aotpack.build import Built, Selection, build_bundle, enumerate_keys
from aotpack.compiler import one_line
from aotpack.deployments import Service, make_services
from aotpack.engines import Engine, find_engine
from aotpack.errors import ModelError, OutputError
from aotpack.models import load_model
from aotpack.targets import Target
from tests.conftest import FAMILIES, SM90, needs_compiler
from tests.engines import change, copy_engine

SMALL = make_services([load_model("qwen3.5-27b")], [1], gdn_prefill="triton")


def select(
    engine: Engine, *families: str, targets: tuple[Target, ...] = (SM90,), services: tuple[Service, ...] = SMALL
) -> Selection:
    return Selection(engine=engine, targets=targets, families=families or FAMILIES, services=services)


def strings(data: bytes) -> str:
    return "\n".join(match.decode() for match in re.findall(rb"[\x20-\x7e]{4,}", data))


def test_no_artifact_holds_a_path_of_the_build_machine(built: Built, engine: Engine) -> None:
    blobs = dict(built.bundle.blobs())
    assert any(data.startswith(b"\x7fELF") for data in blobs.values())
    for data in [*blobs.values(), built.bundle.manifest.to_bytes()]:
        text = strings(data)
        assert str(engine.root) not in text
        assert str(Path.home()) not in text
        assert not re.search(r"(?<![\w.])/(tmp|home|usr|opt|var)/", text)
        assert ".py" not in text


def test_each_entry_has_machine_code_of_its_target(built: Built) -> None:
    blobs = dict(built.bundle.blobs())
    for entry in built.bundle.manifest.entries:
        cubin = blobs[entry.cubin.digest]
        assert cubin[:4] == b"\x7fELF"
        assert int.from_bytes(cubin[18:20], "little") == 190  # EM_CUDA


def test_the_manifest_says_what_is_covered(built: Built) -> None:
    manifest = built.bundle.manifest
    assert manifest.families == FAMILIES
    assert [deployment["tp"] for deployment in manifest.deployments] == [1, 4, 1, 4]
    assert {kernel.family for kernel in manifest.kernels} == set(FAMILIES)
    assert manifest.missing == ()
    for entry in manifest.entries:
        assert entry.reached.deployment in range(4)
        assert entry.reached.input


def test_the_digests_of_a_bundles_keys_do_not_change_unnoticed(built: Built, golden: object) -> None:
    if built.bundle.manifest.toolchain.triton != "3.8.0":
        pytest.skip("the golden file is of Triton 3.8.0")
    lines = [f"{entry.key.digest} {entry.key.describe()}" for entry in built.bundle.manifest.entries]
    golden("keys-triton-3.8.0.txt", "\n".join(lines) + "\n")  # type: ignore[operator]  # a fixture


def test_a_key_that_fails_is_reported_while_the_rest_goes_on(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    tree = copy_engine(engine, tmp_path / "engine")
    change(
        tree,
        "vllm.v1.worker.mamba_utils",
        "    is_left_overlap = dst",
        "    tl.static_assert(BLOCK_SIZE < 0, 'too wide')\n    is_left_overlap = dst",
    )
    built = build_bundle(select(find_engine(str(tree), print), "layernorm", "memcpy"), output=tmp_path, jobs=2)
    (failure,) = built.failures
    assert failure.key.function == "batch_memcpy_kernel"
    assert "too wide" in failure.reason
    assert str(tmp_path) not in failure.reason
    assert [missing.reason for missing in built.bundle.manifest.missing] == [failure.reason]
    packed = Counter(entry.key.function for entry in built.bundle.manifest.entries)
    assert packed["layer_norm_fwd_kernel"] == 3
    assert packed["batch_memcpy_kernel"] == 0


def test_a_worker_that_dies_takes_no_other_key_with_it(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    tree = copy_engine(engine, tmp_path / "engine")
    # Triton evaluates a constexpr function in the compiler's own process: this one ends it.
    change(
        tree,
        "vllm.v1.worker.mamba_utils",
        "@triton.jit\ndef batch_memcpy_kernel",
        "@triton.constexpr_function\ndef _end(x):\n    import os\n    os._exit(7)\n\n\n"
        "@triton.jit\ndef batch_memcpy_kernel",
    )
    change(
        tree,
        "vllm.v1.worker.mamba_utils",
        "    is_left_overlap = dst",
        "    _end(BLOCK_SIZE)\n    is_left_overlap = dst",
    )
    built = build_bundle(select(find_engine(str(tree), print), "layernorm", "memcpy"), output=tmp_path, jobs=2)
    assert [failure.key.function for failure in built.failures] == ["batch_memcpy_kernel"]
    assert "died on this key" in built.failures[0].reason
    packed = Counter(entry.key.function for entry in built.bundle.manifest.entries)
    assert packed["layer_norm_fwd_kernel"] == 3
    assert packed["batch_memcpy_kernel"] == 0


def test_several_targets_have_a_frame_each(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    targets = (Target("cuda", 100), Target("cuda", 80))
    built = build_bundle(select(engine, "layernorm", targets=targets), output=tmp_path, jobs=1)
    assert built.bundle.path.name.endswith("-sm80+sm100.tar.zst")
    # Three row blocks: as many cubins, and metadata that is the same for all.
    assert [len(built.bundle.manifest.blobs(target)) for target in built.bundle.manifest.targets] == [4, 4]
    assert len(dict(built.bundle.blobs())) == 8


def test_nothing_to_compile_is_an_error(engine: Engine) -> None:
    needs_compiler()
    vision_only = make_services([load_model("qwen3-vl-2b")], [1])
    with pytest.raises(ModelError, match="none of the families layernorm serves qwen3-vl-2b tp1 bfloat16"):
        enumerate_keys(select(engine, "layernorm", services=vision_only), jobs=1)


def test_an_output_that_cannot_be_written_is_refused_before_any_work(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such directory"):
        build_bundle(select(engine), output=tmp_path / "no" / "where", jobs=1)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("at /home/me/x/kernel.py:3:\n  bad", "at kernel.py:3: bad"),
        ("ptxas /tmp/tmpab12/a.ptx, line 7; error", "ptxas a.ptx, line 7; error"),
        ("ratio 3/4 and a/b", "ratio 3/4 and a/b"),
        ("x" * 1000, "x" * 600 + "..."),
    ],
)
def test_a_compilers_message_becomes_one_line_without_directories(message: str, line: str) -> None:
    assert one_line(message) == line
