"""What simpler models would have said of the same rows: the ceiling, and one efficiency a phase."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.arrays import Array
from simulator.validation.cases import PHASES
from simulator.validation.measurements import TIMES
from simulator.validation.scores import Scored, counts


def ceiling_errors(rows: Sequence[Scored]) -> Array:
    """ln(ceiling/measured) of each row."""
    return np.array([np.log(s.ceiling / s.case.row.value) for s in rows])


def one_factor_errors(rows: Sequence[Scored]) -> Array:
    """The same with the one efficiency that suits these very rows best, in hindsight.

    It lengthens times and lowers rates; the median over rows of what is missing to the ceiling.
    """
    error = ceiling_errors(rows)
    sign = np.array([1.0 if s.case.row.metric in TIMES else -1.0 for s in rows])
    return error - sign * np.median(error * sign)


def mean_over_sources(rows: Sequence[Scored], error: Array) -> float:
    """Median |ln error| of each source, and the mean of these."""
    sources = np.array([s.case.row.source for s in rows])
    return float(np.mean([np.median(np.abs(error[sources == name])) for name in set(sources)]))


def three_ways(scored: Sequence[Scored]) -> dict[str, tuple[int, int, float, float, float]]:
    """By phase: rows, sources, and the error of the ceiling, of one efficiency and of tokline."""
    found = {}
    for phase in PHASES:
        rows = [s for s in scored if s.case.phase == phase and counts(s)]
        if rows:
            errors = (ceiling_errors(rows), one_factor_errors(rows),
                      np.array([s.error for s in rows]))
            found[phase] = (len(rows), len({s.case.row.source for s in rows}),
                            *(mean_over_sources(rows, e) for e in errors))
    return found  # type: ignore[return-value]


__all__ = ["ceiling_errors", "mean_over_sources", "one_factor_errors", "three_ways"]
