"""The time of operations on a machine whose kernels and caches were measured (`tokline calibrate`).

A kernel takes its floor, and its arithmetic at the rate that was measured for so many rows: with
its data in a cache (r), or in memory (r'), by the share x of its bytes that the caches don't hold.

    t = t0(m) + F (1 + s/k) ((1 - x) / r(m) + x / r'(m))

Of that F (1 + s/k) / max(r) is arithmetic; what few rows take beyond it is for reading the weights.
"""

from __future__ import annotations

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.caches import missed_bytes, tiered_time
from simulator.clock import Clock, OperationTime
from simulator.efficiency import Efficiency
from simulator.formats import number_format
from simulator.layer_parts import Phase
from simulator.operations import Operation
from simulator.roofline import NODES, WEIGHTS, overlapped
from simulator.specs.hardware import Hardware
from simulator.specs.hardware_parts import KernelTable

# Kernels that no calibration times, and the one that was whose arithmetic is the same.
_LIKE = {"moe": "gemm", "mla_prefill": "attention_prefill", "mla_decode": "attention_decode"}


def time_per_row(m: Array, rows: tuple[float, ...], rates: tuple[float, ...]) -> Array:
    """Seconds for each FLOP (or byte) at m rows: the times m/r(m), joined by straight lines.

    Below the first row the rate of the first; above the last that of the last.
    """
    times = np.asarray(rows) / np.asarray(rates)
    m = np.maximum(m, rows[0])
    inside = np.interp(np.minimum(m, rows[-1]), rows, times)
    return np.where(np.greater(m, rows[-1]), m / rates[-1], inside) / m


def with_starts(F: Array, s: Array, k: Array) -> Array:
    """F (1 + s/k): every inner product of k values starts as if it had s more."""
    return F * (1.0 + s / k)


