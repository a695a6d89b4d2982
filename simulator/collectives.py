"""Collectives as latency-bandwidth lines; every one costs exactly 0 among one rank.

n ranks, S bytes of the full buffer, alpha [s] a hop, W one-way bandwidth of a device [bytes/s].
Thakur, Rabenseifner, Gropp, 2005 (ring, recursive doubling); NCCL chooses the faster, so do we.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def all_reduce_ring(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """2(n-1) hops that move 2(n-1)/n of the buffer."""
    return 2.0 * (n - 1.0) * alpha + 2.0 * (n - 1.0) / n * S / W


def all_reduce_doubling(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """log2(n) hops that each move the whole buffer: best for small messages."""
    return np.ceil(np.log2(n)) * (alpha + S / W)


def all_reduce(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """The faster of ring and recursive doubling."""
    return np.minimum(all_reduce_ring(S, n, alpha, W), all_reduce_doubling(S, n, alpha, W))


def all_gather(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """log2(n) to n-1 hops (Bruck), (n-1)/n of the gathered buffer S on the wire."""
    return np.ceil(np.log2(n)) * alpha + (n - 1.0) / n * S / W


def all_to_all(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """Pairwise exchange of S bytes a rank over a switch: one latency, (n-1)/n of S on the wire."""
    return np.minimum(n - 1.0, 1.0) * alpha + (n - 1.0) / n * S / W


def point_to_point(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """One hop to the next stage; 0 where there is no next stage (n = 1)."""
    return np.minimum(n - 1.0, 1.0) * (alpha + S / W)


BY_NAME = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "point_to_point": point_to_point,
}
