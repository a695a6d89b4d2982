"""The early decoders: learned positions, LayerNorm with bias, plain MLPs, fused MQA."""

from __future__ import annotations

from typing import Any

from simulator.errors import InputError
from simulator.importers.reader import Config
from simulator.importers.standard import Traits, attention, head_size, mlp
from simulator.specs.model import Attention, Dense, LayerGroup, Moe

BIASED = Traits(norm="layer", gated=False, qkv_bias=True, output_bias=True, mlp_bias=True)


def inner_width(config: Config) -> int:
    """MLP width; null or absent means four times the hidden size."""
    width = config.optional("width")
    if width is None:
        width = 4 * config.integer("hidden")
        config.note(f"{config.key('width')}: missing, taken as 4 x hidden = {width}")
    return width


def _repeat(config: Config, group: LayerGroup) -> list[LayerGroup]:
    return [group.replace(count=config.layers())]


def gpt2_layers(config: Config) -> list[LayerGroup]:
    """GPT-2: MHA; GPT-BigCode: one KV head where `multi_query` says so."""
    if config.flag("add_cross_attention"):
        raise InputError(f"{config.where}: add_cross_attention: true: attention to an encoder in "
                         "each layer is not supported")
    heads = config.integer("heads")
    kv_heads = 1 if config.flag("multi_query") else heads
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, BIASED, 0, 1, kv_heads=kv_heads),
        ffn=mlp(config, BIASED, inner_width(config))))


def learned(config: Config) -> dict[str, Any]:
    """A learned position table with a row for each position."""
    return {"learned_positions": config.integer("positions")}


def gptj_layers(config: Config) -> list[LayerGroup]:
    """GPT-J: parallel block with one norm, no bias in attention."""
    traits = Traits(norm="layer", gated=False, mlp_bias=True)
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, traits, 0, 1, kv_heads=config.integer("heads")),
        ffn=mlp(config, traits, inner_width(config)), norms=1, parallel=True))


def gpt_neo_layers(config: Config) -> list[LayerGroup]:
    """GPT-Neo: `attention_types` repeats a list of global and local a number of times."""
    kinds: list[str] = []
    for entry in config.listed("attention_types") or ():
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)
                and isinstance(entry[1], int)):
            raise InputError(f"{config.where}: attention_types: {entry!r} is not [[kinds], times]")
        kinds += [str(kind) for kind in entry[0]] * entry[1]
    layers = config.layers()
    if len(kinds) != layers:
        raise InputError(f"{config.where}: attention_types: {len(kinds)} entries for "
                         f"{layers} layers")
    traits = Traits(norm="layer", gated=False, output_bias=True, mlp_bias=True)
    heads, window = config.integer("heads"), config.integer("window")
    return [
        LayerGroup(
            count=1, mixer=Attention(
                heads=heads, kv_heads=heads, head_dim=head_size(config, heads), output_bias=True,
                window=window if kind == "local" else None, rope=False),
            ffn=mlp(config, traits, inner_width(config)))
        for kind in kinds
    ]


def opt_layers(config: Config) -> list[LayerGroup]:
    """OPT: biases everywhere (`enable_bias`)."""
    biased = config.flag("enable_bias", True)
    traits = Traits(norm="layer", gated=False, qkv_bias=biased, output_bias=biased,
                    mlp_bias=biased)
    heads = config.integer("heads")
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, traits, 0, 1, kv_heads=heads, rope=False),
        ffn=mlp(config, traits, config.integer("width"))))


def opt_frame(config: Config) -> dict[str, Any]:
    """OPT: two extra position rows, a narrower embedding in some, no final norm in post-norm."""
    hidden = config.integer("hidden")
    width = config.optional("word_embed_proj_dim")
    affine = config.flag("layer_norm_elementwise_affine", True)
    return {
        "norm": "layer" if affine else "none",
        "learned_positions": config.integer("positions") + 2,
        "embedding_width": width if width not in (None, hidden) else None,
        "final_norm": config.flag("do_layer_norm_before", True)
        and not config.flag("_remove_final_layer_norm"),
    }


