"""Where the time of a prefill and of a decode step goes, by kind of operation."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.deployment import Deployment, Workload
from simulator.plots.curves import scalar
from simulator.plots.labels import Labels
from simulator.plots.style import (
    TEXT,
    Plot,
    Theme,
    asked,
    brief,
    faded,
    finished,
    frame,
    group_of,
    ink,
    listed,
    names_of,
    on,
    settle,
    styled,
    theme_of,
    times,
    tokens,
)
from simulator.request import Estimate, estimate
from simulator.units import format_number, format_time


def _rows(d: Deployment, name: str, e: Estimate) -> list[dict[str, Any]]:
    rows = []
    for phase in ("prefill", "decode") if float(e.workload.output) > 1 else ("prefill",):
        detail = getattr(e, phase).detail
        groups: dict[str, list[float]] = {}
        for t in detail.operations:
            sums = groups.setdefault(group_of(t.operation.kind), [0.0, 0.0])
            sums[0] += float(t.expected)
            sums[1] += float(t.ceiling)
        if float(detail.host):
            groups["host"] = [float(detail.host), 0.0]
        rows += [{
            "hardware": d.hardware.name, "device": name, "devices": d.devices,
            "batch": float(e.workload.batch), "input": float(e.workload.input),
            "output": float(e.workload.output), "fits": bool(e.memory.fits), "phase": phase,
            "group": group, "time_s_expected": expected, "time_s_ceiling": ceiling,
            "share": expected / float(detail.expected),
        } for group, (expected, ceiling) in groups.items()]
    return rows


def _message(data: pd.DataFrame, briefs: dict[str, str]) -> str:
    """About the devices that hold the model; about all where none does."""
    data = data[data["fits"]] if data["fits"].any() else data
    alone = len(briefs) > 1 and data["device"].nunique() == 1
    first = data[data["device"] == data["device"].iloc[0]]
    words = []
    for phase, rows in first.groupby("phase", sort=False):
        top = rows.iloc[int(rows["share"].to_numpy().argmax())]
        words.append(f"{phase} {top['share']:.0%} {top['group']}")
    if data["device"].nunique() > 1 and data["phase"].nunique() == 2:
        return _compared(data, briefs)
    text = ", ".join(words)
    if alone:
        return f"Fits on {briefs[str(first['device'].iloc[0])]} alone: {text}"
    return text[0].upper() + text[1:]


def _compared(data: pd.DataFrame, briefs: dict[str, str]) -> str:
    """The device with the fastest step against the one with the slowest."""
    took = data.groupby(["phase", "device"])["time_s_expected"].sum()
    fast, slow = (str(v) for v in (took["decode"].idxmin(), took["decode"].idxmax()))
    decode, prefill = (float(took[p, slow] / took[p, fast]) for p in ("decode", "prefill"))
    words = [f"{phase} {times(ratio, 'faster', 'about as fast')}" if ratio > 0.95 else
             f"{phase} {format_number(1 / ratio, 2)}x slower"
             for phase, ratio in (("decode", decode), ("prefill", prefill))]
    return f"{briefs[fast]} against {briefs[slow]}: {', '.join(words)}"


@styled
def breakdown(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
              theme: str = "light", title: str | None = None) -> Plot:
    """Expected time of one prefill beside one mean decode step, stacked by kind of operation."""
    look, w, chips = theme_of(theme), workload or Workload(), listed(deployments, 4)
    scalar(w)
    names = names_of(chips)
    data = pd.DataFrame([r for d, n in zip(chips, names, strict=True)
                         for r in _rows(d, n, estimate(d, w))])
    phases = list(dict.fromkeys(data["phase"]))
    bad = list(dict.fromkeys(data[~data["fits"]]["device"]))
    subtitle = asked(chips[0], len(chips) > 1, batch=f"batch {w.batch:,.0f}", tokens=tokens(w))
    where = f" on {', '.join(bad)}" if len(names) > 1 else ""
    subtitle += f". DOES\u00a0NOT\u00a0FIT{where}" if bad else ""
    briefs = {n: brief(d) for n, d in zip(names, chips, strict=True)}
    key: list[tuple[Any, str]] = [
        (Line2D([], [], color=look.foreground, linewidth=1.6, linestyle=(0, (4, 2))), "ceiling")]
    if len(names) > 1:
        key = [(Patch(color=look.kinds[g], linewidth=0), g) for g in _ordered(data, look)] + key
    figure, axes = frame(look, title or _message(data, briefs), subtitle, key,
                         columns=len(phases), height=4.2 if len(names) < 4 else 4.8)
    for each, phase in zip(axes, phases, strict=True):
        _stack(each, data[data["phase"] == phase], look, names, briefs)
        each.set_title({"prefill": "prefill, whole prompt", "decode": "decode, one step"}[phase],
                       color=look.foreground, fontsize=TEXT + 1.5, fontweight="bold", loc="left")
    settle(figure)
    for each, phase in zip(axes, phases, strict=True):
        _labels(each, data[data["phase"] == phase], look, names)
    return finished(figure, data)


def _ordered(rows: pd.DataFrame, look: Theme) -> list[str]:
    """Groups from the bottom of the bar up, the largest first, the host last."""
    total = rows.groupby("group")["time_s_expected"].sum()
    return sorted((g for g in look.kinds if g in total.index),
                  key=lambda g: (g == "host", -float(total[g])))


def _color(look: Theme, group: str, own: pd.DataFrame) -> str:
    color = look.kinds[group]
    return color if own["fits"].all() else faded(color, look)


def _stack(axes: Axes, rows: pd.DataFrame, look: Theme, names: Sequence[str],
           briefs: dict[str, str]) -> None:
    for x, name in enumerate(names):
        own, bottom = rows[rows["device"] == name].set_index("group"), 0.0
        for group in _ordered(rows, look):
            height = float(own["time_s_expected"].get(group, 0.0))
            axes.bar(x, height, 0.62, bottom, color=_color(look, group, own),
                     edgecolor=look.background, linewidth=0.8)
            bottom += height
        ceiling = float(own["time_s_ceiling"].sum())
        axes.plot([x - 0.38, x + 0.38], [ceiling] * 2, color=look.foreground, linewidth=1.6,
                  linestyle=(0, (4, 2)), gid=f"ceiling {name}")
    totals = rows.groupby("device")["time_s_expected"].sum()
    axes.set_ylim(0, float(totals.max()) * 1.12)
    axes.set_xlim(-0.6, len(names) - 0.4 + (0.65 if len(names) == 1 else 0.0))
    ticks = _ticks(names, briefs)
    axes.set_xticks(range(len(names)), ticks)
    if len(names) * max(len(word) for tick in ticks for word in tick.split("\n")) > 36:
        axes.set_xticks(range(len(names)), [t.replace("\n", " ") for t in ticks], rotation=50,
                        ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0, labelcolor=look.foreground)
    axes.grid(False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    top = float(totals.max())
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
                       if top >= s or s == 1e-9)
    axes.yaxis.set_major_formatter(FuncFormatter(
        lambda v, _: f"{float(f'{v / scale:.6g}'):,g} {unit}"))


def _ticks(names: Sequence[str], briefs: dict[str, str]) -> list[str]:
    """Short names where they differ, broken so that neighbours don't touch; `8 x` stays whole."""
    words = [briefs[n] for n in names]
    words = words if len(set(words)) == len(words) else list(names)
    width = {1: 30, 2: 14, 3: 9}.get(len(words), 8)
    glued = [w.replace(" x ", " x ", 1) for w in words]
    return ["\n".join(textwrap.wrap(w, width, break_long_words=False, break_on_hyphens=False))
            for w in glued]


