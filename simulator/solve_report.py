"""A solution as text of at most 100 columns and as JSON: the value, or what remains without one."""

from __future__ import annotations

import math
from typing import Any

from simulator.output import SCHEMA_VERSION, estimate_dict, figure, number
from simulator.report import title, wrap
from simulator.request import Cause, Estimate
from simulator.solve import Solution
from simulator.units import format_memory, format_number, format_time

_PARTS = {"compute": "arithmetic", "memory": "memory traffic", "network": "network",
          "overhead": "fixed costs"}


def limiting_phase(e: Estimate, metric: str) -> str:
    """The phase that decides a metric: prefill, or decode."""
    if metric == "ttft" or e.workload.output <= 1:
        return "prefill"
    if metric in ("tpot", "tok/s", "total-tok/s", "device-tok/s"):
        return "decode"
    steps = float(e.workload.output - 1) * float(e.tpot.expected)
    return "prefill" if float(e.ttft.expected) > steps else "decode"


def remaining(s: Solution, e: Estimate) -> tuple[str, dict[str, float]]:
    """(phase, seconds by part, largest first) of the expected time that decides the worst target.

    Where the question is about the ceiling, only arithmetic and traffic of the ceiling.
    """
    metric = s.question.worst(e).metric.key if s.question.targets else "tpot"
    phase = limiting_phase(e, metric)
    detail = getattr(e, phase).detail
    if s.question.figure == "ceiling":
        parts = {"compute": float(detail.ceiling_compute),
                 "memory": float(detail.ceiling - detail.ceiling_compute)}
    else:
        parts = {p: float(getattr(detail, p)) for p in _PARTS}
    return phase, dict(sorted(parts.items(), key=lambda x: -x[1]))


def _value(s: Solution, e: Estimate) -> str:
    """The targets' figures of an estimate: `TPOT 1.26 ms`."""
    return ", ".join(f"{t.metric.title} {t.metric.format(_of(s, e, i))}"
                     for i, t in enumerate(s.question.targets))


def _of(s: Solution, e: Estimate, index: int) -> float:
    f = s.question.targets[index].metric.get(e)
    return math.nan if f is None else float(getattr(f, s.question.figure))


def _parts(s: Solution, e: Estimate) -> str:
    phase, parts = remaining(s, e)
    total = sum(parts.values())
    words = ", ".join(f"{_PARTS[k]} {format_time(v)} ({v / total:.0%})"
                      for k, v in parts.items() if v >= 0.005 * total)
    return f"{'a decode step' if phase == 'decode' else 'the prefill'} is {words}"


def _name(s: Solution) -> str:
    return {"flops": "FLOP/s", "devices": "number of devices"}.get(
        s.find, s.find.replace("-", " "))


def _at(s: Solution, value: float | str) -> str:
    if isinstance(value, float) and math.isinf(value):
        return f"infinite {_name(s)}"
    if s.find == "memory-capacity":
        return "unlimited memory capacity"
    if s.find == "devices":
        return f"{s.form(value)} devices"
    return f"{_name(s)} {s.form(value)}"


def _range_words(s: Solution) -> str:
    """Where the value lies in the range that the hardware file gives."""
    r = s.range
    if r is None or not isinstance(s.value, float):
        return ""
    ends = f"{s.form(r.low)} to {s.form(r.high)}"
    where = ("below the low end of" if s.value < r.low else
             "above the high end of" if s.value > r.high else "inside")
    return f", {where} the range of its file ({ends})"


def _found_lines(s: Solution, e: Estimate) -> list[str]:
    q, value = s.question, s.value
    ratio = (f", {format_number(value / s.now)}x the {s.form(s.now)} it has"
             if isinstance(value, float) and isinstance(s.now, float) and s.now > 0
             else f" (now {s.form(s.now)})")
    kept = isinstance(value, float) and isinstance(s.now, float) and bool(q.met(q.estimate()))
    verdict = "NEEDED" if not kept else "ENOUGH"
    lines = wrap(f"{verdict}: {_name(s)} {s.form(value)}{ratio}{_range_words(s)}", "  ")
    if not e.memory.fits:
        lines += wrap(f"  but it does NOT FIT: {format_memory(float(e.memory.total))} of "
                      f"{format_memory(float(e.memory.capacity))} (--force ignored it)", "  ")
    if kept and value != s.now:
        now = "The targets are met" if q.targets else "It fits"
        lines += wrap(f"  {now} as it is; this is how far it can go.", "  ")
    if q.targets:
        lines += wrap(f"  There {_value(s, e)} ({q.figure}); {_parts(s, e)}.", "  ")
    if len(s.runs) > 1 or (s.runs and s.find == "batch"):
        lines += wrap("  Every " + s.find + " that meets them: " + ", ".join(
            f"{a:,} to {b:,}" if a != b else f"{a:,}" for a, b in s.runs[:8])
            + (f" and {len(s.runs) - 8} more stretches" if len(s.runs) > 8 else ""), "  ")
    return lines


