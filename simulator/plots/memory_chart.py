"""What fills the memory, by class, against what a device has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.memory import memory as memory_of
from simulator.plots.curves import scalar
from simulator.plots.labels import Labels
from simulator.plots.style import (
    TEXT,
    Plot,
    Theme,
    asked,
    brief,
    count,
    faded,
    finished,
    frame,
    listed,
    names_of,
    on,
    settle,
    styled,
    theme_of,
    tokens,
)
from simulator.units import format_memory

# class, words, colour by kind of operation that reads it
CLASSES = (("weights_bytes", "weights", "matrices"), ("kv_bytes", "KV cache", "attention"),
           ("activation_bytes", "activations", "experts"),
           ("reserved_bytes", "engine's reserve", "host"))
_MOST_ROWS = 16
_GIB = 2.0**30


def _batches(chips: Sequence[Deployment], w: Workload, batches: Sequence[float]) -> list[float]:
    """Those asked for; else one for several devices, and steps until it's full for one."""
    if len(batches):
        return sorted(set(map(float, batches)))
    if len(chips) > 1:
        return [float(w.batch)]
    most = max(float(memory_of(chips[0], 1.0, w.input, w.output).max_batch), 1.0)
    steps = [b for b in (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0) if b <= most * 0.8]
    beyond = [float(np.ceil(most * 1.3))] if most > 1 else []
    return sorted({*(steps or [1.0]), most, *beyond})


def _message(data: pd.DataFrame, briefs: dict[str, str]) -> str:
    bad, good = data[~data["fits"]], data[data["fits"]]
    room_of = "each device's memory" if data["devices"].max() > 1 else "the memory"
    if good.empty:
        r = data.iloc[0]
        if r["weights_bytes"] > r["capacity_bytes"]:
            return f"The weights alone are larger than {room_of}"
        return "It does not fit"
    if len(briefs) > 1:
        room = {b for n, b in briefs.items() if data[data["device"] == n]["fits"].any()}
        short = [b for b in briefs.values() if b not in room]
        if short:
            return f"It does not fit on {', '.join(dict.fromkeys(short))}"
        best = good.iloc[int(good["max_batch"].to_numpy().argmax())]
        many = "in total " if any(re.match("[0-9]+ x ", b) for b in briefs.values()) else ""
        return f"{briefs[best['device']]} holds {many}{count(best['max_batch'])} sequences"
    r = good.iloc[-1]
    full = "fills" if len(bad) else "takes"
    share = r["kv_bytes"] / r["capacity_bytes"]
    return (f"At batch {count(r['max_batch'])} the KV cache {full} {room_of}" if len(bad) else
            f"At batch {count(r['batch'])} the KV cache {full} {share:.0%} of {room_of}")


@styled
def memory(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
           batches: Sequence[float] = (), theme: str = "light", title: str | None = None) -> Plot:
    """Memory of the fullest device by class, at input + output, against its capacity."""
    look, w, chips = theme_of(theme), workload or Workload(), listed(deployments, 6)
    scalar(w)
    steps = _batches(chips, w, batches)
    if len(steps) * len(chips) > _MOST_ROWS:
        raise InputError(f"batch: {len(steps)} batches on {len(chips)} devices are more than the "
                         f"{_MOST_ROWS} rows of one chart")
    names, rows = names_of(chips), []
    for d, name in zip(chips, names, strict=True):
        for b in steps:
            m = memory_of(d, b, w.input, w.output)
            ends = d.hardware.ranges.get("memory_capacity")
            rows.append({
                "hardware": d.hardware.name, "device": name, "devices": d.devices, "batch": b,
                "input": float(w.input), "output": float(w.output),
                "weights_bytes": float(m.weights), "kv_bytes": float(m.kv),
                "kv_bytes_ideal": float(m.kv_ideal), "activation_bytes": float(m.activations),
                "reserved_bytes": float(m.reserved), "total_bytes": float(m.total),
                "capacity_bytes": float(m.capacity),
                "capacity_low_bytes": float(ends.low if ends else m.capacity),
                "capacity_high_bytes": float(ends.high if ends else m.capacity),
                "fits": bool(m.fits), "max_batch": float(m.max_batch)})
    data = pd.DataFrame(rows)
    each = " a device" if any(d.devices > 1 for d in chips) else ""
    batch = "" if len(steps) > 1 else f"batch {count(steps[0])}"
    briefs = {n: brief(d) for n, d in zip(names, chips, strict=True)}
    shown = [(Patch(color=look.kinds[kind], linewidth=0), word) for _, word, kind in CLASSES]
    figure, (axes,) = frame(
        look, title or _message(data, briefs),
        asked(chips[0], len(chips) > 1, batch=batch, tokens=tokens(w)), shown,
        height=min(6.5, max(2.8, 1.7 + 0.36 * len(data) + 0.2 * len(chips))))
    _bars(axes, data, look, chips, names, len(steps) > 1)
    axes.set_xlabel(f"GiB{each}, when the last token is made")
    settle(figure)
    _labels(axes, data, look)
    return finished(figure, data)