def _labels(axes: Axes, rows: pd.DataFrame, look: Theme, names: Sequence[str]) -> None:
    put = Labels(axes, look)
    totals = rows.groupby("device")["time_s_expected"].sum()
    for x, name in enumerate(names):
        text = axes.text(x, totals[name], format_time(float(totals[name])), ha="center",
                         va="bottom", fontsize=TEXT, color=look.foreground, fontweight="bold")
        text.set_in_layout(False)
        put.block(text)
        _shares(axes, put, rows[rows["device"] == name].set_index("group"), look, x, rows)
    if len(names) == 1:
        _beside(axes, rows, look)


def _beside(axes: Axes, rows: pd.DataFrame, look: Theme) -> None:
    """Each group's name beside its part of the only bar."""
    own = rows.set_index("group")
    middles, bottom = [], 0.0
    for group in _ordered(rows, look):
        height = float(own["time_s_expected"].get(group, 0.0))
        middles.append((group, bottom + height / 2))
        bottom += height
    gap = axes.get_ylim()[1] * 0.066
    y = np.array([m for _, m in middles])
    for i in range(1, len(y)):      # push upwards what would touch
        y[i] = max(y[i], y[i - 1] + gap)
    y -= max(0.0, y[-1] - axes.get_ylim()[1] * 0.97)
    for i in range(len(y) - 2, -1, -1):
        y[i] = min(y[i], y[i + 1] - gap)
    for (group, middle), place in zip(middles, y, strict=True):
        axes.plot([0.33, 0.40], [middle, place], color=look.kinds[group],
                  linewidth=1.0, gid="leader")
        text = axes.text(0.43, place, group, ha="left", va="center", fontsize=TEXT,
                         color=ink(look.kinds[group], look))
        text.set_in_layout(False)


def _shares(axes: Axes, put: Labels, own: pd.DataFrame, look: Theme, x: int,
            rows: pd.DataFrame) -> None:
    """Each share inside its part of the bar, where there is room."""
    bottom, ceiling = 0.0, float(own["time_s_ceiling"].sum())
    room = axes.get_ylim()[1] * 0.055
    for group in _ordered(rows, look):
        height = float(own["time_s_expected"].get(group, 0.0))
        middle = bottom + height / 2
        if abs(middle - ceiling) < room / 2 and height > 3 * room:    # off the dashed line
            middle = ceiling - room
        text = axes.text(x, middle, f"{float(own['share'].get(group, 0.0)):.0%}",
                         ha="center", va="center", fontsize=TEXT,
                         color=on(_color(look, group, own)))
        text.set_in_layout(False)
        ends = put.pixels([x, x], [bottom, bottom + height])
        if text.get_window_extent(put.renderer).height + 4 > ends[1, 1] - ends[0, 1]:
            text.remove()
        bottom += height
