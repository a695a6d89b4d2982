"""Tokens a second, and dollars a million of them, against the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Picture

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
    short,
    styled,
    theme_of,
    times,
    tokens,
)
from simulator.request import Estimate, Figure
from simulator.units import format_number


def _curves(deployments: Deployment | Sequence[Deployment], w: Workload, quantity: str,
            batches: Sequence[float], colors: tuple[str, ...]) -> tuple[list[Curve], pd.DataFrame]:
    scalar(w)
    chips = listed(deployments, 6)
    x = batch_grid(chips, w, batches)
    asked_for = Workload(x, w.input, w.output)
    curves, frames = [], []
    for d, name, color in zip(chips, names_of(chips), colors, strict=False):
        e, fits = run(d, asked_for)
        y = spread(_figure(e, quantity), x.shape)
        curves.append(Curve(name, brief(d), color, x, y, fits))
        frames.append(frame_rows(d, name, asked_for, fits, {quantity: y}))
    return curves, pd.concat(frames, ignore_index=True)


def _figure(e: Estimate, quantity: str) -> Figure:
    if quantity == "output_tokens_per_s":
        if float(e.workload.output) <= 1:
            raise InputError("output: there is no decode step with one output token; ask for 2 or "
                             "more")
        return e.output_tokens_per_s
    assert e.usd_per_million_tokens is not None     # devices without a price are left out
    return e.usd_per_million_tokens


def _last(c: Curve) -> tuple[float, float, float]:
    """Largest batch that fits, the quantity there, and at the smallest batch."""
    index = np.nonzero(c.fits)[0]
    y = np.asarray(c.y.expected)
    return float(c.x[index[-1]]), float(y[index[-1]]), float(y[0])


def _throughput_message(curves: Sequence[Curve]) -> str:
    whole = [c for c in curves if c.whole]
    if not whole:
        return "It does not fit at any batch"
    if len(whole) == 1:
        batch, last, first = _last(whole[0])
        full = "" if np.all(whole[0].fits) else ", where memory is full"
        return (f"{times(last / first, 'the tokens in total', 'About the same tokens in total')} "
                f"from batch "
                f"{count(float(whole[0].x[0]))} to {count(batch)}{full}")
    ranked = sorted(whole, key=lambda c: -_last(c)[1])
    ratio = _last(ranked[0])[1] / _last(ranked[-1])[1]
    if ratio < 1.05:
        return f"{ranked[0].brief}: in total about as fast as {ranked[-1].brief}"
    return (f"{ranked[0].brief}: in total up to {format_number(ratio, 2)}x the tokens of "
            f"{ranked[-1].brief}")


@styled
def throughput(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
               batches: Sequence[float] = (), theme: str = "light",
               title: str | None = None) -> Plot:
    """Output tokens a second of the whole deployment against the batch, one to six devices."""
    look, w = theme_of(theme), workload or Workload()
    w = Workload(1, w.input, w.output) if np.ndim(w.batch) == 0 else w
    chips = listed(deployments, 6)
    curves, data = _curves(chips, w, "output_tokens_per_s", batches, look.chips)
    return _drawn(look, title or _throughput_message(curves),
                  asked(chips[0], len(chips) > 1, tokens=tokens(w)), curves, data,
                  "output tokens/s, whole deployment", len(batches) > 0)


def _drawn(look: Theme, title: str, subtitle: str, curves: Sequence[Curve], data: pd.DataFrame,
           label: str, markers: bool) -> Plot:
    """One panel over the batch."""

    def build(keyed: bool) -> tuple[Picture, bool]:
        figure, (axes,) = frame(look, title, subtitle,
                                key(look, not data["fits"].all(), curves if keyed else ()))
        draw(axes, curves, markers=markers)
        batch_axis(axes, curves[0].x, "batch, concurrent sequences")
        log_y(axes, label, curves)
        settle(figure)
        return figure, name_curves(axes, look, curves, names=not keyed,
                                   full="full at batch {}")[1]

    return finished(composed(build), data)


@styled
def cost(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
         batches: Sequence[float] = (), theme: str = "light", title: str | None = None) -> Plot:
    """Dollars per million output tokens, prefill included, at the specs' dated prices.

    Devices without a price are left out and named, in `data.attrs["left_out"]` too.
    """
    look, w = theme_of(theme), workload or Workload()
    w = Workload(1, w.input, w.output) if np.ndim(w.batch) == 0 else w
    every = listed(deployments, 6)
    chips = [d for d in every if d.hardware.price is not None]
    unpriced = list(dict.fromkeys(short(d) for d in every if d.hardware.price is None))
    if not chips:
        raise InputError(f"hardware '{every[0].hardware.name}': the spec has no price, so it "
                         "has no cost; give --price, or add for example 'price: 2.79 USD/h'")
    curves, data = _curves(chips, w, "usd_per_million_output_tokens", batches, look.chips)
    whole = [c for c in curves if c.whole]
    message = "It does not fit at any batch"
    if whole:
        best = min(whole, key=lambda c: _last(c)[1])
        batch, last, first = _last(best)
        message = (f"Batch {count(batch)}: {format_number(last, 2)} USD a million tokens in total, "
                   f"batch 1 {format_number(first, 2)}")
        message = message if len(curves) == 1 else f"{best.brief} is cheapest when full: " \
            f"{format_number(last, 2)} USD a million tokens in total"
    subtitle = asked(chips[0], len(chips) > 1, tokens=tokens(w))
    if unpriced:
        subtitle += f". Not drawn, no price: {', '.join(unpriced)}"
    plot = _drawn(look, title or message, subtitle, curves, data,
                  "USD per million output tokens, all devices", len(batches) > 0)
    plot.data.attrs["left_out"] = unpriced
    return plot
