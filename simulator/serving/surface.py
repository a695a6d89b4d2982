"""The time of one engine step as a surface that is cheap to ask: built once from the step formula.

A simulation asks for millions of steps. A decode step of B sequences is piecewise linear in the
tokens X that they attend to together, so that the sum over a growing context has a closed form; a
step with prompts adds what the tokens cost (a table by their number) and each prompt's attention.
Only the mean context of the B sequences counts, as in the formula.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment, Workload
from simulator.efficiency import SHORT_PROMPT, Efficiency
from simulator.errors import InputError
from simulator.layers import Segment, attention_operations
from simulator.request import estimate, hardware_ends
from simulator.serving.interpolation import Grid, bilinear, knots_of, lines
from simulator.specs.hardware import Hardware
from simulator.stages import (
    MICRO_BATCHES_PER_STAGE,
    by_mixer,
    fill_and_drain,
    last_share,
)
from simulator.step import PassTime, forward_pass

End = Literal["expected", "low", "high", "ceiling"]
ENDS: tuple[End, End, End] = ("expected", "low", "high")

# Rows and table entries that one call of the formula fills.
_ROWS, _TABLE = 64, 1024
# Largest relative error of the lines through the knots that they are chosen for.
_TOLERANCE = 2e-4
# Points an octave: where knots may lie, and of the grid of chunks.
_DENSE, _CHUNKS, _TILED = 16, 8, 192.0
# Prompts alike that tell what a further one adds to the attention of a pass.
ALIKE = 4
# Mean context where the first knot lies: shorter ones are on the line through the first two.
_SHORTEST = 8.0


class Row(NamedTuple):
    """Decode steps of B sequences: a[j] + b[j] X [s] where X is at most knots[j].

    extra_a, extra_b   what they add to a step with prompts, beyond the tokens that they are
    """

    knots: list[float]
    a: list[float]
    b: list[float]
    extra_a: list[float]
    extra_b: list[float]


class Surface(Protocol):
    """What the simulator asks of a model of an engine's steps."""

    def row(self, B: int) -> Row:
        """Decode steps of B sequences, by the tokens that they attend to."""

    def mixed(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        """A step of B decoding sequences with (new, cached) tokens of some prompts [s]."""


def decode_time(surface: Surface, B: int, X: float) -> float:
    """One decode step of B sequences that attend to X tokens together [s]."""
    row = surface.row(B)
    j = bisect_left(row.knots, X)
    return row.a[j] + row.b[j] * X


@dataclass(frozen=True)
class _Base:
    """The formula on one end of the hardware: unscaled times of passes."""

    d: Deployment
    hardware: Hardware
    efficiency: Efficiency

    def forward(self, segments: list[Segment], rows: Array) -> PassTime:
        return forward_pass(self.d, self.hardware, self.efficiency, segments, rows)


class StepSurface:
    """The surface of a deployment, filled where it is asked.

    longest   tokens of a context at most, up to which knots are laid
    end       which end of the range of the step time: expected, or all steps at low or high; the
              low end is never below the ceiling, a surface of its own
    """

    def __init__(self, d: Deployment, longest: float | None = None, end: End = "expected") -> None:
        if d.speculation is not None or d.offload is not None:
            raise InputError("simulate: not with speculation or offloading yet; estimate and solve "
                             "count them")
        ends = dict(zip(ENDS, hardware_ends(d.hardware), strict=True))
        hardware: Any = ends["low" if end == "ceiling" else end]
        if hardware is not d.hardware:
            hardware = msgspec.structs.replace(hardware, ranges={})
        d = d.replace(hardware=hardware, chunk=None, prefix_hit=0.0)
        efficiency = Efficiency(hardware, d.engine)
        spread = {"low": -1, "high": 1}.get(end, 0)
        self.end, self.deployment = end, d
        self._figure = "ceiling" if end == "ceiling" else "expected"
        self._bound = StepSurface(d, longest, "ceiling") if end == "low" else None
        self._base = _Base(d, hardware, efficiency)
        self._scale = {k: float(v) ** spread for k, v in efficiency.spread.items()}
        self._dp, self._pp = d.parallelism.dp, d.parallelism.pp
        # Where the tokens of one replica alone reach the experts.
        self._alone = None
        if self._dp > 1 and d.busy_replicas is None:
            self._alone = StepSurface(d.replace(busy_replicas=1.0), longest, end)
        positions = float(np.max(d.model.positions)) if longest is None else float(longest)
        self._longest = max(positions, 64.0)
        self._chunk = d.engine.prefill_chunk
        self._async = d.engine.async_host
        self._rows: dict[int, Row] = {}
        self._static: dict[int, list[float]] = {}
        self._whole: dict[int, list[tuple[float, float]]] = {}
        self._head: list[float] = []
        self._exact: dict[tuple[int, int], tuple[float, float]] = {}
        self._names = {o.name for i, g in enumerate(by_mixer(d.model))
                       for o in attention_operations(d, g, Segment(1.0, 1.0, 1.0, "prefill"),
                                                     str(i))}
        one = self._base.forward([Segment(1.0, 1.0, 1.0, "prefill")], 1.0)
        self._host, self._host_each = self._host_time()
        self._floor = float(self._attention(one))
        self._stage = float(one.stage_shares(last_share(d))[0]) if self._pp > 1 else 1.0
        self._knots = self._choose_knots()
        self._grid: Grid | None = None

    def _host_time(self) -> tuple[float, float]:
        """Host time of a step, and of each sequence in it; nothing at the ceiling.

        Read from passes of one and two sequences of an engine whose host hides behind nothing.
        """
        if self._figure == "ceiling":
            return 0.0, 0.0
        d = self.deployment
        shown = msgspec.structs.replace(d.engine, async_host=False)
        base = _Base(d.replace(engine=shown), self._base.hardware, self._base.efficiency)
        one, two = (float(base.forward([Segment(n, 1.0, 1.0, "prefill")], 1.0).host)
                    for n in (1.0, 2.0))
        return one - (two - one), two - one

    def _kernels(self, p: PassTime) -> Array:
        return sum(getattr(t, self._figure) for t in p.operations)

    # --- decode -------------------------------------------------------------------------------

    def _steps(self, B: Array, context: Array) -> Array:
        """Decode steps by the formula [s]: the mean step of one token."""
        w = Workload(B, np.maximum(context - 1.0, 1.0), 2.0)
        return np.asarray(getattr(estimate(self.deployment, w).decode.time, self.end))

    def _choose_knots(self) -> Array:
        octaves = math.log2(self._longest / _SHORTEST)
        xs = np.geomspace(_SHORTEST, self._longest, max(int(octaves * _DENSE), 8))
        windows = {float(x) for g in self.deployment.model.layers
                   for name in ("window", "chunk") if (x := getattr(g.mixer, name, None))}
        xs = np.unique(np.concatenate([xs, [x for x in windows if _SHORTEST < x < self._longest]]))
        B = np.array([1.0, 8.0, 64.0, 256.0, 1024.0])[:, None] * self._dp
        table = self._steps(np.broadcast_to(B, (5, len(xs))).ravel(), np.tile(xs, 5))
        return xs[knots_of(xs, table.reshape(5, -1), _TOLERANCE)]

    def row(self, B: int) -> Row:
        """Decode steps of B sequences, by the tokens that they attend to."""
        found = self._rows.get(B)
        return self._fill_rows(B) if found is None else found

    def _fill_rows(self, B: int) -> Row:
        first = (B - 1) // _ROWS * _ROWS + 1
        batch = np.arange(first, first + _ROWS, dtype=float)
        c, b = self._knots[None, :], batch[:, None]
        full = np.broadcast_to(b, (_ROWS, c.size)).ravel(), np.tile(self._knots, _ROWS)
        steps = self._steps(*full).reshape(_ROWS, -1)
        extra = self._extra(*full).reshape(_ROWS, -1)
        found = (*lines(c * b, steps), *lines(c * b, extra))
        inner = (c * b)[:, 1:-1].tolist()
        parts = [x.tolist() for x in found]
        for i in range(_ROWS):
            self._rows[first + i] = Row(inner[i], *(p[i] for p in parts))
        return self._rows[B]

    def _extra(self, B: Array, context: Array) -> Array:
        """What B decoding sequences cost in a step with a prompt, beyond the tokens they are.

        The difference of two passes with the same tokens and logits; the second has one prompt.
        """
        b = np.ceil(B / self._dp)
        both = self._base.forward([Segment(b, 1.0, context, "decode"),
                                   Segment(1.0, 1.0, 1.0, "prefill")], b + 1.0)
        whole = self._base.forward([Segment(1.0, b + 1.0, b + 1.0, "prefill")], b + 1.0)
        found = self._kernels(both) - (self._kernels(whole) - self._attention(whole)) - self._floor
        return np.broadcast_to(np.asarray(found, dtype=float), np.shape(B))

    # --- prompts ------------------------------------------------------------------------------

    def _attention(self, p: PassTime) -> Array:
        """Time of the attention in a pass: all that isn't the same at any context."""
        return sum(getattr(t, self._figure) for t in p.operations
                   if t.operation.name in self._names)

    def _shared(self, one: PassTime, new: Array, context: Array) -> tuple[Array, Array]:
        """Attention of a prompt: what prompts of a pass have together, what each adds [s].

        Kernels wait less for each other the more prompts there are, so that four don't take four
        times as long: what one of four adds is what a further one adds.
        """
        alone = np.broadcast_to(self._attention(one), np.shape(new))
        p = self._base.forward([Segment(float(ALIKE), new, context, "prefill")], 1.0)
        each = (np.broadcast_to(self._attention(p), np.shape(new)) - alone) / (ALIKE - 1.0)
        return alone - each, each

    def _fill_table(self, block: int) -> None:
        n = np.maximum(np.arange(block * _TABLE, (block + 1) * _TABLE, dtype=float), 1.0)
        p = self._base.forward([Segment(1.0, n, n, "prefill")], 1.0)
        base, each = self._shared(p, n, n)
        self._static[block] = (np.broadcast_to(self._kernels(p), n.shape) - base - each).tolist()
        self._whole[block] = list(zip(base.tolist(), each.tolist(), strict=True))

    def _fill_head(self, rows: int) -> None:
        size = max(512, 2 * rows)
        r = np.arange(size, dtype=float)
        one = Segment(1.0, 512.0, 512.0, "prefill")
        p = self._base.forward([one], np.maximum(r, 1.0))
        first = self._kernels(self._base.forward([one], 1.0))
        self._head = np.broadcast_to(self._kernels(p) - first, r.shape).tolist()

    def tokens_time(self, tokens: int, rows: int) -> float:
        """Kernels of a pass over `tokens` with logits at `rows`, without attention [s]."""
        try:
            static = self._static[tokens >> 10][tokens & 1023]
        except KeyError:
            self._fill_table(tokens >> 10)
            static = self._static[tokens >> 10][tokens & 1023]
        if rows >= len(self._head):
            self._fill_head(rows)
        return static + self._head[rows]

    def attention_time(self, new: int, cached: int) -> tuple[float, float]:
        """Attention of `new` tokens of a prompt after `cached` ones [s].

        What prompts of a pass have together, and what each adds.
        """
        if cached == 0:
            try:
                return self._whole[new >> 10][new & 1023]
            except KeyError:
                self._fill_table(new >> 10)
                return self._whole[new >> 10][new & 1023]
        if self._grid is None:
            self._grid = self._fill_grid()
        xs, ys, base, each, jumps = self._grid
        i = min(max(bisect_left(xs, new), 1), len(xs) - 1)
        j = min(max(bisect_left(ys, cached), 1), len(ys) - 1)
        if jumps[i - 1][j - 1]:
            if (new, cached) not in self._exact:
                p = self._base.forward([Segment(1.0, float(new), float(new + cached), "prefill")],
                                       1.0)
                exact = self._shared(p, np.array(float(new)), np.array(float(new + cached)))
                self._exact[new, cached] = float(exact[0]), float(exact[1])
            return self._exact[new, cached]
        u = (new - xs[i - 1]) / (xs[i] - xs[i - 1])
        v = (cached - ys[j - 1]) / (ys[j] - ys[j - 1])
        return bilinear(base, i, j, u, v), bilinear(each, i, j, u, v)

    def _fill_grid(self) -> Grid:
        """Attention of chunks: new tokens by cached ones, between whose points it is bilinear.

        But not in cells across which another kind of attention becomes the faster one (MLA).
        """
        octaves = int(math.log2(self._longest)) + 1
        # Heads of few tokens come in tiles: there every number of tokens is a point.
        new = np.unique(np.concatenate([np.arange(1.0, min(_TILED, self._longest)), np.rint(
            np.geomspace(1.0, self._longest, octaves * _CHUNKS))]))
        cached = np.concatenate([[0.0], np.unique(np.rint(
            np.geomspace(16.0, self._longest, max(octaves - 4, 2) * _CHUNKS)))])
        n, m = (x.ravel() for x in np.meshgrid(new, cached, indexing="ij"))
        p = self._base.forward([Segment(1.0, n, n + m, "prefill")], 1.0)
        base, each = (x.reshape(len(new), -1).tolist() for x in self._shared(p, n, n + m))
        first = np.zeros(n.shape)
        for t in p.operations:
            if t.operation.alternative is not None and t.operation.alternative[1] == 0:
                first = first + (t.expected > 0)
        side = first.reshape(len(new), -1)
        corners = np.stack([side[:-1, :-1], side[1:, :-1], side[:-1, 1:], side[1:, 1:]])
        jumps = corners.min(axis=0) != corners.max(axis=0)
        return Grid(new.tolist(), cached.tolist(), base, each, jumps.tolist())

    def attention_of(self, prompts: list[tuple[int, int]], share: float = 1.0) -> float:
        """Attention of all prompts of a pass, or of a share of them [s].

        What they have together, and what each adds.
        """
        if len(prompts) == 1:
            base, each = self.attention_time(*prompts[0])
            return base + share * each
        parts = [self.attention_time(*p) for p in prompts]
        return share * sum([each for _, each in parts]) + max([base for base, _ in parts])

    def mixed(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        """A step of B decoding sequences with (new, cached) tokens of some prompts [s]."""
        if self._bound is not None:
            return max(self._mixed(B, X, prompts), self._bound.mixed(B, X, prompts))
        return self._mixed(B, X, prompts)

    def _mixed(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        if self._pp > 1:
            return self._staged(B, X, prompts)
        if self._dp > 1:
            return self._on_replicas(B, X, prompts)
        k = len(prompts)
        if k == 1:
            tokens, cached = prompts[0]
            if B == 0 and self._chunk is not None and tokens > self._chunk:
                return self._in_chunks(tokens, cached)
        else:
            tokens = sum([new for new, _ in prompts])
        kernels = self.tokens_time(B + tokens, B + k) + self.attention_of(prompts)
        return self._step(B, X, kernels, B + k, prompts)

    def _prefill_scale(self, prompts: list[tuple[int, int]]) -> float:
        """Factor of the end of the range, by the mean length of the prompts so far."""
        if self.end in ("expected", "ceiling"):
            return 1.0
        short = sum([new + cached for new, cached in prompts]) < SHORT_PROMPT * len(prompts)
        return self._scale["prefill_short" if short else "prefill"]

    def _step(self, B: int, X: float, kernels: float, sequences: int,
              prompts: list[tuple[int, int]]) -> float:
        """The step whose prompts take `kernels` [s], with what B decoding sequences add."""
        host = self._host + self._host_each * sequences
        prefill = self._prefill_scale(prompts)
        if B == 0:
            return prefill * (max(kernels, host) if self._async else kernels + host)
        row = self.row(B)
        j = bisect_left(row.knots, X)
        kernels += row.extra_a[j] + row.extra_b[j] * X
        time = max(kernels, host) if self._async else kernels + host
        if self.end in ("expected", "ceiling"):
            return time
        # The decode step keeps its own range, what the prompts add has that of a prefill.
        decode = self._scale["one" if B == 1 and self.deployment.devices == 1 else "decode"]
        return prefill * time + (1.0 - prefill / decode) * (row.a[j] + row.b[j] * X)

    def _on_replicas(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        """Data-parallel replicas in step: the fullest one, with the others' tokens at its experts.

        Between one replica's tokens and those of all of them the time is a line.
        """
        k, dp, b = len(prompts), self._dp, -(-B // self._dp)
        fullest = -(-k // dp)
        tokens = sum(new for new, _ in prompts)
        mine = math.ceil(tokens * fullest / k)
        attention = self.attention_of(prompts, fullest / k)
        kernels = self.tokens_time(b + mine, b + fullest)
        if self._alone is not None:
            busy = max((B + tokens) / (b + mine), 1.0)
            one = self._alone.tokens_time(b + mine, b + fullest)
            kernels = one + (kernels - one) * (busy - 1.0) / (dp - 1.0)
        return self._step(B, X, kernels + attention, b + fullest, prompts)

    def _in_chunks(self, tokens: int, cached: int) -> float:
        """A prompt that the engine computes in steps of its own size."""
        size, total, whole = self._chunk or tokens, 0.0, [(tokens, cached)]
        while tokens > 0:
            new = min(size, tokens)
            kernels = self.tokens_time(new, 1) + self.attention_of([(new, cached)])
            host = self._host + self._host_each
            total += max(kernels, host) if self._async else kernels + host
            tokens, cached = tokens - new, cached + new
        return self._prefill_scale(whole) * total

    def _staged(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        """Pipeline stages: prompts as micro-batches; beside decode the slowest stage's share."""
        k = -(-len(prompts) // self._dp)
        share = k / len(prompts)
        parts = min(k, MICRO_BATCHES_PER_STAGE * self._pp)
        tokens = share * sum(new for new, _ in prompts) / parts
        attention = self.attention_of(prompts, share / parts)
        kernels = self.tokens_time(math.ceil(tokens), max(k // parts, 1)) + attention
        one = kernels + self._host + self._host_each * k / parts
        whole = self._prefill_scale(prompts) * one * float(fill_and_drain(parts, self._stage))
        if B == 0:
            return whole
        row = self.row(B)
        j = bisect_left(row.knots, X)
        return row.a[j] + row.b[j] * X + whole * self._stage


__all__ = ["ENDS", "End", "Row", "StepSurface", "Surface", "decode_time"]
