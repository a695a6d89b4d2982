"""The textbook page: the numbers put into the formulas, line by line, to be redone on paper.

Every line reads `label  formula; remark  value`. Lines marked + add up to the next line marked =.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.deployment import Deployment
from simulator.efficiency.stacked import efficiency_of
from simulator.formats import NumberFormat
from simulator.kv_cache import mixer_kv_elements
from simulator.layers import Segment, Shares, attention_operations, kv_heads_per_rank, sum_of
from simulator.memory import per_replica
from simulator.operations import Operation
from simulator.operations.moe import experts_touched
from simulator.parameters import ffn_tensors
from simulator.request import Estimate
from simulator.sharding import Parallelism
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import Attention, Mla, Moe
from simulator.stages import (
    decode_micro_batch,
    fill_and_drain,
    prefill_micro_batch,
    slowest_share,
)
from simulator.step import OperationTime, PassTime, decode, prefill
from simulator.units import (
    format_bandwidth,
    format_decimal_bytes,
    format_flops,
    format_number,
    format_time,
)

WIDTH = 100

_FAMILIES = {
    "gemm": "GEMM", "gemm_fp8": "8-bit GEMM", "gemm_fp4": "4-bit GEMM",
    "gemm_weight_only": "weight-only GEMM", "attention_prefill": "attention",
    "attention_decode": "attention", "mla_decode": "latent attention", "moe": "experts",
    "ssm": "recurrence", "elementwise": "elementwise",
}  # fmt: skip
_ROLES = {
    "attention": "attention", "ffn": "MLP", "ssm": "recurrent layers", "head": "LM head",
    "shared_experts": "shared experts", "router": "router", "norm": "norms and biases",
    "embedding": "embedding rows", "other": "other tensors",
}  # fmt: skip


# Text

_QUANTITY = re.compile(r"(?<=[0-9]) (?=(?:[nµm]?s|min|d|[kMGTPE]?(?:B|FLOP)(?:/s)?)(?:[ ;,)]|$))")


def _wrap(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width`; a number stays with its unit."""
    lines = textwrap.wrap(_QUANTITY.sub("\xa0", text), width, subsequent_indent=indent,
                          break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _line(label: str, formula: str, value: str, remark: str = "") -> str:
    """A label, how its value comes about, and the value, the values right-aligned."""
    indent = " " * 26
    text = f"  {label:<23} {formula}{'; ' if formula and remark else ''}{remark}"
    lines = _wrap(text, WIDTH, indent)
    room = WIDTH - len(value) - 2
    if len(lines[-1]) > room:
        lines = _wrap(text, room, indent)
    lines[-1] = f"{lines[-1]:<{room}}  {value}"
    return "\n".join(lines)


def _note(text: str) -> str:
    return "\n".join(_wrap(f"  {text}", WIDTH, "  "))


def _amount(value: float, digits: int = 4) -> str:
    """A count: whole below a million, else as 6.98e9 or 17.6e6."""
    for scale, name in ((1e9, "e9"), (1e6, "e6")):
        if value >= scale:
            return f"{format_number(value / scale, digits)}{name}"
    return f"{value:,.0f}" if value == round(value) else format_number(value, max(digits, 4))


def _exact(value: float) -> str:
    return f"{value:,.12g}"


def _many(count: float, one: str) -> str:
    return f"{_exact(count)} {one}{'' if count == 1 else 's'}"


# Passes


@dataclass(frozen=True)
class _Pass:
    """One pass of a phase through all layers of one device's share, over all pipeline stages.

    ceiling    at the favourable end of every range, nothing lost
    mid, time  in practice, at the middle of every range; `time` has what a pipeline adds
    sequences  in this pass, on one device
    context    tokens of a sequence at its end, first and last (decode), or the prompt's twice
    """

    phase: str
    d: Deployment
    best: Hardware
    ceiling: PassTime
    mid: PassTime
    time: PassTime
    sequences: float
    new: float
    context: tuple[float, float]

    @property
    def tokens(self) -> float:
        """New tokens that one device works on."""
        return self.sequences * self.new / self.d.parallelism.cp

    @property
    def exchange(self) -> list[OperationTime]:
        """Collectives."""
        return [t for t in self.time.operations if t.operation.collective is not None]

    def absorbed(self) -> float:
        """Share of the pass in which latent attention runs absorbed, at the ceiling."""
        times = [t for t in self.ceiling.operations if t.operation.name == "mla_absorb"]
        whole = sum(float(t.operation.bytes * t.operation.count) for t in times)
        return sum(float(t.bytes) for t in times) / whole if whole else 0.0

    def share(self, o: Operation) -> float:
        """Share of the pass in which an operation runs: 1 unless it is an alternative."""
        if o.alternative is None:
            return 1.0
        return self.absorbed() if o.alternative[1] == 0 else 1.0 - self.absorbed()


def _passes(e: Estimate) -> tuple[_Pass, _Pass]:
    """Prefill and mean decode step, of one micro-batch where there are pipeline stages."""
    d, w, p = e.deployment, e.workload, e.deployment.parallelism
    whole = d.replace(parallelism=Parallelism(tp=p.tp, pp=1, ep=p.ep, cp=p.cp, dp=p.dp))
    best = d.hardware.at_ends(True, d.hardware.timed_ranges)
    ideal = efficiency_of(best, load_engine("ideal"))
    batch = float(per_replica(d, w.batch))
    prompt, last = float(w.input), max(float(w.input + w.output) - 1.0, float(w.input) + 1.0)
    first = prompt + 1.0
    at_once, in_step = (float(f(batch, p.pp)) for f in (prefill_micro_batch, decode_micro_batch))
    new = max(prompt * (1.0 - float(d.prefix_hit)), 1.0)

    def fill(x: Deployment, hardware: Hardware, constants: Any) -> PassTime:
        return prefill(x, hardware, constants, at_once, prompt, d.prefix_hit)

    def step(x: Deployment, hardware: Hardware, constants: Any) -> PassTime:
        return decode(x, hardware, constants, in_step, first, last)

    def made(phase: str, run: Callable[[Deployment, Hardware, Any], PassTime], sequences: float,
             tokens: float, context: tuple[float, float]) -> _Pass:
        mid = run(whole, d.hardware, e.efficiency)
        return _Pass(phase, whole, best, run(whole, best, ideal), mid,
                     mid if p.pp == 1 else run(d, d.hardware, e.efficiency), sequences, tokens,
                     context)

    return (made("prefill", fill, at_once, new, (prompt, prompt)),
            made("decode", step, in_step, 1.0, (first, last)))


def _parts(p: _Pass, t: OperationTime) -> tuple[float, float, float]:
    """Bytes of weights, KV and activations of an operation of the ceiling, mean over the pass."""
    o, n = t.operation, float(t.operation.count) * p.share(t.operation)
    weights, kv, rest = (n * float(v) for v in (o.weights, o.kv, o.activations))
    more = float(t.bytes) - weights - kv - rest    # what grows with the context beyond the first
    to_kv = 1.0 if kv and o.name != "mla_expand" else kv / (kv + rest) if kv else 0.0
    return weights, kv + to_kv * more, rest + (1.0 - to_kv) * more


def kept_tokens(first: float, last: float, limit: float | None) -> float:
    """Mean of min(context, limit) over the contexts from `first` to `last`."""
    if limit is None or last <= limit:
        return (first + last) / 2.0
    growing = max(np.floor(limit) - first + 1.0, 0.0)
    points = last - first + 1.0
    return float((growing * (first + np.floor(limit)) / 2.0 + (points - growing) * limit) / points)


# Bytes


def _role(name: str) -> str:
    if name in ("qkv", "q", "kv_down", "q_up", "qkv_down", "attention_output", "mla_absorb",
                "mla_expand", "indexer_queries", "indexer_keys"):
        return "attention"
    if name in ("norm", "small_weights", "final_norm", "embedding_norm", "head_bias"):
        return "norm"
    fixed = {"router": "router", "lm_head": "head", "embedding": "embedding",
             "latent_down": "ffn", "latent_up": "ffn", "embedding_up": "ffn",
             "embedding_down": "ffn"}
    starts = (("shared_experts", "shared_experts"), ("ssm_", "ssm"), ("mlp_", "ffn"))
    return fixed.get(name) or next((r for s, r in starts if name.startswith(s)), "other")


def _moes(d: Deployment) -> list[tuple[Moe, float]]:
    """Kinds of routed experts and the layers that have them."""
    found: dict[Moe, float] = {}
    for g in d.model.layers:
        if isinstance(g.ffn, Moe):
            found[g.ffn] = found.get(g.ffn, 0.0) + g.count
    return list(found.items())


def _expert_values(d: Deployment, moe: Moe) -> tuple[float, float]:
    """Weights and bias values of one expert, as far as one device holds them."""
    sizes = {t.name: float(t.elements) for t in ffn_tensors(moe, d.model.hidden)}
    share = Shares.of(d)
    return (sizes["experts"] / moe.experts / share.expert_width,
            sizes["expert_bias"] / moe.experts)


def _weight_lines(p: _Pass) -> tuple[list[str], float]:
    """The weights that a pass reads: one line a number format, routed experts apart."""
    d, share = p.d, Shares.of(p.d)
    total = 0.0
    formats: dict[NumberFormat, dict[str, float]] = {}

    def add(role: str, size: float) -> None:
        roles = formats.setdefault(d.weight_format(role), {})
        roles[role] = roles.get(role, 0.0) + size

    for t in p.ceiling.operations:
        size = _parts(p, t)[0]
        total += size
        if size and t.operation.name != "experts":
            add(_role(t.operation.name), size)
    routed = []
    for moe, layers in _moes(d):
        T = p.tokens * share.expert_tokens
        touched = float(experts_touched(moe.experts, moe.top_k, T))
        replicas = f" of all {d.parallelism.dp} replicas" if share.expert_tokens > 1 else ""
        routed.append(_line(
            "experts touched", f"{moe.experts} x (1 - (1 - {moe.top_k}/{moe.experts})^{_exact(T)})",
            _amount(touched), f"E(1-(1-k/E)^T) of E = {moe.experts} experts, T = "
            f"{_many(T, 'token')}{replicas}, k = {moe.top_k} each"))
        here = touched / share.experts
        if share.experts > 1:
            routed.append(_line(
                "touched on a device", f"{_amount(touched)} / {share.experts:g}", _amount(here),
                f"a device holds {moe.experts / share.experts:g} of {moe.experts} experts"))
        values, bias = _expert_values(d, moe)
        form = d.weight_format("experts")
        routed.append(_line(
            "+ routed experts", f"{_amount(here)} experts x {_amount(values)} values x "
            f"{form.bytes:g} B ({form.name}) x {_many(layers, 'layer')}",
            format_decimal_bytes(here * values * form.bytes * layers)))
        if bias:
            add("norm", here * bias * d.weight_format("norm").bytes * layers)
    lines = []
    for form, roles in sorted(formats.items(), key=lambda item: -sum(item[1].values())):
        size = sum(roles.values())
        names = ", ".join(_ROLES[r] for r, v in sorted(roles.items(), key=lambda r: -r[1])
                          if v > 0.001 * size)
        lines.append(_line(f"+ {form.name} weights",
                           f"{_amount(size / form.bytes, 3)} values x {form.bytes:g} B "
                           f"({form.name})", format_decimal_bytes(size), names))
    return [*lines, *routed,
            _line("= weights streamed", "", format_decimal_bytes(total))], total


@dataclass(frozen=True)
class _Cache:
    """What attention of one kind reads of the cache: bytes a token and layer, at most `limit`."""

    label: str
    limit: float | None
    what: str
    size: float


def _caches(p: _Pass) -> dict[_Cache, float]:
    """Kinds of cache that a decode step reads, and their layers."""
    d, n, first = p.d, p.sequences, p.context[0]
    found: dict[_Cache, float] = {}
    for g in d.model.layers:
        for o in attention_operations(d, g, Segment(n, 1.0, first, "decode")):
            if not o.kv or p.share(o) < 0.5:
                continue
            keys = first if o.limit is None else min(first, o.limit)
            size = round(float(o.kv / n / keys * d.parallelism.cp), 6)
            latent = isinstance(g.mixer, Mla)
            label = ("index keys read" if o.name == "indexer_scores" else
                     "latents read" if latent else "K and V read")
            what = ("" if o.limit is None else "best keys" if latent else
                    "chunk" if isinstance(g.mixer, Attention) and g.mixer.chunk else "window")
            kind = _Cache(label, o.limit, what, size)
            found[kind] = found.get(kind, 0.0) + float(o.count)
    return found


def _kv_lines(p: _Pass) -> tuple[list[str], float]:
    """The cache that a decode step moves: a line for each kind, new tokens and state apart."""
    cp, (first, last) = p.d.parallelism.cp, p.context
    who = _many(p.sequences, "sequence")
    lines = []
    for c, layers in sorted(_caches(p).items(), key=lambda item: -item[0].size):
        kept = kept_tokens(first, last, c.limit)
        remark = "" if c.limit is None else f"{c.what} {c.limit:,.0f}: mean of min(context, limit)"
        formula = (f"{_many(layers, 'layer')} x {_exact(c.size)} B/token x {_exact(round(kept, 3))}"
                   f" tokens x {who}" + (f" / {cp} devices" if cp > 1 else ""))
        lines.append(_line(f"+ {c.label}", formula, format_decimal_bytes(
            layers * c.size * kept * p.sequences / cp), remark))
    written: dict[float, float] = {}
    state: dict[float, float] = {}
    for t in p.ceiling.operations:
        o = t.operation
        if o.name in ("rope_and_kv_write", "kv_write") and o.kv:
            size = float(o.kv / p.tokens)
            written[size] = written.get(size, 0.0) + float(o.count)
        elif o.kind == "ssm" and o.kv:
            size = float(o.kv / 2.0 / p.sequences)
            state[size] = state.get(size, 0.0) + float(o.count)
    for size, layers in written.items():
        lines.append(_line("+ new tokens written", f"{_many(layers, 'layer')} x {_exact(size)} B x "
                           f"{_many(p.tokens, 'token')}",
                           format_decimal_bytes(layers * size * p.tokens)))
    for size, layers in state.items():
        lines.append(_line("+ recurrent state", f"{_many(layers, 'layer')} x 2 x {_exact(size)} B "
                           f"x {who}", format_decimal_bytes(layers * 2.0 * size * p.sequences),
                           "read and written, whatever the context"))
    total = sum(_parts(p, t)[1] for t in p.ceiling.operations)
    return [*lines, _line("= KV cache moved", "", format_decimal_bytes(total))], total


def _cache_a_token(d: Deployment) -> str:
    """What one token adds to the cache of a device, below every window."""
    sizes: dict[float, float] = {}
    for g in d.model.layers:
        size = mixer_kv_elements(g.mixer) * d.kv_format.bytes
        if isinstance(g.mixer, Attention):
            size *= kv_heads_per_rank(g.mixer.kv_heads, d.parallelism.tp) / g.mixer.kv_heads
        if size:
            sizes[size] = sizes.get(size, 0.0) + g.count
    if not sizes:
        return _line("cache a token", "", "0 B/token", "no layer caches tokens")
    total = sum(size * layers for size, layers in sizes.items())
    formula = " + ".join(f"{_many(n, 'layer')} x {_exact(size)} B" for size, n in sizes.items())
    return _line("cache a token", formula, f"{_exact(total)} B/token", "below every window"
                 if any(isinstance(g.mixer, Attention) and (g.mixer.window or g.mixer.chunk)
                        for g in d.model.layers) else "")


# FLOPs


def _pairs(x: float, limit: float | None, chunk: bool) -> tuple[str, float]:
    """Query-key pairs of the first x tokens of a sequence: formula and number."""
    if limit is None or x <= limit:
        return f"{_exact(x)} x {_exact(x + 1)} / 2", x * (x + 1) / 2
    full = f"{_exact(limit)} x {_exact(limit + 1)} / 2"
    if not chunk:
        return (f"{full} + {_exact(x - limit)} x {_exact(limit)}",
                limit * (limit + 1) / 2 + (x - limit) * limit)
    whole = float(np.floor(x / limit))
    rest = x - whole * limit
    text = f"{whole:g} x {full}" + (f" + {_exact(rest)} x {_exact(rest + 1)} / 2" if rest else "")
    return text, whole * limit * (limit + 1) / 2 + rest * (rest + 1) / 2


@dataclass(frozen=True)
class _Scores:
    """Attention of one kind: FLOPs / 2 a head and pair, as the head sizes that add up to it."""

    name: str
    heads: float
    sizes: tuple[int, ...]
    limit: float | None = None
    chunked: bool = False


def _scores_of(p: _Pass, m: object) -> list[_Scores]:
    tp = p.d.parallelism.tp
    if isinstance(m, Attention) and not m.cross:
        return [_Scores("attention", m.heads / tp, (m.head_dim, m.values),
                        m.window if m.window is not None else m.chunk,
                        m.window is None and m.chunk is not None)]
    if not isinstance(m, Mla):
        return []
    best, absorbed = None if m.indexer is None else m.indexer.top_k, p.absorbed() >= 0.5
    sizes = ((m.kv_rank + m.rope_dim, m.kv_rank) if absorbed else
             (m.nope_dim + m.rope_dim, m.value_dim))
    kinds = [_Scores(f"attention, {'absorbed' if absorbed else 'expanded'}", m.heads / tp, sizes,
                     best)]
    if m.indexer is not None:
        kinds.append(_Scores("index scores", m.indexer.heads, (m.indexer.head_dim,)))
    return kinds


def _attention_lines(p: _Pass) -> list[str]:
    cp = p.d.parallelism.cp
    kinds: dict[_Scores, float] = {}
    for g in p.d.model.layers:
        for kind in _scores_of(p, g.mixer):
            kinds[kind] = kinds.get(kind, 0.0) + g.count
    lines = []
    for a, layers in kinds.items():
        if p.phase == "decode":
            pairs = kept_tokens(*p.context, a.limit)
            shown = f"{_exact(round(pairs, 3))} keys"
        else:
            text, pairs = _pairs(p.context[1], a.limit, a.chunked)
            if p.new < p.context[1]:
                hit, less = _pairs(p.context[1] - p.new, a.limit, a.chunked)
                text, pairs = f"{text} - ({hit})", pairs - less
            lines.append(_line("pairs a sequence", text, _amount(pairs), (
                "each token sees itself and all before it" if a.limit is None else
                f"each token sees at most {a.limit:,.0f} keys"
                + (", those of its chunk" if a.chunked else ""))))
            shown = f"{_amount(pairs)} pairs"
        wide = " + ".join(f"{v}" for v in a.sizes)
        wide = f"({wide})" if len(a.sizes) > 1 else wide
        formula = (f"2 x {wide} x {_many(a.heads, 'head')} x {shown} x {_many(layers, 'layer')} x "
                   f"{_many(p.sequences, 'sequence')}" + (f" / {cp} devices" if cp > 1 else ""))
        lines.append(_line(f"+ {a.name}", formula, format_flops(
            2.0 * sum(a.sizes) * a.heads * pairs * layers * p.sequences / cp, "FLOP")))
    return lines


def _flops_of(times: Iterable[OperationTime]) -> float:
    return float(sum_of(t.flops for t in times))


def _flops_lines(p: _Pass) -> list[str]:
    """FLOPs of a pass: matrices, experts, attention, and the rest."""
    d, share, times = p.d, Shares.of(p.d), p.ceiling.operations
    gemms = [t for t in times if t.operation.kind == "gemm"]
    rows = ("lm_head", "embedding_down")
    head = _flops_of(t for t in gemms if t.operation.name in rows)
    expand = _flops_of(t for t in gemms if t.operation.name == "mla_expand")
    matrices = _flops_of(gemms) - head - expand
    lines = [
        _line("+ matrices", f"2 x {_amount(matrices / 2 / p.tokens)} weights x "
              f"{_many(p.tokens, 'token')}", format_flops(matrices, "FLOP"),
              f"prefix hit {float(d.prefix_hit):.0%}" if p.phase == "prefill" and d.prefix_hit
              else ""),
        _line("+ LM head", f"2 x {_amount(head / 2 / p.sequences)} weights x "
              f"{_many(p.sequences, 'token')}", format_flops(head, "FLOP"),
              "the last position of each sequence" if p.phase == "prefill" else ""),
    ]
    if expand:
        lines.append(_line("+ latents expanded", "", format_flops(expand, "FLOP"),
                           "K and V made from the latents of the whole context"))
    for moe, layers in _moes(d):
        values = _expert_values(d, moe)[0]
        T = p.tokens * share.expert_tokens
        spread = f" / {share.experts:g} devices" if share.experts > 1 else ""
        lines.append(_line(
            "+ routed experts", f"2 x {moe.top_k} experts x {_amount(values)} weights x "
            f"{_many(layers, 'layer')} x {_many(T, 'token')}{spread}", format_flops(
                2.0 * moe.top_k * values * layers * T / share.experts, "FLOP")))
    lines += _attention_lines(p)
    scans = _flops_of(t for t in times if t.operation.kind == "ssm")
    rest = _flops_of(t for t in times
                     if t.operation.kind not in ("gemm", "moe", "attention", "ssm"))
    if scans:
        lines.append(_line("+ recurrence", "", format_flops(scans, "FLOP"),
                           "updates of the recurrent state; table below"))
    return [*lines,
            _line("+ all else", "", format_flops(rest, "FLOP"),
                  "norms, activation functions, sampling; table below"),
            _line("= all FLOPs", "", format_flops(_flops_of(times), "FLOP"))]


# Times


def _unit(hardware: Hardware, o: Operation) -> tuple[float, str]:
    """Peak [FLOP/s] and name of the unit that an operation uses."""
    if o.compute == "vector":
        return float(hardware.vector_peak), "vector units"
    peak, name = hardware.peak(o.compute)
    return float(peak), f"{name}, dense"


def _over_peak(p: _Pass, times: Iterable[OperationTime]) -> tuple[str, float]:
    """FLOPs over peaks, a term for each unit, and the time."""
    units: dict[tuple[float, str], float] = {}
    for t in times:
        if t.flops:
            unit = _unit(p.best, t.operation)
            units[unit] = units.get(unit, 0.0) + float(t.flops)
    terms = [f"{format_flops(F, 'FLOP')} / {format_flops(C)} ({name})"
             for (C, name), F in sorted(units.items(), key=lambda u: -u[1] / u[0][0])]
    return " + ".join(terms), sum(F / C for (C, _), F in units.items())


def _roof_lines(p: _Pass, ceiling: float, rate: str = "") -> list[str]:
    """All bytes over bandwidth, all FLOPs over peak, and the sum of the larger one of each."""
    W = float(p.best.memory_bandwidth)
    Q = float(p.ceiling.bytes)
    by_bytes: list[OperationTime] = []
    by_flops: list[OperationTime] = []
    turn = 0.0
    for t in p.ceiling.operations:
        if t.operation.collective is not None:
            continue
        c, m = float(t.flops) / _unit(p.best, t.operation)[0], float(t.bytes) / W
        (by_flops if c > m else by_bytes).append(t)
        turn += float(t.ceiling) - max(c, m)
    formula, arithmetic = _over_peak(p, p.ceiling.operations)
    bytes_slow = float(sum_of(t.bytes for t in by_bytes))
    lines = [_line("all bytes, Q/W", f"{format_decimal_bytes(Q)} / {format_bandwidth(W)}",
                   format_time(Q / W)),
             _line("arithmetic, F/C", formula, format_time(arithmetic)),
             _line("+ bytes decide", f"{format_decimal_bytes(bytes_slow)} / {format_bandwidth(W)}",
                   format_time(bytes_slow / W), "the operations whose bytes take longer")]
    if by_flops:
        formula, slow = _over_peak(p, by_flops)
        lines.append(_line("+ FLOPs decide", formula, format_time(slow),
                           "the operations whose FLOPs take longer"))
    if abs(turn) > 1e-3 * float(p.ceiling.ceiling):
        lines.append(_line("+ both in turn", "", format_time(turn),
                           "operations that change sides as the context grows"))
    factor = ceiling / float(p.ceiling.ceiling)
    lines.append(_line("= CEILING", "sum over operations of max(F/C, Q/W), "
                       f"{p.ceiling.ceiling_bound}-bound", format_time(float(p.ceiling.ceiling)),
                       rate if factor < 1.001 else "one micro-batch"))
    return lines


def _kernel_lines(e: Estimate, p: _Pass) -> list[str]:
    """Kernels in practice and their floors, by family."""
    bodies: dict[str, float] = {}
    floors: dict[tuple[str, float], float] = {}
    for t in p.mid.operations:
        o = t.operation
        if o.collective is not None:
            continue
        name = _FAMILIES.get(o.kernel, o.kernel)
        body, t0 = float(t.compute + t.memory), float(e.efficiency.kernel(o.kernel, p.phase).t0)
        if body:
            bodies[name] = bodies.get(name, 0.0) + body
        if t.overhead and t0:
            floors[name, t0] = floors.get((name, t0), 0.0) + float(t.overhead) / t0
    terms = sorted(bodies.items(), key=lambda b: -b[1])
    k, ideal = e.efficiency.kernel("gemm", p.phase), e.efficiency.level == "ideal"
    reached = ("at full rates" if ideal else
               "at the rates that kernels reach: GEMM (matrix products) "
               f"{float(k.h):.0%} of bandwidth, {float(k.e):.0%} of peak FLOP/s")
    lines = [_line("+ kernels in practice", " + ".join(f"{format_time(v)} {n}" for n, v in terms),
                   format_time(sum(bodies.values())),
                   f"sum over operations, {reached}; table below")]
    if floors:
        lines.append(_line(
            "+ kernel floors", " + ".join(
                f"{_exact(round(n, 2))} {name} x {format_time(t0)}"
                for (name, t0), n in sorted(floors.items(), key=lambda f: -f[1] * f[0][1])),
            format_time(sum(n * t0 for (_, t0), n in floors.items())),
            "a kernel takes this long however small"))
    return lines


def _exchange_line(p: _Pass) -> list[str]:
    kinds: dict[tuple[str, float, int], tuple[float, float]] = {}
    for t in p.exchange:
        o = t.operation
        key = ((o.collective or "").replace("_", "-"), float(o.wire), o.ranks)
        n, time = kinds.get(key, (0.0, 0.0))
        kinds[key] = n + float(o.count), time + float(t.network)
    total = sum(time for _, time in kinds.values())
    if not total:
        return []
    formula = " + ".join(f"{_exact(n)} {name} of {format_decimal_bytes(size).replace(' ', '')} x "
                         f"{format_time(time / n)}" for (name, size, _), (n, time) in kinds.items())
    return [_line("+ between devices", formula, format_time(total),
                  "latency + bytes / link; the ceiling leaves it out")]


def _host_line(e: Estimate, p: _Pass) -> list[str]:
    if not float(p.time.host):
        return []
    d = e.deployment
    more = d.hardware.layer_overhead if d.hardware.layer_overhead and not d.engine.ideal else 0.0
    terms = [format_time(float(d.engine.host_time))] if d.engine.host_time else []
    terms += [f"{d.model.layer_count} layers x {format_time(float(each))}"
              for each in (d.engine.layer_time, more) if each]
    return [_line("+ host", " + ".join(terms), format_time(float(p.time.host)),
                  "a step and layer; does not shrink with bandwidth")]


def _expected_lines(e: Estimate, p: _Pass, expected: float) -> list[str]:
    once = float(p.time.expected)
    return [
        *_kernel_lines(e, p), *_exchange_line(p), *_host_line(e, p),
        _line("= EXPECTED", "sum of the + lines above", format_time(once),
              "" if expected < 1.001 * once else "one micro-batch")]


# The page


def operations_table(detail: PassTime, most: int = 14) -> list[str]:
    """Operations by expected time: count, FLOPs, bytes, intensity, ceiling, expected, bound."""
    rows = sorted(detail.operations, key=lambda t: -float(t.expected))
    head = (f"  {'operation':<24}{'count':>6}{'FLOP':>12}{'bytes':>11}{'FLOP/B':>9}"
            f"{'ceiling':>11}{'expected':>11}  bound")
    lines = [head]
    for t in rows[:most]:
        intensity = format_number(float(t.flops / t.bytes), 3) if t.bytes else "-"
        lines.append(
            f"  {t.operation.name[:23]:<24}{t.operation.count:>6.0f}"
            f"{format_flops(float(t.flops), ''):>12}{format_decimal_bytes(float(t.bytes)):>11}"
            f"{intensity:>9}{format_time(float(t.ceiling)):>11}"
            f"{format_time(float(t.expected)):>11}  {t.bound}")
    rest = rows[most:]
    if rest:
        lines.append(f"  {f'{len(rest)} more':<24}{'':>6}"
                     f"{format_flops(float(sum_of(t.flops for t in rest)), ''):>12}"
                     f"{format_decimal_bytes(float(sum_of(t.bytes for t in rest))):>11}{'':>9}"
                     f"{format_time(float(sum_of(t.ceiling for t in rest))):>11}"
                     f"{format_time(float(sum_of(t.expected for t in rest))):>11}")
    if float(detail.host):
        lines.append(f"  {'host, a step':<24}{'':>6}{'':>12}{'':>11}{'':>9}{format_time(0.0):>11}"
                     f"{format_time(float(detail.host)):>11}  overhead")
    return lines


def decode_page(e: Estimate, p: _Pass) -> list[str]:
    """Decode: bytes over bandwidth, then what the expectation adds."""
    (first, last), W = p.context, float(p.best.memory_bandwidth)
    weight_lines, weights = _weight_lines(p)
    kv_lines, kv = _kv_lines(p)
    rest = float(p.ceiling.bytes) - weights - kv
    term, tpot = weights / W, e.tpot
    return [
        "DECODE makes one token a sequence and step: it streams every weight and the KV cache,",
        "so bytes/s decide.",
        *weight_lines,
        _cache_a_token(p.d),
        _line("mean context", f"({_exact(first)} + {_exact(last)}) / 2",
              f"{_exact((first + last) / 2)} tokens", "first and last step"),
        *kv_lines,
        _line("+ weights", "", format_decimal_bytes(weights)),
        _line("+ KV cache", "", format_decimal_bytes(kv)),
        _line("+ activations", "", format_decimal_bytes(rest), "reads and writes of all kernels"),
        _line("= all bytes", "", format_decimal_bytes(float(p.ceiling.bytes))),
        *_flops_lines(p),
        _line("weights term", f"{format_decimal_bytes(weights)} / {format_bandwidth(W)} = "
              f"{format_time(term)} -> {format_number(1 / term)} tok/s a user, weights alone",
              format_time(term)),
        _line("KV term", f"{format_decimal_bytes(kv)} / {format_bandwidth(W)}",
              format_time(kv / W)),
        *_roof_lines(p, float(tpot.ceiling),
                     f"1/TPOT = {format_number(float(1 / tpot.ceiling))} tok/s"),
        *_expected_lines(e, p, float(tpot.expected)),
        _line("TPOT", f"1 / {format_time(float(tpot.expected))}",
              f"{format_number(float(1 / tpot.expected))} tok/s a user",
              f"time a token, between {format_time(float(tpot.low))} and "
              f"{format_time(float(tpot.high))}")]


def prefill_page(e: Estimate, p: _Pass) -> list[str]:
    """Prefill: FLOPs over peak, then what the expectation adds."""
    ttft, parts = e.ttft, [_parts(p, t) for t in p.ceiling.operations]
    weights, kv, rest = (sum(column) for column in zip(*parts, strict=True))
    lines = [
        "PREFILL multiplies matrices over the whole prompt at once: every weight serves all its",
        "tokens, so FLOP/s decide.",
        _note("Matrices take 2 FLOPs a weight and token; attention 2(d_k+d_v) a head and visible "
              "query-key pair."),
        *_flops_lines(p),
        _line("+ weights", "", format_decimal_bytes(weights)),
        _line("+ KV cache", "", format_decimal_bytes(kv)),
        _line("+ activations", "", format_decimal_bytes(rest), "reads and writes of all kernels"),
        _line("= all bytes", "", format_decimal_bytes(float(p.ceiling.bytes))),
        *_roof_lines(p, float(ttft.ceiling)),
        *_expected_lines(e, p, float(ttft.expected)),
    ]
    stages = e.deployment.parallelism.pp
    passes = float(per_replica(e.deployment, e.workload.batch)) / p.sequences
    if stages > 1 and passes > 1:
        slowest = slowest_share(e.deployment)
        factor = float(fill_and_drain(passes, slowest))
        lines.append(_line(
            "pipeline", f"1 + ({_exact(passes)} - 1) x {format_number(slowest, 4)}",
            format_number(factor, 4), f"{_exact(passes)} micro-batches, and the slowest "
            "stage's share of a pass"))
        lines += [_line(f"{name}, whole batch", f"{format_time(float(time) / factor)} x "
                        f"{format_number(factor, 4)}", format_time(float(time)))
                  for name, time in (("ceiling", ttft.ceiling), ("expected", ttft.expected))]
    return [*lines, _line(
        "TTFT, no queue", "", format_time(float(ttft.expected)),
        f"between {format_time(float(ttft.low))} and {format_time(float(ttft.high))}; "
        f"{float(e.prefill.utilisation):.0%} of peak FLOP/s (MFU)")]


def _basis_lines(e: Estimate, first: _Pass, step: _Pass) -> list[str]:
    """What all numbers below refer to: device, stages, ends of ranges."""
    d, best, n = e.deployment, first.best, e.deployment.parallelism
    lines = []
    if d.hardware.timed_ranges:
        peak = best.peak(d.compute("ffn"))[0]
        lines.append(_note(
            f"Ranges: the ceiling takes the favourable end of each ({_rates(best, peak)}), as do "
            f"all lines above CEILING; the ridge point and the lines in practice take the middle "
            f"({_rates(d.hardware, e.prefill.peak)})."))
    if d.devices > n.pp:
        lines.append(_note(f"All numbers are those of one device, the fullest of {d.devices}."))
    if n.pp > 1:
        lines.append(_note(
            f"Each pass goes through all {n.pp} stages one after the other, and that whole pass is "
            f"shown, with {_many(first.sequences, 'sequence')} in prefill and "
            f"{_many(step.sequences, 'sequence')} in decode (a micro-batch). FLOPs and bytes in "
            "the JSON are those of one device."))
    return lines


def _rates(hardware: Hardware, peak: float) -> str:
    return f"{format_bandwidth(float(hardware.memory_bandwidth))}, {format_flops(float(peak))}"


def explain(e: Estimate) -> list[str]:
    """The page: ridge point, prefill, decode, end to end, and both tables of operations."""
    d, w = e.deployment, e.workload
    C, W = e.prefill.peak, d.hardware.memory_bandwidth
    first, step = _passes(e)
    lines = [
        f"RIDGE POINT  C/W = {format_flops(C)} / {format_bandwidth(W)} = {format_number(C / W)} "
        "FLOP/byte:", "  below it bytes decide, above it FLOPs.",
        _note("Lines marked + add up to the next line marked =."),
        *_basis_lines(e, first, step),
        "",
        *prefill_page(e, first),
    ]
    if w.output > 1:
        steps = float(w.output) - 1
        lines += [
            "", *decode_page(e, step), "",
            "END TO END",
            _line("E2E", f"{format_time(float(e.ttft.expected))} + {steps:,.0f} x "
                  f"{format_time(float(e.tpot.expected))}", format_time(float(e.e2e.expected)),
                  "TTFT + (output - 1) x TPOT"),
        ]
    stages = f"all {d.parallelism.pp} stages" if d.parallelism.pp > 1 else "one device"
    lines += ["", f"PREFILL, BY OPERATION ({stages}, all executions)", *operations_table(first.mid)]
    if w.output > 1:
        lines += ["", f"DECODE, BY OPERATION ({stages}, mean step, all executions)",
                  *operations_table(step.mid)]
    if any(isinstance(g.mixer, Mla) for g in d.model.layers):
        lines += ["", "MLA runs absorbed or expanded, whichever is faster in that phase; only that "
                  "one is listed."]
    return lines
