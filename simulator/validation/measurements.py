"""Measurement files: CSV rows of what somebody measured, under which conditions.

The columns are those that `tokline validate` reads and `tokline measure` writes; names stand as
their source prints them, and `cases` maps them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import InputError, nearest, shown

COLUMNS = ("id", "source", "source_date", "licence", "hardware", "n_devices", "engine",
           "engine_version", "model", "dtype_weights", "dtype_kv", "tp", "pp", "ep",
           "batch_or_concurrency", "request_rate", "input_len", "output_len", "metric", "value",
           "quality", "notes")
NEEDED = ("source", "hardware", "model", "metric", "value")
QUALITIES = ("A", "B", "C")
RATES = frozenset({"decode_tok_s_per_user", "decode_tok_s_total", "prefill_tok_s",
                   "throughput_out_tok_s", "throughput_total_tok_s", "req_s"})
TIMES = frozenset({"tpot_ms", "ttft_ms", "prefill_ms"})
SIZES = frozenset({"kv_tokens_capacity", "weights_gib", "peak_mem_gib"})
METRICS = RATES | TIMES | SIZES
# No rate, size or time that anyone measured lies beyond: 1e8 ms are a day and more.
SMALLEST, LARGEST, LONGEST_MS = 1e-6, 1e12, 1e8
MAX_BYTES = 500_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure; texts as printed, `value` in the unit that `metric` names.

    n_devices, tp, pp, ep   None where the source doesn't print them
    batch, input, output    numbers, or the text that stands in their place
    """

    id: str
    source: str
    date: str
    licence: str
    hardware: str
    n_devices: int | None
    engine: str
    version: str
    model: str
    weights: str
    kv: str
    tp: int | None
    pp: int | None
    ep: int | None
    batch: float | str | None
    rate: str
    input: float | str | None
    output: float | str | None
    metric: str
    value: float
    quality: str
    notes: str

    @property
    def group(self) -> tuple[str, str, str]:
        """(source, device, model): rows of a group stand or fall together in a hold-out."""
        return self.source, self.hardware, self.model


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a measurement CSV; InputError names file, line, column and value."""
    where = str(path)
    return parse_rows(read_text(path), where)


def read_text(path: str | Path, kind: str = "a CSV file", unlike: str = "not a CSV file") -> str:
    """Text of a file; InputError where it can't be one of its `kind`."""
    path, where = Path(path), str(path)
    try:
        if path.is_dir():
            raise InputError(f"{where}: is a folder, not {kind}")
        if path.exists() and not path.is_file():
            raise InputError(f"{where}: is not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{where}: larger than {MAX_BYTES // 10**6} MB")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{where}: can't be read ({reason})") from None
    if not data.strip():
        raise InputError(f"{where}: the file is empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{where}: {unlike} (not UTF-8 text)") from None
    if "\0" in text:
        raise InputError(f"{where}: {unlike} (it holds binary data)")
    return text


def parse_rows(text: str, where: str) -> list[Row]:
    """All rows of the text of a measurement CSV; `where` names the file in messages."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    for name in NEEDED:
        if name not in header:
            close = nearest(name, [h for h in header if h not in COLUMNS])
            raise InputError(f"{where}: column '{name}' is missing{close}")
    doubled = {name for name in header if header.count(name) > 1}
    if doubled:
        raise InputError(f"{where}: column '{sorted(doubled)[0]}' stands twice")
    rows: list[Row] = []
    try:
        rows.extend(_row(record, f"{where}: line {reader.line_num}") for record in reader)
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: {error}") from None
    if not rows:
        raise InputError(f"{where}: no rows below the header")
    return rows


def _row(record: dict[str, str | None], where: str) -> Row:
    if None in record:
        raise InputError(f"{where}: more cells than the header has columns")

    def text(name: str) -> str:
        return (record.get(name) or "").strip()

    for name in NEEDED:
        if not text(name):
            raise InputError(f"{where}: {name}: empty")
    metric, quality = text("metric"), text("quality") or "B"
    if quality not in QUALITIES:
        raise InputError(f"{where}: quality: {shown(quality)} is not one of A, B, C")
    value = _number(text("value"), f"{where}: value")
    if not value > 0:
        raise InputError(f"{where}: value: {text('value')} must be above 0")
    largest = LONGEST_MS if metric in TIMES else LARGEST
    if not SMALLEST <= value <= largest:
        raise InputError(f"{where}: value: {text('value')} must lie between {SMALLEST:g} and "
                         f"{largest:g}")
    counts = {name: _count(text(name), f"{where}: {name}")
              for name in ("n_devices", "tp", "pp", "ep")}
    return Row(
        id=text("id"), source=text("source"), date=text("source_date"), licence=text("licence"),
        hardware=text("hardware"), engine=text("engine"), version=text("engine_version"),
        model=text("model"), weights=text("dtype_weights"), kv=text("dtype_kv"),
        batch=_length(text("batch_or_concurrency"), f"{where}: batch_or_concurrency"),
        rate=text("request_rate"), input=_length(text("input_len"), f"{where}: input_len"),
        output=_length(text("output_len"), f"{where}: output_len"),
        metric=metric, value=value, quality=quality, notes=text("notes"), **counts)


def _number(text: str, where: str) -> float:
    try:
        value = _float(text)
    except ValueError:
        raise InputError(f"{where}: {shown(text)} is not a number") from None
    if not math.isfinite(value):
        raise InputError(f"{where}: {text} is not finite")
    return value


def _float(text: str) -> float:
    """A number as files print it; Python alone reads 1_000 and digits of other scripts as one."""
    return float("?" if "_" in text or not text.isascii() else text)


def _count(text: str, where: str) -> int | None:
    if not text:
        return None
    value = _number(text, where)
    if value < 0 or value != int(value) or value > 1e6:
        raise InputError(f"{where}: {text} is not a count")
    return int(value)


def _length(text: str, where: str) -> float | str | None:
    """A number, or the words that a source prints instead ("ShareGPT")."""
    if not text:
        return None
    try:
        value = _float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        raise InputError(f"{where}: {text} is not finite")
    if value < 0 or value > 1e9:
        raise InputError(f"{where}: {text} must lie between 0 and 1e9")
    return value


def write_rows(path: str | Path, rows: Sequence[dict[str, object]]) -> None:
    """Rows as a measurement CSV in the order of COLUMNS."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


__all__ = ["COLUMNS", "METRICS", "RATES", "SIZES", "TIMES", "Row", "parse_rows", "read_rows",
           "write_rows"]
