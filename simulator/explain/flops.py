"""FLOPs of a pass: matrices and attention, with their numbers put in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from simulator.clock import OperationTime
from simulator.explain.lines import amount, exact, many, row
from simulator.explain.passes import Pass, kept_tokens
from simulator.explain.weights import expert_values, fullest_rank, moes
from simulator.layer_parts import Shares, sum_of
from simulator.specs.model import Attention, Mla
from simulator.units import (
    format_flops,
)


def pairs_text(x: float, limit: float | None, chunk: bool) -> tuple[str, float]:
    """Query-key pairs of the first x tokens of a sequence: formula and number."""
    if limit is None or x <= limit:
        return f"{exact(x)} x {exact(x + 1)} / 2", x * (x + 1) / 2
    full = f"{exact(limit)} x {exact(limit + 1)} / 2"
    if not chunk:
        return (f"{full} + {exact(x - limit)} x {exact(limit)}",
                limit * (limit + 1) / 2 + (x - limit) * limit)
    whole = float(np.floor(x / limit))
    rest = x - whole * limit
    text = f"{whole:g} x {full}" + (f" + {exact(rest)} x {exact(rest + 1)} / 2" if rest else "")
    return text, whole * limit * (limit + 1) / 2 + rest * (rest + 1) / 2


@dataclass(frozen=True)
class Scores:
    """Attention of one kind: FLOPs / 2 a head and pair, as the head sizes that add up to it."""

    name: str
    heads: float
    sizes: tuple[int, ...]
    limit: float | None = None
    chunked: bool = False


def scores_of(p: Pass, m: object) -> list[Scores]:
    tp = p.d.parallelism.tp
    if isinstance(m, Attention) and not m.cross:
        return [Scores("attention", m.heads / tp, (m.head_dim, m.values),
                        m.window if m.window is not None else m.chunk,
                        m.window is None and m.chunk is not None)]
    if not isinstance(m, Mla):
        return []
    best, absorbed = None if m.indexer is None else m.indexer.top_k, p.absorbed() >= 0.5
    sizes = ((m.kv_rank + m.rope_dim, m.kv_rank) if absorbed else
             (m.nope_dim + m.rope_dim, m.value_dim))
    kinds = [Scores(f"attention, {'absorbed' if absorbed else 'expanded'}", m.heads / tp, sizes,
                     best)]
    if m.indexer is not None:
        kinds.append(Scores("index scores", m.indexer.heads, (m.indexer.head_dim,)))
    return kinds


def attention_lines(p: Pass) -> list[str]:
    cp = p.d.parallelism.cp
    kinds: dict[Scores, float] = {}
    for g in p.d.model.layers:
        for kind in scores_of(p, g.mixer):
            kinds[kind] = kinds.get(kind, 0.0) + g.count
    lines = []
    for a, layers in kinds.items():
        if p.phase == "decode":
            pairs = kept_tokens(*p.context, a.limit)
            shown = f"{exact(round(pairs, 3))} keys"
        else:
            text, pairs = pairs_text(p.context[1], a.limit, a.chunked)
            if p.new < p.context[1]:
                hit, less = pairs_text(p.context[1] - p.new, a.limit, a.chunked)
                text, pairs = f"{text} - ({hit})", pairs - less
            lines.append(row("pairs a sequence", text, amount(pairs), (
                "each token sees itself and all before it" if a.limit is None else
                f"each token sees at most {a.limit:,.0f} keys"
                + (", those of its chunk" if a.chunked else ""))))
            shown = f"{amount(pairs)} pairs"
        wide = " + ".join(f"{v}" for v in a.sizes)
        wide = f"({wide})" if len(a.sizes) > 1 else wide
        formula = (f"2 x {wide} x {many(a.heads, 'head')} x {shown} x {many(layers, 'layer')} x "
                   f"{many(p.sequences, 'sequence')}" + (f" / {cp} devices" if cp > 1 else ""))
        lines.append(row(f"+ {a.name}", formula, format_flops(
            2.0 * sum(a.sizes) * a.heads * pairs * layers * p.sequences / cp, "FLOP")))
    return lines


def flops_of(times: Iterable[OperationTime]) -> float:
    return float(sum_of(t.flops for t in times))


def flops_lines(p: Pass) -> list[str]:
    """FLOPs of a pass: matrices, experts, attention, and the rest."""
    d, share, times = p.d, Shares.of(p.d), p.ceiling.operations
    gemms = [t for t in times if t.operation.kind == "gemm"]
    rows = ("lm_head", "embedding_down")
    head = flops_of(t for t in gemms if t.operation.name in rows)
    expand = flops_of(t for t in gemms if t.operation.name == "mla_expand")
    matrices = flops_of(gemms) - head - expand
    lines = [
        row("+ matrices", f"2 x {amount(matrices / 2 / p.tokens)} weights x "
              f"{many(p.tokens, 'token')}", format_flops(matrices, "FLOP"),
              f"prefix hit {float(d.prefix_hit):.0%}" if p.phase == "prefill" and d.prefix_hit
              else ""),
        row("+ LM head", f"2 x {amount(head / 2 / p.sequences)} weights x "
              f"{many(p.sequences, 'token')}", format_flops(head, "FLOP"),
              "the last position of each sequence" if p.phase == "prefill" else ""),
    ]
    if expand:
        lines.append(row("+ latents expanded", "", format_flops(expand, "FLOP"),
                           "K and V made from the latents of the whole context"))
    for moe, layers in moes(d):
        values = expert_values(d, moe)[0]
        T = p.tokens * share.expert_tokens
        fullest = fullest_rank(p, moe)
        spread = (f" / {share.experts:g} devices x {amount(fullest)}" if share.experts > 1 else "")
        lines.append(row(
            "+ routed experts", f"2 x {moe.top_k} experts x {amount(values)} weights x "
            f"{many(layers, 'layer')} x {many(T, 'token')}{spread}", format_flops(
                2.0 * moe.top_k * values * layers * T / share.experts * fullest, "FLOP"),
            "on the fullest rank" if share.experts > 1 else ""))
    lines += attention_lines(p)
    scans = flops_of(t for t in times if t.operation.kind == "ssm")
    rest = flops_of(t for t in times
                     if t.operation.kind not in ("gemm", "moe", "attention", "ssm"))
    if scans:
        lines.append(row("+ recurrence", "", format_flops(scans, "FLOP"),
                           "updates of the recurrent state; table below"))
    return [*lines,
            row("+ all else", "", format_flops(rest, "FLOP"),
                  "norms, activation functions, sampling; table below"),
            row("= all FLOPs", "", format_flops(flops_of(times), "FLOP"))]
