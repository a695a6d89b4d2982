"""What it takes: the value of one quantity at which a deployment meets its targets.

Everything else stays fixed. A continuous quantity is bracketed on a logarithmic grid, again between
the last miss and the first hit, to 1e-10; batch and context to the exact integer; devices and
formats one by one. Where no value helps, the estimate with the quantity at its limit says what
remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.crossover import Axis, at, segments
from simulator.deployment import Deployment, Parallelism, Workload
from simulator.efficiency import BANDWIDTH_CAP, COMPUTE_CAP
from simulator.efficiency.hosts import host_speed
from simulator.errors import InputError, nearest
from simulator.formats import number_format
from simulator.metrics import Target
from simulator.request import Estimate, Figure, estimate
from simulator.specs.hardware import SMALLER_IS_FASTER
from simulator.specs.sourced import Range
from simulator.units import (
    format_bandwidth,
    format_flops,
    format_memory,
    format_number,
    format_time,
)

FIGURES = ("expected", "ceiling", "low", "high")
FORMATS = ("bf16", "fp8", "int8", "int6-g128", "nvfp4", "mxfp4", "int4-g128", "int3-g128",
           "int2-g128")
_GRID, _ROUNDS, _REACH = 65, 8, 1e9
_MOST_BATCH, _MOST_DEVICES = 2**17, 256
_USER = ("ttft", "tpot", "e2e", "tok/s")


@dataclass(frozen=True)
class Knob:
    """A continuous quantity: its value now, how to set it, and its limit (infinity, 0 or a cap).

    rising: whether more of it is faster.
    """

    name: str
    now: float
    limit: float
    set: Callable[[Deployment, Array], Deployment]
    form: Callable[[float], str]
    range: Range | None = None

    @property
    def rising(self) -> bool:
        """Whether more of it is faster."""
        return self.limit > 0


def _field(name: str) -> Callable[[Deployment, Array], Deployment]:
    return lambda d, v: d.replace(hardware=d.hardware.replace(**{name: v}))


def _scaled_peaks(d: Deployment, value: Array) -> Deployment:
    """All peaks and vector rates times one factor, so that the compute precision has `value`."""
    factor = value / d.hardware.peak(d.compute("ffn"))[0]
    names = [n for n in d.hardware.__struct_fields__ if n.startswith(("peak_", "vector_"))
             and getattr(d.hardware, n) is not None]
    return d.replace(hardware=d.hardware.replace(
        **{n: getattr(d.hardware, n) * factor for n in names}))


_FIELDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "memory-bandwidth": ("memory_bandwidth", format_bandwidth),
    "memory-capacity": ("memory_capacity", format_memory),
    "flops": ("", format_flops),
    "link-bandwidth": ("link_bandwidth", format_bandwidth),
    "link-latency": ("link_latency", format_time),
    "bandwidth-efficiency": ("bandwidth_efficiency", lambda v: f"{v:.1%}"),
    "compute-efficiency": ("compute_efficiency", lambda v: f"{v:.1%}"),
    "layer-overhead": ("layer_overhead", format_time),
    "host-time": ("", format_time),
    "price": ("price", lambda v: f"{format_number(v * 3600)} USD/h"),
}
QUANTITIES = (*_FIELDS, "devices", "batch", "context", "format")


def knob(name: str, d: Deployment) -> Knob:
    """A continuous quantity of a deployment; refused where the deployment doesn't have it."""
    h, (field, form) = d.hardware, _FIELDS[name]
    if name == "flops":
        peak, precision = h.peak(d.compute("ffn"))
        return Knob(name, float(peak), math.inf, _scaled_peaks, form,
                    h.ranges.get(f"peak_{precision}"))
    if name == "host-time":
        speed = host_speed(h)
        return Knob(name, d.engine.host_time / speed, 0.0, lambda d, v: d.replace(
            engine=d.engine.replace(host_time=v * speed)), form)
    if name.startswith("link-") and d.devices == 1:
        raise InputError(f"--find: '{name}': one device uses no link; put a number in front of the "
                         "hardware, as in 4xh100")
    value = getattr(h, field)
    if value is None:
        raise InputError(f"--find: '{name}': hardware '{h.name}' states no {field}"
                         + ("; its kernels have constants of their own" if "efficiency" in name
                            or name == "layer-overhead" else ""))
    limit = 0.0 if field in SMALLER_IS_FASTER else math.inf
    if "efficiency" in name:
        limit = BANDWIDTH_CAP if "bandwidth" in name else COMPUTE_CAP
    return Knob(name, float(value), limit, _field(field), form, h.ranges.get(field))


