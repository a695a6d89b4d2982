"""Which percentile a source says that its figure is: tails aren't what a mean is compared with."""

from __future__ import annotations

import re
from functools import lru_cache

# Percentiles other than the median as sources print them; p40 and p100 are devices.
_PERCENTILE = re.compile(
    r"(?<![\w.])(?:p ?(?P<p>10|25|7[05]|8[05]|9\d(?:\.\d+)?|999)"
    r"|(?P<th>\d{2}(?:\.\d+)?)(?:th|st|nd|rd)?[- ]percentile|(?P<tail>tail)(?! of))(?![\w%])", re.I)
_CENTRE = re.compile(r"(?<!\w)(?:median|mean|average|avg|p ?50|50th[- ]percentile)(?!\w)", re.I)
# A value of its own, or a limit: then the word is about another figure than the row's.
_VALUE = re.compile(r"(?P<sign>[=:~]?)\s*(?P<value>\d[\d,]*(?:\.\d+)?)\s*"
                    r"(?P<unit>[mu\u00b5]?s\b|tok)?", re.I)
_LIMIT = re.compile(r"\b(?:slos?|sla|limits?|constraints?|targets?|goodput|budget)\b|"
                    r"[<>\u2264\u2265]", re.I)


@lru_cache(maxsize=4096)
def percentile_of(text: str, value: float | None = None) -> str | None:
    """The percentile that notes or the name of a metric say the figure `value` is: `p99`, `tail`.

    None for a mean or a median, and where a percentile is only told beside the figure
    (`median; p99 = 210 ms`) or limits it (`p99 below the SLO`).
    """
    parts = re.split(r"[;|\n]|,(?!\d)", text)
    if any(_tells(part, _CENTRE.search(part), value) for part in parts):
        return None
    for part in parts:
        match = _PERCENTILE.search(part)
        if match is not None and _LIMIT.search(part) is None and _tells(part, match, value):
            return "tail" if match["tail"] else f"p{match['p'] or match['th']}"
    return None


def _tells(part: str, match: re.Match[str] | None, value: float | None) -> bool:
    """Whether a word of statistics says what the figure is, and doesn't name another one."""
    if match is None:
        return False
    own = _VALUE.search(part, match.end())
    if own is None or not (own["sign"] or own["unit"]):
        return True
    return float(own["value"].replace(",", "")) == value


__all__ = ["percentile_of"]
