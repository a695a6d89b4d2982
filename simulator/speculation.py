"""Speculative decoding: a draft proposes g tokens, one step of the model verifies g + 1.

a acceptance rate of one draft token (independent), g draft tokens, c time of one draft step over
one step of the model, at the serving batch. Leviathan, Kalman, Matias, 2022 (2211.17192).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.specs.model import Model


class Default(NamedTuple):
    """Draft length and acceptance where none is given, and where they come from."""

    length: int
    acceptance: float
    source: str


DEFAULTS = {
    "draft": Default(5, 0.7, "between the rows of Leviathan et al. 2022 (2211.17192), A.3: "
                             "gamma 5 to 7, 0.62 to 0.82"),
    "mtp": Default(1, 0.85, "DeepSeek-V3 (2412.19437), 5.4.3: the second token is accepted in 85 "
                            "to 90 %"),
    "ngram": Default(4, 0.4, "a guess: it is the share of the output that repeats the input"),
}
# No published system drafts more tokens in one chain.
MOST_DRAFTS = 64


@dataclass(frozen=True)
class Speculation:
    """What drafts, how many tokens a round, and how probably each is accepted.

    kind        draft (a small model), mtp (the model's own prediction layers) or ngram (copied
                from the text, no device time)
    length      tokens drafted a round; None: the default of the kind
    acceptance  probability that a drafted token is accepted; None: the default of the kind
    """

    kind: str
    draft: Model | None = None
    length: int | None = None
    acceptance: Array | None = None

    def __post_init__(self) -> None:
        if self.kind not in DEFAULTS:
            raise InputError(f"speculate: unknown kind '{self.kind}'"
                             f"{nearest(str(self.kind), DEFAULTS)}")
        if self.kind == "draft" and self.draft is None:
            raise InputError("speculate: 'draft' needs a draft model, for example "
                             "--draft llama-3.2-1b")
        if self.kind != "draft" and self.draft is not None:
            raise InputError(f"draft: '{self.kind}' needs no draft model")
        length = self.length
        if length is not None and (isinstance(length, bool) or not isinstance(length, int)
                                   or not 1 <= length <= MOST_DRAFTS):
            raise InputError(f"draft-length: {length!r} is not a whole number between 1 and "
                             f"{MOST_DRAFTS}")
        a = np.asarray(0.0 if self.acceptance is None else self.acceptance, dtype=float)
        if not np.all((a >= 0.0) & (a <= 1.0)):
            raise InputError("acceptance: must lie between 0 and 1")

    @property
    def drafts(self) -> int:
        """Tokens drafted a round, g."""
        return DEFAULTS[self.kind].length if self.length is None else self.length

    @property
    def accepted(self) -> Array:
        """Probability that a drafted token is accepted, a."""
        return DEFAULTS[self.kind].acceptance if self.acceptance is None else self.acceptance

    @property
    def tokens(self) -> Array:
        """Expected tokens a round."""
        return expected_tokens(self.accepted, self.drafts)


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
