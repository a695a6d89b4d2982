"""The roofline: why prefill is bound by FLOP/s and decode by bytes/s, at one glance.

Markers lie where the expected time puts them: the gap to the dashed ceiling is what efficiency
and launch floors cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.plots.roofline_data import (
    PHASES,
    drawn,
    fitting,
    operation_rows,
    path_rows,
    power,
    roof_rows,
)
from simulator.plots.roofline_labels import Labelled, area
from simulator.plots.style import (
    Plot,
    composed,
    finished,
    frame,
    grouped,
    halo,
    listed,
    names_of,
    settle,
    styled,
    theme_of,
)
from simulator.request import estimate
from simulator.units import format_bandwidth, format_flops

SHAPES = {"prefill": "s", "decode": "o"}
_SEEN = 0.03        # share below which an operation may lie beyond the lower border


@styled
def roofline(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
             batches: Sequence[float] = (), contexts: Sequence[float] = (), theme: str = "light",
             title: str | None = None) -> Plot:
    """Log-log roofline with every operation of prefill and decode, for one to four devices.

    `batches` and `contexts` (prompt tokens) draw trajectories: the batch grows first, at the
    workload's prompt; the context grows at the largest batch that fits its shortest
    prompt. Operations are those of `workload`.
    """
    chips, w = listed(deployments, 4), workload or Workload()
    if any(np.ndim(v) for v in (w.batch, w.input, w.output)):
        raise InputError("roofline: the workload takes single numbers; use batches and contexts")
    names, look = names_of(chips), theme_of(theme)
    rows: list[dict[str, Any]] = []
    for d, name in zip(chips, names, strict=True):
        rows += roof_rows(d, name) + operation_rows(d, name, estimate(d, w))
        if len(batches) > 1:
            rows += path_rows(d, name, w, "batch", batches)
        if len(contexts) > 1:
            rows += path_rows(d, name, Workload(fitting(d, w, batches, contexts), w.input,
                                               w.output), "context", contexts)
    data = pd.DataFrame(rows)
    data["drawn"] = drawn(data)
    chart = _Chart(chips, names, w, data, look)
    chart.draw(title)
    return finished(chart.figure, data)


class _Chart(Labelled):
    """One drawing."""

    def draw(self, title: str | None) -> None:
        """The picture, with the devices in the key where their lines have no room for names."""
        self.figure = composed(lambda keyed: self._build(title, keyed))

    def _build(self, title: str | None, keyed: bool) -> tuple[Figure, bool]:
        """Frame, roofs, markers, then labels."""
        figure, axes = frame(self.theme, title or self.message(), self.subtitle(),
                             self.key(keyed),
                             height=4.8 + (0.165 * len(self.names) if keyed else 0.0)
                             + (0.2 if self.stacked else 0.0))
        self.axes = axes[0]
        self._limits()
        for name in self.names:
            self._lines(name)
        self._ridges()
        self._markers()
        self._trajectories()
        if self.stacked:
            self._name_peaks()
        settle(figure)
        return figure, self._labels(keyed)

    def key(self, keyed: bool) -> list[tuple[Any, str]]:
        """Devices where they have no name at their line, shapes, colours and line styles."""
        t = self.theme
        key: list[tuple[Any, str]] = []
        for name in self.names if keyed else ():
            r = self.main(name)
            key.append((Line2D([], [], color=self.colors[name], linewidth=2.4, gid=f"key {name}"),
                        f"{name}: {format_bandwidth(r.bandwidth)}, "
                        f"{format_flops(r.peak)} {r.precision}"))
        key += [
            (Line2D([], [], marker=SHAPES[p], color="none", markeredgecolor=t.foreground,
                    markersize=6.5, linestyle="none"), p)
            for p in PHASES if self.phase(self.names[0], p) is not None]
        for group in t.kinds:
            if (self.points["group"] == group).any():
                key.append((Line2D([], [], marker="D", linestyle="none", markersize=6,
                                   color=t.kinds[group]), group))
        key += [(Line2D([], [], color=t.foreground, linestyle=(0, (4, 2)), linewidth=1.2),
                 "ceiling"),
                (Line2D([], [], color=t.foreground, linewidth=1.8), "expected")]
        if any(self.main(n).low != self.main(n).high for n in self.names):
            key.append((Patch(color=t.roofs[0], alpha=0.18, linewidth=0), "range of the spec"))
        hollow = len(self.paths) and not self.paths["fits"].all()
        return [*key, (Line2D([], [], linestyle="none"), "area: share of the time" + (
            "; hollow path: does not fit" if hollow else ""))]

    def _limits(self) -> None:
        least = 0.1 if len(self.paths) else _SEEN
        seen = pd.concat([self.points[self.points["share"] > least], self.paths])
        ridge = max(self.main(n).ridge for n in self.names)
        x, y = seen["intensity_flop_per_byte"], seen["flops_per_s"]
        top = max(max(r.peak, r.high[1]) for n in self.names for r in self.roofs[n]
                  if r.main or not self.several)
        self.left, self.right = min(0.3, x.min() / 2), max(x.max() * 4, ridge * 30)
        self.bottom, self.top = max(y.min() / 5.0, top * 2e-6), top * 2.4
        each = ", a device" if any(d.devices > 1 for d in self.chips) else ""
        self.axes.set(xscale="log", yscale="log", xlim=(self.left, self.right),
                      ylim=(self.bottom, self.top), ylabel="FLOP/s" + each,
                      xlabel="arithmetic intensity, FLOP per byte")
        for axis, form in ((self.axes.xaxis, lambda v, _: f"{v:g}"),
                           (self.axes.yaxis, lambda v, _: power(v))):
            axis.set_major_locator(LogLocator(numticks=12))
            axis.set_major_formatter(FuncFormatter(form))
            axis.set_minor_locator(NullLocator())

    def _lines(self, name: str) -> None:
        """Ceilings dashed, the expected line solid, further levels and precisions thin."""
        main, color, x = self.main(name), self.colors[name], self._x()
        x = np.sort(np.append(x, main.ridge))
        if main.low != main.high:
            low, high = main.ends(x)
            self.axes.fill_between(x, low, high, color=color, alpha=0.16, linewidth=0, zorder=1,
                                   gid=f"range {name}")
        self.axes.plot(x, main.ceiling(x), color=color, linewidth=1.5, linestyle=(0, (4, 2)),
                       zorder=2, gid=f"ceiling {name}")
        self.axes.plot(x, main.expected(x), color=color, linewidth=1.9, zorder=2.2, alpha=0.95,
                       gid=f"expected {name}")
        if self.several:
            return
        for roof in self.roofs[name][1:]:
            if roof.precision == main.precision:    # another memory: its slope up to the top roof
                top = max(r.peak for r in self.roofs[name])
                span = x[roof.bandwidth * x <= top]
                self.axes.plot(span, roof.bandwidth * span, color=self.theme.muted, linewidth=1.0,
                               linestyle=(0, (4, 2)), zorder=1.5, gid=f"ceiling {roof.level}")
            if roof.level == main.level:            # another precision: flat from its ridge on
                span = np.array([roof.ridge, self.right])
                self.axes.plot(span, [roof.peak] * 2, color=self.theme.muted, linewidth=1.0,
                               linestyle=(0, (4, 2)), zorder=1.5, gid=f"ceiling {roof.precision}")
                span = np.array([main.ridge, roof.ridge])
                self.axes.plot(span, main.bandwidth * span, color=self.theme.muted,
                               linewidth=1.0, linestyle=(0, (4, 2)), zorder=1.5)

    def _ridges(self) -> None:
        for name in self.names:
            r, color = self.main(name), self.colors[name]
            self.axes.plot([r.ridge] * 2, [self.bottom, r.peak], color=color, linewidth=0.9,
                           linestyle=":", zorder=1.8, gid=f"ridge {name}")
            self.axes.plot([r.ridge], [r.peak], marker="o", markersize=4, color=color, zorder=3)

    def _markers(self) -> None:
        crowd = 0.4 if len(self.paths) else 0.6 if self.several else 0.85
        for (name, phase), rows in grouped(self.points, "device", "phase"):
            fill = [self.theme.kinds[g] for g in rows["group"]]
            fits = bool(rows["fits"].iloc[0])
            edge = self.colors[name] if self.several else self.theme.background
            height = np.maximum(rows["flops_per_s"], self.bottom * 1.12)
            size = area(rows["share"]) * (0.6 if self.several else 1.0)
            cloud = self.axes.scatter(
                rows["intensity_flop_per_byte"], height, s=size,
                marker=SHAPES[phase], c=fill if fits else "none",
                edgecolors=edge if fits else fill, linewidths=0.8 if fits else 1.4,
                alpha=crowd, zorder=4)
            cloud.set_gid(f"{phase} {name}")

    def _trajectories(self) -> None:
        for (name, series, phase, group), rows in grouped(
                self.paths, "device", "series", "phase", "group"):
            chip = self._path_color(name, series)
            color = self.theme.kinds.get(group, chip)
            whole = group == "pass"
            if not whole and (self.several or series == "context path"):
                continue
            fill = [color if ok else self.theme.background for ok in rows["fits"]]
            self.axes.plot(rows["intensity_flop_per_byte"], rows["flops_per_s"], color=color,
                           linewidth=1.8 if whole else 1.3, zorder=5, path_effects=halo(self.theme),
                           gid=f"path {phase} {group} {name}")
            self.axes.scatter(rows["intensity_flop_per_byte"], rows["flops_per_s"], s=26,
                              marker=SHAPES[phase], c=fill, edgecolors=color,
                              linewidths=1.2, zorder=5.5)
