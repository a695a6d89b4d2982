"""Efficiency: constants within physics, the chain of donors, and what a hardware file overrides."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import simulator.efficiency
from simulator import (
    Deployment,
    Engine,
    Hardware,
    InputError,
    Model,
    Parallelism,
    Workload,
    estimate,
)
from simulator.efficiency import (
    BANDWIDTH_CAP,
    COMPUTE_CAP,
    IDEAL,
    Efficiency,
    KernelConstants,
    families,
    spreads,
)
from simulator.efficiency.constants import constants, index
from simulator.efficiency.levels import levels
from simulator.efficiency.stacked import StackedEfficiency, efficiency_of
from simulator.layers import Segment, pass_operations
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import engine_names, load_engine
from simulator.specs.hardware import parse_inline
from simulator.specs.stack import Stack, stack

BARE = {"name": "bare", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
        "peak_bf16": "312 TFLOP/s"}
HOPPER = BARE | {"architecture": "hopper", "vendor": "NVIDIA", "memory_class": "hbm"}
PHASES = ("prefill", "decode")
KERNELS = ("gemm", "attention_prefill", "attention_decode", "mla_prefill", "mla_decode", "moe",
           "ssm", "elementwise")
GEMM_FORMATS = ("bf16", "fp32", "fp8", "fp8-block", "nvfp4", "mxfp4", "int8", "int8-weight",
                "int4-weight", "mxfp4-weight", "mxfp4-mxfp8", "int4-fp8")
FORMATS = {"gemm": GEMM_FORMATS, "moe": GEMM_FORMATS, "ssm": ("bf16",),
           "elementwise": ("norm", "rope", "activation")}
ATTENTION = ("bf16", "fp8", "bf16-kv-fp8")
# What an H100 has constants of its own for; other formats may be a relative's, or a prior.
TIMED = {(family, form) for family in KERNELS
         for form in ("bf16", "fp8", "bf16-kv-fp8", "fp8-block", "norm", "rope", "activation")
         if family != "ssm" and (family, form) != ("elementwise", "bf16")}
PLAIN = load_engine("vllm").replace(memory_scale=1.0, compute_scale=1.0, launch_scale=1.0)
ALL = [(family, form) for family in KERNELS for form in FORMATS.get(family, ATTENTION)]


def of(more: dict[str, Any] | None = None, engine: Engine = PLAIN) -> Efficiency:
    return Efficiency(parse_inline(BARE | (more or {})), engine)


def named(name: str, engine: Engine = PLAIN) -> Efficiency:
    return Efficiency(Hardware.load(name), engine)


def check(k: KernelConstants) -> None:
    assert 0 < k.e <= COMPUTE_CAP < 1
    assert 0 < k.h <= BANDWIDTH_CAP < 1
    assert 0 <= k.t0 < 1e-3
    assert k.p is not None
    assert 1 <= k.p <= 12
    for value in (k.tw, k.tau, k.te):
        assert 0 <= value < 1e-3
    for value in (k.beta, k.cact, k.c2):
        assert 0 <= value < 1e3


def test_ideal_is_physics() -> None:
    ideal = of(engine=load_engine("ideal"))
    assert ideal.level == "ideal"
    assert ideal.spread == {"prefill": 1.0, "prefill_short": 1.0, "decode": 1.0, "one": 1.0}
    assert all(ideal.kernel(*pair, p) == IDEAL for pair in ALL for p in PHASES)
    assert IDEAL.p is None
    assert not IDEAL.chained
    assert (IDEAL.e, IDEAL.h, IDEAL.t0, IDEAL.tw, IDEAL.tau) == (1.0, 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("hardware", list(catalogue("hardware")))
def test_no_fraction_above_its_cap(hardware: str) -> None:
    device = Hardware.load(hardware)
    for end in (device, device.at_ends(True), device.at_ends(False)):
        known = Efficiency(end, load_engine("vllm"))
        for family, form in ALL:
            for phase in PHASES:
                check(known.kernel(family, form, phase))
        assert all(known.spread[p] >= 1 for p in PHASES)
        assert known.units >= 1


@pytest.mark.parametrize("engine", [n for n in engine_names() if n != "ideal"])
def test_no_engine_scales_beyond_the_cap(engine: str) -> None:
    for device in ("h100", "rtx-4090", "mi300x", "apple-m1-max", "mn-core-l1400"):
        known = named(device, load_engine(engine))
        for family, form in ALL:
            for phase in PHASES:
                check(known.kernel(family, form, phase))


# whose constants

def test_the_chain_of_donors() -> None:
    assert named("h100-sxm5-80gb").level == "chip"
    assert named("h100-sxm5-80gb").donor == "h100-sxm5-80gb"
    assert of(HOPPER).level == "architecture"
    assert index()["chips"][of(HOPPER).donor]["architecture"] == "hopper"
    like = of(HOPPER | {"architecture": "unheard-of"})
    assert like.level == "memory"
    assert index()["chips"][like.donor]["memory_class"] == "hbm"
    assert of({"memory_class": "hbm"}).level == "memory"
    assert of({"memory_class": "hbm"}).donor not in index()["chips"]
    assert of().level == "generic"
    assert of({"bandwidth_efficiency": 0.8}).level == "spec"
    assert of(HOPPER | {"compute_efficiency": 0.8}).level == "spec"
    assert of({"bandwidth_efficiency": 0.8}, load_engine("ideal")).level == "ideal"


def test_an_architecture_alone_tells_the_vendor() -> None:
    """A new chip need not name whose it is to borrow from its own kin."""
    alone, told = of({"architecture": "hopper"}), of(HOPPER)
    assert (alone.level, alone.timed) == ("architecture", True)
    assert index()["chips"][alone.donor]["architecture"] == "hopper"
    assert alone.known == told.known == "architecture"
    assert of({"architecture": "hopper", "vendor": "Somebody"}).level == "generic"


@pytest.mark.parametrize("name", ["apple-m1-max", "tpu-v5p", "mn-core-l1400", "arc-pro-b60-24gb",
                                  "raspberry-pi-5"])
def test_others_have_priors(name: str) -> None:
    """Kernels of other vendors' chips are priors by class of memory, without chains."""
    known = named(name)
    assert not known.timed
    assert not any(known.kernel(*pair).chained for pair in ALL)


