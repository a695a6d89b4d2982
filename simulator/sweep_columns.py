"""The columns of a sweep: names as in the JSON of an estimate, flattened, all in SI units.

`tpot_s` is the expected value; `tpot_s_ceiling`, `tpot_s_low` and `tpot_s_high` stand beside it.
A column keeps the shape it naturally has (TTFT doesn't depend on the output length) until someone
needs its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.errors import InputError, nearest

if TYPE_CHECKING:
    from simulator.deployment import Workload
    from simulator.request import Estimate, Figure
    from simulator.step import PassTime

NO_ROOM = "does not fit in memory"
BOUNDS = ("memory", "compute", "network", "overhead", "")
CEILING_BOUNDS = ("memory", "compute", "")
_NONE = -1

IDENTITY = ("model", "hardware", "devices", "engine", "tp", "pp", "ep", "cp", "dp", "weights",
            "activations", "kv", "compute", "prefix_hit", "batch", "input", "output")
TIMES = ("ttft_s", "tpot_s", "e2e_s")
RATES = ("tokens_per_s_per_user", "output_tokens_per_s", "output_tokens_per_s_per_device",
         "request_output_tokens_per_s")
PER_TOKEN = ("energy_joules_per_output_token", "usd_per_million_output_tokens")
FIGURES = (*TIMES, *RATES, *PER_TOKEN)
_PARTS = ("compute", "memory", "network", "overhead")
_MEMORY = {
    "weights_bytes": "weights", "kv_bytes_per_token": "kv_per_token", "kv_bytes": "kv",
    "kv_bytes_ideal": "kv_ideal", "fixed_state_bytes": "fixed_state",
    "activation_bytes": "activations", "reserved_bytes": "reserved", "total_bytes": "total",
    "capacity_bytes": "capacity", "max_batch": "max_batch", "max_context": "max_context",
}
_POOL = {"kv_pool_bytes": "bytes", "kv_pool_block_size": "block_size", "kv_pool_blocks": "blocks",
         "kv_pool_tokens": "tokens", "kv_pool_max_concurrency": "max_concurrency"}
_ENDS = ("", "_ceiling", "_low", "_high")


def _phase_names(phase: str, utilisation: str) -> tuple[str, ...]:
    return (f"{phase}_flops", f"{phase}_bytes", f"{phase}_bound", f"{phase}_ceiling_bound",
            f"{phase}_{utilisation}", *(f"{phase}_{part}_share" for part in _PARTS))


COLUMNS = (
    *IDENTITY, "fits", "reason",
    *(name + end for name in FIGURES for end in _ENDS),
    *_phase_names("prefill", "mfu"), *_phase_names("decode", "mbu"), *_MEMORY, *_POOL, "basis",
)
TEXTS = frozenset({"model", "hardware", "engine", "weights", "activations", "kv", "compute",
                   "reason", "prefill_bound", "prefill_ceiling_bound", "decode_bound",
                   "decode_ceiling_bound", "basis"})
INTEGERS = frozenset({"devices", "tp", "pp", "ep", "cp", "dp", "batch", "input", "output"})
SMALLER_IS_BETTER = frozenset(
    [name + end for name in (*TIMES, *PER_TOKEN) for end in _ENDS] + ["devices", "total_bytes"])


def _aliases() -> dict[str, str]:
    """The JSON's own paths (`memory.total_bytes`, `ttft_s.low`) for the columns."""
    found = {f"{name}.{end[1:] or 'expected'}": name + end for name in FIGURES for end in _ENDS}
    found |= {f"{prefix}{end}": name + end for prefix, name in (
        ("prefill_time_s", "ttft_s"), ("decode_time_s", "tpot_s")) for end in _ENDS}
    found |= {"prefill.time_s": "ttft_s", "decode.time_s": "tpot_s"}
    for phase in ("prefill", "decode"):
        names = [c for c in COLUMNS if c.startswith(f"{phase}_")]
        found |= {f"{phase}.{c.removeprefix(phase + '_')}": c for c in names}
    for name in (*_MEMORY, "fits"):
        found |= {f"memory.{name}": name, f"memory_{name}": name}
    found |= {f"memory.kv_pool.{n.removeprefix('kv_pool_')}": n for n in _POOL}
    found |= {f"parallelism.{n}": n for n in ("tp", "pp", "ep", "cp", "dp")}
    found |= {f"workload.{n}": n for n in ("batch", "input", "output", "prefix_hit")}
    found |= {f"formats.{n}": n for n in ("weights", "activations", "kv", "compute")}
    return found


