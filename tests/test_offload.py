"""Weights, experts and KV cache in a farther memory: bytes, times, capacities, flags."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Hardware, Parallelism, Workload, estimate
from simulator import offload as f
from simulator.cli import run
from simulator.errors import InputError
from simulator.operations.moe import experts_touched
from simulator.placement import least_share, placed
from simulator.specs.model import Moe

DENSE = Deployment.of("llama-3.1-70b", "h100", engine="ideal")
W = Workload(4, 1024, 64)


def host(d: Deployment, **shares: Any) -> Deployment:
    return d.replace(offload=f.far_memory(d.hardware, "host").replace(**shares))


# formulas

def test_far_bandwidth_is_the_slower() -> None:
    assert f.far_bandwidth(300e9, 64e9) == 64e9
    assert f.far_bandwidth(20e9, 64e9) == 20e9


def test_times_add_and_overlap_hides() -> None:
    assert f.split_time(10.0, 2.0, 5.0, 1.0) == 4.0
    assert f.exposed_time(3.0, 2.0, 0.0) == 3.0
    assert f.exposed_time(3.0, 2.0, 1.0) == 1.0
    assert f.exposed_time(1.0, 2.0, 1.0) == 0.0
    assert f.largest_share(60.0, 100.0) == pytest.approx(0.4)
    assert f.largest_share(200.0, 100.0) == 0.0


# the plain path

@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gemma-3-27b"])
def test_nothing_offloaded_is_bit_identical(name: str) -> None:
    """Shares of zero give what no offload gives, to the last bit."""
    d = Deployment.of(name, "h200", parallelism=Parallelism(tp=8))
    plain, none = estimate(d, W), estimate(host(d), W)
    for field in ("ttft", "tpot", "e2e"):
        assert getattr(plain, field).all == getattr(none, field).all
    assert plain.memory.total == none.memory.total
    assert plain.memory.max_context == none.memory.max_context


# dense weights by hand

def test_half_the_weights_by_hand() -> None:
    """Ceiling: far bytes over the link, where they take longer than all the rest. Expected without
    an engine: near step and far bytes one after the other."""
    plain, half = estimate(DENSE, W), estimate(host(DENSE, weights=0.5), W)
    streamed = sum(float(t.operation.weights * t.operation.count)
                   for t in plain.decode.detail.operations)
    far = 0.5 * streamed / 64e9
    assert float(half.tpot.ceiling) == pytest.approx(far)
    near = float(half.tpot.expected) - far
    assert near < float(plain.tpot.expected)
    assert near == pytest.approx(float(plain.tpot.expected) - 0.5 * streamed / 3.35e12, rel=0.02)
    assert half.memory.far is not None
    assert half.memory.weights == pytest.approx(0.5 * plain.memory.weights)
    assert half.memory.far.weights + half.memory.weights == pytest.approx(plain.memory.weights)


def test_an_engine_reaches_a_share_of_the_link() -> None:
    d = Deployment.of("llama-3.1-70b", "h100")
    e = estimate(host(d, weights=1.0), W)
    extra = e.decode.detail.operations[-1]
    assert extra.operation.name == "offload"
    assert float(extra.expected) == pytest.approx(float(extra.wire) / 64e9 / f.LINK_EFFICIENCY)
    assert e.decode.detail.bound == "network"


def test_operations_add_up() -> None:
    for pp in (1, 4):
        d = host(Deployment.of("mixtral-8x7b", "h100", parallelism=Parallelism(pp=pp)),
                 weights=0.3, experts=0.7, kv=0.2)
        e = estimate(d, W)
        for phase in (e.prefill.detail, e.decode.detail):
            total = sum(float(t.expected) for t in phase.operations) + float(phase.host)
            assert total == pytest.approx(float(phase.expected), rel=1e-12)
            assert sum(float(t.ceiling) for t in phase.operations) == pytest.approx(
                float(phase.ceiling), rel=1e-12)


# experts

def test_offloaded_experts_are_the_expected_distinct_ones() -> None:
    """Mixtral at batch 4: 8 (1 - 0.75^4) experts of 3 matrices a layer, half of them far."""
    d = Deployment.of("mixtral-8x7b", "h200", engine="ideal")
    ffn = d.model.layers[0].ffn
    assert isinstance(ffn, Moe)
    touched = float(experts_touched(8.0, 2.0, 4.0))
    assert touched == pytest.approx(8 * (1 - 0.75**4))
    e = estimate(host(d, experts=0.5), Workload(4, 1024, 64))
    far = 0.5 * touched * 3 * d.model.hidden * ffn.width * 2 * 32
    assert float(e.decode.detail.wire) == pytest.approx(far)
    assert e.memory.far is not None
    assert float(e.memory.far.weights) == pytest.approx(
        0.5 * 8 * 3 * d.model.hidden * ffn.width * 2 * 32)


def test_experts_have_their_own_share() -> None:
    o = f.Offload(weights=0.2, experts=0.0)
    assert o.share("ffn") == 0.2
    assert o.share("experts") == 0.0
    assert f.Offload(weights=0.2).share("experts") == 0.2


# KV cache

def test_offloaded_kv_makes_room_and_takes_time() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    long = Workload(64, 8192, 256)
    plain, far = estimate(d, long), estimate(host(d, kv=0.5), long)
    assert far.memory.far is not None
    assert float(far.memory.kv + far.memory.far.kv) == pytest.approx(float(plain.memory.kv))
    assert far.memory.max_batch >= 1.9 * plain.memory.max_batch
    assert float(far.memory.kv_ideal) == pytest.approx(float(plain.memory.kv_ideal))
    moved = float(far.decode.detail.wire)
    kv = 64 * 131_072 * (8193 + 8447) / 2    # mean context of the 255 steps
    assert moved == pytest.approx(0.5 * kv, rel=1e-3)
    assert far.tpot.expected > plain.tpot.expected


def test_a_window_of_kv_is_bounded() -> None:
    """Far KV of window layers stops growing at the window, as near KV does."""
    d = Deployment.of("gemma-3-27b", "h200", engine="ideal")
    near = estimate(d, Workload(1, 30_000, 2)).decode.detail
    far = estimate(host(d, kv=1.0), Workload(1, 30_000, 2)).decode.detail
    kv = sum(float(t.operation.kv * t.operation.count) for t in near.operations)
    assert float(far.wire) == pytest.approx(kv, rel=1e-3)


# capacities

def test_both_levels_are_checked() -> None:
    far = f.far_memory(DENSE.hardware, "host", capacity=50e9).replace(weights=0.5)
    m = estimate(DENSE.replace(offload=far), W).memory
    assert m.far is not None
    assert not m.far.fits    # 70 GB in 50
    assert not m.fits
    assert m.total < m.capacity
    roomy = estimate(DENSE.replace(offload=far.replace(capacity=80e9)), W).memory
    assert roomy.fits


def test_far_room_limits_batch_and_context() -> None:
    d = Deployment.of("llama-3.1-8b", "h100", engine="ideal")
    far = f.far_memory(d.hardware, "host", capacity=1024 * 131_072 * 10.0).replace(kv=1.0)
    m = estimate(d.replace(offload=far), Workload(1, 1000, 24)).memory
    assert m.max_batch == 10
    assert m.max_context == 10_240


def test_automatic_is_just_what_does_not_fit() -> None:
    far = f.far_memory(DENSE.hardware, "host")
    d = placed(DENSE, W, far, ["weights"])
    assert d.offload is not None
    m = estimate(d, W).memory
    assert m.fits
    assert float(m.total) == pytest.approx(float(m.capacity), rel=1e-9)
    less = d.replace(offload=d.offload.replace(weights=d.offload.weights - 1e-6))
    assert not estimate(less, W).memory.fits
    small = Deployment.of("llama-3.1-8b", "h100")
    assert placed(small, W, far, ["weights", "kv"]).offload is None
    assert least_share(small, W, "weights") == 0.0


def test_automatic_moves_experts_first() -> None:
    d = Deployment.of("mixtral-8x7b", "a100", engine="ideal")
    found = placed(d, Workload(1, 1024, 64), f.far_memory(d.hardware, "host"),
                   ["kv", "weights", "experts"])
    assert found.offload is not None
    assert found.offload.experts
    assert (found.offload.weights, found.offload.kv) == (0.0, 0.0)


# where to

def test_tiers_by_part_of_their_name() -> None:
    gh = Hardware.load("gh200-144gb")
    far = f.far_memory(gh, "grace")
    assert (far.bandwidth, far.linked) == (450e9, False)
    assert far.capacity == 480e9
    corsair = f.far_memory(Hardware.load("corsair"), "LPDDR5X capacity tier")
    assert (corsair.bandwidth, corsair.capacity) == (400e9, 256e9)


def test_a_slow_host_memory_is_the_bottleneck() -> None:
    h = Hardware.load("h100")
    assert f.far_memory(h, "host", memory=20e9).bandwidth == 20e9
    assert f.far_memory(h, "host", memory=200e9).bandwidth == 64e9


@pytest.mark.parametrize(("hardware", "to", "words"), [
    ("h100", "flash", "no such tier"), ("m4-max", "host", "no host link"),
    ("mn-core-2", "local", "faster")])
def test_refusals(hardware: str, to: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        f.far_memory(Hardware.load(hardware), to)


@pytest.mark.parametrize("shares", [{"weights": 1.5}, {"kv": -0.1}, {"overlap": math.nan}])
def test_impossible_shares(shares: dict[str, float]) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        host(DENSE, **shares)


# laws

@given(st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"]),
       st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(1, 64))
@settings(max_examples=25, deadline=None)
def test_more_far_is_never_faster(name: str, a: float, b: float, kv: float, batch: int) -> None:
    low, high = sorted((a, b))
    d = Deployment.of(name, "h200")
    w = Workload(batch, 2048, 32)
    less, more = (estimate(host(d, weights=x, kv=kv), w) for x in (low, high))
    for part in ("ttft", "tpot"):
        one, two = getattr(less, part), getattr(more, part)
        assert two.expected >= one.expected * (1 - 1e-12)
        assert two.ceiling >= one.ceiling * (1 - 1e-12) or two.ceiling >= 0
        for x in (one, two):
            assert x.ceiling <= x.low <= x.expected <= x.high
    assert more.memory.weights <= less.memory.weights * (1 + 1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=25, deadline=None)
def test_overlap_never_slows_nor_beats_the_ceiling(share: float, overlap: float) -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    plain = estimate(host(d, weights=share), W)
    e = estimate(host(d, weights=share, overlap=overlap), W)
    assert e.tpot.expected <= plain.tpot.expected
    assert e.tpot.expected >= e.tpot.ceiling
    assert e.tpot.ceiling == plain.tpot.ceiling


# command line

def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "llama-3.1-70b", "h100", "--offload-weights", "auto", "--json",
                "--host-memory", "512 GiB"]) == 0
    found = json.loads(capsys.readouterr().out)
    far = found["memory"]["offload"]
    assert far["to"] == "host"
    assert far["bandwidth_bytes_per_s"] == 64e9
    both = far["weights_bytes"] + found["memory"]["weights_bytes"]
    assert both == pytest.approx(141.1e9, rel=1e-3)
    assert far["fits"]
    assert found["decode"]["bound"] == "network"
    assert found["decode"]["operations"][-2]["name"] == "offload"
    assert run(["memory", "llama-3.1-70b", "h100", "--offload-weights", "0.5",
                "--host-memory", "32 GiB"]) == 1
    assert "DOES NOT FIT 32.0 GiB" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [
    ["--offload-weights", "2"], ["--offload-weights", "x"], ["--offload-experts", "auto"],
    ["--offload-kv", "0.5", "--offload-to", "tape"], ["--host-memory", "64 GiB"],
    ["--offload-kv", "0.5", "--host-memory", "0 GiB"], ["--offload-kv", "1",
                                                        "--offload-overlap", "2"]])
def test_bad_input_is_one_line(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "llama-3.1-8b", "h100", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("tokline: ")


@pytest.mark.parametrize("extra", [[], ["--offload-kv", "0.5"]])
def test_the_verdict_is_of_the_memory_that_lacks_room(
        extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["estimate", "llama-3.1-8b", "h100", "--offload-weights", "0.5", "--host-memory",
             "1GiB", *extra]
    assert run(flags) == 1
    out = capsys.readouterr().out
    line = next(x for x in out.splitlines() if x.startswith("DOES NOT FIT"))
    assert line.startswith("DOES NOT FIT: far memory host: 7.")
    assert "1.00 GiB there, 6." in line
    assert "too much" in line
    assert "-" not in line
    assert "max batch 0 at this length; max context 0 at this batch" in " ".join(out.split())
    assert run([*flags, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["memory"]
    assert (found["fits"], found["max_batch"], found["max_context"]) == (False, 0, 0)
    assert run(["estimate", "llama-3.1-405b", "h100", "--offload-weights", "0.5",
                "--host-memory", "1GiB"]) == 1
    both = " ".join(capsys.readouterr().out.split())
    assert both.count("too much") >= 2
    assert "too much; far memory host: " in both


@pytest.mark.parametrize(("flags", "words"), [
    (["--offload-overlap", "0.5"], "--offload-overlap: nothing is offloaded"),
    (["--offload-to", "host"], "--offload-to: nothing is offloaded"),
    (["--offload-to", "hots"], "did you mean 'host'?"),
    (["--offload-to", "", "--offload-kv", "0.5"], "no such tier"),
    (["--offload-to", "hots", "--offload-kv", "0.5", "--host-memory", "9GiB"],
     "did you mean 'host'?"),
])
@pytest.mark.parametrize("command", ["estimate", "memory"])
def test_flags_that_change_nothing_are_refused(
        command: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "llama-3.1-8b", "h100", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
