"""One engine under load: what happens from one step to the next, many equal steps at once.

The engine decides before each step: arrivals queue, sequences that don't fit any more are
preempted (the last admitted first), waiting requests are admitted in order. Between two events
(arrival, completion, full memory) decode steps change nothing but the context, and their sum on a
line of the surface is k (a + b R) + b B k (k + 1) / 2. A sequence ends when the counter of steps
reaches a number known when it joins, so that no step touches any sequence.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from simulator.serving.paged_blocks import blocks_at, blocks_of, steps_within
from simulator.serving.policy import KvMemory, Policy
from simulator.serving.prefix_cache import PrefixCache
from simulator.serving.surface import Surface
from simulator.serving.tally import PER_E, RESOLUTION, SHIFT, Gaps, Samples

_BITS = 32
_MASK = (1 << _BITS) - 1
_NEAR = 1.0 + RESOLUTION


class Log:
    """Columns of all requests: lengths as asked; when admitted, first token and end [s]."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        n = len(inputs)
        self.inputs, self.outputs = inputs, outputs
        self.admitted = array("d", bytes(8 * n))
        self.first = array("d", bytes(8 * n))
        self.finish = array("d", bytes(8 * n))
        self.keys: Sequence[Sequence[int]] | None = None


class Replica:
    """An engine with its queue. Requests are pushed in the order in which they are ready.

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
        self.preemptions += 1

    def _busy_for(self, phase: str, time: float) -> None:
        self.t += time
        self.busy[phase] += time

    # --- admission ----------------------------------------------------------------------------

    def _admit(self, held_back: bool) -> list[list[int]]:
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
        heappush(self._heap, end << _BITS | request)
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
        if self.marks and self.finished in self.marks:         # closed loop: the window is one of answers
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

    # --- steps --------------------------------------------------------------------------------

    def _prefill(self, prompts: list[list[int]]) -> None:
        """A pass of whole prompts; decoding waits."""
        passes = [[p] for p in prompts] if self.policy.prefills_alone else [prompts]
        for part in passes:
            self._busy_for("prefill", self.surface.mixed(
                0, 0.0, [(tokens - there, there) for _, tokens, there in part]))
            self._prompts_done(part)

    def _mixed(self, fresh: list[list[int]]) -> None:
        """A step of all decoding sequences and, in the rest of the budget, of prompts in turn."""
        chunks, B = self._chunks, self._B
        chunks.extend(fresh)
        budget, done, parts = self.policy.batched_tokens - B, 0, []
        for chunk in chunks:
            _, tokens, there = chunk
            new = tokens - there
            if new > budget:
                new = budget
                if not new:
                    break
            else:
                done += 1
            parts.append((new, there))
            chunk[2] = there + new
            budget -= new
        self._busy_for("mixed" if B else "prefill", self.surface.mixed(B, self._R + B, parts))
        if B:
            self.step += 1
            self._R += B
            self._M += B
            self._token_gaps()
            if self.cache:
                self._evict()
            if self._heap and self._heap[0] >> _BITS <= self.step:
                self._completions()
        self._chunks = chunks[done:]
        self._prompts_done(chunks[:done])

    def _lone_prompt(self, request: int) -> bool:
        """One prompt waits, and there is plainly room: `_admit` and its step in one, as is usual.

        False where it has to go the long way.
        """
        log, B, policy, block = self.log, self._B, self.policy, self.memory.block
        tokens = log.inputs[request]
        if request in self._progress or B >= policy.max_sequences or (
                self._chunked and tokens > policy.batched_tokens - B) or (
                self._held + self._M // block + B - (-tokens // block)
                > self.memory.blocks - self._floor):
            return False
        self._waiting.popleft()
        log.admitted[request] = self.t
        self.prompt_tokens += tokens
        if B and self._chunked:
            dt = self.surface.mixed(B, self._R + B, [(tokens, 0)])
            self.busy["mixed"] += dt
            self.t += dt
            self.step += 1
            self._R += B
            self._M += B
            self._token_gaps()
            if self._heap[0] >> _BITS <= self.step:
                self._completions()
        else:
            dt = self.surface.mixed(0, 0.0, [(tokens, 0)])
            self.busy["prefill"] += dt
            self.t += dt
        log.first[request] = self.t
        left = log.outputs[request] - 1
        if not left:
            self._live[request] = self.step
            self._release(request, tokens)
            return True
        end = self.step + left
        heappush(self._heap, end << _BITS | request)
        self._live[request] = end
        self._B += 1
        self._R += tokens
        self._M += tokens
        self._classes[(tokens - self.step) % block] += 1
        self._joined.append([1, self.t])
        return True

    def _token_gaps(self) -> None:
        """Every decoding sequence got a token now; the time since its last one is counted."""
        t, old = self.t, self._B
        if self.window[0] <= t <= self.window[1]:
            add = self.gaps.add
            for number, since in self._joined:
                add(t - since, int(number))
                old -= int(number)
            if old:
                add(t - self._last, old)
        self._joined.clear()
        self._last = t

    def _completions(self) -> None:
        """Sequences that end at this step."""
        heap, live, step, log, cache = self._heap, self._live, self.step, self.log, self.cache
        static, block, limit = self._static, self.memory.block, (self.step + 1) << _BITS
        inputs, outputs = log.inputs, log.outputs
        while heap and heap[0] < limit:
            key = heappop(heap)
            request = key & _MASK
            if live.get(request) != key >> _BITS:
                continue                        # it was preempted since
            context = inputs[request] + outputs[request] - 1
            if not static:
                own = context
                if cache:
                    own -= self._shared.get(request, 0) * cache.unit_tokens
                self._B -= 1
                self._R -= context
                self._M -= own
                self._classes[(own - step) % block] -= 1
            self._release(request, context)

    def _decode(self, until: float, once: bool) -> None:
        """Decode steps up to the next event, as sums on the lines of the surface."""
        heap, live, B, R, t = self._heap, self._live, self._B, self._R, self.t
        while live.get((top := heap[0]) & _MASK) != top >> _BITS:
            heappop(heap)
        left = 1 if once else (top >> _BITS) - self.step
        policy, block = self.policy, self.memory.block
        if not policy.reserves:
            room = self.memory.blocks - self._held - (self.cache.used if self.cache else 0)
            if (self._M + left * B) // block + B > room:
                left = max(steps_within(self._classes, self._M, B, self.step, block, room, left), 1)
        if not self._waiting and B < policy.max_sequences and not self._static and (
                self._next < len(self.ready)):
            arrival = self.ready[self._next]
            until = arrival if arrival < until else until
        start, began, total = self._joined or self._last != t, t, left
        counted = self.window[0] <= t <= self.window[1]
        counts = self.gaps.counts
        knots, ka, kb, _, _ = self.surface.row(B)
        j, turns = bisect_left(knots, R + B), len(knots)
        while True:
            k, b = left, kb[j]
            if j < turns:
                k = int((knots[j] - R) // B)
                k = left if k > left else k if k > 1 else 1
            p, q = ka[j] + b * R, 0.5 * b * B
            dt = k * (p + q * (k + 1))
            reached = t + dt >= until
            if reached:
                # k (p + q) + q k^2 = until - t, and the whole step after it
                rest, h = until - t, p + q
                k_ = math.ceil(2.0 * rest / (h + math.sqrt(max(h * h + 4.0 * q * rest, 0.0))))
                k_ = min(max(k_, 1), k)
                while k_ > 1 and t + (k_ - 1) * (p + q * k_) >= until:
                    k_ -= 1
                while k_ < k and t + k_ * (p + q * (k_ + 1)) < until:
                    k_ += 1
                k = k_
                dt = k * (p + q * (k + 1))
            if start:
                self.t = t + p + 2.0 * q
                self._token_gaps()
                start = False
                number = k - 1
                first = p + 4.0 * q
            else:
                number, first = k, p + 2.0 * q
            t += dt
            R += k * B
            left -= k
            if number and counted:
                last = p + 2.0 * q * k
                if last <= first * _NEAR and first <= last * _NEAR:
                    counts[int(math.log(0.5 * (first + last)) * PER_E + SHIFT)] += number * B
                else:
                    self.gaps.spread(first, last, number * B)
            if reached or not left:
                break
            j += 1
            while j < turns and knots[j] < R + B:
                j += 1
        done = total - left
        self.t, self._R, self._last = t, R, t
        self._M += done * B
        self.step += done
        self.busy["decode"] += t - began
        if self.cache:
            self._evict()
        if heap[0] >> _BITS <= self.step:
            self._completions()

    def advance(self, until: float = math.inf) -> None:
        """Work through everything that starts before `until`, up to the first step that ends after.
        """
        waiting, policy, live, ready = self._waiting, self.policy, self._live, self.ready
        block, blocks = self.memory.block, self.memory.blocks
        nothing: list[list[int]] = []
        while self.t < until:
            place = self._next
            count = len(ready)
            if not (live or waiting):
                if place >= count or ready[place] >= until:
                    break
                self.t = max(self.t, ready[place])
            while place < count and ready[place] <= self.t:
                waiting.append(self.ids[place])
                place += 1
            self._next = place
            if self.t >= self._sample_due:
                self._sample()
            self.just_finished = 0
            held_back = False
            if self._B and not policy.reserves:
                room = blocks - self._held - (self.cache.used if self.cache else 0)
                while self._M // block + self._B > room and (
                        len(live) > 1 and blocks_at(
                            self._classes, self._M + self._B, self.step + 1, block) > room):
                    self._preempt()
                    held_back = True
                    room = blocks - self._held - (self.cache.used if self.cache else 0)
            if len(waiting) == 1 and self._plain and not (held_back or self._chunks) and (
                    self._lone_prompt(waiting[0])):
                continue
            prompts = self._admit(held_back) if waiting else nothing
            if self._chunked:
                if prompts or self._chunks:
                    self._mixed(prompts)
                elif self._B:
                    self._decode(until, held_back)
            elif prompts:
                self._prefill(prompts)
            elif self._B:
                self._decode(until, held_back)

    def _sample(self) -> None:
        used = self._blocks_used()
        self.most_blocks = max(self.most_blocks, used)
        self._sample_due = self.samples.add(
            self.t, self._B + len(self._chunks), len(self._waiting), used / self.memory.blocks)


__all__ = ["Log", "Replica"]
