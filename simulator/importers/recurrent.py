"""State-space, linear-attention and convolution layers, alone or between attention layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simulator.errors import InputError
from simulator.importers import experts
from simulator.importers.reader import Config
from simulator.importers.standard import (
    Traits,
    attention,
    feed_forward,
    head_size,
    layer_kind,
)
from simulator.specs.model import (
    Attention,
    Dense,
    Extra,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Moe,
    ShortConv,
)


def inner_channels(config: Config) -> int:
    """Channels of a Mamba mixer: an explicit width wins over `expand`."""
    width = config.optional("width")
    expanded = config.integer("expand", 2) * config.integer("hidden")
    if width is not None and width != expanded:
        config.note(f"{config.key('width')}: {width} wins over {config.key('expand')} x hidden = "
                    f"{expanded}")
    return expanded if width is None else width


def step_rank(config: Config) -> int:
    """Rank of the step-size projection; `auto` or missing means hidden / 16 rounded up."""
    if config.raw("dt_rank") in (None, "auto"):
        rank = -(-config.integer("hidden") // 16)
        config.note(f"{config.key('dt_rank')}: taken as hidden / 16 = {rank}")
        return rank
    return config.integer("dt_rank")


def mamba_layers(config: Config) -> list[LayerGroup]:
    """Mamba and Falcon-Mamba: one mixer and one norm a layer."""
    mixer = Mamba(inner=inner_channels(config), state=config.integer("state"),
                  conv=config.integer("conv"), dt_rank=step_rank(config),
                  conv_bias=config.flag("use_conv_bias", True),
                  projection_bias=config.flag("use_bias"))
    return [LayerGroup(count=config.layers(), mixer=mixer, norms=1)]


def padded_vocabulary(config: Config) -> dict[str, Any]:
    """The original Mamba code rounds the vocabulary up to a multiple that the file names."""
    rows, step = config.integer("vocabulary"), config.optional("pad_vocab_size_multiple") or 1
    padded = -(-rows // step) * step
    if padded != rows:
        config.note(f"vocab_size: {rows} padded to {padded}, a multiple of {step}")
    return {"vocabulary": padded}


def mamba2_mixer(config: Config, size_key: str = "ssm_head_dim") -> Mamba2:
    """Mamba-2 with heads x head size channels; `expand` is not the width in some files."""
    heads, head_dim = config.integer("ssm_heads"), config.optional(size_key)
    hidden = config.integer("hidden")
    if head_dim is None:
        head_dim = config.integer("expand", 2) * hidden // heads
        config.note("head size of the state-space heads: taken as expand x hidden / heads = "
                    f"{head_dim}")
    expand = config.optional("expand")
    if expand is not None and expand * hidden != heads * head_dim:
        config.note(f"{config.key('expand')}: not used, the width is heads x head size = "
                    f"{heads * head_dim}")
    biased = config.flag("mamba_proj_bias") or config.flag("use_bias")
    return Mamba2(heads=heads, head_dim=head_dim, state=config.integer("state"),
                  groups=config.integer("groups", 1), conv=config.integer("conv"),
                  conv_bias=config.flag("use_conv_bias", config.flag("mamba_conv_bias", True)),
                  projection_bias=biased)


def mamba2_layers(config: Config) -> list[LayerGroup]:
    """Mamba-2: one mixer and one norm a layer."""
    return [LayerGroup(count=config.layers(), mixer=mamba2_mixer(config, "head_dim"),
                       norms=1)]


def jamba_layers(config: Config) -> list[LayerGroup]:
    """Jamba: attention every `attn_layer_period`, experts every `expert_layer_period`."""
    traits, layers = Traits(experts=experts.jamba), config.layers()
    period = config.integer("attn_layer_period")
    offset = config.integer("attn_layer_offset", least=0)
    mamba = Mamba(inner=config.integer("expand", 2) * config.integer("hidden"),
                  state=config.integer("state"), conv=config.integer("conv"),
                  dt_rank=step_rank(config), conv_bias=config.flag("mamba_conv_bias", True),
                  projection_bias=config.flag("mamba_proj_bias"), inner_norms=True)
    return [
        LayerGroup(count=1, ffn=feed_forward(config, traits, i, layers),
                   mixer=mamba if (i - offset) % period
                   else attention(config, traits, i, layers, rope=False))
        for i in range(layers)
    ]


_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def _nemotron_blocks(config: Config) -> Sequence[str]:
    listed = config.listed("layers_block_type")
    if listed:
        return [str(kind) for kind in listed]
    pattern = config.raw("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        raise InputError(f"{config.where}: 'hybrid_override_pattern' is missing (M mamba, "
                         "* attention, - MLP, E experts)")
    unknown = set(pattern) - set(_BLOCKS)
    if unknown:
        raise InputError(f"{config.where}: hybrid_override_pattern: unknown block "
                         f"'{min(unknown)}' (valid: {', '.join(_BLOCKS)})")
    return [_BLOCKS[letter] for letter in pattern]


def _nemotron_block(config: Config, kind: str) -> LayerGroup:
    if kind == "mamba":
        return LayerGroup(count=1, mixer=mamba2_mixer(config), norms=1)
    if kind == "attention":
        traits = Traits(qkv_bias="attention_bias", output_bias="attention_bias")
        return LayerGroup(count=1, mixer=attention(config, traits, 0, 1, rope=False), norms=1)
    if kind == "mlp":
        return LayerGroup(count=1, norms=1, ffn=Dense(
            width=config.integer("width"), gated=False, bias=config.flag("mlp_bias")))
    if kind == "moe":
        shared = config.integer("shared_width", 0, "no shared expert", least=0)
        return LayerGroup(count=1, norms=1, ffn=Moe(
            experts=config.integer("experts"), top_k=config.integer("top_k"),
            width=config.integer("expert_width"), gated=False, shared_width=shared,
            latent=config.optional("moe_latent_size")))
    raise InputError(f"{config.where}: layers_block_type: unknown block '{kind}' "
                     f"(valid: {', '.join(_BLOCKS.values())})")


def nemotron_layers(config: Config) -> list[LayerGroup]:
    """Nemotron-H and Nemotron 3: each layer is ONE block: Mamba-2, attention, MLP or experts."""
    blocks = _nemotron_blocks(config)
    stated = config.optional("layers")
    if stated is not None and stated != len(blocks):
        raise InputError(f"{config.where}: {config.key('layers')}: {stated}, but the block pattern "
                         f"has {len(blocks)} blocks")
    if config.found("mtp"):
        config.note(f"{config.key('mtp')}: multi-token-prediction layers are not counted")
    return [_nemotron_block(config, kind) for kind in blocks]


def _linear_mixer(config: Config) -> GatedDelta:
    return GatedDelta(
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"), conv=config.integer("conv"))


def gated_delta_layers(config: Config, traits: Traits) -> list[LayerGroup]:
    """Qwen3-Next and Qwen3.5: linear attention, every n-th layer full with an output gate."""
    layers, interval = config.layers(), config.integer("full_attention_interval", 4)
    gate = config.flag("attn_output_gate", True)
    groups = []
    for index in range(layers):
        kind = layer_kind(config, index, layers, ("full", "linear"))
        full = kind == "full" if kind else (index + 1) % interval == 0
        groups.append(LayerGroup(
            count=1, ffn=feed_forward(config, traits, index, layers),
            mixer=attention(config, replace(traits, windows="typed"), index, layers,
                            output_gate=gate)
            if full else _linear_mixer(config)))
    return groups


def _lfm2_width(config: Config) -> int:
    told = config.optional("block_ff_dim")
    if told is not None:
        config.unused("width")
    width = told or config.integer("width")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    adjusted = int(config.number("block_ffn_dim_multiplier", 1.0) * (2 * width // 3))
    multiple = config.integer("block_multiple_of", 256)
    rounded = -(-adjusted // multiple) * multiple
    config.note(f"block_auto_adjust_ff_dim: the MLP is {rounded} wide, not {width}")
    return rounded


def lfm2_layers(config: Config) -> list[LayerGroup]:
    """LFM2: gated short convolutions, attention with normed q and k on listed layers."""
    layers, ffn = config.layers(), Dense(width=_lfm2_width(config))
    listed = config.listed("full_attn_idxs")
    traits = Traits(qk_norm="head", windows="typed")
    conv = ShortConv(conv=config.integer("conv"), bias=config.flag("conv_bias"))
    groups = []
    for index in range(layers):
        kind = layer_kind(config, index, layers, ("full", "conv"))
        if kind is None and listed is None:
            raise InputError(f"{config.where}: 'layer_types' is missing: which layers are conv?")
        full = kind == "full" if kind else listed is not None and index in listed
        mixer = attention(config, traits, index, layers) if full else conv
        groups.append(LayerGroup(count=1, mixer=mixer, ffn=ffn))
    return groups


def lfm2_frame(config: Config) -> dict[str, Any]:
    """LFM2's own spelling of tied embeddings wins where a file has it."""
    return {"tied_embeddings": config.flag("tie_embedding")} if config.found(
        "tie_embedding") else {}


