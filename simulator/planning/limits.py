"""What gives way first as the rate grows, and the range of a plan's figures.

Rates [1/s] are those of all replicas of an option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.planning.ask import Ask
from simulator.planning.candidates import ENDS, replicas
from simulator.planning.capacity import Replicas, State, largest_rate, percentiles, steady
from simulator.planning.load import Floats
from simulator.planning.search import Option

# 99th percentile of a normal distribution.
_Z99 = 2.326
MEANINGS = {"saturation": "the queue has no end",
            "TTFT": "99th percentile of TTFT reaches its target",
            "TPOT": "99th percentile of TPOT reaches its target"}


@dataclass(frozen=True)
class Limit:
    """A limit by name, the rate at which it is reached, what it means, and how it was found:
    `formula` or `simulation`.
    """

    name: str
    rate: float
    meaning: str
    basis: str = "formula"


@dataclass(frozen=True)
class Spread:
    """A figure of a plan at the ends of the step times: low and high are the better and worse."""

    expected: float
    low: float
    high: float


def one_replica(ask: Ask, o: Option, end: str = "expected") -> Replicas:
    """The arrays of one option's replica, at one end of its step times."""
    assert o.setting is not None
    return replicas([(o.candidate, o.setting)], ask.load, end)


def _crossing(r: Replicas, broken: Callable[[State], NDArray[np.bool_]]) -> float:
    """Rate of one replica at which a condition turns true, at most the saturation rate."""
    low, high = np.zeros(1), 0.9999 * r.saturation
    if not broken(steady(r, high))[0]:
        return float("inf")
    for _ in range(30):
        middle = (low + high) / 2.0
        bad = broken(steady(r, middle))
        low, high = np.where(bad, low, middle), np.where(bad, middle, high)
    return float(low[0])


def _crowd(r: Replicas, s: State) -> Floats:
    """99th percentile of the sequences on a replica."""
    return s.batch + _Z99 * np.sqrt(r.load.burstiness * s.batch)


def _cache(r: Replicas, s: State) -> Floats:
    """99th percentile of the KV memory in use, in sequences of mean context."""
    spread = r.load.burstiness * r.load.context_square / r.load.context**2
    return s.batch + _Z99 * np.sqrt(spread * s.batch)


def limits(ask: Ask, o: Option) -> list[Limit]:
    """Every limit of an option by the rate at which it is reached, the first to break first."""
    r, n = one_replica(ask, o), o.replicas
    found = [Limit("saturation", float(r.saturation[0]), MEANINGS["saturation"])]
    if ask.ttft is not None:
        found.append(Limit("TTFT", float(largest_rate(r, ask.ttft, None)[0]), MEANINGS["TTFT"]))
    if ask.tpot is not None:
        found.append(Limit("TPOT", float(largest_rate(r, None, ask.tpot)[0]), MEANINGS["TPOT"]))
    found.append(Limit("KV memory", _crossing(r, lambda s: _cache(r, s) > r.room),
                       "1 % of the time the KV cache is full: requests wait or are preempted"))
    found.append(Limit("sequences", _crossing(r, lambda s: _crowd(r, s) > r.places),
                       "1 % of the time all sequences of the engine's setting are taken"))
    # A target that holds up to saturation doesn't break before it.
    top = 0.998 * float(r.saturation[0])
    return sorted((replace(x, rate=x.rate * n) for x in found
                   if x.name == "saturation" or x.rate < top), key=lambda x: x.rate)


def spreads(ask: Ask, o: Option) -> dict[str, Spread]:
    """Utilisation, largest rate and percentiles with step times at both ends of their range."""
    values: dict[str, dict[str, float]] = {}
    for end in ENDS:
        r = one_replica(ask, o, end)
        s = steady(r, np.array([o.rate / o.replicas]))
        ttft, tpot = percentiles(r, s)
        top = float(largest_rate(r, ask.ttft, ask.tpot)[0]) * o.replicas
        for name, value in (("utilisation", float(s.utilisation[0])), ("ttft", float(ttft[0])),
                            ("tpot", float(tpot[0])), ("max_rate", top),
                            ("saturation", float(r.saturation[0]) * o.replicas)):
            values.setdefault(name, {})[end] = value
    return {name: Spread(**found) for name, found in values.items()}


def widened(ask: Ask, o: Option) -> str:
    """What the utilisation limit added to the replicas that the targets alone need; empty: none."""
    r = one_replica(ask, o)
    alone = float(largest_rate(r, ask.ttft, ask.tpot)[0])
    fewer = max(int(np.ceil(o.rate / alone * (1.0 - 1e-12))), 1) if alone > 0.0 else o.replicas
    use = o.rate / fewer / float(r.saturation[0])
    if fewer >= o.replicas or use <= ask.utilisation:
        return ""
    return (f"{fewer} replica(s) would hold the targets at {use:.0%} utilisation, where a burst "
            f"has no room: widened to {o.replicas}, at {o.utilisation:.0%}")
