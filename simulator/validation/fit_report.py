"""What a fit found, as a table, and as the data files that the package reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.efficiency import pair
from simulator.efficiency import spreads as kept_spreads
from simulator.specs.engine import engine_names, load_engine
from simulator.validation import names
from simulator.validation.cases import OTHER_PHASES, PHASES, Case
from simulator.validation.parts import Constants, Parts
from simulator.validation.split import Group, copies, range_groups, write_fitted

_PACKAGE = Path(__file__).resolve().parent.parent
_EFFICIENCY = _PACKAGE / "efficiency"
# Constants that mean something only where requests are served, not put into static profiles.
SERVED = ("queue_steps", "burst", "interference", "fill")
_TIMES = ("host_time", "layer_time", "sequence_time", "request_time")
KNOWN = ("device", "architecture", "vendor", "none")
# Share of measured values that a range is to hold.
HELD = 0.80
# The rows of a source, and of a setup in it, count as n to this power where a range is set, so that
# one can't decide it.
SOURCE_POWER = 0.3
FEWEST = 30
# Devices that must tell how much wider the range of a level is; where fewer do, LEAST_WIDER says.
FEWEST_DEVICES = 12
# Widths that an engine on a device must miss by to have a range of its own.
FAR_OUTSIDE = 2.0
# Ranges by name, and the phases whose rows set them: those of `validate`, and of an estimate.
RANGES = {**{phase: (phase,) for phase in (*PHASES, OTHER_PHASES[0])},
          "decode": ("batch1_decode", "tpot"), "prefill": ("prefill",)}
# Phases in which a device shows what it does, without a queue.
ALONE = ("batch1_decode", "prefill", "static_throughput")
# Least that each step away from a device known by itself adds to the logarithm of its range.
LEAST_WIDER = {"architecture": 0.15, "vendor": 0.2, "none": 0.3}


def errors_by_source(cases: Sequence[Case], error: Array, rows: Array) -> dict[str, list[Array]]:
    """Errors of the marked rows: by phase, one array a source."""
    found: dict[str, dict[str, list[float]]] = {}
    for case, value, use in zip(cases, error, rows, strict=True):
        if use:
            found.setdefault(case.phase, {}).setdefault(case.row.source, []).append(float(value))
    return {phase: [np.array(v) for v in sources.values()] for phase, sources in found.items()}


def table(cases: Sequence[Case], predictions: Mapping[str, Array], rows: Array) -> str:
    """Median |ln error| of each phase, mean over sources (pooled over rows), by prediction."""
    measured = np.array([c.row.value for c in cases])
    lines = [f"{'phase':<18}{'rows':>6}{'sources':>9}"
             + "".join(f"{name:>20}" for name in predictions)]
    groups = {name: errors_by_source(cases, np.log(p / measured), rows)
              for name, p in predictions.items()}
    for phase in (*PHASES, *OTHER_PHASES):
        first = next(iter(groups.values())).get(phase)
        if first is None:
            continue
        cells = []
        for name in predictions:
            sources = groups[name][phase]
            mean = np.mean([np.median(np.abs(s)) for s in sources])
            pooled = np.median(np.abs(np.concatenate(sources)))
            cells.append(f"{f'{mean:.3f} ({pooled:.3f})':>20}")
        lines.append(f"{phase:<18}{sum(map(len, first)):>6}{len(first):>9}" + "".join(cells))
    return "\n".join(lines)


def _weights(cases: Sequence[Case]) -> Array:
    """Weight of each row: n rows of a setup, and of a source, count as n^SOURCE_POWER."""
    setups = Counter((c.row.source, c.setup) for c in cases)
    weight = np.array([setups[c.row.source, c.setup] ** (SOURCE_POWER - 1.0) for c in cases])
    labels = np.array([c.row.source for c in cases])
    for source in np.unique(labels):
        mine = labels == source
        weight[mine] *= np.sum(mine) ** SOURCE_POWER / np.sum(weight[mine])
    return weight


def spread(cases: Sequence[Case], error: Array, rows: Array) -> float:
    """Factor that holds HELD of the marked rows, weighted; 0 where they are too few."""
    sizes = np.abs(error[rows])
    if len(sizes) < FEWEST:
        return 0.0
    weight = _weights([c for c, use in zip(cases, rows, strict=True) if use])
    order = np.argsort(sizes)
    place = np.cumsum(weight[order]) / np.sum(weight)
    return float(np.exp(np.interp(HELD, place, sizes[order])))


def spreads(cases: Sequence[Case], error: Array, known: Array, rows: Array
            ) -> dict[str, dict[str, float]]:
    """Factor of each phase by how well the device is known, from errors on rows held back.

    What few rows tell of one phase is taken from all: how much wider the next level is.
    """
    phases = np.array([c.phase for c in cases])
    alone = rows & np.isin(phases, ALONE)
    widths = {level: spread(cases, error, alone & (known == level)) for level in KNOWN}
    devices = {level: len({c.setup.hardware for c, use in zip(
        cases, alone & (known == level), strict=True) if use}) for level in KNOWN}
    wider, last = {"device": 1.0}, 1.0
    for level, least in LEAST_WIDER.items():
        told = widths[level] > 1.0 and devices[level] >= FEWEST_DEVICES
        ratio = np.log(widths[level]) / np.log(widths["device"]) if told else 0.0
        last = max(float(ratio), last + least)
        wider[level] = last
    found = {}
    for phase, parts in RANGES.items():
        mine = rows & np.isin(phases, parts)
        own = spread(cases, error, mine & (known == "device")) or spread(cases, error, mine)
        if own > 1.0:
            found[phase] = {level: round(float(own ** wider[level]), 3) for level in KNOWN}
    return found


def _pair(case: Case) -> str:
    return pair(case.setup.engine, names.hardware_of(case.setup.hardware).name)


def odd_pairs(cases: Sequence[Case], own: Array, known: Array, rows: Array,
              found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Power of the range of an engine on a device whose own rows, even those that constants were
    fitted on, lie far outside of it: what no constant of it describes."""
    beyond: dict[str, list[float]] = {}
    groups: dict[str, set[Group]] = {}
    for case, error, level, use in zip(cases, own, known, rows, strict=True):
        if use and case.phase in found:
            mine = _pair(case)
            width = np.log(found[case.phase][str(level)])
            beyond.setdefault(mine, []).append(float(np.abs(error) / width))
            groups.setdefault(mine, set()).add(case.row.group)
    held = {name: float(np.quantile(sizes, HELD)) for name, sizes in beyond.items()
            if len(sizes) >= FEWEST and len(groups[name]) > 1}
    return {name: round(power, 1) for name, power in held.items() if power >= FAR_OUTSIDE}


