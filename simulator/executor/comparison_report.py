"""The comparison of the executor as text, as JSON and as measurement rows with predictions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.executor.comparison import Compared
from simulator.executor.measure_report import Environment, Session, csv_rows
from simulator.layers import Phase
from simulator.specs.hardware import Hardware
from simulator.units import format_memory, format_time
from simulator.validation.measurements import COLUMNS

PHASES: tuple[Phase, ...] = ("prefill", "decode")
MORE = ("phase", "predicted", "low", "high", "ceiling", "ln_error", "in_range")


@dataclass(frozen=True)
class Comparison:
    """All compared points, the machine's file and what they ran on."""

    hardware: Hardware
    environment: Environment
    asked: int
    compared: Sequence[Compared]
    wall: float
    calibrated: float | None

    def of(self, phase: str) -> list[Compared]:
        """The points of a phase."""
        return [c for c in self.compared if c.phase == phase]


@dataclass(frozen=True)
class PhaseScore:
    """Errors of a phase: |predicted/measured - 1| and ln(predicted/measured)."""

    name: str
    n: int
    median: float
    p90: float
    median_ln: float
    p90_ln: float
    bias_ln: float
    in_range: float


def score(name: str, compared: Sequence[Compared]) -> PhaseScore | None:
    """The score of some points; None for none."""
    if not compared:
        return None
    ln = np.array([c.log_ratio for c in compared])
    error = np.abs(np.expm1(ln))
    return PhaseScore(name, len(ln), *(float(x) for x in (
        np.median(error), np.quantile(error, 0.9), np.median(np.abs(ln)),
        np.quantile(np.abs(ln), 0.9), np.median(ln), np.mean([c.inside for c in compared]))))


def scores(c: Comparison) -> list[PhaseScore]:
    """Both phases."""
    return [s for phase in PHASES if (s := score(phase, c.of(phase))) is not None]


def _kinds(c: Comparison) -> dict[str, list[Compared]]:
    """Points by what sets them apart: number format, kind of shape."""
    found: dict[str, list[Compared]] = {}
    for index in (0, 1):
        for x in sorted(c.compared, key=lambda x: x.phase, reverse=True):
            label = (x.point.dtype, x.point.name.split("-")[0])[index]
            found.setdefault(f"{x.phase}, {label}", []).append(x)
    return found


def comparison_dict(c: Comparison) -> dict[str, Any]:
    """The JSON: phases, sources (kinds of points) and every point; SI units."""
    def line(s: PhaseScore) -> dict[str, Any]:
        return {"name": s.name, "n": s.n, "covered": s.n, "median_abs_ln": s.median_ln,
                "p90_abs_ln": s.p90_ln, "bias_ln": s.bias_ln, "in_range": s.in_range,
                "median_error": s.median, "p90_error": s.p90}

    return {
        "schema_version": 1, "hardware": c.hardware.name, "environment": c.environment,
        "phases": [line(s) for s in scores(c)],
        "sources": [line(s) for name, rows in _kinds(c).items()
                    if (s := score(name, rows)) is not None],
        "not_covered": {} if len(c.compared) == 2 * c.asked else {
            "no memory or no time left": 2 * c.asked - len(c.compared)},
        "calibration_wall_s": c.calibrated, "wall_s": c.wall,
        "points": [{
            "shape": x.point.name, "dtype": x.point.dtype, "batch": x.point.batch,
            "input": x.point.input, "output": x.point.output, "phase": x.phase,
            "predicted_s": {"ceiling": float(x.predicted.ceiling),
                            "expected": float(x.predicted.expected),
                            "low": float(x.predicted.low), "high": float(x.predicted.high)},
            "measured_s": {"median": x.measured.time.median, "p10": x.measured.time.low,
                           "p90": x.measured.time.high, "repeats": x.measured.time.repeats},
            "ln_error": x.log_ratio, "in_range": x.inside, "bound": x.bound,
        } for x in c.compared],
    }


def _where(c: Comparison) -> str:
    e = c.environment
    return (f"{e['device_name']}, driver {e['driver']}" if e["device"] == "cuda" else
            f"{e['device_name']}, {e['threads']} threads")


