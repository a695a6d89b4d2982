"""How wrong predictions are: |ln(predicted/measured)| by phase and by source.

A source counts once in its phase, however many rows it has: the median, the ninth decile and the
signed median (bias) of each source, then their mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.arrays import Array
from simulator.validation.cases import OTHER_PHASES, PHASES, Case, rough_phase
from simulator.validation.measurements import Row


@dataclass(frozen=True)
class Scored:
    """A case with what was predicted; rates and times as printed."""

    case: Case
    predicted: float
    low: float
    high: float
    ceiling: float
    fitted: bool
    set_range: bool = False

    @property
    def error(self) -> float:
        """ln(predicted/measured)."""
        return float(np.log(self.predicted / self.case.row.value))

    @property
    def inside(self) -> bool:
        """Whether the measured figure lies in the predicted range."""
        return self.low <= self.case.row.value <= self.high


@dataclass(frozen=True)
class Score:
    """One line of the table. `covered` of `n` rows are predicted, `scored` of them count."""

    name: str
    n: int
    covered: int
    scored: int
    sources: int
    median_abs_ln: float | None
    p90_abs_ln: float | None
    bias_ln: float | None
    in_range: float | None
    pooled_median_abs_ln: float | None


def _means(groups: Sequence[Array]) -> tuple[float, float, float]:
    """Means over groups of their median |error|, ninth decile and signed median."""
    sizes = [np.abs(g) for g in groups]
    return (float(np.mean([np.median(s) for s in sizes])),
            float(np.mean([np.quantile(s, 0.9) for s in sizes])),
            float(np.mean([np.median(g) for g in groups])))


def _share(inside: Sequence[bool]) -> float | None:
    return float(np.mean(inside)) if inside else None


def score(name: str, n: int, covered: int, rows: Sequence[Scored]) -> Score:
    """The line of a set of scored rows."""
    if not rows:
        return Score(name, n, covered, 0, 0, None, None, None, None, None)
    by_source: dict[str, list[float]] = {}
    for row in rows:
        by_source.setdefault(row.case.row.source, []).append(row.error)
    median, p90, bias = _means([np.array(v) for v in by_source.values()])
    errors = np.array([row.error for row in rows])
    return Score(name, n, covered, len(rows), len(by_source), median, p90, bias,
                 _share([row.inside for row in rows if not row.set_range]),
                 float(np.median(np.abs(errors))))


def counts(row: Scored) -> bool:
    """Whether a row is scored: of quality A or B, and not one that constants were fitted on."""
    return row.case.row.quality != "C" and not row.fitted


def by_phase(rows: Sequence[Row], scored: Sequence[Scored]) -> list[Score]:
    """The six phases, then the others that have rows."""
    asked = Counter(rough_phase(row) for row in rows if row.quality != "C")
    found = []
    for phase in (*PHASES, *OTHER_PHASES):
        mine = [s for s in scored if s.case.phase == phase and s.case.row.quality != "C"]
        n = max(asked[phase], len(mine))
        if phase in PHASES or n:
            found.append(score(phase, n, len(mine), [s for s in mine if counts(s)]))
    return found


def by_source(rows: Sequence[Row], scored: Sequence[Scored]) -> list[Score]:
    """Each source over its phases of time; memory stands apart among the phases."""
    asked = Counter(row.source for row in rows if row.quality != "C")
    found = []
    for source in sorted(asked):
        mine = [s for s in scored if s.case.row.source == source and s.case.row.quality != "C"]
        found.append(score(source, asked[source], len(mine),
                           [s for s in mine if counts(s) and s.case.phase != "memory"]))
    return found


def worst(scored: Sequence[Scored], count: int = 10) -> list[Scored]:
    """Scored rows of the six phases that are furthest off, one of each (source, device, model)."""
    found: list[Scored] = []
    seen: set[tuple[str, str, str]] = set()
    for row in sorted((s for s in scored if counts(s) and s.case.phase in PHASES),
                      key=lambda s: -abs(s.error)):
        if row.case.row.group not in seen:
            seen.add(row.case.row.group)
            found.append(row)
        if len(found) == count:
            break
    return found


__all__ = ["Score", "Scored", "by_phase", "by_source", "counts", "score", "worst"]
