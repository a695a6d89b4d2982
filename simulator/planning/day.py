"""Traffic that varies over a day: how many replicas when, at least and with a start-up delay.

Rates [1/s] on a grid of five minutes that repeats every day. The lower bound has at each moment as
many replicas as it needs. With a start-up delay a replica must be started so much earlier, and is
paid for from then on; without a forecast it is started when the traffic is already there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.planning.load import Floats
from simulator.serving.arrivals import check_rate

STEPS, DAY = 288, 86_400.0
STEP = DAY / STEPS
Whole = NDArray[np.int64]


def peaked(mean: float, ratio: float) -> Floats:
    """24 hourly rates with that mean and peak over mean: mean exp(k cos t) over its mean.

    A sinusoid for small ratios, a narrower peak for large ones; it peaks at 15 h.
    """
    angles = 2.0 * np.pi * (np.arange(24) - 15.0) / 24.0
    low, high = 0.0, 700.0
    for _ in range(60):
        k = (low + high) / 2.0
        shape = np.exp(k * (np.cos(angles) - 1.0))
        low, high = (k, high) if 1.0 / shape.mean() < ratio else (low, k)
    shape = np.exp(high * (np.cos(angles) - 1.0))
    found: Floats = mean * shape / shape.mean()
    return found


def parse_day(text: str, rate: float | None, where: str = "--day") -> Floats:
    """24 hourly rates from `peak:2.5` (peak over mean), 24 numbers with commas, or a file.

    A file holds 24 numbers, one a line (or as the last column after a header), or is a request
    trace, whose arrivals are counted by hour. With a rate the numbers are a shape with that mean.
    """
    if text.startswith("peak:"):
        return _peak(text, rate, where)
    if "," in text and not Path(text).exists():
        values = [_number(part, text, where) for part in text.split(",")]
    else:
        values = _from_file(text, where)
    rates = np.array(values, dtype=np.float64)
    if rates.size != 24:
        raise InputError(f"{where}: {text[:60]}: {rates.size} numbers, a day has 24 hours")
    if not rates.max() > 0.0:
        raise InputError(f"{where}: no hour has any requests")
    if rate is not None:
        rates *= check_rate(rate, "--rate") / rates.mean()
    return rates


def _peak(text: str, rate: float | None, where: str) -> Floats:
    ratio = _number(text.removeprefix("peak:"), text, where)
    if not 1.0 <= ratio <= 12.0:
        raise InputError(f"{where}: '{text}': peak over mean must lie between 1 and 12")
    if rate is None:
        raise InputError(f"{where}: '{text}' is a shape: give the mean rate of the day with --rate")
    return peaked(check_rate(rate, "--rate"), ratio)


def _number(word: str, text: str, where: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise InputError(f"{where}: '{text[:60]}': '{word.strip()[:20]}' is not a number; write "
                         "peak:2.5, 24 numbers with commas, or a file") from None
    if not (math.isfinite(value) and value >= 0.0):
        raise InputError(f"{where}: '{word.strip()}' is not at least 0 and finite")
    return value


def _from_file(text: str, where: str) -> list[float]:
    from simulator.serving.trace_text import read_text

    if not Path(text).exists():
        raise InputError(f"{where}: '{text[:80]}' is no file, no 24 numbers and no peak:RATIO")
    lines = [line.strip() for line in read_text(Path(text), where).splitlines() if line.strip()]
    rows = [line.split(",") for line in lines]
    if len(rows) in (24, 25):
        body = rows[-24:]
        try:
            return [_number(row[-1], text, where) for row in body]
        except InputError:
            if len(rows) == 24 and len(rows[0]) < 2:
                raise
    from simulator.serving.traces import load_trace

    r = load_trace(text)
    if r.duration > 8.0 * DAY:
        raise InputError(f"{where}: '{text}' lasts {r.duration / DAY:.0f} days; cut a week out of "
                         "it")
    hours = (r.arrival // 3600.0).astype(np.int64) % 24
    days = max(r.duration / DAY, 1.0)
    counts: Floats = np.bincount(hours, minlength=24) / 3600.0 / days
    return list(counts)


def on_grid(hourly: Floats) -> Floats:
    """Rates every five minutes, linear between the middles of the hours, round the clock."""
    middles = np.arange(-1, 25) + 0.5
    values = np.concatenate([hourly[-1:], hourly, hourly[:1]])
    found: Floats = np.interp((np.arange(STEPS) + 0.5) * 24.0 / STEPS, middles, values)
    return found


def needed(rates: Floats, each: float) -> Whole:
    """Replicas at each moment: the rate over what one carries within its targets, at least one."""
    found: Whole = np.maximum(np.ceil(rates / each * (1.0 - 1e-12)), 1.0).astype(np.int64)
    return found


def ahead(need: Whole, delay: float) -> Whole:
    """Replicas that run or start: the most that are needed from now to the delay [s] from now."""
    steps = math.ceil(delay / STEP - 1e-9)
    found: Whole = np.max([np.roll(need, -k) for k in range(steps + 1)], axis=0)
    return found


def behind(need: Whole, delay: float) -> Whole:
    """Replicas that serve where each is started when the traffic is seen: those needed a delay
    ago, and no fewer than now once they may stop.
    """
    return np.roll(need, math.ceil(delay / STEP - 1e-9)).astype(np.int64)


@dataclass(frozen=True)
class Day:
    """Replicas over a day on the grid; replica-hours of each way to run them.

    need       lower bound; scheduled: with the start-up time in front of each rise
    late       without a forecast; short: hours in which it has fewer than needed
    spare      factor on the traffic that a reactive scaler must plan for, to be never short
    fixed      as many as the peak needs, all day
    """

    hourly: Floats
    rates: Floats
    each: float
    delay: float
    need: Whole
    scheduled: Whole
    late: Whole
    short: float
    spare: float

    @property
    def peak_to_mean(self) -> float:
        """Largest over mean rate."""
        return float(self.rates.max() / self.rates.mean())

    @property
    def fixed(self) -> int:
        """Replicas that the peak needs."""
        return int(self.need.max())

    def hours(self, replicas: Whole | int) -> float:
        """Replica-hours of a day."""
        return float(np.mean(replicas) * 24.0)


def over_day(hourly: Floats, each: float, delay: float) -> Day:
    """Replicas over a day; `each` [1/s] one replica carries, `delay` [s] it takes to start."""
    if not 0.0 <= delay <= DAY / 2.0:
        raise InputError(f"--start-up: {delay:g} s is not between 0 and 12 hours")
    rates = on_grid(hourly)
    need = needed(rates, each)
    late = behind(need, delay)
    steps = math.ceil(delay / STEP - 1e-9)
    spare = float((rates / np.roll(rates, steps)).max()) if rates.min() > 0.0 else math.inf
    return Day(hourly, rates, each, delay, need, ahead(need, delay), late,
               float(np.mean(late < need) * 24.0), spare)