def bloom_layers(config: Config) -> list[LayerGroup]:
    """BLOOM: ALiBi, biases, fused MHA."""
    heads = config.integer("heads")
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, BIASED, 0, 1, kv_heads=heads, rope=False),
        ffn=mlp(config, BIASED, inner_width(config))))


def falcon_kv_heads(config: Config) -> int:
    """Falcon: `num_kv_heads` counts only in the new architecture, else MQA or MHA."""
    heads = config.integer("heads")
    if config.flag("new_decoder_architecture") or config.found("n_head_kv"):
        return config.integer("kv_heads", heads, "as many as heads")
    config.unused("kv_heads")
    return 1 if config.flag("multi_query") else heads


def falcon_layers(config: Config) -> list[LayerGroup]:
    """Falcon: parallel blocks with one norm (7B) or two (40B, 180B)."""
    biased = config.flag("bias")
    traits = Traits(norm="layer", gated=False, qkv_bias=biased, output_bias=biased,
                    mlp_bias=biased)
    new = config.flag("new_decoder_architecture") or bool(config.found("n_head_kv"))
    parallel = config.flag("parallel_attn") or new
    norms = config.optional("num_ln_in_parallel_attn") or (2 if new else 1)
    mixer = attention(config, traits, 0, 1, kv_heads=falcon_kv_heads(config),
                      rope=not config.flag("alibi"))
    return _repeat(config, LayerGroup(
        count=1, mixer=mixer, ffn=mlp(config, traits, inner_width(config)),
        norms=norms if parallel else 2, parallel=parallel))


def neox_layers(config: Config) -> list[LayerGroup]:
    """GPT-NeoX and Pythia: two norms even where the block is parallel."""
    biased = config.flag("attention_bias", True)
    traits = Traits(norm="layer", gated=False, qkv_bias=biased, output_bias=biased, mlp_bias=True)
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, traits, 0, 1, kv_heads=config.integer("heads")),
        ffn=mlp(config, traits, config.integer("width")),
        parallel=config.flag("use_parallel_residual", True)))


def phi_layers(config: Config) -> list[LayerGroup]:
    """Phi-1.5 and 2: parallel block with one norm, biases everywhere."""
    heads = config.integer("heads")
    kv_heads = config.optional("kv_heads") or heads
    if config.flag("qk_layernorm"):
        raise InputError(f"{config.where}: qk_layernorm: true: a LayerNorm with bias on q and k "
                         "is not supported")
    # Microsoft's own class (phi-msft, GPT-2's spellings) has null for 4 x hidden.
    early = config.key("hidden") == "n_embd" or config.has_null("width")
    width = inner_width(config) if early else config.integer("width")
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, BIASED, 0, 1, kv_heads=kv_heads),
        ffn=mlp(config, BIASED, width), norms=1, parallel=True))


def stablelm_layers(config: Config) -> list[LayerGroup]:
    """StableLM: one norm where the block is parallel; q and k normed over all their heads."""
    heads, hidden = config.integer("heads"), config.integer("hidden")
    if config.found("head_dim") and config.integer("head_dim") * heads != hidden:
        raise InputError(f"{config.where}: head_dim: {config.raw('head_dim')} is not hidden / "
                         "heads, the only head size of this family")
    parallel = config.flag("use_parallel_residual")
    traits = Traits(norm="layer", qkv_bias="use_qkv_bias",
                    qk_norm="full" if config.flag("qk_layernorm") else None)
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, traits, 0, 1),
        ffn=mlp(config, traits, config.integer("width")), norms=1 if parallel else 2,
        parallel=parallel))


def _alibi(block: Config | None, config: Config) -> bool:
    holder = config if block is None or config.found("alibi") else block
    if holder.found("alibi"):
        return holder.flag("alibi")
    config.note("attn_config.alibi: not in the file, true is the default of MptAttentionConfig")
    return True


