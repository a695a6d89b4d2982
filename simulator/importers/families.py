"""The families: for each `model_type` its layers, its norm, and its class defaults.

A new family is a row here, with a rule beside it where its layers are not the standard ones.
`defaults` are what its configuration class assumes beyond the fields in `class_defaults.py`: rules
in the class's code, and classes that transformers does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from simulator.importers import classic, experts, latent, mixed, recurrent
from simulator.importers.reader import Config
from simulator.importers.standard import Traits, standard_layers
from simulator.specs.model import NORMS, LayerGroup

Layers = Callable[[Config], list[LayerGroup]]
Frame = Callable[[Config], dict[str, Any]]
Prediction = Callable[[Config, list[LayerGroup]], tuple[LayerGroup, ...]]


@dataclass(frozen=True)
class Family:
    """How one family's configuration becomes layers.

    origin   configuration class that the defaults come from
    fixed    fields of the model that the class fixes
    frame    fields of the model that are read from the file
    mtp      how multi-token-prediction layers are built
    """

    origin: str
    layers: Layers
    norm: NORMS = "rms"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    frame: Frame | None = None
    mtp: Prediction | None = None
    head_bias: bool | str = False


def _row(origin: str, traits: Traits, fixed: Mapping[str, Any] | None = None,
         mtp: Prediction | None = None, **defaults: Any) -> Family:
    """A family of standard layers."""
    return Family(origin=origin, layers=partial(standard_layers, traits=traits),
                  norm=traits.norm, defaults=defaults, fixed=fixed or {},
                  head_bias=traits.head_bias, mtp=mtp)


_BIASES = Traits(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_LINEAR = {"full_attention_interval": 4,
           "attn_output_gate": True}

_DENSE: dict[str, Family] = {
    "llama": _row("LlamaConfig", _BIASES),
    "mistral": _row("MistralConfig", Traits(windows="all")),
    "ministral3": _row("Ministral3Config", Traits(windows="all")),
    "ministral": _row("MinistralConfig", Traits(windows="all")),
    "baichuan": _row("BaichuanConfig", Traits(), positions=4096),
    "orion": _row("OrionConfig", Traits(norm="layer"), positions=4096),
    "internlm": _row("InternLMConfig", Traits(qkv_bias="bias", output_bias="bias"), bias=True,
                     positions=2048),
    "internlm2": _row("InternLM2Config", Traits(qkv_bias="bias", output_bias="bias"),
                      positions=2048),
    "internlm3": _row("InternLM3Config", Traits(qkv_bias="qkv_bias", output_bias="bias",
                                                mlp_bias="bias"), positions=32768),
    "qwen2": _row("Qwen2Config", Traits(qkv_bias=True, windows="switched")),
    "qwen3": _row("Qwen3Config", Traits(qkv_bias="attention_bias", output_bias="attention_bias",
                                        qk_norm="head", windows="switched")),
    "gemma": _row("GemmaConfig", Traits(qkv_bias="attention_bias", output_bias="attention_bias")),
    "gemma2": _row("Gemma2Config", Traits(norms=4, windows="even", qkv_bias="attention_bias",
                                          output_bias="attention_bias")),
    "gemma3_text": _row("Gemma3TextConfig", Traits(
        norms=4, windows="pattern", qk_norm="head", qkv_bias="attention_bias",
        output_bias="attention_bias"), sliding_window_pattern=6),
    "cohere": _row("CohereConfig", Traits(
        norm="layer-no-bias", norms=1, parallel=True, qk_norm="full", qk_norm_key="use_qk_norm",
        qkv_bias="attention_bias", output_bias="attention_bias"), tied=True, positions=8192),
    "cohere2": _row("Cohere2Config", Traits(
        norm="layer-no-bias", norms=1, parallel=True, windows="pattern", full_rope=False,
        qkv_bias="attention_bias", output_bias="attention_bias"), tied=True, positions=8192,
        sliding_window_pattern=4, window=4096),
    "phi3": _row("Phi3Config", Traits(windows="all"), positions=4096),
    "starcoder2": _row("Starcoder2Config", Traits(
        norm="layer", gated=False, windows="all", qkv_bias="use_bias", output_bias="use_bias",
        mlp_bias="use_bias"), tied=True, use_bias=True, kv_heads=2, positions=4096),
    "olmo": _row("OlmoConfig", Traits(norm="none", qkv_bias="attention_bias",
                                      output_bias="attention_bias"), positions=2048),
    "olmo2": _row("Olmo2Config", Traits(qk_norm="full", qkv_bias="attention_bias",
                                        output_bias="attention_bias"), positions=2048),
    "olmo3": _row("Olmo3Config", Traits(
        qk_norm="full", windows="pattern", qkv_bias="attention_bias",
        output_bias="attention_bias"), sliding_window_pattern=4, window=4096, positions=2048),
    "exaone": _row("ExaoneConfig", Traits(), positions=2048),
    "exaone4": _row("Exaone4Config", Traits(qk_norm="head", windows="pattern", full_rope=False),
                    sliding_window_pattern=4, window=4096, positions=2048),
    "nemotron": _row("NemotronConfig", replace(_BIASES, norm="layer", gated=False),
                     positions=4096),
    "smollm3": _row("SmolLM3Config", replace(_BIASES, windows="no_rope"), tied=True,
                    no_rope_layer_interval=4, positions=32768, kv_heads=4),
    "seed_oss": _row("SeedOssConfig", Traits(
        qkv_bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias"),
        attention_bias=True, head_dim=128, positions=524288),
    "granite": _row("GraniteConfig", _BIASES, positions=2048),
    "glm": _row("GlmConfig", Traits(qkv_bias="attention_bias"), head_dim=128, positions=131072),
    "glm4": _row("Glm4Config", Traits(norms=4, qkv_bias="attention_bias"), head_dim=128,
                 positions=131072),
    "ernie4_5": _row("Ernie4_5Config", Traits(qkv_bias="use_bias", output_bias="use_bias",
                                              mlp_bias="use_bias"), tied=True, positions=131072),
    "hunyuan_v1_dense": _row("HunYuanDenseV1Config", replace(_BIASES, qk_norm="head"),
                             positions=2048),
    "minicpm": _row("MiniCPMConfig", Traits(experts=experts.dense_beside_key), tied=True,
                    positions=2048),
    "plamo3": _row("Plamo3Config", Traits(norms=4, qk_norm="head", windows="pattern"),
                   tied=True, sliding_window_pattern=8, positions=4096),
}  # fmt: skip

_SPARSE: dict[str, Family] = {
    "mixtral": _row("MixtralConfig", Traits(windows="all", experts=experts.in_all_layers)),
    "phimoe": _row("PhimoeConfig", Traits(
        norm="layer", windows="all", qkv_bias="attention_bias", output_bias="attention_bias",
        head_bias="lm_head_bias", experts=experts.in_all_layers), positions=131072),
    "olmoe": _row("OlmoeConfig", Traits(qk_norm="full", experts=experts.in_all_layers,
                                        qkv_bias="attention_bias", output_bias="attention_bias"),
                  positions=4096),
    "qwen2_moe": _row("Qwen2MoeConfig", Traits(qkv_bias="qkv_bias", windows="switched",
                                               experts=experts.qwen),
                      qkv_bias=True),
    "qwen3_moe": _row("Qwen3MoeConfig", Traits(
        qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head",
        windows="switched", experts=experts.qwen)),
    "gpt_oss": _row("GptOssConfig", Traits(
        qkv_bias="attention_bias", output_bias="attention_bias", sinks=True, windows="even",
        experts=experts.oss),
        head_dim=64, kv_heads=8, window=128, positions=131072),
    "deepseek": _row("DeepseekConfig", Traits(
        experts=experts.deepseek, qkv_bias="attention_bias", output_bias="attention_bias"),
        positions=2048, first_k_dense_replace=0, moe_layer_freq=1, shared_experts=0),
    "glm4_moe": _row("Glm4MoeConfig", Traits(
        experts=experts.deepseek, qkv_bias="attention_bias", qk_norm="head",
        qk_norm_key="use_qk_norm"), mtp=latent.mtp_layers, positions=131072),
    "dots1": _row("Dots1Config", Traits(
        experts=experts.deepseek, qk_norm="head", qkv_bias="attention_bias",
        output_bias="attention_bias"), positions=2048, shared_experts=0),
    "minimax_m2": _row("MiniMaxM2Config", Traits(
        experts=experts.in_all_layers, qk_norm="full", qk_norm_key="use_qk_norm"),
        use_qk_norm=True, positions=196608),
    "granitemoe": _row("GraniteMoeConfig", Traits(experts=experts.granite,
                                                  qkv_bias="attention_bias",
                                                  output_bias="attention_bias"), positions=2048),
    "granitemoeshared": _row("GraniteMoeSharedConfig", Traits(
        experts=experts.granite, qkv_bias="attention_bias", output_bias="attention_bias"),
        positions=2048),
    "ernie4_5_moe": _row("Ernie4_5_MoeConfig", Traits(
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", experts=experts.ernie),
        tied=True, positions=131072),
    "hunyuan_v1_moe": _row("HunYuanMoEV1Config", Traits(
        qk_norm="head", qkv_bias="attention_bias", output_bias="attention_bias",
        experts=experts.hunyuan), positions=2048, shared_experts=1),
    "grok-1": _row("Grok-1 run.py", Traits(norms=4, experts=experts.grok), tied=True,
                   positions=8192),
    "llama4_text": Family("Llama4TextConfig", mixed.llama4_layers),
    "mimo_v2_flash": Family("MiMoV2FlashConfig", mixed.mimo_layers,
                            defaults={"first_k_dense_replace": 1, "swa_num_key_value_heads": 8,
                                      "add_swa_attention_sink_bias": True}),
    "dbrx": Family("DbrxConfig", classic.dbrx_layers, "layer-no-bias",
                   defaults={"positions": 2048}),
}  # fmt: skip

_latent = partial(Family, layers=latent.sparse_latent_layers, mtp=latent.mtp_layers)
_LATENT_FAMILIES: dict[str, Family] = {
    "deepseek_v2": _latent("DeepseekV2Config"),
    "deepseek_v3": _latent("DeepseekV3Config"),
    "deepseek_v32": _latent("DeepseekV32Config"),
    "kimi_k2": _latent("DeepseekV3Config"),
    "glm4_moe_lite": _latent("Glm4MoeLiteConfig", defaults={"first_k_dense_replace": 1}),
    "glm_moe_dsa": _latent("GlmMoeDsaConfig"),
    "minicpm3": Family("MiniCPM3Config", latent.dense_latent_layers,
                       defaults={"tied": True, "positions": 32768}),
}

_QWEN_NEXT = Traits(qk_norm="head", experts=experts.qwen, qkv_bias="attention_bias",
                    output_bias="attention_bias")
_QWEN_DENSE = Traits(qk_norm="head", qkv_bias="attention_bias", output_bias="attention_bias")
_STATE = {"state": 16, "conv": 4, "expand": 2, "positions": 1048576}
_RECURRENT: dict[str, Family] = {
    "mamba": Family("MambaConfig", recurrent.mamba_layers, defaults={**_STATE, "tied": True},
                    frame=recurrent.padded_vocabulary),
    "falcon_mamba": Family("FalconMambaConfig", recurrent.mamba_layers,
                           defaults={**_STATE, "tied": True}),
    "mamba2": Family("Mamba2Config", recurrent.mamba2_layers,
                     defaults={**_STATE, "state": 128, "groups": 8},
                     frame=recurrent.padded_vocabulary),
    "jamba": Family("JambaConfig", recurrent.jamba_layers, defaults={
        **_STATE, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
        "expert_layer_offset": 1, "positions": 262144}),
    "nemotron_h": Family("NemotronHConfig", recurrent.nemotron_layers, defaults={
        "ssm_head_dim": 64, "conv": 4, "groups": 8, "state": 128, "positions": 4096}),
    "zamba2": Family("Zamba2Config", recurrent.zamba2_layers, defaults={
        "tied": True, "state": 64, "conv": 4, "groups": 1, "expand": 2, "positions": 4096}),
    "lfm2": Family("Lfm2Config", recurrent.lfm2_layers, defaults={
        "tied": True, "conv": 3, "positions": 128000}, frame=recurrent.lfm2_frame),
    "plamo2": Family("Plamo2Config", recurrent.plamo2_layers, defaults={
        "tied": True, "head_dim": 128, "window": 2048, "state": 64, "conv": 4, "mamba_step": 2,
        "positions": 10485760}),
    "qwen3_next": Family(
        "Qwen3NextConfig", partial(recurrent.gated_delta_layers, traits=_QWEN_NEXT),
        defaults=_LINEAR, mtp=latent.mtp_layers),
    "qwen3_5_text": Family(
        "Qwen3_5TextConfig", partial(recurrent.gated_delta_layers, traits=_QWEN_DENSE),
        defaults=_LINEAR, mtp=latent.mtp_layers),
    "qwen3_5_moe_text": Family(
        "Qwen3_5MoeTextConfig", partial(recurrent.gated_delta_layers, traits=_QWEN_NEXT),
        defaults=_LINEAR, mtp=latent.mtp_layers),
}

_TIED = {"tied": True}
_CLASSIC: dict[str, Family] = {
    "gpt2": Family("GPT2Config", classic.gpt2_layers, "layer", _TIED, frame=classic.learned),
    "gpt_bigcode": Family("GPTBigCodeConfig", classic.gpt2_layers, "layer",
                          {**_TIED, "multi_query": True}, frame=classic.learned),
    "gptj": Family("GPTJConfig", classic.gptj_layers, "layer", head_bias=True),
    "codegen": Family("CodeGenConfig", classic.gptj_layers, "layer", head_bias=True),
    "gpt_neo": Family("GPTNeoConfig", classic.gpt_neo_layers, "layer",
                      {**_TIED, "positions": 2048}, frame=classic.learned),
    "gpt_neox": Family("GPTNeoXConfig", classic.neox_layers, "layer", {"positions": 2048}),
    "opt": Family("OPTConfig", classic.opt_layers, "layer", {**_TIED, "positions": 2048},
                  frame=classic.opt_frame),
    "bloom": Family("BloomConfig", classic.bloom_layers, "layer", {**_TIED, "positions": 2048},
                    fixed={"embedding_norm": True}),
    "falcon": Family("FalconConfig", classic.falcon_layers, "layer", {
        **_TIED, "multi_query": True, "parallel_attn": True, "positions": 2048}),
    "mpt": Family("MptConfig", classic.mpt_layers, "layer-no-bias",
                  {**_TIED, "positions": 2048}, frame=classic.mpt_frame),
    "stablelm": Family("StableLmConfig", classic.stablelm_layers, "layer"),
    "phi": Family("PhiConfig", classic.phi_layers, "layer", {"positions": 2048}, head_bias=True),
    "chatglm": Family("ChatGLMConfig", classic.chatglm_layers, defaults={"positions": 2048}),
    "qwen": Family("QWenConfig", classic.qwen1_layers, defaults={"positions": 8192}),
    "plamo": Family("PlamoConfig", classic.plamo_layers,
                    defaults={"n_shared_head": 8, "positions": 2048}),
    "nemotron-nas": Family("DeciLMConfig", mixed.nas_layers, defaults={"positions": 2048}),
    "gemma4_text": Family("Gemma4TextConfig", mixed.gemma4_layers,
                          defaults={"sliding_window_pattern": 6}, frame=mixed.gemma4_frame),
    "mllama_text_model": Family("MllamaTextConfig", mixed.mllama_layers, defaults={
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}, frame=mixed.mllama_frame),
}

FAMILIES: dict[str, Family] = {
    **_DENSE, **_SPARSE, **_LATENT_FAMILIES, **_RECURRENT, **_CLASSIC,
}

# Other names of the same layers: an outer multimodal name, a fork, a text part of its own name.
SAME: dict[str, str] = {
    "yi": "llama", "aquila": "llama", "codellama": "llama", "llava": "llama",
    "llava_next": "llama", "deepseek_vl_v2": "deepseek_v2", "llama4": "llama4_text",
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "mllama": "mllama_text_model",
    "mistral3": "mistral", "pixtral": "mistral", "RefinedWebModel": "falcon",
    "RefinedWeb": "falcon", "phi-msft": "phi", "phi3_v": "phi3", "phi4": "phi3",
    "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen2_5_omni": "qwen2",
    "qwen2_5_omni_text": "qwen2", "qwen2_5_omni_thinker": "qwen2", "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3", "qwen3_vl_moe": "qwen3_moe", "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe": "qwen3_moe", "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "kimi_k25": "kimi_k2",
    "glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe", "internvl_chat": "internlm2",
    "deci": "nemotron-nas", "DeciLM": "nemotron-nas", "grok": "grok-1", "hunyuan": "hunyuan_v1_moe",
    "gpt-neox": "gpt_neox", "gptneox": "gpt_neox", "lfm2_vl": "lfm2",
}  # fmt: skip

# `architectures[0]` names the class where `model_type` is missing.
BY_ARCHITECTURE: dict[str, str] = {
    "MiniCPM3ForCausalLM": "minicpm3", "MiniCPMForCausalLM": "minicpm",
    "LlamaForCausalLM": "llama", "LLaMAForCausalLM": "llama", "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
    "Qwen2MoeForCausalLM": "qwen2_moe", "Qwen3MoeForCausalLM": "qwen3_moe",
    "QWenLMHeadModel": "qwen", "GPT2LMHeadModel": "gpt2", "GPTBigCodeForCausalLM": "gpt_bigcode",
    "GPTJForCausalLM": "gptj", "GPTNeoForCausalLM": "gpt_neo", "GPTNeoXForCausalLM": "gpt_neox",
    "OPTForCausalLM": "opt", "BloomForCausalLM": "bloom", "FalconForCausalLM": "falcon",
    "RWForCausalLM": "falcon", "MPTForCausalLM": "mpt", "MptForCausalLM": "mpt",
    "DbrxForCausalLM": "dbrx", "GemmaForCausalLM": "gemma", "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text", "PhiForCausalLM": "phi", "Phi3ForCausalLM": "phi3",
    "PhiMoEForCausalLM": "phimoe", "ChatGLMModel": "chatglm", "PlamoForCausalLM": "plamo",
    "Plamo2ForCausalLM": "plamo2", "Plamo3ForCausalLM": "plamo3", "DeciLMForCausalLM":
    "nemotron-nas", "DeepseekForCausalLM": "deepseek", "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3", "BaichuanForCausalLM": "baichuan",
    "BaiChuanForCausalLM": "baichuan", "InternLM2ForCausalLM": "internlm2",
    "InternLMForCausalLM": "internlm", "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2", "GptOssForCausalLM": "gpt_oss",
    "NemotronHForCausalLM": "nemotron_h", "JambaForCausalLM": "jamba",
    "MambaForCausalLM": "mamba", "Mamba2ForCausalLM": "mamba2", "Zamba2ForCausalLM": "zamba2",
    "Lfm2ForCausalLM": "lfm2", "Starcoder2ForCausalLM": "starcoder2",
    "StableLmForCausalLM": "stablelm", "OrionForCausalLM": "orion", "Grok1ModelForCausalLM":
    "grok-1", "OlmoForCausalLM": "olmo", "Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe", "ExaoneForCausalLM": "exaone", "Exaone4ForCausalLM": "exaone4",
    "SmolLM3ForCausalLM": "smollm3", "Glm4MoeForCausalLM": "glm4_moe",
}  # fmt: skip

# Refused with the reason: what the counts would need and the schema does not have.
REFUSED: dict[str, str] = {
    "deepseek_v4": "compressed attention (CSA and HCA) caches no constant number of values a "
                   "token, which no mixer kind describes",
    "kimi_k3": "its linear attention (KDA) with gated, residual latent attention has no verified "
               "layout",
    "kimi_linear": "its linear attention (KDA) has no verified layout",
    "minimax_m3": "its block-sparse attention (sparse_attention_config) has no verified layout",
    "step3_text": "multi-matrix factorisation attention (MFA) has no mixer kind",
    "step3": "multi-matrix factorisation attention (MFA) has no mixer kind",
    "rwkv": "RWKV time mixing has no mixer kind", "rwkv5": "RWKV time mixing has no mixer kind",
    "rwkv6": "RWKV time mixing has no mixer kind", "rwkv7": "RWKV time mixing has no mixer kind",
    "molmo": "custom code without a public configuration class to count against",
    "gemma3n": "its alternating updates and learned residual blocks have no verified layout",
    "recurrent_gemma": "its linear recurrent units have no mixer kind",
    "yuan": "its localised filtering attention has no mixer kind",
    "t5": "an encoder-decoder, not a decoder", "bart": "an encoder-decoder, not a decoder",
    "whisper": "an encoder-decoder, not a decoder", "bert": "an encoder, not a decoder",
    "roberta": "an encoder, not a decoder", "vit": "an image encoder, not a decoder",
}  # fmt: skip
