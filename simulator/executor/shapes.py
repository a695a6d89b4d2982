"""A catalogue model as a shape that the executor runs, and that shape as a catalogue model.

What is predicted is the model of the shape that ran, never the one it was cut from.
"""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.errors import InputError
from simulator.executor.shape import Shape
from simulator.specs.model import Attention, Dense, LayerGroup, Model, Moe

RUNS = ("the executor runs RMS-norm decoders with grouped-query or sliding-window attention and a "
        "gated MLP or routed experts in every layer")
# Widths are whole multiples of it, as those of real models are.
VOCABULARY_UNIT = 64
MOST_LAYERS = 10_000


def _attention_faults(a: Attention) -> list[str]:
    return [words for wrong, words in (
        (a.value_dim not in (None, a.head_dim), "V heads of another size than K heads"),
        (a.chunk is not None, "chunked attention"),
        (a.qk_norm == "full", "a norm over all heads of q and k"),
        (a.output_gate, "an output gate"),
        (a.sinks, "attention sinks"),
        (a.shares_kv, "layers that share a KV cache"),
        (a.keys_are_values, "K that serves as V"),
        (a.cross, "cross attention"),
        (a.input_width is not None, "attention over another width than the hidden size"),
        (a.head_dim % 2 == 1, "an odd head size"),
    ) if wrong]


def _ffn_faults(ffn: Dense | Moe) -> list[str]:
    if isinstance(ffn, Dense):
        return [words for wrong, words in (
            (not ffn.gated, "an MLP without gate"), (ffn.bias, "biases in its MLP")) if wrong]
    return [words for wrong, words in (
        (not ffn.gated, "experts without gate"),
        (ffn.shared_width > 0, "shared experts"),
        (ffn.router_bias, "a bias of the router"),
        (ffn.expert_bias, "biases of its experts"),
        (ffn.latent is not None, "experts of another width than the hidden size"),
        (ffn.dense_width > 0, "an MLP beside its experts"),
    ) if wrong]


def _model_faults(m: Model) -> list[str]:
    return [words for wrong, words in (
        (m.norm != "rms", f"norms of kind '{m.norm}'"),
        (not m.final_norm, "no final norm"),
        (m.head_bias, "a bias of the LM head"),
        (m.embedding_norm, "a norm of the embedding"),
        (m.embedding_width is not None, "an embedding of another width than the hidden size"),
        (m.learned_positions > 0, "learned positions"),
        (m.head_rows != m.vocabulary, "an LM head of another size than the vocabulary"),
        (bool(m.extra), f"tensors of its own ({', '.join(x.name for x in m.extra)})"),
    ) if wrong]


def _group_faults(g: LayerGroup) -> list[str]:
    found = []
    if not isinstance(g.mixer, Attention):
        kind = "no mixer" if g.mixer is None else type(g.mixer).__name__
        found.append({"Mla": "multi-head latent attention (MLA)", "no mixer": "layers without "
                      "attention"}.get(kind, f"recurrent layers ({kind})"))
    else:
        found += _attention_faults(g.mixer)
    if g.ffn is None:
        found.append("layers without MLP")
    else:
        found += _ffn_faults(g.ffn)
    return found + [words for wrong, words in (
        (g.norms != 2, f"{g.norms} norms a layer"),
        (g.parallel, "attention and MLP side by side"),
        (g.distinct is not None, "layers that share weights"),
        (bool(g.extra), "tensors of its own in a layer"),
    ) if wrong]


def _first_layers(model: Model, layers: int) -> list[LayerGroup]:
    """The groups that the first `layers` layers are in."""
    found, left = [], layers
    for group in model.layers:
        if left > 0:
            found.append(group)
        left -= group.count
    return found


