"""What a roofline shows, as rows: roofs, operations, whole passes and trajectories.

Intensities [FLOP/byte] and rates [FLOP/s] are those of one device while it works; bandwidths
[bytes/s], peaks [FLOP/s] dense, times [s].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simulator.clock import OperationTime
from simulator.deployment import Deployment, Workload
from simulator.efficiency import Efficiency
from simulator.layer_parts import gemm_format, sum_of
from simulator.memory import memory
from simulator.plots.style import group_of
from simulator.request import Estimate, estimate
from simulator.roofline import ridge_point, smooth_max
from simulator.specs.hardware import Hardware
from simulator.units import format_flops

PHASES = ("prefill", "decode")
# Of equal peaks the first is drawn; what only stores numbers has no roof.
_PRECISIONS = ("bf16", "fp16", "fp8", "int8", "fp4", "tf32", "fp32")
_MATRIX = ("matrices", "experts")


@dataclass(frozen=True)
class Roof:
    """One memory level and one precision of a device, with the fractions kernels reach.

    main: the pair that the model's matrices work at. low, high: both rates at the ends of ranges.
    """

    level: str
    precision: str
    bandwidth: float
    peak: float
    e: float
    h: float
    p: float | None
    main: bool
    low: tuple[float, float]
    high: tuple[float, float]

    @property
    def ridge(self) -> float:
        """FLOP/byte where the two lines of the ceiling meet."""
        return float(ridge_point(self.peak, self.bandwidth))

    def ceiling(self, x: Any) -> Any:
        """min(C, W x) [FLOP/s] at intensity x."""
        return np.minimum(self.peak, self.bandwidth * np.asarray(x))

    def ends(self, x: Any) -> tuple[Any, Any]:
        """The ceiling at the unfavourable and the favourable end of the spec's ranges."""
        return tuple(np.minimum(c, w * np.asarray(x))  # type: ignore[return-value]
                     for w, c in (self.low, self.high))

    def expected(self, x: Any) -> Any:
        """What large kernels reach [FLOP/s]: the expected time's body, without launch floors."""
        return 1.0 / smooth_max(1.0 / (self.e * self.peak),
                                1.0 / (self.h * self.bandwidth * np.asarray(x)), self.p)


def levels(hardware: Hardware) -> list[tuple[str, float]]:
    """Memories of a device with their bandwidth, the one that holds the model first."""
    main = (hardware.memory_type or "memory").split(" on ")[0]
    found = [(main, hardware.memory_bandwidth)]
    if hardware.cache_bandwidth is not None:
        found.append(("L2 cache", hardware.cache_bandwidth))
    if hardware.onchip_bandwidth is not None:
        found.append(("on-chip", hardware.onchip_bandwidth))
    return found + [(tier.name, tier.bandwidth) for tier in hardware.tiers]


def precisions(hardware: Hardware, compute: str) -> list[tuple[str, float]]:
    """Dense peaks of a device, that of `compute` first; equal ones once, slower ones never."""
    peak, name = hardware.peak(compute)
    found = [(name, float(peak))]
    for other in _PRECISIONS[:5]:
        value = getattr(hardware, f"peak_{other}")
        if value is None or value < peak or any(
                abs(value / known - 1) < 0.02 for _, known in found):
            continue
        found.append((other, float(value)))
    return found


def roofs(d: Deployment) -> list[Roof]:
    """All levels and precisions of a deployment's device; the first is the main one."""
    h, k = d.hardware, Efficiency(d.hardware, d.engine)
    gemm = k.kernel("gemm", gemm_format(d, "ffn"), "prefill")
    ends = h.at_ends(False, h.timed_ranges), h.at_ends(True, h.timed_ranges)
    found = []
    for i, (level, bandwidth) in enumerate(levels(h)):
        for j, (name, peak) in enumerate(precisions(h, d.compute("ffn"))):
            corner = [tuple(pair) for pair in (
                (_rate(end, "memory_bandwidth", bandwidth, i), _peak(end, name, peak))
                for end in ends)]
            found.append(Roof(level, name, float(bandwidth), peak, float(gemm.e), float(gemm.h),
                              gemm.p, i == j == 0, *corner))  # type: ignore[arg-type]
    return found


def _rate(end: Hardware, field: str, own: float, index: int) -> float:
    return float(getattr(end, field)) if index == 0 else float(own)


def _peak(end: Hardware, name: str, own: float) -> float:
    value = getattr(end, f"peak_{name}", None)
    return own if value is None else float(value)


def _base(d: Deployment, name: str, e: Estimate, phase: str) -> dict[str, Any]:
    w = e.workload
    return {"hardware": d.hardware.name, "device": name, "phase": phase, "batch": float(w.batch),
            "input": float(w.input), "output": float(w.output), "fits": bool(e.memory.fits)}


