"""The executor: measured against predicted, and its measured operations on the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simulator.errors import InputError
from simulator.plots.style import (
    TEXT,
    Plot,
    Theme,
    faded,
    finished,
    frame,
    halo,
    settle,
    styled,
    theme_of,
    tick_time,
)
from simulator.roofline import ridge_point
from simulator.specs.hardware import Hardware
from simulator.units import format_bandwidth, format_flops

if TYPE_CHECKING:
    from simulator.executor.comparison_report import Comparison
    from simulator.executor.measure import Measured

BANDS = (0.15, 0.35)
# Height of a name as a share of the axes.
_LABEL = 0.052
_MARKERS = {"dense": "o", "window": "s", "experts": "^", "latent": "D", "biased": "v",
            "sinks": "P", "states": "X"}


def _frame(c: Comparison) -> pd.DataFrame:
    return pd.DataFrame([{
        "shape": x.point.name, "kind": x.point.name.split("-")[0], "dtype": x.point.dtype,
        "batch": x.point.batch, "input": x.point.input, "phase": x.phase,
        "predicted_s": float(x.predicted.expected), "low_s": float(x.predicted.low),
        "high_s": float(x.predicted.high), "ceiling_s": float(x.predicted.ceiling),
        "measured_s": x.measured.time.median, "measured_p10_s": x.measured.time.low,
        "measured_p90_s": x.measured.time.high,
        "error": float(np.expm1(x.log_ratio))} for x in c.compared])


def _time_axes(axes: Axes, low: float, high: float) -> None:
    for axis, limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        limits(low, high)
        axis.set_major_locator(LogLocator(10.0))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: tick_time(v)))


@styled
def executor(c: Comparison, *, theme: str = "light", title: str | None = None) -> Plot:
    """Measured against predicted time of prefill and of a decode step, log-log.

    The line is where both agree; the bands hold errors up to 15 % and up to 35 %.
    """
    look = theme_of(theme)
    data = _frame(c)
    if data.empty:
        raise InputError("-o: no point was compared, so there is nothing to draw")
    dtypes = list(dict.fromkeys(data["dtype"]))
    colours = dict(zip(dtypes, look.chips, strict=False))
    kinds = [k for k in _MARKERS if k in set(data["kind"])]
    marks = [Line2D([], [], linestyle="none", marker="o", color=colours[d]) for d in dtypes]
    shapes = [Line2D([], [], linestyle="none", marker=_MARKERS[k], color=look.muted,
                     markerfacecolor="none") for k in kinds]
    bands = [Patch(color=faded(look.foreground, look), alpha=a) for a in (0.30, 0.15)]
    error = np.abs(data["error"].to_numpy())
    figure, axes = frame(
        look, title or (f"Half of {len(data)} passes within {np.median(error):.0%}, nine in ten "
                        f"within {np.quantile(error, 0.9):.0%}"),
        f"Measured time against tokline's expectation, {c.hardware.title}; shapes that "
        f"calibration never saw; torch {c.environment['torch']}",
        [*zip(marks, dtypes, strict=True), *zip(shapes, kinds, strict=True),
         *zip(bands, [f"within {b:.0%}" for b in BANDS], strict=True)], columns=2)
    for each, phase in zip(axes, ("prefill", "decode"), strict=True):
        mine = data[data["phase"] == phase]
        each.set_title("prefill, one pass" if phase == "prefill" else "decode, mean step",
                       loc="left", fontsize=TEXT, color=look.foreground)
        each.set_xlabel("predicted")
        each.set_ylabel("measured")
        if mine.empty:
            continue
        values = mine[["predicted_s", "measured_s"]].to_numpy()
        low, high = values.min() / 1.6, values.max() * 1.6
        line = np.array([low, high])
        each.set_xscale("log")
        each.set_yscale("log")
        for band, alpha in zip(BANDS[::-1], (0.15, 0.30), strict=True):
            each.fill_between(line, line / (1.0 + band), line * (1.0 + band), linewidth=0,
                              color=faded(look.foreground, look), alpha=alpha)
        each.plot(line, line, color=look.muted, linewidth=1.0)
        for (dtype, kind), part in mine.groupby(["dtype", "kind"]):
            each.plot(part["predicted_s"], part["measured_s"], linestyle="none", markersize=5,
                      marker=_MARKERS.get(str(kind), "o"), color=colours[dtype], alpha=0.85)
        _time_axes(each, low, high)
    settle(figure)
    return finished(figure, data)


@styled
def measured_roofline(hardware: Hardware, measured: Sequence[Measured], dtype: str, *,
                      theme: str = "light", title: str | None = None) -> Plot:
    """Measured operations at their counted intensity, under the measured roofs of the machine.

    A point above the slope of memory is served by a cache.
    """
    look = theme_of(theme)
    data = pd.DataFrame([{
        "phase": m.phase, "operation": m.operation, "intensity": m.flops / m.bytes,
        "flops_per_s": m.flops_per_s, "time_s": m.time.median}
        for m in measured if m.operation != "pass" and m.flops > 0 and m.bytes > 0])
    if data.empty:
        raise InputError("no measured operation has FLOPs, so there is nothing to draw")
    peak, W = float(hardware.peak(dtype)[0]), float(hardware.memory_bandwidth)
    roofs = [("memory", W), *((cache.name, cache.bandwidth) for cache in hardware.caches)]
    phases = list(dict.fromkeys(data["phase"]))
    colours = dict(zip(phases, look.chips, strict=False))
    key = [(Line2D([], [], linestyle="none", marker="o", color=colours[p]), f"{p}, measured")
           for p in phases]
    figure, (axes,) = frame(
        look, title or f"{hardware.title}: operations and roofs, both measured",
        f"{dtype}; size of a mark: its share of the time of its phase", key)
    low = min(data["intensity"].min(), ridge_point(peak, W) / 30.0) / 2.0
    high = max(data["intensity"].max(), ridge_point(peak, W) * 4.0) * 2.0
    x = np.geomspace(low, high, 200)
    for name, bandwidth in roofs:
        y = np.minimum(peak, x * bandwidth)
        axes.plot(x, y, color=look.muted, linewidth=1.4 if name == "memory" else 0.8,
                  linestyle="-" if name == "memory" else "--")
        axes.annotate(f"{name} {format_bandwidth(bandwidth)}", (x[8], y[8]), (0, 6),
                      textcoords="offset points", rotation=0, fontsize=TEXT, color=look.muted,
                      path_effects=halo(look))
    axes.annotate(f"{dtype} {format_flops(peak)}", (high, peak), (-4, 4), ha="right",
                  textcoords="offset points", fontsize=TEXT, color=look.muted)
    named: dict[str, pd.DataFrame] = {}
    for phase in phases:
        mine = data[data["phase"] == phase]
        share = mine["time_s"] / mine["time_s"].sum()
        axes.scatter(mine["intensity"], mine["flops_per_s"], s=20 + 260 * share, alpha=0.8,
                     color=colours[phase], linewidths=0, zorder=3)
        named[phase] = mine[share > 0.06]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    bottom, top = min(data["flops_per_s"].min(), low * W) / 2.0, peak * 2.5
    axes.set_ylim(bottom, top)
    step = (top / bottom) ** _LABEL
    for phase, rows in named.items():
        right = rows["intensity"] < ridge_point(peak, W)
        for side, left in ((rows[right], False), (rows[~right], True)):
            if not side.empty:
                _name(axes, side, step, left, colours[phase], look)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: format_flops(v)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.set_xlabel("FLOP per byte (counted)")
    axes.set_ylabel("FLOP/s")
    settle(figure)
    return finished(figure, data)


def _name(axes: Axes, rows: pd.DataFrame, step: float, left: bool, color: str,
          look: Theme) -> None:
    """Names in a column beside the marks, `step` apart at least, each with a line to its mark."""
    x = rows["intensity"].min() / 1.8 if left else rows["intensity"].max() * 1.8
    last = np.inf
    for name, at, y in sorted(zip(rows["operation"], rows["intensity"], rows["flops_per_s"],
                                  strict=True), key=lambda r: -r[2]):
        place = min(y, last / step)
        axes.annotate(str(name), (at, y), (x, place), ha="right" if left else "left", va="center",
                      fontsize=TEXT, color=color, path_effects=halo(look),
                      arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.6,
                                  "alpha": 0.6})
        last = place


__all__ = ["executor", "measured_roofline"]
