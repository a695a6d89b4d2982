"""Solving for a quantity: the solution meets the target, a little less does not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from simulator.deployment import Deployment, Parallelism, Workload
from simulator.errors import InputError
from simulator.metrics import parse_target
from simulator.request import estimate
from simulator.solve import FIGURES, Solution, bracket, knob, solve
from simulator.solve_report import remaining, solution_dict, solution_lines

A100 = ("llama-3.1-8b", "a100")


def value_of(s: Solution, index: int = 0) -> float:
    """The target's figure at the solution."""
    assert s.solved is not None
    f = s.question.targets[index].metric.get(s.solved)
    assert f is not None
    return float(getattr(f, s.question.figure))


CASES = [
    (A100, 1, "memory-bandwidth", "tpot=8ms", "expected"),
    (A100, 1, "memory-bandwidth", "tpot=8ms", "ceiling"),
    (A100, 1, "memory-bandwidth", "tpot=9ms", "high"),
    (A100, 1, "memory-bandwidth", "tok/s=150", "low"),
    (A100, 1, "flops", "ttft=50ms", "expected"),
    (A100, 8, "memory-bandwidth", "total-tok/s=900", "expected"),
    (A100, 8, "memory-bandwidth", "usd=1.5", "expected"),
    (A100, 1, "price", "usd=2", "expected"),
    (A100, 1, "host-time", "tpot=12.4ms", "expected"),
    (("llama-3.1-8b", "mn-core-l1400"), 1, "layer-overhead", "tpot=1.65ms", "expected"),
    (("llama-3.1-8b", "mn-core-l1400"), 1, "bandwidth-efficiency", "tpot=1.6ms", "expected"),
]


@pytest.mark.parametrize(("names", "batch", "find", "target", "figure"), CASES)
def test_solution_meets_and_is_minimal(names: tuple[str, str], batch: int, find: str, target: str,
                                       figure: str) -> None:
    """Within 1e-6 of the target at the solution; 0.1 % less of the quantity misses it."""
    d, w = Deployment.of(*names), Workload(batch, 1024, 256)
    t = parse_target(target)
    s = solve(d, w, find, [t], figure)
    assert s.found
    assert isinstance(s.value, float)
    assert value_of(s) == pytest.approx(t.value, rel=1e-6)
    assert float(t.excess(s.solved, figure)) <= 1 + 1e-9  # type: ignore[arg-type]
    k = knob(find, d)
    less = s.value * (0.999 if k.rising else 1.001)
    assert float(t.excess(estimate(k.set(d, less), w), figure)) > 1


def test_hand_computed_bandwidth() -> None:
    """Ideal engine, batch 1: time = bytes / bandwidth, so bandwidth = bytes / time."""
    d = Deployment.of(*A100, engine="ideal")
    w = Workload(1, 256, 64)
    s = solve(d, w, "memory-bandwidth", [parse_target("tpot=4ms")])
    assert s.value == pytest.approx(float(estimate(d, w).decode.detail.bytes) / 4e-3, rel=1e-3)


def test_capacity_is_what_fits() -> None:
    """The least capacity: at it the workload fits, 0.1 % below it does not."""
    d, w = Deployment.of("llama-3.1-70b", "mn-core-l1400", weights="fp8", kv="fp8"), Workload()
    s = solve(d, w, "memory-capacity", [])
    assert s.found
    assert isinstance(s.value, float)
    assert d.hardware.memory_capacity < s.value < 1.1 * d.hardware.memory_capacity
    for factor, fits in ((1.0, True), (0.999, False)):
        h = d.hardware.replace(memory_capacity=s.value * factor)
        assert bool(estimate(d.replace(hardware=h), w).memory.fits) is fits


def test_unreachable_names_what_remains() -> None:
    """With infinite bandwidth fixed costs remain: value, share, and what else would do."""
    d = Deployment.of("llama-3.1-8b", "h100")
    s = solve(d, Workload(), "memory-bandwidth", [parse_target("tpot=1ms")])
    assert not s.found
    assert s.value is None
    assert math.isinf(s.best_value)  # type: ignore[arg-type]
    phase, parts = remaining(s, s.best)
    assert (phase, next(iter(parts))) == ("decode", "overhead")
    assert sum(parts.values()) == pytest.approx(float(s.best.tpot.expected))
    far = d.replace(hardware=d.hardware.replace(memory_bandwidth=1e22))
    assert float(s.best.tpot.expected) == pytest.approx(float(estimate(far).tpot.expected))
    text = "\n".join(solution_lines(s))
    assert "UNREACHABLE" in text
    assert "infinite memory bandwidth" in text
    assert "fixed costs" in text


