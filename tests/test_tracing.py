"""Tracing calls the engine's real wrappers, and never lets a stand-in decide a key."""

from pathlib import Path

import pytest

from aotpack.deployments import Deployment
from aotpack.engines import Engine, find_engine
from aotpack.errors import EngineError, TracingError
from aotpack.families import load_families
from aotpack.models import load_model
from aotpack.pool import Pool, WorkerSpec
from aotpack.targets import Target
from aotpack.tracing import Traced
from tests.conftest import SM90, needs_compiler
from tests.engines import change, copy_engine

GUARD = "vllm.third_party.flash_linear_attention.ops.layernorm_guard"
MEMCPY = "vllm.v1.worker.mamba_utils"
QWEN = Deployment(model=load_model("qwen3.5-0.8b"))


@pytest.fixture
def tree(engine: Engine, tmp_path: Path) -> Path:
    needs_compiler()
    return copy_engine(engine, tmp_path / "engine")


def trace(folder: Path, families: tuple[str, ...] = ("layernorm",), target: Target = SM90) -> tuple[Traced, ...]:
    engine = find_engine(str(folder), print)
    with Pool(WorkerSpec(engine=engine, target=target, families=families), 1) as pool:
        return next(pool.trace([QWEN]))


def test_the_modules_that_families_declare_are_enough(tree: Path) -> None:
    traced = trace(tree, tuple(family.name for family in load_families()))
    assert {part.family for part in traced} >= {"layernorm", "memcpy"}


def test_each_key_names_an_input_that_reaches_it(tree: Path) -> None:
    (layernorm,) = trace(tree)
    assert all("tokens" in dict(reached) for _, reached in layernorm.keys)


def test_a_kernel_that_is_not_there_is_named_with_its_family(tree: Path) -> None:
    change(tree, MEMCPY, "batch_memcpy_kernel", "batch_copy_kernel")
    with pytest.raises(
        EngineError, match=rf"vllm 0.33.0 has no kernel {MEMCPY}:batch_memcpy_kernel, which family memcpy"
    ):
        trace(tree, ("memcpy",))


def test_a_kernel_with_other_parameters_is_refused_with_both(tree: Path) -> None:
    change(tree, MEMCPY, "def batch_memcpy_kernel(src_ptrs,", "def batch_memcpy_kernel(stream, src_ptrs,")
    with pytest.raises(EngineError, match=r"takes \(stream, src_ptrs.*family memcpy expects \(src_ptrs"):
        trace(tree, ("memcpy",))


def test_parameters_of_no_known_release_are_refused_with_those_of_each(tree: Path) -> None:
    change(tree, MEMCPY, "def precopy_mamba_align_fused_kernel(", "def precopy_mamba_align_fused_kernel(stream,")
    with pytest.raises(
        EngineError,
        match=r"expects \(mamba_state_idx_ptr, [^)]*, TEMPORAL_TILES\) or \(mamba_state_idx_ptr, [^)]*_FIRST\); this",
    ):
        trace(tree, ("memcpy",))


def test_a_kernel_that_a_release_is_known_not_to_have_is_refused_where_it_is_launched(
    engine: Engine, tmp_path: Path
) -> None:
    needs_compiler()
    tree = copy_engine(engine, tmp_path / "engine", version="0.26.0")
    with pytest.raises(
        TracingError, match=r"launch .*:_mamba_align_block_table_kernel, which the family does not name"
    ):
        trace(tree, ("memcpy",))


def test_a_family_that_does_not_drive_a_release_is_refused(engine: Engine, tmp_path: Path) -> None:
    needs_compiler()
    tree = copy_engine(engine, tmp_path / "engine", version="0.26.0")
    with pytest.raises(EngineError, match=r"vllm 0\.26\.0 is not driven by family runner; choose another"):
        trace(tree, ("runner",))


def test_the_engine_is_told_its_own_version(tree: Path) -> None:
    # Some releases ask their distribution for it while they are imported.
    change(
        tree,
        GUARD,
        "from .utils import input_guard",
        "from .utils import input_guard\nfrom importlib.metadata import version\nassert version('vllm') == '0.33.0'",
    )
    assert trace(tree)


def test_a_wrapper_that_changed_is_named_with_family_and_deployment(tree: Path) -> None:
    change(tree, GUARD, "def rmsnorm_fn(", "def rmsnorm_fn(stream, ")
    with pytest.raises(TracingError, match=r"family layernorm, qwen3.5-0.8b tp1 bfloat16, vllm 0.33.0: .*TypeError"):
        trace(tree)


def test_a_module_that_is_missing_is_named(tree: Path) -> None:
    (tree.joinpath(*GUARD.split(".")).with_suffix(".py")).unlink()
    with pytest.raises(TracingError, match=rf"family layernorm: .*the engine has no module {GUARD}"):
        trace(tree)


def test_a_package_that_is_not_installed_is_named(tree: Path) -> None:
    change(tree, GUARD, "from einops import rearrange", "import surely_not_installed")
    with pytest.raises(TracingError, match=rf"{GUARD} of vllm 0.33.0 needs the package 'surely_not_installed'"):
        trace(tree)


