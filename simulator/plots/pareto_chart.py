"""Speed for a user against throughput of a device: what a larger batch trades, and the knee."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.plots.curves import (
    NAMED,
    Curve,
    batch_grid,
    frame_rows,
    key,
    log_y,
    run,
    scalar,
    spread,
)
from simulator.plots.labels import Labels
from simulator.plots.style import (
    Plot,
    Theme,
    asked,
    brief,
    composed,
    count,
    finished,
    frame,
    listed,
    names_of,
    rounded,
    settle,
    styled,
    theme_of,
    tokens,
)
from simulator.request import Figure
from simulator.units import format_time


def front(user: Any, device: Any) -> Any:
    """Which points no other point beats in both rates."""
    user, device = np.asarray(user, float), np.asarray(device, float)
    better = (user[None, :] >= user[:, None]) & (device[None, :] >= device[:, None])
    strict = (user[None, :] > user[:, None]) | (device[None, :] > device[:, None])
    return ~(better & strict).any(axis=1)


def knee(user: Any, device: Any) -> int:
    """Index of the point farthest above the chord between both ends of a front, in logarithms.

    Below it the batch buys throughput cheaply, above it users pay for little.
    """
    x, y = np.log(np.asarray(user, float)), np.log(np.asarray(device, float))
    i, j = int(np.argmin(x)), int(np.argmax(x))
    spans = max(x[j] - x[i], 1e-12), max(y[i] - y[j], 1e-12)
    return int(np.argmax((x - x[i]) / spans[0] + (y - y[j]) / spans[1]))


def _message(data: pd.DataFrame, slo: float | None, briefs: dict[str, str]) -> str:
    good = data[data["fits"]]
    if slo is not None:
        met = good[good["tpot_s_expected"] <= slo]
        if met.empty:
            return f"No batch keeps a token under {format_time(slo)}"
        best = met.iloc[int(met["device_tokens_per_s_expected"].to_numpy().argmax())]
        who = f"{briefs[best['device']]}, batch" if len(briefs) > 1 else "batch"
        rate = rounded(best["device_tokens_per_s_expected"])
        return (f"Under {format_time(slo).replace('.0 ', ' ')} a token: {rate} tokens/s a device, "
                f"{who} {count(best['batch'])}")
    knees = data[data["knee"]]
    if knees.empty:
        return "It does not fit at any batch"
    r = knees.iloc[0]
    who = f"{briefs[r['device']]}: knee" if len(briefs) > 1 else "Knee"
    return (f"{who} at batch {count(r['batch'])}: {rounded(r['user_tokens_per_s_expected'])} "
            f"tokens/s a user, {rounded(r['device_tokens_per_s_expected'])} a device")


@styled
def pareto(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
           batches: Sequence[float] = (), slo_tpot: float | None = None, theme: str = "light",
           title: str | None = None) -> Plot:
    """User rate against output tokens a second of each device, along the batch.

    `slo_tpot` [s] draws the target as the user rate it asks for.
    """
    look, w, chips = theme_of(theme), workload or Workload(), listed(deployments, 6)
    w = Workload(1, w.input, w.output) if np.ndim(w.batch) else w
    scalar(w)
    if float(w.output) <= 1:
        raise InputError("output: there is no decode step with one output token; ask for 2 or more")
    x = batch_grid(chips, w, batches)
    asked_for, names = Workload(x, w.input, w.output), names_of(chips)
    curves, frames = [], []
    for d, name, color in zip(chips, names, look.chips, strict=False):
        e, fits = run(d, asked_for)
        user = spread(e.tokens_per_s_per_user, x.shape)
        device = spread(e.tpot.rate(x / d.devices), x.shape)
        curves.append((name, color, user, device, fits))
        rows = frame_rows(d, name, asked_for, fits, {
            "user_tokens_per_s": user, "device_tokens_per_s": device,
            "tpot_s": spread(e.tpot, x.shape)})
        rows["front"] = False
        rows.loc[rows["fits"], "front"] = front(user.expected[fits], device.expected[fits])
        best = rows.index[rows["front"]]
        rows["knee"] = False
        if len(best) > 2:
            rows.loc[best[knee(user.expected[best], device.expected[best])], "knee"] = True
        frames.append(rows)
    data = pd.concat(frames, ignore_index=True)
    briefs = {n: brief(d) for n, d in zip(names, chips, strict=True)}
    ring = Line2D([], [], marker="o", markersize=7.5, markerfacecolor="none", linestyle="none",
                  markeredgecolor=look.foreground, markeredgewidth=1.6)
    shown = [Curve(n, n, c, u.expected, y, f) for n, c, u, y, f in curves]
    marked = _marked(data, x, len(chips) < 3)

    def build(keyed: bool) -> tuple[Picture, bool]:
        figure, (axes,) = frame(
            look, title or _message(data, slo_tpot, briefs),
            asked(chips[0], len(chips) > 1, tokens=tokens(w), marks="labels are batches"),
            [*key(look, not data["fits"].all(), shown if keyed else ()), (ring, "knee")],
            height=4.4)
        _draw(axes, look, curves, shown, data, slo_tpot)
        for name, color, user, device, _ in curves:
            at = marked[name]
            axes.plot(user.expected[at], device.expected[at], marker="o", markersize=4,
                      color=color, zorder=5, linestyle="none", gid="batch")
        settle(figure)
        return figure, _labels(axes, look, curves, marked, x, slo_tpot, not keyed)

    return finished(composed(build), data)


def _draw(axes: Any, look: Theme, curves: Sequence[Any], shown: Sequence[Curve],
          data: pd.DataFrame, slo_tpot: float | None) -> None:
    """Lines, axes, target and knees."""
    for name, color, user, device, fits in curves:
        _line(axes, name, color, user, device, fits)
    axes.set_xscale("log")
    log_y(axes, "output tokens/s of a device", shown)
    ends = np.concatenate([np.ravel(v) for _, _, u, _, _ in curves for v in u.all] + (
        [[1 / slo_tpot]] if slo_tpot else []))
    _log_x(axes, ends)
    if slo_tpot is not None:
        axes.axvline(1.0 / slo_tpot, color=look.foreground, linewidth=1.2,
                     linestyle=(0, (6, 2, 1, 2)), gid="slo")
    for _, r in data[data["knee"]].iterrows():
        axes.plot(r["user_tokens_per_s_expected"], r["device_tokens_per_s_expected"], marker="o",
                  markersize=9, markerfacecolor="none", markeredgecolor=look.foreground,
                  markeredgewidth=1.6, zorder=6, gid="knee")


def _marked(data: pd.DataFrame, x: Any, steps: bool) -> dict[str, list[int]]:
    """Batches to mark, as indices: the knee first, both ends, and steps between if asked for."""
    found: dict[str, list[int]] = {}
    for name, rows in data.groupby("device", sort=False):
        ok = np.nonzero(rows["fits"].to_numpy())[0]
        knees = np.nonzero(rows["knee"].to_numpy())[0]
        between = [i for i in ok if x[i] in NAMED and steps]
        ends = [ok[-1], ok[0]] if len(ok) else []
        found[str(name)] = [int(i) for i in dict.fromkeys([*knees, *ends, *between])]
    return found


def _line(axes: Any, name: str, color: str, user: Figure, device: Figure, fits: Any) -> None:
    """The band runs along the batch: each of its ends is a curve of its own."""
    ok = np.asarray(fits, bool)
    if ok.any():
        axes.fill(np.concatenate([user.low[ok], user.high[ok][::-1]]),
                  np.concatenate([device.low[ok], device.high[ok][::-1]]), color=color, alpha=0.18,
                  linewidth=0, gid=f"range {name}")
        axes.plot(user.ceiling[ok], device.ceiling[ok], color=color, linewidth=1.2,
                  linestyle=(0, (4, 2)), gid=f"ceiling {name}")
        axes.plot(user.expected[ok], device.expected[ok], color=color, linewidth=2.0,
                  gid=f"expected {name}")
    if not ok.all():
        joined = ~ok | np.append(~ok[1:], False)
        axes.plot(np.where(joined, user.expected, np.nan),
                  np.where(joined, device.expected, np.nan), color=color, linewidth=1.6,
                  linestyle=(0, (1, 1.5)), gid=f"beyond {name}")


def _log_x(axes: Any, values: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = float(np.min(values)) / 1.15, float(np.max(values)) * 1.15
    axes.set_xlim(low, high)
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2.6 else (1.0, 3.0) if decades > 1.6 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=15))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens/s for each user (1 / TPOT)")


def _labels(axes: Any, look: Theme, curves: Sequence[Any], marked: dict[str, list[int]], x: Any,
            slo: float | None, names: bool) -> bool:
    """Target, names and batches; False where a curve got no name."""
    put, named = Labels(axes, look), True
    put.avoid_drawn()
    if slo is not None:
        ends = np.geomspace(axes.get_ylim()[0], axes.get_ylim()[1], 50)
        put.along(f"target {format_time(slo)} a token".replace(".0 ", " "), np.full(50, 1 / slo),
                  ends, look.foreground, prefer=0.12, must=True)
    for name, color, user, device, fits in curves:
        words = name if np.any(fits) else f"{name}: does not fit"
        if names:
            named &= put.along(words, user.expected[::-1], device.expected[::-1], color, bold=True,
                               prefer=0.7)
    for i in range(max(map(len, marked.values()))):     # of each curve the important ones first
        for name, color, user, device, _ in curves:
            for at in marked[name][i:i + 1]:
                put.put(count(float(x[at])), float(user.expected[at]), float(device.expected[at]),
                        color, gap=5.5 if i == 0 else 3.5, prefer=-135.0, reach=34.0)
    return named


__all__ = ["front", "knee", "pareto"]
