"""Families whose layers differ from each other in more than a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.importers import experts
from simulator.importers.reader import Config
from simulator.importers.standard import (
    Traits,
    attention,
    feed_forward,
    is_sliding,
    layer_kind,
    mlp,
)
from simulator.specs.model import Attention, Dense, Extra, FeedForward, LayerGroup, Moe


def llama4_layers(config: Config) -> list[LayerGroup]:
    """Llama 4: chunked attention on the layers with RoPE, experts on every n-th layer."""
    traits = Traits(experts=experts.llama4, dense="intermediate_size_mlp", windows="typed")
    layers, chunk = config.layers(), config.optional("attention_chunk_size")
    listed = config.layer_list("no_rope_layers", layers)
    if listed is None:
        config.note("no_rope_layers: missing or empty, every 4th layer is taken to have no RoPE "
                    f"(rule of {config.origin})")
    groups = []
    for index in range(layers):
        rope = bool(listed[index]) if listed is not None else (index + 1) % 4 != 0
        kind = layer_kind(config, index, layers, ("full", "chunked"))
        local = rope if kind is None else kind == "chunked"
        mixer = attention(config, traits, index, layers, rope=rope, window=None,
                          chunk=chunk if local else None)
        groups.append(LayerGroup(count=1, mixer=mixer,
                                 ffn=feed_forward(config, traits, index, layers)))
    return groups


def mimo_layers(config: Config) -> list[LayerGroup]:
    """MiMo V2: sliding layers have their own heads; sinks on them where the file says so."""
    layers = config.layers()
    traits = Traits(experts=experts.deepseek)
    pattern = config.layer_list("hybrid_layer_pattern", layers)
    if pattern is None:
        raise InputError(f"{config.where}: 'hybrid_layer_pattern' is missing (1 = sliding)")
    window = config.integer("window")
    config.note(f"{config.key('window')}: {window} earlier tokens, {window + 1} with the token "
                "itself, in this family")
    full = Attention(heads=config.integer("heads"), kv_heads=config.integer("kv_heads"),
                     head_dim=config.integer("head_dim"), value_dim=config.integer("v_head_dim"),
                     sinks=config.flag("add_full_attention_sink_bias"))
    sliding = Attention(
        heads=config.integer("swa_num_attention_heads", full.heads),
        kv_heads=config.integer("swa_num_key_value_heads", full.kv_heads),
        head_dim=config.integer("swa_head_dim", full.head_dim),
        value_dim=config.integer("swa_v_head_dim", full.values),
        window=window + 1, sinks=config.flag("add_swa_attention_sink_bias"))
    return [LayerGroup(count=1, mixer=sliding if pattern[i] else full,
                       ffn=feed_forward(config, traits, i, layers)) for i in range(layers)]


def mllama_layers(config: Config) -> list[LayerGroup]:
    """Llama 3.2 Vision: listed layers attend to the image, each with two scalar gates."""
    layers, traits = config.layers(), Traits()
    crossed = config.listed("cross_attention_layers") or ()
    groups = []
    for index in range(layers):
        cross = index in crossed
        mixer = attention(config, traits, index, layers, cross=cross, rope=not cross,
                          qk_norm="head" if cross else None)
        gates = (Extra(name="cross_gates", elements=2),) if cross else ()
        groups.append(LayerGroup(count=1, mixer=mixer, extra=gates,
                                 ffn=feed_forward(config, traits, index, layers)))
    return groups


def mllama_frame(config: Config) -> dict[str, Any]:
    """Eight rows more in the embedding than in the head."""
    rows = config.integer("vocabulary")
    config.note(f"vocab_size: the embedding has {rows + 8} rows, the head {rows}")
    return {"vocabulary": rows + 8, "output_vocabulary": rows}


GEMMA4 = Traits(norms=4, qk_norm="head", windows="pattern")


def _gemma4_attention(config: Config, index: int, layers: int, shares: bool) -> Attention:
    if is_sliding(config, "pattern", index, layers):
        return attention(config, GEMMA4, index, layers, shares_kv=shares)
    same = config.flag("attention_k_eq_v")
    kv_heads = config.optional("num_global_key_value_heads") if same else None
    size = config.optional("global_head_dim")
    changes: dict[str, Any] = {} if size is None else {"head_dim": size}
    return attention(config, GEMMA4, index, layers, shares_kv=shares, kv_heads=kv_heads,
                     keys_are_values=same, **changes)


def _gemma4_ffn(config: Config, shares: bool) -> FeedForward:
    width = config.integer("width")
    if config.flag("enable_moe_block"):
        config.note("enable_moe_block: experts beside the MLP; counts of this variant are not "
                    "verified")
        return Moe(experts=config.integer("experts"), top_k=config.integer("top_k"),
                   width=config.integer("expert_width"), dense_width=width)
    return Dense(width=2 * width if shares and config.flag("use_double_wide_mlp") else width)


def _gemma4_extra(config: Config) -> tuple[Extra, ...]:
    extra = []
    hidden, lanes = config.integer("hidden"), config.optional(
        "hidden_size_per_layer_input", least=0) or 0
    if lanes:
        extra += [Extra(name="per_layer_gate_and_projection", elements=2 * hidden * lanes),
                  Extra(name="per_layer_norm", elements=hidden)]
    if config.flag("enable_moe_block"):
        extra.append(Extra(name="router_scales", elements=hidden + config.integer("experts")))
    return tuple(extra)


def gemma4_layers(config: Config) -> list[LayerGroup]:
    """Gemma 4: full layers with another head size, last layers that reuse KV of earlier ones."""
    layers = config.layers()
    owners = layers - (config.optional("num_kv_shared_layers", least=0) or 0)
    norms = 7 if config.flag("enable_moe_block") else 4
    return [
        LayerGroup(count=1, mixer=_gemma4_attention(config, i, layers, i >= owners),
                   ffn=_gemma4_ffn(config, i >= owners), norms=norms,
                   extra=_gemma4_extra(config))
        for i in range(layers)
    ]


def gemma4_frame(config: Config) -> dict[str, Any]:
    """Per-layer embeddings: a table that is only looked up, and the projection beside it."""
    lanes = config.optional("hidden_size_per_layer_input", least=0) or 0
    if not lanes:
        return {}
    layers, hidden = config.layers(), config.integer("hidden")
    rows = config.optional("vocab_size_per_layer_input") or config.integer("vocabulary")
    return {"extra": (
        Extra(name="per_layer_embedding", elements=rows * layers * lanes, streamed=False),
        Extra(name="per_layer_projection", elements=hidden * layers * lanes + lanes),
    )}


def _nas_part(config: Config, index: int, name: str) -> Mapping[str, Any]:
    blocks = config.layer_list("block_configs", config.layers())
    part = blocks[index].get(name) if blocks and isinstance(blocks[index], dict) else None
    if not isinstance(part, dict):
        raise InputError(f"{config.where}: block_configs[{index}].{name} is missing")
    return part


def _refuse_linear(config: Config, part: Mapping[str, Any], where: str) -> None:
    if part.get("replace_with_linear"):
        raise InputError(f"{config.where}: {where}.replace_with_linear: layers replaced by a "
                         "linear map are not supported; a YAML file can count them as extra")


def nas_layers(config: Config) -> list[LayerGroup]:
    """Nemotron-NAS: each layer's attention may be absent, each MLP has its own width."""
    layers, hidden, heads = config.layers(), config.integer("hidden"), config.integer("heads")
    groups = []
    for index in range(layers):
        attn, ffn = (_nas_part(config, index, name) for name in ("attention", "ffn"))
        place = f"block_configs[{index}]"
        _refuse_linear(config, attn, f"{place}.attention")
        _refuse_linear(config, ffn, f"{place}.ffn")
        mixer = dense = None
        if not attn.get("no_op"):
            share = Config(attn, f"{config.where}: {place}.attention", config.notes)
            mixer = attention(config, Traits(), index, layers,
                              kv_heads=heads // share.integer("n_heads_in_group"))
        if not ffn.get("no_op"):
            share = Config(ffn, f"{config.where}: {place}.ffn", config.notes)
            width = int(2 * share.number("ffn_mult", 1.0) * hidden / 3)
            dense = mlp(config, Traits(), -(-width // 256) * 256)
        if mixer is not None or dense is not None:
            groups.append(LayerGroup(count=1, mixer=mixer, ffn=dense,
                                     norms=(mixer is not None) + (dense is not None)))
    return groups
