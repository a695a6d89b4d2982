"""Experts: a step reads the expected number of distinct ones, not all and not only top-k."""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def experts_touched(E: Array, k: Array, T: Array) -> Array:
    """E (1 - (1 - k/E)^T): expected distinct experts of T tokens that each pick k of E uniformly.

    One token touches k; a large batch touches all E; k = E touches all with any token.
    """
    return E * -np.expm1(T * np.log1p(-np.minimum(k / E, 1.0 - 1e-16)))


def largest_load(m: Array, R: Array) -> Array:
    """m + sqrt(2 m ln R): largest of R loads of mean m when the choices are random.

    Raab and Steger, "Balls into Bins", 1998, for m well above ln R.
    """
    return m + np.sqrt(2.0 * m * np.log(R))


def imbalance(T: Array, k: Array, E: Array, R: Array, skew: Array = 1.0) -> Array:
    """Load of the fullest of R ranks over the mean, T tokens that pick k of E experts; 1 for R = 1.

    The largest load is at least one assignment, and at most what all tokens can send to the E/R
    experts of one rank. `skew` multiplies it where routing isn't uniform.
    """
    if R == 1:
        return 1.0
    mean = T * k / R
    most = T * np.minimum(k, E / R)
    least = np.minimum(np.maximum(mean, 1.0), most)
    return np.clip(skew * largest_load(mean, R), least, most) / mean


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
