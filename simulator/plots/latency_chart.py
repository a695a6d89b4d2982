"""Time to the first token and time of each further one, against the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.plots.curves import (
    Curve,
    batch_axis,
    batch_grid,
    draw,
    frame_rows,
    key,
    log_y,
    name_curves,
    run,
    scalar,
    spread,
)
from simulator.plots.style import (
    Plot,
    Theme,
    asked,
    brief,
    composed,
    count,
    finished,
    frame,
    listed,
    names_of,
    settle,
    styled,
    theme_of,
    tick_time,
    tokens,
)
from simulator.units import format_number, format_time


def _ratio(c: Curve) -> float:
    index, y = np.nonzero(c.fits)[0], np.asarray(c.y.expected)
    return float(y[index[-1]] / y[index[0]])


def _message(first: Sequence[Curve], step: Sequence[Curve]) -> str:
    pairs = [(a, b) for a, b in zip(first, step, strict=True) if a.whole]
    if not pairs:
        return "It does not fit at any batch"
    a, b = pairs[0]
    batch = count(float(a.x[np.nonzero(a.fits)[0][-1]]))
    who = f"{a.brief}, batch" if len(first) > 1 else "Batch"
    return (f"{who} {count(float(a.x[0]))} to {batch}: a step takes "
            f"{format_number(_ratio(b), 2)}x, the first token {format_number(_ratio(a), 2)}x")


@styled
def latency(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
            batches: Sequence[float] = (), slo_tpot: float | None = None, theme: str = "light",
            title: str | None = None) -> Plot:
    """TTFT (no queue) beside TPOT against the batch; `slo_tpot` [s] draws the target."""
    look, w, chips = theme_of(theme), workload or Workload(), listed(deployments, 6)
    w = Workload(1, w.input, w.output) if np.ndim(w.batch) else w
    scalar(w)
    if float(w.output) <= 1:
        raise InputError("output: there is no decode step with one output token; ask for 2 or more")
    x = batch_grid(chips, w, batches)
    asked_for = Workload(x, w.input, w.output)
    panels: tuple[list[Curve], list[Curve]] = ([], [])
    frames = []
    for d, name, color in zip(chips, names_of(chips), look.chips, strict=False):
        e, fits = run(d, asked_for)
        times = {"ttft_s": spread(e.ttft, x.shape), "tpot_s": spread(e.tpot, x.shape)}
        for curves, y in zip(panels, times.values(), strict=True):
            curves.append(Curve(name, brief(d), color, x, y, fits))
        frames.append(frame_rows(d, name, asked_for, fits, times))
    data = pd.concat(frames, ignore_index=True)

    def build(keyed: bool) -> tuple[Figure, bool]:
        return _build(look, title or _message(*panels),
                      asked(chips[0], len(chips) > 1, tokens=tokens(w)),
                      key(look, not data["fits"].all(), panels[0] if keyed else ()), panels,
                      len(batches) > 0, slo_tpot, not keyed)

    return finished(composed(build), data)


def _build(look: Theme, title: str, subtitle: str, entries: Sequence[tuple[Any, str]],
           panels: tuple[list[Curve], list[Curve]], markers: bool, slo_tpot: float | None,
           names: bool) -> tuple[Figure, bool]:
    """Both panels; False where a curve got no name."""
    figure, axes = frame(look, title, subtitle, entries, columns=2)
    for each, curves, label in zip(axes, panels, (
            "time to first token, no queue", "time per output token (TPOT)"), strict=True):
        draw(each, curves, markers=markers)
        batch_axis(each, curves[0].x, "batch", ticks=6)
        log_y(each, label, curves, form=tick_time)
    if slo_tpot is not None:
        low, high = axes[1].get_ylim()
        axes[1].set_ylim(min(low, slo_tpot / 1.3), max(high, slo_tpot * 1.3))
        axes[1].axhline(slo_tpot, color=look.foreground, linewidth=1.2, linestyle=(0, (6, 2, 1, 2)),
                        gid="slo")
    settle(figure)
    named = True
    for i, (each, curves) in enumerate(zip(axes, panels, strict=True)):
        put, all_named = name_curves(each, look, curves, prefer=0.3, names=names)
        named &= all_named
        if i == 1 and slo_tpot is not None:
            line = np.geomspace(each.get_xlim()[0], each.get_xlim()[1], 50)
            put.along(f"target {format_time(slo_tpot).replace('.0 ', ' ')}", line,
                      np.full(50, slo_tpot), look.foreground, prefer=0.05, must=True)
    return figure, named
