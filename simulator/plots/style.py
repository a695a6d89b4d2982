"""Themes, colours and the frame of every chart: message, what was asked, key, axes.

Colours are Okabe and Ito's, told apart by all kinds of colour vision. No text is below 9 pt at
6.5 inch width, the width of a page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedFormatter, FixedLocator

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError, nearest
from simulator.specs.model import Moe
from simulator.units import format_number, format_time

WIDTH, HEIGHT, DPI = 6.5, 4.2, 200
TITLE, TEXT = 12.5, 9.0
SUFFIXES = ("png", "svg", "pdf")

_LINE, _MARGIN = 0.165, 0.10  # inches: a line of small text, the border of the canvas

P = ParamSpec("P")
R = TypeVar("R")


class Plot(NamedTuple):
    """A chart and what it shows: `figure, data = plots.throughput(...)`."""

    figure: Figure
    data: pd.DataFrame


def finished(figure: Figure, data: pd.DataFrame) -> Plot:
    """The result, its message kept with the data."""
    data.attrs["title"] = str(figure.get_label())
    return Plot(figure, data)


@dataclass(frozen=True)
class Theme:
    """Colours of one background. `chips` tell devices apart, `roofs` where kinds have colours."""

    name: str
    background: str
    foreground: str
    muted: str
    grid: str
    chips: tuple[str, ...]
    roofs: tuple[str, ...]
    kinds: dict[str, str]


_KINDS = {"matrices": "#0072B2", "attention": "#D55E00", "experts": "#009E73",
          "state space": "#CC79A7", "other kernels": "#8C8C8C", "network": "#E69F00",
          "host": "#C4C4C4"}

THEMES = {
    "light": Theme("light", "#FFFFFF", "#1A1A1A", "#595959", "#E3E3E3",
                   ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
                   ("#1A1A1A", "#E69F00", "#56B4E9", "#CC79A7"), _KINDS),
    "dark": Theme("dark", "#14181D", "#F2F2F2", "#B4BAC2", "#323940",
                  ("#56B4E9", "#E69F00", "#2FC49A", "#CC79A7", "#F0E442", "#FF7F33"),
                  ("#F2F2F2", "#E69F00", "#F0E442", "#CC79A7"),
                  _KINDS | {"matrices": "#56B4E9", "attention": "#FF7F33", "experts": "#2FC49A",
                            "other kernels": "#9AA0A6", "network": "#F0E442",
                            "host": "#5C636B"}),
}

# What an operation kind is called and coloured as.
GROUPS = {"gemm": "matrices", "attention": "attention", "moe": "experts", "ssm": "state space",
          "collective": "network", "host": "host"}


def group_of(kind: str) -> str:
    """The group of an operation kind; norms, element-wise and the like are other kernels."""
    return GROUPS.get(kind, "other kernels")


def theme_of(name: str) -> Theme:
    """A theme by name."""
    if name not in THEMES:
        raise InputError(f"unknown theme '{name}'{nearest(name, THEMES)}")
    return THEMES[name]


def _rc() -> Any:
    return {"font.family": "DejaVu Sans", "font.size": TEXT, "axes.labelsize": TEXT,
            "xtick.labelsize": TEXT, "ytick.labelsize": TEXT, "legend.fontsize": TEXT,
            "svg.hashsalt": "tokline", "pdf.fonttype": 42, "path.simplify": True,
            "axes.unicode_minus": False}


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Run with this package's settings, and leave the user's as they are."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(_rc()):
            return function(*args, **kwargs)

    return run


def _luminance(color: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours (WCAG 2); text needs 4.5."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def ink(color: str, theme: Theme) -> str:
    """`color` moved towards the foreground until text in it can be read."""
    start, end = to_rgb(color), to_rgb(theme.foreground)
    for step in range(21):
        r, g, b = (a + (z - a) * step / 20 for a, z in zip(start, end, strict=True))
        mixed = to_hex((r, g, b))
        if contrast(mixed, theme.background) >= 4.5:
            return mixed
    return theme.foreground


def on(color: str) -> str:
    """Black or white, whichever reads better on `color`: one of them always reaches 4.5."""
    return max(("#000000", "#FFFFFF"), key=lambda text: contrast(text, color))


def faded(color: str, theme: Theme) -> str:
    """`color` let halfway into the background: what does not fit."""
    r, g, b = (0.55 * x + 0.45 * y
               for x, y in zip(to_rgb(color), to_rgb(theme.background), strict=True))
    return str(to_hex((r, g, b)))


def halo(theme: Theme) -> list[Any]:
    """Outline in the background's colour, so that text reads over lines."""
    return [withStroke(linewidth=2.4, foreground=theme.background)]


