"""A traffic as a planner sees it: the lengths by their quantiles, and what of them a queue needs.

Formulas ask for means over requests of functions of a length. A few quantiles with weights, dense
where the 99th percentile is decided, stand for the distribution, so that one array operation gives
the mean for all candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Array
from simulator.serving.requests import Counts

Floats = NDArray[np.float64]

# Edges of the quantile ranges whose middles stand for them.
_EDGES = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.86, 0.91, 0.95, 0.97, 0.98, 0.985,
                   0.99, 0.995, 1.0])


def quantile_nodes(lengths: Counts) -> tuple[Floats, Floats]:
    """(values, weights) that stand for a distribution; one value where all lengths are equal."""
    values = np.quantile(lengths, (_EDGES[1:] + _EDGES[:-1]) / 2.0)
    found, place = np.unique(values, return_inverse=True)
    weights = np.bincount(place, weights=np.diff(_EDGES)).astype(np.float64)
    scale = float(np.mean(lengths)) / float(found @ weights)
    return found * scale, weights


def mean_context(prompt: Array, output: Array) -> tuple[float, float]:
    """E[o (s + o/2)] / E[o] and E[o ((s + o/2)^2 + o^2/12)] / E[o]: first and second moment of the
    context [tokens] of a decoding sequence at a random moment.
    """
    steps = np.sum(output)
    middle = prompt + output / 2.0
    first = np.sum(output * middle) / steps
    second = np.sum(output * (np.square(middle) + np.square(output) / 12.0)) / steps
    return float(first), float(second)


@dataclass(frozen=True)
class Load:
    """Lengths [tokens] of a traffic; the rate stands apart.

    prompts, prompt_weights    quantiles of the prompt; outputs, output_weights: of the answer
    context, context_square    moments of the context of a sequence that decodes
    longest                    largest prompt + answer
    burstiness                 variance over mean of the number of arrivals in a long time; 1 for
                               Poisson arrivals
    shared_prefix              first tokens of every prompt that are in the prefix cache
    """

    prompts: Floats
    prompt_weights: Floats
    outputs: Floats
    output_weights: Floats
    mean_prompt: float
    mean_output: float
    context: float
    context_square: float
    longest: int
    burstiness: float = 1.0
    shared_prefix: int = 0

    @classmethod
    def of(cls, prompt: Counts, output: Counts, burstiness: float = 1.0,
           shared_prefix: int = 0) -> Load:
        """The load of requests of these lengths."""
        s, o = np.asarray(prompt, dtype=np.float64), np.asarray(output, dtype=np.float64)
        context, square = mean_context(s, o)
        return cls(*quantile_nodes(prompt), *quantile_nodes(output), float(s.mean()),
                   float(o.mean()), context, square, int((s + o).max()), burstiness, shared_prefix)


def burstiness_of(arrival: Floats, window: float) -> float:
    """Variance over mean of the arrivals in windows of `window` [s]; at least 1 without enough."""
    if len(arrival) < 100 or arrival[-1] - arrival[0] < 10.0 * window:
        return 1.0
    edges = np.arange(arrival[0], arrival[-1], window)
    counts = np.histogram(arrival, edges)[0]
    return max(float(counts.var() / max(counts.mean(), 1e-12)), 1e-3)
