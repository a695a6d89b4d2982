"""Spellings of configuration keys: one canonical name, all aliases in order of trust."""

from __future__ import annotations

import difflib

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "width": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "positions": (
        "max_position_embeddings", "n_positions", "max_seq_len", "model_max_length",
        "max_sequence_length", "seq_length", "n_ctx", "context_length",
    ),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": (
        "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k",
        "moe_topk", "moe_k", "top_k_experts",
    ),
    "expert_width": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared_experts": (
        "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts",
    ),
    "shared_width": (
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "share_expert_dim", "shared_intermediate_size",
    ),
    "window": ("sliding_window", "sliding_window_size", "window_size", "attention_window_size"),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "tied": ("tie_word_embeddings",),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head"),
    "mtp": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
    "dtype": ("dtype", "torch_dtype"),
    "state": ("state_size", "ssm_state_size", "mamba_d_state"),
    "conv": ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv_L_cache"),
    "groups": ("n_groups", "mamba_ngroups", "mamba_n_groups"),
    "ssm_heads": ("mamba_num_heads", "n_mamba_heads", "mamba_n_heads", "num_heads"),
    "ssm_head_dim": ("mamba_head_dim", "mamba_headdim", "mamba_d_head"),
    "expand": ("expand", "mamba_expand"),
    "dt_rank": ("time_step_rank", "mamba_dt_rank"),
}

# Facts a top-level configuration always carries; a default for one would invent a model.
DIMENSIONS = frozenset(("hidden", "layers", "heads", "width", "vocabulary", "experts",
                        "expert_width"))

_USED = """
add_qkv_bias alibi apply_residual_connection_post_layernorm attention_bias attention_chunk_size
attention_k_eq_v attention_out_bias attention_types attn_config attn_layer_offset attn_layer_period
attn_output_gate bias block_auto_adjust_ff_dim block_configs block_ffn_dim_multiplier
block_multiple_of block_ff_dim conv_bias cross_attention_layers decoder_sparse_step
dense_intermediate_size do_layer_norm_before enable_moe_block expansion_ratio expert_layer_offset
expert_layer_period ffn_config first_k_dense_replace full_attention_idx full_attention_interval
global_head_dim hidden_size_per_layer_input hybrid_layer_ids hybrid_layer_pattern
hybrid_override_pattern index_head_dim index_n_heads index_topk interleave_moe_layer_step
intermediate_size_mlp kv_lora_rank kv_n_heads layer_types layers_block_type learned_pos_emb
linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim lm_head_bias
mamba_conv_bias mamba_enabled mamba_proj_bias mamba_step max_window_layers mlp_bias mlp_only_layers
moe_latent_size moe_layer_freq moe_layers mtp_hybrid_override_pattern mtp_layers_block_type
multi_query multi_query_attention multi_query_group_num n_shared_head new_decoder_architecture
no_bias no_rope_layer_interval no_rope_layers num_global_key_value_heads num_kv_shared_layers
num_ln_in_parallel_attn num_mem_blocks parallel_attn q_lora_rank qk_layernorm qk_nope_head_dim
qk_norm_type qk_rope_head_dim qkv_bias rotary_dim sliding_window_pattern swa_head_dim
swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim add_swa_attention_sink_bias
add_full_attention_sink_bias use_bias use_conv_bias use_double_wide_mlp use_mem_rope
use_parallel_residual use_qk_norm use_qkv_bias use_sliding_window use_shared_attention_adapter
use_shared_mlp_adapter adapter_rank v_head_dim vocab_size_per_layer_input word_embed_proj_dim
expert_dtype quantization quantization_config compression_config text_config llm_config
language_config thinker_config model_type architectures use_routing_bias moe_router_bias
add_bias_linear parallel_attention widening_factor full_attn_idxs mlp_layer_types enable_bias
layer_norm_elementwise_affine _remove_final_layer_norm add_cross_attention kv_n_heads qk_ln
attn_type tie_embedding tie_embeddings num_attention_groups clip_qkv ssm_cfg
pad_vocab_size_multiple attn_layer_idx moe_layer_start_index moe_layer_end_index
moe_layer_interval num_hash_layers sparse_attention_config linear_attn_config
"""

