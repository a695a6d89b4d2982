"""Arrivals: their mean, their burstiness, their seed, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.serving.arrivals import Arrivals, constant_gaps, gamma_gaps, parse_arrivals


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    gaps = gamma_gaps(200_000, 4.0, cv, np.random.default_rng(1))
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.02)


def test_poisson_counts_have_the_variance_of_their_mean() -> None:
    times = Arrivals().times(100_000, 10.0, np.random.default_rng(2))
    counts = np.bincount(times.astype(np.int64))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.05)


def test_constant_gaps_are_equal() -> None:
    assert np.array_equal(constant_gaps(3, 4.0), [0.25, 0.25, 0.25])
    assert np.allclose(Arrivals("constant", 0.0).times(4, 2.0, np.random.default_rng(0)),
                       [0.5, 1.0, 1.5, 2.0])


@given(st.sampled_from(["poisson", "gamma:0.5", "gamma:3", "constant"]),
       st.floats(1e-3, 1e5), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_times_ascend_and_repeat_with_the_seed(text: str, rate: float, n: int, seed: int) -> None:
    arrivals = parse_arrivals(text)
    times = arrivals.times(n, rate, np.random.default_rng(seed))
    assert len(times) == n
    assert np.all(np.diff(times) >= 0.0)
    assert np.array_equal(times, arrivals.times(n, rate, np.random.default_rng(seed)))


@given(st.floats(1e-2, 1e3), st.floats(1.1, 100.0))
def test_rate_only_stretches_the_times(rate: float, factor: float) -> None:
    one, other = (Arrivals("gamma", 2.0).times(50, r, np.random.default_rng(3))
                  for r in (rate, rate * factor))
    assert np.allclose(one, other * factor, rtol=1e-9)


def test_no_requests_are_no_times() -> None:
    assert len(Arrivals().times(0, 1.0, np.random.default_rng(0))) == 0


@pytest.mark.parametrize(("text", "word"), [
    ("poison", "did you mean 'poisson'"), ("gamma", "gamma:2"), ("gamma:x", "gamma:2"),
    ("gamma:0", "between 0.01"), ("gamma:nan", "between 0.01"), ("poisson:3", "takes no number"),
    ("", "unknown arrivals")])
def test_bad_arrivals_are_named(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        parse_arrivals(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e10])
def test_bad_rates_are_refused(rate: float) -> None:
    with pytest.raises(InputError, match="requests/s"):
        Arrivals().times(3, rate, np.random.default_rng(0))


def test_a_negative_or_huge_number_of_requests_is_refused() -> None:
    for n in (-1, 10**9):
        with pytest.raises(InputError, match="is not between 0 and"):
            Arrivals().times(n, 1.0, np.random.default_rng(0))
