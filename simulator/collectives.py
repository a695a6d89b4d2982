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


def all_reduce_tree(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """Double binary tree, pipelined: 2 log2(n) hops, twice the buffer on the wire (NCCL)."""
    some = np.minimum(n - 1.0, 1.0)
    return 2.0 * np.ceil(np.log2(n)) * alpha + some * 2.0 * S / W


def all_reduce_halving(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """Rabenseifner: 2 log2(n) hops that move 2(n-1)/n of the buffer."""
    return 2.0 * np.ceil(np.log2(n)) * alpha + 2.0 * (n - 1.0) / n * S / W


def all_reduce_one_shot(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """Every rank reads all others' buffers over a switch: one hop, n-1 buffers (below 1 MB)."""
    return np.minimum(n - 1.0, 1.0) * alpha + (n - 1.0) * S / W


def all_reduce_in_switch(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """The switch adds (NVLS, SHARP): two hops, the buffer up and down once at the same time."""
    some = np.minimum(n - 1.0, 1.0)
    return some * (2.0 * alpha + S / W)


def reduce_scatter(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """The mirror image of all-gather."""
    return all_gather(S, n, alpha, W)


def all_gather(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """log2(n) to n-1 hops (Bruck), (n-1)/n of the gathered buffer S on the wire."""
    return np.ceil(np.log2(n)) * alpha + (n - 1.0) / n * S / W


def all_to_all(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """Pairwise exchange of S bytes a rank over a switch: one latency, (n-1)/n of S on the wire."""
    return np.minimum(n - 1.0, 1.0) * alpha + (n - 1.0) / n * S / W


def point_to_point(S: Array, n: Array, alpha: Array, W: Array) -> Array:
    """One hop to the next stage; 0 where there is no next stage (n = 1)."""
    return np.minimum(n - 1.0, 1.0) * (alpha + S / W)


def two_lines(S: Array, n: Array, low: tuple[Array, Array, Array], high: tuple[Array, Array, Array]
              ) -> Array:
    """The smaller of two measured lines a + b (n-1) + S c, each as (a [s], b [s], c [s/byte])."""
    first, second = (a + b * (n - 1.0) + S * c for a, b, c in (low, high))
    return np.minimum(n - 1.0, 1.0) * np.minimum(first, second)


def interpolated(S: Array, sizes: Array, times: Array) -> Array:
    """Time of S bytes from a measured table, straight between its points on log-log paper.

    Below the table the smallest message's time holds; above it the rate of its last step.
    """
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(times, float))
    inside = np.exp(np.interp(np.log(np.maximum(S, 1.0)), x, y))
    return inside * np.maximum(np.asarray(S) / np.exp(x[-1]), 1.0)


def hierarchical_all_reduce(S: Array, local: Array, nodes: Array, alpha: Array, W: Array,
                            alpha_out: Array, W_out: Array) -> Array:
    """Reduce-scatter in the node, all-reduce of each rank's share across nodes, all-gather."""
    inside = reduce_scatter(S, local, alpha, W) + all_gather(S, local, alpha, W)
    return inside + all_reduce(S / local, nodes, alpha_out, W_out)


BY_NAME = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "point_to_point": point_to_point,
}