def _adapters(config: Config, width: int) -> int:
    """Values of the low-rank adapters that each use of a shared block has of its own."""
    hidden, rank = config.integer("hidden"), config.integer("adapter_rank", 128)
    mlp = rank * (hidden + 2 * width) if config.flag("use_shared_mlp_adapter", True) else 0
    attended = 3 * rank * (2 * hidden + 2 * hidden)
    return mlp + (attended if config.flag("use_shared_attention_adapter") else 0)


def zamba2_layers(config: Config) -> list[LayerGroup]:
    """Zamba 2: Mamba-2 layers; some also run a shared block that reads 2 x hidden."""
    layers, hidden = config.layers(), config.integer("hidden")
    kinds = config.layer_list("layers_block_type", layers)
    hybrid = (sum(kind == "hybrid" for kind in kinds) if kinds
              else len(config.listed("hybrid_layer_ids") or ()))
    if not hybrid:
        raise InputError(f"{config.where}: 'layers_block_type' is missing or has no 'hybrid'")
    heads, width = config.integer("heads"), config.integer("width")
    shared = Attention(
        heads=heads, kv_heads=config.optional("kv_heads") or heads,
        head_dim=config.optional("head_dim") or 2 * hidden // heads,
        input_width=2 * hidden, rope=config.flag("use_mem_rope"))  # fmt: skip
    mamba = mamba2_mixer(config)
    own = (Extra(name="shared_block_output", elements=hidden * hidden),
           Extra(name="adapters", elements=_adapters(config, width)))
    return [
        LayerGroup(count=layers - hybrid, mixer=mamba, norms=1),
        LayerGroup(count=hybrid, mixer=mamba, norms=1, extra=own),
        LayerGroup(count=hybrid, distinct=min(hybrid, config.integer("num_mem_blocks", 1)),
                   mixer=shared, ffn=Dense(width=width), norms=3),
    ]


def plamo2_layers(config: Config) -> list[LayerGroup]:
    """PLaMo 2: Mamba, and attention with a window on every `mamba_step`-th layer."""
    layers, step = config.layers(), config.integer("mamba_step", 2)
    heads, size = config.integer("ssm_heads"), head_size(config, config.integer("heads"))
    full = config.listed("full_attention_idx") or ()
    mamba = Mamba(inner=heads * size, state=config.integer("state"), conv=config.integer("conv"),
                  dt_rank=max(64, config.integer("hidden") // 16), dt_heads=heads,
                  conv_bias=False, inner_norms=True)
    groups = []
    for index in range(layers):
        attends = not config.flag("mamba_enabled", True) or index % step == step // 2
        traits = Traits(qk_norm="full", windows="none" if index in full else "all")
        mixer: Any = attention(config, traits, index, layers) if attends else mamba
        groups.append(LayerGroup(count=1, mixer=mixer, ffn=Dense(width=config.integer("width")),
                                 norms=4))
    return groups