ALIASES = _aliases()
NAMES = (*COLUMNS, *ALIASES)


def column_name(name: str, where: str) -> str:
    """The column that a name or a path of the JSON means."""
    found = ALIASES.get(name, name)
    if found not in COLUMNS:
        raise InputError(f"{where}: unknown column '{name}'{nearest(name, NAMES)}")
    return found


def _rows(values: Any, shape: tuple[int, ...]) -> Any:
    """One value a row; twice as fast as a copy of `np.broadcast_to`."""
    values = np.asarray(values)
    if values.shape != shape:
        narrow, values = values, np.empty(shape, values.dtype)
        values[...] = narrow
    return values.reshape(-1)


@dataclass(frozen=True)
class Text:
    """A column of texts as whole numbers into a list of words; -1: nothing to say."""

    codes: Any
    words: tuple[str, ...]

    def equals(self, other: Text | str) -> Any:
        """Where the texts are equal."""
        if isinstance(other, str):
            matches = [i for i, word in enumerate(self.words) if word == other]
            return np.isin(self.codes, matches)
        index = {word: i for i, word in enumerate(self.words)}
        translation = np.array([index.get(word, -2) for word in other.words] + [-3])
        return np.asarray(self.codes) == translation[other.codes]

    def broadcast(self, shape: tuple[int, ...]) -> Any:
        """The codes of all rows."""
        return _rows(self.codes, shape)


@dataclass(frozen=True)
class Table:
    """Rows of a sweep; each column has the shape of the table or one that broadcasts to it."""

    shape: tuple[int, ...]
    columns: dict[str, Any] = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(np.prod(self.shape, dtype=np.int64))

    def natural(self, name: str) -> Any:
        """A column, or one by its path in the JSON, in the shape it has."""
        return self.columns[ALIASES.get(name, name)]

    def flat(self, name: str) -> Any:
        """One value a row; the codes of a text column."""
        column = self.natural(name)
        if isinstance(column, Text):
            return column.broadcast(self.shape)
        return _rows(column, self.shape)

    def flattened(self) -> Table:
        """The same rows with every column written out."""
        flat = {n: Text(self.flat(n), c.words) if isinstance(c, Text) else self.flat(n)
                for n, c in self.columns.items()}
        return Table((self.rows,), flat)

    def take(self, rows: Any) -> Table:
        """Some rows, by a mask or by numbers."""
        flat = {n: Text(self.flat(n)[rows], c.words) if isinstance(c, Text)
                else self.flat(n)[rows] for n, c in self.columns.items()}
        count = int(np.count_nonzero(rows)) if np.asarray(rows).dtype == bool else len(rows)
        return Table((count,), flat)

    def only(self, names: tuple[str, ...]) -> Table:
        """Some columns, in that order."""
        return Table(self.shape, {n: self.columns[n] for n in names})


def join(tables: list[Table]) -> Table:
    """The rows of all tables, one after the other."""
    if len(tables) == 1:
        return tables[0].flattened()
    rows = sum(t.rows for t in tables)
    # All numbers in one array: large enough for huge pages, which fill four times as fast.
    numbers = np.empty((len(tables[0].columns), rows))
    return Table((rows,), {n: _join_column(n, tables, place)
                           for n, place in zip(tables[0].columns, numbers, strict=True)})


def _join_column(name: str, tables: list[Table], place: Any) -> Any:
    """One column of all tables; one of float64 is written at its place."""
    first = tables[0].columns[name]
    if name not in TEXTS and all(np.ndim(t.columns[name]) == 0 for t in tables) and (
            len({str(t.columns[name]) for t in tables}) == 1):
        return first  # one value for all rows
    if name not in TEXTS:
        parts = [t.flat(name) for t in tables]
        return np.concatenate(parts, out=place if parts[0].dtype == place.dtype else None)
    index: dict[str, int] = {}
    parts = []
    for t in tables:
        words = t.columns[name].words
        translation = np.array([index.setdefault(w, len(index)) for w in words] + [_NONE])
        parts.append(translation[t.flat(name)])
    return Text(np.concatenate(parts), tuple(index))


def frame(table: Table) -> Any:
    """A pandas DataFrame; texts become categories."""
    import pandas as pd

    def values(name: str) -> Any:
        column = table.columns[name]
        if isinstance(column, Text):
            codes: Any = table.flat(name)
            return pd.Categorical.from_codes(codes, pd.Index(list(column.words), dtype=object))
        return table.flat(name)

    return pd.DataFrame({n: values(n) for n in table.columns}, copy=False)


