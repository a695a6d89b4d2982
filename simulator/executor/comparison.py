"""Predict, run, compare: shapes that calibration never saw, on the machine that was calibrated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.deployment import Workload
from simulator.executor.comparison_shapes import SHAPES
from simulator.executor.counts import TooLargeError, deployment_of
from simulator.executor.cut import cut
from simulator.executor.measure import Measured, Runner
from simulator.executor.timing import find_device, set_threads
from simulator.layers import Phase
from simulator.request import Estimate, Figure, estimate
from simulator.specs.hardware import Hardware
from simulator.specs.model import Model


@dataclass(frozen=True)
class Point:
    """One model at one number format, batch and prompt."""

    name: str
    model: Model
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


# (batch, input) of the points in turn; lengths other than those that were calibrated.
LOADS = ((1, 48), (2, 300), (5, 96), (1, 700), (10, 24), (3, 190), (20, 40), (1, 150))
PER_SHAPE = {"fp32": 3, "bf16": 1, "fp16": 1}
OUTPUT = 9
# A pass that takes longer [s] tells no more than a shorter one.
LONGEST = 1.0


def points(hardware: Hardware, dtypes: Sequence[str], cuda: bool) -> list[Point]:
    """The comparison: every shape in every format, each at other batches and lengths.

    First come points of every shape and format, so that a run cut short has seen all kinds. A load
    whose prefill would take longer than `LONGEST` on this machine is passed over while there
    are others; then come the smallest of those.
    """
    found: list[tuple[int, Point]] = []
    turn = 0
    for name, shape in SHAPES.items():
        run = cut(shape, 4 * shape.layer_count) if cuda else shape
        for dtype in dtypes:
            loads = [Point(name, run, dtype, b * (8 if cuda else 1), n * (8 if cuda else 1), OUTPUT)
                     for b, n in LOADS]
            times = [float(predict(p, hardware).prefill.time.expected) for p in loads]
            left = [(turn + i) % len(LOADS) for i in range(len(LOADS))]
            for count in range(PER_SHAPE[dtype]):
                index = next((i for i in left if times[i] < LONGEST),
                             min(left, key=times.__getitem__))
                left.remove(index)
                turn = index + 1
                found.append((count, loads[index]))
    return [point for _, point in sorted(found, key=lambda x: x[0])]


def predict(point: Point, hardware: Hardware) -> Estimate:
    """The estimate of the shape that will run, by the executor as the engine."""
    d = deployment_of(point.model, point.dtype, hardware, "executor")
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
        if last is None or (last.model, last.dtype) != (point.model, point.dtype):
            longest = max(p.input + p.output for p in chosen)
            runner = Runner(point.model, point.dtype, place, longest)
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
