"""A comparison as text of at most 100 columns and as JSON."""

from __future__ import annotations

import itertools
from typing import Any

from simulator.advice import native_change
from simulator.compare import Against, Comparison, Item, PhaseRatio, rates
from simulator.crossover import Crossover
from simulator.metrics import METRICS
from simulator.output import SCHEMA_VERSION, figure, identity, memory_dict, number
from simulator.report import widened, wrap
from simulator.units import (
    format_bandwidth,
    format_flops,
    format_memory,
    format_number,
    format_time,
)

_NAME = 26


def _cell(item: Item, key: str, stands: bool) -> str:
    f = rates(item.estimate)[key]
    if not stands or f is None:
        return "-"
    value = float(f.expected)
    return format_time(value) if METRICS[key].kind == "time" else format_number(value)


def _columns(c: Comparison, force: bool) -> list[tuple[str, list[str]]]:
    """Rows of the table: a title and a cell for each item."""
    steps = c.workload.output > 1
    keys = ["ttft", *(["tpot"] if steps else []), "e2e",
            *(["tok/s", "total-tok/s", "device-tok/s"] if steps else []),
            "tok/usd", "tok/W", "usd", "joules"]
    rows: list[tuple[str, list[str]]] = [
        ("fits", ["yes" if i.fits else "DOES NOT FIT" for i in c.items]),
        ("memory a device", [format_memory(float(i.estimate.memory.total)) for i in c.items]),
        ("  of", [format_memory(float(i.estimate.memory.capacity)) for i in c.items]),
        ("max batch", [f"{i.estimate.memory.max_batch:,.0f}" for i in c.items]),
        ("bandwidth a device", [format_bandwidth(float(
            i.estimate.deployment.hardware.memory_bandwidth)) for i in c.items]),
        ("FLOP/s a device", [format_flops(float(i.estimate.prefill.peak)) for i in c.items]),
        ("  computes in", [i.estimate.prefill.peak_format for i in c.items]),
        ("devices", [str(i.estimate.deployment.devices) for i in c.items]),
    ]
    for key in keys:
        cells = [_cell(i, key, i.fits or force) for i in c.items]
        if set(cells) != {"-"} or key in ("ttft", "tpot"):
            rows.append((METRICS[key].title, cells))
    for name in ("prefill", *(["decode"] if steps else [])):
        rows.append((f"{name} bound", [_bound(i, name, force) for i in c.items]))
    return rows


def _bound(item: Item, name: str, force: bool) -> str:
    if not (item.fits or force):
        return "-"
    detail = getattr(item.estimate, name).detail
    return f"{detail.bound} {float(getattr(detail, detail.bound) / detail.expected):.0%}"


def _table(c: Comparison, force: bool) -> list[str]:
    """The table, in blocks of as many columns as fit, the reference first in each."""
    rows = _columns(c, force)
    width = max(14, *(len(i.label) + 2 for i in c.items))
    width = min(width, 36)
    fit = max(1, (100 - _NAME) // width - 1)
    lines: list[str] = []
    others = list(range(1, len(c.items)))
    for start in range(0, len(others), fit):
        shown = [0, *others[start:start + fit]]
        lines += ["", "  " + " " * (_NAME - 2) + "".join(
            f"{_short(c.items[i].label, width - 2):>{width}}" for i in shown)]
        lines += [f"  {title:<{_NAME - 2}}" + "".join(f"{cells[i]:>{width}}" for i in shown)
                  for title, cells in rows]
    return lines


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 2] + ".."


def _speed(ratio: float) -> str:
    if abs(ratio - 1) < 5e-4:
        return "as fast"
    return (f"{format_number(1 / ratio)}x as fast" if ratio < 1
            else f"{format_number(ratio)}x as slow")


