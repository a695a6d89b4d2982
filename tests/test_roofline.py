"""The one formula: golden numbers, laws, and the closed-form means against an explicit loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import roofline

positive = st.floats(1e-3, 1e18)
fraction = st.floats(0.05, 1.0)
exponent = st.sampled_from([None, 1, 1.5, 2])
term = st.one_of(st.just(0.0), st.floats(1e-12, 1e3))


def loop(x0: Any, x1: Any, y0: Any, y1: Any, n: Any, p: Any) -> Any:
    """Mean of smooth_max over n evenly spaced points, one by one."""
    x, y = np.linspace(x0, x1, int(n)), np.linspace(y0, y1, int(n))
    return float(np.mean(roofline.smooth_max(x, y, p)))


# golden numbers

@pytest.mark.parametrize(("F", "Q", "seconds"), [
    (312e12, 1.0, 1.0),              # all arithmetic
    (1.0, 2e12, 1.0),                # all traffic
    (156.0 * 1e9, 1e9, 5e-4),        # on the ridge 156 FLOP/byte both terms are equal
    (0.0, 14e9, 7e-3),               # pure data movement has a time (LLM-Viewer gives 0/0)
])  # fmt: skip
def test_ceiling(F: Any, Q: Any, seconds: Any) -> None:
    assert roofline.ceiling_time(F, Q, 312e12, 2e12) == pytest.approx(seconds, rel=1e-15)


def test_the_simple_formulas() -> None:
    assert roofline.compute_time(312e12, 312e12) == 1.0
    assert roofline.memory_time(14e9, 2e12) == 7e-3
    assert roofline.ridge_point(312e12, 2e12) == 156.0
    assert roofline.arithmetic_intensity(6.0, 4.0) == 1.5
    # Scaling book: 240 tokens for bf16 on a v5e at 1.97e14 and 8.2e11; int8 weights halve it
    assert roofline.critical_batch(1.97e14, 8.2e11, 2) == pytest.approx(240.24, abs=0.01)
    assert roofline.critical_batch(1.97e14, 8.2e11, 1) == pytest.approx(120.12, abs=0.01)


@pytest.mark.parametrize(("p", "value"), [
    (None, 4.0), (1, 7.0), (2, 5.0), (1.5, (3**1.5 + 4**1.5) ** (2 / 3)),
])  # fmt: skip
def test_smooth_max_of_3_and_4(p: Any, value: Any) -> None:
    assert roofline.smooth_max(3.0, 4.0, p) == pytest.approx(value, rel=1e-15)


def test_expected_time_by_hand() -> None:
    # 3 s of arithmetic at half the peak, 4 s of traffic at 0.8 of the bandwidth, 1 ms of floor
    assert roofline.expected_time(3.0, 4.0, 1.0, 1.0, 0.5, 0.8, 1e-3, 2) == pytest.approx(
        1e-3 + (36 + 25) ** 0.5, rel=1e-15)


# laws

@given(positive, positive, positive, positive, fraction, fraction, st.floats(0, 1e-3), exponent)
def test_no_expectation_beats_the_ceiling(F: Any, Q: Any, C: Any, W: Any, e: Any, h: Any, t0: Any,
                                          p: Any) -> None:
    ceiling = roofline.ceiling_time(F, Q, C, W)
    assert ceiling == max(F / C, Q / W)
    expected = roofline.expected_time(F, Q, C, W, e, h, t0, p)
    assert expected >= ceiling * (1 - 1e-14)
    assert roofline.expected_time(F, Q, C, W, 1.0, 1.0, 0.0, None) == ceiling


@given(term, term, exponent)
def test_smooth_max_lies_between_the_maximum_and_the_sum(x: Any, y: Any, p: Any) -> None:
    value = roofline.smooth_max(x, y, p)
    assert max(x, y) * (1 - 1e-14) <= value <= (x + y) * (1 + 1e-14)
    assert value == roofline.smooth_max(y, x, p)
    assert roofline.smooth_max(2 * x, 2 * y, p) == pytest.approx(2 * value, rel=1e-13)


@given(positive, positive, positive, positive, st.floats(1.0, 100.0))
def test_more_work_is_slower_and_faster_hardware_is_faster(F: Any, Q: Any, C: Any, W: Any,
                                                           factor: Any) -> None:
    time = roofline.ceiling_time(F, Q, C, W)
    assert roofline.ceiling_time(F * factor, Q, C, W) >= time
    assert roofline.ceiling_time(F, Q * factor, C, W) >= time
    assert roofline.ceiling_time(F, Q, C * factor, W) <= time
    assert roofline.ceiling_time(F, Q, C, W * factor) <= time
    assert roofline.ceiling_time(F, Q, 2 * C, 2 * W) == time / 2


# means over a growing context

COUNTS = st.one_of(st.sampled_from([1, 2, 3, 7]), st.integers(1, 3000))


@given(term, term, term, term, COUNTS)
@settings(max_examples=300)
def test_mean_of_max_is_the_loop(x0: Any, x1: Any, y0: Any, y1: Any, n: Any) -> None:
    if n == 1:
        x1, y1 = x0, y0
    assert roofline.mean_of_max(x0, x1, y0, y1, float(n)) == pytest.approx(
        loop(x0, x1, y0, y1, n, None), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("x0", "x1", "y0", "y1", "n"), [
    (1.0, 1.0, 1.0, 1.0, 9),          # equal throughout
    (0.0, 2.0, 1.0, 1.0, 1001),       # crosses in the middle, on a point
    (0.0, 2.0, 1.0, 1.0, 1000),       # crosses between two points
    (2.0, 0.0, 1.0, 1.0, 1000),       # the other way round
    (1.0, 5.0, 1.0, 2.0, 17),         # equal at the first point
    (0.0, 2.0, 1.0, 2.0, 17),         # equal at the last point
    (0.0, 0.0, 0.0, 0.0, 5),          # nothing to do
    (3.0, 9.0, 1.0, 2.0, 2),          # n = 2, one side throughout
    (0.0, 9.0, 1.0, 2.0, 2),          # n = 2, crossing
    (0.0, 1e-3, 5e-4, 4e-4, 1_000_000),
])  # fmt: skip
def test_mean_of_max_where_lines_cross(x0: Any, x1: Any, y0: Any, y1: Any, n: Any) -> None:
    wanted = loop(x0, x1, y0, y1, n, None)
    assert roofline.mean_of_max(x0, x1, y0, y1, float(n)) == pytest.approx(wanted, rel=1e-12)
    assert roofline.mean_of_smooth_max(x0, x1, y0, y1, float(n), None) == pytest.approx(
        wanted, rel=1e-12)


@given(st.floats(0.02, 50.0), st.floats(0.0, 64.0), st.integers(8, 200_000), st.integers(1, 3000),
       exponent)
@settings(max_examples=300)
def test_mean_of_smooth_max_is_the_loop(ratio: Any, rows: Any, first: Any, n: Any, p: Any) -> None:
    """Arithmetic grows as ratio x S and traffic as S + rows: decode attention, any head count."""
    last = first + n - 1
    ends = (ratio * first, ratio * last, first + rows, last + rows)
    assert roofline.mean_of_smooth_max(*ends, float(n), p) == pytest.approx(
        loop(*ends, n, p), rel=1e-4)


@given(term, term, st.integers(1, 1000), exponent)
def test_a_constant_sequence_is_its_own_mean(x: Any, y: Any, n: Any, p: Any) -> None:
    assert roofline.mean_of_smooth_max(x, x, y, y, float(n), p) == pytest.approx(
        roofline.smooth_max(x, y, p), rel=1e-13)


# vector equals scalar, bit for bit

VECTORS: list[tuple[Callable[..., Any], int, tuple[Any, ...]]] = [
    (roofline.compute_time, 2, ()),
    (roofline.memory_time, 2, ()),
    (roofline.ceiling_time, 4, ()),
    (roofline.ridge_point, 2, ()),
    (roofline.critical_batch, 3, ()),
    (roofline.arithmetic_intensity, 2, ()),
    (roofline.mean_of_max, 5, ()),
    *((roofline.smooth_max, 2, (p,)) for p in (None, 1, 1.5, 2)),
    *((roofline.expected_time, 7, (p,)) for p in (None, 1, 1.5, 2)),
    *((roofline.mean_of_smooth_max, 5, (p,)) for p in (None, 1, 1.5, 2)),
]


@pytest.mark.parametrize(("function", "count", "rest"), VECTORS,
                         ids=[f"{f.__name__}{r or ''}" for f, _, r in VECTORS])
def test_vector_is_scalar(function: Any, count: int, rest: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(7)
    columns = [rng.uniform(0.5, 2.0, 200) for _ in range(count)]
    if function.__name__.startswith("mean_of"):
        columns[1], columns[3] = columns[0] + columns[1], columns[2] + columns[3]
        columns[4] = rng.integers(1, 500, 200).astype(float)
    together = function(*columns, *rest)
    assert together.shape == (200,)
    for i in range(200):
        alone = function(*(float(c[i]) for c in columns), *rest)
        assert np.ndim(alone) == 0
        assert alone == together[i]
    grid = function(columns[0][:, None], *(c[None, :3] for c in columns[1:]), *rest)
    assert grid.shape == (200, 3)
    assert grid[5, 2] == function(float(columns[0][5]), *(float(c[2]) for c in columns[1:]), *rest)
