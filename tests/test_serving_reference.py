"""The simulator against the slow one, token by token: every first token and every end to 1e-9."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from serving_reference import Sequence, SlowEngine

from simulator.serving.policy import KvMemory, Policy
from simulator.serving.requests import Requests, requests_of
from simulator.serving.run import Run, Setup, prefix_unit, serve
from simulator.serving.surface import Row


class ToySurface:
    """Step times of no model: two lines a batch, and prompts that cost more than their tokens."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.fixed, self.each, self.token, self.prompt, self.pair = (
            float(v) for v in rng.uniform(0.5, 1.5, 5) * (0.01, 1e-3, 1e-5, 1e-3, 1e-6))

    def row(self, B: int) -> Row:
        a, b = self.fixed + self.each * B, self.token
        turn = 60.0 * B
        return Row([turn], [a, a + 0.4 * b * turn], [b, 0.6 * b], [0.0, 0.4 * b * turn],
                   [b, 0.6 * b])

    def mixed(self, B: int, X: float, prompts: list[tuple[int, int]]) -> float:
        work = sum(self.prompt * n + self.pair * n * (c + n / 2.0) for n, c in prompts)
        return self.fixed + self.each * (B + len(prompts)) + 0.9 * self.token * X + work


def slow(setup: Setup, r: Requests, replicas: int, routing: str,
         concurrency: int | None) -> list[Sequence]:
    """The same run, by the slow engines."""
    unit, block = prefix_unit(r, setup.policy, setup.memory.block)
    memory = KvMemory(setup.memory.blocks * (setup.memory.block // block), block)
    engines = [SlowEngine(setup.surface, setup.policy, memory, unit, setup.swap_time)
               for _ in range(replicas)]
    found = []
    for i in range(len(r)):
        keys = tuple(r.blocks_of(i).tolist()) if r.blocks is not None else (
            (0,) if unit and r.input[i] > unit else ())
        found.append(Sequence(i, int(r.input[i]), int(r.output[i]), keys, float(r.arrival[i])))
    if concurrency is not None:
        for i, e in enumerate(engines):
            mine = found[i::replicas]
            own = len(range(i, concurrency, replicas))
            e.coming, e.later = mine[:own], mine[own:]
            for s in e.coming:
                s.ready = 0.0
            e.advance()
        return found
    for s in found:
        if routing == "round-robin":
            chosen = engines[s.number % replicas]
        else:
            for e in engines:
                e.advance(s.ready)
            busy = [e.outstanding(s.ready) for e in engines]
            place = busy.index(min(busy))
            if routing == "prefix-aware":
                ranked = sorted((-(e.cache.match(s.keys, s.prompt) if e.cache else 0), busy[i], i)
                                for i, e in enumerate(engines) if busy[i] <= min(busy) + 8)
                place = ranked[0][2]
            chosen = engines[place]
        chosen.coming.append(s)
    for e in engines:
        e.advance()
    return found


def check(setup: Setup, r: Requests, replicas: int = 1, routing: str = "round-robin",
          concurrency: int | None = None) -> tuple[Run, list[Sequence]]:
    """Both runs agree on every request."""
    fast = serve(setup, r, replicas, routing, concurrency)
    other = slow(setup, r, replicas, routing, concurrency)
    for name in ("admitted", "first", "finish"):
        wanted = np.array([getattr(s, name) for s in other])
        assert np.all(np.isfinite(wanted))
        np.testing.assert_allclose(getattr(fast, name), wanted, rtol=1e-9, err_msg=name)
    return fast, other


def requests_from(seed: int, n: int, rate: float, longest: int, sharing: str) -> Requests:
    """Random requests; shared prefixes by blocks of 16 tokens, by length, or none."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1.0 / rate, n))
    prompt = rng.integers(1, longest, n)
    output = rng.integers(1, longest, n)
    if sharing == "blocks":
        rows = [[int(x) for x in np.cumsum(rng.integers(1, 3, int(p) // 16 + 1))] for p in prompt]
        starts = np.cumsum([0, *(len(x) for x in rows)])
        # An id stands for its block and all before it.
        ids = [hash(tuple(row[:i + 1])) & 0xFFFFFF for row in rows for i in range(len(row))]
        return Requests(arrival, prompt, output, np.array(ids, dtype=np.int64), starts, 16)
    return requests_of(arrival, prompt, output, 24 if sharing == "prefix" else 0)


settings_of_a_run = st.fixed_dictionaries({
    "seed": st.integers(0, 10_000),
    "scheduler": st.sampled_from(["chunked", "prefill-first", "static"]),
    "preemption": st.sampled_from(["recompute", "swap"]),
    "reserves": st.booleans(),
    "sharing": st.sampled_from(["none", "none", "prefix", "blocks"]),
    "block": st.sampled_from([1, 4, 16]),
    "blocks": st.integers(8, 60),
    "sequences": st.integers(1, 12),
    "budget": st.integers(13, 120),
    "rate": st.sampled_from([0.5, 3.0, 20.0]),
    "watermark": st.sampled_from([0.0, 0.01, 0.1]),
    "replicas": st.integers(1, 3),
    "routing": st.sampled_from(["round-robin", "least-outstanding", "prefix-aware"]),
    "users": st.one_of(st.none(), st.none(), st.integers(1, 9)),
})


def setup_of(x: dict[str, Any]) -> tuple[Setup, Requests]:
    """A run that fits: no request needs more than all blocks."""
    if x["users"] is not None:
        x["users"] = max(x["users"], x["replicas"])
    block = x["block"]
    tokens = x["blocks"] * 16
    policy = Policy(x["scheduler"], x["sequences"], x["budget"], x["preemption"], x["watermark"],
                    x["reserves"] or x["scheduler"] == "static",
                    prefills_alone=x["seed"] % 2 == 0)
    r = requests_from(x["seed"], 40, x["rate"], min(tokens // 2, 120), x["sharing"])
    return Setup(ToySurface(x["seed"]), policy, KvMemory(tokens // block, block),
                 swap_time=1e-5), r


@settings(max_examples=200, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(settings_of_a_run)
def test_fast_is_slow(x: dict[str, Any]) -> None:
    setup, r = setup_of(x)
    fast, other = check(setup, r, x["replicas"], x["routing"], x["users"])
    gaps = [b - a for s in other for a, b in zip(s.tokens, s.tokens[1:], strict=False)]
    assert len(other) == len(r)
    assert math.fsum(gaps) == pytest.approx(float(np.sum(fast.finish - fast.first)), rel=1e-9)
