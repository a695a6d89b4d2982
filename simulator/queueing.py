"""Queues in closed form: the wait before a server, batches in service, pools in a steady state.

Rates [1/s] are those of one server. A queue whose server is always busy has no steady state: its
wait is infinite, never negative.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def _stable(value: Array, load: Array) -> Array:
    """`value` below a load of 1; infinite above."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(load) < 1.0, value, np.inf)[()]


def utilisation(rate: Array, service: Array) -> Array:
    """rho = lambda E[s]: share of the time that a server works."""
    return rate * service


def mg1_wait(rate: Array, mean: Array, second_moment: Array) -> Array:
    """lambda E[s^2] / (2 (1 - rho)): mean wait of Poisson arrivals (Pollaczek-Khinchine)."""
    rho = utilisation(rate, mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _stable(rate * second_moment / (2.0 * (1.0 - np.asarray(rho))), rho)


def md1_wait(rate: Array, service: Array) -> Array:
    """rho D / (2 (1 - rho)): the same with a constant service time D."""
    return mg1_wait(rate, service, np.square(service))


def md1_ttft(rate: Array, prefill: Array) -> Array:
    """D + R D^2 / (2 (1 - R D)): prefill on one instance (DistServe, 2401.09670, eq. 1)."""
    return prefill + md1_wait(rate, prefill)


def md1_ttft_pipeline(rate: Array, prefill: Array) -> Array:
    """D + R D^2 / (4 (2 - R D)): two pipeline stages, each D / 2 (DistServe, eq. 2).

    Twice the rate of one stage, the same time for one request.
    """
    return prefill + md1_wait(rate, prefill / 2.0)


def md1_ttft_tensor(rate: Array, prefill: Array, speed_up: Array) -> Array:
    """D / k + R D^2 / (2 k (k - R D)): two-way tensor parallel, k times as fast (eq. 3)."""
    return md1_ttft(rate, prefill / speed_up)


def tensor_pipeline_crossover(prefill: float, speed_up: float) -> float:
    """Rate above which two pipeline stages have the lower TTFT than tensor parallelism; bisected.

    With a speed-up of 2 tensor parallelism always wins: the rate is that of saturation.
    """
    low, high = 0.0, min(speed_up, 2.0) / prefill * (1.0 - 1e-12)
    for _ in range(200):
        middle = (low + high) / 2.0
        tensor = float(md1_ttft_tensor(middle, prefill, speed_up))
        low, high = ((middle, high) if tensor < float(md1_ttft_pipeline(middle, prefill))
                     else (low, middle))
    return high


def batch_service_latency(rate: Array, fixed: Array, each: Array) -> Array:
    """Upper bound of the mean latency where a batch of b takes t0 + a b (Inoue 2021): min(phi0,
    phi1). All that wait are served together, as many as there are.
    """
    load, t0, a = np.asarray(rate * each), fixed, each
    with np.errstate(divide="ignore", invalid="ignore"):
        one = (a + t0) / (2.0 * (1.0 - load)) * (
            1.0 + 2.0 * rate * t0 + (1.0 - rate * t0) / (1.0 + load))
        two = 1.5 * t0 / (1.0 - load) + a / 2.0 * (load + 2.0) / (1.0 - load * load)
    return _stable(np.minimum(one, two), load)


def resident_batch(rate: Array, steps: Array, fixed: Array, each: Array) -> Array:
    """b = lambda G t0 / (1 - lambda G t1): sequences in a decode of steps t0 + t1 b (Little)."""
    load = rate * steps * each
    with np.errstate(divide="ignore", invalid="ignore"):
        return _stable(rate * steps * fixed / (1.0 - np.asarray(load)), load)


def largest_rate(steps: Array, fixed: Array, each: Array, most: Array) -> Array:
    """b / (G (t0 + t1 b)): requests a second that a decode of at most b can take.

    Below 1 / (G t1), which it reaches with infinitely many sequences.
    """
    return most / (steps * (fixed + each * most))


def interfered(step: Array, prefill_load: Array) -> Array:
    """tau / (1 - rho): a decode step on a server that prefills a share rho of the time."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _stable(step / (1.0 - np.asarray(prefill_load)), prefill_load)
