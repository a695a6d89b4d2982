"""The executor computes what transformers computes with the same weights, family by family."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'tokline[torch]'")

from executor_models import FAMILIES, built, prompt  # noqa: E402

from simulator.executor.attention import Attention  # noqa: E402
from simulator.executor.experts import Experts  # noqa: E402
from simulator.executor.latent_attention import LatentAttention  # noqa: E402
from simulator.executor.modules import Mlp, Norm  # noqa: E402
from simulator.executor.recurrent import (  # noqa: E402
    GatedDeltaLayer,
    Mamba2Layer,
    MambaLayer,
    ShortConvLayer,
)
from simulator.executor.transformer import Layer, Transformer  # noqa: E402

State = dict[str, Any]
KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
         "mixtral": "Mixtral", "gpt2": "GPT2", "opt": "OPT", "gpt-neox": "GPTNeoX",
         "cohere": "Cohere", "gemma2": "Gemma2", "olmo2": "Olmo2", "qwen2-moe": "Qwen2Moe",
         "gpt-oss": "GptOss", "deepseek-v3": "DeepseekV3", "deepseek-v2": "DeepseekV2",
         "deepseek-v3.2": "DeepseekV32", "mamba": "Mamba", "mamba2": "Mamba2", "jamba": "Jamba",
         "qwen3-next": "Qwen3Next", "lfm2": "Lfm2"}
MLA = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
       "v_head_dim": 12, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
       "moe_intermediate_size": 48, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
OWN: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 5},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48},
    "qwen3": {"head_dim": 32},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_inner": 96,
             "max_position_embeddings": 64},
    "opt": {"ffn_dim": 96, "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    "gpt-neox": {"rotary_pct": 0.5, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "cohere": {"logit_scale": 1.0, "layer_norm_eps": 1e-5},
    "gemma2": {"sliding_window": 5, "attn_logit_softcapping": None, "query_pre_attn_scalar": 16,
               "final_logit_softcapping": None, "layer_types": [
                   *["sliding_attention"] * 2, *["full_attention"] * 2]},
    "qwen2-moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                  "shared_expert_intermediate_size": 80},
    "gpt-oss": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 5,
                "layer_types": [*["sliding_attention"] * 2, *["full_attention"] * 2]},
    "deepseek-v3": {**MLA, "routed_scaling_factor": 1.5, "norm_topk_prob": True},
    "deepseek-v2": {**MLA, "q_lora_rank": None, "topk_method": "greedy",
                    "routed_scaling_factor": 1.0},
    "deepseek-v3.2": {**MLA, "first_k_dense_replace": 2, "index_n_heads": 24,
                      "index_head_dim": 16, "index_topk": 5},
    "mamba": {"intermediate_size": 128, "state_size": 8, "expand": 2, "conv_kernel": 4,
              "time_step_rank": 6},
    "mamba2": {"state_size": 8, "expand": 2, "conv_kernel": 4, "num_heads": 8, "head_dim": 16,
               "n_groups": 2, "chunk_size": 4},
    "jamba": {"num_experts": 1, "mamba_d_state": 8, "mamba_dt_rank": 6, "attn_layer_period": 4,
              "attn_layer_offset": 3},
    "qwen3-next": {"linear_num_value_heads": 4, "linear_num_key_heads": 2,
                   "linear_key_head_dim": 8, "linear_value_head_dim": 12,
                   "linear_conv_kernel_dim": 4, "num_experts": 6, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
                   "layer_types": [*["linear_attention"] * 3, "full_attention"],
                   "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                       "partial_rotary_factor": 1.0}},
    "lfm2": {"layer_types": ["conv", "conv", "conv", "full_attention"], "conv_L_cache": 3,
             "block_auto_adjust_ff_dim": False},
}
NO_HEAD_SIZE = ("qwen2", "gpt2", "opt", "gpt-neox", "olmo2", "qwen2-moe", "jamba", "lfm2",
                "deepseek-v3", "deepseek-v2", "deepseek-v3.2", "mamba")


def config_of(name: str) -> Any:
    """transformers' configuration of the family."""
    transformers = pytest.importorskip("transformers")
    model, numerics = FAMILIES[name]
    common: dict[str, Any] = {
        "vocab_size": model.vocabulary, "hidden_size": model.hidden,
        "num_hidden_layers": model.layer_count, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
        "rms_norm_eps": numerics.norm_eps, "layer_norm_epsilon": numerics.norm_eps,
        "norm_eps": numerics.norm_eps, "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": numerics.rope_theta},
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if name in NO_HEAD_SIZE:
        common.pop("head_dim")
    if name in ("gpt2", "opt", "gpt-neox", "mamba", "mamba2"):
        common.pop("num_key_value_heads")
    if name.startswith("deepseek"):
        common["num_key_value_heads"] = 4
    config = getattr(transformers, f"{KINDS[name]}Config")(**common | OWN.get(name, {}))
    config._attn_implementation = "eager"
    return config


