"""Sizes every candidate for the rate and orders them: the cheapest that meets the targets first.

The number of replicas follows from the rate that one carries within the targets and below the
utilisation limit, never from its saturation rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from simulator import energy
from simulator.pareto import pareto_mask
from simulator.planning.ask import Ask
from simulator.planning.candidates import (
    BATCHES,
    Candidate,
    Setting,
    candidates,
    replicas,
    settings_of,
)
from simulator.planning.capacity import (
    Replicas,
    State,
    largest_rate,
    percentiles,
    steady,
)
from simulator.planning.load import Floats
from simulator.units import format_number, format_time

# A lone request's load, where a candidate is asked what it can do at best.
_LONE = 1e-6


@dataclass(frozen=True)
class Option:
    """A candidate with a setting and a number of replicas; rates [1/s] of all replicas.

    replicas      0: it can't be, or meets the targets at no rate
    rate          the rate that it is sized for
    max_rate      at which both targets still hold; saturation: at which its queue has no end
    utilisation   rate / saturation
    batch, step   sequences that decode on one replica, on average, and their step [s]
    ttft, tpot    99th percentiles [s]; NaN where there is no steady state
    usd_per_hour, watts   of all devices; NaN where unknown; `bounded`: watts are the power limit
    reason        why it is not the chosen one
    """

    candidate: Candidate
    setting: Setting | None
    replicas: int
    rate: float
    max_rate: float = 0.0
    saturation: float = 0.0
    utilisation: float = math.nan
    prefill_load: float = math.nan
    batch: float = math.nan
    step: float = math.nan
    ttft: float = math.nan
    tpot: float = math.nan
    usd_per_hour: float = math.nan
    watts: float = math.nan
    bounded: bool = False
    reason: str = ""

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.candidate.devices

    @property
    def usable(self) -> bool:
        """Whether it serves the rate within the targets."""
        return self.replicas > 0 and not self.reason

    def latency(self, output: float) -> float:
        """TTFT + output x TPOT, at their 99th percentiles [s]."""
        return self.ttft + output * self.tpot

    def usd_per_million_tokens(self, output: float) -> float:
        """USD per million output tokens at the rate asked for."""
        return self.usd_per_hour / 3600.0 / (self.rate * output) * 1e6


def sized(ask: Ask, executor: Executor | None = None) -> list[Option]:
    """Every candidate at its best setting, sized for the rate; the usable ones first."""
    every = candidates(ask, executor)
    options = [Option(c, None, 0, ask.rate, reason=c.refused) for c in every if c.profile is None]
    parts = [(c, s) for c in every if c.profile is not None for s in settings_of(c)]
    if parts:
        options += _sized(ask, parts)
    return sorted(options, key=_order)


def _sized(ask: Ask, parts: list[tuple[Candidate, Setting]]) -> list[Option]:
    r = replicas(parts, ask.load)
    within = largest_rate(r, ask.ttft, ask.tpot, ask.utilisation)
    with np.errstate(divide="ignore"):
        count = np.ceil(ask.rate / within * (1.0 - 1e-12))
    keep = _best_settings(parts, r, within, count)
    parts, r = [parts[i] for i in keep], r.take(keep)
    within, count = within[keep], count[keep]
    sound = np.isfinite(count)
    # Where the targets hold at no rate, the figures are those of a lone request.
    rate = np.where(sound, ask.rate / np.where(sound, count, 1.0), _LONE * r.saturation)
    s = steady(r, rate)
    ttft, tpot = percentiles(r, s)
    top = largest_rate(r, ask.ttft, ask.tpot)
    return [_option(ask, parts[i], r, s, i, (ttft, tpot, top), int(count[i]) if sound[i] else 0)
            for i in range(len(parts))]


def sized_at(ask: Ask, part: tuple[Candidate, Setting], count: int, rate: float) -> Option:
    """An option with a given number of replicas at a given rate of all of them."""
    r = replicas([part], ask.load)
    s = steady(r, np.array([rate / count]))
    found = (*percentiles(r, s), largest_rate(r, ask.ttft, ask.tpot))
    return replace(_option(ask, part, r, s, 0, found, count), rate=rate)


def _best_settings(parts: list[tuple[Candidate, Setting]], r: Replicas, within: Floats,
                   count: Floats) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Of each candidate the setting with the fewest replicas, then the highest rate within the
    targets, then the smaller numbers.
    """
    best: dict[int, int] = {}
    for i, (c, s) in enumerate(parts):
        key = id(c)
        old = best.get(key)
        if old is None or (count[i], -round(float(within[i]), 9), s.places, s.budget) < (
                count[old], -round(float(within[old]), 9), parts[old][1].places,
                parts[old][1].budget):
            best[key] = i
    return np.array(list(best.values()), dtype=np.intp)