@dataclass(frozen=True)
class Question:
    """A deployment, a workload and what must hold; `force` ignores memory."""

    deployment: Deployment
    workload: Workload
    targets: tuple[Target, ...]
    figure: str = "expected"
    price: float | None = None
    force: bool = False

    def estimate(self, d: Deployment | None = None, w: Workload | None = None) -> Estimate:
        """The estimate of a variant."""
        return estimate(d or self.deployment, w or self.workload, self.price)

    def excess(self, e: Estimate) -> Any:
        """Factor by which the worst target is missed; at most 1 is met. Memory apart."""
        return np.max(np.stack(np.broadcast_arrays(
            *(t.excess(e, self.figure) for t in self.targets))), axis=0) if self.targets else 0.0

    def met(self, e: Estimate) -> Any:
        """Whether all targets hold and it fits."""
        held = np.asarray(self.excess(e)) <= 1.0
        return held if self.force else held & np.asarray(e.memory.fits)

    def worst(self, e: Estimate) -> Target:
        """The target that is missed by most."""
        return max(self.targets, key=lambda t: float(t.excess(e, self.figure)))


@dataclass(frozen=True)
class Solution:
    """The answer: `value` (None: unreachable) and its estimate.

    now            value as given
    best           estimate with the quantity at its limit, or at the best of its values
    best_value     that limit or value; infinity where it has no end
    at_range_end   estimate at the favourable end of the range that the spec gives it
    runs           of batch or context: [first, last] of every stretch that meets the targets
    others         other quantities that alone would reach the targets: name, value, as text
    also           where none does alone: those that would at `best`, on top of it
    """

    find: str
    question: Question
    now: float | str
    value: float | str | None
    solved: Estimate | None
    best: Estimate
    best_value: float | str
    form: Callable[[Any], str]
    range: Range | None = None
    at_range_end: Estimate | None = None
    runs: tuple[tuple[int, int], ...] = ()
    others: tuple[tuple[str, float, str], ...] = ()
    also: tuple[tuple[str, float, str], ...] = ()

    @property
    def found(self) -> bool:
        """Whether a value exists and what it leads to fits."""
        return self.solved is not None and bool(self.solved.memory.fits)


def bracket(met: Callable[[Any], Any], now: float, limit: float) -> float | None:
    """The value nearest to free (smallest if more is faster) that meets, within 1e-10; or None."""
    rising = limit > 0
    base = now if now > 0 else 1e-6
    high = limit if rising and math.isfinite(limit) else base * _REACH
    grid = np.geomspace(base / _REACH, high, 2 * _GRID)
    for _ in range(_ROUNDS):
        ok = np.broadcast_to(np.asarray(met(grid)), grid.shape)
        ok = ok if rising else ok[::-1]
        values = grid if rising else grid[::-1]
        misses = np.flatnonzero(~ok)
        if len(misses) == 0:
            return float(values[0])
        if misses[-1] == len(values) - 1:
            return None
        miss, hit = values[misses[-1]], values[misses[-1] + 1]
        if abs(hit / miss - 1) < 1e-10:
            break
        grid = np.geomspace(min(miss, hit), max(miss, hit), _GRID)
        grid[[0, -1]] = min(miss, hit), max(miss, hit)
    return float(hit)


