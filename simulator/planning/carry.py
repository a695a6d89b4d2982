"""The inverse question: which rate, and how many users, a given number of devices carries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from simulator.errors import InputError
from simulator.planning.ask import Ask, Offer
from simulator.planning.candidates import candidates, replicas, settings_of
from simulator.planning.capacity import largest_rate
from simulator.planning.limits import Limit, limits, one_replica
from simulator.planning.search import Option, sized_at


@dataclass(frozen=True)
class Carried:
    """What the devices of one offer carry: the option at its largest rate [1/s].

    users      that are served at once or think: rate x (end-to-end time + think time)
    low, high  of the rate, with step times at the worse and the better end of their range
    reason     why it carries nothing; then there is no option
    """

    offer: Offer
    option: Option | None
    rate: float
    low: float
    high: float
    users: float
    limits: tuple[Limit, ...]
    reason: str = ""


def end_to_end(ask: Ask, o: Option) -> float:
    """Mean time of a request [s]: a lone prompt, and its steps at the batch of the rate."""
    r = one_replica(ask, o)
    prompt = float((r.marginal @ ask.load.prompt_weights)[0] + r.fixed[0])
    step = o.step / max(1.0 - o.prefill_load, 1e-9)
    return prompt + ask.load.mean_output * step


def carry(ask: Ask, think: float = 0.0, executor: Executor | None = None) -> list[Carried]:
    """The largest rate of each offer's devices within the targets and the utilisation limit."""
    if not (math.isfinite(think) and think >= 0.0):
        raise InputError(f"--think: {think:g} s is not at least 0 and finite")
    counted = tuple(replace(o, most=o.most or 1) for o in ask.offers)
    ask = replace(ask, offers=counted, max_cost=None)
    found = candidates(ask, executor)
    return [_carried(ask, offer, [c for c in found if c.offer is offer], think)
            for offer in counted]


def _carried(ask: Ask, offer: Offer, found: Sequence[object], think: float) -> Carried:
    from simulator.planning.candidates import Candidate

    own = [c for c in found if isinstance(c, Candidate)]
    parts = [(c, s) for c in own if c.profile is not None for s in settings_of(c)]
    if not parts:
        reason = min((c.refused for c in own), key=len, default="no split is possible")
        return Carried(offer, None, 0.0, 0.0, 0.0, 0.0, (), reason)
    rates, copies = {}, np.array([(offer.most or 1) // c.devices for c, _ in parts])
    for end in ("expected", "high", "low"):
        r = replicas(parts, ask.load, end)
        rates[end] = largest_rate(r, ask.ttft, ask.tpot, ask.utilisation) * copies
    best = int(np.argmax(rates["expected"]))
    rate = float(rates["expected"][best])
    o = sized_at(ask, parts[best], int(copies[best]), rate if rate > 0.0 else 1e-6)
    if rate <= 0.0:
        return Carried(offer, o, 0.0, 0.0, 0.0, 0.0, (), "the targets hold at no rate: "
                       f"TTFT p99 {o.ttft:.3g} s and TPOT p99 {o.tpot:.3g} s without any load")
    users = rate * (end_to_end(ask, o) + think)
    return Carried(offer, o, rate, float(rates["high"][best]), float(rates["low"][best]), users,
                   tuple(limits(replace(ask, rate=rate), o)))
