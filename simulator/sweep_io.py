"""A sweep's table in a file: CSV, JSON lines or Parquet, written block by block.

Beside an unfinished FILE lies FILE.resume: which grid it is, and how many bytes of FILE are whole
blocks. It is replaced after each block, so a run that is cut off at any point is taken up again
from the last whole block, and whatever stands behind that in FILE is cut away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from simulator.errors import InputError
from simulator.sweep_columns import Table, Text

FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

# Text that can't stand in a cell, since it would be taken for the end of a row or for no value.
_NULL_MARK = b"\x00"

# Rows turned into Python objects at once: few enough to stay in a core's cache.
_AT_ONCE = 1024
_ENCODER = msgspec.json.Encoder()
_NOTHING = msgspec.Raw(b"")
_HIDE = bytes.maketrans(b"[]", b"\x01\x02")
_SHOW = bytes.maketrans(b"\x01\x02", b"[]")


def file_format(path: Path) -> str:
    """csv, jsonl or parquet, by the ending of the file's name."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise InputError(f"'{path}': end the name in {', '.join(FORMATS)}")
    if found == "parquet":
        import importlib.util

        if importlib.util.find_spec("pyarrow") is None:
            raise InputError(f"'{path}': Parquet needs pyarrow, pip install 'tokline[parquet]'")
    return found


def _csv_word(word: str) -> bytes:
    text = word.replace("\r", " ").replace("\n", " ")
    if any(c in text for c in ',"'):
        text = '"' + text.replace('"', '""') + '"'
    return text.encode().translate(_HIDE).replace(b"null", _NULL_MARK)


def _shape(column: Any, rank: int) -> tuple[int, ...]:
    shape: tuple[int, ...] = np.shape(column.codes if isinstance(column, Text) else column)
    return (1,) * (rank - len(shape)) + shape


def _csv_column(column: Any, shape: tuple[int, ...]) -> Any:
    """A column over `shape`, flat, with texts as they are written into a CSV."""
    if not isinstance(column, Text):
        return np.broadcast_to(column, shape).reshape(-1)
    words = _objects([msgspec.Raw(_csv_word(w)) for w in column.words] + [_NOTHING])
    return words[column.broadcast(shape)]


def _objects(values: list[Any]) -> Any:
    """An array of objects; NumPy would take the texts apart if it could."""
    array: Any = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def _groups(table: Table) -> list[tuple[list[str], tuple[int, ...]]]:
    """Neighbouring columns that vary along the same axes, with what they vary over."""
    groups: list[tuple[list[str], tuple[int, ...]]] = []
    for name, column in table.columns.items():
        shape = _shape(column, len(table.shape))
        if groups:
            names, before = groups[-1]
            both = np.broadcast_shapes(shape, before)
            if both in (shape, before) and 4 * int(np.prod(both)) <= table.rows:
                groups[-1] = ([*names, name], both)
                continue
        groups.append(([name], shape))
    return groups


def encode_csv(table: Table) -> bytes:
    """Rows as CSV, shortest digits that give the number back, nothing where there is no value.

    Columns that don't vary with every row are written once and repeated as text: that, and a JSON
    encoder in C for the rest, is what makes a CSV cheap.
    """
    parts: list[list[Any]] = []
    for names, shape in _groups(table):
        if 4 * int(np.prod(shape)) <= table.rows:
            parts.append([_repeated([table.columns[n] for n in names], shape, table.shape)])
            continue
        for name in names:
            column = _csv_column(table.columns[name], table.shape)
            numbers = column.dtype == np.float64
            if numbers and parts and parts[-1][0].dtype == np.float64:
                parts[-1].append(column)
            else:
                parts.append([column])
    gaps = any(np.isnan(c).any() for part in parts for c in part if c.dtype == np.float64)
    text = b"".join(_csv_rows([[c[i:i + _AT_ONCE] for c in part] for part in parts], gaps)
                    for i in range(0, table.rows, _AT_ONCE))
    return text.replace(_NULL_MARK, b"null")


