"""memcpy: moving the state of gated delta net layers between blocks of the KV cache, in both runners.

With prefix caching the layers keep their state aligned to blocks (``mamba_cache_mode`` "align"), so a step that
crosses a block's end first copies the running state to the next block, and speculation may copy it back. Kernels,
all in vLLM's v1/worker/mamba_utils.py unless named otherwise:

- ``batch_memcpy_kernel``: the V1 runner's copies without speculation (``preprocess_mamba``), and vLLM's own warm-up
  for every model that has such state (model_executor/warmup/mamba_triton_warmup.py).
- ``preprocess_mamba_align_fused_kernel``: the V2 runner's bookkeeping before each step.
- ``precopy_mamba_align_fused_kernel``, ``postprocess_mamba_fused_kernel``: the copies themselves, before and after
  a step; by the V2 runner through a mapping of requests, by the V1 runner under speculation without one.
- ``get_aligned_state_indices_multi_group_kernel`` (V2) and ``_mamba_align_block_table_kernel`` (V1,
  v1/attention/backends/utils.py): which blocks hold the state of each request.
- ``_scatter_num_accepted_kernel`` and ``_fill_num_accepted_kernel``
  (v1/worker/gpu/model_states/mamba_hybrid.py): how many tokens of each request were accepted; V2, with or without
  prefix caching. The second serves all but the last rank of pipeline parallelism, always with the number 1.

Nothing varies with tokens or requests: the number of requests is not specialised, buffers are handed on whole or
from their first element, so their bases are aligned, and addresses, sizes and strides of states are data in
tensors. What a deployment decides are the block's size, max_num_seqs, draft tokens, and the width of block tables
(a multiple of 16 or not), which follows from the longest sequence and the block
(v1/kv_cache_interface.py, ``MambaSpec.max_num_blocks_per_req``).

Groups of layers: every released model has three gated delta net layers for each layer of attention. The KV cache
then has three groups of the former, as many layers in each as there are of the latter
(v1/core/kv_cache_planning.py, ``_get_kv_cache_groups_uniform_page_size``); the one attention layer that MTP adds
does not change that from three layers of attention on. How many layers a group has is data.

In 0.26.0 the number of requests is specialised (1, a multiple of 16, other). A server of it warms none of this up,
the V1 runner copies by ``batch_memcpy_kernel`` under speculation too, and torch does what the last two do.

Element types are part of keys: addresses of copies are uint64 and their sizes int32, as ``MambaCopyBuffers.create``
makes them; addresses of states and tables are int64.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import ExpectedKernel, Family, Trace, fitting, without

_UTILS = "vllm.v1.worker.mamba_utils"
_V2_STATE = "vllm.v1.worker.gpu.model_states.mamba_hybrid"
_FILL = f"{_V2_STATE}:_fill_num_accepted_kernel"
_BATCH = "vllm.v1.worker.gpu.input_batch"
_BACKENDS = "vllm.v1.attention.backends.utils"
_INTERFACE = "vllm.v1.kv_cache_interface"
_REGISTRY = "vllm.v1.attention.backends.registry"
_LAYERS = "vllm.model_executor.layers.mamba.mamba_utils"
_CHECKPOINT = "vllm.model_executor.layers.mamba.checkpoint"
_WARM_UP = "vllm.model_executor.warmup.mamba_triton_warmup"

_GROUPS = 3
_BATCHES = (1, 2, 16)


class _Buffer:
    """What the callers use of vLLM's ``CpuGpuBuffer`` (v1/utils.py), with one memory for both sides."""

    def __init__(self, size: int, dtype: Any) -> None:
        import torch

        self.gpu = torch.zeros(size, dtype=dtype)
        self.np = self.gpu.numpy()

    def copy_to_gpu(self, count: int) -> Any:
        """The device's first elements."""
        return self.gpu[:count]


