"""The answer to "how fast": TTFT, TPOT, end to end and rates, each with its range.

Four figures stand for each quantity. `ceiling`: physics, nothing added, at the favourable end of
every range in the spec. `expected`: efficiencies, floors and host time. `low` and `high`: the
expectation at the favourable and unfavourable ends, widened by the uncertainty of the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from simulator import energy
from simulator.arrays import Array, holds_arrays, several
from simulator.cost import usd_per_million_tokens
from simulator.deployment import Deployment, Workload
from simulator.efficiency import Efficiency
from simulator.efficiency.stacked import efficiency_of
from simulator.errors import InputError
from simulator.feature_pass import decode_pass, prefill_pass
from simulator.memory import Memory, memory, per_replica
from simulator.specs.hardware import Hardware
from simulator.specs.stack import Stack
from simulator.stages import (
    decode_micro_batch,
    fill_and_drain,
    last_share,
    prefill_micro_batch,
)
from simulator.step import PassTime


class Figure(msgspec.Struct, frozen=True):
    """A quantity four times. For times ceiling <= low <= expected <= high; for rates reversed."""

    ceiling: Array
    expected: Array
    low: Array
    high: Array

    def rate(self, amount: Array = 1.0) -> Figure:
        """`amount` per this time: the slowest time is the lowest rate."""
        return Figure(amount / self.ceiling, amount / self.expected, amount / self.high,
                      amount / self.low)

    def plus(self, other: Figure, factor: Array = 1.0) -> Figure:
        """This time and `factor` times the other."""
        return Figure(*(a + factor * b for a, b in zip(self.all, other.all, strict=True)))

    def times(self, factor: Array) -> Figure:
        """This figure times a factor, the same for each of the four."""
        return Figure(*(factor * value for value in self.all))

    @property
    def all(self) -> tuple[Array, Array, Array, Array]:
        """ceiling, expected, low, high."""
        return self.ceiling, self.expected, self.low, self.high


class Phase(msgspec.Struct, frozen=True):
    """One pass (prefill) or the mean step (decode): its time and what it is made of.

    `utilisation` is MFU for prefill and MBU for decode, against the dense peak of the device.
    """

    time: Figure
    detail: PassTime
    utilisation: Array
    peak: Array
    peak_format: str


CAUSED = ("tpot", "ttft", "energy_per_token", "usd_per_million_tokens")


class Cause(msgspec.Struct, frozen=True):
    """A range in the spec and what it alone does: figures at its favourable and its other end."""

    field: str
    low: float
    mid: float
    high: float
    tpot: tuple[Array, Array]
    ttft: tuple[Array, Array]
    energy_per_token: tuple[Array, Array]
    usd_per_million_tokens: tuple[Array, Array]


@dataclass(frozen=True)
class Estimate:
    """Everything an estimate says; arrays where the workload or a spec holds arrays.

    `decode` has no meaning where the output is one token: its values there are NaN.
    """

    deployment: Deployment
    workload: Workload
    efficiency: Efficiency
    memory: Memory
    prefill: Phase
    decode: Phase
    ttft: Figure
    tpot: Figure
    e2e: Figure
    energy_per_token: Figure | None
    usd_per_million_tokens: Figure | None

    @property
    def client_ttft(self) -> Figure:
        """TTFT with the server's fixed time a request (HTTP, tokens, admission), no queue.

        That time is fitted, so it has the range of the prefill, and physics has none of it.
        """
        fixed = self.deployment.engine.request_time
        factor = self.efficiency.prefill_spread(self.workload.input)
        return self.ttft.plus(Figure(0.0, fixed, fixed / factor, fixed * factor))

    @property
    def tokens_per_s_per_user(self) -> Figure:
        """1 / TPOT."""
        return self.tpot.rate()

    @property
    def output_tokens_per_s(self) -> Figure:
        """Decode rate of the whole deployment: batch / TPOT."""
        return self.tpot.rate(self.workload.batch)

    @property
    def request_output_tokens_per_s(self) -> Figure:
        """Output of the whole deployment over the whole request: batch x output / E2E."""
        return self.e2e.rate(self.workload.batch * self.workload.output)


# What is asked of a pass at the ends of the ranges.
_OF_ENDS = ("ceiling", "expected", "flops", "bytes", "wire")


class _Run(msgspec.Struct, frozen=True):
    hardware: Hardware
    efficiency: Efficiency
    prefill: PassTime
    decode: PassTime


def _run(d: Deployment, hardware: Hardware, w: Workload, listed: bool = True) -> _Run:
    constants = efficiency_of(hardware, d.engine)
    batch = per_replica(d, w.batch)
    last = np.maximum(w.input + w.output - 1.0, w.input + 1.0)
    stages = d.parallelism.pp
    at_once, in_step = prefill_micro_batch(batch, stages), decode_micro_batch(batch, stages)
    if d.prefill_chunk is not None:
        at_once = batch
    if d.parallelism.dp > 1 and d.parallelism.ep > 1:
        d = d.replace(busy_replicas=w.batch / batch)
    first = prefill_pass(d, hardware, constants, at_once, w.input)
    step = decode_pass(d, hardware, constants, in_step, w.input + 1.0, last, listed)
    if stages > 1:
        passes, rounds = batch / at_once, batch / in_step
        slow, slow_at_ceiling = first.stage_shares(last_share(d))
        first = first.repeated(fill_and_drain(passes, slow),
                               fill_and_drain(passes, slow_at_ceiling), passes)
        slow, slow_at_ceiling = step.stage_shares(last_share(d))
        step = step.repeated(np.maximum(rounds * slow, 1.0),
                             np.maximum(rounds * slow_at_ceiling, 1.0), rounds)
    return _Run(hardware, constants, first, step)


def check_workload(w: Workload) -> None:
    """Refuse sequences and lengths below 1, and numbers that aren't finite."""
    for name in ("batch", "input", "output"):
        try:
            values = np.asarray(getattr(w, name), dtype=float)
        except (TypeError, ValueError):
            raise InputError(f"{name}: {getattr(w, name)!r} is not a number") from None
        if not np.all(np.isfinite(values)) or np.any(values < 1):
            raise InputError(f"{name}: must be at least 1 and finite")
        if np.any(values > 1e9):
            raise InputError(f"{name}: above 1e9")


