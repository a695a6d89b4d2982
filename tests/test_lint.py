"""Each slip that wrong hardware files are known for is found, and true devices are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.specs.hardware import Hardware, parse_inline
from simulator.specs.lint import Finding, lint

SOURCES = {
    "sheet": {"title": "a datasheet", "date": "2024", "confidence": "datasheet", "verified": True},
    "driver": {"title": "nvidia-smi", "date": "2024", "confidence": "measured", "verified": True},
}


def value(text: Any, source: str = "sheet", **more: Any) -> dict[str, Any]:
    return {"value": text, "source": source, **more}


def device(**changes: Any) -> Hardware:
    """An H100, with some keys changed."""
    entry: dict[str, Any] = {
        "name": "h100-like", "architecture": "hopper", "memory_class": "hbm", "sources": SOURCES,
        "memory_bandwidth": value("3350 GB/s"),
        "memory_capacity": value("81559 MiB", "driver"),
        "memory_capacity_marketing": value("80 GB"),
        "peak_fp16": value("989.4 TFLOP/s"), "peak_bf16": value("989.4 TFLOP/s"),
        "peak_fp8": value("1978.9 TFLOP/s"), "vector_fp32": value("66.9 TFLOP/s"),
        "units": value(132), "clock": value("1830 MHz"),
        "price": value("3.99 USD/h"),
        "sparse_marketing": "tf32=989; fp16=1979; fp8=3958; int8=3958",
    }  # fmt: skip
    entry |= changes
    return parse_inline({key: v for key, v in entry.items() if v is not None})


def errors(hardware: Hardware) -> set[str]:
    return {finding.key for finding in lint(hardware) if finding.level == "error"}


def test_true_device_has_no_findings() -> None:
    assert lint(device()) == []


def test_sparse_bf16_is_found_from_the_marketing_text() -> None:
    assert "peak_bf16" in errors(device(peak_bf16=value("1979 TFLOP/s")))


def test_sparse_entry_counts_only_for_its_own_precision() -> None:
    """Sparse tf32 is 989, which is also the true dense bf16."""
    assert errors(device(sparse_marketing="tf32=989.4")) == set()


def test_sparse_fp8_is_found_from_the_ratio() -> None:
    assert errors(device(peak_fp8=value("3958 TFLOP/s"), sparse_marketing=None)) == {"peak_fp8"}


def test_odd_fp8_ratio_with_a_note_is_meant() -> None:
    noted = value("3958 TFLOP/s", note="4 times bf16 as the vendor states")
    assert errors(device(peak_fp8=noted, sparse_marketing=None)) == set()


def test_fp8_at_the_bf16_rate_is_usual() -> None:
    assert errors(device(peak_fp8=value("989.4 TFLOP/s"))) == set()


def test_twice_the_rate_of_the_family() -> None:
    found = device(peak_bf16=value("1979 TFLOP/s"), peak_fp8=value("3958 TFLOP/s"),
                   sparse_marketing=None)
    assert "peak_bf16" in errors(found)
    message = next(f.message for f in lint(found) if "cycle" in f.message)
    assert "hopper does at most 4096" in message


def test_vector_peak_out_of_proportion() -> None:
    assert errors(device(vector_fp32=value("6.69 TFLOP/s"))) == {"peak_bf16"}


@pytest.mark.parametrize("capacity", ["80 GiB", "74.506 GB"])
def test_gigabytes_and_gibibytes_mixed_up(capacity: str) -> None:
    """80 GB read as GiB, and 80 GB divided by 1.0737 (the GiB count written as GB)."""
    found = [f for f in lint(device(memory_capacity=value(capacity))) if f.level == "error"]
    assert [f.key for f in found] == ["memory_capacity"]
    assert "GiB" in found[0].message


def test_measured_capacity_may_exceed_marketing() -> None:
    assert errors(device(memory_capacity=value("81920 MiB", "driver"))) == set()


def test_memory_of_another_device() -> None:
    assert errors(device(memory_capacity=value("141 GB"))) == {"memory_capacity"}


@pytest.mark.parametrize(
    ("bandwidth", "level"),
    [("1200 GB/s", "warning"), ("3350 MB/s", "error"), ("335 TB/s", "error")],
)
def test_ridge_point_out_of_its_class(bandwidth: str, level: str) -> None:
    found = lint(device(memory_bandwidth=value(bandwidth)))
    assert {(f.level, f.key) for f in found} == {(level, "memory_bandwidth")}


def test_number_without_source() -> None:
    assert Finding("error", "peak_bf16", "has no source") in lint(
        device(peak_bf16="989.4 TFLOP/s"))


def test_unverified_number_is_a_warning() -> None:
    found = lint(device(clock=value("1830 MHz", verified=False)))
    assert [(f.level, f.key) for f in found] == [("warning", "clock")]


def test_tier_without_source() -> None:
    tiers = [{"name": "ddr", "capacity": "1 TB", "bandwidth": "100 GB/s"}]
    assert errors(device(tiers=tiers)) == {"tiers.ddr"}


def test_price_without_date() -> None:
    sources = SOURCES | {"undated": {"title": "a page", "verified": True}}
    found = device(sources=sources, price=value("3.99 USD/h", "undated"))
    assert Finding("error", "price", "has no date") in lint(found)


def test_announced_part_with_datasheet_points() -> None:
    assert errors(device(status="announced")) == {
        "memory_bandwidth", "memory_capacity", "peak_fp16", "peak_bf16", "peak_fp8"
    }


def test_announced_part_with_ranges_or_inferred_numbers() -> None:
    inferred = {key: value(text, confidence="inferred") for key, text in (
        ("memory_capacity", "80 GB"), ("peak_fp16", "800 TFLOP/s"), ("peak_bf16", "800 TFLOP/s"),
        ("peak_fp8", "1600 TFLOP/s"))}
    bandwidth = {"low": "2 TB/s", "mid": "4 TB/s", "high": "8 TB/s", "source": "sheet"}
    assert errors(device(status="announced", memory_bandwidth=bandwidth, **inferred)) == set()


def test_announced_confidence_is_a_warning() -> None:
    points = {key: value(text, confidence="announced") for key, text in (
        ("memory_bandwidth", "3350 GB/s"), ("memory_capacity", "80 GB"),
        ("peak_fp16", "800 TFLOP/s"), ("peak_bf16", "800 TFLOP/s"), ("peak_fp8", "1600 TFLOP/s"))}
    found = lint(device(status="announced", **points))
    assert {f.level for f in found} == {"warning"}
    assert len(found) == len(points)


def test_errors_stand_before_warnings() -> None:
    found = lint(device(clock=value("1830 MHz", verified=False), peak_bf16=value("1979 TFLOP/s")))
    levels = [f.level for f in found]
    assert levels == sorted(levels, key=lambda level: level != "error")


@pytest.mark.parametrize(("peak", "fp8", "bandwidth", "key"), [
    ("1979 TFLOP/s", "3958 TFLOP/s", "3350 GB/s", "peak_bf16"),
    ("242 TFLOP/s", "485 TFLOP/s", "300 GB/s", "peak_bf16"),
    ("989.4 TFLOP/s", "1978.9 TFLOP/s", "335 GB/s", "memory_bandwidth"),
    ("989.4 TFLOP/s", "1978.9 TFLOP/s", "33.5 TB/s", "memory_bandwidth"),
    ("989.4 TFLOP/s", "1978.9 TFLOP/s", "3350 GiB/s", "memory_bandwidth"),
])
def test_slips_of_a_file_with_six_numbers(peak: str, fp8: str, bandwidth: str, key: str) -> None:
    """Without class, family or sparse text the catalogue itself tells the slip."""
    chip = parse_inline({"name": "my-chip", "memory_bandwidth": bandwidth, "peak_bf16": peak,
                         "memory_capacity": "80 GiB", "peak_fp8": fp8})
    assert key in {f.key for f in lint(chip) if f.level == "error"}
