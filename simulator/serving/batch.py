"""The batch of an engine: which requests are in it, what blocks they hold, who comes and goes.

A sequence ends when the counter of steps reaches a number known when it joins, so that no step
touches any sequence. Requests are admitted in the order in which they came; the last admitted is
preempted first.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from heapq import heappush
from typing import Any

from simulator.serving.paged_blocks import blocks_at, blocks_of
from simulator.serving.policy import KvMemory, Policy
from simulator.serving.prefix_cache import PrefixCache
from simulator.serving.surface import Surface
from simulator.serving.tally import Gaps, Samples

# Heap entries are (step of the end, request) in one number.
BITS = 32
MASK = (1 << BITS) - 1


def python_numbers(column: Any) -> Sequence[int]:
    """A NumPy column that is read as Python numbers, without a copy."""
    return memoryview(column)


class Log:
    """Columns of all requests: lengths as asked; when admitted, first token and end [s]."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        n = len(inputs)
        self.inputs, self.outputs = inputs, outputs
        self.admitted = array("d", bytes(8 * n))
        self.first = array("d", bytes(8 * n))
        self.finish = array("d", bytes(8 * n))
        self.keys: Sequence[Sequence[int]] | None = None


class Batch:
    """An engine's queue, batch and blocks. Requests are pushed in the order in which they are
    ready.

    decodes_only  its requests were prefilled elsewhere and join with their prompt's cache
    users         closed loop: places of users, each of whom sends the next of `more` when answered
    swap_time     [s] a token that is moved to the host or back
    """

    def __init__(self, surface: Surface, policy: Policy, memory: KvMemory, log: Log,
                 cache: PrefixCache | None = None, decodes_only: bool = False,
                 swap_time: float = 0.0, interval: float = 1.0) -> None:
        self.surface, self.policy, self.memory, self.log = surface, policy, memory, log
        self.cache, self.decodes_only, self.swap_time = cache, decodes_only, swap_time
        self.ready: Sequence[float] = array("d")
        self.ids: Sequence[int] = array("q")
        self.more: Sequence[int] = ()           # ids that closed-loop users send later
        self.think = 0.0                        # [s] from an answer to the user's next request
        self.t = 0.0
        self.step = 0
        self.gaps = Gaps()
        self.samples = Samples(interval)
        self.window = (-math.inf, math.inf)     # gaps are counted for tokens within
        self.marks: tuple[int, ...] = ()        # answers after which the window opens and closes
        self.busy = {"prefill": 0.0, "mixed": 0.0, "decode": 0.0, "swap": 0.0}
        self.preemptions = self.hit_tokens = self.prompt_tokens = self.finished = 0
        self.most_blocks = self.just_finished = 0
        self._next = self._sent = 0
        self._waiting: deque[int] = deque()
        self._heap: list[int] = []
        self._live: dict[int, int] = {}         # admitted -> step of its end; -1: in its prefill
        self._chunks: list[list[int]] = []      # [id, tokens to compute, tokens there]
        self._B = self._R = self._M = 0         # decoding; tokens attended to; tokens of their own
        self._classes = [0] * memory.block
        self._held = 0                          # blocks of prompts in work, or reserved ones
        self._progress: dict[int, int] = {}     # preempted -> output tokens that it has
        self._swapped: set[int] = set()
        self._shared: dict[int, int] = {}       # units of the prefix cache in use
        self._since: dict[int, float] = {}      # preempted -> time of its last token
        self._out: dict[int, float] = {}        # preempted -> when
        # Times [s] in which sequences waited again, and [s x blocks] that were in use so far.
        self.out_from, self.out_to = array("d"), array("d")
        self._used = 0.0
        self._partly = (memory.block - 1) / 2.0     # tokens that a sequence's last block lacks
        self._joined: list[list[float]] = []    # [sequences, time of their last token]
        self._last = 0.0                        # time of the last token of all others
        self._sample_due = 0.0
        self._chunked = policy.scheduler == "chunked"
        self._static = policy.scheduler == "static"
        self._floor = math.ceil(policy.watermark * memory.blocks)
        # Whether `_lone_prompt` may take the short way.
        self._plain = not (cache or decodes_only or policy.reserves or self._static)

    def push(self, ready: float, request: int) -> None:
        """A request that is ready to be scheduled."""
        self.ready.append(ready)  # type: ignore[attr-defined]
        self.ids.append(request)  # type: ignore[attr-defined]

    def outstanding(self, now: float) -> int:
        """Requests pushed and not finished at a time that it has been advanced to."""
        late = self.just_finished if self.t > now else 0
        return len(self.ids) - self.finished + late

    def idle(self) -> bool:
        """Whether everything that was pushed is finished."""
        return self.finished == len(self.ids)

    def cached_units(self, request: int) -> int:
        """Leading units of a request's prompt that the prefix cache holds."""
        if self.cache is None or self.log.keys is None:
            return 0
        return self.cache.match(self.log.keys[request], self.log.inputs[request])

    # --- blocks -------------------------------------------------------------------------------

    def _blocks_used(self, more: int = 0) -> int:
        """Blocks of sequences and used prefixes, after `more` decode steps."""
        used = self._held + (self.cache.used if self.cache else 0)
        if not self.policy.reserves:
            used += blocks_at(self._classes, self._M + more * self._B, self.step + more,
                              self.memory.block)
        return used

    def _need(self, request: int, units: int) -> tuple[int, int]:
        """(blocks to admit a request that finds `units`, tokens it holds after its next step)."""
        log, cache = self.log, self.cache
        made = self._progress.get(request, 1 if self.decodes_only else 0)
        tokens = log.inputs[request] + made
        whole = log.inputs[request] + log.outputs[request] - 1
        held = whole if self.policy.reserves else tokens
        found = units * cache.unit_tokens if cache else 0
        return blocks_of(held - found, self.memory.block), tokens

    def _preempt(self) -> None:
        """Take the last admitted sequence out and put it at the head of the queue."""
        request = next(reversed(self._live))
        end = self._live.pop(request)
        log, block = self.log, self.memory.block
        units = self._shared.pop(request, 0)
        if end < 0:
            place = next(i for i, c in enumerate(self._chunks) if c[0] == request)
            _, tokens, _ = self._chunks.pop(place)
            found = units * self.cache.unit_tokens if self.cache else 0
            self._held -= blocks_of(tokens - found, block)
            self._progress.setdefault(request, 0)
        else:
            made = log.outputs[request] - (end - self.step)
            context = log.inputs[request] + made - 1
            own = context - (units * self.cache.unit_tokens if self.cache else 0)
            self._B -= 1
            self._R -= context
            self._M -= own
            self._classes[(own - self.step) % block] -= 1
            self._progress[request] = made
            self._since[request] = self._joined[-1][1] if self._joined else self._last
            if self._joined:
                self._joined[-1][0] -= 1
                if not self._joined[-1][0]:
                    self._joined.pop()
            if self.policy.preemption == "swap" and not units:
                self._swapped.add(request)
                self._busy_for("swap", context * self.swap_time)
        if units and self.cache:
            self.cache.release(self.log.keys[request], units)  # type: ignore[index]
        self._waiting.appendleft(request)
        self._out[request] = self.t
        self.preemptions += 1

    def _back(self, request: int) -> None:
        """A preempted sequence is admitted again."""
        self.out_from.append(self._out.pop(request))
        self.out_to.append(self.t)

    def _busy_for(self, phase: str, time: float) -> None:
        self._use(time, 0.5)
        self.t += time
        self.busy[phase] += time

    def _use(self, time: float, steps: float) -> None:
        """KV blocks in use for a time [s] whose middle is `steps` decode steps ahead.

        A sequence's last block is half full on average: each place in it is as likely.
        """
        used: float = self._held
        if not self.policy.reserves:
            used += (self._M + (steps + self._partly) * self._B) / self.memory.block
        if self.cache:
            used += self.cache.used
        self._used += used * time
        if used > self.most_blocks:
            self.most_blocks = max(self.most_blocks, self._blocks_used())

    # --- admission ----------------------------------------------------------------------------

    def _admit(self, held_back: bool) -> list[list[int]]:  # noqa: PLR0915
        """Take waiting requests in order, as many as sequences, blocks and the budget allow.

        Prompts to compute are returned as [id, tokens, tokens there]; the rest has joined.
        """
        policy, cache, waiting, log = self.policy, self.cache, self._waiting, self.log
        prompts: list[list[int]] = []
        if held_back or (self._static and self._live):
            return prompts
        if cache:
            self._evict()
        chunked = self._chunked
        budget = policy.batched_tokens - self._B if chunked else policy.batched_tokens
        for chunk in self._chunks:
            budget -= chunk[1] - chunk[2]
        # The next token of those that decode has its place first. A bound on their blocks is
        # enough as long as there is room.
        bound = self._held + (0 if policy.reserves else self._M // self.memory.block + self._B)
        bound += cache.used if cache else 0
        free, exact = self.memory.blocks - bound - self._floor, False
        room = policy.max_sequences - self._B - len(self._chunks)
        keys: Sequence[int] = ()
        units = idle = 0
        while waiting and room > len(prompts):
            request = waiting[0]
            if cache:
                keys = log.keys[request] if log.keys is not None else ()
                units = 0 if request in self._swapped else cache.match(keys, log.inputs[request])
                idle = cache.idle_of(keys, units)
            need, tokens = self._need(request, units)
            new = 0 if request in self._swapped or (
                self.decodes_only and request not in self._progress) else tokens - (
                units * cache.unit_tokens if cache else 0)
            if need + idle > free and not exact:
                free, exact = free + bound - self._blocks_used(1), True
            if need + idle > free and self._live:
                break
            if new and budget < (1 if chunked else new) and (chunked or prompts):
                break
            waiting.popleft()
            free -= need + idle
            bound += need + idle
            if cache and units:
                cache.acquire(keys, units)
                self._shared[request] = units
            if request in self._out:
                self._back(request)
            if request not in self._progress and not self.decodes_only:
                log.admitted[request] = self.t
                self.prompt_tokens += log.inputs[request]
                self.hit_tokens += units * cache.unit_tokens if cache else 0
            if policy.reserves or new:
                self._held += need
            if not new:
                room -= 1
                self._enter_decode(request)
                if not exact:       # its blocks count with the others' from now on
                    free, exact = free + bound - self._blocks_used(1), True
                continue
            budget -= new
            self._live[request] = -1
            prompts.append([request, tokens, tokens - new])
        if cache:
            self._evict()
        return prompts

    def _evict(self) -> None:
        """Idle prefixes give way to what sequences hold."""
        if self.cache and self.cache.idle:
            self.cache.shrink(max(self.memory.blocks - self._blocks_used(), 0))

    def _enter_decode(self, request: int) -> None:
        """A request whose cache is already there: swapped in, or prefilled by another pool."""
        made = self._progress.pop(request, 1)
        context = self.log.inputs[request] + made - 1
        if request in self._swapped:
            self._swapped.discard(request)
            self._busy_for("swap", context * self.swap_time)
        since = self._since.pop(request, self.log.first[request])
        self._join(request, made, since)

    def _join(self, request: int, made: int, since: float) -> None:
        """A sequence with `made` output tokens decodes from the next step on, or is finished."""
        log = self.log
        left = log.outputs[request] - made
        if left == 0:
            self._live[request] = self.step
            self._release(request, log.inputs[request] + made - 1)
            return
        end = self.step + left
        heappush(self._heap, end << BITS | request)
        self._live[request] = end
        context = log.inputs[request] + made - 1
        own = context
        if self.cache:
            own -= self._shared.get(request, 0) * self.cache.unit_tokens
        self._B += 1
        self._R += context
        self._M += own
        self._classes[(own - self.step) % self.memory.block] += 1
        joined = self._joined
        if joined and joined[-1][1] == since:
            joined[-1][0] += 1
        else:
            joined.append([1, since])

    def _release(self, request: int, context: int) -> None:
        """A finished request gives its blocks back; in a closed loop its user sends the next."""
        self.log.finish[request] = self.t
        del self._live[request]
        found = 0
        if self.cache:
            units = self._shared.pop(request, 0)
            found = units * self.cache.unit_tokens
            if units:
                self.cache.release(self.log.keys[request], units)  # type: ignore[index]
        if self._static:
            if not self._live:                  # padding was computed up to here
                self._B = self._R = self._M = self._held = 0
                self._classes = [0] * self.memory.block
        elif self.policy.reserves:
            self._held -= blocks_of(context - found, self.memory.block)
        self.finished += 1
        self.just_finished += 1
        if self.marks and self.finished in self.marks:    # closed loop: a window of answers
            opens = self.finished == self.marks[0]
            self.window = (self.t, math.inf) if opens else (self.window[0], self.t)
        if self._sent < len(self.more):
            self.push(self.t + self.think, self.more[self._sent])
            self._sent += 1

    def _prompts_done(self, prompts: list[list[int]]) -> None:
        """Prompts whose last token was computed: each has its next output token now."""
        log, cache, t, block = self.log, self.cache, self.t, self.memory.block
        reserves, progress = self.policy.reserves, self._progress
        units = 0
        for request, tokens, _ in prompts:
            if cache:
                units = self._shared.get(request, 0)
            if not reserves:
                found = units * cache.unit_tokens if cache else 0
                self._held -= -(-(tokens - found) // block)
            if cache and log.keys is not None:
                kept = cache.insert(log.keys[request], units, log.inputs[request])
                if kept:
                    self._shared[request] = kept
                if reserves:
                    self._held -= (kept - units) * cache.unit_blocks
            made = progress.pop(request, 0) + 1 if progress else 1
            if made == 1:
                log.first[request] = t
            else:
                self._count_gap(t - self._since.pop(request), 1)
            self._join(request, made, t)

    def _count_gap(self, gap: float, number: int) -> None:
        if self.window[0] <= self.t <= self.window[1]:
            self.gaps.add(gap, number)


__all__ = ["BITS", "MASK", "Batch", "Log", "python_numbers"]
