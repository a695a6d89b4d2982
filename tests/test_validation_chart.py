"""Measured against predicted by structure: panels, identity and band, colours, readable text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plot_checks import lines, problems, texts

from simulator import plots
from simulator.errors import InputError
from simulator.validation.cases import PHASES, Case, Setup
from simulator.validation.measurements import Row
from simulator.validation.run import Report
from simulator.validation.scores import Score, Scored

SETUP = Setup("m", "h", "vllm", "bf16", "bf16", None, None, 1, 1, 1, 1)
ROW = Row("", "a", "2025", "", "h", 1, "vLLM", "0.9", "m", "bf16", "", 1, 1, 1, 1.0, "", 1000.0,
          200.0, "decode_tok_s_per_user", 100.0, "A", "")
METRICS = {"batch1_decode": "decode_tok_s_per_user", "prefill": "prefill_tok_s",
           "static_throughput": "throughput_out_tok_s", "max_throughput": "throughput_total_tok_s",
           "tpot": "tpot_ms", "ttft": "ttft_ms"}


def scored(source: str, phase: str, measured: float, predicted: float, *, batch: float = 1.0,
           metric: str | None = None, fitted: bool = False, spread: float = 1.5) -> Scored:
    name = metric or METRICS[phase]
    row = replace(ROW, source=source, metric=name, value=measured)
    case = Case(0, row, SETUP, phase, name, batch, 1000.0, 200.0)
    return Scored(case, predicted, predicted / spread, predicted * spread, 2 * predicted, fitted)


def report(rows: list[Scored]) -> Report:
    empty = Score("", 0, 0, 0, 0, None, None, None, None, None)
    return Report(("m.csv",), [s.case.row for s in rows], rows, {}, [], [], [], empty, empty, 1.0)


def several(sources: int, phases: tuple[str, ...] = PHASES, seed: int = 0) -> list[Scored]:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(sources):
        for phase in phases:
            for _ in range(3 * (sources - i)):
                measured = float(np.exp(rng.uniform(0.0, 9.0)))
                found.append(scored(f"A source with a long name {i}", phase, measured,
                                    measured * float(np.exp(rng.normal(0.0, 0.3)))))
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sources", [1, 3, 12])
def test_text_can_be_read(sources: int, theme: str) -> None:
    figure, data = plots.validation(report(several(sources)), theme=theme)
    assert problems(figure) == []
    assert len(figure.axes) == 6
    said = " ".join(t.get_text() for t in texts(figure))
    assert "Half of" in said
    assert f"{len(data):,} figures" in said
    for word in ("predicted [tok/s]", "predicted [ms]", "measured", "equal", "predicted range"):
        assert word in said
    assert ("other sources" in said) == (sources > 8)


def test_the_packaged_measurements_are_drawn_well() -> None:
    from simulator.validation.run import PACKAGED, validate

    figure, data = plots.validation(validate([PACKAGED]))
    assert problems(figure) == []
    assert set(data["phase"]) == set(PHASES)


def test_identity_and_band() -> None:
    figure, _ = plots.validation(report(several(2)))
    assert len(lines(figure, "equal")) == len(lines(figure, "band")) == 6
    for line in lines(figure, "equal"):
        assert np.allclose(line.get_xdata(), line.get_ydata())
    for axes in figure.axes:
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert axes.get_xlim() == axes.get_ylim()
    low, high = lines(figure, "band")[0].get_paths()[0].vertices[:, 1].min(), None
    end = figure.axes[0].get_xlim()[0]
    assert low == pytest.approx(end / 1.5)
    assert high is None


def test_colours_are_of_the_largest_sources() -> None:
    """Eight have a colour and a marker of their own, the others share one that is muted."""
    figure, data = plots.validation(report(several(12, ("tpot",))))
    groups = [g for g in lines(figure, "source") if len(g.get_offsets())]
    colours = {g.get_gid(): tuple(g.get_facecolor()[0]) for g in groups}
    assert len(groups) == 9
    assert len(set(colours.values())) == 9
    named = set(data["series"]) - {"other sources"}
    assert named == {f"A source with a long name {i}" for i in range(8)}


def test_title_says_the_finding() -> None:
    rows = [scored("a", "tpot", 10.0, 10.0 * math.exp(e)) for e in (0.1, -0.1, 0.1, 1.0, 1.0)]
    _, data = plots.validation(report(rows))
    assert data.attrs["title"] == "Half of 5 figures within 11 %, nine in ten within 2.7x"
    _, data = plots.validation(report(rows), title="Mine")
    assert data.attrs["title"] == "Mine"


@pytest.mark.parametrize(("names", "words"), [("a", "1 source:"), ("ab", "2 sources:")])
def test_the_number_of_sources(names: str, words: str) -> None:
    figure, _ = plots.validation(report([scored(n, "tpot", 10.0, 11.0) for n in names]))
    said = " ".join(t.get_text() for t in figure.texts)
    assert words in " ".join(said.split())


def test_one_unit_a_panel() -> None:
    """Times among rates are turned round, and the error keeps its size."""
    figure, data = plots.validation(report([
        scored("a", "batch1_decode", 20.0, 25.0, metric="tpot_ms"),
        scored("a", "prefill", 500.0, 400.0, metric="prefill_ms", batch=2.0),
        scored("a", "tpot", 50.0, 40.0, metric="decode_tok_s_per_user"),
        scored("a", "static_throughput", 3.0, 2.0, metric="req_s")]))
    assert list(data["y"]) == pytest.approx([50.0, 4000.0, 20.0, 3600.0])
    assert list(data["x"]) == pytest.approx([40.0, 5000.0, 25.0, 2400.0])
    sizes = np.abs(np.log(data["x"] / data["y"]))
    assert list(sizes) == pytest.approx(list(np.abs(data["ln_error"])))
    assert problems(figure) == []


def test_what_does_not_count_is_not_drawn() -> None:
    rows = [scored("a", "tpot", 10.0, 11.0), scored("b", "tpot", 10.0, 11.0, fitted=True)]
    _, data = plots.validation(report(rows))
    assert list(data["source"]) == ["a"]
    with pytest.raises(InputError, match="nothing to draw"):
        plots.validation(report(rows[1:]))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_three_steps(theme: str) -> None:
    """Each panel has its own median error; the efficiency is the median share of the ceiling."""
    measured = np.array([40.0, 60.0, 100.0, 30.0])
    ceiling = np.array([80.0, 120.0, 250.0, 60.0])
    figure, data = plots.three_steps(measured, ceiling, measured * 1.1, theme=theme)
    assert problems(figure) == []
    assert len(figure.axes) == 3
    said = " ".join(t.get_text() for t in texts(figure))
    assert "x efficiency 0.50" in said
    steps: Any = data.groupby("step", sort=False)["ln_error"].median()
    assert list(steps) == pytest.approx([math.log(2.0), 0.0, math.log(1.1)])
    assert data.attrs["title"].startswith("Median error 2.0x with bytes / bandwidth alone, 0 %")


@pytest.mark.parametrize(("arrays", "message"), [
    (([], [], []), "at least one"), (([1.0], [1.0, 2.0], [1.0]), "as many of each"),
    (([1.0], [float("nan")], [1.0]), "finite"), (([0.0], [1.0], [1.0]), "above 0")])
def test_three_steps_refuses(arrays: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.three_steps(*arrays)