def test_announced_range_is_carried() -> None:
    """The value stands against the range of the file, and its best end is shown."""
    d = Deployment.of("llama-3.1-8b", "mn-core-l1400")
    s = solve(d, Workload(), "memory-bandwidth", [parse_target("tok/s=700")])
    assert s.range is not None
    assert s.at_range_end is not None
    assert s.at_range_end.deployment.hardware.memory_bandwidth == s.range.high
    text = " ".join(" ".join(solution_lines(s)).split())
    assert "the range of its file (12.8 TB/s to 40.0 TB/s)" in text
    assert "favourable end of its range" in text


def test_others_reach_it() -> None:
    """More FLOP/s do not speed up a memory-bound step; bandwidth does, and its value works."""
    d, t = Deployment.of(*A100), parse_target("tpot=10ms")
    s = solve(d, Workload(), "flops", [t])
    assert not s.found
    names = {name: value for name, value, _ in s.others}
    h = d.hardware.replace(memory_bandwidth=names["memory-bandwidth"])
    assert float(estimate(d.replace(hardware=h)).tpot.expected) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize("target", ["tpot=15ms", "tok/s=80"])
def test_largest_batch(target: str) -> None:
    """The largest batch whose users get what they want; one more misses."""
    d, t = Deployment.of("llama-3.1-8b", "h100"), parse_target(target)
    s = solve(d, Workload(), "batch", [t])
    assert isinstance(s.value, float)
    for n, met in ((s.value, True), (s.value + 1, False)):
        assert (float(t.excess(estimate(d, Workload(n)), "expected")) <= 1) is met


def test_smallest_batch_for_cost() -> None:
    """Cost falls with the batch: the smallest that is cheap enough, up to the largest that fits."""
    d, t = Deployment.of("llama-3.1-8b", "h100"), parse_target("usd=0.5")
    s = solve(d, Workload(), "batch", [t])
    assert isinstance(s.value, float)
    assert float(t.excess(estimate(d, Workload(s.value - 1)), "expected")) > 1
    assert s.runs == ((int(s.value), int(estimate(d).memory.max_batch)),)


def test_context_and_fit() -> None:
    """Without a target, the largest context that fits is the memory's own."""
    d, w = Deployment.of("llama-3.1-70b", "h100", weights="fp8", kv="fp8"), Workload(2, 1024, 256)
    s = solve(d, w, "context", [])
    e = estimate(d, w)
    assert s.value is not None
    assert abs(float(s.value) - float(e.memory.max_context)) <= 2 * d.engine.block_size
    fast = solve(d, w, "context", [parse_target("ttft=500ms")])
    assert float(fast.value or 0) < float(s.value)


def test_devices_and_formats() -> None:
    """The fewest devices, and the widest format, that meet it; all before them miss."""
    d, t = Deployment.of("llama-3.1-70b", "h100"), parse_target("tpot=20ms")
    s = solve(d, Workload(), "devices", [t])
    assert isinstance(s.value, float)
    assert s.value > 2
    two = estimate(d.replace(parallelism=Parallelism(tp=2)), Workload())
    assert float(t.excess(two, "expected")) > 1
    f = solve(d.replace(parallelism=Parallelism(tp=2)), Workload(), "format", [t])
    assert isinstance(f.value, str)
    missed = []
    for name in ("bf16", "fp8", "int8", "int6-g128", "nvfp4", "mxfp4", "int4-g128"):
        e = estimate(d.replace(parallelism=Parallelism(tp=2), weights=name), Workload())
        if name == f.value:
            assert float(t.excess(e, "expected")) <= 1
            break
        missed.append(float(t.excess(e, "expected")) > 1)
    assert missed
    assert all(missed)
    assert solve(d, Workload(), "devices", [parse_target("tpot=1ms")]).value is None


def test_two_targets_take_the_harder_one() -> None:
    """The bandwidth for both is the larger of the two."""
    d = Deployment.of(*A100)
    first, second = parse_target("tpot=9ms"), parse_target("tok/s=130")
    values = [solve(d, Workload(), "memory-bandwidth", t).value
              for t in ([first], [second], [first, second])]
    assert values[2] == pytest.approx(max(values[0], values[1]))  # type: ignore[type-var]


