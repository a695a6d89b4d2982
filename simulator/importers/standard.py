"""The standard layer: softmax attention and an MLP or experts, varied by a few traits.

Most families differ from each other only in biases, norms, which layers have a window and which
have experts, so they are rows of traits read by one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from simulator.errors import InputError
from simulator.importers.reader import Config
from simulator.specs.model import NORMS, Attention, Dense, FeedForward, LayerGroup, Moe

Windows = Literal["none", "all", "switched", "even", "pattern", "typed", "no_rope"]
Experts = Callable[[Config, int, int], Moe | None]
Switch = bool | str


@dataclass(frozen=True)
class Traits:
    """What tells one family from another; a text names the key that decides.

    windows    which layers have the sliding window: none, all, behind a switch, the even ones,
               or all but every n-th; those without RoPE behind a switch;
               typed where the family has read layer_types itself
    full_rope  whether the layers with full attention use RoPE where others have a window
    dense      canonical name of the width of dense layers
    """

    norm: NORMS = "rms"
    norms: int = 2
    parallel: bool = False
    gated: bool = True
    qk_norm: Literal["head", "full"] | None = None
    qk_norm_key: str | None = None
    qkv_bias: Switch = False
    output_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    windows: Windows = "none"
    full_rope: bool = True
    sinks: bool = False
    experts: Experts | None = None
    dense: str = "width"


# Classes outside transformers whose default of the KV heads is a number that is not known here.
NO_RULE = frozenset(("OrionConfig", "Plamo2Config", "Plamo3Config", "Grok-1 run.py"))


def switched(config: Config, switch: Switch) -> bool:
    """A trait that is fixed by the class, or read from the key it names."""
    return switch if isinstance(switch, bool) else config.flag(switch)


_KINDS = {
    "full_attention": "full", "attention": "full", "global": "full", "global_attention": "full",
    "sliding_attention": "sliding", "sliding_window_attention": "sliding", "local": "sliding",
    "chunked_attention": "chunked", "linear_attention": "linear", "conv": "conv",
    "indexed_attention": "indexed",
}  # fmt: skip


def layer_kind(config: Config, index: int, layers: int,
               valid: tuple[str, ...]) -> str | None:
    """Kind that `layer_types` gives a layer, None without the list; kinds that are unknown or
    that the family does not have are refused.
    """
    types = config.layer_list("layer_types", layers)
    if types is None:
        return None
    kind = _KINDS.get(str(types[index]))
    if kind is None:
        raise InputError(
            f"{config.where}: layer_types[{index}]: unknown attention kind '{types[index]}' "
            f"(known: {', '.join(_KINDS)}); a YAML file with layers of mixer kind attention, "
            "mla, mamba, mamba2, gated_delta or short_conv can describe the model")
    if kind not in valid:
        raise InputError(
            f"{config.where}: layer_types[{index}]: '{types[index]}' is no kind of layer that "
            f"{config.origin} has (valid: {', '.join(k for k, v in _KINDS.items() if v in valid)})")
    return kind


def _by_pattern(config: Config, index: int) -> bool:
    pattern = config.raw("sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set("LG"):
            raise InputError(f"{config.where}: sliding_window_pattern: {pattern!r} is neither an "
                             "integer nor made of L (local) and G (global)")
        return pattern[index % len(pattern)] == "L"
    period = config.integer("sliding_window_pattern")
    return (index + 1) % period != 0


def is_sliding(config: Config, rule: Windows, index: int, layers: int) -> bool:
    """Whether a layer has the window: layer_types first, then the family's pattern or rule."""
    if rule == "typed":
        return False
    if rule != "none":
        config.unused("window")
    off = rule in ("switched", "no_rope") and not config.flag("use_sliding_window")
    if off:
        config.unused("window", "max_window_layers")
    kinds = ("full",) if rule == "none" else ("full", "sliding")
    kind = layer_kind(config, index, layers, kinds)
    if kind is not None:
        config.unused("sliding_window_pattern", "max_window_layers")
        return kind == "sliding" and not off
    if rule == "even":
        return index % 2 == 0
    if rule == "pattern":
        return _by_pattern(config, index)
    if rule == "no_rope":
        return not off and not uses_rope(config, index, layers)
    if rule == "switched":
        first = config.integer("max_window_layers", layers, "no layer has the window", 0)
        return not off and index >= first
    return rule == "all"


