"""Fitting engines and devices: what it refuses, what it finds again, and who is scored."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.validation import fit as fitting
from simulator.validation.cases import Case, cases_of
from simulator.validation.fit_report import (
    KNOWN,
    LEAST_WIDER,
    known_levels,
    ranges_of,
    spread,
    spreads,
    table,
)
from simulator.validation.measurements import Row, read_rows
from simulator.validation.parts import BARE, Constants, Parts, parts_of
from simulator.validation.predict import figures, predict
from simulator.validation.run import PACKAGED
from simulator.validation.split import FEWEST_COPIES, copies, fitted_groups, halves, range_groups

SOURCES = ("TinyChat (llm-awq)", "FasterTransformer docs", "llama.cpp Apple Silicon",
           "gpt-fast README", "Qwen2/2.5 speed benchmark")


@cache
def rows() -> tuple[Row, ...]:
    return tuple(r for r in read_rows(PACKAGED) if r.source.startswith(SOURCES))


@cache
def problem() -> tuple[list[Case], Parts]:
    cases = [c for c in cases_of(list(rows()))[0] if fitting.usable(c)]
    return cases, parts_of(cases)


def test_parts_at_the_packaged_constants_are_the_prediction() -> None:
    # The step in parts, scaled by an engine's own constants, is the step that an estimate makes.
    from simulator.efficiency.levels import table_in_use
    from simulator.specs.engine import load_engine

    cases = [c for c in problem()[0] if c.phase == "batch1_decode"
             and not load_engine(c.setup.engine).async_host]
    engines = {c.setup.engine: load_engine(c.setup.engine) for c in cases}
    scales = {name: {e: getattr(engine, name) for e, engine in engines.items()}
              for name in ("compute_scale", "memory_scale", "launch_scale")}
    levels = {k: v for k, v in table_in_use().items() if k != "link"}
    parts = parts_of(cases, Constants(scales, levels, table_in_use()["link"]))
    host = np.array([engines[e].host_time + n * engines[e].layer_time
                     for e, n in zip(parts.engine, parts.layers, strict=True)])
    each = np.array([engines[e].sequence_time for e in parts.engine])
    terms = parts.terms((1.0, 1.0, 1.0, 1.0), 1.0, (host, each))
    assert figures(terms, BARE, parts.figure, parts.full) == pytest.approx(
        predict(cases).expected, rel=1e-6)


def test_a_known_change_is_found_again() -> None:
    # The same rows, all of one engine a quarter slower: its predictions become slower by that much.
    cases, parts = problem()
    mine = np.ones(len(cases), bool)
    engine = parts.engine == "llama.cpp-metal"
    assert np.sum(engine) >= 10
    slower = [replace(c, row=replace(c.row, value=c.row.value / 1.25)) if m else c
              for c, m in zip(cases, engine, strict=True)]
    (_, before), (_, after) = (fitting.fit(x, mine) for x in (cases, slower))
    assert np.median(before[engine] / after[engine]) == pytest.approx(1.25, rel=0.06)
    assert np.median(before[~engine] / after[~engine]) == pytest.approx(1.0, abs=0.02)


def test_few_rows_are_refused() -> None:
    cases, parts = problem()
    few = np.arange(len(cases)) < fitting.FEWEST_ROWS - 1
    with pytest.raises(InputError, match="too few"):
        fitting.fit(cases, few, parts)


def test_one_factor_mends_the_median() -> None:
    cases, parts = problem()
    every = np.ones(len(cases), bool)
    bound = figures(parts.ceilings(), BARE, parts.figure, parts.full)
    error = np.log(fitting.one_factor(cases, parts, every) / parts.value)
    decode = np.array([c.phase == "batch1_decode" for c in cases])
    assert abs(np.median(error[decode])) < abs(np.median(np.log(bound / parts.value)[decode]))


def test_a_source_weighs_less_than_its_rows() -> None:
    cases, _ = problem()
    weights = fitting.row_weights(cases, np.ones(len(cases), bool))
    by_source: dict[tuple[str, str], list[float]] = {}
    for case, weight in zip(cases, weights, strict=True):
        by_source.setdefault((case.row.source, case.phase), []).append(weight**2)
    for squares in by_source.values():
        assert sum(squares) == pytest.approx(len(squares) ** 0.3)


def test_halves_hold_whole_groups_of_every_source() -> None:
    every = read_rows(PACKAGED)
    half, alike = halves(every), copies(every)
    assert set(half.values()) == {0, 1}
    assert half == halves(reversed(every))
    for source in {g[0] for g in half}:
        sides = [half[group] for group in {alike[g] for g in half if g[0] == source}]
        assert abs(sides.count(0) - sides.count(1)) <= 1


def test_copies_of_a_run_under_another_name_are_on_one_side() -> None:
    every = read_rows(PACKAGED)
    group = max({r.group for r in every}, key=[r.group for r in every].count)
    printed = [r for r in every if r.group == group]
    assert len(printed) > FEWEST_COPIES
    again = [replace(r, id=f"again-{r.id}", model=f"{r.model} again") for r in printed]
    other = (*group[:2], f"{group[2]} again")
    for copied, alike in ((len(again), True), (FEWEST_COPIES, True), (FEWEST_COPIES - 1, False)):
        rows = every + again[:copied] + [replace(r, value=r.value * 1.01) for r in again[copied:]]
        assert (copies(rows)[other] == copies(rows)[group]) is alike
        if alike:
            half = halves(rows)
            assert half[other] == half[group]
            for fitted in (0, 1):
                ranged = range_groups(half, fitted, copies(rows))
                assert (other in ranged) == (group in ranged)


def test_groups_that_set_ranges_are_not_fitted() -> None:
    half = halves(rows())
    for fitted in (0, 1):
        chosen = range_groups(half, fitted, copies(rows()))
        assert chosen
        assert all(half[group] != fitted for group in chosen)
        rest = {g for g, side in half.items() if side != fitted} - chosen
        assert abs(len(rest) - len(chosen)) <= len({g[0] for g in half})


def test_packaged_rows_were_not_fitted() -> None:
    fitted, ranges = fitted_groups(), fitted_groups("ranges")
    assert fitted
    assert ranges
    assert not fitted & ranges
    assert not {r.group for r in read_rows(PACKAGED)} & fitted


def test_rows_that_may_have_drafted_tokens_fit_nothing() -> None:
    case = problem()[0][0]
    silent = replace(case, phase="tpot", row=replace(
        case.row, model="deepseek-v3", notes="MTP/spec status not given"))
    assert not fitting.told(silent)
    assert fitting.told(replace(silent, row=replace(silent.row, model="llama-3.1-8b")))
    assert fitting.told(replace(silent, phase="ttft"))


def test_spread_holds_what_it_says() -> None:
    cases = [problem()[0][0]] * 100
    error = np.linspace(-0.5, 0.5, 100)
    factor = spread(cases, error, np.ones(100, bool))
    assert np.mean(np.abs(error) <= np.log(factor)) == pytest.approx(0.8, abs=0.02)
    assert spread(cases, error, np.arange(100) < 10) == 0.0


def test_a_setup_of_many_rows_does_not_decide_a_range() -> None:
    """90 rows of one setup within 1 % and 10 of another at 50 %: 90^0.3 against 10^0.3, so the
    second is 34 % of the weight and the range has to hold most of it."""
    first = problem()[0][0]
    other = replace(first, setup=replace(first.setup, tp=2))
    error = np.array([0.01] * 90 + [0.5] * 10)
    rows = np.ones(100, bool)
    assert pytest.approx(0.341, abs=1e-3) == 1.0 / (1.0 + (90 / 10) ** 0.3)
    assert spread([first] * 90 + [other] * 10, error, rows) == pytest.approx(np.exp(0.5))
    assert spread([first] * 100, error, rows) == pytest.approx(np.exp(0.01))


def test_rows_are_predicted_by_the_other_part() -> None:
    cases, parts = problem()
    used = np.array([fitting.told(c) for c in cases])
    part = np.array([zlib.crc32(repr(c.row.group).encode()) % 2 == 0 for c in cases])
    nothing, every = np.zeros(len(cases), bool), np.ones(len(cases), bool)
    own = np.zeros(len(cases))
    found, known = fitting.crossed(cases, used, part, parts, own, nothing)
    for side in (False, True):
        alone = np.log(fitting.fit(cases, used & (part == side), parts)[1] / parts.value)
        assert found[part != side] == pytest.approx(alone[part != side])
        assert list(known[part != side]) == list(
            known_levels(parts, used & (part == side))[part != side])
    # Where the constants of all rows miss by nothing, those of a part miss for want of rows alone.
    again = fitting.crossed(cases, used, part, parts, own, every)[0]
    phases = np.array([c.phase for c in cases])
    for phase in np.unique(phases):
        mine = phases == phase
        few = np.sum(mine) < fitting.FEWEST_ROWS
        assert again[mine] == pytest.approx(found[mine] if few else 0.0)


def test_each_step_away_from_a_known_device_widens() -> None:
    cases, _ = problem()
    rng = np.random.default_rng(1)
    known = np.array(KNOWN)[rng.integers(0, 4, len(cases))]
    found = spreads(cases, rng.normal(0, 0.2, len(cases)), known, np.ones(len(cases), bool))
    assert "decode" in found
    for widths in found.values():
        ordered = [widths[level] for level in KNOWN]
        assert ordered == sorted(ordered)
        assert ordered[0] > 1.0


def test_a_few_odd_devices_do_not_tell_how_wide_a_level_is() -> None:
    """Errors ten times as large on one unknown device: its level is wider by the rule alone."""
    cases, _ = problem()
    device = np.array([c.setup.hardware for c in cases])
    odd = device == max(set(device), key=list(device).count)
    known = np.where(odd, "none", "device")
    error = np.where(odd, 1.0, 0.1) * np.linspace(-1.0, 1.0, len(cases))
    for widths in spreads(cases, error, known, np.ones(len(cases), bool)).values():
        assert np.log(widths["none"]) == pytest.approx(
            np.log(widths["device"]) * (1.0 + sum(LEAST_WIDER.values())), rel=0.05)


def test_an_engine_that_is_far_off_on_a_device_has_a_range_of_its_own() -> None:
    """Of one pair all errors are 2, of the others 0.1: the others' range stays what it was, and the
    pair needs ln 2 widths of it, wherever its rows are."""
    cases, parts = problem()
    pairs = np.array([f"{c.setup.engine} on {d}" for c, d in zip(cases, parts.device, strict=True)])
    odd = next(p for p in sorted(set(pairs)) if np.sum(pairs == p) >= 30
               and len({c.row.group for c, q in zip(cases, pairs, strict=True) if q == p}) > 1)
    error = np.where(pairs == odd, 2.0, 0.1)
    known, rows = np.full(len(cases), "device"), np.ones(len(cases), bool)
    found, powers = ranges_of(cases, error, error, known, known, rows)
    assert set(powers) == {odd}
    assert powers[odd] == pytest.approx(2.0 / 0.1, rel=0.03)
    for widths in found.values():
        assert widths["device"] == pytest.approx(np.exp(0.1), abs=1e-3)
    assert ranges_of(cases, error / error, error / error, known, known, rows)[1] == {}


def test_how_well_a_device_is_known() -> None:
    _, parts = problem()
    a100 = parts.device == "a100-sxm4-80gb"
    known = known_levels(parts, a100)
    assert set(known[a100]) == {"device"}
    assert set(known[parts.device == "rtx-4090-24gb"]) <= {"none", "vendor"}


def test_the_table_names_every_phase_it_has() -> None:
    cases, _ = problem()
    text = table(cases, {"tokline": predict(cases).expected}, np.ones(len(cases), bool))
    for phase in {c.phase for c in cases}:
        assert phase in text


def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fitting.main(["/no/such/file.csv"]) == 2
    assert "file.csv" in capsys.readouterr().err
