"""Energy and cost: by hand, below the board's power, null where the spec is silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Hardware, Parallelism, Workload, estimate
from simulator.cost import usd_per_million_tokens
from simulator.energy import device_energy, dynamic_energy, known, pass_dynamic
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import load_engine
from simulator.specs.hardware import parse_inline

BARE = {"name": "bare", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
        "peak_bf16": "312 TFLOP/s"}
POWER = {"tdp": "400 W", "idle_power": "60 W", "memory_energy": "4 pJ/bit",
         "compute_energy": "1 pJ/FLOP"}
DEVICES = list(catalogue("hardware"))


def deployment(hardware: Hardware, engine: str = "ideal", model: str = "llama-3.1-8b",
               **more: Any) -> Deployment:
    return Deployment.of(model, "h100-sxm5-80gb", engine).replace(hardware=hardware, **more)


# formulas

def test_dynamic_energy_by_hand() -> None:
    """16 GB at 4 pJ/bit are 0.512 J; 1 TFLOP at 1 pJ is 1 J; 1 GB of link at 10 pJ/bit 0.08 J."""
    assert dynamic_energy(16e9, 1e12, 1e9, 32e-12, 1e-12, 80e-12) == pytest.approx(
        0.512 + 1.0 + 0.08, rel=1e-14)


def test_units_of_the_published_constants() -> None:
    """HBM2 at 3.97 pJ/bit (O'Connor, MICRO 2017) costs 31.76 pJ a byte."""
    device = parse_inline(BARE | {"memory_energy": "3.97 pJ/bit", "compute_energy": "1.1 pJ/FLOP"})
    assert device.memory_energy == pytest.approx(31.76e-12, rel=1e-14)
    assert device.compute_energy == pytest.approx(1.1e-12, rel=1e-14)


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 500), st.floats(1, 1000))
def test_never_above_the_board_power(dynamic: Any, t: Any, idle: Any, limit: Any) -> None:
    energy = device_energy(dynamic, t, idle, limit)
    assert energy == min(dynamic + idle * t, limit * t)


def test_vector_is_scalar() -> None:
    rng = np.random.default_rng(8)
    columns = [rng.uniform(0.1, 2.0, 50) for _ in range(6)]
    for function, count in ((dynamic_energy, 6), (device_energy, 4), (usd_per_million_tokens, 3)):
        together = function(*columns[:count])
        for i in range(50):
            assert function(*(float(c[i]) for c in columns[:count])) == together[i]


# estimates

def test_an_estimate_by_hand() -> None:
    """Ideal engine: each pass moves its bytes, does its FLOPs and idles for its time."""
    d = deployment(parse_inline(BARE | POWER))
    e: Any = estimate(d, Workload(4, 500, 100))
    joules = 0.0
    for detail, t, count in ((e.prefill.detail, e.ttft.expected, 1),
                             (e.decode.detail, e.tpot.expected, 99)):
        own = detail.bytes * 32e-12 + detail.flops * 1e-12 + 60 * t
        joules += count * min(own, 400 * t)
    assert e.energy_per_token.expected == pytest.approx(joules / 400, rel=1e-12)
    assert pass_dynamic(d.hardware, 1e9, 1e9, 5.0) == pytest.approx(0.032 + 0.001)


def test_all_devices_count() -> None:
    device = parse_inline(BARE | POWER | {"link_bandwidth": "300 GB/s"})
    one: Any = estimate(deployment(device), Workload(4, 500, 100))
    two: Any = estimate(deployment(device, parallelism=Parallelism(dp=2)), Workload(8, 500, 100))
    assert two.energy_per_token.expected == pytest.approx(one.energy_per_token.expected)
    assert two.usd_per_million_tokens is None


@given(st.sampled_from(DEVICES), st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "gpt2",
       "deepseek-v3"]), st.sampled_from(["vllm", "ideal", "transformers"]), st.integers(1, 500),
       st.integers(1, 8000), st.integers(1, 1000))