def _option(ask: Ask, part: tuple[Candidate, Setting], r: Replicas, s: State, i: int,
            found: tuple[Floats, Floats, Floats], count: int) -> Option:
    candidate, setting = part
    ttft, tpot, top = (float(values[i]) for values in found)
    price = candidate.offer.price
    n = max(count, 1)
    watts, bounded = power(candidate, ask, float(s.rate[i]), float(s.batch[i]))
    option = Option(
        candidate, setting, count, ask.rate, top * n, float(r.saturation[i]) * n,
        float(s.utilisation[i]), float(s.prefill_load[i]), float(s.batch[i]), float(s.step[i]),
        ttft, tpot, math.nan if price is None else price * n * candidate.devices, watts * n,
        bounded)
    return replace(option, reason=refusal(ask, option))


def refusal(ask: Ask, o: Option) -> str:
    """Why an option can't be chosen at all; empty where it can."""
    if o.replicas == 0:
        misses = [f"{name} {format_time(value)} without any load, above the target of "
                  f"{format_time(target)}" for name, value, target in (
                      ("TTFT p99", o.ttft, ask.ttft), ("TPOT p99", o.tpot, ask.tpot))
                  if target is not None and value > target]
        return " and ".join(misses) or "holds the targets at no rate"
    most = o.candidate.offer.most
    if most is not None and o.devices > most:
        return f"needs {o.devices} devices, {most} are there"
    if ask.max_cost is not None and not o.usd_per_hour <= ask.max_cost:
        return ("has no price to hold against --max-cost" if math.isnan(o.usd_per_hour) else
                f"USD {o.usd_per_hour:,.2f}/h, above --max-cost {ask.max_cost:,.2f}")
    return ""


