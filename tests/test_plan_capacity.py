"""What a replica carries, in closed form: identities, limits, and laws of the tails."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from simulator.planning.capacity import (
    TAIL,
    Replicas,
    busy_share,
    gamma_tail,
    largest_rate,
    normal_tail,
    percentiles,
    steady,
    tpot_tail,
    ttft_tail,
)
from simulator.planning.load import Load, burstiness_of, mean_context, quantile_nodes
from simulator.queueing import mg1_wait

BATCHES = np.exp2(np.arange(12, dtype=np.float64))
MIXED = Load.of(64 + 10 * np.arange(200), 16 + 37 * np.arange(200) % 500)


def replicas(prompt: int = 512, output: int = 128, places: float = 256.0, room: float = 200.0,
             n: int = 3, load: Load | None = None, passes: float = 0.0,
             again: float = 0.0) -> Replicas:
    """Made-up replicas: steps of 10 ms + 0.1 ms a sequence, prompts of 50 us a token; each next
    one 20 % slower.
    """
    found = load or Load.of(np.array([prompt]), np.array([output]))
    slow = 1.2 ** np.arange(n)[:, None]
    return Replicas(
        batches=BATCHES, steps=slow * (0.010 + 1e-4 * BATCHES),
        prefill=slow * (0.01 + 5e-5 * found.prompts), marginal=slow * (5e-5 * found.prompts),
        passes=np.full(n, passes), again=np.full(n, again),
        tokens=found.prompts, budget=np.full(n, 8192.0), places=np.full(n, places),
        room=np.full(n, room), fixed=np.zeros(n), load=found)


def test_normal_tail_is_that_of_the_error_function() -> None:
    z = np.linspace(-5.0, 5.0, 101)
    exact = np.array([0.5 * math.erfc(x / math.sqrt(2.0)) for x in z])
    assert np.allclose(normal_tail(z), exact, atol=2e-7)
    assert float(normal_tail(1.0)) == normal_tail(np.array([1.0]))[0]


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.0, 30.0])
def test_gamma_tail_is_near_the_exact_one(shape: float) -> None:
    x = np.linspace(0.1, 5.0, 40) * shape
    exact = stats.gamma.sf(x, shape)
    assert np.allclose(gamma_tail(x, shape, shape), exact, atol=0.02)


def test_gamma_tail_without_variance_is_a_step() -> None:
    assert float(gamma_tail(0.9, 1.0, 0.0)) > 0.999
    assert float(gamma_tail(1.1, 1.0, 0.0)) < 0.001


def erlang_c(servers: int, offered: float) -> float:
    """Exact probability of waiting, by the recursion of Erlang B."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1.0 - offered / servers * (1.0 - blocked))


@pytest.mark.parametrize(("servers", "offered"), [(50, 40.0), (100, 90.0), (256, 240.0)])
def test_busy_share_is_near_erlang_c(servers: int, offered: float) -> None:
    assert float(busy_share(servers, offered, 1.0)) == pytest.approx(
        erlang_c(servers, offered), abs=0.05)


def test_batch_inverts_the_rate_of_the_steps() -> None:
    r = replicas()
    for b in (1.0, 3.7, 40.0, 200.0, 1500.0):
        batch = np.full(3, b)
        assert np.allclose(r.batch(batch / r.step(batch)), batch, rtol=1e-9)


def test_littles_law_holds_in_the_steady_state() -> None:
    r = replicas()
    s = steady(r, 0.6 * r.saturation)
    free = 1.0 - s.rate * r.mean_marginal
    assert np.allclose(s.rate * 128.0 / free, s.batch / s.step, rtol=1e-9)


def test_saturation_by_hand() -> None:
    # 200 places: a step takes 10 + 20 = 30 ms and yields 200 tokens, so 128 tokens take 19.2 ms;
    # a prompt adds 25.6 ms: 1 / 44.8 ms = 22.3 requests/s.
    r = replicas(n=1)
    assert r.saturation[0] == pytest.approx(1.0 / (0.0256 + 128.0 * 0.030 / 200.0), rel=1e-2)
    assert steady(r, np.array([11.0])).utilisation[0] == pytest.approx(11.0 / r.saturation[0])


def test_no_room_carries_nothing() -> None:
    r = replicas(room=0.5)
    assert np.all(r.saturation == 0.0)
    assert np.all(largest_rate(r, 10.0, 10.0) == 0.0)


def test_a_prompts_wait_is_that_of_one_server() -> None:
    r = replicas(n=1)
    s = steady(r, np.array([8.0]))
    service = r.marginal[0, 0] + s.step[0] * 512.0 / 8192.0
    mean = float(mg1_wait(8.0, service, service**2))
    others = 1.0 - 512.0 / 8192.0     # room in a step for prompts behind it
    assert float(s.queue_load[0] * s.wait[0]) == pytest.approx(mean * (1.0 + others), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.01, 0.95), st.floats(0.01, 0.95), st.floats(0.02, 5.0), st.floats(1.01, 3.0))
def test_tails_fall_with_the_target_and_rise_with_the_rate(
        a: float, b: float, target: float, factor: float) -> None:
    r = replicas(load=MIXED)
    low, high = sorted((a, b))
    for tail in (ttft_tail, tpot_tail):
        at = [tail(r, steady(r, x * r.saturation), np.full(3, t))
              for x in (low, high) for t in (target, target * factor)]
        assert np.all((at[0] >= 0.0) & (at[0] <= 1.0 + 1e-12))
        assert np.all(at[1] <= at[0] + 1e-9)
        if tail is ttft_tail:
            assert np.all(at[2] >= at[0] - 1e-9)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.1, 3.0), st.floats(0.012, 0.2), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_looser_targets_never_carry_less(ttft: float, tpot: float, x: float, y: float) -> None:
    r = replicas(load=MIXED)
    tight, loose = largest_rate(r, ttft, tpot), largest_rate(r, ttft * x, tpot * y)
    assert np.all(loose >= tight * (1.0 - 1e-4) - 1e-9)
    assert np.all(tight <= r.saturation)
    assert np.all(largest_rate(r, ttft, tpot, 0.85) <= 0.85 * r.saturation)