def _because(p: PhaseRatio) -> list[str]:
    """One line with the ratio, one with its factors."""
    name = "TTFT" if p.phase == "prefill" else "TPOT"
    doubt = "" if p.certain else "; the ranges overlap, so the order is not certain"
    lines = wrap(f"    {p.phase:<8}{name} {format_number(p.ratio)}x, {_speed(p.ratio)} "
                 f"(range {format_number(p.low)} to {format_number(p.high)}{doubt})", " " * 12)
    shown = [f for f in p.factors if abs(f.ratio - 1) >= 5e-4 or f.reason]
    text = " x ".join(f"{f.name} {format_number(f.ratio)}" + (f" ({f.reason})" if f.reason else "")
                      for f in shown) or "nothing differs"
    return lines + wrap(" " * 12 + "= " + text, " " * 14)


def _runs(runs: list[tuple[int, int, str]], end: int) -> str:
    """`h100 up to 43; a100 from 44 to 99`, of (first, last, words); the axis ends at `end`."""
    parts = []
    for i, (first, last, words) in enumerate(runs[:6]):
        where = (f"up to {last:,}" if i == 0 and last < end else "always" if i == 0 else
                 f"at {first:,}" if first == last else f"from {first:,}"
                 + ("" if last == end else f" to {last:,}"))
        parts.append(f"{words} {where}")
    more = len(runs) - 6
    return "; ".join([*parts, *([f"and {more} more changes"] if more > 0 else [])])


_MEMORY = {"only_reference": "only {a} fits", "only_other": "only {b} fits",
           "neither": "neither fits"}
_ORDER = {"reference": "{a}", "other": "{b}", "tie": "equal"}


def _merged(c: Crossover, names: dict[str, str], rest: str | None) -> list[tuple[int, int, str]]:
    """Runs of equal words; states without words take `rest`, or are left out where it is None."""
    runs: list[tuple[int, int, str]] = []
    for s in c.segments:
        words = names.get(s.state, rest)
        if words is None:
            continue
        if runs and runs[-1][2] == words:
            runs[-1] = (runs[-1][0], s.last, words)
        else:
            runs.append((s.first, s.last, words))
    return runs


def _order(c: Crossover, a: str, b: str) -> str:
    """Which is better where both fit: `a up to 43; b from 44`."""
    runs = _merged(c, {k: v.format(a=a, b=b) for k, v in _ORDER.items()}, None)
    if not runs:
        return "no batch or context that both fit"
    last = runs[-1][1]
    if len(runs) > 1:
        return _runs(runs, last)
    never = {a: b, b: a}.get(runs[0][2])
    return f"{runs[0][2]} always" + (f", {never} never up to {last:,}" if never else "")


def _order_lines(group: list[Crossover], a: str, b: str) -> list[str]:
    """What fits along an axis, then the order by each metric; equal orders on one line."""
    fits = _merged(group[0], {k: v.format(a=a, b=b) for k, v in _MEMORY.items()}, "both fit")
    lines = wrap(f"      {'memory':<16}{_runs(fits, group[0].segments[-1].last)}", " " * 22)
    texts: dict[str, list[str]] = {}
    for k in group:
        texts.setdefault(_order(k, a, b), []).append(k.metric.title)
    for text, titles in texts.items():
        title = ", ".join(titles)
        if len(title) < 15:
            lines += wrap(f"      {title:<16}{text}", " " * 22)
        else:
            lines += wrap(f"      {title}: {text}", " " * 22)
    return lines


def _against(c: Comparison, x: Against) -> list[str]:
    a, b = c.reference.label, x.item.label
    lines = ["", f"{b} against {a}"]
    if x.phases:
        for p in x.phases:
            lines += _because(p)
    else:
        unfit = [i.label for i in (c.reference, x.item) if not i.fits]
        lines += wrap(f"    no ratio: {' and '.join(unfit)} does not fit" if len(unfit) == 1 else
                      f"    no ratio: {' and '.join(unfit)} do not fit", "    ")
    lines += _capacity(c.reference, x.item)
    for axis, group in itertools.groupby(x.crossovers, key=lambda k: k.axis):
        about = (f"batch 1 to {c.limits['batch']:,}" if axis == "batch" else
                 f"context {c.workload.output + 1:,.0f} to {c.limits['context']:,} (input + "
                 "output)")
        lines.append(f"    better by {about}, expected:")
        lines += _order_lines(list(group), a, b)
    return lines


