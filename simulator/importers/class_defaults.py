"""What the configuration classes of transformers assume where a file says nothing.

Generated from the dataclass fields of each class in transformers 5.24.0: the keys that the readers
use and whose default is neither null nor false. A class that computes a default (kv heads from
heads, head size from hidden size) has no entry for it; the rules for those are in the readers.
"""

from __future__ import annotations

from typing import Any

# model_type -> configuration key -> default of the class.
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "bloom": {
        "vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8, "tie_word_embeddings":
        True,
    },
    "codegen": {
        "vocab_size": 50400, "n_positions": 2048, "n_ctx": 2048, "n_embd": 4096, "n_layer": 28,
        "n_head": 16, "rotary_dim": 64,
    },
    "cohere": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers":
        40, "num_attention_heads": 64, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "cohere2": {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers":
        40, "num_attention_heads": 64, "max_position_embeddings": 8192, "tie_word_embeddings":
        True, "sliding_window": 4096,
    },
    "dbrx": {
        "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "vocab_size": 32000,
    },
    "deepseek_v2": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048, "first_k_dense_replace": 0,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "moe_intermediate_size": 1407,
    },
    "deepseek_v3": {
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "kv_lora_rank":
        512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim":
        128, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "max_position_embeddings": 4096,
    },
    "deepseek_v32": {
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "kv_lora_rank":
        512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim":
        128, "num_experts_per_tok": 8, "max_position_embeddings": 163840, "index_topk": 2048,
        "index_head_dim": 128, "index_n_heads": 64, "head_dim": 64, "first_k_dense_replace": 3,
    },
    "dots1": {
        "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "num_hidden_layers": 62, "num_attention_heads": 32,
        "num_key_value_heads": 32, "first_k_dense_replace": 0, "max_position_embeddings": 2048,
        "sliding_window": 4096, "max_window_layers": 62,
    },
    "ernie4_5": {
        "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers":
        18, "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 131072,
        "tie_word_embeddings": True, "head_dim": 128,
    },
    "ernie4_5_moe": {
        "vocab_size": 103424, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers":
        28, "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "tie_word_embeddings": True, "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts":
        64, "moe_num_shared_experts": 2,
    },
    "exaone": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    },
    "exaone4": {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048,
        "sliding_window": 4096, "sliding_window_pattern": 4,
    },
    "falcon": {
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads":
        71, "multi_query": True, "parallel_attn": True, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "falcon_mamba": {
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32,
        "expand": 2, "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": "auto",
        "tie_word_embeddings": True,
    },
    "gemma": {
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers":
        28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
        "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
    "gemma2": {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers":
        26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "sliding_window": 4096,
    },
    "gemma3_text": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers":
        26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 4096,
    },
    "gemma4_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers":
        30, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 512,
        "vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 0,
    },
    "glm": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers":
        40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131072, "attention_bias": True,
    },
    "glm4": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers":
        40, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 131072, "attention_bias": True,
    },
    "glm4_moe": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers":
        46, "num_attention_heads": 96, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "n_routed_experts": 128, "first_k_dense_replace": 1,
    },
    "glm4_moe_lite": {
        "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
        "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
        "num_key_value_heads": 20, "n_shared_experts": 1, "n_routed_experts": 64, "kv_lora_rank":
        512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim":
        192, "num_experts_per_tok": 4, "max_position_embeddings": 202752,
    },
    "glm_moe_dsa": {
        "vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288,
        "moe_intermediate_size": 2048, "num_hidden_layers": 78, "num_attention_heads": 64,
        "num_key_value_heads": 64, "n_shared_experts": 1, "n_routed_experts": 256, "kv_lora_rank":
        512, "q_lora_rank": 2048, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim":
        192, "num_experts_per_tok": 8, "max_position_embeddings": 202752, "index_topk": 2048,
        "index_head_dim": 128, "index_n_heads": 32, "head_dim": 64, "first_k_dense_replace": 3,
    },
    "gpt2": {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "tie_word_embeddings": True,
    },
    "gpt_bigcode": {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "multi_query": True, "tie_word_embeddings": True,
    },
    "gpt_neo": {
        "vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 2048, "num_layers":
        24, "num_heads": 16, "window_size": 256, "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads":
        64, "intermediate_size": 24576, "max_position_embeddings": 2048, "use_parallel_residual":
        True, "attention_bias": True,
    },
    "gpt_oss": {
        "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size":
        2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
        "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072,
        "num_experts_per_tok": 4, "attention_bias": True,
    },
    "gptj": {
        "vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16,
        "rotary_dim": 64,
    },
    "granite": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "granitemoe": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "granitemoeshared": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048, "num_local_experts": 8,
        "num_experts_per_tok": 2, "shared_intermediate_size": 0,
    },
    "hunyuan_v1_dense": {
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "hunyuan_v1_moe": {
        "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048, "num_experts": 1,
        "moe_topk": 1,
    },
    "internlm3": {
        "vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers":
        48, "num_attention_heads": 32, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "head_dim": 128,
    },
    "jamba": {
        "vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262144,
        "num_experts_per_tok": 2, "num_experts": 16, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state":
        16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto", "mamba_conv_bias": True,
    },
    "lfm2": {
        "vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 128000,
        "tie_word_embeddings": True, "conv_L_cache": 3, "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "llama4_text": {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "num_experts_per_tok": 1, "num_local_experts": 16, "interleave_moe_layer_step": 1,
        "use_qk_norm": True, "no_rope_layer_interval": 4, "attention_chunk_size": 8192,
    },
    "mamba": {
        "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 32,
        "expand": 2, "conv_kernel": 4, "use_conv_bias": True, "time_step_rank": "auto",
        "tie_word_embeddings": True,
    },
    "mamba2": {
        "num_heads": 128, "head_dim": 64, "vocab_size": 32768, "hidden_size": 4096, "state_size":
        128, "num_hidden_layers": 64, "expand": 2, "conv_kernel": 4, "n_groups": 8,
        "use_conv_bias": True, "time_step_rank": "auto",
    },
    "mimo_v2_flash": {
        "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers":
        48, "num_attention_heads": 64, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "n_routed_experts": 256,
        "head_dim": 192, "v_head_dim": 128, "sliding_window": 129,
    },
    "minicpm3": {
        "vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400, "num_hidden_layers":
        62, "num_attention_heads": 40, "num_key_value_heads": 40, "max_position_embeddings": 32768,
        "tie_word_embeddings": True, "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim":
        64, "qk_rope_head_dim": 32,
    },
    "minimax_m2": {
        "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers":
        62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 196608, "num_experts_per_tok": 8, "num_local_experts": 256,
    },
    "ministral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "ministral3": {
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
        34, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 262144,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "mixtral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "num_experts_per_tok": 2, "num_local_experts": 8,
    },
    "mllama_text_model": {
        "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads":
        32, "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072,
    },
    "mpt": {
        "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "max_seq_len": 2048,
        "vocab_size": 50368, "learned_pos_emb": True, "no_bias": True, "tie_word_embeddings": True,
    },
    "nemotron": {
        "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers":
        32, "num_attention_heads": 48, "max_position_embeddings": 4096,
    },
    "nemotron_h": {
        "vocab_size": 131072, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
        "intermediate_size": 21504, "ssm_state_size": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "expand": 2, "use_conv_bias": True,
        "n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688, "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 0,
    },
    "olmo": {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "olmo2": {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "olmo3": {
        "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 2048, "sliding_window": 4096,
    },
    "olmoe": {
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers":
        16, "num_attention_heads": 16, "max_position_embeddings": 4096, "num_experts_per_tok": 8,
        "num_experts": 64,
    },
    "opt": {
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
        "max_position_embeddings": 2048, "do_layer_norm_before": True, "num_attention_heads": 12,
        "enable_bias": True, "layer_norm_elementwise_affine": True, "tie_word_embeddings": True,
    },
    "phi": {
        "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers":
        24, "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "phi3": {
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers":
        32, "num_attention_heads": 32, "max_position_embeddings": 4096,
    },
    "phimoe": {
        "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "num_experts_per_tok": 2, "num_local_experts": 16,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768,
        "sliding_window": 4096, "max_window_layers": 28,
    },
    "qwen2_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers":
        24, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 32768,
        "sliding_window": 4096, "max_window_layers": 28, "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_experts": 60, "qkv_bias": True,
    },
    "qwen3": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
        "max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28,
    },
    "qwen3_5_moe_text": {
        "vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads":
        16, "num_key_value_heads": 2, "max_position_embeddings": 32768, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
    },
    "qwen3_5_text": {
        "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers":
        32, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    },
    "qwen3_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers":
        24, "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "sliding_window": 4096, "decoder_sparse_step": 1, "moe_intermediate_size": 768,
        "num_experts_per_tok": 8, "num_experts": 128,
    },
    "qwen3_next": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers":
        48, "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "decoder_sparse_step": 1, "moe_intermediate_size": 512, "shared_expert_intermediate_size":
        512, "num_experts_per_tok": 10, "num_experts": 512,
    },
    "seed_oss": {
        "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers":
        64, "num_attention_heads": 80, "num_key_value_heads": 8, "max_position_embeddings": 524288,
        "attention_bias": True, "head_dim": 128,
    },
    "smollm3": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers":
        36, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4, "tie_word_embeddings": True,
    },
    "stablelm": {
        "vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560, "num_hidden_layers":
        32, "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    },
    "starcoder2": {
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers":
        30, "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "use_bias": True, "tie_word_embeddings": True,
    },
    "zamba2": {
        "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_size": 2560,
        "num_hidden_layers": 54, "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2,
        "mamba_ngroups": 1, "n_mamba_heads": 8, "use_conv_bias": True, "num_attention_heads": 32,
        "num_mem_blocks": 1, "adapter_rank": 128, "tie_word_embeddings": True,
    },
}  # fmt: skip
