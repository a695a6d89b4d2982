"""Validation: measured rows in, predictions beside them, and how wrong they are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.efficiency import spread_of
from simulator.efficiency.levels import level_of
from simulator.validation import names
from simulator.validation.cases import Case, cases_of
from simulator.validation.measurements import RATES, SIZES, TIMES, Row, read_rows
from simulator.validation.plausible import unlike
from simulator.validation.predict import predict
from simulator.validation.scores import Score, Scored, by_phase, by_source, score, worst
from simulator.validation.sizes import prompt_logits_gib
from simulator.validation.split import fitted_groups

PACKAGED = Path(__file__).with_name("measured.csv")


@dataclass(frozen=True)
class Report:
    """Everything `tokline validate` says.

    rows      all rows read; scored: those with a prediction; reasons: why others have none
    fitted    rows that constants were fitted on, which count nowhere else
    quality_c rows of quality C, apart
    """

    files: tuple[str, ...]
    rows: list[Row]
    scored: list[Scored]
    reasons: dict[int, str]
    phases: list[Score]
    sources: list[Score]
    worst: list[Scored]
    fitted: Score
    quality_c: Score
    wall_s: float

    @property
    def not_covered(self) -> dict[str, int]:
        """Rows of quality A and B without a prediction, by reason, the commonest first."""
        return dict(Counter(reason for index, reason in self.reasons.items()
                            if self.rows[index].quality != "C").most_common())


def _factor(case: Case) -> float:
    """Factor of the range: by phase or size, and by how well the device is known."""
    name = case.row.metric if case.row.metric in SIZES else case.phase
    hardware = names.hardware_of(case.row.hardware)
    return spread_of(name, level_of(hardware).known, case.setup.engine, hardware.name)


def _unprinted(case: Case) -> float:
    """What a peak of memory [GiB] may hold more, by a version that the source doesn't print."""
    if case.figure != "peak_mem_gib":
        return 0.0
    return prompt_logits_gib(case.setup.deployment(), case.batch or 1.0, case.input)


def validate(files: Sequence[str | Path] = (), include_fitted: bool = False) -> Report:
    """Predict and score the rows of measurement files; the packaged ones by default.

    Rows of groups that the packaged constants were fitted on don't count, unless asked.
    """
    start = time.perf_counter()
    paths = tuple(str(f) for f in files) or (str(PACKAGED),)
    rows = [row for path in paths for row in read_rows(path)]
    cases, reasons = cases_of(rows)
    found = predict(cases)
    known = frozenset() if include_fitted else fitted_groups()
    ranged = fitted_groups("ranges")
    scored = []
    for case, value, bound in zip(cases, found.expected, found.ceiling, strict=True):
        wrong = unlike(case.row, float(value), float(bound))
        if wrong:
            reasons[case.index] = wrong
            continue
        factor = _factor(case)
        low, high = float(value / factor), float((value + _unprinted(case)) * factor)
        if case.row.metric in RATES:
            high = min(high, max(float(bound), float(value)))
        elif case.row.metric in TIMES:
            low = max(low, min(float(bound), float(value)))
        scored.append(Scored(case, float(value), low, high, float(bound),
                             case.row.group in known, case.row.group in ranged))
    c = [s for s in scored if s.case.row.quality == "C"]
    used = [s for s in scored if s.fitted and s.case.row.quality != "C"
            and s.case.phase != "memory"]
    return Report(
        files=paths, rows=rows, scored=scored, reasons=reasons,
        phases=by_phase(rows, scored), sources=by_source(rows, scored), worst=worst(scored),
        fitted=score("fitted on", len(used), len(used), used),
        quality_c=score("quality C", sum(r.quality == "C" for r in rows), len(c), c),
        wall_s=time.perf_counter() - start)


__all__ = ["PACKAGED", "Report", "validate"]
