"""Lengths: means and variations as asked for, whole tokens, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.serving.lengths import lognormal, parse_lengths


def test_fixed_lengths() -> None:
    lengths = parse_lengths("8k", "--input")
    assert lengths.is_fixed
    assert lengths.draw(3, np.random.default_rng(0)).tolist() == [8192] * 3
    assert parse_lengths("fixed:512", "--input") == parse_lengths("512", "--input")


def test_uniform_lengths_reach_both_ends_and_have_their_mean() -> None:
    lengths = parse_lengths("uniform:128:1024", "--input")
    drawn = lengths.draw(100_000, np.random.default_rng(1))
    assert (drawn.min(), drawn.max()) == (128, 1024)
    assert drawn.mean() == pytest.approx(576, rel=0.01)
    assert lengths.longest == 1024


@pytest.mark.parametrize("cv", [0.3, 0.8, 1.5])
def test_lognormal_has_the_mean_and_the_variation(cv: float) -> None:
    drawn = lognormal(400_000, 512, cv, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(512, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.05)


@given(st.integers(1, 10**6), st.floats(0.0, 10.0), st.integers(0, 2**32 - 1))
def test_every_length_is_at_least_one_whole_token(mean: int, cv: float, seed: int) -> None:
    lengths = parse_lengths(f"lognormal:{mean}:{cv}", "--output")
    drawn = lengths.draw(100, np.random.default_rng(seed))
    assert drawn.dtype == np.int64
    assert drawn.min() >= 1
    assert np.array_equal(drawn, lengths.draw(100, np.random.default_rng(seed)))


def test_a_file_of_lengths_and_a_trace_give_their_own_values(tmp_path: Path) -> None:
    plain, trace = tmp_path / "lengths.txt", tmp_path / "trace.csv"
    plain.write_text("10\n20\n\n30\n")
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,7\n1,6,8\n")
    rng = np.random.default_rng(0)
    assert set(parse_lengths(f"file:{plain}", "--input").draw(100, rng)) == {10, 20, 30}
    assert set(parse_lengths(f"file:{trace}", "--input").draw(100, rng)) == {5, 6}
    assert set(parse_lengths(f"file:{trace}", "--output").draw(100, rng)) == {7, 8}


@pytest.mark.parametrize(("text", "word"), [
    ("0", "is not between 1"), ("-5", "not a positive whole number"),
    ("1.5", "not a whole number"), ("", "not a positive whole number"),
    ("uniform:1024:128", "runs backwards"), ("uniform:5", "uniform:128:1024"),
    ("lognormal:512", "lognormal:512:0.8"), ("lognormal:512:x", "no coefficient of variation"),
    ("lognormal:512:-1", "between 0"), ("lognormal:512:nan", "between 0"),
    ("normal:5:5", "did you mean 'lognormal'"), ("file:/nowhere/at/all", "no such file"),
    ("999999m", "too large|is not between")])
def test_bad_lengths_are_named(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        parse_lengths(text, "--input")
    assert "--input" in str(caught.value)


def test_a_bad_line_of_a_length_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("10\n-3\n")
    with pytest.raises(InputError, match="line 2: '-3'"):
        parse_lengths(f"file:{path}", "--input")
