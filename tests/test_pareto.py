"""The Pareto front against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simulator.pareto import pareto_mask


def by_definition(costs: np.ndarray) -> np.ndarray:
    known = ~np.isnan(costs).any(axis=1)
    found = []
    for i, row in enumerate(costs):
        beaten = any(known[j] and np.all(costs[j] <= row) and np.any(costs[j] < row)
                     for j in range(len(costs)))
        found.append(bool(known[i]) and not beaten)
    return np.array(found, dtype=bool)


@pytest.mark.parametrize("objectives", [1, 2, 3, 4])
@given(data=st.data())
def test_definition(objectives: int, data: st.DataObject) -> None:
    value = st.sampled_from([0.0, 1.0, 2.0, 3.0, 1e300, np.nan, -1.0])
    costs = data.draw(arrays(float, st.tuples(st.integers(0, 12), st.just(objectives)),
                             elements=value))
    got = pareto_mask(list(costs.T), [False] * objectives)
    np.testing.assert_array_equal(got, by_definition(costs))


def test_larger_is_better() -> None:
    got = pareto_mask([np.array([1, 2, 3]), np.array([3, 2, 2])], [True, True])
    assert got.tolist() == [True, False, True]


def test_many_rows_of_three_objectives() -> None:
    costs = np.random.default_rng(0).random((6000, 3))
    got = pareto_mask(list(costs.T), [False] * 3)
    rows = np.flatnonzero(got)
    assert 10 < len(rows) < 1000
    for row in rows[:50]:
        assert not np.any(np.all(costs <= costs[row], axis=1) & np.any(costs < costs[row], axis=1))


def test_no_rows() -> None:
    assert pareto_mask([np.array([]), np.array([])], [True, False]).tolist() == []
