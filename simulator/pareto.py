"""The Pareto front: the rows that no other row beats in every objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Rows compared with the front at once where there are three objectives or more.
_BATCH = 2048


def pareto_mask(columns: Sequence[Any], larger_is_better: Sequence[bool]) -> Any:
    """True for each row that no other dominates: at least as good in all, better in one.

    Equal rows are all kept. A row with a NaN is never on the front.
    """
    costs = np.stack([-np.asarray(c, dtype=float) if larger else np.asarray(c, dtype=float)
                      for c, larger in zip(columns, larger_is_better, strict=True)], axis=1)
    found = np.zeros(len(costs), dtype=bool)
    rows = np.flatnonzero(~np.isnan(costs).any(axis=1))
    if len(rows) == 0:
        return found
    if costs.shape[1] == 1:
        found[rows] = costs[rows, 0] == costs[rows, 0].min()
        return found
    kept = _front_of_two(costs[rows]) if costs.shape[1] == 2 else _front(costs[rows])
    found[rows[kept]] = True
    return found


def _front_of_two(costs: Any) -> Any:
    """Rows on the front of two costs: sorted by the first, the second must fall."""
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    x, y = costs[order, 0], costs[order, 1]
    # Within equal x only the least y can be on the front, and it stands first.
    first = np.concatenate([[True], x[1:] != x[:-1]])
    least = y[np.maximum.accumulate(np.where(first, np.arange(len(x)), 0))]
    before = np.minimum.accumulate(y)
    earlier = np.concatenate([[np.inf], before[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(len(x)), 0))
    return order[(y == least) & ((y < earlier[start]) | (start == 0))]


def _front(costs: Any) -> Any:
    """Rows on the front of any number of costs.

    Sorted by the sum, no row is dominated by a later one, so each batch is compared with the front
    so far and with itself.
    """
    order = np.lexsort((*costs.T, costs.sum(axis=1)))
    front = np.empty((0, costs.shape[1]))
    kept = [np.empty(0, dtype=np.intp)]
    for start in range(0, len(order), _BATCH):
        batch = order[start:start + _BATCH]
        batch = batch[~_dominated(costs[batch], front)]
        batch = batch[~_dominated(costs[batch], costs[batch])]
        front = np.concatenate([front, costs[batch]])
        kept.append(batch)
    return np.concatenate(kept)


def _dominated(rows: Any, by: Any) -> Any:
    result = np.zeros(len(rows), dtype=bool)
    for start in range(0, len(by), _BATCH):
        other = by[start:start + _BATCH]
        no_worse = np.ones((len(rows), len(other)), dtype=bool)
        better = np.zeros((len(rows), len(other)), dtype=bool)
        for k in range(rows.shape[1]):
            no_worse &= other[None, :, k] <= rows[:, k, None]
            better |= other[None, :, k] < rows[:, k, None]
        result |= (no_worse & better).any(axis=1)
    return result
