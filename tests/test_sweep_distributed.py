"""A sweep on a real local Dask cluster of two worker processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from simulator import Grid, sweep, sweep_chunks
from simulator.cli import run
from simulator.sweep_columns import frame, join

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True,
                                  dashboard_address=None) as found:
        yield found


def grid() -> Grid:
    return replace(Grid.of(["llama-3.1-8b", "deepseek-v3"], ["h100", "mn-core-l1400", "2xa100"],
                           "1:60", [128, 1024, 4096], [1, 64, 100], weights=["own", "fp8"]),
                   block_rows=128)


def test_serial_and_distributed_are_the_same_bits(cluster: Any) -> None:
    arguments = (["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"], ["h100", "mn-core-l1400"],
                 "1:64", [128, 1024], [1, 64])
    with distributed.Client(cluster) as client:
        there = sweep(*arguments, executor=client.get_executor())
    pd.testing.assert_frame_equal(there, sweep(*arguments), check_exact=True)


def test_command_line(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["sweep", "llama-3.1-8b", "h100,a100", "--batch", "1:64", "--json"]
    assert run([*asked, "--dask", cluster.scheduler_address]) == 0
    there = json.loads(capsys.readouterr().out)
    assert run(asked) == 0
    here = json.loads(capsys.readouterr().out)
    for key in ("rows", "feasible", "top", "pareto"):
        assert there[key] == here[key]


def test_a_killed_worker_loses_nothing(cluster: Any) -> None:
    with distributed.Client(cluster) as client:
        workers = set(client.run(os.getpid).values())
        assert len(workers) == 2
        tables = []
        for i, table in enumerate(sweep_chunks(grid(), executor=client.get_executor(retries=3))):
            if i == 3:
                os.kill(workers.pop(), signal.SIGKILL)
            tables.append(table)
    assert i > 20
    pd.testing.assert_frame_equal(frame(join(tables)), frame(join(list(sweep_chunks(grid())))),
                                  check_exact=True)
