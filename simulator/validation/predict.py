"""Predictions of cases: one estimate for all rows of a setup, then the figure that was measured.

`terms_of` evaluates the step model; `figures` turns its times into the metric of each row. The fit
of constants uses the same `figures` on the same times, so that what is fitted is what is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment, Workload
from simulator.memory import memory
from simulator.request import estimate
from simulator.serving import closed_loop
from simulator.specs.engine import Engine
from simulator.validation.cases import Case, Setup
from simulator.validation.sizes import size_of

# Prompts that share a pass where an engine states no budget of tokens.
BUDGET = 8192.0


@dataclass
class Terms:
    """Times [s] of the parts of each row; arrays of one value a row.

    step      mean decode step of the sequences in flight
    whole     prefill of all sequences in flight, at once
    one       prefill of one prompt alone
    shared    prefill of one prompt, as its share of a pass with others
    flight    sequences in flight; users: sequences asked for; replicas that share them
    balance   decode steps that ranks which attend apart wait for each other's requests, and that
              the server was told to hold requests back
    """

    step: Array
    whole: Array
    one: Array
    shared: Array
    flight: Array
    users: Array
    replicas: Array
    prompt: Array
    output: Array
    balance: Array


@dataclass
class Serving:
    """Constants of the engine under load; floats, or arrays of one value a row."""

    request_time: Array
    queue_steps: Array
    burst: Array
    interference: Array
    fill: Array
    waits: float = 1.0

    def in_rounds(self, rounds: Array) -> Serving:
        """With the burst of a benchmark of so many rounds; NaN: the engine's usual one."""
        return replace(self, burst=np.where(np.isnan(rounds), self.burst,
                                            closed_loop.burst_of(rounds)))

    @classmethod
    def of(cls, engine: Engine) -> Serving:
        """Those of an engine profile."""
        return cls(engine.request_time, engine.queue_steps, engine.burst, engine.interference,
                   engine.fill)


