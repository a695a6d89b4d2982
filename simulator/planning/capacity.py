"""What one replica with continuous batching carries, in closed form, for many replicas at once.

A replica shares its time between prompts and decode steps. A prompt of s tokens costs M(s) beyond
the steps that it rides in. With a rate lambda, o output tokens a request and steps of tau(b):

    lambda o / (1 - lambda E[M]) = b / tau(b)                   Little's law: b sequences decode
    rho_q = lambda E[S],  S = M(s) + tau(b) s / C                prompts, at most C tokens a step
    P(W > t) = rho_q exp(-rho_q t / w),  w = (1 + f) lambda E[S^2] / (2 (1 - rho_q))

where f is the room that a prompt leaves in a step for others, which delay it as well. Engines
that compute prompts in passes of their own (prefill first) pay the fixed time F of a pass as well:
weights and host, shared by its k prompts, so that M(s) + F/k takes the place of M(s).

Tails are those of a wait that is exponential where it isn't zero, and of prompts that fall into a
request's life by a Gamma tail of the same mean and variance. Rates [1/s] are those of one replica.
Arrays have one element a replica; those of lengths or batches have a second axis.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.arrays import Array
from simulator.planning.load import Floats, Load

TAIL = 0.01            # the 99th percentile
_MIDDLES = (np.arange(4) + 0.5) / 4.0


def normal_tail(z: Array) -> Array:
    """P(Z > z) of a standard normal (Abramowitz and Stegun 7.1.26, error below 1.5e-7)."""
    x = np.abs(z) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (
        -1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-x * x)
    return np.where(np.asarray(z) >= 0.0, tail, 1.0 - tail)


def gamma_tail(x: Array, mean: Array, variance: Array) -> Array:
    """P(X > x) of a Gamma distribution by its cube root, which is nearly normal (Wilson-Hilferty).

    Without variance it is a step at the mean.
    """
    shape = np.square(mean) / np.maximum(variance, 1e-30 + 1e-12 * np.square(mean))
    ninth = 1.0 / (9.0 * np.maximum(shape, 1e-9))
    root = np.cbrt(np.maximum(x, 0.0) / np.maximum(mean, 1e-30))
    return np.where(np.asarray(x) < 0.0, 1.0, normal_tail((root - 1.0 + ninth) / np.sqrt(ninth)))


def busy_share(servers: Array, offered: Array, burstiness: Array) -> Array:
    """P(all places taken) of many servers (Halfin and Whitt 1981): 1/(1 + x Phi(x)/phi(x)) with
    x = (B - b)/sqrt(z b); 1 where b reaches B.
    """
    x = (servers - offered) / np.sqrt(np.maximum(burstiness * offered, 1e-12))
    density = np.exp(-np.square(np.minimum(x, 30.0)) / 2.0) / np.sqrt(2.0 * np.pi)
    found = 1.0 / (1.0 + x * (1.0 - normal_tail(x)) / np.maximum(density, 1e-300))
    return np.where(x <= 0.0, 1.0, found)


@dataclass(frozen=True)
class Replicas:
    """Replicas of n candidates: their step and prefill times [s] and limits.

    batches        batches of the step-time table, ascending, [g]
    steps          decode step of each batch at the mean context, [n, g]
    prefill        a prompt of each length alone, [n, k]
    marginal       what it adds to steps that run anyway, [n, k]
    passes         fixed time of a pass of prompts alone; 0 where prompts share steps
    again          prompts computed again for each one, where an endless queue overfills the memory
    tokens         tokens of each length that are computed (not in the prefix cache), [k]
    budget         tokens of a step at most
    places         sequences at once: the engine's setting, or what the KV memory holds
    room           sequences of mean context that the KV memory holds
    fixed          time of a request outside the steps
    load           lengths
    """

    batches: Floats
    steps: Floats
    prefill: Floats
    marginal: Floats
    passes: Floats
    again: Floats
    tokens: Floats
    budget: Floats
    places: Floats
    room: Floats
    fixed: Floats
    load: Load

    def take(self, index: NDArray[np.intp]) -> Replicas:
        """Some of the replicas."""
        shared = ("batches", "tokens", "load")
        return Replicas(**{f.name: v if f.name in shared else v[index] for f in fields(self)
                           if (v := getattr(self, f.name)) is not None})

    @cached_property
    def mean_marginal(self) -> Floats:
        """E[M] of a prompt."""
        found: Floats = self.marginal @ self.load.prompt_weights
        return found

    @cached_property
    def mixes(self) -> Floats:
        """1 where prompts share steps with decoding, 0 where they have passes of their own."""
        return np.where(self.passes > 0.0, 0.0, 1.0)

    def pass_share(self, rate: Array, tau: Array) -> Floats:
        """F/k, k = lambda T / n: fixed time of passes for each prompt.

        A step is followed by a pass if a prompt arrived meanwhile, a pass of D by another one:
        n = (1 - exp(-lambda tau)) / exp(-lambda D) passes a step, each T = (tau + n F)/(1 - lambda
        E[M]) apart.
        """
        if not self.passes.any():
            return 0.0 * self.passes
        M, first = self.mean_marginal, -np.expm1(-rate * tau)
        n = first
        for _ in range(4):
            T = (tau + n * self.passes) / np.maximum(1.0 - rate * M, 1e-9)
            k = np.maximum(rate * T / np.maximum(n, 1e-300), 1.0)
            n = first * np.exp(np.minimum(rate * (self.passes + k * M), 3.0))
        found: Floats = self.passes / k
        return found

    @cached_property
    def _rates(self) -> Floats:
        """b / tau(b): tokens a second, made to rise with the batch."""
        rates: Floats = np.maximum.accumulate(self.batches / self.steps, axis=1)
        return rates

    def step(self, b: Array) -> Floats:
        """tau(b), linear between the batches of the table."""
        x = np.clip(b, self.batches[0], self.batches[-1])
        j = np.clip(np.searchsorted(self.batches, x), 1, len(self.batches) - 1)
        rows, low, high = np.arange(len(x)), self.batches[j - 1], self.batches[j]
        u = (x - low) / (high - low)
        found: Floats = (1.0 - u) * self.steps[rows, j - 1] + u * self.steps[rows, j]
        return found

    def batch(self, tokens_per_s: Array) -> Floats:
        """The b whose steps yield so many tokens a second; below the table's first batch less
        than it, beyond the last more.
        """
        y = np.asarray(tokens_per_s, dtype=np.float64)
        j = np.clip((self._rates < y[:, None]).sum(axis=1), 1, len(self.batches) - 1)
        rows = np.arange(len(y))
        b0, b1 = self.batches[j - 1], self.batches[j]
        t0, t1 = self.steps[rows, j - 1], self.steps[rows, j]
        slope = (t1 - t0) / (b1 - b0)
        start = t0 - slope * b0
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = y * start / (1.0 - y * slope)
        found = np.where((y * slope < 1.0) & (inside >= 0.0), inside, np.inf)
        first = self._rates[:, 0]
        return np.where(y <= first, y / first * self.batches[0], found)

    @cached_property
    def saturation(self) -> Floats:
        """1 / (E[M] + o tau(B)/B): requests a second with every place taken (largest rate).

        Where prompts have passes of their own, B/o places are free after a step, and with 1 -
        exp(-B/o) a pass follows. What is preempted is computed again.
        """
        B = np.maximum(np.minimum(self.places, self.room), 1e-9)
        each = self.load.mean_output * self.step(B) / B
        freed = B / self.load.mean_output
        prompt = self.mean_marginal * (1.0 + self.again)
        whole = 1.0 / (prompt - self.passes * np.expm1(-freed) / freed + each)
        # The prompts must also fit into the tokens of the steps.
        tokens = float(self.tokens @ self.load.prompt_weights)
        budgeted = 1.0 / (prompt + (self.mixes * self.step(B) + self.passes)
                          * tokens / self.budget)
        return np.where(np.minimum(self.places, self.room) < 1.0, 0.0,
                        np.minimum(whole, budgeted))


@dataclass(frozen=True)
class State:
    """Replicas in a steady state at given rates; `stable` False: there is none.

    prefill_load   share of the time that prompts take; queue_load: how busy the prompts' queue is
    pass_share     what a prompt bears of the fixed time of passes [s]
    batch          sequences that decode, on average; step: tau of it [s]
    wait           mean wait of a prompt that waits [s]
    back           1 - b tau'/tau, by which a batch off its mean is pulled back; swing: its variance
                   over that of a Poisson number, as a fuller batch is slower and prompts shake it
    full           probability that every place is taken, slot_wait: mean wait for one then [s]
    """

    rate: Floats
    stable: NDArray[np.bool_]
    utilisation: Floats
    prefill_load: Floats
    pass_share: Floats
    queue_load: Floats
    batch: Floats
    step: Floats
    wait: Floats
    back: Floats
    swing: Floats
    full: Floats
    slot_wait: Floats


def steady(r: Replicas, rate: Array) -> State:
    """The steady state of each replica at its `rate`."""
    load, rate = r.load, np.asarray(rate, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        use = np.where(r.saturation > 0.0, rate / r.saturation, np.inf)
        inside = np.minimum(rate, 0.999 * r.saturation)
        extra, mixes = r.passes, r.mixes[:, None]
        for _ in range(3 if r.passes.any() else 1):
            share = np.minimum(inside * (r.mean_marginal + extra), 0.9999)
            b = r.batch(inside * load.mean_output / np.maximum(1.0 - share, 1e-9))
            b = np.minimum(b, r.places)
            tau = r.step(b)
            extra = r.pass_share(inside, tau)
        # A pass is shared by all that wait; its fixed time delays a prompt once.
        service = r.marginal + mixes * tau[:, None] * r.tokens / r.budget[:, None]
        queue = np.minimum(inside * (service @ load.prompt_weights), 0.9999)
        burst = (1.0 + load.burstiness) / 2.0
        # A step takes all prompts that fit, so that those behind delay the first token as well.
        shared = np.maximum(1.0 - r.tokens / r.budget[:, None], 0.0) @ load.prompt_weights
        square = np.square(service) @ load.prompt_weights
        back = np.maximum(1.0 - b * (r.step(b + 1.0) - tau) / tau, 0.05)
        heavy = np.square(r.marginal + extra[:, None]) @ load.prompt_weights
        swing = (1.0 + np.square(inside / np.maximum(1.0 - share, 1e-9)) * heavy / 2.0) / back
        wait = (1.0 + shared) * burst * inside * square / (2.0 * (1.0 - queue))
        places = np.minimum(r.places, r.room)
        # Sequences differ in length, so that the memory they take varies more than their number.
        spread = load.context_square / load.context**2
        full = busy_share(places, b, load.burstiness * swing
                          * np.where(r.room < r.places, spread, 1.0))
        life = load.mean_output * tau / np.maximum(1.0 - share, 1e-9)
        slot = life / np.maximum(places - b, 1e-9)
    return State(rate, use < 1.0, use, share, extra, queue, b, tau,
                 wait / np.maximum(queue, 1e-12), back, swing, full, slot)


def ttft_tail(r: Replicas, s: State, target: Array) -> Floats:
    """P(TTFT > target): wait for the running step, for prompts before it, for a place, and its own
    prompt.
    """
    tau = s.step[:, None, None]
    chunks = np.ceil(r.tokens / r.budget[:, None])
    own = (r.marginal + r.mixes[:, None] * chunks * s.step[:, None] + r.passes[:, None]
           + r.fixed[:, None])[:, :, None]
    left = np.asarray(target, dtype=np.float64).reshape(-1, 1, 1) - own - _MIDDLES * tau
    queue, wait = s.queue_load[:, None, None], np.maximum(s.wait, 1e-12)[:, None, None]
    full, slot = s.full[:, None, None], np.maximum(s.slot_wait, 1e-12)[:, None, None]
    late = np.maximum(left, 0.0)
    tail = np.minimum(queue * np.exp(-late / wait) + full * np.exp(-late / slot), 1.0)
    tail = np.where(left < 0.0, 1.0, tail).mean(axis=2) @ r.load.prompt_weights
    return np.where(s.stable, tail, 1.0)


def _batch_variance(r: Replicas, s: State, life: Floats) -> Floats:
    """Variance [s^2] of the step that a request sees on average over its life, [n, k].

    db = arrivals - b (1 - rho)/(o tau(b)) dt is pulled back by 1 - e of its rate, e = b tau'/tau,
    for a fuller batch is slower; and it is shaken by prompts as well as by arrivals and departures:
    Var(b) = b z (1 + (lambda/(1 - rho))^2 E[M^2] / 2) / (1 - e).
    """
    slope = r.step(s.batch + 1.0) - s.step
    free = np.maximum(1.0 - s.prefill_load, 1e-9)
    mean_life = np.maximum(r.load.mean_output - 1.0, 1.0) * s.step / free
    ratio = life * (s.back / mean_life)[:, None]
    averaged = 2.0 * (np.expm1(-ratio) + ratio) / ratio**2
    found: Floats = (np.square(slope) * s.batch * r.load.burstiness * s.swing)[:, None] * averaged
    return found


def tpot_tail(r: Replicas, s: State, target: Array) -> Floats:
    """P(TPOT > target): steps of a batch that varies, and prompts that stall them.

    Prompts arrive during the answer, and more while it waits for those: a delay cycle, whose
    variance is lambda E[M^2] / (1 - rho)^3 a second of decoding. Those that waited behind its own
    prompt come first. No step carries more of them than its budget of tokens.
    """
    load = r.load
    steps = np.maximum(load.outputs - 1.0, 1.0)
    free = np.maximum(1.0 - s.prefill_load, 1e-9)[:, None]
    each = r.marginal + s.pass_share[:, None]
    square = (np.square(each) @ load.prompt_weights)[:, None]
    mean_each = (r.mean_marginal + s.pass_share)[:, None]
    tau = s.step[:, None]
    life = steps * tau / free
    prompts = s.rate[:, None] * life
    service = (r.marginal + r.mixes[:, None] * tau * r.tokens / r.budget[:, None])
    behind = s.wait[:, None] * mean_each / free / np.maximum(
        service @ load.prompt_weights, 1e-300)[:, None]
    busy = s.queue_load[:, None]
    stall = (prompts * mean_each + busy * behind) / steps
    stall_variance = (prompts * square * load.burstiness / free**2
                      + busy * (2.0 - busy) * behind**2) / steps**2
    batch_variance = _batch_variance(r, s, life)
    base = np.minimum(r.steps[:, :1], tau)
    varying = np.maximum(tau - base, 0.0) + stall
    variance = stall_variance + batch_variance
    some = -np.expm1(-(prompts + s.batch[:, None]))   # what nothing disturbs has the base step
    mean = varying / np.maximum(some, 1e-300)
    spread = np.maximum((variance + varying**2) / np.maximum(some, 1e-300) - mean**2, 0.0)
    goal = np.asarray(target, dtype=np.float64).reshape(-1, 1) - base
    tail = np.where(goal < 0.0, 1.0, some * gamma_tail(goal, mean, spread))
    chunk = np.where(r.passes > 0.0, np.inf, (r.marginal / r.tokens).max(axis=1) * r.budget)
    most = tau - base + chunk[:, None] + 4.0 * np.sqrt(batch_variance)
    tail = np.where(goal > most, 0.0, tail)
    decoding: Floats = np.where(load.outputs > 1.5, load.output_weights, 0.0)
    total = decoding.sum()
    late: Floats = tail @ decoding / total if total > 0.0 else 0.0 * s.rate
    found: Floats = np.where(s.stable, late, 1.0)
    return found


def percentile(tail: Array, low: Array, high: Array, share: float = TAIL) -> Floats:
    """Where a falling `tail(t)` crosses `share`, by bisection between two times, for all rows."""
    low, high = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
    for _ in range(40):
        middle = np.sqrt(low * high)
        above = tail(middle) > share
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found: Floats = high
    return found


def percentiles(r: Replicas, s: State, share: float = TAIL) -> tuple[Floats, Floats]:
    """(TTFT, TPOT) [s] that a share of requests exceeds; NaN where there is no steady state."""
    n = len(s.rate)
    found = [percentile(lambda t, f=f: f(r, s, t), np.full(n, 1e-6), np.full(n, 1e5), share)
             for f in (ttft_tail, tpot_tail)]
    return (np.where(s.stable, found[0], np.nan), np.where(s.stable, found[1], np.nan))


def largest_rate(r: Replicas, ttft: float | None, tpot: float | None,
                 utilisation: float = 1.0) -> Floats:
    """Highest rate [1/s] of each replica at which both 99th percentiles hold, by bisection.

    0 where not even a lone request holds them.
    """
    top = r.saturation * min(utilisation, 0.999)

    def holds(rate: Floats) -> NDArray[np.bool_]:
        s = steady(r, rate)
        good = s.stable.copy()
        if ttft is not None:
            good &= ttft_tail(r, s, np.full(len(rate), ttft)) <= TAIL
        if tpot is not None:
            good &= tpot_tail(r, s, np.full(len(rate), tpot)) <= TAIL
        return good

    low, high = np.zeros(len(top)), top.copy()
    reached = holds(top)
    for _ in range(18):
        middle = (low + high) / 2.0
        good = holds(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    alone = holds(1e-6 * top)
    return np.where(reached, top, np.where(alone, low, 0.0))
