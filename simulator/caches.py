"""Memory tiers by working set: what fits into a cache isn't streamed from memory.

A pass reads its weights and its KV cache once, in the same order each time. What fits into the
last-level cache stays there from one pass to the next; a working set of twice its size evicts
every line before it is read again.

Capacities c [bytes], working set X [bytes], bandwidths [bytes/s].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.arrays import Array
from simulator.operations import Operation
from simulator.specs.hardware_parts import Cache


def largest_resident_share(X: Array, c: Array) -> Array:
    """min(1, c/X): no cache can hold more of a working set than its size. For the ceiling."""
    return np.minimum(1.0, c / np.maximum(X, 1.0))


def resident_share(X: Array, c: Array) -> Array:
    """2 - X/c between 1 and 0: share of a cyclic sweep over X that hits a cache of c.

    A cache that always evicts the oldest line loses everything just above c; hashed sets and
    replacement that isn't exact keep some up to about twice that.
    """
    return np.clip(2.0 - X / c, 0.0, 1.0)


def tiered_time(Q: Array, X: Array, caches: Sequence[Cache], W: Array) -> Array:
    """Least time [s] of Q [bytes] of a working set X: each level serves the most it can hold."""
    served, time = 0.0 * X, 0.0 * X
    for cache in caches:
        share = np.maximum(largest_resident_share(X, cache.capacity), served)
        time = time + (share - served) / cache.bandwidth
        served = share
    return Q * (time + (1.0 - served) / W)


def missed_bytes(Q: Array, X: Array, caches: Sequence[Cache]) -> Array:
    """Bytes of Q that come from memory in a pass over a working set X."""
    return Q * (1.0 - resident_share(X, caches[-1].capacity)) if caches else Q + 0.0 * X


def working_set(operations: Sequence[Operation]) -> Array:
    """Bytes that a device goes through from one pass to the next.

    Weights, KV cache and the largest activations. Each pass picks other experts, so that all of a
    layer's count, touched or not.
    """
    total, widest = 0.0, 0.0
    for o in operations:
        if o.alternative is not None and o.alternative[1] != 0:
            continue
        held = 1.0 if o.picks is None else o.picks.local / o.picks.active
        total = total + o.count * (o.weights * held + o.kv)
        widest = np.maximum(widest, o.activations)
    return total + widest


__all__ = ["largest_resident_share", "missed_bytes", "resident_share", "tiered_time",
           "working_set"]
