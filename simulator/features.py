"""What speculation, chunked prefill, a prefix cache and expert parallelism did to an estimate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.allocation import block_of, cache_classes, cached_prefix
from simulator.arrays import Array
from simulator.deployment import Deployment, Workload
from simulator.feature_pass import chunk_steps, mixed_steps, reread_tokens
from simulator.layer_parts import Shares
from simulator.memory import per_replica
from simulator.operations.moe import imbalance
from simulator.request import Estimate, Figure, estimate, hardware_ends
from simulator.specs.model import Moe
from simulator.speculation import DEFAULTS
from simulator.step import decode

# Sequences a replica up to which the batch is sought where speculation stops to pay.
MOST_SEQUENCES = 65536


@dataclass(frozen=True)
class Speculated:
    """A round of speculation, mean over the output, beside plain decoding.

    tokens       expected tokens a round
    round        time of g drafts and one verification [s]; draft: the part of the drafts, expected
    plain, speed_up   TPOT without speculation, and over that with it, expected
    pays_up_to   largest batch of the deployment at which a token takes no longer; None: at all
                 batches up to MOST_SEQUENCES a replica; 0: at none
    source       where draft length and acceptance come from
    """

    kind: str
    model: str
    drafts: int
    acceptance: Array
    tokens: Array
    round: Figure
    draft: Array
    plain: Figure
    speed_up: Array
    pays_up_to: int | None
    source: str


@dataclass(frozen=True)
class Chunked:
    """One prompt in chunks beside the sequences that decode on the same replica.

    steps        chunks of one prompt
    plain, mixed     gap between tokens in a step without a chunk, and with one, mean over chunks
    beside       TTFT of a prompt whose every chunk shares its step [s], no queue
    overhead     TTFT in chunks over that in one pass, minus 1, expected
    reread       bytes of the cache that the chunks of one prompt read again, on one device
    """

    chunk: int
    steps: float
    plain: Figure
    mixed: Figure
    beside: Figure
    overhead: Array
    reread: Array


@dataclass(frozen=True)
class Prefix:
    """What the prefix cache holds of each prompt: whole blocks, and never the last token."""

    asked: Array
    block: int
    cached: Array
    computed: Array
    uncached_ttft: Array


@dataclass(frozen=True)
class Experts:
    """Load of the fullest of the expert-parallel ranks over the mean, by phase."""

    ranks: int
    skew: Array
    prefill: Array
    decode: Array


@dataclass(frozen=True)
class Features:
    """What an estimate used of each; None where it didn't."""

    speculation: Speculated | None
    chunked: Chunked | None
    prefix: Prefix | None
    experts: Experts | None


def features(e: Estimate) -> Features:
    """The features of a scalar estimate."""
    d = e.deployment
    steps = bool(e.workload.output > 1)
    return Features(
        speculation=_speculated(e) if d.speculation is not None and steps else None,
        chunked=_chunked(e, d.chunk) if d.chunk is not None and steps else None,
        prefix=_prefix(e) if d.prefix_hit else None,
        experts=_experts(e) if d.parallelism.ep > 1 else None,
    )


def plain(e: Estimate) -> Estimate:
    """The same without speculation and chunks."""
    return estimate(e.deployment.replace(speculation=None, chunk=None), e.workload)


def _tokens(d: Deployment) -> Array:
    """Tokens a round, 1 without speculation."""
    return 1.0 if d.speculation is None else d.speculation.tokens


def _scaled(f: Figure, factor: Array) -> Figure:
    return Figure(*(factor * v for v in f.all))


