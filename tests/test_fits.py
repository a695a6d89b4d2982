"""Fits find the constants that made a table, stay within the caps, and refuse too few rows."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from simulator.efficiency import fits
from simulator.efficiency.constants import Chain, Experts, Lines, Pass, Split
from simulator.errors import InputError
from simulator.specs.catalogue import load_hardware
from simulator.validation.routing import routed

pytest.importorskip("scipy")

RNG = np.random.default_rng(7)


def _pick(choices, n):
    return RNG.choice(np.asarray(choices, float), n)


def _gemm(n=600):
    return {"m": _pick([1, 8, 32, 64, 128, 512, 2048, 8192], n),
            "n": _pick([512, 1024, 4096, 8192, 16384], n), "k": _pick([512, 2048, 4096, 16384], n)}


def _attention(n=600, decode=False):
    L = _pick([128, 512, 1024, 4096, 16384, 65536], n)
    K = _pick([1, 2, 4, 8], n)
    return {"batch": _pick([1, 2, 4, 16, 64] if not decode else [1, 4, 16, 64, 256], n),
            "kv_len": L, "q_len": np.ones(n) if decode else L, "n_kv_heads": K,
            "n_heads": K * _pick([1, 4, 8], n), "head_dim": _pick([64, 128], n)}


def _moe(n=400):
    m = _pick([8, 64, 256, 1024, 8192], n)
    topk = np.full(n, 8.0)
    return {"m": m, "topk": topk, "n_experts": np.full(n, 128.0), "ep": np.ones(n),
            "tp": _pick([1, 2, 4], n), "n": _pick([768, 1536], n), "k": _pick([2048, 4096], n),
            **routed(m, topk, 128, 1, "balanced")}


CASES = {
    "gemm": (_gemm(), "bf16", Chain(0.8, 0.85, 0.7, 2.5e-6, 5e-8, 1.2e-6, 2.0)),
    "attention_prefill": (_attention(), "bf16",
                          Chain(0.85, 0.5, 0.4, 1.2e-5, 5e-7, 7e-7, 1.0)),
    "attention_decode": (_attention(decode=True), "fp8",
                         Split(0.95, 0.9, 0.7, 9e-6, 2.0, 2e-6, 2.0)),
    "mla_decode": (_attention(decode=True), "bf16", Split(0.9, 0.9, 0.6, 7e-6, 5.0, 5e-6, 1.5)),
    "mla_prefill": (_attention(), "bf16", Chain(0.8, 0.6, 0.4, 1e-5, 1e-6, 2e-6, 2.0)),
    "moe": (_moe(), "bf16", Experts(0.8, 0.9, 2.5e-5, 4.0, 2.0, 0.3, 2e-6, 2.0)),
    "elementwise": ({"bytes": np.geomspace(1e4, 1e9, 200)}, "norm", Pass(0.5, 0.4, 3e-6)),
    "collectives": ({"message_bytes": np.tile(np.geomspace(1e3, 1e9, 60), 3),
                     "tp": np.repeat([2.0, 4.0, 8.0], 60)}, "all_reduce",
                    Lines(5e-6, 1.5e-6, 0.25, 2e-5, 4e-7, 0.7)),
}
FIT = {"gemm": fits.fit_gemm, "attention_prefill": fits.fit_attention_prefill,
       "attention_decode": fits.fit_attention_decode, "mla_prefill": fits.fit_mla_prefill,
       "mla_decode": fits.fit_mla_decode, "moe": fits.fit_moe,
       "elementwise": fits.fit_elementwise, "collectives": fits.fit_collective}


@pytest.mark.parametrize("family", CASES)
def test_finds_what_made_the_times(family):
    table, format, true = CASES[family]
    hardware = load_hardware("h100-sxm5-80gb")
    time = fits.predict(family, table | {"time_us": np.ones(len(next(iter(table.values()))))},
                        hardware, format, true)
    noise = np.exp(np.random.default_rng(3).normal(0.0, 0.02, len(time)))
    table = table | {"time_us": time * noise * 1e6}
    found = FIT[family](table, hardware, format)
    again = fits.predict(family, table, hardware, format, found)
    assert np.median(np.abs(again / time - 1.0)) < 0.02
    for name in ("h", "t0", "a0"):
        if name in true.__struct_fields__:
            assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.15)


@pytest.mark.parametrize("family", CASES)
def test_stays_within_the_caps(family):
    """Times ten times faster than the device can be don't lift a share above its cap."""
    table, format, true = CASES[family]
    hardware = load_hardware("h100-sxm5-80gb")
    ones = {"time_us": np.ones(len(next(iter(table.values()))))}
    time = fits.predict(family, table | ones, hardware, format, true)
    found = msgspec.structs.asdict(FIT[family](table | {"time_us": time * 1e5}, hardware, format))
    assert found.get("e", 0.0) <= 0.95 + 1e-9
    assert found["h"] <= 0.95 + 1e-9
    assert found.get("g", 0.0) <= found["h"] + 1e-9


def test_refuses_too_few_rows_and_bad_times():
    table = _gemm(5) | {"time_us": np.ones(5)}
    with pytest.raises(InputError, match="5 rows are too few to fit 'gemm' on 'h100-sxm5-80gb'"):
        fits.fit_gemm(table, load_hardware("h100-sxm5-80gb"))
    with pytest.raises(InputError, match="above 0"):
        fits.fit_gemm(_gemm(20) | {"time_us": np.zeros(20)}, load_hardware("h100-sxm5-80gb"))
    with pytest.raises(InputError, match="column 'k' is missing"):
        fits.fit_gemm({"m": np.ones(20), "n": np.ones(20), "time_us": np.ones(20)},
                      load_hardware("h100-sxm5-80gb"))


def test_routing_keeps_every_pick():
    m, topk = np.array([1.0, 16.0, 4096.0]), np.full(3, 8.0)
    for law in ("balanced", "1.2", "0.6"):
        counts = routed(m, topk, 64, 1, law)
        np.testing.assert_allclose(counts["rows"], m * topk)
        assert np.all(counts["active"] <= 64)
        assert np.all(counts["tiles_128"] >= counts["rows"] / 128)
    few = routed(m, topk, 64, 8, "1.2")
    assert np.all(few["rows"] >= m * topk / 8)
