"""A sweep's result as text and as JSON."""

from __future__ import annotations

import time
from typing import Any

from simulator.sweep_run import Result
from simulator.sweep_summary import records
from simulator.units import format_memory, format_number, format_time

_MOST_SHOWN = 20
_COLUMNS = {
    "model": "model", "hardware": "hardware", "devices": "n", "engine": "engine",
    "weights": "weights", "kv": "KV", "tp": "tp", "pp": "pp", "ep": "ep", "cp": "cp", "dp": "dp",
    "batch": "batch", "input": "input", "output": "output", "ttft_s": "TTFT", "tpot_s": "TPOT",
    "tokens_per_s_per_user": "tok/s user", "output_tokens_per_s": "tok/s total",
    "output_tokens_per_s_per_device": "tok/s device",
    "usd_per_million_output_tokens": "USD/M", "decode_bound": "bound",
}
_ALWAYS = ("batch", "ttft_s", "tpot_s", "tokens_per_s_per_user", "output_tokens_per_s_per_device")


def result_dict(result: Result, path: str | None) -> dict[str, Any]:
    """The pinned keys and what stands beside them."""
    s = result.summary
    return {
        "rows": result.rows,
        "feasible": s.feasible,
        "wall_s": result.wall,
        "rows_per_s": result.rows_per_s,
        "kept": s.kept,
        "worked_out": result.worked_out,
        "resumed": result.resumed,
        "already_whole": result.already_whole,
        "file": path,
        "goal": s.goal,
        "objectives": list(s.objectives),
        "top": [] if s.best is None else records(s.best),
        "pareto": [] if s.front is None else records(s.front),
    }


def result_lines(result: Result, path: str | None) -> list[str]:
    """Counts, the Pareto front and the top rows."""
    s = result.summary
    lines = [f"{result.rows:,} configurations, {s.kept:,} kept, {s.feasible:,} of them fit; "
             f"{format_time(result.wall)}, {format_number(result.rows_per_s)} rows/s"]
    if result.resumed:
        lines.append(f"went on from an earlier run: {result.worked_out:,} rows were left")
    if path is not None:
        lines.append(f"{path}: already held this table" if result.already_whole else
                     f"{path}: {s.kept:,} rows")
    if s.front is None:
        return [*lines, "nothing fits; the reasons are in the table (-o FILE.csv, column 'reason')"]
    front, best = records(s.front), [] if s.best is None else records(s.best)
    shown = _shown([*front, *best], (s.goal, *s.objectives))
    note = f", every {-(-len(front) // _MOST_SHOWN)}th of {len(front)}" if (
        len(front) > _MOST_SHOWN) else ""
    lines += ["", f"Pareto front: {' against '.join(s.objectives)}{note}"]
    lines += _table(front[::-(-len(front) // _MOST_SHOWN)], shown)
    if best:
        lines += ["", f"Best {len(best)} by {s.goal}", *_table(best, shown)]
    return lines


def _shown(rows: list[dict[str, Any]], always: tuple[str, ...]) -> dict[str, str]:
    """Columns that differ between the rows, or that are asked for."""
    names = {n: _COLUMNS.get(n, n) for n in dict.fromkeys((*_COLUMNS, *always)) if n in rows[0]}
    return {n: title for n, title in names.items()
            if n in _ALWAYS or n in always or len({row[n] for row in rows}) > 1}


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    base = name.removesuffix("_ceiling").removesuffix("_low").removesuffix("_high")
    if base.endswith("_s") and "per_s" not in base:
        return format_time(value)
    if base.endswith("_bytes"):
        return format_memory(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)


def _table(rows: list[dict[str, Any]], shown: dict[str, str]) -> list[str]:
    cells = [list(shown.values())] + [[_cell(n, row[n]) for n in shown] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(shown))]
    left = [isinstance(rows[0][n], str) for n in shown]
    return ["  " + "  ".join(c.ljust(w) if is_left else c.rjust(w) for c, w, is_left in
                             zip(line, widths, left, strict=True)).rstrip() for line in cells]


class ProgressLine:
    """Text of a progress line: nothing in the first two seconds, then five times a second."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()
        self.first: int | None = None
        self.drawn = False

    def text(self, done: int, rows: int) -> str | None:
        """The line, or None where it isn't time for one."""
        now = time.monotonic()
        if self.first is None:
            self.first = done
        if now - self.began < 2.0 or now - self.last < 0.2:
            return None
        self.last, self.drawn = now, True
        rate = max(done - self.first, 1) / (now - self.began)
        bar = "#" * (30 * done // rows)
        return (f"[{bar:<30}] {done / rows:.0%} of {rows:,} rows, {format_number(rate)} rows/s, "
                f"{format_time((rows - done) / rate)} left")
