"""What `tokline measure` prints: the table, the JSON and the rows of its measurement CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.executor.measure import Measured
from simulator.executor.timing import Timing
from simulator.specs.model import Model, model_to_dict
from simulator.units import (
    format_bandwidth,
    format_flops,
    format_memory,
    format_number,
    format_time,
)
from simulator.validation.measurements import COLUMNS

Environment = dict[str, str | int | float | None]
SOURCE, ENGINE = "tokline measure", "tokline executor"


@dataclass(frozen=True)
class Session:
    """All that was measured of one model in one run.

    model      the catalogue's name with what was cut behind it
    hardware   catalogue name where the user gave one, else the device as it calls itself
    peak       most bytes that torch held on the device, where it counts them
    """

    model: str
    hardware: str
    spec: Model
    parameters: int
    weight_bytes: float
    dtype: str
    mode: str
    environment: Environment
    measured: Sequence[Measured]
    peak: float | None = None

    @property
    def points(self) -> list[tuple[int, int, int]]:
        """Batches and lengths, in the order of measuring."""
        return list(dict.fromkeys((m.batch, m.input, m.output) for m in self.measured))

    def of(self, point: tuple[int, int, int], phase: str) -> list[Measured]:
        """The whole phase at a point, then its operations."""
        return [m for m in self.measured
                if (m.batch, m.input, m.output) == point and m.phase == phase]


def _timing(t: Timing) -> dict[str, Any]:
    return {"median": t.median, "p10": t.low, "p90": t.high, "repeats": t.repeats}


def _phase_dict(found: list[Measured]) -> dict[str, Any] | None:
    if not found:
        return None
    whole, *operations = found
    return {"time_s": _timing(whole.time), "tokens_per_s": whole.tokens_per_s,
            "flops": whole.flops, "bytes": whole.bytes, "flops_per_s": whole.flops_per_s,
            "bytes_per_s": whole.bytes_per_s,
            "operations": [{"name": m.operation, "count": m.count, "time_s": _timing(m.time),
                            "flops": m.flops, "bytes": m.bytes, "flops_per_s": m.flops_per_s,
                            "bytes_per_s": m.bytes_per_s} for m in operations]}


def session_dict(s: Session, wall: float, file: str | None) -> dict[str, Any]:
    """The JSON of a session: SI units; times as median, p10 and p90 of `repeats`."""
    return {
        "schema_version": 1, "model": s.model, "hardware": s.hardware,
        "engine": ENGINE, "mode": s.mode, "dtype": s.dtype, "shape": model_to_dict(s.spec),
        "parameters": s.parameters, "weights_bytes": s.weight_bytes,
        "peak_memory_bytes": s.peak, "environment": s.environment,
        "points": [{"batch": p[0], "input": p[1], "output": p[2],
                    "prefill": _phase_dict(s.of(p, "prefill")),
                    "decode": _phase_dict(s.of(p, "decode"))} for p in s.points],
        "csv": file, "wall_s": wall}


def _notes(s: Session, m: Measured) -> str:
    e, spec = s.environment, s.spec
    size = f"hidden={spec.hidden} layers={spec.layer_count} vocabulary={spec.vocabulary}"
    clock = e["clock_hz"]
    parts = [
        f"median of {m.time.repeats}, p10 {m.time.low * 1e3:.6g} ms, "
        f"p90 {m.time.high * 1e3:.6g} ms",
        "prefill with the first token" if m.phase == "prefill" else
        "mean greedy step over the growing context",
        "random weights", size, f"threads={e['threads']}",
        f"device {e['device_name']}",
        f"driver {e['driver']}, CUDA {e['cuda']}" if e["device"] == "cuda" else "",
        f"clock {float(clock) / 1e6:.0f} MHz" if clock is not None else "",
        str(e["system"]),
        "disturbed: the runs are far apart" if m.time.disturbed else "",
    ]
    return "; ".join(p for p in parts if p)


def csv_rows(s: Session) -> list[dict[str, object]]:
    """Measurement rows of the whole phases: prefill_ms and tpot_ms; on CUDA the peak memory."""
    rows = []
    for m in (m for m in s.measured if m.operation == "pass"):
        metric = "prefill_ms" if m.phase == "prefill" else "tpot_ms"
        rows.append(_row(s, m, metric, m.time.median * 1e3, _notes(s, m)))
    if s.peak is not None and s.measured:
        rows.append(_row(s, s.measured[-1], "peak_mem_gib", s.peak / 2.0**30,
                         "most that torch held over all points of the run"))
    return rows


def csv_text(s: Session) -> str:
    """The rows as a measurement CSV, which `tokline validate` reads."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(csv_rows(s))
    return text.getvalue()


