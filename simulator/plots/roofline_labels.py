"""Labels of a roofline, the important ones first; few with several devices, in their colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from simulator.plots.labels import Labels
from simulator.plots.roofline_data import PHASES, power
from simulator.plots.roofline_words import Words
from simulator.plots.style import count, grouped, halo
from simulator.units import format_bandwidth, format_flops, format_number

_LARGEST = 420.0    # area [pt^2] of a marker that takes all of the time
_SMALLEST = 9.0
_LABELLED = 0.05    # share of the time from which a group of operations is named


class Labelled(Words):
    """Where the words go, once the lines and markers stand."""

    axes: Axes
    left: float
    right: float
    bottom: float
    top: float

    def _x(self) -> Any:
        return np.geomspace(self.left, self.right, 400)

    def _path_color(self, name: str, series: str) -> str:
        """The context path has a colour of its own where one device is drawn."""
        return self.theme.chips[3] if series == "context path" and not self.several else (
            self.colors[name])

    @property
    def stacked(self) -> bool:
        """Whether several precisions are drawn, too close for words between their lines."""
        return not self.several and len({r.precision for r in self.roofs[self.names[0]]}) > 1

    def _name_peaks(self) -> None:
        """Peaks of several precisions at the right ends of their lines, outside the axes."""
        main, place = self.main(self.names[0]), 0.0
        apart = 10 ** (0.052 * np.log10(self.top / self.bottom))    # a line of text
        own = {r.peak: r for r in self.roofs[self.names[0]] if r.level == main.level}
        for peak, roof in sorted(own.items()):
            place = max(peak, place * apart)
            self.axes.text(1.012, place, f"{power(peak)} {roof.precision}", va="center", ha="left",
                           transform=self.axes.get_yaxis_transform(), clip_on=False,
                           color=self.theme.foreground if roof is main else self.theme.muted,
                           fontweight="bold" if roof is main else "normal")

    def _labels(self, keyed: bool) -> bool:
        """All labels; False where a device got no name."""
        put = Labels(self.axes, self.theme)
        put.avoid_drawn()
        if not self.several:
            self._sides(put)
        named = keyed or self._name_lines(put)
        self._name_ridges(put)
        self._name_paths(put)
        self._name_phases(put)
        if not self.several and not len(self.paths):
            self._name_operations(put)
        return named

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

    def _name_lines(self, put: Labels) -> bool:
        named = True
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
            ends = [(memory, slope, "bandwidth", 0.30, self.several)]
            if not self.stacked:
                ends.append((peak, flat, "peak", 0.97, False))
            for text, x, key, prefer, bold in ends:
                y = r.expected(x) if below[key] else r.ceiling(x)
                named &= put.along(text, x, y, color, bold=bold, prefer=prefer,
                                   above=not below[key], must=not self.several)
            if self.several:
                continue
            put.along("expected", flat, r.expected(flat), color, prefer=0.3, above=False)
            top = max(roof.peak for roof in self.roofs[name])
            for roof in self.roofs[name][1:]:
                if roof.level != r.level and roof.precision == r.precision:
                    span = own[roof.bandwidth * own <= top]
                    put.along(f"{roof.level} {format_bandwidth(roof.bandwidth)}", span,
                              roof.bandwidth * span, self.theme.muted, prefer=0.4, above=True,
                              must=True)
        return named

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
            radius = float(np.sqrt(area(r["share"]))) / 2
            put.put(f"{r['group']} {share:.0%}", r["intensity_flop_per_byte"], r["flops_per_s"],
                    self.theme.kinds[r["group"]], gap=radius,
                    prefer=150.0 if r["phase"] == "decode" else -135.0)

    def _name_paths(self, put: Labels) -> None:
        whole = self.paths[self.paths["phase"] == "decode"]
        joined = whole["series"].nunique() > 1      # the context path starts on the batch path
        for (name, series), rows in grouped(whole, "device", "series"):
            along = "batch" if series == "batch path" else "input"
            own = rows[rows["group"] == "pass"]
            color, below = self._path_color(name, series), along == "batch"
            for i in sorted(range(len(own)), key=lambda i: i not in (0, len(own) - 1)):
                r, end = own.iloc[i], i in (0, len(own) - 1)
                if self.several and (not end or (i == 0 and not below and joined)):
                    continue
                word = ("batch " if below else "context ") if end else ""
                put.put(f"{word}{count(r[along])}", r["intensity_flop_per_byte"],
                        r["flops_per_s"], color, gap=4.0, prefer=-45.0 if below else 120.0,
                        must=end and not self.several, reach=34.0)
            for group in ("matrices", "attention"):
                part = rows[rows["group"] == group]
                if len(part) and not self.several and along == "batch":
                    r = part.iloc[-1]
                    put.put(f"decode {group}", r["intensity_flop_per_byte"], r["flops_per_s"],
                            self.theme.kinds[group], gap=5.0, prefer=120.0, bold=True)


def area(share: Any) -> Any:
    return np.maximum(_LARGEST * np.asarray(share, float), _SMALLEST)
