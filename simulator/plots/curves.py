"""Curves against batch or context: expected, range, ceiling, and where the memory ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.memory import memory
from simulator.plots.labels import Labels
from simulator.plots.style import Theme, count
from simulator.request import Estimate, Figure, estimate

ENDS = ("expected", "low", "high", "ceiling")
NAMED = (1.0, 8.0, 64.0, 512.0)     # batches that a chart may name
_MOST_BATCH = 4096.0
_POINTS = 40


@dataclass(frozen=True)
class Curve:
    """One device's line; arrays over x. `fits` is where memory suffices."""

    name: str
    brief: str
    color: str
    x: Any
    y: Figure
    fits: Any

    @property
    def whole(self) -> bool:
        """Whether some of it fits."""
        return bool(np.any(self.fits))

    @property
    def words(self) -> str:
        """The name, and that it doesn't fit where no point does."""
        return self.name if self.whole else f"{self.name}: does not fit"


def scalar(w: Workload, *free: str) -> None:
    """Refuse arrays for all but the `free` field."""
    for name in ("batch", "input", "output"):
        if name not in free and np.ndim(getattr(w, name)):
            raise InputError(f"{name}: this chart takes one number")


def batch_grid(chips: Sequence[Deployment], w: Workload, batches: Sequence[float]) -> Any:
    """Batches to draw: those asked for, else from 1 to beyond where the last device is full."""
    if len(batches):
        return np.unique(np.asarray(batches, float))
    ends = {float(np.max(memory(d, 1.0, w.input, w.output).max_batch)) for d in chips}
    top = min(max(2.0 ** np.ceil(np.log2(max(*ends, 8.0) * 1.2)), 8.0), _MOST_BATCH)
    smooth = np.round(np.geomspace(1.0, top, _POINTS))
    named = [e for e in (*ends, *NAMED) if 1 <= e <= top]
    return np.unique(np.concatenate([smooth, named]))


def context_grid(chips: Sequence[Deployment], w: Workload, contexts: Sequence[float]) -> Any:
    """Prompt lengths to draw: those asked for, else 512 tokens to the model's last position."""
    if len(contexts):
        return np.unique(np.asarray(contexts, float))
    last = max(float(chips[0].model.positions) - float(w.output), 16.0)
    ends = [float(memory(d, w.batch, 1.0, w.output).max_context) - float(w.output) for d in chips]
    smooth = np.round(np.geomspace(min(512.0, last / 2), last, _POINTS))
    return np.unique(np.concatenate([smooth, [e for e in ends if smooth[0] <= e <= last]]))


def run(d: Deployment, w: Workload) -> tuple[Estimate, Any]:
    """The estimate over the workload's one array, and where it fits."""
    e = estimate(d, w)
    shape = np.broadcast_shapes(*(np.shape(v) for v in (w.batch, w.input, w.output)))
    return e, np.broadcast_to(np.asarray(e.memory.fits, bool), shape)


def spread(f: Figure, shape: Any) -> Figure:
    """The four figures as arrays of one shape."""
    return Figure(*(np.broadcast_to(np.asarray(v, float), shape) for v in f.all))


def frame_rows(d: Deployment, name: str, w: Workload, fits: Any,
               figures: dict[str, Figure]) -> pd.DataFrame:
    """One row a point: what was asked, and each quantity four times."""
    shape = np.shape(fits)
    columns: dict[str, Any] = {"hardware": d.hardware.name, "device": name, "devices": d.devices}
    for field in ("batch", "input", "output"):
        columns[field] = np.broadcast_to(np.asarray(getattr(w, field), float), shape)
    columns["fits"] = fits
    for quantity, f in figures.items():
        for end in ENDS:
            columns[f"{quantity}_{end}"] = np.broadcast_to(np.asarray(getattr(f, end)), shape)
    return pd.DataFrame(columns)


