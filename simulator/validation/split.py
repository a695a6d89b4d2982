"""Parts of a set of measurements: half to fit constants on, a quarter to set ranges, the rest.

A part holds whole groups of (source, device, model). Where a source prints the same figures under
two names, as of DeepSeek-V3 and R1, both groups stay together. Within a source the groups alternate
in the order of a checksum, so that a source of two groups and more is on both sides. Errors are
scored on all groups that no constant was fitted on, ranges on those that set no range either.
"""

from __future__ import annotations

import csv
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from simulator.validation.measurements import Row

Group = tuple[str, str, str]
# Figures that two groups must share to be copies: fewer are alike by chance, as printed.
FEWEST_COPIES = 3
_FITTED = Path(__file__).with_name("fitted_groups.csv")


def _checksum(group: Group) -> int:
    return zlib.crc32("|".join(group).encode())


def _figure(row: Row) -> tuple[object, ...]:
    """A figure and its conditions without the model's name: what a copy of it repeats."""
    return (row.source, row.hardware, row.n_devices, row.engine, row.version, row.tp, row.pp,
            row.ep, row.batch, row.rate, row.input, row.output, row.metric, row.value)


def copies(rows: Iterable[Row]) -> dict[Group, Group]:
    """The first name of each group among those that hold the same figures under other names."""
    rows = list(rows)
    holders: dict[tuple[object, ...], set[Group]] = {}
    for row in rows:
        holders.setdefault(_figure(row), set()).add(row.group)
    shared = Counter(pair for groups in holders.values()
                     for pair in combinations(sorted(groups), 2))
    first = {row.group: row.group for row in rows}
    for (one, other), figures in sorted(shared.items()):
        if figures >= FEWEST_COPIES:
            kept = first[one]
            first.update({g: kept for g, f in first.items() if f == first[other]})
    return first


def _in_turn(groups: Iterable[Group], alike: Mapping[Group, Group]) -> dict[Group, int]:
    """Place of each group in the order of the checksum; copies have the place of the first."""
    firsts = sorted({alike.get(group, group) for group in groups}, key=_checksum)
    place = {group: i for i, group in enumerate(firsts)}
    return {group: place[alike.get(group, group)] for group in groups}


def _by_source(groups: Iterable[Group]) -> list[tuple[str, set[Group]]]:
    found: dict[str, set[Group]] = {}
    for group in groups:
        found.setdefault(group[0], set()).add(group)
    return sorted(found.items())


def halves(rows: Iterable[Row]) -> dict[Group, int]:
    """0 or 1 for each group of the rows of quality A and B."""
    good = [row for row in rows if row.quality != "C"]
    alike = copies(good)
    return {group: ((zlib.crc32(source.encode()) & 1) + place) % 2
            for source, groups in _by_source(alike)
            for group, place in _in_turn(groups, alike).items()}


def range_groups(half: Mapping[Group, int], fitted: int, alike: Mapping[Group, Group]
                 ) -> frozenset[Group]:
    """Every second group of those that constants aren't fitted on, source by source."""
    others = [group for group, side in half.items() if side != fitted]
    return frozenset(group for source, groups in _by_source(others)
                     for group, place in _in_turn(groups, alike).items()
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
