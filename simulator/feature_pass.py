"""Passes with speculation and chunked prefill; without either, the plain ones of `step`.

Speculation: g draft steps and one verification of g + 1 tokens a sequence yield E tokens, so a
token costs (g draft + verification)/E. Chunks: a prompt is computed C tokens a step, and each step
reads the cache of the chunks before it again.
"""

from __future__ import annotations

import msgspec
import numpy as np

from simulator.allocation import cached_prefix
from simulator.arrays import Array
from simulator.clock import OperationTime
from simulator.deployment import Deployment
from simulator.efficiency import Efficiency
from simulator.layer_parts import Segment
from simulator.operations import Operation
from simulator.specs.hardware import Hardware
from simulator.stages import fill_and_drain, last_share
from simulator.step import PassTime, decode, forward_pass, prefill

_TIMES = tuple(f for f in OperationTime.__struct_fields__ if f != "operation")
_COSTS = ("flops", "weights", "kv", "activations", "wire")
_SUMS = tuple(f for f in PassTime.__struct_fields__ if f != "operations")


def _in_order(values: Array, axis: int) -> Array:
    """Sum along an axis, one after the other: the same bits whatever other axes there are."""
    return np.take(np.cumsum(values, axis=axis), -1, axis=axis)


def weighted(p: PassTime, weight: Array, prefix: str = "", axis: int | None = None) -> PassTime:
    """A pass `weight` times over; with `axis`, the sum over passes along that axis.

    `prefix` marks the names of its operations.
    """
    def total(value: Array) -> Array:
        return value * weight if axis is None else _in_order(value * weight, axis)

    def operation(o: Operation) -> Operation:
        means = {} if axis is None else {
            f: total(getattr(o, f)) / _in_order(weight, axis) for f in _COSTS}
        return msgspec.structs.replace(o, name=prefix + o.name, count=total(o.count), **means)

    return PassTime(
        operations=tuple(OperationTime(
            operation(t.operation), **{f: total(getattr(t, f)) for f in _TIMES})
            for t in p.operations),
        **{f: total(getattr(p, f)) for f in _SUMS})


def both(a: PassTime, b: PassTime) -> PassTime:
    """One pass after the other."""
    return PassTime(operations=a.operations + b.operations,
                    **{f: getattr(a, f) + getattr(b, f) for f in _SUMS})


def decode_pass(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
                first: Array, last: Array, listed: bool = True) -> PassTime:
    """What one output token costs: the mean step, or its share of a round of speculation."""
    s = d.speculation
    if s is None:
        return decode(d, hardware, efficiency, batch, first, last, listed)
    g, tokens = s.drafts, s.tokens
    step = weighted(decode(d, hardware, efficiency, batch, first + g, last + g, listed, 1.0 + g),
                    1.0 / tokens)
    if d.draft is None:
        return step
    middle = (g - 1.0) / 2.0
    drafts = decode(d.draft, hardware, efficiency, batch, first + middle, last + middle, listed)
    return both(step, weighted(drafts, g / tokens, "draft_"))


def prefill_pass(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
                 prompt: Array) -> PassTime:
    """The prompts in one pass, or in chunks; what drafts must read them as well."""
    if d.prefill_chunk is None:
        own = prefill(d, hardware, efficiency, batch, prompt, d.prefix_hit)
    elif d.chunk is not None:
        own = chunked_prefill(d, hardware, efficiency, batch, prompt)
    else:
        whole = prefill(d, hardware, efficiency, batch, prompt, d.prefix_hit)
        own = _cut_by_engine(chunked_prefill(d, hardware, efficiency, batch, prompt), whole)
    if d.draft is None:
        return own
    return both(own, weighted(prefill_pass(d.draft, hardware, efficiency, batch, prompt), 1.0,
                              "draft_"))