def test_not_fitting_is_unreachable() -> None:
    """No bandwidth helps what does not fit, unless memory is ignored; then it still says no."""
    d, t = Deployment.of("llama-3.1-70b", "h100"), parse_target("tpot=30ms")
    s = solve(d, Workload(), "memory-bandwidth", [t])
    assert s.value is None
    assert "does not fit" in " ".join(solution_lines(s))
    assert solution_dict(s, [], [])["limit"]["figures"]["tpot_s"] is None
    forced = solve(d, Workload(), "memory-bandwidth", [t], force=True)
    assert forced.value is not None
    assert not forced.found


def test_bracket() -> None:
    """Bisection of a step in both directions, at a cap, and where nothing or everything meets."""
    assert bracket(lambda v: v >= math.pi, 1.0, math.inf) == pytest.approx(math.pi, rel=1e-9)
    assert bracket(lambda v: v <= math.pi, 1.0, 0.0) == pytest.approx(math.pi, rel=1e-9)
    assert bracket(lambda v: v >= 0.9, 0.5, 0.95) == pytest.approx(0.9, rel=1e-9)
    assert bracket(lambda v: v >= 0.96, 0.5, 0.95) is None
    assert bracket(lambda v: np.zeros(np.shape(v), bool), 1.0, math.inf) is None
    assert bracket(lambda v: np.ones(np.shape(v), bool), 1.0, math.inf) == pytest.approx(1e-9)


@pytest.mark.parametrize(("text", "key", "value"), [
    ("tpot=10ms", "tpot", 0.01), ("tpot_s=0.01", "tpot", 0.01), ("tok/s=100", "tok/s", 100.0),
    ("tokens_per_s_per_user=5", "tok/s", 5.0), ("usd=0.5", "usd", 0.5), ("TTFT = 1 s", "ttft", 1.0),
])
def test_targets(text: str, key: str, value: float) -> None:
    """Short keys with units, and the JSON's names in SI."""
    t = parse_target(text)
    assert (t.metric.key, t.value) == (key, value)


@pytest.mark.parametrize(("text", "message"), [
    ("tpo=1ms", "did you mean 'tpot'"), ("tpot", "is not key=value"), ("tpot=5", "has no unit"),
    ("tok/s=fast", "is not a number"), ("usd=0", "above 0"), ("tok/s=nan", "above 0"),
    ("tpot=-1ms", "above 0"),
])
def test_bad_targets(text: str, message: str) -> None:
    """One clear line."""
    with pytest.raises(InputError, match=message):
        parse_target(text)


@pytest.mark.parametrize(("find", "target", "figure", "message"), [
    ("bandwith", "tpot=1ms", "expected", "did you mean"),
    ("flops", "tpot=1ms", "mean", "unknown figure"),
    ("layer-overhead", "tpot=1ms", "expected", "states no layer_overhead"),
    ("link-bandwidth", "tpot=1ms", "expected", "one device uses no link"),
])
def test_bad_questions(find: str, target: str, figure: str, message: str) -> None:
    """Unknown quantities and quantities that the device doesn't have."""
    with pytest.raises(InputError, match=message):
        solve(Deployment.of(*A100), Workload(), find, [parse_target(target)], figure)


def test_targets_without_a_value() -> None:
    """No price, no decode step, no target at all."""
    d = Deployment.of("llama-3.1-8b", "mn-core-l1400")
    with pytest.raises(InputError, match="no price; add --price"):
        solve(d, Workload(), "flops", [parse_target("usd=1")])
    with pytest.raises(InputError, match="no decode step"):
        solve(d, Workload(1, 64, 1), "flops", [parse_target("tpot=1ms")])
    with pytest.raises(InputError, match="none given"):
        solve(d, Workload(), "flops", [])
    assert set(FIGURES) == {"expected", "ceiling", "low", "high"}


def test_mn_core_study_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The notebook's code runs top to bottom, its outputs are stripped, its conclusion printed."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    path = Path(__file__).resolve().parent.parent / "notebooks" / "mn_core_l_study.ipynb"
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in cells)
    backend = mpl.get_backend()
    plt.switch_backend("Agg")
    try:
        space: dict[str, object] = {"display": lambda value: None}
        with mpl.rc_context():
            for cell in cells:
                exec("".join(cell["source"]), space)
        assert len(plt.get_fignums()) == 4
    finally:
        plt.close("all")
        plt.switch_backend(backend)
    out = capsys.readouterr().out
    assert "Batch 1. The middle of every inferred range gives" in out
    assert "None of this is a specification" in out
