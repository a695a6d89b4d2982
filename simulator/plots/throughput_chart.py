"""Tokens a second, and dollars a million of them, against the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

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
    asked,
    brief,
    count,
    finished,
    frame,
    listed,
    names_of,
    settle,
    styled,
    theme_of,
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
    if e.usd_per_million_tokens is None:
        raise InputError(f"hardware '{e.deployment.hardware.name}': the spec has no price, so it "
                         "has no cost; add for example 'price: 2.79 USD/h'")
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
        return (f"{format_number(last / first, 2)}x the tokens from batch "
                f"{count(float(whole[0].x[0]))} to {count(batch)}{full}")
    ranked = sorted(whole, key=lambda c: -_last(c)[1])
    ratio = _last(ranked[0])[1] / _last(ranked[-1])[1]
    return f"{ranked[0].brief}: up to {format_number(ratio, 2)}x the tokens of {ranked[-1].brief}"


@styled
def throughput(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
               batches: Sequence[float] = (), theme: str = "light",
               title: str | None = None) -> Plot:
    """Output tokens a second of the whole deployment against the batch, one to six devices."""
    look, w = theme_of(theme), workload or Workload()
    w = Workload(1, w.input, w.output) if np.ndim(w.batch) == 0 else w
    curves, data = _curves(deployments, w, "output_tokens_per_s", batches, look.chips)
    chips = listed(deployments, 6)
    figure, (axes,) = frame(look, title or _throughput_message(curves),
                            asked(chips[0], len(chips) > 1, tokens=tokens(w)),
                            key(look, not data["fits"].all()))
    draw(axes, curves, markers=len(batches) > 0)
    batch_axis(axes, curves[0].x, "batch, concurrent sequences")
    log_y(axes, "output tokens/s, whole deployment", curves)
    settle(figure)
    name_curves(axes, look, curves, full="full at batch {}")
    return finished(figure, data)


@styled
def cost(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
         batches: Sequence[float] = (), theme: str = "light", title: str | None = None) -> Plot:
    """Dollars per million output tokens, prefill included, at the specs' dated prices."""
    look, w = theme_of(theme), workload or Workload()
    w = Workload(1, w.input, w.output) if np.ndim(w.batch) == 0 else w
    curves, data = _curves(deployments, w, "usd_per_million_output_tokens", batches, look.chips)
    chips = listed(deployments, 6)
    whole = [c for c in curves if c.whole]
    message = "It does not fit at any batch"
    if whole:
        best = min(whole, key=lambda c: _last(c)[1])
        batch, last, first = _last(best)
        message = (f"Batch {count(batch)} costs {format_number(last, 2)} USD a million tokens, "
                   f"batch 1 {format_number(first, 2)}")
        message = message if len(curves) == 1 else f"{best.brief} is cheapest when full: " \
            f"{format_number(last, 2)} USD a million"
    figure, (axes,) = frame(look, title or message,
                            asked(chips[0], len(chips) > 1, tokens=tokens(w)),
                            key(look, not data["fits"].all()))
    draw(axes, curves, markers=len(batches) > 0)
    batch_axis(axes, curves[0].x, "batch, concurrent sequences")
    log_y(axes, "USD per million output tokens", curves)
    settle(figure)
    name_curves(axes, look, curves, full="full at batch {}")
    return finished(figure, data)