@settings(max_examples=120, deadline=None)
def test_no_estimate_above_tdp(hardware: Any, model: Any, engine: Any, batch: Any, length: Any,
                               output: Any) -> None:
    d = deployment(Hardware.load(hardware), engine, model)
    e: Any = estimate(d, Workload(batch, length, output))
    f = e.energy_per_token
    if not known(d.hardware):
        assert f is None
        return
    tokens = batch * output
    watts = d.hardware.at_ends(False).tdp
    assert f.ceiling <= f.low <= f.expected <= f.high
    for name in ("ceiling", "low", "expected", "high"):
        assert 0 < getattr(f, name) * tokens <= watts * getattr(e.e2e, name) * (1 + 1e-12)
    assert f.expected * tokens <= d.hardware.tdp * e.e2e.expected * (1 + 1e-12)
    idle = d.hardware.at_ends(True).idle_power
    assert f.low * tokens >= min(idle, d.hardware.at_ends(True).tdp) * e.e2e.low * (1 - 1e-12)


@pytest.mark.parametrize("missing", list(POWER))
def test_no_energy_without_its_constants(missing: str) -> None:
    power = {k: v for k, v in POWER.items() if k != missing}
    e = estimate(deployment(parse_inline(BARE | power)))
    assert e.energy_per_token is None


def test_ranges_of_power() -> None:
    narrow: Any = estimate(deployment(parse_inline(BARE | POWER)))
    wide: Any = estimate(deployment(parse_inline(BARE | POWER | {
        "memory_energy": {"low": "2 pJ/bit", "mid": "4 pJ/bit", "high": "8 pJ/bit"}})))
    assert wide.energy_per_token.expected == narrow.energy_per_token.expected
    assert wide.energy_per_token.low < narrow.energy_per_token.low
    assert wide.energy_per_token.high > narrow.energy_per_token.high


# cost

def test_cost_by_hand() -> None:
    """2 USD/h a device, 8 devices, 4000 tok/s: 16 / 3600 / 4000 x 1e6 = 1.11 USD per million."""
    assert usd_per_million_tokens(2.0 / 3600, 8, 4000.0) == pytest.approx(1.1111, rel=1e-4)


def test_price_of_the_spec_and_of_the_flag() -> None:
    device = parse_inline(BARE | {"price": "3.6 USD/h"})
    own: Any = estimate(deployment(device), Workload(2, 100, 50))
    given_: Any = estimate(deployment(device), Workload(2, 100, 50), 7.2)
    assert own.usd_per_million_tokens.expected == pytest.approx(
        1e-3 * own.e2e.expected / 100 * 1e6, rel=1e-12)
    for name in ("ceiling", "low", "expected", "high"):
        assert getattr(given_.usd_per_million_tokens, name) == pytest.approx(
            2 * getattr(own.usd_per_million_tokens, name), rel=1e-12)
    free: Any = estimate(deployment(device), Workload(2, 100, 50), 0.0)
    assert free.usd_per_million_tokens.expected == 0.0


def test_no_cost_without_a_price() -> None:
    assert estimate(deployment(parse_inline(BARE))).usd_per_million_tokens is None
    priced = estimate(deployment(parse_inline(BARE)), Workload(), 1.0)
    assert priced.usd_per_million_tokens is not None


def test_cost_counts_all_devices() -> None:
    device = parse_inline(BARE | {"price": "3.6 USD/h", "link_bandwidth": "300 GB/s"})
    e: Any = estimate(deployment(device, parallelism=Parallelism(tp=4)), Workload(2, 100, 50))
    assert e.usd_per_million_tokens.expected == pytest.approx(
        4e-3 * e.e2e.expected / 100 * 1e6, rel=1e-12)


def test_a_range_of_prices_and_times() -> None:
    device = parse_inline(BARE | {"price": {"low": "2 USD/h", "mid": "3 USD/h",
                                            "high": "6 USD/h"}})
    for engine in ("ideal", "vllm"):
        e: Any = estimate(deployment(device, engine))
        f = e.usd_per_million_tokens
        assert f.ceiling <= f.low < f.expected < f.high
        assert f.high == pytest.approx(6 / 3600 * e.e2e.high / 256 * 1e6, rel=1e-12)
        assert f.ceiling == pytest.approx(2 / 3600 * e.e2e.ceiling / 256 * 1e6, rel=1e-12)


def test_catalogue_prices() -> None:
    priced = [n for n in DEVICES if Hardware.load(n).price is not None]
    assert priced
    for name in priced[:20]:
        device = Hardware.load(name)
        e: Any = estimate(Deployment.of("llama-3.1-8b", name).replace(engine=load_engine("vllm")))
        assert e.usd_per_million_tokens.expected > 0
        assert device.price is not None
        assert 0.01 < device.price * 3600 < 200
