"""From when things happened to what users see: percentiles, rates, and whether it keeps up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError
from simulator.serving.run import CUT, FEWEST, Run
from simulator.serving.tally import Gaps

SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}

# Share of the arrivals by which a queue may grow, above and below a load that is near the limit,
# and the least that counts as a queue.
GROWTH, ANY_GROWTH, NEAR, QUEUE = 0.1, 0.3, 0.85, 10

# Differences of times that are rounding [s].
_ROUNDING = 1e-9

Figures = dict[str, float]


@dataclass(frozen=True)
class Slo:
    """Targets of a request [s]; None: none."""

    ttft: float | None = None
    tpot: float | None = None

    def __post_init__(self) -> None:
        """Refuse targets that no time can meet."""
        for name in ("ttft", "tpot"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0.0):
                raise InputError(f"slo-{name}: {value} must be above 0")


def figures(values: Array) -> Figures | None:
    """Mean and percentiles; None of nothing. Puts `values` in another order."""
    if not len(values):
        return None
    mean = float(np.mean(values))
    found = np.quantile(values, list(SHARES.values()), overwrite_input=True)
    return {"mean": mean,
            **{k: float(v) for k, v in zip(SHARES, found, strict=True)}}


def inside(run: Run) -> Array:
    """Requests that the figures are of: that arrived, or in a closed loop ended, in the window."""
    if run.concurrency is None:
        return (run.arrival >= run.window[0]) & (run.arrival <= run.window[1])
    # The window opens with an answer, which is of the time before it.
    return (run.finish > run.window[0]) & (run.finish <= run.window[1])


def tpot(run: Run) -> Array:
    """(E2E - TTFT) / (output - 1) of each request [s]; NaN with one output token."""
    more = run.requests.output - 1
    return np.where(more > 0, (run.finish - run.first) / np.maximum(more, 1), np.nan)


def latencies(run: Run, request_time: float) -> dict[str, Figures | None]:
    """TTFT with and without the queue, TPOT, ITL and E2E of the requests in the window [s]."""
    mine = inside(run)
    gaps = Gaps()
    for r in run.replicas:
        gaps.merge(r.gaps)
    steps = int(run.requests.output[mine].sum()) - int(np.count_nonzero(mine))
    itl: Figures | None = None
    if sum(gaps.counts) and steps:
        shares = gaps.quantiles(np.array(list(SHARES.values())))
        itl = {"mean": float((run.finish - run.first)[mine].sum() / steps),
               **{k: float(v) for k, v in zip(SHARES, shares, strict=True)}}
    each = tpot(run)[mine]
    found = {"tpot_s": figures(each[~np.isnan(each)])}
    del each                # a column at a time: they are as large as the run itself
    first = (run.first - run.arrival)[mine]
    found["ttft_s"] = figures(first.copy())
    wait = (run.admitted - run.arrival)[mine] - request_time
    wait[wait <= _ROUNDING] = 0.0
    first -= wait
    found["queue_s"] = figures(wait)
    del wait
    found["ttft_no_queue_s"] = figures(first)
    del first
    return {"ttft_s": found["ttft_s"], "ttft_no_queue_s": found["ttft_no_queue_s"],
            "queue_s": found["queue_s"], "tpot_s": found["tpot_s"], "itl_s": itl,
            "e2e_s": figures((run.finish - run.arrival)[mine])}


def span(run: Run) -> tuple[float, float]:
    """The window [s], or all of the run where nothing is cut."""
    low, high = run.window
    if not np.isfinite(low):
        low, high = float(run.arrival.min()), float(run.finish.max())
    return low, high


def served_span(run: Run) -> tuple[float, float]:
    """The time [s] that throughput and occupancy are of: the window, where answers keep up with it.

    Where more than a tenth of the answers come after the last arrival, the arrivals' window holds
    the filling of the batch: there it is from the first tenth of the answers to the last.
    """
    n = len(run.finish)
    late = np.count_nonzero(run.finish > run.arrival[-1])
    if run.concurrency is not None or n < FEWEST or late <= CUT * n:
        return span(run)
    ends = np.sort(run.finish)
    low, high = float(ends[int(CUT * n)]), float(ends[math.ceil((1.0 - CUT) * n) - 1])
    return (low, high) if high > low else (float(run.arrival.min()), float(ends[-1]))


def within(run: Run, slo: Slo) -> Array:
    """Requests that meet every target; with one output token there is no TPOT to miss."""
    good = np.ones(len(run.arrival), dtype=bool)
    if slo.ttft is not None:
        good &= run.first - run.arrival <= slo.ttft
    if slo.tpot is not None:
        good &= ~(tpot(run) > slo.tpot)
    return good


def rates(run: Run, slo: Slo) -> dict[str, float | None]:
    """Tokens and requests a second that ended in the time served; goodput: within the targets."""
    low, high = served_span(run)
    ended = (run.finish > low) & (run.finish <= high)       # n answers after one take n gaps
    time, good = high - low, within(run, slo)
    if time <= 0.0:
        return dict.fromkeys(("requests_per_s", "output_tokens_per_s", "input_tokens_per_s",
                              "goodput_requests_per_s"))
    return {"requests_per_s": float(ended.sum() / time),
            "output_tokens_per_s": float(run.requests.output[ended].sum() / time),
            "input_tokens_per_s": float(run.requests.input[ended].sum() / time),
            "goodput_requests_per_s": float((ended & good).sum() / time)}


def attainment(run: Run, slo: Slo) -> float | None:
    """Share of the requests in the window that meet every target; None without targets."""
    if slo.ttft is None and slo.tpot is None:
        return None
    mine = inside(run)
    return float(within(run, slo)[mine].mean()) if mine.any() else None


def queue_growth(run: Run) -> tuple[float, int]:
    """(growth of the queue in the window as a share of its arrivals, queue at the end of it)."""
    low, high = span(run)
    if run.concurrency is not None:
        return 0.0, 0
    high = min(high, float(run.arrival[-1]))
    arrived = np.searchsorted(run.arrival, [low, high], "right")
    admitted = np.searchsorted(np.sort(run.admitted), [low, high], "right")
    queue = arrived - admitted
    return float((queue[1] - queue[0]) / max(arrived[1] - arrived[0], 1)), int(queue[1])


def has_rate(run: Run) -> bool:
    """Whether the arrivals are enough, and apart, so that they have a rate; users always do."""
    return run.concurrency is not None or (
        len(run.arrival) >= FEWEST and run.requests.duration > 0.0)


def keeps_up(run: Run, utilisation: float | None) -> bool:
    """Whether the queue has a steady state: arrivals below the largest rate, and it doesn't grow.

    A percentile of a queue that grows says only how long one has watched.
    """
    if run.concurrency is not None or not has_rate(run):
        return True
    load = 0.0 if utilisation is None else utilisation
    growth, queue = queue_growth(run)
    grows = growth > (GROWTH if load > NEAR else ANY_GROWTH) and queue >= QUEUE
    return load < 1.0 and not grows


def busy_shares(run: Run) -> dict[str, float]:
    """Shares of the whole run that replicas prefill, decode, do both in one step, swap, and idle.

    Of one pool; a prefill pool of its own is counted apart.
    """
    end = max(r.t for r in run.replicas)
    begin = float(run.arrival.min())
    whole = (end - begin) * len(run.replicas)
    found = {k: sum(r.busy[k] for r in run.replicas) / whole for k in run.replicas[0].busy}
    found["idle"] = max(1.0 - sum(found.values()), 0.0)
    if run.prefill_replicas:
        found["prefill_pool"] = (sum(sum(r.busy.values()) for r in run.prefill_replicas)
                                 / ((end - begin) * len(run.prefill_replicas)))
    return {k: float(v) for k, v in found.items()}


def occupancy(run: Run) -> dict[str, float]:
    """Mean and largest share of KV blocks, mean sequences and queue of a replica.

    Time integrals over the time served. Little's law: running + waiting = rate x E2E, waiting =
    rate x queue; in a closed loop together the users. Of pools: all in flight, for each decode
    instance.
    """
    low, high = served_span(run)
    time = (high - low) * len(run.replicas)
    blocks = sum(r.memory.blocks for r in run.replicas)
    used = sum(float(np.diff(r.blocks_in_use(np.array([low, high])))[0]) for r in run.replicas)
    waiting = overlap(run.arrival + run.request_time, run.admitted, low, high)
    waiting += sum(overlap(np.array(r.out_from), np.array(r.out_to), low, high)
                   for r in (*run.replicas, *run.prefill_replicas))
    whole = overlap(run.arrival, run.finish, low, high)
    return {"kv_mean": used / ((high - low) * blocks),
            "kv_max": max(r.most_blocks / r.memory.blocks for r in run.replicas),
            "running_mean": (whole - waiting) / time, "waiting_mean": waiting / time}


def overlap(begin: Array, end: Array, low: float, high: float) -> float:
    """Time [s] that all of begin..end have in common with low..high, summed."""
    return float(np.sum(np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0.0)))


def load_over(run: Run, times: Array) -> tuple[Array, Array, Array]:
    """(running, waiting, share of the KV blocks) of all replicas at ascending times [s].

    The share of the blocks is the mean up to the next time.
    """
    def there(begin: Array, end: Array) -> Array:
        keep = end > begin
        return np.asarray(np.searchsorted(np.sort(begin[keep]), times, "right")
                          - np.searchsorted(np.sort(end[keep]), times, "right"), dtype=float)

    waiting = there(run.arrival + run.request_time, run.admitted)
    for r in (*run.replicas, *run.prefill_replicas):
        waiting = waiting + there(np.array(r.out_from), np.array(r.out_to))
    used = np.sum([np.diff(r.blocks_in_use(times)) for r in run.replicas], axis=0) / np.diff(times)
    share = used / sum(r.memory.blocks for r in run.replicas)
    return there(run.arrival, run.finish) - waiting, waiting, np.append(share, share[-1:])


__all__ = ["SHARES", "Slo", "attainment", "busy_shares", "figures", "has_rate", "inside",
           "keeps_up", "latencies", "load_over", "occupancy", "overlap", "queue_growth", "rates",
           "served_span", "span", "tpot", "within"]