@pytest.mark.parametrize("name", ["h100", "mi300x", "rtx-4090", "b200", "rubin-nvl72", "mi455x"])
def test_timed_kernels_have_chains(name: str) -> None:
    known = named(name)
    assert known.timed
    assert known.kernel("gemm").chained
    if known.hardware.vendor == "NVIDIA":
        assert known.kernel("attention_prefill").chained
        assert known.kernel("attention_decode").chained
        assert known.kernel("moe").beta > 0


def test_a_donor_is_the_chip_it_is_named_after() -> None:
    with levels({}):
        borrowed = of(HOPPER)
        own = named(borrowed.donor)
    for form in ("bf16", "fp8"):
        assert borrowed.kernel("gemm", form) == own.kernel("gemm", form)


@pytest.mark.parametrize(("name", "units"), [("rubin-nvl72", None), ("h100-sxm5-80gb", 132.0),
                                             ("textbook-2tbs", 1.0)])
def test_units_that_are_not_stated_are_the_donors(name: str, units: float | None) -> None:
    """One unit would work through every block alone: 17 times slower than a B200."""
    known = named(name)
    assert known.units == (index()["chips"][known.donor]["units"] if units is None else units)


def test_a_better_chip_without_units_is_not_slower() -> None:
    w = Workload(8, 1024, 64)
    with levels({}):
        old, new = (estimate(Deployment.of("llama-3.1-8b", n), w) for n in ("b200", "rubin-nvl72"))
    assert new.tpot.expected < old.tpot.expected
    assert new.ttft.expected < old.ttft.expected


# ranges

