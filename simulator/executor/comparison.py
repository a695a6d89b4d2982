"""Predict, run, compare: shapes that calibration never saw, on the machine that was calibrated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.deployment import Workload
from simulator.executor.counts import TooLargeError, deployment_of
from simulator.executor.measure import Measured, Runner
from simulator.executor.timing import find_device, set_threads
from simulator.executor.transformer import Shape
from simulator.layers import Phase
from simulator.request import Estimate, Figure, estimate
from simulator.specs.hardware import Hardware


@dataclass(frozen=True)
class Point:
    """One model at one number format, batch and prompt."""

    name: str
    shape: Shape
    dtype: str
    batch: int
    input: int
    output: int


@dataclass(frozen=True)
class Compared:
    """Predicted and measured time [s] of a prefill or of the mean decode step."""

    point: Point
    phase: Phase
    predicted: Figure
    measured: Measured
    bound: str

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted range."""
        return bool(self.predicted.low <= self.measured.time.median <= self.predicted.high)

    @property
    def log_ratio(self) -> float:
        """ln(predicted/measured): above 0 the prediction is too slow."""
        return float(np.log(self.predicted.expected / self.measured.time.median))


def _dense(hidden: int, layers: int, heads: int, kv_heads: int, d: int, ffn: int, vocabulary: int,
           **more: bool | int | None) -> Shape:
    return Shape(hidden=hidden, layers=layers, query_heads=heads, kv_heads=kv_heads, head_dim=d,
                 ffn=ffn, vocabulary=vocabulary, **more)  # type: ignore[arg-type]


def _experts(hidden: int, layers: int, heads: int, kv_heads: int, d: int, experts: int, k: int,
             width: int, vocabulary: int) -> Shape:
    return Shape(hidden=hidden, layers=layers, query_heads=heads, kv_heads=kv_heads, head_dim=d,
                 ffn=0, vocabulary=vocabulary, experts=experts, active_experts=k, expert_ffn=width)


# Widths, depths, head counts and head sizes other than those that calibration multiplies.
SHAPES: dict[str, Shape] = {
    "dense-3M": _dense(256, 3, 4, 2, 64, 704, 2048, tied=True),
    "dense-10M": _dense(320, 6, 5, 5, 64, 896, 4096, tied=True),
    "dense-30M": _dense(576, 8, 9, 3, 64, 1536, 8192, tied=True),
    "dense-90M": _dense(768, 10, 12, 4, 64, 2304, 16384, tied=True, qk_norm=True),
    "dense-120M": _dense(896, 9, 14, 2, 64, 3584, 16000, qkv_bias=True),
    "dense-250M": _dense(1280, 11, 10, 10, 128, 3456, 24000, tied=True),
    "dense-420M": _dense(2048, 7, 16, 4, 128, 5632, 32000),
    "window-40M": _dense(640, 7, 10, 2, 64, 2048, 8192, tied=True, window=256),
    "experts-25M": _experts(384, 5, 6, 2, 64, 8, 2, 512, 4096),
    "experts-110M": _experts(640, 6, 10, 5, 64, 16, 4, 640, 8192),
    "experts-160M": _experts(896, 5, 7, 7, 128, 32, 2, 288, 12000),
}
# (batch, input) of the points in turn; lengths other than those that were calibrated.
LOADS = ((1, 48), (2, 300), (5, 96), (1, 700), (10, 24), (3, 190), (20, 40), (1, 150))
PER_SHAPE = {"fp32": 5, "bf16": 2, "fp16": 1}
OUTPUT = 9
# A pass that takes longer [s] tells no more than a shorter one.
LONGEST = 1.0


def points(hardware: Hardware, dtypes: Sequence[str], cuda: bool) -> list[Point]:
    """The comparison: every shape in every format, each at other batches and lengths.

    A load whose prefill would take longer than `LONGEST` on this machine is passed over, unless
    all of them do: then it is the smallest.
    """
    found: list[Point] = []
    turn = 0
    for name, shape in SHAPES.items():
        run = replace(shape, layers=4 * shape.layers) if cuda else shape
        for dtype in dtypes:
            for _ in range(PER_SHAPE[dtype]):
                order = [LOADS[(turn + i) % len(LOADS)] for i in range(len(LOADS))]
                loads = [Point(name, run, dtype, b * (8 if cuda else 1), n * (8 if cuda else 1),
                               OUTPUT) for b, n in order]
                times = [float(predict(p, hardware).prefill.time.expected) for p in loads]
                index = next((i for i, t in enumerate(times) if t < LONGEST),
                             int(np.argmin(times)))
                turn += index + 1
                found.append(loads[index])
    return found


def predict(point: Point, hardware: Hardware) -> Estimate:
    """The estimate of the shape that will run, by the executor as the engine."""
    d = deployment_of(point.shape, point.dtype, point.name, hardware, "executor")
    return estimate(d, Workload(point.batch, point.input, point.output))


def compare(hardware: Hardware, device: str, chosen: Sequence[Point], threads: int | None,
            minutes: float, progress: Callable[[str], None]) -> Iterator[Compared]:
    """Predictions and measurements of each point, the prediction made first."""
    place = find_device(device)
    set_threads(threads)
    budget = 60.0 * minutes / (2.0 * len(chosen)) * 0.7
    begin, runner, last = time.perf_counter(), None, None
    for number, point in enumerate(chosen, 1):
        if time.perf_counter() - begin > 60.0 * minutes:
            progress(f"stopped after {number - 1} of {len(chosen)} points: {minutes:g} minutes")
            return
        progress(f"{number} of {len(chosen)}: {point.name} {point.dtype}, batch {point.batch}, "
                 f"input {point.input}")
        e = predict(point, hardware)
        if last is None or (last.shape, last.dtype) != (point.shape, point.dtype):
            longest = max(p.input + p.output for p in chosen)
            runner = Runner(point.shape, point.dtype, place, longest)
        last = point
        assert runner is not None
        try:
            measured = runner.measure(point.batch, point.input, point.output, 9,
                                      min(budget, 1.5), operations=False)
        except TooLargeError as error:
            progress(str(error))
            continue
        for m, phase in zip(measured, (e.prefill, e.decode), strict=True):
            assert phase is not None
            yield Compared(point, m.phase, phase.time, m, str(phase.detail.bound))


__all__ = ["LOADS", "OUTPUT", "SHAPES", "Compared", "Point", "compare", "points", "predict"]