def shortage(ask: Ask, o: Option) -> str:
    """What the devices that are there miss, where an option needs more; empty where none is built.
    """
    most, c = o.candidate.offer.most, o.candidate
    if most is None or o.setting is None or not c.devices <= most < o.devices:
        return ""
    there = sized_at(ask, (c, o.setting), most // c.devices, o.rate)
    shape = f"{there.replicas} x {c.devices}, all that are there,"
    if there.utilisation >= 1.0:
        return (f"{shape} would not keep up: {there.utilisation:.0%} of the "
                f"{format_number(there.saturation)}/s at which the queue has no end, by formula")
    misses = [f"{name} p99 would be {format_time(value)}, above the target of "
              f"{format_time(target)}" for name, value, target in (
                  ("TTFT", there.ttft, ask.ttft), ("TPOT", there.tpot, ask.tpot))
              if target is not None and value > target]
    return (f"{shape} carry {format_number(there.max_rate)}/s within the targets: at "
            f"{format_number(o.rate)}/s " + (" and ".join(misses) or f"utilisation would be "
            f"{there.utilisation:.0%}, above {ask.utilisation:.0%}") + ", by formula")


def power(c: Candidate, ask: Ask, rate: float, batch: float) -> tuple[float, bool]:
    """(watts of one replica at `rate`, whether that is only the limit of its boards)."""
    assert c.profile is not None
    h, n, load = c.offer.hardware, c.devices, ask.load
    limit = math.nan if h.tdp is None else float(np.max(h.tdp))
    if not energy.known(h):
        return limit * n, True
    link = h.link_energy or 0.0

    def joules(work: tuple[Floats, Floats, Floats]) -> Floats:
        """Dynamic energy of one device in a pass."""
        found: Floats = energy.dynamic_energy(*work, h.memory_energy, h.compute_energy, link)
        return found

    step_energy = float(np.interp(max(batch, 1.0), BATCHES, joules(c.profile.step_work)))
    prompt = float(joules(c.profile.prompt_work) @ load.prompt_weights) / c.parallelism.dp
    per_s = rate * (prompt + load.mean_output * step_energy / max(batch, 1.0))
    return min(float(np.max(h.idle_power or 0.0)) + per_s, limit) * n, False


def _order(o: Option) -> tuple[object, ...]:
    """Usable first; those with a price before those without; then cost, watts and latency."""
    priced = not math.isnan(o.usd_per_hour)
    p = o.candidate.parallelism
    return (not o.usable, o.replicas == 0, not priced, round(o.usd_per_hour, 6) if priced else 0.0,
            0.0 if priced or math.isnan(o.watts) else o.watts, o.devices,
            o.tpot if math.isfinite(o.tpot) else 1e9, p.pp, p.ep, p.tp)


# Options on the front that cost more than so many times the cheapest are no choice.
_DEAREST = 10.0


def explained(options: list[Option], output: float, by_formula: Option | None = None
              ) -> list[Option]:
    """The options with the reason why each but the first was not taken.

    by_formula  the first as the formulas see it, where it was simulated and the others were not
    """
    if not options or not options[0].usable:
        return options
    best = by_formula or options[0]
    return [options[0], *(replace(o, reason=o.reason or _against(best, o, output))
                    for o in options[1:])]


def _against(best: Option, o: Option, output: float) -> str:
    """Why a usable option lost, with the number."""
    c = o.candidate
    shape = (f"{o.replicas} x {c.devices} {c.offer.hardware.name} at {o.utilisation:.0%}")
    if math.isnan(o.usd_per_hour):
        return f"has no price; {shape} takes {format_number(o.watts / 1e3)} kW" if not math.isnan(
            o.watts) else f"has no price; {shape}"
    more = o.usd_per_hour - best.usd_per_hour
    if math.isnan(best.usd_per_hour) or abs(more) > 1e-6:
        quicker = o.latency(output) < best.latency(output)
        share = more / best.usd_per_hour if best.usd_per_hour > 0.0 else math.inf
        return (f"USD {more:,.2f}/h more ({share:+.0%}): {shape}"
                + (f"; quicker, {format_time(o.latency(output))} against "
                   f"{format_time(best.latency(output))}" if quicker else ""))
    if o.devices != best.devices:
        return f"as cheap, with {o.devices} devices against {best.devices}"
    return f"as cheap, TPOT p99 {format_time(o.tpot)} against {format_time(best.tpot)}"


def front(options: Sequence[Option], output: float) -> list[Option]:
    """Usable options that no other beats in both USD/h and latency, the cheapest first."""
    usable = [o for o in options if o.replicas > 0 and o.candidate.profile is not None
              and not math.isnan(o.usd_per_hour) and math.isfinite(o.latency(output))]
    cheapest = min((o.usd_per_hour for o in usable), default=0.0)
    usable = [o for o in usable if o.usd_per_hour <= _DEAREST * cheapest]
    if not usable:
        return []
    keep = pareto_mask([[o.usd_per_hour for o in usable], [o.latency(output) for o in usable]],
                       [False, False])
    found = {(o.usd_per_hour, round(o.latency(output), 9)): o
             for o, k in zip(usable, keep, strict=True) if k}
    return [found[key] for key in sorted(found)]
