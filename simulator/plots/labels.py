"""Text beside what it names, without text on text: a greedy search among places around a point.

Distances are in points, boxes in pixels. What can't be placed without covering another label is
left out where it is optional, and put in the emptiest place with a leader where it isn't.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Text

from simulator.plots.style import TEXT, Theme, halo, ink, renderer_of

_PAD = 2.0
_ANGLES = (0, 45, -45, 90, -90, 180, 135, -135, 22, -22, 158, -158, 67, -67, 113, -113)
_REACH = (4.0, 8.0, 14.0, 22.0, 34.0, 48.0, 64.0)


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

    def avoid(self, x: Any, y: Any, weight: float = 1.0) -> None:
        """Keep labels off these points, such as markers."""
        p = self.pixels(x, y)
        p = p[np.isfinite(p).all(axis=1)]
        self.points = np.vstack([self.points, np.column_stack([p, np.full(len(p), weight)])])

    def avoid_line(self, line: Line2D, weight: float = 0.25) -> None:
        """Keep labels off a line, sampled every few pixels."""
        p = self.pixels(line.get_xdata(), line.get_ydata())
        p = p[np.isfinite(p).all(axis=1)]
        if len(p) < 2:
            return
        along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(p, axis=0).T))])
        at = np.arange(0.0, along[-1], 3.0 * self.scale)
        dense = np.column_stack([np.interp(at, along, p[:, i]) for i in (0, 1)])
        self.points = np.vstack([self.points,
                                 np.column_stack([dense, np.full(len(dense), weight)])])

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
            keep &= side[0] * away[:, 1] - side[1] * away[:, 0] >= -2.0 * self.scale * np.hypot(
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
            wide: bool = False) -> bool:
        """Label a point; `gap` [pt] keeps off its marker, `prefer` [degrees] is the best side.

        `wide` lets it stand outside the axes. False: there was no room.
        """
        artist, width, height = self._text(text, color, size, bold)
        px, py = self.pixels(x, y)[0]
        best: tuple[float, float, float, Any, float] | None = None
        for reach in _REACH:
            for angle in _ANGLES:
                a = math.radians(angle + prefer)
                r = (gap + reach) * self.scale
                cx = px + math.cos(a) * r + width / 2 * _sign(math.cos(a))
                cy = py + math.sin(a) * r + height / 2 * _sign(math.sin(a))
                cx, cy = self._inward(cx, cy, width, height, wide)
                box = corners(cx, cy, width, height)
                cost = self._cost(box, wide) + reach + abs((angle + 180) % 360 - 180) / 45.0
                if best is None or cost < best[0]:
                    best = cost, cx, cy, box, reach
            if best is not None and best[0] < reach + 6:
                break
        assert best is not None
        if not math.isfinite(best[0]) and must:
            best = self._anywhere(px, py, width, height) or best
        cost, cx, cy, box, reach = best
        if not math.isfinite(cost):
            artist.remove()
            return False
        self._fix(artist, cx, cy, 0.0, box)
        if reach > 16.0:
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

    def _leader(self, px: float, py: float, box: Any, color: str) -> None:
        low, high = box.min(axis=0), box.max(axis=0)
        near = (min(max(px, low[0]), high[0]), min(max(py, low[1]), high[1]))
        ends = self.axes.transAxes.inverted().transform([(px, py), near])
        self.axes.plot(ends[:, 0], ends[:, 1], color=color, linewidth=0.7, alpha=0.8,
                       transform=self.axes.transAxes, zorder=3.5, gid="leader")

    def along(self, text: str, x: Any, y: Any, color: str, *, size: float = TEXT,
              bold: bool = False, prefer: float = 0.5, above: bool | None = None,
              must: bool = False) -> bool:
        """Label a line, turned with it; `prefer` is the best place along it, 0 to 1."""
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
                centre = (a + b) / 2 + side * up * (height / 2 + 2.5 * self.scale)
                box = corners(float(centre[0]), float(centre[1]), width, height, degrees)
                cost = self._cost(box) + 40 * abs(place - prefer) + (side < 0)
                if best is None or cost < best[0]:
                    best = cost, float(centre[0]), float(centre[1]), degrees, box
        if best is None or not math.isfinite(best[0]):
            artist.remove()
            middle = p[len(p) // 2]
            x0, y0 = (float(v) for v in self.axes.transData.inverted().transform(middle))
            return must and self.put(text, x0, y0, color, size=size, bold=bold, must=True)
        self._fix(artist, best[1], best[2], best[3], best[4])
        return True


def _sign(value: float) -> float:
    """-1, 0 or 1, with a middle for near-vertical and near-horizontal directions."""
    return 0.0 if abs(value) < 0.2 else math.copysign(1.0, value)