class _Cache:
    """A KV cache's groups of gated delta net layers, as much as the callers ask of them."""

    def __init__(self, trace: Trace, deployment: Deployment) -> None:
        import torch

        gdn, speculative = deployment.gdn, deployment.speculative_tokens
        kind = trace.module(_REGISTRY).MambaAttentionBackendEnum.GDN_ATTN
        convolution = (gdn.conv_kernel - 1 + speculative, deployment.conv_dim)
        recurrent = (gdn.v_heads // deployment.tp, gdn.v_dim, gdn.k_dim)
        dtypes = (getattr(torch, deployment.dtype), getattr(torch, deployment.state_dtype))
        self.spec = trace.module(_INTERFACE).MambaSpec(
            block_size=deployment.block_tokens,
            shapes=(convolution, recurrent),
            dtypes=dtypes,
            page_size_padded=deployment.kv_page,
            mamba_type=kind,
            mamba_cache_mode="align",
            num_speculative_blocks=speculative,
        )
        # A sequence of two blocks, which a step of one more token has just outgrown, and its blocks for drafts.
        self.blocks = list(range(2 + speculative))
        states = [
            torch.empty(len(self.blocks), *shape, dtype=dtype)
            for shape, dtype in zip(self.spec.shapes, self.spec.dtypes, strict=True)
        ]
        names = [f"layer.{group}" for group in range(_GROUPS)]
        self.layers = {name: SimpleNamespace(kv_cache=states) for name in names}
        self.config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=self.spec, layer_names=[name]) for name in names]
        )
        copies = trace.module(_LAYERS).MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()
        create = trace.module(_UTILS).MambaSpecDecodeGPUContext.create
        # Where states of one kind are all there can be, the functions are not told apart by kind.
        self.copies = copies if "num_state_types" in inspect.signature(create).parameters else {kind: copies}
        options = SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="align"))
        width = self.spec.max_num_blocks_per_req(options, deployment.model_len)
        self.tables = [torch.zeros(deployment.max_num_seqs, width, dtype=torch.int32) for _ in names]


def _serves(deployment: Deployment) -> bool:
    return deployment.model.gdn is not None


def _drive(trace: Trace, deployment: Deployment) -> None:
    if trace.has(_WARM_UP):
        _warm_up(trace)
    if not trace.has(_CHECKPOINT):
        # Nothing is exported from inside FlashInfer's chunks, so nothing makes blocks longer for it.
        deployment = replace(deployment, gdn_prefill="triton")
    cache = _Cache(trace, deployment) if deployment.prefix_caching else None
    if cache is not None:
        _step_v1(trace, deployment, cache)
    _step_v2(trace, deployment, cache)


def _batches(deployment: Deployment) -> Sequence[int]:
    return [requests for requests in _BATCHES if requests <= deployment.max_num_seqs]


def _warm_up(trace: Trace) -> None:
    import torch

    copy = trace.module(_UTILS).do_mamba_copy_block
    for copies in _BATCHES:
        buffers = SimpleNamespace(
            src_ptrs=_Buffer(copies, torch.uint64),
            dst_ptrs=_Buffer(copies, torch.uint64),
            sizes=_Buffer(copies, torch.int32),
            offset=copies,
        )
        with trace.input(copies=copies):
            copy(buffers)


def _step_v1(trace: Trace, deployment: Deployment, cache: _Cache) -> None:
    """A step of v1/worker/gpu_model_runner.py: copies before it, block tables for it, copies after it."""
    import torch

    utils = trace.module(_UTILS)
    table_of = trace.module(_BACKENDS).mamba_get_block_table_tensor
    limit = deployment.max_num_seqs
    buffers = utils.MambaBuffers.create(
        max_num_reqs=limit,
        kv_cache_config=cache.config,
        copy_funcs=cache.copies,
        make_buffer=_Buffer,
        device=torch.device("cpu"),
        with_postprocess_align=deployment.speculative_tokens > 0,
    )
    accepted, accepted_on_host, lengths = (torch.ones(limit, dtype=torch.int32) for _ in range(3))
    for requests in _batches(deployment):
        names = [str(index) for index in range(requests)]
        batch = SimpleNamespace(
            req_ids=names,
            num_accepted_tokens_cpu=accepted_on_host.numpy(),
            block_table=[
                SimpleNamespace(get_device_tensor=lambda count, table=table: table[:count]) for table in cache.tables
            ],
        )
        request = SimpleNamespace(
            num_computed_tokens=deployment.block_tokens, block_ids=[cache.blocks for _ in cache.tables]
        )
        scheduled = SimpleNamespace(
            finished_req_ids=set(),
            preempted_req_ids=None,
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
            num_scheduled_tokens=dict.fromkeys(names, 1),
        )
        with trace.input(runner="V1", requests=requests):
            utils.preprocess_mamba(
                scheduled,
                cache.config,
                SimpleNamespace(enable_prefix_caching=True),
                {},
                batch,
                dict.fromkeys(names, request),
                cache.layers,
                cache.copies,
                buffers.preprocess,
                **fitting(utils.preprocess_mamba, align_ctx=buffers.postprocess_align),
            )
            for table in cache.tables:
                table_of(table[:requests], lengths[:requests], cache.spec, cache.spec.mamba_cache_mode)
            if buffers.postprocess_align is not None and not deployment.pooling:
                utils.postprocess_mamba_align_gpu(
                    bufs=buffers,
                    num_reqs=requests,
                    num_accepted_tokens_gpu=accepted,
                    num_accepted_tokens_cpu_tensor=accepted_on_host,
                    input_batch=batch,
                    kv_cache_config=cache.config,
                    forward_context=cache.layers,
                    mamba_state_copy_funcs=cache.copies,
                )


