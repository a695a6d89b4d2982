"""Devices: what a file may say, copies, ends of ranges and peaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.specs.hardware import (
    FIELDS,
    QUANTITIES,
    SMALLER_IS_FASTER,
    Hardware,
    parse_inline,
    read_hardware,
)
from simulator.specs.sourced import UNSOURCED, Range

CHIP = {
    "name": "chip", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
    "peak_bf16": "312 TFLOP/s",
}  # fmt: skip


def chip(**fields: Any) -> Hardware:
    return parse_inline(CHIP | fields)


def refused(call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **more)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


FILE = """
name: x1
aliases: [x-one]
status: announced
memory_class: hbm
sources:
  sheet: {title: X1 datasheet, date: 2025, confidence: announced}
memory_bandwidth: {low: 3 TB/s, mid: 3.35e0 TB/s, high: 4 TB/s, source: sheet}
memory_capacity: {value: 80 GiB, source: sheet, confidence: measured}
peak_fp8: {value: 2 PFLOP/s, source: sheet}
link_latency: 0 us
units: 132
claims:
  - {text: twice as fast, source: keynote, date: 2025}
tiers:
  - {name: host, capacity: 1 TiB, bandwidth: 100 GB/s, source: sheet}
"""


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "x1.yaml"
    path.write_text(FILE)
    x = read_hardware(path)
    assert (x.name, x.title, x.aliases, x.status) == ("x1", "x1", ("x-one",), "announced")
    assert x.memory_bandwidth == 3.35e12
    assert x.ranges == {"memory_bandwidth": Range(low=3e12, mid=3.35e12, high=4e12)}
    assert x.memory_capacity == 80 * 2**30
    assert (x.link_latency, x.units) == (0, 132)
    assert x.provenance["memory_bandwidth"].source == "X1 datasheet"
    assert x.provenance["memory_bandwidth"].confidence == "announced"
    assert x.provenance["memory_capacity"].confidence == "measured"
    assert x.provenance["link_latency"].source is None
    assert x.claims[0].date == "2025"
    assert (x.tiers[0].capacity, x.tiers[0].bandwidth) == (2**40, 1e11)
    assert x.path == str(path)


@pytest.mark.parametrize(("fields", "part"), [
    ({"memory_bandwith": "2 TB/s"}, "did you mean 'memory_bandwidth'"),
    ({3: "x"}, "unknown key '3'"),
    ({"name": None}, "'name' is missing"),
    ({"name": ""}, "'name' is missing"),
    ({"name": 5090}, "not text"),
    ({"memory_bandwidth": None}, "'memory_bandwidth' is missing"),
    ({"memory_capacity": None}, "'memory_capacity' is missing"),
    ({"peak_bf16": None}, "no peak"),
    ({"peak_bf16": 312e12}, "no unit"),
    ({"peak_bf16": "312 TB/s"}, "no unit of compute"),
    ({"memory_bandwidth": "2 Tb/s"}, "small b is a bit"),
    ({"memory_bandwidth": "-2 TB/s"}, "negative"),
    ({"memory_bandwidth": "0 TB/s"}, "above 0"),
    ({"tdp": True}, "not a quantity"),
    ({"units": 1.5}, "whole number"),
    ({"units": "108"}, "not a number"),
    ({"units": float("inf")}, "not finite"),
    ({"bandwidth_efficiency": 1.2}, "fraction"),
    ({"bandwidth_efficiency": 0}, "fraction"),
    ({"status": "shiping"}, "did you mean 'shipping'"),
    ({"memory_class": "hbm3"}, "did you mean 'hbm'"),
    ({"vendor": ["x"]}, "not text"),
    ({"aliases": "x"}, "list of texts"),
    ({"notes": [1.5]}, "list of texts"),
    ({"notes": [True]}, "list of texts"),
    ({"claims": ["x"]}, "list of entries"),
    ({"claims": [{"text": "x"}]}, "text, source and date"),
    ({"claims": [{"texts": "x"}]}, "did you mean 'text'"),
    ({"tiers": [{"name": "l2"}]}, "l2.capacity"),
    ({"tiers": [{"size": "1 GB"}]}, "unknown key 'size'"),
    ({"sources": ["x"]}, "must map"),
    ({"tdp": {"value": "1 W", "source": "no"}}, "not among the file's sources"),
    ({"tdp": {"value": "1 W", "confidence": "certain"}}, "unknown confidence"),
    ({"price": "-1 USD/h"}, "negative"),
])
def test_refused(fields: Any, part: str) -> None:
    message = refused(parse_inline, CHIP | fields)
    assert message.startswith("hardware '")
    assert part in message


def test_alias_without_quotes() -> None:
    assert chip(aliases=[4090, "rtx"]).aliases == ("4090", "rtx")


def test_zero_is_allowed_where_it_means_something() -> None:
    assert chip(link_latency="0 us", price="0 USD/h", kernel_floor="0 us").price == 0


def test_every_field_of_a_file_is_a_field_of_the_struct() -> None:
    assert set(FIELDS) - {"sources"} <= set(Hardware.__struct_fields__)


def test_replace() -> None:
    plain = chip(tdp={"low": "1 W", "mid": "2 W", "high": "3 W"})
    assert plain.replace(memory_bandwidth=1e12).memory_bandwidth == 1e12
    assert plain.memory_bandwidth == 2e12
    assert plain.replace(memory_bandwidth=1e12).ranges == plain.ranges
    assert plain.replace(tdp=5.0).ranges == {}
    array: Any = np.array([1e12, 2e12])
    assert plain.replace(memory_bandwidth=array).memory_bandwidth is array
    assert plain.replace() == plain


def test_replace_with_a_range() -> None:
    ends = Range(low=1e12, mid=2e12, high=3e12)
    x = chip().replace(memory_bandwidth=ends)
    assert x.memory_bandwidth == 2e12
    assert x.at_ends(True).memory_bandwidth == 3e12
    assert x.at_ends(False).memory_bandwidth == 1e12


def test_replaced_number_has_no_source() -> None:
    x = chip(sources={"s": {"title": "T"}}, tdp={"value": "1 W", "source": "s"},
             memory_bandwidth={"value": "1 TB/s", "source": "s"})
    assert x.replace(tdp=3.0).provenance["tdp"] == UNSOURCED
    assert x.replace(tdp=3.0).provenance["memory_bandwidth"].source == "T"
    assert x.provenance["tdp"].source == "T"


def test_replace_unknown_field() -> None:
    assert "did you mean 'memory_bandwidth'" in refused(chip().replace, memory_bandwith=1.0)


def some_range(name: str) -> dict[str, Any]:
    unit = {"bandwidth": "GB/s", "memory": "GB", "compute": "TFLOP/s", "frequency": "MHz",
            "time": "us", "power": "W", "energy_per_byte": "pJ/bit", "energy_per_flop": "pJ/FLOP",
            "price": "USD/h"}.get(QUANTITIES[name])
    if unit is None:
        low, mid, high = (0.2, 0.4, 0.6) if QUANTITIES[name] == "fraction" else (2, 4, 6)
        return {"low": low, "mid": mid, "high": high}
    return {"low": f"2 {unit}", "mid": f"4 {unit}", "high": f"6 {unit}"}


@pytest.mark.parametrize("name", list(QUANTITIES))
def test_favourable_end(name: str) -> None:
    x = chip(**{name: some_range(name)})
    low, high = x.ranges[name].low, x.ranges[name].high
    best, worst = getattr(x.at_ends(True), name), getattr(x.at_ends(False), name)
    assert (best, worst) == ((low, high) if name in SMALLER_IS_FASTER else (high, low))


def test_what_is_better_smaller() -> None:
    assert {"link_latency", "launch_time", "kernel_floor", "layer_overhead", "tdp", "price",
            "memory_energy", "compute_energy", "link_energy"} <= SMALLER_IS_FASTER
    assert not any("bandwidth" in n or "peak" in n or "efficiency" in n or "capacity" in n
                   for n in SMALLER_IS_FASTER)


def test_ends_of_some_fields() -> None:
    x = chip(memory_bandwidth=some_range("memory_bandwidth"), tdp=some_range("tdp"))
    y = x.at_ends(True, ["memory_bandwidth"])
    assert (y.memory_bandwidth, y.tdp) == (6e9, 4)
    assert x.at_ends(True, ["price"]) == x
    assert x.timed_ranges == ("memory_bandwidth",)
    assert "did you mean 'memory_bandwidth'" in refused(x.at_ends, True, ["memory_bandwith"])


@pytest.mark.parametrize(("peaks", "compute", "expected"), [
    ({"bf16": 312, "int8": 624}, "fp8", (312e12, "bf16")),
    ({"bf16": 312, "int8": 624}, "int8", (624e12, "int8")),
    ({"bf16": 990, "fp8": 1979}, "fp8", (1979e12, "fp8")),
    ({"bf16": 990, "fp8": 1979}, "fp4", (1979e12, "fp8")),
    ({"bf16": 990}, "fp4", (990e12, "bf16")),
    ({"fp16": 125}, "bf16", (125e12, "fp16")),
    ({"tf32": 156, "bf16": 312}, "fp32", (156e12, "tf32")),
    ({"fp32": 19.5, "bf16": 312}, "fp32", (19.5e12, "fp32")),
    ({"bf16": 312}, "fp6", (312e12, "bf16")),
])
def test_peak(peaks: Any, compute: Any, expected: Any) -> None:
    x = parse_inline({k: v for k, v in CHIP.items() if k != "peak_bf16"}
                     | {f"peak_{k}": f"{v} TFLOP/s" for k, v in peaks.items()})
    value, name = x.peak(compute)
    assert value == pytest.approx(expected[0])
    assert name == expected[1]


def test_no_peak() -> None:
    """A chip with narrow precisions only slows down with the bits, and the name says so."""
    only = {k: v for k, v in CHIP.items() if k != "peak_bf16"} | {"peak_int8": "1 TOP/s"}
    assert parse_inline(only).peak("fp8") == (1e12, "int8")
    assert parse_inline(only).peak("bf16") == (0.5e12, "int8 / 2")
    double = {k: v for k, v in CHIP.items() if k != "peak_bf16"} | {"peak_fp64": "1 TFLOP/s"}
    assert "no peak for fp8" in refused(parse_inline(double).peak, "fp8")
    assert "no precision is called 'fp9'" in refused(chip().peak, "fp9")


def test_vector_peak() -> None:
    assert chip().vector_peak == 312e12
    assert chip(peak_fp32="19.5 TFLOP/s").vector_peak == 19.5e12
    assert chip(peak_fp32="19.5 TFLOP/s", vector_fp32="20 TFLOP/s").vector_peak == 20e12
    assert chip(vector_fp32="20 TFLOP/s", vector_bf16="40 TFLOP/s").vector_peak == 40e12
