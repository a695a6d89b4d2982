"""A validation as text of at most 100 columns, as JSON and as rows of a CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.output import SCHEMA_VERSION, number
from simulator.report import wrap
from simulator.units import plural
from simulator.validation import names
from simulator.validation.cases import rough_phase
from simulator.validation.measurements import COLUMNS, RATES, SIZES, Row
from simulator.validation.reasons import reason
from simulator.validation.run import Report
from simulator.validation.scores import Score, Scored, counts
from simulator.validation.split import fitted_groups

# What the text calls a phase; JSON and CSV keep the keys.
PHASE_TITLES = {
    "batch1_decode": "decode, batch 1", "prefill": "prefill", "tpot": "TPOT", "ttft": "TTFT",
    "static_throughput": "static throughput", "max_throughput": "max throughput",
    "prefill_short": "prefill, short", "memory": "memory", "other": "other metrics"}
UNITS = {"decode_tok_s_per_user": "tok/s a user", "decode_tok_s_total": "tok/s decode",
         "prefill_tok_s": "tok/s prefill", "throughput_out_tok_s": "tok/s out",
         "throughput_total_tok_s": "tok/s in + out", "req_s": "requests/s", "tpot_ms": "ms TPOT",
         "ttft_ms": "ms TTFT", "prefill_ms": "ms prefill", "kv_tokens_capacity": "tokens of KV",
         "weights_gib": "GiB weights", "peak_mem_gib": "GiB at the peak"}
CSV_COLUMNS = (*COLUMNS, "phase", "predicted", "low", "high", "ceiling", "ln_error", "in_range",
               "fitted", "covered", "reason_not_covered")
_REASONS = 10


def coverage(report: Report) -> dict[str, int]:
    """How many rows were read, predicted and counted, and what the counted ones are of."""
    counted = [s for s in report.scored if counts(s)]
    return {
        "rows": len(report.rows),
        "rows_a_b": sum(r.quality != "C" for r in report.rows),
        "covered": sum(s.case.row.quality != "C" for s in report.scored),
        "counted": len(counted),
        "sources": len({s.case.row.source for s in counted}),
        "devices": len({names.hardware_of(s.case.setup.hardware).name for s in counted}),
        "models": len({names.model_of(s.case.setup.model)[0].name for s in counted}),
    }


def columns_of(row: Row) -> dict[str, object]:
    """A row under the column names of a measurement file, whole numbers without a point."""
    def cell(value: float | str | None) -> object:
        if isinstance(value, str) or value is None:
            return "" if value is None else value
        return int(value) if value == int(value) else value

    return {
        "id": row.id, "source": row.source, "source_date": row.date, "licence": row.licence,
        "hardware": row.hardware, "n_devices": cell(row.n_devices), "engine": row.engine,
        "engine_version": row.version, "model": row.model, "dtype_weights": row.weights,
        "dtype_kv": row.kv, "tp": cell(row.tp), "pp": cell(row.pp), "ep": cell(row.ep),
        "batch_or_concurrency": cell(row.batch), "request_rate": row.rate,
        "input_len": cell(row.input), "output_len": cell(row.output), "metric": row.metric,
        "value": cell(row.value), "quality": row.quality, "notes": row.notes,
    }


def csv_rows(report: Report) -> Iterator[dict[str, object]]:
    """Every row that was read, in its order, under CSV_COLUMNS."""
    predicted = {s.case.index: s for s in report.scored}
    used = fitted_groups()
    for index, row in enumerate(report.rows):
        s = predicted.get(index)
        found = columns_of(row) | {
            "phase": rough_phase(row), "predicted": "", "low": "", "high": "", "ceiling": "",
            "ln_error": "", "in_range": "", "fitted": _word(row.group in used),
            "covered": _word(s is not None), "reason_not_covered": report.reasons.get(index, "")}
        if s is not None:
            found |= {"phase": s.case.phase, "ln_error": _digits(s.error),
                      "in_range": _word(s.inside)}
            found |= {k: _digits(getattr(s, k)) for k in ("predicted", "low", "high", "ceiling")}
        yield found


def check_writable(path: str | None, flag: str, others: Sequence[str | Path]) -> None:
    """Refuse a path that can't be written, or that stands for another file, before any work."""
    if path is None:
        return
    target = Path(path)
    if not path.strip():
        raise InputError(f"{flag}: '{path}' names no file")
    if target.is_dir():
        raise InputError(f"{flag}: '{path}' is a folder; name a file")
    if any(target.resolve() == Path(other).resolve() for other in others):
        raise InputError(f"{flag}: '{path}' is named twice")
    there = target.exists()
    try:
        with open(target, "ab"):
            pass
        if not there:
            target.unlink()
    except OSError as error:
        raise InputError(f"{flag}: '{path}' can't be written: {error.strerror}") from None


