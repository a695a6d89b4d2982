"""How kernels cut their work: output tiles of products, score tiles of attention.

Counts only: how long a tile takes is in efficiency/forms.py.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array

# Sides of the output tile of a GEMM, of the score tile of attention, and of a block along k.
TILE, SCORE_TILE, K_TILE = 128.0, 128.0, 64.0
# KV tokens below which a decode kernel doesn't split a sequence further.
SPLIT_TOKENS = 256.0
# Query rows that decode kernels pad to, on Hopper too (64 would double H20's times at 16 heads a KV
# head), and heads in a tile of MLA decode.
QUERY_ROWS, MLA_HEADS = 16.0, 64.0


def gemm_tile_rows(m: Array) -> Array:
    """Rows of the output tile that libraries choose for m tokens: 16, 32, 64, then 128."""
    return np.where(m <= 16, 16.0, np.where(m <= 32, 32.0, np.where(m <= 64, 64.0, TILE)))


def gemm_tiles(m: Array, n: Array) -> Array:
    """Output tiles of an (m, n) result."""
    return np.ceil(m / gemm_tile_rows(m)) * np.ceil(n / TILE)


def gemm_padded_flops(m: Array, n: Array, k: Array) -> Array:
    """2 m k n [FLOP] with m and n rounded up to whole tiles: what the matrix units execute."""
    return 2.0 * gemm_tiles(m, n) * gemm_tile_rows(m) * TILE * k


def prefill_tiles(q: Array, L: Array, window: Array | None = None) -> Array:
    """128 x 128 score tiles of a head that hold at least one visible pair."""
    rows = np.ceil(q / SCORE_TILE)
    before, all_keys = np.ceil((L - q) / SCORE_TILE), np.ceil(L / SCORE_TILE)
    tiles = (rows - 1.0) * before + rows * (rows - 1.0) / 2.0 + all_keys
    return tiles if window is None else np.minimum(tiles, rows * longest_row(L, window))


def longest_row(L: Array, window: Array | None = None) -> Array:
    """Score tiles of the last row of tiles, which one block works through alone."""
    row = np.ceil(L / SCORE_TILE)
    return row if window is None else np.minimum(row, np.ceil(window / SCORE_TILE) + 1.0)


def query_rows(group: Array) -> Array:
    """Query heads of a KV head, rounded up to what one instruction takes."""
    return np.ceil(group / QUERY_ROWS) * QUERY_ROWS
