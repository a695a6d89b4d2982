"""Measuring a machine: what is found, how it becomes a hardware file, and what it predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs tokline[torch]")

from simulator.deployment import Deployment, Workload  # noqa: E402
from simulator.executor.calibrate import (  # noqa: E402
    caches_of,
    calibrate_machine,
    disturbed,
    floor_and_rate,
    no_longer_than_more,
)
from simulator.executor.comparison import SHAPES, Point, compare, points, predict  # noqa: E402
from simulator.executor.comparison_report import (  # noqa: E402
    Comparison,
    comparison_dict,
    comparison_lines,
    score,
    write_comparison,
)
from simulator.executor.cut import cut  # noqa: E402
from simulator.executor.machine import (  # noqa: E402
    Machine,
    machine_dict,
    machine_hardware,
    machine_lines,
    machine_yaml,
)
from simulator.executor.transformer import Transformer  # noqa: E402
from simulator.request import estimate  # noqa: E402
from simulator.specs.hardware import Hardware  # noqa: E402
from simulator.specs.model import Attention, Moe  # noqa: E402

MIB = 2**20


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine, measured in a hurry; no test asserts how fast it is."""
    return calibrate_machine("cpu", ["fp32"], None, 0.02, lambda text: None)


def test_caches_from_a_sweep() -> None:
    # 100 GB/s up to 16 MiB, half of an L3 that others share; 20 GB/s from memory.
    curve = [(float(s * MIB), 100e9 if s <= 16 else 20e9, 10e9) for s in (
        1, 2, 4, 8, 16, 32, 64, 128, 256)]
    memory, caches = caches_of(curve, [("L2", MIB), ("L3", 32 * MIB)])
    assert memory == 20e9
    assert caches == (("L3", 16.0 * MIB, 100e9),)


def test_two_caches_from_a_sweep() -> None:
    speeds = {1: 200e9, 2: 200e9, 4: 80e9, 8: 80e9, 16: 80e9, 32: 80e9, 64: 20e9, 128: 20e9,
              256: 20e9}
    curve = [(float(s * MIB), v, 1e9) for s, v in speeds.items()]
    memory, caches = caches_of(curve, [("L2", 2 * MIB), ("L3", 32 * MIB)])
    assert memory == 20e9
    assert caches == (("L2", 2.0 * MIB, 200e9), ("L3", 32.0 * MIB, 80e9))


def test_unknown_caches_are_none() -> None:
    assert caches_of([(float(MIB), 9e9, 8e9), (64.0 * MIB, 7e9, 7.5e9)], []) == (7.5e9, ())


def test_floor_and_rate_are_found_again() -> None:
    points = [(F, 100e-6 + F / 50e9) for F in (1e6, 5e6, 20e6)]
    floor, rate = floor_and_rate(points, 10e-6)
    assert floor == pytest.approx(60e-6)    # at most half of the shortest, 120 us
    floor, rate = floor_and_rate([(F, 30e-6 + F / 50e9) for F in (2e6, 5e6, 20e6)], 10e-6)
    assert (floor, rate) == (pytest.approx(30e-6), pytest.approx(50e9))
    assert floor_and_rate([(1e6, 30e-6)], 10e-6) == (10e-6, pytest.approx(50e9))