def test_the_range_is_that_of_who_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    by = {"device": 1.1, "architecture": 1.2, "vendor": 1.3, "none": 1.4}
    table = {"decode": by, "prefill": {k: v + 1 for k, v in by.items()},
             "batch1_decode": {k: v + 2 for k, v in by.items()},
             "prefill_short": {k: v + 3 for k, v in by.items()}}
    monkeypatch.setattr(simulator.efficiency, "spreads", lambda: table)
    entry = {"memory": 1.0, "compute": 1.0}
    with levels({"device": {"h100-sxm5-80gb": entry}, "architecture": {"hopper hbm": entry},
                 "vendor": {"nvidia hbm": entry}, "memory": {"hbm": entry}}):
        chain = [named("h100-sxm5-80gb"), of(HOPPER), of(HOPPER | {"architecture": "x"}), of(),
                 of({"memory_class": "hbm"}), of({"bandwidth_efficiency": 0.5})]
    assert [e.spread["decode"] for e in chain] == [1.1, 1.2, 1.3, 1.4, 1.4, 1.1]
    assert [e.spread["prefill"] for e in chain] == [2.1, 2.2, 2.3, 2.4, 2.4, 2.1]
    assert [e.spread["one"] for e in chain] == [3.1, 3.2, 3.3, 3.4, 3.4, 3.1]
    assert [e.spread["prefill_short"] for e in chain] == [4.1, 4.2, 4.3, 4.4, 4.4, 4.1]
    assert [e.known for e in chain] == ["device", "architecture", "vendor", "none", "memory",
                                        "none"]


def test_prompts_below_512_tokens_have_a_range_of_their_own() -> None:
    e = named("h100-sxm5-80gb")
    e.spread |= {"prefill": 1.5, "prefill_short": 2.0}
    assert e.prefill_spread(np.array([1.0, 511.0, 512.0, 1e5])).tolist() == [2.0, 2.0, 1.5, 1.5]
    assert [float(e.prefill_spread(n)) for n in (511.0, 512.0)] == [2.0, 1.5]
    together = efficiency_of(stack([Hardware.load(n) for n in MEMBERS]), PLAIN)
    found = together.prefill_spread(np.array([100.0, 1000.0]).reshape(1, 2, 1, 1))
    for i, name in enumerate(MEMBERS):
        alone = named(name)
        assert found[i].ravel().tolist() == [alone.spread["prefill_short"],
                                             alone.spread["prefill"]]


@pytest.mark.parametrize("phase", PHASES)
def test_each_step_of_the_chain_widens_the_range(phase: str) -> None:
    by = spreads()[phase]
    values = [by[how] for how in ("device", "architecture", "vendor", "none")]
    assert values == sorted(values)
    assert values[0] >= 1


# what the hardware file, the engine and the level do

def test_the_hardware_file_overrides() -> None:
    """The file's shares hold for every kernel, whatever the engine or the level of its kin."""
    engine = PLAIN.replace(memory_scale=1.7, compute_scale=2.5)
    for more in ({}, HOPPER):
        stated = of(more | {"bandwidth_efficiency": 0.5, "compute_efficiency": 0.25}, engine)
        for pair in ALL:
            for phase in PHASES:
                k = stated.kernel(*pair, phase)
                assert (k.h, k.e) == (0.5, 0.25)


def test_one_share_stated_leaves_the_other() -> None:
    with levels({}):
        plain, stated = of(HOPPER), of(HOPPER | {"bandwidth_efficiency": 0.5})
    for pair in ALL:
        k, own = stated.kernel(*pair), plain.kernel(*pair)
        assert (k.h, k.e, k.t0) == (0.5, own.e, own.t0)


@pytest.mark.parametrize("more", [{}, HOPPER])
def test_a_static_program_has_no_kernel_floors(more: dict[str, Any]) -> None:
    static, launched = of(more | {"layer_overhead": "1 us"}), of(more)
    for pair in ALL:
        k = static.kernel(*pair)
        assert (k.t0, k.tw, k.tau, k.te) == (0.0, 0.0, 0.0, 0.0)
    assert launched.kernel("gemm").t0 > 0


@pytest.mark.parametrize("more", [{}, HOPPER])
@pytest.mark.parametrize("pair", ALL)
def test_the_engine_scales(more: dict[str, Any], pair: tuple[str, str]) -> None:
    """Bytes in both phases, arithmetic in prefill, launches and chains in both."""
    with levels({}):
        # Twice as slow as measured, so that no cap stands in the way.
        plain = of(more, PLAIN.replace(memory_scale=2.0, compute_scale=2.0))
        slow = of(more, PLAIN.replace(memory_scale=4.0, compute_scale=8.0, launch_scale=3.0))
        for phase in PHASES:
            a, b = plain.kernel(*pair, phase), slow.kernel(*pair, phase)
            assert b.h == a.h / 2
            assert b.e == (a.e / 4 if phase == "prefill" else a.e)
            assert (b.t0, b.tw, b.tau, b.te) == (3 * a.t0, 3 * a.tw, 3 * a.tau, 3 * a.te)
            assert (b.p, b.beta, b.cact, b.c2) == (a.p, a.beta, a.cact, a.c2)


