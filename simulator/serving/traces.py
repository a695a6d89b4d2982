"""Request traces in the shapes that are published, told apart by their header.

CSV     Azure 2023/2024 (`TIMESTAMP,ContextTokens,GeneratedTokens`) and 2025 (with `NumImages`),
        BurstGPT (`Timestamp`, `Request tokens`, `Response tokens`, with or without sessions),
        `arrived_at,num_prefill_tokens,num_decode_tokens`, and the last two alone (lengths only)
JSONL   Mooncake (`timestamp` [ms], `input_length`, `output_length`, `hash_ids` of 512-token prefix
        blocks), and `input_toks,output_toks,arrival_time_ns`

Requests without output failed in the service: they are left out, counted and named. Unsorted
arrivals are sorted, and that is said. A last line that was cut short is left out; anything else
that is no number ends with the line it stands in.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.serving.arrivals import Arrivals, check_rate
from simulator.serving.requests import Counts, Requests
from simulator.serving.trace_columns import Columns, read_csv, read_jsonl
from simulator.serving.trace_text import read_bytes
from simulator.units import parse_quantity

FAILED = "failed (no output tokens)"
NO_PROMPT = "no prompt tokens"


def load_trace(path: str | Path, scale: float = 1.0, window: tuple[float, float] | None = None,
               limit: int | None = None, rate: float | None = None,
               arrivals: Arrivals | None = None, seed: int = 0) -> Requests:
    """The requests of a trace; arrivals [s] count from its first one.

    scale    factor on the rate: 2 sends the requests in half the time
    window   (start, end) [s] of the trace before scaling; its start becomes time 0
    limit    requests at most, the first ones
    rate     mean rate [1/s] that arrivals are stretched to; a file of lengths alone needs it
    arrivals how a file of lengths alone arrives; None: Poisson, from `seed`
    """
    if not (math.isfinite(scale) and scale > 0.0):
        raise InputError(f"--scale: {scale:g} is not above 0 and finite")
    if limit is not None and limit < 1:
        raise InputError(f"--limit: {limit} is not at least 1")
    if rate is not None:
        check_rate(rate, "--rate")
    found, dropped = _kept(_columns(Path(path)), path)
    made_up = found.arrival is None
    if made_up:
        found = _arriving(found, rate, scale, window, arrivals or Arrivals(), seed, path)
    else:
        found = _windowed(_sorted(found), window, path)
    if limit is not None and limit < len(found.input):
        found = found.take(np.arange(limit))
    assert found.arrival is not None
    requests = Requests(found.arrival, found.input, found.output, found.blocks, found.block_starts,
                        found.block_tokens, dropped=dropped, notes=found.notes)
    if made_up:
        return requests
    if rate is not None:
        return requests.at_rate(rate * scale)
    return replace(requests, arrival=requests.arrival / scale) if scale != 1.0 else requests


def load_lengths(path: str | Path) -> tuple[Counts, Counts]:
    """Prompt and answer lengths of any trace, with or without arrivals."""
    found, _ = _kept(_columns(Path(path)), path)
    return found.input, found.output


def parse_window(text: str, where: str = "--window") -> tuple[float, float]:
    """`600:1200` [s], or with units as in `10min:20min`, `1h:`; an end may be left out."""
    first, colon, last = text.partition(":")
    if not colon:
        raise InputError(f"{where}: '{text}' is not START:END, write for example 10min:20min")
    start, end = parse_duration(first or "0", where), math.inf
    if last.strip():
        end = parse_duration(last, where)
    if end <= start:
        raise InputError(f"{where}: '{text}' ends before it starts")
    return start, end


def parse_duration(text: str, where: str) -> float:
    """Seconds of `600`, `10min`, `1h`, `2d`, or a time with an SI unit; at least 0."""
    word = text.strip().lower()
    for unit, factor in (("min", 60.0), ("h", 3600.0), ("d", 86_400.0)):
        number = word.removesuffix(unit).strip()
        if word.endswith(unit) and number and _is_number(number):
            return _at_least_zero(float(number) * factor, text, where)
    if _is_number(word):
        return _at_least_zero(float(word), text, where)
    return _at_least_zero(parse_quantity(text, "time", where), text, where)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _at_least_zero(value: float, text: str, where: str) -> float:
    if not (math.isfinite(value) and value >= 0.0):
        raise InputError(f"{where}: '{text}' is not at least 0 and finite")
    return value


def _columns(path: Path) -> Columns:
    data = read_bytes(path)
    return read_jsonl(data, path) if data.lstrip()[:1] in (b"{", b"[") else read_csv(data, path)


def _kept(c: Columns, path: str | Path) -> tuple[Columns, dict[str, int]]:
    """The requests that can be served, and how many were left out for which reason."""
    failed, empty = c.output == 0, (c.input == 0) & (c.output > 0)
    dropped = {reason: int(mask.sum()) for reason, mask in ((FAILED, failed), (NO_PROMPT, empty))
               if mask.any()}
    keep = np.flatnonzero(~(failed | empty))
    if not len(keep):
        words = "; ".join(f"{n:,} {reason}" for reason, n in dropped.items()) or "no rows"
        raise InputError(f"trace '{path}': holds no request to serve ({words})")
    notes = tuple(f"{n:,} of {len(c.output):,} requests left out: {reason}"
                  for reason, n in dropped.items())
    return (c.take(keep, notes) if dropped else c), dropped


def _sorted(c: Columns) -> Columns:
    """In the order of arrival, from time 0; says so where the file had another order."""
    assert c.arrival is not None
    backwards = int(np.count_nonzero(np.diff(c.arrival) < 0.0))
    if backwards:
        c = c.take(np.argsort(c.arrival, kind="stable"),
                   (f"arrivals go back in time at {backwards:,} places: sorted",))
    assert c.arrival is not None
    return c.at(c.arrival - c.arrival[0])


def _windowed(c: Columns, window: tuple[float, float] | None, path: str | Path) -> Columns:
    """The arrivals in [start, end), counted from the start of the window."""
    if window is None:
        return c
    start, end = window
    assert c.arrival is not None
    first, last = np.searchsorted(c.arrival, [start, end])
    if first == last:
        raise InputError(f"trace '{path}': no request arrives between {start:g} s and {end:g} s; "
                         f"the trace lasts {c.arrival[-1]:,.0f} s")
    c = c.take(np.arange(first, last))
    assert c.arrival is not None
    return c.at(c.arrival - start)


def _arriving(c: Columns, rate: float | None, scale: float, window: tuple[float, float] | None,
              arrivals: Arrivals, seed: int, path: str | Path) -> Columns:
    """Lengths alone, with made-up arrivals."""
    if rate is None:
        raise InputError(f"trace '{path}': holds lengths but no arrival times: give --rate")
    if window is not None:
        raise InputError(f"trace '{path}': holds no arrival times, so --window has no meaning")
    times = arrivals.times(len(c.input), rate * scale, np.random.default_rng(seed))
    return c.at(times, (f"arrivals made up: {arrivals.kind} at {rate * scale:g} requests/s",))