def short(d: Deployment) -> str:
    """Devices without their vendor: `4 x H100 SXM5 80 GB`."""
    h = d.hardware
    title = h.title.removeprefix(f"{h.vendor} ") if h.vendor else h.title
    return f"{d.devices} x {title}" if d.devices > 1 else title


def brief(d: Deployment) -> str:
    """For a title: without form factor and memory size, `H100`."""
    name = re.sub(r" [0-9]+ GB$", "", short(d))
    form = d.hardware.form_factor
    return name.removesuffix(f" {form}") if form else name


def names_of(deployments: Sequence[Deployment]) -> list[str]:
    """Names that differ: two of the same device are told apart by the engine or a number."""
    names = [short(d) for d in deployments]
    if len(set(names)) < len(names):
        names = [f"{n}, {d.engine.title}" for n, d in zip(names, deployments, strict=True)]
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[i] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def asked(d: Deployment, several: bool = False, **parts: str) -> str:
    """What a chart is about, in one line; a part replaces `batch`, `input` or `output`."""
    moe = any(isinstance(g.ffn, Moe) for g in d.model.layers)
    weights, kv = d.weight_format("experts" if moe else "ffn").name, d.kv_format.name
    formats = weights if weights == kv else f"{weights} weights, {kv} KV"
    where = "" if several else f" on {short(d)}"
    words = [f"{d.model.title or d.model.name}{where}", *parts.values(), formats, d.engine.title]
    return ", ".join(w for w in words if w)


def tokens(w: Workload) -> str:
    """`1,024 tokens in, 256 out`."""
    return f"{w.input:,.0f} tokens in, {w.output:,.0f} out"


def tick_time(value: float) -> str:
    """A tick of a logarithmic time axis, never in minutes: `30 ms`, `1,000 s`."""
    if value >= 600:
        return f"{value:,.0f} s"
    return format_time(value).replace(".00", "").replace(".0 ", " ")


def times(ratio: float, what: str, same: str) -> str:
    """`1.7x` what, or `same` where there is nothing in it."""
    return same if ratio < 1.05 else f"{format_number(ratio, 2)}x {what}"


def rounded(value: float) -> str:
    """Three significant digits: `26,700`, `0.123`."""
    return format_number(float(f"{value:.3g}"))


def grouped(data: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[str, ...], pd.DataFrame]]:
    """Rows by the text in some columns, in the order in which they come."""
    for key, rows in data.groupby(list(columns), sort=False):
        yield tuple(map(str, key if isinstance(key, tuple) else (key,))), rows


def count(value: float) -> str:
    """Tokens in words: 8k for 8192, else the digits."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value / 1024:,.0f}k"
    return f"{value:,.0f}"


def listed(deployments: Deployment | Sequence[Deployment], most: int) -> list[Deployment]:
    """One or several deployments as a list; more than `most` can't be told apart."""
    found = [deployments] if isinstance(deployments, Deployment) else list(deployments)
    if not 1 <= len(found) <= most:
        raise InputError(f"{len(found)} devices in one chart: it takes 1 to {most}")
    return found


def renderer_of(figure: Figure) -> Any:
    """What measures text of a figure."""
    canvas: Any = figure.canvas
    return (canvas if hasattr(canvas, "get_renderer") else FigureCanvasAgg(figure)).get_renderer()


def _wrapped(figure: Figure, text: str, size: float, weight: str, width: float) -> list[str]:
    probe = figure.text(0, 0, "", fontsize=size, fontweight=weight)
    renderer = renderer_of(figure)
    probe.set_text(text)
    if probe.get_window_extent(renderer).width <= width * figure.dpi:
        probe.remove()
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        probe.set_text(longer)
        if lines and probe.get_window_extent(renderer).width <= width * figure.dpi:
            lines[-1] = longer
        else:
            lines.append(word)
    probe.remove()
    return lines


