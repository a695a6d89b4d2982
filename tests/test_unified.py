"""Machines whose memory the OS shares, and chips with on-chip memory alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simulator import Deployment, Hardware, Parallelism, Workload, estimate
from simulator.advice import changes_that_fit
from simulator.cli import run
from simulator.specs.catalogue import catalogue, load_hardware
from simulator.specs.stack import stack

UNIFIED = [name for name in catalogue("hardware")
           if "unified" in (load_hardware(name).memory_type or "")]


def test_every_unified_machine_has_a_share_of_the_os() -> None:
    assert len(UNIFIED) == 32
    for name in UNIFIED:
        h = load_hardware(name)
        assert h.os_reserve is not None
        r, source = h.ranges["os_reserve"], h.provenance["os_reserve"]
        assert 0 < r.low <= h.os_reserve <= r.high <= 0.5
        assert source.confidence == "inferred"
        assert h.usable_capacity == pytest.approx(h.memory_capacity * (1 - h.os_reserve))


def test_metal_leaves_three_quarters() -> None:
    """recommendedMaxWorkingSetSize: 3/4 of large machines, 2/3 of small ones."""
    assert Hardware.load("m4-max").usable_capacity == 96e9
    assert Hardware.load("apple-m1").usable_capacity == pytest.approx(16e9 * 2 / 3, rel=0.01)


def test_the_share_is_in_the_reserve_and_in_the_limits() -> None:
    """What fits is 96 GB less the engine's own; with the OS switched off it is 128 GB."""
    d = Deployment.of("llama-3.1-70b", "m4-max", engine="ideal", weights="int8")
    m = estimate(d).memory
    assert float(m.reserved) == pytest.approx(32e9)
    whole = estimate(d.replace(hardware=d.hardware.replace(os_reserve=None))).memory
    assert whole.pool.bytes - m.pool.bytes == pytest.approx(32e9)
    assert whole.max_batch > m.max_batch
    assert whole.max_context > m.max_context
    assert m.capacity == whole.capacity == 128e9
    # 141 GB of bf16 weights fit 150 GB and not the 112 that an OS would leave of them.
    full = Deployment.of("llama-3.1-70b", "m4-max", engine="ideal").replace(
        hardware=d.hardware.replace(memory_capacity=150e9, os_reserve=None))
    assert estimate(full).memory.fits
    assert not estimate(full.replace(hardware=full.hardware.replace(os_reserve=0.25))).memory.fits


def test_it_moves_no_time() -> None:
    d = Deployment.of("llama-3.1-8b", "m4-max")
    without = d.replace(hardware=d.hardware.replace(os_reserve=None))
    assert estimate(d).tpot.all == estimate(without).tpot.all
    assert "os_reserve" not in d.hardware.timed_ranges


def test_stacked_with_other_devices() -> None:
    """In a grid a device without a share of the OS keeps its whole memory."""
    one = stack([load_hardware("m4-max"), load_hardware("h100")])
    assert np.ravel(one.usable_capacity).tolist() == [96e9, load_hardware("h100").memory_capacity]
    mixed = stack([load_hardware("groq"), load_hardware("h100")])
    assert np.ravel(mixed.runtime).tolist() == [0.0, 1.0]


def test_stacked_memory_is_that_of_each() -> None:
    names = ["groq", "h100", "m4-max"]
    w = Workload(1.0, 64.0, 8.0)
    both = estimate(Deployment.of("llama-3.2-1b", "h100", weights="int4-g128").replace(
        hardware=stack([load_hardware(n) for n in names])), w).memory
    for i, name in enumerate(names):
        alone = estimate(Deployment.of("llama-3.2-1b", name, weights="int4-g128"), w).memory
        for field in ("reserved", "max_batch", "max_context", "fits"):
            assert np.ravel(getattr(both, field))[i] == pytest.approx(float(getattr(alone, field)))


