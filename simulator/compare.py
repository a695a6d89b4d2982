"""Deployments side by side: ratios of times against the first, and factors that multiply to them.

A ratio of expected times is taken apart by successive substitution: the reference gets the other's
model, then formats, then bandwidth, FLOP/s, devices and link, efficiency, overhead. Each factor is
the time after over the time before, so their product is the ratio exactly. The share of a factor
depends on that order; the ratio does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from simulator.crossover import Axis, Crossover, crossovers
from simulator.deployment import Deployment, Workload
from simulator.efficiency import Efficiency, KernelConstants
from simulator.errors import InputError
from simulator.memory import per_replica
from simulator.metrics import METRICS
from simulator.request import Estimate, estimate
from simulator.specs.hardware import QUANTITIES, Hardware
from simulator.step import PassTime, decode, prefill

PhaseName = Literal["prefill", "decode"]
PHASES: tuple[PhaseName, ...] = ("prefill", "decode")

_PEAKS = tuple(n for n in QUANTITIES if n.startswith(("peak_", "vector_")))
_LINKS = tuple(n for n in Hardware.__struct_fields__ if n != "link_energy" and n.startswith(
    ("link", "bridge", "host_", "scale_", "collect")))
MOST_ITEMS = 16


@dataclass(frozen=True)
class Factor:
    """What one substitution does to a time: `ratio` = time after / time before."""

    name: str
    ratio: float
    reason: str = ""


@dataclass(frozen=True)
class Item:
    """One deployment of a comparison; `label` tells it from the others."""

    label: str
    estimate: Estimate

    @property
    def fits(self) -> bool:
        """Whether it has rates."""
        return bool(self.estimate.memory.fits)


@dataclass(frozen=True)
class PhaseRatio:
    """Time of an item over that of the reference in one phase, and the factors of the ratio.

    low, high: from the ends of both ranges, as if they were independent.
    """

    phase: PhaseName
    ratio: float
    low: float
    high: float
    factors: tuple[Factor, ...]

    @property
    def certain(self) -> bool:
        """Whether both ends of the range name the same winner."""
        return (self.low > 1) == (self.high > 1)


@dataclass(frozen=True)
class Against:
    """An item against the reference. `phases` is empty where either does not fit."""

    item: Item
    phases: tuple[PhaseRatio, ...]
    crossovers: tuple[Crossover, ...]


@dataclass(frozen=True)
class Comparison:
    """Items under one workload; the first is the reference."""

    workload: Workload
    items: tuple[Item, ...]
    against: tuple[Against, ...]
    limits: dict[Axis, int]

    @property
    def reference(self) -> Item:
        """The item that ratios are against."""
        return self.items[0]


class _Mixed(Efficiency):
    """Efficiencies of one device with the kernel floors of another."""

    def __init__(self, body: Hardware, floors: Efficiency, d: Deployment) -> None:
        super().__init__(body, d.engine)
        self._floors, self.units = floors, floors.units

    def kernel(self, family: str, format: str = "bf16", phase: str = "decode") -> KernelConstants:
        """Constants of the body; floors and serial chains of the other."""
        own: KernelConstants = super().kernel(family, format, phase)
        floor = self._floors.kernel(family, format, phase)
        return msgspec.structs.replace(own, t0=floor.t0, tw=floor.tw, tau=floor.tau, te=floor.te)


@dataclass(frozen=True)
class _State:
    name: str
    deployment: Deployment
    hardware: Hardware
    efficiency: Efficiency
    reason: str = ""


def _time(s: _State, w: Workload, phase: PhaseName) -> PassTime:
    d = s.deployment.replace(hardware=s.hardware)
    batch = per_replica(d, w.batch)
    if phase == "prefill":
        return prefill(d, s.hardware, s.efficiency, batch, w.input, d.prefix_hit)
    return decode(d, s.hardware, s.efficiency, batch, w.input + 1.0,
                  max(w.input + w.output - 1.0, w.input + 1.0))


def _times(b: float, a: float) -> str:
    return f"{b / a:.3g}x" if a else "-"


def _content(a: Deployment, b: Deployment) -> list[tuple[str, Deployment]]:
    """Reference with the other's model, then with its formats too."""
    keep = {"hardware": a.hardware, "engine": a.engine}
    steps = []
    if b.model is not a.model and b.model != a.model:
        try:
            c = a.replace(model=b.model)
        except InputError:  # the reference's split does not divide the other model
            c = a.replace(model=b.model, parallelism=b.parallelism)
        steps.append(("model", c))
        a = c
    formats = {"weights": b.weights, "activations": b.activations, "kv": b.kv,
               "formats": b.formats, "prefix_hit": b.prefix_hit}
    if any(getattr(a, k) != v for k, v in formats.items()):
        steps.append(("formats", a.replace(**formats, **keep)))
    return steps