def frame(theme: Theme, title: str, subtitle: str, key: Sequence[tuple[Any, str]] = (),
          columns: int = 1, height: float = HEIGHT,
          ratios: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """Figure with its message, what was asked, the key, and empty axes side by side."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=theme.background,
                    layout="constrained")
    FigureCanvasAgg(figure)
    figure.set_label(title)
    room, y = WIDTH - 2 * _MARGIN, height - _MARGIN
    for text, size, weight, color, step in (
            (title, TITLE, "bold", theme.foreground, 0.215),
            (subtitle, TEXT, "normal", theme.muted, _LINE)):
        for line in _wrapped(figure, text, size, weight, room):
            figure.text(_MARGIN / WIDTH, y / height, line, fontsize=size, fontweight=weight,
                        color=color, va="top", ha="left", parse_math=False)
            y -= step
        y -= 0.02
    if key:
        y = _key(figure, theme, key, y, height)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(rect=(0, 0, 1, (y - 0.04) / height), w_pad=0.09, h_pad=0.07)  # type: ignore[call-arg]
    axes = figure.subplots(1, columns, squeeze=False, width_ratios=ratios)[0]
    for each in axes:
        dress(each, theme)
    return figure, list(axes)


def _key(figure: Figure, theme: Theme, key: Sequence[tuple[Any, str]], y: float,
         height: float) -> float:
    """Rows of marks and words below the subtitle, as many a row as there is room for."""
    left = list(key)
    while left:
        for taken in range(len(left), 0, -1):
            legend = figure.legend(
                [h for h, _ in left[:taken]], [w for _, w in left[:taken]], loc="upper left",
                bbox_to_anchor=((_MARGIN - 0.04) / WIDTH, y / height), ncols=taken, frameon=False,
                borderpad=0.0, borderaxespad=0.35, handlelength=1.5, handletextpad=0.5,
                columnspacing=1.3, labelcolor=theme.muted, fontsize=TEXT)
            legend.set_in_layout(False)
            box = legend.get_window_extent(renderer_of(figure))
            if box.x1 <= figure.bbox.x1 - _MARGIN * figure.dpi or taken == 1:
                break
            legend.remove()
        left, y = left[taken:], y - box.height / figure.dpi - 0.03
    return y - 0.04


def dress(axes: Axes, theme: Theme) -> None:
    """Quiet axes: two spines, a light grid, text in the theme's colours."""
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(theme.muted)
    axes.tick_params(which="both", colors=theme.muted, labelcolor=theme.muted)
    axes.grid(True, which="major", color=theme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(theme.foreground)


def composed(build: Callable[[bool], tuple[Figure, bool]]) -> Figure:
    """The chart with its series named at their lines, or all in the key where one has no room."""
    figure, named = build(False)
    return figure if named else build(True)[0]


def settle(figure: Figure) -> None:
    """Fix ticks and layout, so that labels placed now stay where they are."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            edge = 1e-9 * max(abs(low), abs(high))
            ticks = [t for t in axis.get_majorticklocs() if low - edge <= t <= high + edge]
            if not isinstance(axis.get_major_formatter(), FixedFormatter):
                axis.set_major_locator(FixedLocator(ticks))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def check_path(path: str) -> Path:
    """The file a chart may be written to; its suffix says the format."""
    target = Path(path)
    suffix = target.suffix.lower().removeprefix(".")
    if target.is_dir():
        raise InputError(f"-o: '{path}' is a folder; name a file, for example "
                         f"'{target / 'chart.png'}'")
    if suffix not in SUFFIXES:
        raise InputError(f"-o: '{path}' ends in '.{suffix}', no picture format"
                         f"{nearest(suffix, SUFFIXES)}" if suffix else
                         f"-o: '{path}' has no suffix (valid: {', '.join(SUFFIXES)})")
    if not target.parent.is_dir():
        raise InputError(f"-o: folder '{target.parent}' does not exist")
    return target


def _fewer_colours(png: bytes) -> bytes:
    """The same picture with a palette: a third of the size, and no difference to see."""
    from PIL import Image

    picture = Image.open(io.BytesIO(png))
    small = picture.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT,
                                            dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    small.save(buffer, "png", compress_level=9, dpi=(DPI, DPI))
    return min(buffer.getvalue(), png, key=len)


def save(figure: Figure, path: str, transparent: bool = False) -> int:
    """Write a chart whole or not at all; the number of bytes."""
    target = check_path(path)
    suffix = target.suffix.lower().removeprefix(".")
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(
        suffix, {"Software": "tokline"})
    buffer = io.BytesIO()
    with mpl.rc_context(_rc()):
        figure.savefig(buffer, format=suffix, dpi="figure", transparent=transparent,
                       metadata=metadata,
                       facecolor="none" if transparent else figure.get_facecolor())
    content = buffer.getvalue()
    if suffix == "png" and not transparent:
        content = _fewer_colours(content)
    try:
        target.write_bytes(content)
    except OSError as error:
        raise InputError(f"-o: '{path}' can't be written: {error.strerror}") from None
    return len(content)