def test_verdict_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "llama-3.1-8b", "m4-max", "--engine", "llama.cpp"]) == 0
    assert "the OS keeps 29.8 GiB of it (25%, 16% to 25%)" in capsys.readouterr().out
    assert run(["memory", "llama-3.1-8b", "m4-max", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["os_reserved_bytes"] == 32e9


# on-chip memory alone

def test_on_chip_memory_holds_no_runtime() -> None:
    d = Deployment.of("llama-3.1-70b", "groq", weights="int8",
                      parallelism=Parallelism(tp=64, pp=9))
    assert estimate(d).memory.reserved == pytest.approx(0, abs=1)


def test_groq_holds_70b_on_a_rack_of_576() -> None:
    """9 layers a stage over 64 chips: 120 MB of int8 weights and the embedding's share of 219 MiB.

    At bf16 the 141 GB are more than the 132 GB of 576 chips.
    """
    d = Deployment.of("llama-3.1-70b", "groq", weights="int8",
                      parallelism=Parallelism(tp=64, pp=9))
    e = estimate(d)
    assert d.devices == 576
    assert e.memory.fits
    hand = 9 * 855.7e6 / 64 + 128_256 * 8192 * 2 / 64
    assert float(e.memory.weights) == pytest.approx(hand, rel=0.15)
    names = {t.operation.name for t in e.decode.detail.operations}
    assert {"stage_hand_over", "attention_all_reduce"} <= names
    assert float(e.decode.detail.network) > 0.1 * float(e.tpot.expected)
    # Public rates were 250 to 300 tok/s a user; the order of magnitude must be right.
    assert 50 < float(e.tokens_per_s_per_user.expected) < 600
    assert not estimate(d.replace(weights="bf16")).memory.fits


@pytest.mark.parametrize(("hardware", "weights"), [("groq", "int8"), ("corsair", "int8"),
                                                   ("cerebras", None)])
def test_advice_spreads_weights_over_as_many_as_they_need(hardware: str,
                                                          weights: str | None) -> None:
    d = Deployment.of("llama-3.1-70b", hardware, weights=weights)
    change = next(c for c in changes_that_fit(estimate(d)) if c.deployment.devices > 1)
    found = estimate(change.deployment)
    assert found.memory.fits
    room = change.deployment.devices * d.hardware.usable_capacity
    assert room > float(estimate(d).memory.weights)
    # Stages hold whole layers, and the first one the embedding as well.
    assert room < 2.3 * float(estimate(d).memory.weights)
    flags = change.flag.split()
    extra = [] if weights is None else ["--weights", weights]
    assert run(["memory", "llama-3.1-70b", *flags, *extra]) == 0


def test_bf16_on_groq_says_fewer_bits_and_more_devices() -> None:
    change = changes_that_fit(estimate(Deployment.of("llama-3.1-70b", "groq")))[0]
    assert "--weights fp8" in change.flag
    assert "--pp" in change.flag


def test_four_wafers_hold_70b() -> None:
    """4 x 44 GB for 141 GB; three don't divide the heads, and hold it as stages only."""
    wafers = [Deployment.of("llama-3.1-70b", "cerebras", parallelism=p)
              for p in (Parallelism(tp=4), Parallelism(pp=4), Parallelism(pp=2))]
    four, staged, two = (estimate(d) for d in wafers)
    assert four.memory.fits
    assert staged.memory.fits
    assert not two.memory.fits
    assert float(staged.decode.detail.network) < float(four.decode.detail.network)
    for e in (four, staged):
        assert 50 < float(e.tokens_per_s_per_user.expected) < 1000


def test_chips_with_sram_alone_are_split_beyond_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "llama-3.1-70b", "groq", "--weights", "int8", "--optimise", "latency",
                "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["fits"]
    p = found["parallelism"]
    assert found["devices"] == 512 == p["tp"] * p["pp"] * p["dp"]
    assert (p["tp"], p["pp"]) == (64, 8)
    assert all(a["reason"] for a in found["alternatives"])
