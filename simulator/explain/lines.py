"""Lines of the textbook page: `label  formula; remark  value`, at most 100 columns."""

from __future__ import annotations

import re
import textwrap

from simulator.units import (
    format_number,
)

WIDTH = 100


QUANTITY = re.compile(r"(?<=[0-9]) (?=(?:[nµm]?s|min|d|[kMGTPE]?(?:B|FLOP)(?:/s)?)(?:[ ;,)]|$))")


def wrap(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width`; a number stays with its unit."""
    lines = textwrap.wrap(QUANTITY.sub("\xa0", text), width, subsequent_indent=indent,
                          break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def row(label: str, formula: str, value: str, remark: str = "") -> str:
    """A label, how its value comes about, and the value, the values right-aligned."""
    indent = " " * 26
    text = f"  {label:<23} {formula}{'; ' if formula and remark else ''}{remark}"
    lines = wrap(text, WIDTH, indent)
    room = WIDTH - len(value) - 2
    if len(lines[-1]) > room:
        lines = wrap(text, room, indent)
    lines[-1] = f"{lines[-1]:<{room}}  {value}"
    return "\n".join(lines)


def note(text: str) -> str:
    return "\n".join(wrap(f"  {text}", WIDTH, "  "))


def amount(value: float, digits: int = 4) -> str:
    """A count: whole below a million, else as 6.98e9 or 17.6e6."""
    for scale, name in ((1e9, "e9"), (1e6, "e6")):
        if value >= scale:
            return f"{format_number(value / scale, digits)}{name}"
    return f"{value:,.0f}" if value == round(value) else format_number(value, max(digits, 4))


def exact(value: float) -> str:
    return f"{value:,.12g}"


def many(count: float, one: str) -> str:
    return f"{exact(count)} {one}{'' if count == 1 else 's'}"
