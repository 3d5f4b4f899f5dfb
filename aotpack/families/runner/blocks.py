"""Blocks of the KV cache: new ones zeroed, and the slots of tokens in the V1 runner's."""

from types import SimpleNamespace
from typing import Any

from aotpack.deployments import Deployment
from aotpack.families import Trace
from aotpack.families.runner.modules import V1
from aotpack.families.runner.state import attention_block


def drive_zeroing(trace: Trace, runner: Any, deployment: Deployment) -> None:
    """New blocks are zeroed where the cache holds state of linear attention (v1/kv_cache_interface.py)."""
    import torch

    if deployment.model.gdn is None:
        return
    block, blocks = deployment.block_tokens, 2
    heads, head = deployment.kv_heads, deployment.model.attention.head_dim
    element = torch.uint8 if deployment.kv_cache_dtype.startswith("fp8") else getattr(torch, deployment.dtype)
    group = SimpleNamespace(
        kv_cache_spec=trace.module(f"{V1}.kv_cache_interface").FullAttentionSpec(
            block_size=block, num_kv_heads=heads, head_size=head, dtype=element
        ),
        kv_cache_group_id=0,
        layer_names=["attention"],
        kernel_block_stride=0,
    )
    layer = SimpleNamespace(kv_cache=torch.empty(blocks, heads, block, 2 * head, dtype=element))
    zeroer = trace.module(f"{V1}.worker.utils").KVBlockZeroer(
        runner.device, [group], [block], {"attention": layer}, blocks
    )
    with trace.input(blocks=1):
        zeroer.zero_block_ids([1])


def drive_v1_slots(trace: Trace, deployment: Deployment) -> None:
    """The V1 runner's slot mappings, of full attention alone."""
    import torch

    module, block = trace.module(f"{V1}.worker.block_table"), attention_block(deployment)
    tables = module.MultiGroupBlockTable(
        max_num_reqs=deployment.max_num_seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        pin_memory=True,
        device=torch.device("cpu"),
        block_sizes=[block],
        max_num_blocks=[-(-deployment.model_len // block)],
    )
    starts = torch.zeros(deployment.max_num_seqs + 1, dtype=torch.int32)
    positions = torch.zeros(deployment.max_num_batched_tokens, dtype=torch.int64)
    with trace.input(requests=1, runner="V1"):
        tables.compute_slot_mapping(1, starts[:2], positions[:1])
