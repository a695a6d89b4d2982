"""Laws that any queue obeys, and queues whose answer is known in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_serving_reference import ToySurface, settings_of_a_run, setup_of

from simulator import Deployment, Workload, estimate, queueing
from simulator.disaggregation import exposed_transfer, pool_link, pools
from simulator.serving import closed_loop
from simulator.serving.metrics import Slo, keeps_up, latencies, queue_growth, rates
from simulator.serving.paged_blocks import blocks_at, blocks_of, steps_within
from simulator.serving.policy import KvMemory, Policy
from simulator.serving.pools import KvLink, arrivals_of_caches
from simulator.serving.requests import Requests, requests_of
from simulator.serving.run import Setup, serve
from simulator.serving.simulate import DecodePool, largest_rate, simulate
from simulator.serving.surface import Row

ROOMY = KvMemory(1_000_000, 16)

# Shrinking a failing run takes longer than reading it.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


class Flat:
    """A prompt takes t0 + a for each of a pass, a decode step d however many share it."""

    def __init__(self, fixed: float, each: float, step: float = 0.0) -> None:
        self.fixed, self.each, self.step = fixed, each, step

    def row(self, B: int) -> Row:
        return Row([], [self.step], [0.0], [0.0], [0.0])

    def mixed(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        return self.fixed + self.each * len(prompts)


def poisson(n: int, rate: float, seed: int = 0, output: Any = 1, prompt: int = 16) -> Requests:
    rng = np.random.default_rng(seed)
    return requests_of(np.cumsum(rng.exponential(1.0 / rate, n)), np.full(n, prompt),
                       np.broadcast_to(output, n))


def one_at_a_time(scheduler: str = "prefill-first") -> Policy:
    return Policy(scheduler, 1, 8192)    # type: ignore[arg-type]


def mean_wait(setup: Setup, r: Requests) -> float:
    run = serve(setup, r)
    return float(np.mean(run.admitted - run.arrival))


# --- closed forms -----------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.2, 0.7])
def test_md1(load: float) -> None:
    """Batch limit 1, constant service: M/D/1, and DistServe's TTFT of a prefill instance."""
    D = 0.1
    r = poisson(100_000, load / D)
    run = serve(Setup(Flat(D, 0.0), one_at_a_time(), ROOMY), r)
    assert np.mean(run.admitted - run.arrival) == pytest.approx(
        queueing.md1_wait(load / D, D), rel=0.03)
    assert np.mean(run.first - run.arrival) == pytest.approx(
        queueing.md1_ttft(load / D, D), rel=0.03)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_mg1(load: float) -> None:
    """Batch limit 1, random outputs: M/G/1 with the prefill and the steps as service."""
    rng = np.random.default_rng(1)
    output = rng.integers(1, 40, 60_000)
    service = 0.05 + 0.01 * (output - 1)
    rate = load / service.mean()
    found = mean_wait(Setup(Flat(0.05, 0.0, 0.01), one_at_a_time(), ROOMY),
                      poisson(60_000, rate, 2, output))
    assert found == pytest.approx(
        queueing.mg1_wait(rate, service.mean(), np.mean(service**2)), rel=0.05)


@pytest.mark.parametrize("speed_up", [1.4, 1.8])
def test_distserve_tensor_parallel(speed_up: float) -> None:
    """Eq. 3: two-way tensor parallel is M/D/1 with a prefill k times as fast."""
    D, rate = 0.1, 8.0
    run = serve(Setup(Flat(D / speed_up, 0.0), one_at_a_time(), ROOMY), poisson(150_000, rate, 3))
    assert np.mean(run.first - run.arrival) == pytest.approx(
        queueing.md1_ttft_tensor(rate, D, speed_up), rel=0.04)


