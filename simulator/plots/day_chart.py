"""Replicas over a day: what the traffic needs, what start-up adds, and what the peak would cost."""

from __future__ import annotations

import numpy as np
import pandas as pd

from simulator.plots.style import Plot, finished, frame, settle, styled, theme_of
from simulator.units import format_number, format_time

_TICKS = np.arange(0, 25, 3)


@styled
def day(d: object, subtitle: str, *, theme: str = "light", title: str | None = None) -> Plot:
    """Requests a second above replicas, both over 24 hours; `d` a `planning.day.Day`."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    from simulator.planning.day import STEP, Day

    assert isinstance(d, Day)
    look = theme_of(theme)
    traffic, least, early = look.chips[:3]
    hours = np.arange(len(d.rates) + 1) * STEP / 3600.0
    spared = 1.0 - d.hours(d.scheduled) / d.hours(d.fixed)
    message = title or (f"{d.fixed} replicas at the peak; following the traffic saves "
                        f"{spared:.0%} of the replica-hours")
    key = [(Line2D([], [], color=traffic, linewidth=2.0), "requests/s"),
           (Patch(facecolor=least, alpha=0.35), "replicas needed"),
           (Line2D([], [], color=early, linewidth=1.8),
            f"running, started {format_time(d.delay)} ahead"),
           (Line2D([], [], color=look.foreground, linewidth=1.0, linestyle=(0, (5, 3))),
            "the peak's, all day")]
    figure, axes = frame(look, message, subtitle, key, columns=2)
    rate, replicas = axes
    rate.plot(hours[:-1] + STEP / 7200.0, d.rates, color=traffic, linewidth=2.0)
    rate.set_ylim(0.0, float(d.rates.max()) * 1.12)
    rate.set_ylabel("requests/s")
    mean = float(d.rates.mean())
    rate.axhline(mean, color=look.muted, linewidth=1.0, linestyle=(0, (2, 2)))
    rate.text(0.2, mean, f"mean {format_number(mean)}", color=look.muted, va="bottom", fontsize=8)
    need, scheduled = (np.append(v, v[-1]) for v in (d.need, d.scheduled))
    replicas.fill_between(hours, need, step="post", color=least, alpha=0.35, linewidth=0.0)
    replicas.step(hours, scheduled, where="post", color=early, linewidth=1.8)
    replicas.axhline(d.fixed, color=look.foreground, linewidth=1.0, linestyle=(0, (5, 3)))
    replicas.set_ylim(0.0, d.fixed * 1.12 + 0.2)
    replicas.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    replicas.set_ylabel("replicas")
    for each in axes:
        each.set_xlim(0.0, 24.0)
        each.set_xticks(_TICKS, [f"{h}" for h in _TICKS])
        each.set_xlabel("hour of the day")
    settle(figure)
    data = pd.DataFrame({"hour": hours[:-1], "rate_per_s": d.rates, "replicas_needed": d.need,
                         "replicas_running": d.scheduled, "replicas_reactive": d.late})
    return finished(figure, data)