def shape_of(model: Model, layers: int | None = None, scale: float = 1.0) -> Shape:
    """The shape of a catalogue model, cut to its first `layers` and with widths times `scale`.

    More layers than the model has repeat its own. Scaling keeps the head size, the ratio of query
    to KV heads, and the number of experts; it rounds hidden size and widths to whole head sizes
    and the vocabulary to 64. InputError names what the executor can't run.
    """
    count = model.layer_count if layers is None else layers
    if not 1 <= count <= MOST_LAYERS:
        raise InputError(f"layers: {count} is not between 1 and {MOST_LAYERS:,}")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale: {scale:g} must be above 0 and finite")
    groups = _first_layers(model, count)
    faults = [*_model_faults(model), *(f for g in groups for f in _group_faults(g))]
    alike = {(g.mixer, g.ffn) for g in groups}
    if not faults and len(alike) > 1:
        faults = [f"{len(alike)} kinds of layers (the first {groups[0].count} are alike: "
                  f"--layers {groups[0].count})"]
    if faults:
        listed = ", ".join(dict.fromkeys(faults))
        raise InputError(f"model '{model.name}' has {listed}; {RUNS}")
    mixer, ffn = groups[0].mixer, groups[0].ffn
    assert isinstance(mixer, Attention)
    experts = isinstance(ffn, Moe)
    shape = Shape(
        hidden=model.hidden, layers=count, query_heads=mixer.heads, kv_heads=mixer.kv_heads,
        head_dim=mixer.head_dim, ffn=ffn.width if isinstance(ffn, Dense) else 0,
        vocabulary=model.vocabulary, tied=model.tied_embeddings,
        experts=ffn.experts if isinstance(ffn, Moe) else 0,
        active_experts=ffn.top_k if isinstance(ffn, Moe) else 0,
        expert_ffn=ffn.width if isinstance(ffn, Moe) and experts else 0,
        qk_norm=mixer.qk_norm is not None, qkv_bias=mixer.qkv_bias,
        output_bias=mixer.output_bias, window=mixer.window, rope=mixer.rope,
        positions=model.positions)
    return shape if scale == 1.0 else _scaled(shape, scale)


def _scaled(s: Shape, scale: float) -> Shape:
    def width(value: int, unit: int) -> int:
        return 0 if value == 0 else max(1, round(value * scale / unit)) * unit

    kv_heads = max(1, round(s.kv_heads * scale))
    group = s.query_heads // s.kv_heads
    heads = kv_heads * group if s.kv_heads * scale >= 1 else max(1, round(s.query_heads * scale))
    return replace(
        s, hidden=width(s.hidden, s.head_dim), query_heads=heads, kv_heads=kv_heads,
        ffn=width(s.ffn, s.head_dim), expert_ffn=width(s.expert_ffn, s.head_dim),
        vocabulary=width(s.vocabulary, VOCABULARY_UNIT))


def model_of(shape: Shape, name: str, dtype: str = "bf16") -> Model:
    """The model that a shape is, as the simulator counts it, with weights of `dtype`."""
    s = shape
    mixer = Attention(
        heads=s.query_heads, kv_heads=s.kv_heads, head_dim=s.head_dim, window=s.window, rope=s.rope,
        qkv_bias=s.qkv_bias, output_bias=s.output_bias, qk_norm="head" if s.qk_norm else None)
    ffn = (Moe(experts=s.experts, top_k=s.active_experts, width=s.expert_ffn) if s.experts
           else Dense(width=s.ffn))
    return Model(name=name, hidden=s.hidden, vocabulary=s.vocabulary, positions=s.positions,
                 tied_embeddings=s.tied, formats={"weights": dtype},
                 layers=(LayerGroup(count=s.layers, mixer=mixer, ffn=ffn),))


def shape_name(model: Model, shape: Shape, scale: float = 1.0) -> str:
    """The catalogue's name, with what was cut behind it: `llama-3.2-1b layers=2 scale=0.5`."""
    cuts = [f"layers={shape.layers}"] if shape.layers != model.layer_count else []
    cuts += [f"scale={scale:g}"] if scale != 1.0 else []
    return " ".join([model.name, *cuts])


__all__ = ["model_of", "shape_name", "shape_of"]
