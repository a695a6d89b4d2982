"""What a plan chose from: every option by cost and latency, and the front of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simulator.errors import InputError
from simulator.plots.style import Plot, finished, frame, halo, settle, styled, theme_of, tick_time

if TYPE_CHECKING:
    from simulator.planning.search import Option


@styled
def plan(options: Sequence[Option], front: Sequence[Option], best: Option, output: float,
         subtitle: str, *, theme: str = "light", title: str | None = None) -> Plot:
    """USD/h against latency (TTFT p99 + `output` x TPOT p99); the plan is marked."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    look = theme_of(theme)
    shown = [o for o in options if o.replicas > 0 and np.isfinite(o.usd_per_hour)
             and np.isfinite(o.latency(output))]
    if not shown:
        raise InputError("-o: no option has a price, so there is no cost to draw")
    order = list(dict.fromkeys(o.candidate.offer.hardware.name for o in [best, *front, *shown]))
    named = order[:len(look.chips)]
    colors = {name: look.chips[i] if i < len(named) else look.muted
              for i, name in enumerate(order)}
    key = [(Line2D([], [], color=colors[n], marker="o", linestyle="", markersize=5), n)
           for n in named]
    if len(order) > len(named):
        key.append((Line2D([], [], color=look.muted, marker="o", linestyle="", markersize=5),
                    f"{len(order) - len(named)} others"))
    message = title or (f"{best.devices} x {best.candidate.offer.hardware.name} is the cheapest of "
                        f"{len(shown)} that meet the targets")
    figure, (axes,) = frame(look, message, subtitle, key)
    axes.scatter([o.usd_per_hour for o in shown], [o.latency(output) for o in shown], s=14,
                 c=[colors[o.candidate.offer.hardware.name] for o in shown], alpha=0.55,
                 linewidths=0)
    ordered = sorted(front, key=lambda o: o.usd_per_hour)
    axes.plot([o.usd_per_hour for o in ordered], [o.latency(output) for o in ordered],
              color=look.foreground, linewidth=1.1, drawstyle="steps-post")
    at = best.usd_per_hour, best.latency(output)
    axes.scatter(*at, s=110, facecolors="none", edgecolors=look.foreground, linewidths=1.6)
    axes.annotate("the plan", at, xytext=(9, 6), textcoords="offset points",
                  color=look.foreground, path_effects=halo(look))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("USD an hour, all replicas")
    axes.set_ylabel("TTFT + answer x TPOT, p99")
    for axis, form in ((axes.xaxis, lambda v, _: f"{v:,.0f}" if v >= 1.0 else f"{v:g}"),
                       (axes.yaxis, lambda v, _: tick_time(v))):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(form))
        axis.set_minor_formatter(NullFormatter())
    settle(figure)
    data = pd.DataFrame({
        "hardware": [o.candidate.offer.hardware.name for o in shown],
        "devices": [o.devices for o in shown],
        "usd_per_hour": [o.usd_per_hour for o in shown],
        "latency_s": [o.latency(output) for o in shown],
        "on_front": [any(o is f for f in front) for o in shown]})
    return finished(figure, data)
