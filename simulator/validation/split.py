"""Two halves of a set of measurements: one to fit constants on, one to score.

A half holds whole groups of (source, device, model). Within a source the groups alternate in the
order of a checksum, so that a source of two groups and more is on both sides.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from simulator.validation.measurements import Row

Group = tuple[str, str, str]
_FITTED = Path(__file__).with_name("fitted_groups.csv")


def _checksum(group: Group) -> int:
    return zlib.crc32("|".join(group).encode())


def halves(rows: Iterable[Row]) -> dict[Group, int]:
    """0 or 1 for each group of the rows of quality A and B."""
    by_source: dict[str, set[Group]] = {}
    for row in rows:
        if row.quality != "C":
            by_source.setdefault(row.source, set()).add(row.group)
    found: dict[Group, int] = {}
    for source, groups in sorted(by_source.items()):
        first = zlib.crc32(source.encode()) & 1
        for place, group in enumerate(sorted(groups, key=_checksum)):
            found[group] = (first + place) % 2
    return found


@lru_cache(maxsize=1)
def fitted_groups() -> frozenset[Group]:
    """Groups that the packaged constants were fitted on; their rows are never scored."""
    if not _FITTED.is_file():
        return frozenset()
    with open(_FITTED, encoding="utf-8", newline="") as file:
        return frozenset((r["source"], r["hardware"], r["model"]) for r in csv.DictReader(file))


def write_fitted(groups: Iterable[Group]) -> None:
    """Record the groups that constants were fitted on."""
    with open(_FITTED, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "hardware", "model"))
        writer.writerows(sorted(groups))
    fitted_groups.cache_clear()