def _continuous(q: Question, k: Knob) -> float | None:
    def met(values: Any) -> Any:
        return q.met(q.estimate(k.set(q.deployment, values)))

    return bracket(met, k.now, k.limit)


def _at_limit(q: Question, k: Knob) -> Estimate:
    """The estimate at the limit; capacity has no part in a time, so a large one stands for it."""
    limit = 1e18 if k.name == "memory-capacity" else k.limit
    return q.estimate(k.set(q.deployment, limit))


def _solve_knob(q: Question, name: str) -> Solution:
    k = knob(name, q.deployment)
    value = _continuous(q, k)
    end = None if k.range is None else q.estimate(k.set(
        q.deployment, k.range.high if k.rising else k.range.low))
    return Solution(name, q, k.now, value,
                    None if value is None else q.estimate(k.set(q.deployment, value)),
                    _at_limit(q, k), k.limit, k.form, k.range, end)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _memory_limit(q: Question, axis: Axis) -> int:
    """Largest batch or context that memory allows, all else as asked."""
    room = q.estimate().memory
    return int(room.max_batch if axis == "batch" else room.max_context)


def _runs(q: Question, axis: Axis, first: int, most: int) -> list[tuple[int, int]]:
    """Runs of values that meet the targets or don't; split where memory ends, so none is missed."""
    def met(value: Any) -> Any:
        return q.met(q.estimate(w=at(q.workload, axis, value)))

    limit = _memory_limit(q, axis)
    if q.force or not first <= limit < most:
        return segments(met, first, most)
    runs = segments(met, first, limit)
    return runs if runs[-1][1] == 0 else [*runs, (limit + 1, 0)]


def _solve_integer(q: Question, axis: Axis) -> Solution:
    """Users' targets want the largest that still meets them, throughput and cost the smallest."""
    w = q.workload
    first = 1 if axis == "batch" else int(w.output) + 1
    most = _MOST_BATCH if axis == "batch" else int(q.deployment.model.positions)
    if most <= first:
        raise InputError(f"--output: {int(w.output)} leaves no room in the {most:,} positions of "
                         f"{q.deployment.model.name}")
    runs = _runs(q, axis, first, most)
    ends = [*(start - 1 for start, _ in runs[1:]), most]
    good = tuple((start, end) for (start, ok), end in zip(runs, ends, strict=True) if ok)
    largest = any(t.metric.key in _USER for t in q.targets) or axis == "context" or not q.targets
    value = (good[-1][1] if largest else good[0][0]) if good else None
    grid = np.unique([*np.round(np.geomspace(first, most, 2049)), *np.ravel(good),
                      min(max(_memory_limit(q, axis), first), most)])
    every = q.estimate(w=at(w, axis, grid))
    missed = np.broadcast_to(np.asarray(q.excess(every), float), grid.shape)
    fits = np.ones(grid.shape, bool) if q.force else np.broadcast_to(every.memory.fits, grid.shape)
    best = float(grid[np.argmin(np.where(fits, missed, np.inf))])
    now = float(w.batch if axis == "batch" else w.input + w.output)
    return Solution(axis, q, now, None if value is None else float(value),
                    None if value is None else q.estimate(w=at(w, axis, float(value))),
                    q.estimate(w=at(w, axis, best)), best, _whole, runs=good)


def _wider(d: Deployment) -> list[tuple[float, Deployment]]:
    """The deployment at every tensor-parallel degree that model and link allow."""
    p, h = d.parallelism, d.hardware
    domain = 1 if h.link_bandwidth is None else int(h.link_domain or _MOST_DEVICES)
    found = []
    for tp in range(1, min(domain, _MOST_DEVICES) + 1):
        wide = Parallelism(tp, p.pp, p.ep, p.cp, p.dp)
        try:
            found.append((float(wide.devices), d.replace(parallelism=wide)))
        except InputError:
            continue
    return found


