"""`tokline simulate` from the command line: the answer, its keys, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from plot_checks import problems

from simulator.cli import run

ASK = ["simulate", "llama-3.1-8b", "h100", "--input", "500", "--output", "100"]
PINNED = {"requests", "wall_s", "ttft_s", "ttft_no_queue_s", "tpot_s", "itl_s", "e2e_s",
          "output_tokens_per_s", "goodput_requests_per_s", "utilisation", "stable", "preemptions",
          "prefix_hit_rate"}


def asked(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    """The JSON of a run."""
    assert run([*args, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    x = asked(capsys, *ASK, "--rate", "8", "--requests", "300", "--slo-ttft", "1s",
              "--slo-tpot", "30ms")
    assert set(x) >= PINNED
    for name in ("ttft_s", "ttft_no_queue_s", "tpot_s", "itl_s", "e2e_s"):
        values = x[name]
        assert set(values) == {"mean", "p50", "p90", "p95", "p99", "low", "high"}
        assert values["p50"] <= values["p90"] <= values["p95"] <= values["p99"]
        assert values["low"]["p99"] <= values["p99"] <= values["high"]["p99"]
    assert x["stable"]
    assert x["served"] == 300
    assert 0 < x["utilisation"] < 0.85
    assert x["goodput_requests_per_s"] == pytest.approx(x["requests_per_s"])
    assert x["ttft_no_queue_s"]["mean"] <= x["ttft_s"]["mean"]
    assert sum(v for v in x["busy"].values()) == pytest.approx(1.0)
    again = asked(capsys, *ASK, "--rate", "8", "--requests", "300", "--slo-ttft", "1s",
                  "--slo-tpot", "30ms")
    assert {k: v for k, v in again.items() if k != "wall_s"} == {
        k: v for k, v in x.items() if k != "wall_s"}


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--rate", "8", "--requests", "200"]) == 0
    text = capsys.readouterr().out
    for words in ("KEEPS UP", "TTFT", "range of p50 and p99", "first and last 10%",
                  "Expectations"):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 130


def test_unstable(capsys: pytest.CaptureFixture[str]) -> None:
    """No percentile of a queue without an end, and exit code 1."""
    x = asked(capsys, *ASK, "--rate", "200", "--requests", "2000", code=1)
    assert x["stable"] is False
    assert x["utilisation"] > 1
    assert all(x[k] is None for k in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "ttft_no_queue_s"))
    assert x["output_tokens_per_s"] > 0
    assert run([*ASK, "--rate", "200"]) == 1
    assert "UNSTABLE" in capsys.readouterr().out


def test_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    x = asked(capsys, "simulate", "llama-3.1-70b", "l40s", "--rate", "1", code=1)
    assert x["stable"] is False
    assert set(x) >= PINNED
    assert "no memory" in x["reason"]


def test_closed_loop_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, picture = tmp_path / "r.csv", tmp_path / "t.png"
    x = asked(capsys, *ASK, "--concurrency", "8", "--requests", "100", "--csv", str(table), "-o",
              str(picture))
    assert x["concurrency"] == 8
    assert x["stable"]
    rows = pd.read_csv(table)
    assert len(rows) == 100
    assert np.allclose(rows["e2e_s"], rows["finish_s"] - rows["arrival_s"])
    assert Image.open(picture).size[0] > 1000


def test_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Failed requests are left out, those beyond the context rejected; both are counted."""
    trace = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:17:{i:02d}.0000000,{100 + i},{0 if i == 5 else 20}" for i in range(40)]
    rows[7] = "2023-11-16 18:17:07.0000000,1000000,5"
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    x = asked(capsys, "simulate", "llama-3.1-8b", "h100", "--trace", str(trace))
    assert x["served"] == 38
    assert sum(x["dropped"].values()) == 1
    assert list(x["rejected"].values()) == [1]
    assert "131,072 positions" in next(iter(x["rejected"]))
    faster = asked(capsys, "simulate", "llama-3.1-8b", "h100", "--trace", str(trace),
                   "--scale", "4")
    assert faster["offered_requests_per_s"] == pytest.approx(4 * x["offered_requests_per_s"])