def write_csv(path: str, report: Report) -> None:
    """Every row with its prediction."""
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, CSV_COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(csv_rows(report))
    except OSError as error:
        raise InputError(f"--csv: '{path}' can't be written: {error.strerror}") from None


def unpredicted(report: Report) -> list[str]:
    """A warning where there is nothing to judge by."""
    if not report.scored:
        return ["no row could be predicted; the reasons are listed"]
    if not any(map(counts, report.scored)):
        return ["no predicted row counts: constants were fitted on all of them, or they are of "
                "quality C"]
    return []


def _word(value: bool) -> str:
    return "true" if value else "false"


def _digits(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def score_dict(s: Score) -> dict[str, Any]:
    """One line of a table."""
    return {key: number(getattr(s, key)) for key in (
        "name", "n", "covered", "scored", "sources", "median_abs_ln", "p90_abs_ln", "bias_ln",
        "in_range", "pooled_median_abs_ln")}


def _worst_dict(s: Scored) -> dict[str, Any]:
    case, row = s.case, s.case.row
    return {
        "id": row.id, "source": row.source, "device": row.hardware, "model": row.model,
        "engine": row.engine, "phase": case.phase, "metric": row.metric,
        "batch": number(case.batch), "input": number(case.input), "output": number(case.output),
        "measured": number(row.value), "predicted": number(s.predicted), "low": number(s.low),
        "high": number(s.high), "ceiling": number(s.ceiling), "ln_error": number(s.error),
        "reason": reason(s) or None,
    }


def report_dict(report: Report, include_fitted: bool = False) -> dict[str, Any]:
    """The whole validation as one JSON value."""
    return {
        "schema_version": SCHEMA_VERSION,
        "files": list(report.files),
        "include_fitted": include_fitted,
        "coverage": coverage(report),
        "phases": [score_dict(s) for s in report.phases],
        "sources": [score_dict(s) for s in report.sources],
        "fitted": score_dict(report.fitted),
        "quality_c": score_dict(report.quality_c),
        "not_covered": report.not_covered,
        "worst": [_worst_dict(s) for s in report.worst],
        "wall_s": report.wall_s,
    }


def percent(ln: float) -> str:
    """|ln| as the percentage it stands for: 0.10 is about 10 %."""
    return f"{math.expm1(abs(ln)):,.0%}".replace("%", " %")


def _error(value: float | None, signed: bool = False) -> str:
    """`31 % 0.270`, with signs `-2 % -0.024`."""
    if value is None:
        return "-"
    if signed:
        return f"{math.expm1(value):+,.0%} {value:+.3f}".replace("% ", " % ")
    return f"{percent(value)} {value:.3f}"


def _table(what: str, scores: Sequence[Score], sources: bool) -> list[str]:
    """Lines of 100 columns at most; a line of one source needs no number of sources."""
    widths = (6, 8, 8, *([8] if sources else []), 14, 14, 16, 7)
    room = 100 - sum(widths)

    def line(name: str, *cells: str) -> str:
        words = f"  {_cut(name, room - 2)}"
        return f"{words:<{room}}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))

    lines = [line(what, "rows", "covered", "counted", *(["sources"] if sources else []),
                  "median", "90 % within", "bias", "inside")]
    for s in scores:
        inside = "-" if s.in_range is None else f"{s.in_range:.0%}".replace("%", " %")
        lines.append(line(
            PHASE_TITLES.get(s.name, s.name), f"{s.n:,}", f"{s.covered:,}", f"{s.scored:,}",
            *([f"{s.sources:,}"] if sources else []), _error(s.median_abs_ln),
            _error(s.p90_abs_ln), _error(s.bias_ln, True), inside))
    return lines


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 2] + ".."


def _head(report: Report) -> list[str]:
    c = coverage(report)
    files = ", ".join(report.files)
    share = f"{c['covered'] / c['rows_a_b']:.0%}".replace("%", " %") if c["rows_a_b"] else "none"
    left = c["rows"] - c["rows_a_b"]
    return [
        *wrap(f"  {c['rows']:,} measured figures of {files}; {report.wall_s:.1f} s", "  "),
        *wrap(f"  {c['covered']:,} of {c['rows_a_b']:,} of quality A or B are predicted ({share})"
              + (f"; {left:,} of quality C stand apart" if left else ""), "  "),
        *wrap(f"  {c['counted']:,} count below: {plural(c['sources'], 'source')}, "
              f"{plural(c['devices'], 'device')}, {plural(c['models'], 'model')}", "  "),
    ]