def _quantity(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"


def write_engines(constants: Constants, rows: Mapping[str, int]) -> None:
    """Put fitted constants into the engine profiles, in place."""
    for name in engine_names():
        if name not in constants.engines["memory_scale"] or not rows.get(name):
            continue
        path = _PACKAGE / "engines" / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        served = load_engine(name).continuous
        values = {"source": f"fitted to {rows[name]} published rows, half of the groups "
                            "(python -m simulator.validation.fit)"}
        for key, table_ in constants.engines.items():
            unsaid = key == "prefill_launch_scale" and load_engine(name).prefill_launch_scale == 1.0
            if unsaid or (key in SERVED and not served):
                continue
            values[key] = (_quantity(table_[name]) if key in _TIMES
                           else f"{table_[name]:.4g}")
        for key, value in values.items():
            line = f"{key}: {value}"
            text, found = re.subn(rf"^{key}:.*$", line, text, flags=re.MULTILINE)
            if not found:
                text = text.rstrip("\n") + f"\n{line}\n"
        path.write_text(text, encoding="utf-8")


def _yaml_table(entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"  {name}: {{" + ", ".join(f"{k}: {v}" for k, v in entry.items()) + "}"
            for name, entry in sorted(entries.items())]


HEADER = """# Made by `python -m simulator.validation.fit FILE... --write` from published rows: half
# of the groups of (source, device, model). {what}
"""


def write_levels(constants: Constants, rows: Mapping[str, int]) -> None:
    """levels.yaml: factors on kernel times of devices, architectures and classes of memory."""
    lines = [HEADER.format(what="Factors on the times of kernels: of the device, else of its\n"
                                "# architecture, else of its vendor's class of memory.").rstrip()]
    for kind, entries in constants.levels.items():
        lines.append(f"{kind}:")
        lines += [f"  {name}: " + " ".join(f"{part}={v:.3f}" for part, v in entry.items())
                  + (f" rows={rows.get(name, 0)}" if kind == "device" else "")
                  for name, entry in sorted(entries.items()) if name != "other"]
    lines.append("link:")
    lines += [f"  {name}: {value:.3f}" for name, value in sorted(constants.links.items())
              if name != "other"]
    (_EFFICIENCY / "levels.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def ranges_of(cases: Sequence[Case], own: Array, error: Array, known: Array, level: Array,
              rows: Array) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """(factors by phase, powers of odd pairs); what is odd doesn't widen the range of the rest."""
    pairs = odd_pairs(cases, own, level, rows, spreads(cases, error, known, rows))
    usual = np.array([_pair(c) not in pairs for c in cases])
    found = spreads(cases, error, known, rows & usual)
    return found, odd_pairs(cases, own, level, rows, found)


def write_spreads(found: Mapping[str, Mapping[str, float]],
                  pairs: Mapping[str, float] | None = None) -> None:
    """spread.yaml: by which factor measured figures lie above or below the expectation.

    Entries that aren't set again stay: times and sizes have their ranges from different rows.
    `pairs`: powers of them for an engine on a device.
    """
    lines = [HEADER.format(
        what="Factors that hold 80 % of the rows of a\n# quarter of the groups, on which no "
             "constant was fitted, and of the fitted half, each half of it\n# by constants of the "
             "other; by phase and by whose level the device has. Those of sizes hold for\n# every "
             "device (python -m simulator.validation.size_ranges FILE... --write). pairs: power\n"
             "# for an engine on a device whose own rows lie far outside.").rstrip()]
    kept_spreads.cache_clear()    # what the file holds now, not when the fit began
    kept = dict(kept_spreads())
    before = kept.pop("pairs", {})
    odd = before if pairs is None else pairs
    lines += [line[2:] for line in _yaml_table({**kept, **found})]
    lines += ["pairs:" if odd else "pairs: {}", *(f"  {k}: {v}" for k, v in sorted(odd.items()))]
    (_EFFICIENCY / "spread.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    kept_spreads.cache_clear()


def write_points(cases: Sequence[Case], error: Array, held: Array) -> None:
    """points.yaml: what was measured on each device, for the words of an estimate."""
    found: dict[str, str] = {}
    for name in sorted({names.hardware_of(c.row.hardware).name for c in cases}):
        mine = [i for i, c in enumerate(cases) if names.hardware_of(c.row.hardware).name == name]
        scored = [i for i in mine if held[i]]
        if mine:
            models = sorted({names.model_of(cases[i].row.model)[0].name for i in mine})
            median = f"{float(np.median(np.abs(error[scored]))):.3f}" if scored else "-"
            found[name] = f"{len(mine)} {len(scored)} {median} {' '.join(models)}"
    text = HEADER.format(what="Rows of each device, how many of them no\n# constant was fitted on, "
                              "the median |ln| error of these, and the models among all.")
    (_EFFICIENCY / "points.yaml").write_text(text + "\n".join(
        f"{name}: {entry}" for name, entry in found.items()) + "\n", encoding="utf-8")


def known_levels(parts: Parts, trained: Array) -> Array:
    """How well the rows `trained` know the device of each row."""
    found = np.full(len(parts.value), "none", dtype="<U12")
    for kind in ("vendor", "architecture", "device"):
        labels = getattr(parts, kind)
        found[np.isin(labels, np.unique(labels[trained]))] = kind
    return found


def counts(labels: Iterable[str], rows: Array) -> dict[str, int]:
    """Marked rows of each label."""
    found: dict[str, int] = {}
    for label, use in zip(labels, rows, strict=True):
        if use:
            found[str(label)] = found.get(str(label), 0) + 1
    return found


def write_all(constants: Constants, cases: Sequence[Case], parts: Parts, own: Array, error: Array,
              known: Array, rows: Array, half: Mapping[Group, int], fitted: int) -> None:
    """Every data file of a fit on `rows`: constants, and what other rows say of its errors.

    own            errors by these constants
    error, known   of the fitted half by constants of its other half
    """
    ranges = range_groups(half, fitted, copies(c.row for c in cases))
    held_back = np.array([c.row.group in ranges or half[c.row.group] == fitted for c in cases])
    write_engines(constants, counts(parts.engine, rows))
    write_levels(constants, counts(parts.device, rows))
    write_spreads(*ranges_of(cases, own, error, known, known_levels(parts, rows), held_back))
    write_points(cases, own, np.array([half[c.row.group] != fitted for c in cases]))
    write_fitted([g for g, side in half.items() if side == fitted], ranges)


__all__ = ["known_levels", "spreads", "table", "write_all"]