def _row(s: Session, m: Measured, metric: str, value: float, notes: str) -> dict[str, object]:
    date = s.environment["date"]
    name = "-".join(str(x) for x in (s.model, s.dtype, s.mode, f"b{m.batch}", f"i{m.input}",
                                     f"o{m.output}", metric)).replace(" ", "-")
    return {
        "id": name, "source": SOURCE, "source_date": date, "licence": "own measurement",
        "hardware": s.hardware, "n_devices": 1, "engine": ENGINE,
        "engine_version": f"torch {s.environment['torch']}, {s.mode}", "model": s.model,
        "dtype_weights": s.dtype, "dtype_kv": s.dtype, "tp": 1, "pp": 1, "ep": "",
        "batch_or_concurrency": m.batch, "request_rate": "", "input_len": m.input,
        "output_len": 1 if metric == "prefill_ms" else m.output, "metric": metric,
        "value": f"{value:.6g}", "quality": "C" if m.time.disturbed else "A", "notes": notes}



def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    left = 1 if header[0] else 0
    return ["  ".join(cell.ljust(w) if i < left else cell.rjust(w)
                      for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in (header, *rows)]


def session_lines(s: Session, file: str | None) -> list[str]:
    """The table: each phase at each point, then the operations of the last point."""
    e = s.environment
    where = (f"{e['device_name']}, driver {e['driver']}, CUDA {e['cuda']}" if e["device"] == "cuda"
             else f"{e['device_name']}, {e['threads']} thread{'s' * (e['threads'] != 1)}")
    lines = [f"{s.model}: {s.parameters / 1e9:.3g} B parameters, {format_memory(s.weight_bytes)} "
             f"of {s.dtype} weights, {s.mode}",
             f"measured on {where}; torch {e['torch']}, {e['date']}", ""]
    whole = [m for m in s.measured if m.operation == "pass"]
    lines += _table(
        ["phase", "batch", "input", "output", "median", "p10", "p90", "runs", "tok/s", "bytes/s",
         "FLOP/s"],
        [[m.phase, f"{m.batch:,}", f"{m.input:,}", f"{m.output:,}", format_time(m.time.median),
          format_time(m.time.low), format_time(m.time.high), str(m.time.repeats),
          format_number(m.tokens_per_s), format_bandwidth(m.bytes_per_s),
          format_flops(m.flops_per_s)] for m in whole])
    lines += ["", "prefill: one pass over the batch with its first token. decode: the mean step "
              "of the output - 1 steps;", "bytes/s and FLOP/s: what must move and be computed "
              "(counted) over the measured time."]
    if any(m.time.disturbed for m in whole):
        lines += ["", "WARNING: p90 is more than half of the median above p10 in some rows: "
                  "something else ran meanwhile,", "their quality is C in the CSV; measure again "
                  "when nothing else runs, or with --threads 1."]
    for phase in ("prefill", "decode"):
        found = s.of(s.points[-1], phase)[1:]
        if found:
            lines += ["", *_operation_lines(phase, s.points[-1], found)]
    return [*lines, *([f"\n{file} written"] if file is not None else [])]


def _operation_lines(phase: str, point: tuple[int, int, int], found: list[Measured]) -> list[str]:
    spent = sum(m.time.median for m in found)
    title = (f"{phase} by operation at batch {point[0]:,}, input {point[1]:,} (timed one by one in "
             "the running model, eager)")
    rows = [[m.operation, str(m.count), format_time(m.time.median), format_time(m.time.low),
             format_time(m.time.high), f"{100.0 * m.time.median / spent:.1f} %",
             format_bandwidth(m.bytes_per_s), format_flops(m.flops_per_s)]
            for m in sorted(found, key=lambda m: -m.time.median)]
    return [title, *_table(["operation", "count", "median", "p10", "p90", "share", "bytes/s",
                            "FLOP/s"], rows)]


__all__ = ["Session", "csv_rows", "csv_text", "session_dict", "session_lines"]
