"""Units exist only at the edges: text with a unit in, SI floats inside, text with a unit out.

Memory prints in GiB (2^30 bytes), bandwidth in decimal GB/s or TB/s, FLOP/s dense.
"""

from __future__ import annotations

import math
import re
from typing import Final

from simulator.errors import InputError, nearest, shown

_DECIMAL: Final = {
    "f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
}  # fmt: skip
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

# dimension -> (base unit -> factor to SI, which prefixes it takes, an example for messages)
_DIMENSIONS: Final[dict[str, tuple[dict[str, float], str, str]]] = {
    "bandwidth": ({"B/s": 1.0}, "kKMGTPE", "2039 GB/s"),
    "memory": ({"B": 1.0}, "kKMGTPE", "81920 MiB"),
    "compute": ({"FLOP/s": 1.0, "OP/s": 1.0}, "kKMGTPE", "312 TFLOP/s"),
    "frequency": ({"Hz": 1.0}, "kKMGT", "1410 MHz"),
    "time": ({"s": 1.0}, "munµμpf", "2.5 us"),
    "power": ({"W": 1.0}, "mkKM", "400 W"),
    "energy_per_byte": ({"J/bit": 8.0, "J/B": 1.0}, "fpnuµμm", "3.97 pJ/bit"),
    "energy_per_flop": ({"J/FLOP": 1.0}, "fpnuµμm", "1.1 pJ/FLOP"),
    "price": ({"USD/h": 1.0 / 3600.0}, "", "2.79 USD/h"),
}

_QUANTITY: Final = re.compile(
    r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(\S.*?)?\s*", re.DOTALL)

_LARGEST_COUNT: Final = 2.0**53  # above it a float skips whole numbers
_MOST_VALUES: Final = 10_000_000


def _unit_factor(unit: str, dimension: str) -> float | None:
    bases, prefixes, _ = _DIMENSIONS[dimension]
    for base, factor in bases.items():
        if not unit.endswith(base):
            continue
        prefix = unit[: len(unit) - len(base)]
        if prefix == "" or (len(prefix) == 1 and prefix in prefixes):
            return factor * _DECIMAL[prefix]
        if dimension in ("bandwidth", "memory") and prefix in _BINARY:
            return factor * _BINARY[prefix]
    return None


def parse_quantity(text: object, dimension: str, where: str = "value") -> float:
    """SI value of `text`, for example `parse_quantity("2039 GB/s", "bandwidth")` -> 2.039e12.

    `where` names the file and key in the message of the InputError that a missing or wrong
    unit, or a number that is not finite, raises.
    """
    example = _DIMENSIONS[dimension][2]
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise InputError(f"{where}: {shown(text)} is not a quantity, write for example '{example}'")
    if not isinstance(text, str):
        raise InputError(f"{where}: {shown(text)} has no unit, write for example '{example}'")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f"{where}: '{text}' is not a quantity, write for example '{example}'")
    number, unit = float(match.group(1)), match.group(2)
    if unit is None:
        raise InputError(f"{where}: '{text}' has no unit, write for example '{example}'")
    factor = _unit_factor(unit, dimension)
    if factor is None:
        hint = ""
        if re.fullmatch(r"[kKMGTP]i?b(/s|ps)?", unit) and dimension in ("bandwidth", "memory"):
            hint = " (a small b is a bit: write B for bytes)"
        raise InputError(f"{where}: '{unit}' in '{text}' is no unit of {dimension}, "
                         f"write for example '{example}'{hint}")
    value = number * factor
    if not math.isfinite(value):
        raise InputError(f"{where}: '{text}' is not finite")
    return value


def parse_count(text: str, where: str = "value") -> float:
    """A token or sequence count; `k` = 1024 and `m` = 1024^2 (tokens only), as in `8k`."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmM]?)\s*", text)
    if match is None:
        raise InputError(f"{where}: '{text}' is not a positive whole number (8192 or 8k = 8192)")
    value = float(match.group(1)) * {"": 1, "k": 1024, "m": 1024**2}[match.group(2).lower()]
    if value > _LARGEST_COUNT:
        raise InputError(f"{where}: '{text}' is too large, the most is 2^53")
    if value != int(value):
        raise InputError(f"{where}: '{text}' is not a whole number")
    return value


def _with_prefix(
    value: float | None, unit: str, steps: list[tuple[float, str]], digits: int = 3
) -> str:
    """`value` in the largest step it reaches once rounded, so 0.9999 s is `1.00 s`."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return f"0 {unit}"
    larger: tuple[float, str] | None = None
    for scale, prefix in steps:
        scaled = float(f"{value / scale:.{digits - 1}e}")
        if larger is not None and abs(scaled) * scale >= larger[0] * (1 - 1e-9):
            scaled, prefix = math.copysign(1.0, value), larger[1]  # noqa: PLW2901
        elif abs(scaled) < 1 and scale != steps[-1][0]:
            larger = scale, prefix
            continue
        elif abs(scaled) >= 10**digits:
            scaled = value / scale
        return f"{_significant(scaled, digits)} {prefix}{unit}"
    raise AssertionError("the last step takes every value")


