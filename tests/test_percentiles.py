"""Which percentile notes say that a figure is: tails are told from means, mentions from figures."""

from __future__ import annotations

import pytest

from simulator.validation.percentiles import percentile_of


@pytest.mark.parametrize(("notes", "found"), [
    ("p99", "p99"),
    ("P95 TTFT", "p95"),
    ("TTFT (P99)", "p99"),
    ("table 3, p90 of 5 runs", "p90"),
    ("p99.9", "p99.9"),
    ("99th percentile latency", "p99"),
    ("95-percentile", "p95"),
    ("tail latency", "tail"),
    ("p99 = 812 ms; as printed", "p99"),             # its value is the row's
    ("p99; mean = 20 ms", "p99"),                    # the mean is the other figure
    ("ttft p99 ms", "p99"),                          # the name of a metric
])
def test_a_tail(notes: str, found: str) -> None:
    assert percentile_of(notes, 812.0) == found


@pytest.mark.parametrize("notes", [
    "", "as printed", "median", "P50", "p50 of 5 runs", "50th percentile",
    "median of 5 repeats (derived)",
    "median; p99 = 210 ms", "median; p99 210 ms", "mean; p99", "avg; P99=1,234",
    "p99: 210 ms", "p99 TTFT 210 ms", "p99 (mean: 30 ms)",
    "p99 TTFT below the SLO", "p95 < 2 s", "goodput at p99 of 100 ms",
    "Tesla P40", "NVIDIA P100", "p4d.24xlarge", "p5.48xlarge", "tail of the table", "page 99",
    "99% of peak"])
def test_not_a_tail(notes: str) -> None:
    """Means and medians, percentiles in passing or as a limit, and what only looks like one."""
    assert percentile_of(notes, 812.0) is None
