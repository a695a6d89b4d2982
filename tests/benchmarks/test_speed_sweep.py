"""Rates of sweeps; `pytest --benchmark-enable tests/benchmarks` prints them.

The bounds are a quarter of what one core reaches, so that a busy machine doesn't fail them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator import Deployment, Grid, Workload
from simulator.sweeps import estimate_rows, sweep_chunks

sys.path.insert(0, str(Path(__file__).parent))
import speed

CASES: dict[str, tuple[Grid, float]] = {
    "dense": (speed.open_grid("llama-3.1-8b", "h100", (50, 20, 20)), 250_000),
    "deepseek": (speed.open_grid("deepseek-v3", "8xh200", (50, 20, 20)), 100_000),
    "mixed": (speed.mixed_grid(3, 20), 50_000),
}


@pytest.mark.parametrize("name", CASES)
def test_rate_of_a_grid(benchmark: Any, name: str) -> None:
    grid, least = CASES[name]
    assert benchmark(speed.sweep_all, grid) == grid.rows
    seconds, rows = speed.best(lambda: speed.sweep_all(grid), 3)
    assert rows / seconds > least


def test_rate_of_unrelated_rows(benchmark: Any) -> None:
    rng, n = np.random.default_rng(0), 20_000
    w = Workload(rng.integers(1, 513, n), rng.integers(128, 8193, n), rng.integers(2, 1025, n))
    d = Deployment.of("llama-3.1-8b", "h100")
    benchmark(estimate_rows, d, w)
    seconds, rows = speed.best(lambda: estimate_rows(d, w).rows, 3)
    assert rows / seconds > 100_000


def test_memory_stays_bounded() -> None:
    grid = Grid.of("llama-3.1-8b", "h100", "1:2000", "1:2000", "1:2000")
    assert grid.rows == 8_000_000_000
    tables = sweep_chunks(grid)
    sizes = [sum(np.asarray(getattr(c, "codes", c)).nbytes for c in next(tables).columns.values())
             for _ in range(3)]
    assert max(sizes) < 100e6
