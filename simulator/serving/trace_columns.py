"""A trace file's columns as arrays: which of the known shapes it has, and every number in it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError, nearest
from simulator.serving.requests import Counts, Times, take_blocks

MOONCAKE_BLOCK: Final = 512
_MOST_TOKENS: Final = 1e9
_LOOKED_AT: Final = 1 << 26


@dataclass(frozen=True)
class Columns:
    """What a trace file says, row by row in its order; `arrival` [s] None: it says nothing."""

    arrival: Times | None
    input: Counts
    output: Counts
    blocks: Counts | None = None
    block_starts: Counts = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    block_tokens: int = 0
    notes: tuple[str, ...] = ()

    def take(self, index: NDArray[np.int64], notes: tuple[str, ...] = ()) -> Columns:
        """Some rows, in the order of `index`, with a note on why."""
        blocks, starts = take_blocks(self.blocks, self.block_starts, index)
        return replace(self, arrival=None if self.arrival is None else self.arrival[index],
                       input=self.input[index], output=self.output[index], blocks=blocks,
                       block_starts=starts, notes=self.notes + notes)

    def at(self, arrival: Times, notes: tuple[str, ...] = ()) -> Columns:
        """The same rows at other times."""
        return replace(self, arrival=arrival, notes=self.notes + notes)


@dataclass(frozen=True)
class Shape:
    """A CSV shape: its columns, and the unit of the arrival column (`date`, `s`, or none)."""

    name: str
    arrival: str | None
    unit: str
    input: str
    output: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read."""
        return (*(() if self.arrival is None else (self.arrival,)), self.input, self.output)


# The first shape whose columns are all there is taken, so lengths alone come last.
CSV_SHAPES: Final = (
    Shape("Azure", "timestamp", "date", "contexttokens", "generatedtokens"),
    Shape("BurstGPT", "timestamp", "s", "request tokens", "response tokens"),
    Shape("prefill and decode tokens", "arrived_at", "s", "num_prefill_tokens",
          "num_decode_tokens"),
    Shape("lengths alone", None, "", "num_prefill_tokens", "num_decode_tokens"),
)


