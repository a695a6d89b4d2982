"""One engine under load: what happens from one step to the next, many equal steps at once.

The engine decides before each step: arrivals queue, sequences that don't fit any more are
preempted, waiting requests are admitted. Between two events (arrival, completion, full memory)
decode steps change nothing but the context, and their sum on a line of the surface is
k (a + b R) + b B k (k + 1) / 2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from heapq import heappop, heappush

import numpy as np

from simulator.arrays import Array
from simulator.serving.batch import BITS, MASK, Batch
from simulator.serving.paged_blocks import blocks_at, steps_within
from simulator.serving.tally import PER_E, RESOLUTION, SHIFT

_NEAR = 1.0 + RESOLUTION


class Replica(Batch):
    """An engine that works through what is pushed to it."""

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
            if self._heap and self._heap[0] >> BITS <= self.step:
                self._completions()
        self._chunks = chunks[done:]
        self._prompts_done(chunks[:done])

    def _lone_prompt(self, request: int) -> bool:
        """One prompt waits, and there is plainly room: `_admit` and its step in one, as is usual.

        False where it has to go the long way.
        """
        log, B, policy, block = self.log, self._B, self.policy, self.memory.block
        tokens = log.inputs[request]
        if request in self._progress or policy.max_sequences <= B or (
                self._chunked and tokens > policy.batched_tokens - B) or (
                self._held + self._M // block + B - (-tokens // block)
                > self.memory.blocks - self._floor):
            return False
        self._waiting.popleft()
        log.admitted[request] = self.t
        self.prompt_tokens += tokens
        used = self._held - (-tokens // block) + (self._M + (0.5 + self._partly) * B) / block
        if used > self.most_blocks:
            self.most_blocks = max(self.most_blocks, self._blocks_used() - (-tokens // block))
        if B and self._chunked:
            dt = self.surface.mixed(B, self._R + B, [(tokens, 0)])
            self._used += used * dt
            self.busy["mixed"] += dt
            self.t += dt
            self.step += 1
            self._R += B
            self._M += B
            self._token_gaps()
            if self._heap[0] >> BITS <= self.step:
                self._completions()
        else:
            dt = self.surface.mixed(0, 0.0, [(tokens, 0)])
            self._used += used * dt
            self.busy["prefill"] += dt
            self.t += dt
        log.first[request] = self.t
        left = log.outputs[request] - 1
        if not left:
            self._live[request] = self.step
            self._release(request, tokens)
            return True
        end = self.step + left
        heappush(self._heap, end << BITS | request)
        self._live[request] = end
        self._B += 1
        self._R += tokens
        self._M += tokens
        self._classes[(tokens - self.step) % block] += 1
        self._joined.append([1, self.t])
        return True

    def _token_gaps(self) -> None:
        """Every decoding sequence got a token now; the time since its last one is counted."""
        # Sequences of a static batch that are done are computed on, but speak no more.
        t, old = self.t, len(self._live) if self._static else self._B
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
        static, block, limit = self._static, self.memory.block, (self.step + 1) << BITS
        inputs, outputs = log.inputs, log.outputs
        while heap and heap[0] < limit:
            key = heappop(heap)
            request = key & MASK
            if live.get(request) != key >> BITS:
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

    def _decode(self, until: float, once: bool) -> None:  # noqa: PLR0915
        """Decode steps up to the next event, as sums on the lines of the surface."""
        heap, live, B, R, t = self._heap, self._live, self._B, self._R, self.t
        while live.get((top := heap[0]) & MASK) != top >> BITS:
            heappop(heap)
        left = 1 if once else (top >> BITS) - self.step
        policy, block = self.policy, self.memory.block
        if not policy.reserves:
            room = self.memory.blocks - self._held - (self.cache.used if self.cache else 0)
            if (self._M + left * B) // block + B > room:
                left = max(steps_within(self._classes, self._M, B, self.step, block, room, left), 1)
        if not self._waiting and policy.max_sequences > B and not self._static and (
                self._next < len(self.ready)):
            arrival = self.ready[self._next]
            until = arrival if arrival < until else until
        start, began, total = self._joined or self._last != t, t, left
        counted = self.window[0] <= t <= self.window[1]
        counts, alive = self.gaps.counts, len(live) if self._static else B
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
                    counts[int(math.log(0.5 * (first + last)) * PER_E + SHIFT)] += number * alive
                else:
                    self.gaps.spread(first, last, number * alive)
            if reached or not left:
                break
            j += 1
            while j < turns and knots[j] < R + B:
                j += 1
        done = total - left
        self._use(t - began, 0.5 * (done + 1))
        self.t, self._R, self._last = t, R, t
        self._M += done * B
        self.step += done
        self.busy["decode"] += t - began
        at_least = self._held + self._M // block + (self.cache.used if self.cache else 0)
        if at_least + B > self.most_blocks and not policy.reserves:
            self.most_blocks = max(self.most_blocks, self._blocks_used())
        if self.cache:
            self._evict()
        if heap[0] >> BITS <= self.step:
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
                self._sample_due = self.samples.add(self.t, self._used)
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

    def blocks_in_use(self, times: Array) -> Array:
        """[s x blocks] up to each time: its differences over time are mean blocks in use."""
        s = self.samples
        known, sums = np.append(s.times, self.t), np.append(s.integral, self._used)
        return np.interp(times, known, sums, left=0.0)


__all__ = ["Replica"]
