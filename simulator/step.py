"""One pass through the model: the time of every operation and their sum.

A pass is a prefill, or the mean decode step over a growing context. Both the ceiling and the
expected time come from the same operations; only efficiencies, floors and host time differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from simulator.allocation import cached_prefix
from simulator.arrays import Array, holds_arrays, largest, present, several
from simulator.clock import Clock, OperationTime, largest_part
from simulator.deployment import Deployment, arrays_inside
from simulator.efficiency import Efficiency
from simulator.efficiency.hosts import host_times
from simulator.layers import (
    Phase,
    Segment,
    attention_operations,
    pass_operations,
    static_operations,
    sum_of,
)
from simulator.operations import Operation
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import LayerGroup
from simulator.stages import by_mixer

# Operations of the last pipeline stage alone.
HEAD = frozenset({"final_norm", "lm_head", "head_bias", "embedding_down", "sampling",
                  "logits_all_gather"})

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

    def stage_shares(self, last: float) -> tuple[Array, Array]:
        """Share of the pass that the slowest pipeline stage takes: expected, and at the ceiling.

        It is the stage with the most weights, or the last one, with `last` of the layers and the
        head: experts are held but not all read, while the head is read in every step.
        """
        layers = largest(t.operation.stage for t in self.operations if t.operation.kind == "gemm"
                         and t.operation.name not in HEAD)

        def share(times: list[Array], host: Array) -> Array:
            stages = [t.operation.stage for t in self.operations]
            heads = [t.operation.name in HEAD for t in self.operations]
            fullest = sum_of(x * s for x, s in zip(times, stages, strict=True)) + layers * host
            head = sum_of(x * h for x, h in zip(times, heads, strict=True))
            total = sum_of(times) + host
            return np.maximum(fullest, (total - head) * last + head) / total

        return (share([t.expected for t in self.operations], self.host),
                share([t.ceiling for t in self.operations], 0.0))

    def repeated(self, time: Array, ceiling: Array, work: Array) -> PassTime:
        """This pass as one of several micro-batches: `time` as long (`ceiling` as long at the
        ceiling), with `work` times the work.
        """
        factors = (dict.fromkeys(("expected", "compute", "memory", "network", "overhead", "host"),
                                 time)
                   | dict.fromkeys(("ceiling", "ceiling_compute"), ceiling)
                   | dict.fromkeys(("flops", "bytes", "wire"), work))
        return msgspec.structs.replace(
            self,
            operations=tuple(msgspec.structs.replace(t, **{
                f: getattr(t, f) * factors[f] for f in factors if f != "host"})
                for t in self.operations),
            **{f: getattr(self, f) * k for f, k in factors.items()})

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


def _of(operations: Sequence[Operation], index: int) -> list[Operation]:
    """The operations of one of two alternatives."""
    return [o for o in operations if o.alternative is not None and o.alternative[1] == index]


def _first_is_faster(clock: Clock, operations: Sequence[Operation]) -> Array:
    """Whether alternative 0 is the faster one."""
    first, second = (sum_of(clock.work(o) for o in _of(operations, index)) for index in (0, 1))
    return first <= second


def _faster(clock: Clock, operations: Sequence[Operation]) -> list[OperationTime]:
    """Operations of one group and segment; of two alternatives only the faster one runs."""
    times = [clock.point(o) for o in operations if o.alternative is None]
    if len(times) == len(operations):
        return times
    run = _first_is_faster(clock, operations)
    for index in (0, 1):
        times += [clock.point(o).scaled(np.equal(run, index == 0)) for o in _of(operations, index)]
    return times


def _last_before_turn(same: Callable[[Array], Array], stays: Array, first: Array,
                      last: Array) -> Array:
    """Last context at which the choice is still that at `first`, by bisection; it turns once."""
    if np.all(stays):
        return last
    low, high = first + 0.0 * last, last + 0.0 * first
    while np.any(high - low >= 2.0):
        middle = low + np.floor((high - low) / 2.0)
        keep = same(middle)
        low, high = np.where(keep, middle, low), np.where(keep, high, middle)
    return np.where(stays, last, low)


def _spans(clock: Clock, start: Sequence[Operation], end: Sequence[Operation], first: Array,
           last: Array) -> list[OperationTime]:
    """Means of operations over the contexts from `first` to `last`."""
    return [clock.point(o) if o.steady else clock.span(o, o_end, first, last)
            for o, o_end in zip(start, end, strict=True)]


def _mean_step(clock: Clock, at: Callable[[Array], list[Operation]], first: Array,
               last: Array) -> list[OperationTime]:
    """Means of one group's attention `at` each context from `first` to `last`.

    The faster of two alternatives runs in each step, so each is averaged over the contexts where
    it is the faster.
    """
    start, end = at(first), at(last)
    times = _spans(clock, [o for o in start if o.alternative is None],
                   [o for o in end if o.alternative is None], first, last)
    if len(times) == len(start):
        return times
    before = _first_is_faster(clock, start)
    stays = np.equal(before, _first_is_faster(clock, end))
    if np.all(stays) and (np.all(before) or not np.any(before)):
        index = 0 if np.all(before) else 1
        return times + _spans(clock, _of(start, index), _of(end, index), first, last)
    turn = _last_before_turn(lambda x: np.equal(_first_is_faster(clock, at(x)), before), stays,
                             first, last)
    for index in (0, 1):
        here = np.equal(before, index == 0)
        low, high = np.where(here, first, turn + 1.0), np.where(here, turn, last)
        share = np.maximum(high - low + 1.0, 0.0) / (last - first + 1.0)
        if np.any(share):
            times += [t.scaled(share) for t in _spans(
                clock, _of(at(low), index), _of(at(high), index), low, high)]
    return times


def _total(d: Deployment, hardware: Hardware, times: Sequence[OperationTime],
           sequences: Array) -> PassTime:
    chosen = [t for t in times if several(t.expected) or t.expected or np.any(t.ceiling)]
    layers = d.model.layer_count
    step, layer, sequence = host_times(d.engine, hardware)
    host = step + d.host_layers * layer + sequences * sequence
    if hardware.layer_overhead is not None and not d.engine.ideal:
        host = host + layers * hardware.layer_overhead
    if hardware.step_overhead is not None and not d.engine.ideal:
        host = host + hardware.step_overhead
    kernels = sum_of(t.expected for t in chosen)
    if d.engine.async_host:
        host = np.maximum(host - kernels, 0.0)
    return PassTime(
        operations=tuple(chosen),
        ceiling=sum_of(t.ceiling for t in chosen),
        ceiling_compute=sum_of(t.ceiling_compute for t in chosen),
        expected=kernels + host,
        compute=sum_of(t.compute for t in chosen),
        memory=sum_of(t.memory for t in chosen),
        network=sum_of(t.network for t in chosen),
        overhead=sum_of(t.overhead for t in chosen) + host,
        host=host,
        flops=sum_of(t.flops for t in chosen),
        bytes=sum_of(t.bytes for t in chosen),
        wire=sum_of(t.wire for t in chosen),
    )


def forward_pass(d: Deployment, hardware: Hardware, efficiency: Efficiency,
                 segments: Sequence[Segment], rows: Array) -> PassTime:
    """Time of one pass over `segments`, with logits at `rows` positions."""
    phase: Phase = "decode" if all(s.phase == "decode" for s in segments) else "prefill"

    def times_of(clock: Clock) -> list[OperationTime]:
        times = [clock.point(o) for o in clock.seen(static_operations(d, segments, rows))]
        for i, group in enumerate(by_mixer(d.model)):
            for j, segment in enumerate(segments):
                times += _faster(clock, clock.seen(
                    attention_operations(d, group, segment, f"{i}.{j}")))
        return times

    return _timed(d, hardware, _clock(d, hardware, efficiency, phase, segments, rows), times_of,
                  sum_of(s.sequences for s in segments))


def _clock(d: Deployment, hardware: Hardware, efficiency: Efficiency, phase: Phase,
           segments: Sequence[Segment], rows: Array) -> Clock:
    """The clock of a device; one whose kernels or caches were measured has a clock of its own."""
    if not hardware.kernels and not hardware.caches:
        return Clock(hardware, efficiency, phase, d.node)
    from simulator.caches import working_set
    from simulator.measured_clock import MeasuredClock

    return MeasuredClock(hardware, efficiency, phase, d.node, d.activation_format.name,
                         working_set(pass_operations(d, segments, rows)))


def _timed(d: Deployment, hardware: Hardware, clock: Clock,
           times_of: Callable[[Clock], list[OperationTime]], sequences: Array) -> PassTime:
    """The pass whose operations `times_of` times; far bytes by a clock of the far memory."""
    if d.offload is None:
        return _total(d, hardware, times_of(clock), sequences)
    from simulator.offload_pass import far_seen, near_seen, with_far

    clock.seen = near_seen(d.offload)
    far = Clock(hardware, Efficiency(hardware, load_engine("ideal")), clock.phase)
    far.bandwidth, far.seen = d.offload.bandwidth, far_seen(d.offload)
    near = _total(d, hardware, times_of(clock), sequences)
    return with_far(near, times_of(far), d.offload, d.engine.ideal)


def prefill(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
            prompt: Array, hit: Array = 0.0) -> PassTime:
    """One pass over the uncached part of `batch` prompts; attention still reads the cached part."""
    new = prompt - cached_prefix(d, prompt, hit) if present(hit) else prompt
    return forward_pass(d, hardware, efficiency, [Segment(batch, new, prompt, "prefill")], batch)


def _by_batch(d: Deployment, clock: Clock, batch: Array, new: Array) -> OperationTime:
    """All static operations of a decode step as one, worked out once for each different batch.

    Many rows share few batches. The sums are taken in the order of the operations, so that they
    are the same to the last bit.
    """
    different, place = np.unique(batch, return_inverse=True)
    times = [clock.point(o) for o in clock.seen(static_operations(
        d, [Segment(different, new, different, "decode")], different * new))]
    sums = {f: sum_of(getattr(t, f) for t in times)
            for f in OperationTime.__struct_fields__ if f != "operation"}
    return OperationTime(times[0].operation, **{
        f: value[place] if np.ndim(value) else value for f, value in sums.items()})


def decode(d: Deployment, hardware: Hardware, efficiency: Efficiency, batch: Array,
           first: Array, last: Array, listed: bool = True, new: float = 1.0) -> PassTime:
    """The mean step of `batch` sequences whose context grows from `first` to `last` tokens.

    Each adds `new` tokens a step: one, or more to verify drafts. Every operation but attention
    costs the same in each step. Attention is affine in the context (up to a window), so its mean
    needs the two ends only: exact for the ceiling, a quadrature for the expectation. Without
    `listed` the list of operations need not be kept.
    """
    def times_of(clock: Clock) -> list[OperationTime]:
        per_row = any(map(np.ndim, (d.busy_replicas, d.expert_skew)))
        if (listed or per_row or clock.per_row or np.ndim(batch) != 1 or d.parallelism.pp > 1
                or holds_arrays(hardware) or arrays_inside(d)):
            start = Segment(batch, new, first, "decode")
            times = [clock.point(o) for o in clock.seen(
                static_operations(d, [start], batch * new))]
        else:
            times = [_by_batch(d, clock, batch, new)]
        for i, group in enumerate(by_mixer(d.model)):
            def at(context: Array, group: LayerGroup = group, key: str = f"{i}") -> list[Operation]:
                return clock.seen(attention_operations(
                    d, group, Segment(batch, new, context, "decode"), key))

            times += _mean_step(clock, at, first, last)
        return times

    middle = Segment(batch, new, (first + last) / 2.0, "decode")
    clock = _clock(d, hardware, efficiency, "decode", [middle], batch * new)
    return _timed(d, hardware, clock, times_of, batch)