def _step_v2(trace: Trace, deployment: Deployment, cache: _Cache | None) -> None:
    """A step of v1/worker/gpu/model_runner.py: copies before it, block tables for it, what was accepted after it."""
    import torch

    runner = trace.module(_V2_STATE).MambaHybridModelState
    limit = deployment.max_num_seqs
    # As __init__ and initialize_kv_cache make it.
    state: Any = object.__new__(runner)
    vars(state).update(recoverssm=None, _align_mode=cache is not None, _mamba_ctx=None)
    for name in (
        "num_accepted_tokens_gpu",
        "_mamba_state_idx_gpu",
        "_mamba_src_col_gpu",
        "_mamba_src_off_gpu",
    ):
        setattr(state, name, torch.ones(limit, dtype=torch.int32))
    context: Any = None
    if cache is not None:
        state._get_mamba_group_info = lambda _config: (list(range(_GROUPS)), cache.spec)  # noqa: SLF001  # our stand-in
        kind = trace.module(_UTILS).MambaSpecDecodeGPUContext
        context = kind.create(
            max_num_reqs=limit,
            kv_cache_config=cache.config,
            device=torch.device("cpu"),
            make_buffer=_Buffer,
            **fitting(kind.create, copy_funcs=cache.copies, num_state_types=len(cache.spec.shapes)),
        )
        inputs = [torch.zeros_like(table) for table in cache.tables]
        context.initialize_from_forward_context(
            cache.config,
            cache.layers,
            cache.copies,
            cache.tables,
            **fitting(kind.initialize_from_forward_context, aligned_index_block_tables=inputs),
        )
        state._mamba_ctx = context  # noqa: SLF001  # our stand-in
    computed, lengths = (torch.zeros(limit, dtype=torch.int32) for _ in range(2))
    batches = trace.module(_BATCH)
    buffers = batches.InputBuffers(max_num_reqs=limit, max_num_tokens=limit, device=torch.device("cpu"))
    for requests in _batches(deployment):
        batch = batches.InputBatch.make_dummy(requests, requests, buffers)
        mapping = batch.idx_mapping
        with trace.input(runner="V2", requests=requests):
            if cache is not None:
                state.preprocess_state(batch, (), cache.config, computed)
                if hasattr(context, "compute_aligned_state_indices"):
                    context.compute_aligned_state_indices(lengths[:requests], requests)
            if not deployment.pooling:
                state.postprocess_state(mapping, torch.ones(requests, dtype=torch.int32), computed)
        if not deployment.pooling and trace.has(_FILL):
            with trace.input(runner="V2", requests=requests, rank="not the last"):
                state.postprocess_state(mapping, 0)


