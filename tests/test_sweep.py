"""Sweeps: every cell is the estimate of that cell, to the last bit."""

from __future__ import annotations

import math
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simulator import (
    Deployment,
    Grid,
    InputError,
    Parallelism,
    Workload,
    estimate,
    sweep,
    sweep_chunks,
)
from simulator.output import estimate_dict
from simulator.sweep_columns import ALIASES, COLUMNS, FIGURES, frame, join
from simulator.sweeps import estimate_rows

MODELS = ["llama-3.1-8b", "mixtral-8x7b", "gemma-3-27b", "deepseek-v3"]
HARDWARE = ["h100", "a100", "mn-core-l1400", "8xh100", "tpu-v5p", "rtx-4090"]


def json_columns(j: dict[str, Any]) -> dict[str, Any]:
    """An estimate's JSON under the names of the columns."""
    def at(path: str) -> Any:
        value: Any = j
        for part in path.split("."):
            value = None if value is None else value.get(part)
        return value

    found = {f"{n}.{k}": (j[n] or {}).get(k) for n in FIGURES
             for k in ("ceiling", "expected", "low", "high")}
    found |= {a: at(a) for a in ALIASES if "." in a and a.split(".")[0] not in FIGURES
              and not a.endswith(("_share", ".time_s"))}
    for phase in ("prefill", "decode"):
        for part in ("compute", "memory", "network", "overhead"):
            found[f"{phase}.{part}_share"] = at(f"{phase}.shares.{part}")
    return {ALIASES[a]: v for a, v in found.items()} | {"devices": j["devices"]}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    found: pd.DataFrame = sweep(
        MODELS, HARDWARE, batch=[1, 3, 512], input=[128, 1000, 70000], output=[1, 2, 300],
        weights=[None, "int4-g128"], engines=["vllm", "llama.cpp", "ideal"])
    return found


def test_every_cell_is_its_estimate(table: pd.DataFrame) -> None:
    assert len(table) == 4 * 6 * 27 * 2 * 3
    assert list(table.columns) == list(COLUMNS)
    for row in table.sample(120, random_state=0).to_dict("records"):
        own = row["weights"] != "int4-g128"
        d = Deployment.of(row["model"], row["hardware"], row["engine"],
                          weights=None if own else row["weights"],
                          parallelism=Parallelism(tp=row["tp"]))
        e = estimate(d, Workload(row["batch"], row["input"], row["output"]))
        wanted = json_columns(estimate_dict(e, []))
        assert len(wanted) > 80
        for name, value in wanted.items():
            got = None if isinstance(row[name], float) and math.isnan(row[name]) else row[name]
            assert got == value, (name, row)


def test_infeasible_cells_stay_with_their_reason(table: pd.DataFrame) -> None:
    assert table[~table.fits].reason.notna().all()
    assert table[table.fits].reason.isna().all()
    assert table[~table.fits].tokens_per_s_per_user.isna().all()
    assert table[~table.fits].usd_per_million_output_tokens.isna().all()


def test_degrees_that_cannot_be_are_rows_with_a_reason() -> None:
    found = sweep("llama-3.1-8b", "h100", parallelism=[{"tp": 2}, "tp=3", Parallelism(ep=2, tp=2)])
    assert found.fits.tolist() == [True, False, False]
    assert "3 does not divide" in found.reason[1]
    assert "no experts" in found.reason[2]
    assert np.isnan(found.ttft_s[1])
    assert found.tp.tolist() == [2, 3, 2]


def test_devices_without_a_link_have_a_reason() -> None:
    found = sweep("llama-3.1-8b", ["2xapple-m1-max", "2xh100"])
    assert dict(zip(found.hardware, found.fits, strict=True))["h100-sxm5-80gb"]
    assert not found.fits[0]
    assert "need a link" in found.reason[0]


def test_where_keeps_rows_of_the_whole_table() -> None:
    every = sweep("llama-3.1-8b", ["h100", "a100"], batch="1:512:x2")
    some = sweep("llama-3.1-8b", ["h100", "a100"], batch="1:512:x2",
                 where="fits and tpot_s < 0.01 and hardware == 'h100-sxm5-80gb'")
    wanted = every[every.fits & (every.tpot_s < 0.01) & (every.hardware == "h100-sxm5-80gb")]
    pd.testing.assert_frame_equal(some.astype({"reason": object, "hardware": str}),
                                  wanted.reset_index(drop=True).astype(
                                      {"reason": object, "hardware": str}), check_dtype=False)
    assert 0 < len(some) < len(every)