# What nothing under load beats: prefills hide behind steps, and nobody waits.
BOUND = Serving(0.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def batches(d: Deployment, users: Array, prompt: Array, output: Array) -> tuple[Array, Array]:
    """(sequences in flight, users): NaN users mean as many as fit."""
    held = output if d.engine.admits == "whole" else output / 2.0
    fits = memory(d, np.ones_like(prompt), prompt, held).max_batch
    if np.any(fits < 1.0):
        # Who serves it all the same gives the engine more of the memory than its default.
        tuned = d.replace(engine=d.engine.replace(memory_policy="all", context_bytes=0.0))
        fits = np.where(fits < 1.0, memory(tuned, np.ones_like(prompt), prompt, held).max_batch,
                        fits)
    fits = np.maximum(fits, 1.0)
    limit = np.broadcast_to(fits if d.engine.max_sequences is None else
                            np.minimum(fits, d.engine.max_sequences * d.parallelism.dp),
                            prompt.shape)
    users = np.where(np.isnan(users), limit, users)
    return closed_loop.in_flight(users, limit), users


def workloads(d: Deployment, flight: Array, prompt: Array) -> tuple[Array, Array]:
    """(batches, prompts in a shared pass): in flight, one alone, and a pass of several."""
    budget = float(d.batched_tokens or BUDGET) * d.parallelism.dp
    side = closed_loop.shared_prefills(prompt, budget, flight)
    return np.concatenate([flight, np.ones_like(flight), side]), side


def setup_arrays(cases: Sequence[Case]) -> tuple[Array, Array, Array]:
    """Users (NaN: as many as fit), prompt and output lengths of cases of one setup."""
    users = np.array([np.nan if c.batch is None else c.batch for c in cases])
    return users, np.array([c.input for c in cases]), np.array([c.output for c in cases])


def rounds_of(cases: Sequence[Case]) -> Array:
    """Requests that each user sends; NaN where the benchmark isn't known."""
    return np.array([np.nan if c.rounds is None else c.rounds for c in cases])


def balance_steps(d: Deployment, cases: Sequence[Case]) -> Array:
    """Decode steps that requests wait until all ranks that share experts have one, and those that
    the server was told to wait.
    """
    p = d.parallelism
    ranks = d.engine.balance_steps if p.dp > 1 and p.ep > 1 else 0.0
    return np.array([ranks + c.held for c in cases])


def terms_of(d: Deployment, cases: Sequence[Case]) -> tuple[Terms, Terms]:
    """(expected, ceiling) times of the cases of one setup."""
    users, prompt, output = setup_arrays(cases)
    flight, users = batches(d, users, prompt, output)
    batch, side = workloads(d, flight, prompt)
    e = estimate(d, Workload(batch, np.tile(prompt, 3), np.tile(output + (output <= 1), 3)))
    n = len(cases)

    def terms(first: Array, step: Array) -> Terms:
        first, step = (np.broadcast_to(np.asarray(x, float), (3 * n,)) for x in (first, step))
        return Terms(step[:n], first[:n], first[n:2 * n], first[2 * n:] / side, flight, users,
                     np.full(n, float(d.parallelism.dp)), prompt, output,
                     balance_steps(d, cases))

    return (terms(e.prefill.time.expected, e.decode.time.expected),
            terms(e.prefill.time.ceiling, e.decode.time.ceiling))


def figures(t: Terms, s: Serving, figure: Array, full: Array) -> Array:
    """The metric of each row, in its own unit: `figure` names it, `full` marks rows where the
    batch is what fits.
    """
    request = t.whole + (t.output - 1.0) * t.step
    waves = t.users / t.flight
    beside = np.maximum(t.flight / t.replicas, 1.0)
    tpot = closed_loop.time_per_output_token(t.step, t.one, beside, t.output, s.interference)
    ttft = (closed_loop.time_to_first_token(s.request_time, t.one, t.step, beside,
                                            s.queue_steps + s.waits * t.balance, s.burst)
            + s.waits * closed_loop.queue_wait(t.users, t.flight, t.one + t.output * tpot))
    offline = s.fill * closed_loop.saturated_request_rate(
        t.flight, t.output, t.shared, t.step, s.interference)
    if s is BOUND:
        offline = np.minimum(offline, 1.0 / t.shared)
    requests = np.where(full, offline, t.flight / request)
    served = t.users / (ttft + (t.output - 1.0) * tpot)
    if s is BOUND:
        served = np.minimum(served, 1.0 / t.shared)
    values = {
        "decode_tok_s_per_user": 1.0 / t.step, "decode_tok_s_total": t.flight / t.step,
        "tpot_ms": 1e3 * t.step, "tpot_served": 1e3 * tpot, "rate_served": 1.0 / tpot,
        "prefill_ms": 1e3 * t.whole * waves, "ttft_ms": 1e3 * (s.request_time + t.whole),
        "ttft_served": 1e3 * ttft, "ttft_alone": 1e3 * t.one,
        "prefill_tok_s": t.flight * t.prompt / t.whole,
        "throughput_out_tok_s": requests * t.output,
        "throughput_total_tok_s": requests * (t.prompt + t.output),
        "req_s": requests,
        "out_served": served * t.output, "total_served": served * (t.prompt + t.output),
        "requests_served": served, "rates_served": t.users / tpot,
    }
    found = np.full(len(figure), np.nan)
    for name, value in values.items():
        rows = figure == name
        if np.any(rows):
            found[rows] = np.broadcast_to(value, found.shape)[rows]
    return found


@dataclass
class Predictions:
    """Predicted figure of each case, at the expectation and at the ceiling."""

    expected: Array
    ceiling: Array


def by_setup(cases: Sequence[Case]) -> dict[Setup, list[int]]:
    """Places of the cases of each setup."""
    found: dict[Setup, list[int]] = defaultdict(list)
    for place, case in enumerate(cases):
        found[case.setup].append(place)
    return found


def predict(cases: Sequence[Case],
            change: Callable[[Deployment], Deployment] | None = None) -> Predictions:
    """Every case, setup by setup; `change` is made to each deployment."""
    expected, ceiling = np.full(len(cases), np.nan), np.full(len(cases), np.nan)
    for setup, places in by_setup(cases).items():
        d = setup.deployment() if change is None else change(setup.deployment())
        mine = [cases[i] for i in places]
        figure = np.array([c.figure for c in mine])
        sizes = [i for i, c in enumerate(mine) if c.phase == "memory"]
        full = np.array([c.phase == "max_throughput" for c in mine])
        best, floor = terms_of(d, mine)
        serving = Serving.of(d.engine).in_rounds(rounds_of(mine))
        values = figures(best, serving, figure, full)
        bounds = figures(floor, BOUND, figure, full)
        for i in sizes:
            c = mine[i]
            values[i] = bounds[i] = size_of(d, c.figure, c.batch or 1.0, c.input, c.output)
        expected[places], ceiling[places] = values, bounds
    return Predictions(expected, ceiling)


def joined(parts: Sequence[Any]) -> Any:
    """One dataclass of arrays from several, row after row."""
    return type(parts[0])(**{f.name: np.concatenate([np.atleast_1d(getattr(p, f.name))
                                                     for p in parts]) for f in fields(parts[0])})


__all__ = ["Predictions", "Serving", "Terms", "batches", "by_setup", "figures", "joined",
           "predict", "terms_of"]
