"""`simulate(deployment, requests)`: how a deployment serves a stream of requests.

Every figure is an expectation: the step times are those of `estimate`, whose range is carried over
by two more runs in which every step takes the low, and the high, end of its time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment, Parallelism
from simulator.disaggregation import Link, kv_transfer_bytes
from simulator.errors import InputError
from simulator.serving import metrics
from simulator.serving.metrics import Slo
from simulator.serving.policy import KvMemory, Policy, kv_memory
from simulator.serving.pools import KvLink
from simulator.serving.requests import Requests, within_positions
from simulator.serving.run import CUT, PrefillPool, Run, Setup, serve
from simulator.serving.surface import ENDS, End, StepSurface
from simulator.serving.tally import RESOLUTION

# Requests of the runs at the low and the high end of the step times, and of the run that finds the
# largest rate: so many for each place in the batch.
RANGE_REQUESTS, WAVES, LEAST_BACKLOG, MOST_BACKLOG = 5_000, 8, 400, 20_000
# The fewest where lengths differ, neighbours that stay together for the prefixes that they share,
# and how many of those there are at least where the trace has them.
LEAST_MIXED, STRETCH, MOST_SHARING = 2_000, 200, 8_000
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class DoesNotFit(InputError):  # noqa: N818
    """The model leaves no memory for a single request."""


@dataclass(frozen=True)
class DecodePool:
    """Prefill on instances of its own: what they are, how many, and the link to the others."""

    prefill: Deployment
    replicas: int
    link: Link
    policy: Policy | None = None


def _moved(value: float, near: float | None, far: float) -> float:
    """value x far/near: what changes few requests from near to far, done to all of them."""
    return value * far / near if near else far


@dataclass(frozen=True)
class Served:
    """What a run says; columns hold one value a request, in the order of arrival.

    rejected      requests that no replica can hold, by reason; they are in no column
    largest_rate  requests a second that the same deployment serves from an endless queue
    low, high     runs with all step times at an end of their range; None where not asked
    same          the expected run of their requests, where they are fewer; None: this one
    """

    deployment: Deployment
    policy: Policy
    memory: KvMemory
    run: Run
    slo: Slo
    replicas: int
    rejected: Mapping[str, int]
    largest_rate: float | None
    request_time: float
    wall_s: float
    low: Served | None = None
    high: Served | None = None
    same: Served | None = None

    @property
    def arrival(self) -> Array:
        """Arrivals [s]."""
        return self.run.arrival

    @property
    def first_token(self) -> Array:
        """First tokens [s]."""
        return self.run.first

    @property
    def finish(self) -> Array:
        """Last tokens [s]."""
        return self.run.finish

    @property
    def input(self) -> Array:
        """Prompt tokens."""
        return self.run.requests.input

    @property
    def output(self) -> Array:
        """Output tokens."""
        return self.run.requests.output

    @property
    def replica(self) -> Array:
        """Which replica (decode instance) served each."""
        return self.run.replica

    @property
    def offered_rate(self) -> float:
        """Requests a second that arrive; of a closed loop, that are answered."""
        if self.run.concurrency is not None:
            return metrics.rates(self.run, self.slo)["requests_per_s"] or 0.0
        return self.run.requests.rate

    @property
    def utilisation(self) -> float | None:
        """Offered rate over the largest rate: 1 is the limit. A busy share would be 1 long before.
        """
        if self.largest_rate is None or not math.isfinite(self.offered_rate):
            return None
        return self.offered_rate / self.largest_rate

    @property
    def judged(self) -> bool:
        """Whether there are enough requests over a time to speak of a rate and a steady state."""
        return metrics.has_rate(self.run)

    @property
    def stable(self) -> bool:
        """Whether it keeps up with the arrivals; of few requests nothing says that it doesn't."""
        return metrics.keeps_up(self.run, self.utilisation)

    def _set_ends(self, times: dict[str, Any]) -> None:
        """Low and high of every percentile: this run's, times what an end does to its requests."""
        same: dict[str, Any] = times if self.same is None else (
            metrics.latencies(self.same.run, self.request_time) if self.same.stable else {})
        for end, other, bound in (("low", self.low, min), ("high", self.high, max)):
            found = metrics.latencies(other.run, self.request_time) if (
                other is not None and other.stable) else {}
            for name, value in times.items():
                if value is None:
                    continue
                far, near = found.get(name), same.get(name)
                value[end] = None if far is None else {
                    k: bound(_moved(value[k], None if near is None else near[k], far[k]), value[k])
                    for k in far}

    def _throughput_range(self, expected: float | None) -> dict[str, float | None]:
        """Output tokens/s with every step at an end of its range, around the expected ones."""
        if expected is None or self.low is None or self.high is None:
            return {"low": None, "high": None}
        slow, fast, near = (
            expected if one is None else metrics.rates(one.run, self.slo)["output_tokens_per_s"]
            for one in (self.high, self.low, self.same))
        found = [expected, *(_moved(expected, near, x) for x in (slow, fast) if x is not None)]
        return {"low": min(found), "high": max(found)}

    def summary(self) -> dict[str, Any]:
        """Every figure, SI units; percentiles are None where the queue has no steady state."""
        stable, run = self.stable, self.run
        times: dict[str, Any] = dict(metrics.latencies(run, self.request_time))
        if not stable:
            times = dict.fromkeys(times)
        rates = metrics.rates(run, self.slo)
        if stable and self.low is not None:
            self._set_ends(times)
        prompts = sum(r.prompt_tokens for r in (*run.replicas, *run.prefill_replicas))
        hits = sum(r.hit_tokens for r in (*run.replicas, *run.prefill_replicas))
        return {
            "requests": int(metrics.inside(run).sum()),
            "served": len(run.arrival),
            "rejected": dict(self.rejected),
            "dropped": dict(run.requests.dropped),
            "wall_s": self.wall_s,
            **times,
            **rates,
            "output_tokens_per_s_range": self._throughput_range(
                rates["output_tokens_per_s"]),
            "slo_attainment": metrics.attainment(run, self.slo),
            "offered_requests_per_s": self.offered_rate,
            "largest_requests_per_s": self.largest_rate,
            "utilisation": self.utilisation,
            "stable": stable,
            "judged": self.judged,
            "queue_growth": metrics.queue_growth(run)[0],
            "preemptions": sum(r.preemptions for r in (*run.replicas, *run.prefill_replicas)),
            "prefix_hit_rate": hits / prompts if prompts else 0.0,
            "busy": metrics.busy_shares(run),
            "occupancy": metrics.occupancy(run),
            "kv_tokens": self.memory.tokens,
            "itl_resolution": RESOLUTION,
            "cut": CUT if np.isfinite(run.window[0]) else 0.0,
            "basis": "expected step times; low and high: the same requests with every step at the "
                     "low and the high end of its range",
        }