@pytest.mark.parametrize("rate", [5.0, 20.0, 50.0, 80.0])
def test_inoue(rate: float) -> None:
    """All that wait are served together in t0 + a b: below Inoue's bound, and not far."""
    t0, a = 0.030, 0.010
    policy = Policy("static", 10**6, 10**9, reserves=True)
    run = serve(Setup(Flat(t0, a), policy, ROOMY), poisson(100_000, rate, 4))
    mean = np.mean(run.finish - run.arrival)
    bound = float(queueing.batch_service_latency(rate, t0, a))
    assert 0.90 * bound < mean < bound * 1.01


def test_two_servers_halve_the_load() -> None:
    """Round robin over two engines: the wait falls below that of M/D/1 at half the rate."""
    D, rate = 0.1, 12.0
    setup = Setup(Flat(D, 0.0), one_at_a_time(), ROOMY)
    r = poisson(100_000, rate, 5)
    one = queueing.md1_wait(rate / 2, D)
    for routing in ("round-robin", "least-outstanding"):
        run = serve(setup, r, 2, routing)
        assert 0.2 * one < np.mean(run.admitted - run.arrival) < 0.6 * one


# --- laws -------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, phases=PHASES)
@given(settings_of_a_run)
def test_nothing_is_lost(x: dict[str, Any]) -> None:
    """Each request is served once, in order; tokens and blocks are conserved; Little's law."""
    setup, r = setup_of(x)
    run = serve(setup, r, x["replicas"], x["routing"], x["users"])
    assert sum(e.finished for e in run.replicas) == len(r)
    assert sorted(i for e in run.replicas for i in e.ids) == list(range(len(r)))
    assert np.all(run.arrival <= run.admitted)
    assert np.all(run.admitted < run.first)
    assert np.all((run.first < run.finish) == (r.output > 1))
    for e in run.replicas:
        assert e.idle()
        assert e._B == e._R == e._M == e._held == 0
        assert not any(e._classes)
        assert e.cache is None or e.cache.used == 0
        assert e.cache is None or e.cache.idle <= e.memory.blocks
        assert e.most_blocks <= e.memory.blocks
    assert sum(e.prompt_tokens for e in run.replicas) == r.input.sum()
    # Gaps between tokens: one less than tokens in each request, and they sum to its time.
    if run.window == (-math.inf, math.inf):
        assert sum(sum(e.gaps.counts) for e in run.replicas) == (r.output - 1).sum()
    # Little: mean number in the system = rate x mean time in it, over the whole run.
    events = np.sort(np.concatenate([run.arrival, run.finish]))
    number = (np.searchsorted(np.sort(run.arrival), events, "right")
              - np.searchsorted(np.sort(run.finish), events, "right"))
    assert np.sum(number[:-1] * np.diff(events)) == pytest.approx(
        np.sum(run.finish - run.arrival), rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), scheduler=st.sampled_from(["chunked", "prefill-first"]),
       factor=st.floats(1.5, 4.0))
def test_slower_with_the_rate(seed: int, scheduler: str, factor: float) -> None:
    """The same requests sent faster wait longer on average."""
    setup = Setup(ToySurface(seed), Policy(scheduler, 8, 256), ROOMY)  # type: ignore[arg-type]
    r = poisson(400, 2.0, seed, np.random.default_rng(seed).integers(1, 60, 400))
    slow, fast = (serve(setup, replace(r, arrival=r.arrival / f)) for f in (1.0, factor))
    assert np.mean(fast.finish - fast.arrival) >= np.mean(slow.finish - slow.arrival) * 0.999
    assert fast.finish.max() <= slow.finish.max() * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(contexts=st.lists(st.integers(1, 500), min_size=1, max_size=30),
       block=st.sampled_from([1, 4, 16, 64]), step=st.integers(0, 1000), more=st.integers(0, 300))
def test_blocks_without_touching_sequences(contexts: list[int], block: int, step: int,
                                           more: int) -> None:
    classes = [0] * block
    for c in contexts:
        classes[(c - step) % block] += 1
    wanted = sum(blocks_of(c + more, block) for c in contexts)
    tokens = sum(contexts) + more * len(contexts)
    assert blocks_at(classes, tokens, step + more, block) == wanted
    within = steps_within(classes, sum(contexts), len(contexts), step, block, wanted, 400)
    fits = [sum(blocks_of(c + m, block) for c in contexts) <= wanted for m in range(401)]
    assert within == max(m for m in range(401) if fits[m])


