"""Writes docs/accuracy.md and its two charts from the packaged measurements.

    python docs/accuracy.py            rewrite
    python docs/accuracy.py --check    exit 1 where docs/accuracy.md is out of date
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from simulator import plots
from simulator.plots.style import save
from simulator.units import plural
from simulator.validation import names
from simulator.validation.baselines import three_ways
from simulator.validation.measurements import TIMES
from simulator.validation.reasons import reason
from simulator.validation.report import UNITS, figure_text, percent
from simulator.validation.run import Report, validate
from simulator.validation.scores import Scored, counts

HERE = Path(__file__).resolve().parent
PAGE, TEXT = HERE / "accuracy.md", HERE / "accuracy_text.md"
# Figures of a source that are all shown where it is furthest off.
FEW = 3
NAMES = {
    "batch1_decode": "decode, batch 1, one device", "prefill": "prefill of 512 tokens and more",
    "static_throughput": "throughput of static batches", "max_throughput": "largest throughput",
    "tpot": "TPOT at a concurrency", "ttft": "TTFT at a concurrency",
    "prefill_short": "prefill below 512 tokens", "memory": "memory and KV tokens",
}


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(str(c) for c in cells) + " |"


def share(value: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "-" if value is None else f"{value:.0%}".replace("%", " %")


def phases(report: Report) -> list[str]:
    """The table by phase."""
    lines = [row("what", "rows", "sources", "median", "90 % within", "bias", "inside the range"),
             row("---", "---:", "---:", "---:", "---:", "---:", "---:")]
    for s in report.phases:
        if s.median_abs_ln is not None and s.p90_abs_ln is not None and s.bias_ln is not None:
            lines.append(row(NAMES[s.name], f"{s.scored:,}", s.sources, percent(s.median_abs_ln),
                             percent(s.p90_abs_ln), f"{s.bias_ln:+.2f}", share(s.in_range)))
    return lines


def ways(report: Report) -> list[str]:
    """The ceiling alone, one efficiency, tokline."""
    lines = [row("what", "rows", "ceiling only", "one efficiency factor", "tokline"),
             row("---", "---:", "---:", "---:", "---:")]
    for phase, (n, _, *errors) in three_ways(report.scored).items():
        lines.append(row(NAMES[phase], f"{n:,}", *(f"{e:.2f}" for e in errors)))
    return lines


def sources(report: Report) -> list[str]:
    """The table by source."""
    lines = [row("source", "rows", "median", "bias", "inside the range"),
             row("---", "---:", "---:", "---:", "---:")]
    for s in sorted(report.sources, key=lambda s: s.median_abs_ln or 9.0):
        if s.median_abs_ln is not None and s.bias_ln is not None:
            lines.append(row(s.name, f"{s.scored:,}", percent(s.median_abs_ln), f"{s.bias_ln:+.2f}",
                             share(s.in_range)))
    return lines


def timed(report: Report) -> list[Scored]:
    """The rows that count by source: those of time."""
    return [s for s in report.scored if counts(s) and s.case.phase != "memory"]


def worst_source(report: Report) -> list[str]:
    """What the source furthest off prints, or the row of it that is furthest off."""
    last = max((s for s in report.sources if s.median_abs_ln is not None),
               key=lambda s: s.median_abs_ln or 0.0)
    mine = sorted((s for s in timed(report) if s.case.row.source == last.name),
                  key=lambda s: -abs(s.error))
    few = len(mine) <= FEW
    lines = [f"Furthest off is {last.name}, {plural(len(mine), 'figure')}"
             + (" in all:" if few else ", its worst:"), ""]
    for s in mine[:FEW if few else 1]:
        row, why = s.case.row, reason(s)
        count = "" if s.case.setup.devices == 1 else f"{s.case.setup.devices:,.0f} x "
        lines.append(f"- {row.model} on {count}{row.hardware}, {row.engine}, "
                     f"{s.case.input:,.0f} tokens in: {figure_text(row.value)} {UNITS[row.metric]}"
                     f" measured, {figure_text(s.predicted)} predicted"
                     + (f" ({why})" if why else ""))
    return lines


def number_of_sources(report: Report) -> str:
    """`27 sources`, and how many of them print sizes alone."""
    counted = {s.case.row.source for s in report.scored if counts(s)}
    sizes = len(counted) - len({s.case.row.source for s in timed(report)})
    return plural(len(counted), "source") + (
        f" ({sizes:,} of them print{'s' if sizes == 1 else ''} memory alone)" if sizes else "")


def regimes(report: Report, least: int = 8, most: int = 12) -> list[str]:
    """Engine, device and phase with the largest median error."""
    groups: dict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for s in report.scored:
        if counts(s) and s.case.phase in NAMES and s.case.phase != "memory":
            groups[s.case.setup.engine, s.case.row.hardware, s.case.phase].append(s)
    worst = sorted(((float(np.median([abs(s.error) for s in v])), key, v)
                    for key, v in groups.items() if len(v) >= least), key=lambda x: -x[0])
    lines = [row("engine", "device", "what", "rows", "median", "predicted"),
             row("---", "---", "---", "---:", "---:", "---")]
    for error, (engine, device, phase), v in worst[:most]:
        slow = np.median([s.error * (1 if s.case.row.metric in TIMES else -1) for s in v]) > 0
        lines.append(row(engine, device, NAMES[phase], len(v), percent(error),
                         "too slow" if slow else "too fast"))
    return lines


def page(report: Report) -> str:
    """The whole page: the text with its tables."""
    text = TEXT.read_text(encoding="utf-8")
    tables = {"phases": phases(report), "ways": ways(report), "sources": sources(report),
              "worst": worst_source(report), "regimes": regimes(report)}
    for name, lines in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(lines))
    counted = [s for s in report.scored if counts(s)]
    for name, value in {
            "rows": f"{len(counted):,}",
            "n_sources": number_of_sources(report),
            "n_devices": len({names.hardware_of(s.case.row.hardware).name for s in counted}),
            "n_models": len({names.model_of(s.case.row.model)[0].name for s in counted})}.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def charts(report: Report) -> None:
    """Measured against predicted, and the three steps of the model."""
    save(plots.validation(report).figure, str(HERE / "images" / "accuracy.png"))
    rates = [(m, c, p) for m, c, p in (steps(s) for s in report.scored
                                       if counts(s) and s.case.phase == "batch1_decode")]
    measured, ceiling, predicted = np.array(rates).T
    save(plots.three_steps(measured, ceiling, predicted).figure,
         str(HERE / "images" / "accuracy-steps.png"))


def steps(s: Scored) -> tuple[float, float, float]:
    """Measured, ceiling and predicted rate [tok/s] of a decode row."""
    values = s.case.row.value, s.ceiling, s.predicted
    return tuple(1e3 / v if s.case.row.metric in TIMES else v for v in values)  # type: ignore[return-value]


def main() -> int:
    """Rewrite or check."""
    report = validate()
    new = page(report)
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != new)
    PAGE.write_text(new, encoding="utf-8")
    charts(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
