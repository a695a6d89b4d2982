"""Conditions on columns: what they mean, and what they refuse."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.sweep_columns import NAMES, Text
from simulator.where import check_where, evaluate_where, names_in

COLUMNS: dict[str, Any] = {
    "fits": np.array([True, True, False, True]),
    "tpot_s": np.array([0.01, 0.06, 0.02, np.nan]),
    "ttft_s": np.array([0.1, 0.2, 0.3, 0.4]),
    "batch": np.array([1, 2, 4, 8]),
    "hardware": Text(np.array([0, 1, 0, -1]), ("a100", "h100")),
    "memory.total_bytes": np.array([1.0, 2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize(("text", "expected"), [
    ("fits and tpot_s < 0.05", [1, 0, 0, 0]),
    ("not fits or batch == 8", [0, 0, 1, 1]),
    ("0.015 < tpot_s < 0.05", [0, 0, 1, 0]),
    ("ttft_s + 10 * tpot_s <= 0.5", [1, 0, 1, 0]),
    ("-ttft_s < -0.25", [0, 0, 1, 1]),
    ("batch ** 2 >= 16", [0, 0, 1, 1]),
    ("hardware == 'a100'", [1, 0, 1, 0]),
    ("'h100' == hardware", [0, 1, 0, 0]),
    ("hardware != 'a100'", [0, 1, 0, 1]),
    ("hardware in ('a100', 'h100')", [1, 1, 1, 0]),
    ("hardware not in ('h100',)", [1, 0, 1, 1]),
    ("batch in (1, 8)", [1, 0, 0, 1]),
    ("memory.total_bytes > 2.5", [0, 0, 1, 1]),
    ("fits == True", [1, 1, 0, 1]),
    ("tpot_s", [1, 1, 1, 0]),
    ("batch / 0 > 1", [1, 1, 1, 1]),
])
def test_meaning(text: str, expected: list[int]) -> None:
    got = evaluate_where(text, COLUMNS.__getitem__)
    np.testing.assert_array_equal(np.broadcast_to(got, (4,)), np.array(expected, dtype=bool))


def checked_and_evaluated(text: str) -> None:
    check_where(text, NAMES)
    evaluate_where(text, lambda name: np.array([1.0, np.nan]))


@pytest.mark.parametrize("text", [
    "__import__('os').system('true')", "tpot_s.__class__", "[x for x in (1,)]", "lambda: 1", "",
    "tpot_s <", "open('x')", "tpot_s if fits else 1", "f'{tpot_s}'", "tpot_s < 1j", "(" * 300,
    "batch is 1", "fits @ fits", "hardware in 'a100'", "fits and", "x := 1",
    "tpot_s[0]", "batch << 100", "9" * 400, "not " * 3000 + "fits", "b'x'", "None", "...",
])
def test_refuses(text: str) -> None:
    with pytest.raises(InputError, match="--where") as error:
        checked_and_evaluated(text)
    assert "\n" not in str(error.value)


def test_unknown_column_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown column 'tpot_z' \(did you mean 'tpot_s'\?\)"):
        check_where("tpot_z < 1", NAMES)


@pytest.mark.parametrize("text", ["hardware < 'a'", "hardware + 1", "hardware == 1", "hardware"])
def test_texts_have_no_order(text: str) -> None:
    with pytest.raises(InputError):
        evaluate_where(text, COLUMNS.__getitem__)


def test_names() -> None:
    assert names_in("fits and ttft_s.low < 1 or not fits") == ["fits", "ttft_s.low"]


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        checked_and_evaluated(text)
