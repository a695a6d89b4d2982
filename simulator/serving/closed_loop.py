"""Continuous batching at a fixed concurrency, in closed form.

N users each send a request of n output tokens as soon as the last is answered. B of them are in the
batch, as many as memory and the engine allow. In the time of one request each of the others in the
batch starts a new one too, so that its steps share the device with B - 1 prefills. Times [s].
Every function takes floats or arrays.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def in_flight(N: Array, B_max: Array) -> Array:
    """Requests in the batch: all users, or what memory and the engine hold."""
    return np.maximum(np.minimum(N, B_max), 1.0)


def shared_prefills(tokens: Array, budget: Array, B: Array) -> Array:
    """Prompts of `tokens` that are computed in one pass of at most `budget` tokens."""
    return np.clip(np.floor(budget / tokens), 1.0, B)


def time_per_output_token(step: Array, prefill: Array, B: Array, n: Array, k: Array) -> Array:
    """step + k (B - 1) P / n: the others' prefills fall between a request's own steps.

    k = 1 where a prefill stops all decoding; below where it shares a step's weights (mixed steps).
    """
    return step + k * (B - 1.0) * prefill / n


def time_to_first_token(fixed: Array, prefill: Array, step: Array, B: Array, steps: Array,
                        burst: Array) -> Array:
    """fixed + P + c step + b (B - 1) P: own prefill, steps until admitted, others' prefills.

    A benchmark of m rounds starts all users at once: they wait (B - 1) P / 2 in one of m rounds,
    so that b is about 1/(2 m).
    """
    return fixed + prefill + steps * step + burst * (B - 1.0) * prefill


def burst_of(m: Array) -> Array:
    """1/(2 m): the share of the others' prefills waited for, of users who send m requests each."""
    return 1.0 / (2.0 * m)


def queue_wait(N: Array, B: Array, request: Array) -> Array:
    """(N/B - 1) E: users beyond the batch wait for a place (Little's law)."""
    return np.maximum(N / B - 1.0, 0.0) * request


def saturated_request_rate(B: Array, n: Array, prefill: Array, step: Array, k: Array) -> Array:
    """B / (k B P + n step) [requests/s]: every place of the batch is always taken."""
    return B / (k * B * prefill + n * step)


__all__ = ["burst_of", "in_flight", "queue_wait", "saturated_request_rate", "shared_prefills",
           "time_per_output_token", "time_to_first_token"]
