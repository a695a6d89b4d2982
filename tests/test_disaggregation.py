"""Prefill and decode apart: paper rows, limits, and who wins when."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from simulator import Deployment, Parallelism, Workload, estimate
from simulator import disaggregation as g
from simulator.cli import cli, run
from simulator.errors import InputError
from simulator.specs.model import Attention

EIGHT = Deployment.of("llama-3.1-70b", "h100", parallelism=Parallelism(tp=8))
LONG = Workload(1, 8192, 256)


def test_book_ratio() -> None:
    """Scaling book: 0.91 s of prefill, 512 steps of 19 ms at batch 32: 3 prefill servers to 1."""
    assert g.pool_ratio(0.91, 512, 0.019, 32) == pytest.approx(3.0, rel=0.01)


def test_distserve_kv_of_opt_66b() -> None:
    """2401.09670: 512 tokens of OPT-66B are 1.125 GiB of KV cache (64 layers, 72 heads of 128)."""
    small = Deployment.of("opt-30b", "a100")
    group = small.model.layers[0]
    assert isinstance(group.mixer, Attention)
    big = small.model.replace(layers=(group.replace(count=64, mixer=group.mixer.replace(
        heads=72, kv_heads=72, head_dim=128)),))
    assert g.kv_transfer_bytes(small.replace(model=big), 512.0) == 1.125 * 2**30


def test_kv_bytes_hold_each_value_once() -> None:
    """Replicated heads or a replicated latent cross the link once, whatever the degrees."""
    for name in ("llama-3.1-70b", "deepseek-v3"):
        one = g.kv_transfer_bytes(Deployment.of(name, "h200"), 1000.0)
        many = Deployment.of(name, "h200", parallelism=Parallelism(tp=16))
        assert g.kv_transfer_bytes(many, 1000.0) == one


def test_all_but_the_last_layer_hides() -> None:
    """A slow prefill hides all layers but the last; a slow link shows all but the first layer's
    prefill; in between the two lines meet."""
    assert g.exposed_transfer(1.0, 100.0, 80.0, 0.0) == pytest.approx(1 / 80)
    assert g.exposed_transfer(10.0, 1.0, 80.0, 0.0) == pytest.approx(10 - 79 / 80)
    assert g.exposed_transfer(1.0, 0.0, 80.0, 0.0) == 1.0
    assert g.exposed_transfer(1.0, 1.0, 80.0, 5e-6) == pytest.approx(1 / 80 + 5e-6)


def test_exposed_against_a_simulated_pipeline() -> None:
    """Layer by layer: each leaves when it is done and the link is free."""
    for X, T, L in ((0.5, 1.0, 32), (3.0, 1.0, 32), (1.0, 1.0, 7)):
        free = 0.0
        for layer in range(L):
            free = max(free, (layer + 1) * T / L) + X / L
        assert g.exposed_transfer(X, T, float(L), 0.0) == pytest.approx(free - T)


def test_exposed_takes_arrays() -> None:
    X = np.array([0.1, 1.0, 10.0])
    rows = [float(g.exposed_transfer(x, 1.0, 32.0, 0.0)) for x in X]
    assert list(g.exposed_transfer(X, 1.0, 32.0, 0.0)) == rows
    assert rows == sorted(rows)


def test_link_of_an_instance() -> None:
    """Eight cards of 50 GB/s; the slower end counts; inside a domain NVLink's."""
    assert g.pool_link(EIGHT, EIGHT).bandwidth == pytest.approx(400e9)
    one = EIGHT.replace(parallelism=Parallelism(tp=4))
    assert g.pool_link(one, EIGHT).bandwidth == pytest.approx(200e9)
    assert g.pool_link(one, one, "link").bandwidth == pytest.approx(4 * 450e9)
    with pytest.raises(InputError, match="joins 8"):
        g.pool_link(EIGHT, EIGHT, "link")
    m4 = Deployment.of("llama-3.1-8b", "m4-max")
    with pytest.raises(InputError, match="scale_out_bandwidth"):
        g.pool_link(m4, m4)


def test_pools_are_rate_matched() -> None:
    s = g.pools(EIGHT, EIGHT, LONG, g.pool_link(EIGHT, EIGHT))
    assert s.ratio == pytest.approx(s.p.prefill / (255 * s.d.step(64) / 64))
    assert max(s.n_p / s.n_d, s.ratio) <= 1.1 * min(s.n_p / s.n_d, s.ratio)
    assert s.n == s.n_p + s.n_d
    assert g.whole_pools(3.0) == (3, 1)
    assert g.whole_pools(0.5) == (1, 2)
    assert g.whole_pools(1e9) == (16, 1)
    assert g.whole_pools(1e-9) == (1, 16)


