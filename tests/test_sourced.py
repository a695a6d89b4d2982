"""Values with sources, confidence and ranges."""

from __future__ import annotations

import math
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.specs.sourced import (
    CONFIDENCES,
    Provenance,
    Range,
    check_keys,
    parse_number,
    parse_provenance,
    parse_sourced,
    parse_sources,
)

SOURCES = {"sheet": Provenance(source="Datasheet", date="2020", confidence="datasheet",
                               verified=True)}


def refused(call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **more)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


def test_bare_value_has_no_source() -> None:
    found = parse_sourced("2039 GB/s", "bandwidth", {}, "f: k")
    assert (found.value, found.range) == (2.039e12, None)
    assert found.provenance == Provenance(source=None, confidence="inferred", verified=False)


def test_value_with_a_source() -> None:
    found = parse_sourced({"value": "400 W", "source": "sheet"}, "power", SOURCES, "f: k")
    assert found.value == 400
    assert found.provenance == SOURCES["sheet"]


def test_what_stands_beside_the_value_wins() -> None:
    raw = {"value": 3, "source": "sheet", "date": 2024, "confidence": "measured",
           "verified": False, "note": "ours"}
    assert parse_sourced(raw, "count", SOURCES, "f: k").provenance == Provenance(
        source="Datasheet", date="2024", confidence="measured", verified=False, note="ours")


def test_range_carries_the_mid_value() -> None:
    raw = {"low": "1 TB/s", "mid": "2 TB/s", "high": "4 TB/s", "source": "sheet"}
    found = parse_sourced(raw, "bandwidth", SOURCES, "f: k")
    assert found.value == 2e12
    assert found.range == Range(low=1e12, mid=2e12, high=4e12)


@pytest.mark.parametrize(("raw", "part"), [
    ({"low": "1 W", "high": "2 W"}, "low, mid and high"),
    ({"low": "1 W", "mid": "2 W"}, "low, mid and high"),
    ({"mid": "2 W"}, "low, mid and high"),
    ({"low": "1 W", "mid": "2 W", "high": "3 W", "value": "2 W"}, "without value"),
    ({"low": "3 W", "mid": "2 W", "high": "4 W"}, "rising"),
    ({"low": "1 W", "mid": "5 W", "high": "4 W"}, "rising"),
    ({"low": "0 W", "mid": "2 W", "high": "4 W"}, "above 0"),
    ({"low": "1", "mid": "2 W", "high": "4 W"}, "k.low: '1' has no unit"),
    ({"low": None, "mid": "2 W", "high": "4 W"}, "k.low"),
    ({}, "needs a value"),
    ({"source": "sheet"}, "needs a value"),
    ({"value": None}, "not a quantity"),
    ({"vaule": "1 W"}, "did you mean 'value'"),
    ({"value": "1 W", "source": "shet"}, "did you mean 'sheet'"),
    ({"value": "1 W", "confidence": "sure"}, "unknown confidence 'sure'"),
    ({"value": "1 W", "confidence": True}, "not text"),
    ({"value": "1 W", "verified": "no"}, "not true or false"),
    ({"value": "1 W", "verified": 1}, "not true or false"),
    ({"value": "1 W", "note": ["x"]}, "not text"),
    ({"value": "1 W", "date": 2024.5}, "not text"),
    ("-1 W", "negative"), ("0 W", "above 0"), ("1e-400 W", "above 0"), (5, "no unit"),
    (True, "not a quantity"), (["1 W"], "not a quantity"), (None, "not a quantity"),
])  # fmt: skip
def test_refused(raw: Any, part: str) -> None:
    message = refused(parse_sourced, raw, "power", SOURCES, "f: k")
    assert message.startswith("f: k")
    assert part in message


def test_zero_where_zero_is_allowed() -> None:
    assert parse_sourced("0 us", "time", {}, "k", positive=False).value == 0
    zero = {"low": "0 us", "mid": "0 us", "high": "1 us"}
    assert parse_sourced(zero, "time", {}, "k", positive=False).range is not None


@pytest.mark.parametrize("value", [
    math.nan, math.inf, -math.inf, pytest.param(10**400, id="400"),
    pytest.param(10**5000, id="5000"), 1.5, -1, True, "3", None, [3],
])  # fmt: skip
def test_count_refused(value: Any) -> None:
    refused(parse_number, value, "count", "k")


@pytest.mark.parametrize("value", [
    0, 1.01, -0.1, math.nan, math.inf, pytest.param(10**400, id="400"), True, "0.5", None,
])  # fmt: skip
def test_fraction_refused(value: Any) -> None:
    refused(parse_number, value, "fraction", "k")


def test_bare_numbers() -> None:
    assert parse_number(108, "count", "k") == 108
    assert parse_number(108.0, "count", "k") == 108
    assert parse_number(1, "fraction", "k") == 1


def test_sources_block() -> None:
    found = parse_sources({"a": {"title": "T", "date": 2024}, 5: {}}, "f: sources")
    assert found["a"] == Provenance(source="T", date="2024", confidence="datasheet",
                                    verified=False)
    assert found["5"].source == "5"
    assert parse_sources(None, "f") == {}


@pytest.mark.parametrize(("data", "part"), [
    ([], "must map"), ("x", "must map"), ({"a": "x"}, "a: must be"),
    ({"a": {"tilte": "x"}}, "did you mean 'title'"), ({"a": {"confidence": "rumour"}}, "rumour"),
    ({"a": {"verified": "yes"}}, "verified"), ({"a": {"title": ["x"]}}, "title"),
])  # fmt: skip
def test_sources_refused(data: Any, part: str) -> None:
    assert part in refused(parse_sources, data, "f: sources")


@pytest.mark.parametrize("word", CONFIDENCES)
def test_confidence(word: Any) -> None:
    assert parse_provenance({"confidence": word}, {}, "k").confidence == word


def test_check_keys_takes_any_key() -> None:
    assert "unknown key '3'" in refused(check_keys, {3: 1}, ("a",), "f")
    check_keys({"a": 1}, ("a",), "f")
