"""Efficiency: constants within physics, the chain of donors, and what a hardware file overrides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator import Hardware
from simulator.efficiency import FRACTION_CAP, IDEAL, Efficiency, families
from simulator.layers import pass_operations
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import engine_names, load_engine
from simulator.specs.hardware import parse_inline

BARE = {"name": "bare", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
        "peak_bf16": "312 TFLOP/s"}
PHASES = ("prefill", "decode")


def level(engine: str = "vllm", **more: Any) -> str:
    return Efficiency(parse_inline(BARE | more), load_engine(engine)).level


def test_ideal_is_physics() -> None:
    ideal = Efficiency(parse_inline(BARE), load_engine("ideal"))
    assert ideal.level == "ideal"
    assert ideal.spread == {"prefill": 1.0, "decode": 1.0}
    assert all(ideal.kernel(f, p) == IDEAL for f in families() for p in PHASES)
    assert IDEAL.p is None
    assert (IDEAL.e, IDEAL.h, IDEAL.t0) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("engine", engine_names())
@pytest.mark.parametrize("hardware", list(catalogue("hardware")))
def test_no_fraction_above_its_cap(hardware: str, engine: str) -> None:
    device = Hardware.load(hardware)
    constants = Efficiency(device, load_engine(engine))
    for end in (device, device.at_ends(True), device.at_ends(False)):
        known = Efficiency(end, load_engine(engine))
        for family in families():
            for phase in PHASES:
                k = known.kernel(family, phase)
                if constants.level == "ideal":
                    assert k == IDEAL
                    continue
                assert 0 < k.e <= FRACTION_CAP
                assert 0 < k.h <= FRACTION_CAP
                assert 0 <= k.t0 < 1e-3
                assert k.p in (1, 1.5, 2)
    assert all(constants.spread[p] >= 1 for p in PHASES)


def test_the_chain_of_donors() -> None:
    assert level() == "generic"
    assert level(memory_class="hbm") == "memory"
    assert level(memory_class="hbm", architecture="hopper") == "architecture"
    assert Efficiency(Hardware.load("h100-sxm5-80gb"), load_engine("vllm")).level == "chip"
    assert level(bandwidth_efficiency=0.8) == "spec"
    assert level("ideal", bandwidth_efficiency=0.8) == "ideal"


def test_each_step_of_the_chain_widens_the_range() -> None:
    def spread(**more: Any) -> dict[str, float]:
        return Efficiency(parse_inline(BARE | more), load_engine("vllm")).spread
    chain = [Efficiency(Hardware.load("h100-sxm5-80gb"), load_engine("vllm")).spread,
             spread(architecture="hopper"), spread(memory_class="hbm"), spread()]
    for phase in PHASES:
        values = [s[phase] for s in chain]
        assert values == sorted(values)
        assert values[0] < values[-1]


def test_a_donor_is_the_chip_it_is_named_after() -> None:
    borrowed = Efficiency(parse_inline(BARE | {"architecture": "hopper"}), load_engine("vllm"))
    own = Efficiency(Hardware.load(borrowed.donor), load_engine("vllm"))
    assert borrowed.kernel("gemm", "decode") == own.kernel("gemm", "decode")


def test_the_hardware_file_overrides() -> None:
    stated = Efficiency(parse_inline(BARE | {"bandwidth_efficiency": 0.5,
                                             "compute_efficiency": 0.25}), load_engine("vllm"))
    for family in families():
        k = stated.kernel(family, "decode")
        assert (k.h, k.e) == (0.5, 0.25)


def test_a_static_program_has_no_kernel_floors() -> None:
    device = parse_inline(BARE | {"layer_overhead": "1 us"})
    static = Efficiency(device, load_engine("vllm"))
    assert all(static.kernel(f, "decode").t0 == 0.0 for f in families())
    assert Efficiency(parse_inline(BARE), load_engine("vllm")).kernel("gemm", "decode").t0 > 0


def test_the_engine_scales_its_phase() -> None:
    device = parse_inline(BARE)
    plain = Efficiency(device, load_engine("vllm").replace(decode_scale=1.0, prefill_scale=1.0))
    slow = Efficiency(device, load_engine("vllm").replace(decode_scale=2.0, prefill_scale=1.0))
    a, b = plain.kernel("gemm", "decode"), slow.kernel("gemm", "decode")
    assert (b.e, b.h, b.t0) == (a.e / 2, a.h / 2, a.t0 * 2)
    assert slow.kernel("gemm", "prefill") == plain.kernel("gemm", "prefill")


def test_an_array_of_fractions() -> None:
    fractions = np.array([0.5, 0.8, 0.99])
    device = parse_inline(BARE).replace(bandwidth_efficiency=fractions)
    engine = load_engine("vllm").replace(decode_scale=1.0)
    k = Efficiency(device, engine).kernel("gemm", "decode")
    assert k.h.tolist() == [0.5, 0.8, FRACTION_CAP]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3.2", "mixtral-8x7b",
                                   "jamba-1.5-mini", "qwen3-next-80b-a3b", "llama-4-scout"])
@pytest.mark.parametrize("weights", [None, "fp8", "int4-g128", "nvfp4"])
def test_every_kernel_has_constants(model: str, weights: Any) -> None:
    from simulator import Deployment
    from simulator.layers import Segment

    for activations in ("bf16", "fp8"):
        d = Deployment.of(model, "h100-sxm5-80gb", weights=weights, activations=activations)
        for phase, new in (("prefill", 64), ("decode", 1)):
            segment: Any = Segment(2, new, 64, phase)
            used = {o.kernel for o in pass_operations(d, [segment], 2)}
            assert used - {"collective"} <= set(families())