class MeasuredClock(Clock):
    """A clock that reads the kernel tables and the caches of the hardware file.

    `working` is the working set of the pass [bytes].
    """

    def __init__(self, hardware: Hardware, efficiency: Efficiency, phase: Phase,
                 node: int | None, format: str, working: Array) -> None:
        super().__init__(hardware, efficiency, phase, node)
        self.format, self.working = format, working
        self.per_row = np.ndim(working) > 0
        self._tables = {(k.kernel, k.format, k.operation): k for k in hardware.kernels}

    def table(self, o: Operation) -> KernelTable | None:
        """Measured kernel of an operation: of its own format, or of the nearest that was timed."""
        name = _LIKE.get(o.kernel, o.kernel)
        part = None
        if name == "elementwise":
            part = o.format if ("elementwise", self.format, o.format) in self._tables else "other"
        formats = [o.compute if o.compute != "vector" else self.format, "bf16", "fp16", "fp32"]
        return next((self._tables[key] for f in formats
                     if (key := (name, f, part)) in self._tables), None)

    def point(self, o: Operation) -> OperationTime:
        """An operation whose cost is the same throughout the pass."""
        if o.collective is not None:
            return self.collective(o)
        c, m = self._least(o)
        compute, memory, floor = self._terms_of(o, c, m)
        n = o.count
        return self._assemble(o, n * np.maximum(c, m), n * compute, n * memory, n * floor, c > m,
                              n * o.flops, n * o.bytes)

    def span(self, o: Operation, end: Operation, first: Array, last: Array) -> OperationTime:
        """Mean over the contexts from `first` to `last`; `o` at the first, `end` at the last."""
        points = np.maximum(last - first + 1.0, 1.0)
        growing = points if o.limit is None else np.clip(
            np.minimum(last, o.limit) - first + 1.0, 0.0, points)
        share = growing / points
        sums: list[Array] = [0.0] * 6
        for x, weight in zip(NODES, WEIGHTS, strict=True):
            at = _between(o, end, (x + 1.0) / 2.0)
            c, m = self._least(at)
            parts = (np.maximum(c, m), *self._terms_of(at, c, m), at.flops, at.bytes)
            sums = [total + weight / 2.0 * part for total, part in zip(sums, parts, strict=True)]
        c, m = self._least(end)
        stays = (np.maximum(c, m), *self._terms_of(end, c, m), end.flops, end.bytes)
        ceiling, compute, memory, floor, F, Q = (
            o.count * (share * a + (1.0 - share) * b) for a, b in zip(sums, stays, strict=True))
        c0, m0 = self._least(o)
        return self._assemble(o, ceiling, compute, memory, floor, c0 + c > m0 + m, F, Q)

    def _least(self, o: Operation) -> tuple[Array, Array]:
        """Arithmetic and traffic [s] at the peaks, each byte from the fastest level it fits."""
        caches, W = self.hardware.caches, self.bandwidth
        return o.flops / self.peak(o.compute), (
            tiered_time(o.weights + o.kv, self.working, caches, W)
            + tiered_time(o.activations, o.activations, caches, W))

    def _terms_of(self, o: Operation, c: Array, m: Array) -> tuple[Array, Array, Array]:
        """(arithmetic, traffic, floor) [s] of one execution, together never below the ceiling."""
        k = self.table(o)
        if k is None or self.efficiency.engine.ideal:
            plain = self.efficiency.kernel(o.kernel, o.format, self.phase)
            compute, memory, _ = overlapped(c / plain.e, m / plain.h, 0.0, plain.p)
            return compute, memory, o.launches * plain.t0
        if o.kernel == "elementwise":
            Q = o.bytes
            time = np.maximum(Q * time_per_row(Q, k.rows, k.rates), np.maximum(c, m))
            return 0.0 * time, time, k.floor * np.greater(o.launches, 0.0)
        rows, inner, moved = 1.0 if o.rows is None else o.rows, o.inner, 0.0
        if o.picks is not None:
            rows, inner = o.picks.rows / o.picks.active, o.picks.hidden
            floor, moved = self._routing(o, k)
        else:
            floor = np.interp(rows, k.rows, k.floors)
        F = with_starts(o.flops, k.start, inner) if inner is not None else o.flops
        hot, cold = (F * time_per_row(rows, k.rows, r) for r in (k.rates, k.cold_rates))
        held = o.weights + o.kv
        x = missed_bytes(held, self.working, self.hardware.caches) / np.maximum(held, 1.0)
        best = F / max(k.rates)
        streamed = np.maximum(hot + x * np.maximum(cold - hot, 0.0) - best, 0.0)
        memory = streamed * self._narrower(o, rows, k.format)
        return (best + np.maximum(np.maximum(c, m) - best - memory, 0.0), memory + moved, floor)

    @staticmethod
    def _narrower(o: Operation, rows: Array, timed: str) -> Array:
        """Bytes of a weight over those of the format that was timed, at most 1.

        What few rows take beyond the arithmetic at its best rate is for bytes, so that it shrinks
        with them; nobody timed what expanding them costs.
        """
        if o.kernel not in ("gemm", "moe") or (o.inner is None and o.picks is None):
            return 1.0
        values = o.flops / (2.0 * rows) if o.picks is None else (
            o.flops / (2.0 * o.picks.rows) * o.picks.active)
        return np.minimum(o.weights / np.maximum(values, 1.0) / number_format(timed).bytes, 1.0)

    def _routing(self, o: Operation, products: KernelTable) -> tuple[Array, Array]:
        """(floor, traffic) [s] of sorting rows by expert, visiting each, and putting them back."""
        own = self._tables.get(("moe", products.format, None))
        passes = self._tables.get(("elementwise", products.format, "other"))
        moved = 0.0 if passes is None else o.activations * time_per_row(
            o.activations, passes.rows, passes.rates)
        if own is None or o.picks is None:
            return products.floor, moved
        return own.floor + own.each * o.picks.active, moved


def _between(o: Operation, end: Operation, x: float) -> Operation:
    """The operation a share x of the way from one context to another."""
    return msgspec.structs.replace(o, **{
        f: getattr(o, f) + x * (getattr(end, f) - getattr(o, f))
        for f in ("flops", "weights", "kv", "activations")})
