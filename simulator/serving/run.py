"""A run: requests through replicas, or through a prefill pool and a decode pool.

Everything below takes a surface, so that it says nothing about models or hardware.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError
from simulator.serving.batch import Log, python_numbers
from simulator.serving.policy import KvMemory, Policy
from simulator.serving.pools import KvLink, to_decode
from simulator.serving.prefix_cache import PrefixCache
from simulator.serving.replica import Replica
from simulator.serving.requests import Requests
from simulator.serving.routing import router
from simulator.serving.surface import Surface
from simulator.serving.tally import SAMPLES

# Share of the requests at either end of a run that its figures leave out, and the fewest requests
# from which anything is left out.
CUT, FEWEST = 0.1, 50


@dataclass(frozen=True)
class Setup:
    """An engine: its step times, its scheduler, its KV memory, and what it takes to move a token.

    request_time  [s] of a request outside the steps, before it can be scheduled
    swap_time     [s] to move the cache of a token to the host or back
    """

    surface: Surface
    policy: Policy
    memory: KvMemory
    request_time: float = 0.0
    swap_time: float = 0.0


@dataclass(frozen=True)
class PrefillPool:
    """Instances that only prefill, and the link over which caches leave them."""

    setup: Setup
    replicas: int
    link: KvLink


@dataclass(frozen=True)
class Run:
    """What happened: columns of requests in the order of arrival, and the replicas.

    window        [s] in which requests arrived (closed loop: were answered) that figures are of
    request_time  [s] of a request outside the steps; it's neither queue nor step
    """

    requests: Requests
    arrival: Array
    admitted: Array
    first: Array
    finish: Array
    replica: Array
    replicas: list[Replica]
    prefill_replicas: list[Replica]
    window: tuple[float, float]
    concurrency: int | None
    request_time: float = 0.0


class _Keys(Sequence[Sequence[int]]):
    """Ids of the prefix units of each request."""

    def __init__(self, requests: Requests, unit: int) -> None:
        self.requests, self.unit = requests, unit

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if self.requests.blocks is not None:
            return self.requests.blocks_of(index).tolist()
        return (0,) if self.requests.input[index] > self.unit else ()


def prefix_unit(requests: Requests, policy: Policy, block: int) -> tuple[int, int]:
    """(tokens of a unit of the prefix cache, tokens of a KV block that divides it); 0: no cache.

    No engine that batches statically keeps prefixes.
    """
    if not policy.prefix_cache or policy.scheduler == "static":
        return 0, block
    if requests.blocks is not None:
        return requests.block_tokens, gcd(requests.block_tokens, block)
    return requests.shared_prefix // block * block, block


def _engines(setup: Setup, requests: Requests, log: Log, number: int, interval: float,
             decodes_only: bool = False) -> list[Replica]:
    unit, block = prefix_unit(requests, setup.policy, setup.memory.block)
    memory = KvMemory(setup.memory.blocks * (setup.memory.block // block), block)
    if unit and not decodes_only:
        log.keys = _Keys(requests, unit)
    return [Replica(setup.surface, setup.policy, memory, log,
                    PrefixCache(unit, block) if unit and not decodes_only else None,
                    decodes_only, setup.swap_time, interval) for _ in range(number)]


def _window(requests: Requests, count: int) -> tuple[float, float]:
    """Arrivals from the first tenth to the last; all of few."""
    if count < FEWEST or requests.duration == 0.0:
        return -math.inf, math.inf
    t0, span = float(requests.arrival[0]), requests.duration
    return t0 + CUT * span, t0 + (1.0 - CUT) * span


def _spread_out(replicas: list[Replica], ready: Array, routing: str, of: Array) -> None:
    """Send each request to a replica when it is ready, and serve all of them."""
    n = len(replicas)
    if n == 1 or routing == "round-robin":
        for i, r in enumerate(replicas):
            of[i::n] = i
            r.ready, r.ids = python_numbers(ready[i::n]), range(i, len(ready), n)
            r.advance()
        return
    pick = router(routing, replicas)
    for request, now in enumerate(ready.tolist()):
        for r in replicas:
            r.advance(now)
        chosen = pick(request, now)
        of[request] = chosen
        replicas[chosen].push(now, request)
    for r in replicas:
        r.advance()


def _closed(replicas: list[Replica], log: Log, users: int, request_time: float, n: int,
            of: Array) -> None:
    """Users that each send the next request when they are answered; a user stays at a replica."""
    for i, r in enumerate(replicas):
        mine = np.arange(i, n, len(replicas))
        of[mine] = i
        own = len(range(i, users, len(replicas)))
        r.think, r.more = request_time, array("q", mine[own:].tobytes())
        for request in mine[:own].tolist():
            r.push(request_time, request)
        if n >= FEWEST:
            opens, closes = int(CUT * len(mine)), math.ceil((1.0 - CUT) * len(mine))
            # From the last request on users leave.
            r.marks = opens, min(closes, len(mine) - own) if len(mine) - own > opens else closes
            r.window = (math.inf, math.inf)
        r.advance()


def serve(setup: Setup, requests: Requests, replicas: int = 1, routing: str = "round-robin",
          concurrency: int | None = None, prefill: PrefillPool | None = None) -> Run:
    """Serve all requests; those that can never fit must have been taken out."""
    n = len(requests)
    if n == 0:
        raise InputError("requests: none is left to serve")
    log = Log(python_numbers(requests.input), python_numbers(requests.output))
    of = np.zeros(n, dtype=np.uint16)
    interval = max(requests.duration / SAMPLES * 1.5, 1e-3) if concurrency is None else 0.05
    decode = _engines(setup, requests, log, replicas, interval, prefill is not None)
    first: list[Replica] = []
    window = _window(requests, n)
    arrival = requests.arrival
    if concurrency is not None:
        if prefill is not None:
            raise InputError("concurrency: not with pools yet; give --rate or --trace")
        if concurrency < replicas:
            raise InputError(f"concurrency: {concurrency} users leave some of {replicas} replicas "
                             "idle")
        _closed(decode, log, concurrency, setup.request_time, n, of)
        arrival = _sent(decode, n, setup.request_time)
        window = _answers(decode)
    else:
        for r in decode:
            r.window = window
        ready = arrival + setup.request_time
        if prefill is None:
            _spread_out(decode, ready, routing, of)
        else:
            first = _engines(prefill.setup, requests, log, prefill.replicas, interval)
            to_decode(first, decode, log, ready, prefill.link, requests, of)
    return Run(requests, arrival, np.frombuffer(log.admitted), np.frombuffer(log.first),
               np.frombuffer(log.finish), of, decode, first, window, concurrency,
               setup.request_time)


def _sent(replicas: list[Replica], n: int, request_time: float) -> Array:
    sent = np.zeros(n)
    for r in replicas:
        sent[np.array(r.ids, dtype=np.int64)] = np.array(r.ready) - request_time
    return sent


def _answers(replicas: list[Replica]) -> tuple[float, float]:
    """The time in which every replica is in the middle of its answers."""
    if not replicas[0].marks:
        return -math.inf, math.inf
    return max(r.window[0] for r in replicas), min(r.window[1] for r in replicas)


__all__ = ["CUT", "FEWEST", "PrefillPool", "Run", "Setup", "prefix_unit", "serve"]
