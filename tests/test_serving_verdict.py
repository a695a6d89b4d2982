"""Whether a run keeps up: the largest rate, runs too short to say, requests that nothing holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_serving_laws import ROOMY, Flat, one_at_a_time, poisson

from simulator import Deployment
from simulator.cli import run
from simulator.errors import InputError
from simulator.serving.policy import Policy
from simulator.serving.requests import Requests, requests_of, within_positions
from simulator.serving.run import Setup
from simulator.serving.simulate import (
    DoesNotFit,
    backlog,
    fitting,
    largest_rate,
    memory_for,
    simulate,
)

ASK = ["simulate", "llama-3.1-8b", "h100"]
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def hashed(n: int, tokens: Any, shared: int = 2) -> Requests:
    """n prompts in blocks of 16 tokens; neighbours two by two share their first blocks."""
    prompt = np.broadcast_to(np.asarray(tokens, dtype=np.int64), n)
    counts = prompt // 16
    ids = np.concatenate([[(i // 2 if j < shared else i) * 1000 + j for j in range(c)]
                          for i, c in enumerate(counts)]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Requests(np.arange(n, dtype=float), prompt, np.full(n, 3), ids, starts, 16)


# --- the largest rate -------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", [True, False])
def test_a_backlog_stands_for_the_whole(sharing: bool) -> None:
    """Prompts grow along the trace from 16 to 4,000 tokens: all of the sample has their mean."""
    prompt = np.linspace(16, 4000, 12_000).astype(np.int64)
    r = hashed(12_000, np.minimum(prompt, 640)) if sharing else requests_of(
        np.arange(12_000.0), prompt, np.full(12_000, 3))
    found = backlog(r, 36.0)
    assert not found.arrival.any()
    assert found.input.mean() == pytest.approx(r.input.mean(), rel=0.01)
    for part in (found.input[:len(found) // 2], found.input[len(found) // 2:]):
        assert part.mean() == pytest.approx(r.input.mean(), rel=0.06)


def test_a_backlog_keeps_neighbours_together() -> None:
    """Half of all prompts find what the one before them left, in the sample as in the trace."""
    found = backlog(hashed(12_000, 64), 36.0)
    firsts = np.array([found.blocks_of(i)[0] for i in range(len(found))])
    assert np.mean(firsts[1:] == firsts[:-1]) == pytest.approx(0.5, abs=0.01)


def test_copies_of_a_short_trace_share_nothing_new() -> None:
    """Of 6 prompts three find half of theirs; so it stays when they are repeated."""
    found = backlog(hashed(6, 64), 36.0)
    assert len(found) >= 400
    assert found.blocks is not None
    assert np.unique(found.blocks).size / len(found.blocks) == pytest.approx(0.75)


def test_largest_rate_of_drifting_lengths() -> None:
    """Half of the prompts take 1 s, half 3 s: 0.5 a second, wherever they stand."""
    class ByLength(Flat):
        def mixed(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
            return sum(1.0 if n < 100 else 3.0 for n, _ in prompts)

    setup = Setup(ByLength(0.0, 0.0), one_at_a_time(), ROOMY)
    prompt = np.repeat([16, 160], 3000)
    r = requests_of(np.linspace(0.0, 24e3, 6000), prompt, np.ones(6000, dtype=np.int64))
    assert largest_rate(setup, r) == pytest.approx(0.5, rel=0.03)
    sharing = Requests(r.arrival, r.input, r.output, np.arange(6000), np.arange(6001), 16)
    assert largest_rate(setup, sharing) == pytest.approx(0.5, rel=0.03)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.floats(2.0, 60.0), st.one_of(st.none(), st.integers(1, 600)))
def test_no_run_serves_more_than_the_largest_rate(seed: int, rate: float, users: int | None
                                                  ) -> None:
    rng = np.random.default_rng(seed)
    n = 300
    r = requests_of(np.cumsum(rng.exponential(1.0 / rate, n)), rng.integers(1, 3000, n),
                    rng.integers(1, 200, n))
    s = simulate(Deployment.of("llama-3.1-8b", "h100"), r, concurrency=users, ranges=False)
    x = s.summary()
    assert x["requests_per_s"] <= x["largest_requests_per_s"]
    assert users is None or x["utilisation"] <= 1.0


# --- too few to say ---------------------------------------------------------------------------


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run([*ASK, *args, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("rows", "words"), [
    (["18:17:03.0000000,400,10", "18:17:03.0070000,396,10"], "2 requests are too few"),
    (["18:17:03.0,400,10"] * 3, "all arrive at once"),
    (["18:17:03.0,400,10"] * 60, "all arrive at once"),
    (["18:17:03.0,400,10"], "1 request is too few"),
    ([f"18:17:{i:02d}.0,400,10" for i in range(49)], "49 requests are too few"),
])
def test_too_few_to_judge(capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: list[str],
                          words: str) -> None:
    """Percentiles of what there is, and no word on whether it keeps up."""
    trace = tmp_path / "few.csv"
    trace.write_text("\n".join([HEAD, *(f"2023-11-16 {row}" for row in rows)]) + "\n")
    x = asked(capsys, "--trace", str(trace))
    assert x["judged"] is False
    assert x["stable"] is True
    assert x["ttft_s"]["p99"] >= x["ttft_s"]["p50"] > 0.0
    assert run([*ASK, "--trace", str(trace)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"NOT JUDGED {words}" in text
    assert "KEEPS UP" not in text
    assert "- requests/s" not in text


def test_fifty_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "--rate", "2", "--requests", "50")["judged"] is True
    assert run([*ASK, "--rate", "900", "--requests", "50"]) == 1
    assert "UNSTABLE" in capsys.readouterr().out


# --- beyond the positions, beyond the memory --------------------------------------------------


def test_a_row_beyond_the_positions_is_left_out(capsys: pytest.CaptureFixture[str],
                                                tmp_path: Path) -> None:
    """A million tokens draw no mean: the other row is served as if alone, the one counted."""
    both, one = tmp_path / "both.csv", tmp_path / "one.csv"
    both.write_text(f"{HEAD}\n2023-11-16 18:17:03.0,1000000,10\n2023-11-16 18:17:04.0,396,10\n")
    one.write_text(f"{HEAD}\n2023-11-16 18:17:04.0,396,10\n")
    x, y = asked(capsys, "--trace", str(both)), asked(capsys, "--trace", str(one))
    assert x["rejected"] == {"beyond the 131,072 positions of llama-3.1-8b": 1}
    assert x["served"] == y["served"] == 1
    assert x["ttft_s"]["mean"] == pytest.approx(y["ttft_s"]["mean"], rel=1e-9)
    assert x["kv_tokens"] == y["kv_tokens"]
    both.write_text(f"{HEAD}\n2023-11-16 18:17:03.0,1000000,10\n")
    assert run([*ASK, "--trace", str(both)]) == 2
    words = capsys.readouterr().err
    assert "both.csv" in words
    assert "1,000,000 + 10 tokens are beyond the 131,072 positions" in words


def test_within_positions() -> None:
    model = Deployment.of("llama-3.1-8b", "h100").model
    r = requests_of(np.arange(4.0), np.array([131_071, 131_072, 10, 131_062]),
                    np.array([1, 1, 200_000, 10]))
    kept, left = within_positions(r, model)
    assert kept.input.tolist() == [131_071, 131_062]
    assert left == {"beyond the 131,072 positions of llama-3.1-8b": 2}
    with pytest.raises(InputError, match=r"--input: none can be served; the shortest has 131,072"):
        within_positions(r.take(np.array([1, 2])), model, "--input")


def test_what_no_memory_holds_draws_no_mean() -> None:
    """Two of three prompts are longer than an L4's KV memory; the third is served."""
    d = Deployment.of("llama-3.1-8b", "l4")
    lengths = np.array([120_000, 120_000, 500])
    r = requests_of(np.arange(3.0), lengths, np.full(3, 10))
    memory = memory_for(r, d, Policy.of(d))
    kept, left = fitting(r, d, memory)
    assert kept.input.tolist() == [500]
    assert list(left.values()) == [2]
    s = simulate(d, r, ranges=False)
    assert s.input.tolist() == [500]
    assert s.memory == memory_for(kept, d, Policy.of(d))
    with pytest.raises(DoesNotFit, match=r"120,000 \+ 10 tokens"):
        simulate(d, r.take(np.array([0, 1])), ranges=False)


def test_peak_memory_of_a_run() -> None:
    """At most 100 bytes a finished request at the worst moment, its own columns included."""
    import tracemalloc

    d, peaks = Deployment.of("llama-2-7b", "a100-sxm4-80gb"), []
    simulate(d, poisson(2_000, 10.0, output=4, prompt=512), ranges=False).summary()
    for n in (40_000, 80_000):
        r = poisson(n, 10.0, output=4, prompt=512)
        r = replace(r, output=np.array(r.output))
        tracemalloc.start()
        simulate(d, r, ranges=False).summary()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Tables of step times stay the same however many requests there are. A request is 24 bytes.
    assert 24 + (peaks[1] - peaks[0]) / 40_000 < 100


def test_timeline_of_a_burst(tmp_path: Path) -> None:
    """Requests without a rate have a picture with a title in words."""
    from simulator.plots.timeline_chart import timeline

    s = simulate(Deployment.of("llama-3.1-8b", "h100"), requests_of(
        np.zeros(3), np.full(3, 400), np.full(3, 10)), ranges=False)
    data = timeline(s).data
    assert data.attrs["title"].startswith("all at once: 99 % of first tokens within")
    assert data["running"].max() == 3.0