def window_of(config: Config, rule: Windows, index: int, layers: int) -> int | None:
    """Window of a layer; None where it has none or the window exceeds the context."""
    if not is_sliding(config, rule, index, layers):
        return None
    window = config.optional("window")
    positions = config.optional("positions")
    if window is not None and positions is not None and window >= positions:
        config.note(f"{config.key('window')}: {window} is not below the context of {positions}: "
                    "no effect")
        return None
    return window


def uses_rope(config: Config, index: int, layers: int) -> bool:
    """RoPE of a layer by `no_rope_layers`, where 1 means that the layer DOES use RoPE."""
    values = config.layer_list("no_rope_layers", layers)
    if values is not None:
        return bool(values[index])
    interval = config.optional("no_rope_layer_interval")
    return interval is None or (index + 1) % interval != 0


def head_size(config: Config, heads: int) -> int:
    """Explicit head size, else hidden / heads."""
    size = config.optional("head_dim")
    if size is not None:
        return size
    hidden = config.integer("hidden")
    if hidden % heads:
        raise InputError(f"{config.where}: {config.key('hidden')}: {hidden} is not a multiple of "
                         f"the {heads} heads, and there is no head_dim")
    config.note(f"head_dim: missing, taken as hidden / heads = {hidden // heads}")
    return hidden // heads


def kv_heads_of(config: Config, index: int, layers: int, heads: int) -> int:
    """KV heads; MHA where the file does not say."""
    count = config.per_layer("kv_heads", index, layers)
    if count is None and config.origin in NO_RULE and not config.has_null("kv_heads"):
        count = config.integer("kv_heads")
    if count is None:
        config.note(f"{config.key('kv_heads')}: missing, taken as the {heads} heads (MHA)")
        count = heads
    if heads % count:
        raise InputError(f"{config.where}: {config.key('kv_heads')}: {count} does not divide the "
                         f"{heads} heads")
    return count


def attention(config: Config, traits: Traits, index: int, layers: int,
              **changes: Any) -> Attention:
    """The attention of one layer; `changes` override single fields."""
    heads = config.integer("heads")
    window = window_of(config, traits.windows, index, layers)
    normed = traits.qk_norm_key is None or config.flag(traits.qk_norm_key)
    rope = uses_rope(config, index, layers)
    if not traits.full_rope and window is None:
        rope = False
    kv_heads = changes.pop("kv_heads", None) or kv_heads_of(config, index, layers, heads)
    fields: dict[str, Any] = {
        "heads": heads, "kv_heads": kv_heads, "head_dim": head_size(config, heads),
        "window": window, "rope": rope, "qkv_bias": switched(config, traits.qkv_bias),
        "output_bias": switched(config, traits.output_bias),
        "qk_norm": traits.qk_norm if normed else None, "sinks": traits.sinks,
    }  # fmt: skip
    return Attention(**{**fields, **changes})


def mlp(config: Config, traits: Traits, width: int) -> Dense:
    """The dense MLP of one layer."""
    return Dense(width=width, gated=traits.gated, bias=switched(config, traits.mlp_bias))


def feed_forward(config: Config, traits: Traits, index: int, layers: int) -> FeedForward:
    """Experts where the family has them on this layer, else the MLP."""
    if traits.experts is not None:
        moe = traits.experts(config, index, layers)
        if moe is not None:
            config.unused(traits.dense)
            return moe
    width = config.per_layer(traits.dense, index, layers)
    return mlp(config, traits, config.integer(traits.dense) if width is None else width)


def standard_layers(config: Config, traits: Traits) -> list[LayerGroup]:
    """One group a layer."""
    layers = config.layers()
    return [
        LayerGroup(
            count=1, mixer=attention(config, traits, index, layers),
            ffn=feed_forward(config, traits, index, layers), norms=traits.norms,
            parallel=traits.parallel)
        for index in range(layers)
    ]


def merge(groups: list[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Equal layers become one group with their count, in order of first appearance."""
    counts: dict[bytes, tuple[LayerGroup, int]] = {}
    for group in groups:
        key = repr(group.replace(count=1)).encode()
        first, count = counts.get(key, (group, 0))
        counts[key] = (first, count + group.count)
    return tuple(group.replace(count=count) for group, count in counts.values())
