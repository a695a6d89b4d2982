"""What a chart must never do: text outside the canvas, on other text, too small, or too faint.

Boxes are measured here anew, not taken from the code that placed the labels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

SMALLEST = 9.0


def _hidden_ticks(figure: Figure) -> set[int]:
    """Tick labels that Matplotlib keeps but doesn't draw: those beyond the axis."""
    hidden: set[int] = set()
    for axes in figure.axes:
        axis: Axis
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                inside = low * (1 - 1e-9) <= tick.get_loc() <= high * (1 + 1e-9)
                hidden |= {id(tick.label2)} | (set() if inside else {id(tick.label1)})
    return hidden


def texts(figure: Figure) -> list[Text]:
    """Every text that is drawn."""
    figure.canvas.draw()
    hidden = _hidden_ticks(figure)
    return [t for t in figure.findobj(Text) if isinstance(t, Text) and t.get_visible()
            and t.get_text().strip() and id(t) not in hidden]


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


def problems(figure: Figure) -> list[str]:
    """Each fault of the text of a chart, in words; empty is good."""
    found = []
    drawn = texts(figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.bbox.x1, figure.bbox.y1
    boxes = [(t, outline(t, renderer)) for t in drawn]
    for text, box in boxes:
        name = repr(text.get_text())
        low, high = box.min(axis=0), box.max(axis=0)
        if low.min() < -0.5 or high[0] > width + 0.5 or high[1] > height + 0.5:
            found.append(f"{name} lies outside the canvas")
        if text.get_fontsize() * 6.5 / figure.get_size_inches()[0] < SMALLEST - 1e-6:
            found.append(f"{name} has {text.get_fontsize()} pt")
        color = to_hex(text.get_color())
        on_bar = color in ("#111111", "#ffffff")    # stands on a bar, whose colour decides
        if not on_bar and contrast(color, figure.get_facecolor()[:3]) < 4.0:
            found.append(f"{name} is too faint")
    for i, (text, box) in enumerate(boxes):
        for other, second in boxes[i + 1:]:
            if overlap(box, second):
                found.append(f"{text.get_text()!r} lies on {other.get_text()!r}")
    return found


def lines(figure: Figure, prefix: str) -> list[Any]:
    """Lines and bands whose group id starts with `prefix`."""
    return [a for axes in figure.axes for a in [*axes.get_lines(), *axes.collections, *axes.patches]
            if str(a.get_gid() or "").startswith(prefix)]
