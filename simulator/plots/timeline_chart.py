"""A run over time: sequences that run and wait, KV memory, and when first tokens came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from simulator.plots.style import (
    Plot,
    asked,
    brief,
    finished,
    frame,
    settle,
    styled,
    theme_of,
    tick_time,
)
from simulator.serving.metrics import inside, load_over
from simulator.serving.simulate import Served
from simulator.units import format_number, format_time

_POINTS = 600


def _samples(s: Served) -> pd.DataFrame:
    """Load of all replicas together at evenly spaced times."""
    times = np.linspace(float(s.arrival.min()), float(s.finish.max()), _POINTS)
    running, waiting, kv = load_over(s.run, times)
    return pd.DataFrame({"time_s": times, "running": running, "waiting": waiting,
                         "kv_share": kv})


def _first_tokens(s: Served) -> pd.DataFrame:
    """Median and 99th percentile of TTFT [s] by time of arrival, in up to 40 equal slices."""
    t, ttft = s.arrival, s.first_token - s.arrival
    slices = int(np.clip(len(t) // 25, 1, 40))
    edges = np.linspace(t.min(), t.max(), slices + 1)
    place = np.clip(np.searchsorted(edges, t, "right") - 1, 0, slices - 1)
    rows = [(0.5 * (edges[i] + edges[i + 1]), *np.quantile(ttft[place == i], [0.5, 0.99]))
            for i in range(slices) if np.any(place == i)]
    return pd.DataFrame(rows, columns=["time_s", "ttft_p50_s", "ttft_p99_s"])


def _message(s: Served) -> str:
    if not s.stable:
        return f"{brief(s.deployment)} does not keep up: the queue grows"
    ttft = (s.first_token - s.arrival)[inside(s.run)]
    users = (f"{s.run.concurrency:,} users" if s.run.concurrency is not None else
             "all at once" if s.run.requests.duration == 0.0 else
             f"{format_number(s.offered_rate)} requests/s")
    return (f"{users}: 99 % of first tokens within "
            f"{format_time(float(np.quantile(ttft, 0.99)))}")


@styled
def timeline(s: Served, *, theme: str = "light", title: str | None = None) -> Plot:
    """What runs and waits, how full the KV memory is, and TTFT by arrival, over time."""
    look = theme_of(theme)
    load, first = _samples(s), _first_tokens(s)
    blue, red, green = look.chips[:3]
    key: list[tuple[Any, str]] = [
        (Patch(color=blue, alpha=0.35), "running"), (Patch(color=red, alpha=0.6), "waiting"),
        (Line2D([], [], color=green), "share of KV blocks in use"),
        (Line2D([], [], color=look.foreground), "TTFT p50"),
        (Line2D([], [], color=look.foreground, linestyle=(0, (4, 2))), "TTFT p99")]
    if s.slo.ttft is not None:
        key.append((Line2D([], [], color=red), f"target {format_time(s.slo.ttft)}"))
    if np.isfinite(s.run.window[0]):
        key.append((Line2D([], [], color=look.muted, linewidth=0.8, linestyle=(0, (1, 3))),
                    "what counts"))
    replicas = f"{s.replicas} replicas" if s.replicas > 1 else ""
    figure, axes = frame(look, title or _message(s),
                         asked(s.deployment, replicas=replicas, scheduler=s.policy.scheduler),
                         key, columns=2)
    left, right = axes
    left.fill_between(load["time_s"], 0, load["running"], color=blue, alpha=0.35, linewidth=0,
                      step="post")
    left.fill_between(load["time_s"], load["running"], load["running"] + load["waiting"],
                      color=red, alpha=0.6, linewidth=0, step="post")
    left.set_ylabel("sequences")
    left.set_ylim(0, None)
    share = left.twinx()
    share.plot(load["time_s"], 100.0 * load["kv_share"], color=green, linewidth=1.2)
    share.set_ylim(0, 105)
    share.set_ylabel("KV blocks in use (%)", color=look.foreground)
    share.tick_params(colors=look.muted, labelcolor=look.muted)
    for side in share.spines.values():
        side.set_visible(False)
    right.plot(first["time_s"], first["ttft_p50_s"], color=look.foreground, linewidth=1.4)
    right.plot(first["time_s"], first["ttft_p99_s"], color=look.foreground, linewidth=1.2,
               linestyle=(0, (4, 2)))
    right.set_yscale("log")
    right.set_ylabel("TTFT, queue included")
    low, high = first["ttft_p50_s"].min(), first["ttft_p99_s"].max()
    right.set_ylim(low / 1.6, max(high, s.slo.ttft or 0.0) * 1.6)
    right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    right.yaxis.set_major_formatter(lambda value, _: tick_time(value))
    right.yaxis.set_minor_formatter(lambda value, _: "")
    if s.slo.ttft is not None:
        right.axhline(s.slo.ttft, color=red, linewidth=1.2)
    for each in axes:
        each.set_xlabel("time (s)")
        if np.isfinite(s.run.window[0]):
            for edge in s.run.window:
                each.axvline(edge, color=look.muted, linewidth=0.8, linestyle=(0, (1, 3)))
    settle(figure)
    return finished(figure, load.merge(first, how="outer", on="time_s"))


__all__ = ["timeline"]
