"""The time of every operation on one device: the larger of its terms, and what real kernels add.

Both the ceiling and the expected time come from the same operation; only efficiencies, the serial
chain of a kernel, launches and collectives differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from simulator.arrays import Array, only_where, several
from simulator.efficiency import Efficiency, KernelConstants, forms_moe
from simulator.layer_parts import Phase
from simulator.network import Network, StackedNetwork, level_of_link, network_of
from simulator.operations import Chain, Operation, Picks
from simulator.roofline import mean_of_max, mean_of_overlapped, overlapped
from simulator.specs.hardware import Hardware

# The stage share of operations of a model that isn't cut into stages.
WHOLE = Operation.__struct_defaults__[-1]


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

    def scaled(self, run: Array) -> OperationTime:
        """The operation where it runs, nothing where another alternative runs."""
        return msgspec.structs.replace(self, **{
            f: getattr(self, f) * run for f in self.__struct_fields__ if f != "operation"})

    def where(self, mine: Array, other: OperationTime) -> OperationTime:
        """This time where `mine`, the other's elsewhere."""
        return msgspec.structs.replace(self, **{
            f: np.where(mine, getattr(self, f), getattr(other, f))
            for f in self.__struct_fields__ if f != "operation"})

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


def _chained(k: KernelConstants) -> Any:
    """Which of several devices timed the kernel with its chain."""
    return np.greater(k.tw, 0.0) | np.greater(k.tau, 0.0)


def _steady(c0: Array, c1: Array, m0: Array, m1: Array, s0: Array, s1: Array, n: Array, p: Array
            ) -> tuple[Array, ...]:
    """Mean parts of n contexts over which all three terms run evenly."""
    return mean_of_overlapped((c0, c1), (m0, m1), (s0, s1), n, p)


def _turned(c0: Array, c1: Array, m0: Array, m1: Array, s0: Array, s1: Array, n: Array, p: Array,
            level: Array, t0: Array, t1: Array) -> tuple[Array, ...]:
    """The same where the chain starts to grow between the ends, as t from t0 to t1 passes a level:
    f is the share of the contexts before that.
    """
    f = (level - t0) / (t1 - t0)
    c, m = c0 + f * (c1 - c0), m0 + f * (m1 - m0)
    before = mean_of_overlapped((c0, c), (m0, m), (s0, s0), np.maximum(f * n, 2.0), p)
    after = mean_of_overlapped((c, c1), (m, m1), (s0, s1), np.maximum((1.0 - f) * n, 2.0), p)
    return tuple(f * a + (1.0 - f) * b for a, b in zip(before, after, strict=True))