def _legend(report: Report) -> list[str]:
    alike = [f"{PHASE_TITLES.get(s.name, s.name)} {percent(s.pooled_median_abs_ln)}"
             for s in report.phases if s.pooled_median_abs_ln is not None]
    return [*wrap("  Errors are ln(predicted/measured) of the figure as printed, as a percentage "
                  "and as |ln|: 0.10 is about 10 %. A line averages over its sources, each "
                  "counting once: median, ninth decile and bias (signed median).", "  "),
            *wrap("  Bias above 0: a rate (tok/s) is predicted too fast, a time (TPOT, TTFT) too "
                  "slow. Inside: share of rows within the predicted range, which is made to hold "
                  "80 %.", "  "),
            *(wrap(f"  Every row counting alike, half are within: {'; '.join(alike)}.", "  ")
              if alike else [])]


def _uncovered(report: Report) -> list[str]:
    found = report.not_covered
    if not found:
        return []
    lines = ["", f"Not covered, {plural(sum(found.values()), 'row')}"]
    for text, n in list(found.items())[:_REASONS]:
        lines += wrap(f"  {n:>6,}  {text}", " " * 10)
    rest = list(found.values())[_REASONS:]
    if rest:
        lines.append(f"  {sum(rest):>6,}  {plural(len(rest), 'other reason')} (--json lists all)")
    return lines


def figure_text(value: float) -> str:
    """Four significant digits, never an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _direction(s: Scored) -> str:
    """How far off, and which way, in words."""
    metric = s.case.row.metric
    high, low = (("fast", "slow") if metric in RATES else ("large", "small") if metric in SIZES
                 else ("slow", "fast"))
    return f"{math.exp(abs(s.error)):,.2f}x too {high if s.error > 0 else low}"


def _worst(report: Report) -> list[str]:
    if not report.worst:
        return []
    lines = ["", "Furthest off, one of each source, device and model"]
    for s in report.worst:
        case, row = s.case, s.case.row
        batch = "batch that fits" if case.batch is None else f"batch {case.batch:,.0f}"
        who = f"{row.id}, {row.source}" if row.id else row.source
        printed = names.devices_of(row.hardware, None) is not None
        count = "" if printed or case.setup.devices == 1 else f"{case.setup.devices:,.0f} x "
        lines += wrap(f"  {who}: {row.model} on {count}{row.hardware}, {row.engine}, {batch}, "
                      f"{case.input:,.0f} in, {case.output:,.0f} out", "    ")
        lines += wrap(f"    measured {figure_text(row.value)} {UNITS[row.metric]}, predicted "
                      f"{figure_text(s.predicted)} ({figure_text(s.low)} to "
                      f"{figure_text(s.high)}): {_direction(s)}, ln {s.error:+.2f}", "      ")
        lines += wrap(f"    {reason(s) or 'no reason known'}", "      ")
    return lines


def _excluded(report: Report, include_fitted: bool) -> list[str]:
    f, c = report.fitted, report.quality_c
    left = []
    if f.n:
        left.append(f"{plural(f.n, 'row')} of groups that constants were fitted on"
                    + _median(f) + "; --include-fitted counts them")
    if c.n:
        left.append(f"{plural(c.n, 'row')} of quality C ({c.covered:,} predicted)"
                    + _median(c))
    text = ("Excluded from every figure above: " + "; ".join(left) + "." if left else
            "Nothing is excluded.")
    if include_fitted:
        text += " Rows that constants were fitted on count too, so this is no test."
    elif not f.n:
        text += " No constant was fitted on a row here."
    return ["", *wrap(f"  {text}", "  ")]


def _median(s: Score) -> str:
    return "" if s.median_abs_ln is None else f", median {percent(s.median_abs_ln)}"


def report_lines(report: Report, include_fitted: bool = False) -> list[str]:
    """The whole validation for a terminal."""
    return [*_head(report), "", *_table("phase", report.phases, True), "",
            *_table("source", report.sources, False), "", *_legend(report), *_uncovered(report),
            *_worst(report), *_excluded(report, include_fitted)]


__all__ = ["CSV_COLUMNS", "PHASE_TITLES", "UNITS", "check_writable", "columns_of", "coverage",
           "csv_rows", "percent", "report_dict", "report_lines", "score_dict", "unpredicted",
           "write_csv"]
