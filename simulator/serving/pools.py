"""Disaggregated pools: prompts on one pool of engines, decoding on another, caches over a link."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.arrays import Array
from simulator.disaggregation import exposed_transfer
from simulator.serving.batch import Log, python_numbers
from simulator.serving.replica import Replica
from simulator.serving.requests import Requests


@dataclass(frozen=True)
class KvLink:
    """The links that KV caches cross.

    kv_bytes            [bytes] of the caches of prompts
    bandwidth, latency  of one transfer [bytes/s, s]
    outgoing, incoming  of a prefill and of a decode instance [bytes/s]
    layers              whose caches leave one by one while the prefill still runs
    """

    kv_bytes: Callable[[Array], Array]
    bandwidth: float
    latency: float
    outgoing: float
    incoming: float
    layers: float


def arrivals_of_caches(done: Array, prefill: Array, size: Array, source: Array, target: Array,
                       link: KvLink) -> Array:
    """When each cache is at its decode instance [s]; columns in the order of `done`.

    What the prefill doesn't hide is waited for (`exposed_transfer`). The links out of a prefill
    instance and into a decode instance carry one cache after the other.
    """
    bare = size / link.bandwidth
    exposed = np.asarray(exposed_transfer(bare, prefill, link.layers, link.latency))
    start = done + exposed - link.latency - bare
    free_out, free_in = np.zeros(int(source.max()) + 1), np.zeros(int(target.max()) + 1)
    found = np.empty(len(done))
    for i in range(len(done)):
        out = max(start[i], free_out[source[i]]) + size[i] / link.outgoing
        into = max(start[i], free_in[target[i]]) + size[i] / link.incoming
        free_out[source[i]], free_in[target[i]] = out, into
        found[i] = max(out, into, done[i] + exposed[i] - link.latency) + link.latency
    return found


def to_decode(first: list[Replica], decode: list[Replica], log: Log, ready: Array, link: KvLink,
              requests: Requests, of: Array) -> None:
    """Prefill everything, move the caches, decode everything; both pools in round robin.

    Decoding never holds a prefill up, so that one pool can be served after the other. The first
    token counts when its cache is at the decode instance.
    """
    n, outputs = len(ready), log.outputs
    log.outputs = python_numbers(np.ones(n, dtype=np.int64))
    for i, r in enumerate(first):
        r.ready, r.ids = python_numbers(ready[i::len(first)]), range(i, n, len(first))
        r.advance()
    log.outputs = outputs
    done = np.array(log.first)
    order = np.argsort(done, kind="stable")
    target = np.empty(n, dtype=np.int64)
    target[order] = np.arange(n) % len(decode)
    of[:] = target
    arrived = np.empty(n)
    arrived[order] = arrivals_of_caches(
        done[order], (done - np.array(log.admitted))[order],
        np.asarray(link.kv_bytes(requests.input.astype(float)))[order],
        order % len(first), target[order], link)
    log.first[:] = array("d", arrived.tobytes())
    log.finish[:] = array("d", arrived.tobytes())     # of those with one output token
    for i, r in enumerate(decode):
        mine = np.flatnonzero((target == i) & (requests.output > 1))
        mine = mine[np.argsort(arrived[mine], kind="stable")]
        r.ready, r.ids = array("d", arrived[mine].tobytes()), array("q", mine.tobytes())
        r.advance()


__all__ = ["KvLink", "arrivals_of_caches", "to_decode"]