@pytest.mark.parametrize("pair", ALL)
def test_eager_prefill_launches_take_longer_and_decode_stands(pair: tuple[str, str]) -> None:
    with levels({}):
        plain, eager = of(HOPPER), of(HOPPER, PLAIN.replace(prefill_launch_scale=4.0))
    assert eager.kernel(*pair, "decode") == plain.kernel(*pair, "decode")
    a, b = plain.kernel(*pair, "prefill"), eager.kernel(*pair, "prefill")
    assert b.t0 == 4 * a.t0
    assert (b.e, b.h, b.p, b.tw, b.tau, b.te) == (a.e, a.h, a.p, a.tw, a.tau, a.te)


@pytest.mark.parametrize("pair", ALL)
def test_the_level_scales_bytes_and_arithmetic(pair: tuple[str, str]) -> None:
    with levels({"architecture": {"hopper hbm": {"memory": 4.0, "compute": 8.0}}}):
        slow = of(HOPPER)
    with levels({"architecture": {"hopper hbm": {"memory": 2.0, "compute": 2.0}}}):
        plain = of(HOPPER)
    for phase in PHASES:
        a, b = plain.kernel(*pair, phase), slow.kernel(*pair, phase)
        assert (b.h, b.e) == (a.h / 2, a.e / 4)
        assert (b.t0, b.tw, b.tau) == (a.t0, a.tw, a.tau)


def test_a_fast_engine_stays_below_the_cap() -> None:
    fast = of(HOPPER, PLAIN.replace(memory_scale=1e-3, compute_scale=1e-3))
    k = fast.kernel("gemm", "bf16", "prefill")
    assert (k.e, k.h) == (COMPUTE_CAP, BANDWIDTH_CAP)


def test_an_array_of_fractions() -> None:
    fractions = np.array([0.5, 0.8, 0.99])
    device = parse_inline(BARE).replace(bandwidth_efficiency=fractions)
    assert Efficiency(device, PLAIN).kernel("gemm").h.tolist() == [0.5, 0.8, BANDWIDTH_CAP]


@pytest.mark.parametrize("field", ["units", "memory_bandwidth"])
def test_an_array_in_the_chain(field: str) -> None:
    """Constants of a device whose units or bandwidth are an array are those of each value."""
    device = Hardware.load("h100")
    column = np.array([0.5, 1.0, 2.0]) * getattr(device, field)
    together = Efficiency(device.replace(**{field: column}), PLAIN)
    for pair in ALL:
        k = together.kernel(*pair)
        for i, value in enumerate(column):
            alone = Efficiency(device.replace(**{field: float(value)}), PLAIN).kernel(*pair)
            for name in k.__struct_fields__:
                got = getattr(k, name)
                assert (got if np.ndim(got) == 0 else got[i]) == getattr(alone, name), name


# several devices at once

MEMBERS = ("h100", "a100", "apple-m1-max", "rubin-nvl72", "rtx-4090", "mi300x", "mn-core-l1400")


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "transformers"])
def test_stacked_devices_have_their_own_constants(engine: str) -> None:
    members = [Hardware.load(n) for n in MEMBERS]
    together = stack(members)
    assert isinstance(together, Stack)
    known = efficiency_of(together, load_engine(engine))
    assert isinstance(known, StackedEfficiency)
    each = [Efficiency(m, load_engine(engine)) for m in members]

    def same(value: Any, own: list[Any]) -> None:
        assert np.broadcast_to(value, (len(own), 1, 1, 1))[:, 0, 0, 0].tolist() == own

    same(known.units, [e.units for e in each])
    for phase in PHASES:
        same(known.spread[phase], [e.spread[phase] for e in each])
        for pair in ALL:
            k = known.kernel(*pair, phase)
            for name in k.__struct_fields__:
                same(getattr(k, name), [getattr(e.kernel(*pair, phase), name) for e in each])


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "gemma-3-27b",
                                   "deepseek-v2-lite"])
