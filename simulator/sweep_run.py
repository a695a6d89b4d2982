"""Runs a whole sweep: to a file that can be taken up again, with a summary in bounded memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simulator.errors import InputError
from simulator.sweep_columns import COLUMNS, NAMES, Table, column_name
from simulator.sweep_grid import Block, Grid
from simulator.sweep_io import Output, output_to
from simulator.sweep_summary import Summary
from simulator.sweeps import blocks, work
from simulator.where import check_where


@dataclass(frozen=True)
class Result:
    """What a run did. `rows` of the grid, of which `worked_out` in this run of `wall` [s]."""

    summary: Summary
    rows: int
    worked_out: int
    wall: float
    resumed: bool
    already_whole: bool

    @property
    def rows_per_s(self) -> float:
        """Rows a second in this run; writing included."""
        return self.worked_out / self.wall


Progress = Callable[[int, int], None]


def run_sweep(grid: Grid, summary: Summary, where: str | None = None,
              path: str | None = None, columns: Sequence[str] | None = None,
              executor: Executor | None = None, overwrite: bool = False,
              progress: Progress = lambda done, rows: None) -> Result:
    """Every row of `grid` that meets `where`: into the file at `path`, and into the summary.

    `progress` is called with rows done and rows in all. A file that an earlier run of the same
    sweep left unfinished is completed; one that is already whole is left as it is.
    """
    began = time.perf_counter()
    if where is not None:
        check_where(where, NAMES)
    names = COLUMNS if columns is None else tuple(
        dict.fromkeys(column_name(c, "--columns") for c in columns))
    needed = tuple(n for n in COLUMNS if n in {*names, *summary.needs})
    output: Output | None = None
    resumed = whole = False
    if path is not None:
        file = Path(path)
        output, resumed = output_to(file, _fingerprint(grid, where, names), names, overwrite)
        if not resumed and file.exists():
            if not _is_whole(grid, where, needed, output):
                raise InputError(f"'{path}' already exists and is not a table of this sweep: use "
                                 "--overwrite to replace it, or another name")
            whole, output = True, None
        if output is not None:
            output.open(resumed)
    start = output.note.blocks if output is not None else 0
    if resumed and output is not None and output.note.summary is not None:
        summary.restore(output.note.summary)
    done = _add_all(grid, summary, where, needed, executor, start, output, progress)
    return Result(summary, grid.rows, done, time.perf_counter() - began, resumed, whole)


def _prepare(block: Block, where: str | None, names: tuple[str, ...],
             summary_names: tuple[str, ...], file_names: tuple[str, ...] | None,
             encode: Callable[[Table], bytes] | None) -> tuple[Table, Table | bytes]:
    """A block's columns for the summary, and its rows as the file takes them.

    Making text of numbers costs more than making the numbers, so the worker does it.
    """
    table = work(block, where, names)
    rows: Table | bytes = b""
    if file_names is not None:
        chosen = table.only(file_names)
        rows = chosen if encode is None else encode(chosen)
    return table.only(summary_names), rows


def _add_all(grid: Grid, summary: Summary, where: str | None, names: tuple[str, ...],
             executor: Executor | None, start: int, output: Output | None,
             progress: Progress) -> int:
    finished, done = False, 0
    file_names = None if output is None else output.names
    encode = None if output is None else output.encode
    job = partial(_prepare, where=where, names=names, summary_names=summary.needs,
                  file_names=file_names, encode=encode)
    skipped = sum(grid.block_size(i) for i in range(start))
    try:
        for index, (table, rows) in enumerate(blocks(grid, job, executor, start), start):
            summary.add(table)
            if output is not None:
                output.append(rows, summary.saved())
            done += grid.block_size(index)
            progress(skipped + done, grid.rows)
        finished = True
    finally:
        if output is not None:
            output.close(finished)
    return done


def _fingerprint(grid: Grid, where: str | None, names: tuple[str, ...]) -> str:
    return hashlib.sha256(repr((grid.fingerprint(), where, names)).encode()).hexdigest()


def _is_whole(grid: Grid, where: str | None, names: tuple[str, ...], output: Output) -> bool:
    first: Table = work(grid.block(0), where, names)
    last = first if grid.blocks == 1 else work(grid.block(grid.blocks - 1), where, names)
    return output.is_whole(first, last)