def _figure(name: str, figure: Figure | None) -> Iterator[tuple[str, Any]]:
    """The four ends of a figure."""
    for end in _ENDS:
        yield name + end, np.nan if figure is None else getattr(figure, end[1:] or "expected")


def _where_it_fits(e: Estimate) -> Estimate:
    """The estimate with rates, energy and cost only where it fits: NaN elsewhere."""
    if bool(np.all(e.memory.fits)):
        return e
    stands, joules, usd = (np.where(e.memory.fits, 1.0, np.nan), e.energy_per_token,
                           e.usd_per_million_tokens)
    return replace(e, tpot=e.tpot.times(stands), e2e=e.e2e.times(stands),
                   energy_per_token=None if joules is None else joules.times(stands),
                   usd_per_million_tokens=None if usd is None else usd.times(stands))


def _bound(detail: PassTime) -> Any:
    """Index into BOUNDS of the largest part of the expected time."""
    largest: Any = detail.memory
    code: Any = np.int8(0)
    for i, part in enumerate((detail.compute, detail.network, detail.overhead), 1):
        larger = part > largest
        if larger is False or (np.ndim(larger) == 0 and not larger):
            continue
        code = np.where(larger, np.int8(i), code)
        largest = np.maximum(largest, part)
    return np.asarray(code)


def _phase(name: str, utilisation: str, detail: PassTime, used: Any,
           runs: Any) -> Iterator[tuple[str, Any]]:
    """FLOPs, bytes, bounds, utilisation and shares; nothing where the phase has no step."""
    def number(value: Any) -> Any:
        return value if runs is True else np.where(runs, value, np.nan)

    def code(value: Any) -> Any:
        return value if runs is True else np.where(runs, value, np.int8(_NONE))

    yield f"{name}_flops", number(detail.flops)
    yield f"{name}_bytes", number(detail.bytes)
    yield f"{name}_bound", Text(code(_bound(detail)), BOUNDS)
    by_compute = detail.ceiling_compute > detail.ceiling - detail.ceiling_compute
    yield f"{name}_ceiling_bound", Text(code(np.asarray(by_compute).view(np.int8)),
                                        CEILING_BOUNDS)
    yield f"{name}_{utilisation}", number(used)
    for part in _PARTS:
        yield f"{name}_{part}_share", number(getattr(detail, part) / detail.expected)


def estimate_columns(e: Estimate, w: Workload) -> dict[str, Any]:
    """Every number of an estimate's JSON but lists, in the shape it has.

    Rates, energy and cost are NaN where it doesn't fit, decode where there is no step after the
    first token.
    """
    fits, d = e.memory.fits, e.deployment
    runs = True if bool(np.all(np.asarray(w.output) > 1)) else np.asarray(w.output) > 1
    found: dict[str, Any] = {
        "fits": np.asarray(fits),
        "reason": Text(np.where(fits, np.int8(_NONE), np.int8(0)), (NO_ROOM,)),
    }
    for name, figure in zip(TIMES, (e.ttft, e.tpot, e.e2e), strict=True):
        found.update(_figure(name, figure))
    shown = _where_it_fits(e)
    total = shown.output_tokens_per_s
    rates = (shown.tokens_per_s_per_user, total,
             total if d.devices == 1 else shown.tpot.rate(w.batch / d.devices),
             shown.request_output_tokens_per_s, shown.energy_per_token,
             shown.usd_per_million_tokens)
    for name, rate in zip((*RATES, *PER_TOKEN), rates, strict=True):
        found.update(_figure(name, rate))
    found.update(_phase("prefill", "mfu", e.prefill.detail, e.prefill.utilisation, True))
    found.update(_phase("decode", "mbu", e.decode.detail, e.decode.utilisation, runs))
    found.update((name, getattr(e.memory, key)) for name, key in _MEMORY.items())
    found.update((name, getattr(e.memory.pool, key)) for name, key in _POOL.items())
    return found


def empty_columns(reason: str) -> dict[str, Any]:
    """The columns of a cell that can't be: no numbers, and the reason."""
    values = {n: Text(np.int8(_NONE), ()) if n in TEXTS else np.float64(np.nan)
              for n in COLUMNS if n not in IDENTITY}
    return values | {"fits": np.bool_(False), "reason": Text(np.int8(0), (reason,))}