def _limit_lines(s: Solution) -> list[str]:
    """The value with the quantity at its limit, and what then remains."""
    lines: list[str] = []
    if not s.question.targets:
        return lines
    if s.find not in ("memory-capacity", "price"):
        lines += wrap(f"  With {_at(s, s.best_value)} {_value(s, s.best)} ({s.question.figure}): "
                      f"{_parts(s, s.best)}.", "  ")
    if s.at_range_end is not None and s.range is not None and s.find != "memory-capacity":
        end = s.range.high if s.best_value else s.range.low
        parts = remaining(s, s.at_range_end)[1]
        fixed = parts.get("overhead", 0.0)
        lines += wrap(f"  At {s.form(end)}, the favourable end of its range, "
                      + _value(s, s.at_range_end) + (f", of which fixed costs {format_time(fixed)} "
                         f"({fixed / sum(parts.values()):.0%})" if fixed else "") + ".", "  ")
    return lines


def _unreachable_lines(s: Solution) -> list[str]:
    q, e = s.question, s.best
    held = not q.targets or float(q.excess(e)) <= 1
    lines = wrap(f"UNREACHABLE: no {_name(s)} gives "
                 + (" and ".join(t.text for t in q.targets) or "a fit") + f" ({q.figure})", "  ")
    if not e.memory.fits and not q.force:
        lines += wrap(f"  It does not fit: {format_memory(float(e.memory.total))} needed a device, "
                      f"{format_memory(float(e.memory.capacity))} there, so it has no rates "
                      "('tokline memory' says what would fit; --force ignores memory).", "  ")
        return lines
    if held:
        lines += wrap("  The targets would hold only at the limit itself.", "  ")
    if s.find == "memory-capacity":
        lines += wrap(f"  It fits with enough memory, but capacity moves no time: {_value(s, e)}; "
                      f"{_parts(s, e)}.", "  ")
    return lines


def solution_lines(s: Solution) -> list[str]:
    """The answer for a terminal: verdict, what is reached, the limit, other ways."""
    base = s.solved if s.solved is not None else s.question.estimate()
    lines = [*title(base), ""]
    lines += _found_lines(s, s.solved) if s.solved is not None else _unreachable_lines(s)
    if s.best.memory.fits or s.question.force:
        lines += _limit_lines(s)
    if s.solved is None and s.others:
        lines += ["  Each of these alone would reach it:"]
        lines += [f"    {name:<24} {text}" for name, _, text in s.others]
    elif s.solved is None and s.also:
        lines += wrap(f"  No other quantity alone reaches it either. On top of "
                      f"{_at(s, s.best_value)}, each of these would:", "  ")
        lines += [f"    {name:<24} {text}" for name, _, text in s.also]
    elif s.solved is None and s.best.memory.fits:
        lines += ["  No other quantity reaches it either, alone or on top of that."]
    return lines


def _json_value(value: float | str | None) -> Any:
    return value if isinstance(value, str) or value is None else number(float(value))


def solution_dict(s: Solution, causes: list[Cause], warnings: list[str]) -> dict[str, Any]:
    """One JSON value; `limit.value` null is infinity, `value` null: unreachable."""
    q = s.question
    phase, parts = remaining(s, s.best)
    stands = bool(s.best.memory.fits) or q.force
    return {
        "schema_version": SCHEMA_VERSION,
        "find": s.find,
        "figure": q.figure,
        "targets": [{"key": t.metric.json, "value": t.value,
                     "at": "most" if t.metric.smaller else "least"} for t in q.targets],
        "found": s.found,
        "value": _json_value(s.value),
        "now": _json_value(s.now),
        "range": None if s.range is None else {"low": s.range.low, "mid": s.range.mid,
                                               "high": s.range.high},
        "runs": [list(run) for run in s.runs],
        "limit": {
            "value": _json_value(s.best_value),
            "fits": bool(s.best.memory.fits),
            "figures": {t.metric.json: figure(t.metric.get(s.best)) if stands else None
                        for t in q.targets},
            "phase": phase,
            "parts_s": {k: number(v) for k, v in parts.items()},
            "largest_part": next(iter(parts)),
        },
        "others": [{"find": name, "value": number(value)} for name, value, _ in s.others],
        "also": [{"find": name, "value": number(value)} for name, value, _ in s.also],
        "estimate": None if s.solved is None else estimate_dict(s.solved, causes, q.force,
                                                                warnings),
        "warnings": warnings,
    }
