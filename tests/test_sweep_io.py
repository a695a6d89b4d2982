"""Files of sweeps: exact, and taken up again after any cut."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator import Grid, InputError, sweep_chunks
from simulator.sweep_columns import COLUMNS, Table, Text, frame, join
from simulator.sweep_io import encode_csv, encode_jsonl
from simulator.sweep_run import run_sweep
from simulator.sweep_summary import Summary, records


def grid() -> Grid:
    return replace(Grid.of(["llama-3.1-8b", "deepseek-v3"], ["h100", "mn-core-l1400"],
                           "1:20", [128, 4096], [1, 64]), block_rows=16)


def whole() -> pd.DataFrame:
    found: pd.DataFrame = frame(join(list(sweep_chunks(grid()))))
    return found


def same(got: pd.DataFrame, wanted: pd.DataFrame) -> None:
    assert list(got.columns) == list(wanted.columns)
    assert len(got) == len(wanted)
    for name in wanted.columns:
        a, b = (x[name].astype(object).where(x[name].notna(), None).tolist()
                for x in (got, wanted))
        assert a == b, name


READERS: dict[str, Any] = {
    "csv": pd.read_csv,
    "jsonl": lambda p: pd.DataFrame([json.loads(line) for line in p.read_text().splitlines()]),
    "parquet": pd.read_parquet,
}


@pytest.mark.parametrize("ending", READERS)
def test_file_holds_the_table_exactly(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    result = run_sweep(grid(), Summary(), path=str(path))
    assert result.worked_out == 320
    same(READERS[ending](path), whole())
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


def test_texts_that_look_like_syntax() -> None:
    words = ('a,"b"', "null", "x],[y", "line\nend", "plain", "[nullnull]")
    table = Table((7,), {"a": Text(np.array([0, 1, 2, 3, 4, 5, -1]), words),
                         "x": np.array([1.5, np.nan, np.inf, 1e300, 1e-9, 3.0, 0.1]),
                         "y": np.float64(2.0)})
    got = pd.read_csv(io.BytesIO(encode_csv(table)), header=None, keep_default_na=False)
    assert got[0].tolist() == ['a,"b"', "null", "x],[y", "line end", "plain", "[nullnull]", ""]
    assert got[1].tolist() == ["1.5", "", "", "1e300", "1e-9", "3.0", "0.1"]
    lines = [json.loads(line) for line in encode_jsonl(table).splitlines()]
    assert lines[2] == {"a": "x],[y", "x": None, "y": 2.0}


@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize("where", [None, "fits and tpot_s < 0.01"])
def test_an_interrupted_sweep_goes_on(tmp_path: Path, ending: str, where: str | None,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.sweep_io import ParquetOutput

    monkeypatch.setattr(ParquetOutput, "PART_ROWS", 40)
    path, straight = tmp_path / f"x.{ending}", tmp_path / f"y.{ending}"
    summary = Summary()

    def stop(done: int, rows: int) -> None:
        if done >= 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(grid(), summary, where, str(path), progress=stop)
    if ending != "parquet":
        text = path.read_bytes()
        assert text.endswith(b"\n")
        # Killed in the middle of a write: a half row stands at the end.
        path.write_bytes(text + b"llama-3.1-8b,h100-sx")
    again = Summary()
    result = run_sweep(grid(), again, where, str(path))
    assert result.resumed
    assert 100 < result.worked_out < 250
    expected = Summary()
    run_sweep(grid(), expected, where, str(straight))
    same(READERS[ending](path), READERS[ending](straight))
    assert again.saved() == expected.saved()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, straight.name])


def test_cut_at_every_block(tmp_path: Path) -> None:
    straight = tmp_path / "straight.csv"
    run_sweep(grid(), Summary(), path=str(straight))
    for blocks in range(0, grid().blocks, 3):
        path = tmp_path / f"{blocks}.csv"
        calls = iter(range(1000))

        def stop(done: int, rows: int, calls: Iterator[int] = calls, most: int = blocks) -> None:
            if next(calls) >= most:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_sweep(grid(), Summary(), path=str(path), progress=stop)
        run_sweep(grid(), Summary(), path=str(path))
        assert path.read_bytes() == straight.read_bytes()


def cut(path: Path) -> None:
    def stop(done: int, rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(grid(), Summary(), path=str(path), progress=stop)


def test_another_grid_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    cut(path)
    other = replace(grid(), prefix_hit=0.5)
    with pytest.raises(InputError, match="unfinished sweep of another grid"):
        run_sweep(other, Summary(), path=str(path))
    with pytest.raises(InputError, match="another grid"):
        run_sweep(grid(), Summary(), "fits", str(path))
    run_sweep(other, Summary(), path=str(path), overwrite=True)
    assert len(pd.read_csv(path)) == 320


def test_damaged_leftovers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    cut(path)
    path.write_text("short")
    with pytest.raises(InputError, match="shorter than"):
        run_sweep(grid(), Summary(), path=str(path))
    (tmp_path / "x.csv.resume").write_text("{broken")
    with pytest.raises(InputError, match="can't be read"):
        run_sweep(grid(), Summary(), path=str(path))


@pytest.mark.parametrize("ending", READERS)
def test_a_whole_file_is_left_alone_and_a_foreign_one_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.{ending}"
    run_sweep(grid(), Summary(), path=str(path))
    before = path.read_bytes()
    assert run_sweep(grid(), Summary(), path=str(path)).already_whole
    with pytest.raises(InputError, match="already exists"):
        run_sweep(replace(grid(), price=1.0), Summary(), path=str(path))
    assert path.read_bytes() == before
    path.write_text("mine")
    with pytest.raises(InputError, match="already exists"):
        run_sweep(grid(), Summary(), path=str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("name", "message"), [
    ("x.txt", "end the name in"), ("missing/x.csv", "doesn't exist"), ("folder.csv", "is a folder"),
])
def test_files_that_cannot_be(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match=message):
        run_sweep(grid(), Summary(), path=str(tmp_path / name))


def test_a_full_disk_is_one_line() -> None:
    with pytest.raises(InputError, match="cannot be written"):
        run_sweep(grid(), Summary(), path="/proc/x.csv")


def test_columns_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    run_sweep(grid(), Summary(), path=str(path), columns=["batch", "memory.total_bytes", "tpot_s"])
    assert list(pd.read_csv(path).columns) == ["batch", "total_bytes", "tpot_s"]


def test_summary_is_that_of_the_whole_table() -> None:
    summary = Summary("tpot_s", ("ttft_s", "output_tokens_per_s"), 5)
    for table in sweep_chunks(grid()):
        summary.add(table)
    every = whole()
    fits = every[every.fits & every.tpot_s.notna()]
    assert summary.feasible == int(every.fits.sum())
    assert summary.best is not None
    assert [r["tpot_s"] for r in records(summary.best)] == sorted(fits.tpot_s)[:5]
    from simulator.pareto import pareto_mask

    front = fits[pareto_mask([fits.ttft_s, fits.output_tokens_per_s], [False, True])]
    assert summary.front is not None
    assert sorted(r["ttft_s"] for r in records(summary.front)) == sorted(front.ttft_s)
    assert len(COLUMNS) == len(set(COLUMNS))
