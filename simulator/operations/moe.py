"""Experts: a step reads the expected number of distinct ones, not all and not only top-k."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def experts_touched(E: Array, k: Array, T: Array) -> Array:
    """E (1 - (1 - k/E)^T): expected distinct experts of T tokens that each pick k of E uniformly.

    One token touches k; a large batch touches all E; k = E touches all with any token.
    """
    return E * -np.expm1(T * np.log1p(-np.minimum(k / E, 1.0 - 1e-16)))


def expert_flops(T: Array, k: Array, matrices: float, D: Array, F: Array) -> Array:
    """2 FLOPs a weight of the k experts that each of T tokens uses: 2 T k (matrices D F)."""
    return 2.0 * T * k * matrices * D * F


def expert_weight_bytes(touched: Array, matrices: float, D: Array, F: Array, w: Array) -> Array:
    """Bytes of the touched experts' matrices, `w` bytes a weight."""
    return touched * matrices * D * F * w


def expert_activation_bytes(T: Array, k: Array, matrices: float, D: Array, F: Array,
                            a: Array) -> Array:
    """Rows gathered to k experts and back, and the intermediate width written and read."""
    return a * T * k * (2.0 * D + matrices * F)
