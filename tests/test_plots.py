"""Charts by structure: axes, labels, numbers of markers, text that can be read; and their data."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from plot_checks import lines, problems, texts, unnamed

from simulator import Deployment, InputError, Workload, estimate, plots
from simulator.plots.labels import corners, overlap
from simulator.plots.pareto_chart import front, knee
from simulator.plots.roofline_data import levels, precisions, roofs
from simulator.plots.style import THEMES, contrast, ink, save

MODEL = "llama-3.1-8b"
CHIPS = ("a100", "h100", "mn-core-l1400")
KINDS = ("latency", "throughput", "memory", "pareto", "breakdown", "context")


def chips(*names: str, model: str = MODEL, **more: Any) -> list[Deployment]:
    return [Deployment.of(model, n, **more) for n in names]


def words(figure: Any) -> str:
    return " | ".join(t.get_text().replace("\u00a0", " ") for t in texts(figure))


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("roofline", "a100", {}),
    ("roofline", "a100 h100 mn-core-l1400", {}),
    ("roofline", "h100", {"batches": [1, 8, 64, 512]}),
    ("roofline", "h100", {"batches": [1, 8, 64, 512], "contexts": [1024, 8192, 65536]}),
    ("roofline", "mn-core-2 h100", {}),
    ("latency", "a100 h100", {"slo_tpot": 0.03}),
    ("throughput", "a100 h100 mn-core-l1400", {}),
    ("cost", "a100 h100", {}),
    ("memory", "h100", {}),
    ("memory", "a100 h100 mn-core-l1400", {"batches": [1, 64]}),
    ("pareto", "a100 h100 mn-core-l1400", {"slo_tpot": 0.02}),
    ("breakdown", "h100", {}),
    ("breakdown", "a100 h100 mn-core-l1400", {}),
    ("context", "a100 h100 mn-core-l1400", {}),
]


@pytest.mark.parametrize(("case", "theme"), [
    *((c, "light") for c in CASES), *((c, "dark") for c in CASES[1::4])])
def test_text_can_be_read(case: tuple[str, str, dict[str, Any]], theme: str) -> None:
    kind, names, more = case
    figure, data = getattr(plots, kind)(chips(*names.split()), Workload(4, 1024, 256),
                                        theme=theme, **more)
    assert problems(figure) == []
    assert len(data) > 0
    for axes in figure.axes:
        assert axes.get_xlabel() or kind == "breakdown"
        assert axes.get_ylabel() or kind in ("breakdown", "memory")
    assert data.attrs["title"].split()[0] in words(figure)


REVIEWED: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("latency", "mixtral-8x7b", "2xh100 2xtpu-v6e 8xl40s", "light", {"slo_tpot": 0.03}),
    ("roofline", "llama-3.2-1b", "mi300x", "light", {}),
    ("roofline", MODEL, "b200", "dark", {}),
    ("roofline", MODEL, "a100 h100 mn-core-l1400", "dark",
     {"batches": [1, 8, 64, 512], "contexts": [1024, 8192, 65536]}),
    ("pareto", "llama-3.1-70b", "4xh100 4xa100 2xmn-core-l1400 8xtpu-v5p", "dark",
     {"slo_tpot": 0.02}),
    ("throughput", "nemotron-h-56b", "2xh200 mn-core-l1400 2xmi300x tpu-v7-ironwood", "light", {}),
    ("memory", "llama-3.1-70b", "rtx-4090", "light", {}),
    ("breakdown", "gpt-oss-20b", "apple-m1 rtx-4090", "dark", {}),
    ("breakdown", "llama-3.1-70b", "8xh200 8xh100 4xmi300x", "light", {}),
    ("context", MODEL, "a100 h100 h200 b200 mi300x l40s", "light", {}),
]


def several(model: str, names: str) -> list[Deployment]:
    from simulator import Parallelism

    found = []
    for text in names.split():
        count, x, name = text.partition("x")
        many = bool(x) and count.isdigit()
        found.append(Deployment.of(model, name if many else text,
                                   parallelism=Parallelism(tp=int(count) if many else 1)))
    return found


@pytest.mark.parametrize("case", REVIEWED, ids=lambda c: f"{c[0]}-{c[1]}-{c[2][:12]}")
def test_every_series_has_a_name_off_the_data(case: Any) -> None:
    kind, model, names, theme, more = case
    figure, data = getattr(plots, kind)(several(model, names), theme=theme, **more)
    assert problems(figure) == []
    if data["device"].nunique() > 1 and kind not in ("breakdown", "memory"):
        assert unnamed(figure, data["device"].unique()) == []
    if kind == "roofline":
        said = words(figure).replace(" | ", " ")
        drawn = data[(data["series"] == "roof") & (data["device"] == data["device"].iloc[0])]
        if len(names.split()) == 1:
            assert all(p in said for p in drawn["precision"])
        else:
            assert "One precision drawn" in said
            assert "batch 1 to 512" in said


def test_undrawn_time_is_said_and_listed() -> None:
    figure, data = plots.roofline(several(MODEL, "4xh100"))
    rows = data[(data["series"] == "operation") & ~data["drawn"] & (data["phase"] == "decode")]
    assert {"host", "network"} <= set(rows["group"])
    said = words(figure).replace(" | ", " ")
    assert f"{rows['share'].sum():.0%} of the decode step is" in said
    assert "not on the chart" in said


def test_headlines_leave_out_what_does_not_fit() -> None:
    _, data = plots.breakdown(several("gpt-oss-20b", "apple-m1 rtx-4090"))
    assert data.attrs["title"].startswith("Fits on GeForce RTX 4090 alone")
    _, data = plots.breakdown(several(MODEL, "h100 h100"))
    assert "about as fast" in data.attrs["title"]


def test_cost_leaves_out_what_has_no_price() -> None:
    figure, data = plots.cost(chips("h100", "mn-core-l1400"))
    assert data.attrs["left_out"] == ["MN-Core L1400"]
    assert "no price: MN-Core L1400" in words(figure).replace(" | ", " ")
    assert data["hardware"].unique().tolist() == ["h100-sxm5-80gb"]


@pytest.mark.parametrize("kind", ["roofline", *KINDS])
def test_what_does_not_fit_is_drawn_and_said(kind: str) -> None:
    figure, data = getattr(plots, kind)(chips("h100", model="llama-3.1-405b"))
    assert problems(figure) == []
    assert not data["fits"].dropna().any()
    assert any(w in words(figure).lower() for w in ("does not fit", "larger than the memory"))


@pytest.mark.parametrize(("model", "hardware"), [
    ("deepseek-v3", "8xh200"), ("jamba-1.5-mini", "2xh100"), ("gpt2", "a100")])
def test_other_architectures(model: str, hardware: str) -> None:
    from simulator import Parallelism

    count, _, name = hardware.rpartition("x")
    deployment = (Deployment.of(model, name, parallelism=Parallelism(tp=int(count)))
                  if count.isdigit() else Deployment.of(model, hardware))
    for kind in ("roofline", "breakdown"):
        figure, _ = getattr(plots, kind)(deployment, Workload(1, 256, 64))
        assert problems(figure) == [], kind


def test_every_operation_is_a_marker() -> None:
    d, w = chips("h100")[0], Workload(8, 1024, 256)
    figure, data = plots.roofline(d, w)
    e = estimate(d, w)
    for phase in ("prefill", "decode"):
        rows = data[(data["series"] == "operation") & (data["phase"] == phase)]
        detail = getattr(e, phase).detail
        assert len(rows) == len(detail.operations) + bool(detail.host)
        assert rows["share"].sum() == pytest.approx(1.0)
        drawn = lines(figure, phase)
        assert sum(len(c.get_offsets()) for c in drawn) == int(rows["drawn"].sum())
    assert rows[~rows["drawn"]]["flops"].eq(0).all()     # only what computes nothing is left out


def test_area_is_the_share_of_the_time() -> None:
    figure, data = plots.roofline(chips("h100"), Workload(8, 1024, 256))
    rows = data[(data["series"] == "operation") & (data["phase"] == "decode") & data["drawn"]]
    (drawn,) = lines(figure, "decode")
    big = (rows["share"] > 0.1).to_numpy()
    ratio = drawn.get_sizes()[big] / rows["share"].to_numpy()[big]
    assert ratio == pytest.approx(ratio[0])


def test_the_story() -> None:
    """Prefill right of the ridge, decode far left, both below the ceiling."""
    d = chips("a100")[0]
    _, data = plots.roofline(d, Workload(1, 1024, 256))
    ridge = roofs(d)[0].ridge
    assert ridge == pytest.approx(312e12 / 2039e9)
    whole = data[data["series"] == "pass"].set_index("phase")["intensity_flop_per_byte"]
    assert whole["prefill"] > 2 * ridge
    assert whole["decode"] < ridge / 50
    points = data[(data["series"] == "operation") & (data["precision"] == "bf16")]
    ceiling = roofs(d)[0].ceiling(points["intensity_flop_per_byte"])
    assert (points["flops_per_s"] <= ceiling * (1 + 1e-9)).all()


def test_roofs() -> None:
    d = chips("a100")[0]
    assert [name for name, _ in levels(d.hardware)] == ["HBM2e", "L2 cache"]
    assert precisions(d.hardware, "bf16") == [("bf16", 312e12), ("int8", 624e12)]
    x = np.geomspace(0.1, 1e5, 50)
    for r in roofs(d):
        assert (r.expected(x) < r.ceiling(x)).all()
    l1400 = roofs(chips("mn-core-l1400")[0])[0]
    low, high = l1400.ends(x)
    assert (low < l1400.ceiling(x)).all()
    assert (high > l1400.ceiling(x)).all()


def test_range_of_a_chip_is_a_band() -> None:
    figure, _ = plots.roofline(chips("h100", "mn-core-l1400"))
    assert len(lines(figure, "range")) == 1
    assert len(lines(figure, "ceiling")) == len(lines(figure, "expected")) == 2
    assert "range of the spec" in words(figure)


def test_paths() -> None:
    figure, data = plots.roofline(chips("h100"), Workload(1, 1024, 256), batches=[1, 8, 64, 512],
                                  contexts=[1024, 8192])
    batch = data[(data["series"] == "batch path") & (data["group"] == "pass")]
    assert batch["batch"].tolist() == [1, 8, 64, 512]
    assert (np.diff(batch["intensity_flop_per_byte"]) > 0).all()
    assert batch["fits"].tolist() == [True, True, True, False]
    attention = data[(data["series"] == "batch path") & (data["group"] == "attention")]
    assert np.ptp(attention["intensity_flop_per_byte"]) < 0.01     # a batch never helps attention
    context = data[(data["series"] == "context path") & (data["phase"] == "decode")]
    assert context["batch"].unique().tolist() == [64.0]
    assert len(lines(figure, "path decode")) == 4
    for word in ("batch 1", "64", "batch 512", "context 1k", "context 8k"):
        assert word in words(figure)


def test_curves_are_the_estimates() -> None:
    d = chips("h100")[0]
    _, data = plots.throughput(d, Workload(1, 512, 128), batches=[1, 8, 64])
    for _, row in data.iterrows():
        e = estimate(d, Workload(row["batch"], 512, 128))
        for end in ("expected", "low", "high", "ceiling"):
            assert row[f"output_tokens_per_s_{end}"] == getattr(e.output_tokens_per_s, end)
    assert data["batch"].tolist() == [1, 8, 64]


def test_breakdown_adds_up() -> None:
    d, w = chips("h100")[0], Workload(8, 1024, 256)
    _, data = plots.breakdown(d, w)
    e = estimate(d, w)
    for phase in ("prefill", "decode"):
        rows = data[data["phase"] == phase]
        assert rows["time_s_expected"].sum() == pytest.approx(getattr(e, phase).detail.expected)
        assert rows["share"].sum() == pytest.approx(1.0)


def test_memory_adds_up_and_shows_the_capacity() -> None:
    d = chips("h100")[0]
    figure, data = plots.memory(d, Workload(1, 8192, 256))
    parts = data[["weights_bytes", "kv_bytes", "activation_bytes", "reserved_bytes"]].sum(axis=1)
    assert parts.tolist() == pytest.approx(data["total_bytes"].tolist())
    assert len(lines(figure, "capacity")) == len(data)
    assert "capacity 79.6 GiB" in words(figure)
    assert data["fits"].tolist() == [True] * (len(data) - 1) + [False]


def test_front_and_knee() -> None:
    user, device = np.array([10.0, 8.0, 4.0, 1.0, 3.0]), np.array([1.0, 8.0, 10.0, 11.0, 5.0])
    assert front(user, device).tolist() == [True, True, True, True, False]
    assert knee(user[:4], device[:4]) == 1


def test_pareto_has_one_knee_a_device_and_the_target() -> None:
    figure, data = plots.pareto(chips("a100", "h100"), slo_tpot=0.02)
    assert data.groupby("device")["knee"].sum().tolist() == [1, 1]
    assert len(lines(figure, "knee")) == 2
    assert len(lines(figure, "slo")) == 1
    assert "target 20 ms a token" in words(figure)


def test_labels_never_overlap() -> None:
    box = corners(0, 0, 10, 4)
    assert overlap(box, corners(6, 0, 10, 4))
    assert not overlap(box, corners(11, 0, 10, 4))
    assert not overlap(box, corners(9, 7, 10, 2, 45))


@pytest.mark.parametrize("theme", list(THEMES.values()), ids=lambda t: t.name)
def test_inks_can_be_read(theme: Any) -> None:
    for color in [*theme.chips, *theme.roofs, *theme.kinds.values(), theme.muted]:
        assert contrast(ink(color, theme), theme.background) >= 4.5


def test_transparent_and_the_same_every_time(tmp_path: Any) -> None:
    figure, _ = plots.throughput(chips("h100"), theme="dark")
    paths = [tmp_path / name for name in ("a.png", "b.png", "c.svg", "d.svg")]
    save(figure, str(paths[0]), transparent=True)
    save(figure, str(paths[1]), transparent=False)
    for path in paths[2:]:
        save(figure, str(path))
    from matplotlib.image import imread

    assert imread(paths[0])[0, 0, 3] == 0
    assert imread(paths[1])[0, 0, 3] == 1
    assert paths[2].read_bytes() == paths[3].read_bytes()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: plots.roofline(chips("h100"), theme="drak"), "did you mean 'dark'"),
    (lambda: plots.roofline(chips(*["h100"] * 5)), "5 devices in one chart"),
    (lambda: plots.throughput(chips("h100"), Workload(1, 64, 1)), "one output token"),
    (lambda: plots.cost(chips("mn-core-l1400")), "no price"),
    (lambda: plots.breakdown(chips("h100"), Workload(np.array([1, 2]))), "one number"),
    (lambda: plots.memory(chips("h100"), batches=range(1, 40)), "16 rows"),
])
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_importing_the_package_imports_no_matplotlib() -> None:
    code = ("import sys, simulator.plots, simulator.cli; "
            "print([m for m in ('matplotlib', 'pandas', 'numpy') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
