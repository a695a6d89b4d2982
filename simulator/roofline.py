"""The one formula: an operation takes the longer of its arithmetic and its traffic.

Every function takes floats or broadcastable arrays and returns the same. Units: F [FLOP],
Q [bytes], C [FLOP/s], W [bytes/s], times [s].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.arrays import Array, only_where, several

# Gauss-Legendre nodes and weights on [-1, 1]; four points integrate the smooth step time to well
# below 1e-4 because both of its terms are affine in the context.
NODES, WEIGHTS = (tuple(float(v) for v in x) for x in np.polynomial.legendre.leggauss(4))

_TINY = 1e-300


def compute_time(F: Array, C: Array) -> Array:
    """Time of F [FLOP] at the peak C [FLOP/s]."""
    return F / C


def memory_time(Q: Array, W: Array) -> Array:
    """Time to move Q [bytes] at the bandwidth W [bytes/s]."""
    return Q / W


def ceiling_time(F: Array, Q: Array, C: Array, W: Array) -> Array:
    """max(F/C, Q/W): Williams, Waterman, Patterson, CACM 2009, eq. 1. Nothing can be faster."""
    return np.maximum(F / C, Q / W)


def ridge_point(C: Array, W: Array) -> Array:
    """Arithmetic intensity C/W [FLOP/byte] above which arithmetic decides."""
    return C / W


def critical_batch(C: Array, W: Array, bytes_per_weight: Array) -> Array:
    """Tokens m* = C w / (2 W) at which a matrix with m << k, n becomes compute-bound."""
    return C * bytes_per_weight / (2.0 * W)


def arithmetic_intensity(F: Array, Q: Array) -> Array:
    """FLOP per byte moved."""
    return F / Q


def smooth_max(x: Array, y: Array, p: float | None) -> Array:
    """(x^p + y^p)^(1/p), the overlap of arithmetic and traffic; `None` is the exact maximum.

    p = 1 adds (no overlap), p = 2 is what GEMM and decode kernels show, never below max(x, y).
    """
    if p is None:
        return np.maximum(x, y)
    if p == 1:
        return x + y
    if p == 2:
        return np.sqrt(x * x + y * y)
    if p == 1.5:
        root = np.cbrt(x * np.sqrt(x) + y * np.sqrt(y))    # a power costs ten times as much
        return root * root
    return (x**p + y**p) ** (1.0 / p)


Parts = tuple[Array, Array, Array]


def overlapped(c: Array, m: Array, s: Array, p: Array | None, weight: float = 1.0) -> Parts:
    """Parts of `weight` (c^p + m^p + s^p)^(1/p): of arithmetic, of traffic and of a serial chain.

    They add up to the whole, each by its share of the sum of powers: how much the whole gains from
    a small gain of that term. `None`: the larger of arithmetic and traffic takes all.
    """
    if p is None:
        whole = weight * np.maximum(c, m)
        by_compute = whole * (c > m)
        return by_compute, whole - by_compute, 0.0 * whole
    if several(p):
        return _each_by_its_own(c, m, s, p, weight)
    if p == 1:
        return weight * c, weight * m, weight * s
    if p == 2:
        cp, mp, sp = c * c, m * m, s * s
        share = weight / np.sqrt(cp + mp + sp + _TINY)    # nothing takes no time: 0, not 0/0
    elif p == 1.5:
        cp, mp, sp = c * np.sqrt(c), m * np.sqrt(m), s * np.sqrt(s)    # a power costs ten times
        share = weight / np.cbrt(cp + mp + sp + _TINY)
    else:
        return _by_powers(c, m, s, p, weight)
    return cp * share, mp * share, sp * share


def _by_powers(c: Array, m: Array, s: Array, p: Array, weight: float) -> Parts:
    """The same for any exponent."""
    top = np.maximum(np.maximum(np.maximum(c, m), s), _TINY)
    # The function, not the operator, whose scalars may differ from arrays in the last bit.
    cp, mp, sp = (np.power(x / top, p) for x in (c, m, s))
    share = weight * top * np.power(cp + mp + sp + _TINY, 1.0 / p - 1.0)
    return cp * share, mp * share, sp * share


def _each_by_its_own(c: Array, m: Array, s: Array, p: Array, weight: float) -> Parts:
    """Of several exponents, those with a formula of their own by it, so that every bit is that of
    one alone.
    """
    own = [x for x in (1.0, 1.5, 2.0) if np.any(np.equal(p, x))]
    parts = (_by_powers(c, m, s, p, weight) if not np.all(np.isin(p, own))
             else overlapped(c, m, s, own.pop(), weight))
    for x in own:
        mine, new = np.equal(p, x), overlapped(c, m, s, x, weight)
        parts = (np.where(mine, new[0], parts[0]), np.where(mine, new[1], parts[1]),
                 np.where(mine, new[2], parts[2]))
    return parts


def mean_of_overlapped(
    c: tuple[Array, Array], m: tuple[Array, Array], s: tuple[Array, Array], n: Array,
    p: Array | None,
) -> Parts:
    """Means of the parts of `overlapped` over n points that run evenly between two ends of each
    term.

    Exact for p = 1 and for the maximum; else a four-point quadrature within 1e-4 of the sum.
    """
    if p is None:
        total = mean_of_max(c[0], c[1], m[0], m[1], n)
        by_compute = total * (c[0] + c[1] > m[0] + m[1])
        return by_compute, total - by_compute, 0.0 * total
    middle = [(x + y) / 2.0 for x, y in (c, m, s)]
    if not several(p) and p == 1:
        return middle[0], middle[1], middle[2]
    reach = 0.5 * n / np.maximum(n - 1.0, 1.0)
    slope = [(y - x) * reach for x, y in (c, m, s)]
    sums: list[Any] = [0.0, 0.0, 0.0]
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        x, y, z = (a + node * b for a, b in zip(middle, slope, strict=True))
        parts = overlapped(x, y, z, p, 0.5 * weight)
        sums = [total + part for total, part in zip(sums, parts, strict=True)]
    if several(p) and np.any(np.equal(p, 1.0)):
        sums = [np.where(np.equal(p, 1.0), x, y) for x, y in zip(middle, sums, strict=True)]
    return sums[0], sums[1], sums[2]


def expected_time(
    F: Array, Q: Array, C: Array, W: Array, e: Array, h: Array, t0: Array, p: float | None
) -> Array:
    """t0 + ((F / eC)^p + (Q / hW)^p)^(1/p): what a real kernel takes; e, h in (0, 1]."""
    return t0 + smooth_max(F / (e * C), Q / (h * W), p)


def mean_of_max(x0: Array, x1: Array, y0: Array, y1: Array, n: Array) -> Array:
    """Exact mean of max(x_i, y_i) over n points of two sequences that run evenly from 0 to 1.

    max(x, y) = y + max(x - y, 0), and the positive part of an arithmetic sequence is again an
    arithmetic sequence: k terms from the larger end.
    """
    d0, d1 = x0 - y0, x1 - y1
    largest, smallest = np.maximum(d0, d1), np.minimum(d0, d1)
    (positive,) = only_where(largest > 0, mean_of_positive, (0.0,), largest, smallest, n)
    return (y0 + y1) / 2.0 + positive


def mean_of_positive(largest: Array, smallest: Array, n: Array) -> tuple[Array]:
    """Sum of the positive ones of n terms that run evenly from `largest` > 0 down, over n."""
    step = (largest - smallest) / np.maximum(n - 1.0, 1.0)
    terms = np.floor(largest / np.where(step > 0, step, 1.0)) + 1.0
    k = np.clip(np.where(step > 0, terms, n), 0.0, n)
    return ((k * largest - step * k * (k - 1.0) / 2.0) / np.maximum(n, 1.0),)


def mean_of_smooth_max(
    x0: Array, x1: Array, y0: Array, y1: Array, n: Array, p: float | None
) -> Array:
    """Mean of smooth_max(x_i, y_i, p) over n points running evenly from 0 to 1.

    Exact for p = 1 and for the maximum; else a four-point quadrature within 1e-4 of the sum.
    """
    if p is None:
        return mean_of_max(x0, x1, y0, y1, n)
    if p == 1:
        return (x0 + x1 + y0 + y1) / 2.0
    reach = 0.5 * n / np.maximum(n - 1.0, 1.0)
    dx, dy = (x1 - x0) * reach, (y1 - y0) * reach
    mx, my = (x0 + x1) / 2.0, (y0 + y1) / 2.0
    total: Any = 0.0
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        total = total + 0.5 * weight * smooth_max(mx + node * dx, my + node * dy, p)
    return total
