"""What a sweep prints instead of its table: the Pareto front and the best rows for a goal.

Both are kept up to date block by block in bounded memory, and can be saved and taken up again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulator.errors import InputError
from simulator.pareto import pareto_mask
from simulator.sweep_columns import (
    COLUMNS,
    SMALLER_IS_BETTER,
    TEXTS,
    Table,
    Text,
    column_name,
    join,
)

GOAL = "output_tokens_per_s_per_device"
OBJECTIVES = ("tokens_per_s_per_user", "output_tokens_per_s_per_device")
SHOWN = ("model", "hardware", "devices", "engine", "weights", "kv", "tp", "pp", "ep", "cp", "dp",
         "batch", "input", "output", "ttft_s", "tpot_s", "tokens_per_s_per_user",
         "output_tokens_per_s", "output_tokens_per_s_per_device", "usd_per_million_output_tokens",
         "prefill_bound", "decode_bound", "total_bytes")

# Front rows that a new block is compared with before the exact front is worked out.
_PIVOTS = 8
_MOST_FRONT = 10_000


class Summary:
    """Counts, front and best rows of the blocks added so far."""

    def __init__(self, goal: str = GOAL, objectives: Sequence[str] = OBJECTIVES,
                 top: int = 10) -> None:
        self.goal = column_name(goal, "--goal")
        self.objectives = tuple(dict.fromkeys(column_name(o, "--pareto") for o in objectives))
        for name in (self.goal, *self.objectives):
            if name in TEXTS or name == "fits":
                raise InputError(f"--goal, --pareto: '{name}' is no number to compare")
        self.larger = [o not in SMALLER_IS_BETTER for o in self.objectives]
        self.top = top
        self.names = tuple(n for n in COLUMNS if n in (*SHOWN, self.goal, *self.objectives))
        self.kept = self.feasible = 0
        self.front: Table | None = None
        self.best: Table | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that a block must have to be added."""
        return ("fits", *self.names)

    def add(self, table: Table) -> None:
        """Take in the rows of one block."""
        fits = table.flat("fits")
        self.kept += table.rows
        self.feasible += int(np.count_nonzero(fits))
        if not fits.any():
            return
        self._add_best(table, fits)
        self._add_front(table, fits)

    def _cost(self, table: Table, name: str) -> Any:
        values = table.flat(name)
        return values if name in SMALLER_IS_BETTER else -values

    def _add_best(self, table: Table, fits: Any) -> None:
        if self.top < 1:
            return
        rows = _least(np.where(fits, self._cost(table, self.goal), np.nan), self.top)
        new = table.only(self.names).take(rows)
        both = new if self.best is None else join([self.best, new])
        order = np.argsort(self._cost(both, self.goal), kind="stable")
        self.best = both.take(order[:self.top])

    def _add_front(self, table: Table, fits: Any) -> None:
        costs = [self._cost(table, o) for o in self.objectives]
        possible = fits.copy()
        if self.front is not None and self.front.rows:
            known = [self._cost(self.front, o) for o in self.objectives]
            for i in np.unique(np.linspace(0, self.front.rows - 1, _PIVOTS).astype(int)):
                worse = np.ones(table.rows, dtype=bool)
                for cost, front in zip(costs, known, strict=True):
                    worse &= cost > front[i]
                possible &= ~worse
        rows = np.flatnonzero(possible)
        if not len(rows):
            return
        rows = rows[pareto_mask([c[rows] for c in costs], [False] * len(costs))]
        new = table.only(self.names).take(rows)
        both = new if self.front is None else join([self.front, new])
        costs = [self._cost(both, o) for o in self.objectives]
        on_front = both.take(pareto_mask(costs, [False] * len(costs)))
        order = np.lexsort(tuple(self._cost(on_front, o) for o in reversed(self.objectives)))
        self.front = on_front.take(order[:_MOST_FRONT])

    def saved(self) -> dict[str, Any]:
        """All of it as plain values, for the note beside an unfinished file."""
        return {"kept": self.kept, "feasible": self.feasible,
                "front": None if self.front is None else records(self.front),
                "best": None if self.best is None else records(self.best)}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up what `saved` gave."""
        self.kept, self.feasible = saved["kept"], saved["feasible"]
        self.front, self.best = (None if saved[k] is None else self._table(saved[k])
                                 for k in ("front", "best"))

    def _table(self, rows: list[dict[str, Any]]) -> Table:
        columns: dict[str, Any] = {}
        for name in self.names:
            values = [row[name] for row in rows]
            if name in TEXTS:
                index: dict[str, int] = {}
                codes = [-1 if v is None else index.setdefault(v, len(index)) for v in values]
                columns[name] = Text(np.array(codes, dtype=np.int64), tuple(index))
            elif all(isinstance(v, int) for v in values):
                columns[name] = np.array(values, dtype=np.int64)
            else:
                columns[name] = np.array([np.nan if v is None else v for v in values], dtype=float)
        return Table((len(rows),), columns)


def _least(values: Any, count: int) -> Any:
    """Places of the `count` least values that are numbers; of equal ones the first."""
    known = int(np.count_nonzero(~np.isnan(values)))
    if known > count:
        limit = np.partition(values, count - 1)[count - 1]  # NaN sorts last
        below = np.flatnonzero(values < limit)
        equal = np.flatnonzero(values == limit)[:count - len(below)]
        return np.sort(np.concatenate([below, equal]))
    return np.flatnonzero(~np.isnan(values))


def records(table: Table) -> list[dict[str, Any]]:
    """Rows as dictionaries; None where there is nothing to say."""
    lists = {}
    for name, column in table.columns.items():
        values = table.flat(name).tolist()
        if isinstance(column, Text):
            lists[name] = [column.words[c] if c >= 0 else None for c in values]
        else:
            lists[name] = [None if isinstance(v, float) and math.isnan(v) else v for v in values]
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
