"""Sweeps: every estimate of a grid, in one table.

A block of the grid is one calculation: devices, batch, input and output lie along four axes and
NumPy broadcasting does the rest, so most operations are worked out on a small array. Blocks are
independent, so any executor may run them, in any order; results come back in the grid's order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar

import numpy as np

from simulator.deployment import Deployment, Workload
from simulator.efficiency.stacked import efficiency_of
from simulator.errors import InputError
from simulator.request import CHUNK, estimate
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.stack import UnstackableError, stack
from simulator.sweep_columns import (
    COLUMNS,
    INTEGERS,
    NAMES,
    TEXTS,
    Table,
    Text,
    column_name,
    empty_columns,
    estimate_columns,
    frame,
    join,
)
from simulator.sweep_grid import Block, Grid
from simulator.systems import check_links
from simulator.where import check_where, evaluate_where

MOST_TABLE_ROWS = 50_000_000
T = TypeVar("T")


def sweep(models: Any, hardware: Any, batch: Any = 1, input: Any = 1024, output: Any = 256,
          weights: Any = None, activations: Any = "bf16", kv: Any = None, engines: Any = "vllm",
          parallelism: Any = None, prefix_hit: float = 0.0, price: float | None = None,
          where: str | None = None, columns: Sequence[str] | None = None,
          executor: Executor | None = None) -> Any:
    """A pandas DataFrame with one row for every combination, `columns` as in the JSON.

    Each argument is one value or a list; `batch`, `input`, `output` also ranges (`"1:512:x2"`) and
    arrays. `weights` None is the model's own format. `parallelism` is a list of `Parallelism`,
    mappings or texts (`"tp=8,ep=8"`). Combinations that can't be stay, with `fits` False and a
    `reason`; `where` drops rows. For tables beyond memory use `sweep_chunks`.
    """
    grid = Grid.of(models, hardware, batch, input, output, weights, activations, kv, engines,
                   parallelism, prefix_hit, price)
    if where is None and grid.rows > MOST_TABLE_ROWS:
        raise InputError(f"the table would have {grid.rows:,} rows, the most is "
                         f"{MOST_TABLE_ROWS:,}: use sweep_chunks, `where`, or write to a file")
    tables: list[Table] = []
    kept = 0
    for table in sweep_chunks(grid, where, columns, executor):
        kept += table.rows
        if kept > MOST_TABLE_ROWS:
            raise InputError(f"more than {MOST_TABLE_ROWS:,} rows are kept: use sweep_chunks")
        tables.append(table)
    return frame(join(tables))


def sweep_chunks(grid: Grid, where: str | None = None, columns: Sequence[str] | None = None,
                 executor: Executor | None = None, start: int = 0) -> Iterator[Table]:
    """The table of a grid block by block, from block `start`, in bounded memory."""
    if where is not None:
        check_where(where, NAMES)
    names = COLUMNS if columns is None else tuple(column_name(c, "columns") for c in columns)
    yield from blocks(grid, partial(work, where=where, names=names), executor, start)


def blocks(grid: Grid, job: Callable[[Block], T], executor: Executor | None = None,
           start: int = 0) -> Iterator[T]:
    """What `job` makes of each block, in order; it must be picklable for an executor that is."""
    if executor is None:
        for index in range(start, grid.blocks):
            yield job(grid.block(index))
    else:
        yield from _spread(grid, job, executor, start)


def _spread(grid: Grid, job: Callable[[Block], T], executor: Executor,
            start: int) -> Iterator[T]:
    """Blocks on an executor, in order, at most a few in flight.

    What a broken executor or a lost worker didn't bring back is worked out here.
    """
    pending: deque[tuple[int, Future[T] | None]] = deque()
    workers = getattr(executor, "_max_workers", None)
    window = 2 * workers + 2 if isinstance(workers, int) and workers > 0 else 16
    alive, following = True, start
    try:
        while pending or following < grid.blocks:
            while following < grid.blocks and len(pending) < window:
                future = None
                if alive:
                    try:
                        future = executor.submit(job, grid.block(following))
                    except RuntimeError:  # a broken pool refuses work
                        alive = False
                pending.append((following, future))
                following += 1
            index, future = pending.popleft()
            yield _result(grid, index, future, job)
    finally:
        for _, future in pending:
            if future is not None:
                future.cancel()


def _result(grid: Grid, index: int, future: Future[T] | None, job: Callable[[Block], T]) -> T:
    if future is not None:
        try:
            return future.result()
        except InputError:
            raise
        except Exception:  # the worker or its pool died; a bug in the block shows again below
            pass
    return job(grid.block(index))


def estimate_rows(d: Deployment, w: Workload, price: float | None = None) -> Table:
    """All columns of one deployment under unrelated workloads: one row for each element of the
    one-dimensional arrays of `w`.
    """
    batch, prompt, output = (np.asarray(v, dtype=np.float64) for v in np.broadcast_arrays(
        w.batch, w.input, w.output))
    return join([_row_chunk(d, Workload(*(v[i:i + CHUNK] for v in (batch, prompt, output))), price)
                 for i in range(0, len(batch), CHUNK)])


def _row_chunk(d: Deployment, w: Workload, price: float | None) -> Table:
    with np.errstate(all="ignore"):
        e = estimate(d, w, price)
        columns = estimate_columns(e, e.workload)
    lengths = {"batch": w.batch, "input": w.input, "output": w.output}
    found = {n: v.astype(np.int64) for n, v in lengths.items()} | columns
    return Table((len(w.batch),), {n: _typed(n, found[n]) for n in COLUMNS if n in found})


def work(block: Block, where: str | None = None, names: tuple[str, ...] = COLUMNS) -> Table:
    """The rows of one block that meet `where`."""
    table = evaluate(block)
    if where is not None:
        mask = np.broadcast_to(evaluate_where(where, table.natural), table.shape).reshape(-1)
        table = table.only(names)
        return table if bool(mask.all()) else table.take(mask)
    return table if names is COLUMNS or names == COLUMNS else table.only(names)


def evaluate(block: Block) -> Table:
    """All rows of one block."""
    with np.errstate(all="ignore"):
        parts = _parts(block, list(range(len(block.hardware))))
    values = parts[0][1] if len(parts) == 1 else _merged(block, parts)
    values = _identity(block) | values
    return Table(block.shape, {name: _typed(name, values[name]) for name in COLUMNS})


def _typed(name: str, value: Any) -> Any:
    """Numbers as float64 whatever they came as, so that all blocks have the same types."""
    if name in TEXTS or name in INTEGERS or name == "fits":
        return value
    return np.asarray(value, dtype=np.float64)


Part = tuple[list[int], dict[str, Any]]


def _parts(block: Block, indices: list[int]) -> list[Part]:
    """Columns of devices, calculated together where they can, with their places on the axis."""
    try:
        return [(indices, _columns(block, indices))]
    except (UnstackableError, InputError) as error:
        if len(indices) == 1:
            return [(indices, _unnamed(block) | empty_columns(str(error)))]
        return [part for i in indices for part in _parts(block, [i])]


_STACKS: dict[tuple[int, ...], Hardware] = {}


def _device(members: tuple[Hardware, ...]) -> Hardware:
    """The members as one device, kept from block to block; a stack keeps its members alive, so
    that their ids stay their own.
    """
    key = tuple(map(id, members))
    if key not in _STACKS:
        if len(_STACKS) >= 256:
            _STACKS.clear()
        _STACKS[key] = stack(members, always=len(members) > 1 or bool(members[0].timed_ranges))
    return _STACKS[key]


def _columns(block: Block, indices: list[int]) -> dict[str, Any]:
    members = tuple(block.hardware[i] for i in indices)
    d = Deployment(block.model, _device(members), block.engine, block.weights, block.activations,
                   block.kv, parallelism=block.parallelism, prefix_hit=block.prefix_hit)
    check_links(d, implied=True)
    e = estimate(d, block.workload, block.price)
    compute = d.compute("ffn")
    return {
        "weights": Text(np.int8(0), (d.weight_format("ffn").name,)),
        "kv": Text(np.int8(0), (d.kv_format.name,)),
        "compute": _by_device([h.peak(compute)[1] for h in members]),
        "basis": _by_device([_level(h, d.engine) for h in members]),
    } | estimate_columns(e, e.workload)


def _level(hardware: Hardware, engine: Engine) -> str:
    return efficiency_of(hardware, engine).level


def _by_device(words: list[str]) -> Text:
    """A text column along the axis of devices."""
    index = {word: i for i, word in enumerate(dict.fromkeys(words))}
    codes = np.array([index[w] for w in words], dtype=np.int32)[:, None, None, None]
    return Text(codes if len(words) > 1 else codes.reshape(()), tuple(index))


def _unnamed(block: Block) -> dict[str, Any]:
    """Formats of a cell that can't be: as asked."""
    own = block.weights or block.model.formats.get("weights", "bf16")
    kv = block.kv or block.model.kv_format or block.activations
    return {"weights": Text(np.int8(0), (own,)), "kv": Text(np.int8(0), (kv,)),
            "compute": Text(np.int8(-1), ())}


