"""What a machine can do, part by part: bandwidth over sizes, products, attention, passes, floors.

Each function times one kernel as the executor calls it and returns plain numbers [s], [bytes/s].
A model never calls the same kernel on the same weights twice in a row: threads have left the one
before, and its data have left the nearest caches. So each call goes to another copy, with another
small kernel in between. Hot copies together fill half of the last-level cache, cold copies are
several times larger than it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from itertools import cycle
from pathlib import Path
from typing import ParamSpec

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from simulator.executor.attention import CoreAttention, rotate
from simulator.executor.cache import Step, layer_cache
from simulator.executor.modules import Norm, Numerics, linear
from simulator.executor.recurrent import Mamba2Layer
from simulator.executor.timing import time_calls
from simulator.specs.model import Mamba2

P = ParamSpec("P")
# Bytes that cold copies fill at least, and several times the last-level cache; hot ones where no
# cache was found.
COLD_BYTES, COLD_CACHES = 192 * 2**20, 4
HOT_BYTES = 2**20
# A single call is repeated until it took this long, and not more often than that.
SECONDS, REPEATS = 0.08, 1000


@dataclass(frozen=True)
class Bench:
    """Where to measure: a device, a number format, the bytes that hot and cold copies fill.

    least  shortest time that each kernel took so far [s]: what else a machine does only slows it
    again  longer over shorter time of kernels that were measured twice
    """

    device: torch.device
    dtype: torch.dtype
    hot: int = HOT_BYTES
    cold: int = COLD_BYTES
    seconds: float = SECONDS
    least: dict[tuple[object, ...], float] = field(default_factory=dict)
    again: list[float] = field(default_factory=list)

    def time(self, call: Callable[[], object]) -> float:
        """Median seconds of a call that follows another kernel."""
        x = self.random(4, 256)
        return time_calls(call, self.device, REPEATS, 3, self.seconds,
                          lambda: F.rms_norm(x, (256,))).median

    def alone(self, call: Callable[[], object]) -> float:
        """Median seconds of a call again and again."""
        return time_calls(call, self.device, REPEATS, 2, self.seconds).median

    def random(self, *size: int) -> Tensor:
        """Normal values of this format."""
        return torch.randn(*size, device=self.device).to(self.dtype)

    def copies(self, make: Callable[[], Tensor], hot: bool) -> Iterator[Tensor]:
        """Copies of a tensor, round and round: as many as a cache holds, or far too many."""
        first = make()
        size = first.numel() * first.element_size()
        count = max(self.hot // size, 1) if hot else max(2, -(-self.cold // size))
        return cycle([first, *(first.clone() for _ in range(count - 1))])


def cache_sizes(device: torch.device, threads: int) -> list[tuple[str, int]]:
    """(name, bytes) of the caches that `threads` cores use together, from the smallest on.

    As the system describes them; level 1 is left out, it is too small for any weight.
    """
    if device.type == "cuda":
        size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)
        return [("L2", int(size))] if size else []
    found: dict[tuple[int, str], int] = {}
    for cpu in sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*"))[:threads]:
        for index in cpu.glob("cache/index[0-9]*"):
            try:
                level = int((index / "level").read_text())
                shared = (index / "shared_cpu_list").read_text().strip()
                size = (index / "size").read_text().strip()
                if level > 1 and size.endswith("K"):
                    found[level, shared] = int(size[:-1]) * 1024
            except (OSError, ValueError):
                continue
    levels = sorted({level for level, _ in found})
    return [(f"L{n}", sum(v for (level, _), v in found.items() if level == n)) for n in levels]


def _least(measure: Callable[P, float]) -> Callable[P, float]:
    """Measured again, a kernel takes the shorter of its times."""
    @wraps(measure)
    def timed(*args: P.args, **more: P.kwargs) -> float:
        bench, *size = args
        assert isinstance(bench, Bench)
        key, now = (measure.__name__, *size), measure(*args, **more)
        if key in bench.least:
            bench.again.append(max(now / bench.least[key], bench.least[key] / now))
        bench.least[key] = min(now, bench.least.get(key, now))
        return bench.least[key]
    return timed


@_least
def read(bench: Bench, size: int) -> float:
    """Seconds of summing `size` bytes again and again: a sweep through them."""
    data = torch.ones(max(size // 4, 1), device=bench.device)
    return bench.alone(lambda: torch.sum(data))


@_least
def copy(bench: Bench, size: int) -> float:
    """Seconds of copying one half of `size` bytes to the other: as many read and written."""
    source = torch.ones(max(size // 8, 1), device=bench.device)
    target = torch.empty_like(source)
    return bench.alone(lambda: target.copy_(source))


@_least
def gemm(bench: Bench, m: int, k: int, n: int, hot: bool) -> float:
    """Seconds of (m, k) by (k, n) as the executor multiplies."""
    x = bench.random(m, k)
    weights = bench.copies(lambda: bench.random(n, k), hot)
    return bench.time(lambda: linear(x, next(weights)))


@_least
def prefill_attention(bench: Bench, S: int, heads: int, kv_heads: int, d: int) -> float:
    """Seconds of causal attention of S tokens."""
    q, k, v = (bench.random(1, h, S, d) for h in (heads, kv_heads, kv_heads))
    core = CoreAttention()
    return bench.time(lambda: core(q, k, v))


@_least
def decode_attention(bench: Bench, batch: int, N: int, heads: int, kv_heads: int, d: int,
                     hot: bool) -> float:
    """Seconds of one query a sequence over N cached tokens."""
    q, core = bench.random(batch, heads, 1, d), CoreAttention()
    caches = bench.copies(lambda: bench.random(2, batch, kv_heads, N, d), hot)

    def call() -> object:
        pair = next(caches)
        return core(q, pair[0], pair[1])

    return bench.time(call)


@_least
def scan(bench: Bench, batch: int, S: int, heads: int, d: int, state: int) -> float:
    """Seconds of a Mamba-2 layer but for its projections, S tokens behind a state."""
    spec = Mamba2(heads=heads, head_dim=d, state=state, groups=1, conv=4)
    layer = Mamba2Layer(spec, 1, Numerics()).to(bench.device, bench.dtype).requires_grad_(False)
    for p in layer.parameters():
        p.zero_()
    x = bench.random(batch, S, 1)
    kept = layer_cache(spec, 1, batch, S, bench.dtype, bench.device)
    return bench.time(lambda: layer(x, Step(0, None, {}, x), kept))


@_least
def norm(bench: Bench, rows: int, width: int) -> float:
    """Seconds of an RMS norm of `rows` tokens."""
    layer = Norm(width, 1e-5).to(bench.device, bench.dtype).requires_grad_(False)
    x = bench.random(rows, width)
    return bench.time(lambda: layer(x))


@_least
def rope(bench: Bench, tokens: int, heads: int, kv_heads: int, d: int) -> float:
    """Seconds of turning q and k of `tokens` tokens, and writing k and v to the cache."""
    both = bench.random(1, tokens, heads + 2 * kv_heads, d)
    table = {d: (bench.random(tokens, d), bench.random(tokens, d))}
    k_cache, v_cache = bench.random(1, kv_heads, tokens, d), bench.random(1, kv_heads, tokens, d)

    def call() -> None:
        q, k, v = both[:, :, :heads], both[:, :, heads:-kv_heads], both[:, :, -kv_heads:]
        rotate(q.transpose(1, 2), table, d)
        k_cache.copy_(rotate(k.transpose(1, 2), table, d))
        v_cache.copy_(v.transpose(1, 2))

    return bench.time(call)


@_least
def activation(bench: Bench, rows: int, width: int) -> float:
    """Seconds of silu(gate) * up."""
    both = bench.random(rows, 2 * width)

    def call() -> object:
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up

    return bench.time(call)


@_least
def addition(bench: Bench, rows: int, width: int) -> float:
    """Seconds of a residual addition."""
    x, y = bench.random(rows, width), bench.random(rows, width)
    return bench.time(lambda: x + y)


__all__ = ["Bench", "activation", "addition", "cache_sizes", "copy", "decode_attention", "gemm",
           "norm", "prefill_attention", "read", "rope", "scan"]
