"""A slow simulator for the tests: every step on its own, every sequence and block by itself.

It follows the rules that `simulator/serving/replica.py` states, with none of its short cuts: no
sums over steps, no counters, no classes of sequences. A sequence is an object that holds its
blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from simulator.serving.policy import KvMemory, Policy
from simulator.serving.surface import Surface, decode_time


@dataclass(eq=False)
class Sequence:
    """One request: its lengths, what it has, when things happened."""

    number: int
    prompt: int
    output: int
    keys: tuple[int, ...] = ()
    ready: float = 0.0
    made: int = 0               # output tokens
    cached: int = 0             # tokens whose KV is there
    target: int = 0             # tokens to compute before the next output token
    shared: int = 0             # leading units of the prefix cache that it uses
    swapped: bool = False
    seen: bool = False          # admitted before
    admitted: float = math.nan
    first: float = math.nan
    finish: float = math.nan
    tokens: list[float] = field(default_factory=list)


class Cache:
    """Prefix units in the order of their last use; a list, searched from its start."""

    def __init__(self, unit: int) -> None:
        self.unit, self.users, self.idle = unit, {}, []  # type: ignore[var-annotated]

    def match(self, keys: tuple[int, ...], prompt: int) -> int:
        found = 0
        while (found < len(keys) and (found + 1) * self.unit <= prompt - 1
               and keys[found] in self.users):
            found += 1
        return found


class SlowEngine:
    """The same engine, step by step."""

    def __init__(self, surface: Surface, policy: Policy, memory: KvMemory, unit: int = 0,
                 swap_time: float = 0.0) -> None:
        self.surface, self.policy, self.memory = surface, policy, memory
        self.cache = Cache(unit) if unit else None
        self.swap_time = swap_time
        self.t = 0.0
        self.coming: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []       # in the order of admission
        self.done: list[Sequence] = []
        self.ended: list[Sequence] = []         # of a static batch, still padded
        self.later: list[Sequence] = []         # of closed-loop users
        self.preemptions = self.hits = self.most = 0

    # blocks

    def own(self, tokens: int, s: Sequence) -> int:
        shared = s.shared * self.cache.unit if self.cache else 0
        return math.ceil((tokens - shared) / self.memory.block)

    def held(self, s: Sequence, more: int = 0) -> int:
        if self.policy.reserves:
            return self.own(s.prompt + s.output - 1, s)
        return self.own(s.cached + more if s.cached >= s.target else s.target, s)

    def prefix_blocks(self, idle: bool) -> int:
        if not self.cache:
            return 0
        size = self.cache.unit // self.memory.block
        return size * sum((key in self.cache.idle) == idle for key in self.cache.users)

    def used(self, more: int = 0) -> int:
        batch = self.running
        if self.policy.scheduler == "static":
            batch = [*self.running, *self.ended]
        return sum(self.held(s, more) for s in batch) + self.prefix_blocks(False)

    def evict(self) -> None:
        while self.cache and self.cache.idle and (
                self.used() + self.prefix_blocks(True) > self.memory.blocks):
            del self.cache.users[self.cache.idle.pop(0)]

    def let_go(self, s: Sequence) -> None:
        if self.cache:
            for key in reversed(s.keys[:s.shared]):
                self.cache.users[key] -= 1
                if self.cache.users[key] == 0:
                    self.cache.idle.append(key)
        s.shared = 0

    # rules

    def preempt(self) -> None:
        s = self.running.pop()
        self.preemptions += 1
        if s.cached >= s.target and s.made and self.policy.preemption == "swap" and not s.shared:
            s.swapped = True
            self.t += s.cached * self.swap_time
        else:
            s.cached = 0
        self.let_go(s)
        self.waiting.insert(0, s)

    def admit(self) -> list[Sequence]:
        p, fresh = self.policy, []
        if p.scheduler == "static" and (self.running or self.ended):
            return fresh
        decoding = sum(s.cached >= s.target for s in self.running)
        budget = p.batched_tokens
        if p.scheduler == "chunked":
            budget -= decoding + sum(s.target - s.cached for s in self.running
                                     if s.cached < s.target)
        floor = math.ceil(p.watermark * self.memory.blocks)
        self.evict()
        while self.waiting and len(self.running) < p.max_sequences:
            s = self.waiting[0]
            units = 0
            if self.cache and not s.swapped:
                units = self.cache.match(s.keys, s.prompt)
            shared = units * self.cache.unit if self.cache else 0
            tokens = s.prompt + s.made
            hold = s.prompt + s.output - 1 if p.reserves else s.cached + 1 if s.swapped else tokens
            need = math.ceil((hold - shared) / self.memory.block)
            if units:
                need += self.cache.unit // self.memory.block * sum(
                    k in self.cache.idle for k in s.keys[:units])
            if self.running and self.used(1) + need > self.memory.blocks - floor:
                break
            new = 0 if s.swapped else tokens - shared
            if new and p.scheduler == "chunked" and budget < 1:
                break
            if new and p.scheduler != "chunked" and fresh and budget < new:
                break
            self.waiting.pop(0)
            self.running.append(s)
            if not s.seen:
                s.seen, s.admitted = True, self.t
                self.hits += shared
            for key in s.keys[:units]:
                if key in self.cache.idle:
                    self.cache.idle.remove(key)
                self.cache.users[key] += 1
            s.shared = units
            if s.swapped:
                s.swapped, s.target = False, 0
                self.t += s.cached * self.swap_time
                continue
            s.target, s.cached = tokens, shared
            budget -= new
            fresh.append(s)
        self.evict()
        return fresh

    def token(self, s: Sequence) -> None:
        s.made += 1
        s.tokens.append(self.t)
        if s.made == 1:
            s.first = self.t

    def finished(self, s: Sequence) -> None:
        s.finish = self.t
        self.running.remove(s)
        if self.policy.scheduler == "static":
            if s.output > 1:        # others never decoded
                self.ended.append(s)
            if not self.running:
                self.ended = []
        else:
            self.let_go(s)
        self.done.append(s)
        if self.later:
            self.later[0].ready = self.t
            self.coming.append(self.later.pop(0))

    def prompt_done(self, s: Sequence) -> None:
        if self.cache:
            while s.shared < len(s.keys) and (s.shared + 1) * self.cache.unit <= s.prompt and (
                    s.keys[s.shared] not in self.cache.users):
                self.cache.users[s.keys[s.shared]] = 1
                s.shared += 1
        s.cached = s.target
        self.token(s)

    def step(self) -> None:
        """One iteration of the engine."""
        while self.coming and self.coming[0].ready <= self.t:
            self.waiting.append(self.coming.pop(0))
        held_back = False
        if not self.policy.reserves:
            while len(self.running) > 1 and any(s.cached >= s.target for s in self.running) and (
                    self.used(1) > self.memory.blocks):
                self.preempt()
                held_back = True
        fresh = [] if held_back else self.admit()
        decoding = [s for s in self.running if s.cached >= s.target]
        batch = decoding + self.ended
        if self.policy.scheduler != "chunked" and fresh:
            for part in [[s] for s in fresh] if self.policy.prefills_alone else [fresh]:
                self.t += self.surface.mixed(0, 0.0, [(s.target - s.cached, s.cached)
                                                      for s in part])
                for s in part:
                    self.prompt_done(s)
                for s in part:
                    if s.made == s.output:
                        self.finished(s)
            return
        budget, parts, touched = self.policy.batched_tokens - len(decoding), [], []
        for s in self.running:
            new = min(s.target - s.cached, budget)
            if s.cached < s.target and new > 0:
                parts.append((new, s.cached))
                touched.append((s, new))
                budget -= new
        B = len(batch)
        X = float(sum(s.cached + 1 for s in batch))
        if not B and not parts:
            return
        self.t += self.surface.mixed(B, X, parts) if parts else decode_time(self.surface, B, X)
        for s in batch:
            s.cached += 1
        for s in decoding:
            self.token(s)
        self.evict()
        self.most = max(self.most, self.used())
        assert self.used() + self.prefix_blocks(True) <= self.memory.blocks or (
            len(self.running) == 1)
        for s in sorted(decoding, key=lambda s: s.number):
            if s.made == s.output:
                self.finished(s)
        complete = []
        for s, new in touched:
            s.cached += new
            if s.cached == s.target:
                complete.append(s)
        for s in complete:
            self.prompt_done(s)
        for s in complete:
            if s.made == s.output:
                self.finished(s)

    def outstanding(self, now: float) -> int:
        return (len(self.coming) + len(self.waiting) + len(self.running)
                + sum(s.finish > now for s in self.done))

    def advance(self, until: float = math.inf) -> None:
        """Iterations that start before `until`."""
        while self.t < until:
            if not self.running and not self.waiting:
                if not self.coming or self.coming[0].ready >= until:
                    return
                self.t = max(self.t, self.coming[0].ready)
            self.step()


__all__ = ["Sequence", "SlowEngine"]
