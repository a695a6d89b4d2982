"""Model x Deployment x tokens -> Operations: the only place that knows a transformer's shape.

Every operation is what ONE device executes, in the fullest rank. Static operations depend on the
tokens of the pass; attention also on the context, and comes from `attention_operations`, so that
decode can integrate it over the growing context.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simulator.arrays import Array, larger, present, smaller
from simulator.deployment import Deployment
from simulator.kv_cache import mixer_state_elements
from simulator.operations import Operation, elementwise, gemm, gemm_flops, moe, ssm
from simulator.operations import attention as att
from simulator.parameters import norm_elements, small_elements
from simulator.specs.model import (
    Attention,
    Dense,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Mixer,
    Mla,
    Moe,
    ShortConv,
)
from simulator.stages import fullest_stage, group_shares, mixer_share

Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Segment:
    """`sequences` that each add `new` tokens and then have `context` tokens; may be arrays.

    A pass is a list of segments: one for a prefill, one for a decode step, several where
    sequences of different contexts, or prefill and decode, share a step.
    """

    sequences: Array
    new: Array
    context: Array
    phase: Phase

    @property
    def tokens(self) -> Array:
        """New tokens of all sequences."""
        return self.sequences * self.new


@dataclass(frozen=True)
class Shares:
    """What one device holds: divisors of heads, widths, vocabulary and experts."""

    ranks: int
    experts: float
    expert_width: float
    expert_tokens: float

    @classmethod
    def of(cls, deployment: Deployment) -> Shares:
        """Shares of a deployment's fullest rank.

        With ep = 1 each expert is split over the ranks of a replica. With ep > 1 the experts are
        spread over the ranks of all replicas, and tokens of all replicas reach them.
        """
        p = deployment.parallelism
        if p.ep == 1:
            return cls(p.ranks, 1.0, float(p.ranks), 1.0)
        return cls(p.ranks, float(p.ep), p.ranks * p.dp / p.ep, float(p.dp))


def gemm_kernel(deployment: Deployment, role: str) -> str:
    """Kernel family of a matrix product: it differs by number format."""
    weights, compute = deployment.weight_format(role), deployment.compute(role)
    if compute in ("fp8", "int8"):
        return "gemm_fp8"
    if compute in ("fp4", "fp6"):
        return "gemm_fp4"
    return "gemm_weight_only" if weights.bits < 15 else "gemm"


def _gemm(d: Deployment, name: str, role: str, m: Array, k: Array, n: Array,
          count: Array = 1.0) -> Operation:
    return gemm(name, count, m, k, n, d.weight_format(role).bytes, d.activation_format.bytes,
                d.compute(role), gemm_kernel(d, role))


def kv_heads_per_rank(heads: Array, tp: int) -> Array:
    """KV heads of a rank; beyond their number they are replicated."""
    return larger(heads / tp, 1.0)


def attention_projections(d: Deployment, a: Attention, T: Array) -> list[Operation]:
    """QKV, q and k norms, rope with the KV write, and the output projection."""
    tp, D, hidden = d.parallelism.tp, d.activation_format.bytes, d.model.hidden
    q, K = a.heads / tp * a.head_dim, kv_heads_per_rank(a.kv_heads, tp)
    k, v = K * a.head_dim, K * a.values
    width = hidden if a.input_width is None else a.input_width
    own = 0.0 if a.shares_kv else k + (0.0 if a.keys_are_values else v)
    q_out, cp = q * (2 if a.output_gate else 1), d.parallelism.cp
    operations = [_gemm(d, "qkv", "attention", T, width, (q_out + own) / cp)]
    if a.qk_norm is not None:
        operations.append(elementwise("qk_norm", 1.0, T * (q + k) / cp, D, 4, 2, "norm",
                                      launches=0.0 if d.engine.fused else 1.0))
    written = 0.0 if a.shares_kv or a.cross else T * (k + v) * d.kv_format.bytes / cp
    rope = "rope_and_kv_write" if a.rope else "kv_write"
    operations.append(elementwise(rope, 1.0, T * (q + k) / cp, D, 3 if a.rope else 0,
                                  2 if a.rope else 1, kv=written))
    out = a.heads / tp * a.values / cp
    if a.output_gate:
        operations.append(elementwise("output_gate", 1.0, T * out, D, 5, 3))
    operations.append(_gemm(d, "attention_output", "attention", T, out, hidden))
    return operations


def mla_projections(d: Deployment, a: Mla, T: Array) -> list[Operation]:
    """Down- and up-projections, latent norms, rope with the latent write, output projection."""
    tp, D, hidden = d.parallelism.tp, d.activation_format.bytes, d.model.hidden
    cp = d.parallelism.cp
    q_out = a.heads / tp * (a.nope_dim + a.rope_dim) / cp
    latent = a.kv_rank + a.rope_dim
    operations = []
    if a.q_rank is None:
        operations.append(_gemm(d, "q", "attention", T, hidden, q_out))
        operations.append(_gemm(d, "kv_down", "attention", T, hidden, latent))
    else:
        operations.append(_gemm(d, "qkv_down", "attention", T, hidden, a.q_rank + latent))
        operations.append(_gemm(d, "q_up", "attention", T, a.q_rank, q_out))
    operations.append(elementwise("latent_norms", 1.0, T * (a.kv_rank + (a.q_rank or 0)), D, 4, 2,
                                  "norm"))
    operations.append(elementwise(
        "rope_and_kv_write", 1.0, T * (a.heads / tp / cp + 1) * a.rope_dim, D, 3, 2,
        kv=T * latent * d.kv_format.bytes / cp))
    if a.indexer is not None:
        i = a.indexer
        queries = a.q_rank if a.q_rank is not None else hidden
        operations.append(_gemm(d, "indexer_queries", "attention", T, queries,
                                i.heads * i.head_dim))
        operations.append(_gemm(d, "indexer_keys", "attention", T, hidden, i.head_dim + i.heads))
    operations.append(_gemm(d, "attention_output", "attention", T, a.heads / tp * a.value_dim / cp,
                            hidden))
    return operations


def ssm_operations(d: Deployment, s: Mamba | Mamba2 | GatedDelta | ShortConv,
                   segments: Sequence[Segment]) -> list[Operation]:
    """Input projections, the recurrence over a fixed state, and the output projection."""
    tp, D, hidden = d.parallelism.ranks, d.activation_format.bytes, d.model.hidden
    T = sum_of(s.tokens for s in segments)
    n = sum_of(s.sequences for s in segments)
    extra: list[Operation] = []
    if isinstance(s, Mamba):
        wide, inner, state, conv = 2 * s.inner, s.inner, s.state, s.inner
        steps = s.inner if s.dt_heads is None else s.dt_heads
        extra = [_gemm(d, "ssm_x", "ssm", T, s.inner / tp, s.dt_rank + 2 * s.state),
                 _gemm(d, "ssm_dt", "ssm", T, s.dt_rank, steps / tp)]
    elif isinstance(s, Mamba2):
        inner, state = s.heads * s.head_dim, s.state
        conv = inner + 2 * s.groups * s.state
        wide = inner + conv + s.heads
    elif isinstance(s, GatedDelta):
        keys, inner = s.key_heads * s.key_dim, s.value_heads * s.value_dim
        state, conv = s.key_dim, 2 * keys + inner
        wide = conv + inner + 2 * s.value_heads
    else:
        wide, inner, state, conv = 3 * hidden, hidden, 0, hidden
    values = mixer_state_elements(s, hidden) / tp
    scan = Operation(
        "scan", "ssm", "ssm", 1.0, ssm.scan_flops(T, inner / tp, larger(state, s.conv)),
        kv=ssm.state_traffic(n, values), activations=D * T * (conv + 2 * inner) / tp,
        compute=d.activation_format.compute or "bf16")
    return [_gemm(d, "ssm_input", "ssm", T, hidden, wide / tp), *extra, scan,
            _gemm(d, "ssm_output", "ssm", T, inner / tp, hidden)]


def dense_operations(d: Deployment, width: float, gated: bool, T: Array,
                     role: str = "ffn", prefix: str = "mlp") -> list[Operation]:
    """Gate and up, activation, down."""
    F, hidden = width / d.parallelism.ranks, d.model.hidden
    inputs = 2.0 if gated else 1.0
    launches = 1.0
    return [
        _gemm(d, f"{prefix}_gate_up" if gated else f"{prefix}_up", role, T, hidden, inputs * F),
        elementwise(f"{prefix}_activation", 1.0, T * F, d.activation_format.bytes, 5, inputs + 1,
                    launches=launches),
        _gemm(d, f"{prefix}_down", role, T, F, hidden),
    ]


def moe_operations(d: Deployment, f: Moe, T: Array) -> list[Operation]:
    """Router, routed experts in one grouped kernel, shared experts."""
    share, D, hidden = Shares.of(d), d.activation_format.bytes, d.model.hidden
    matrices = 3.0 if f.gated else 2.0
    inner = hidden if f.latent is None else f.latent
    width, tokens = f.width / share.expert_width, T * share.expert_tokens
    if d.parallelism.ep > 1:
        # The step waits for the fullest rank, and that rank touches more of its experts too.
        tokens = tokens * moe.imbalance(tokens, f.top_k, f.experts, d.parallelism.ep,
                                        d.expert_skew)
    w = d.weight_format("experts").bytes
    touched = moe.experts_touched(f.experts, f.top_k, tokens) / share.experts
    used = f.top_k / share.experts
    bias = ((f.width * (matrices - 1) + inner) * d.weight_format("norm").bytes
            if f.expert_bias else 0.0)
    gate = 1 if f.shared_gate else 0
    operations = [_gemm(d, "router", "router", T, hidden, f.experts + gate)]
    if f.latent is not None:
        operations.append(_gemm(d, "latent_down", "ffn", T, hidden, f.latent))
    operations.append(Operation(
        "experts", "moe", "moe", 1.0,
        moe.expert_flops(tokens, used, matrices, inner, width),
        moe.expert_weight_bytes(touched, matrices, inner, width, w) + touched * bias, 0.0,
        moe.expert_activation_bytes(tokens, used, matrices, inner, width, D),
        d.compute("experts")))
    if f.latent is not None:
        operations.append(_gemm(d, "latent_up", "ffn", T, f.latent, hidden))
    if present(f.shared_width):
        operations += dense_operations(d, f.shared_width, f.gated, T, "shared_experts",
                                       "shared_experts")
    if present(f.dense_width):
        operations += dense_operations(d, f.dense_width, f.gated, T)
    return operations


def _all_reduce(d: Deployment, name: str, T: Array) -> list[Operation]:
    ranks = d.parallelism.ranks
    if ranks == 1:
        return []
    return [Operation(name, "collective", "collective", 1.0, wire=T * d.model.hidden *
                      d.activation_format.bytes, collective="all_reduce", ranks=ranks)]


def _context_exchange(d: Deployment, mixer: Mixer | None, T: Array) -> list[Operation]:
    """Partial attention outputs of the context ranks, exchanged by heads and summed."""
    p = d.parallelism
    if p.cp == 1 or not isinstance(mixer, Attention | Mla):
        return []
    head = mixer.values if isinstance(mixer, Attention) else mixer.kv_rank
    wire = T * mixer.heads / p.tp * head * d.activation_format.bytes
    return [Operation("context_exchange", "collective", "collective", 1.0, wire=wire,
                      collective="all_to_all", ranks=p.cp, extent=p.ranks)]


def _expert_exchange(d: Deployment, f: Moe, T: Array) -> list[Operation]:
    """Dispatch to and combine from experts of other ranks; for dp = 1 the all-reduce does it.

    A token goes to every rank that holds a slice of one of its experts, at most once to each.
    """
    p = d.parallelism
    if p.ep == 1 or p.dp == 1:
        return []
    group, slices = p.ranks * p.dp, p.ranks * p.dp // p.ep
    copies = f.top_k if slices == 1 else smaller(f.top_k * slices, group)
    rows = T / p.ranks * copies * d.model.hidden * d.activation_format.bytes
    return [Operation(name, "collective", "collective", 1.0, wire=rows, collective="all_to_all",
                      ranks=group) for name in ("expert_dispatch", "expert_combine")]


def layer_operations(d: Deployment, group: LayerGroup,
                     segments: Sequence[Segment]) -> list[Operation]:
    """Static operations of a group: all but the attention over the context."""
    T = sum_of(s.tokens for s in segments)
    D, hidden = d.activation_format.bytes, d.model.hidden
    small = small_elements(d.model, group) * d.weight_format("norm").bytes
    norms, residuals = 1.0 * group.norms, float((group.mixer is not None) + (
        group.ffn is not None and not group.parallel))
    operations = [elementwise("norm", norms, T * hidden, D, 4, 2, "norm", weights=small / norms)
                  if norms else Operation("small_weights", "norm", "elementwise", 1.0,
                                          weights=small, launches=0.0)]
    fused = d.engine.fused
    operations.append(elementwise("residual", residuals, T * hidden, D, 1, 2 if fused else 3,
                                  launches=0.0 if fused else 1.0))
    mixer, ffn = group.mixer, group.ffn
    if isinstance(mixer, Attention):
        operations += attention_projections(d, mixer, T)
    elif isinstance(mixer, Mla):
        operations += mla_projections(d, mixer, T)
    elif mixer is not None:
        operations += ssm_operations(d, mixer, segments)
    operations += _context_exchange(d, mixer, T)
    if mixer is not None and not group.parallel:
        operations += _all_reduce(d, "attention_all_reduce", T)
    if isinstance(ffn, Dense):
        operations += dense_operations(d, ffn.width, ffn.gated, T)
    elif isinstance(ffn, Moe):
        operations += moe_operations(d, ffn, T)
        operations += _expert_exchange(d, ffn, T)
    if ffn is not None or group.parallel:
        operations += _all_reduce(d, "mlp_all_reduce", T)
    count = 1.0 * group.count
    for tensor in group.extra:
        if tensor.streamed and present(tensor.elements):
            operations.append(Operation(tensor.name, "elementwise", "elementwise", 1.0,
                                        weights=tensor.elements * d.weight_format("other").bytes,
                                        launches=0.0))
    return [o.with_count(o.count * count) for o in operations]


def attention_limits(group: LayerGroup) -> float | None:
    """Keys that one token of a group attends to at most; None: all of the context."""
    mixer = group.mixer
    if isinstance(mixer, Attention):
        return mixer.window if mixer.window is not None else mixer.chunk
    if isinstance(mixer, Mla) and mixer.indexer is not None:
        return mixer.indexer.top_k
    return None


def _pairs(mixer: Attention | Mla, s: Segment, limit: float | None) -> Array:
    if isinstance(mixer, Attention) and mixer.chunk is not None and s.phase == "prefill":
        return att.chunked_pairs(s.new, s.context, mixer.chunk)
    if s.phase == "decode":
        causal = s.new * s.context - s.new * (s.new - 1.0) / 2.0
        return causal if limit is None else np.minimum(causal, s.new * limit)
    return att.visible_pairs(s.new, s.context, limit)


def attention_operations(d: Deployment, group: LayerGroup, s: Segment,
                         key: str = "") -> list[Operation]:
    """Operations of a group that depend on the context: attention itself.

    In decode their FLOPs and bytes are affine in the context up to their `limit`, and constant
    above. `key` keeps the alternatives of different groups and segments apart.
    """
    mixer, count, cp = group.mixer, 1.0 * group.count, d.parallelism.cp
    if not isinstance(mixer, Attention | Mla) or (isinstance(mixer, Attention) and mixer.cross):
        return []
    limit = attention_limits(group)
    pairs = _pairs(mixer, s, limit) / cp
    keys = att.keys_read(s.new, s.context, limit) / cp
    if isinstance(mixer, Mla):
        cores = _mla_cores(d, mixer, s, pairs, keys, limit, key)
    else:
        cores = _attention_cores(d, mixer, s, pairs, keys, limit)
    if d.parallelism.pp > 1:
        share = mixer_share(d, mixer)
        cores = [o.on_stage(share) for o in cores]
    return [o.with_count(count) for o in cores]


def _attention_cores(d: Deployment, a: Attention, s: Segment, pairs: Array, keys: Array,
                     limit: float | None) -> list[Operation]:
    tp, D, k = d.parallelism.tp, d.activation_format.bytes, d.kv_format.bytes
    h, K, n = a.heads / tp, kv_heads_per_rank(a.kv_heads, tp), s.sequences
    compute = d.activation_format.compute or "bf16"
    kernel = f"attention_{s.phase}"
    name = (f"attention_window_{a.window}" if a.window is not None else
            f"attention_chunk_{a.chunk}" if a.chunk is not None else "attention")
    flops = att.attention_flops(n, h, pairs, a.head_dim, a.values)
    read = att.kv_bytes(n, K, keys, a.head_dim, a.values, k)
    rows = att.query_bytes(n, h, s.new, a.head_dim, a.values, D)
    fused = Operation(name, "attention", kernel, 1.0, flops, 0.0, read, rows, compute,
                      limit=limit)
    if not d.engine.unfused_attention:
        return [fused]
    scores = Operation("attention_scores", "elementwise", "elementwise", 1.0, 5.0 * n * h * pairs,
                       activations=att.score_bytes(n, h, pairs, D), limit=limit)
    return [fused, scores]


def _mla_cores(d: Deployment, a: Mla, s: Segment, pairs: Array, keys: Array,
               limit: float | None, key: str) -> list[Operation]:
    """Absorbed or expanded, whichever is faster: two alternatives of one group."""
    tp, D, k = d.parallelism.tp, d.activation_format.bytes, d.kv_format.bytes
    h, n, latent = a.heads / tp, s.sequences, a.kv_rank + a.rope_dim
    compute = d.activation_format.compute or "bf16"
    up, w = a.nope_dim + a.value_dim, d.weight_format("attention").bytes * a.kv_rank
    gemm_family, wide = gemm_kernel(d, "attention"), d.compute("attention")
    cached, T = n * keys * latent * k, s.tokens
    own = h / d.parallelism.cp    # heads that a context rank absorbs; it attends with all
    absorb = Operation(
        "mla_absorb", "gemm", gemm_family, 1.0,
        att.mla_absorb_flops(T, own, a.kv_rank, a.nope_dim, a.value_dim), w * own * up, 0.0,
        D * T * own * (2 * a.kv_rank + up), wide, 2.0, alternative=(key, 0))
    core = Operation(
        "mla_absorbed", "attention", "mla_decode", 1.0,
        att.mla_absorbed_flops(n, h, pairs, a.kv_rank, a.rope_dim), 0.0, cached,
        att.query_bytes(n, h, s.new, latent, a.kv_rank, D), compute, alternative=(key, 0),
        limit=limit)
    expanded_keys = n * att.keys_read(s.new, s.context) / d.parallelism.cp
    expand = Operation(
        "mla_expand", "gemm", gemm_family, 1.0,
        att.mla_expand_flops(expanded_keys, h, a.kv_rank, a.nope_dim, a.value_dim), w * h * up,
        expanded_keys * latent * k, D * expanded_keys * h * up, wide, 1.0,
        alternative=(key, 1))
    wide_head = a.nope_dim + a.rope_dim
    plain = Operation(
        "mla_expanded", "attention", f"attention_{s.phase}", 1.0,
        att.attention_flops(n, h, pairs, wide_head, a.value_dim), 0.0, 0.0,
        att.kv_bytes(n, h, keys, wide_head, a.value_dim, D)
        + att.query_bytes(n, h, s.new, wide_head, a.value_dim, D),
        compute, alternative=(key, 1), limit=limit)
    operations = [absorb, core, expand, plain]
    if a.indexer is not None:
        i, all_pairs = a.indexer, _pairs(a, s, None) / d.parallelism.cp
        operations.append(Operation(
            "indexer_scores", "attention", f"attention_{s.phase}", 1.0,
            2.0 * n * i.heads * i.head_dim * all_pairs, 0.0,
            n * s.context / d.parallelism.cp * i.head_dim * k,
            n * s.new * i.heads * i.head_dim * D, compute))
    return operations


def edge_operations(d: Deployment, segments: Sequence[Segment], rows: Array) -> list[Operation]:
    """Embedding look-up, final norm, LM head on `rows` positions, sampling; and PP hand-over."""
    p, model, D = d.parallelism, d.model, d.activation_format.bytes
    T = sum_of(s.tokens for s in segments)
    width = model.hidden if model.embedding_width is None else model.embedding_width
    split = 1 if d.engine.head_replicated else p.ranks
    looked_up = T * width * d.weight_format("embedding").bytes
    small = d.weight_format("norm").bytes
    operations = [Operation("embedding", "embedding", "elementwise", 1.0,
                            weights=looked_up, activations=T * width * D)]
    if model.embedding_norm:
        operations.append(elementwise("embedding_norm", 1.0, T * model.hidden, D, 4, 2, "norm",
                                      weights=small * norm_elements(model, model.hidden)))
    if model.embedding_width is not None:
        operations += [_gemm(d, "embedding_up", "ffn", T, width, model.hidden),
                       _gemm(d, "embedding_down", "ffn", rows, model.hidden, width)]
    for extra in model.extra:
        if extra.streamed and present(extra.elements):
            operations.append(Operation(extra.name, "elementwise", "elementwise", 1.0,
                                        weights=extra.elements * d.weight_format("other").bytes))
    operations += _all_reduce(d, "embedding_all_reduce", T)
    if model.final_norm:
        operations.append(elementwise("final_norm", 1.0, rows * model.hidden, D, 4, 2, "norm",
                                      weights=small * norm_elements(model, model.hidden)))
    vocabulary = model.head_rows / split
    operations.append(_gemm(d, "lm_head", "head", rows, width, vocabulary))
    if model.head_bias:
        operations.append(elementwise("head_bias", 1.0, rows * vocabulary, D, 1, 0,
                                      weights=small * vocabulary, launches=0.0))
    operations.append(elementwise("sampling", 1.0, rows * vocabulary, 4.0, 5, 2, "sampling"))
    if split > 1:
        operations.append(Operation(
            "logits_all_gather", "collective", "collective", 1.0,
            wire=rows * model.head_rows * D, collective="all_gather", ranks=split))
    if p.pp > 1:
        operations.append(Operation(
            "stage_hand_over", "collective", "collective", float(p.pp - 1),
            wire=T * model.hidden * D, collective="point_to_point", ranks=2,
            extent=d.devices // p.dp))
    return operations


_FIRST_STAGE = frozenset({"embedding", "embedding_norm", "embedding_up", "embedding_all_reduce"})


def static_operations(d: Deployment, segments: Sequence[Segment],
                      rows: Array) -> list[Operation]:
    """All operations of a pass but the attention over the context."""
    operations = edge_operations(d, segments, rows)
    layers = [layer_operations(d, group, segments) for group in d.model.layers]
    if d.parallelism.pp > 1:
        _, first, last = fullest_stage(d)
        operations = [o.on_stage(1.0 * (first if o.name in _FIRST_STAGE else last))
                      for o in operations]
        layers = [[o.on_stage(share) for o in group]
                  for group, share in zip(layers, group_shares(d), strict=True)]
    return operations[:1] + [o for group in layers for o in group] + operations[1:]


def pass_operations(d: Deployment, segments: Sequence[Segment], rows: Array) -> list[Operation]:
    """Every operation of one pass over `segments`, with logits at `rows` positions.

    Both alternatives of MLA are listed, marked as such.
    """
    attention = [o for i, group in enumerate(d.model.layers) for j, s in enumerate(segments)
                 for o in attention_operations(d, group, s, f"{i}.{j}")]
    return static_operations(d, segments, rows) + attention


def sum_of(values: Iterable[Array]) -> Array:
    """Sum that starts from the first value, so that one scalar stays the scalar it is."""
    total: Array = None
    for value in values:
        total = value if total is None else total + value
    return 0.0 if total is None else total


def matrix_flops(operations: Iterable[Operation]) -> Array:
    """FLOPs of matrix-class operations alone: what 2 P T counts."""
    return sum_of(o.flops * o.count for o in operations
                  if o.kind in ("gemm", "attention", "moe", "ssm"))


__all__ = ["Phase", "Segment", "Shares", "attention_limits", "attention_operations",
           "gemm_flops", "matrix_flops", "pass_operations", "static_operations", "sum_of"]
