"""How fast tokline is, as numbers and as ratios: `python tests/benchmarks/speed.py [--json]`.

Every rate is the best of several runs of one process on one core, in CPU time, so that neighbours
on the machine disturb it little. A row is a full estimate: every number of the JSON, written out
into a table. The ratio is the time of a sweep over that of a plain NumPy copy of its table.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from simulator import Deployment, Grid, Parallelism, Workload, sweep_chunks
from simulator.specs.catalogue import catalogue
from simulator.sweep_columns import Table, Text
from simulator.sweep_io import encode_csv, encode_jsonl
from simulator.sweeps import estimate_rows

MODELS = [
    "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b",
    "llama-3.1-405b", "llama-3.2-1b", "gpt2-xl", "mixtral-8x7b", "deepseek-v3", "qwen3-8b",
    "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-120b", "gpt-oss-20b", "gemma-3-27b", "falcon-7b",
    "kimi-k2",
]
CHIPS = [
    "a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-sxm-180gb", "l40s",
    "mn-core-l1400", "tpu-v5p", "mi300x", "l4", "a10",
]
FORMATS = ["own", "fp8", "int4-g128", "nvfp4"]


def _filled(kind: Any, wanted: list[str], count: int) -> list[str]:
    names = [n for n in wanted if n in catalogue(kind)]
    return (names + [n for n in catalogue(kind) if n not in names])[:count]


def open_grid(model: str, hardware: str, points: tuple[int, int, int]) -> Grid:
    """One model on one chip, over batch x input x output."""
    ends = ((1, 512), (128, 8192), (2, 1026))
    axes = [np.unique(np.linspace(a, b, n).round()) for (a, b), n in zip(ends, points, strict=True)]
    return Grid.of(model, hardware, *axes)


def mixed_grid(models: int = 20, chips: int = 20) -> Grid:
    """20 models x 20 chips x 4 formats x 625 workloads."""
    five = [[1, 4, 16, 64, 256], [128, 512, 2048, 8192, 32768], [2, 16, 64, 256, 1024]]
    batch = [b * m for b in five[0] for m in (1, 2, 3, 5, 7)]
    return Grid.of(_filled("models", MODELS, models), _filled("hardware", CHIPS, chips),
                   sorted(set(batch)), five[1], five[2], weights=FORMATS)


def written_out(table: Table) -> int:
    """Every column of a table as contiguous rows."""
    for name, column in table.columns.items():
        np.ascontiguousarray(table.flat(name))
        del column
    return table.rows


def sweep_all(grid: Grid) -> int:
    """All rows of a grid, block by block, each written out."""
    return sum(written_out(t) for t in sweep_chunks(grid))


def copy_seconds(grid: Grid) -> float:
    """CPU time of a NumPy copy of the grid's whole result table, from its first block."""
    table = next(iter(sweep_chunks(grid))).flattened()
    columns = [np.array(c.codes if isinstance(c, Text) else c) for c in table.columns.values()]
    seconds, _ = best(lambda: len([c.copy() for c in columns]), 5)
    return seconds * grid.rows / table.rows


def best(work: Callable[[], int], runs: int = 7) -> tuple[float, int]:
    """Least CPU seconds of several runs, and what a run returned."""
    least, found = float("inf"), 0
    for _ in range(runs):
        began = time.process_time()
        found = work()
        least = min(least, time.process_time() - began)
    return least, found


def rates() -> dict[str, dict[str, float]]:
    """Rows a second of the four cases, and their ratios to a copy."""
    found: dict[str, dict[str, float]] = {}
    for name, grid in (("open grid, dense pair", open_grid("llama-3.1-8b", "h100", (100, 50, 50))),
                       ("open grid, DeepSeek-V3", open_grid("deepseek-v3", "8xh200",
                                                            (100, 50, 50))),
                       ("mixed grid", mixed_grid())):
        seconds, rows = best(lambda grid=grid: sweep_all(grid))  # type: ignore[misc]
        found[name] = {"rows": rows, "seconds": seconds, "rows_per_s": rows / seconds,
                       "times_a_copy": seconds / copy_seconds(grid)}
    rng, n = np.random.default_rng(0), 250_000
    rows_of = Workload(rng.integers(1, 513, n), rng.integers(128, 8193, n),
                       rng.integers(2, 1025, n))
    d = Deployment.of("llama-3.1-8b", "h100", parallelism=Parallelism())
    seconds, rows = best(lambda: written_out(estimate_rows(d, rows_of)))
    table = [np.zeros(n) for _ in range(75)]
    copied, _ = best(lambda: len([c.copy() for c in table]), 5)
    found["unrelated random rows, dense pair"] = {
        "rows": rows, "seconds": seconds, "rows_per_s": rows / seconds,
        "times_a_copy": seconds / copied}
    return found


