"""Which replica a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from simulator.errors import InputError, nearest
from simulator.serving.policy import ROUTINGS
from simulator.serving.replica import Replica

# Prefix-aware: a replica with so many more outstanding requests than the emptiest is passed over.
IMBALANCE = 8


class Router(Protocol):
    """Picks a replica for a request that is ready now."""

    def __call__(self, request: int, now: float) -> int: ...


def router(name: str, replicas: Sequence[Replica]) -> Router:
    """`least-outstanding`, or `prefix-aware`: the longest cached prefix, unless too busy.

    Ties go to the replica with the fewest outstanding requests, then to the first. Round robin
    needs no router: the i-th request goes to replica i mod n.
    """
    if name not in ROUTINGS:
        raise InputError(f"routing: unknown '{name}'{nearest(name, ROUTINGS)}")

    def least(request: int, now: float) -> int:
        return min(range(len(replicas)), key=lambda i: replicas[i].outstanding(now))

    def aware(request: int, now: float) -> int:
        busy = [r.outstanding(now) for r in replicas]
        fewest = min(busy)
        scores = [(-r.cached_units(request), busy[i], i) for i, r in enumerate(replicas)
                  if busy[i] <= fewest + IMBALANCE]
        return min(scores)[2]

    return aware if name == "prefix-aware" else least


__all__ = ["IMBALANCE", "Router", "router"]