def test_the_percentile_is_where_the_tail_is_one_percent() -> None:
    r = replicas(load=MIXED)
    s = steady(r, 0.7 * r.saturation)
    for p99, tail in zip(percentiles(r, s), (ttft_tail, tpot_tail), strict=True):
        assert np.all(tail(r, s, p99 * 1.001) <= TAIL)
        assert np.all(tail(r, s, p99 * 0.98) >= TAIL)


@pytest.mark.parametrize("over", [1.0, 1.01, 5.0])
def test_an_unstable_replica_has_no_percentile(over: float) -> None:
    r = replicas()
    s = steady(r, over * r.saturation)
    assert not s.stable.any()
    assert all(np.isnan(p).all() for p in percentiles(r, s))
    assert np.all(ttft_tail(r, s, np.full(3, 1e3)) == 1.0)


def test_one_token_answers_have_no_tpot() -> None:
    r = replicas(output=1)
    assert np.all(tpot_tail(r, steady(r, 0.5 * r.saturation), np.full(3, 1e-9)) == 0.0)


def test_a_replica_alone_is_one_of_many() -> None:
    r = replicas()
    one = r.take(np.array([1]))
    rate = np.array([7.0])
    assert steady(one, rate).batch[0] == steady(r, np.full(3, 7.0)).batch[1]
    assert largest_rate(one, 0.5, 0.05)[0] == largest_rate(r, 0.5, 0.05)[1]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=300))
def test_quantiles_keep_the_mean(lengths: list[int]) -> None:
    values, weights = quantile_nodes(np.array(lengths))
    assert weights.sum() == pytest.approx(1.0)
    assert values @ weights == pytest.approx(np.mean(lengths))


def test_mean_context_counts_every_step() -> None:
    prompts, outputs = [10, 300], [40, 7]
    every = [s + i + 0.5 for s, o in zip(prompts, outputs, strict=True) for i in range(o)]
    first, second = mean_context(np.array(prompts), np.array(outputs))
    assert first == pytest.approx(np.mean(every))
    assert second == pytest.approx(np.mean(np.square(every)), rel=1e-3)


def test_burstiness_is_one_for_poisson_and_more_for_bursts() -> None:
    rng = np.random.default_rng(1)
    plain = np.cumsum(rng.exponential(0.1, 50_000))
    bursts = np.sort(np.repeat(np.cumsum(rng.exponential(1.0, 5_000)), 10))
    assert burstiness_of(plain, 10.0) == pytest.approx(1.0, abs=0.15)
    assert burstiness_of(bursts, 10.0) == pytest.approx(10.0, rel=0.2)
    assert burstiness_of(plain[:50], 10.0) == 1.0


def test_a_full_machine_with_passes_of_prompts_by_hand() -> None:
    # 200 places, 128 tokens: 200/128 places are free after a step, so that a pass of 20 ms fixed
    # time follows with 1 - exp(-1.5625) = 0.790 and is shared by 1.5625: 10.1 ms a prompt more.
    r = replicas(n=1, passes=0.020)
    usual = 1.0 / replicas(n=1).saturation[0]
    assert 1.0 / r.saturation[0] - usual == pytest.approx(0.020 * 0.7904 / 1.5625, rel=1e-3)
    assert 1.0 / replicas(n=1, again=0.5).saturation[0] - usual == pytest.approx(0.0128)


def test_a_lone_prompt_pays_its_whole_pass_and_many_share_it() -> None:
    r = replicas(n=1, passes=0.020)
    tau = np.array([0.02])
    assert r.pass_share(np.array([1e-6]), tau)[0] == pytest.approx(0.020, rel=1e-3)
    shares = [r.pass_share(np.array([rate]), tau)[0] for rate in (1.0, 5.0, 10.0, 20.0)]
    assert shares == sorted(shares, reverse=True)
    assert np.all(replicas().pass_share(np.full(3, 9.0), np.full(3, 0.02)) == 0.0)


def test_the_variance_of_stalls_is_that_of_a_delay_cycle() -> None:
    """A request with n steps of decode work: L = n tau + sum of M over Poisson arrivals in L."""
    rng = np.random.default_rng(3)
    work, rate, M, n = 1.0, 3.0, 0.2, 40_000
    total = np.full(n, work)
    fresh = total.copy()
    while fresh.max() > 0.0:            # arrivals in what came last add more
        fresh = M * rng.poisson(rate * fresh)
        total += fresh
    free = 1.0 - rate * M
    assert total.mean() == pytest.approx(work / free, rel=0.02)
    assert total.var() == pytest.approx(rate * M**2 * work / free**3, rel=0.05)


@pytest.mark.parametrize("passes", [0.0, 0.01])
def test_heavier_prompts_widen_the_tail_of_tpot(passes: float) -> None:
    light, heavy = (replicas(prompt=p, n=1, passes=passes) for p in (256, 2048))
    rate = np.array([0.8 * heavy.saturation[0]])
    one, other = (percentiles(r, steady(r, rate))[1][0] for r in (light, heavy))
    assert other > 1.5 * one
