"""Tokens of each expert as router benchmarks draw them, and the tiles that they fill.

NVIDIA aiconfigurator draws the load of each expert from a power law, scales it to all picks and
times the fullest rank. Its draws aren't in the tables, so a few are made again from a fixed seed.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array
from simulator.efficiency.forms_moe import TILE_ROWS

DRAWS = 3
FIELDS = ("rows", "active", *(f"tiles_{t:.0f}" for t in TILE_ROWS))
# Below one pick an expert the collectors draw from [0.01, 2] instead of [1, 0.8 m].
_FEW = (0.01, 2.0)


def routed(m: Array, topk: Array, experts: int, ep: int, law: str) -> dict[str, Array]:
    """Rows, active experts and tiles of the fullest of `ep` ranks, for arrays of m and top-k.

    law   `balanced`, `uniform`, or the exponent of a power law
    """
    local = max(experts // ep, 1)
    rng = np.random.default_rng(20260101)
    if law == "balanced":
        counts = _balanced(m, topk, experts, ep)[:, None, :]
    else:
        shape = (len(m), DRAWS, experts)
        drawn = (rng.binomial(m[:, None, None].astype(int), np.minimum(
            topk / experts, 1.0)[:, None, None], shape).astype(float)
            if law == "uniform" else _power_law(m, topk, rng.random(shape), float(law)))
        counts = _fullest(drawn, local, rng)
    tiles = {f"tiles_{t:.0f}": np.ceil(counts / t).sum(-1).mean(-1) for t in TILE_ROWS}
    return {"rows": counts.sum(-1).mean(-1), "active": (counts > 0).sum(-1).mean(-1), **tiles}


def _balanced(m: Array, topk: Array, experts: int, ep: int) -> Array:
    local = max(experts // ep, 1)
    picks = np.ceil(m * topk / ep)
    index = np.arange(local)
    return (picks // local)[:, None] + (index < (picks % local)[:, None])


def _power_law(m: Array, topk: Array, u: Array, alpha: float) -> Array:
    """Counts of each expert, falling, that sum to m topk: inverse transform of x^-alpha."""
    picks, experts = (m * topk)[:, None, None], u.shape[-1]
    many = picks > experts
    low = np.where(many, 1.0, _FEW[0])
    high = np.where(many, np.maximum(0.8 * m[:, None, None], 1.0 + 1e-9), _FEW[1])
    a = 1.0 - alpha if abs(alpha - 1.0) > 1e-6 else 1e-6
    x = -np.sort(-((high**a - low**a) * u + low**a) ** (1.0 / a), axis=-1)
    counts = np.round(x / x.sum(-1, keepdims=True) * picks)
    missing = picks - counts.sum(-1, keepdims=True)
    index, held = np.arange(experts), (counts > 0).sum(-1, keepdims=True)
    more = np.maximum(missing, 0.0)
    counts += more // experts + (index < more % experts)
    return counts - ((index >= held + missing) & (index < held))


def _fullest(counts: Array, local: int, rng: np.random.Generator) -> Array:
    """Counts of the rank with most rows when experts are dealt to ranks at random."""
    experts = counts.shape[-1]
    ranks = experts // local
    if ranks <= 1:
        return counts
    dealt = np.take_along_axis(counts, np.argsort(rng.random(counts.shape), axis=-1), axis=-1)
    by_rank = dealt[..., : ranks * local].reshape(*counts.shape[:-1], ranks, local)
    top = by_rank.sum(-1).argmax(-1)[..., None, None]
    return np.take_along_axis(by_rank, top, axis=-2)[..., 0, :]
