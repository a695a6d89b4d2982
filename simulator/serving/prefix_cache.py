"""Prefixes of prompts that are kept and found again: units of whole KV blocks, evicted by age.

A unit is a block of the trace (Mooncake: 512 tokens), known by its id, or the whole prefix that all
prompts share. A prompt finds its leading units; those that running sequences use are counted
once and stay; the others go, the longest unused first, where room is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Units of `unit_blocks` KV blocks each; `used` and `idle` ones count their blocks."""

    def __init__(self, unit_tokens: int, block: int) -> None:
        self.unit_tokens = unit_tokens
        self.unit_blocks = unit_tokens // block
        self.used = 0
        self.idle = 0
        self._references: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    def match(self, keys: Sequence[int], prompt: int) -> int:
        """Leading units that are here; the last token is always computed, its logits are needed."""
        most = min(len(keys), (prompt - 1) // self.unit_tokens)
        for found in range(most):
            if keys[found] not in self._references:
                return found
        return max(most, 0)

    def idle_of(self, keys: Sequence[int], units: int) -> int:
        """Blocks of the first units that no running sequence uses."""
        return self.unit_blocks * sum(k in self._unused for k in keys[:units])

    def acquire(self, keys: Sequence[int], units: int) -> None:
        """A sequence uses the first units."""
        for key in keys[:units]:
            if key in self._unused:
                del self._unused[key]
                self.used += self.unit_blocks
                self.idle -= self.unit_blocks
            self._references[key] += 1

    def insert(self, keys: Sequence[int], units: int, prompt: int) -> int:
        """Keep a computed prompt's units beyond its first; how many the sequence then shares.

        What another sequence has put here meanwhile stays its own twin.
        """
        full = min(len(keys), prompt // self.unit_tokens)
        while units < full and keys[units] not in self._references:
            self._references[keys[units]] = 1
            self.used += self.unit_blocks
            units += 1
        return units

    def release(self, keys: Sequence[int], units: int) -> None:
        """A sequence is done with its first units; the last of them become the oldest."""
        for key in reversed(keys[:units]):
            left = self._references[key] - 1
            self._references[key] = left
            if left == 0:
                self._unused[key] = None
                self.used -= self.unit_blocks
                self.idle += self.unit_blocks

    def shrink(self, room: int) -> None:
        """Drop the longest unused units until the idle ones take at most `room` blocks."""
        while self.idle > room:
            key, _ = self._unused.popitem(last=False)
            del self._references[key]
            self.idle -= self.unit_blocks


__all__ = ["PrefixCache"]
