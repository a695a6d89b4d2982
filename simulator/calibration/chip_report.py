"""What a fit of a chip says: lines, JSON, and the hardware file that `estimate` uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from simulator.calibration.fit_chip import MEANINGS, ChipFit, Constant, Errors
from simulator.errors import InputError
from simulator.listing import table
from simulator.specs.hardware import parse_hardware
from simulator.specs.strict_yaml import load_yaml, load_yaml_text
from simulator.units import format_time

# First line of every hardware file that the command writes; only such a file is written over.
MARK = "# Made by `tokline calibrate`"
SOURCE = "calibration"
MOST_SHOWN = 12
ENDS = ("low", "mid", "high")
# Standard deviations within which a normal value lies with 80 %.
EIGHT_IN_TEN = 1.2816
UNITS = {"tpot_ms": "ms", "ttft_ms": "ms", "prefill_ms": "ms"}


def fit_lines(fit: ChipFit) -> list[str]:
    """The answer first; then constants, errors, what was left out."""
    lines = [*_head(fit), *(["", *_constants(fit)] if fit.constants else []),
             *(["", *_errors(fit)] if fit.held_after is not None else [])]
    if fit.impossible:
        lines += ["", *_impossible(fit)]
    if fit.not_used:
        lines += ["", "Rows not used:"]
        lines += [f"  {n:>5}  {reason}" for reason, n in fit.not_used.items()]
    return lines


def _head(fit: ChipFit) -> list[str]:
    read = sum(fit.files.values())
    engines = ", ".join(fit.engines) or "no engine"
    lines = [f"{fit.hardware.title} under {engines}: {fit.used} of {read} rows in "
             f"{len(fit.files)} files" + (f", {fit.groups} {fit.split}s" if fit.groups else "")]
    if fit.refused:
        lines.insert(0, f"REFUSED: {fit.refused}")
    if fit.dropped:
        lines.append(f"{fit.dropped} rows that physics doesn't allow were dropped")
    return lines


def _value(name: str, value: float) -> str:
    return format_time(value) if name == "step_overhead" else f"{value:.3f}"


def _error(c: Constant) -> str:
    if c.error is None:
        return ""
    return format_time(c.error) if c.name == "step_overhead" else f"{c.error:.1%}"


def _constants(fit: ChipFit) -> list[str]:
    rows = [(c.name, _value(c.name, c.before), "as before" if c.why else _value(c.name, c.after),
             _error(c) or "-") for c in fit.constants]
    head, *lines = table(("constant", "before", "fitted", "+-"), rows, 1)
    return [head, *(f"{line}  {c.why or MEANINGS[c.name]}"
                    for line, c in zip(lines, fit.constants, strict=True))]


def _errors(fit: ChipFit) -> list[str]:
    rows = []
    for name, before, after in (("fitted on", fit.fitted_before, fit.fitted_after),
                                ("held back", fit.held_before, fit.held_after)):
        for when, e in (("before", before), ("after", after)):
            if e is not None:
                rows.append((f"{name}, {when}", str(e.n), f"{e.median:.1%}", f"{e.p90:.1%}",
                             f"{e.bias:+.1%}"))
    return [*table(("|ln(predicted/measured)|", "rows", "median", "p90", "bias"), rows, 1),
            f"Held back are whole {fit.split}s, on which no constant was fitted."]


def _impossible(fit: ChipFit) -> list[str]:
    lines = ["Faster than the ceiling of their conditions:"]
    for i in fit.impossible[:MOST_SHOWN]:
        unit = UNITS.get(i.metric, "")
        lines.append(f"  {i.place}: {i.metric} {i.measured:.4g} {unit}".rstrip()
                     + f", ceiling {i.ceiling:.4g} {unit}".rstrip() + f" ({i.row})")
    more = len(fit.impossible) - MOST_SHOWN
    return [*lines, *([f"  and {more} more"] if more > 0 else [])]


def fit_dict(fit: ChipFit) -> dict[str, Any]:
    """The same for `--json`; times in seconds, errors as |ln|."""
    def errors(e: Errors | None) -> dict[str, float] | None:
        return None if e is None else {"n": e.n, "median_abs_ln": e.median, "p90_abs_ln": e.p90,
                                       "bias_ln": e.bias}

    return {
        "hardware": fit.hardware.name, "engines": fit.engines,
        "files": [{"file": file, "tool": tool, "rows": n}
                  for (file, tool), n in fit.files.items()],
        "rows": sum(fit.files.values()), "used": fit.used, "not_used": fit.not_used,
        "dropped": fit.dropped, "groups": fit.groups, "split": fit.split, "dates": fit.dates,
        "constants": {c.name: {"before": c.before, "after": c.after, "standard_error": c.error,
                               "fitted": not c.why, "reason": c.why or None}
                      for c in fit.constants},
        "fitted_on": {"before": errors(fit.fitted_before), "after": errors(fit.fitted_after)},
        "held_back": {"before": errors(fit.held_before), "after": errors(fit.held_after)},
        "impossible": [asdict(i) for i in fit.impossible],
        "refused": fit.refused or None,
    }


def chip_yaml(fit: ChipFit, today: date) -> str:
    """The chip's own file with the fitted numbers, each with its source; the report on top.

    The chip keeps its name, by which the constants of its kernels are found.
    """
    path = str(fit.hardware.path)
    data = load_yaml(Path(path))
    held = fit.held_after
    if held is None or fit.refused:
        raise InputError("nothing was fitted that could be written")
    sources = dict(data.get("sources") or {})
    sources[SOURCE] = {
        "title": f"tokline calibrate on {fit.used} rows ({_files(fit)}), {', '.join(fit.engines)}, "
                 f"fitted {today.isoformat()}; {held.n} rows held back, median |ln error| "
                 f"{held.median:.1%}, p90 {held.p90:.1%}",
        "date": _dates(fit.dates) or today.isoformat(), "confidence": "measured",
        "verified": True}
    data["sources"] = sources
    for c in fit.constants:
        if c.why:
            continue
        note = f"standard error {_error(c)}" + (
            "" if c.name == "step_overhead" else f"; {c.before:.4g} before")
        data[c.name] = _ends(c) | {"source": SOURCE, "note": note}
    head = [f"{MARK} from {_files(fit)}.", *(f"# {line}".rstrip() for line in fit_lines(fit))]
    body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=98,
                          default_flow_style=None)
    text = "\n".join(head) + "\n" + body
    parse_hardware(load_yaml_text(text, path), path)    # what is written must load
    return text


def _ends(c: Constant) -> dict[str, str | float]:
    """The constant between the ends that hold it four times in five, for its standard error."""
    wide = EIGHT_IN_TEN * (c.error or 0.0)
    if c.name == "step_overhead":
        ends = (max(c.after - wide, 0.0), c.after, c.after + wide)
        return dict(zip(ENDS, (f"{x * 1e6:.4g} us" for x in ends), strict=True))
    return dict(zip(ENDS, (float(f"{c.after * math.exp(x):.4g}") for x in (-wide, 0.0, wide)),
                    strict=True))


def _files(fit: ChipFit) -> str:
    found = [Path(file).name for file, _ in fit.files]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _dates(dates: Sequence[str]) -> str:
    return dates[0] if len(set(dates)) < 2 else f"{dates[0]} to {dates[-1]}"


def check_target(path: str | None, inputs: Sequence[str]) -> None:
    """Refuse a path that can't be written, is read, or holds what this command didn't write."""
    from simulator.validation.report import check_writable

    check_writable(path, "-o", inputs)
    if path is None or not Path(path).is_file():
        return
    try:
        with open(path, encoding="utf-8") as file:
            ours = file.readline().startswith(MARK)
    except UnicodeDecodeError:
        ours = False
    if not ours and Path(path).stat().st_size:
        raise InputError(f"-o: '{path}' exists and wasn't made by tokline calibrate; name another "
                         "file")


__all__ = ["MARK", "check_target", "chip_yaml", "fit_dict", "fit_lines"]
