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
from simulator.planning.capacity import largest_rate, percentiles, steady
from simulator.planning.limits import MEANINGS, Limit, one_replica
from simulator.planning.search import Option, refusal
from simulator.serving.lengths import Lengths
from simulator.serving.requests import Requests
from simulator.units import format_time

# Options that are simulated, requests of a simulation, replicas that a missed target may add, and
# seconds after which no more are begun.
OPTIONS, FEWEST, MOST, ADDED, PATIENCE = 8, 4_000, 20_000, 4, 15.0
# Ratio of the rates between which the answer turns, and of those that look for such a pair.
CLOSE, APART = 1.01, 1.2
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


def missed(ask: Ask, s: Simulated) -> str:
    """Which limit a simulation breaks, with the numbers; empty where it breaks none."""
    if not s.stable:
        return f"it doesn't keep up ({s.utilisation:.0%} of its largest rate)"
    found = [f"{name} p99 is {format_time(value)}, above the target of {format_time(target)}"
             for name, value, target in (("TTFT", s.ttft, ask.ttft), ("TPOT", s.tpot, ask.tpot))
             if target is not None and value > target]
    if not found and s.utilisation > ask.utilisation + NOISE:
        found = [f"utilisation is {s.utilisation:.0%}, above {ask.utilisation:.0%}"]
    return " and ".join(found)


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


def verified(ask: Ask, o: Option) -> Verified:
    """An option with the fewest replicas that hold the targets when simulated; with a reason where
    it takes too many.
    """
    found = None
    start = o.replicas
    for count in range(start, start + ADDED + 1):
        sized = o if count == start else resized(ask, o, count)
        s = simulated(ask, sized, ask.rate)
        if holds(ask, s) and s.utilisation <= ask.utilisation + NOISE:
            found = sized, s
            break
    if found is None:
        return Verified(replace(sized, ttft=s.ttft, tpot=s.tpot, utilisation=s.utilisation,
                                reason=f"simulated, {missed(ask, s)} with {sized.replicas} "
                                "replicas as well"), s, (o.ttft, o.tpot))
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
    for i, o in enumerate(usable):
        held = [v for v in found if v.option.usable]
        # None is bought unseen: where all so far miss, the search goes on.
        if held and i >= OPTIONS:
            break
        cheapest = min((v.option.usd_per_hour for v in held), default=math.inf)
        if held and (o.usd_per_hour >= cheapest or time.perf_counter() - began > PATIENCE):
            break
        progress(f"simulating option {i + 1}: {o.replicas} x {o.candidate.devices} "
                 f"{o.candidate.offer.hardware.name}")
        found.append(verified(ask, o))
    return sorted(found, key=lambda v: (not v.option.usable, v.option.usd_per_hour
                                        if not math.isnan(v.option.usd_per_hour) else math.inf,
                                        v.option.watts))


def _turns(holds_at: Callable[[float], bool], guess: float, top: float) -> float:
    """Largest rate that holds, to 1 %: from `guess` in growing strides until the answer turns, then
    by bisection; at most `top`. The answer is always a rate that was asked about.
    """
    low, high, stride = 0.0, top, APART
    rate = min(guess, top)
    while low == 0.0 or (high == top and low < top):
        if holds_at(rate):
            low = rate
            rate = min(rate * stride, top)
        else:
            high = rate
            if low > 0.0 or rate < 1e-4 * top:
                break
            rate /= stride
        stride *= stride
    while low > 0.0 and high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds_at(middle) else (low, middle)
    return low


def simulated_limits(ask: Ask, v: Verified) -> list[Limit]:
    """Rates [1/s] of all replicas at which each target and the queue give way when simulated.

    The rates that are tried start at what the formulas say, never at the rate that is asked for:
    the same machine has the same limits.
    """
    o, seen = v.option, dict[float, Simulated]()
    r, n = one_replica(ask, o), o.replicas

    def at(rate: float) -> Simulated:
        key = float(f"{rate:.6g}")
        if key not in seen:
            seen[key] = simulated(ask, o, key)
        return seen[key]

    top = float(r.saturation[0]) * n
    first = at(0.8 * top)
    top = first.rate * n / first.utilisation
    found = [Limit("saturation", top, MEANINGS["saturation"], "simulation")]
    for name, ttft, tpot in (("TTFT", ask.ttft, None), ("TPOT", None, ask.tpot)):
        if ttft is None and tpot is None:
            continue
        guess = float(largest_rate(r, ttft, tpot)[0]) * n
        part = replace(ask, ttft=ttft, tpot=tpot)

        def held(x: float, part: Ask = part) -> bool:
            return holds(part, at(x))

        rate = _turns(held, guess or 0.5 * top, 0.998 * top)
        if rate < 0.99 * top:
            found.append(Limit(name, rate, MEANINGS[name], "simulation"))
    return found


__all__ = ["Simulated", "Verified", "holds", "missed", "resized", "set_up", "simulate_finalists",
           "simulated", "simulated_limits", "verified"]