def _bars(axes: Axes, data: pd.DataFrame, look: Theme, chips: Sequence[Deployment],
          names: Sequence[str], several: bool) -> None:
    places, ticks, y = [], [], 0.0
    for name in names:
        for _, r in data[data["device"] == name].iterrows():
            places.append(y)
            words = f"batch {count(r['batch'])}" if several else name
            ticks.append(f"{name}, {words}" if several and len(chips) > 1 else words)
            y += 1.0
        y += 0.4
    left = np.zeros(len(data))
    for column, word, kind in CLASSES:
        width = data[column].to_numpy() / _GIB
        axes.barh(places, width, left=left, height=0.68, label=word, linewidth=0.8,
                  color=[_color(look, kind, fits) for fits in data["fits"]],
                  edgecolor=look.background)
        left = left + np.maximum(width, 0.0)
    for place, (_, r) in zip(places, data.iterrows(), strict=True):
        low, high = r["capacity_low_bytes"] / _GIB, r["capacity_high_bytes"] / _GIB
        if low != high:
            axes.fill_betweenx([place - 0.48, place + 0.48], low, high, color=look.foreground,
                               alpha=0.14, linewidth=0, gid="capacity range")
        axes.plot([r["capacity_bytes"] / _GIB] * 2, [place - 0.5, place + 0.5],
                  color=look.foreground, linewidth=2.0, linestyle=(0, (4, 2)), gid="capacity")
    axes.set_yticks(places, ticks)
    axes.set_ylim(max(places) + 0.6, -1.25)
    most = max(float((data["total_bytes"] / _GIB).max()),
               float((data["capacity_high_bytes"] / _GIB).max()))
    axes.set_xlim(0, most * 1.30)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=look.foreground)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))


def _color(look: Theme, kind: str, fits: bool) -> str:
    return look.kinds[kind] if fits else faded(look.kinds[kind], look)


def _labels(axes: Axes, data: pd.DataFrame, look: Theme) -> None:
    put = Labels(axes, look)
    put.avoid_drawn()
    places: Any = axes.get_yticks()
    for place, (_, r) in zip(places, data.iterrows(), strict=True):
        left = 0.0
        for column, _, kind in CLASSES:
            width = r[column] / _GIB
            _inside(axes, put, format_memory(r[column]), left, width, place,
                    _color(look, kind, r["fits"]))
            left += max(width, 0.0)
        right = max(left, r["capacity_high_bytes"] / _GIB)
        words = format_memory(left * _GIB) if r["fits"] else "does not fit"
        text = axes.text(right, place, f"  {words}", va="center", ha="left", fontsize=TEXT,
                         color=look.foreground, fontweight="normal" if r["fits"] else "bold",
                         clip_on=False)
        text.set_in_layout(False)
        put.block(text)
    first = data.iloc[0]
    put.put(f"capacity {format_memory(first['capacity_bytes'])}" + (
        " (range)" if first["capacity_low_bytes"] != first["capacity_high_bytes"] else ""),
            first["capacity_bytes"] / _GIB, places[0] - 0.5, look.foreground, prefer=135.0,
            bold=True, must=True)


def _inside(axes: Axes, put: Labels, words: str, left: float, width: float, place: float,
            color: str) -> None:
    """A size inside its bar, where there is room."""
    text = axes.text(left + width / 2, place, words, ha="center", va="center", fontsize=TEXT,
                     color=on(color))
    text.set_in_layout(False)
    box = text.get_window_extent(put.renderer)
    ends = put.pixels([left, left + width], [place, place])
    if box.width + 8 > ends[1, 0] - ends[0, 0]:
        text.remove()
    else:
        put.block(text)
