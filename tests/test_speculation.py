"""Speculation: Leviathan's Table 1 to its printed digits, and the laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import speculation as s

# Leviathan et al. 2022, Table 1 (c = c_hat = 0): acceptance, drafts, speed-up, operations.
TABLE_1 = [(0.6, 2, 1.96, 1.53), (0.7, 3, 2.53, 1.58), (0.8, 2, 2.44, 1.23), (0.8, 5, 3.69, 1.63),
           (0.9, 2, 2.71, 1.11), (0.9, 10, 6.86, 1.60)]


@pytest.mark.parametrize(("a", "g", "faster", "operations"), TABLE_1)
def test_table_1(a: float, g: int, faster: float, operations: float) -> None:
    assert round(float(s.speed_up(a, g, 0.0)), 2) == faster
    assert round(float(s.operations_factor(a, g, 0.0)), 2) == operations


@pytest.mark.parametrize(("a", "c", "g", "expected"), [
    (0.75, 0.02, 7, 3.2), (0.8, 0.04, 7, 3.3), (0.82, 0.11, 7, 2.5), (0.62, 0.02, 7, 2.3),
    (0.65, 0.02, 5, 2.4), (0.73, 0.04, 5, 2.6)])
def test_expected_speed_up_of_t5(a: float, c: float, g: int, expected: float) -> None:
    """Leviathan et al. 2022, appendix A.3, the expected column, printed to one digit."""
    assert float(s.speed_up(a, g, c)) == pytest.approx(expected, rel=0.02)


def test_certain_and_hopeless_drafts() -> None:
    """Every draft accepted gives g + 1 tokens; none gives the one that verification makes."""
    assert s.expected_tokens(1.0, 4) == 5.0
    assert s.expected_tokens(0.0, 4) == 1.0
    assert float(s.speed_up(0.0, 4, 0.1)) < 1.0


@given(a=st.floats(0, 1), g=st.integers(1, 16))
def test_tokens_lie_between_one_and_all(a: Any, g: Any) -> None:
    assert 1.0 <= s.expected_tokens(a, g) <= g + 1.0


def test_vector_equals_scalar() -> None:
    a, g = np.linspace(0, 1, 21), np.arange(1.0, 22.0)
    whole = s.expected_tokens(a, g)
    assert [float(s.expected_tokens(x, y)) for x, y in zip(a, g, strict=True)] == whole.tolist()
