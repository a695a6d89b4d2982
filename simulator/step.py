"""One pass through the model: the time of every operation and their sum.

A pass is a prefill, or the mean decode step over a growing context. Both the ceiling and the
expected time come from the same operations; only efficiencies, floors and host time differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from simulator.allocation import stage_share
from simulator.arrays import Array
from simulator.collectives import BY_NAME
from simulator.deployment import Deployment
from simulator.efficiency import Efficiency
from simulator.errors import InputError
from simulator.layers import (
    Phase,
    Segment,
    attention_operations,
    static_operations,
    sum_of,
)
from simulator.operations import Operation
from simulator.roofline import mean_of_max, mean_of_smooth_max, smooth_max
from simulator.specs.hardware import Hardware


class OperationTime(msgspec.Struct, frozen=True, gc=False):
    """Times [s], FLOPs and bytes of all `count` executions of an operation, as means over a pass.

    compute, memory, network, overhead split the expected time by what it is spent on.
    """

    operation: Operation
    ceiling: Array
    ceiling_compute: Array
    expected: Array
    compute: Array
    memory: Array
    network: Array
    overhead: Array
    flops: Array
    bytes: Array
    wire: Array

    def scaled(self, run: Array, run_at_ceiling: Array) -> OperationTime:
        """The operation where it runs, nothing where another alternative runs."""
        fields = {f: getattr(self, f) * run for f in (
            "expected", "compute", "memory", "network", "overhead", "flops", "bytes", "wire")}
        return msgspec.structs.replace(self, ceiling=self.ceiling * run_at_ceiling,
                                       ceiling_compute=self.ceiling_compute * run_at_ceiling,
                                       **fields)

    @property
    def bound(self) -> str:
        """The largest part of the expected time (scalars)."""
        return str(largest_part(self.compute, self.memory, self.network, self.overhead))


def largest_part(compute: Array, memory: Array, network: Array, overhead: Array) -> Any:
    """Name of the largest part; an array of names for arrays."""
    names = ("memory", "compute", "network", "overhead")
    parts = np.broadcast_arrays(memory, compute, network, overhead)
    if parts[0].ndim == 0:
        return names[int(np.argmax(parts))]
    return np.array(names)[np.argmax(np.stack(parts), axis=0)]


class PassTime(msgspec.Struct, frozen=True):
    """One pass on one device: times [s], FLOPs and bytes of the fullest rank.

    host is the part of `overhead` that belongs to no kernel: host time a step and a layer.
    """

    operations: tuple[OperationTime, ...]
    ceiling: Array
    ceiling_compute: Array
    expected: Array
    compute: Array
    memory: Array
    network: Array
    overhead: Array
    host: Array
    flops: Array
    bytes: Array
    wire: Array

    @property
    def bound(self) -> Any:
        """compute, memory, network or overhead: the largest part of the expected time."""
        return largest_part(self.compute, self.memory, self.network, self.overhead)

    @property
    def ceiling_bound(self) -> Any:
        """compute or memory: the larger part of the ceiling."""
        larger = self.ceiling_compute > self.ceiling - self.ceiling_compute
        if np.ndim(larger) == 0:
            return "compute" if larger else "memory"
        return np.where(larger, "compute", "memory")


def _link(hardware: Hardware, ranks: int) -> tuple[Array, Array]:
    """(latency [s], one-way bandwidth [bytes/s]) of the link that `ranks` devices share."""
    domain = hardware.link_domain
    if domain is not None and ranks > domain and hardware.scale_out_bandwidth is not None:
        return hardware.scale_out_latency or 0.0, hardware.scale_out_bandwidth
    if hardware.link_bandwidth is None:
        raise InputError(f"hardware '{hardware.name}': {ranks} devices need a link, and the spec "
                         "has none; add for example 'link_bandwidth: 64 GB/s'")
    return hardware.link_latency or 0.0, hardware.link_bandwidth


class _Clock:
    """Rates of one device in one phase, looked up once a pass."""

    def __init__(self, hardware: Hardware, efficiency: Efficiency, phase: Phase) -> None:
        self.hardware, self.efficiency, self.phase = hardware, efficiency, phase
        self.bandwidth = hardware.memory_bandwidth
        self._peaks: dict[str, Array] = {"vector": hardware.vector_peak}

    def peak(self, compute: str) -> Array:
        """Dense peak [FLOP/s] of the unit that an operation uses."""
        if compute not in self._peaks:
            self._peaks[compute] = self.hardware.peak(compute)[0]
        return self._peaks[compute]

    def collective(self, o: Operation) -> OperationTime:
        """A collective: free at the ceiling, where it hides behind the arithmetic."""
        alpha, rate = _link(self.hardware, o.ranks)
        time = BY_NAME[o.collective or ""](o.wire, o.ranks, alpha, rate) * o.count
        zero = 0.0 * time
        return OperationTime(o, zero, zero, time, zero, zero, time, zero, zero, zero,
                             o.wire * o.count)

    def point(self, o: Operation) -> OperationTime:
        """An operation whose cost is the same throughout the pass."""
        if o.collective is not None:
            return self.collective(o)
        C, W = self.peak(o.compute), self.bandwidth
        k = self.efficiency.kernel(o.kernel, self.phase)
        F, Q, n = o.flops, o.bytes, o.count
        c, m = F / C, Q / W
        body = n * smooth_max(c / k.e, m / k.h, k.p)
        floor = n * o.launches * k.t0
        return self._assemble(o, n * np.maximum(c, m), body, floor, c > m, c / k.e > m / k.h,
                              n * F, n * Q)

    def span(self, o: Operation, end: Operation, points: Array, growing: Array) -> OperationTime:
        """Mean over `points` contexts; `o` at the first, `end` at the last.

        The first `growing` of them are evenly spaced, the rest stay at the end's cost (a window).
        """
        C, W = self.peak(o.compute), self.bandwidth
        k = self.efficiency.kernel(o.kernel, self.phase)
        n = o.count
        c0, c1, m0, m1 = o.flops / C, end.flops / C, o.bytes / W, end.bytes / W
        ceiling = mean_of_max(c0, c1, m0, m1, growing)
        body = mean_of_smooth_max(c0 / k.e, c1 / k.e, m0 / k.h, m1 / k.h, growing, k.p)
        F, Q = (o.flops + end.flops) / 2.0, (o.bytes + end.bytes) / 2.0
        c, m = (c0 + c1) / 2.0, (m0 + m1) / 2.0
        if o.limit is not None:
            share = growing / points
            ceiling = share * ceiling + (1.0 - share) * np.maximum(c1, m1)
            body = share * body + (1.0 - share) * smooth_max(c1 / k.e, m1 / k.h, k.p)
            F, Q = share * F + (1.0 - share) * end.flops, share * Q + (1.0 - share) * end.bytes
            c, m = F / C, Q / W
        floor = n * o.launches * k.t0
        return self._assemble(o, n * ceiling, n * body, floor, c > m, c / k.e > m / k.h,
                              n * F, n * Q)

    @staticmethod
    def _assemble(o: Operation, ceiling: Array, body: Array, floor: Array, ceiling_compute: Array,
                  compute: Array, F: Array, Q: Array) -> OperationTime:
        by_compute = body * compute
        return OperationTime(o, ceiling, ceiling * ceiling_compute, body + floor, by_compute,
                             body - by_compute, 0.0, floor, F, Q, 0.0)


def _choose(times: Sequence[OperationTime]) -> list[OperationTime]:
    """Of each group of alternatives the fastest: by expected time, and apart by the ceiling."""
    groups: dict[str, dict[int, list[OperationTime]]] = {}
    for t in times:
        if t.operation.alternative is not None:
            key, index = t.operation.alternative
            groups.setdefault(key, {}).setdefault(index, []).append(t)
    chosen = [t for t in times if t.operation.alternative is None]
    for alternatives in groups.values():
        first, second = alternatives[0], alternatives[1]
        run = sum_of(t.expected for t in first) <= sum_of(t.expected for t in second)
        run_at_ceiling = sum_of(t.ceiling for t in first) <= sum_of(t.ceiling for t in second)
        chosen += [t.scaled(run, run_at_ceiling) for t in first]
        chosen += [t.scaled(~np.asarray(run), ~np.asarray(run_at_ceiling)) for t in second]
    return [t for t in chosen if not (np.ndim(t.expected) == 0 and t.expected == 0
                                      and t.ceiling == 0)]


_EDGE = frozenset({"embedding", "embedding_norm", "embedding_up", "embedding_down", "final_norm",
                   "lm_head", "head_bias", "sampling"})


def _total(d: Deployment, hardware: Hardware, times: Sequence[OperationTime]) -> PassTime:
    chosen = _choose(times)
    layers = d.model.layer_count
    host = d.engine.host_time + layers * d.engine.layer_time
    if hardware.layer_overhead is not None and not d.engine.ideal:
        host = host + layers * hardware.layer_overhead
    share = stage_share(d)

    def device(pick: Callable[[OperationTime], Array]) -> Array:
        if share == 1.0:
            return sum_of(pick(t) for t in chosen)
        return sum_of(pick(t) * (1.0 if t.operation.name in _EDGE else share) for t in chosen)

    return PassTime(
        operations=tuple(chosen),
        ceiling=sum_of(t.ceiling for t in chosen),
        ceiling_compute=sum_of(t.ceiling_compute for t in chosen),
        expected=sum_of(t.expected for t in chosen) + host,
        compute=sum_of(t.compute for t in chosen),
        memory=sum_of(t.memory for t in chosen),
        network=sum_of(t.network for t in chosen),
        overhead=sum_of(t.overhead for t in chosen) + host,
        host=host,
        flops=device(lambda t: t.flops),
        bytes=device(lambda t: t.bytes),
        wire=device(lambda t: t.wire),
    )


def forward_pass(d: Deployment, hardware: Hardware, efficiency: Efficiency,
                 segments: Sequence[Segment], rows: Array) -> PassTime:
    """Time of one pass over `segments`, with logits at `rows` positions."""
    phase: Phase = "decode" if all(s.phase == "decode" for s in segments) else "prefill"
    clock = _Clock(hardware, efficiency, phase)
    times = [clock.point(o) for o in static_operations(d, segments, rows)]
    for i, group in enumerate(d.model.layers):
        for j, segment in enumerate(segments):
            times += [clock.point(o)
                      for o in attention_operations(d, group, segment, f"{i}.{j}")]
    return _total(d, hardware, times)


def prefill(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
            prompt: Array, hit: Array = 0.0) -> PassTime:
    """One pass over the uncached part of `batch` prompts; attention still reads the cached part."""
    new = np.maximum(prompt * (1.0 - hit), 1.0)
    return forward_pass(d, hardware, efficiency, [Segment(batch, new, prompt, "prefill")], batch)


def decode(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
           first: Array, last: Array) -> PassTime:
    """The mean step of `batch` sequences whose context grows from `first` to `last` tokens.

    Every operation but attention costs the same in each step. Attention is affine in the context
    (up to a window), so its mean needs the two ends only: exact for the ceiling, a quadrature for
    the expectation.
    """
    clock = _Clock(hardware, efficiency, "decode")
    points = np.maximum(last - first + 1.0, 1.0)
    start, end = Segment(batch, 1.0, first, "decode"), Segment(batch, 1.0, last, "decode")
    times = [clock.point(o) for o in static_operations(d, [start], batch)]
    for i, group in enumerate(d.model.layers):
        pairs = zip(attention_operations(d, group, start, f"{i}"),
                    attention_operations(d, group, end, f"{i}"), strict=True)
        for o, o_end in pairs:
            growing = points if o.limit is None else np.clip(
                np.minimum(last, o.limit) - first + 1.0, 0.0, points)
            times.append(clock.span(o, o_end, points, growing))
    return _total(d, hardware, times)