def _states(a: Deployment, b: Deployment) -> list[_State]:
    """The chain of substitutions from `a` to `b`; the hardware part only where it differs."""
    ha, hb = a.hardware, b.hardware
    own = Efficiency(ha, a.engine)
    chain = [_State("reference", a, ha, own)]
    for name, d in _content(a, b):
        chain.append(_State(name, d, ha, own))
    d = chain[-1].deployment
    same = ha is hb or ha == hb
    if not same:
        h = ha.replace(memory_bandwidth=hb.memory_bandwidth)
        chain.append(_State("bandwidth", d, h, own,
                            _times(float(hb.memory_bandwidth), float(ha.memory_bandwidth))))
        h = h.replace(**{n: getattr(hb, n) for n in _PEAKS})
        compute = d.compute("ffn")
        chain.append(_State("FLOP/s", d, h, own, _times(float(hb.peak(compute)[0]),
                                                        float(ha.peak(compute)[0]))))
    else:
        h = ha
    if d.parallelism != b.parallelism or (not same and max(a.devices, b.devices) > 1):
        h = h.replace(**{n: getattr(hb, n) for n in _LINKS}) if not same else h
        d = d.replace(parallelism=b.parallelism)
        chain.append(_State("devices and links", d, h, own, f"{a.devices} to {b.devices}"
                            if a.devices != b.devices else "links"))
    if not same:
        floors = hb.replace(layer_overhead=ha.layer_overhead)
        chain.append(_State("efficiency", d, floors, _Mixed(hb, own, d)))
        chain.append(_State("overhead", d, hb, Efficiency(hb, d.engine)))
    if d.engine != b.engine:
        chain.append(_State("engine", b, hb, Efficiency(hb, b.engine)))
    return chain


def _quotient(name: str, after: float, before: float, reason: str = "") -> Factor:
    return Factor(name, 1.0 if after == before else after / before, reason)


def _work_factors(s: _State, before: PassTime, after: PassTime, previous: _State) -> list[Factor]:
    """A change of model or formats: bytes or FLOPs, then how well they run, then fixed costs.

    time = Q/W x (ceiling / (Q/W)) x (kernels / ceiling) x (time / kernels), with F/C in place of
    Q/W where arithmetic decides the ceiling of both.
    """
    W = float(s.hardware.memory_bandwidth)
    C = float(s.hardware.peak(s.deployment.compute("ffn"))[0])
    C0 = float(previous.hardware.peak(previous.deployment.compute("ffn"))[0])
    compute = before.ceiling_bound == after.ceiling_bound == "compute"
    lead = ([float(p.flops) / c for p, c in ((before, C0), (after, C))] if compute
            else [float(p.bytes) / W for p in (before, after)])
    ceiling = [float(p.ceiling) for p in (before, after)]
    kernels = [float(p.expected - p.overhead - p.network) for p in (before, after)]
    total = [float(p.expected) for p in (before, after)]
    amount = (f"{_times(float(after.flops), float(before.flops))} FLOPs"
              + (f" at {_times(C, C0)} FLOP/s" if C != C0 else "") if compute
              else f"{_times(float(after.bytes), float(before.bytes))} bytes")

    def share(i: int, over: list[float], under: list[float]) -> float:
        return over[i] / under[i] if under[i] else 1.0

    return [
        _quotient(f"{s.name}: {'FLOPs' if compute else 'bytes'}", lead[1], lead[0], amount),
        _quotient(f"{s.name}: {'bytes' if compute else 'FLOPs'} beside them",
                  share(1, ceiling, lead), share(0, ceiling, lead)),
        _quotient(f"{s.name}: efficiency", share(1, kernels, ceiling), share(0, kernels, ceiling),
                  f"kernels at {_reached(before):.0%} to {_reached(after):.0%} of the ceiling"),
        _quotient(f"{s.name}: fixed costs", share(1, total, kernels), share(0, total, kernels),
                  f"{1 - share(0, kernels, total):.0%} to {1 - share(1, kernels, total):.0%} of "
                  "the time"),
    ]


