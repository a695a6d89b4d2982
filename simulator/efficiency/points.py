"""What was measured on a device, for the words of an estimate: counts, errors, models."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from simulator.specs.strict_yaml import load_yaml


class Points(msgspec.Struct, frozen=True):
    """Measured rows of a device; `held_back`: those that no constant was fitted on, with `median`
    |ln error|, None where there are none."""

    rows: int
    held_back: int
    median: float | None
    models: frozenset[str]


@lru_cache(maxsize=1)
def _table() -> dict[str, str]:
    return load_yaml(Path(__file__).with_name("points.yaml"))


def points_of(device: str) -> Points | None:
    """What was measured on a device; None where nothing was."""
    text = _table().get(device)
    if text is None:
        return None
    rows, held, median, *models = text.split()
    return Points(int(rows), int(held), None if median == "-" else float(median),
                  frozenset(models))
