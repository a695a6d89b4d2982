"""What is counted while a simulation runs: gaps between tokens, and the KV memory in use.

Nothing here grows with the number of requests or tokens.
"""

from __future__ import annotations

import math
from array import array
from math import log

import numpy as np

from simulator.arrays import Array

# Gaps are counted in classes 1 % wide, from a microsecond to three hours.
RESOLUTION = 0.01
PER_E = 1.0 / math.log1p(RESOLUTION)
SHIFT = -math.log(1e-6) * PER_E
CLASSES = int(PER_E * math.log(1e4) + SHIFT) + 2
SAMPLES = 2048


class Gaps:
    """Histogram of the times between tokens of a sequence."""

    def __init__(self) -> None:
        self.counts = [0] * CLASSES

    def add(self, gap: float, number: int) -> None:
        """`number` gaps of one size."""
        place = int(log(gap) * PER_E + SHIFT) if gap > 1e-6 else 0
        self.counts[place if place < CLASSES else CLASSES - 1] += number

    def spread(self, first: float, last: float, number: int) -> None:
        """Gaps spaced evenly from `first` to `last`."""
        parts = min(max(math.ceil(abs(last - first) / min(first, last) / RESOLUTION), 1), number)
        for i in range(parts):
            share = number * (i + 1) // parts - number * i // parts
            self.add(first + (last - first) * (i + 0.5) / parts, share)

    def quantiles(self, shares: Array) -> Array:
        """Gaps below which these shares lie, in the middle of their class; NaN without gaps."""
        total = np.cumsum(self.counts)
        if not total[-1]:
            return np.full(np.shape(shares), np.nan)
        place = np.searchsorted(total, np.asarray(shares) * total[-1])
        return np.exp((np.minimum(place, CLASSES - 1) + 0.5 - SHIFT) / PER_E)

    def merge(self, other: Gaps) -> None:
        """Add another histogram."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]


class Samples:
    """An integral over time, written down at most `SAMPLES` times.

    Its differences are means over what lies between, so that no moment is missed. When the columns
    are full every second row is dropped, and they are written half as often.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.times, self.integral = array("d"), array("d")

    def add(self, t: float, integral: float) -> float:
        """The integral up to t; when the next is due."""
        self.times.append(t)
        self.integral.append(integral)
        if len(self.times) >= SAMPLES:
            self.times, self.integral = self.times[::2], self.integral[::2]
            self.interval *= 2.0
        return t + self.interval


__all__ = ["CLASSES", "PER_E", "RESOLUTION", "SHIFT", "Gaps", "Samples"]