def _repeated(columns: list[Any], small: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Columns that vary over `small` only, as one text for each row."""
    lists = [_csv_column(c, small).tolist() for c in columns]
    texts = _objects([msgspec.Raw(_ENCODER.encode(row)[1:-1].replace(b"null", b""))
                      for row in zip(*lists, strict=True)])
    return np.broadcast_to(texts.reshape(small), shape).reshape(-1)


def _csv_rows(parts: list[list[Any]], gaps: bool) -> bytes:
    """Rows as nested JSON lists, of which the brackets are dropped."""
    cells = [(np.stack(part, axis=1) if part[0].dtype == np.float64 else part[0]).tolist()
             for part in parts]
    text = _ENCODER.encode_lines(list(zip(*cells, strict=True))).translate(_SHOW, b"[]")
    return text.replace(b"null", b"") if gaps else text


def encode_jsonl(table: Table) -> bytes:
    """Rows as one JSON object a line."""
    row = msgspec.defstruct("Row", [(name, Any) for name in table.columns], gc=False)
    columns = []
    for name, column in table.columns.items():
        values = table.flat(name)
        if isinstance(column, Text):
            values = np.array([*column.words, None], dtype=object)[values]
        columns.append(values)
    return b"".join(
        _ENCODER.encode_lines(list(map(row, *(c[i:i + _AT_ONCE].tolist() for c in columns))))
        for i in range(0, table.rows, _AT_ONCE))


def _wording(path: Path, error: OSError) -> InputError:
    return InputError(f"'{path}' cannot be written: {error.strerror or error}")


class Note:
    """FILE.resume: the grid it belongs to, whole blocks, their bytes, and the summary so far."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path.with_name(path.name + ".resume"), fingerprint
        self.blocks = self.bytes = 0
        self.summary: Any = None

    def read(self) -> bool:
        """Whether an earlier run of the same sweep is to be taken up."""
        try:
            data = msgspec.json.decode(self.path.read_bytes())
            same = data["fingerprint"] == self.fingerprint
            self.blocks, self.bytes, self.summary = (
                int(data["blocks"]), int(data["bytes"]), data["summary"])
        except FileNotFoundError:
            return False
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
            raise InputError(f"'{self.path}' can't be read, so the sweep can't go on from it: use "
                             "--overwrite to begin again") from None
        if not same:
            raise InputError(f"'{self.path.with_suffix('')}' is an unfinished sweep of another "
                             "grid (or other columns, condition or spec files): use --overwrite "
                             "to begin again, or another file")
        return True

    def write(self) -> None:
        """Replace the note at once: it is either the old or the new one."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_bytes(_ENCODER.encode({
            "fingerprint": self.fingerprint, "blocks": self.blocks, "bytes": self.bytes,
            "summary": self.summary}))
        os.replace(new, self.path)


class TextOutput:
    """A CSV or JSON lines file that grows by whole blocks."""

    def __init__(self, path: Path, note: Note, names: tuple[str, ...]) -> None:
        self.path, self.note, self.names = path, note, names
        csv = file_format(path) == "csv"
        self.encode: Callable[[Table], bytes] | None = encode_csv if csv else encode_jsonl
        self.header = (",".join(names) + "\n").encode() if csv else b""
        self._file: IO[bytes] | None = None

    def open(self, resume: bool) -> None:
        """Begin the file, or cut it to its whole blocks."""
        if resume and (not self.path.exists() or self.path.stat().st_size < self.note.bytes):
            raise InputError(f"'{self.path}' is shorter than '{self.note.path}' says: use "
                             "--overwrite to begin again")
        try:
            self._file = open(self.path, "r+b" if resume else "wb", buffering=0)  # noqa: SIM115
            if not resume:
                self.note.write()
                self._file.write(self.header)
                self.note.bytes = len(self.header)
                self.note.write()
        except OSError as error:
            raise _wording(self.path, error) from None
        self._cut()

    def _cut(self) -> None:
        if self._file is not None:
            self._file.truncate(self.note.bytes)
            self._file.seek(self.note.bytes)

    def append(self, rows: Table | bytes, summary: Any) -> None:
        """One more block, encoded."""
        assert self._file is not None
        assert isinstance(rows, bytes)
        data = memoryview(rows)
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
            self.note.blocks, self.note.bytes = self.note.blocks + 1, self.note.bytes + len(data)
            self.note.summary = summary
            self.note.write()
        except OSError as error:
            self._cut()
            raise _wording(self.path, error) from None

    def close(self, finished: bool) -> None:
        """Leave whole rows only; the note goes when the table is whole."""
        if self._file is not None:
            self._cut()
            self._file.close()
            self._file = None
        if finished:
            self.note.path.unlink(missing_ok=True)

    def is_whole(self, first: Table, last: Table) -> bool:
        """Whether the file is this very table: it begins and ends with its first and last block."""
        assert self.encode is not None
        head = self.header + self.encode(first.only(self.names))
        tail = self.encode(last.only(self.names))
        with open(self.path, "rb") as f:
            begins = f.read(len(head)) == head
            f.seek(0, os.SEEK_END)
            size = f.tell()
            f.seek(max(size - len(tail), 0))
            return begins and size >= len(head) and f.read() == tail


class ParquetOutput:
    """A Parquet file: blocks as row groups of parts in FILE.parts, put together at the end.

    A Parquet file can't be read before it is closed, so each part is a whole file of its own.
    """

    PART_ROWS = 1_000_000
    encode: Callable[[Table], bytes] | None = None

    def __init__(self, path: Path, note: Note, names: tuple[str, ...]) -> None:
        self.path, self.note, self.names = path, note, names
        self.folder = path.with_name(path.name + ".parts")
        self._waiting: list[Table] = []
        self._blocks = 0

    def open(self, resume: bool) -> None:
        """Begin, or go on after the last whole part (`note.bytes` counts the parts)."""
        import shutil

        if not resume and self.folder.is_dir():
            shutil.rmtree(self.folder)
        try:
            with open(self.path, "ab"):
                pass
            if not self.path.stat().st_size:
                self.path.unlink()
            self.folder.mkdir(exist_ok=True)
            self.note.write()
        except OSError as error:
            raise _wording(self.path, error) from None
        if resume and len(list(self.folder.glob("*.parquet"))) < self.note.bytes:
            raise InputError(f"parts are missing in '{self.folder}': use --overwrite to begin "
                             "again")

    def _arrow(self, table: Table) -> Any:
        import pyarrow as pa

        arrays = []
        for name in self.names:
            column, values = table.columns[name], table.flat(name)
            if isinstance(column, Text):
                codes = pa.array(values, type=pa.int32(), mask=np.asarray(values) < 0)
                arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array(
                    list(column.words), type=pa.string())).cast(pa.string()))
            else:
                arrays.append(pa.array(values, from_pandas=True))
        return pa.Table.from_arrays(arrays, names=list(self.names))

    def append(self, rows: Table | bytes, summary: Any) -> None:
        """One more block; a part is written when enough rows wait."""
        assert isinstance(rows, Table)
        self._waiting.append(rows)
        self._blocks += 1
        self.note.summary = summary
        if sum(t.rows for t in self._waiting) >= self.PART_ROWS:
            self._write_part()

    def _write_part(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        part = self.folder / f"{self.note.bytes:08d}.parquet"
        try:
            pq.write_table(pa.concat_tables([self._arrow(t) for t in self._waiting]),
                           part.with_suffix(".new"))
            os.replace(part.with_suffix(".new"), part)
            self.note.bytes, self.note.blocks = self.note.bytes + 1, self.note.blocks + self._blocks
            self._waiting, self._blocks = [], 0
            self.note.write()
        except OSError as error:
            raise _wording(self.path, error) from None

    def close(self, finished: bool) -> None:
        """Put the parts together in place of the file, at once."""
        import shutil

        import pyarrow.parquet as pq

        self._write_part()
        if not finished:
            return
        new = self.path.with_name(self.path.name + ".new")
        parts = [self.folder / f"{i:08d}.parquet" for i in range(self.note.bytes)]
        schema = pq.read_schema(parts[0]).with_metadata({"tokline_sweep": self.note.fingerprint})
        try:
            with pq.ParquetWriter(new, schema) as writer:
                for part in parts:
                    writer.write_table(pq.read_table(part).replace_schema_metadata(schema.metadata))
            os.replace(new, self.path)
        except OSError as error:
            raise _wording(self.path, error) from None
        shutil.rmtree(self.folder)
        self.note.path.unlink(missing_ok=True)

    def is_whole(self, first: Table, last: Table) -> bool:
        """Whether the file holds this very table, by the note in its metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_schema(self.path).metadata or {}
        except (pa.ArrowException, OSError):
            return False
        return bool(metadata.get(b"tokline_sweep") == self.note.fingerprint.encode())


Output = TextOutput | ParquetOutput


def output_to(path: Path, fingerprint: str, names: tuple[str, ...],
              overwrite: bool) -> tuple[Output, bool]:
    """The file to write, and whether an earlier run is taken up."""
    kind = file_format(path)
    if path.is_dir():
        raise InputError(f"'{path}' is a folder")
    if not path.parent.is_dir():
        raise InputError(f"'{path}' cannot be written: the folder '{path.parent}' doesn't exist")
    note = Note(path, fingerprint)
    output: Output = (ParquetOutput if kind == "parquet" else TextOutput)(path, note, names)
    if overwrite:
        try:
            note.path.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _wording(path, error) from None
        return output, False
    return output, note.read()
