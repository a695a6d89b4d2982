"""Numbers with a source: who says so, when, how sure, and between which ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from simulator.errors import InputError, nearest, shown
from simulator.units import parse_quantity

CONFIDENCES = ("measured", "datasheet", "announced", "press", "inferred")


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a number comes from."""

    source: str | None = None
    date: str | None = None
    confidence: str = "inferred"
    verified: bool = False
    note: str | None = None


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A number that is only known between two ends [SI]."""

    low: float
    mid: float
    high: float


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """One number [SI] with its range, if it has one, and its provenance."""

    value: float
    range: Range | None
    provenance: Provenance


UNSOURCED = Provenance(source=None, confidence="inferred", verified=False)

# Ends of any SI number of a device, between the energy of a bit and the FLOP/s of all computers.
PLAUSIBLE = (1e-18, 1e24)

_VALUE_KEYS = ("value", "low", "mid", "high", "source", "date", "confidence", "verified", "note")
_SOURCE_KEYS = ("title", "date", "confidence", "verified", "url")


def check_keys(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse a key that is not known, naming the nearest that is."""
    for key in data:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{nearest(str(key), known)}")


def parse_word(data: Mapping[str, Any], key: str, where: str) -> str | None:
    """Text, or a whole number such as a year, under `key`; None where it is absent."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{where}.{key}: {value!r} is not text")
    return str(value)


def _confidence(word: str, where: str) -> str:
    if word not in CONFIDENCES:
        raise InputError(f"{where}: unknown confidence '{word}'{nearest(word, CONFIDENCES)}")
    return word


def _flag(data: Mapping[str, Any], key: str, default: bool, where: str) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}.{key}: {value!r} is not true or false")
    return value


def parse_sources(data: Any, where: str) -> dict[str, Provenance]:
    """The `sources:` block: a key for each source, with title, date, confidence, verified."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"{where}: must map a key to {{title, date, confidence}}")
    sources: dict[str, Provenance] = {}
    for key, entry in data.items():
        place = f"{where}.{key}"
        if not isinstance(entry, dict):
            raise InputError(f"{place}: must be {{title, date, confidence}}, not {entry!r}")
        check_keys(entry, _SOURCE_KEYS, place)
        sources[str(key)] = Provenance(
            source=parse_word(entry, "title", place) or str(key),
            date=parse_word(entry, "date", place),
            confidence=_confidence(parse_word(entry, "confidence", place) or "datasheet", place),
            verified=_flag(entry, "verified", False, place),
        )
    return sources


def parse_provenance(
    data: Mapping[str, Any], sources: Mapping[str, Provenance], where: str
) -> Provenance:
    """Provenance of one value: a key of `sources:`, overridden by what stands beside the value."""
    key = parse_word(data, "source", where)
    base = UNSOURCED
    if key is not None:
        if key not in sources:
            raise InputError(f"{where}.source: '{key}' is not among the file's sources"
                             f"{nearest(key, sources)}")
        base = sources[key]
    confidence = parse_word(data, "confidence", where) or base.confidence
    return Provenance(
        source=base.source,
        date=parse_word(data, "date", where) or base.date,
        confidence=_confidence(confidence, where),
        verified=_flag(data, "verified", base.verified, where),
        note=parse_word(data, "note", where),
    )


def parse_number(value: Any, dimension: str, where: str) -> float:
    """A number of `dimension`; counts, fractions and factors are bare, others carry a unit."""
    if dimension in ("count", "fraction", "factor"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{where}: {shown(value)} is not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InputError(f"{where}: {shown(value)} is not finite")
        if dimension == "count" and number != int(number):
            raise InputError(f"{where}: {value} is not a whole number")
        if dimension == "fraction" and not 0 < number <= 1:
            raise InputError(f"{where}: {value} is not a fraction above 0 and at most 1")
    else:
        number = parse_quantity(value, dimension, where)
        if number and not PLAUSIBLE[0] <= abs(number) <= PLAUSIBLE[1]:
            raise InputError(f"{where}: {value} is no quantity of this world")
    if number < 0:
        raise InputError(f"{where}: {value} is negative")
    return number


def parse_sourced(
    raw: Any, dimension: str, sources: Mapping[str, Provenance], where: str, positive: bool = True
) -> Sourced:
    """A bare `2039 GB/s`, or a mapping with `value` or with `low`, `mid` and `high`, and `source`.

    With `positive`, zero is refused too.
    """
    if not isinstance(raw, dict):
        value = parse_number(raw, dimension, where)
        return Sourced(value=_above_zero(value, raw, positive, where), range=None,
                       provenance=UNSOURCED)
    check_keys(raw, _VALUE_KEYS, where)
    provenance = parse_provenance(raw, sources, where)
    ends = [k for k in ("low", "mid", "high") if k in raw]
    if not ends:
        if "value" not in raw:
            raise InputError(f"{where}: needs a value, or low, mid and high")
        value = parse_number(raw["value"], dimension, where)
        return Sourced(value=_above_zero(value, raw["value"], positive, where), range=None,
                       provenance=provenance)
    if len(ends) < 3 or "value" in raw:
        raise InputError(f"{where}: a range is low, mid and high, without value")
    low, mid, high = (parse_number(raw[k], dimension, f"{where}.{k}") for k in ends)
    if not low <= mid <= high:
        raise InputError(f"{where}: low {raw['low']}, mid {raw['mid']}, high {raw['high']} "
                         "are not in rising order")
    _above_zero(low, raw["low"], positive, where)
    return Sourced(value=mid, range=Range(low=low, mid=mid, high=high), provenance=provenance)


def _above_zero(value: float, raw: Any, positive: bool, where: str) -> float:
    if positive and value <= 0:
        raise InputError(f"{where}: {raw} must be above 0")
    return value
