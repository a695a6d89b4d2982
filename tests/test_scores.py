"""Scores against medians worked out by hand; what was fitted on, and quality C, never count."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from simulator.validation.cases import Case, Setup
from simulator.validation.measurements import Row
from simulator.validation.scores import Scored, by_phase, by_source, counts, score, worst

SETUP = Setup("m", "h", "vllm", "bf16", "bf16", None, None, 1, 1, 1, 1)
ROW = Row("", "a", "2025", "", "h", 1, "vLLM", "0.9", "m", "bf16", "", 1, 1, 1, 1.0, "", 128.0,
          128.0, "decode_tok_s_per_user", 100.0, "A", "")


def scored(ln: float, source: str = "a", phase: str = "batch1_decode", *, quality: str = "A",
           fitted: bool = False, device: str = "h", spread: float = 1.25,
           metric: str = "decode_tok_s_per_user") -> Scored:
    """A row predicted `ln` too high, with a range of factor `spread`."""
    row = replace(ROW, source=source, quality=quality, hardware=device, metric=metric)
    value = 100.0 * math.exp(ln)
    case = Case(0, row, SETUP, phase, metric, 1.0, 128.0, 128.0)
    return Scored(case, value, value / spread, value * spread, 2 * value, fitted)


def test_one_source_by_hand() -> None:
    """Errors 0.1, -0.2, 0.3, -0.4, 0.5: median |0.3|, bias 0.1, ninth decile 0.46."""
    s = score("x", 9, 6, [scored(e) for e in (0.1, -0.2, 0.3, -0.4, 0.5)])
    assert (s.name, s.n, s.covered, s.scored, s.sources) == ("x", 9, 6, 5, 1)
    assert s.median_abs_ln == pytest.approx(0.3)
    assert s.pooled_median_abs_ln == pytest.approx(0.3)
    assert s.bias_ln == pytest.approx(0.1)
    assert s.p90_abs_ln == pytest.approx(0.46)
    assert s.in_range == pytest.approx(2 / 5)       # ln 1.25 is 0.223


def test_a_source_counts_once() -> None:
    """Nine rows that are right and one source of one row that isn't: 0.0 and 0.4, mean 0.2."""
    rows = [scored(0.0) for _ in range(9)] + [scored(0.4, "b")]
    s = score("x", 10, 10, rows)
    assert (s.scored, s.sources) == (10, 2)
    assert s.median_abs_ln == pytest.approx(0.2)
    assert s.bias_ln == pytest.approx(0.2)
    assert s.pooled_median_abs_ln == pytest.approx(0.0)
    assert s.in_range == pytest.approx(0.9)


def test_nothing_to_score() -> None:
    s = score("x", 3, 0, [])
    assert (s.scored, s.median_abs_ln, s.bias_ln, s.in_range) == (0, None, None, None)


def test_error_and_range() -> None:
    row = scored(math.log(2.0), spread=2.5)
    assert row.error == pytest.approx(math.log(2.0))
    assert row.inside
    assert not scored(math.log(2.0), spread=1.5).inside
    assert scored(math.log(1.25), spread=1.2500001).inside


def test_what_counts() -> None:
    assert counts(scored(0.1))
    assert counts(scored(0.1, quality="B"))
    assert not counts(scored(0.1, quality="C"))
    assert not counts(scored(0.1, fitted=True))


def test_phases() -> None:
    """Fitted rows are covered and not scored; quality C is in no number; six phases always."""
    rows = [scored(0.1), scored(0.9, fitted=True), scored(0.9, quality="C"),
            scored(0.3, phase="tpot", metric="tpot_ms")]
    lines = {s.name: s for s in by_phase([r.case.row for r in rows], rows)}
    assert list(lines)[:6] == ["batch1_decode", "prefill", "static_throughput", "max_throughput",
                               "tpot", "ttft"]
    first = lines["batch1_decode"]
    assert (first.covered, first.scored) == (2, 1)
    assert first.median_abs_ln == pytest.approx(0.1)
    assert lines["tpot"].median_abs_ln == pytest.approx(0.3)
    assert (lines["ttft"].n, lines["ttft"].median_abs_ln) == (0, None)
    assert "memory" not in lines


def test_sources() -> None:
    """Uncovered rows are asked for; memory isn't part of a source's times."""
    rows = [scored(0.1, "b"), scored(0.2, "a"), scored(0.9, "a", "memory", metric="weights_gib"),
            scored(0.5, "c", quality="C")]
    asked = [r.case.row for r in rows] + [replace(ROW, source="d")]
    lines = {s.name: s for s in by_source(asked, rows)}
    assert list(lines) == ["a", "b", "d"]
    assert (lines["a"].n, lines["a"].covered, lines["a"].scored) == (2, 2, 1)
    assert lines["a"].median_abs_ln == pytest.approx(0.2)
    assert (lines["d"].n, lines["d"].covered, lines["d"].scored) == (1, 0, 0)


def test_worst_are_of_different_groups() -> None:
    rows = [scored(0.9), scored(-0.8), scored(-0.7, device="k"), scored(3.0, fitted=True),
            scored(4.0, phase="memory"), scored(0.2, "b")]
    assert [r.error for r in worst(rows)] == pytest.approx([0.9, -0.7, 0.2])
    assert len(worst(rows, 1)) == 1
