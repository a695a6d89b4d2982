"""Several devices as one whose numbers are arrays, so that a grid over chips is one calculation.

The numbers of the members lie along the first of four axes: devices, batch, input, output. What
isn't a number (which precision stands in for another, which ranges exist) is asked of each member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from simulator.arrays import Array
from simulator.specs.hardware import QUANTITIES, Hardware
from simulator.specs.sourced import Range

T = TypeVar("T")

# What stands for a number that only some members have: unknown stays unknown, no overhead is none.
_ABSENT = {"price": math.nan, "idle_power": math.nan, "tdp": math.nan, "memory_energy": math.nan,
           "compute_energy": math.nan, "link_energy": 0.0, "layer_overhead": 0.0,
           "os_reserve": 0.0}


class UnstackableError(ValueError):
    """These devices differ in more than numbers; take them one at a time."""


def stacked(values: Sequence[Array]) -> Array:
    """Equal numbers as one; different ones along the first of four axes."""
    first = values[0]
    if all(value == first for value in values):
        return first
    return np.array(values, dtype=np.float64)[:, None, None, None]


def _number(name: str, values: list[float | None]) -> Array:
    known = [v is not None for v in values]
    if all(known):
        return stacked(values)
    if not any(known) or name not in _ABSENT:
        return None
    return stacked([_ABSENT[name] if v is None else v for v in values])


class Stack(Hardware, frozen=True, kw_only=True):
    """A device whose numbers hold those of its `members`, along the first of four axes.

    `cache` keeps what is derived from them, since the same stack meets many workloads.
    """

    members: tuple[Hardware, ...] = ()
    cache: dict[Any, Any] = {}  # noqa: RUF012 (msgspec copies it)

    def kept(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, made once."""
        if key not in self.cache:
            self.cache[key] = make()
        found: T = self.cache[key]
        return found

    def at_ends(self, favourable: bool, fields: Iterable[str] | None = None) -> Hardware:
        """Every member with its own ranges at that end."""
        names = None if fields is None else tuple(fields)
        return self.kept(("ends", favourable, names), lambda: stack(
            [m.at_ends(favourable, names) for m in self.members], always=True))

    def with_ends(self) -> tuple[Stack, tuple[list[int], list[int]]]:
        """The members and, after them, those with ranges at either end of them; and where in it
        the favourable and the unfavourable end of every member stand.
        """
        def make() -> tuple[Stack, tuple[list[int], list[int]]]:
            everything = list(self.members)
            places: tuple[list[int], list[int]] = ([], [])
            for i, member in enumerate(self.members):
                names = member.timed_ranges
                for where, favourable in ((places[0], True), (places[1], False)):
                    where.append(len(everything) if names else i)
                    everything += [member.at_ends(favourable, names)] if names else []
            return stack(everything, always=True), places  # type: ignore[return-value]

        return self.kept("with ends", make)

    def peak(self, compute: str) -> tuple[Array, str]:
        """Dense peaks for matrices at `compute`, and the precision that provides the first."""
        def make() -> tuple[Array, str]:
            peaks = [m.peak(compute) for m in self.members]
            return stacked([value for value, _ in peaks]), peaks[0][1]

        return self.kept(("peak", compute), make)

    @property
    def runtime(self) -> Array:
        """Whether a runtime lives in the memory, of each member."""
        return self.kept("runtime", lambda: stacked([m.runtime for m in self.members]))

    @property
    def vector_peak(self) -> Array:
        """Peaks of the vector units."""
        return self.kept("vector", lambda: stacked([m.vector_peak for m in self.members]))


def _range(name: str, members: Sequence[Hardware]) -> Range:
    """The members' ranges as one of arrays; a point is a range without width."""
    ends: dict[str, Array] = {}
    for end in ("low", "mid", "high"):
        values = [getattr(m.ranges[name], end) if name in m.ranges else getattr(m, name)
                  for m in members]
        ends[end] = _number(name, values)
    return Range(**ends)


def stack(members: Sequence[Hardware], always: bool = False) -> Hardware:
    """One device from several; with one member the device itself, unless `always`."""
    first = members[0]
    if len(members) == 1 and not always:
        return first
    numbers = {n: _number(n, [getattr(m, n) for m in members]) for n in QUANTITIES}
    names = dict.fromkeys(n for m in members for n in m.ranges)
    return Stack(name=first.name, title=first.title, architecture=first.architecture,
                 memory_class=first.memory_class, status=first.status, members=tuple(members),
                 ranges={n: _range(n, members) for n in names}, **numbers)