# Known keys that carry nothing the counts need: not worth a warning.
_IGNORED = """
_name_or_path transformers_version auto_map bos_token_id eos_token_id pad_token_id sep_token_id
initializer_range init_std use_cache hidden_act hidden_activation activation_function
activation_type rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps
norm_epsilon norm_type mlp_type rope_theta rope_scaling rope_parameters rope_type rope_ratio
rotary_pct rotary_emb_base partial_rotary_factor original_rope rope_local_base_freq
rope_local_theta swa_rope_theta attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop
emb_pdrop embedding_dropout residual_dropout dropout attn_dropout_prob emb_dropout_prob
pretraining_tp ep_size scoring_func topk_group topk_method n_group norm_topk_prob
routed_scaling_factor router_aux_loss_coef router_jitter_noise output_router_logits aux_loss_alpha
seq_aux logit_scale logits_scaling attn_logit_softcapping final_logit_softcapping
query_pre_attn_scalar scale_attn_weights scale_attention_softmax_in_fp32 scale_emb scale_depth
dim_model_base attention_softmax_in_fp32 original_max_position_embeddings swiglu_limit
chunk_size mamba_chunk_size num_logits_to_keep time_step_min time_step_max time_step_floor
time_step_limit residual_in_fp32 rescale_prenorm_residual use_mamba_kernels mamba_ssm_cache_dtype
mamba_ssm_dtype mamba_hidden_act mlp_hidden_act cache_implementation qk_head_dim
vision_config audio_config context_window_size prefill_chunk_size
attention_sink_size no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
max_length min_length top_k top_p temperature repetition_penalty length_penalty
encoder_no_repeat_ngram_size is_decoder is_encoder_decoder full_attn_mod interpolate_factor
block_dim block_norm_eps block_use_swiglu conv_dim conv_dim_out use_pos_enc hc_mult hc_eps
embedding_multiplier_scale output_multiplier_scale attn_output_multiplier max_attn_value
mm_tokens_per_image initial_context_length moe_jitter_eps moe_loss_weight
attention_value_scale z_loss_weight bad_words_ids begin_suppress_tokens
chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty
do_sample early_stopping exponential_decay_length_penalty finetuning_task forced_bos_token_id
forced_eos_token_id output_attentions output_hidden_states output_scores prefix problem_type
pruned_heads remove_invalid_values return_dict return_dict_in_generate suppress_tokens
tf_legacy_loss tie_encoder_decoder tokenizer_class torchscript typical_p use_bfloat16
boi_token_index eoi_token_index image_token_index image_token_id video_token_id
layer_norm_type embedding_multiplier residual_multiplier attention_multiplier
mtp_use_dedicated_embeddings moe_shared_expert_overlap use_mtp mtp_transformer_layers
use_bidirectional_attention n_special predict_special_tokens summary_first_dropout
summary_proj_to_labels summary_use_proj rotary use_flash_attn use_dynamic_ntk use_logn_attn fp16
bf16 fp32 onnx_safe flash_attn flash_rotary fused_dense rmsnorm post_layer_norm
apply_query_key_layer_scaling bias_dropout_fusion fp32_residual_connection max_batch_size
inference_runner validate_runner_input pad_key_length pre_allocate_kv_cache verbose init_device
embedding_fraction mask_value unsloth_fixed downsample_ratio num_memory_blocks
"""

_SPELLINGS = frozenset(key for keys in ALIASES.values() for key in keys)
_MATTERS = tuple(sorted(_SPELLINGS | frozenset(_USED.split())))
KNOWN = frozenset((*_MATTERS, *_IGNORED.split()))

# Keys whose value changes the layers of some family; the rest of those above frame the file.
_FRAME = """
dtype torch_dtype quantization quantization_config compression_config text_config llm_config
language_config thinker_config model_type architectures expert_dtype
"""
ARCHITECTURAL = frozenset(_MATTERS) - frozenset(_FRAME.split())

_SAME_PARTS = 0.78

# Spellings of other tools that resemble another key more than the one they mean.
_MEANT = {"kv_heads": "num_key_value_heads", "n_kv_heads": "num_key_value_heads",
          "num_kv_head": "num_key_value_heads", "head_size": "head_dim"}


_FIRST = {key: keys[0] for keys in ALIASES.values() for key in keys}


def nearest_known(key: str) -> str | None:
    """The key that matters and that `key` seems to be a renamed copy of, in its usual spelling."""
    if key in _MEANT:
        return _MEANT[key]
    close = difflib.get_close_matches(key, _MATTERS, 1, _SAME_PARTS)
    extended = [k for k in _MATTERS if len(k) > 8 and (k in key or (key in k and len(key) > 8))]
    if not close and not extended:
        return None
    found = close[0] if close else max(extended, key=len)
    return _FIRST.get(found, found)
