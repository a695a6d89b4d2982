"""Speculative decoding: a draft proposes g tokens, one step of the model verifies g + 1.

a acceptance rate of one draft token (independent), g draft tokens, c time of one draft step over
one step of the model, at the serving batch. Leviathan, Kalman, Matias, 2022 (2211.17192).
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def expected_tokens(a: Array, g: Array) -> Array:
    """(1 - a^(g+1)) / (1 - a): tokens a verification yields, eq. 1; g + 1 where a = 1."""
    rest = 1.0 - np.minimum(a, 1.0)
    sure = rest < 1e-9
    return np.where(sure, g + 1.0, (1.0 - np.minimum(a, 1.0) ** (g + 1.0))
                    / np.where(sure, 1.0, rest)) * 1.0


def speed_up(a: Array, g: Array, c: Array) -> Array:
    """expected_tokens / (g c + 1): time saved, theorem 3.8, while verification costs one step."""
    return expected_tokens(a, g) / (g * c + 1.0)


def operations_factor(a: Array, g: Array, c_hat: Array) -> Array:
    """(g c_hat + g + 1) / expected_tokens: FLOPs a token, theorem 3.11; c_hat is a FLOP ratio."""
    return (g * c_hat + g + 1.0) / expected_tokens(a, g)


def time_per_token(a: Array, g: Array, draft: Array, verification: Array) -> Array:
    """(g draft + verification) / expected_tokens: TPOT with speculation [s].

    `verification` is the step at g + 1 tokens a sequence, so that a large batch makes it negative.
    """
    return (g * draft + verification) / expected_tokens(a, g)
