"""Kernel forms: worked values, scalar against array, and laws that hold whatever the constants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.efficiency import forms, forms_moe
from simulator.efficiency.constants import Chain, Experts, Lines, Pass, Split
from simulator.operations import tiles

P, W, S = 1e15, 4e12, 100.0
GEMM = Chain(e=0.8, h=0.8, g=0.4, t0=2e-6, tau=5e-8, tw=1e-6, p=2.0)
PREFILL = Chain(e=0.5, h=0.5, g=0.5, t0=1e-5, tau=5e-7, tw=1e-6, p=1.0)
DECODE = Split(e=0.95, h=0.8, g=0.8, t0=8e-6, beta=2.0, tw=1e-6, p=2.0)
MLA = Split(e=0.95, h=0.8, g=0.8, t0=7e-6, beta=4.0, tw=5e-6, p=1.5)
MOE = Experts(e=0.8, h=0.9, t0=2.5e-5, beta=4.0, cact=2.0, c2=0.2, te=2e-6, p=2.0)
PASS = Pass(h=0.5, g=0.5, t0=2e-6)
LINES = Lines(a0=5e-6, a1=1e-6, x=0.25, b0=2e-5, b1=0.0, h=0.7)

counts = st.integers(1, 4096)


def test_gemm_by_hand():
    """m=100 pads to 128 rows: 1 x 2 tiles; n=256, k=6400."""
    assert tiles.gemm_padded_flops(100, 256, 6400) == 2 * 128 * 256 * 6400
    compute = 2 * 128 * 256 * 6400 / 0.8e15
    memory = 4e6 / (0.8 * 4e12)
    serial = 1e-6 + 5e-8 * 100          # two tiles on 100 units: one wave
    expected = 2e-6 + np.sqrt(compute**2 + memory**2 + serial**2)
    assert forms.gemm_time(100, 256, 6400, 4e6, GEMM, P, W, S) == pytest.approx(expected)
    assert forms.gemm_serial(128, 128 * 250, 64, 5e-8, 1e-6, S) == pytest.approx(2.5 * 1.05e-6)


@pytest.mark.parametrize(("m", "rows"), [(1, 16), (16, 16), (17, 32), (33, 64), (65, 128)])
def test_tile_rows(m, rows):
    assert tiles.gemm_tile_rows(m) == rows


def test_gemm_bytes_and_quantise():
    assert forms.gemm_bytes(8, 512, 1024, 1.0, 2.0) == 512 * 1024 + 8 * 1024 * 2 + 8 * 512 * 2
    assert forms.quantise_term(8, 1024, 1.0, 0.5, 1e12) == pytest.approx(8 * 1024 * 3 / 0.5e12)


def test_cold_share_and_memory():
    assert forms.cold_share(np.array([0.0, 50.0, 100.0, 150.0, 900.0]), 100.0).tolist() == [
        0.0, 0.0, 0.5, 1.0, 1.0]
    assert forms.memory_term(8e6, 0.5, 0.8, 0.4, 4e12) == pytest.approx(2e-6 * (0.625 + 1.25))


def test_prefill_by_hand():
    """256 new of 256 tokens: three of four tiles; 384 with 128 before them: 2 + 3."""
    assert tiles.prefill_tiles(256, 256) == 3
    assert tiles.prefill_tiles(256, 384) == 5
    assert tiles.prefill_tiles(256, 256, 128) == 3
    assert forms.prefill_flops(2, 8, 256, 256, 128, 128) == 2 * 256 * 16 * 256 * 257 / 2
    B = forms.prefill_bytes(1, 32, 8, 256, 256, 128, 128, 2.0)
    assert B == 256 * (2 * 256 * 32 + 256 * 8 * 2)
    compute = 2 * 256 * 32 * 3 * 128**2 / 0.5e15
    serial = 1e-6 + 5e-7 * 2            # 96 tiles on 100 units, but the longest block has two
    expected = 1e-5 + compute + B / 2e12 + serial
    assert forms.prefill_time(1, 32, 256, 256, 128, 128, B, PREFILL, P, W, S) == pytest.approx(
        expected)


def test_decode_by_hand():
    """8 sequences x 2 KV heads leave 6 units each; 1000 tokens allow 4 parts: no wave is full."""
    assert forms.decode_splits(16, 1000, S) == 4
    assert forms.decode_splits(16, 1000, S, tiled=False) == pytest.approx(1000 / 256)
    B = forms.decode_bytes(8, 16, 2, 1000, 128, 2.0)
    assert B == 8 * 1000 * 2 * 256 * 2 + 8 * 16 * 512
    compute = 2 * 16 * 16 * 256 * 1024 / 0.95e15
    serial = 1e-6 + 1024 / 4 * 512 * S / (2 * W)
    expected = 8e-6 + np.sqrt((B / 3.2e12)**2 + compute**2 + serial**2)
    assert forms.decode_time(8, 16, 2, 1000, 128, 2.0, DECODE, P, W, S) == pytest.approx(expected)


def test_mla_decode_by_hand():
    """128 heads are two tiles of 64, which share one latent of 576 values."""
    assert forms.mla_decode_bytes(4, 128, 1024, 1.0) == 4 * 1024 * 576 + 4 * 128 * 1152 * 2
    memory = forms.mla_decode_bytes(4, 128, 1024, 2.0) / 3.2e12
    compute = 2 * 4 * 2 * 64 * 1088 * 1024 / 0.95e15
    serial = 5e-6 + 1024 / 4 * 1152 * S / (4 * W)
    expected = 7e-6 + (memory**1.5 + compute**1.5 + serial**1.5) ** (1 / 1.5)
    assert forms.mla_decode_time(4, 128, 1024, 2.0, MLA, P, W, S) == pytest.approx(expected)


def test_moe_by_hand():
    """8 experts of one tile each: 8 x 2 tiles of the first matrix, 8 x 8 of the second."""
    tiles = (8.0, 8.0, 8.0)
    first = max(2 * 16 * 128 * 1024 * S / 0.8e15, 144 * 2 * 1024 * S / (4 * W))
    second = max(2 * 16 * 128 * 128 * S / 0.8e15, 144 * 2 * 128 * S / (4 * W))
    compute = forms_moe.experts_compute(tiles, 1024.0, 128.0, 2.0, 2.0, 0.8, 4.0, P, W, S)
    assert compute == pytest.approx(first + second)
    memory = 8 * 3 * 1024 * 128 * 2 / (0.9 * W)
    rows = (2.0 * (4 * 4096 + 8 * (4096 + 768)) + 0.2 * 8 * (2048 + 768)) / W
    expected = 2.5e-5 + 2e-6 * 64 / 64 + np.sqrt((first + second)**2 + memory**2) + rows
    assert forms_moe.moe_time(4.0, 2.0, 8.0, 8.0, tiles, 1024.0, 128.0, 64.0, 2.0, MOE, P, W, S
                              ) == pytest.approx(expected)


def test_mean_tiles():
    assert forms_moe.mean_tiles(8.0, 8.0, 16.0) == 8.0
    assert forms_moe.mean_tiles(8.0, 800.0, 16.0) == 54.0


def test_elementwise_and_collectives_by_hand():
    assert forms_moe.elementwise_time(1e6, PASS, W) == pytest.approx(2e-6 + 1e6 / 2e12)
    link = 4e11
    low = 5e-6 + 3e-6 + 1024 * 3 / 1e11
    assert forms_moe.collective_time(1024, 4, True, LINES, link) == pytest.approx(low)
    high = 2e-5 + 1e9 * 1.5 / 2.8e11
    assert forms_moe.collective_time(1e9, 4, True, LINES, link) == pytest.approx(high)
    gather = 2e-5 + 1e9 * 0.75 / 2.8e11
    assert forms_moe.collective_time(1e9, 4, False, LINES, link) == pytest.approx(gather)
    assert forms_moe.collective_time(1e9, 1, True, LINES, link) == 0


TIMES = {
    "gemm": (lambda m, n, k: forms.gemm_time(m, n, k, 2.0 * n * k, GEMM, P, W, S), 3),
    "prefill": (lambda b, q, h: forms.prefill_time(b, h, q, q, 128.0, 128.0, forms.prefill_bytes(
        b, h, h, q, q, 128.0, 128.0, 2.0), PREFILL, P, W, S), 3),
    "decode": (lambda b, L, K: forms.decode_time(b, 4.0 * K, K, L, 128.0, 2.0, DECODE, P, W, S), 3),
    "mla": (lambda b, L, h: forms.mla_decode_time(b, h, L, 1.0, MLA, P, W, S), 3),
    "moe": (lambda m, a, t: forms_moe.moe_time(m, 8.0, m, a, (t, t, t), 4096.0, 1024.0, 128.0, 1.0,
                                               MOE, P, W, S), 3),
    "elementwise": (lambda B: forms_moe.elementwise_time(B, PASS, W), 1),
    "collective": (lambda V, n: forms_moe.collective_time(V, n, True, LINES, 4e11), 2),
    "tile_rows": (tiles.gemm_tile_rows, 1), "tiles": (tiles.gemm_tiles, 2),
    "flops": (tiles.gemm_padded_flops, 3), "compute": (
        lambda m, n, k: forms.gemm_compute(m, n, k, 0.8, P), 3),
    "prefill_tiles": (lambda q, c: tiles.prefill_tiles(q, q + c), 2),
    "prefill_flops": (lambda q, c: forms.prefill_flops(1.0, 8.0, q, q + c, 64.0, 64.0), 2),
    "longest": (tiles.longest_row, 1), "rows": (tiles.query_rows, 1),
    "splits": (lambda U, L: forms.decode_splits(U, L, S), 2),
    "padded": (forms.padded_context, 1), "waves": (lambda b: forms.waves(b, S), 1),
    "cold": (lambda B: forms.cold_share(B, 1000.0), 1),
    "smooth": (lambda x, y: forms.smooth_sum(x, y, 1.0, 3.0), 2),
    "mean_tiles": (lambda a, r: forms_moe.mean_tiles(a, r, 16.0), 2),
    "wire": (lambda n: forms_moe.wire_share(n, True), 1),
    "one_shot": (lambda n: forms_moe.one_shot_share(n, False), 1),
}


@pytest.mark.parametrize("name", TIMES)
def test_array_equals_scalar(name):
    f, arity = TIMES[name]
    rng = np.random.default_rng(1)
    arrays = [rng.integers(1, 5000, 40).astype(float) for _ in range(arity)]
    one_by_one = [float(f(*row)) for row in zip(*(a.tolist() for a in arrays), strict=True)]
    np.testing.assert_allclose(f(*arrays), one_by_one, rtol=1e-13)


@settings(max_examples=60, deadline=None)
@given(m=counts, n=counts, k=counts, more=st.integers(1, 500))
def test_gemm_rises_with_every_side(m, n, k, more):
    def t(m, n, k):
        return forms.gemm_time(m, n, k, forms.gemm_bytes(m, n, k, 2.0, 2.0), GEMM, P, W, S)

    for longer in ((m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert t(*longer) >= t(m, n, k) * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(b=st.integers(1, 512), K=st.integers(1, 16), group=st.integers(1, 16),
       L=st.floats(1, 100000), more=st.floats(0, 2000))
def test_smooth_decode_rises_with_context_and_batch(b, K, group, L, more):
    def t(b, L):
        return forms.decode_time(b, K * group, K, L, 128.0, 2.0, DECODE, P, W, S, tiled=False)

    assert t(b, L + more) >= t(b, L) * (1 - 1e-12)
    assert t(b + 1, L) >= t(b, L) * (1 - 1e-12)
    smooth = forms.mla_decode_time(b, 128.0, np.array([L, L + more]), 1.0, MLA, P, W, S,
                                   tiled=False)
    assert smooth[1] >= smooth[0] * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(b=st.integers(1, 64), h=st.integers(1, 64), q=counts, before=st.integers(0, 8192),
       more=st.integers(1, 500))
def test_prefill_rises_with_tokens(b, h, q, before, more):
    def t(b, q, L):
        B = forms.prefill_bytes(b, h, h, q, L, 128.0, 128.0, 2.0)
        return forms.prefill_time(b, h, q, L, 128.0, 128.0, B, PREFILL, P, W, S)

    here = t(b, q, q + before)
    assert t(b + 1, q, q + before) >= here
    assert t(b, q, q + before + more) >= here * (1 - 1e-12)
    assert t(b, q + more, q + before + more) >= here * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(m=counts, n=counts, k=counts, b=st.integers(1, 64), q=counts)
def test_never_below_the_ceiling(m, n, k, b, q):
    B = forms.gemm_bytes(m, n, k, 2.0, 2.0)
    assert forms.gemm_time(m, n, k, B, GEMM, P, W, S) >= max(2.0 * m * n * k / P, B / W)
    B = forms.prefill_bytes(b, 8, 8, q, q, 128.0, 128.0, 2.0)
    F = forms.prefill_flops(b, 8, q, q, 128.0, 128.0)
    assert forms.prefill_time(b, 8, q, q, 128.0, 128.0, B, PREFILL, P, W, S) >= max(F / P, B / W)
    for tiled in (True, False):
        B = forms.decode_bytes(b, 8, 2, q, 128.0, 2.0)
        t = forms.decode_time(b, 8, 2, q, 128.0, 2.0, DECODE, P, W, S, tiled=tiled)
        assert t >= max(4.0 * b * 8 * 128 * q / P, B / W)


def test_limits():
    """A faster device leaves the floor and the chain; an ideal one alone is the roofline."""
    fast = forms.gemm_time(128, 128, 64, 1e4, GEMM, 1e30, 1e30, S)
    assert fast == pytest.approx(2e-6 + 1.05e-6)
    ideal = Chain(1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 40.0)
    m, n, k = 8192.0, 8192.0, 8192.0
    B = forms.gemm_bytes(m, n, k, 2.0, 2.0)
    assert forms.gemm_time(m, n, k, B, ideal, P, W, S) == pytest.approx(
        max(2 * m * n * k / P, B / W), rel=0.02)