@pytest.mark.parametrize("rows", [1, 7, 60, 100_000])
def test_blocks_do_not_matter(rows: int) -> None:
    from dataclasses import replace

    grid = Grid.of(["llama-3.1-8b", "gemma-3-27b"], ["h100", "mn-core-l1400", "2xa100"],
                   [1, 5, 9], [10, 100], [1, 2, 3], weights=["own", "fp8"])
    other = frame(join(list(sweep_chunks(replace(grid, block_rows=rows)))))
    pd.testing.assert_frame_equal(other, frame(join(list(sweep_chunks(grid)))), check_exact=True)
    cut = replace(grid, block_rows=rows)
    assert sum(cut.block_size(i) for i in range(cut.blocks)) == cut.rows == len(other)


def test_unrelated_rows_are_their_estimates() -> None:
    rng, n = np.random.default_rng(0), 40
    for name in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3"):
        d = Deployment.of(name, "mn-core-l1400")
        w = Workload(rng.integers(1, 9, n), rng.integers(1, 9000, n), rng.integers(1, 900, n))
        table = estimate_rows(d, w)
        for i in range(0, n, 7):
            e = estimate(d, Workload(int(w.batch[i]), int(w.input[i]), int(w.output[i])))
            wanted = json_columns(estimate_dict(e, []))
            for column in (*(f for f in FIGURES), "max_context", "decode_bytes", "prefill_mfu"):
                got = table.flat(column)[i]
                assert got == wanted[column] or (np.isnan(got) and wanted[column] is None)


def test_executor_gives_the_same() -> None:
    arguments = (["llama-3.1-8b"], ["h100", "a100"], "1:512:x2", [128, 1024], [1, 64])
    with ThreadPoolExecutor(2) as executor:
        other = sweep(*arguments, executor=executor)
    pd.testing.assert_frame_equal(other, sweep(*arguments), check_exact=True)


class Breaking(Executor):
    """Loses every second task, and breaks for good after a while."""

    def __init__(self) -> None:
        self.asked = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked += 1
        if self.asked > 5:
            raise BrokenProcessPool("gone")
        future: Future[Any] = Future()
        if self.asked % 2:
            future.set_exception(BrokenProcessPool("a worker died"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_a_broken_executor_loses_nothing() -> None:
    from dataclasses import replace

    grid = replace(Grid.of("llama-3.1-8b", "h100", "1:40", [10, 100]), block_rows=8)
    assert grid.blocks == 10
    other = frame(join(list(sweep_chunks(grid, executor=Breaking()))))
    pd.testing.assert_frame_equal(other, frame(join(list(sweep_chunks(grid)))), check_exact=True)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"models": "llama-9", "hardware": "h100"}, "unknown model"),
    ({"models": "llama-3.1-8b", "hardware": "h1000x"}, "unknown hardware"),
    ({"models": [], "hardware": "h100"}, "models: the list is empty"),
    ({"models": "llama-3.1-8b", "hardware": []}, "hardware: the list is empty"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "batch": []}, "batch: the list is empty"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "batch": -1}, "batch"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "batch": 1.5}, "not a whole number"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "input": float("nan")}, "finite"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "input": "a"}, "input"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "weights": ["fp99"]}, "unknown number format"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "engines": "vlm"}, "vlm"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "parallelism": []}, "parallelism"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "parallelism": "tq=2"}, "unknown degree 'tq'"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "parallelism": {"tp": 0}}, "between 1 and"),
    ({"models": "llama-3.1-8b", "hardware": "4xh100", "parallelism": "tp=2"}, "4 devices"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "prefix_hit": 2.0}, "prefix-hit"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "price": -1.0}, "price"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "where": "fitz"}, "did you mean 'fits'"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "columns": ["tpotty"]}, "unknown column"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "batch": "1:1000000", "input": "1:100000"},
     "most is"),
    ({"models": "llama-3.1-8b", "hardware": "h100", "batch": "1:10000", "input": "1:10000"},
     "use sweep_chunks"),
])
def test_bad_input_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        sweep(**arguments)
    assert "\n" not in str(error.value)


def test_name_works_whatever_was_imported() -> None:
    import simulator.sweeps  # noqa: F401
    from simulator import sweep as again

    assert callable(again)
