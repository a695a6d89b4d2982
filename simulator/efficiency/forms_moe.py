"""How long experts, element-wise kernels and collectives take; notation as in forms.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.efficiency.forms import memory_term, smooth_sum
from simulator.operations.tiles import TILE

# Tile heights between which grouped GEMMs choose.
TILE_ROWS = (16.0, 64.0, 128.0)
# Experts whose bookkeeping (sort, permute, offsets) one `te` stands for.
EXPERTS_PER_TE = 64.0


def mean_tiles(active: Array, rows: Array, height: Array) -> Array:
    """About how many tiles `rows` tokens fill on `active` experts: one each, then rows/height.

    Where counts are unknown: half a tile of each active expert is left over on the average.
    """
    return np.maximum(active, rows / height + 0.5 * active)


def grouped_gemm(T: Array, height: float, n: Array, k: Array, weight: Array, e: Array, beta: Array,
                 P: Array, W: Array, S: Array, tiled: bool = True) -> Array:
    """Time [s] of T tiles of `height` rows by n columns in waves over S units.

    A tile takes its FLOPs at a unit's share of eP or its operands at beta shares of W. Waves are
    whole; not `tiled`, half a wave is left over on the average, so that one more token costs its
    share.
    """
    compute = 2.0 * height * TILE * k * S / (e * P)
    operands = (height + TILE) * weight * k * S / (beta * W)
    filled = T * np.ceil(n / TILE) / S
    steps = np.ceil(filled) if tiled else np.maximum(filled + 0.5, 1.0)
    return steps * np.maximum(compute, operands)


def experts_compute(tiles: tuple[Array, Array, Array], H: Array, inner: Array, gates: Array,
                    weight: Array, e: Array, beta: Array, P: Array, W: Array, S: Array,
                    tiled: bool = True) -> Array:
    """Time [s] of both grouped GEMMs at the best of the three tile heights.

    gates   matrices that lead into the experts' width: 2 with a gate, else 1
    """
    def both(T: Array, height: float) -> Array:
        return (grouped_gemm(T, height, gates * inner, H, weight, e, beta, P, W, S, tiled)
                + grouped_gemm(T, height, H, inner, weight, e, beta, P, W, S, tiled))

    first, second, third = (both(T, x) for T, x in zip(tiles, TILE_ROWS, strict=True))
    return np.minimum(first, np.minimum(second, third))


def experts_bytes(active: Array, H: Array, inner: Array, gates: Array, weight: Array) -> Array:
    """Weights [bytes] of the experts that at least one token of this rank picked."""
    return active * (gates + 1.0) * H * inner * weight


def experts_traffic(m: Array, topk: Array, rows: Array, H: Array, inner: Array, cact: Array,
                    c2: Array, W: Array) -> Array:
    """Time [s] to permute and finalise: cact on this rank's `rows`, c2 on all m topk rows."""
    own = m * 4.0 * H + rows * (4.0 * H + 6.0 * inner)
    return (cact * own + c2 * m * topk * (2.0 * H + 6.0 * inner)) / W


def moe_time(m: Array, topk: Array, rows: Array, active: Array, tiles: tuple[Array, Array, Array],
             H: Array, inner: Array, local: Array, weight: Array, c: Any, P: Array, W: Array,
             S: Array, r: Array = 1.0, gates: Array = 2.0) -> Array:
    """Time [s] of a layer's experts: m tokens, of which `rows` picks fall on `local` experts here.

    tiles   tiles of 16, 64 and 128 rows that the picks fill, over this rank's experts
    """
    compute = experts_compute(tiles, H, inner, gates, weight, c.e, c.beta, P, W, S)
    B = experts_bytes(active, H, inner, gates, weight)
    memory = memory_term(B, r, c.h, 2.0 * c.h, W)    # experts left in the cache: half the time
    return (c.t0 + c.te * local / EXPERTS_PER_TE + smooth_sum(compute, memory, 0.0, c.p)
            + experts_traffic(m, topk, rows, H, inner, c.cact, c.c2, W))


def elementwise_time(B: Array, c: Any, W: Array, r: Array = 1.0) -> Array:
    """t0 + B (r/h + (1-r)/g) / W [s] of a kernel that reads and writes B bytes in all."""
    return c.t0 + memory_term(B, r, c.h, c.g, W)


def wire_share(n: Array, reduce: Array) -> Array:
    """Share of the buffer that crosses a device's link: 2(n-1)/n for all-reduce, else (n-1)/n."""
    return np.where(reduce, 2.0, 1.0) * (n - 1.0) / n


def one_shot_share(n: Array, reduce: Array) -> Array:
    """Share in the low-latency protocol: all-reduce reads all others' buffers at once, n-1."""
    return np.where(reduce, n - 1.0, (n - 1.0) / n)


def collective_time(V: Array, n: Array, reduce: Array, c: Any, link: Array) -> Array:
    """Time [s] of V bytes of full buffer among n ranks: the smaller of two lines; 0 for n = 1."""
    low = c.a0 + c.a1 * (n - 1.0) + V * one_shot_share(n, reduce) / (c.x * link)
    high = c.b0 + c.b1 * (n - 1.0) + V * wire_share(n, reduce) / (c.h * link)
    return np.minimum(n - 1.0, 1.0) * np.minimum(low, high)
