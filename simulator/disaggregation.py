"""Prefill and decode on instances of their own, against both on all of them.

A request is prefilled on one instance of the prefill pool, its KV cache crosses a link to one of
the decode pool while the prefill still runs, and decode never waits for a prefill. Aggregated
instances do both, and a decode step there is stretched by the share of time that prefill takes.
All times are expected ones of the same estimates; queues are M/D/1 (`queueing`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from simulator import queueing
from simulator.allocation import fixed_state_bytes, ideal_bytes
from simulator.arrays import Array
from simulator.deployment import Deployment, Parallelism, Workload
from simulator.errors import InputError
from simulator.memory import memory
from simulator.request import estimate
from simulator.specs.hardware import Hardware

# Sequences of a decode instance where none are given: what engines often run at.
USUAL_BATCH = 64
DISAGGREGATED, AGGREGATED = "disaggregated", "aggregated"


def pool_ratio(prefill: Array, steps: Array, step: Array, batch: Array) -> Array:
    """n_p / n_d = T_prefill / (G tau / b): prefill instances that feed one decode instance."""
    return prefill / (steps * step / batch)


def transfer_time(kv_bytes: Array, link: Array, latency: Array) -> Array:
    """Time of a KV cache [bytes] over a link [bytes/s], nothing hidden."""
    return latency + kv_bytes / link


def exposed_transfer(transfer: Array, prefill: Array, layers: Array, latency: Array) -> Array:
    """What of a transfer [s] the prefill doesn't hide: max(X / L, X - T (L - 1) / L) + latency.

    A layer's cache leaves as soon as the layer is done, so that of the last layer never hides.
    """
    return np.maximum(transfer / layers, transfer - prefill * (layers - 1.0) / layers) + latency


def kv_transfer_bytes(d: Deployment, tokens: Array) -> Array:
    """KV cache and fixed state of one request [bytes], each value once."""
    whole = d.replace(parallelism=Parallelism())
    return ideal_bytes(whole, tokens) + fixed_state_bytes(whole)


@dataclass(frozen=True)
class Link:
    """What joins the pools: bandwidth of a whole instance [bytes/s] and latency [s].

    bandwidth            of one transfer, the slower of the two ends
    outgoing, incoming   of a prefill and of a decode instance
    """

    bandwidth: float
    latency: float
    name: str
    outgoing: float = math.inf
    incoming: float = math.inf


def pool_link(p: Deployment, d: Deployment, kind: str = "scale-out",
              bandwidth: float | None = None) -> Link:
    """The link between two instances: every device sends its share over its own.

    kind       `scale-out` (each device's network card) or `link` (NVLink inside one domain)
    bandwidth  [bytes/s] of one device, in place of the spec's
    """
    def rate(h: Hardware) -> float:
        found = h.scale_out_bandwidth if kind == "scale-out" else h.link_bandwidth
        if bandwidth is not None:
            return bandwidth
        if found is None:
            key = "scale_out_bandwidth" if kind == "scale-out" else "link_bandwidth"
            raise InputError(f"hardware '{h.name}': has no {kind} to send the KV cache over; add "
                             f"for example '{key}: 50 GB/s' or give --link-bandwidth")
        return found

    inside = kind == "link"
    if inside and (p.hardware.link_domain or math.inf) < p.devices + d.devices:
        raise InputError(f"--over link: {p.devices + d.devices} devices of a pair, the link of "
                         f"'{p.hardware.name}' joins {p.hardware.link_domain:g}")
    latency = (p.hardware.link_latency if inside else p.hardware.scale_out_latency) or 0.0
    names = (p.hardware.link if inside else p.hardware.scale_out) or kind
    out, into = p.devices * rate(p.hardware), d.devices * rate(d.hardware)
    return Link(min(out, into), latency, names if bandwidth is None else f"{kind} as given",
                out, into)


@dataclass(frozen=True)
class Served:
    """How a system serves a rate of requests: expected times [s]; infinite where it can't."""

    rate: float
    batch: float
    ttft: float
    tpot: float
    e2e: float

    @property
    def stable(self) -> bool:
        """Whether it keeps up."""
        return math.isfinite(self.e2e)


@dataclass(frozen=True)
class Instance:
    """Times of one instance at a prompt length: a prefill, and decode steps by batch.

    prefill    time of a pass with one prompt in each of its data-parallel `replicas`
    """

    prefill: float
    batches: np.ndarray
    steps: np.ndarray
    output: float
    replicas: int = 1

    @property
    def service(self) -> float:
        """Time that a request keeps the instance busy: a pass serves one on every replica."""
        return self.prefill / self.replicas

    @property
    def most(self) -> float:
        """Largest batch that fits."""
        return float(self.batches[-1])

    def step(self, batch: float) -> float:
        """Decode step at a batch; below one sequence as with one."""
        return float(np.interp(batch, self.batches, self.steps))

    def resident(self, rate: float, load: float = 0.0) -> float:
        """Sequences b = lambda G tau(b) / (1 - rho) at a rate; infinite where more than fit.

        The demand rises slower than b once it is below it, so the first crossing is bisected.
        """
        steps = self.output - 1.0
        if load >= 1.0:
            return math.inf

        def excess(b: float) -> float:
            return rate * steps * self.step(b) / (1.0 - load) - b

        if excess(self.most) > 0:
            return math.inf
        low, high = 0.0, self.most
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return high

    def widest(self, step: float) -> float:
        """Largest batch whose step takes at most `step`; 0 where even one sequence is slower."""
        if self.steps[0] > step:
            return 0.0
        fast = np.maximum.accumulate(self.steps)
        return float(np.interp(step, fast, self.batches)) if step < fast[-1] else self.most


def instance(d: Deployment, w: Workload) -> Instance:
    """Times of one instance with prompts and outputs of a workload; `batch` isn't used."""
    room = float(memory(d, 1.0, w.input, w.output).max_batch)
    if room < 1:
        raise InputError(f"{d.model.name} with {w.input:,.0f} + {w.output:,.0f} tokens does not "
                         f"fit on an instance of {d.devices} x {d.hardware.name}")
    most = min(room, 4096.0)
    batches = np.unique(np.floor(np.geomspace(1.0, most, 24)))
    steps = estimate(d, Workload(batches, w.input, w.output)).tpot.expected
    replicas = d.parallelism.dp
    first = estimate(d, Workload(replicas, w.input, w.output))
    return Instance(float(first.ttft.expected), batches, np.asarray(steps), float(w.output),
                    replicas)


@dataclass(frozen=True)
class Pools:
    """Both systems on the same devices.

    p, d         times of a prefill, a decode and (on decode hardware) an aggregated instance
    n_p, n_d, n  instances of each; n as many as the same number of devices makes
    transfer, exposed   of one request's KV cache [s], of `kv_bytes`
    batch        decode sequences of an instance that the pools are matched for
    ratio        n_p / n_d that wastes nothing
    outgoing, incoming   link [bytes/s] of a prefill and of a decode instance
    """

    p: Instance
    d: Instance
    n_p: int
    n_d: int
    n: float
    transfer: float
    exposed: float
    batch: float
    ratio: float = math.nan
    kv_bytes: float = 0.0
    outgoing: float = math.inf
    incoming: float = math.inf

    @property
    def link_rate(self) -> float:
        """Requests a second whose KV caches the links of the scarcer pool carry."""
        room = min(self.n_p * self.outgoing, self.n_d * self.incoming)
        return room / self.kv_bytes if self.kv_bytes else math.inf

    def link_wait(self, rate: float) -> float:
        """Wait of a KV cache for the busier of the links that it leaves by and arrives on."""
        return max(float(queueing.md1_wait(rate / n, self.kv_bytes / link)) for n, link in (
            (self.n_p, self.outgoing), (self.n_d, self.incoming)))

    def rate(self, batch: float | None = None) -> float:
        """Requests a second of the disaggregated system, decode at `batch`."""
        b = self.batch if batch is None else batch
        decode = self.n_d * b / ((self.d.output - 1.0) * self.d.step(b)) if b else 0.0
        return min(self.n_p / self.p.service, decode, self.link_rate)

    @property
    def default_rate(self) -> float:
        """A busy rate that leaves room for the queue: 80 % of the most."""
        return 0.8 * self.rate()

    def goodput(self, tpot: float) -> float:
        """The most requests a second with a TPOT of at most `tpot`, disaggregated."""
        return self.rate(self.d.widest(tpot))

    def aggregated_goodput(self, tpot: float) -> float:
        """The same aggregated: largest rate whose stretched step stays below `tpot`."""
        low, high = 0.0, 1.0 / self.d.service
        for _ in range(60):
            middle = (low + high) / 2.0
            found = self._aggregated(middle).tpot
            fine = math.isfinite(found) and found <= tpot
            low, high = (middle, high) if fine else (low, middle)
        return low * self.n

    def disaggregated(self, rate: float) -> Served:
        """The system with pools at a rate of requests."""
        batch = self.d.resident(rate / self.n_d)
        wait = float(queueing.md1_wait(rate / self.n_p, self.p.service))
        ttft = wait + self.p.prefill + self.link_wait(rate) + self.exposed
        tpot = self.d.step(batch) if math.isfinite(batch) else math.inf
        return Served(rate, batch, ttft, tpot, ttft + (self.d.output - 1.0) * tpot)

    def aggregated(self, rate: float) -> Served:
        """The same devices without pools: each instance prefills and decodes."""
        each = self._aggregated(rate / self.n)
        return Served(rate, each.batch, each.ttft, each.tpot, each.e2e)

    def _aggregated(self, rate: float) -> Served:
        load = rate * self.d.service
        batch = self.d.resident(rate, load)
        if not math.isfinite(batch):
            return Served(rate, math.inf, math.inf, math.inf, math.inf)
        step = self.d.step(batch)
        # A prompt that arrives waits for the step that runs: half of one on average.
        wait = float(queueing.md1_wait(rate, self.d.service)) + min(batch, 1.0) * step / 2.0
        ttft = wait + self.d.prefill
        tpot = float(queueing.interfered(step, load))
        return Served(rate, batch, ttft, tpot, ttft + (self.d.output - 1.0) * tpot)


def whole_pools(ratio: float, most: int = 16) -> tuple[int, int]:
    """Smallest whole (n_p, n_d), at most `most` of each, that waste at most a tenth of a pool.

    Where none does, the best ratio that so many instances allow.
    """
    for total in range(2, 2 * most + 1):
        for n_d in range(max(1, total - most), min(most, total - 1) + 1):
            n_p = total - n_d
            if max(n_p / n_d, ratio) <= 1.1 * min(n_p / n_d, ratio):
                return n_p, n_d
    close = Fraction(min(max(ratio, 1.0 / most), float(most))).limit_denominator(most)
    return max(close.numerator, 1), max(close.denominator, 1)


def pools(p: Deployment, d: Deployment, w: Workload, link: Link,
          counts: tuple[int | None, int | None] = (None, None), batch: float | None = None,
          tpot: float | None = None) -> Pools:
    """Pools of two deployments, each one instance; numbers of instances by rate matching.

    batch   decode sequences of an instance; None: the most within `tpot`, or `USUAL_BATCH`
    """
    if w.output < 2:
        raise InputError("output: disaggregation needs at least 2 tokens, the rest are decoded")
    one, two = instance(p, w), instance(d, w)
    if batch is None:
        batch = min(two.most, USUAL_BATCH) if tpot is None else math.floor(two.widest(tpot))
        if batch < 1:
            raise InputError(f"tpot: one sequence takes {two.steps[0] * 1e3:.3g} ms a token")
    if batch > two.most:
        raise InputError(f"batch: {batch:,.0f} sequences, a decode instance holds {two.most:,.0f}")
    kv = float(kv_transfer_bytes(p, w.input))
    # An instance serves no faster than its link carries caches.
    decode = max((w.output - 1.0) * two.step(batch) / batch, kv / link.incoming)
    ratio = max(one.service, kv / link.outgoing) / decode
    n_p, n_d = _counts(ratio, counts)
    bare = kv / link.bandwidth
    exposed = float(exposed_transfer(bare, one.prefill, float(p.model.layer_count), link.latency))
    n = (n_p * p.devices + n_d * d.devices) / d.devices
    return Pools(one, two, n_p, n_d, n, bare + link.latency, exposed, batch, ratio, kv,
                 link.outgoing, link.incoming)


def _counts(ratio: float, given: tuple[int | None, int | None]) -> tuple[int, int]:
    n_p, n_d = given
    if n_p is None and n_d is None:
        return whole_pools(ratio)
    if n_p is None:
        assert n_d is not None
        return max(1, round(ratio * n_d)), n_d
    return n_p, max(1, round(n_p / ratio)) if n_d is None else n_d


@dataclass(frozen=True)
class Crossing:
    """Which system is better along `name`, from `low` to `high`.

    first   the better one at `low`
    turns   (value, the better one above it), rising
    """

    name: str
    low: float
    high: float
    first: str
    turns: tuple[tuple[float, str], ...]

    def spans(self, winner: str) -> list[tuple[float, float]]:
        """Where `winner` is the better one."""
        starts = [(self.low, self.first), *self.turns]
        ends = [*(value for value, _ in self.turns), self.high]
        return [(start, end) for (start, who), end in zip(starts, ends, strict=True)
                if who == winner]


def rate_crossing(s: Pools) -> Crossing:
    """Which system ends requests earlier, by rate, up to the larger of the two limits."""
    top = max(s.rate(s.d.most), s.aggregated_goodput(math.inf))
    rates = [float(r) for r in np.geomspace(top * 1e-3, top * 0.999, 60)]
    return crossing("rate_per_s", rates, [
        s.disaggregated(r).e2e < s.aggregated(r).e2e for r in rates])


@dataclass(frozen=True)
class Row:
    """The most requests a second within a TPOT at a prompt length, with and without pools."""

    input: float
    n_p: int
    n_d: int
    disaggregated: float
    aggregated: float


def input_crossing(p: Deployment, d: Deployment, w: Workload, s: Pools,
                   tpot: float) -> tuple[Crossing, list[Row]]:
    """Which system serves more within `tpot`, by prompt length, and the rows it was read from.

    The total of devices stays; at each length the best way to divide the instances is taken.
    """
    longest = float(memory(d, 1.0, w.input, w.output).max_context) - float(w.output)
    devices, rows = s.n_p * p.devices + s.n_d * d.devices, []
    for length in (float(2**k) for k in range(5, 21) if 2**k <= longest):
        at = Workload(1, length, w.output)
        one, two, kv = instance(p, at), instance(d, at), float(kv_transfer_bytes(p, length))
        tries = [Pools(one, two, i, n_d, devices / d.devices, 0.0, 0.0, 1.0, math.nan, kv,
                       s.outgoing, s.incoming)
                 for i in range(1, int((devices - d.devices) // p.devices) + 1)
                 if (n_d := int((devices - i * p.devices) // d.devices)) > 0]
        if tries:
            best = max(tries, key=lambda x: x.goodput(tpot))
            rows.append(Row(length, best.n_p, best.n_d, best.goodput(tpot),
                            best.aggregated_goodput(tpot)))
    served = [r for r in rows if r.disaggregated or r.aggregated]
    return crossing("input", [r.input for r in served],
                    [r.disaggregated > r.aggregated for r in served]), rows


def crossing(name: str, values: list[float], better: list[bool]) -> Crossing:
    """Every change of `better` (pools are) along rising values, between its neighbours."""
    if not values:
        return Crossing(name, math.nan, math.nan, AGGREGATED, ())
    turns = tuple((math.sqrt(values[i - 1] * values[i]), DISAGGREGATED if better[i] else AGGREGATED)
                  for i in range(1, len(better)) if better[i] != better[i - 1])
    return Crossing(name, values[0], values[-1], DISAGGREGATED if better[0] else AGGREGATED, turns)


def hiding_bandwidth(kv_bytes: Array, prefill: Array) -> Array:
    """Link [bytes/s] at which all but the last layer's cache hides behind the prefill: KV / T."""
    return kv_bytes / prefill


__all__ = ["Crossing", "Instance", "Link", "Pools", "Row", "Served", "crossing",
           "exposed_transfer", "hiding_bandwidth", "input_crossing", "instance",
           "kv_transfer_bytes", "pool_link", "pool_ratio", "pools", "rate_crossing",
           "transfer_time", "whole_pools"]
