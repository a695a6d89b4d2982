"""Kernel constants: the fallback chain by level, caps, and every packaged file."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import msgspec
import pytest

from simulator import efficiency
from simulator.efficiency.constants import FAMILIES, LEVELS, constants
from simulator.efficiency.kernel_formats import (
    kernel_format,
    kv_bytes,
    of_attention,
    of_matrix,
    peak,
)
from simulator.errors import InputError
from simulator.formats import number_format
from simulator.specs.catalogue import load_hardware

# The package has a function of the same name.
store = importlib.import_module("simulator.efficiency.constants")

FITTED = Path(efficiency.__file__).with_name("fitted")
CHIPS = list(store.index()["chips"])


def _entries(data):
    for family, formats in data.items():
        for format, libraries in formats.items():
            for library, values in libraries.items():
                yield f"{family}/{format}/{library}", family, values


@pytest.mark.parametrize("path", sorted(FITTED.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_set_is_whole_and_within_the_caps(path):
    if path.stem == "index":
        return
    data = store.read(path)
    assert data or path.stem.endswith(".kernels")
    for name, family, values in _entries(data):
        found = msgspec.structs.asdict(store.build(family, values))
        assert all(v >= 0 for v in found.values()), name
        assert found.get("e", 0.0) <= 0.95, name
        assert found["h"] <= 0.95, name
        assert found.get("g", 0.0) <= found["h"] * 1.0001, name
        assert found.get("x", 0.0) <= 0.95, name
        assert "e" not in found or found["e"] > 0, name
        known = {f"{f}_us" if f in store.TIMES else f for f in found}
        assert set(values) <= known | {"n", "mape", "median"}, name


def test_every_file_belongs_to_a_chip_of_the_index():
    stems = {p.name.split(".")[0] for p in FITTED.glob("*.yaml")}
    assert stems == {*CHIPS, "index", "generic"}


@pytest.mark.parametrize("chip", CHIPS)
def test_every_chip_is_known(chip):
    entry = store.index()["chips"][chip]
    hardware = load_hardware(chip)
    assert hardware is not None
    assert hardware.name == chip
    assert hardware.architecture == entry["architecture"]
    assert hardware.memory_class == entry["memory_class"]
    for library in store.load(chip).get("gemm", {}).values():
        assert "default" in library


def test_levels_widen():
    for family in FAMILIES:
        factors = [store.error(family, level) for level in LEVELS]
        assert factors == sorted(factors)
        assert factors[0] >= 1.0


def test_own_constants_come_first():
    found = constants(load_hardware("h100-sxm5-80gb"), "gemm", "bf16", "vllm")
    assert (found.level, found.donor, found.library) == ("chip", "h100-sxm5-80gb", "vllm")
    kernel = constants(load_hardware("h100-sxm5-80gb"), "attention_decode", "bf16",
                       "vllm/vllm-flash-attn-fa3")
    assert kernel.library == "vllm/vllm-flash-attn-fa3"
    unknown = constants(load_hardware("h100-sxm5-80gb"), "gemm", "bf16", "llama.cpp")
    assert unknown.library == "default"


def test_nearest_sibling_of_the_architecture():
    hopper = load_hardware("h100-sxm5-80gb")
    found = constants(hopper, "gemm", "bf16", "vllm", without_own=True)
    assert (found.level, found.donor) == ("architecture", "h200-sxm-141gb")
    assert found.error >= constants(hopper, "gemm", "bf16", "vllm").error
    pcie = constants(load_hardware("h100-pcie-80gb"), "gemm", "bf16")
    assert pcie.level == "architecture"
    assert store.index()["chips"][pcie.donor]["architecture"] == "hopper"


def test_revision_of_the_silicon_decides_between_siblings():
    """B300 does attention faster than B200, though bf16 peak and bandwidth are nearly the same."""
    b200 = load_hardware("b200-sxm-180gb")
    found = constants(b200, "attention_prefill", "bf16", without_own=True)
    assert (found.level, found.donor) == ("architecture", "gb200-nvl72")


def test_kernels_that_only_move_data_ask_the_memory_class():
    found = constants(load_hardware("b200-sxm-180gb"), "elementwise", "norm", start="architecture")
    assert store.index()["chips"][found.donor]["memory_class"] == "hbm"


@pytest.mark.parametrize(("weights", "activations", "expected"), [
    ("bf16", "bf16", "bf16"), ("fp16", "fp16", "bf16"), ("fp8", "fp8", "fp8"),
    ("fp8-block", "fp8", "fp8-block"), ("int8", "int8", "int8"), ("int8", "bf16", "int8-weight"),
    ("fp8", "bf16", "int8-weight"), ("int4-g128", "bf16", "int4-weight"),
    ("q4_k", "fp16", "int4-weight"), ("mxfp4", "bf16", "mxfp4-weight"),
    ("mxfp4", "fp8", "mxfp4-mxfp8"), ("nvfp4", "nvfp4", "nvfp4"), ("int4", "fp8", "int4-fp8"),
    ("fp32", "fp32", "fp32")])
def test_kernel_format_of_a_matrix(weights, activations, expected):
    assert of_matrix(number_format(weights), number_format(activations)) == expected
    assert kernel_format(expected)


def test_kernel_format_of_attention():
    bf16, fp8 = number_format("bf16"), number_format("fp8")
    assert of_attention(bf16, bf16) == "bf16"
    assert of_attention(bf16, fp8) == "bf16-kv-fp8"
    assert of_attention(fp8, fp8) == "fp8"
    assert (kv_bytes("bf16-kv-fp8"), kernel_format("bf16-kv-fp8").compute) == (1.0, "bf16")


def test_peak_falls_to_what_the_chip_has():
    h100, a100 = load_hardware("h100-sxm5-80gb"), load_hardware("a100-sxm4-80gb")
    assert peak(h100, "fp4") == h100.peak_fp8
    assert peak(a100, "fp8") == a100.peak_bf16


def test_memory_class_then_generic():
    hopper = load_hardware("h100-sxm5-80gb")
    found = constants(hopper, "gemm", "bf16", start="memory")
    assert found.level == "memory"
    chips = store.index()["chips"]
    assert chips[found.donor]["memory_class"] == "hbm"
    assert chips[found.donor]["vendor"] == "NVIDIA"
    assert chips[found.donor]["architecture"] != "hopper"
    assert constants(hopper, "gemm", "bf16", start="generic").donor == "generic"
    strange = msgspec.structs.replace(hopper, name="x", architecture="x", vendor="x")
    assert constants(strange, "gemm", "bf16").level == "generic"
    volta = constants(load_hardware("v100-sxm2-32gb"), "moe", "bf16")
    assert volta.level == "memory"


def test_related_format():
    """MI300X has no fp4 unit and nobody timed it: what is nearest to the format is said."""
    found = constants(load_hardware("h100-sxm5-80gb"), "mla_decode", "fp8")
    assert found.format in ("fp8", "fp8-block", "bf16")


@pytest.mark.parametrize("call", [("gem", "bf16"), ("gemm", "bf17")])
def test_unknown_names_are_refused(call):
    with pytest.raises(InputError, match=r"did you mean|no constants"):
        constants(load_hardware("h100-sxm5-80gb"), *call)


def test_entry_is_the_inverse_of_build():
    entry = {"e": 0.8, "h": 0.7, "g": 0.6, "t0_us": 2.5, "tau_us": 0.04, "tw_us": 1.0, "p": 2.0}
    assert store.entry_of(store.build("gemm", entry)) == entry


def test_a_chip_loads_fast():
    store.read(FITTED / "h100-sxm5-80gb.yaml")
    best = min(_timed(FITTED / "b200-sxm-180gb.yaml") for _ in range(5))
    assert best < 0.1


def _timed(path):
    start = time.perf_counter()
    store.read(path)
    return time.perf_counter() - start
