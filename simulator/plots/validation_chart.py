"""Measured against predicted, by phase and source; and what each step of the model is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from simulator.errors import InputError
from simulator.plots.style import (
    TEXT,
    Plot,
    Theme,
    dress,
    finished,
    frame,
    settle,
    styled,
    theme_of,
)
from simulator.units import format_number, plural
from simulator.validation.cases import PHASES
from simulator.validation.scores import Scored, counts

if TYPE_CHECKING:
    from simulator.validation.run import Report

_COLOURED = 8
# Two more than a theme tells devices apart with.
_MORE = {"light": ("#6A3D9A", "#8A6D1B"), "dark": ("#B39DDB", "#C9B28F")}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_TITLES = {
    "batch1_decode": "decode, batch 1", "prefill": "prefill",
    "static_throughput": "static throughput", "max_throughput": "max throughput",
    "tpot": "TPOT", "ttft": "TTFT"}
# The one unit of a panel; figures that a source prints in another are turned into it.
_UNITS = {"batch1_decode": "tok/s", "prefill": "tok/s", "static_throughput": "tok/s",
          "max_throughput": "tok/s", "tpot": "ms", "ttft": "ms"}
# Factor of the band where no row says how wide its range is.
_BAND = 1.25
_OTHERS = "other sources"


def _factor(s: Scored) -> tuple[float, int]:
    """(factor, power) that turn the printed figure into the unit of its panel."""
    case, metric = s.case, s.case.row.metric
    if case.phase == "batch1_decode" and metric == "tpot_ms":
        return 1e3, -1
    if case.phase == "prefill" and metric in ("prefill_ms", "ttft_ms"):
        return 1e3 * case.input * (case.batch or 1.0), -1
    if case.phase == "tpot" and metric == "decode_tok_s_per_user":
        return 1e3, -1
    if metric == "req_s":
        return case.input + case.output, 1
    return 1.0, 1


def _frame(scored: Sequence[Scored]) -> pd.DataFrame:
    rows = []
    for s in scored:
        row, (factor, power) = s.case.row, _factor(s)
        rows.append({
            "id": row.id, "source": row.source, "phase": s.case.phase, "device": row.hardware,
            "model": row.model, "engine": row.engine, "metric": row.metric,
            "measured": row.value, "predicted": s.predicted, "low": s.low, "high": s.high,
            "ln_error": s.error, "in_range": s.inside, "unit": _UNITS[s.case.phase],
            "x": factor * s.predicted ** power, "y": factor * row.value ** power})
    return pd.DataFrame(rows)


def _percent(ln: float) -> str:
    """`26 %`, and from twice on `2.4x`."""
    if ln >= math.log(2.0):
        return f"{math.exp(ln):,.1f}x"
    return f"{math.expm1(ln):.0%}".replace("%", " %")


def _message(data: pd.DataFrame) -> str:
    size = np.abs(data["ln_error"].to_numpy())
    return (f"Half of {len(data):,} figures within {_percent(float(np.median(size)))}, nine in "
            f"ten within {_percent(float(np.quantile(size, 0.9)))}")


@styled
def validation(report: Report, *, theme: str = "light", title: str | None = None) -> Plot:
    """Measured against predicted, a panel for each phase, a colour for each source.

    The eight sources with most rows have colours. Rows that don't count aren't drawn.
    """
    look = theme_of(theme)
    scored = [s for s in report.scored if counts(s) and s.case.phase in PHASES
              and math.isfinite(s.error)]
    if not scored:
        raise InputError("-o: no predicted row counts, so there is nothing to draw")
    data = _frame(scored)
    styles = _styles(data, look)
    data["series"] = [name if name in styles else _OTHERS for name in data["source"]]
    figure, axes = frame(
        look, title or _message(data),
        f"Measured against predicted, {plural(data['source'].nunique(), 'source')}: a mark is one "
        "published figure, all count alike", _key(data, styles, look), height=6.3)
    # The frame has one row of panels, and six need two.
    axes[0].remove()
    panels = figure.subplots(2, 3, squeeze=False)
    for i, (panel, phase) in enumerate(zip(panels.flat, PHASES, strict=True)):
        dress(panel, look)
        _panel(panel, data[data["phase"] == phase], phase, styles, look)
        panel.set_xlabel(f"predicted [{_UNITS[phase]}]")
        if i % 3 == 0:
            panel.set_ylabel("measured")
    settle(figure)
    return finished(figure, data)


def _styles(data: pd.DataFrame, look: Theme) -> dict[str, tuple[str, str]]:
    """Colour and marker of the sources with most rows."""
    names = [str(n) for n in data["source"].value_counts(sort=True).index]
    order = sorted(names, key=lambda n: (-int((data["source"] == n).sum()), n))
    colours = (*look.chips, *_MORE[look.name])
    return {n: (c, m) for n, c, m in zip(order[:_COLOURED], colours, _MARKERS, strict=False)}


def _mark(color: str, marker: str, size: float = 5.0) -> Line2D:
    return Line2D([], [], color=color, marker=marker, markersize=size, linestyle="none",
                  markeredgewidth=0)


def _key(data: pd.DataFrame, styles: dict[str, tuple[str, str]],
         look: Theme) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = [(_mark(c, m), _short(n)) for n, (c, m) in styles.items()]
    if (data["series"] == _OTHERS).any():
        found.append((_mark(look.muted, "."), _OTHERS))
    return [*found, (Line2D([], [], color=look.foreground, linewidth=1.0), "equal"),
            (Patch(facecolor=look.muted, alpha=0.22, linewidth=0), "predicted range")]


def _short(name: str) -> str:
    """A source's name without what stands in brackets."""
    bare = name.split(" (", maxsplit=1)[0]
    return bare if len(bare) <= 30 else bare[:28] + ".."