def _significant(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if not -7 <= exponent < 15:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - exponent)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text and decimals > digits else text


def format_number(value: float | None, digits: int = 3) -> str:
    """`1234.5` -> `1,234`; `0.01234` -> `0.0123`."""
    return "-" if value is None or not math.isfinite(value) else _significant(value, digits)


def format_time(seconds: float | None) -> str:
    """`0.0123` -> `12.3 ms`; minutes from 10 min up, days from 10 days up."""
    if seconds is not None and math.isfinite(seconds) and seconds >= 600:
        days = seconds >= 864_000
        return f"{_significant(seconds / (86_400 if days else 60))} {'d' if days else 'min'}"
    return _with_prefix(seconds, "s", [(1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")])


def format_memory(size: float | None) -> str:
    """Bytes in binary units: `85899345920` -> `80.0 GiB`; TiB only from 10 TiB up."""
    if size is None or not math.isfinite(size):
        return "-"
    if abs(size) < 1023.5:
        return f"{size:.0f} B"
    steps = [(2.0**40, "T"), (2.0**30, "G"), (2.0**20, "M"), (2.0**10, "K")]
    return _with_prefix(size, "iB", steps if abs(size) >= 10 * 2.0**40 else steps[1:])


def format_bandwidth(rate: float | None) -> str:
    """Bytes per second in decimal units: `2.039e12` -> `2.04 TB/s`."""
    return _with_prefix(rate, "B/s", [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, "")])


def format_flops(count: float | None, unit: str = "FLOP/s") -> str:
    """`312e12` -> `312 TFLOP/s`."""
    return _with_prefix(count, unit, [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"),
                                      (1e6, "M"), (1.0, "")])


def format_decimal_bytes(size: float | None) -> str:
    """Bytes in decimal units, for dividing by a bandwidth on paper: `14e9` -> `14.0 GB`."""
    return _with_prefix(size, "B", [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"),
                                    (1.0, "")])


def parse_list(text: str, where: str = "value") -> list[float]:
    """Values of a flag: `1,2,4`; `a:b` step 1; `a:b:s` step s; `a:b:xr` geometric.

    Both ends are included where the steps hit them; a geometric range has no value twice.
    """
    values: list[float] = []
    for part in text.split(","):
        pieces = part.split(":")
        if len(pieces) == 1:
            values.append(parse_count(part, where))
            continue
        if len(pieces) > 3:
            raise InputError(f"{where}: '{part}' is not a range, write a:b, a:b:step or a:b:xratio")
        low, high = parse_count(pieces[0], where), parse_count(pieces[1], where)
        step = pieces[2] if len(pieces) == 3 else "1"
        values += _expand(low, high, step, part, where)
        if len(values) > _MOST_VALUES:
            raise InputError(f"{where}: '{text}' has more than {_MOST_VALUES:,} values")
    return values


def _expand(low: float, high: float, step: str, part: str, where: str) -> list[float]:
    if high < low:
        raise InputError(f"{where}: '{part}' runs backwards")
    if not step.lower().startswith("x"):
        increment = parse_count(step, where)
        if increment <= 0:
            raise InputError(f"{where}: the step in '{part}' must be above 0")
        count = int((high - low) // increment) + 1
        if count > _MOST_VALUES:
            raise InputError(f"{where}: '{part}' has more than {_MOST_VALUES:,} values")
        return [low + i * increment for i in range(count)]
    if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", step[1:]) is None:
        raise InputError(f"{where}: '{step}' in '{part}' is not a ratio, write for example "
                         f"'{part.rsplit(':', 1)[0]}:x2'")
    ratio = float(step[1:])
    if not ratio > 1 or low <= 0:
        raise InputError(f"{where}: '{part}' needs a ratio above 1 and a start above 0")
    steps = math.log(high / low) / math.log(ratio) + 1e-9
    if steps >= _MOST_VALUES:
        raise InputError(f"{where}: '{part}' has more than {_MOST_VALUES:,} values")
    return list(dict.fromkeys(float(round(low * ratio**i)) for i in range(math.floor(steps) + 1)))


def plural(n: int, noun: str) -> str:
    """`1 source`, `1,200 sources`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def suggest_dimension(unit: str) -> str:
    """The dimension names that exist, for messages about a field without one."""
    return nearest(unit, _DIMENSIONS)
