"""Ranges of memory: `python -m simulator.validation.size_ranges FILE... [--write]`.

No constant is fitted on sizes, so a fit leaves their ranges as they are. They are set here, by
metric and for every device, on the groups that constants and the other ranges are from: the last
quarter tests all of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError
from simulator.validation.cases import Case
from simulator.validation.fit_report import KNOWN, spread, write_spreads
from simulator.validation.measurements import SIZES
from simulator.validation.run import validate
from simulator.validation.scores import Scored
from simulator.validation.split import fitted_groups

# Rows of a size that tell of its range, all of them together.
FEWEST_SIZES = 5


def size_spreads(cases: Sequence[Case], error: Array) -> dict[str, dict[str, float]]:
    """Factor of the range of each size; one of few rows spans them all, and one of hardly any has
    that of all sizes together."""
    metric = np.array([c.row.metric for c in cases])
    every = spread(cases, error, np.isin(metric, sorted(SIZES)))
    found = {}
    for name in sorted(SIZES):
        own = np.abs(error[metric == name])
        few = float(np.exp(np.max(own))) if len(own) >= FEWEST_SIZES else every
        found[name] = spread(cases, error, metric == name) or few
    if not all(found.values()):
        raise InputError(f"{len(cases):,} rows of memory are too few to set ranges")
    return {name: dict.fromkeys(KNOWN, round(value, 3)) for name, value in found.items()}


def beyond(s: Scored) -> float:
    """Logarithm by which a figure lies outside of what its range spans before it is widened."""
    factor = s.predicted / s.low
    measured = s.case.row.value
    return float(np.log(np.clip(measured, s.predicted, s.high / factor) / measured))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line of the module."""
    parser = argparse.ArgumentParser(prog="python -m simulator.validation.size_ranges",
                                     description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--write", action="store_true", help="keep the ranges")
    asked = parser.parse_args(arguments)
    used = fitted_groups() | fitted_groups("ranges")
    try:
        scored = [s for s in validate(asked.files, include_fitted=True).scored
                  if s.case.row.group in used and s.case.phase == "memory"
                  and s.case.row.quality != "C"]
        found = size_spreads([s.case for s in scored], np.array([beyond(s) for s in scored]))
        if asked.write:
            write_spreads(found)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, levels in found.items():
        rows = sum(s.case.row.metric == name for s in scored)
        print(f"{name}: {levels['device']} ({rows:,} rows)")
    return 0


__all__ = ["size_spreads"]

if __name__ == "__main__":
    sys.exit(main())
