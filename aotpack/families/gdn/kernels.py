"""The kernels of the layer, with the parameters by which the family knows them, release by release."""

from typing import Any

from aotpack.families import ExpectedKernel, Unbounded, without
from aotpack.families.gdn.modules import CHECKPOINT, FLA, MAMBA

_CACHE_LINES = {
    "0.26.0": Unbounded(
        setting="cache-lines",
        fixed_by="the number of the KV cache's blocks, which a server learns when it has measured its memory",
    )
}
"""Constexpr ``num_cache_lines`` of the convolutions; later releases pass it at run time."""


def _kernel(
    module: str, name: str, parameters: str, *older: str, newer: tuple[str, ...] = (), **known: Any
) -> ExpectedKernel:
    """A kernel, with its parameters in older releases, or those that older releases lack."""
    names = tuple(parameters.split())
    others = tuple(tuple(text.split()) for text in older) + ((without(names, *newer),) if newer else ())
    return ExpectedKernel(name=f"{module}:{name}", parameters=names, others=others, **known)


KERNELS: tuple[ExpectedKernel, ...] = (
    _kernel(
        f"{MAMBA}.ops.causal_conv1d",
        "_causal_conv1d_fwd_kernel",
        "x_ptr w_ptr bias_ptr initial_states_ptr cache_indices_ptr has_initial_states_ptr "
        "query_start_loc_ptr batch_ptr token_chunk_offset_ptr o_ptr dim num_cache_lines "
        "stride_x_dim stride_x_token stride_w_dim stride_w_width stride_istate_seq "
        "stride_istate_dim stride_istate_token stride_cache_indices stride_o_dim stride_o_token "
        "pad_slot_id null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION HAS_NULL_BLOCK "
        "NP2_STATELEN BLOCK_M BLOCK_N launch_pdl",
        "x_ptr w_ptr bias_ptr initial_states_ptr cache_indices_ptr has_initial_states_ptr "
        "query_start_loc_ptr batch_ptr token_chunk_offset_ptr block_idx_first_scheduled_token "
        "block_idx_last_scheduled_token initial_state_idx num_computed_tokens o_ptr dim num_cache_lines "
        "stride_x_dim stride_x_token stride_w_dim stride_w_width stride_istate_seq "
        "stride_istate_dim stride_istate_token stride_cache_indices stride_o_dim stride_o_token "
        "stride_block_m pad_slot_id null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION IS_APC_ENABLED "
        "HAS_NULL_BLOCK NP2_STATELEN BLOCK_M BLOCK_N",
        unbounded=_CACHE_LINES,
    ),
    _kernel(
        f"{MAMBA}.ops.causal_conv1d",
        "_causal_conv1d_update_kernel",
        "x_ptr w_ptr bias_ptr conv_state_ptr conv_state_indices_ptr num_accepted_tokens_ptr "
        "query_start_loc_ptr o_ptr batch dim seqlen state_len num_cache_lines stride_x_seq "
        "stride_x_dim stride_x_token stride_w_dim stride_w_width stride_conv_state_seq "
        "stride_conv_state_dim stride_conv_state_tok stride_state_indices stride_o_seq "
        "stride_o_dim stride_o_token null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION "
        "IS_VARLEN IS_SPEC_DECODING NP2_STATELEN HAS_NULL_BLOCK BLOCK_N launch_pdl",
        "x_ptr w_ptr bias_ptr conv_state_ptr conv_state_indices_ptr num_accepted_tokens_ptr "
        "query_start_loc_ptr block_idx_last_scheduled_token initial_state_idx o_ptr batch dim seqlen "
        "state_len num_cache_lines stride_x_seq stride_x_dim stride_x_token stride_w_dim stride_w_width "
        "stride_conv_state_seq stride_conv_state_dim stride_conv_state_tok stride_state_indices stride_o_seq "
        "stride_o_dim stride_o_token null_block_id HAS_BIAS KERNEL_WIDTH SILU_ACTIVATION IS_VARLEN "
        "IS_APC_ENABLED IS_SPEC_DECODING NP2_STATELEN HAS_NULL_BLOCK BLOCK_N",
        unbounded=_CACHE_LINES,
    ),
    _kernel(
        f"{FLA}.fused_gdn_prefill_post_conv",
        "_fused_post_conv_kernel",
        "mixed_qkv_ptr a_ptr b_ptr A_log_ptr dt_bias_ptr q_ptr k_ptr v_ptr g_ptr beta_ptr "
        "stride_x_tok stride_a_tok stride_b_tok stride_q_tok stride_k_tok stride_v_tok L H HV K V "
        "APPLY_L2NORM L2NORM_EPS OUTPUT_G_EXP SOFTPLUS_THRESHOLD BLOCK_T BK BV",
    ),
    _kernel(
        f"{FLA}.fused_sigmoid_gating",
        "fused_sigmoid_gating_delta_rule_update_kernel",
        "A_log a b dt_bias beta threshold q k v o h0 ht cu_seqlens ssm_state_indices "
        "num_accepted_tokens scale N T B H HV K V BK BV stride_init_state_token "
        "stride_final_state_token stride_indices_seq stride_indices_tok USE_INITIAL_STATE "
        "INPLACE_FINAL_STATE USE_QK_L2NORM_IN_KERNEL IS_VARLEN IS_CONTINUOUS_BATCHING "
        "IS_SPEC_DECODING IS_KDA",
    ),
    _kernel(
        f"{FLA}.fused_recurrent",
        "fused_recurrent_gated_delta_rule_packed_decode_kernel",
        "mixed_qkv a b A_log dt_bias o h0 ht ssm_state_indices scale stride_mixed_qkv_tok "
        "stride_a_tok stride_b_tok stride_init_state_token stride_final_state_token "
        "stride_indices_seq H HV K V BK BV SOFTPLUS_THRESHOLD USE_QK_L2NORM_IN_KERNEL "
        "SPLIT_BATCH_HEAD_GRID",
        newer=("SPLIT_BATCH_HEAD_GRID",),
    ),
    _kernel(
        f"{FLA}.cumsum",
        "chunk_local_cumsum_scalar_kernel",
        "s o cu_seqlens chunk_indices T B H BT REVERSE IS_VARLEN HEAD_FIRST",
    ),
    _kernel(
        f"{FLA}.chunk_scaled_dot_kkt",
        "chunk_scaled_dot_kkt_fwd_kernel",
        "k beta g A cu_seqlens chunk_indices T H Hg K BT BK IS_VARLEN USE_G CAST_DOT_TO_K_DTYPE",
    ),
    _kernel(
        f"{FLA}.solve_tril",
        "merge_16x16_to_64x64_inverse_kernel",
        "A Ai cu_seqlens chunk_indices T H BT USE_TMA IS_VARLEN DOT_PRECISION",
    ),
    _kernel(
        f"{FLA}.wy_fast",
        "recompute_w_u_fwd_kernel",
        "k v beta w u A g cu_seqlens chunk_indices T H Hg K V BT BK BV IS_VARLEN",
    ),
    _kernel(
        f"{FLA}.chunk_delta_h",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "k v w v_new g gk h h0 ht cu_seqlens chunk_offsets T H Hg K V BT BV USE_G USE_GK "
        "USE_INITIAL_STATE STORE_FINAL_STATE SAVE_NEW_VALUE IS_VARLEN USE_EXP2",
    ),
    _kernel(
        f"{FLA}.chunk_o",
        "chunk_fwd_kernel_o",
        "q k v h g o cu_seqlens chunk_indices scale T H Hg K V BT BK BV USE_G IS_VARLEN",
    ),
    _kernel(
        CHECKPOINT,
        "store_cache_checkpoints_kernel",
        "x_ptr conv_state_ptr recurrent_checkpoint_ptr recurrent_state_ptr query_start_loc_ptr "
        "checkpoint_offsets_ptr checkpoint_state_indices_ptr recurrent_rows_ptr token_indices_ptr "
        "x_stride_0 x_stride_1 state_stride_0 state_stride_1 state_stride_2 checkpoint_stride_0 "
        "recurrent_state_stride_0 checkpoint_offset_stride STATE_LEN WIDTH RECURRENT_ROW_SIZE "
        "NULL_STATE_IDX HAS_RECURRENT HAS_RECURRENT_ROWS HAS_TOKEN_MAP BLOCK_SIZE",
        absent=("0.26.0",),
    ),
)
