"""The hardware catalogue: every file loads, is found by its names, and says where it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulator.specs.catalogue import load_hardware
from simulator.specs.hardware import QUANTITIES, Hardware, read_hardware
from simulator.specs.lint import lint
from simulator.specs.sourced import CONFIDENCES, Range

FOLDER = Path(__file__).resolve().parent.parent / "hardware"
FILES = sorted(FOLDER.glob("*.yaml"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def no_user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user's own catalogue must not stand in for the files under test."""
    monkeypatch.setenv("TOKLINE_HOME", str(tmp_path))


def numbers(hardware: Hardware) -> list[str]:
    return [key for key in QUANTITIES if getattr(hardware, key) is not None]


def test_catalogue_is_complete() -> None:
    assert len(FILES) >= 90


@every_file
def test_name_is_the_stem_and_a_slug(path: Path) -> None:
    assert read_hardware(path).name == path.stem
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", path.stem)


@every_file
def test_every_number_has_source_date_and_confidence(path: Path) -> None:
    hardware = read_hardware(path)
    for key in numbers(hardware):
        provenance = hardware.provenance[key]
        assert provenance.source, key
        assert provenance.date, key
        assert provenance.confidence in CONFIDENCES, key
    for tier in hardware.tiers:
        assert tier.provenance.source, tier.name
        assert tier.provenance.date, tier.name


@every_file
def test_lint_finds_no_error(path: Path) -> None:
    assert [f for f in lint(read_hardware(path)) if f.level == "error"] == []


@every_file
def test_file_is_readable_and_private_to_nobody(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert not re.search(r"REPORT\.md|/(?:work|home)/|https?://", text)


@every_file
def test_peaks_are_dense_and_memory_is_classed(path: Path) -> None:
    hardware = read_hardware(path)
    assert hardware.memory_class is not None
    if hardware.peak_fp16_accumulate_fp16 is not None:
        assert hardware.peak_fp16 is not None
        assert hardware.peak_fp16_accumulate_fp16 == pytest.approx(2 * hardware.peak_fp16, rel=0.01)


@every_file
def test_a_link_has_rate_latency_and_domain(path: Path) -> None:
    hardware = read_hardware(path)
    link = (hardware.link_bandwidth, hardware.link_latency, hardware.link_domain)
    assert all(v is not None for v in link) or all(v is None for v in link)
    bridge = (hardware.bridge, hardware.bridge_bandwidth, hardware.bridge_domain)
    assert all(v is not None for v in bridge) or all(v is None for v in bridge)


def test_aliases_are_unique_and_never_a_file() -> None:
    owners: dict[str, str] = {path.stem: path.stem for path in FILES}
    for path in FILES:
        for alias in read_hardware(path).aliases:
            assert alias == alias.lower()
            assert alias not in owners, f"{alias}: {path.stem} and {owners[alias]}"
            owners[alias] = path.stem


@every_file
def test_aliases_are_found(path: Path) -> None:
    """The finder reads the aliases as text from one line; it must agree with the parsed file."""
    for alias in (path.stem, *read_hardware(path).aliases):
        assert load_hardware(alias).name == path.stem
        assert load_hardware(alias.upper()).name == path.stem


@every_file
def test_aliases_stand_on_one_line(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("aliases: [") and line.endswith("]")]


@pytest.mark.parametrize(
    ("name", "bandwidth", "capacity", "bf16"),
    [
        ("a100", 2039e9, 81920 * 2**20, 312e12),
        ("h100", 3350e9, 81559 * 2**20, 989.4e12),
        ("h200", 4800e9, 143771 * 2**20, 989.4e12),
        ("b200", 7700e9, 183359 * 2**20, 2250e12),
        ("l4", 300e9, 23034 * 2**20, 121e12),
        ("rtx-4090", 1008e9, 24564 * 2**20, 165.2e12),
        ("tpu-v5e", 819e9, 16e9, 197e12),
    ],
)
def test_golden_values(name: str, bandwidth: float, capacity: float, bf16: float) -> None:
    hardware = load_hardware(name)
    assert hardware.memory_bandwidth == pytest.approx(bandwidth)
    assert hardware.memory_capacity == capacity
    assert hardware.peak_bf16 == pytest.approx(bf16)


@pytest.mark.parametrize(
    ("alias", "name"),
    [("a100", "a100-sxm4-80gb"), ("h100", "h100-sxm5-80gb"), ("h100-sxm", "h100-sxm5-80gb"),
     ("h100-80gb", "h100-sxm5-80gb"), ("4090", "rtx-4090-24gb"), ("gb200", "gb200-nvl72")],
)
def test_short_names(alias: str, name: str) -> None:
    assert load_hardware(alias).name == name


def test_mn_core_2() -> None:
    hardware = load_hardware("mn-core-2")
    assert hardware.memory_bandwidth == 512e9
    assert hardware.memory_capacity == 16384 * 2**20
    assert (hardware.bandwidth_efficiency, hardware.compute_efficiency) == (0.10, 0.05)


def test_mn_core_l1400_is_a_range_and_no_specification() -> None:
    hardware = load_hardware("mn-core-l1400")
    assert hardware.status == "announced"
    assert hardware.ranges["memory_bandwidth"] == Range(low=12.8e12, mid=25.6e12, high=40e12)
    assert hardware.ranges["memory_capacity"] == Range(low=40e9, mid=80e9, high=160e9)
    assert hardware.ranges["peak_bf16"] == Range(low=400e12, mid=800e12, high=1200e12)
    assert hardware.at_ends(True).layer_overhead == 0
    assert any("50 times" in claim.text for claim in hardware.claims)
    facts = {key for key in numbers(hardware) if hardware.provenance[key].confidence != "inferred"}
    assert facts == {"year"}


def test_mn_core_l1100_is_a_quarter() -> None:
    small, large = load_hardware("mn-core-l1100"), load_hardware("mn-core-l1400")
    for key in ("memory_bandwidth", "memory_capacity", "peak_fp16", "peak_fp8", "tdp"):
        assert getattr(small, key) == pytest.approx(getattr(large, key) / 4)
