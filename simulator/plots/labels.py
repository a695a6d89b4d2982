"""Text beside what it names, without text on text: a greedy search among places around a point.

Distances are in points, boxes in pixels. What can't be placed without covering another label is
left out where it is optional, and put in the emptiest place with a leader where it isn't.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.text import Text

from simulator.plots.style import TEXT, Theme, halo, ink, renderer_of

_PAD = 2.0
_ANGLES = (0, 45, -45, 90, -90, 180, 135, -135, 22, -22, 158, -158, 67, -67, 113, -113)
_REACH = (4.0, 8.0, 14.0, 22.0, 34.0, 48.0, 64.0)
_LED = 16.0         # a label farther away has a leader
_MARKER = 50.0      # weight of a marker: no label lies on one
_CLEAR = 20.0       # cost below which a label covers no curve, at most the odd dashed line
_COVERED = 60.0     # cost from which a label hides data


def corners(x: float, y: float, width: float, height: float, degrees: float = 0.0) -> Any:
    """Corners (4, 2) of a box around its centre."""
    a = math.radians(degrees)
    turn = np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (width / 2, height / 2)
    return half @ turn + (x, y)


def overlap(a: Any, b: Any) -> bool:
    """Whether two convex boxes overlap: no side of either separates them."""
    if bool((a.max(axis=0) <= b.min(axis=0)).any() or (b.max(axis=0) <= a.min(axis=0)).any()):
        return False
    for box in (a, b):
        for i in range(len(box)):
            side = box[(i + 1) % len(box)] - box[i]
            normal = np.array([-side[1], side[0]])
            p, q = a @ normal, b @ normal
            if p.max() <= q.min() or q.max() <= p.min():
                return False
    return True


class Labels:
    """Labels of one axes; make it after `settle`, when nothing moves any more."""

    def __init__(self, axes: Axes, theme: Theme) -> None:
        self.axes, self.theme = axes, theme
        figure = axes.get_figure(root=True)
        assert figure is not None
        self.renderer = renderer_of(figure)
        self.scale = figure.dpi / 72.0
        self.box = axes.get_window_extent(self.renderer)
        self.canvas = figure.bbox
        self.taken: list[Any] = []
        self.points = np.empty((0, 3))

    def pixels(self, x: Any, y: Any) -> Any:
        """Data coordinates in pixels, (n, 2)."""
        pairs = np.column_stack([np.atleast_1d(np.asarray(v, float)) for v in (x, y)])
        return self.axes.transData.transform(pairs)

    def avoid_drawn(self) -> None:
        """Keep labels off every curve and marker of the axes."""
        for line in self.axes.get_lines():
            p = line.get_transform().transform(np.column_stack(line.get_data()))
            p = p[np.isfinite(p).all(axis=1)]
            if line.get_linestyle() not in ("None", "none", ""):
                curve = str(line.get_gid()).startswith(("expected", "beyond", "path"))
                self._avoid_line(p, 0.1 if line.get_linestyle() == ":" else 1.0 if curve else 0.3)
            if line.get_marker() not in ("None", "none", None, ""):
                self._avoid_markers(p, np.full(len(p), float(line.get_markersize()) / 2))
        for cloud in self.axes.collections:
            if isinstance(cloud, PathCollection):
                p = self.axes.transData.transform(np.asarray(cloud.get_offsets()))
                radius = np.sqrt(np.broadcast_to(cloud.get_sizes(), len(p))) / 2
                self._avoid_markers(p, radius)

    def _avoid_markers(self, p: Any, radius: Any) -> None:
        turn = np.linspace(0.0, 2 * np.pi, 8, endpoint=False)
        ring = np.vstack([[0.0, 0.0], np.column_stack([np.cos(turn), np.sin(turn)])])
        around = p[:, None, :] + ring[None] * (np.asarray(radius)[:, None, None] * self.scale)
        self._add(around.reshape(-1, 2), _MARKER)

    def _add(self, p: Any, weight: float) -> None:
        self.points = np.vstack([self.points, np.column_stack([p, np.full(len(p), weight)])])

    def _avoid_line(self, p: Any, weight: float) -> None:
        """Sampled every few pixels."""
        if len(p) < 2:
            return
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(p, axis=0).T))])
        at = np.arange(0.0, along[-1], 3.0 * self.scale)
        dense = np.column_stack([np.interp(at, along, p[:, i]) for i in (0, 1)])
        self._add(dense, weight)

    def block(self, text: Text) -> None:
        """Count text that stands already."""
        box = text.get_window_extent(self.renderer)
        self.taken.append(corners((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2, box.width,
                                  box.height))

    def _cost(self, box: Any, wide: bool = False) -> float:
        edge = self.canvas if wide else self.box
        low, high = box.min(axis=0), box.max(axis=0)
        if low[0] < edge.x0 + 2 or low[1] < edge.y0 + 2 or high[0] > edge.x1 - 2 or (
                high[1] > edge.y1 + (0 if wide else 6 * self.scale)):
            return math.inf
        if any(overlap(box, other) for other in self.taken):
            return math.inf
        inside = self._inside(box)
        return 20.0 * float(self.points[inside, 2].sum()) if len(self.points) else 0.0

    def _inside(self, box: Any) -> Any:
        if not len(self.points):
            return np.zeros(0, bool)
        keep = np.ones(len(self.points), bool)
        for i in range(4):
            side = box[(i + 1) % 4] - box[i]
            away = self.points[:, :2] - box[i]
            keep &= side[0] * away[:, 1] - side[1] * away[:, 0] >= -1.0 * self.scale * np.hypot(
                *side)
        return keep

    def _text(self, text: str, color: str, size: float, bold: bool) -> tuple[Text, float, float]:
        artist = self.axes.text(0, 0, text, fontsize=size, color=ink(color, self.theme),
                                fontweight="bold" if bold else "normal", transform=None,
                                ha="center", va="center", path_effects=halo(self.theme), zorder=9,
                                parse_math=False)
        artist.set_in_layout(False)
        box = artist.get_window_extent(self.renderer)
        pad = _PAD * self.scale
        return artist, box.width + pad, box.height + pad

    def _fix(self, artist: Text, x: float, y: float, degrees: float, box: Any) -> None:
        spot = self.axes.transAxes.inverted().transform((x, y))
        artist.set_transform(self.axes.transAxes)
        artist.set_position((float(spot[0]), float(spot[1])))
        artist.set_rotation(degrees)
        self.taken.append(box)

    def put(self, text: str, x: float, y: float, color: str, *, size: float = TEXT,
            bold: bool = False, must: bool = False, gap: float = 0.0, prefer: float = 0.0,
            wide: bool = False, reach: float = _REACH[-1]) -> bool:
        """Label a point; `gap` [pt] keeps off its marker, `prefer` [degrees] is the best side.

        `wide` lets it stand outside the axes, `reach` [pt] is as far as it may go. False: there
        was no room.
        """
        artist, width, height = self._text(text, color, size, bold)
        px, py = self.pixels(x, y)[0]
        best: tuple[float, float, float, Any, float] | None = None
        for away in (r for r in _REACH if r <= reach):
            for angle in _ANGLES:
                a = math.radians(angle + prefer)
                r = (gap + away) * self.scale
                cx = px + math.cos(a) * r + width / 2 * _sign(math.cos(a))
                cy = py + math.sin(a) * r + height / 2 * _sign(math.sin(a))
                cx, cy = self._inward(cx, cy, width, height, wide)
                box = corners(cx, cy, width, height)
                cost = self._cost(box, wide) + away + abs((angle + 180) % 360 - 180) / 45.0
                if away > _LED and math.isfinite(cost):
                    cost += 30.0 * self._crossed(px, py, box)
                if best is None or cost < best[0]:
                    best = cost, cx, cy, box, away
            if best is not None and best[0] < away + 6:
                break
        assert best is not None
        if best[0] >= _COVERED and must:
            best = min(best, self._anywhere(px, py, width, height) or best, key=lambda b: b[0])
        cost, cx, cy, box, away = best
        if not math.isfinite(cost) or (not must and self._cost(box, wide) >= _COVERED):
            artist.remove()
            return False
        self._fix(artist, cx, cy, 0.0, box)
        if away > _LED:
            self._leader(px, py, box, color)
        return True

    def _inward(self, cx: float, cy: float, width: float, height: float,
                wide: bool) -> tuple[float, float]:
        edge = self.canvas if wide else self.box
        return (float(np.clip(cx, edge.x0 + width / 2 + 3, edge.x1 - width / 2 - 3)),
                float(np.clip(cy, edge.y0 + height / 2 + 3, edge.y1 - height / 2 - 3)))

    def _anywhere(self, px: float, py: float, width: float,
                  height: float) -> tuple[float, float, float, Any, float] | None:
        best = None
        for cx in np.linspace(self.box.x0 + width / 2 + 3, self.box.x1 - width / 2 - 3, 25):
            for cy in np.linspace(self.box.y0 + height / 2 + 3, self.box.y1 - height / 2, 25):
                box = corners(cx, cy, width, height)
                cost = self._cost(box) + math.hypot(cx - px, cy - py) / self.scale
                if math.isfinite(cost) and (best is None or cost < best[0]):
                    best = cost, float(cx), float(cy), box, 99.0
        return best

    def _crossed(self, px: float, py: float, box: Any) -> int:
        """Labels and markers that a leader to a box would cross."""
        way = np.linspace((px, py), box.mean(axis=0), 24)[:, None, :]
        marks = self.points[self.points[:, 2] >= _MARKER, :2]
        marks = marks[np.hypot(*(marks - (px, py)).T) > 5.0 * self.scale]
        hit = len(marks) and (np.hypot(*np.moveaxis(way - marks, 2, 0)) < 2.0 * self.scale).any()
        return int(hit) + sum(
            bool(((way > other.min(axis=0)) & (way < other.max(axis=0))).all(axis=2).any())
            for other in self.taken)

    def _leader(self, px: float, py: float, box: Any, color: str) -> None:
        low, high = box.min(axis=0), box.max(axis=0)
        near = (min(max(px, low[0]), high[0]), min(max(py, low[1]), high[1]))
        ends = self.axes.transAxes.inverted().transform([(px, py), near])
        self.axes.plot(ends[:, 0], ends[:, 1], color=color, linewidth=0.7, alpha=0.8,
                       transform=self.axes.transAxes, zorder=3.5, gid="leader")
        self._avoid_line(self.axes.transAxes.transform(ends), 1.0)

    def along(self, text: str, x: Any, y: Any, color: str, *, size: float = TEXT,
              bold: bool = False, prefer: float = 0.5, above: bool | None = None,
              must: bool = False) -> bool:
        """Label a line, turned with it; `prefer` is the best place along it, 0 to 1.

        Never over a curve or a marker: what `must` be said goes beside it then, with a leader.
        """
        p = self.pixels(x, y)
        edge = self.box
        inside = ((p[:, 0] >= edge.x0) & (p[:, 0] <= edge.x1) & (p[:, 1] >= edge.y0)
                  & (p[:, 1] <= edge.y1))
        p = p[inside]
        if len(p) < 2:
            return False
        artist, width, height = self._text(text, color, size, bold)
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(p, axis=0).T))])
        best: tuple[float, float, float, float, Any] | None = None
        for place in np.linspace(0.0, 1.0, 41):
            at = place * along[-1]
            a, b = (np.array([np.interp(np.clip(at + s * width / 2, 0, along[-1]), along, p[:, i])
                              for i in (0, 1)]) for s in (-1, 1))
            if np.hypot(*(b - a)) < 0.9 * width:
                continue
            degrees = math.degrees(math.atan2(b[1] - a[1], b[0] - a[0]))
            up = np.array([-(b - a)[1], (b - a)[0]]) / np.hypot(*(b - a))
            for side in ((1, -1) if above is None else (1,) if above else (-1,)):
                for gap in (2.5, 1.2):
                    centre = (a + b) / 2 + side * up * (height / 2 + gap * self.scale)
                    box = corners(float(centre[0]), float(centre[1]), width, height, degrees)
                    cost = self._cost(box)
                    if cost >= _CLEAR:
                        continue
                    cost += 40 * abs(place - prefer) + (side < 0) + (2.5 - gap)
                    if best is None or cost < best[0]:
                        best = cost, float(centre[0]), float(centre[1]), degrees, box
        if best is None:
            artist.remove()
            middle = p[len(p) // 2]
            x0, y0 = (float(v) for v in self.axes.transData.inverted().transform(middle))
            return must and self.put(text, x0, y0, color, size=size, bold=bold, must=True)
        self._fix(artist, best[1], best[2], best[3], best[4])
        return True


def _sign(value: float) -> float:
    """-1, 0 or 1, with a middle for near-vertical and near-horizontal directions."""
    return 0.0 if abs(value) < 0.2 else math.copysign(1.0, value)
