"""How fast: run with --benchmark-enable; without it each runs once and checks its answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator import Deployment, Workload, estimate
from simulator.efficiency import Efficiency
from simulator.step import decode

MODELS = ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b"]


@pytest.mark.parametrize("name", MODELS)
def test_one_estimate(benchmark: Any, name: str) -> None:
    """Aim: below 2 ms."""
    d = Deployment.of(name, "h100-sxm5-80gb")
    e = benchmark(estimate, d, Workload(8.0, 1000.0, 100.0))
    assert e.ttft.ceiling < e.ttft.expected


def test_one_estimate_of_a_range(benchmark: Any) -> None:
    d = Deployment.of("llama-3.1-70b", "mn-core-l1400")
    e = benchmark(estimate, d, Workload(8.0, 1000.0, 100.0))
    assert e.tpot.low < e.tpot.high


@pytest.mark.parametrize("name", MODELS)
def test_a_hundred_thousand_rows(benchmark: Any, name: str) -> None:
    """Aim: below 0.3 s."""
    rng = np.random.default_rng(0)
    w = Workload(*(rng.integers(low, high, 100_000).astype(float)
                   for low, high in ((1, 256), (16, 32_768), (2, 2048))))
    d = Deployment.of(name, "h100-sxm5-80gb")
    e = benchmark(estimate, d, w)
    assert e.tpot.expected.shape == (100_000,)
    row = Workload(*(float(v[77_777]) for v in (w.batch, w.input, w.output)))
    assert e.tpot.expected[77_777] == estimate(d, row).tpot.expected


def test_one_decode_step(benchmark: Any) -> None:
    d = Deployment.of("llama-3.1-8b", "h100-sxm5-80gb")
    step = benchmark(decode, d, d.hardware, Efficiency(d.hardware, d.engine), 8.0, 1001.0, 1100.0)
    assert step.expected > step.ceiling
