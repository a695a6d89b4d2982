"""Fits of a chip to rows that the model itself made at known constants, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.bench_files import CSV_TOOL, Placed
from simulator.calibration.chip_report import MARK, chip_yaml, fit_dict, fit_lines
from simulator.calibration.fit_chip import ChipFit, Errors, fit_chip
from simulator.deployment import Deployment, Workload
from simulator.efficiency import Efficiency
from simulator.efficiency.levels import level_of
from simulator.errors import InputError
from simulator.request import estimate
from simulator.specs.catalogue import load_hardware, load_model
from simulator.specs.engine import load_engine
from simulator.specs.hardware import parse_inline
from simulator.validation.cases import cases_of
from simulator.validation.measurements import Row
from simulator.validation.predict import predict

TRUE = {"memory_level": 1.30, "compute_level": 1.6, "step_overhead": 0.5e-3}
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "llama-3.2-1b", "qwen3-14b")


def row(metric: str, **more: object) -> Row:
    told = {"id": "", "source": "s", "date": "2025-10", "licence": "", "n_devices": 1,
            "hardware": "h100-sxm5-80gb", "engine": "vllm", "version": "0.11", "tp": 1, "pp": None,
            "model": "llama-3.1-8b", "weights": "bf16", "kv": "", "ep": None, "batch": 1.0,
            "rate": "", "input": 1024.0, "output": 256.0, "metric": metric, "value": 1.0,
            "quality": "A", "notes": ""}
    return Row(**(told | more))    # type: ignore[arg-type]


def decodes(models: Sequence[str], batches: Sequence[float] = (1.0, 8.0, 32.0)) -> list[Row]:
    return [row("tpot_ms", model=m, batch=b) for m in models for b in batches]


def prefills(models: Sequence[str]) -> list[Row]:
    return [row("prefill_ms", model=m, input=n, output=1.0) for m in models
            for n in (1024.0, 8192.0)]


def measured(rows: Sequence[Row], constants: dict[str, float] = TRUE, noise: float = 0.0
             ) -> list[Placed]:
    """Rows with the values of a chip that has these constants."""
    cases, missing = cases_of(list(rows))
    assert not missing

    def change(d: Deployment) -> Deployment:
        return d.replace(hardware=d.hardware.replace(**constants))

    spread = np.exp(noise * np.random.default_rng(7).standard_normal(len(cases)))
    values = predict(cases, change).expected * spread
    return [Placed(f"f.csv: row {i + 1}", CSV_TOOL, replace(c.row, value=float(v)))
            for i, (c, v) in enumerate(zip(cases, values, strict=True))]


def after(fit: ChipFit) -> dict[str, float]:
    return {c.name: c.after for c in fit.constants}


def held(fit: ChipFit) -> tuple[Errors, Errors]:
    assert fit.held_before is not None
    assert fit.held_after is not None
    return fit.held_before, fit.held_after


@pytest.fixture(scope="module")
def exact() -> ChipFit:
    return fit_chip(measured(decodes(MODELS) + prefills(MODELS)))


def test_known_constants_are_found_again(exact: ChipFit) -> None:
    assert not exact.refused
    assert not any(c.why for c in exact.constants)
    assert after(exact) == pytest.approx(TRUE, rel=0.01)
    before, now = held(exact)
    assert before.median > 0.1
    assert now.p90 < 0.01
    assert (exact.used, exact.split, exact.groups) == (20, "model", 4)
    assert before.n == now.n == 10


def test_noise_moves_them_by_no_more_than_it_is() -> None:
    fit = fit_chip(measured(decodes(MODELS) + prefills(MODELS), noise=0.05))
    found = after(fit)
    assert found["memory_level"] == pytest.approx(TRUE["memory_level"], rel=0.1)
    assert found["compute_level"] == pytest.approx(TRUE["compute_level"], rel=0.1)
    assert held(fit)[1].median < 0.08


def test_a_few_wild_rows_don_t_pull_the_rest() -> None:
    placed = measured(decodes(MODELS, (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)) + prefills(MODELS))
    for i in (0, 9):
        placed[i] = replace(placed[i], row=replace(placed[i].row, value=3.0 * placed[i].row.value))
    assert after(fit_chip(placed))["memory_level"] == pytest.approx(1.30, rel=0.05)


def test_without_prefill_the_memory_alone_is_fitted() -> None:
    true = {"memory_level": 1.4, "compute_level": 1.085, "step_overhead": 0.0}
    fit = fit_chip(measured(decodes(["llama-3.1-8b"], (1.0, 2.0, 4.0, 8.0)), true)
                   + measured([row("decode_tok_s_per_user", input=n) for n in (256.0, 4096.0)],
                              true))
    why = {c.name: c.why for c in fit.constants}
    assert why["memory_level"] == ""
    assert why["compute_level"] == "no row of prefill"
    assert "don't determine" in why["step_overhead"]
    assert fit.split == "run"
    assert after(fit)["memory_level"] == pytest.approx(1.4, rel=0.02)
    assert after(fit)["compute_level"] == level_of(load_hardware("h100")).compute


def test_the_split_doesn_t_depend_on_the_order_of_rows(exact: ChipFit) -> None:
    placed = measured(decodes(MODELS) + prefills(MODELS))[::-1]
    assert after(fit_chip(placed)) == pytest.approx(after(exact), rel=1e-3)


def test_too_few_rows() -> None:
    fit = fit_chip(measured(decodes(["llama-3.1-8b"], (1.0, 8.0, 16.0))))
    assert fit.refused.startswith("3 rows of 3 runs can be used, at least 6 rows of 4 runs")
    assert fit_lines(fit)[0].startswith("REFUSED: 3 rows")
    assert not fit.constants
    same = measured([row("tpot_ms"), *[row("decode_tok_s_per_user") for _ in range(6)]])
    assert "7 rows of 1 runs" in fit_chip(same).refused
    with pytest.raises(InputError, match="nothing was fitted"):
        chip_yaml(fit, date(2026, 1, 2))


def test_rows_that_no_kernel_decides_are_left_out() -> None:
    placed = measured([*decodes(MODELS), row("ttft_ms", batch=32.0),
                       row("prefill_ms", input=64.0, output=1.0)])
    placed.append(Placed("f.csv: row 99", CSV_TOOL, row("tpot_ms", model="nobody-1b")))
    placed.append(Placed("f.csv: row 98", CSV_TOOL, row("tpot_ms", rate="3")))
    fit = fit_chip(placed)
    assert fit.used == 12
    assert sum(fit.not_used.values()) == 4
    assert any("queueing" in reason for reason in fit.not_used)
    assert any("nobody-1b" in reason for reason in fit.not_used)
    assert any("at a rate of their own" in reason for reason in fit.not_used)


def impossible(count: int) -> list[Placed]:
    placed = measured(decodes(MODELS) + prefills(MODELS))
    for i in range(count):
        placed[i] = replace(placed[i], row=replace(placed[i].row, value=0.1))
    return placed


def test_rows_faster_than_physics() -> None:
    fit = fit_chip(impossible(2))
    assert "2 of 20 rows are faster than physics" in fit.refused
    assert "--drop-impossible" in fit.refused
    assert not fit.constants
    first = fit.impossible[0]
    assert (first.place, first.metric, first.measured) == ("f.csv: row 1", "tpot_ms", 0.1)
    # 16 GB of weights at 3.35 TB/s, in ms; the head and the cache are the rest.
    assert 4.3 < first.ceiling < 5.0
    text = "\n".join(fit_lines(fit))
    assert "f.csv: row 1: tpot_ms 0.1 ms, ceiling 4." in text
    assert "llama-3.1-8b, batch 1" in text


def test_impossible_rows_are_dropped_where_a_clear_majority_is_possible() -> None:
    fit = fit_chip(impossible(2), drop_impossible=True)
    assert (fit.refused, fit.dropped, fit.used) == ("", 2, 18)
    assert after(fit)["memory_level"] == pytest.approx(1.30, rel=0.02)
    most = fit_chip(impossible(8), drop_impossible=True)
    assert "only where 75% are possible" in most.refused
    assert not most.constants


def test_rows_of_two_devices() -> None:
    both = measured(decodes(MODELS)) + measured([
        replace(r, hardware="a100-sxm4-80gb") for r in decodes(MODELS)])
    with pytest.raises(InputError, match=r"rows are of 2 devices .*--hardware"):
        fit_chip(both)
    with pytest.raises(InputError, match="not in the catalogue: h10000"):
        fit_chip([Placed("f", CSV_TOOL, row("tpot_ms", hardware="h10000"))])


def test_runs_that_contradict_each_other_are_refused() -> None:
    # Two of the four models are of a chip with a slower memory: those that are fitted on, so that
    # the others get worse, or the others, which are then reported as far off.
    known = {"memory_level": 1.114, "compute_level": 1.085}
    slow, plain = (measured(decodes(MODELS, (1.0, 8.0)), known | more)
                   for more in ({"memory_level": 2.0}, {}))
    fits = [fit_chip([s if s.row.model in pair else p for s, p in zip(slow, plain, strict=True)])
            for pair in (MODELS[1:3], MODELS[::3])]
    refused, kept = sorted(fits, key=lambda f: not f.refused)
    assert "contradict each other" in refused.refused
    assert kept.refused == ""
    assert held(kept)[1].median > 0.4


def test_the_file_is_the_chip_s_own_with_the_fitted_numbers(exact: ChipFit, tmp_path: Path
                                                            ) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(chip_yaml(exact, date(2026, 1, 2)))
    assert path.read_text().startswith(MARK)
    chip, plain = load_hardware(str(path)), load_hardware("h100")
    assert (chip.name, chip.memory_bandwidth) == (plain.name, plain.memory_bandwidth)
    assert chip.memory_level == pytest.approx(1.3, rel=0.01)
    assert chip.step_overhead == pytest.approx(0.5e-3, rel=0.01)
    # The ends hold four in five of a normal error: 1.2816 standard errors to each side.
    error = next(c.error for c in exact.constants if c.name == "memory_level")
    assert error is not None
    ends = chip.ranges["memory_level"]
    assert ends.low == pytest.approx(ends.mid * math.exp(-1.2816 * error), rel=1e-3)
    assert ends.high == pytest.approx(ends.mid * math.exp(1.2816 * error), rel=1e-3)
    told = chip.provenance["memory_level"]
    assert (told.confidence, told.date, told.verified) == ("measured", "2025-10", True)
    assert "20 rows (f.csv)" in str(told.source)
    assert "10 rows held back" in str(told.source)
    assert chip.provenance["memory_bandwidth"] == plain.provenance["memory_bandwidth"]
    model, engine = load_model("llama-3.1-8b"), load_engine("vllm")
    # The kernels' own constants are kept: only the levels differ.
    assert Efficiency(chip, engine).level == Efficiency(plain, engine).level == "chip"
    workload = Workload(8, 1024, 256)
    fitted, before = (estimate(Deployment(model, h, engine), workload) for h in (chip, plain))
    assert fitted.decode.time.expected > 1.1 * before.decode.time.expected
    assert fitted.decode.time.ceiling == before.decode.time.ceiling


def test_the_search_leaves_the_caps_of_kernels() -> None:
    """Rows without noise, most of decode: the compute level lies far from the nearest start."""
    true = {"memory_level": 1.40, "compute_level": 1.45, "step_overhead": 1.5e-3}
    rows = [row("prefill_ms", model=m, input=n) for m in MODELS for n in (512.0, 4000.0)]
    fit = fit_chip(measured([*decodes(MODELS, (1.0, 4.0, 16.0)), *rows], true))
    found = {c.name: c.after for c in fit.constants}
    assert found["memory_level"] == pytest.approx(1.40, rel=0.02)
    assert found["compute_level"] == pytest.approx(1.45, rel=0.03)
    assert found["step_overhead"] == pytest.approx(1.5e-3, rel=0.1)


def test_kernels_that_reach_the_most_are_named_as_the_reason() -> None:
    """Prompts faster than the cap of a matrix product: no level brings a prediction down to them.
    """
    prompts = [row("prefill_ms", model=m, input=n) for m in MODELS for n in (1024.0, 4096.0)]
    placed = measured(prompts, {"compute_level": 0.4})
    fit = fit_chip(placed)
    said = fit.refused or {c.name: c.why for c in fit.constants}["compute_level"]
    assert "its kernels are at the most that one reaches" in said


def test_json_has_no_nan_and_says_the_same(exact: ChipFit) -> None:
    found = fit_dict(exact)
    assert found["held_back"]["after"]["n"] == 10
    assert found["refused"] is None
    assert found["constants"]["memory_level"]["fitted"] is True
    refused = fit_dict(fit_chip(measured(decodes(["llama-3.1-8b"], (1.0,)))))
    assert refused["held_back"]["after"] is None
    assert "1 rows" in refused["refused"]


def test_a_stated_level_is_a_factor_on_the_kernels_times() -> None:
    bare = {"name": "x", "memory_bandwidth": "1 TB/s", "memory_capacity": "80 GB",
            "peak_bf16": "100 TFLOP/s"}
    engine = load_engine("vllm")
    for base in (bare, bare | {"bandwidth_efficiency": 0.8, "compute_efficiency": 0.5}):
        one, two = (Efficiency(parse_inline(base | {"memory_level": x, "compute_level": x}), engine)
                    .kernel("gemm") for x in (1.5, 3.0))
        assert one.h == pytest.approx(2.0 * two.h)
        assert one.e == pytest.approx(2.0 * two.e)
    assert Efficiency(parse_inline(bare | {"memory_level": 1.0}), engine).known == "device"
    with pytest.raises(InputError, match="memory_level"):
        parse_inline(bare | {"memory_level": 0})