def _as_float(value: Array) -> Array:
    """float64, so that FLOPs of large arrays never overflow an integer."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value, dtype=np.float64)


# Rows that stay in a core's L2 cache while every operation passes over them.
CHUNK = 8192


def estimate(d: Deployment, w: Workload | None = None, price: float | None = None,
             operations: bool | None = None) -> Estimate:
    """Times, memory, energy and cost of a deployment under a workload.

    `price` [USD/h a device] replaces the spec's. Workload and any number of a spec may be arrays
    that broadcast; the result then holds arrays. Rates are given even where it doesn't fit:
    `memory.fits` says whether they mean anything. The list of operations is kept for a scalar
    workload, and for arrays only where `operations` asks for it, since it is large.
    """
    w = Workload() if w is None else w
    check_workload(w)
    w = Workload(_as_float(w.batch), _as_float(w.input), _as_float(w.output))
    if not np.all((np.asarray(d.prefix_hit) >= 0) & (np.asarray(d.prefix_hit) <= 1)):
        raise InputError("prefix-hit: must lie between 0 and 1")
    shapes = {np.shape(v) for v in (w.batch, w.input, w.output)} - {()}
    if not operations and len(shapes) == 1:
        shape = next(iter(shapes))
        if len(shape) == 1 and shape[0] > CHUNK and not holds_arrays(
                (d.hardware, d.engine, d.model, d.prefix_hit, d.expert_skew, price,
                 d.speculation.accepted if d.speculation else None)):
            return _in_chunks(d, w, price, shape[0])
    return _estimate(d, w, price, bool(operations) or not shapes)


def _in_chunks(d: Deployment, w: Workload, price: float | None, rows: int) -> Estimate:
    def part(value: Array, start: int) -> Array:
        return value if np.ndim(value) == 0 else value[start:start + CHUNK]

    starts = range(0, rows, CHUNK)
    parts = [_estimate(d, Workload(*(part(v, i) for v in (w.batch, w.input, w.output))), price,
                       False) for i in starts]
    joined: Estimate = replace(_joined(parts, [min(CHUNK, rows - i) for i in starts]),
                               deployment=d, workload=w)
    return joined


def _joined(parts: list[Any], rows: list[int]) -> Any:
    """One result from the same result of consecutive rows, so many in each part."""
    first = parts[0]
    if isinstance(first, msgspec.Struct):
        return msgspec.structs.replace(first, **{
            f: _joined([getattr(x, f) for x in parts], rows) for f in first.__struct_fields__})
    if isinstance(first, Estimate):
        return replace(first, **{
            f.name: _joined([getattr(x, f.name) for x in parts], rows) for f in fields(first)})
    if any(map(several, parts)):    # one number may hold for all rows of a part
        return np.concatenate([np.broadcast_to(x, n) for x, n in zip(parts, rows, strict=True)])
    return first


def _estimate(d: Deployment, w: Workload, price: float | None, operations: bool) -> Estimate:
    hardware = d.hardware
    runs = _runs(d, hardware, w, operations)
    mid, best, worst = runs
    spread = mid.efficiency.spread
    first = _phase_figure(mid.prefill, best.prefill, worst.prefill,
                          mid.efficiency.prefill_spread(w.input))
    alone = (w.batch <= 1) & (d.devices == 1)
    step = _phase_figure(mid.decode, best.decode, worst.decode,
                         np.where(alone, spread["one"], spread["decode"]))
    one = w.output <= 1
    once = bool(np.any(one))
    if once:
        step = Figure(*(np.where(one, np.nan, value) for value in step.all))
    growth = Figure(*(np.where(one, 0.0, v) for v in step.all)) if once else step
    e2e = first.plus(growth, w.output - 1.0)
    return Estimate(
        deployment=d,
        workload=w,
        efficiency=mid.efficiency,
        memory=memory(d, w.batch, w.input, w.output),
        prefill=_phase(d, mid.prefill, first, "mfu", operations),
        decode=_phase(d, mid.decode, step, "mbu", operations),
        ttft=first,
        tpot=step,
        e2e=e2e,
        energy_per_token=_energy(d, w, runs, first, growth),
        usd_per_million_tokens=_cost(d, w, e2e, price),
    )


def _runs(d: Deployment, hardware: Hardware, w: Workload,
          listed: bool) -> tuple[_Run, _Run, _Run]:
    names = hardware.timed_ranges
    if names and isinstance(hardware, Stack):
        return _stacked_runs(d, hardware, w)
    mid = _run(d, hardware, w, listed)
    if not names:
        return mid, mid, mid
    return (mid, _run(d, hardware.at_ends(True, names), w, listed),
            _run(d, hardware.at_ends(False, names), w, listed))


def hardware_ends(hardware: Hardware) -> tuple[Hardware, Hardware, Hardware]:
    """The hardware at the middle, favourable and unfavourable ends of its ranges."""
    names = hardware.timed_ranges
    if not names:
        return hardware, hardware, hardware
    return hardware, hardware.at_ends(True, names), hardware.at_ends(False, names)


def _stacked_runs(d: Deployment, hardware: Stack, w: Workload) -> tuple[_Run, _Run, _Run]:
    """The same for stacked devices in one run: the ends of a range are two more devices."""
    everything, places = hardware.with_ends()
    run, devices = _run(d, everything, w), len(everything.members)
    constants = efficiency_of(hardware, d.engine)

    def picked(times: PassTime, pick: Callable[[Array], Array], fields: Sequence[str]) -> PassTime:
        return msgspec.structs.replace(times, operations=(), **{
            f: np.nan if f not in fields else pick(value) if (
                np.shape(value := getattr(times, f))[:1] == (devices,)) else value
            for f in times.__struct_fields__ if f != "operations"})

    def of(pick: Callable[[Array], Array], fields: Sequence[str]) -> _Run:
        return _Run(hardware, constants, picked(run.prefill, pick, fields),
                    picked(run.decode, pick, fields))

    best, worst = (of(partial(np.take, indices=at, axis=0), _OF_ENDS) for at in places)
    return of(lambda value: value[:len(hardware.members)], PassTime.__struct_fields__), best, worst


def _phase_figure(mid: PassTime, best: PassTime, worst: PassTime, spread: Array) -> Figure:
    return Figure(
        ceiling=best.ceiling,
        expected=np.maximum(mid.expected, best.ceiling),
        low=np.maximum(best.expected / spread, best.ceiling),
        high=worst.expected * spread,
    )


def fastest_peak(d: Deployment) -> tuple[Array, str]:
    """The peak that MFU is against: of the products, or of attention where its unit is faster."""
    peak, name = d.hardware.peak(d.compute("ffn"))
    other, other_name = d.hardware.peak(d.activation_format.compute or "bf16")
    return np.maximum(peak, other), other_name if np.all(other > peak) else name


def _phase(d: Deployment, detail: PassTime, time: Figure, kind: str, operations: bool) -> Phase:
    peak, name = fastest_peak(d)
    if not operations:
        detail = msgspec.structs.replace(detail, operations=())
    used = detail.flops / peak if kind == "mfu" else detail.bytes / d.hardware.memory_bandwidth
    share = used / time.expected
    if np.any(share > 1.0):
        exact = (share > 1.0) & (share < 1.0 + 1e-12)    # rounding of a phase at its bound
        share = np.where(exact, 1.0, share)
    return Phase(time, detail, share, peak, name)


def causes(d: Deployment, w: Workload, price: float | None = None) -> list[Cause]:
    """Each range of the spec that moves a figure, moved alone from its best to its other end."""
    found = []
    for name, r in d.hardware.ranges.items():
        if name == "price" and price is not None:
            continue
        ends = [estimate(d.replace(hardware=msgspec.structs.replace(
            d.hardware.at_ends(good, [name]), ranges={})), w, price) for good in (True, False)]
        figures = [[_expected(getattr(e, figure)) for e in ends] for figure in CAUSED]
        if all(np.array_equal(pair[0], pair[1], equal_nan=True) for pair in figures):
            continue
        found.append(Cause(name, r.low, r.mid, r.high, **{
            figure: (pair[0], pair[1]) for figure, pair in zip(CAUSED, figures, strict=True)}))
    return sorted(found, key=lambda c: -float(np.nanmax(c.tpot[1] - c.tpot[0]))
                  if np.all(np.isfinite(c.tpot)) else 0.0)


def _expected(figure: Figure | None) -> Array:
    return np.nan if figure is None else figure.expected


def _energy(d: Deployment, w: Workload, runs: tuple[_Run, _Run, _Run], first: Figure,
            step: Figure) -> Figure | None:
    """Joules of prefill and decode of all devices, per output token."""
    if not energy.known(d.hardware):
        return None
    mid, best, worst = runs
    ends = {f for f in ("idle_power", "memory_energy", "compute_energy", "link_energy", "tdp")
            if f in d.hardware.ranges}
    low, high = d.hardware.at_ends(True, ends), d.hardware.at_ends(False, ends)
    steps = w.output - 1.0
    share = d.devices / (w.batch * w.output)

    dp = d.parallelism.dp
    load = 1.0 if dp == 1 else w.batch / (dp * per_replica(d, w.batch))

    def joules(h: Hardware, run: _Run, *times: tuple[Array, Array]) -> list[Array]:
        moved = [energy.pass_dynamic(h, p.bytes, p.flops, p.wire, load)
                 for p in (run.prefill, run.decode)]
        passes = ([energy.device_energy(x, t, h.idle_power, h.tdp)
                   for x, t in zip(moved, pair, strict=True)] for pair in times)
        return [(a + steps * b) * share for a, b in passes]

    ceiling, least = joules(low, best, (first.ceiling, step.ceiling), (first.low, step.low))
    (middle,) = joules(d.hardware, mid, (first.expected, step.expected))
    (most,) = joules(high, worst, (first.high, step.high))
    expected = np.maximum(middle, least)
    return Figure(ceiling, expected, least, np.maximum(most, expected))


def _cost(d: Deployment, w: Workload, e2e: Figure, price: float | None) -> Figure | None:
    """Dollars per million output tokens over the whole request, at the dated or given price."""
    if price is not None:
        ends: tuple[Any, Any, Any] = (price / 3600.0,) * 3
    elif d.hardware.price is not None:
        r = d.hardware.ranges.get("price")
        mid = d.hardware.price
        ends = (mid, mid, mid) if r is None else (r.low, mid, r.high)
    else:
        return None
    tokens = w.batch * w.output
    low, middle, high = ends
    return Figure(*(
        usd_per_million_tokens(p, d.devices, tokens / t)
        for p, t in ((low, e2e.ceiling), (middle, e2e.expected), (low, e2e.low), (high, e2e.high))))