def test_stacked_devices_are_their_estimates(model: str) -> None:
    """With and without chains, units and forms of experts, to the last bit."""
    members = [Hardware.load(n) for n in MEMBERS]
    w = Workload(np.array([1.0, 40.0])[None, :, None, None], 300.0, 2000.0)
    d = Deployment.of(model, "h100")
    together = estimate(d.replace(hardware=stack(members)), w)
    for i, member in enumerate(members):
        for j, batch in enumerate((1.0, 40.0)):
            alone = estimate(d.replace(hardware=member), Workload(batch, 300.0, 2000.0))
            for name in ("ttft", "tpot"):
                for end in ("ceiling", "expected", "low", "high"):
                    got = getattr(getattr(together, name), end)[i, j, 0, 0]
                    assert got == getattr(getattr(alone, name), end), (member.name, name, end)


# every operation has constants

@pytest.mark.parametrize("model", list(catalogue("models")))
def test_every_kernel_has_constants(model: str) -> None:
    """Every family and format that a model's operations name is known, fitted and as a prior."""
    m = Model.load(model)
    devices = [named(n, load_engine("transformers")) for n in ("h100", "rtx-4090", "apple-m1-max")]
    seen: set[tuple[str, str]] = set()
    for weights in (None, "fp8", "fp8-block", "int8", "int4-g128", "nvfp4", "mxfp4"):
        for activations, kv in (("bf16", None), ("fp8", None), ("bf16", "fp8")):
            try:
                d = Deployment(m, devices[0].hardware, load_engine("transformers"),
                               weights=weights, activations=activations, kv=kv,
                               parallelism=Parallelism())
            except InputError:
                continue
            for phase, new in (("prefill", 64.0), ("decode", 1.0)):
                segment: Any = Segment(2.0, new, 64.0, phase)
                seen |= {(o.kernel, o.format) for o in pass_operations(d, [segment], 2.0)
                         if o.collective is None}
    assert {family for family, _ in seen} <= set(KERNELS)
    for family, form in seen:
        assert family in families() or family == "mla_prefill"
        for known in devices:
            for phase in PHASES:
                check(known.kernel(family, form, phase))
        if (family, form) in TIMED:
            assert constants(devices[0].hardware, family, form).level == "chip", (family, form)


def test_constants_are_finite_numbers() -> None:
    for pair in ALL:
        values = msgspec.structs.astuple(named("h100").kernel(*pair))
        assert all(isinstance(v, float | int) and math.isfinite(v) for v in values), pair


def test_fp32_has_the_kernels_of_bf16() -> None:
    """Its own timings are of eager calls: 50 us of them are the processor's."""
    engine = load_engine("vllm")
    for chip in ("h100-sxm5-80gb", "a100-pcie-40gb", "v100-pcie-32gb"):
        known = Efficiency(Hardware.load(chip), engine)
        assert known.kernel("gemm", "fp32") == known.kernel("gemm", "bf16")


@pytest.mark.parametrize(("twin", "of_it"), [("a800-sxm4-80gb", "a100-sxm4-80gb"),
                                             ("h800-sxm-80gb", "h100-sxm5-80gb")])
def test_the_same_silicon_has_nearly_the_same_kernels(twin: str, of_it: str) -> None:
    """Their links alone differ, and how much is known of them end to end."""
    engine = load_engine("vllm")
    one, other = (Efficiency(Hardware.load(h), engine).kernel("gemm") for h in (twin, of_it))
    assert one.h == pytest.approx(other.h, rel=0.06)
    assert one.e == pytest.approx(other.e, rel=0.08)


@pytest.mark.parametrize("chip", ["b200-sxm-180gb", "h100-sxm5-80gb", "a100-sxm4-80gb"])
def test_quantised_products_start_as_16_bit_ones_and_a_pass_over_their_input(chip: str) -> None:
    known = Efficiency(Hardware.load(chip), load_engine("tensorrt-llm").replace(launch_scale=1.0))
    most = known.kernel("gemm").t0 + known.kernel("elementwise", "norm").t0
    for form in ("fp8", "nvfp4", "int4-weight"):
        assert known.kernel("gemm", form).t0 <= most * (1 + 1e-12), form
    timed = constants(known.hardware, "gemm", "fp8", "trtllm").constants
    assert chip == "a100-sxm4-80gb" or timed.t0 > 1.5 * most