def _identity(block: Block) -> dict[str, Any]:
    p, w = block.parallelism, block.workload
    found: dict[str, Any] = {
        "model": Text(np.int8(0), (block.model.name,)),
        "hardware": _by_device([h.name for h in block.hardware]),
        "engine": Text(np.int8(0), (block.engine.name,)),
        "activations": Text(np.int8(0), (block.activations,)),
        "prefix_hit": np.float64(block.prefix_hit),
    }
    numbers = {"devices": p.devices, "tp": p.tp, "pp": p.pp, "ep": p.ep, "cp": p.cp, "dp": p.dp,
               "batch": w.batch, "input": w.input, "output": w.output}
    return found | {n: np.asarray(v, dtype=np.int64) for n, v in numbers.items()}


def _merged(block: Block, parts: list[Part]) -> dict[str, Any]:
    """One set of columns from those of several groups of devices."""
    return {name: _merged_column(block, name, [(i, columns[name]) for i, columns in parts])
            for name in parts[0][1]}


def _merged_column(block: Block, name: str, parts: list[tuple[list[int], Any]]) -> Any:
    index: dict[str, int] = {}
    if name in TEXTS:
        coded = []
        for places, text in parts:
            table = np.array([index.setdefault(w, len(index)) for w in text.words] + [-1])
            coded.append((places, table[text.codes]))
        parts = coded
    shapes = [(1,) * (4 - np.ndim(v)) + np.shape(v) for _, v in parts]
    shape = (len(block.hardware), *(max(s[k] for s in shapes) for k in range(1, 4)))
    first = np.asarray(parts[0][1])
    merged = np.empty(shape, dtype=np.int64 if name in INTEGERS else first.dtype)
    for places, value in parts:
        merged[places] = value
    return Text(merged, tuple(index)) if name in TEXTS else merged


__all__ = ["Block", "Grid", "blocks", "estimate_rows", "evaluate", "sweep", "sweep_chunks", "work"]
