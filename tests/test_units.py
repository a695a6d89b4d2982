"""Quantities, counts and lists in; numbers with a unit out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import units
from simulator.errors import InputError, nearest
from simulator.units import parse_count, parse_list, parse_quantity


def refused(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert message.isprintable(), message
    assert len(message) < 700
    return message


@pytest.mark.parametrize(("text", "dimension", "value"), [
    ("2039 GB/s", "bandwidth", 2.039e12),
    ("3.35 TB/s", "bandwidth", 3.35e12),
    ("4 TiB/s", "bandwidth", 4 * 2.0**40),
    ("  1e3\tMB/s ", "bandwidth", 1e9),
    ("80 GB", "memory", 80e9),
    ("80 GiB", "memory", 80 * 2.0**30),
    ("81920 MiB", "memory", 80 * 2.0**30),
    ("80GB", "memory", 80e9),
    ("312 TFLOP/s", "compute", 312e12),
    ("624 TOP/s", "compute", 624e12),
    ("2.25 PFLOP/s", "compute", 2.25e15),
    ("1410 MHz", "frequency", 1.41e9),
    ("2.5 us", "time", 2.5e-6),
    ("2.5 \u00b5s", "time", 2.5e-6),
    ("2.5 \u03bcs", "time", 2.5e-6),
    (".5 ms", "time", 0.5e-3),
    ("400 W", "power", 400.0),
    ("3.97 pJ/bit", "energy_per_byte", 8 * 3.97e-12),
    ("1.1 pJ/FLOP", "energy_per_flop", 1.1e-12),
    ("3600 USD/h", "price", 1.0),
])
def test_quantity(text: Any, dimension: Any, value: Any) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(("text", "part"), [
    ("80 Gb/s", "small b is a bit"),
    ("80 Gbps", "small b is a bit"),
    ("80 Gib/s", "small b is a bit"),
    ("80", "has no unit"),
    ("80 GB", "no unit of bandwidth"),
    ("80 XB/s", "no unit of bandwidth"),
    ("80 kiB/s", "no unit of bandwidth"),
    ("nan GB/s", "not a quantity"),
    ("inf GB/s", "not a quantity"),
    ("1e400 GB/s", "not finite"),
    ("1e308 EB/s", "not finite"),
    pytest.param("9" * 5000 + " GB/s", "not finite", id="digits"),
    ("1,000 GB/s", "no unit of bandwidth"),
    ("1_000 GB/s", "no unit of bandwidth"),
    ("\u0663 GB/s", "not a quantity"),
    ("", "not a quantity"),
    ("GB/s", "not a quantity"),
    ("3 x\ny", "no unit"),
    (3.35e12, "has no unit"),
    pytest.param(10**5000, "has no unit", id="huge"),
    (True, "not a quantity"),
    (None, "not a quantity"),
    ([1], "not a quantity"),
])
def test_quantity_refused(text: Any, part: str) -> None:
    message = refused(parse_quantity, text, "bandwidth", "file: key")
    assert message.startswith("file: key: ")
    assert part in message


def test_sign_survives_for_the_caller_to_judge() -> None:
    assert parse_quantity("-3 GB/s", "bandwidth") == -3e9


@pytest.mark.parametrize(("text", "value"), [
    ("0", 0), ("8192", 8192), ("8k", 8192), ("8K", 8192), ("1m", 2**20), ("1.5k", 1536),
    (" 3 ", 3), ("8192.0", 8192), (str(2**53), 2**53),
])  # fmt: skip
def test_count(text: Any, value: Any) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", [
    "", "-3", "1.5", "0.1k", "1e3", "nan", "inf", "3\nx", "\u0663",
    pytest.param("9" * 400, id="digits"),
    "1_000", str(2**53 * 10),
])  # fmt: skip
def test_count_refused(text: Any) -> None:
    assert refused(parse_count, text, "--batch").startswith("--batch: ")


@pytest.mark.parametrize(("text", "values"), [
    ("7", [7]),
    ("1,2,4", [1, 2, 4]),
    ("4,2", [4, 2]),
    ("1:4", [1, 2, 3, 4]),
    ("3:3", [3]),
    ("1:10:3", [1, 4, 7, 10]),
    ("1:11:3", [1, 4, 7, 10]),
    ("1:16:x2", [1, 2, 4, 8, 16]),
    ("1:17:X2", [1, 2, 4, 8, 16]),
    ("1:1000:x10", [1, 10, 100, 1000]),
    ("8:8:x2", [8]),
    ("1:8:x1.5", [1, 2, 3, 5, 8]),
    ("1k:4k:1k", [1024, 2048, 3072, 4096]),
    ("1,4:6", [1, 4, 5, 6]),
    ("1:2:x1.0001", [1, 2]),
])
def test_list(text: Any, values: Any) -> None:
    assert parse_list(text) == values


@pytest.mark.parametrize("text", [
    "", "1,,2", "1:", ":4", "a:b", "4:1", "1:4:0", "1:4:1.5", "1:4:x", "1:4:x1", "1:4:x0.5",
    "1:4:x-2", "1:4:xnan", "1:4:xinf", "1:4:x1e400", "1:4:x1_0", "0:4:x2", "1:2:3:4",
    "1:99999999", "1:2:x1.000000000000001",
    pytest.param("1:" + "9" * 400, id="digits"), "1:6000000,1:6000000",
])  # fmt: skip
def test_list_refused(text: Any) -> None:
    assert refused(parse_list, text, "--batch").startswith("--batch: ")


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 9))
def test_geometric_list_stays_within_its_ends(low: Any, width: Any, ratio: Any) -> None:
    values = parse_list(f"{low}:{low + width}:x{ratio}")
    assert values == [low * ratio**i for i in range(len(values))]
    assert values[-1] <= low + width < values[-1] * ratio


@given(st.integers(1, 6), st.integers(0, 10), st.integers(2, 7))
def test_geometric_list_includes_an_end_it_hits(low: Any, power: Any, ratio: Any) -> None:
    assert parse_list(f"{low}:{low * ratio**power}:x{ratio}")[-1] == low * ratio**power


@pytest.mark.parametrize(("seconds", "text"), [
    (0, "0 s"), (1, "1.00 s"), (0.9999, "1.00 s"), (0.9995, "1.00 s"), (0.9994, "999 ms"),
    (0.0009995, "1.00 ms"), (0.00099996, "1.00 ms"), (999.6e-6, "1.00 ms"), (0.999e-3, "999 µs"),
    (0.00999999, "10.0 ms"), (9.996, "10.0 s"), (99.96, "100 s"), (0.0123, "12.3 ms"),
    (1e-9, "1.00 ns"), (1e-12, "0.001 ns"), (599.99, "600 s"), (600, "10.0 min"),
    (3600, "60.0 min"), (-0.9999, "-1.00 s"), (-0.0123, "-12.3 ms"),
    (math.nan, "-"), (math.inf, "-"), (None, "-"),
])  # fmt: skip
def test_format_time(seconds: Any, text: Any) -> None:
    assert units.format_time(seconds) == text


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1023.6, "1.00 KiB"), (1024, "1.00 KiB"),
    (2**20 - 1, "1.00 MiB"), (2**20, "1.00 MiB"), (1000 * 2**10, "1,000 KiB"),
    (2**30 - 1, "1.00 GiB"), (80 * 2**30, "80.0 GiB"), (1023 * 2**30, "1,023 GiB"),
    (9 * 2**40, "9,216 GiB"), (10 * 2**40, "10.0 TiB"), (123 * 2**40, "123 TiB"),
    (-2048, "-2.00 KiB"), (math.nan, "-"), (math.inf, "-"), (None, "-"),
])  # fmt: skip
def test_format_memory(size: Any, text: Any) -> None:
    assert units.format_memory(size) == text


@pytest.mark.parametrize(("function", "value", "text"), [
    (units.format_bandwidth, 2.039e12, "2.04 TB/s"),
    (units.format_bandwidth, 999.96e9, "1.00 TB/s"),
    (units.format_bandwidth, 999.4e9, "999 GB/s"),
    (units.format_bandwidth, 0, "0 B/s"),
    (units.format_flops, 312e12, "312 TFLOP/s"),
    (units.format_flops, 999.96e12, "1.00 PFLOP/s"),
    (units.format_flops, 1e18, "1.00 EFLOP/s"),
    (units.format_decimal_bytes, 14e9, "14.0 GB"),
    (units.format_decimal_bytes, 999.6e9, "1.00 TB"),
    (units.format_decimal_bytes, 1e15, "1.00 PB"),
    (units.format_number, 1234.5, "1,234"),
    (units.format_number, 0.01234, "0.0123"),
    (units.format_number, 9.996, "10.0"),
    (units.format_number, 0.09996, "0.100"),
    (units.format_number, 1e-12, "1.00e-12"),
    (units.format_number, 1e20, "1.00e+20"),
    (units.format_number, 0, "0"),
    (units.format_number, None, "-"),
])
def test_format_others(function: Any, value: Any, text: Any) -> None:
    assert function(value) == text


@given(st.floats(1e-9, 599))
def test_time_round_trip(seconds: Any) -> None:
    text = units.format_time(seconds)
    assert parse_quantity(text, "time") == pytest.approx(seconds, rel=5.1e-3)
    assert not text.startswith("1,000")


@given(st.floats(1, 1e16))
def test_bandwidth_round_trip(rate: Any) -> None:
    text = units.format_bandwidth(rate).replace(",", "")
    assert parse_quantity(text, "bandwidth") == pytest.approx(rate, rel=5.1e-3)


@given(st.floats(1, 1e15))
def test_memory_round_trip(size: Any) -> None:
    text = units.format_memory(size).replace(",", "")
    assert parse_quantity(text, "memory") == pytest.approx(size, rel=5.1e-3, abs=0.5)


@given(st.floats(1e6, 1e18))
def test_flops_round_trip(count: Any) -> None:
    assert parse_quantity(units.format_flops(count), "compute") == pytest.approx(count, rel=5.1e-3)


@given(st.sampled_from([10.0**e for e in range(-9, 3)]), st.floats(-2e-3, 2e-3))
def test_no_time_prints_as_a_thousand(decade: Any, away: Any) -> None:
    number = units.format_time(decade * (1 + away)).split()[0]
    assert re.fullmatch(r"\d{1,3}(\.\d+)?", number)
    assert len(number.replace(".", "").lstrip("0")) <= 3


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_formatting_takes_any_float(value: Any) -> None:
    for function in (units.format_time, units.format_memory, units.format_bandwidth,
                     units.format_flops, units.format_decimal_bytes, units.format_number):
        assert 0 < len(function(value)) < 40


@given(st.text())
def test_any_text_parses_or_is_refused_in_one_line(text: Any) -> None:
    for parse in (lambda t: parse_quantity(t, "bandwidth"), parse_count, parse_list):
        message = ""
        try:
            parse(text)
        except InputError as error:
            message = str(error)
        assert message.isprintable()


def test_nearest() -> None:
    assert nearest("fp9", ["fp8", "int4"]) == " (did you mean 'fp8'?)"
    assert nearest("zzz", ["fp8", "int4"]) == " (valid: fp8, int4)"
    assert nearest("zzz", [f"choice{i}" for i in range(13)]) == ""
    assert nearest("x" * 10**6, ["fp8"]) == " (valid: fp8)"


def test_plural() -> None:
    assert [units.plural(n, "row") for n in (0, 1, 2, 1200)] == [
        "0 rows", "1 row", "2 rows", "1,200 rows"]


def test_suggest_dimension() -> None:
    assert "bandwidth" in units.suggest_dimension("bandwith")


def test_a_huge_value_is_cut_out_of_the_message() -> None:
    message = str(InputError("file: " + "x" * 10**6 + " is wrong\n"))
    assert len(message) < 700
    assert message.startswith("file: x")
    assert message.endswith(" is wrong\\n")
