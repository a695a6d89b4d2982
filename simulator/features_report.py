"""The features of an estimate as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from simulator.features import Chunked, Experts, Features, Prefix, Speculated
from simulator.request import Figure
from simulator.units import format_decimal_bytes, format_number, format_time

_DRAFTS = {"draft": "a draft of", "mtp": "the prediction layers of", "ngram": "n-grams beside"}


def _number(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figure(f: Figure) -> dict[str, Any]:
    return {k: _number(getattr(f, k)) for k in ("ceiling", "expected", "low", "high")}


def features_dict(f: Features) -> dict[str, Any]:
    """All four, null where an estimate doesn't use them."""
    s, c, p, x = f.speculation, f.chunked, f.prefix, f.experts
    return {
        "speculation": s and {
            "kind": s.kind, "model": s.model, "draft_length": s.drafts,
            "acceptance": _number(s.acceptance), "tokens_per_round": _number(s.tokens),
            "round_s": _figure(s.round), "draft_s": _number(s.draft),
            "plain_tpot_s": _figure(s.plain), "speed_up": _number(s.speed_up),
            "pays_up_to_batch": s.pays_up_to, "source": s.source},
        "chunked_prefill": c and {
            "chunk": c.chunk, "steps": int(c.steps),
            "itl_s": {"plain": _figure(c.plain), "mixed": _figure(c.mixed)},
            "ttft_beside_decode_s": _figure(c.beside), "overhead": _number(c.overhead),
            "reread_bytes": _number(c.reread)},
        "prefix_cache": p and {
            "asked": _number(p.asked), "block_size": p.block, "cached_tokens": int(p.cached),
            "computed_tokens": int(p.computed), "ttft_without_s": _number(p.uncached_ttft)},
        "expert_imbalance": x and {
            "ranks": x.ranks, "skew": _number(x.skew), "prefill": _number(x.prefill),
            "decode": _number(x.decode)},
    }


def _speculation_lines(s: Speculated) -> list[str]:
    gain = float(s.speed_up)
    word = "faster than" if gain >= 1 else "of the speed of"
    pays = ("pays at any batch" if s.pays_up_to is None else "pays at no batch"
            if s.pays_up_to == 0 else f"pays up to batch {s.pays_up_to:,}")
    return [
        f"  Speculation with {_DRAFTS[s.kind]} {s.model}, {s.drafts} "
        f"{'token' if s.drafts == 1 else 'tokens'} a round, acceptance "
        f"{float(s.acceptance):g}: (1 - a^(g+1)) / (1 - a) = {format_number(float(s.tokens))} "
        f"tokens from {format_time(float(s.round.expected))} a round "
        f"({format_time(float(s.draft))} of it drafting)",
        f"  {format_number(gain)}x {word} plain decoding ({format_time(float(s.plain.expected))} "
        f"TPOT); {pays} at these lengths, memory aside; length and acceptance: {s.source}"]


def _chunk_lines(c: Chunked) -> list[str]:
    plain, mixed, beside = (format_time(float(f.expected)) for f in (c.plain, c.mixed, c.beside))
    return [
        f"  Chunks of {c.chunk:,} tokens: {c.steps:,.0f} steps a prompt; a step that shares one "
        f"takes {mixed} instead of {plain} (ITL)",
        f"  TTFT in chunks {float(c.overhead):+.1%} against one pass, "
        f"{format_decimal_bytes(float(c.reread))} of KV a prompt read again; beside the whole "
        f"batch decoding {beside}"]


def _prefix_lines(p: Prefix) -> list[str]:
    return [
        f"  Prefix cache: {float(p.cached):,.0f} tokens of each prompt in whole blocks of "
        f"{p.block}, {float(p.computed):,.0f} computed; TTFT without it "
        f"{format_time(float(p.uncached_ttft))}"]


def _expert_lines(x: Experts) -> list[str]:
    skew = f", skew {float(x.skew):g}" if x.skew != 1.0 else ", uniform routing"
    return [
        f"  Experts on {x.ranks} ranks: the fullest has {float(x.decode):.2f}x the mean load in "
        f"decode, {float(x.prefill):.2f}x in prefill (m + sqrt(2 m ln R){skew})"]


def features_lines(f: Features) -> list[str]:
    """A line or two for each that the estimate uses."""
    lines: list[str] = []
    if f.speculation:
        lines += _speculation_lines(f.speculation)
    if f.chunked:
        lines += _chunk_lines(f.chunked)
    if f.prefix:
        lines += _prefix_lines(f.prefix)
    if f.experts:
        lines += _expert_lines(f.experts)
    return lines
