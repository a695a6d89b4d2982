"""How long GEMM and attention kernels take: t0 + (compute^p + memory^p + serial^p)^(1/p).

Every term is its own function, so that a step can bound and explain them separately; the `_time`
functions are their sums. P peak [FLOP/s], W bandwidth [B/s], S units (SMs) that share both;
e, h, g shares of them reached (h on data from memory, g on data left in the cache by the last
call); r share of the bytes that come from memory: 1 in serving, less when a benchmark calls a
kernel on the same buffers again and again. Shapes are counts, times [s], traffic [bytes].

The forms were found on 1.5 million public kernel timings (NVIDIA aiconfigurator-core 0.12.0 and
others, see efficiency/fitted/); waves are fractional, since rounding them up made every fit but
that of A100 GEMM worse.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.operations.attention import visible_pairs
from simulator.operations.tiles import (
    K_TILE,
    MLA_HEADS,
    SCORE_TILE,
    SPLIT_TOKENS,
    gemm_padded_flops,
    gemm_tiles,
    longest_row,
    prefill_tiles,
    query_rows,
)
from simulator.roofline import smooth_max

# Sizes of MLA: latent with rotary part, latent, expanded keys and values (arXiv:2405.04434).
LATENT, LATENT_VALUE, MLA_KEY, MLA_VALUE = 576.0, 512.0, 192.0, 128.0


def cold_share(B: Array, cache: Array) -> Array:
    """Share r of B [bytes] that a repeated call finds no longer in a `cache` of bytes: 0 to 1."""
    return np.clip(B / cache - 0.5, 0.0, 1.0)


def memory_term(B: Array, r: Array, h: Array, g: Array, W: Array) -> Array:
    """B (r/h + (1-r)/g) / W [s]: the share r at memory's rate hW, the rest at the cache's gW."""
    return B * (r / h + (1.0 - r) / g) / W


def smooth_sum(x: Array, y: Array, z: Array, p: Array) -> Array:
    """(x^p + y^p + z^p)^(1/p) [s]: 1 adds, infinity overlaps fully; at least the largest."""
    if np.ndim(p) == 0 and p in (1, 1.5, 2):
        return smooth_max(smooth_max(x, y, p), z, p)
    top = np.maximum(np.maximum(x, y), np.maximum(z, 1e-30))
    return top * ((x / top) ** p + (y / top) ** p + (z / top) ** p) ** (1.0 / p)


def waves(blocks: Array, S: Array) -> Array:
    """Blocks a unit executes one after the other, fractional, at least one."""
    return np.maximum(blocks / S, 1.0)


# --- GEMM: (m, k) by (k, n) -------------------------------------------------------------------


def gemm_compute(m: Array, n: Array, k: Array, e: Array, P: Array) -> Array:
    """Time [s] of the tile-padded FLOPs at eP."""
    return gemm_padded_flops(m, n, k) / (e * P)


def gemm_serial(m: Array, n: Array, k: Array, tau: Array, tw: Array, S: Array) -> Array:
    """Chain of one unit [s]: a start tw and k/64 steps of tau for each of its tiles."""
    return waves(gemm_tiles(m, n), S) * (tw + tau * k / K_TILE)


def gemm_bytes(m: Array, n: Array, k: Array, weight: Array, activation: Array) -> Array:
    """Traffic [bytes]: weights, input at `activation` and output at 2 bytes a value."""
    return n * k * weight + m * k * activation + 2.0 * m * n


def quantise_term(m: Array, k: Array, activation: Array, h: Array, W: Array) -> Array:
    """Time [s] to read (m, k) in 16 bits and write it at `activation` bytes a value."""
    return m * k * (2.0 + activation) / (h * W)


def gemm_time(m: Array, n: Array, k: Array, B: Array, c: Any, P: Array, W: Array, S: Array,
              r: Array = 1.0, quantise: Array = 0.0) -> Array:
    """Time [s] of a GEMM of B bytes; `quantise` [s] where the call quantises its input itself."""
    total = smooth_sum(gemm_compute(m, n, k, c.e, P), memory_term(B, r, c.h, c.g, W),
                       gemm_serial(m, n, k, c.tau, c.tw, S), c.p)
    return c.t0 + total + quantise


# --- prefill attention: b sequences, q new of L tokens, h query heads, K KV heads ----------------


def prefill_flops(b: Array, h: Array, q: Array, L: Array, dk: Array, dv: Array,
                  window: Array | None = None) -> Array:
    """2 (dk + dv) FLOPs for each head and each query-key pair that the causal mask leaves."""
    return 2.0 * (dk + dv) * b * h * visible_pairs(q, L, window)


def prefill_bytes(b: Array, h: Array, K: Array, q: Array, L: Array, dk: Array, dv: Array,
                  kv: Array) -> Array:
    """Traffic [bytes]: queries and output in 16 bits, keys and values at `kv` bytes a value."""
    return b * (dk + dv) * (2.0 * q * h + L * K * kv)


def prefill_compute(b: Array, h: Array, tiles: Array, dk: Array, dv: Array, e: Array, P: Array
                    ) -> Array:
    """Time [s] of whole score tiles at eP."""
    return 2.0 * (dk + dv) * b * h * tiles * SCORE_TILE**2 / (e * P)


def prefill_serial(b: Array, h: Array, q: Array, tiles: Array, row: Array, tau: Array, tw: Array,
                   S: Array) -> Array:
    """Chain of one unit [s]: tau a score tile of its share or of the longest block, tw a block."""
    blocks = b * h * np.ceil(q / SCORE_TILE)
    return waves(blocks, S) * tw + tau * np.maximum(b * h * tiles / S, row)


def prefill_time(b: Array, h: Array, q: Array, L: Array, dk: Array, dv: Array, B: Array, c: Any,
                 P: Array, W: Array, S: Array, r: Array = 1.0, window: Array | None = None
                 ) -> Array:
    """Time [s] of prefill attention of B bytes; MLA expanded has dk 192, dv 128 and K = h."""
    tiles, row = prefill_tiles(q, L, window), longest_row(L, window)
    return c.t0 + smooth_sum(prefill_compute(b, h, tiles, dk, dv, c.e, P),
                             memory_term(B, r, c.h, c.g, W),
                             prefill_serial(b, h, q, tiles, row, c.tau, c.tw, S), c.p)


# --- decode attention: b sequences of L cached tokens, one new token each -----------------------


def decode_bytes(b: Array, h: Array, K: Array, L: Array, d: Array, kv: Array) -> Array:
    """Traffic [bytes]: the KV cache at `kv` bytes a value, query and output in 16 bits."""
    return b * L * K * 2.0 * d * kv + b * h * 2.0 * d * 2.0


def mla_decode_bytes(b: Array, h: Array, L: Array, kv: Array) -> Array:
    """Traffic [bytes]: one latent a token for all heads; query and output in 16 bits."""
    return b * L * LATENT * kv + b * h * 2.0 * LATENT * 2.0


def padded_context(L: Array, tiled: bool = True) -> Array:
    """L rounded up to whole tiles; L itself where not `tiled`."""
    return np.ceil(L / SCORE_TILE) * SCORE_TILE if tiled else L


def decode_splits(U: Array, L: Array, S: Array, tiled: bool = True) -> Array:
    """Parts that each of U (sequence, KV head) pairs is cut into to fill S units."""
    free, most = S / U, L / SPLIT_TOKENS
    if tiled:
        free, most = np.floor(free), np.ceil(most)
    return np.clip(free, 1.0, np.maximum(most, 1.0))


def decode_compute(b: Array, K: Array, rows: Array, L: Array, dk: Array, dv: Array, e: Array,
                   P: Array, tiled: bool = True) -> Array:
    """Time [s] of 2 (dk + dv) FLOPs for each padded query row and key at eP."""
    return 2.0 * b * K * rows * (dk + dv) * padded_context(L, tiled) / (e * P)


def decode_serial(U: Array, L: Array, token: Array, beta: Array, tw: Array, W: Array, S: Array,
                  tiled: bool = True) -> Array:
    """Chain of one unit [s]: tw and its part of the KV, of `token` bytes a token.

    One unit alone moves at most beta times its fair share W/S of the bandwidth.
    """
    s = decode_splits(U, L, S, tiled)
    return waves(U * s, S) * (tw + padded_context(L, tiled) / s * token * S / (beta * W))


def decode_time(b: Array, h: Array, K: Array, L: Array, d: Array, kv: Array, c: Any, P: Array,
                W: Array, S: Array, r: Array = 1.0, tiled: bool = True) -> Array:
    """Time [s] of decode attention; not `tiled` is smooth and rising in L, for a step's mean."""
    return c.t0 + smooth_sum(
        memory_term(decode_bytes(b, h, K, L, d, kv), r, c.h, c.g, W),
        decode_compute(b, K, query_rows(h / K), L, d, d, c.e, P, tiled),
        decode_serial(b * K, L, 2.0 * d * kv, c.beta, c.tw, W, S, tiled), c.p)


def mla_decode_time(b: Array, h: Array, L: Array, kv: Array, c: Any, P: Array, W: Array, S: Array,
                    r: Array = 1.0, tiled: bool = True) -> Array:
    """Time [s] of absorbed MLA decode: all heads share the latent, in tiles of 64 heads."""
    tiles = np.ceil(h / MLA_HEADS)
    return c.t0 + smooth_sum(
        memory_term(mla_decode_bytes(b, h, L, kv), r, c.h, c.g, W),
        decode_compute(b, tiles, MLA_HEADS, L, LATENT, LATENT_VALUE, c.e, P, tiled),
        decode_serial(b * tiles, L, LATENT * kv, c.beta, c.tw, W, S, tiled), c.p)