_POSTPROCESS = (
    "num_accepted_tokens_ptr",
    "mamba_state_idx_ptr",
    "num_scheduled_tokens_ptr",
    "num_computed_tokens_ptr",
    "num_draft_tokens_ptr",
    "block_table_ptrs_ptr",
    "block_table_stride_req",
    "state_base_addrs_ptr",
    "state_block_strides_ptr",
    "state_elem_sizes_ptr",
    "state_inner_sizes_ptr",
    "state_conv_widths_ptr",
    "state_group_indices_ptr",
    "state_dim_row_count_ptr",
    "state_dim_row_stride_ptr",
    "num_accepted_tokens_out_ptr",
    "idx_mapping_ptr",
    "num_reqs",
    "block_size",
    "COPY_BLOCK_SIZE",
    "CONV_STATE_DIM_FIRST",
    "HAS_IDX_MAPPING",
    "PRECOMPUTED_NEW_COMPUTED",
    "TEMPORAL_TILES",
)
_PRECOPY = (
    "mamba_state_idx_ptr",
    "src_col_ptr",
    "token_bias_ptr",
    "block_table_ptrs_ptr",
    "block_table_stride_req",
    "state_base_addrs_ptr",
    "state_block_strides_ptr",
    "state_elem_sizes_ptr",
    "state_inner_sizes_ptr",
    "state_conv_widths_ptr",
    "state_group_indices_ptr",
    "state_dim_row_count_ptr",
    "state_dim_row_stride_ptr",
    "idx_mapping_ptr",
    "num_reqs",
    "COPY_BLOCK_SIZE",
    "CONV_STATE_DIM_FIRST",
    "HAS_IDX_MAPPING",
    "TEMPORAL_TILES",
)


FAMILY = Family(
    name="memcpy",
    engine="vllm",
    kernels=(
        ExpectedKernel(
            name=f"{_UTILS}:batch_memcpy_kernel", parameters=("src_ptrs", "dst_ptrs", "sizes", "BLOCK_SIZE")
        ),
        ExpectedKernel(
            name=f"{_UTILS}:get_aligned_state_indices_multi_group_kernel",
            parameters=(
                "block_table_ptrs_ptr",
                "seq_lens_ptr",
                "state_indices_ptr",
                "block_table_stride_req",
                "seq_lens_stride",
                "state_indices_stride_0",
                "state_indices_stride_1",
                "state_indices_stride_2",
                "num_requests",
                "CACHE_BLOCK_SIZE",
                "NUM_GROUPS",
                "BLOCK_GROUPS",
                "NUM_STATE_SLOTS",
                "BLOCK_STATE_SLOTS",
                "BLOCK_ROWS",
            ),
            absent=("0.26.0",),
        ),
        ExpectedKernel(
            name=f"{_UTILS}:postprocess_mamba_fused_kernel",
            parameters=_POSTPROCESS,
            others=(without(_POSTPROCESS, "TEMPORAL_TILES"),),
        ),
        ExpectedKernel(
            name=f"{_UTILS}:precopy_mamba_align_fused_kernel",
            parameters=_PRECOPY,
            others=(without(_PRECOPY, "HAS_IDX_MAPPING", "TEMPORAL_TILES"),),
        ),
        ExpectedKernel(
            name=f"{_UTILS}:preprocess_mamba_align_fused_kernel",
            parameters=(
                "idx_mapping_ptr",
                "state_idx_ptr",
                "num_computed_tokens_ptr",
                "query_start_loc_ptr",
                "num_accepted_tokens_ptr",
                "src_col_ptr",
                "src_off_ptr",
                "num_reqs",
                "BLOCK_SIZE",
                "MAMBA_BLOCK_SIZE",
            ),
        ),
        ExpectedKernel(
            name=f"{_V2_STATE}:_scatter_num_accepted_kernel",
            parameters=("idx_mapping_ptr", "num_sampled_ptr", "num_accepted_ptr"),
        ),
        ExpectedKernel(
            name=_FILL,
            parameters=("idx_mapping_ptr", "num_accepted_ptr", "num_sampled"),
            absent=("0.26.0",),
        ),
        ExpectedKernel(
            name=f"{_BACKENDS}:_mamba_align_block_table_kernel",
            parameters=(
                "out_ptr",
                "block_table_ptr",
                "block_table_stride_0",
                "block_table_stride_1",
                "seq_lens_ptr",
                "seq_lens_stride",
                "block_size",
                "n_out",
                "BLOCK",
            ),
            absent=("0.26.0",),
        ),
    ),
    modules=(
        _UTILS,
        _V2_STATE,
        _BATCH,
        _BACKENDS,
        _INTERFACE,
        _REGISTRY,
        _LAYERS,
        "vllm.v1.attention.backend",
        "vllm.v1.kv_cache_spec_registry",
        "vllm.utils.gpu_sync_debug",
    ),
    serves=_serves,
    drive=_drive,
    optional=("vllm.v1.kv_cache_layout",),
)
