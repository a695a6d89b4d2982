"""Queues in closed form against their papers and against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from simulator import queueing as q


def test_md1_is_half_the_wait_of_mm1() -> None:
    """An exponential service has E[s^2] = 2 D^2, so it waits twice as long as a constant one."""
    assert q.md1_wait(5.0, 0.1) == pytest.approx(0.05)
    assert q.mg1_wait(5.0, 0.1, 2 * 0.01) == pytest.approx(2 * float(q.md1_wait(5.0, 0.1)))


def test_md1_against_a_simulation() -> None:
    """Lindley's recursion over a million arrivals."""
    rng = np.random.default_rng(1)
    gaps = rng.exponential(1 / 7.0, 400_000)
    wait, total = 0.0, 0.0
    for gap in gaps:
        wait = max(0.0, wait + 0.1 - gap)
        total += wait
    assert total / len(gaps) == pytest.approx(float(q.md1_wait(7.0, 0.1)), rel=0.03)


@pytest.mark.parametrize("rate", [0.5, 2.0, 5.0, 9.0])
def test_distserve_formulas(rate: float) -> None:
    """2401.09670 section 3: one instance, two stages, two-way tensor parallel."""
    D, k = 0.1, 1.5
    assert q.md1_ttft(rate, D) == pytest.approx(D + rate * D**2 / (2 * (1 - rate * D)))
    assert q.md1_ttft_pipeline(rate, D) == pytest.approx(
        D + rate * D**2 / (4 * (2 - rate * D)))
    assert q.md1_ttft_tensor(rate, D, k) == pytest.approx(
        D / k + rate * D**2 / (2 * k * (k - rate * D)))


def test_tensor_parallel_wins_at_low_rate_and_the_pipeline_at_high() -> None:
    D, k = 0.1, 1.5
    turn = q.tensor_pipeline_crossover(D, k)
    assert 0 < turn < k / D
    for rate, tensor in ((0.9 * turn, True), (1.1 * turn, False)):
        assert (q.md1_ttft_tensor(rate, D, k) < q.md1_ttft_pipeline(rate, D)) == tensor
    # The larger the speed-up, the later the pipeline wins.
    assert q.tensor_pipeline_crossover(D, 1.9) > turn


@pytest.mark.parametrize(("rate", "simulated", "bound"), [
    (5, 0.0444, 0.0444), (20, 0.0604, 0.0633), (50, 0.1056, 0.1067), (80, 0.264, 0.264),
    (90, 0.514, 0.526)])
def test_batch_service_rows(rate: float, simulated: float, bound: float) -> None:
    """Inoue 2021 at a = 10 ms, t0 = 30 ms: the bound, and that it is one (to their rounding)."""
    found = float(q.batch_service_latency(float(rate), 0.030, 0.010))
    assert found == pytest.approx(bound, rel=2.5e-3)
    assert found >= simulated * (1 - 1e-3)


def test_saturated_queues_never_end() -> None:
    assert q.md1_wait(10.0, 0.1) == np.inf
    assert q.md1_ttft(11.0, 0.1) == np.inf
    assert q.batch_service_latency(100.0, 0.03, 0.01) == np.inf
    assert q.resident_batch(10.0, 100.0, 0.01, 0.001) == np.inf
    assert q.interfered(0.01, 1.0) == np.inf
    assert list(q.md1_wait(np.array([0.0, 5.0, 20.0]), 0.1)) == [
        0.0, pytest.approx(0.05), np.inf]


def test_limits_at_rest() -> None:
    assert q.md1_ttft(0.0, 0.1) == 0.1
    assert q.interfered(0.01, 0.0) == 0.01
    assert q.resident_batch(0.0, 100.0, 0.01, 0.001) == 0.0


def test_resident_batch_is_a_fixed_point() -> None:
    """Little: b = lambda G tau(b); the largest rate holds exactly the most."""
    rate, G, t0, t1 = 2.0, 200.0, 0.01, 0.0001
    b = float(q.resident_batch(rate, G, t0, t1))
    assert b == pytest.approx(rate * G * (t0 + t1 * b))
    top = float(q.largest_rate(G, t0, t1, 64.0))
    assert float(q.resident_batch(top, G, t0, t1)) == pytest.approx(64.0)