def _fewer_bits(d: Deployment) -> list[tuple[str, Deployment]]:
    """The deployment with its own weights and with every narrower format, widest first."""
    own = d.weight_format("ffn")
    narrower = sorted((number_format(n) for n in FORMATS if number_format(n).bits < own.bits),
                      key=lambda f: -f.bits)
    return [(own.name, d), *((f.name, d.replace(weights=f.name)) for f in narrower)]


def _solve_choice(q: Question, name: str, now: float | str,
                  choices: Sequence[tuple[float | str, Deployment]]) -> Solution:
    """The first of the choices that meets the targets."""
    if not choices:
        raise InputError(f"--find: '{name}': no choice is valid for {q.deployment.model.name}")
    done = [(value, q.estimate(d)) for value, d in choices]
    hit = next(((v, e) for v, e in done if q.met(e)), None)
    able = [x for x in done if q.force or x[1].memory.fits] or done
    best = min(able, key=lambda x: float(q.excess(x[1])))
    return Solution(name, q, now, hit[0] if hit else None, hit[1] if hit else None, best[1],
                    best[0], _whole if name == "devices" else str)


def _others(q: Question, name: str) -> tuple[tuple[str, float, str], ...]:
    """Every other continuous quantity that reaches the targets alone."""
    found = []
    for other in _FIELDS:
        paid = any("usd" in t.metric.key for t in q.targets)
        if other == name or (other == "price" and not paid):
            continue
        try:
            k = knob(other, q.deployment)
        except InputError:
            continue
        value = _continuous(q, k)
        if value is not None and value != k.now:
            found.append((other, value, k.form(value)))
    return tuple(found)


def solve(d: Deployment, w: Workload, find: str, targets: Sequence[Target],
          figure: str = "expected", price: float | None = None, force: bool = False) -> Solution:
    """The value of `find` that meets all `targets` by `figure`; see `Solution`.

    find    memory-bandwidth, memory-capacity, flops, link-bandwidth, link-latency,
            bandwidth-efficiency, compute-efficiency, layer-overhead, host-time, price, devices
            (tensor parallel), batch, context (input + output), format (of weights, widest first)
    figure  of the target's own quantity: `low` of a rate is the slow end, `high` of a time too
    force   ignore memory
    """
    name = find.strip().lower().replace("_", "-")
    if name not in QUANTITIES:
        choices = nearest(name, QUANTITIES) or f" (valid: {', '.join(QUANTITIES)})"
        raise InputError(f"--find: unknown quantity '{find}'{choices}")
    if figure not in FIGURES:
        raise InputError(f"--figure: unknown figure '{figure}'{nearest(figure, FIGURES)}")
    if not targets and name not in ("memory-capacity", "batch", "context", "devices", "format"):
        raise InputError(f"--target: none given for '{name}'; write for example tpot=10ms")
    q = Question(d, w, tuple(targets), figure, price, force)
    _check(q, name)
    if name in _FIELDS:
        s = _solve_knob(q, name)
    elif name in ("batch", "context"):
        s = _solve_integer(q, "batch" if name == "batch" else "context")
    elif name == "devices":
        s = _solve_choice(q, name, float(d.devices), _wider(d))
    else:
        s = _solve_choice(q, name, d.weight_format("ffn").name, _fewer_bits(d))
    if s.value is not None:
        return s
    others, e = _others(q, name), s.best
    there = replace(q, deployment=e.deployment, workload=e.workload)
    return replace(s, others=others, also=() if others else _others(there, name))


def _check(q: Question, name: str) -> None:
    """Refuse targets that have no value here."""
    e = q.estimate()
    for t in q.targets:
        f: Figure | None = t.metric.get(e)
        if f is None:
            lacks = "price; add --price" if "usd" in t.metric.key else "figures for it"
            raise InputError(f"--target: {t.metric.key}: hardware '{q.deployment.hardware.name}' "
                             f"has no {lacks}")
        if t.metric.decode and q.workload.output <= 1:
            raise InputError(f"--target: {t.metric.key}: --output 1 has no decode step")
    if name == "price" and q.price is not None:
        raise InputError("--price: leave it out where the price is what is looked for")
