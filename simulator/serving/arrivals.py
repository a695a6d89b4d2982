"""When requests arrive: Poisson, Gamma gaps of any burstiness, constant gaps, or all at once.

Times [s], rates [1/s]. The coefficient of variation (cv) of the gaps says how bursty: 0 constant,
1 Poisson, above 1 bursts. A seeded generator makes a run repeatable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.errors import InputError, nearest
from simulator.serving.requests import Times

KINDS = ("poisson", "gamma", "constant")
MOST_REQUESTS = 100_000_000


def gamma_gaps(n: int, rate: float, cv: float, rng: np.random.Generator) -> Times:
    """n gaps [s] with mean 1/rate: Gamma of shape 1/cv^2 and scale cv^2/rate."""
    return rng.gamma(1.0 / cv**2, cv**2 / rate, n)


def constant_gaps(n: int, rate: float) -> Times:
    """n gaps [s] of exactly 1/rate."""
    return np.full(n, 1.0 / rate)


@dataclass(frozen=True)
class Arrivals:
    """A kind of arrivals; `cv` of the gaps, 0 for constant ones and 1 for Poisson."""

    kind: str = "poisson"
    cv: float = 1.0

    def times(self, n: int, rate: float, rng: np.random.Generator) -> Times:
        """Arrival times [s] of n requests at `rate`, the first after one gap."""
        if not 0 <= n <= MOST_REQUESTS:
            raise InputError(f"requests: {n:,} is not between 0 and {MOST_REQUESTS:,}")
        check_rate(rate)
        if self.kind == "constant":
            return np.cumsum(constant_gaps(n, rate))
        return np.cumsum(gamma_gaps(n, rate, self.cv, rng))


def check_rate(rate: float, where: str = "rate") -> float:
    """A rate [1/s]; refused unless above 0 and finite."""
    if not math.isfinite(rate) or rate <= 0.0:
        raise InputError(f"{where}: {rate:g} requests/s is not above 0 and finite")
    if rate > 1e9:
        raise InputError(f"{where}: {rate:g} requests/s is above 1e9")
    return rate


def parse_arrivals(text: str, where: str = "--arrivals") -> Arrivals:
    """`poisson`, `constant`, or `gamma:CV` as in `gamma:2`."""
    kind, colon, number = text.strip().lower().partition(":")
    if kind not in KINDS:
        raise InputError(f"{where}: unknown arrivals '{text}'{nearest(kind, KINDS)}")
    if kind != "gamma":
        if colon:
            raise InputError(f"{where}: '{text}': {kind} takes no number")
        return Arrivals(kind, 1.0 if kind == "poisson" else 0.0)
    try:
        cv = float(number)
    except ValueError:
        raise InputError(f"{where}: '{text}' has no coefficient of variation, write for example "
                         "gamma:2") from None
    if not 0.01 <= cv <= 100.0:
        raise InputError(f"{where}: '{text}': the coefficient of variation must lie between 0.01 "
                         "and 100")
    return Arrivals("gamma", cv)
