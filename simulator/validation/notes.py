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
# Words that tell of drafted tokens, and a denial of them: beside the word, not elsewhere.
_DRAFTS = (r"(?:mtp(?:-\d+)?|eagle(?:-?\d)?|medusa|dflash|speculat\w*|spec(?:[. -]?decod\w*)?|"
           r"lookahead decoding|draft(?:ed)? (?:model|tokens?)|n-?gram)")
_SPECULATION = re.compile(rf"\b{_DRAFTS}(?![a-z])|\bacceptance (?:rate|length)\b"
                          r"|\baccepted [\d.]+ tokens", re.I)
_NO_DRAFTS = re.compile(
    rf"\b(?:no|not|without|w/o|neither)\s+(?:using\s+)?{_DRAFTS}\b"
    rf"|\b{_DRAFTS}(?:[ /]+(?:{_DRAFTS}|decod\w*|status|tokens?))*\s*[:=]?\s*"
    r"(?:not (?:given|stated|checked|known|used|enabled)|off\b|disabled|none\b|false\b|0(?![.\d]))",
    re.I)
# The same of a cache that held part of the prompts before.
_CACHE = r"(?:prefix(?:es)?|prompts?|apc|radix|kv)[ _-]?cach\w*"
_CACHED = re.compile(rf"\bwarm {_CACHE}|\b{_CACHE}[^,;]*\b(?:hits?|warm|reused?)\b|\bcache[ _-]hit"
                     r"|\b(?:apc|(?:prefix|prompt)[ _-]cach\w*)[ :=]*(?:on|enabled|true)\b"
                     r"|\d ?% of the prompts? (?:was |is |were )?cached|\bshared system prompt",
                     re.I)
_NO_CACHED = re.compile(rf"\b(?:no|without|cold)\s+{_CACHE}|\b{_CACHE}[ :=]*"
                        r"(?:hits? )?(?:off|disabled|false|none|0(?![.\d]))", re.I)
_BEAMS = re.compile(r"\bbeam(?: search| width|s)\b(?!\s*[:=]?\s*1\b)", re.I)
_OWN_RATE = re.compile(r"\bpoisson\b", re.I)


def check_notes(row: Row) -> None:
    """UnknownError where a row says that it was measured in a way that isn't predicted."""
    if any(word in row.engine.lower() for word in _SPLIT):
        raise UnknownError("prefill and decode on different workers, whose counts aren't stated")
    parts = row.notes.split(";")
    if any(_SPECULATION.search(p) and not _NO_DRAFTS.search(p) for p in parts):
        raise UnknownError("speculative decoding, which isn't predicted for measured rows")
    if any(_CACHED.search(p) and not _NO_CACHED.search(p) for p in parts):
        raise UnknownError("a prefix cache that held part of the prompts")
    if _BEAMS.search(row.notes):
        raise UnknownError("beam search")
    if _OWN_RATE.search(row.notes) or (
            row.rate and not row.rate.lower().startswith(_NO_RATE)):
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