def key(theme: Theme, beyond: bool = False,
        curves: Sequence[Curve] = ()) -> list[tuple[Any, str]]:
    """Line styles, in words, after the `curves` that have no name at their line."""
    entries: list[tuple[Any, str]] = [
        (Line2D([], [], color=c.color, linewidth=2.4, gid=f"key {c.name}",
                linestyle="-" if c.whole else (0, (1, 1.5))), c.words) for c in curves]
    entries += [
        (Line2D([], [], color=theme.foreground, linewidth=2.0), "expected"),
        (Patch(color=theme.foreground, alpha=0.2, linewidth=0), "low to high"),
        (Line2D([], [], color=theme.foreground, linewidth=1.2, linestyle=(0, (4, 2))), "ceiling")]
    if beyond:
        entries.append((Line2D([], [], color=theme.foreground, linewidth=1.6,
                               linestyle=(0, (1, 1.5))), "does not fit"))
    return entries


def draw(axes: Axes, curves: Sequence[Curve], markers: bool = False) -> None:
    """Lines, bands and ceilings; dotted where the memory doesn't suffice."""
    for c in curves:
        fits = np.asarray(c.fits, bool)
        inside = np.where(fits, 1.0, np.nan)
        axes.fill_between(c.x, c.y.low * inside, c.y.high * inside, color=c.color, alpha=0.18,
                          linewidth=0, gid=f"range {c.name}")
        axes.plot(c.x, c.y.ceiling * inside, color=c.color, linewidth=1.2,
                  linestyle=(0, (4, 2)), gid=f"ceiling {c.name}")
        axes.plot(c.x, c.y.expected * inside, color=c.color, linewidth=2.0,
                  marker="o" if markers else None, markersize=4, gid=f"expected {c.name}")
        # The last point that fits joins both parts.
        joined = ~fits | np.append(~fits[1:], False)
        if not fits.all():
            axes.plot(c.x, np.where(joined, c.y.expected, np.nan), color=c.color, linewidth=1.6,
                      linestyle=(0, (1, 1.5)), gid=f"beyond {c.name}")


def mark_full(axes: Axes, c: Curve) -> tuple[float, float] | None:
    """A dot where the memory is full; its place."""
    fits = np.asarray(c.fits, bool)
    if fits.all() or not fits.any():
        return None
    last = int(np.nonzero(fits)[0][-1])
    x, y = float(c.x[last]), float(np.asarray(c.y.expected)[last])
    axes.plot([x], [y], marker="o", markersize=6.5, color=c.color, linestyle="none", zorder=5,
              gid=f"full {c.name}")
    return x, y


def name_curves(axes: Axes, theme: Theme, curves: Sequence[Curve], *, full: str = "",
                names: bool = True, prefer: float = 0.35) -> tuple[Labels, bool]:
    """Each device's name along its line, and where its memory ends; False: one had no room."""
    order = sorted(curves, key=lambda c: -float(np.nanmean(np.log(c.y.expected))))
    places = {c.name: mark_full(axes, c) for c in order}
    put = Labels(axes, theme)
    put.avoid_drawn()
    named = True
    for i, c in enumerate(order):
        if names:
            named &= put.along(c.words, c.x, c.y.expected, c.color, bold=True, prefer=prefer,
                               above=None if i else True)
    for c in order:
        place = places[c.name]
        if place is not None and full:
            put.put(full.format(count(place[0])), *place, c.color, gap=4.0, prefer=-60.0,
                    must=True)
    return put, named


def batch_axis(axes: Axes, x: Any, label: str, ticks: int = 11) -> None:
    """Powers of two, in words."""
    low, high = float(np.min(x)), float(np.max(x))
    axes.set_xscale("log", base=2)
    room = 1.04 if high > low else 2.0
    axes.set_xlim(low / room, high * room)
    powers = 2.0 ** np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1)
    step = int(np.ceil(len(powers) / ticks))
    axes.xaxis.set_major_locator(FixedLocator(list(powers[::step])))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: count(v)))
    axes.set_xlabel(label)


def log_y(axes: Axes, label: str, curves: Sequence[Curve], form: Any = None) -> None:
    """A logarithmic axis over what is drawn, ticks in words."""
    values = np.concatenate([np.ravel(v) for c in curves for v in (
        c.y.expected, c.y.low, c.y.high, c.y.ceiling)])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = float(values.min()) / 1.15, float(values.max()) * 1.3
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    decades = np.log10(high / low)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 3 else (1.0, 3.0)
                                            if decades > 1.5 else (1.0, 2.0, 5.0), numticks=15))
    axes.yaxis.set_major_formatter(FuncFormatter(
        lambda v, _: form(v) if form else f"{v:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label)