def test_times_are_those_of_estimate() -> None:
    s = g.pools(EIGHT, EIGHT, LONG, g.pool_link(EIGHT, EIGHT))
    e = estimate(EIGHT, LONG)
    assert s.p.prefill == pytest.approx(float(e.ttft.expected))
    assert s.d.step(1.0) == pytest.approx(float(e.tpot.expected))
    quiet = s.disaggregated(1e-6)
    assert quiet.tpot == pytest.approx(s.d.step(1.0))
    assert quiet.ttft == pytest.approx(s.p.prefill + s.exposed, rel=1e-4)


def test_pools_win_when_prefill_interferes_and_lose_when_they_are_full() -> None:
    """With 8k prompts prefill takes most of a server; above what the pools can take they lose."""
    s = g.pools(EIGHT, EIGHT, LONG, g.pool_link(EIGHT, EIGHT))
    busy = s.default_rate
    assert s.disaggregated(busy).tpot < s.aggregated(busy).tpot
    assert s.disaggregated(busy).e2e < s.aggregated(busy).e2e
    assert s.disaggregated(busy).ttft > s.aggregated(busy).ttft    # fewer servers prefill
    step = s.d.step(s.batch)
    assert s.goodput(step) > 1.2 * s.aggregated_goodput(step)
    c = g.rate_crossing(s)
    lost = c.spans("aggregated")
    assert lost
    assert lost[-1][1] == c.high
    rate = math.sqrt(lost[-1][0] * lost[-1][1])
    assert s.aggregated(rate).e2e < s.disaggregated(rate).e2e


def test_aggregated_is_stretched_by_the_share_of_prefill() -> None:
    s = g.pools(EIGHT, EIGHT, LONG, g.pool_link(EIGHT, EIGHT))
    rate = 0.5 * s.n / s.d.prefill
    found = s.aggregated(rate)
    assert found.tpot == pytest.approx(s.d.step(found.batch) / (1 - 0.5))
    # Little's law holds: b = lambda G TPOT.
    assert found.batch == pytest.approx(rate / s.n * 255 * found.tpot, rel=1e-6)


def test_no_prefill_no_interference() -> None:
    """With prompts that cost nothing and no link, only the number of decoding instances differs."""
    d = g.Instance(1e-12, np.array([1.0, 64.0]), np.array([0.01, 0.02]), 101.0)
    s = g.Pools(d, d, 1, 1, 1.0, 0.0, 0.0, 64.0)
    assert s.goodput(0.02) == pytest.approx(s.aggregated_goodput(0.02), rel=1e-6)
    assert s.disaggregated(1.0).tpot == pytest.approx(s.aggregated(1.0).tpot)


def test_crossings() -> None:
    c = g.crossing("x", [1.0, 2.0, 4.0, 8.0], [False, True, True, False])
    assert c.turns == ((math.sqrt(2), "disaggregated"), (math.sqrt(32), "aggregated"))
    assert c.spans("aggregated") == [(1.0, math.sqrt(2)), (math.sqrt(32), 8.0)]
    assert g.crossing("x", [1.0, 2.0], [True, True]).spans("aggregated") == []


def test_input_rows_keep_the_devices() -> None:
    link = g.pool_link(EIGHT, EIGHT)
    s = g.pools(EIGHT, EIGHT, LONG, link, (2, 2))
    c, rows = g.input_crossing(EIGHT, EIGHT, LONG, s, 0.02)
    assert all(r.n_p + r.n_d == 4 for r in rows)
    assert [r.disaggregated for r in rows] == sorted((r.disaggregated for r in rows), reverse=True)
    assert c.low == 32


def test_command() -> None:
    result = CliRunner().invoke(cli, ["disaggregate", "llama-3.1-70b", "8xh100", "--input", "8k",
                                      "--json"])
    found = json.loads(result.stdout)
    pools = [found[phase]["instances"] for phase in ("prefill", "decode")]
    assert pools[0] / pools[1] == pytest.approx(found["ratio"], rel=0.1)
    assert found["ratio"] == pytest.approx(g.pool_ratio(
        found["prefill"]["time_s"], 255, found["decode"]["step_s"], found["decode"]["batch"]))
    assert found["devices"] == 8 * sum(pools)
    assert found["disaggregated"]["stable"]
    assert found["kv_transfer"]["bytes"] == 8192 * 327_680
    assert found["better_at_rate"] == "disaggregated"
    text = CliRunner().invoke(cli, ["disaggregate", "llama-3.1-70b", "8xh100", "--input", "8k"])
    assert "POOLS WIN" in text.stdout
    assert "Pools lose" in text.stdout
    assert all(len(line) <= 100 for line in text.stdout.splitlines())