def _point(times: Sequence[OperationTime], time: Any) -> dict[str, Any]:
    """Intensity and rate of some operations together."""
    flops = np.asarray(sum_of(t.flops for t in times), float)
    moved = np.asarray(sum_of(t.bytes for t in times), float)
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where(moved > 0, flops / moved, np.nan)
        rate = np.where(time > 0, flops / time, np.nan)
    return {"flops": flops, "bytes": moved, "time_s": np.asarray(time, float),
            "intensity_flop_per_byte": intensity, "flops_per_s": rate}


def operation_rows(d: Deployment, name: str, e: Estimate) -> list[dict[str, Any]]:
    """Each operation of both passes, and each pass as a whole."""
    rows = []
    for phase in PHASES if float(e.workload.output) > 1 else PHASES[:1]:
        detail = getattr(e, phase).detail
        base = _base(d, name, e, phase)
        for t in detail.operations:
            o = t.operation
            rows.append({"series": "operation"} | base | {
                "name": o.name, "kind": o.kind, "group": group_of(o.kind), "count": float(o.count),
                "precision": o.compute, "share": float(t.expected / detail.expected),
                "bound": t.bound} | _scalars(_point([t], t.expected)))
        if float(detail.host):
            rows.append({"series": "operation"} | base | {
                "name": "host", "kind": "host", "group": "host", "count": 1.0,
                "share": float(detail.host / detail.expected)}
                | _scalars(_point([], detail.host)))
        rows.append({"series": "pass"} | base | {
            "name": phase, "share": 1.0, "bound": str(detail.bound)}
            | _scalars(_point(detail.operations, detail.expected)))
    return rows


def _scalars(point: dict[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in point.items()}


def path_rows(d: Deployment, name: str, w: Workload, along: str,
              values: Sequence[float]) -> list[dict[str, Any]]:
    """Decode as the batch grows, both phases as the context grows; decode by group too."""
    numbers = np.asarray(values, float)
    asked = (Workload(numbers, w.input, w.output) if along == "batch"
             else Workload(w.batch, numbers, w.output))
    e = estimate(d, asked, operations=True)
    fits = np.broadcast_to(e.memory.fits, numbers.shape)
    rows = []
    phases = PHASES if float(w.output) > 1 else PHASES[:1]
    for phase in phases if along == "context" else phases[-1:]:
        detail = getattr(e, phase).detail
        groups: dict[str, tuple[list[OperationTime], Any]] = {
            "pass": (list(detail.operations), detail.expected)}
        for wanted, member in (("matrices", _MATRIX), ("attention", ("attention",))):
            chosen = [t for t in detail.operations if group_of(t.operation.kind) in member]
            if phase == "decode" and chosen:
                groups[wanted] = chosen, sum_of(t.expected for t in chosen)
        for group, (times, time) in groups.items():
            point = {k: np.broadcast_to(v, numbers.shape)
                     for k, v in _point(times, time).items()}
            rows += [{
                "series": f"{along} path", "hardware": d.hardware.name, "device": name,
                "phase": phase, "group": group, "fits": bool(fits[i]),
                "batch": float(numbers[i] if along == "batch" else w.batch),
                "input": float(numbers[i] if along == "context" else w.input),
                "output": float(w.output),
            } | {k: float(v[i]) for k, v in point.items()} for i in range(len(numbers))]
    return rows


def roof_rows(d: Deployment, name: str) -> list[dict[str, Any]]:
    """The lines of a device."""
    return [{
        "series": "roof", "hardware": d.hardware.name, "device": name, "level": r.level,
        "precision": r.precision, "main": r.main, "bandwidth_bytes_per_s": r.bandwidth,
        "peak_flops_per_s": r.peak, "ridge_flop_per_byte": r.ridge,
        "expected_compute_fraction": r.e, "expected_bandwidth_fraction": r.h,
        "bandwidth_low_bytes_per_s": r.low[0], "bandwidth_high_bytes_per_s": r.high[0],
        "peak_low_flops_per_s": r.low[1], "peak_high_flops_per_s": r.high[1],
    } for r in roofs(d)]


def drawn(data: pd.DataFrame) -> Any:
    """Whether a row is on log axes: what computes nothing, or moves nothing, is not."""
    on_axes = (data["intensity_flop_per_byte"] > 0) & (data["flops_per_s"] > 0)
    return on_axes | (data["series"] == "roof")


def fitting(d: Deployment, w: Workload, batches: Sequence[float],
            contexts: Sequence[float]) -> float:
    """The batch of the context path."""
    most = float(memory(d, float(w.batch), float(min(contexts)), float(w.output)).max_batch)
    return max((b for b in batches if b <= most), default=float(w.batch))


def power(value: float) -> str:
    """A tick of the rate axis: `100T`."""
    return format_flops(value, "").replace(".00", "").replace(".0", "").replace(" ", "")
