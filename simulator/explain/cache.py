"""KV cache that a step moves: one line for each kind of cache, and recurrent state."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.deployment import Deployment
from simulator.explain.lines import exact, many, row
from simulator.explain.passes import Pass, kept_tokens, parts_of
from simulator.kv_cache import mixer_kv_elements
from simulator.layer_parts import Segment, kv_heads_per_rank
from simulator.layers import attention_operations
from simulator.specs.model import Attention, Mla
from simulator.units import (
    format_decimal_bytes,
)


@dataclass(frozen=True)
class Cache:
    """What attention of one kind reads of the cache: bytes a token and layer, at most `limit`."""

    label: str
    limit: float | None
    what: str
    size: float


def caches_of(p: Pass) -> dict[Cache, float]:
    """Kinds of cache that a decode step reads, and their layers."""
    d, n, first = p.d, p.sequences, p.context[0]
    found: dict[Cache, float] = {}
    for g in d.model.layers:
        for o in attention_operations(d, g, Segment(n, 1.0, first, "decode")):
            if not o.kv or not o.needed or p.share(o) < 0.5:
                continue
            keys = first if o.limit is None else min(first, o.limit)
            size = round(float(o.kv / n / keys * d.parallelism.cp), 6)
            latent = isinstance(g.mixer, Mla)
            label = ("index keys read" if o.name == "indexer_scores" else
                     "latents read" if latent else "K and V read")
            what = ("" if o.limit is None else "best keys" if latent else
                    "chunk" if isinstance(g.mixer, Attention) and g.mixer.chunk else "window")
            kind = Cache(label, o.limit, what, size)
            found[kind] = found.get(kind, 0.0) + float(o.count)
    return found


def cache_part(p: Pass) -> tuple[list[str], float]:
    """The cache that a decode step moves: a line for each kind, new tokens and state apart."""
    cp, (first, last) = p.d.parallelism.cp, p.context
    who = many(p.sequences, "sequence")
    lines = []
    for c, layers in sorted(caches_of(p).items(), key=lambda item: -item[0].size):
        kept = kept_tokens(first, last, c.limit)
        remark = "" if c.limit is None else f"{c.what} {c.limit:,.0f}: mean of min(context, limit)"
        formula = (f"{many(layers, 'layer')} x {exact(c.size)} B/token x {exact(round(kept, 3))}"
                   f" tokens x {who}" + (f" / {cp} devices" if cp > 1 else ""))
        lines.append(row(f"+ {c.label}", formula, format_decimal_bytes(
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
        lines.append(row("+ new tokens written", f"{many(layers, 'layer')} x {exact(size)} B x "
                           f"{many(p.tokens, 'token')}",
                           format_decimal_bytes(layers * size * p.tokens)))
    for size, layers in state.items():
        lines.append(row("+ recurrent state", f"{many(layers, 'layer')} x 2 x {exact(size)} B "
                           f"x {who}", format_decimal_bytes(layers * 2.0 * size * p.sequences),
                           "read and written, whatever the context"))
    total = sum(parts_of(p, t)[1] for t in p.ceiling.operations)
    return [*lines, row("= KV cache moved", "", format_decimal_bytes(total))], total


def cache_a_token(d: Deployment) -> str:
    """What one token adds to the cache of a device, below every window."""
    sizes: dict[float, float] = {}
    for g in d.model.layers:
        size = mixer_kv_elements(g.mixer) * d.kv_format.bytes
        if isinstance(g.mixer, Attention):
            size *= kv_heads_per_rank(g.mixer.kv_heads, d.parallelism.tp) / g.mixer.kv_heads
        if size:
            sizes[size] = sizes.get(size, 0.0) + g.count
    if not sizes:
        return row("cache a token", "", "0 B/token", "no layer caches tokens")
    total = sum(size * layers for size, layers in sizes.items())
    formula = " + ".join(f"{many(n, 'layer')} x {exact(size)} B" for size, n in sizes.items())
    return row("cache a token", formula, f"{exact(total)} B/token", "below every window"
                 if any(isinstance(g.mixer, Attention) and (g.mixer.window or g.mixer.chunk)
                        for g in d.model.layers) else "")