def fitting(requests: Requests, d: Deployment, memory: KvMemory
            ) -> tuple[Requests, dict[str, int]]:
    """Requests that a replica can hold, and how many it can't, by reason."""
    requests, rejected = within_positions(requests, d.model)
    full = -(-(requests.input + requests.output - 1) // memory.block) > memory.blocks
    if not full.any():
        return requests, rejected
    words = f"beyond the {memory.tokens:,} tokens of the KV memory"
    if full.all():
        raise InputError(f"requests: none can be served; all are {words}")
    return requests.take(np.flatnonzero(~full)), rejected | {words: int(full.sum())}


def memory_for(requests: Requests, d: Deployment, policy: Policy) -> KvMemory:
    """KV memory at the mean lengths of the requests that it can hold.

    A few that no memory holds would draw the mean to where not even one request fits.
    """
    memory = kv_memory(d, policy, float(requests.input.mean()), float(requests.output.mean()))
    if memory is not None:
        return memory
    least = int(np.argmin(requests.input + requests.output))
    shortest = float(requests.input[least]), float(requests.output[least])
    memory = kv_memory(d, policy, *shortest)
    if memory is None:
        raise DoesNotFit(f"{d.model.name} on {d.devices} x {d.hardware.name} leaves no memory for "
                         f"a request of {shortest[0]:,.0f} + {shortest[1]:,.0f} tokens")
    kept, _ = fitting(requests, d, memory)
    found = kv_memory(d, policy, float(kept.input.mean()), float(kept.output.mean()))
    return memory if found is None else found


def backlog(requests: Requests, places: float) -> Requests:
    """The same lengths as an endless queue: all at once, several waves of a full batch, mixed.

    So that any part of it stands for the whole: requests of every length alike, in an order drawn
    once; those with prefix blocks in stretches of neighbours, who share them, from everywhere.
    """
    total = requests.input + requests.output
    least = LEAST_BACKLOG if np.ptp(total) == 0 else LEAST_MIXED
    n, have = int(min(max(WAVES * places, least), MOST_BACKLOG)), len(requests)
    rng, waiting = np.random.default_rng(0), replace(requests, arrival=np.zeros(have))
    if requests.blocks is None:
        index = np.argsort(total, kind="stable")[((np.arange(n) + 0.5) / n * have).astype(np.int64)]
        return waiting.take(rng.permutation(index))
    copies = -(-n // have)
    if copies > 1:
        # Copies share nothing with each other: the trace says nothing of later hits.
        _, ids = np.unique(requests.blocks, return_inverse=True)
        again = waiting.take(np.arange(copies * have) % have)
        assert again.blocks is not None
        return replace(again, blocks=np.tile(ids.astype(np.int64), copies)
                       + np.repeat(np.arange(copies) * len(ids), len(ids)))
    starts = np.linspace(0, have, max(have // STRETCH, 1) + 1).astype(np.int64)
    count = min(-(-max(n, MOST_SHARING) // STRETCH), len(starts) - 1)
    chosen = ((np.arange(count) + 0.5) / count * (len(starts) - 1)).astype(np.int64)
    # Multiples of the golden ratio are spread evenly, as many as one takes.
    order = chosen[np.argsort(np.arange(count) * GOLDEN % 1.0)]
    return waiting.take(np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order]))


def largest_rate(setup: Setup, requests: Requests, replicas: int = 1,
                 prefill: PrefillPool | None = None) -> float:
    """Requests a second from an endless queue, in the middle of a run that starts with all of them.

    The same scheduler and memory, so that it holds for any mix of lengths. A replica alone, times
    the number of them.
    """
    mean = float(np.mean(requests.input + requests.output))
    places = min(float(setup.policy.max_sequences), setup.memory.tokens / mean)
    count = 1 if prefill is None else replicas
    run = serve(setup, backlog(requests, places * count), count, prefill=prefill)
    ends = np.sort(run.finish)
    first, last = int(0.2 * len(ends)), int(0.8 * len(ends)) - 1
    if last <= first or ends[last] <= ends[first]:
        return len(ends) / float(ends[-1])
    rate = (last - first) / float(ends[last] - ends[first])
    return rate * (replicas if prefill is None else 1)


def _one_replica(d: Deployment) -> tuple[Deployment, int]:
    """Data-parallel replicas that share nothing are replicas of the simulation."""
    p = d.parallelism
    if p.dp == 1 or p.ep > 1:
        return d, 1
    return d.replace(parallelism=Parallelism(tp=p.tp, pp=p.pp, cp=p.cp)), p.dp


def _setup(d: Deployment, policy: Policy, requests: Requests, end: End) -> Setup:
    memory = memory_for(requests, d, policy)
    swap = 0.0
    if policy.preemption == "swap":
        if d.hardware.host_bandwidth is None:
            raise InputError(f"preemption swap: hardware '{d.hardware.name}' has no host link; add "
                             "for example 'host_bandwidth: 64 GB/s'")
        swap = memory.token_bytes / float(d.hardware.host_bandwidth)
    longest = float(np.max(requests.input + requests.output))
    return Setup(StepSurface(d, longest, end), policy, memory, float(d.engine.request_time), swap)


def simulate(deployment: Deployment, requests: Requests, policy: Policy | None = None,
             replicas: int = 1, routing: str = "round-robin", concurrency: int | None = None,
             slo: Slo | None = None, pool: DecodePool | None = None, ranges: bool = True,
             end: End = "expected") -> Served:
    """Serve requests on `replicas` of a deployment.

    concurrency  closed loop: so many users in all, each with the next request when answered;
                 arrivals then don't count
    pool         prompts are computed on a prefill pool; `replicas` are decode instances
    ranges       also at the low and high end of the step times
    """
    if replicas < 1 or (concurrency is not None and concurrency < 1):
        raise InputError("replicas and concurrency must be at least 1")
    began = time.perf_counter()
    d, times = _one_replica(deployment)
    policy = Policy.of(d) if policy is None else policy
    replicas *= times
    slo = Slo() if slo is None else slo
    requests, beyond = within_positions(requests, d.model)
    setup = _setup(d, policy, requests, end)
    requests, full = fitting(requests, d, setup.memory)
    prefill = None if pool is None else _prefill_pool(pool, d, requests, end)
    run = serve(setup, requests, replicas, routing, concurrency, prefill)
    # What this run served is served, whatever an endless queue of a sample of it says.
    most = max(largest_rate(setup, requests, replicas, prefill),
               metrics.rates(run, slo)["requests_per_s"] or 0.0)
    served = Served(deployment, policy, setup.memory, run, slo, replicas, beyond | full, most,
                    setup.request_time, time.perf_counter() - began)
    if not ranges:
        return served
    few = requests.take(np.arange(min(len(requests), RANGE_REQUESTS)))
    low, high = (simulate(deployment, few, policy, replicas // times, routing, concurrency, slo,
                          pool, False, e) for e in ENDS[1:])
    same = None if len(few) == len(requests) else simulate(
        deployment, few, policy, replicas // times, routing, concurrency, slo, pool, False)
    return replace(served, low=low, high=high, same=same, wall_s=time.perf_counter() - began)


def _prefill_pool(pool: DecodePool, d: Deployment, requests: Requests, end: End) -> PrefillPool:
    p, times = _one_replica(pool.prefill)
    policy = Policy.of(p, scheduler="prefill-first") if pool.policy is None else pool.policy
    link = KvLink(lambda tokens: kv_transfer_bytes(p, tokens), pool.link.bandwidth,
                  pool.link.latency, pool.link.outgoing, pool.link.incoming,
                  float(p.model.layer_count))
    return PrefillPool(_setup(p, policy, requests, end), pool.replicas * times, link)


__all__ = ["DecodePool", "DoesNotFit", "Served", "Slo", "backlog", "fitting", "largest_rate",
           "memory_for", "simulate"]
