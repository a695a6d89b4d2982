"""Speed for a user against the context: what the growing KV cache takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.plots.curves import (
    Curve,
    batch_axis,
    context_grid,
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
    composed,
    count,
    finished,
    frame,
    listed,
    names_of,
    settle,
    styled,
    theme_of,
)


def _message(curves: Sequence[Curve]) -> str:
    whole = [c for c in curves if c.whole]
    if not whole:
        return "It does not fit at any context"
    kept = []
    for c in whole:
        last, y = int(np.nonzero(c.fits)[0][-1]), np.asarray(c.y.expected)
        kept.append((c, float(c.x[last]), float(y[last] / y[0])))
    c, x, share = min(kept, key=lambda k: k[2])
    who = "a user" if len(whole) == 1 else c.brief
    if share > 0.995:
        return f"The context takes no speed from {who}, up to {_about(x)} tokens"
    speed = "the speed" if len(whole) == 1 else "a user's speed"
    return (f"At {_about(x)} tokens of context {who} keeps {share:.0%} of {speed} at "
            f"{_about(float(c.x[0]))}")


def _about(x: float) -> str:
    return f"{x / 1024:.0f}k" if x >= 2048 else count(x)


@styled
def context(deployments: Deployment | Sequence[Deployment], workload: Workload | None = None, *,
            contexts: Sequence[float] = (), theme: str = "light",
            title: str | None = None) -> Plot:
    """Tokens a second for each user against the prompt length, at the workload's batch."""
    look, w, chips = theme_of(theme), workload or Workload(), listed(deployments, 6)
    w = Workload(w.batch, 1024, w.output) if np.ndim(w.input) else w
    scalar(w)
    if float(w.output) <= 1:
        raise InputError("output: there is no decode step with one output token; ask for 2 or more")
    x = context_grid(chips, w, contexts)
    asked_for = Workload(w.batch, x, w.output)
    curves, frames = [], []
    for d, name, color in zip(chips, names_of(chips), look.chips, strict=False):
        e, fits = run(d, asked_for)
        rates = {"tokens_per_s_per_user": spread(e.tokens_per_s_per_user, x.shape),
                 "output_tokens_per_s": spread(e.output_tokens_per_s, x.shape)}
        curves.append(Curve(name, brief(d), color, x, rates["tokens_per_s_per_user"], fits))
        frames.append(frame_rows(d, name, asked_for, fits, rates))
    data = pd.concat(frames, ignore_index=True)
    subtitle = asked(chips[0], len(chips) > 1, batch=f"batch {w.batch:,.0f}",
                     tokens=f"{w.output:,.0f} tokens out")

    def build(keyed: bool) -> tuple[Figure, bool]:
        figure, (axes,) = frame(look, title or _message(curves), subtitle,
                                key(look, not data["fits"].all(), curves if keyed else ()))
        draw(axes, curves, markers=len(contexts) > 0)
        batch_axis(axes, x, "context at the start of decode, tokens")
        log_y(axes, "tokens/s for each user", curves)
        settle(figure)
        return figure, name_curves(axes, look, curves, names=not keyed, full="memory full",
                                   prefer=0.2)[1]

    return finished(composed(build), data)
