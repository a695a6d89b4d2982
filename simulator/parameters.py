"""Which tensors a model has and how many values each holds.

One list serves parameter counts, weight bytes and memory: total, active (what one token uses), and
streamed (what a step must read) are sums over it, so they cannot disagree.
"""

from __future__ import annotations

from typing import Any

import msgspec

from simulator.specs.model import (
    Attention,
    Dense,
    FeedForward,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Mixer,
    Mla,
    Model,
    ShortConv,
)


class Tensor(msgspec.Struct, frozen=True):
    """A kind of tensor: `elements` values in each of `count` copies.

    role      class that decides its number format: attention, ffn, experts, ...
    active    share of it that one token uses (top_k / experts for routed experts)
    streamed  read in every step; False for tables that are only looked up
    """

    name: str
    role: str
    elements: float
    count: float = 1.0
    active: float = 1.0
    streamed: bool = True

    @property
    def total(self) -> float:
        """Values in all copies."""
        return self.elements * self.count


def norm_elements(model: Model, width: float) -> float:
    """Values of one norm over `width`: weight, and a bias in a full LayerNorm."""
    return {"rms": 1, "layer": 2, "layer-no-bias": 1, "none": 0}[model.norm] * width


def attention_tensors(a: Attention, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of one softmax-attention mixer."""
    width = hidden if a.input_width is None else a.input_width
    q, k, v = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.values
    own_k = 0 if a.shares_kv else k
    own_v = 0 if a.shares_kv or a.keys_are_values else v
    q_out = q * (2 if a.output_gate else 1)
    tensors = [
        ("qkv", "attention", width * (q_out + own_k + own_v)),
        ("attention_output", "attention", a.heads * a.values * hidden),
    ]
    if a.qkv_bias:
        tensors.append(("qkv_bias", "norm", q_out + own_k + own_v))
    if a.output_bias:
        tensors.append(("attention_output_bias", "norm", hidden))
    if a.qk_norm == "head":
        tensors.append(("qk_norm", "norm", a.head_dim * (1 if a.shares_kv else 2)))
    if a.qk_norm == "full":
        tensors.append(("qk_norm", "norm", q + own_k))
    if a.sinks:
        tensors.append(("sinks", "norm", a.heads))
    return tensors


def mla_tensors(a: Mla, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of one MLA mixer, DeepSeek-V2 (2405.04434) eqs. 9-18."""
    q_out = a.heads * (a.nope_dim + a.rope_dim)
    kv_out = a.heads * (a.nope_dim + a.value_dim)
    down_q = 0 if a.q_rank is None else hidden * a.q_rank
    tensors = [
        ("q_down", "attention", down_q),
        ("q_up", "attention", (hidden if a.q_rank is None else a.q_rank) * q_out),
        ("kv_down", "attention", hidden * (a.kv_rank + a.rope_dim)),
        ("kv_up", "attention", a.kv_rank * kv_out),
        ("attention_output", "attention", a.heads * a.value_dim * hidden),
        ("latent_norms", "norm", a.kv_rank + (a.q_rank or 0)),
    ]
    if a.qkv_bias:
        tensors.append(("qkv_bias", "norm", a.kv_rank + a.rope_dim + (a.q_rank or 0)))
    if a.output_bias:
        tensors.append(("attention_output_bias", "norm", hidden))
    if a.indexer is not None:
        i = a.indexer
        queries = (hidden if a.q_rank is None else a.q_rank) * i.heads * i.head_dim
        tensors += [
            ("indexer", "attention", queries + hidden * (i.head_dim + i.heads)),
            ("indexer_norm", "norm", 2 * i.head_dim),
        ]
    return tensors


def mamba_tensors(s: Mamba, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of one Mamba mixer."""
    bias = (2 * s.inner + hidden) if s.projection_bias else 0
    steps = s.inner if s.dt_heads is None else s.dt_heads
    decay = s.inner * s.state if s.dt_heads is None else s.dt_heads
    return [
        ("ssm_input", "ssm", hidden * 2 * s.inner),
        ("ssm_x", "ssm", s.inner * (s.dt_rank + 2 * s.state)),
        ("ssm_dt", "ssm", s.dt_rank * steps),
        ("ssm_output", "ssm", s.inner * hidden),
        ("ssm_small", "norm", s.inner * s.conv + (s.inner if s.conv_bias else 0)
         + decay + 2 * steps + bias
         + (s.dt_rank + 2 * s.state if s.inner_norms else 0)),
    ]


def mamba2_tensors(s: Mamba2, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of one Mamba-2 mixer."""
    inner = s.heads * s.head_dim
    conv = inner + 2 * s.groups * s.state
    wide = 2 * inner + 2 * s.groups * s.state + s.heads
    bias = (wide + hidden) if s.projection_bias else 0
    return [
        ("ssm_input", "ssm", hidden * wide),
        ("ssm_output", "ssm", inner * hidden),
        ("ssm_small", "norm", conv * s.conv + (conv if s.conv_bias else 0) + 3 * s.heads
         + (inner if s.gated_norm else 0) + bias),
    ]


def gated_delta_tensors(s: GatedDelta, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of one gated-delta mixer."""
    keys, values = s.key_heads * s.key_dim, s.value_heads * s.value_dim
    return [
        ("ssm_input", "ssm", hidden * (2 * keys + 2 * values + 2 * s.value_heads)),
        ("ssm_output", "ssm", values * hidden),
        ("ssm_small", "norm", (2 * keys + values) * s.conv + 2 * s.value_heads + s.value_dim),
    ]


def short_conv_tensors(s: ShortConv, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of one gated short convolution."""
    return [
        ("ssm_input", "ssm", hidden * 3 * hidden),
        ("ssm_output", "ssm", hidden * hidden),
        ("ssm_small", "norm", hidden * s.conv + (5 * hidden if s.bias else 0)),
    ]


def mixer_tensors(mixer: Mixer | None, hidden: float) -> list[tuple[str, str, float]]:
    """(name, role, elements) of any mixer."""
    table: dict[type, Any] = {
        Attention: attention_tensors, Mla: mla_tensors, Mamba: mamba_tensors,
        Mamba2: mamba2_tensors, GatedDelta: gated_delta_tensors, ShortConv: short_conv_tensors,
    }  # fmt: skip
    return [] if mixer is None else list(table[type(mixer)](mixer, hidden))


def ffn_tensors(ffn: FeedForward | None, hidden: float) -> list[Tensor]:
    """Tensors of one feed-forward part; routed experts are `active` by top_k / experts."""
    if ffn is None:
        return []
    if isinstance(ffn, Dense):
        width, matrices = ffn.width, 3 if ffn.gated else 2
        bias = width * (matrices - 1) + hidden if ffn.bias else 0
        return [Tensor("mlp", "ffn", matrices * hidden * width), Tensor("mlp_bias", "norm", bias)]
    matrices = 3 if ffn.gated else 2
    inner = hidden if ffn.latent is None else ffn.latent
    share = ffn.top_k / ffn.experts
    bias = (ffn.width * (matrices - 1) + inner) if ffn.expert_bias else 0
    return [
        Tensor("router", "router", hidden * ffn.experts),
        Tensor("router_bias", "norm", ffn.experts if ffn.router_bias else 0),
        Tensor("experts", "experts", ffn.experts * matrices * inner * ffn.width, active=share),
        Tensor("expert_bias", "norm", ffn.experts * bias, active=share),
        Tensor("latent", "ffn", 0 if ffn.latent is None else 2 * hidden * ffn.latent),
        Tensor("shared_experts", "shared_experts", matrices * hidden * ffn.shared_width),
        Tensor("shared_gate", "router", hidden if ffn.shared_gate else 0),
        Tensor("mlp", "ffn", matrices * hidden * ffn.dense_width),
    ]


def group_tensors(model: Model, group: LayerGroup) -> list[Tensor]:
    """Tensors of a group of layers, each counted for all its distinct layers."""
    count = group.count if group.distinct is None else group.distinct
    parts = [Tensor(n, r, e) for n, r, e in mixer_tensors(group.mixer, model.hidden)]
    parts += ffn_tensors(group.ffn, model.hidden)
    parts.append(Tensor("norms", "norm", group.norms * norm_elements(model, model.hidden)))
    parts += [Tensor(x.name, "other", x.elements, streamed=x.streamed) for x in group.extra]
    return [Tensor(t.name, t.role, t.elements, count, t.active, t.streamed) for t in parts]


def small_elements(model: Model, group: LayerGroup) -> float:
    """Values of the norms, biases and other small tensors that one layer reads in every pass.

    Biases of routed experts are left out: they are read with the experts that are touched.
    """
    parts = mixer_tensors(group.mixer, model.hidden)
    parts += [(t.name, t.role, t.elements) for t in ffn_tensors(group.ffn, model.hidden)]
    small = sum(e for name, role, e in parts if role == "norm" and name != "expert_bias")
    return small + group.norms * norm_elements(model, model.hidden)


def edge_tensors(model: Model) -> list[Tensor]:
    """Tensors outside the layers: embedding and what follows it, final norm, head, extras.

    A tied matrix appears once, as the head: it is streamed by the head, and the look-up of the
    embedding reads a row a token from it.
    """
    width = model.hidden if model.embedding_width is None else model.embedding_width
    bridges = 0 if model.embedding_width is None else 2 * model.hidden * width
    embedding = 0 if model.tied_embeddings else model.vocabulary * width
    head_rows = model.vocabulary if model.tied_embeddings else model.head_rows
    return [
        Tensor("embedding", "embedding", embedding, streamed=False),
        Tensor("positions", "embedding", model.learned_positions * model.hidden, streamed=False),
        Tensor("embedding_norm", "norm",
               norm_elements(model, model.hidden) if model.embedding_norm else 0),
        Tensor("embedding_bridges", "ffn", bridges),
        Tensor("final_norm", "norm", norm_elements(model, model.hidden) * model.final_norm),
        Tensor("lm_head", "head", head_rows * width),
        Tensor("head_bias", "norm", model.head_rows if model.head_bias else 0),
        *(Tensor(x.name, "other", x.elements, streamed=x.streamed) for x in model.extra),
    ]


def model_tensors(model: Model, mtp: bool = False) -> list[Tensor]:
    """Every tensor of the model; with `mtp` its multi-token-prediction layers too."""
    tensors = edge_tensors(model)
    for group in (*model.layers, *(model.mtp if mtp else ())):
        tensors += group_tensors(model, group)
    return [t for t in tensors if not (isinstance(t.elements, int | float) and t.elements == 0)]


def parameters_total(model: Model) -> float:
    """All parameters, tied matrices once, without multi-token-prediction layers."""
    return sum(t.total for t in model_tensors(model))


def parameters_active(model: Model) -> float:
    """Parameters that one token uses, both embeddings counted."""
    return sum(t.total * t.active for t in model_tensors(model))


def parameters_active_no_input_embedding(model: Model) -> float:
    """Parameters that one token multiplies with: active ones without the look-up tables.

    A tied matrix still counts, since the head multiplies with it.
    """
    return sum(t.total * t.active for t in model_tensors(model) if t.name != "embedding")
