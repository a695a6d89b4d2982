"""The catalogue as tables: filters, order, width, and what `hardware show` prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from simulator.cli import run
from simulator.listing import hardware_rows, model_rows
from simulator.specs.catalogue import catalogue


def told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_device_and_model_is_listed() -> None:
    assert [row["name"] for row in hardware_rows()] == list(catalogue("hardware"))
    assert [row["name"] for row in model_rows()] == list(catalogue("models"))


@pytest.mark.parametrize("args", [
    ("hardware", "list"), ("models", "list"), ("hardware", "show", "h100-sxm5-80gb"),
    ("hardware", "show", "mn-core-l1400"), ("models", "show", "deepseek-v3"),
    ("models", "show", "gemma-4-e2b"), ("hardware", "check", "mn-core-l1400"),
])  # fmt: skip
def test_a_hundred_columns(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    code, out, _ = told(capsys, *args)
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 100


def test_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "hardware", "list", "--vendor", "nvidia")[1].splitlines()
    end = lines[0].index("memory") + len("memory")
    assert all(line[:end].endswith("iB") for line in lines[1:-3])


@pytest.mark.parametrize(("filters", "holds"), [
    ({"vendor": "nvidia"}, lambda r: r["vendor"] == "NVIDIA"),
    ({"memory": "80 GiB"}, lambda r: r["memory_capacity"] >= 80 * 2**30),
    ({"bandwidth": "3 TB/s"}, lambda r: r["memory_bandwidth"] >= 3e12),
    ({"status": "announced"}, lambda r: r["status"] == "announced"),
    ({"vendor": "AMD", "memory": "100 GiB", "bandwidth": "4 TB/s"},
     lambda r: r["vendor"] == "AMD" and r["memory_bandwidth"] >= 4e12),
])
def test_hardware_filters(filters: dict[str, str], holds: Any) -> None:
    rows, everything = hardware_rows(**filters), hardware_rows()
    assert 0 < len(rows) < len(everything)
    assert all(holds(row) for row in rows)
    if len(filters) == 1:
        assert len(rows) == sum(bool(holds(row)) for row in everything)


@pytest.mark.parametrize(("sort", "key"), [
    ("memory", "memory_capacity"), ("bandwidth", "memory_bandwidth"), ("bf16", "peak_bf16"),
    ("price", "price_usd_per_hour"), ("year", "year"),
])  # fmt: skip
def test_hardware_order(sort: str, key: str) -> None:
    values = [row[key] or 0 for row in hardware_rows(sort=sort)]
    assert values == sorted(values, reverse=True)


def test_names_sort_upwards() -> None:
    assert [r["name"] for r in hardware_rows()] == sorted(r["name"] for r in hardware_rows())
    vendors = [r["vendor"] or "" for r in hardware_rows(sort="vendor")]
    assert vendors == sorted(vendors)


@pytest.mark.parametrize(("filters", "holds"), [
    ({"family": "gemma"}, lambda r: r["family"] == "gemma"),
    ({"smallest": "100B"}, lambda r: r["parameters_total"] >= 100e9),
    ({"largest": "7e9"}, lambda r: r["parameters_total"] <= 7e9),
    ({"smallest": "7b", "largest": "9b"}, lambda r: 7e9 <= r["parameters_total"] <= 9e9),
])
def test_model_filters(filters: dict[str, str], holds: Any) -> None:
    rows, everything = model_rows(**filters), model_rows()
    assert 0 < len(rows) < len(everything)
    assert len(rows) == sum(bool(holds(row)) for row in everything)
    assert all(holds(row) for row in rows)


@pytest.mark.parametrize(("sort", "key"), [
    ("parameters", "parameters_total"), ("active", "parameters_active"),
    ("kv", "kv_bytes_per_token"),
])  # fmt: skip
def test_model_order(sort: str, key: str) -> None:
    values = [row[key] for row in model_rows(sort=sort)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(("args", "words"), [
    (("hardware", "list", "--vendor", "nvdia"), "did you mean 'nvidia'"),
    (("hardware", "list", "--memory", "80"), "no unit"),
    (("hardware", "list", "--memory", "80 TB/s"), "memory"),
    (("hardware", "list", "--bandwidth", "2 GiB"), "bandwidth"),
    (("hardware", "list", "--status", "shiping"), "did you mean 'shipping'"),
    (("hardware", "list", "--sort", "size"), "size"),
    (("hardware", "list", "--vendr", "x"), "did you mean '--vendor'"),
    (("models", "list", "--family", "lama"), "did you mean 'llama'"),
    (("models", "list", "--smallest", "big"), "7e9"),
    (("models", "list", "--smallest", "nan"), "7e9"),
    (("models", "list", "--largest", ""), "7e9"),
    (("hardware", "show", "h10"), "unknown hardware"),
    (("hardware", "show"), "NAME"),
])
def test_mistakes(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str) -> None:
    code, out, err = told(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_hardware_list_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "hardware", "list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["name"] for row in rows} == set(catalogue("hardware"))


def test_hardware_show_json(capsys: pytest.CaptureFixture[str]) -> None:
    """SI numbers, and each with its provenance."""
    found = json.loads(told(capsys, "hardware", "show", "h100-sxm", "--json")[1])
    assert found["name"] == "h100-sxm5-80gb"
    assert found["memory_bandwidth"] == 3.35e12
    assert found["memory_capacity"] == 81559 * 2**20
    assert found["peak_bf16"] == pytest.approx(989.4e12, rel=1e-3)
    assert found["provenance"]["memory_bandwidth"]["source"]


def test_hardware_show_json_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "hardware", "show", "mn-core-l1400", "--json")[1])
    bandwidth = found["memory_bandwidth"]
    assert set(bandwidth) == {"low", "mid", "high"}
    assert 1e12 < bandwidth["low"] < bandwidth["mid"] < bandwidth["high"] < 1e14


def test_hardware_show_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "hardware", "show", "h100-sxm5-80gb")[1]
    assert "3.35 TB/s" in out
    assert "79.6 GiB" in out
    assert "sources" in out


# shell completion

def completed(words: str, index: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'tokline'\n"
         "from simulator.cli import main; main()"], capture_output=True, text=True, check=False,
        env={**os.environ, "_TOKLINE_COMPLETE": "bash_complete", "COMP_WORDS": words,
             "COMP_CWORD": str(index)})
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_completion_of_names() -> None:
    assert "llama-3.1-8b" in completed("tokline estimate llama-3.1-8", 2)
    assert completed("tokline hardware show h10", 3) == [
        n for n in catalogue("hardware") if n.startswith("h10")]
    assert "h100-sxm5-80gb" in completed("tokline memory llama-3.1-8b h100-s", 3)
    assert "qwen3-32b" in completed("tokline models show QWEN3-3", 3)


def test_completion_script() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'tokline'\n"
         "from simulator.cli import main; main()"], capture_output=True, text=True, check=False,
        env={**os.environ, "_TOKLINE_COMPLETE": "bash_source"})
    assert "_TOKLINE_COMPLETE=bash_complete" in done.stdout
