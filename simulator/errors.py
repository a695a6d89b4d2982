"""The errors a user can cause, and how a wrong name finds its nearest right one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 600


def _one_line(message: str) -> str:
    """`message` with control characters escaped and, where it is huge, its middle cut."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


def shown(value: object) -> str:
    """`repr` of a value for a message; an integer too long to print becomes words."""
    try:
        return repr(value)
    except ValueError:
        return "a number with thousands of digits"


class InputError(ValueError):
    """Bad input: one line that names the file, the key, the value and the nearest valid choice."""

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class DoesNotFitError(ValueError):
    """The deployment does not fit in memory, so it has no rates."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the choice closest to `word`, or all choices where few exist."""
    import difflib

    names = list(choices)
    close = difflib.get_close_matches(str(word)[:100].lower(), [n.lower() for n in names], 1, 0.6)
    if close:
        match = next(n for n in names if n.lower() == close[0])
        return f" (did you mean '{match}'?)"
    if 0 < len(names) <= 12:
        return f" (valid: {', '.join(names)})"
    return ""