@pytest.mark.parametrize("flags", [
    ["--rate", "0"], ["--rate", "x"], ["--over", "foo"], ["--output", "1"], ["--tpot", "1us"],
    ["--tpot", "-1ms"], ["--batch", "1000000"], ["--prefill", "0"], ["--prefix-hit", "0.5"],
    ["--prefill-hardware", "nothing"], ["--link-bandwidth", "0 GB/s"]])
def test_bad_input_is_one_line(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["disaggregate", "llama-3.1-8b", "h100", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("tokline: ")


def test_a_rate_that_nothing_keeps_up_with_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["disaggregate", "llama-3.1-8b", "h100", "--rate", "1000"]) == 1
    assert "NEITHER keeps up" in capsys.readouterr().out


def test_other_hardware_for_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["disaggregate", "llama-3.1-8b", "h100", "--prefill-hardware", "2xl40s",
                "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prefill"]["hardware"] == "l40s"
    assert found["prefill"]["parallelism"]["tp"] == 2
    assert found["kv_transfer"]["bandwidth_bytes_per_s"] == pytest.approx(50e9)


def test_the_link_is_part_of_the_capacity() -> None:
    """1 GB/s each carries 7.45 caches of 128 MiB a second; the scarcer pool's links count."""
    d = Deployment.of("llama-3.1-8b", "h100")
    slow = g.pool_link(d, d, bandwidth=1e9)
    s = g.pools(d, d, Workload(1, 1024, 256), slow)
    assert s.kv_bytes == 1024 * 131_072
    most = min(s.n_p, s.n_d) * 1e9 / s.kv_bytes
    assert s.link_rate == pytest.approx(most)
    assert s.rate() <= most
    assert s.goodput(1.0) <= most
    assert s.ratio == pytest.approx(1.0)      # both ends wait for their links
    assert s.disaggregated(0.99 * most).stable
    assert not s.disaggregated(1.01 * most).stable
    # rho D / (2 (1 - rho)) at half the load
    assert s.link_wait(0.5 * most) == pytest.approx(0.5 * s.kv_bytes / 1e9)
    fast = g.pools(d, d, Workload(1, 1024, 256), g.pool_link(d, d), (s.n_p, s.n_d))
    gain = s.disaggregated(0.5 * most).ttft - fast.disaggregated(0.5 * most).ttft
    assert gain == pytest.approx(s.link_wait(0.5 * most) + s.exposed - fast.exposed, rel=0.02)
    _, rows = g.input_crossing(d, d, Workload(1, 1024, 256), s, 1.0)
    assert all(r.disaggregated <= min(r.n_p, r.n_d) * 1e9 / (r.input * 131_072) * 1.001
               for r in rows)


def test_a_slow_link_makes_pools_lose(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["disaggregate", "llama-3.1-8b", "h100", "--link-bandwidth", "1GB/s", "--rate", "20",
             "--prefill", "1", "--decode", "1"]
    assert run([*flags, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["disaggregated"]["stable"]
    assert found["disaggregated"]["max_rate_per_s"] == found["kv_transfer"]["max_rate_per_s"]
    assert found["kv_transfer"]["max_rate_per_s"] == pytest.approx(1e9 / (1024 * 131_072))
    assert found["better_at_rate"] == "aggregated"
    assert run(flags) == 1
    assert "AGGREGATED WINS" in capsys.readouterr().out


def test_neither_is_better_where_neither_keeps_up(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["disaggregate", "llama-3.1-8b", "h100", "--rate", "100000"]
    assert run([*flags, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["better_at_rate"] is None
    assert run(flags) == 1
    out = capsys.readouterr().out
    assert "NEITHER" in out
    assert " WIN" not in out


def test_help_states_the_batch_that_is_used() -> None:
    text = " ".join(CliRunner().invoke(cli, ["disaggregate", "--help"]).stdout.split())
    assert f"without it {g.USUAL_BATCH}, or what fits" in text
    assert "--batch B Sequences of a decode instance" in text
