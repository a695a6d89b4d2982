"""Capacity planning: which machines, how many and how set up, for a traffic and its targets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from simulator.planning.ask import Ask
from simulator.planning.finalists import (
    Verified,
    simulate_finalists,
    simulated_limits,
)
from simulator.planning.limits import Limit, Spread, limits, spreads, widened
from simulator.planning.search import Option, explained, front, sized


@dataclass(frozen=True)
class Plan:
    """The answer: options in order, the first of them the plan where it is usable.

    verified    the finalists after their simulation; empty where none was simulated
    front       options that no other beats in both cost and latency
    limits      of the best, the first to break first; spreads: the range of its figures
    analytical  seconds of the formulas; wall: of all
    """

    ask: Ask
    options: tuple[Option, ...]
    verified: tuple[Verified, ...]
    front: tuple[Option, ...]
    limits: tuple[Limit, ...]
    spreads: dict[str, Spread]
    max_rate: float
    warnings: tuple[str, ...]
    analytical: float
    wall: float

    @property
    def simulated(self) -> bool:
        """Whether the best was simulated, or is the formulas' word."""
        return any(v.option is self.best for v in self.verified)

    @property
    def best(self) -> Option | None:
        """The cheapest option that serves the rate within the targets; None: none does."""
        return self.options[0] if self.options and self.options[0].usable else None


def plan(ask: Ask, simulate: bool = True, executor: Executor | None = None,
         progress: Callable[[str], None] = lambda text: None) -> Plan:
    """The cheapest deployment that serves the traffic within its targets, and why not the others.

    simulate  whether the finalists are simulated, or only the formulas asked
    """
    began, output = time.perf_counter(), ask.load.mean_output
    options, verified = sized(ask, executor), list[Verified]()
    analytical = time.perf_counter() - began
    if simulate and options and options[0].usable:
        verified = simulate_finalists(ask, options, progress)
        options = _with_verified(options, verified)
    best = options[0] if options and options[0].usable else None
    top, breaks = 0.0, list[Limit]()
    if best is not None:
        progress("looking for the largest rate")
        breaks = limits(ask, best)
        if any(v.option is best for v in verified):
            best, breaks = _with_limits(ask, options, verified, breaks)
        top = best.max_rate
    formula = _by_formula(options, verified)
    ends = spreads(ask, best) if best is not None else {}
    return Plan(
        ask, tuple(explained(options, output, formula[0] if formula else None)), tuple(verified),
        tuple(front(formula, output)),
        tuple(breaks), ends, top, tuple(_warnings(ask, best, ends)),
        analytical, time.perf_counter() - began)


def _with_verified(options: list[Option], verified: list[Verified]) -> list[Option]:
    """Simulated options in front, in their order; those that were not keep theirs."""
    done = {id(v.option.candidate) for v in verified}
    return [*(v.option for v in verified if v.option.usable),
            *(o for o in options if id(o.candidate) not in done),
            *(v.option for v in verified if not v.option.usable)]


def _with_limits(ask: Ask, options: list[Option], verified: list[Verified], by_formula: list[Limit]
                 ) -> tuple[Option, list[Limit]]:
    """The best, in place, at the largest rate that was simulated; and what breaks first: simulated
    where it decides that rate, by formula else.
    """
    i = next(i for i, v in enumerate(verified) if v.option is options[0])
    found = simulated_limits(ask, verified[i])
    o = options[0]
    top = max(min(x.rate for x in found), o.rate)
    # A target that holds at the rate asked for doesn't break below it.
    found = [replace(x, rate=max(x.rate, top)) for x in found]
    end = next(x.rate for x in found if x.name == "saturation")
    best = replace(o, max_rate=top, saturation=end, utilisation=o.rate / end)
    options[0], verified[i] = best, replace(verified[i], option=best)
    names = {"saturation", "TTFT", "TPOT"}
    return best, sorted([*found, *(x for x in by_formula if x.name not in names and x.rate < end)],
                        key=lambda x: x.rate)


def _by_formula(options: list[Option], verified: list[Verified]) -> list[Option]:
    """The options with the percentiles of the formulas, so that all are compared alike."""
    known = {id(v.option.candidate): v.analytical for v in verified}
    return [replace(o, ttft=known[id(o.candidate)][0], tpot=known[id(o.candidate)][1])
            if id(o.candidate) in known else o for o in options]


def _warnings(ask: Ask, best: Option | None, ends: dict[str, Spread]) -> list[str]:
    found = list(ask.notes)
    if best is None:
        return found
    h = best.candidate.offer.hardware
    if h.status in ("announced", "hypothetical"):
        found.append(f"{h.title} is {h.status}: its figures are not a specification")
    if ends["utilisation"].high >= 1.0:
        need = math.ceil(best.replicas * ends["utilisation"].high / ask.utilisation)
        found.append(f"with step times at the worse end of their range {best.replicas} replica(s) "
                     f"would not keep up; {need} would: measure one before buying")
    text = widened(ask, best)
    if text:
        found.append(text)
    if ask.utilisation > 0.85:
        found.append(f"plans up to {ask.utilisation:.0%} utilisation: above 85 % waits grow "
                     "without bound at the least burst")
    return found


__all__ = ["Ask", "Limit", "Option", "Plan", "Spread", "Verified", "plan"]
