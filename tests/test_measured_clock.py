"""Times of operations on a machine whose kernels and caches were measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.deployment import Deployment, Workload
from simulator.efficiency import Efficiency
from simulator.errors import InputError
from simulator.layers import Segment, pass_operations
from simulator.measured_clock import MeasuredClock, time_per_row, with_starts
from simulator.request import estimate
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware, parse_inline
from simulator.specs.model import Attention, Dense, LayerGroup, Mla, Model, Moe
from simulator.sweeps import sweep

ROWS, RATES = (1.0, 4.0, 16.0), (10e9, 20e9, 80e9)


KERNELS: list[dict[str, Any]] = [
    {"kernel": "gemm", "format": "fp32", "rows": [1], "rates": ["50 GFLOP/s"]},
    {"kernel": "moe", "format": "fp32", "floor": "50 us", "each": "20 us"}]


def machine(**changes: Any) -> Hardware:
    """A machine with round numbers: 100 GFLOP/s, 10 GB/s, an L3 of 32 MiB."""
    kernel = {"format": "fp32", "rows": [1, 4, 16],
              "rates": ["10 GFLOP/s", "20 GFLOP/s", "80 GFLOP/s"],
              "cold_rates": ["4 GFLOP/s", "10 GFLOP/s", "80 GFLOP/s"]}
    passes = [{"kernel": "elementwise", "operation": name, "format": "fp32", "floor": "0 us",
               "rows": ["1 KiB"], "rates": ["5 GB/s"]} for name in ("norm", "other")]
    return parse_inline({
        "name": "round", "memory_bandwidth": "10 GB/s", "memory_capacity": "16 GiB",
        "peak_fp32": "100 GFLOP/s", "vector_fp32": "100 GFLOP/s", "layer_overhead": "10 us",
        "step_overhead": "100 us",
        "caches": [{"name": "L3", "capacity": "32 MiB", "bandwidth": "40 GB/s"}],
        "kernels": [{"kernel": "gemm", **kernel}, {"kernel": "attention_prefill", **kernel},
                    {"kernel": "attention_decode", **kernel},
                    {"kernel": "moe", "format": "fp32", "floor": "50 us", "each": "20 us"},
                    *passes]} | changes)


def model(layers: int = 4, hidden: int = 512, experts: int = 0) -> Model:
    ffn = Moe(experts=experts, top_k=2, width=512) if experts else Dense(width=1024)
    return Model(name="small", hidden=hidden, vocabulary=1024, positions=4096, tied_embeddings=True,
                 formats={"weights": "fp32"}, layers=(LayerGroup(count=layers, mixer=Attention(
                     heads=8, kv_heads=2, head_dim=64), ffn=ffn),))


def deployment(m: Model | None = None, **changes: Any) -> Deployment:
    return Deployment(m or model(), machine(**changes), load_engine("executor"),
                      activations="fp32")


def test_times_join_by_straight_lines() -> None:
    # 4 rows take 4/20e9 a FLOP of a row, 16 take 16/80e9: the same; 10 rows too, a tenth each.
    assert time_per_row(4.0, ROWS, RATES) == pytest.approx(1 / 20e9)
    assert time_per_row(10.0, ROWS, RATES) == pytest.approx(2e-10 / 10)
    assert time_per_row(64.0, ROWS, RATES) == pytest.approx(1 / 80e9)
    assert time_per_row(0.5, ROWS, RATES) == pytest.approx(1 / 10e9)


def test_starts_of_inner_products() -> None:
    assert with_starts(100.0, 64.0, 128.0) == 150.0


@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=9))
def test_vector_is_scalar(rows: list[float]) -> None:
    together = time_per_row(np.array(rows), ROWS, RATES)
    assert [float(x) for x in together] == [float(time_per_row(x, ROWS, RATES)) for x in rows]


@given(st.floats(0.1, 1e5), st.floats(0.1, 1e5))
def test_more_rows_take_no_less_time(a: float, b: float) -> None:
    small, large = sorted((a, b))
    assert small * time_per_row(small, ROWS, RATES) <= large * time_per_row(
        large, ROWS, RATES) * (1 + 1e-12)


def test_step_by_hand() -> None:
    """All products at 1 row run at 10 GFLOP/s; the overheads come on top."""
    e = estimate(deployment(), Workload(1, 64, 2))
    assert e.decode is not None
    gemms = [t for t in e.decode.detail.operations if t.operation.kind == "gemm"]
    flops = 2.0 * (4 * (512 * (512 + 2 * 128) + 512 * 512 + 3 * 512 * 1024) + 512 * 1024)
    assert sum(t.flops for t in gemms) == pytest.approx(flops)
    # 38 MiB of weights in a cache of 32: 2 - 38.0/32 of them stay.
    working = sum(t.operation.count * (t.operation.weights + t.operation.kv)
                  for t in e.decode.detail.operations)
    missed = 1.0 - (2.0 - working / (32 * 2**20))
    assert 0.1 < missed < 0.4
    assert sum(t.expected for t in gemms) == pytest.approx(
        (1.0 - missed) * flops / 10e9 + missed * flops / 4e9, rel=1e-3)
    assert e.decode.detail.host == pytest.approx(4 * 10e-6 + 100e-6)


def test_weights_that_fit_are_not_streamed() -> None:
    """Half the layers fit into the cache: a step takes much less than half the time."""
    small, large = (estimate(deployment(model(n)), Workload(1, 16, 2)) for n in (2, 16))
    assert small.decode is not None
    assert large.decode is not None
    assert large.decode.time.expected > 8.5 * small.decode.time.expected
    assert large.decode.time.ceiling > 8.5 * small.decode.time.ceiling


@pytest.mark.parametrize("m", [model(), model(12), model(4, 512, 8)])
@pytest.mark.parametrize("load", [(1, 16, 8), (1, 900, 30), (32, 100, 50)])
def test_no_operation_beats_its_ceiling(m: Model, load: tuple[int, int, int]) -> None:
    e = estimate(deployment(m), Workload(*load))
    for phase in (e.prefill, e.decode):
        assert phase is not None
        for t in phase.detail.operations:
            assert t.expected >= t.ceiling * (1 - 1e-12)
        assert phase.time.ceiling <= phase.time.low <= phase.time.expected <= phase.time.high


def test_decode_is_the_mean_over_the_contexts() -> None:
    whole = estimate(deployment(), Workload(3, 100, 201)).decode
    each = [estimate(deployment(), Workload(3, 100 + i, 2)).decode for i in range(200)]
    assert whole is not None
    mean = np.mean([x.time.expected for x in each if x is not None])
    assert whole.time.expected == pytest.approx(float(mean), rel=1e-3)


def test_visited_experts_cost_their_floor() -> None:
    fast, slow = (estimate(deployment(model(4, 512, 8), kernels=[
        k if k["kernel"] != "moe" else k | {"each": each} for k in KERNELS]), Workload(1, 16, 2))
        for each in ("0 us", "100 us"))
    assert fast.decode is not None
    assert slow.decode is not None
    assert slow.decode.time.expected - fast.decode.time.expected == pytest.approx(4 * 2 * 100e-6)


def test_basis_says_that_the_kernels_were_timed() -> None:
    from simulator.output import basis

    text = basis(estimate(deployment(), Workload(1, 16, 2)), [])["text"]
    assert "timed on this machine" in text
    assert "validate --executor" in text


def test_a_sweep_gives_the_same_numbers() -> None:
    table = sweep(model(), machine(), batch=[1, 4, 16] * 8, input=[16, 64], output=8,
                  activations="fp32", engines="executor")
    for row in table.to_dict("records"):
        one = estimate(deployment(), Workload(row["batch"], row["input"], 8))
        assert one.decode is not None
        assert row["tpot_s"] == pytest.approx(float(one.decode.time.expected), rel=1e-12)
        assert row["ttft_s"] == pytest.approx(float(one.ttft.expected), rel=1e-12)


@pytest.mark.parametrize(("entry", "words"), [
    ({"kernel": "gem", "format": "fp32"}, "gemm"),
    ({"kernel": "gemm", "format": "fp31"}, "fp32"),
    ({"kernel": "gemm", "format": "fp32", "rows": [1, 2], "rates": ["1 GFLOP/s"]}, "as many rates"),
    ({"kernel": "gemm", "format": "fp32", "rows": [2, 1], "rates": ["1 GFLOP/s"] * 2}, "rising"),
    ({"kernel": "gemm", "format": "fp32", "rows": [1], "rates": ["1 GB/s"]}, "compute"),
    ({"kernel": "gemm", "format": "fp32", "rows": [1], "rates": ["1 GFLOP/s"],
      "cold_rates": ["1 GFLOP/s"] * 2}, "as many rates"),
    ({"kernel": "elementwise", "format": "fp32"}, "operation"),
    ({"kernel": "gemm", "format": "fp32", "row": [1]}, "rows"),
])
def test_wrong_kernels_are_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        machine(kernels=[entry])


def test_wrong_caches_are_refused() -> None:
    with pytest.raises(InputError, match="L3"):
        machine(caches=[{"name": "L2", "capacity": "4 MiB", "bandwidth": "10 GB/s"},
                        {"name": "L3", "capacity": "2 MiB", "bandwidth": "5 GB/s"}])


def test_caches_alone_are_enough() -> None:
    """A file with caches and no timed kernel uses the priors of its class of memory."""
    e = estimate(deployment(kernels=[], memory_class="ddr"), Workload(1, 16, 8))
    assert e.decode is not None
    assert e.decode.time.ceiling < e.decode.time.expected


def test_narrower_weights_are_streamed_faster() -> None:
    """What few rows take beyond the arithmetic shrinks with the bytes; many rows gain nothing."""
    wide, narrow = (estimate(Deployment(model(12), machine(), load_engine("executor"), weights=w,
                                        activations="fp32"), Workload(1, 512, 2))
                    for w in ("fp32", "int8"))
    assert wide.decode is not None
    assert narrow.decode is not None
    assert wide.decode.detail.bound == "memory"
    assert narrow.decode.time.expected < 0.6 * wide.decode.time.expected
    assert narrow.prefill.time.expected == pytest.approx(wide.prefill.time.expected, rel=0.02)


def test_latent_attention_takes_the_rates_of_attention() -> None:
    """A prefill expands to heads of 96 and 64; a step's 8 heads share the latent of 160."""
    mla = Mla(heads=8, q_rank=None, kv_rank=128, nope_dim=64, rope_dim=32, value_dim=64)
    m = model().replace(layers=(LayerGroup(count=1, mixer=mla, ffn=Dense(width=1024)),))
    d = deployment(m)
    h = d.hardware
    clock = MeasuredClock(h, Efficiency(h, d.engine), "prefill", None, "fp32", 1.0)
    o = {o.name: o for o in pass_operations(d, [Segment(1.0, 32.0, 32.0, "prefill")], 1.0)}
    # 16 rows and more compute at 80 GFLOP/s; 32 x 33 / 2 pairs of 8 heads.
    pairs = 32.0 * 33.0 / 2.0
    assert clock.point(o["mla_expanded"]).expected == pytest.approx(
        2.0 * (96 + 64) * 8 * pairs / 80e9, rel=1e-9)
    assert clock.point(o["mla_expand"]).expected == pytest.approx(
        2.0 * 32 * 128 * 8 * 128 / 80e9, rel=1e-9)
    step = {o.name: o for o in pass_operations(d, [Segment(1.0, 1.0, 64.0, "decode")], 1.0)}
    # 8 rows lie between 4 at 20 and 16 at 80 GFLOP/s, which take the same time: 40 GFLOP/s.
    assert clock.point(step["mla_absorbed"]).expected == pytest.approx(
        2.0 * (160 + 128) * 8 * 64 / 40e9, rel=1e-9)


def test_a_kernel_that_stands_twice_is_refused() -> None:
    with pytest.raises(InputError, match="gemm fp32 stands twice"):
        machine(kernels=[KERNELS[0], KERNELS[0]])


@pytest.mark.parametrize("wrong", [{"capacity": "32 GiB", "bandwidth": "40 GB/s"},
                                   {"capacity": "32 MiB", "bandwidth": "5 GB/s"}])
def test_a_cache_is_smaller_and_faster_than_the_memory(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError, match="L3"):
        machine(caches=[{"name": "L3"} | wrong])