def _speculated(e: Estimate) -> Speculated:
    d, w, s = e.deployment, e.workload, e.deployment.speculation
    assert s is not None
    tokens, alone = s.tokens, estimate(d.replace(speculation=None), w)
    drafting: Array = 0.0
    if d.draft is not None:
        middle = w.input + (w.output + s.drafts - 1.0) / 2.0
        drafting = s.drafts * decode(d.draft, d.hardware, e.efficiency, per_replica(d, w.batch),
                                     middle, middle).expected
    given = s.length is not None and s.acceptance is not None
    part = "" if s.length is None and s.acceptance is None else " (as far as not given)"
    return Speculated(
        kind=s.kind, model=d.model.name if s.draft is None else s.draft.name,
        drafts=s.drafts, acceptance=s.accepted, tokens=tokens, round=_scaled(e.tpot, tokens),
        draft=drafting, plain=alone.tpot, speed_up=alone.tpot.expected / e.tpot.expected,
        pays_up_to=_pays_up_to(d, w),
        source="given" if given else DEFAULTS[s.kind].source + part)


def _pays_up_to(d: Deployment, w: Workload) -> int | None:
    """Largest batch at which speculation isn't slower: powers of 2, then every step between."""
    def pays(batches: Array) -> Array:
        asked = Workload(batches, w.input, w.output)
        times = [estimate(x, asked).tpot.expected for x in (d, d.replace(speculation=None))]
        return times[0] <= times[1]

    dp = d.parallelism.dp
    batches: Array = dp * 2.0 ** np.arange(np.log2(MOST_SEQUENCES) + 1.0)
    while True:
        good = np.flatnonzero(pays(batches))
        if not len(good):
            return 0
        last = int(good[-1])
        if last == len(batches) - 1:
            return None if batches[last] >= dp * MOST_SEQUENCES else int(batches[last])
        low, high = batches[last], batches[last + 1]
        if high - low <= dp:
            return int(low)
        batches = np.unique(np.round(np.linspace(low / dp, high / dp, 33))) * dp


def _chunked(e: Estimate, chunk: int) -> Chunked:
    d, w = e.deployment, e.workload
    context = w.input + w.output / 2.0
    new = w.input - cached_prefix(d, w.input, d.prefix_hit)
    added, steps = [], 1.0
    for hardware in hardware_ends(d.hardware):
        mixed, alone, steps = mixed_steps(d, hardware, e.efficiency, per_replica(d, w.batch),
                                          context, w.input)
        added.append([np.maximum(a - b, 0.0) for a, b in (
            (mixed.ceiling, alone.ceiling), (mixed.expected, alone.expected))])
    mid, best, worst = added
    spread = e.efficiency.prefill_spread(w.input)
    step = _scaled(e.tpot, _tokens(d))
    extra = Figure(best[0], np.maximum(mid[1], best[0]), np.maximum(best[1] / spread, best[0]),
                   worst[1] * spread)
    both = step.plus(extra)
    one = estimate(d.replace(chunk=None), w).ttft.expected
    reread = sum(c.layers * c.bytes_per_token * reread_tokens(new, chunk, c.window)
                 for c in cache_classes(d))
    return Chunked(chunk, float(chunk_steps(new, chunk)), step, both, _scaled(both, steps),
                   e.ttft.expected / one - 1.0, reread)


def _prefix(e: Estimate) -> Prefix:
    d, prompt = e.deployment, e.workload.input
    cached = cached_prefix(d, prompt, d.prefix_hit)
    none = estimate(d.replace(prefix_hit=0.0), e.workload).ttft.expected
    return Prefix(d.prefix_hit, block_of(d), cached, prompt - cached, none)


def _experts(e: Estimate) -> Experts:
    d, w = e.deployment, e.workload
    f = next(g.ffn for g in d.model.layers if isinstance(g.ffn, Moe))
    batch, share = per_replica(d, w.batch), Shares.of(d)
    new = w.input - cached_prefix(d, w.input, d.prefix_hit)
    tokens = batch * new if d.chunk is None else np.minimum(batch * new, d.chunk)
    loads = [imbalance(T * share.expert_tokens, f.top_k, f.experts, d.parallelism.ep,
                       d.expert_skew) for T in (tokens, batch * d.verified)]
    return Experts(d.parallelism.ep, d.expert_skew, loads[0], loads[1])


__all__ = ["Features", "features", "plain"]
