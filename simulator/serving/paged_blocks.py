"""KV blocks of many growing sequences at once, counted by where in a block each of them stands.

Each decode step adds a token to every sequence. A sequence of c tokens at step s is in residue
class (c - s) mod b, and stays there: the blocks of all of them at any later step follow from the
number in each class, without touching the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence


def blocks_of(tokens: int, block: int) -> int:
    """ceil(c / b): blocks of one sequence."""
    return -(-tokens // block)


def blocks_at(classes: Sequence[int], tokens: int, step: int, block: int) -> int:
    """Blocks of sequences that hold `tokens` together at `step`.

    Each fills the last of its blocks but for (-c) mod b tokens, c = its class + step.
    """
    if block == 1:
        return tokens
    empty = sum(n * (-(k + step) % block) for k, n in enumerate(classes) if n)
    return (tokens + empty) // block


def steps_within(classes: Sequence[int], tokens: int, sequences: int, step: int, block: int,
                 room: int, most: int) -> int:
    """Steps, at most `most`, after which the sequences still fit in `room` blocks; by bisection."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_at(classes, tokens + middle * sequences, step + middle, block) <= room:
            low = middle
        else:
            high = middle - 1
    return low


__all__ = ["blocks_at", "blocks_of", "steps_within"]