def test_flow_balance() -> None:
    """What comes in goes out, inside the window of a steady run."""
    setup = Setup(ToySurface(3), Policy("chunked", 64, 512), ROOMY)
    most = largest_rate(setup, poisson(100, 1.0, output=30))
    run = serve(setup, poisson(20_000, 0.6 * most, 7, 30))
    found = rates(run, Slo())
    assert found["requests_per_s"] == pytest.approx(0.6 * most, rel=0.03)
    assert found["output_tokens_per_s"] == pytest.approx(18.0 * most, rel=0.03)
    assert keeps_up(run, 0.6)


def test_unstable_is_named() -> None:
    """At 1.3 of the largest rate the queue grows, whatever the utilisation is said to be."""
    setup = Setup(ToySurface(3), Policy("chunked", 64, 512), ROOMY)
    most = largest_rate(setup, poisson(100, 1.0, output=30))
    run = serve(setup, poisson(5_000, 1.6 * most, 7, 30))
    growth, queue = queue_growth(run)
    assert growth == pytest.approx(1 - 1 / 1.6, abs=0.05)
    assert queue > 100
    assert not keeps_up(run, None)
    assert not keeps_up(run, 1.6)


def test_gaps_are_counted_right() -> None:
    """Percentiles of the gaps, to the width of a class, against every single one."""
    from test_serving_reference import slow

    setup = Setup(ToySurface(5), Policy("prefill-first", 16, 256), ROOMY)
    r = poisson(40, 20.0, 1, np.random.default_rng(0).integers(2, 80, 40))
    run = serve(setup, r)
    gaps = np.concatenate([np.diff(s.tokens) for s in slow(setup, r, 1, "round-robin", None)])
    found = latencies(run, 0.0)["itl_s"]
    assert found is not None
    assert found["mean"] == pytest.approx(gaps.mean(), rel=1e-9)
    for share, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert found[share] == pytest.approx(
            float(np.quantile(gaps, q, method="inverted_cdf")), rel=0.015)


# --- with a model -----------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "hardware", "users", "prompt", "output"), [
    ("llama-3.1-8b", "h100", 16, 1024, 256), ("llama-3.1-8b", "h100", 64, 1024, 256),
    ("llama-2-7b", "a100-sxm4-80gb", 32, 512, 128), ("qwen3-8b", "l40s", 8, 512, 256)])
