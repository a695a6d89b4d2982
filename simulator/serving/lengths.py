"""How long prompts and answers are [tokens]: fixed, uniform, log-normal, or drawn from a file.

Log-normal lengths have the mean and the coefficient of variation asked for before they are rounded
to whole tokens and cut to at least one token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from simulator.errors import InputError, nearest
from simulator.serving.requests import Counts
from simulator.units import parse_count

KINDS = ("fixed", "uniform", "lognormal", "file")
MOST_TOKENS = 100_000_000


def lognormal(n: int, mean: float, cv: float, rng: np.random.Generator) -> Counts:
    """n lengths: exp of a normal with s^2 = ln(1 + cv^2) and m = ln(mean) - s^2/2, rounded."""
    variance = math.log1p(cv**2)
    values = rng.lognormal(math.log(mean) - variance / 2.0, math.sqrt(variance), n)
    return np.clip(np.rint(values), 1, MOST_TOKENS).astype(np.int64)


def uniform(n: int, low: int, high: int, rng: np.random.Generator) -> Counts:
    """n whole lengths from low to high, both included."""
    return rng.integers(low, high, n, dtype=np.int64, endpoint=True)


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths.

    first, second   fixed: the length; uniform: least and most; lognormal: mean and cv
    values          file: the lengths it holds, drawn with equal chances
    """

    kind: str
    first: float
    second: float = 0.0
    values: Counts | None = field(default=None, compare=False)

    def draw(self, n: int, rng: np.random.Generator) -> Counts:
        """n lengths, each at least 1."""
        if self.kind == "uniform":
            return uniform(n, int(self.first), int(self.second), rng)
        if self.kind == "lognormal":
            return lognormal(n, self.first, self.second, rng)
        if self.values is not None:
            return rng.choice(self.values, n)
        return np.full(n, int(self.first), dtype=np.int64)

    @property
    def longest(self) -> float:
        """Largest length that can come; infinite for log-normal ones."""
        if self.kind == "lognormal":
            return math.inf
        if self.values is not None:
            return float(self.values.max())
        return max(self.first, self.second)

    @property
    def is_fixed(self) -> bool:
        """Whether every request has the same length."""
        return self.kind == "fixed"


def fixed(length: float) -> Lengths:
    """Every request has `length` tokens."""
    return Lengths("fixed", length)


def parse_lengths(text: str, where: str) -> Lengths:
    """`512`, `uniform:128:1024`, `lognormal:512:0.8` (mean and cv), or `file:PATH`.

    A file holds one length a line; a request trace gives its inputs or outputs instead, by
    `where` (`--input` or `--output`).
    """
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        return fixed(_tokens(text, where))
    if kind.lower() not in KINDS:
        raise InputError(f"{where}: unknown distribution '{kind}'{nearest(kind.lower(), KINDS)}")
    kind = kind.lower()
    if kind == "file":
        values = read_lengths(rest, where)
        return Lengths("file", float(values.mean()), values=values)
    parts = rest.split(":")
    wanted = {"fixed": "fixed:512", "uniform": "uniform:128:1024", "lognormal": "lognormal:512:0.8"}
    if len(parts) != (1 if kind == "fixed" else 2):
        raise InputError(f"{where}: '{text}' is not {kind}, write for example {wanted[kind]}")
    first = _tokens(parts[0], where)
    if kind == "fixed":
        return fixed(first)
    if kind == "uniform":
        second = _tokens(parts[1], where)
        if second < first:
            raise InputError(f"{where}: '{text}' runs backwards: {first:g} is above {second:g}")
        return Lengths("uniform", first, second)
    return Lengths("lognormal", first, _variation(parts[1], text, where))


def _tokens(text: str, where: str) -> float:
    value = parse_count(text, where)
    if not 1 <= value <= MOST_TOKENS:
        raise InputError(f"{where}: '{text}' is not between 1 and {MOST_TOKENS:,} tokens")
    return value


def _variation(text: str, whole: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: '{whole}': '{text}' is no coefficient of variation, write for "
                         "example lognormal:512:0.8") from None
    if not 0.0 <= value <= 10.0:
        raise InputError(f"{where}: '{whole}': the coefficient of variation must lie between 0 "
                         "and 10")
    return value


def read_lengths(path: str, where: str) -> Counts:
    """Lengths of a file with one number a line, or the inputs or outputs of a request trace."""
    from simulator.serving.trace_text import read_text

    lines = [line.strip() for line in read_text(Path(path), where).splitlines() if line.strip()]
    if lines and not lines[0].isdigit():
        from simulator.serving.traces import load_lengths

        inputs, outputs = load_lengths(path)
        return outputs if "output" in where else inputs
    found = np.zeros(len(lines), dtype=np.int64)
    for i, line in enumerate(lines):
        if not line.isdigit() or not 1 <= int(line) <= MOST_TOKENS:
            raise InputError(f"{where}: {path}: line {i + 1}: '{line}' is not a length between 1 "
                             f"and {MOST_TOKENS:,} tokens")
        found[i] = int(line)
    return found
