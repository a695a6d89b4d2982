"""The roofline: why prefill is bound by FLOP/s and decode by bytes/s, at one glance.

Markers lie where the expected time puts them: the gap to the dashed ceiling is what efficiency
and launch floors cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.plots.labels import Labels
from simulator.plots.roofline_data import (
    PHASES,
    Roof,
    drawn,
    fitting,
    operation_rows,
    path_rows,
    power,
    roof_rows,
    roofs,
)
from simulator.plots.style import (
    Plot,
    Theme,
    asked,
    count,
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
from simulator.units import format_bandwidth, format_flops, format_number

SHAPES = {"prefill": "s", "decode": "o"}
_LARGEST = 420.0    # area [pt^2] of a marker that takes all of the time
_SMALLEST = 9.0
_LABELLED = 0.05    # share of the time from which a group of operations is named
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


class _Chart:
    """One drawing; the data is complete before anything is drawn."""

    def __init__(self, chips: Sequence[Deployment], names: Sequence[str], w: Workload,
                 data: pd.DataFrame, theme: Theme) -> None:
        self.chips, self.names, self.w, self.data, self.theme = chips, names, w, data, theme
        self.roofs = {n: roofs(d) for d, n in zip(chips, names, strict=True)}
        self.several = len(chips) > 1
        self.paths = data[data["series"].str.endswith("path") & data["drawn"]]
        self.points = data[(data["series"] == "operation") & data["drawn"]]
        self.colors = dict(zip(names, theme.roofs, strict=False))

    def main(self, name: str) -> Roof:
        """The roof that the model works under."""
        return self.roofs[name][0]

    def draw(self, title: str | None) -> None:
        """Frame, roofs, markers, then labels, the important ones first."""
        self.figure, axes = frame(self.theme, title or self.message(), self.subtitle(), self.key(),
                                  height=4.8)
        self.axes: Axes = axes[0]
        self._limits()
        for name in self.names:
            self._lines(name)
        self._ridges()
        self._markers()
        self._trajectories()
        settle(self.figure)
        self._labels()

    def phase(self, name: str, phase: str) -> Any:
        """The row of a whole pass, or None."""
        found = self.data[(self.data["series"] == "pass") & (self.data["device"] == name)
                          & (self.data["phase"] == phase)]
        return found.iloc[0] if len(found) else None

    def message(self) -> str:
        """What the picture says, from the data."""
        sides = [{p: self.phase(n, p)["intensity_flop_per_byte"] / self.main(n).ridge
                  for p in PHASES if self.phase(n, p) is not None} for n in self.names]
        right, left = [s["prefill"] for s in sides], [1 / s["decode"] for s in sides
                                                      if "decode" in s]
        if not self.data[self.data["series"] == "pass"]["fits"].any():
            return "It does not fit; if it did, it would sit here"
        if not left:
            return "Prefill sits right of the ridge" if min(right) > 1 else (
                "Prefill sits left of the ridge")
        moved = self._path_message() if len(self.paths) and not self.several else None
        if moved is not None:
            return moved
        if min(right) > 1 and min(left) > 1:
            far = (f"{format_number(min(left), 2)}x" if min(left) == max(left) else
                   f"{format_number(min(left), 2)} to {format_number(max(left), 2)}x")
            return f"Prefill sits right of the ridge, decode {far} left of it"
        if max(right) < 1 and min(left) > 1:
            return "Both phases sit left of the ridge: bytes decide"
        if min(right) > 1 and max(left) < 1:
            return "Both phases sit right of the ridge: FLOP/s decide"
        return "Where the ridge lies decides which phase is bound by bytes"

    def _path_message(self) -> str | None:
        """What a trajectory shows, where it shows it."""
        own, ridge = self.paths[self.paths["phase"] == "decode"], self.main(self.names[0]).ridge
        batch, context = (own[(own["series"] == f"{along} path") & (own["group"] == group)][
            "intensity_flop_per_byte"].to_numpy() / ridge
            for along, group in (("batch", "matrices"), ("context", "pass")))
        if len(batch) and batch[-1] > 0.5 > batch[0]:
            return "Batch takes decode's matrices to the ridge, not its attention"
        if len(context) and context[-1] < 0.7 * context[0]:
            return "A longer context pulls decode back down the slope"
        return None

    def subtitle(self) -> str:
        """Model, workload, formats, and what does not fit."""
        batch = f"batch {self.w.batch:,.0f}"
        text = asked(self.chips[0], self.several, batch=batch,
                     tokens=f"{self.w.input:,.0f} tokens in, {self.w.output:,.0f} out")
        base = self.data[self.data["series"] == "pass"]
        bad = [n for n in self.names if not base[base["device"] == n]["fits"].all()]
        if bad:
            text += f". DOES\u00a0NOT\u00a0FIT{self._where(bad)}: hollow markers"
        return text

    def _where(self, bad: Sequence[str]) -> str:
        return f" on {', '.join(bad)}" if self.several else ""

    def key(self) -> list[tuple[Any, str]]:
        """Shapes, colours and line styles."""
        t = self.theme
        key: list[tuple[Any, str]] = [
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
        self.bottom, self.top = max(y.min() / 5.0, top * 2e-6), top * 2.2
        each = ", a device" if any(d.devices > 1 for d in self.chips) else ""
        self.axes.set(xscale="log", yscale="log", xlim=(self.left, self.right),
                      ylim=(self.bottom, self.top), ylabel="FLOP/s" + each,
                      xlabel="arithmetic intensity, FLOP per byte")
        for axis, form in ((self.axes.xaxis, lambda v, _: f"{v:g}"),
                           (self.axes.yaxis, lambda v, _: power(v))):
            axis.set_major_locator(LogLocator(numticks=12))
            axis.set_major_formatter(FuncFormatter(form))
            axis.set_minor_locator(NullLocator())

    def _x(self) -> Any:
        return np.geomspace(self.left, self.right, 400)

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
            area = _area(rows["share"]) * (0.6 if self.several else 1.0)
            cloud = self.axes.scatter(
                rows["intensity_flop_per_byte"], height, s=area,
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

    def _path_color(self, name: str, series: str) -> str:
        """The context path has a colour of its own where one device is drawn."""
        return self.theme.chips[3] if series == "context path" and not self.several else (
            self.colors[name])

    def _labels(self) -> None:
        put = Labels(self.axes, self.theme)
        for line in self.axes.get_lines():
            if line.get_linestyle() != ":":
                put.avoid_line(line)
        big = self.points[self.points["share"] > 0.01]
        for _, r in big.iterrows():
            put.avoid(r["intensity_flop_per_byte"], r["flops_per_s"], 2.0 + 8.0 * r["share"])
        put.avoid(self.paths["intensity_flop_per_byte"], self.paths["flops_per_s"], 2.0)
        if not self.several:
            self._sides(put)
        self._name_ridges(put)
        self._name_lines(put)
        self._name_paths(put)
        self._name_phases(put)
        if not self.several and not len(self.paths):
            self._name_operations(put)

    def _sides(self, put: Labels) -> None:
        ridge = self.main(self.names[0]).ridge
        foot = self.bottom * (self.top / self.bottom) ** 0.025
        for text, x, side in (("bytes decide", ridge / 1.25, "right"),
                              ("FLOP/s decide", ridge * 1.25, "left")):
            label = self.axes.text(x, foot, text, color=self.theme.muted, style="italic",
                                   va="bottom", ha=side, path_effects=halo(self.theme))
            box = label.get_window_extent(put.renderer)
            inside = box.x0 >= put.box.x0 and box.x1 <= put.box.x1
            put.block(label) if inside else label.remove()

    def _name_ridges(self, put: Labels) -> None:
        place = 0.16
        for name in sorted(self.names, key=lambda n: self.main(n).ridge):
            r, color = self.main(name), self.colors[name]
            y = self.bottom * (r.peak / self.bottom) ** place
            put.put(f"ridge {format_number(r.ridge)}", r.ridge, y, color, must=True)
            place += 0.07

    def _name_lines(self, put: Labels) -> None:
        lowest = {"bandwidth": min(self.names, key=lambda n: self.main(n).bandwidth),
                  "peak": min(self.names, key=lambda n: self.main(n).peak)}
        for name in self.names:
            r, color = self.main(name), self.colors[name]
            own = self._x()
            slope, flat = own[own < r.ridge], own[own > r.ridge]
            below = {key: self.several and lowest[key] == name for key in lowest}
            memory = f"{name}  {format_bandwidth(r.bandwidth)}" if self.several else (
                f"{r.level} {format_bandwidth(r.bandwidth)} ceiling")
            peak = f"{format_flops(r.peak)} {r.precision}" if self.several else (
                f"{format_flops(r.peak)} {r.precision} ceiling")
            for text, x, key, prefer, bold in (
                    (memory, slope, "bandwidth", 0.30, self.several),
                    (peak, flat, "peak", 0.97, False)):
                y = r.expected(x) if below[key] else r.ceiling(x)
                put.along(text, x, y, color, bold=bold, prefer=prefer, above=not below[key],
                          must=True)
            if self.several:
                continue
            put.along("expected", flat, r.expected(flat), color, prefer=0.3, above=False)
            top = max(roof.peak for roof in self.roofs[name])
            for roof in self.roofs[name][1:]:
                if roof.level == r.level:
                    span = np.array([roof.ridge, self.right])
                    put.along(f"{format_flops(roof.peak)} {roof.precision}", span,
                              [roof.peak] * 2, self.theme.muted, prefer=0.95, above=True)
                elif roof.precision == r.precision:
                    span = own[roof.bandwidth * own <= top]
                    put.along(f"{roof.level} {format_bandwidth(roof.bandwidth)}", span,
                              roof.bandwidth * span, self.theme.muted, prefer=0.4, above=True)

    def _name_phases(self, put: Labels) -> None:
        """The name of each phase where its operations are, with what it reaches."""
        for phase in PHASES:
            rows = [r for n in self.names if (r := self.phase(n, phase)) is not None]
            if not rows:
                continue
            x = float(np.exp(np.mean([np.log(r["intensity_flop_per_byte"]) for r in rows])))
            y = float(min(r["flops_per_s"] for r in rows))
            reached = [r["flops_per_s"] / self.main(r["device"]).peak for r in rows]
            low, high = (format_number(100 * v, 2) for v in (min(reached), max(reached)))
            share = f"{low}%" if low == high else f"{low} to {high}%"
            put.put(f"{phase}: {share} of peak", x, y, self.theme.foreground, size=10.5, bold=True,
                    must=True, gap=12.0, prefer=0.0 if phase == "decode" else -90.0)

    def _name_operations(self, put: Labels) -> None:
        """Each group of operations in each phase, beside its largest, with its share."""
        groups = [(rows["share"].sum(), rows.iloc[int(rows["share"].to_numpy().argmax())])
                  for _, rows in grouped(self.points, "phase", "group")]
        for share, r in sorted(groups, key=lambda g: -g[0]):
            if share < _LABELLED:
                continue
            radius = float(np.sqrt(_area(r["share"]))) / 2
            put.put(f"{r['group']} {share:.0%}", r["intensity_flop_per_byte"], r["flops_per_s"],
                    self.theme.kinds[r["group"]], gap=radius,
                    prefer=150.0 if r["phase"] == "decode" else -135.0)

    def _name_paths(self, put: Labels) -> None:
        whole = self.paths[self.paths["phase"] == "decode"]
        for (name, series), rows in grouped(whole, "device", "series"):
            along = "batch" if series == "batch path" else "input"
            own = rows[rows["group"] == "pass"]
            color, below = self._path_color(name, series), along == "batch"
            for i, (_, r) in enumerate(own.iterrows()):
                word = ("batch " if below else "context ") if i in (0, len(own) - 1) else ""
                put.put(f"{word}{count(r[along])}", r["intensity_flop_per_byte"],
                        r["flops_per_s"], color, gap=4.0, prefer=-45.0 if below else 120.0)
            for group in ("matrices", "attention"):
                part = rows[rows["group"] == group]
                if len(part) and not self.several and along == "batch":
                    r = part.iloc[-1]
                    put.put(f"decode {group}", r["intensity_flop_per_byte"], r["flops_per_s"],
                            self.theme.kinds[group], gap=5.0, prefer=120.0, bold=True)


def _area(share: Any) -> Any:
    return np.maximum(_LARGEST * np.asarray(share, float), _SMALLEST)
