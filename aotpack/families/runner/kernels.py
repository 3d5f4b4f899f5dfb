"""The kernels of runner and sampler, with the parameters by which the family knows them."""

from aotpack.families import ExpectedKernel
from aotpack.families.runner.modules import DRAFTER, GPU, SAMPLE, SPEC, TOPK_TOPP, V1


def _kernel(module: str, name: str, parameters: str) -> ExpectedKernel:
    return ExpectedKernel(name=f"{module}:{name}", parameters=tuple(parameters.split()))


KERNELS: tuple[ExpectedKernel, ...] = (
    _kernel(
        TOPK_TOPP,
        "_topk_topp_kernel",
        "LOGITS LOGITS_STRIDE_0 BUFFER PERCENTILE_TO_STD_TABLE NORMAL_CDF_TO_SIGMA_TABLE K P "
        "BATCH_SIZE VOCAB_SIZE MASK_VALUE BLOCK_SIZE BLOCK_SIZE_TRUNC TOPK_ENABLED TOPP_ENABLED "
        "SPLIT_COVERS_PONLY",
    ),
    _kernel(
        TOPK_TOPP,
        "_topp_sb_stats_kernel",
        "LOGITS LOGITS_STRIDE_0 STATS K P HAS_K VOCAB_SIZE S BLOCK",
    ),
    _kernel(
        TOPK_TOPP,
        "_topp_sb_step_kernel",
        "LOGITS LOGITS_STRIDE_0 STATS PARTS K P ROUND HAS_K S F NUM_ROUNDS VOCAB_SIZE BLOCK",
    ),
    _kernel(
        TOPK_TOPP,
        "_topp_sb_mask_kernel",
        "LOGITS LOGITS_STRIDE_0 STATS PARTS K P HAS_K MASK_VALUE S F NUM_ROUNDS VOCAB_SIZE BLOCK",
    ),
    _kernel(
        f"{V1}.worker.block_table",
        "ComputeSlotMappingKernel.kernel",
        "num_tokens max_num_tokens query_start_loc_ptr positions_ptr block_table_ptr "
        "block_table_stride slot_mapping_ptr KV_CACHE_BLOCK_SIZE TOTAL_CP_WORLD_SIZE TOTAL_CP_RANK "
        "CP_KV_CACHE_INTERLEAVE_SIZE PAD_ID BLOCK_SIZE",
    ),
    _kernel(
        f"{V1}.worker.utils",
        "_zero_kv_blocks_kernel",
        "seg_addrs_ptr seg_block_strides_ptr seg_page_sizes_ptr block_ids_ptr BLOCK_SIZE",
    ),
    _kernel(
        f"{GPU}.block_table",
        "_compute_slot_mappings_kernel",
        "max_num_tokens idx_mapping query_start_loc pos block_table_ptrs block_table_strides "
        "block_sizes slot_mapping_enabled dcp_sharded slot_mappings_ptr slot_mappings_stride "
        "cp_rank CP_SIZE CP_INTERLEAVE PAD_ID TRITON_BLOCK_SIZE",
    ),
    _kernel(
        f"{GPU}.block_table",
        "_gather_block_tables_kernel",
        "batch_idx_to_req_idx src_block_table_ptrs dst_block_table_ptrs block_table_strides "
        "num_blocks_ptr num_blocks_stride num_reqs num_computed_tokens_ptr sliding_window_reach_ptr "
        "block_sizes_ptr MASK_SLIDING_WINDOW BLOCK_SIZE",
    ),
    _kernel(
        f"{GPU}.buffer_utils",
        "_apply_write_kernel",
        "output_ptr output_stride write_indices_ptr write_starts_ptr write_contents_ptr "
        "write_cu_lens_ptr write_group_ids_ptr BLOCK_SIZE MULTI_GROUP",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_combine_sampled_and_draft_tokens_kernel",
        "input_ids_ptr idx_mapping_ptr last_sampled_tokens_ptr query_start_loc_ptr seq_lens_ptr "
        "prefill_len_ptr draft_tokens_ptr draft_tokens_stride cu_num_logits_ptr logits_indices_ptr "
        "BLOCK_SIZE NUM_NEW_SAMPLED_TOKENS",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_expand_idx_mapping_kernel",
        "idx_mapping_ptr expanded_idx_mapping_ptr expanded_local_pos_ptr cu_num_logits_ptr BLOCK_SIZE",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_get_num_sampled_and_rejected_kernel",
        "num_sampled_ptr num_rejected_ptr seq_lens_ptr cu_num_logits_ptr idx_mapping_ptr prefill_len_ptr",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_post_update_kernel",
        "idx_mapping_ptr num_computed_tokens_ptr last_sampled_tokens_ptr output_bin_counts_ptr "
        "output_bin_counts_stride sampled_tokens_ptr sampled_tokens_stride num_sampled_ptr "
        "num_rejected_ptr query_start_loc_ptr all_token_ids_ptr all_token_ids_stride total_len_ptr "
        "draft_tokens_ptr draft_tokens_out_ptr num_draft_tokens",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_post_update_num_computed_tokens_kernel",
        "idx_mapping_ptr num_computed_tokens_ptr query_start_loc_ptr",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_prepare_pos_seq_lens_kernel",
        "pos_ptr seq_lens_ptr idx_mapping_ptr query_start_loc_ptr num_computed_tokens_ptr max_num_reqs BLOCK_SIZE",
    ),
    _kernel(
        f"{GPU}.input_batch",
        "_prepare_prefill_inputs_kernel",
        "input_ids_ptr next_prefill_tokens_ptr next_prefill_tokens_stride num_lookahead "
        "idx_mapping_ptr query_start_loc_ptr all_token_ids_ptr all_token_ids_stride "
        "prefill_lens_ptr num_computed_tokens_ptr BLOCK_SIZE LOOKAHEAD_BLOCK",
    ),
    _kernel(
        f"{GPU}.structured_outputs",
        "_apply_grammar_bitmask_kernel",
        "logits_ptr logits_stride logits_indices_ptr cu_num_logits_ptr bitmask_ptr bitmask_stride "
        "vocab_size MASK_STRIDE BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.bad_words",
        "_bad_words_kernel",
        "logits_ptr logits_stride expanded_idx_mapping_ptr bad_word_token_ids_ptr "
        "bad_word_token_ids_stride bad_word_offsets_ptr bad_word_offsets_stride num_bad_words_ptr "
        "all_token_ids_ptr all_token_ids_stride prompt_len_ptr total_len_ptr input_ids_ptr "
        "expanded_local_pos_ptr",
    ),
    _kernel(
        f"{SAMPLE}.gumbel",
        "_gumbel_sample_kernel",
        "local_argmax_ptr local_argmax_stride local_max_ptr local_max_stride logits_cache_ptr "
        "logits_cache_stride_0 logits_cache_stride_1 logits_cache_col_ptr logits_cache_source_ptr "
        "logits_cache_source_stride logits_ptr logits_stride expanded_idx_mapping_ptr seeds_ptr "
        "pos_ptr temp_ptr vocab_size BLOCK_SIZE IS_DRAFTING APPLY_TEMPERATURE USE_FP64 "
        "PER_TOKEN_COL",
    ),
    _kernel(
        f"{SAMPLE}.gumbel",
        "_temperature_kernel",
        "logits_ptr logits_stride expanded_idx_mapping_ptr temperature_ptr vocab_size BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.logit_bias",
        "_bias_kernel",
        "logits_ptr logits_stride vocab_size expanded_idx_mapping_ptr num_allowed_token_ids_ptr "
        "allowed_token_ids_ptr allowed_token_ids_stride num_logit_bias_ptr bias_token_ids_ptr "
        "bias_token_ids_stride bias_ptr bias_stride pos_ptr min_lens_ptr num_stop_token_ids_ptr "
        "restore_when_all_masked_ptr stop_token_ids_ptr stop_token_ids_stride BLOCK_SIZE "
        "LOGITS_BLOCK_SIZE CHECK_ALL_MASKED_ROWS",
    ),
    _kernel(
        f"{SAMPLE}.logprob",
        "_fill_logprob_token_ids_kernel",
        "out_token_ids_ptr out_token_ids_stride out_valid_mask_ptr out_valid_mask_stride "
        "sampled_token_ids_ptr topk_indices_ptr topk_indices_stride expanded_idx_mapping_ptr "
        "num_per_req_token_ids_ptr per_req_token_ids_ptr per_req_token_ids_stride NUM_TOPK "
        "PADDED_COLS",
    ),
    _kernel(
        f"{SAMPLE}.logprob",
        "_ranks_kernel",
        "output_ptr logits_ptr logits_stride token_ids_ptr vocab_size BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.logprob",
        "_topk_log_softmax_kernel",
        "output_ptr logits_ptr logits_stride topk_ids_ptr topk_ids_stride topk vocab_size BLOCK_SIZE TOPK_BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.min_p",
        "_min_p_kernel",
        "logits_ptr logits_stride expanded_idx_mapping_ptr min_p_ptr vocab_size BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.penalties",
        "_bincount_kernel",
        "expanded_idx_mapping_ptr all_token_ids_ptr all_token_ids_stride prompt_len_ptr "
        "prefill_len_ptr prompt_bin_mask_ptr prompt_bin_mask_stride output_bin_counts_ptr "
        "output_bin_counts_stride BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.penalties",
        "_penalties_kernel",
        "logits_ptr logits_stride expanded_idx_mapping_ptr token_ids_ptr expanded_local_pos_ptr "
        "repetition_penalty_ptr frequency_penalty_ptr presence_penalty_ptr prompt_bin_mask_ptr "
        "prompt_bin_mask_stride output_bin_counts_ptr output_bin_counts_stride vocab_size "
        "BLOCK_SIZE",
    ),
    _kernel(
        f"{SAMPLE}.prompt_logprob",
        "_prompt_logprobs_token_ids_kernel",
        "prompt_logprobs_token_ids_ptr query_start_loc_ptr idx_mapping_ptr num_computed_tokens_ptr "
        "all_token_ids_ptr all_token_ids_stride BLOCK_SIZE",
    ),
    _kernel(
        f"{SPEC}.rejection_sampler",
        "_flatten_sampled_kernel",
        "flat_sampled_ptr sampled_ptr sampled_stride num_sampled_ptr cu_num_logits_ptr",
    ),
    _kernel(
        f"{SPEC}.rejection_sampler",
        "_gather_draft_sampled_kernel",
        "draft_sampled_ptr pos_ptr input_ids_ptr positions_ptr logits_indices_ptr "
        "expanded_idx_mapping_ptr expanded_local_pos_ptr prefill_len_ptr num_logits BLOCK_SIZE",
    ),
    _kernel(
        f"{SPEC}.rejection_sampler_utils",
        "_compute_local_logits_stats_kernel",
        "target_local_argmax_ptr target_local_argmax_stride target_local_max_ptr "
        "target_local_max_stride target_local_sumexp_ptr target_local_sumexp_stride "
        "draft_local_max_ptr draft_local_max_stride draft_local_sumexp_ptr "
        "draft_local_sumexp_stride target_logits_ptr target_logits_stride draft_logits_ptr "
        "draft_logits_stride_0 draft_logits_stride_1 expanded_idx_mapping_ptr "
        "expanded_local_pos_ptr temp_ptr vocab_size num_logits BLOCK_SIZE HAS_DRAFT_LOGITS",
    ),
    _kernel(
        f"{SPEC}.rejection_sampler_utils",
        "_insert_resampled_kernel",
        "sampled_ptr sampled_stride num_sampled_ptr resampled_local_argmax_ptr "
        "resampled_local_argmax_stride resampled_local_max_ptr resampled_local_max_stride "
        "resample_num_blocks cu_num_logits_ptr expanded_idx_mapping_ptr temp_ptr "
        "PADDED_RESAMPLE_NUM_BLOCKS",
    ),
    _kernel(
        f"{SPEC}.rejection_sampler_utils",
        "_rejection_kernel",
        "sampled_ptr sampled_stride rejected_steps_ptr target_rejected_logsumexp_ptr "
        "draft_rejected_logsumexp_ptr target_logits_ptr target_logits_stride "
        "target_local_argmax_ptr target_local_argmax_stride target_local_max_ptr "
        "target_local_max_stride target_local_sumexp_ptr target_local_sumexp_stride "
        "draft_sampled_ptr draft_logits_ptr draft_logits_stride_0 draft_logits_stride_1 "
        "draft_local_max_ptr draft_local_max_stride draft_local_sumexp_ptr "
        "draft_local_sumexp_stride cu_num_logits_ptr idx_mapping_ptr temp_ptr seed_ptr pos_ptr "
        "synthetic_conditional_rates_ptr cumulative_log_p_ptr local_residual_mass_ptr "
        "local_residual_mass_stride fly_entropy_ptr fly_entropy_threshold vocab_num_blocks "
        "PADDED_VOCAB_NUM_BLOCKS HAS_DRAFT_LOGITS SYNTHETIC_MODE USE_BLOCK_VERIFICATION "
        "FLY_WINDOW_SIZE",
    ),
    _kernel(
        f"{SPEC}.rejection_sampler_utils",
        "_resample_kernel",
        "resampled_local_argmax_ptr resampled_local_argmax_stride resampled_local_max_ptr "
        "resampled_local_max_stride target_logits_ptr target_logits_stride "
        "target_rejected_logsumexp_ptr draft_logits_ptr draft_logits_stride_0 draft_logits_stride_1 "
        "draft_rejected_logsumexp_ptr rejected_step_ptr cu_num_logits_ptr expanded_idx_mapping_ptr "
        "draft_sampled_ptr temp_ptr seed_ptr pos_ptr cumulative_log_p_ptr contexts_ptr "
        "contexts_stride watermarking_ptr watermarking_skip_mask_ptr watermark_key_0 "
        "watermark_key_1 vocab_size BLOCK_SIZE HAS_DRAFT_LOGITS USE_FP64 USE_BLOCK_VERIFICATION "
        "CONTEXT_WIDTH WATERMARK DEDUPLICATE_CONTEXTS",
    ),
    _kernel(
        DRAFTER,
        "_prepare_decode_inputs_kernel",
        "draft_tokens_ptr draft_tokens_stride target_seq_lens_ptr num_rejected_ptr input_ids_ptr "
        "positions_ptr sample_src_positions_ptr query_start_loc_ptr seq_lens_ptr max_model_len "
        "max_num_reqs BLOCK_SIZE ADVANCE_DRAFT_POSITIONS",
    ),
    _kernel(
        DRAFTER,
        "_prepare_prefill_inputs_kernel",
        "last_token_indices_ptr draft_current_step_ptr draft_input_ids_ptr draft_positions_ptr "
        "draft_query_start_loc_ptr draft_seq_lens_ptr target_input_ids_ptr target_positions_ptr "
        "idx_mapping_ptr last_sampled_ptr next_prefill_tokens_ptr num_sampled_ptr num_rejected_ptr "
        "query_start_loc_ptr seq_lens_ptr max_num_reqs BLOCK_SIZE",
    ),
    _kernel(
        DRAFTER,
        "_update_draft_inputs_kernel",
        "output_draft_tokens_ptr output_draft_tokens_stride next_input_hidden_states_ptr "
        "next_input_hidden_states_stride input_ids_ptr positions_ptr sample_src_positions_ptr "
        "seq_lens_ptr draft_tokens_ptr current_draft_step_ptr hidden_states_ptr "
        "hidden_states_stride hidden_size max_model_len num_speculative_steps BLOCK_SIZE "
        "ADVANCE_DRAFT_POSITIONS",
    ),
)