def factors(a: Estimate, b: Estimate, phase: PhaseName) -> tuple[Factor, ...]:
    """Factors of the ratio of two expected times of a phase (scalars); their product is the ratio.

    The last factor, `range`, stands only where an expected time was raised to its ceiling at the
    favourable end of a range.
    """
    w = a.workload
    chain = _states(a.deployment, b.deployment)
    times = [_time(s, w, phase) for s in chain]
    found: list[Factor] = []
    for i in range(1, len(chain)):
        s, before, after = chain[i], times[i - 1], times[i]
        if s.name in ("model", "formats"):
            found += _work_factors(s, before, after, chain[i - 1])
            continue
        reason = s.reason
        if s.name == "overhead":
            reason = f"fixed {_ms(before.overhead)} to {_ms(after.overhead)}"
        if s.name == "efficiency":
            reason = f"kernels at {_reached(before):.0%} to {_reached(after):.0%} of the ceiling"
        found.append(_quotient(s.name, float(after.expected), float(before.expected), reason))
    start, end = (float(getattr(e, phase).time.expected) for e in (a, b))
    product = math.prod(f.ratio for f in found)
    rest = end / start / product
    if abs(rest - 1) > 1e-9:
        found.append(Factor("range", rest, "raised to the ceiling of the favourable end"))
    return tuple(found)


def _reached(p: PassTime) -> float:
    """Share of the ceiling's speed that kernels reach, without fixed costs and network."""
    return float(p.ceiling / (p.expected - p.overhead - p.network))


def _ms(seconds: Any) -> str:
    from simulator.units import format_time

    return format_time(float(seconds))


def phase_ratio(a: Estimate, b: Estimate, phase: PhaseName) -> PhaseRatio:
    """The ratio of the times of a phase with its range and its factors."""
    x, y = getattr(a, phase).time, getattr(b, phase).time
    return PhaseRatio(phase, float(y.expected / x.expected), float(y.low / x.high),
                      float(y.high / x.low), factors(a, b, phase))


def _longest(a: Deployment, b: Deployment, most: int | None) -> int:
    positions = int(min(a.model.positions, b.model.positions))
    return min(positions, 131072) if most is None else most


def compare(deployments: Sequence[tuple[str, Deployment]], w: Workload, price: float | None = None,
            max_batch: int = 4096, max_context: int | None = None,
            force: bool = False) -> Comparison:
    """Deployments, each with a label, against the first one under one (scalar) workload.

    What does not fit has no ratios, unless forced; crossovers are searched up to `max_batch` and
    `max_context` (default: the positions that both models have, at most 131,072).
    """
    if not 2 <= len(deployments) <= MOST_ITEMS:
        raise InputError(f"compare: {len(deployments)} deployments, needs 2 to {MOST_ITEMS}; add "
                         "names to --hardware, --models or --formats")
    items = tuple(Item(label, estimate(d, w, price)) for label, d in deployments)
    first = items[0]
    phases = [p for p in PHASES if p == "prefill" or w.output > 1]
    limits: dict[Axis, int] = {"batch": max_batch, "context": min(
        _longest(deployments[0][1], d, max_context) for _, d in deployments[1:])}
    against = []
    for item in items[1:]:
        stands = force or (first.fits and item.fits)
        found = tuple(phase_ratio(first.estimate, item.estimate, p)
                      for p in phases) if stands else ()
        crossing = tuple(c for axis, most in limits.items() for c in crossovers(
            first.estimate.deployment, item.estimate.deployment, w, axis, most, price=price,
            force=force))
        against.append(Against(item, found, crossing))
    return Comparison(w, items, tuple(against), limits)


def labels(deployments: Sequence[Deployment], formats: Sequence[str | None]) -> list[str]:
    """The shortest names that tell deployments apart: of what differs among them."""
    columns = [
        [d.model.name for d in deployments],
        [f"{d.devices}x{d.hardware.name}" if d.devices > 1 else d.hardware.name
         for d in deployments],
        [f or d.weight_format("ffn").name for d, f in zip(deployments, formats, strict=True)],
    ]
    used = [c for c in columns if len(set(c)) > 1] or [columns[1]]
    return [" ".join(parts) for parts in zip(*used, strict=True)]


RATE_KEYS = ("tok/s", "total-tok/s", "device-tok/s", "tok/usd", "tok/W", "usd", "joules")


def rates(e: Estimate) -> dict[str, Any]:
    """Figures of an estimate by metric key; None where there is nothing to say."""
    return {key: METRICS[key].get(e) for key in ("ttft", "tpot", "e2e", *RATE_KEYS)}
