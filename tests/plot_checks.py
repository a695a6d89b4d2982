"""What a chart must never do: text outside the canvas, on other text or a marker, small, or faint.

Boxes are measured here anew, not taken from the code that placed the labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

SMALLEST = 9.0


def texts(figure: Figure) -> list[Text]:
    """Every text that isn't switched off, ticks beyond the axis included."""
    figure.canvas.draw()
    return [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_visible()
            and t.get_text().strip()]


def outline(text: Text, renderer: Any) -> Any:
    """Corners (4, 2) of a text in pixels, turned as it is."""
    around = text.get_window_extent(renderer)
    centre = np.array([(around.x0 + around.x1) / 2, (around.y0 + around.y1) / 2])
    degrees = text.get_rotation()
    text.set_rotation(0)
    flat = text.get_window_extent(renderer)
    text.set_rotation(degrees)
    a = math.radians(degrees)
    turn = np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (flat.width / 2, flat.height / 2)
    return half @ turn + centre


def overlap(a: Any, b: Any, allowed: float = 1.5) -> bool:
    """Whether two boxes overlap by more than `allowed` pixels in every direction."""
    for box in (a, b):
        for i in range(4):
            side = box[(i + 1) % 4] - box[i]
            normal = np.array([-side[1], side[0]]) / max(np.hypot(*side), 1e-9)
            p, q = a @ normal, b @ normal
            if p.max() <= q.min() + allowed or q.max() <= p.min() + allowed:
                return False
    return True


def contrast(a: Any, b: Any) -> float:
    """WCAG contrast ratio of two colours."""
    def light(color: Any) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
                  for c in to_rgb(color)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(a), light(b)))
    return (high + 0.05) / (low + 0.05)


def markers(figure: Figure) -> list[tuple[Any, float]]:
    """Centre and radius [pixels] of every marker inside its axes."""
    found, scale = [], figure.dpi / 72
    for axes in figure.axes:
        sets = [(line.get_transform().transform(np.column_stack(line.get_data())),
                 line.get_markersize() / 2) for line in axes.get_lines()
                if line.get_marker() not in ("None", "none", None, "")]
        sets += [(axes.transData.transform(c.get_offsets()), np.sqrt(c.get_sizes()) / 2)
                 for c in axes.collections if isinstance(c, PathCollection)]
        for places, radius in sets:
            for place, r in zip(places, np.broadcast_to(radius, len(places)), strict=True):
                if np.isfinite(place).all() and axes.bbox.contains(*place):
                    found.append((place, max(float(r) * scale, 1.0)))
    return found


def _gap(box: Any, place: Any) -> float:
    """Pixels from a point to a turned box, below 0 inside."""
    found = -math.inf
    for i in range(4):
        side = box[(i + 1) % 4] - box[i]
        normal = np.array([side[1], -side[0]]) / max(np.hypot(*side), 1e-9)
        found = max(found, float((place - box[i]) @ normal))
    return found


def _ground(figure: Figure, place: Any) -> Any:
    """Colour behind a point: the bar there, if any, over the background."""
    color: Any = np.array(to_rgb(figure.get_facecolor()[:3]))
    for axes in figure.axes:
        for bar in axes.patches:
            if isinstance(bar, Rectangle) and bar.get_window_extent().contains(*place):
                face = np.array(to_rgba(bar.get_facecolor()))
                color = face[3] * face[:3] + (1 - face[3]) * color
    return tuple(color)


def unnamed(figure: Figure, names: Iterable[str]) -> list[str]:
    """Devices whose name is neither beside their line nor in the key."""
    panels = [[t.get_text() for t in axes.texts] for axes in figure.axes]
    keys = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    return [name for name in names for panel in panels
            if not any(w.startswith(name) for w in [*panel, *keys])]


def problems(figure: Figure) -> list[str]:
    """Each fault of the text of a chart, in words; empty is good."""
    found = []
    drawn = texts(figure)
    canvas: Any = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    width, height = figure.bbox.x1, figure.bbox.y1
    spots = markers(figure)
    boxes = [(t, outline(t, renderer)) for t in drawn]
    for text, box in boxes:
        name = repr(text.get_text())
        low, high = box.min(axis=0), box.max(axis=0)
        if low.min() < -0.5 or high[0] > width + 0.5 or high[1] > height + 0.5:
            found.append(f"{name} lies outside the canvas")
        if float(text.get_fontsize()) * 6.5 / figure.get_size_inches()[0] < SMALLEST - 1e-6:
            found.append(f"{name} has {text.get_fontsize()} pt")
        below = _ground(figure, box.mean(axis=0))
        if contrast(to_hex(text.get_color()), below) < 4.5:
            found.append(f"{name} is too faint on {to_hex(below)}")
        if any(_gap(box, place) < 0.7 * radius for place, radius in spots
               if text.axes is not None and text in text.axes.texts):
            found.append(f"{name} lies on a marker")
    for i, (text, box) in enumerate(boxes):
        for other, second in boxes[i + 1:]:
            if overlap(box, second):
                found.append(f"{text.get_text()!r} lies on {other.get_text()!r}")
    return found


def lines(figure: Figure, prefix: str) -> list[Any]:
    """Lines and bands whose group id starts with `prefix`."""
    return [a for axes in figure.axes for a in [*axes.get_lines(), *axes.collections, *axes.patches]
            if str(a.get_gid() or "").startswith(prefix)]
