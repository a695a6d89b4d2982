"""Measure this machine: bandwidth through its caches, products, attention, passes, floors.

What is found goes into a hardware file (`machine`), every number measured and dated, and
`estimate` uses it like any other. No model of the catalogue is run: what is predicted afterwards
was not seen before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from simulator.arrays import Array
from simulator.executor import microbenchmarks as bench
from simulator.executor.machine import (
    Kernel,
    Machine,
    machine_dict,
    machine_lines,
    machine_yaml,
)
from simulator.executor.measure import find_dtype
from simulator.executor.microbenchmarks import Bench
from simulator.executor.timing import (
    environment,
    find_device,
    free_memory,
    set_threads,
    settle,
)
from simulator.measured_clock import with_starts
from simulator.operations.ssm import scan_flops

Progress = Callable[[str], None]

# Sizes [bytes] of the sweep through the caches, and what counts as memory: the largest of them.
SIZES = tuple(2**i for i in range(16, 30))
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
# Inner length and width of the products that are timed with their weights in a cache.
# Not powers of two: libraries are up to 1.4 times as fast at those as at the widths of models.
PRODUCTS = ((320, 384), (448, 832), (704, 1216), (1088, 704), (832, 1792))
# Inner lengths that tell what the start of an inner product costs, at a width that all share.
INNER, INNER_ROWS, INNER_WIDTH = (256, 512, 1024, 2048), (16, 96), 1536
# The product that shows the best rate.
LARGEST = (1024, 4096, 1536)
# Products with their weights in memory, of the sizes that layers stream. From this number of rows
# on it makes no difference.
COLD_PRODUCTS, COLD_ROWS = ((1152, 832), (704, 2432), (832, 4480)), 256
QUERIES = (8, 32, 128, 256, 512, 1024, 2048)
GROUPS = (1, 2, 4, 8)
HEAD, HEADS, KEYS, LONG_KEYS = 64, 8, 512, 2048
# Recurrences: sequences and tokens of each, over states of this size.
SCANS, SCAN_HEADS, STATE = ((8, 1), (1, 16), (1, 64), (1, 256), (1, 1024)), 16, 64
PASS_ROWS = (1, 4, 16, 64, 256, 1024)
PASS_WIDTH = 1024
# A product that would take longer than this [s] isn't timed: rates have settled long before.
LONGEST = 0.25
# Variance over inner lengths that a start must leave less of, to be one.
MATTERS = 0.6
# Times that everything is measured, minutes apart; the shorter time of each kernel counts.
ROUNDS = 2
# Timings of a format, about; those of long products take LONGEST each whatever the time allowed.
TIMINGS = 130.0
# Kernels that took so many times as long in one round as in the other, and the share of them from
# which on a machine is not to be trusted.
FAR, TOO_MANY = 1.5, 0.2
DISTURBED = "WARNING, something else ran on this machine"
STARTS = tuple(float(x) for x in (0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384))


def _curve(b: Bench, progress: Progress) -> tuple[tuple[float, float, float], ...]:
    largest = min(SIZES[-1], int(free_memory(b.device) / 4))
    sizes = [s for s in SIZES if s <= largest]
    progress(f"bandwidth of {len(sizes)} sizes up to {sizes[-1] / 2**20:,.0f} MiB")
    return tuple((float(s), s / bench.read(b, s), s / bench.copy(b, s)) for s in sizes)


def caches_of(curve: Sequence[tuple[float, float, float]], known: Sequence[tuple[str, int]]
              ) -> tuple[float, tuple[tuple[str, float, float], ...]]:
    """(bandwidth of memory, caches as name, capacity, bandwidth) from a sweep over sizes.

    Memory is what the largest sizes reach. A cache holds the largest size that is still read
    nearer to the cache's own speed than to that of the next level, but no more than it has: a
    share of it may belong to other tenants of the machine.
    """
    sizes = np.array([s for s, _, _ in curve])
    speeds = np.array([max(read, copied) for _, read, copied in curve])
    last = known[-1][1] if known else 0
    far = sizes >= max(4 * last, sizes[-1] / 4) if np.any(sizes >= 4 * last) else sizes == sizes[-1]
    memory = float(np.max(speeds[far]))
    found: list[tuple[str, float, float]] = []
    below, slower = 0.0, memory
    smaller = [0, *(size for _, size in known)]
    for (name, size), before in reversed(list(zip(known, smaller[:-1], strict=True))):
        inside = (sizes <= max(size / 2, 1.5 * before)) & (sizes > max(before, size / 64))
        if not np.any(inside):
            continue
        speed = float(np.max(speeds[inside]))
        if speed < 1.15 * slower:
            continue
        holds = sizes[(sizes <= size) & (speeds >= math.sqrt(speed * slower))]
        found.insert(0, (name, float(np.max(holds)), speed))
        slower = speed
    caches = []
    for name, capacity, speed in found:
        if capacity > below:
            caches.append((name, capacity, speed))
            below = capacity
    return memory, tuple(caches)


def _products(b: Bench, name: str, progress: Progress) -> Kernel:
    """Rates of products by rows, the start of an inner product, and what cold weights add."""
    progress(f"{name}: products of {len(ROWS)} numbers of rows")
    tiny = bench.gemm(b, 1, 16, 16, True)
    start = _start(b, tiny)
    times: dict[int, list[tuple[float, float]]] = {}
    for k, n in PRODUCTS:
        per_row = 0.0
        for m in ROWS:
            if per_row * m > min(LONGEST, 3.0 * b.seconds):
                break
            seconds = bench.gemm(b, m, k, n, True)
            per_row = seconds / m
            times.setdefault(m, []).append((
                float(with_starts(2.0 * m * k * n, start, float(k))), seconds))
    lines = [floor_and_rate(points, tiny) for points in times.values()]
    rows, floors = tuple(float(m) for m in times), tuple(t for t, _ in lines)
    rates = tuple(rate for _, rate in lines)
    return Kernel("gemm", name, rows, rates, floor=tiny, start=start, floors=floors,
                  cold_rates=_cold_rates(b, rows, rates, floors, start))


def beyond(t: Array, floor: Array) -> Array:
    """max(t - t0, t/2): what a time t [s] has beyond its floor, at least half."""
    return np.maximum(t - floor, t / 2.0)


def floor_and_rate(points: Sequence[tuple[float, float]], least: float) -> tuple[float, float]:
    """(a [s], r) of t = a + F/r from (F, t): least squares of the relative errors.

    The floor lies between that of nothing to do and half of the shortest time.
    """
    F, t = (np.array(x) for x in zip(*points, strict=True))
    if len(F) > 1:
        (a, _), *_ = np.linalg.lstsq(np.stack([1.0 / t, F / t], axis=1), np.ones_like(t),
                                     rcond=None)
        least = float(np.clip(a, least, np.min(t) / 2.0)) if least < np.min(t) / 2.0 else least
    each = beyond(t, least) / F
    return least, 1.0 / math.exp(float(np.mean(np.log(each))))


def _cold_rates(b: Bench, rows: tuple[float, ...], rates: tuple[float, ...],
                floors: tuple[float, ...], start: float) -> tuple[float, ...]:
    """Rates of products whose weights come from memory, no faster than from a cache."""
    found: list[float] = []
    for m, rate, floor in zip(rows, rates, floors, strict=True):
        if m > COLD_ROWS or (found and found[-1] >= 0.98 * rate and m > 64):
            found.append(rate)
            continue
        times = [bench.gemm(b, int(m), k, n, False) for k, n in COLD_PRODUCTS]
        each = [beyond(t, floor) / float(with_starts(2.0 * m * k * n, start, float(k)))
                for t, (k, n) in zip(times, COLD_PRODUCTS, strict=True)]
        found.append(min(rate, 1.0 / math.exp(float(np.mean(np.log(each))))))
    return tuple(found)


def _peak(b: Bench, kernels: Sequence[Kernel]) -> float:
    """Best FLOP/s of a large product, or of any kernel at the sizes where it was timed."""
    m, k, n = LARGEST
    best = [2.0 * m * k * n / bench.gemm(b, m, k, n, True)]
    for kernel in kernels:
        inner = {"gemm": PRODUCTS[-1][0], "elementwise": 0}.get(kernel.kernel, HEAD)
        best += [r / (1.0 + kernel.start / inner) for r in kernel.rates if inner]
    return max(best)


def _start(b: Bench, floor: float) -> float:
    """s of t ~ F (1 + s/k): the start that makes all inner lengths equally fast, least squares."""
    found = []
    for m in INNER_ROWS:
        times = [(k, max(bench.gemm(b, m, k, INNER_WIDTH, True) - floor, 1e-9)) for k in INNER]
        found += [[math.log(t / float(with_starts(2.0 * m * k * INNER_WIDTH, s, float(k))))
                   for k, t in times] for s in STARTS]
    spread = [sum(float(np.var(found[i + j * len(STARTS)])) for j in range(len(INNER_ROWS)))
              for i in range(len(STARTS))]
    best = int(np.argmin(spread))
    return STARTS[best] if spread[best] < MATTERS * spread[0] else 0.0


def _attention(b: Bench, name: str, progress: Progress) -> list[Kernel]:
    """Rates of attention: of a prompt by its length, of one token by the heads that share K, V."""
    progress(f"{name}: attention of prompts and of single tokens")
    tiny = bench.prefill_attention(b, 2, 1, 1, 8)
    narrow = {S: bench.prefill_attention(b, S, HEADS, HEADS // 4, HEAD) for S in QUERIES}
    wide = bench.prefill_attention(b, 512, HEADS, HEADS // 4, 2 * HEAD)
    start = _of_ratio((wide - tiny) / (narrow[512] - tiny), HEAD)
    prefill = Kernel(
        "attention_prefill", name, tuple(float(S) for S in QUERIES),
        tuple(float(with_starts(2.0 * HEADS * HEAD * S * (S + 1.0), start, HEAD)
                    / beyond(t, tiny)) for S, t in narrow.items()), floor=tiny, start=start)

    def step(N: int, g: int, d: int, hot: bool) -> float:
        return bench.decode_attention(b, 1, N, 4 * g, 4, d, hot)

    tiny = bench.decode_attention(b, 1, 1, 1, 1, 8, True)
    hot = {g: step(KEYS, g, HEAD, True) for g in GROUPS}
    start = _of_ratio((step(KEYS, 4, 2 * HEAD, True) - tiny) / (hot[4] - tiny), HEAD)

    def rate(g: int, N: int, seconds: float) -> float:
        return float(with_starts(16.0 * g * N * HEAD, start, HEAD) / beyond(seconds, tiny))

    rates = tuple(rate(g, KEYS, t) for g, t in hot.items())
    cold = tuple(min(r, rate(g, LONG_KEYS, step(LONG_KEYS, g, HEAD, False)))
                 for g, r in zip(GROUPS, rates, strict=True))
    return [prefill, Kernel("attention_decode", name, tuple(float(g) for g in GROUPS), rates,
                            floor=tiny, start=start, cold_rates=cold)]


def _scan(b: Bench, name: str, progress: Progress) -> Kernel:
    """Rates of a recurrence by the tokens of a sequence, one token in a batch of several."""
    progress(f"{name}: recurrence over a state")
    tiny = bench.scan(b, 1, 1, 1, 8, 8)
    times = [(n, S, bench.scan(b, n, S, SCAN_HEADS, HEAD, STATE)) for n, S in SCANS]
    rates = tuple(float(scan_flops(n * S, SCAN_HEADS * HEAD, STATE) / beyond(t, tiny))
                  for n, S, t in times)
    return Kernel("ssm", name, tuple(float(S) for _, S, _ in times), rates, floor=tiny)


def _of_ratio(ratio: float, d: float) -> float:
    """s of (1 + s/d) d : (1 + s/2d) 2d = 1 : ratio, the start that a doubled head size tells."""
    if ratio >= 2.0:
        return 0.0
    return min(d * (2.0 - ratio) / max(ratio - 1.0, 0.1), 8.0 * d)


def _passes(b: Bench, name: str, progress: Progress) -> list[Kernel]:
    """Bytes/s of element-wise kernels by the bytes they touch, counted as the simulator counts."""
    progress(f"{name}: norms, rope, activations, additions")
    a, width = float(b.dtype.itemsize), PASS_WIDTH
    heads, kv_heads = width // HEAD, width // HEAD // 4
    kinds: dict[str, tuple[Callable[[int], float], float]] = {
        "norm": (lambda m: bench.norm(b, m, width), 2.0 * width * a),
        "activation": (lambda m: bench.activation(b, m, width), 3.0 * width * a),
        "rope": (lambda m: bench.rope(b, m, heads, kv_heads, HEAD),
                 (2.0 * (heads + kv_heads) + 2.0 * kv_heads) * HEAD * a),
        "other": (lambda m: bench.addition(b, m, width), 3.0 * width * a),
    }
    floors = {"norm": bench.norm(b, 1, 16), "activation": bench.activation(b, 1, 16),
              "rope": bench.rope(b, 1, 1, 1, 8), "other": bench.addition(b, 1, 16)}
    found = []
    for kind, (call, each) in kinds.items():
        sizes, times = [m * each for m in PASS_ROWS], no_longer_than_more(map(call, PASS_ROWS))
        floor = min(floors[kind], times[0])
        rates = tuple(Q / max(t - floor, t / 20.0) for Q, t in zip(sizes, times, strict=True))
        found.append(Kernel("elementwise", name, tuple(sizes), rates, operation=kind, floor=floor))
    return found


def no_longer_than_more(times: Iterable[float]) -> list[float]:
    """Times of growing work, none above that of more work: what else ran then is taken out."""
    return [float(t) for t in np.minimum.accumulate(list(times)[::-1])[::-1]]


def calibrate_machine(device: str, dtypes: Sequence[str], threads: int | None, minutes: float,
                      progress: Progress) -> Machine:
    """Everything about a device of this machine, in `minutes` of measuring at most or so."""
    formats = {name: find_dtype(name) for name in dtypes}
    place, used = find_device(device), set_threads(threads)
    settle(place, used)
    known = bench.cache_sizes(place, used)
    cold = max(bench.COLD_BYTES, bench.COLD_CACHES * (known[-1][1] if known else 0))
    single = min(bench.SECONDS, 60.0 * minutes / (TIMINGS * ROUNDS * max(len(dtypes), 1)))
    begin, sweep = time.perf_counter(), Bench(place, torch.float32, seconds=single)
    curve = _curve(sweep, progress)
    memory, caches = caches_of(curve, known)
    hot = int(caches[-1][1] / 2) if caches else bench.HOT_BYTES
    benches = {name: Bench(place, format_, hot, min(cold, int(free_memory(place) / 4)), single)
               for name, format_ in formats.items()}
    for turn in range(ROUNDS):
        if turn and time.perf_counter() - begin > 30.0 * minutes:
            break
        curve = _curve(sweep, progress) if turn else curve
        kernels = [k for name, b in benches.items() for k in (
            _products(b, name, progress), *_attention(b, name, progress),
            _scan(b, name, progress), *_passes(b, name, progress))]
    memory, caches = caches_of(curve, known)
    peaks = {name: _peak(b, [k for k in kernels if k.format == name])
             for name, b in benches.items()}
    machine = Machine(
        environment=environment(place), capacity=_capacity(place), curve=curve, bandwidth=memory,
        caches=caches, kernels=tuple(kernels), peaks=peaks,
        kernel_floor=min(k.floor for k in kernels if k.floor > 0),
        notes=disturbed([x for b in (sweep, *benches.values()) for x in b.again]))
    from simulator.executor.overheads import with_overheads

    return with_overheads(machine, benches, progress)


def disturbed(again: Sequence[float]) -> tuple[str, ...]:
    """What to say of a machine whose kernels took so many times as long in one of two rounds."""
    share = float(np.mean(np.asarray(again) > FAR)) if again else 0.0
    if share < TOO_MANY:
        return ()
    return (f"{DISTURBED}: {share:.0%} of {len(again)} kernels took more than {FAR:g} times as "
            "long when they were measured again; measure once more when nothing else runs",)


def _capacity(device: torch.device) -> float:
    """Bytes of memory of the device, all of it."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    import os

    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


__all__ = ["Kernel", "Machine", "caches_of", "calibrate_machine",
           "machine_dict", "machine_lines", "machine_yaml"]