def comparison_lines(c: Comparison) -> list[str]:
    """The table: errors by phase and kind, then every point."""
    lines = [f"Predicted from {c.hardware.title} ({c.hardware.path or 'calibrated now'}), measured "
             f"on {_where(c)}; torch {c.environment['torch']}, {c.environment['date']}", "",
             "                       n   median error   p90 error   bias   inside the range"]

    def line(s: PhaseScore) -> str:
        return (f"{s.name:<20}{s.n:>5}{s.median:>14.1%}{s.p90:>12.1%}"
                f"{np.expm1(s.bias_ln):>+8.1%}{s.in_range:>12.0%}")

    lines += [line(s) for s in scores(c)]
    lines += [line(s) for name, rows in _kinds(c).items() if (s := score(name, rows)) is not None]
    lines += ["", "expectation (calibrated, none of these shapes was measured before) beside "
              "measurement (median)", "",
              f"{'shape':<14}{'format':<7}{'batch':>5}{'input':>6}  {'phase':<8}{'bytes':>10}"
              f"{'predicted':>11}{'measured':>11}{'ratio':>7}  bound"]
    order = list(dict.fromkeys(x.point.name for x in c.compared))
    for x in sorted(c.compared, key=lambda x: order.index(x.point.name)):
        p = x.point
        lines.append(
            f"{p.name:<14}{p.dtype:<7}{p.batch:>5}{p.input:>6}  {x.phase:<8}"
            f"{format_memory(x.measured.bytes):>10}{format_time(float(x.predicted.expected)):>11}"
            f"{format_time(x.measured.time.median):>11}{np.exp(x.log_ratio):>7.2f}  {x.bound}")
    if len(c.compared) < 2 * c.asked:
        lines += ["", f"{2 * c.asked - len(c.compared)} of {2 * c.asked} points were not measured: "
                  "no memory or no time left"]
    return [*lines, "", f"{len(c.compared)} points in {c.wall:.0f} s" + (
        "" if c.calibrated is None else f", after {c.calibrated:.0f} s of calibration")]


def write_comparison(path: str, c: Comparison) -> None:
    """Measurement rows, which `tokline validate` reads, with the prediction beside [ms]."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *MORE), lineterminator="\n")
        writer.writeheader()
        for x in c.compared:
            path = c.hardware.path or ""
            session = Session(
                model=x.point.name,
                hardware=path if path.endswith((".yaml", ".yml")) else c.hardware.name,
                spec=x.point.model, parameters=0,
                weight_bytes=0.0, dtype=x.point.dtype, mode="eager", environment=c.environment,
                measured=[x.measured])
            more = (x.phase, *(f"{1e3 * float(v):.6g}" for v in (
                x.predicted.expected, x.predicted.low, x.predicted.high, x.predicted.ceiling)),
                f"{x.log_ratio:.4f}", x.inside)
            writer.writerow(csv_rows(session)[0] | dict(zip(MORE, more, strict=True)))


def run_comparison(hardware: Hardware | None, device: str, dtypes: Sequence[str],
                   threads: int | None, minutes: float, progress: Any) -> Comparison:
    """Calibrate, unless a hardware file is given, then predict, run and compare."""
    import time

    from simulator.executor.calibrate import calibrate_machine
    from simulator.executor.comparison import compare, points
    from simulator.executor.machine import machine_hardware
    from simulator.executor.timing import environment, find_device, set_threads

    begin = time.perf_counter()
    calibrated = None
    if hardware is None:
        hardware = machine_hardware(calibrate_machine(device, dtypes, threads, minutes / 4.0,
                                                      progress))
        calibrated = time.perf_counter() - begin
    place = find_device(device)
    chosen = points(hardware, dtypes, place.type == "cuda")
    start = time.perf_counter()
    left = minutes - (start - begin) / 60.0
    found = list(compare(hardware, device, chosen, threads, left, progress))
    set_threads(threads)
    return Comparison(hardware, environment(place), len(chosen), found,
                      time.perf_counter() - start, calibrated)


__all__ = ["Comparison", "PhaseScore", "comparison_dict", "comparison_lines", "run_comparison",
           "score", "scores", "write_comparison"]