def test_all_cores_of_a_processor_wait_at_the_end_of_a_kernel() -> None:
    engine = load_engine("llama.cpp-cpu").replace(launch_scale=1.0)
    many, few = (Efficiency(Hardware.load(h), engine)
                 for h in ("ampereone-a192-32x", "raspberry-pi-5"))
    assert (many.units, few.units) == (192, 4)
    assert many.kernel("gemm").t0 == pytest.approx(48**0.7 * few.kernel("gemm").t0)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("chip", ["h100-sxm5-80gb", "h200-sxm-141gb", "h20-sxm-96gb",
                                  "b200-sxm-180gb", "gb200-nvl72", "l40s"])
def test_no_engine_serves_with_a_kernel_that_widens_its_cache_first(chip: str, engine: str
                                                                   ) -> None:
    """SGLang's MLA kernel on Hopper reads an fp8 cache at 9 % of the bandwidth (2,496 timings): a
    step with such a cache took 1.4 times that with a cache of 16 bits."""
    model = Model.load("deepseek-v3")
    hardware = Hardware.load(chip)
    hardware = hardware.replace(memory_capacity=1e12)
    wide, narrow = (estimate(Deployment(model, hardware, load_engine(engine), activations="fp8",
                                        kv=kv, parallelism=Parallelism(tp=8)),
                             Workload(64.0, 4096.0, 256.0)).tpot.expected for kv in ("bf16", "fp8"))
    assert narrow < 1.05 * wide


@pytest.mark.parametrize("chip", sorted(index()["chips"]))
def test_eight_bits_are_widened_as_fast_as_four(chip: str) -> None:
    e = Efficiency(Hardware.load(chip), load_engine("vllm"))
    assert e.kernel("gemm", "int8-weight", "prefill").e >= e.kernel(
        "gemm", "int4-weight", "prefill").e


def test_an_odd_engine_on_a_device_has_a_range_of_its_own() -> None:
    """llama.cpp's SYCL on Intel's Max 1550 misses by 60 times; every other device is as before."""
    odd = spreads()["pairs"]
    assert odd
    for pair, power in odd.items():
        engine, device = pair.split(" on ")
        own = Efficiency(Hardware.load(device), load_engine(engine))
        known = "none" if own.known == "memory" else own.known
        for name, phase in (("decode", "decode"), ("prefill", "prefill"),
                            ("one", "batch1_decode")):
            usual = spreads()[phase][known]
            assert usual < own.spread[name] == pytest.approx(
                max(usual, min(usual**power, simulator.efficiency.WIDEST)))
        other = Efficiency(Hardware.load(device), load_engine("tensorrt-llm-static"))
        there = [x for p, x in odd.items() if p.endswith(f" on {device}")]
        usual = spreads()["decode"][known]
        least = min(there) if len(there) > 1 else 1.0    # several are off: so may others be
        assert other.spread["decode"] == pytest.approx(
            min(usual**least, simulator.efficiency.WIDEST))


@pytest.mark.parametrize("chip", ["a100-pcie-40gb", "a100-pcie-80gb", "v100-pcie-32gb", "t4"])
def test_calls_from_python_are_no_kernels(chip: str) -> None:
    """PyTorch's norm on an A100 (PCIe) was timed at 52 us with its call, the kernel takes 2.4."""
    floor = float(Efficiency(Hardware.load(chip), load_engine("vllm"))
                  .kernel("elementwise", "norm").t0)
    assert 0.0 < floor < 6e-6


def test_more_cores_do_not_make_a_processor_slower() -> None:
    """The 9755 has a quarter more bandwidth than the 9654, and a third more cores."""
    model, engine = Model.load("llama-3.1-8b"), load_engine("llama.cpp-cpu")
    old, new = (estimate(Deployment(model, Hardware.load(name), engine, weights="q4_k_m"),
                         Workload(1.0, 1024.0, 256.0)) for name in ("epyc-9654", "epyc-9755"))
    assert new.tpot.expected < old.tpot.expected
    assert new.ttft.expected < old.ttft.expected


def test_a_processor_multiplies_packed_weights_by_dot_products() -> None:
    """Raspberry Pi 5, Llama 2 7B Q4_0, 512 tokens: 8.1 tok/s in ggml-org/llama.cpp#6928."""
    e = estimate(Deployment(Model.load("llama-2-7b"), Hardware.load("raspberry-pi-5"),
                            load_engine("llama.cpp-cpu"), weights="q4_0"),
                 Workload(1.0, 512.0, 1.0))
    assert 512.0 / e.ttft.high < 8.1 < 512.0 / e.ttft.low