def test_file_says_that_all_is_measured(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    path.write_text(machine_yaml(machine, "this-one"))
    hardware = Hardware.load(path)
    assert hardware.name == "this-one"
    assert {p.confidence for p in hardware.provenance.values()} == {"measured"}
    assert {p.date for p in hardware.provenance.values()} == {machine.environment["date"]}
    assert all(k.provenance.confidence == "measured" for k in hardware.kernels)
    assert hardware.memory_bandwidth == pytest.approx(machine.bandwidth, rel=1e-5)
    assert len(hardware.kernels) == len(machine.kernels)


def test_no_kernel_beats_the_measured_ceilings(machine: Machine) -> None:
    for k in machine.kernels:
        if k.kernel not in ("elementwise", "moe"):
            assert max(k.rates) / (1.0 + k.start / 64.0) <= machine.peaks[k.format]
    assert all(w > machine.bandwidth for _, _, w in machine.caches)


def test_memory_is_no_faster_than_a_cache(machine: Machine) -> None:
    for k in machine.kernels:
        if k.cold_rates is not None:
            assert all(c <= r for c, r in zip(k.cold_rates, k.rates, strict=True))


def test_estimate_uses_the_file_at_once(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    path.write_text(machine_yaml(machine))
    for engine in ("executor", "llama.cpp-cpu", "ideal"):
        e = estimate(Deployment.of("llama-3.2-1b", str(path), engine=engine, activations="fp32"),
                     Workload(1, 64, 16))
        assert e.decode is not None
        assert 0 < e.decode.time.ceiling <= e.decode.time.expected


def test_words_and_numbers(machine: Machine) -> None:
    lines = "\n".join(machine_lines(machine))
    assert "memory serves" in lines
    assert "fp32" in lines
    data = machine_dict(machine)
    assert data["memory_bandwidth"] == machine.bandwidth
    assert {k["kernel"] for k in data["kernels"]} == {
        "gemm", "attention_prefill", "attention_decode", "ssm", "elementwise", "moe"}


def test_a_disturbed_time_is_no_longer_than_that_of_more_work() -> None:
    assert no_longer_than_more([5.0, 1.0, 9.0, 2.0, 4.0]) == [1.0, 1.0, 2.0, 2.0, 4.0]
    assert no_longer_than_more(iter([1.0, 2.0])) == [1.0, 2.0]


def test_a_disturbed_machine_is_warned_of() -> None:
    assert disturbed([]) == ()
    assert disturbed([1.0, 1.2, 1.1, 1.0, 1.6, 1.0, 1.0, 1.0, 1.0, 1.0]) == ()
    assert disturbed([1.0, 2.0, 9.0, 1.0]) == (
        "WARNING, something else ran on this machine: 50% of 4 kernels took more than 1.5 times as "
        "long when they were measured again; measure once more when nothing else runs",)


def test_a_comparison_cut_short_has_seen_every_kind() -> None:
    chosen = points(Hardware.load("epyc-9654"), ["fp32"], False)[:len(SHAPES)]
    assert {p.name for p in chosen} == set(SHAPES)


def test_points_are_none_that_calibration_timed() -> None:
    from simulator.executor.calibrate import (
        COLD_PRODUCTS,
        INNER,
        INNER_WIDTH,
        LARGEST,
        PRODUCTS,
    )
    from simulator.executor.overheads import TINY

    chosen = points(Hardware.load("epyc-9654"), ["fp32", "bf16", "fp16"], False)
    assert len(chosen) >= 60
    timed = {*PRODUCTS, *COLD_PRODUCTS, LARGEST[1:], *((k, INNER_WIDTH) for k in INNER)}
    for model in SHAPES.values():
        a, ffn = model.layers[0].mixer, model.layers[0].ffn
        if not isinstance(a, Attention) or ffn is None:
            continue
        queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
        products = {(model.hidden, queries + 2 * keys), (queries, model.hidden),
                    (model.hidden, ffn.width * (2 if ffn.gated else 1)), (ffn.width, model.hidden)}
        assert not products & timed
        assert model.layers != TINY.layers
    assert len({p.model.layer_count for p in chosen}) >= 6
    assert len({p.batch for p in chosen}) >= 6
    assert {p.dtype for p in chosen} == {"fp32", "bf16", "fp16"}
    slow = Hardware.load("raspberry-pi-5")
    assert len(points(slow, ["fp32", "bf16", "fp16"], False)) == len(chosen)
    assert any(isinstance(p.model.layers[0].ffn, Moe) for p in chosen)


def test_the_shape_that_runs_is_the_one_predicted(machine: Machine) -> None:
    hardware = machine_hardware(machine)
    for name in ("dense-10M", "experts-25M"):
        e = predict(Point(name, SHAPES[name], "fp32", 1, 8, 2), hardware)
        assert Transformer(SHAPES[name]).parameter_count * 4 == pytest.approx(
            float(e.memory.weights), rel=1e-12)


@pytest.fixture(scope="module")
def comparison(machine: Machine) -> Comparison:
    hardware = machine_hardware(machine)
    chosen = [Point(n, cut(SHAPES[n], 2), "fp32", b, 24, 3)
              for n, b in (("dense-3M", 1), ("dense-3M", 4), ("experts-25M", 2))]
    found = list(compare(hardware, "cpu", chosen, None, 0.3, lambda text: None))
    return Comparison(hardware, machine.environment, 3, found, 1.0, None)


def test_each_point_has_both_phases(comparison: Comparison) -> None:
    assert [(c.point.name, c.phase) for c in comparison.compared] == [
        (n, phase) for n in ("dense-3M", "dense-3M", "experts-25M")
        for phase in ("prefill", "decode")]
    for c in comparison.compared:
        assert c.measured.time.low <= c.measured.time.median <= c.measured.time.high
        # Not a figure of accuracy, a busy machine may be far off: a wrong unit shows here.
        assert abs(c.log_ratio) < np.log(300.0)


def test_report_of_the_comparison(comparison: Comparison, tmp_path: Path) -> None:
    data = comparison_dict(comparison)
    assert [p["name"] for p in data["phases"]] == ["prefill", "decode"]
    assert len(data["points"]) == 6
    point = data["points"][0]
    assert point["ln_error"] == pytest.approx(np.log(
        point["predicted_s"]["expected"] / point["measured_s"]["median"]))
    assert "experts-25M" in "\n".join(comparison_lines(comparison))
    path = tmp_path / "rows.csv"
    write_comparison(str(path), comparison)
    from simulator.validation.measurements import read_rows

    rows = read_rows(path)
    assert len(rows) == 6


def test_scores_by_hand(comparison: Comparison) -> None:
    c = comparison.compared[0]
    found = score("x", [c])
    assert found is not None
    assert found.median == pytest.approx(abs(
        float(c.predicted.expected) / c.measured.time.median - 1.0))
    assert score("x", []) is None


def test_charts_can_be_drawn(comparison: Comparison, tmp_path: Path) -> None:
    from simulator import plots
    from simulator.executor.measure import measure_phases

    drawn = plots.executor(comparison)
    assert len(drawn.data) == 6
    measured = measure_phases(SHAPES["dense-3M"], "fp32", "cpu", 1, 16, 3, 3, 0.5)
    roof = plots.measured_roofline(comparison.hardware, measured, "fp32")
    assert {"prefill", "decode"} == set(roof.data["phase"])
    for name, plot in (("a.png", drawn), ("b.png", roof)):
        assert plots.save(plot.figure, str(tmp_path / name)) > 5_000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_measured_and_predicted() -> None:
    found = calibrate_machine("cuda", ["bf16"], None, 0.5, lambda text: None)
    hardware = machine_hardware(found)
    chosen: list[Any] = points(hardware, ["bf16"], True)[:4]
    for c in compare(hardware, "cuda", chosen, None, 1.0, lambda text: None):
        assert c.measured.time.median > 0
        assert abs(c.log_ratio) < np.log(300.0)
