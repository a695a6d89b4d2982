"""The cheapest options of the formulas, simulated: what they promise must hold request by request.

One replica is simulated with its share of the arrivals. An option that misses a target gets more
replicas until it holds it; one that holds it may give one back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.deployment import Deployment
from simulator.planning.ask import Ask, made_up
from simulator.planning.capacity import percentiles, steady
from simulator.planning.limits import one_replica
from simulator.planning.search import Option, refusal
from simulator.serving.lengths import Lengths
from simulator.serving.requests import Requests

# Options that are simulated, requests of a simulation, replicas that a missed target may add,
# simulations of the bisection for the largest rate, and seconds after which no more are begun.
OPTIONS, FEWEST, MOST, ADDED, HALVINGS, PATIENCE = 8, 4_000, 20_000, 4, 4, 15.0
# What a simulated saturation rate is uncertain by.
NOISE = 0.02


@dataclass(frozen=True)
class Simulated:
    """One replica at its rate, simulated; times [s]. Percentiles NaN where it isn't stable."""

    rate: float
    stable: bool
    utilisation: float
    ttft: float
    tpot: float
    requests: int
    preemptions: int
    prefix_hit_rate: float


@dataclass(frozen=True)
class Verified:
    """An option after its simulation, the rate of all replicas that it held, and the words."""

    option: Option
    simulated: Simulated
    analytical: tuple[float, float]
    note: str = ""


def set_up(o: Option) -> Deployment:
    """The deployment of one replica with the engine's settings."""
    d = o.candidate.deployment
    assert o.setting is not None
    engine = d.engine
    if engine.batched_tokens is not None:
        engine = engine.replace(batched_tokens=o.setting.budget)
    return d.replace(engine=engine.replace(max_sequences=o.setting.places), prefix_hit=0.0)


def share_of(ask: Ask, rate: float, replicas: int, seed: int = 0) -> Requests:
    """What one of `replicas` gets of `rate` [1/s]: every n-th request of a trace, or its own."""
    if ask.traced:
        part = ask.requests.take(np.arange(0, len(ask.requests), replicas)[:MOST])
        return part.at_rate(rate / replicas) if len(part) > 1 else part
    r, one = ask.requests, rate / replicas
    prompts = Lengths("file", ask.load.mean_prompt, values=r.input)
    outputs = Lengths("file", ask.load.mean_output, values=r.output)
    n = int(np.clip(one * 60.0, FEWEST, MOST))
    return made_up(prompts, outputs, one, ask.arrivals, n, seed, r.shared_prefix)


def simulated(ask: Ask, o: Option, rate: float) -> Simulated:
    """One replica of an option with its share of `rate`."""
    from simulator.serving.policy import Policy
    from simulator.serving.simulate import simulate

    assert o.setting is not None
    d = set_up(o)
    policy = Policy.of(d, max_sequences=o.setting.places, batched_tokens=o.setting.budget)
    s = simulate(d, share_of(ask, rate, o.replicas), policy=policy, ranges=False).summary()

    def number(value: object) -> float:
        return math.nan if value is None else float(value)  # type: ignore[arg-type]

    stable = bool(s["stable"])
    ttft, tpot = ((number((s[key] or {}).get("p99")) if stable else math.nan)
                  for key in ("ttft_s", "tpot_s"))
    return Simulated(rate / o.replicas, stable, number(s["utilisation"]), ttft, tpot,
                     int(s["requests"]), int(s["preemptions"]), number(s["prefix_hit_rate"]))


def holds(ask: Ask, s: Simulated) -> bool:
    """Whether a simulation is stable and within both targets."""
    return s.stable and not any(target is not None and value > target for value, target in (
        (s.ttft, ask.ttft), (s.tpot, ask.tpot)))


def resized(ask: Ask, o: Option, replicas: int) -> Option:
    """The option with another number of replicas, by the formulas."""
    r = one_replica(ask, o)
    s = steady(r, np.array([o.rate / replicas]))
    ttft, tpot = percentiles(r, s)
    part = replicas / o.replicas
    return replace(o, replicas=replicas, max_rate=o.max_rate * part,
                   saturation=o.saturation * part, utilisation=float(s.utilisation[0]),
                   batch=float(s.batch[0]), step=float(s.step[0]), ttft=float(ttft[0]),
                   tpot=float(tpot[0]),
                   usd_per_hour=o.usd_per_hour * part, watts=o.watts * part)


def verified(ask: Ask, o: Option) -> Verified | None:
    """An option with the fewest replicas that hold the targets when simulated; None: too many."""
    found = None
    start = o.replicas
    for count in range(start, start + ADDED + 1):
        sized = o if count == start else resized(ask, o, count)
        s = simulated(ask, sized, ask.rate)
        if holds(ask, s) and s.utilisation <= ask.utilisation + NOISE:
            found = sized, s
            break
    if found is None:
        return None
    sized, s = found
    note = ""
    if sized.replicas > start:
        note = (f"the formulas gave {start} replicas; simulated, the targets hold from "
                f"{sized.replicas}")
    fewer = sized.replicas - 1
    if sized.replicas == start and fewer >= 1:
        less = resized(ask, o, fewer)
        if less.utilisation <= ask.utilisation:
            t = simulated(ask, less, ask.rate)
            if holds(ask, t) and t.utilisation <= ask.utilisation:
                sized, s = less, t
                note = f"the formulas gave {start} replicas; simulated, {fewer} hold the targets"
    before = sized.ttft, sized.tpot
    top = sized.rate / s.utilisation
    sized = replace(sized, ttft=s.ttft, tpot=s.tpot, utilisation=s.utilisation, saturation=top,
                    max_rate=min(sized.max_rate, top))
    return Verified(replace(sized, reason=refusal(ask, sized)), s, before, note)


def simulate_finalists(ask: Ask, options: Sequence[Option],
                       progress: Callable[[str], None] = lambda text: None) -> list[Verified]:
    """The cheapest options simulated, in the order of their cost then; the first is the plan."""
    began, found = time.perf_counter(), list[Verified]()
    usable = [o for o in options if o.usable]
    for i, o in enumerate(usable[:OPTIONS]):
        held = [v for v in found if v.option.usable]
        cheapest = min((v.option.usd_per_hour for v in held), default=math.inf)
        if held and (o.usd_per_hour >= cheapest or time.perf_counter() - began > PATIENCE):
            break
        progress(f"simulating option {i + 1}: {o.replicas} x {o.candidate.devices} "
                 f"{o.candidate.offer.hardware.name}")
        v = verified(ask, o)
        if v is not None:
            found.append(v)
    return sorted(found, key=lambda v: (not v.option.usable, v.option.usd_per_hour
                                        if not math.isnan(v.option.usd_per_hour) else math.inf,
                                        v.option.watts))


def largest_simulated_rate(ask: Ask, v: Verified) -> float:
    """Rate [1/s] of all replicas up to which the targets hold when simulated, by bisection."""
    o, began = v.option, time.perf_counter()
    low, high = o.rate, max(o.saturation, o.rate * 1.001)
    # The formulas say where to look; the answer is always a rate that was simulated.
    guess = min(max(o.max_rate, low * 1.0001), high * 0.999)
    for i in range(HALVINGS):
        middle = guess if i == 0 else (low + high) / 2.0
        if high / low < 1.02 or time.perf_counter() - began > PATIENCE / 4.0:
            break
        if holds(ask, simulated(ask, o, middle)):
            low = middle
        else:
            high = middle
    return low


__all__ = ["Simulated", "Verified", "holds", "largest_simulated_rate", "resized", "set_up",
           "simulate_finalists", "simulated", "verified"]