def _cut_by_engine(chunks: PassTime, whole: PassTime) -> PassTime:
    """Chunks that nobody asked for: the ceiling stays that of the prompt in one pass, if lower.

    It is then that of each operation; where lists differ (MLA), the chunks' own, scaled.
    """
    keep = np.greater_equal(chunks.ceiling, whole.ceiling)
    lower = np.minimum(chunks.ceiling, whole.ceiling)
    share = lower / np.where(chunks.ceiling > 0, chunks.ceiling, 1.0)

    def either(own: Array, other: Array) -> Array:
        return np.where(keep, other, own * share) * 1.0

    own = chunks.ceiling_compute
    compute = either(own, whole.ceiling_compute)
    if [t.operation.name for t in chunks.operations] == [
            t.operation.name for t in whole.operations]:
        ends = [(either(t.ceiling, o.ceiling), either(t.ceiling_compute, o.ceiling_compute))
                for t, o in zip(chunks.operations, whole.operations, strict=True)]
    else:
        part = compute / np.where(own > 0, own, 1.0)
        ends = [(t.ceiling * share, t.ceiling_compute * part) for t in chunks.operations]
    return msgspec.structs.replace(
        chunks, ceiling=lower, ceiling_compute=compute, operations=tuple(
            msgspec.structs.replace(t, ceiling=x, ceiling_compute=y)
            for t, (x, y) in zip(chunks.operations, ends, strict=True)))


def chunk_steps(new: Array, C: Array) -> Array:
    """ceil(N/C): steps that N tokens take in chunks of C."""
    return np.ceil(new / C)


def reread_tokens(N: Array, C: Array, window: Array | None = None) -> Array:
    """C k (k - 1)/2, k = ceil(N/C): cached tokens that chunks after the first read again.

    About N^2/(2 C) where there are many (Sarathi-Serve, 2403.02310); below a window C m (m + 1)/2
    for the first m = window/C of them, and the window for each of the rest.
    """
    later = chunk_steps(N, C) - 1.0
    if window is None:
        return C * later * (later + 1.0) / 2.0
    growing = np.minimum(later, np.floor(window / C))
    return C * growing * (growing + 1.0) / 2.0 + (later - growing) * window


def _chunks(d: Deployment, prompt: Array, C: float, axes: int) -> tuple[Array, Array, Array]:
    """(new tokens, context, 1 where the chunk exists) of each chunk, along a first axis."""
    cached = cached_prefix(d, prompt, d.prefix_hit)
    new = prompt - cached
    most = int(np.max(chunk_steps(new, C)))
    before = np.arange(float(most)).reshape((most,) + (1,) * axes) * C
    size = np.clip(new - before, 0.0, C)
    return np.maximum(size, 1.0), cached + np.minimum(before + C, new), 1.0 * (size > 0)


def chunked_prefill(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
                    prompt: Array) -> PassTime:
    """`batch` prompts in steps of `d.chunk` tokens; prompts shorter than a chunk share one."""
    C = float(d.prefill_chunk or 1)
    new = prompt - cached_prefix(d, prompt, d.prefix_hit)
    side = np.clip(np.floor(C / new), 1.0, batch)
    probe = prefill(d, hardware, efficiency, side, prompt, d.prefix_hit)
    axes = max(np.ndim(v) for v in (probe.expected, probe.ceiling, batch, prompt))
    size, context, there = _chunks(d, prompt, C, axes)
    steps = forward_pass(d, hardware, efficiency, [Segment(side, size, context, "prefill")], side)
    total = weighted(steps, there * (batch / side), axis=0)
    if d.parallelism.pp > 1:
        passes = np.sum(there, axis=0) * (batch / side)
        slow, slow_at_ceiling = total.stage_shares(last_share(d))
        total = total.repeated(fill_and_drain(passes, slow) / passes,
                               fill_and_drain(passes, slow_at_ceiling) / passes, 1.0)
    return total


def mixed_steps(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
                context: Array, prompt: Array) -> tuple[PassTime, PassTime, float]:
    """(mean mixed step, step without the chunk, steps): one prompt beside `batch` that decode.

    Scalars: every step of the prompt's chunks is shared with the decoding sequences.
    """
    q = float(d.verified)
    tokens = Segment(batch, q, context + q - 1.0, "decode")
    size, ends, there = _chunks(d, prompt, float(d.chunk or prompt), 0)
    mixed = forward_pass(d, hardware, efficiency,
                         [tokens, Segment(1.0, size, ends, "prefill")], batch * q + 1.0)
    steps = float(np.sum(there))
    alone = forward_pass(d, hardware, efficiency, [tokens], batch * q)
    return weighted(mixed, there / steps, axis=0), alone, steps


__all__ = ["both", "chunk_steps", "chunked_prefill", "decode_pass", "mixed_steps", "prefill_pass",
           "reread_tokens", "weighted"]