def _panel(axes: Axes, rows: pd.DataFrame, phase: str, styles: dict[str, tuple[str, str]],
           look: Theme) -> None:
    """Dots, the line of equality and the band of the range around it."""
    words = _TITLES[phase]
    if rows.empty:
        axes.set_title(f"{words}\nno row", fontsize=TEXT, color=look.foreground, loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_box_aspect(1.0)
        return
    size = float(np.median(np.abs(rows["ln_error"].to_numpy())))
    which = f"half of {len(rows):,} in" if len(rows) > 1 else "one row, off by"
    axes.set_title(f"{words}\n{which} {_percent(size)}", fontsize=TEXT,
                   color=look.foreground, loc="left")
    both = np.concatenate([rows["x"].to_numpy(), rows["y"].to_numpy()])
    low, high = float(both.min()) / 1.5, float(both.max()) * 1.5
    band = float(np.median(rows["high"].to_numpy() / rows["predicted"].to_numpy()))
    _ground(axes, low, high, band if math.isfinite(band) and band > 1.0 else _BAND, look)
    # The sources without a colour first: what is named lies on top.
    for name in [_OTHERS, *reversed(styles)]:
        mine = rows[rows["series"] == name]
        color, marker = styles.get(name, (look.muted, "o"))
        axes.scatter(mine["x"], mine["y"], s=7.0, color=color, marker=marker, alpha=0.55,
                     linewidths=0, zorder=3, gid=f"source {name}")


def _ground(axes: Axes, low: float, high: float, band: float, look: Theme) -> None:
    """Equal logarithmic axes, the identity, and the band of factor `band` around it."""
    ends = np.array([low, high])
    axes.fill_between(ends, ends / band, ends * band, color=look.muted, alpha=0.22, linewidth=0,
                      zorder=1, gid="band")
    axes.plot(ends, ends, color=look.foreground, linewidth=1.0, zorder=2, gid="equal")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    ticks = _decades(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: _tick(v)))


def _tick(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:,g}{unit}"
    return f"{value:g}"


def _decades(low: float, high: float) -> list[float]:
    """At most four ticks: decades, or fewer of them over a wide range, halves over a narrow one."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    found = [10.0 ** e for e in range(first, last + 1)]
    if len(found) < 2:
        found = [m * 10.0 ** e for e in range(first - 1, last + 1) for m in (1.0, 2.0, 5.0)]
        found = [v for v in found if low <= v <= high]
    return found[:: math.ceil(len(found) / 4)]


@styled
def three_steps(measured: Any, ceiling: Any, predicted: Any, *, theme: str = "light",
                title: str | None = None) -> Plot:
    """Batch-1 decode [tok/s]: bytes over bandwidth alone, with one efficiency, with fixed costs.

    The efficiency is the one number that does best for all rows: the median of measured over
    ceiling. Arrays have one value a row.
    """
    look = theme_of(theme)
    y, bound, value = (np.asarray(v, float).ravel() for v in (measured, ceiling, predicted))
    if not len(y) or not len(y) == len(bound) == len(value):
        raise InputError(f"three_steps: {len(y)} measured, {len(bound)} ceilings and {len(value)} "
                         "predictions; needs as many of each, and at least one")
    if not all(np.isfinite(v).all() and (v > 0).all() for v in (y, bound, value)):
        raise InputError("three_steps: every figure must be finite and above 0")
    share = float(np.exp(np.median(np.log(y / bound))))
    steps = [("bytes / bandwidth", bound),
             (f"x efficiency {format_number(share, 2)}", bound * share),
             ("with fixed costs", value)]
    errors = [float(np.median(np.abs(np.log(x / y)))) for _, x in steps]
    data = pd.concat([pd.DataFrame({"step": name, "x": x, "y": y, "ln_error": np.log(x / y)})
                      for name, x in steps], ignore_index=True)
    words = (f"Median error {_percent(errors[0])} with bytes / bandwidth alone, "
             f"{_percent(errors[1])} with an efficiency, {_percent(errors[2])} with fixed costs")
    figure, axes = frame(
        look, title or words, f"{len(y):,} published decode rates at batch 1, tokens/s",
        [(Line2D([], [], color=look.foreground, linewidth=1.0), "equal"),
         (Patch(facecolor=look.muted, alpha=0.22, linewidth=0), "within 25 %")],
        columns=3, height=3.35)
    both = np.concatenate([y, bound, bound * share, value])
    low, high = float(both.min()) / 1.4, float(both.max()) * 1.4
    for i, (panel, (name, x), error) in enumerate(zip(axes, steps, errors, strict=True)):
        _ground(panel, low, high, _BAND, look)
        panel.scatter(x, y, s=7.0, color=look.chips[0], alpha=0.45, linewidths=0, zorder=3,
                      gid=f"step {name}")
        panel.set_title(f"{name}\nmedian error {_percent(error)}", fontsize=TEXT,
                        color=look.foreground, loc="left")
        panel.set_xlabel("predicted")
        if i == 0:
            panel.set_ylabel("measured")
    settle(figure)
    return finished(figure, data)


__all__ = ["three_steps", "validation"]
