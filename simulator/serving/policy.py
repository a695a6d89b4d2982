"""How an engine schedules: what joins a step, how many sequences, what happens without memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from simulator.allocation import block_of, kv_bytes_per_token, pool
from simulator.deployment import Deployment
from simulator.errors import InputError, nearest
from simulator.memory import memory

Scheduler = Literal["chunked", "prefill-first", "static"]
SCHEDULERS: tuple[Scheduler, ...] = ("chunked", "prefill-first", "static")
PREEMPTIONS = ("recompute", "swap")
ROUTINGS = ("round-robin", "least-outstanding", "prefix-aware")

# Sequences in a step where neither the engine nor the user limits them, and prompt tokens.
USUAL_SEQUENCES, USUAL_TOKENS = 256, 8192


@dataclass(frozen=True)
class Policy:
    """Settings of one engine.

    scheduler       `static`: a batch is served to its end before the next starts. `prefill-first`:
                    waiting prompts stop decoding, in a pass of their own. `chunked`: prompts share
                    steps with decoding, as many tokens as the budget leaves
    max_sequences   sequences in the batch at most
    batched_tokens  tokens of a pass of prompts, or of a mixed step, at most; a prompt that is
                    longer has a pass of its own where prompts aren't cut
    preemption      of the sequence that was admitted last, where no KV block is free: `recompute`
                    all its tokens later, or `swap` its cache to the host
    watermark       share of the KV blocks that stays free when a request is admitted
    reserves        a request is admitted when its whole length is free, so none is preempted
    prefix_cache    blocks of prompts are kept and found again
    prefills_alone  prompts of a static batch are computed one after the other
    """

    scheduler: Scheduler = "chunked"
    max_sequences: int = USUAL_SEQUENCES
    batched_tokens: int = USUAL_TOKENS
    preemption: str = "recompute"
    watermark: float = 0.01
    reserves: bool = False
    prefix_cache: bool = True
    prefills_alone: bool = False

    def __post_init__(self) -> None:
        """Refuse what no engine would start with."""
        for value, valid, name in ((self.scheduler, SCHEDULERS, "scheduler"),
                                   (self.preemption, PREEMPTIONS, "preemption")):
            if value not in valid:
                raise InputError(f"{name}: unknown '{value}'{nearest(value, valid)}")
        for name in ("max_sequences", "batched_tokens"):
            if not getattr(self, name) >= 1:
                raise InputError(f"{name.replace('_', '-')}: {getattr(self, name)} must be at "
                                 "least 1")
        if self.scheduler == "chunked" and self.batched_tokens <= self.max_sequences:
            raise InputError(f"batched-tokens: {self.batched_tokens} leave no room for a prompt "
                             f"beside {self.max_sequences} sequences; raise it or lower "
                             "max-sequences")
        if not 0.0 <= self.watermark < 1.0:
            raise InputError(f"watermark: {self.watermark} is not between 0 and 1")

    @classmethod
    def of(cls, d: Deployment, scheduler: str | None = None, max_sequences: int | None = None,
           batched_tokens: int | None = None, preemption: str = "recompute",
           prefix_cache: bool = True) -> Policy:
        """An engine's own way, unless told.

        Continuous engines whose prefills delay others by less than their own time share steps
        (`interference` below 1); else waiting prompts go first.
        """
        e = d.engine
        if scheduler is None:
            scheduler = ("static" if not (e.continuous or e.ideal) else
                         "chunked" if e.interference < 1.0 or d.chunk is not None else
                         "prefill-first")
        if scheduler not in SCHEDULERS:
            raise InputError(f"scheduler: unknown '{scheduler}'{nearest(scheduler, SCHEDULERS)}")
        tokens = batched_tokens or d.chunk or e.batched_tokens or USUAL_TOKENS
        sequences = (e.max_sequences or USUAL_SEQUENCES) if max_sequences is None else max_sequences
        if scheduler == "chunked" and max_sequences is None:
            sequences = min(sequences, max(tokens // 2, 1))
        return cls(scheduler, sequences * d.parallelism.dp, tokens * d.parallelism.dp, preemption,
                   reserves=scheduler == "static" or e.admits == "whole",
                   prefix_cache=prefix_cache, prefills_alone=e.prefills_alone)


@dataclass(frozen=True)
class KvMemory:
    """KV blocks of one engine: their number, the tokens of one, and what a token weighs.

    token_bytes  of one device, for swapping
    """

    blocks: int
    block: int
    token_bytes: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens that all blocks hold."""
        return self.blocks * self.block


def kv_memory(d: Deployment, policy: Policy, prompt: float, output: float) -> KvMemory | None:
    """Blocks that the engine's memory leaves, at the mean lengths; None: the model doesn't fit.

    Windows and fixed states make a sequence's cache grow slower than its context. The number of
    blocks is then that of sequences of the mean length, in blocks of a plain cache.
    """
    block, context = block_of(d), max(prompt + output, 2.0)
    most = float(memory(d, 1.0, prompt, output).max_batch)
    if most < 1.0:
        return None
    # The engine leaves room for the activations of its largest pass before it lays out blocks.
    batch, budget = min(most, float(policy.max_sequences)), float(d.batched_tokens or 0)
    largest = max(prompt, budget / (batch / d.parallelism.dp))
    room = float(memory(d, batch, largest, output).pool.bytes)
    each = math.ceil(context / block)
    blocks = math.floor(float(pool(d, room, context).max_concurrency) * each * (1 + 1e-12))
    if blocks < each:
        return None
    return KvMemory(blocks * d.parallelism.dp, block, float(kv_bytes_per_token(d)))