def test_a_decision_that_hangs_on_a_stand_in_is_refused_at_import(tree: Path) -> None:
    change(
        tree,
        GUARD,
        "from .utils import input_guard",
        "from .utils import input_guard\nfrom vllm.x import y\nif y: pass",
    )
    with pytest.raises(TracingError, match=rf"{GUARD} uses vllm\.x\.y, of a module that is stubbed"):
        trace(tree)


def test_a_stand_in_that_is_called_while_driving_is_refused(tree: Path) -> None:
    change(tree, GUARD, "from .utils import input_guard", "from .utils import input_guard\nfrom vllm.x import y")
    change(tree, GUARD, "    M, N = x.shape\n", "    M, N = y(x.shape)\n")
    with pytest.raises(TracingError, match=rf"{GUARD} uses vllm\.x\.y, .*the family must declare that module"):
        trace(tree)


def test_a_question_to_the_platform_that_is_not_answered_is_refused(tree: Path) -> None:
    change(
        tree, "vllm.utils.platform_utils", "current_platform.num_compute_units(device_id)", "current_platform.moon()"
    )
    with pytest.raises(TracingError, match=r"current_platform\.moon is asked, which aotpack does not answer"):
        trace(tree)


def test_a_kernel_that_reaches_into_a_stubbed_module_is_named(tree: Path) -> None:
    launch = "    is_left_overlap = dst"
    change(
        tree,
        MEMCPY,
        "from vllm.triton_utils import tl, triton",
        "from vllm.triton_utils import tl, triton\nfrom vllm.x import y",
    )
    change(tree, MEMCPY, launch, f"    y()\n{launch}")
    engine = find_engine(str(tree), print)
    expected = rf"family memcpy: {MEMCPY}:batch_memcpy_kernel .* cannot be hashed"
    with (
        Pool(WorkerSpec(engine=engine, target=SM90, families=("memcpy",)), 1) as pool,
        pytest.raises(TracingError, match=expected),
    ):
        pool.describe()


def test_a_constant_that_is_a_stand_in_never_enters_a_kernels_identity(tree: Path) -> None:
    old, new = "from vllm.triton_utils import tl, triton", "from vllm.x import y\n_MASK = tl.constexpr(y)"
    change(tree, MEMCPY, old, f"{old}\n{new}")
    change(tree, MEMCPY, "    is_left_overlap = dst", "    size = size + _MASK\n    is_left_overlap = dst")
    engine = find_engine(str(tree), print)
    with (
        Pool(WorkerSpec(engine=engine, target=SM90, families=("memcpy",)), 1) as pool,
        pytest.raises(TracingError, match="its constant _MASK is a stand-in"),
    ):
        pool.describe()


def test_a_kernel_that_the_family_does_not_name_is_refused(tree: Path) -> None:
    text = (tree / "vllm/v1/worker/mamba_utils.py").read_text()
    body = text[text.index("@triton.jit\ndef batch_memcpy_kernel") : text.index("def batch_memcpy(")]
    extra = body.replace("batch_memcpy_kernel", "another_kernel")
    change(tree, MEMCPY, "def batch_memcpy(", extra + "\n\ndef batch_memcpy(")
    launch = "    batch_memcpy_kernel[grid](src_ptrs, dst_ptrs, sizes, BLOCK_SIZE=BLOCK_SIZE)"
    change(tree, MEMCPY, launch, launch + "\n" + launch.replace("batch_memcpy_kernel", "another_kernel"))
    with pytest.raises(TracingError, match=rf"launch {MEMCPY}:another_kernel, which the family does not name"):
        trace(tree, ("memcpy",))


def test_a_launch_through_warmup_is_traced_too(tree: Path) -> None:
    # vLLM's own warm-up compiles this kernel by ``kernel.warmup`` with tensors that have no storage.
    change(
        tree,
        GUARD,
        "def rmsnorm_fn(\n",
        "def rmsnorm_fn(*a, **k):\n"
        "    warmup_layer_norm_fwd(max_num_tokens=8192, rows_per_token=16, group_size=128, x_dtype=torch.bfloat16,\n"
        "        weight_dtype=torch.bfloat16, device=torch.device('cuda', 0), norm_before_gate=True,\n"
        "        is_rms_norm=True, activation='silu')\n\n"
        "@input_guard\ndef _unused(\n",
    )
    change(tree, GUARD, "def layer_norm_fwd(\n", "def layer_norm_fwd(*a, **k): ...\n\ndef _unused_too(\n")
    (warmed,) = trace(tree)
    assert len(warmed.keys) == 3
    assert {dict(key.constexprs)[(14,)] for key, _ in warmed.keys} == {1, 2, 4}


def test_a_variable_of_the_shell_does_not_reach_a_key(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trace(tree)
    monkeypatch.setenv("TRITON_DEBUG", "1")
    monkeypatch.setenv("VLLM_TRITON_FORCE_FIRST_CONFIG", "1")
    assert trace(tree) == plain