def interleaved(rows: Any, width: int) -> Any:
    """Rows of heads of `width`, pairs (i, i + width/2) put side by side."""
    heads = rows.unflatten(0, (-1, width))
    return heads.unflatten(1, (2, width // 2)).transpose(1, 2).flatten(0, 2)


def attention(part: Attention, ends: State) -> State:
    """Projections under the names of Llama, from which most families differ in letters."""
    found, s = {}, part.spec
    for end in ends:
        q, gate, k, v = getattr(part.qkv, end).split(part.widths)
        if s.output_gate:    # each head's query, then its gate
            q = torch.cat([x.unflatten(0, (s.heads, -1)) for x in (q, gate)], dim=1).flatten(0, 1)
        found |= {f"self_attn.{n}_proj.{end}": w for n, w in zip("qkv", (q, k, v), strict=True)}
        if getattr(part.attention_output, end) is not None:
            found[f"self_attn.o_proj.{end}"] = getattr(part.attention_output, end)
    for n, norm in (("q", part.q_norm), ("k", part.k_norm)):
        if norm is not None:
            found[f"self_attn.{n}_norm.weight"] = norm.weight
    if part.attention.sinks is not None:
        found["self_attn.sinks"] = part.attention.sinks
    return found


def latent(part: LatentAttention) -> State:
    """MLA as DeepSeek names it; its rope turns neighbours."""
    s, found = part.spec, {}
    if s.q_rank is None:
        q, down = part.q.weight, part.kv_down.weight
    else:
        low, down = part.qkv_down.weight.split((s.q_rank, s.kv_rank + s.rope_dim))
        found |= {"q_a_proj.weight": low, "q_a_layernorm.weight": part.q_norm.weight}
        q = part.q_up.weight
    heads = q.unflatten(0, (s.heads, -1))
    turned = torch.stack([interleaved(h, s.rope_dim) for h in heads[:, s.nope_dim:]])
    found["q_proj.weight" if s.q_rank is None else "q_b_proj.weight"] = torch.cat(
        (heads[:, :s.nope_dim], turned), dim=1).flatten(0, 1)
    found |= {
        "kv_a_proj_with_mqa.weight": torch.cat((down[:s.kv_rank], interleaved(
            down[s.kv_rank:], s.rope_dim))),
        "kv_a_layernorm.weight": part.kv_norm.weight, "kv_b_proj.weight": part.kv_up.flatten(0, 1),
        "o_proj.weight": part.attention_output.weight}
    if part.index is not None:
        i = part.index
        keys, weights = i.indexer_keys.weight.split((i.spec.head_dim, i.spec.heads))
        # transformers scales the heads' weights, which changes no choice.
        found |= {"indexer.wq_b.weight": i.indexer_queries.weight, "indexer.wk.weight": keys,
                  "indexer.k_norm.weight": i.norm.weight, "indexer.k_norm.bias": i.norm.bias,
                  "indexer.weights_proj.weight": weights}
    return {f"self_attn.{k}": v for k, v in found.items()}


def recurrent(part: Any) -> State:
    """State-space layers as Mamba names them."""
    found: State = {"in_proj.weight": part.ssm_input.weight,
                    "out_proj.weight": part.ssm_output.weight}
    if isinstance(part, ShortConvLayer):
        return {f"conv.{k}": v for k, v in (found | {
            "conv.weight": part.scan.weight[:, None]}).items()}
    found["conv1d.weight"] = part.conv[:, None]
    found["A_log"] = part.scan.decay_log
    if isinstance(part, GatedDeltaLayer):
        return delta(part, found)
    found |= {"conv1d.bias": part.conv_bias, "D": part.scan.skip}
    if isinstance(part, MambaLayer):
        found |= {"x_proj.weight": part.ssm_x.weight, "dt_proj.weight": part.ssm_dt.weight,
                  "dt_proj.bias": part.ssm_dt.bias}
        found |= {f"{n}_layernorm.weight": norm.weight
                  for n, norm in zip(("dt", "b", "c"), part.norms, strict=False)}
    else:
        assert isinstance(part, Mamba2Layer)
        found |= {"dt_bias": part.scan.dt_bias, "norm.weight": part.norm.weight}
    return {f"mixer.{k}": v for k, v in found.items()}


def delta(part: GatedDeltaLayer, found: State) -> State:
    """Qwen3-Next keeps q, k, v and z of a key head together, and b and a."""
    s = part.spec
    inner, z, b, a = found.pop("in_proj.weight").split(part.widths)
    by_head = [x.unflatten(0, (s.key_heads, -1)) for x in (*inner.split(part.parts), z)]
    found |= {"in_proj_qkvz.weight": torch.cat(by_head, dim=1).flatten(0, 1),
              "in_proj_ba.weight": torch.cat([x.unflatten(0, (s.key_heads, -1)) for x in (b, a)],
                                             dim=1).flatten(0, 1),
              "dt_bias": part.scan.dt_bias, "norm.weight": part.norm.weight}
    return {f"linear_attn.{k}": v for k, v in found.items()}


def mlp(part: Mlp, ends: list[str]) -> State:
    found: State = {}
    for end in ends:
        first, second = (getattr(part.get_submodule(n), end) for n in (part.first, part.second))
        if first is None:
            continue
        names = ("gate_proj", "up_proj") if part.gated else ("up_proj",)
        found |= {f"{n}.{end}": w for n, w in zip(names, first.chunk(len(names)), strict=True)}
        found[f"down_proj.{end}"] = second
    return found


def feed_forward(part: Any, name: str) -> State:
    if isinstance(part, Mlp):
        return {f"mlp.{k}": v for k, v in mlp(part, ["weight", "bias"]).items()}
    assert isinstance(part, Experts)
    E = part.spec.experts
    router, first, down = part.router.weight[:E], part.first, part.down
    found: State = {"mlp.gate.weight": router}
    if part.spec.shared_gate:
        found["mlp.shared_expert_gate.weight"] = part.router.weight[E:]
    if part.shared is not None:
        many = "shared_experts" if name.startswith("deepseek") else "shared_expert"
        found |= {f"mlp.{many}.{k}": v for k, v in mlp(part.shared, ["weight"]).items()}
    if name == "gpt-oss":    # gate and up alternate, matrices stand the other way
        def mixed(x: Any) -> Any:
            return torch.stack(x.chunk(2, dim=1), dim=2).flatten(1, 2)

        assert part.first_bias is not None
        return {"mlp.router.weight": router, "mlp.router.bias": part.router_bias,
                "mlp.experts.gate_up_proj": mixed(first).transpose(1, 2),
                "mlp.experts.gate_up_proj_bias": mixed(part.first_bias),
                "mlp.experts.down_proj": down.transpose(1, 2),
                "mlp.experts.down_proj_bias": part.down_bias}
    return found | {"mlp.experts.gate_up_proj": first, "mlp.experts.down_proj": down}


def norms(layer: Layer) -> State:
    names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if layer.after_ffn is not None and layer.ffn_norm is not None:    # Gemma
        names |= {"after_attention": "post_attention_layernorm",
                  "ffn_norm": "pre_feedforward_layernorm",
                  "after_ffn": "post_feedforward_layernorm"}
    elif layer.after_ffn is not None:    # OLMo 2
        names = {"after_attention": "post_attention_layernorm",
                 "after_ffn": "post_feedforward_layernorm"}
    return {f"{there}.{end}": getattr(norm, end) for here, there in names.items()
            if isinstance(norm := getattr(layer, here), Norm) for end in ("weight", "bias")
            if getattr(norm, end) is not None}


def state(ours: Transformer, name: str) -> State:
    """The executor's tensors under the names of Llama."""
    found: State = {"model.embed_tokens.weight": ours.embedding.weight,
                    "lm_head.weight": ours.lm_head.weight}
    assert ours.final_norm is not None
    found |= {f"model.norm.{end}": getattr(ours.final_norm, end) for end in ("weight", "bias")
              if getattr(ours.final_norm, end) is not None}
    for i, layer in enumerate(ours.layers):
        assert isinstance(layer, Layer)
        part, own = layer.mixer, norms(layer)
        if isinstance(part, Attention):
            ends = ["weight", "bias"] if part.qkv.bias is not None else ["weight"]
            own |= attention(part, dict.fromkeys(ends))
        else:
            own |= latent(part) if isinstance(part, LatentAttention) else recurrent(part)
        if layer.ffn is not None:
            own |= feed_forward(layer.ffn, name)
        found |= {f"model.layers.{i}.{k}": v for k, v in own.items()}
    return found


def by_name(rules: list[tuple[str, str]]) -> Callable[[State, Transformer], State]:
    """Other names for the same tensors."""
    def renamed(found: State, ours: Transformer) -> State:
        def other(key: str) -> str:
            for pattern, text in rules:
                key = re.sub(pattern, text, key)
            return key
        return {other(key): value for key, value in found.items()}
    return renamed


def gpt2(found: State, ours: Transformer) -> State:
    out: State = {"transformer.wpe.weight": ours.positions.weight}
    for i in range(3):
        for end in ("weight", "bias"):
            out[f"transformer.h.{i}.attn.c_attn.{end}"] = torch.cat(
                [found.pop(f"model.layers.{i}.self_attn.{n}_proj.{end}") for n in "qkv"])
    out |= by_name([(r"model\.layers", "transformer.h"), ("self_attn.o_proj", "attn.c_proj"),
                    ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
                    ("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj"),
                    ("model.norm", "transformer.ln_f"), ("model.embed_tokens", "transformer.wte")],
                   )(found, ours)
    return {k: v.T if re.search(r"(attn|mlp)\.c_\w+\.weight", k) else v for k, v in out.items()}


def opt(found: State, ours: Transformer) -> State:
    out = by_name([(r"^model\.", "model.decoder."), ("self_attn.o_proj", "self_attn.out_proj"),
                   ("input_layernorm", "self_attn_layer_norm"), ("mlp.up_proj", "fc1"),
                   ("post_attention_layernorm", "final_layer_norm"), ("mlp.down_proj", "fc2"),
                   ("decoder.norm", "decoder.final_layer_norm")])(found, ours)
    return out | {    # the table there begins with two rows that no position has
        "model.decoder.embed_positions.weight": ours.positions.weight.roll(2, 0),
        "model.decoder.project_in.weight": ours.embedding_up.weight,
        "model.decoder.project_out.weight": ours.embedding_down.weight}


def gpt_neox(found: State, ours: Transformer) -> State:
    for i in range(3):
        for end in ("weight", "bias"):
            parts = [found.pop(f"model.layers.{i}.self_attn.{n}_proj.{end}").unflatten(0, (4, 16))
                     for n in "qkv"]
            found[f"gpt_neox.layers.{i}.attention.query_key_value.{end}"] = torch.cat(
                parts, dim=1).flatten(0, 1)
    return by_name([(r"model\.layers", "gpt_neox.layers"), ("mlp.up_proj", "mlp.dense_h_to_4h"),
                    ("mlp.down_proj", "mlp.dense_4h_to_h"), ("self_attn.o_proj", "attention.dense"),
                    ("model.norm", "gpt_neox.final_layer_norm"),
                    ("model.embed_tokens", "gpt_neox.embed_in")])(found, ours)


def cohere(found: State, ours: Transformer) -> State:
    return {k: interleaved(v, 16) if re.search("[qk]_proj", k) else v for k, v in found.items()}


def less_one(found: State, ours: Transformer) -> State:
    """Norms that multiply by 1 + w; not the gated ones of linear attention."""
    return {k: v - 1.0 if "norm" in k and "linear_attn" not in k else v for k, v in found.items()}


CHANGES: dict[str, Callable[[State, Transformer], State]] = {
    "gpt2": gpt2, "opt": opt, "gpt-neox": gpt_neox, "cohere": cohere, "gemma2": less_one,
    "qwen3-next": less_one,
    "mamba": by_name([("model", "backbone"), ("input_layernorm", "norm"),
                      ("embed_tokens", "embeddings"), (r"backbone\.norm", "backbone.norm_f")]),
    "mamba2": by_name([("model", "backbone"), ("input_layernorm", "norm"),
                       ("embed_tokens", "embeddings"), (r"backbone\.norm", "backbone.norm_f")]),
    "jamba": by_name([("mixer", "mamba"), (r"\.mlp", ".feed_forward"),
                      ("post_attention_layernorm", "pre_ff_layernorm"),
                      (r"model\.norm", "model.final_layernorm")]),
    "lfm2": by_name([(r"mlp\.gate_proj", "feed_forward.w1"), (r"mlp\.up_proj", "feed_forward.w3"),
                     (r"mlp\.down_proj", "feed_forward.w2"), ("input_layernorm", "operator_norm"),
                     ("post_attention_layernorm", "ffn_norm"), ("o_proj", "out_proj"),
                     (r"self_attn\.(.)_norm", r"self_attn.\1_layernorm"),
                     (r"model\.norm", "model.embedding_norm")]),
}


def twin(name: str) -> tuple[Transformer, Any]:
    """The executor's model and transformers' own, with the same random weights."""
    transformers = pytest.importorskip("transformers")
    config, model = config_of(name), FAMILIES[name][0]
    head = "LMHeadModel" if name == "gpt2" else "ForCausalLM"
    theirs = getattr(transformers, f"{KINDS[name]}{head}")(config).eval()
    ours = built(model)
    found = CHANGES.get(name, lambda s, _: s)(state(ours, name), ours)
    missing = set(theirs.state_dict()) ^ set(found)
    assert all(k.endswith("e_score_correction_bias") for k in missing), missing    # zero there
    theirs.load_state_dict({k: v.detach().clone() for k, v in found.items()}, strict=False)
    return ours, theirs


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name: str) -> None:
    ours, theirs = twin(name)
    tokens = prompt(ours.model)
    with torch.inference_mode():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    ours, theirs = twin(name)
    tokens = prompt(ours.model)
    with torch.inference_mode():
        expected = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                                   max_new_tokens=12, min_new_tokens=12)[:, tokens.shape[1]:]
        assert torch.equal(ours.generate(tokens, 12), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tensors_are_as_many_as_transformers_has(name: str) -> None:
    ours, theirs = twin(name)
    assert ours.parameter_count == sum(p.numel() for p in theirs.parameters())
