"""Collectives: latency-bandwidth lines, golden and lawful."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import collectives as c
from simulator.network import Network
from simulator.specs.engine import load_engine
from simulator.specs.hardware import parse_inline

ALL = [c.all_reduce_ring, c.all_reduce_doubling, c.all_reduce, c.all_gather, c.all_to_all,
       c.point_to_point]
each = pytest.mark.parametrize("function", ALL, ids=[f.__name__ for f in ALL])
size = st.floats(0, 1e12)
ranks = st.integers(1, 1024)
latency = st.floats(0, 1e-4)
rate = st.floats(1e9, 1e13)


@each
def test_one_rank_costs_exactly_nothing(function: Any) -> None:
    assert function(1e9, 1, 1e-5, 1e11) == 0.0
    assert np.all(function(np.array([0.0, 1.0, 1e12]), 1, 1e-5, 1e11) == 0.0)


@pytest.mark.parametrize(("function", "hops", "share"), [
    (c.all_reduce_ring, 14, 1.75),      # 2(n-1) hops, 2(n-1)/n of the buffer
    (c.all_reduce_doubling, 3, 3.0),    # log2(n) hops of the whole buffer
    (c.all_gather, 3, 0.875),           # (n-1)/n of the gathered buffer
    (c.all_to_all, 1, 0.875),
    (c.point_to_point, 1, 1.0),
])  # fmt: skip
def test_golden_among_eight(function: Any, hops: Any, share: Any) -> None:
    """1 MiB among 8 ranks, 3 us a hop, 50 GB/s one way: Thakur et al. 2005, Table 1."""
    S = 2.0**20
    assert function(S, 8, 3e-6, 50e9) == pytest.approx(hops * 3e-6 + share * S / 50e9, rel=1e-14)


def test_the_faster_algorithm_is_taken() -> None:
    assert c.all_reduce(8.0, 8, 3e-6, 50e9) == c.all_reduce_doubling(8.0, 8, 3e-6, 50e9)
    assert c.all_reduce(1e9, 8, 3e-6, 50e9) == c.all_reduce_ring(1e9, 8, 3e-6, 50e9)


def test_bus_bandwidth_of_large_messages_is_the_link() -> None:
    """NCCL's busbw = S/t x 2(n-1)/n tends to the link's rate."""
    S = 16 * 2.0**30
    t = c.all_reduce(S, 4, 3e-6, 234e9)
    assert S / t * 2 * 3 / 4 == pytest.approx(234e9, rel=1e-3)


@each
@given(S=size, n=ranks, alpha=latency, W=rate, factor=st.floats(1, 100))
def test_monotone(function: Any, S: Any, n: Any, alpha: Any, W: Any, factor: Any) -> None:
    time = function(S, n, alpha, W)
    slack = 1 + 1e-12
    assert time >= 0
    assert function(S * factor, n, alpha, W) * slack >= time
    assert function(S, n, alpha * factor, W) * slack >= time
    assert function(S, n, alpha, W * factor) <= time * slack
    assert function(S, n + 1, alpha, W) * slack >= time


@each
@given(n=st.integers(2, 64), S=size)
def test_doubling_every_rate_halves_the_time(function: Any, n: Any, S: Any) -> None:
    assert function(S, n, 1e-6, 1e11) == pytest.approx(2 * function(S, n, 0.5e-6, 2e11), rel=1e-12)


@each
def test_vector_is_scalar(function: Any) -> None:
    rng = np.random.default_rng(5)
    S, n = rng.uniform(1, 1e9, 100), rng.integers(1, 300, 100).astype(float)
    alpha, W = rng.uniform(1e-7, 1e-5, 100), rng.uniform(1e9, 1e12, 100)
    together = function(S, n, alpha, W)
    for i in range(100):
        assert function(float(S[i]), float(n[i]), float(alpha[i]), float(W[i])) == together[i]


def test_names() -> None:
    assert set(c.BY_NAME) >= {"all_reduce", "all_gather", "all_to_all", "point_to_point"}
    assert all(function.__name__ == name for name, function in c.BY_NAME.items())


@pytest.mark.parametrize(("S", "n", "seconds"), [
    (8.0, 8, 3 * (3e-6 + 8 / 50e9)),              # doubling: 3 hops of the whole buffer
    (4e6, 8, 6 * 3e-6 + 1.75 * 4e6 / 50e9),       # halving: 6 hops, 2(n-1)/n of the buffer
    (1e9, 6, 6 * 3e-6 + 5 / 3 * 1e9 / 50e9),      # the same bytes as the ring, 4 hops fewer
])  # fmt: skip
def test_the_textbook_takes_the_fastest(S: Any, n: Any, seconds: Any) -> None:
    """Ring, doubling, halving and double tree by hand, 3 us a hop, 50 GB/s."""
    h = parse_inline({"name": "x", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
                      "peak_bf16": "300 TFLOP/s", "link_bandwidth": "50 GB/s",
                      "link_latency": "3 us", "link_domain": 8})
    got = float(Network(h, load_engine("ideal")).time("all_reduce", S, n, n))
    hops = float(np.ceil(np.log2(n)))
    ring = 2 * (n - 1) * 3e-6 + 2 * (n - 1) / n * S / 50e9
    doubling = hops * (3e-6 + S / 50e9)
    halving = 2 * hops * 3e-6 + 2 * (n - 1) / n * S / 50e9
    tree = 2 * hops * 3e-6 + 2 * S / 50e9
    assert c.all_reduce_tree(S, n, 3e-6, 50e9) == pytest.approx(tree, rel=1e-14)
    assert got == pytest.approx(min(ring, doubling, halving, tree), rel=1e-14)
    assert got == pytest.approx(seconds, rel=1e-14)


@given(S=size, n=st.integers(2, 1024), alpha=latency, W=rate)
def test_the_tree_never_beats_halving(S: Any, n: Any, alpha: Any, W: Any) -> None:
    """As many hops, and 2 buffers on the wire where halving has 2(n-1)/n."""
    assert c.all_reduce_tree(S, n, alpha, W) * (1 + 1e-12) >= c.all_reduce_halving(S, n, alpha, W)