class _Mooncake(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None


class _Toks(msgspec.Struct):
    input_toks: int
    output_toks: int
    arrival_time_ns: float


def read_csv(data: bytes, path: Path) -> Columns:
    """The columns of a CSV file, whatever of the known shapes it has."""
    import pandas as pd

    header = data.split(b"\n", 1)[0].decode(errors="replace").strip()
    names = [name.strip().strip('"').lower() for name in header.split(",")]
    shape = _shape_of(names, path)
    _check_fields(data, len(names), path)
    places = sorted(names.index(name) for name in shape.columns)
    try:
        table = pd.read_csv(io.BytesIO(data), usecols=places, skip_blank_lines=False,
                            encoding_errors="replace", low_memory=False, on_bad_lines="error")
    except pd.errors.ParserError as error:
        words = str(error).replace("Error tokenizing data. C error: ", "")
        raise InputError(f"trace '{path}': {words}") from None
    table.columns = pd.Index([names[i] for i in places])
    return _numbers(table, shape, names, path)


def _check_fields(data: bytes, fields: int, path: Path) -> None:
    """Refuse a line with more fields than the header, which pandas would silently cut."""
    text = np.frombuffer(data, dtype=np.uint8, count=min(len(data), _LOOKED_AT))
    if b'"' in data[:_LOOKED_AT]:
        return
    ends = np.flatnonzero(text == ord("\n"))
    commas = np.searchsorted(np.flatnonzero(text == ord(",")), ends)
    found = np.diff(commas, prepend=0) + 1
    if len(found) and found.max() > fields:
        line = int(np.argmax(found > fields))
        raise InputError(f"trace '{path}': line {line + 1:,} has {found[line]} fields, the header "
                         f"{fields}")


def _shape_of(names: Sequence[str], path: Path) -> Shape:
    for shape in CSV_SHAPES:
        if set(shape.columns) <= set(names):
            twice = [name for name in shape.columns if names.count(name) > 1]
            if twice:
                raise InputError(f"trace '{path}': the header names '{twice[0]}' twice")
            return shape
    closest = max(CSV_SHAPES, key=lambda s: len(set(s.columns) & set(names)))
    missing = [name for name in closest.columns if name not in names]
    if len(missing) < len(closest.columns):
        raise InputError(f"trace '{path}': no column '{missing[0]}', which a trace of shape "
                         f"'{closest.name}' has{nearest(missing[0], names)}")
    shapes = "; ".join(",".join(s.columns) for s in CSV_SHAPES)
    raise InputError(f"trace '{path}': the first line '{','.join(names)[:80]}' is the header of no "
                     f"known trace (known: {shapes}; or JSON lines)")


def _numbers(table: Any, shape: Shape, names: list[str], path: Path) -> Columns:
    """Arrays of the table's columns, without repeated headers, blank lines and a cut last line."""
    notes: list[str] = []
    blank = table.isna().all(axis=1).to_numpy()
    if blank.any():
        table = table[~blank]
    texts = [n for n in table.columns if table[n].dtype == object or str(table[n].dtype) == "str"]
    again = np.zeros(len(table), dtype=bool)
    for name in texts:
        again |= table[name].astype(str).str.strip().str.lower().to_numpy() == name
    if again.any():
        lines = table.index[again] + 2
        notes.append(f"the header stands again in line {lines[0]:,}: left out"
                     + (f", like {len(lines) - 1} more" if len(lines) > 1 else ""))
        table = table[~again]
    if not len(table):
        raise InputError(f"trace '{path}': has a header and no rows")
    columns: dict[str, NDArray[np.float64]] = {}
    for name in shape.columns:
        columns[name] = (_dates if name == shape.arrival and shape.unit == "date" else
                         _floats)(table[name])
    bad = np.zeros(len(table), dtype=bool)
    for values in columns.values():
        bad |= ~np.isfinite(values)
    if bad[-1] and not bad[:-1].any() and len(table) > 1:
        notes.append(f"the last line, {table.index[-1] + 2:,}, is cut short: left out")
        columns = {name: values[:-1] for name, values in columns.items()}
    _check(columns, shape.arrival, table, path)
    arrival = None if shape.arrival is None else columns[shape.arrival]
    return Columns(arrival, columns[shape.input].astype(np.int64),
                   columns[shape.output].astype(np.int64), notes=tuple(notes))


def _floats(column: Any) -> NDArray[np.float64]:
    import pandas as pd

    values: NDArray[np.float64] = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    return values


def _dates(column: Any) -> NDArray[np.float64]:
    """Seconds since the first of dates with up to nine fractional digits; NaN where none.

    Whole nanoseconds are subtracted before they become floats.
    """
    import pandas as pd

    dates = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
    stamps = dates.to_numpy(dtype="datetime64[ns]")
    known = ~np.isnat(stamps)
    if not known.any():
        return np.full(len(stamps), np.nan)
    since = (stamps - stamps[known].min()).astype(np.float64) / 1e9
    return np.where(known, since, np.nan)


def _check(columns: dict[str, NDArray[np.float64]], arrival: str | None, table: Any,
           path: Path) -> None:
    """Refuse what is no number, negative, or no whole number of tokens, with its line."""
    for name, values in columns.items():
        wrong = ~np.isfinite(values) | (values < 0.0)
        what = "negative"
        if name != arrival:
            wrong |= (values != np.floor(values)) | (values > _MOST_TOKENS)
            what = "a whole number of tokens"
        if not wrong.any():
            continue
        row = int(np.argmax(wrong))
        line, value, text = table.index[row] + 2, values[row], table[name].iloc[row]
        if not np.isfinite(value):
            is_empty = str(text).strip().lower() in ("nan", "", "nat")
            reason = "is empty or NaN" if is_empty else f"'{str(text)[:40]}' is not a number" + (
                " or date" if name == arrival else "")
        elif value < 0.0:
            reason = f"{text} is negative"
        else:
            reason = f"{text} is not {what} below 1e9"
        raise InputError(f"trace '{path}': line {line:,}: {name}: {reason}")


def read_jsonl(data: bytes, path: Path) -> Columns:
    """The columns of a file with one JSON object a line."""
    lines = data.splitlines()
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    first = _first_object(numbered[0][1], path)
    for kind in (_Mooncake, _Toks):
        needed = [f for f in kind.__struct_fields__ if f != "hash_ids"]
        if set(needed) <= set(first):
            break
    else:
        known = "timestamp, input_length, output_length; input_toks, output_toks, arrival_time_ns"
        missing = next((f for f in ("input_length", "output_length", "timestamp")
                        if f not in first), "input_length")
        raise InputError(f"trace '{path}': line {numbered[0][0]}: the keys {', '.join(first)} are "
                         f"those of no known trace (known: {known})"
                         f"{nearest(missing, first) if len(first) < 12 else ''}")
    rows, notes = _decoded(numbered, kind, path)
    return (_mooncake if kind is _Mooncake else _toks)(rows, notes, path)


def _first_object(line: bytes, path: Path) -> dict[str, Any]:
    try:
        first = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        first = None
    if isinstance(first, dict) and first:
        return first
    reason = ("is one JSON list; write one object a line" if line.startswith(b"[") else
              "line 1 is not a whole JSON object; one object a line is read")
    raise InputError(f"trace '{path}': {reason}")


def _decoded(numbered: list[tuple[int, bytes]], kind: Any,
             path: Path) -> tuple[list[Any], tuple[str, ...]]:
    """Every line as an object; a last line that is cut short is left out."""
    decode, rows = msgspec.json.Decoder(kind, strict=True).decode, []
    for i, line in numbered:
        try:
            rows.append(decode(line))
        except msgspec.ValidationError as error:
            raise InputError(f"trace '{path}': line {i:,}: {str(error).replace('`', '')}") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            if i == numbered[-1][0] and len(numbered) > 1:
                return rows, (f"the last line, {i:,}, is cut short: left out",)
            raise InputError(f"trace '{path}': line {i:,} is not a whole JSON object") from None
    return rows, ()


def _lengths(values: list[int], key: str, path: Path) -> Counts:
    found = np.array(values, dtype=np.float64)
    wrong = (found < 0.0) | (found > _MOST_TOKENS)
    if wrong.any():
        row = int(np.argmax(wrong))
        reason = "is negative" if found[row] < 0 else "is above 1e9"
        raise InputError(f"trace '{path}': object {row + 1:,}: {key}: {values[row]} {reason}")
    return found.astype(np.int64)


def _times(values: list[float], key: str, scale: float, path: Path) -> Times:
    found = np.array(values, dtype=np.float64)
    wrong = ~np.isfinite(found) | (found < 0.0)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"trace '{path}': object {row + 1:,}: {key}: {values[row]} is negative or "
                         "not finite")
    since: Times = (found - found.min()) * scale
    return since


def _mooncake(rows: list[_Mooncake], notes: tuple[str, ...], path: Path) -> Columns:
    arrival = _times([r.timestamp for r in rows], "timestamp", 1e-3, path)
    lengths = (_lengths([r.input_length for r in rows], "input_length", path),
               _lengths([r.output_length for r in rows], "output_length", path))
    if all(r.hash_ids is None for r in rows):
        return Columns(arrival, *lengths, notes=notes)
    ids = [r.hash_ids or [] for r in rows]
    counts = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
    try:
        flat = np.fromiter((x for one in ids for x in one), dtype=np.int64, count=counts.sum())
    except OverflowError:
        raise InputError(f"trace '{path}': hash_ids: an id is beyond 64 bits") from None
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Columns(arrival, *lengths, flat, starts, MOONCAKE_BLOCK, notes)


def _toks(rows: list[_Toks], notes: tuple[str, ...], path: Path) -> Columns:
    return Columns(_times([r.arrival_time_ns for r in rows], "arrival_time_ns", 1e-9, path),
                   _lengths([r.input_toks for r in rows], "input_toks", path),
                   _lengths([r.output_toks for r in rows], "output_toks", path), notes=notes)
