"""Operations of the parts of a layer: projections, recurrences, MLPs, experts, exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from simulator.arrays import Array, larger, present, smaller
from simulator.deployment import Deployment
from simulator.efficiency.kernel_formats import of_attention, of_matrix
from simulator.kv_cache import mixer_state_elements
from simulator.operations import Operation, Picks, elementwise, gemm, moe, ssm
from simulator.specs.model import (
    Attention,
    GatedDelta,
    Mamba,
    Mamba2,
    Mixer,
    Mla,
    Moe,
    ShortConv,
)

Phase = Literal["prefill", "decode"]


class Segment(msgspec.Struct, frozen=True):
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


class Shares(msgspec.Struct, frozen=True):
    """What one device holds: divisors of heads, widths, vocabulary and experts."""

    ranks: int
    experts: float
    expert_width: float
    expert_tokens: Array

    @classmethod
    def of(cls, deployment: Deployment) -> Shares:
        """Shares of a deployment's fullest rank.

        With ep = 1 each expert is split over the ranks of a replica. With ep > 1 the experts are
        spread over the ranks of all replicas, and tokens of all replicas reach them.
        """
        p = deployment.parallelism
        if p.ep == 1:
            return cls(p.ranks, 1.0, float(p.ranks), 1.0)
        busy = float(p.dp) if deployment.busy_replicas is None else deployment.busy_replicas
        return cls(p.ranks, float(p.ep), p.ranks * p.dp / p.ep, busy)


def gemm_format(d: Deployment, role: str) -> str:
    """Number format that kernels of a product are timed by; it follows weights and activations.

    Models quantised in blocks of 128 run other FP8 kernels than those with a scale a tensor.
    """
    return of_matrix(d.weight_format(role), d.activation_format)


def attention_format(d: Deployment) -> str:
    """Number format that attention kernels are timed by."""
    return of_attention(d.activation_format, d.kv_format)


def matrix(d: Deployment, name: str, role: str, m: Array, k: Array, n: Array,
          count: Array = 1.0) -> Operation:
    return gemm(name, count, m, k, n, d.weight_format(role).bytes, d.activation_format.bytes,
                d.compute(role), gemm_format(d, role))


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
    operations = [matrix(d, "qkv", "attention", T, width, (q_out + own) / cp)]
    if a.qk_norm is not None:
        operations.append(elementwise("qk_norm", 1.0, T * (q + k) / cp, D, 4, 2, "norm",
                                      launches=0.0 if d.engine.fused else 1.0))
    written = 0.0 if a.shares_kv or a.cross else T * (k + v) * d.kv_format.bytes / cp
    rope = "rope_and_kv_write" if a.rope else "kv_write"
    operations.append(elementwise(rope, 1.0, T * (q + k) / cp, D, 3 if a.rope else 0,
                                  2 if a.rope else 1, kv=written, format="rope"))
    out = a.heads / tp * a.values / cp
    if a.output_gate:
        operations.append(elementwise("output_gate", 1.0, T * out, D, 5, 3))
    operations.append(matrix(d, "attention_output", "attention", T, out, hidden))
    return operations


def mla_projections(d: Deployment, a: Mla, T: Array) -> list[Operation]:
    """Down- and up-projections, latent norms, rope with the latent write, output projection."""
    tp, D, hidden = d.parallelism.tp, d.activation_format.bytes, d.model.hidden
    cp = d.parallelism.cp
    q_out = a.heads / tp * (a.nope_dim + a.rope_dim) / cp
    latent = a.kv_rank + a.rope_dim
    operations = []
    if a.q_rank is None:
        operations.append(matrix(d, "q", "attention", T, hidden, q_out))
        operations.append(matrix(d, "kv_down", "attention", T, hidden, latent))
    else:
        operations.append(matrix(d, "qkv_down", "attention", T, hidden, a.q_rank + latent))
        operations.append(matrix(d, "q_up", "attention", T, a.q_rank, q_out))
    operations.append(elementwise("latent_norms", 1.0, T * (a.kv_rank + (a.q_rank or 0)), D, 4, 2,
                                  "norm"))
    operations.append(elementwise(
        "rope_and_kv_write", 1.0, T * (a.heads / tp / cp + 1) * a.rope_dim, D, 3, 2,
        kv=T * latent * d.kv_format.bytes / cp, format="rope"))
    if a.indexer is not None:
        i = a.indexer
        queries = a.q_rank if a.q_rank is not None else hidden
        operations.append(matrix(d, "indexer_queries", "attention", T, queries,
                                i.heads * i.head_dim))
        operations.append(matrix(d, "indexer_keys", "attention", T, hidden, i.head_dim + i.heads))
    operations.append(matrix(d, "attention_output", "attention", T, a.heads / tp * a.value_dim / cp,
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
        extra = [matrix(d, "ssm_x", "ssm", T, s.inner / tp, s.dt_rank + 2 * s.state),
                 matrix(d, "ssm_dt", "ssm", T, s.dt_rank, steps / tp)]
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
        compute=d.activation_format.compute or "bf16", rows=T / n)
    return [matrix(d, "ssm_input", "ssm", T, hidden, wide / tp), *extra, scan,
            matrix(d, "ssm_output", "ssm", T, inner / tp, hidden)]


def dense_operations(d: Deployment, width: float, gated: bool, T: Array,
                     role: str = "ffn", prefix: str = "mlp") -> list[Operation]:
    """Gate and up, activation, down."""
    F, hidden = width / d.parallelism.ranks, d.model.hidden
    inputs = 2.0 if gated else 1.0
    return [
        matrix(d, f"{prefix}_gate_up" if gated else f"{prefix}_up", role, T, hidden, inputs * F),
        elementwise(f"{prefix}_activation", 1.0, T * F, d.activation_format.bytes, 5, inputs + 1,
                    format="activation"),
        matrix(d, f"{prefix}_down", role, T, F, hidden),
    ]


def moe_operations(d: Deployment, f: Moe, T: Array) -> list[Operation]:
    """Router, routed experts in one grouped kernel, shared experts."""
    share, D, hidden = Shares.of(d), d.activation_format.bytes, d.model.hidden
    matrices = 3.0 if f.gated else 2.0
    inner = hidden if f.latent is None else f.latent
    width = f.width / share.expert_width
    tokens = T * share.expert_tokens
    touched = moe.experts_touched(f.experts, f.top_k, tokens) / share.experts
    if d.parallelism.ep > 1:
        # The step waits for the fullest rank, and that rank touches more of its experts too.
        load = moe.imbalance(tokens, f.top_k, f.experts, d.parallelism.ep, d.expert_skew)
        tokens = tokens * load
        touched = moe.experts_touched(f.experts, f.top_k, tokens) / share.experts
    w = d.weight_format("experts").bytes
    used = f.top_k / share.experts
    bias = ((f.width * (matrices - 1) + inner) * d.weight_format("norm").bytes
            if f.expert_bias else 0.0)
    gate = 1 if f.shared_gate else 0
    operations = [matrix(d, "router", "router", T, hidden, f.experts + gate)]
    if f.latent is not None:
        operations.append(matrix(d, "latent_down", "ffn", T, hidden, f.latent))
    operations.append(Operation(
        "experts", "moe", "moe", 1.0,
        moe.expert_flops(tokens, used, matrices, inner, width),
        moe.expert_weight_bytes(touched, matrices, inner, width, w) + touched * bias, 0.0,
        moe.expert_activation_bytes(tokens, used, matrices, inner, width, D),
        d.compute("experts"), format=gemm_format(d, "experts"),
        picks=Picks(T, f.top_k, tokens * used, touched, f.experts / share.experts, inner, width,
                    matrices - 1.0, w)))
    if f.latent is not None:
        operations.append(matrix(d, "latent_up", "ffn", T, f.latent, hidden))
    if present(f.shared_width):
        operations += dense_operations(d, f.shared_width, f.gated, T, "shared_experts",
                                       "shared_experts")
    if present(f.dense_width):
        operations += dense_operations(d, f.dense_width, f.gated, T)
    return operations


def all_reduce(d: Deployment, name: str, T: Array) -> list[Operation]:
    ranks = d.parallelism.ranks
    if ranks == 1:
        return []
    return [Operation(name, "collective", "collective", 1.0, wire=T * d.model.hidden *
                      d.activation_format.bytes, collective="all_reduce", ranks=ranks)]


def context_exchange(d: Deployment, mixer: Mixer | None, T: Array) -> list[Operation]:
    """Partial attention outputs of the context ranks, exchanged by heads and summed."""
    p = d.parallelism
    if p.cp == 1 or not isinstance(mixer, Attention | Mla):
        return []
    head = mixer.values if isinstance(mixer, Attention) else mixer.kv_rank
    wire = T * mixer.heads / p.tp * head * d.activation_format.bytes
    return [Operation("context_exchange", "collective", "collective", 1.0, wire=wire,
                      collective="all_to_all", ranks=p.cp, extent=p.ranks)]


def expert_exchange(d: Deployment, f: Moe, T: Array) -> list[Operation]:
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


def sum_of(values: Iterable[Array]) -> Array:
    """Sum that starts from the first value, so that one scalar stays the scalar it is."""
    total: Array = None
    for value in values:
        total = value if total is None else total + value
    return 0.0 if total is None else total
