"""Operations: counts against brute force, published expert counts, MLA's two ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.operations import (
    Operation,
    elementwise,
    gemm,
    gemm_activation_bytes,
    gemm_chain,
    gemm_flops,
    moe,
    ssm,
)
from simulator.operations import attention as att

small = st.integers(1, 40)


def keys_of(i: int, window: int | None = None, chunk: int | None = None) -> list[int]:
    """Positions (from 1) that the causal token at position i sees."""
    keys = range(1, i + 1)
    if window is not None:
        keys = range(max(1, i - window + 1), i + 1)
    if chunk is not None:
        keys = range((i - 1) // chunk * chunk + 1, i + 1)
    return list(keys)


def brute_pairs(new: int, context: int, **kind: Any) -> int:
    return sum(len(keys_of(i, **kind)) for i in range(context - new + 1, context + 1))


# matrix products

def test_gemm() -> None:
    o = gemm("x", 3.0, 5.0, 7.0, 11.0, 0.5, 2.0, "fp8")
    assert (o.flops, o.weights, o.activations, o.kv) == (770.0, 38.5, 2 * 5 * 18, 0.0)
    assert (o.count, o.compute, o.kind, o.bytes) == (3.0, "fp8", "gemm", 38.5 + 180)
    assert gemm_flops(512, 5120, 20480) == 2 * 512 * 5120 * 20480
    assert gemm_activation_bytes(4, 3, 2, 2) == 40


def test_gemm_chain() -> None:
    """(300, 1000) in tiles of 128: 300/128 rows of 8 tiles, each of 640/64 steps along k."""
    chain = gemm_chain(300.0, 640.0, 1000.0, 7.0)
    assert (chain.padded, chain.blocks, chain.longest, chain.total) == (
        7.0, 300 / 128 * 8, 10.0, None)
    assert gemm_chain(1.0, 640.0, 1000.0, 7.0).blocks == 8.0    # no less than one row of tiles
    assert gemm("x", 1.0, 5.0, 7.0, 11.0, 2.0, 2.0, "bf16").chain == gemm_chain(
        5.0, 7.0, 11.0, gemm_flops(5, 7, 11))


def test_flops_are_float64() -> None:
    # 8e20 FLOPs overflow int64
    m = np.array([10**7])
    assert gemm_flops(m, 10**7, 4 * 10**6)[0] == pytest.approx(8e20)


def test_elementwise_and_count() -> None:
    o = elementwise("norm", 2.0, 10.0, 2.0, 4, 3, "norm", weights=8.0, kv=1.0)
    assert (o.flops, o.weights, o.kv, o.activations, o.compute) == (40, 8, 1, 60, "vector")
    assert o.with_count(6.0) == Operation("norm", "norm", "elementwise", 6.0, 40, 8, 1, 60,
                                          format="norm")
    assert elementwise("x", 1.0, 1.0, 2.0, 1, 1, format="rope").format == "rope"


# attention

@given(small, small)
def test_causal_pairs(new: Any, past: Any) -> None:
    assert att.visible_pairs(new, new + past - 1) == brute_pairs(new, new + past - 1)
    assert att.keys_read(new, new + past - 1) == new + past - 1


@given(small, small, small)
def test_window_pairs(new: Any, past: Any, window: Any) -> None:
    context = new + past - 1
    assert att.visible_pairs(new, context, window) == brute_pairs(new, context, window=window)
    seen = {k for i in range(context - new + 1, context + 1) for k in keys_of(i, window=window)}
    assert att.keys_read(new, context, window) == len(seen)


@given(small, small, small)
def test_chunk_pairs(new: Any, past: Any, chunk: Any) -> None:
    context = new + past - 1
    assert att.chunked_pairs(new, context, chunk) == brute_pairs(new, context, chunk=chunk)


@given(small, small, small)
def test_pairs_of_a_suffix_are_whole_minus_prefix(new: Any, past: Any, window: Any) -> None:
    whole, context = att.visible_pairs, new + past
    for kind in (None, window):
        assert whole(new, context, kind) == whole(context, context, kind) - whole(past, past, kind)


def test_a_window_as_long_as_the_context_is_no_window() -> None:
    assert att.visible_pairs(10, 64, 64) == att.visible_pairs(10, 64)
    assert att.chunked_pairs(10, 64, 64) == att.visible_pairs(10, 64)
    assert att.visible_pairs(1, 64, 1) == 1


def test_attention_by_hand() -> None:
    # 2 sequences, 8 query heads and 2 KV heads of 128, one token at 1000 keys, 2 bytes a value
    assert att.attention_flops(2, 8, 1000, 128, 128) == 2 * 2 * 8 * 1000 * 256
    assert att.kv_bytes(2, 2, 1000, 128, 128, 2) == 2 * 1000 * 2 * 256 * 2
    assert att.query_bytes(2, 8, 1, 128, 128, 2) == 2 * 8 * 256 * 2
    assert att.score_bytes(2, 8, 1000, 2) == 4 * 2 * 8 * 1000 * 2


# MLA, FORMULAS section 13: h 128, d_n 128, d_r 64, d_v 128, d_c 512

def test_mla_golden() -> None:
    S = 1000.0
    assert att.mla_absorbed_flops(1, 128, S, 512, 64) == 278_528 * S
    assert att.attention_flops(1, 128, S, 128 + 64, 128) == 81_920 * S
    assert att.mla_expand_flops(S, 128, 512, 128, 128) == 2 * S * 512 * 128 * 256
    assert att.mla_absorb_flops(1, 128, 512, 128, 128) == 2 * 128 * 512 * 256
    assert att.kv_bytes(1, 1, 1, 512, 64, 2) == 1152
    assert att.kv_bytes(1, 128, 1, 192, 128, 2) == 81_920
    # intensity of absorbed decode: 242 FLOP/byte; grouped attention with 8 queries a head: 8
    assert att.mla_absorbed_flops(1, 128, S, 512, 64) / (S * 1152) == pytest.approx(242, abs=0.5)


def test_mla_break_even_is_171_new_tokens() -> None:
    """Long contexts: absorbed is less work below 171 new tokens a sequence, expanded above."""
    def work(q: float, absorbed: bool) -> Any:
        S = 1e9
        if absorbed:
            return att.mla_absorbed_flops(1, 128, q * S, 512, 64)
        return (att.attention_flops(1, 128, q * S, 192, 128)
                + att.mla_expand_flops(S, 128, 512, 128, 128))
    assert work(170, True) < work(170, False)
    assert work(171, True) > work(171, False)


# experts

@pytest.mark.parametrize(("E", "k", "T", "touched"), [
    (256, 8, 1, 8.0), (256, 8, 8, 57.4), (256, 8, 32, 163.3), (256, 8, 64, 222.4),
    (256, 8, 128, 251.6), (8, 2, 1, 2.0), (8, 2, 2, 3.5), (8, 2, 4, 5.47), (8, 2, 8, 7.20),
])  # fmt: skip
def test_experts_touched_golden(E: Any, k: Any, T: Any, touched: Any) -> None:
    digits = 0.05 if E == 256 else 0.005
    assert moe.experts_touched(E, k, T) == pytest.approx(touched, abs=digits)
    assert moe.experts_touched(E, k, T) == pytest.approx(E * (1 - (1 - k / E) ** T), rel=1e-12)


def test_experts_touched_is_the_mean_of_random_routing() -> None:
    rng = np.random.default_rng(0)
    counts = [len({int(e) for _ in range(5) for e in rng.choice(16, 3, replace=False)})
              for _ in range(4000)]
    assert moe.experts_touched(16, 3, 5) == pytest.approx(np.mean(counts), abs=0.08)


@given(st.integers(1, 512), st.data(), st.floats(1, 1e5))
def test_experts_touched_laws(E: Any, data: Any, T: Any) -> None:
    k = data.draw(st.integers(1, E))
    touched = moe.experts_touched(E, k, T)
    assert k * (1 - 1e-12) <= touched <= E
    assert moe.experts_touched(E, k, 1.0) == pytest.approx(k, rel=1e-12)
    assert moe.experts_touched(E, k, T + 1) >= touched
    assert moe.experts_touched(E, E, T) == pytest.approx(E, rel=1e-12)


def test_all_experts_are_dense() -> None:
    T, E, D, F = 5.0, 4.0, 64.0, 32.0
    dense = gemm("up", 1.0, T, D, 2 * E * F, 2.0, 2.0, "bf16")
    down = gemm("down", 1.0, T, E * F, D, 2.0, 2.0, "bf16")
    assert moe.expert_flops(T, E, 3.0, D, F) == dense.flops + down.flops
    touched = moe.experts_touched(E, E, T)
    assert moe.expert_weight_bytes(touched, 3.0, D, F, 2.0) == pytest.approx(
        dense.weights + down.weights, rel=1e-12)
    assert moe.expert_activation_bytes(T, 2, 3.0, D, F, 2.0) == 2 * T * 2 * (2 * D + 3 * F)


# recurrent layers

def test_state_by_hand() -> None:
    assert ssm.scan_flops(10, 4096, 16) == 6 * 10 * 4096 * 16
    assert ssm.state_traffic(3, 100) == 3 * 100 * 4 * 2    # read and written, FP32


# vector equals scalar, bit for bit

FUNCTIONS = [
    (gemm_flops, 3), (gemm_activation_bytes, 4), (att.visible_pairs, 2), (att.visible_pairs, 3),
    (att.chunked_pairs, 3), (att.keys_read, 2), (att.keys_read, 3), (att.attention_flops, 5),
    (att.kv_bytes, 6), (att.query_bytes, 6), (att.score_bytes, 4), (att.mla_absorbed_flops, 5),
    (att.mla_absorb_flops, 5), (att.mla_expand_flops, 5), (moe.experts_touched, 3),
    (moe.expert_flops, 5), (moe.expert_weight_bytes, 5), (moe.expert_activation_bytes, 6),
    (ssm.scan_flops, 3), (ssm.state_traffic, 2),
]


@pytest.mark.parametrize(("function", "count"), FUNCTIONS,
                         ids=[f"{f.__name__}-{c}" for f, c in FUNCTIONS])
def test_vector_is_scalar(function: Any, count: int) -> None:
    rng = np.random.default_rng(3)
    columns = [rng.integers(1, 64, 100).astype(float) for _ in range(count)]
    columns[1] = columns[1] + columns[0]
    if function is moe.experts_touched:
        columns[0], columns[1] = columns[1], columns[0]
    together = np.broadcast_to(function(*columns), (100,))
    for i in range(100):
        alone = function(*(float(c[i]) for c in columns))
        assert np.ndim(alone) == 0
        assert alone == together[i]