def mpt_layers(config: Config) -> list[LayerGroup]:
    """MPT: attention facts in their own block, MLP as a multiple of the hidden size."""
    block = config.block("attn_config")
    heads, hidden = config.integer("heads"), config.integer("hidden")
    kv_heads = heads if block is None else block.optional("kv_n_heads") or heads
    if block is not None and block.raw("attn_type") == "multiquery_attention":
        kv_heads = 1
    biased = not config.flag("no_bias", True)
    ratio = config.number("expansion_ratio", 4.0)
    normed = block is not None and block.flag("qk_ln")
    mixer = Attention(heads=heads, kv_heads=kv_heads, head_dim=hidden // heads,
                      qkv_bias=biased, output_bias=biased, qk_norm="full" if normed else None,
                      rope=not _alibi(block, config))
    return _repeat(config, LayerGroup(
        count=1, mixer=mixer, ffn=Dense(width=int(ratio * hidden), gated=False, bias=biased)))


def mpt_frame(config: Config) -> dict[str, Any]:
    """MPT: no position table where ALiBi is on, whatever `learned_pos_emb` says."""
    alibi = _alibi(config.block("attn_config"), config)
    table = config.flag("learned_pos_emb", True) and not alibi
    return {
        "norm": "layer-no-bias" if config.flag("no_bias", True) else "layer",
        "learned_positions": config.integer("positions") if table else 0,
    }


def dbrx_layers(config: Config) -> list[LayerGroup]:
    """DBRX: attention and experts in two nested blocks."""
    attn, ffn = config.block("attn_config"), config.block("ffn_config")
    if attn is None or ffn is None:
        missing = "attn_config" if attn is None else "ffn_config"
        raise InputError(f"{config.where}: '{missing}' is missing")
    heads, hidden = config.integer("heads"), config.integer("hidden")
    mixer = Attention(heads=heads, kv_heads=attn.integer("kv_n_heads"), head_dim=hidden // heads)
    moe = Moe(experts=ffn.integer("moe_num_experts"), top_k=ffn.integer("moe_top_k"),
              width=ffn.integer("ffn_hidden_size"))
    return _repeat(config, LayerGroup(count=1, mixer=mixer, ffn=moe))


def chatglm_layers(config: Config) -> list[LayerGroup]:
    """ChatGLM 2, 3 and GLM-4-9B: KV heads are `multi_query_group_num`."""
    heads = config.integer("heads")
    grouped = config.flag("multi_query_attention")
    kv_heads = config.integer("multi_query_group_num") if grouped else heads
    biased = config.flag("add_bias_linear")
    mixer = Attention(heads=heads, kv_heads=kv_heads, head_dim=head_size(config, heads),
                      qkv_bias=biased or config.flag("add_qkv_bias"), output_bias=biased)
    return _repeat(config, LayerGroup(
        count=1, mixer=mixer, ffn=Dense(width=config.integer("width"), bias=biased)))


def qwen1_layers(config: Config) -> list[LayerGroup]:
    """Qwen (first): `intermediate_size` is twice the width of the MLP; QKV bias, MHA."""
    width = config.integer("width")
    if width % 2:
        raise InputError(f"{config.where}: {config.key('width')}: {width} is odd; it is twice "
                         "the width in this family")
    config.note(f"{config.key('width')}: {width} is twice the width of the MLP in this family")
    heads = config.integer("heads")
    biased = not config.flag("no_bias", True)
    mixer = attention(config, Traits(qkv_bias=True, output_bias=biased), 0, 1, kv_heads=heads)
    return _repeat(config, LayerGroup(count=1, mixer=mixer, ffn=Dense(width=width // 2)))


def plamo_layers(config: Config) -> list[LayerGroup]:
    """PLaMo 13B: parallel block with one norm; KV heads are heads / n_shared_head."""
    heads = config.integer("heads")
    shared = config.integer("n_shared_head")
    if heads % shared:
        raise InputError(f"{config.where}: n_shared_head: {shared} does not divide {heads} heads")
    config.note(f"{config.key('kv_heads')}: {config.raw('kv_heads')} is not used, the KV heads are "
                f"heads / n_shared_head = {heads // shared}")
    traits = Traits(parallel=True)
    return _repeat(config, LayerGroup(
        count=1, mixer=attention(config, traits, 0, 1, kv_heads=heads // shared),
        ffn=mlp(config, traits, config.integer("width")), norms=1, parallel=True))


