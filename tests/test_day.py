"""Replicas over a day: shapes, the lower bound, start-up, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cli import run
from simulator.errors import InputError
from simulator.planning.day import STEP, on_grid, over_day, parse_day, peaked


@settings(deadline=None, max_examples=30)
@given(st.floats(0.1, 1e4), st.floats(1.0, 12.0))
def test_a_peaked_day_has_its_mean_and_its_peak(mean: float, ratio: float) -> None:
    rates = peaked(mean, ratio)
    assert rates.mean() == pytest.approx(mean)
    assert rates.max() / rates.mean() == pytest.approx(ratio, rel=1e-6)
    assert rates.argmax() == 15 or ratio < 1.001


def test_a_flat_day_needs_the_same_all_day() -> None:
    d = over_day(np.full(24, 10.0), 4.0, 600.0)
    assert set(d.need) == {3}
    assert d.hours(d.need) == d.hours(d.scheduled) == d.hours(d.fixed) == 72.0
    assert d.short == 0.0
    assert d.peak_to_mean == pytest.approx(1.0)


def test_replicas_by_hand() -> None:
    hourly = np.where(np.arange(24) < 12, 1.0, 9.0)
    d = over_day(hourly, 2.0, 0.0)
    assert (d.need.min(), d.need.max()) == (1, 5)
    assert np.array_equal(d.need, d.scheduled)
    assert d.rates[6 * 12] == 1.0
    assert d.rates[18 * 12] == 9.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.1, 1e3), min_size=24, max_size=24), st.floats(0.5, 100.0),
       st.floats(0.0, 20_000.0))
def test_bounds_of_a_day(hourly: list[float], each: float, delay: float) -> None:
    d = over_day(np.array(hourly), each, delay)
    assert np.all(d.need * each >= d.rates * (1.0 - 1e-9))
    assert np.all(d.need <= d.scheduled)
    assert np.all(d.scheduled <= d.fixed)
    # Whatever is needed at a moment was running or starting a delay before.
    steps = int(np.ceil(delay / STEP - 1e-9))
    assert np.all(np.roll(d.scheduled, steps) >= d.need)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.0, 7_200.0), st.floats(0.0, 7_200.0))
def test_a_longer_start_up_never_costs_less(a: float, b: float) -> None:
    low, high = sorted((a, b))
    rates = peaked(100.0, 2.5)
    one, other = over_day(rates, 7.0, low), over_day(rates, 7.0, high)
    assert one.hours(one.scheduled) <= other.hours(other.scheduled)
    assert one.short <= other.short + 1e-9


def test_reactive_scaling_is_short_while_traffic_rises() -> None:
    d = over_day(peaked(100.0, 2.5), 7.0, 1200.0)
    assert d.short > 0.5
    assert d.spare > 1.0
    assert np.all(np.roll(d.rates, 4) * d.spare >= d.rates * (1.0 - 1e-12))


def test_the_grid_keeps_the_mean_and_goes_round_the_clock() -> None:
    rates = on_grid(np.arange(24.0))
    assert rates.mean() == pytest.approx(11.5)
    assert rates[0] == pytest.approx((0.0 + 23.0) / 2.0, abs=1.0)


def test_a_day_from_numbers_a_file_and_a_trace(tmp_path: Path) -> None:
    numbers = ",".join(str(1 + i % 5) for i in range(24))
    assert parse_day(numbers, None).tolist() == [1.0 + i % 5 for i in range(24)]
    assert parse_day(numbers, 50.0).mean() == pytest.approx(50.0)
    plain, table = tmp_path / "day.txt", tmp_path / "day.csv"
    plain.write_text("\n".join(numbers.split(",")))
    table.write_text("hour,rate\n" + "\n".join(f"{i},{n}" for i, n in enumerate(
        numbers.split(","))))
    assert parse_day(str(plain), None).tolist() == parse_day(numbers, None).tolist()
    assert parse_day(str(table), None).tolist() == parse_day(numbers, None).tolist()
    trace = tmp_path / "trace.csv"
    rows = [f"{h * 3600 + k},10,5" for h in range(24) for k in range(h + 1)]
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(rows))
    hourly = parse_day(str(trace), None)
    assert hourly[23] / hourly[0] == pytest.approx(24.0)


@pytest.mark.parametrize(("text", "rate", "word"), [
    ("peak:0.5", 1.0, "between 1 and 12"), ("peak:x", 1.0, "'x' is not a number"),
    ("peak:2", None, "give the mean rate"), ("1,2,3", None, "3 numbers, a day has 24"),
    (",".join(["0"] * 24), None, "no hour has any"), ("-1," + ",".join(["1"] * 23), None,
                                                     "'-1' is not at least 0"),
    ("nowhere", 1.0, "is no file"), (",".join(["1"] * 24), -1.0, "--rate")])
def test_bad_days_are_named(text: str, rate: float | None, word: str) -> None:
    with pytest.raises(InputError, match=word):
        parse_day(text, rate)


def test_a_negative_or_endless_start_up_is_refused() -> None:
    for delay in (-1.0, 86_400.0):
        with pytest.raises(InputError, match="--start-up"):
            over_day(peaked(1.0, 2.0), 1.0, delay)


def test_the_command_plans_for_the_peak_and_draws_the_day(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "day.png"
    args = ["plan", "llama-3.1-8b", "--hardware", "h100", "--rate", "30", "--day", "peak:2",
            "--ttft-p99", "1s", "--tpot-p99", "50ms", "--no-simulation", "--start-up", "10min"]
    assert run([*args, "--json", "-o", str(chart)]) == 0
    found = json.loads(capsys.readouterr().out)
    day = found["day"]
    assert found["rate_per_s"] == pytest.approx(60.0)
    assert day["fixed"]["replicas"] == found["best"]["replicas"]
    assert day["lower_bound"]["replica_hours"] <= day["scheduled"]["replica_hours"]
    assert day["scheduled"]["replica_hours"] <= day["fixed"]["replica_hours"]
    assert len(day["rate_per_s"]) == len(day["replicas_running"]) == 288
    assert chart.stat().st_size > 10_000
    assert run(args) == 0
    assert "replica-hours a day" in capsys.readouterr().out


def test_the_table_of_a_day_sums_to_its_own_figures(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "llama-3.1-8b", "--hardware", "h100", "--rate", "30", "--day", "peak:2.2",
            "--ttft-p99", "1s", "--tpot-p99", "50ms", "--no-simulation"]
    assert run([*args, "--json"]) == 0
    day = json.loads(capsys.readouterr().out)["day"]
    assert run(args) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == ["hour"]) + 1
    rows = np.array([[float(x) for x in line.split()] for line in lines[start:start + 24]])
    assert rows[:, 0].tolist() == list(range(24))
    assert rows[:, 3].sum() == pytest.approx(day["lower_bound"]["replica_hours"], abs=0.12)
    assert rows[:, 4].sum() == pytest.approx(day["scheduled"]["replica_hours"], abs=0.12)
    each = day["rate_per_replica_per_s"]
    assert np.all(rows[:, 1] <= rows[:, 2])
    # An hour whose largest rate one replica carries needs one, and no other needs only one.
    assert np.array_equal(rows[:, 3] == 1.0, rows[:, 2] <= each * (1.0 + 1e-3))
