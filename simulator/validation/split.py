"""Parts of a set of measurements: half to fit constants on, a quarter to set ranges, the rest.

A part holds whole groups of (source, device, model). Within a source the groups alternate in the
order of a checksum, so that a source of two groups and more is on both sides. Errors are scored on
all groups that no constant was fitted on, ranges on those that set no range either.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterable, Mapping
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


def range_groups(half: Mapping[Group, int], fitted: int) -> frozenset[Group]:
    """Every second group of those that constants aren't fitted on, source by source."""
    by_source: dict[str, list[Group]] = {}
    for group, side in half.items():
        if side != fitted:
            by_source.setdefault(group[0], []).append(group)
    return frozenset(group for source, groups in by_source.items()
                     for place, group in enumerate(sorted(groups, key=_checksum))
                     if (place + zlib.crc32(source.encode()) // 2) % 2)


@lru_cache(maxsize=2)
def fitted_groups(use: str = "constants") -> frozenset[Group]:
    """Groups that the packaged constants were fitted on, never scored; or that set the `ranges`."""
    if not _FITTED.is_file():
        return frozenset()
    with open(_FITTED, encoding="utf-8", newline="") as file:
        return frozenset((r["source"], r["hardware"], r["model"]) for r in csv.DictReader(file)
                         if r["use"] == use)


def write_fitted(constants: Iterable[Group], ranges: Iterable[Group]) -> None:
    """Record the groups that constants were fitted on, and those that set the ranges."""
    with open(_FITTED, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("source", "hardware", "model", "use"))
        writer.writerows((*group, use) for use, groups in (("constants", constants),
                                                           ("ranges", ranges))
                         for group in sorted(groups))
    fitted_groups.cache_clear()
