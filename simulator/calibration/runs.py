"""One run of a benchmark, as any tool's file tells it, and how values are taken out of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from simulator.errors import InputError, shown
from simulator.validation.measurements import LARGEST, SMALLEST


@dataclass(frozen=True)
class Run:
    """Figures measured together under one set of conditions; texts as the file prints them.

    place     where it stands, for messages: the file, and which part of it
    models    names that the file has for the model, the most telling first
    batch     concurrent sequences; None where the file doesn't tell
    rate      requests a second where they arrive at a rate of their own, `inf` for all at once
    figures   metric of a measurement row -> value
    layers    layers that run on the device; None: all
    loose     why the figures can't be fitted on; empty where they can
    """

    place: str
    tool: str
    models: tuple[str, ...]
    figures: Mapping[str, float]
    date: str = ""
    hardware: str = ""
    devices: int | None = None
    engine: str = ""
    version: str = ""
    weights: str = ""
    kv: str = ""
    batch: float | None = None
    rate: str = ""
    input: float | None = None
    output: float | None = None
    layers: float | None = None
    loose: str = ""
    notes: tuple[str, ...] = field(default=())


def json_objects(text: str, path: str) -> list[dict[str, Any]]:
    """The objects of a file: one, an array of them, or one after the other (JSON lines)."""
    decoder, found, at = json.JSONDecoder(), [], 0
    length = len(text)
    while True:
        while at < length and text[at].isspace():
            at += 1
        if at == length:
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            ends = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
            cut = " (is it cut off?)" if ends else ""
            raise InputError(f"{path}: line {error.lineno}: not valid JSON: {error.msg}{cut}"
                             ) from None
        except RecursionError:
            raise InputError(f"{path}: not valid JSON: nested too deep") from None
        found += value if isinstance(value, list) else [value]
    for i, value in enumerate(found):
        if not isinstance(value, dict):
            raise InputError(f"{path}: value {i + 1} is {shown(value)}, not an object of a "
                             "benchmark tool")
    if not found:
        raise InputError(f"{path}: holds an empty list")
    return found


def take(data: Any, *keys: str | int) -> Any:
    """What stands under keys inside keys; None where any of them is absent."""
    for key in keys:
        if isinstance(key, str):
            data = data.get(key) if isinstance(data, dict) else None
        else:
            data = data[key] if isinstance(data, list) and -len(data) <= key < len(data) else None
    return data


def first(data: Any, *paths: str) -> Any:
    """The first of several dotted paths that holds something."""
    for path in paths:
        value = take(data, *(int(k) if k.isdigit() else k for k in path.split(".")))
        if value is not None and value != "":
            return value
    return None


def number(value: Any, where: str, positive: bool = True) -> float | None:
    """A finite number; None where nothing stands; a number as text is taken (CSV, metadata)."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{where}: {shown(value)} is not a number")
    try:
        found = float(value.replace("_", "?") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {shown(value)} is not a number") from None
    if not math.isfinite(found):
        raise InputError(f"{where}: {shown(value)} is not finite")
    if found < 0 or (positive and found == 0):
        least = "above 0" if positive else "0 or more"
        raise InputError(f"{where}: {shown(value)} must be {least}")
    if found and not SMALLEST <= found <= LARGEST:
        raise InputError(f"{where}: {shown(value)} must lie between {SMALLEST:g} and {LARGEST:g}")
    return found


def needed(data: Any, where: str, *paths: str, positive: bool = True) -> float:
    """The number under the first path that holds one; InputError names the first."""
    value = number(first(data, *paths), f"{where}: {paths[0]}", positive)
    if value is None:
        raise InputError(f"{where}: '{paths[0]}' is missing")
    return value


def words(value: Any) -> str:
    """A text as it stands; empty where there is none."""
    return value.strip() if isinstance(value, str) else ""


def day(value: Any) -> str:
    """A date as YYYY-MM-DD from ISO text, `20251130-101500`, or seconds since 1970; else empty."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC).date().isoformat()
        except (ValueError, OverflowError, OSError):
            return ""
    match = re.match(r"(20\d\d)-?(\d\d)-?(\d\d)", words(value))
    return "-".join(match.groups()) if match is not None else ""


__all__ = ["Run", "day", "first", "json_objects", "needed", "number", "take", "words"]