def _capacity(a: Item, b: Item) -> list[str]:
    x, y = (float(i.estimate.memory.capacity * i.estimate.deployment.devices) for i in (a, b))
    return wrap(f"    capacity {format_number(y / x)}x ({format_memory(y)} against "
                f"{format_memory(x)}, all devices): max batch {b.estimate.memory.max_batch:,.0f} "
                f"against {a.estimate.memory.max_batch:,.0f}", " " * 6)


def _native_lines(c: Comparison) -> list[str]:
    """Which items multiply weights in a wider precision than their chip could, by default alone."""
    found: dict[str, list[str]] = {}
    for item in c.items:
        d = item.estimate.deployment
        change = native_change(d, c.workload)
        if change is not None:
            found.setdefault(widened(d, change.flag, "these chips"), []).append(
                item.label)
    return [line for text, labels in found.items()
            for line in wrap(f"  {', '.join(labels)}: {text}.", "  ")]


def compare_lines(c: Comparison, force: bool = False, asked: bool = False) -> list[str]:
    """The whole comparison for a terminal; `asked`: the activations are the user's own."""
    w, d = c.workload, c.reference.estimate.deployment
    models = sorted({i.estimate.deployment.model.title or i.estimate.deployment.model.name
                     for i in c.items})
    lines = wrap(f"{' / '.join(models)}, {d.engine.title}; batch {w.batch:,.0f} (deployment), "
                 f"input {w.input:,.0f}, output {w.output:,.0f} tokens; expected values; reference "
                 f"{c.reference.label}", "  ")
    lines += [] if asked else _native_lines(c)
    lines += _table(c, force)
    for x in c.against:
        lines += _against(c, x)
    tdp = any(i.estimate.deployment.hardware.tdp is not None for i in c.items)
    text = ("Factors multiply to the ratio of expected times; each is what one substitution "
            "changes, in the order written.")
    if tdp:
        text += (" tok/s per W is output over the whole request per watt of rated board power; "
                 "tokens per USD likewise pays for prefill.")
    lines += ["", *wrap(text, "  ")]
    return lines


def _crossover_dict(k: Crossover) -> dict[str, Any]:
    return {
        "axis": k.axis,
        "metric": k.metric.json,
        "segments": [{"first": s.first, "last": s.last, "better": s.state} for s in k.segments],
        "flips": list(k.flips),
    }


def _item_dict(item: Item, force: bool) -> dict[str, Any]:
    e = item.estimate
    stands = item.fits or force
    values = {METRICS[k].json: figure(f) if stands else None for k, f in rates(e).items()}
    phases = {
        name: {
            "bound": phase.detail.bound,
            "shares": {p: number(getattr(phase.detail, p) / phase.detail.expected)
                       for p in ("compute", "memory", "network", "overhead")},
        } if stands and (name == "prefill" or e.workload.output > 1) else None
        for name, phase in (("prefill", e.prefill), ("decode", e.decode))
    }
    return {"label": item.label, "fits": item.fits} | identity(e) | values | phases | {
        "memory": memory_dict(e)}


def _phase_dict(p: PhaseRatio) -> dict[str, Any]:
    return {
        "ratio": number(p.ratio), "low": number(p.low), "high": number(p.high),
        "certain": p.certain,
        "factors": [{"name": f.name, "ratio": number(f.ratio), "reason": f.reason}
                    for f in p.factors],
    }


def compare_dict(c: Comparison, force: bool = False) -> dict[str, Any]:
    """The whole comparison as one JSON value; rates and ratios null where something doesn't fit."""
    return {
        "schema_version": SCHEMA_VERSION,
        "reference": c.reference.label,
        "items": [_item_dict(i, force) for i in c.items],
        "against": [{
            "label": x.item.label,
            "prefill": next((_phase_dict(p) for p in x.phases if p.phase == "prefill"), None),
            "decode": next((_phase_dict(p) for p in x.phases if p.phase == "decode"), None),
            "crossovers": [_crossover_dict(k) for k in x.crossovers],
        } for x in c.against],
        "limits": {f"max_{axis}": most for axis, most in c.limits.items()},
    }
