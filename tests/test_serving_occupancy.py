"""What runs, waits and fills the memory over time; throughput of full, idle and overloaded runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_serving_laws import ROOMY, Flat, one_at_a_time, poisson
from test_serving_reference import ToySurface, settings_of_a_run, setup_of

from simulator import Deployment, queueing
from simulator.serving.metrics import Slo, load_over, occupancy, rates
from simulator.serving.policy import KvMemory, Policy
from simulator.serving.requests import requests_of
from simulator.serving.run import Setup, serve
from simulator.serving.simulate import simulate

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@settings(max_examples=60, deadline=None, phases=PHASES)
@given(settings_of_a_run)
def test_little(x: dict[str, Any]) -> None:
    """Nothing of 40 requests is cut: sequences that run and wait are the sum of all E2E times."""
    setup, r = setup_of(x)
    run = serve(setup, r, x["replicas"], x["routing"], x["users"])
    found = occupancy(run)
    time = float(run.finish.max() - run.arrival.min()) * x["replicas"]
    assert (found["running_mean"] + found["waiting_mean"]) * time == pytest.approx(
        np.sum(run.finish - run.arrival), rel=1e-9)
    assert found["running_mean"] > 0.0
    assert found["waiting_mean"] * time >= np.sum(run.admitted - run.arrival) - 1e-6
    assert 0.0 < found["kv_mean"] <= found["kv_max"] + 1e-9 <= 1.0 + 2e-9
    # The same by time: means of the steps of a fine enough grid.
    times = np.linspace(run.arrival.min(), run.finish.max(), 20_001)
    running, waiting, kv = load_over(run, times)
    for name, values in (("running_mean", running), ("waiting_mean", waiting)):
        assert values.mean() / x["replicas"] == pytest.approx(found[name], rel=0.02, abs=0.05)
    assert kv[:-1].mean() == pytest.approx(found["kv_mean"], rel=1e-6)
    assert running.min() >= 0.0


@pytest.mark.parametrize("load", [0.2, 0.36, 0.8])
def test_one_at_a_time(load: float) -> None:
    """M/D/1: rho requests are in service, lambda W wait, and rho of the time a prompt's blocks."""
    D = 0.1
    run = serve(Setup(Flat(D, 0.0), one_at_a_time(), KvMemory(100, 16)),
                poisson(100_000, load / D, prompt=64))
    found = occupancy(run)
    assert found["running_mean"] == pytest.approx(load, rel=0.02)
    assert found["waiting_mean"] == pytest.approx(load / D * queueing.md1_wait(load / D, D),
                                                  rel=0.05)
    assert found["kv_mean"] == pytest.approx(load * 4 / 100, rel=0.02)
    assert found["kv_max"] == pytest.approx(4 / 100)


@pytest.mark.parametrize("scheduler", ["chunked", "prefill-first", "static"])
def test_blocks_of_one_sequence(scheduler: str) -> None:
    """A prompt of 4 blocks for 1 s, then 160 steps of 0.01 s into 10 blocks more."""
    policy = Policy(scheduler, 4, 8192, reserves=scheduler == "static")  # type: ignore[arg-type]
    run = serve(Setup(Flat(1.0, 0.0, 0.01), policy, KvMemory(20, 16)),
                requests_of(np.zeros(1), np.array([64]), np.array([161])))
    # Steps 1 to 16 hold 5 blocks, 17 to 32 hold 6, ... 145 to 160 hold 14.
    grown = (1.0 * 4 + 0.16 * sum(range(5, 15))) / 2.6
    assert occupancy(run) == pytest.approx({
        "kv_mean": (14.0 if policy.reserves else grown) / 20, "kv_max": 14 / 20,
        "running_mean": 1.0, "waiting_mean": 0.0}, rel=1e-9)


@pytest.mark.parametrize(("users", "n"), [(1, 100), (4, 100), (32, 200), (32, 2000)])
def test_a_closed_loop_holds_its_users(users: int, n: int) -> None:
    setup = Setup(ToySurface(1), Policy("chunked", 16, 512), ROOMY, request_time=0.01)
    rng = np.random.default_rng(0)
    run = serve(setup, requests_of(np.zeros(n), np.full(n, 64), rng.integers(20, 60, n)),
                concurrency=users)
    found = occupancy(run)
    assert found["running_mean"] + found["waiting_mean"] == pytest.approx(users, rel=1e-9)
    # One user never waits; of 32 users 16 have no place, less the 0.01 s that each is on its way.
    assert users > 1 or found["waiting_mean"] == 0.0
    assert users < 32 or found["waiting_mean"] == pytest.approx(16.0, rel=0.1)


def test_one_user_is_answered_once_in_his_time() -> None:
    """A request takes 1 s + 4 x 0.25 s + 0.5 s outside the steps: 0.4 a second, without a fence."""
    setup = Setup(Flat(1.0, 0.0, 0.25), one_at_a_time(), ROOMY, request_time=0.5)
    run = serve(setup, requests_of(np.zeros(100), np.full(100, 16), np.full(100, 5)),
                concurrency=1)
    found = rates(run, Slo())
    assert found["requests_per_s"] == pytest.approx(0.4, rel=1e-12)
    assert found["output_tokens_per_s"] == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("rate", [3.0, 20.0, 1e6, math.inf])
def test_throughput_of_an_overload(rate: float) -> None:
    """A server of 0.5 s a request serves 2 a second, however fast they come."""
    r = requests_of(np.arange(1000) / rate, np.full(1000, 16), np.ones(1000, dtype=np.int64))
    run = serve(Setup(Flat(0.5, 0.0), one_at_a_time(), ROOMY), r)
    found = rates(run, Slo())
    assert found["requests_per_s"] == pytest.approx(2.0, rel=1e-6)
    assert occupancy(run)["running_mean"] == pytest.approx(1.0)


@settings(max_examples=8, deadline=None, phases=PHASES)
@given(st.integers(0, 100), st.sampled_from([4.0, 12.0, 60.0]), st.sampled_from([300, 5600]))
def test_ranges_hold_their_expectation(seed: int, rate: float, n: int) -> None:
    """low <= expected <= high of throughput and every percentile, of few and many requests."""
    d = Deployment.of("llama-3.1-8b", "h100")
    rng = np.random.default_rng(seed)
    r = requests_of(np.cumsum(rng.exponential(1.0 / rate, n)), rng.integers(1, 2000, n),
                    rng.integers(1, 100, n))
    x = simulate(d, r).summary()
    ends = x["output_tokens_per_s_range"]
    assert ends["low"] <= x["output_tokens_per_s"] <= ends["high"]
    assert x["stable"] or rate == 60.0
    for name in ("ttft_s", "queue_s", "tpot_s", "itl_s", "e2e_s") if x["stable"] else ():
        for share in ("mean", "p50", "p99"):
            low, high = x[name]["low"], x[name]["high"]
            assert low is None or low[share] <= x[name][share]
            assert high is None or high[share] >= x[name][share]
