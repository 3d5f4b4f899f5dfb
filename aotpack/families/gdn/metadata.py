"""Metadata of a batch, made by the engine's own builders, one for each place where the states' indices lie."""

from collections.abc import Iterator
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Trace
from aotpack.families.gdn.batch import Batch
from aotpack.families.gdn.layer import NAME
from aotpack.families.gdn.modules import BACKEND, BUILDER

TABLE = "table"


def make_builders(trace: Trace, deployment: Deployment, layer: Any) -> Iterator[tuple[str, Any]]:
    """Builders of metadata, by where the states' indices lie."""
    import torch

    def build() -> Any:
        return trace.module(BUILDER).GDNAttentionMetadataBuilder(
            layer.get_kv_cache_spec(layer.vllm_config), [NAME], layer.vllm_config, torch.device("cpu")
        )

    yield TABLE, build()
    captured = build()
    captured.use_full_cuda_graph = True
    yield "graph", captured
    if deployment.prefix_caching:
        # The V2 runner's second group; the first begins as aligned as a table.
        second = build()
        second.mamba_aligned_state_indices = torch.zeros(
            2, deployment.max_num_seqs, 1 + layer.num_spec, dtype=torch.int32
        )[1]
        yield "second group", second


def make_metadata(trace: Trace, deployment: Deployment, builder: Any, batch: Batch) -> Any:
    """The metadata of a batch."""
    import torch

    queries = torch.tensor(batch.queries, dtype=torch.int32)
    starts = torch.zeros(len(queries) + 1, dtype=torch.int32)
    torch.cumsum(queries, dim=0, out=starts[1:])
    fresh = torch.arange(len(queries)) >= len(queries) - len(batch.prefills)
    lengths = torch.where(fresh, queries, queries + 1)
    width = builder.kv_cache_spec.max_num_blocks_per_req(builder.vllm_config, deployment.model_len)
    drafts: dict[str, Any] = {}
    if builder.use_spec_decode:
        drafts = {
            "num_accepted_tokens": torch.ones(len(queries), dtype=torch.int32),
            "num_decode_draft_tokens_cpu": torch.where(
                torch.arange(len(queries)) < len(batch.drafted), queries - 1, -1
            ),
        }
    common = trace.module(BACKEND).CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=len(queries),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(queries.max()),
        max_seq_len=int(lengths.max()),
        block_table_tensor=_on_host(torch.zeros(len(queries), width, dtype=torch.int32)),
        slot_mapping=torch.empty(0, dtype=torch.int64),
        is_prefilling=fresh,
    )
    return builder.build(0, common, **drafts)


def _on_host(tensor: Any) -> Any:
    """The tensor, not claiming to be on the device, so that torch cuts the states' blocks out of their table.

    On the device a kernel of family memcpy does, with the same shape and strides, and would leave them unfilled
    here (v1/attention/backends/utils.py, ``mamba_get_block_table_tensor``); the layer indexes its states by them.
    """
    import torch

    plain = torch._C._disabled_torch_function_impl  # noqa: SLF001  # results are tensors like any other
    return tensor.as_subclass(type("OnHost", (torch.Tensor,), {"is_cuda": False, "__torch_function__": plain}))
