"""Crossovers: the exact integer where the order of two deployments changes."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.crossover import STATES, at, crossovers, segments, span
from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.metrics import METRICS
from simulator.request import estimate


@pytest.fixture(scope="module")
def pair() -> tuple[Deployment, Deployment]:
    """bf16 against int4: int4 streams fewer bytes, bf16 has cheaper kernels."""
    return (Deployment.of("llama-3.1-8b", "h100"),
            Deployment.of("llama-3.1-8b", "h100", weights="int4-g128"))


@pytest.mark.parametrize("last", [10, 5000, 10_000_000])
@pytest.mark.parametrize("edge", [2, 7, 4097])
def test_segments_find_the_integer(last: int, edge: int) -> None:
    """A step is found exactly whatever the grid."""
    found = segments(lambda v: (v >= edge).astype(int), 1, last)
    assert found == ([(1, 0), (edge, 1)] if edge <= last else [(1, 0)])


def test_segments_find_several() -> None:
    """Three states in one span, one of them a single integer."""
    found = segments(lambda v: np.where(v < 70_000, 0, np.where(v == 70_000, 1, 2)), 1, 1_000_000)
    assert found == [(1, 0), (70_000, 1), (70_001, 2)]


def test_hand_computed_flip() -> None:
    """Two ideal chips of one dense model: A has twice the bandwidth, B four times the FLOP/s.

    At the ceiling a batch flips where B's FLOPs take less than A's; brute force over scalars.
    """
    a = Deployment.of("llama-3.1-8b", "h100", engine="ideal")
    h = a.hardware
    b = a.replace(hardware=h.replace(memory_bandwidth=h.memory_bandwidth / 2,
                                     **{n: getattr(h, n) * 4 for n in h.__struct_fields__
                                        if n.startswith(("peak_", "vector_"))
                                        and getattr(h, n) is not None and n != "vector_peak"}))
    w = Workload(1, 16, 16)
    flips = crossovers(a, b, w, "batch", 4096, ("tpot",), force=True)[0].flips
    slower = [float(estimate(b, Workload(n, 16, 16)).tpot.expected)
              < float(estimate(a, Workload(n, 16, 16)).tpot.expected) for n in range(1, 4097, 1)
              if flips and abs(n - flips[0]) <= 2]
    assert len(flips) == 1
    assert slower == [False, False, True, True, True]


@pytest.mark.parametrize(("axis", "most"), [("batch", 4096), ("context", 131072)])
def test_order_flips_exactly_there(pair: tuple[Deployment, Deployment], axis: str,
                                   most: int) -> None:
    """One integer before the flip the other one is better, by scalar estimates."""
    w = Workload(1, 1024, 256)
    found = crossovers(*pair, w, axis, most)  # type: ignore[arg-type]
    checked = 0
    for c in found:
        assert [s.first for s in c.segments[1:]] == [s.last + 1 for s in c.segments[:-1]]
        for flip in c.flips:
            better = []
            for n in (flip - 1, flip):
                x, y = (c.metric.get(estimate(d, at(w, axis, float(n)))).expected  # type: ignore
                        for d in pair)
                better.append((x < y) == c.metric.smaller)
            assert better[0] != better[1]
            checked += 1
    assert checked > 0


def test_never(pair: tuple[Deployment, Deployment]) -> None:
    """A chip twice as fast in everything never loses: one segment."""
    a = pair[0]
    h = a.hardware
    b = a.replace(hardware=h.replace(memory_bandwidth=h.memory_bandwidth * 2))
    c = crossovers(a, b, Workload(1, 128, 128), "batch", 300, ("tpot",))[0]
    assert [s.state for s in c.segments] == ["other"]
    assert c.flips == ()


def test_same_is_a_tie(pair: tuple[Deployment, Deployment]) -> None:
    """A deployment against itself."""
    c = crossovers(pair[0], pair[0], Workload(1, 128, 128), "batch", 300, ("tpot",))[0]
    assert [s.state for s in c.segments] == ["tie"]


def test_memory_ends_the_order(pair: tuple[Deployment, Deployment]) -> None:
    """Beyond the largest batch of one only the other has a value; then neither."""
    w = Workload(1, 1024, 256)
    c = crossovers(*pair, w, "batch", 4096, ("tpot",))[0]
    limits = [int(estimate(d, w).memory.max_batch) for d in pair]
    assert limits[0] < limits[1]
    states = {s.state: (s.first, s.last) for s in c.segments}
    assert states["only_other"] == (limits[0] + 1, limits[1])
    assert states["neither"] == (limits[1] + 1, 4096)
    assert set(states) <= set(STATES)


def test_missing_metrics_are_left_out() -> None:
    """No price on one side: no order by dollars; one output token: no TPOT."""
    a, b = Deployment.of("llama-3.1-8b", "h100"), Deployment.of("llama-3.1-8b", "mn-core-l1400")
    keys = [c.metric.key for c in crossovers(a, b, Workload(1, 64, 1), "batch", 64)]
    assert "tok/usd" not in keys
    assert "tpot" not in keys
    assert "ttft" in keys


def test_errors(pair: tuple[Deployment, Deployment]) -> None:
    """An empty axis and an unknown metric."""
    with pytest.raises(InputError, match="--max-context: 100 is not above 257"):
        span("context", Workload(1, 1024, 256), 100)
    with pytest.raises(InputError, match="did you mean 'tpot'"):
        crossovers(*pair, Workload(), "batch", 8, ("tpott",))
    assert set(METRICS) >= {"ttft", "tpot", "tok/usd"}