def test_closed_loop_forms(model: str, hardware: str, users: int, prompt: int,
                           output: int) -> None:
    """TPOT at a fixed concurrency: the closed form, with whole prefills in the way, to 10 %."""
    d = Deployment.of(model, hardware)
    rng, n = np.random.default_rng(0), users * 30
    # Answers of one length would keep all users in step, so that no prefill is in another's way.
    r = requests_of(np.zeros(n), np.full(n, prompt), rng.integers(output // 2, 3 * output // 2, n))
    s = simulate(d, r, policy=Policy.of(d, "prefill-first"), concurrency=users, ranges=False)
    step = float(estimate(d, Workload(users, prompt, output)).tpot.expected)
    prefill = float(estimate(d, Workload(1, prompt, output)).ttft.expected)
    wanted = closed_loop.time_per_output_token(step, prefill, users, output, 1.0)
    assert s.summary()["itl_s"]["mean"] == pytest.approx(wanted, rel=0.10)
    rate = closed_loop.saturated_request_rate(users, output, prefill, step, 1.0)
    assert s.offered_rate == pytest.approx(rate, rel=0.10)


def test_first_token_of_an_idle_engine() -> None:
    """One request: the estimate and the engine's fixed time."""
    d = Deployment.of("llama-3.1-8b", "h100")
    s = simulate(d, requests_of(np.zeros(1), np.full(1, 1000), np.full(1, 200)), ranges=False)
    e = estimate(d, Workload(1, 1000, 200))
    assert s.first_token[0] == pytest.approx(
        float(e.ttft.expected) + d.engine.request_time, rel=1e-6)
    assert (s.finish[0] - s.first_token[0]) / 199 == pytest.approx(float(e.tpot.expected),
                                                                    rel=0.002)


def test_memory_matters() -> None:
    """Long answers on a small memory: preempted, or held back where the length is reserved."""
    d = Deployment.of("llama-2-13b", "a100-sxm4-40gb")
    r = requests_of(np.zeros(80), np.full(80, 400), np.full(80, 800))
    grown = simulate(d, r, ranges=False)
    held = simulate(d, r, policy=replace(Policy.of(d), reserves=True), ranges=False)
    assert grown.summary()["preemptions"] > 0
    assert held.summary()["preemptions"] == 0
    assert grown.summary()["occupancy"]["kv_max"] <= 1.0


def test_prefix_caching_saves_prefill() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    r = poisson(300, 6.0, output=20, prompt=4000)
    plain = simulate(d, r, ranges=False).summary()
    shared = simulate(d, replace(r, shared_prefix=3200), ranges=False).summary()
    assert plain["prefix_hit_rate"] == 0
    assert shared["prefix_hit_rate"] == pytest.approx(0.8 * 299 / 300, rel=0.01)
    assert shared["ttft_s"]["mean"] < 0.5 * plain["ttft_s"]["mean"]
    off = simulate(d, replace(r, shared_prefix=3200), ranges=False,
                   policy=Policy.of(d, prefix_cache=False)).summary()
    assert off["ttft_s"] == plain["ttft_s"]


def test_pools_against_their_formulas() -> None:
    """One prefill and one decode instance: TTFT and TPOT of the closed form, to 7 %."""
    d = Deployment.of("llama-3.1-8b", "h100")
    w, rate = Workload(1, 2000, 200), 6.0
    link = pool_link(d, d)
    r = poisson(4000, rate, 3, 200, 2000)
    s = simulate(d, r, pool=DecodePool(d, 1, link), ranges=False)
    wanted = pools(d, d, w, link, (1, 1)).disaggregated(rate)
    found = s.summary()
    assert found["ttft_s"]["mean"] - d.engine.request_time == pytest.approx(wanted.ttft, rel=0.07)
    assert found["tpot_s"]["mean"] == pytest.approx(wanted.tpot, rel=0.07)
    assert found["busy"]["mixed"] == found["busy"]["prefill"] == 0.0


@given(st.integers(0, 100))
def test_links_carry_one_cache_after_the_other(seed: int) -> None:
    """No link carries more than its bandwidth, and nothing arrives before it was computed."""
    rng = np.random.default_rng(seed)
    n, link = 50, KvLink(lambda tokens: tokens, 10.0, 0.1, 20.0, 10.0, 8.0)
    done = np.cumsum(rng.exponential(1.0, n))
    prefill, size = np.minimum(rng.uniform(0.1, 2.0, n), done), rng.uniform(1.0, 15.0, n)
    source, target = rng.integers(0, 2, n), rng.integers(0, 2, n)
    found = arrivals_of_caches(done, prefill, size, source, target, link)
    exposed = exposed_transfer(size / link.bandwidth, prefill, link.layers, link.latency)
    assert np.all(found >= done + exposed - 1e-9)
    for i in (0, 1):
        mine = target == i
        busy = found[mine].max() - link.latency - (done - prefill)[mine].min()
        assert busy >= size[mine].sum() / link.incoming - 1e-9


def test_seeded_runs_are_the_same() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    a, b = (simulate(d, poisson(300, 6.0, 9), ranges=False) for _ in range(2))
    assert np.array_equal(a.finish, b.finish)


def test_memory_a_request() -> None:
    """At most 100 bytes a finished request."""
    from benchmarks.serving_speed import bytes_a_request

    assert bytes_a_request(20_000) < 100
