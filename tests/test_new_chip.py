"""A new chip: six numbers in one file, an estimate at once, wider, with the lender named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import run

SIX = """name: my-chip
title: My chip
memory_bandwidth: 2 TB/s
memory_capacity: 64 GiB
peak_bf16: 300 TFLOP/s
peak_fp8: 600 TFLOP/s
link_bandwidth: 200 GB/s
tdp: 400 W
"""
THREE = "".join(line + "\n" for line in SIX.splitlines()[:5])


def chip(folder: Path, text: str) -> str:
    path = folder / "my-chip.yaml"
    path.write_text(text)
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run(["estimate", "llama-3.1-8b", *args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def width(found: dict[str, Any]) -> float:
    """How far above the expectation the range reaches."""
    return float(found["tpot_s"]["high"] / found["tpot_s"]["expected"])


@pytest.mark.parametrize("text", [SIX, THREE], ids=["six", "three"])
def test_an_estimate_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    found = answer(capsys, chip(tmp_path, text))
    known = answer(capsys, "h100-sxm5-80gb")
    assert found["hardware"] == "my-chip"
    assert found["memory"]["capacity_bytes"] == 64 * 2**30
    assert found["tpot_s"]["ceiling"] > 15e9 / 2e12 * 0.99
    assert found["basis"]["level"] == "generic"
    assert found["basis"]["donor"] == "all parts together"
    assert "generic kernel constants" in found["basis"]["text"]
    assert "all parts together" in found["basis"]["text"]
    assert known["basis"]["level"] == "chip"
    assert width(found) >= width(known)
    assert found["basis"]["spread"]["decode"] >= known["basis"]["spread"]["decode"]


@pytest.mark.parametrize(("more", "level"), [
    ("architecture: hopper\n", "architecture"), ("memory_class: hbm\n", "memory"),
])
def test_the_lender_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, more: str,
                             level: str) -> None:
    """No step of borrowing is narrower than a chip's own constants, none wider than generic."""
    found = answer(capsys, chip(tmp_path, SIX + more))
    basis = found["basis"]
    assert basis["level"] == level
    assert basis["donor"]
    assert basis["donor"] in basis["text"]
    assert "borrowed" in basis["text"]
    generic = answer(capsys, chip(tmp_path, SIX))
    assert width(answer(capsys, "h100-sxm5-80gb")) <= width(found) <= width(generic)
    assert found["tpot_s"]["ceiling"] == generic["tpot_s"]["ceiling"]


def test_text_names_the_lender(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["estimate", "llama-3.1-8b", chip(tmp_path, SIX)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "generic kernel constants" in out
    assert "all parts together" in out


def test_links_make_it_a_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = answer(capsys, "4x" + chip(tmp_path, SIX))
    assert found["devices"] == 4


def test_no_link_no_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["estimate", "llama-3.1-8b", "4x" + chip(tmp_path, THREE)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "link_bandwidth" in captured.err


def test_check_lists_missing_sources(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = chip(tmp_path, SIX)
    assert run(["hardware", "check", path, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    keys = {"memory_bandwidth", "memory_capacity", "peak_bf16", "peak_fp8", "link_bandwidth", "tdp"}
    assert {row["key"] for row in rows if row["message"] == "has no source"} == keys
    assert run(["hardware", "check", path]) == 1
    out = capsys.readouterr().out
    for key in keys:
        assert f"my-chip: {key}: has no source" in out


@pytest.mark.parametrize("key", ["memory_bandwidth", "memory_capacity", "peak_bf16"])
def test_the_three_that_must_be_there(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                      key: str) -> None:
    text = "".join(f"{line}\n" for line in THREE.splitlines() if not line.startswith(key))
    assert run(["estimate", "llama-3.1-8b", chip(tmp_path, text)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "peak" in captured.err if key == "peak_bf16" else key in captured.err
