"""The KV page is what vLLM's own configuration code makes of a deployment, for every preset."""

import contextlib
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment, misfit
from aotpack.engines import Engine
from aotpack.families import Family
from aotpack.families.memcpy import FAMILY as MEMCPY
from aotpack.models import load_model, presets
from aotpack.tracing import Tracer, clean_environment
from tests.conftest import SM90, needs_compiler

INTERFACE = "vllm.platforms.interface"
BACKEND = "vllm.v1.attention.backend"
SPECS = "vllm.v1.kv_cache_interface"
STATES = "vllm.model_executor.layers.mamba.mamba_utils"

MODES: tuple[dict[str, Any], ...] = (
    {},
    {"gdn_prefill": "flashinfer"},
    {"gdn_prefill": "flashinfer", "prefix_caching": False},
    {"kv_cache_dtype": "fp8"},
    {"ssm_dtype": "bfloat16"},
    {"speculative_tokens": 3},
    {"dtype": "float16", "speculative_tokens": 1, "gdn_prefill": "flashinfer"},
)


def deployments() -> list[Deployment]:
    return [
        replace(Deployment(model=model, tp=tp), **mode)
        for model in map(load_model, presets())
        for tp in (1, 2, 4, 8)
        for mode in MODES
        if model.gdn is not None and not misfit(model, tp)
    ]


def vllms_own(engine: Engine, served: list[Deployment]) -> list[tuple[int, int]]:
    """The block and the page that ``Platform._align_hybrid_block_size`` resolves, in a process of its own."""
    family: Family = replace(MEMCPY, modules=(*MEMCPY.modules, INTERFACE))
    with tempfile.TemporaryDirectory() as cache:
        clean_environment(cache)
        tracer = Tracer(engine, SM90, (family,))
        return [_align(tracer, deployment) for deployment in served]


def _align(tracer: Tracer, deployment: Deployment) -> tuple[int, int]:
    import torch

    gdn = deployment.gdn
    dtype, state = getattr(torch, deployment.dtype), getattr(torch, deployment.state_dtype)
    multiple = tracer.module(BACKEND).MultipleOf(16)
    backend = SimpleNamespace(
        customize_spec=lambda spec: spec, get_supported_kernel_block_sizes=lambda: [multiple], get_name=lambda: "FLASH"
    )
    shape = sys.modules[STATES].MambaStateShapeCalculator.gated_delta_net_state_shape(
        deployment.tp,
        gdn.k_heads,
        gdn.v_heads,
        gdn.k_dim,
        gdn.v_dim,
        gdn.conv_kernel,
        deployment.speculative_tokens,
    )
    model_class = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _config: shape,
        get_mamba_state_dtype_from_config=lambda _config: (dtype, state),
    )
    # What the function looks up in modules that only a server loads.
    given: dict[str, dict[str, Any]] = {
        # Handlers are of dtypes that plug-ins add.
        "vllm.config.cache": {"get_kv_cache_dtype_handler": lambda _name: None},
        "vllm.config.vllm": {"set_current_vllm_config": lambda _config: contextlib.nullcontext()},
        "vllm.model_executor.layers.mamba.abstract": {
            "get_mamba_prefill_checkpoint_alignment": lambda _config: (
                64 if deployment.gdn_prefill == "flashinfer" else None
            )
        },
        "vllm.model_executor.models": {
            "ModelRegistry": SimpleNamespace(resolve_model_cls=lambda *_args, **_kwargs: (model_class, ""))
        },
        "vllm.utils.torch_utils": {"STR_DTYPE_TO_TORCH_DTYPE": {"fp8": torch.uint8}},
    }
    for name, values in given.items():
        __import__(name)
        for key, value in values.items():
            setattr(sys.modules[name], key, value)
    cache = SimpleNamespace(
        block_size=16,
        cache_dtype=deployment.kv_cache_dtype,
        kv_cache_dtype_skip_layers=None,
        mamba_cache_mode="align" if deployment.prefix_caching else "none",
        mamba_block_size=None,
        mamba_page_size_padded=None,
    )
    heads, head = deployment.kv_heads, deployment.model.attention.head_dim
    model = SimpleNamespace(
        dtype=dtype,
        use_mla=False,
        architecture="",
        get_num_kv_heads=lambda _parallel: heads,
        get_head_size=lambda: head,
    )
    config = SimpleNamespace(cache_config=cache, model_config=model, parallel_config=None)
    platform = type(
        "Cuda", (tracer.module(INTERFACE).Platform,), {"_find_non_ssm_backends": classmethod(lambda *_: [backend])}
    )
    platform._align_hybrid_block_size(config, backend)  # type: ignore[attr-defined]  # vLLM's own
    page = cache.mamba_page_size_padded or deployment.state_bytes
    return cache.block_size, page


def test_blocks_and_pages_are_those_that_vllms_own_code_resolves(engine: Engine) -> None:
    needs_compiler()
    served = deployments()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        resolved = executor.submit(vllms_own, engine, served).result()
    assert len(served) > 200
    for deployment, (block, page) in zip(served, resolved, strict=True):
        assert (deployment.block_tokens, deployment.kv_page) == (block, page), deployment
