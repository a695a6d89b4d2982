"""The pass that a page explains: rates at both ends of the ranges, operations, sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.allocation import cached_prefix
from simulator.clock import OperationTime
from simulator.deployment import Deployment
from simulator.efficiency.stacked import efficiency_of
from simulator.memory import per_replica
from simulator.operations import Operation
from simulator.request import Estimate
from simulator.sharding import Parallelism
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware
from simulator.stages import (
    decode_micro_batch,
    prefill_micro_batch,
)
from simulator.step import PassTime, decode, prefill


@dataclass(frozen=True)
class Pass:
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
    def piece(self) -> str:
        """What one pass is of the whole phase, where it takes several."""
        return "in one pass" if self.mid is self.time else "one micro-batch"

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


def both_passes(e: Estimate) -> tuple[Pass, Pass]:
    """Prefill and mean decode step, of one micro-batch where there are pipeline stages."""
    d, w, p = e.deployment, e.workload, e.deployment.parallelism
    whole = d.replace(parallelism=Parallelism(tp=p.tp, pp=1, ep=p.ep, cp=p.cp, dp=p.dp))
    best = d.hardware.at_ends(True, d.hardware.timed_ranges)
    ideal = efficiency_of(best, load_engine("ideal"))
    batch = float(per_replica(d, w.batch))
    prompt, last = float(w.input), max(float(w.input + w.output) - 1.0, float(w.input) + 1.0)
    first = prompt + 1.0
    at_once, in_step = (float(f(batch, p.pp)) for f in (prefill_micro_batch, decode_micro_batch))
    if d.prefill_chunk is not None:
        at_once = batch
    new = prompt - float(cached_prefix(d, prompt, d.prefix_hit))

    def fill(x: Deployment, hardware: Hardware, constants: Any) -> PassTime:
        return prefill(x, hardware, constants, at_once, prompt, d.prefix_hit)

    def step(x: Deployment, hardware: Hardware, constants: Any) -> PassTime:
        return decode(x, hardware, constants, in_step, first, last)

    def made(phase: str, run: Callable[[Deployment, Hardware, Any], PassTime], sequences: float,
             tokens: float, context: tuple[float, float]) -> Pass:
        mid = run(whole, d.hardware, e.efficiency)
        return Pass(phase, whole, best, run(whole, best, ideal), mid,
                     mid if p.pp == 1 else run(d, d.hardware, e.efficiency), sequences, tokens,
                     context)

    return (made("prefill", fill, at_once, new, (prompt, prompt)),
            made("decode", step, in_step, 1.0, (first, last)))


def parts_of(p: Pass, t: OperationTime) -> tuple[float, float, float]:
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