class Clock:
    """Rates of one device in one phase, looked up once a pass.

    `seen` picks what of the operations it times: by default all of them.
    """

    # Whether times depend on more than an operation and its counts: each row then has its own.
    per_row = False

    def __init__(self, hardware: Hardware, efficiency: Efficiency, phase: Phase,
                 node: int | None = None) -> None:
        self.hardware, self.efficiency, self.phase = hardware, efficiency, phase
        self.seen: Callable[[list[Operation]], list[Operation]] = list
        self.node = node
        self.bandwidth = hardware.memory_bandwidth
        self.units = efficiency.units
        self._peaks: dict[str, Array] = {"vector": hardware.vector_peak}
        self._network: Network | StackedNetwork | None = None

    def peak(self, compute: str) -> Array:
        """Dense peak [FLOP/s] of the unit that an operation uses."""
        if compute not in self._peaks:
            self._peaks[compute] = self.hardware.peak(compute)[0]
        return self._peaks[compute]

    def collective(self, o: Operation) -> OperationTime:
        """A collective: free at the ceiling, where it hides behind the arithmetic."""
        if self._network is None:
            self._network = network_of(self.hardware, self.efficiency.engine, self.node)
        shown = 1.0 - self.efficiency.engine.overlap
        time = self._network.time(o.collective or "", o.wire, o.ranks, o.extent or o.ranks)
        if not self.efficiency.engine.ideal:
            time = time * level_of_link(self.hardware)
        time = time * o.count * shown
        zero = 0.0 * time
        return OperationTime(o, zero, zero, time, zero, zero, time, zero, zero, zero,
                             o.wire * o.count * o.stage)

    def serial(self, k: KernelConstants, chain: Chain, n: Array) -> Array:
        """Chain of one unit, n times [s]: starts of its blocks, and its share of the steps or the
        longest block.
        """
        if chain.total is None:
            share = np.maximum(chain.blocks / self.units, 1.0)
            return (n * k.tw + n * k.tau * chain.longest) * share
        return (n * k.tw * np.maximum(chain.blocks / self.units, 1.0)
                + n * k.tau * np.maximum(chain.total / self.units, chain.longest))

    def experts(self, o: Operation, x: Picks, k: KernelConstants) -> OperationTime:
        """A layer's experts: grouped products in tiles, and the rows permuted there and back."""
        C, W, n = self.peak(o.compute), self.bandwidth, o.count
        tiles = tuple(forms_moe.mean_tiles(x.active, x.rows, rows) for rows in forms_moe.TILE_ROWS)
        products = forms_moe.experts_compute(
            (tiles[0], tiles[1], tiles[2]), x.hidden, x.inner, x.gates, x.weight, k.e,
            np.where(np.greater(k.beta, 0.0), k.beta, 1.0), C, W, self.units, tiled=False)
        compute, memory, _ = overlapped(products, o.weights / (k.h * W), 0.0, k.p)
        moved = forms_moe.experts_traffic(x.tokens, x.top_k, x.rows, x.hidden, x.inner, k.cact,
                                          k.c2, W)
        c, m = o.flops / C, o.bytes / W
        compute = np.maximum(compute, c)
        floor = n * (o.launches * k.t0 + k.te * x.local / forms_moe.EXPERTS_PER_TE)
        return self._assemble(o, n * np.maximum(c, m), n * compute, n * (memory + moved), floor,
                              c > m, n * o.flops, n * o.bytes)

    def point(self, o: Operation) -> OperationTime:
        """An operation whose cost is the same throughout the pass."""
        if o.collective is not None:
            return self.collective(o)
        k = self.efficiency.kernel(o.kernel, o.format, self.phase)
        streamed = self.phase == "decode" and self.efficiency.engine.streams_experts
        if o.picks is not None and not streamed and np.any(k.beta):
            timed = self.experts(o, o.picks, k)
            if np.all(k.beta):
                return timed
            return timed.where(np.greater(k.beta, 0.0), self.plain(o, k))
        return self.plain(o, k)

    def plain(self, o: Operation, k: KernelConstants) -> OperationTime:
        """Arithmetic, traffic and the chain of its kernel, where that was timed."""
        F, Q = o.count * o.flops, o.count * o.bytes
        c, m = F / self.peak(o.compute), Q / self.bandwidth
        compute, memory, waits = overlapped(*self._terms(o, k, F, Q), k.p)
        return self._assemble(o, np.maximum(c, m), compute, memory,
                              o.count * o.launches * k.t0 + waits, c > m, F, Q)

    def work(self, o: Operation) -> Array:
        """Time [s] of an operation at the peaks, by which alternatives are chosen.

        By their work, not by constants: neither a launch more nor kernels that were timed at other
        shapes must turn a decode step into one that rebuilds the whole context.
        """
        return o.count * np.maximum(o.flops / self.peak(o.compute), o.bytes / self.bandwidth)

    def span(self, o: Operation, end: Operation, first: Array, last: Array) -> OperationTime:
        """Mean over the contexts from `first` to `last`; `o` at the first, `end` at the last.

        Up to the operation's limit they are evenly spaced, the rest stay at the end's cost (a
        window).
        """
        points = np.maximum(last - first + 1.0, 1.0)
        growing = points if o.limit is None else np.clip(
            np.minimum(last, o.limit) - first + 1.0, 0.0, points)
        C, W, n = self.peak(o.compute), self.bandwidth, o.count
        k = self.efficiency.kernel(o.kernel, o.format, self.phase)
        F0, F1, Q0, Q1 = n * o.flops, n * end.flops, n * o.bytes, n * end.bytes
        c0, c1, m0, m1 = F0 / C, F1 / C, Q0 / W, Q1 / W
        ceiling = mean_of_max(c0, c1, m0, m1, growing)
        terms = self._terms(o, k, F0, Q0), self._terms(end, k, F1, Q1)
        parts = self._mean(o, end, k, terms, growing)
        F, Q, by_compute = (F0 + F1) / 2.0, (Q0 + Q1) / 2.0, c0 + c1 > m0 + m1
        if o.limit is not None:
            share = growing / points
            ceiling = share * ceiling + (1.0 - share) * np.maximum(c1, m1)
            stays = overlapped(*terms[1], k.p)
            parts = tuple(share * a + (1.0 - share) * b for a, b in zip(parts, stays, strict=True))
            F, Q = share * F + (1.0 - share) * F1, share * Q + (1.0 - share) * Q1
            by_compute = F / C > Q / W
        compute, memory, waits = parts
        return self._assemble(o, ceiling, compute, memory, n * o.launches * k.t0 + waits,
                              by_compute, F, Q)

    def _terms(self, o: Operation, k: KernelConstants, F: Array, Q: Array
               ) -> tuple[Array, Array, Array]:
        """Arithmetic, traffic and chain [s] of all executions of an operation in its kernel, with F
        [FLOP] and Q [bytes] of them.
        """
        chain, C = o.chain, k.e * self.peak(o.compute)
        if chain is None or not k.chained:
            return F / C, Q / (k.h * self.bandwidth), 0.0
        executed = F if chain.padded is o.flops else o.count * self._padded(o, chain, k)
        return executed / C, Q / (k.h * self.bandwidth), self.serial(k, chain, o.count)

    @staticmethod
    def _padded(o: Operation, chain: Chain, k: KernelConstants) -> Array:
        """FLOPs executed: whole tiles, where the kernel was timed with them."""
        if several(k.tw) or several(k.tau):
            return np.where(_chained(k), chain.padded, o.flops)
        return chain.padded

    def _mean(self, o: Operation, end: Operation, k: KernelConstants,
              terms: tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]], n: Array
              ) -> tuple[Array, ...]:
        """Mean parts over evenly spaced contexts."""
        (c0, m0, s0), (c1, m1, s1) = terms
        if o.chain is None or end.chain is None or not k.chained:
            return mean_of_overlapped((c0, c1), (m0, m1), (s0, s1), n, k.p)
        level = o.chain.longest * self.units
        t0, t1 = o.chain.total, end.chain.total
        turns = (t0 < level) & (t1 > level) & (n > 2.0) & _chained(k)
        ends = c0, c1, m0, m1, s0, s1, n, k.p
        steady = () if np.all(turns) else _steady(*ends)
        return only_where(turns, _turned, steady, *ends, level, t0, t1)

    @staticmethod
    def _assemble(o: Operation, ceiling: Array, compute: Array, memory: Array, overhead: Array,
                  ceiling_compute: Array, F: Array, Q: Array) -> OperationTime:
        if not o.needed:
            F, Q, ceiling = 0.0 * F, 0.0 * Q, 0.0 * ceiling    # made by this engine alone
        elif o.stage is not WHOLE:
            F, Q = F * o.stage, Q * o.stage
        return OperationTime(o, ceiling, ceiling * ceiling_compute, compute + memory + overhead,
                             compute, memory, 0.0, overhead, F, Q, 0.0)
