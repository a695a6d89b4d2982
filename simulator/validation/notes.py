"""What the words of a row tell of how it was measured: what a prediction can't follow, and whether
it was served."""

from __future__ import annotations

import re

from simulator.specs.hardware import Hardware
from simulator.validation import names
from simulator.validation.measurements import Row
from simulator.validation.names import UnknownError

# What a source says whose requests were sent to a server: as one ends the next is sent, so that
# prefills share the device with decode steps.
_SERVED = re.compile(r"\b(serv(?:ed|er|ing)|online|closed.loop|concurren\w+|genai-perf|aiperf)\b"
                     r"|benchmark_serving", re.I)
# A rate that means all at once.
_BURST = re.compile(r"inf|burst", re.I)
# Rates that aren't one: the batch of the row decides.
_NO_RATE = ("inf", "offline", "burst")
# Parts of the engine's text that say that prefill and decode ran on different machines.
_SPLIT = ("disagg",)
_THREADS = re.compile(r"\bthreads=(\d+)")
_ON_CPU = re.compile(r"\brun on cpu\b", re.I)
_OF_CPU = re.compile(r"\bcpu\b", re.I)
# A part of a note that tells of drafted tokens, unless it denies them or says that it can't tell.
_SPECULATION = re.compile(r"\b(mtp|eagle|medusa|speculat\w*|spec[. -]?decod\w*|draft model|n-?gram)"
                          r"(?![a-z])", re.I)
# The same of a cache that held part of the prompts before.
_CACHED = re.compile(r"\bprefix(es)?[ _-]?cach\w*.*\b(hits?|warm|reused)\b|\bcache[ _-]hit", re.I)
_DENIED = re.compile(r"\b(no|not|without|off|disabled|none)\b|=\s*(0|false)\b", re.I)


def _tells(pattern: re.Pattern[str], notes: str) -> bool:
    """Whether a part of the notes says so and doesn't deny it."""
    return any(pattern.search(part) and not _DENIED.search(part) for part in notes.split(";"))


def check_notes(row: Row) -> None:
    """UnknownError where a row says that it was measured in a way that isn't predicted."""
    if any(word in row.engine.lower() for word in _SPLIT):
        raise UnknownError("prefill and decode on different workers, whose counts aren't stated")
    if _tells(_SPECULATION, row.notes):
        raise UnknownError("speculative decoding, whose acceptance isn't stated")
    if _tells(_CACHED, row.notes):
        raise UnknownError("a prefix cache that held part of the prompts")
    if row.rate and not row.rate.lower().startswith(_NO_RATE):
        raise UnknownError("requests arrive at a rate of their own, not in a closed loop")


def check_processor(row: Row, hardware: Hardware) -> None:
    """UnknownError where something else than the whole device named ran it."""
    threads = _THREADS.search(row.notes)
    if threads and names.is_cpu(hardware) and float(threads.group(1)) < (hardware.units or 0):
        raise UnknownError("ran on some of the processor's cores")
    on_cpu = _ON_CPU.search(row.notes) or _OF_CPU.search(row.engine)
    if on_cpu and not names.is_cpu(hardware):
        raise UnknownError("ran on the processor, not on the device named")


def says_served(row: Row) -> bool:
    """Whether a row says that a server answered it."""
    return _SERVED.search(f"{row.notes} {row.engine} {row.rate}") is not None


def all_at_once(row: Row) -> bool:
    """Whether all requests were sent together."""
    return _BURST.match(row.rate) is not None
