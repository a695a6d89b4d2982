"""Continuous batching in closed form, against numbers worked out by hand and its own limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.serving.closed_loop import (
    burst_of,
    in_flight,
    queue_wait,
    saturated_request_rate,
    shared_prefills,
    time_per_output_token,
    time_to_first_token,
)

times = st.floats(1e-5, 10.0)
counts = st.floats(1.0, 4096.0)
shares = st.floats(0.0, 1.0)


def test_by_hand() -> None:
    """10 ms steps, prompts of 40 ms, 8 sequences, 100 tokens each, half of a prefill in the way."""
    assert in_flight(12, 8) == 8
    assert in_flight(5, 8) == 5
    assert in_flight(5, 0) == 1                     # what doesn't fit is served all the same
    assert shared_prefills(3000.0, 8192.0, 8.0) == 2
    assert shared_prefills(10_000.0, 8192.0, 8.0) == 1
    assert shared_prefills(10.0, 8192.0, 8.0) == 8  # not more than there are
    # 10 ms + 0.5 x 7 x 40 ms / 100
    assert time_per_output_token(0.01, 0.04, 8, 100, 0.5) == pytest.approx(0.0114)
    # 2 ms + 40 ms + 1.5 x 10 ms + 0.1 x 7 x 40 ms
    assert time_to_first_token(0.002, 0.04, 0.01, 8, 1.5, 0.1) == pytest.approx(0.085)
    # 12 users, 8 places: half a request of 2 s
    assert queue_wait(12, 8, 2.0) == pytest.approx(1.0)
    # 8 / (0.5 x 8 x 40 ms + 100 x 10 ms)
    assert saturated_request_rate(8, 100, 0.04, 0.01, 0.5) == pytest.approx(8 / 1.16)


def test_one_user() -> None:
    """Nobody interferes, nobody waits."""
    assert time_per_output_token(0.01, 5.0, 1, 100, 1.0) == 0.01
    assert time_to_first_token(0.0, 0.04, 0.01, 1, 0.0, 1.0) == 0.04
    assert queue_wait(1, 1, 9.0) == 0.0
    assert queue_wait(3, 8, 9.0) == 0.0


def test_without_interference_a_full_batch_only_steps() -> None:
    assert time_per_output_token(0.01, 5.0, 64, 100, 0.0) == 0.01
    assert saturated_request_rate(64, 100, 5.0, 0.01, 0.0) == pytest.approx(64.0)


@given(B=counts, n=counts, prefill=times, step=times, k=shares)
def test_rate_times_cycle_is_the_batch(B: float, n: float, prefill: float, step: float,
                                       k: float) -> None:
    """Little's law: a place is held for n steps and the prefills of one whole batch."""
    rate = saturated_request_rate(B, n, prefill, step, k)
    cycle = k * B * prefill + n * step
    assert rate * cycle == pytest.approx(B, rel=1e-9)


@given(B=counts, n=counts, prefill=times, step=times, k=shares)
def test_a_token_costs_what_the_rate_says(B: float, n: float, prefill: float, step: float,
                                          k: float) -> None:
    """One's own prefill and n tokens of the closed loop fill one turn of a place."""
    token = time_per_output_token(step, prefill, B, n, k)
    assert n * token + k * prefill == pytest.approx(
        B / saturated_request_rate(B, n, prefill, step, k), rel=1e-9)


@given(B=counts, n=counts, prefill=times, step=times, k=shares, more=st.floats(1.0, 4.0))
def test_laws(B: float, n: float, prefill: float, step: float, k: float, more: float) -> None:
    """Each cost grows with what causes it, and never falls below a step or a prefill."""
    token = time_per_output_token(step, prefill, B, n, k)
    slack = 1 + 1e-9
    assert token >= step
    assert time_per_output_token(step, prefill, B * more, n, k) * slack >= token
    assert time_per_output_token(step, prefill * more, B, n, k) * slack >= token
    assert time_per_output_token(step, prefill, B, n * more, k) <= token * slack
    assert time_per_output_token(step * more, prefill, B, n, k) * slack >= token
    first = time_to_first_token(0.001, prefill, step, B, 1.0, k)
    assert first >= prefill
    assert time_to_first_token(0.001, prefill, step, B * more, 1.0, k) * slack >= first
    rate = saturated_request_rate(B, n, prefill, step, k)
    assert saturated_request_rate(B * more, n, prefill, step, k) * slack >= rate
    assert saturated_request_rate(B, n, prefill * more, step, k) <= rate * slack
    if k * prefill > 1e-3:                          # a prefill in the way bounds the rate
        assert rate <= slack / (k * prefill)


@given(N=counts, B=counts, request=times, more=st.floats(1.0, 4.0))
def test_waiting(N: float, B: float, request: float, more: float) -> None:
    """Users beyond the places wait, more of them longer; in the batch is never more than asked."""
    wait = queue_wait(N, B, request)
    assert wait >= 0
    assert (wait == 0) == (N <= B)
    assert queue_wait(N * more, B, request) >= wait
    assert 1 <= in_flight(N, B) <= max(N, 1)
    assert in_flight(N, B) <= max(B, 1)


@given(tokens=st.floats(1.0, 1e6), budget=st.floats(1.0, 1e6), B=counts)
def test_shared_prefills_keep_the_budget(tokens: float, budget: float, B: float) -> None:
    side = shared_prefills(tokens, budget, B)
    assert 1 <= side <= B
    assert side == 1 or side * tokens <= budget * (1 + 1e-9)


def test_vector_is_scalar() -> None:
    rng = np.random.default_rng(0)
    a, b, c, d, e, f = rng.uniform(1.0, 50.0, (6, 20))
    for function, args in (
            (in_flight, (a, b)), (shared_prefills, (a, 40 * b, c)), (queue_wait, (a, b, c)),
            (time_per_output_token, (a, b, c, d, e)), (saturated_request_rate, (a, b, c, d, e)),
            (time_to_first_token, (a, b, c, d, e, f))):
        whole = np.asarray(function(*args))
        assert whole.shape == (20,)
        for i in range(20):
            assert whole[i] == function(*(x[i] for x in args))


def test_a_benchmark_of_many_rounds_forgets_its_start() -> None:
    # All at once and only once: each waits for half of the others on the average.
    assert burst_of(1.0) == 0.5
    assert burst_of(10.0) == 0.05
    assert list(burst_of(np.array([1.0, 4.0]))) == [0.5, 0.125]
