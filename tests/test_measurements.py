"""Measurement files: what is read, and that each bad one is refused in one line that says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.validation.cases import cases_of
from simulator.validation.measurements import COLUMNS, METRICS, Row, read_rows, write_rows

GOOD = {
    "id": "T1", "source": "somebody", "source_date": "2025-06", "licence": "MIT",
    "hardware": "NVIDIA H100 SXM 80GB", "n_devices": "2", "engine": "vLLM",
    "engine_version": "0.9", "model": "Llama-3.1-8B", "dtype_weights": "bf16", "tp": "2",
    "batch_or_concurrency": "8", "input_len": "1024", "output_len": "256", "metric": "tpot_ms",
    "value": "9.5", "quality": "A", "notes": "as printed",
}  # fmt: skip


def written(path: Path, *rows: dict[str, str]) -> Path:
    write_rows(path, [dict(GOOD) | row for row in rows or ({},)])
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as error:
        read_rows(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))
    return str(error.value)


def test_a_row_as_printed(tmp_path: Path) -> None:
    (row,) = read_rows(written(tmp_path / "m.csv"))
    assert isinstance(row, Row)
    assert (row.id, row.source, row.date, row.licence) == ("T1", "somebody", "2025-06", "MIT")
    assert (row.n_devices, row.tp, row.pp, row.ep) == (2, 2, None, None)
    assert (row.batch, row.input, row.output, row.value) == (8.0, 1024.0, 256.0, 9.5)
    assert (row.metric, row.quality, row.notes) == ("tpot_ms", "A", "as printed")
    assert row.group == ("somebody", "NVIDIA H100 SXM 80GB", "Llama-3.1-8B")


def test_what_may_be_left_out(tmp_path: Path) -> None:
    """Five columns are enough; quality is then B, and nothing else is stated."""
    path = tmp_path / "m.csv"
    path.write_text("source,hardware,model,metric,value\na,h100,m,req_s,2\n")
    (row,) = read_rows(path)
    assert row.quality == "B"
    assert (row.n_devices, row.tp, row.batch, row.input) == (None, None, None, None)
    assert (row.id, row.engine, row.weights, row.notes) == ("", "", "", "")


def test_words_stand_where_a_length_should(tmp_path: Path) -> None:
    (row,) = read_rows(written(tmp_path / "m.csv", {"input_len": "ShareGPT"}))
    assert row.input == "ShareGPT"


def test_digits_of_other_forms_are_words(tmp_path: Path) -> None:
    """What Python alone reads as a number is none; the row is then not covered."""
    (row,) = read_rows(written(tmp_path / "m.csv", {"input_len": "1_024",
                                                    "output_len": "\uff11\uff12"}))
    assert (row.input, row.output) == ("1_024", "\uff11\uff12")
    assert cases_of([row])[1] == {0: "length is not a number: 1_024"}


def test_bom_crlf_quotes_and_order(tmp_path: Path) -> None:
    """As Excel writes it: a byte-order mark, CRLF, cells in quotes, columns in another order."""
    path = tmp_path / "m.csv"
    path.write_bytes(b"\xef\xbb\xbfvalue, metric ,model,hardware,source,notes\r\n"
                     b'7,req_s,"a, b",h100,s,"two\r\nlines"\r\n')
    (row,) = read_rows(path)
    assert (row.value, row.model, row.notes) == (7.0, "a, b", "two\r\nlines")


def test_other_columns_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("source,hardware,model,metric,value,mood\na,h100,m,req_s,2,good\n")
    assert read_rows(path)[0].value == 2.0


@pytest.mark.parametrize("name", ["source", "hardware", "model", "metric", "value"])
def test_missing_column(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.csv"
    header = [c for c in COLUMNS if c != name]
    path.write_text(",".join(header) + "\n" + ",".join(GOOD.get(c, "") for c in header) + "\n")
    assert f"column '{name}' is missing" in refused(path)


def test_a_misspelt_column_is_pointed_at(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("source,hardwares,model,metric,value\na,h100,m,req_s,2\n")
    assert "did you mean 'hardwares'" in refused(path)


def test_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("source,hardware,model,metric,value,value\na,h100,m,req_s,2,3\n")
    assert "column 'value' stands twice" in refused(path)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "the file is empty"),
    (b" \n\n", "the file is empty"),
    (b"source,hardware,model,metric,value\n", "no rows below the header"),
    (b"\x89PNG\r\n\x1a\n\xff\xfe", "not UTF-8"),
    (b"source,hardware,model,metric,value\na,\0,m,req_s,2\n", "binary"),
])
def test_files_that_hold_no_rows(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(content)
    assert message in refused(path)


def test_a_quote_that_never_closes(tmp_path: Path) -> None:
    """It would swallow the rows below it."""
    path = tmp_path / "m.csv"
    path.write_text('source,hardware,model,metric,value\n"a,h100,m,req_s,2\nb,h100,m,req_s,3\n')
    assert "unexpected end of data" in refused(path)


def test_no_file(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)
    assert "can't be read" in refused(tmp_path / "none.csv")
    assert "can't be read" in refused(tmp_path / "none" / "m.csv")


@pytest.mark.parametrize(("cell", "text", "message"), [
    ("value", "0", "must be above 0"),
    ("value", "-3", "must be above 0"),
    ("value", "nan", "not finite"),
    ("value", "inf", "not finite"),
    ("value", "1e300", "between 1e-06 and 1e+08"),
    ("value", "1e-300", "between 1e-06 and 1e+08"),
    ("value", "1e9", "between 1e-06 and 1e+08"),       # ms: eleven days a token
    ("value", "1_000", "'1_000' is not a number"),
    ("value", "\uff11\uff12", "is not a number"),
    ("tp", "\uff12", "is not a number"),
    ("value", "fast", "'fast' is not a number"),
    ("value", "", "empty"),
    ("hardware", "", "empty"),
    ("model", " ", "empty"),
    ("quality", "D", "'D' is not one of A, B, C"),
    ("n_devices", "-1", "is not a count"),
    ("tp", "-8", "is not a count"),
    ("tp", "1.5", "is not a count"),
    ("pp", "two", "'two' is not a number"),
    ("ep", "1e9", "is not a count"),
    ("batch_or_concurrency", "-1", "between 0 and 1e9"),
    ("batch_or_concurrency", "nan", "not finite"),
    ("output_len", "inf", "not finite"),
    ("input_len", "-5", "between 0 and 1e9"),
    ("output_len", "1e12", "between 0 and 1e9"),
])
def test_bad_cells(tmp_path: Path, cell: str, text: str, message: str) -> None:
    """The second row is bad: its line, its column and what is wrong are named."""
    said = refused(written(tmp_path / "m.csv", {}, {cell: text}))
    assert f"line 3: {cell}: " in said
    assert message in said


def test_too_many_cells(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("source,hardware,model,metric,value\na,h100,m,req_s,2,3\n")
    assert "line 2: more cells than the header" in refused(path)


def test_an_unknown_metric_is_not_an_error(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path / "m.csv", {"metric": "joy_per_token"}, {}))
    cases, missing = cases_of(rows)
    assert [c.index for c in cases] == [1]
    assert missing == {0: "metric without a prediction: joy_per_token"}
    assert "joy_per_token" not in METRICS