def writing() -> dict[str, dict[str, float]]:
    """Time to turn a table into text, over the time of its sweep."""
    grid = open_grid("llama-3.1-8b", "h100", (60, 40, 40))
    swept, _ = best(lambda: sweep_all(grid), 5)
    tables = list(sweep_chunks(grid))
    found = {}
    for name, encode in (("csv", encode_csv), ("jsonl", encode_jsonl)):
        seconds, size = best(lambda encode=encode: sum(  # type: ignore[misc]
            len(encode(t)) for t in tables), 2)
        found[name] = {"seconds": seconds, "bytes": size, "rows_per_s": grid.rows / seconds,
                       "times_the_sweep": seconds / swept}
    return found


def cold_start(runs: int = 21) -> dict[str, dict[str, float]]:
    """Wall and CPU time from nothing, interleaved, as ratio of medians to `import numpy`."""
    tokline = str(Path(sysconfig.get_path("scripts")) / "tokline")
    estimate = [tokline, "estimate", "llama-2-7b"]
    commands = {"import numpy": [sys.executable, "-c", "import numpy"],
                "estimate --json": [*estimate, "a100-sxm4-80gb", "--json"],
                "estimate --json (alias a100)": [*estimate, "a100", "--json"],
                "--help": [tokline, "--help"]}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as compiled:
        environment = dict(os.environ, PYTHONPYCACHEPREFIX=compiled)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for i in range(runs + 1):  # the first compiles
            for name, command in commands.items():
                before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=True)
                wall = time.perf_counter() - began
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                if i:
                    taken[name].append((wall, cpu))
    middle = {n: [statistics.median(t[k] for t in v) for k in (0, 1)] for n, v in taken.items()}
    base = middle["import numpy"]
    return {n: {"wall_s": wall, "cpu_s": cpu, "wall_ratio": wall / base[0],
                "cpu_ratio": cpu / base[1]} for n, (wall, cpu) in middle.items()}


def profile(grid: Grid) -> list[tuple[str, float]]:
    """Share of a sweep's time spent in each module itself."""
    profiler = cProfile.Profile()
    profiler.enable()
    sweep_all(grid)
    profiler.disable()
    shares: dict[str, float] = {}
    stats: Any = pstats.Stats(profiler)
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():
        place = Path(file).name if "simulator" in file else (
            "numpy" if "numpy" in file or "numpy" in name else "python")
        shares[place] = shares.get(place, 0.0) + own
    total = sum(shares.values())
    return sorted(((n, s / total) for n, s in shares.items()), key=lambda p: -p[1])[:8]


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-cold-start", action="store_true")
    asked = parser.parse_args()
    found: dict[str, Any] = {"rates": rates(), "writing": writing()}
    if not asked.no_cold_start:
        found["cold_start"] = cold_start()
    found["profile"] = {"open grid, dense pair": profile(open_grid(
        "llama-3.1-8b", "h100", (100, 50, 50))), "mixed grid": profile(mixed_grid())}
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{'case':36} {'rows':>9} {'rows/s':>12} {'x a NumPy copy':>15}")
    for name, r in found["rates"].items():
        print(f"{name:36} {r['rows']:9,} {r['rows_per_s']:12,.0f} {r['times_a_copy']:15.1f}")
    print(f"\n{'writing':36} {'MB':>9} {'rows/s':>12} {'x the sweep':>15}")
    for name, r in found["writing"].items():
        print(f"{name:36} {r['bytes'] / 1e6:9,.0f} {r['rows_per_s']:12,.0f} "
              f"{r['times_the_sweep']:15.1f}")
    if "cold_start" in found:
        print(f"\n{'cold start':36} {'wall ms':>9} {'CPU ms':>12} {'x import numpy':>15} (CPU)")
        for name, r in found["cold_start"].items():
            print(f"{name:36} {r['wall_s'] * 1e3:9.0f} {r['cpu_s'] * 1e3:12.0f} "
                  f"{r['wall_ratio']:15.2f} ({r['cpu_ratio']:.2f})")
    for name, shares in found["profile"].items():
        print(f"\nwhere the time goes, {name}")
        for place, share in shares:
            print(f"  {place:34} {share:9.0%}")


if __name__ == "__main__":
    main()
