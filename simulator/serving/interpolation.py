"""Lines and planes between points that were computed once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator.arrays import Array


class Grid(NamedTuple):
    """Attention of chunks: new tokens, cached ones; what prompts have together and what each adds
    [s] of each pair; the cells that no line crosses."""

    new: list[float]
    cached: list[float]
    base: list[list[float]]
    each: list[list[float]]
    jumps: list[list[bool]]


def bilinear(values: list[list[float]], i: int, j: int, u: float, v: float) -> float:
    """Between four points, u and v the shares of the way."""
    low, high = values[i - 1], values[i]
    return ((1.0 - u) * ((1.0 - v) * low[j - 1] + v * low[j])
            + u * ((1.0 - v) * high[j - 1] + v * high[j]))


def lines(xs: Array, ys: Array) -> tuple[Array, Array]:
    """Intercept and slope of the lines through neighbouring points, along the last axis."""
    slope = np.diff(ys) / np.diff(xs)
    return ys[..., :-1] - slope * xs[..., :-1], slope


def knots_of(xs: Array, ys: Array, tolerance: float) -> list[int]:
    """Fewest points, taken greedily, whose lines miss no row of `ys` by more than `tolerance`."""
    found, last = [0], len(xs) - 1

    def holds(i: int, j: int) -> bool:
        share = (xs[i:j + 1] - xs[i]) / (xs[j] - xs[i])
        line = ys[:, i:i + 1] + (ys[:, j:j + 1] - ys[:, i:i + 1]) * share
        return bool(np.all(np.abs(line - ys[:, i:j + 1]) <= tolerance * ys[:, i:j + 1]))

    while found[-1] < last:
        i = found[-1]
        j = i + 1
        while j < last and holds(i, j + 1):
            j += 1
        found.append(j)
    return found


__all__ = ["Grid", "bilinear", "knots_of", "lines"]
