"""Above which batch or context the better of two deployments changes: computed to the integer.

The order is evaluated on a dense grid with arrays; wherever two neighbours differ, again between
them, down to adjacent integers. Spans of up to 4,096 integers are evaluated one by one, so nothing
between two grid points can be missed there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment, Workload
from simulator.errors import InputError, nearest
from simulator.metrics import METRICS, Metric
from simulator.request import Estimate, estimate

Axis = Literal["batch", "context"]
_DENSE = 4096
_GRID = 1025
# Two values within this factor are the same value computed twice.
_SAME = 1e-12

REFERENCE, OTHER, TIE, ONLY_REFERENCE, ONLY_OTHER, NEITHER = range(6)
STATES = ("reference", "other", "tie", "only_reference", "only_other", "neither")


def segments(state: Callable[[Any], Any], first: int, last: int) -> list[tuple[int, int]]:
    """[(start, state)] of the runs of equal state over the integers first .. last."""
    if last - first < _DENSE:
        grid = np.arange(first, last + 1)
    else:
        grid = np.unique(np.round(np.geomspace(first, last, _GRID)).astype(np.int64))
    codes = np.asarray(state(grid.astype(np.float64)))
    found = [(int(grid[0]), int(codes[0]))]
    for i in np.flatnonzero(codes[1:] != codes[:-1]):
        low, high = int(grid[i]), int(grid[i + 1])
        if high - low == 1:
            found.append((high, int(codes[i + 1])))
        else:
            found += segments(state, low, high)[1:]
    return found


@dataclass(frozen=True)
class Segment:
    """From `first` to `last`, both included, the order of two deployments is `state`."""

    first: int
    last: int
    state: str


@dataclass(frozen=True)
class Crossover:
    """How the order by one metric changes along one axis, by the expected values.

    `segments` cover the axis without a gap; a deployment that does not fit has no value there.
    `flips`: where the better one changes between neighbours that both fit.
    """

    axis: Axis
    metric: Metric
    segments: tuple[Segment, ...]

    @property
    def flips(self) -> tuple[int, ...]:
        """First integer after each change of the better one, both fitting on both sides."""
        order = (STATES[REFERENCE], STATES[OTHER], STATES[TIE])
        return tuple(b.first for a, b in zip(self.segments, self.segments[1:], strict=False)
                     if a.state in order and b.state in order)


def at(w: Workload, axis: Axis, value: Array) -> Workload:
    """The workload with its batch, or its context (input + output, output kept), set."""
    return (Workload(value, w.input, w.output) if axis == "batch"
            else Workload(w.batch, value - w.output, w.output))


def span(axis: Axis, w: Workload, most: int) -> tuple[int, int]:
    """First and last integer of an axis."""
    first = 1 if axis == "batch" else int(np.max(w.output)) + 1
    if most <= first:
        raise InputError(f"--max-{axis}: {most} is not above {first}, where the axis begins"
                         + (" (output + 1)" if axis == "context" else ""))
    return first, most


def order(a: Estimate, b: Estimate, metric: Metric) -> Any:
    """State code of each element: which of two estimates is better, or which fits at all."""
    x, y = metric.get(a), metric.get(b)
    assert x is not None
    assert y is not None
    p, q = np.broadcast_arrays(np.asarray(x.expected, float), np.asarray(y.expected, float))
    p, q = (p, q) if metric.smaller else (q, p)
    codes = np.where(p < q, REFERENCE, OTHER)
    codes = np.where(np.abs(p - q) <= _SAME * np.abs(p), TIE, codes)
    fa, fb = np.asarray(a.memory.fits), np.asarray(b.memory.fits)
    codes = np.where(fa & ~fb, ONLY_REFERENCE, np.where(~fa & fb, ONLY_OTHER, codes))
    return np.where(fa | fb, codes, NEITHER)


def crossovers(reference: Deployment, other: Deployment, w: Workload, axis: Axis, most: int,
               metrics: tuple[str, ...] = ("tpot", "ttft", "tok/usd", "tok/W"),
               price: float | None = None, force: bool = False) -> list[Crossover]:
    """How the order of two deployments changes with the batch or the context, metric by metric.

    A metric that one of the two has no value for (no price, no power) is left out. `force`
    ignores memory.
    """
    first, last = span(axis, w, most)
    probe = [estimate(d, w, price) for d in (reference, other)]
    seen: dict[bytes, tuple[Estimate, Estimate]] = {}

    def pair(values: Any) -> tuple[Estimate, Estimate]:
        key = values.tobytes()
        if key not in seen:
            x = at(w, axis, values)
            seen[key] = estimate(reference, x, price), estimate(other, x, price)
        return seen[key]

    def state(metric: Metric) -> Callable[[Any], Any]:
        def codes(values: Any) -> Any:
            a, b = pair(values)
            return order(_fitting(a), _fitting(b), metric) if force else order(a, b, metric)
        return codes

    found = []
    for name in metrics:
        if name not in METRICS:
            raise InputError(f"metric: '{name}' is unknown{nearest(name, METRICS)}")
        metric = METRICS[name]
        if any(metric.get(e) is None for e in probe) or (metric.decode and np.any(w.output <= 1)):
            continue
        runs = segments(state(metric), first, last)
        ends = [*(start - 1 for start, _ in runs[1:]), last]
        found.append(Crossover(axis, metric, tuple(
            Segment(start, end, STATES[code])
            for (start, code), end in zip(runs, ends, strict=True))))
    return found


def _fitting(e: Estimate) -> Estimate:
    """The estimate as if memory had no end."""
    from dataclasses import replace

    fits = np.ones(np.shape(e.memory.fits), bool)
    return replace(e, memory=msgspec.structs.replace(e.memory, fits=fits))