def test_prefixes_pools_and_routing(capsys: pytest.CaptureFixture[str]) -> None:
    x = asked(capsys, "simulate", "llama-3.1-8b", "h100", "--rate", "8", "--requests", "200",
              "--input", "2000", "--output", "50", "--shared-prefix", "1600", "--replicas", "2",
              "--routing", "prefix-aware")
    assert x["replicas"] == 2
    assert x["prefix_hit_rate"] > 0.7
    pools = asked(capsys, "simulate", "llama-3.1-8b", "h100", "--rate", "8", "--requests", "200",
                  "--input", "2000", "--output", "50", "--replicas", "1", "--prefill-replicas",
                  "2")
    whole = asked(capsys, "simulate", "llama-3.1-8b", "h100", "--rate", "8", "--requests", "200",
                  "--input", "2000", "--output", "50", "--replicas", "3")
    assert pools["prefill_replicas"] == 2
    # Nothing stops decoding any more.
    assert pools["itl_s"]["p99"] < whole["itl_s"]["p99"]


@pytest.mark.parametrize(("args", "words"), [
    ([], "one of --rate, --trace or --concurrency"),
    (["--rate", "5", "--concurrency", "3"], "not --rate and --concurrency"),
    (["--rate", "-3"], "not above 0"),
    (["--rate", "nan"], "--rate: nan requests/s is not above 0 and finite"),
    (["--rate", "inf"], "--rate: inf requests/s is not above 0 and finite"),
    (["--rate", "much"], "--rate: 'much' is not a number"),
    (["--rate", "5", "--input", "1024", "--shared-prefix", "5000"], "5,000 tokens are longer"),
    (["--rate", "5", "--input", "1000000"], "--input 1000000 --output 256: none can be served"),
    (["--rate", "5", "--input", "131000", "--output", "500"], "131,072 positions of llama-3.1-8b"),
    (["--rate", "5", "--input", "uniform:200k:300k"], "--input uniform:200k:300k"),
    (["--rate", "5", "--over", "link"], "no prefill pool"),
    (["--concurrency", "5", "--arrivals", "constant"], "--arrivals: not with --concurrency"),
    (["--concurrency", "5", "--cv", "2"], "--cv: not with --concurrency"),
    (["--rate", "5", "--input", "uniform:9:3"], "runs backwards"),
    (["--rate", "5", "--output", "0"], "--output"),
    (["--rate", "5", "--scheduler", "chunky"], "did you mean 'chunked'"),
    (["--rate", "5", "--routing", "robin"], "--routing: unknown 'robin'"),
    (["--rate", "5", "--preemption", "drop"], "preemption: unknown 'drop'"),
    (["--rate", "5", "--arrivals", "burst"], "unknown arrivals"),
    (["--rate", "5", "--cv", "2"], "--cv"),
    (["--rate", "5", "--seed", "x"], "--seed"),
    (["--rate", "5", "--slo-ttft", "0s"], "not above 0"),
    (["--rate", "5", "--slo-ttft", "5"], "--slo-ttft"),
    (["--rate", "5", "--window", "1:2"], "no --trace"),
    (["--rate", "5", "--requests", "10", "--duration", "10"], "--duration"),
    (["--rate", "5", "--input", "200000"], "none can be served"),
    (["--rate", "5", "--batched-tokens", "64", "--max-sequences", "64"], "leave no room"),
    (["--rate", "5", "--link-bandwidth", "50 GB/s"], "no prefill pool"),
    (["--concurrency", "2", "--replicas", "4"], "leave some of 4 replicas idle"),
    (["--trace", "nowhere.csv"], "nowhere.csv"),
    (["--trace", "nowhere.csv", "--input", "5"], "lengths of its own"),
    (["--rate", "5", "-o", "x.xyz"], "no picture format"),
    (["--rate", "5", "--requests", "20", "--csv", "/nowhere/x.csv"], "does not exist"),
    (["--rate", "5", "--batch", "3"], "no such option"),
])
def test_refused(capsys: pytest.CaptureFixture[str], args: list[str], words: str) -> None:
    assert run(["simulate", "llama-3.1-8b", "h100", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_timeline() -> None:
    from simulator import Deployment
    from simulator.plots.timeline_chart import timeline
    from simulator.serving.requests import requests_of
    from simulator.serving.simulate import Slo, simulate

    d = Deployment.of("llama-3.1-8b", "h100")
    times = np.cumsum(np.random.default_rng(0).exponential(0.1, 400))
    s = simulate(d, requests_of(times, np.full(400, 800), np.full(400, 100)), slo=Slo(0.5),
                 ranges=False)
    for theme in ("light", "dark"):
        figure, data = timeline(s, theme=theme)
        assert problems(figure) == []
        assert {"time_s", "running", "waiting", "kv_share", "ttft_p99_s"} <= set(data.columns)
        assert "requests/s" in data.attrs["title"]
