"""Estimates: physics, the order of the four figures, definitions, ranges, and arrays."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Estimate, Hardware, InputError, Model, Parallelism, Workload
from simulator import request as request_module
from simulator.parameters import model_tensors
from simulator.request import CHUNK, Figure, causes, estimate
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import engine_names, load_engine

MODELS = list(catalogue("models"))
DEVICES = list(catalogue("hardware"))
MATRICES = ("attention", "ffn", "experts", "shared_experts", "ssm", "router")
ROWS = Workload(np.array([1.0, 8.0, 64.0, 1.0]), np.array([1024.0, 300.0, 5000.0, 1.0]),
                np.array([256.0, 900.0, 2.0, 1.0]))
RATES = ("tokens_per_s_per_user", "output_tokens_per_s", "request_output_tokens_per_s")


@cache
def model(name: str) -> Model:
    return Model.load(name)


def deployment(name: str, hardware: str = "h100-sxm5-80gb", engine: str = "vllm",
               **more: Any) -> Deployment:
    return Deployment(model(name), Hardware.load(hardware), load_engine(engine), **more)


def check_order(e: Estimate) -> None:
    slack = 1 + 1e-12
    for name in ("ttft", "client_ttft", "tpot", "e2e"):
        f = getattr(e, name)
        known = ~np.isnan(f.expected)
        assert np.array_equal(known, ~np.isnan(f.ceiling))
        assert np.all((f.ceiling > 0) | ~known)
        assert np.all((f.ceiling <= f.low * slack) & (f.low <= f.expected * slack)
                      & (f.expected <= f.high * slack) | ~known), name
    for name in RATES:
        f = getattr(e, name)
        known = ~np.isnan(f.expected)
        assert np.all((f.low <= f.expected * slack) & (f.expected <= f.high * slack)
                      & (f.high <= f.ceiling * slack) | ~known), name
    for figure in (e.energy_per_token, e.usd_per_million_tokens):
        if figure is not None:
            assert np.all(np.isfinite(figure.expected))
            assert np.all((figure.ceiling <= figure.low * slack)
                          & (figure.low <= figure.expected * slack)
                          & (figure.expected <= figure.high * slack))


def check_physics(e: Estimate, w: Workload) -> None:
    """No time below the bytes of the weights over bandwidth, or matrix FLOPs over peak."""
    d = e.deployment
    best = d.hardware.at_ends(True)
    tensors = [t for t in model_tensors(d.model) if t.streamed]
    read = sum(t.total * t.active * d.weight_format(t.role).bytes for t in tensors)
    slack = 1 - 1e-12
    for phase in (e.ttft, e.tpot):
        known = ~np.isnan(phase.expected)
        for f in (phase.ceiling, phase.low, phase.expected, phase.high):
            assert np.all((f >= read / best.memory_bandwidth * slack) | ~known)
    matrices = sum(t.total * t.active for t in tensors if t.role in MATRICES)
    peak = max(v for f in Hardware.__struct_fields__ if f.startswith("peak_")
               and f not in ("peak_fp64", "peak_fp4", "peak_fp6", "peak_int4", "peak_fp8",
                             "peak_int8") and (v := getattr(best, f)) is not None) if any(
        getattr(best, f"peak_{p}") for p in ("bf16", "fp16", "tf32", "fp32")) else np.inf
    assert np.all(e.ttft.ceiling >= 2 * matrices * w.batch * w.input / peak * slack)


@pytest.mark.parametrize("index", range(len(MODELS)), ids=MODELS)
def test_every_model_on_devices_in_turn(index: int) -> None:
    """Each model on every ninth device, so that each device meets a ninth of the models."""
    engines = engine_names()
    for i, hardware in enumerate(DEVICES[index % 9::9]):
        e = estimate(deployment(MODELS[index], hardware, engines[(index + i) % len(engines)]), ROWS)
        check_order(e)
        check_physics(e, ROWS)


@pytest.mark.parametrize("formats", [("fp8", "bf16"), ("int4-g128", "bf16"), ("fp8", "fp8"),
                                     ("nvfp4", "nvfp4"), ("bf16", "bf16")], ids=str)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "zamba2-7b"])
def test_formats(name: str, formats: Any) -> None:
    weights, activations = formats
    for hardware in ("h100-sxm5-80gb", "rtx-4090-24gb", "mn-core-l1400", "b200-sxm-180gb"):
        e = estimate(deployment(name, hardware, weights=weights, activations=activations), ROWS)
        check_order(e)
        d = e.deployment
        read = sum(t.total * t.active * d.weight_format(t.role).bytes
                   for t in model_tensors(d.model) if t.streamed)
        assert e.tpot.ceiling[0] >= read / d.hardware.at_ends(True).memory_bandwidth * (1 - 1e-12)


# definitions

def one(name: str = "llama-3.1-8b", hardware: str = "h100-sxm5-80gb", engine: str = "vllm",
        batch: Any = 1, length: Any = 1024, output: Any = 256, **more: Any) -> Estimate:
    return estimate(deployment(name, hardware, engine, **more), Workload(batch, length, output))


@pytest.mark.parametrize("batch", [1, 7])
def test_definitions(batch: int) -> None:
    e = one(batch=batch, length=500, output=100)
    assert e.ttft == e.prefill.time
    assert e.tpot == e.decode.time
    for f in ("ceiling", "expected", "low", "high"):
        ttft, tpot = getattr(e.ttft, f), getattr(e.tpot, f)
        assert getattr(e.e2e, f) == pytest.approx(ttft + 99 * tpot, rel=1e-14)
    for rate, time in (("ceiling", "ceiling"), ("expected", "expected"), ("low", "high"),
                       ("high", "low")):
        tpot, e2e = getattr(e.tpot, time), getattr(e.e2e, time)
        assert getattr(e.tokens_per_s_per_user, rate) == 1 / tpot
        assert getattr(e.output_tokens_per_s, rate) == batch / tpot
        assert getattr(e.request_output_tokens_per_s, rate) == pytest.approx(
            batch * 100 / e2e, rel=1e-14)
    mfu = e.prefill.detail.flops / (e.prefill.peak * e.ttft.expected)
    mbu = e.decode.detail.bytes / (3.35e12 * e.tpot.expected)
    assert e.prefill.utilisation == pytest.approx(mfu, rel=1e-14)
    assert e.decode.utilisation == pytest.approx(mbu, rel=1e-14)
    assert 0 < mfu < 1
    assert 0 < mbu < 1


def test_default_workload() -> None:
    assert estimate(deployment("llama-3.1-8b")).e2e == one().e2e


def test_decode_starts_after_the_first_token() -> None:
    """Output 2 is one step over the context input + 1."""
    e = one(engine="ideal", length=1000, output=2)
    attention = [t for t in e.decode.detail.operations if t.operation.name == "attention"]
    assert attention[0].flops == 32 * 4 * 32 * 128 * 1001
    three = one(engine="ideal", length=1000, output=3)
    attention = [t for t in three.decode.detail.operations if t.operation.name == "attention"]
    assert attention[0].flops == 32 * 4 * 32 * 128 * 1001.5


def test_one_token_has_no_decode() -> None:
    e = one(output=1)
    assert np.isnan(e.tpot.expected)
    assert np.isnan(e.tpot.ceiling)
    assert e.e2e.all == e.ttft.all
    assert e.request_output_tokens_per_s.expected == 1 / e.ttft.expected


def test_one_token_rows_beside_others() -> None:
    e = estimate(deployment("llama-3.1-8b"), ROWS)
    assert np.isnan(e.tpot.expected).tolist() == [False, False, False, True]
    assert e.e2e.expected[3] == e.ttft.expected[3]
    assert not np.any(np.isnan(e.e2e.expected))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "mixtral-8x7b"])
def test_a_prefix_hit_never_slows(name: str) -> None:
    times = [one(name, prefix_hit=h, length=4000) for h in np.linspace(0, 1, 11)]
    ttft = [e.ttft.expected for e in times]
    assert all(a > b for a, b in pairwise(ttft))
    assert len({e.tpot.expected for e in times}) == 1
    for e in times:
        check_order(e)


def test_data_parallel_replicas_share_the_batch() -> None:
    four = one(batch=32, parallelism=Parallelism(dp=4))
    alone = one(batch=8)
    assert four.tpot == alone.tpot
    assert four.output_tokens_per_s.expected == pytest.approx(
        4 * alone.output_tokens_per_s.expected)
    uneven = one(batch=33, parallelism=Parallelism(dp=4))
    assert uneven.tpot.expected == one(batch=9).tpot.expected


@pytest.mark.parametrize("w", [
    Workload(0), Workload(-1), Workload(1, 0), Workload(1, 1, 0), Workload(float("nan")),
    Workload(1, float("inf")), Workload(1e10), Workload(np.array([1, 0])),
])  # fmt: skip
def test_impossible_workloads(w: Any) -> None:
    with pytest.raises(InputError, match=r"batch|input|output"):
        estimate(deployment("llama-3.1-8b"), w)


@pytest.mark.parametrize("hit", [-0.1, 1.1, float("nan"), np.array([0.5, 2.0])])
def test_impossible_prefix_hits(hit: Any) -> None:
    with pytest.raises(InputError, match="prefix"):
        one(prefix_hit=hit)


# the textbook

def test_textbook() -> None:
    """A 7B model in fp16 on 2 TB/s: weights alone 7.0 ms a token, 142.857 tok/s."""
    e = one("7b-fp16", "textbook-2tbs", "ideal")
    weights = sum(t.operation.weights * t.operation.count for t in e.decode.detail.operations
                  if t.operation.name != "embedding")
    assert weights / 2e12 == 7.0e-3
    assert 1 / (weights / 2e12) == pytest.approx(142.857, abs=5e-4)
    assert 7.0e-3 < e.tpot.ceiling == e.tpot.expected < 7.4e-3
    short = one("7b-fp16", "textbook-2tbs", "ideal", length=1, output=2)
    assert short.tpot.ceiling == pytest.approx(7.0e-3, rel=1e-3)


def test_bytes_and_flops_by_hand() -> None:
    """Llama-3.1-8B, one step at context 1001: every weight once, the cache once."""
    e = one(engine="ideal", length=1000, output=2)
    matrices = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096
    detail = e.decode.detail
    gemms = [t for t in detail.operations if t.operation.kind == "gemm"]
    assert sum(t.flops for t in gemms) == 2 * matrices
    assert sum(t.operation.weights * t.operation.count for t in gemms) == 2 * matrices
    attention = next(t for t in detail.operations if t.operation.kind == "attention")
    assert attention.bytes == 1001 * 131_072 + 32 * 32 * 256 * 2
    assert detail.bytes == pytest.approx(2 * matrices + 1001 * 131_072, rel=1e-3)


# ranges

def test_the_ceiling_takes_the_favourable_end() -> None:
    e = one("llama-3.1-8b", "mn-core-l1400", "ideal")
    at = Hardware.load("mn-core-l1400")
    good, bad = at.at_ends(True), at.at_ends(False)
    assert good.memory_bandwidth == at.ranges["memory_bandwidth"].high
    assert e.tpot.ceiling == estimate(e.deployment.replace(hardware=good)).tpot.ceiling
    assert e.tpot.low == estimate(e.deployment.replace(hardware=good)).tpot.expected
    assert e.tpot.high == estimate(e.deployment.replace(hardware=bad)).tpot.expected
    assert e.tpot.low < e.tpot.expected < e.tpot.high


def test_a_point_has_no_spread_without_an_engine() -> None:
    e = one(engine="ideal")
    assert e.tpot.ceiling == e.tpot.low == e.tpot.expected == e.tpot.high


@pytest.mark.parametrize("length", [1, 300, 511, 512, 4096])
def test_the_range_of_a_prefill_is_that_of_its_length(length: int) -> None:
    e = estimate(deployment("llama-3.1-8b"), Workload(1, length, 64))
    factor = e.efficiency.spread["prefill_short" if length < 512 else "prefill"]
    assert e.ttft.high == e.ttft.expected * factor
    assert e.ttft.low == max(e.ttft.expected / factor, e.ttft.ceiling)
    assert e.efficiency.spread["prefill_short"] > e.efficiency.spread["prefill"] > 1.0


def test_ttft_at_the_client_has_the_servers_time_of_a_request() -> None:
    """20 ms beside a prefill, as uncertain as it; nothing else has them."""
    d = deployment("llama-3.1-8b")
    assert d.engine.request_time > 0.0
    w = Workload(4, 2048, 64)
    e = estimate(d.replace(engine=d.engine.replace(request_time=0.02)), w)
    none = estimate(d.replace(engine=d.engine.replace(request_time=0.0)), w)
    factor = e.efficiency.spread["prefill"]
    added = [b - a for a, b in zip(e.ttft.all, e.client_ttft.all, strict=True)]
    assert added == pytest.approx([0.0, 0.02, 0.02 / factor, 0.02 * factor], rel=1e-9)
    assert none.client_ttft == none.ttft == e.ttft
    assert e.e2e == none.e2e


def test_causes() -> None:
    d = deployment("llama-3.1-70b", "mn-core-l1400")
    w = Workload(1.0, 1024.0, 256.0)
    found = causes(d, w)
    assert found[0].field in ("memory_bandwidth", "bandwidth_efficiency")
    names = {c.field: c for c in found}
    assert "memory_bandwidth" in names
    assert "memory_capacity" not in names
    assert names["idle_power"].tpot[0] == names["idle_power"].tpot[1]
    assert names["idle_power"].energy_per_token[0] < names["idle_power"].energy_per_token[1]
    c = names["memory_bandwidth"]
    assert (c.low, c.mid, c.high) == (12.8e12, 25.6e12, 40e12)
    assert c.tpot[0] < estimate(d, w).tpot.expected < c.tpot[1]
    assert [c.field for c in causes(deployment("llama-3.1-70b"), w)] == ["idle_power"]


@given(st.sampled_from(MODELS), st.sampled_from(["mn-core-l1400", "mn-core-l1100", "rubin-nvl72",
       "mi455x"]), st.integers(1, 300), st.integers(1, 20_000), st.integers(1, 2000))
@settings(max_examples=40, deadline=None)
def test_order_where_specs_are_ranges(name: Any, hardware: Any, batch: Any, length: Any,
                                      output: Any) -> None:
    check_order(estimate(deployment(name, hardware),
                         Workload(*(np.array([float(v)]) for v in (batch, length, output)))))


# arrays: vector equals scalar, bit for bit

def values(e: Any, prefix: str = "") -> dict[str, Any]:
    """Every number of an estimate by name; NaN becomes a word, so that it equals itself."""
    found: dict[str, Any] = {}
    for name in ("ttft", "client_ttft", "tpot", "e2e", "energy_per_token",
                 "usd_per_million_tokens", *RATES):
        f = getattr(e, name)
        if f is not None:
            found |= {f"{name}.{k}": getattr(f, k) for k in Figure.__struct_fields__}
    for name in ("prefill", "decode"):
        phase = getattr(e, name)
        found[f"{name}.utilisation"] = phase.utilisation
        found |= {f"{name}.{k}": getattr(phase.detail, k)
                  for k in phase.detail.__struct_fields__ if k != "operations"}
    found |= {f"memory.{k}": getattr(e.memory, k) for k in e.memory.__struct_fields__
              if k not in ("pool", "far")}
    return found


def same(a: Any, b: Any) -> bool:
    return bool(a == b or (np.isnan(a) and np.isnan(b)))


def check_rows(d: Any, w: Workload, shape: tuple[int, ...], scalar: Any, every: int = 1) -> None:
    """`scalar(index)` -> the deployment and workload of one cell."""
    together = values(estimate(d, w))
    for index in list(np.ndindex(shape))[::every]:
        alone = values(estimate(*scalar(index)))
        for name, column in together.items():
            cell = np.broadcast_to(column, shape)[index]
            assert same(cell, alone[name]), (name, index, cell, alone[name])


VARIED = ["llama-3.1-8b", "deepseek-v3.2", "gemma-3-27b", "mixtral-8x7b", "llama-4-scout",
          "jamba-1.5-mini", "zamba2-7b"]


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("hardware", ["h100-sxm5-80gb", "mn-core-l1400"])
def test_workload_rows(name: str, hardware: str) -> None:
    rng = np.random.default_rng(11)
    B, S, G = (rng.integers(1, high, 30).astype(float) for high in (200, 9000, 800))
    G[:3], S[:6] = 1.0, rng.integers(1, 20, 6)
    d = deployment(name, hardware)
    check_rows(d, Workload(B, S, G), (30,),
               lambda i: (d, Workload(float(B[i]), float(S[i]), float(G[i]))))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
def test_integers_are_floats(name: str) -> None:
    d = deployment(name)
    w = Workload(np.array([1, 300]), np.array([8192, 100_000]), np.array([10, 5000]))
    check_rows(d, w, (2,), lambda i: (d, Workload(*(int(v[i]) for v in (w.batch, w.input,
                                                                       w.output)))))


NUMBERS = {
    "memory_bandwidth": np.geomspace(1e11, 1e14, 9), "memory_capacity": np.geomspace(1e9, 1e12, 9),
    "peak_bf16": np.geomspace(1e13, 1e16, 9), "vector_fp32": np.geomspace(1e12, 1e14, 9),
    "link_bandwidth": np.geomspace(1e10, 1e12, 9), "link_latency": np.geomspace(1e-7, 1e-5, 9),
    "bandwidth_efficiency": np.linspace(0.1, 1, 9), "compute_efficiency": np.linspace(0.1, 1, 9),
    "layer_overhead": np.geomspace(1e-7, 1e-4, 9), "tdp": np.linspace(100, 1000, 9),
    "idle_power": np.linspace(10, 90, 9), "memory_energy": np.geomspace(1e-12, 1e-10, 9),
    "compute_energy": np.geomspace(1e-13, 1e-12, 9), "link_energy": np.geomspace(1e-12, 1e-10, 9),
    "price": np.linspace(1e-4, 1e-3, 9),
}


@pytest.mark.parametrize("field", list(NUMBERS))
@pytest.mark.parametrize(("name", "hardware"), [("llama-3.1-8b", "h100-sxm5-80gb"),
                                                ("mixtral-8x7b", "mn-core-l1400")])
def test_a_field_of_the_hardware(field: str, name: str, hardware: str) -> None:
    d = deployment(name, hardware, parallelism=Parallelism(tp=2))
    column, w = NUMBERS[field], Workload(8.0, 700.0, 40.0)

    def of(value: Any) -> Deployment:
        return d.replace(hardware=d.hardware.replace(**{field: value}))

    check_rows(of(column), w, (9,), lambda i: (of(float(column[i])), w))


@pytest.mark.parametrize(("field", "column"), [
    ("host_time", np.geomspace(1e-5, 1e-2, 4)), ("layer_time", np.geomspace(1e-6, 1e-3, 4)),
    ("memory_scale", np.linspace(0.5, 2, 4)), ("compute_scale", np.linspace(0.5, 2, 4)),
    ("context_bytes", np.geomspace(1e8, 1e10, 4)), ("memory_fraction", np.linspace(0.5, 0.95, 4)),
])  # fmt: skip
def test_a_field_of_the_engine(field: str, column: Any) -> None:
    d, w = deployment("llama-3.1-8b"), Workload(8.0, 700.0, 40.0)

    def of(value: Any) -> Deployment:
        return d.replace(engine=d.engine.replace(**{field: value}))

    check_rows(of(column), w, (4,), lambda i: (of(float(column[i])), w))


def test_prefix_hits_as_an_array() -> None:
    hits, w = np.linspace(0, 1, 7), Workload(3.0, 900.0, 20.0)
    check_rows(deployment("llama-3.1-8b", prefix_hit=hits), w, (7,),
               lambda i: (deployment("llama-3.1-8b", prefix_hit=float(hits[i])), w))


def test_prices_as_an_array() -> None:
    prices = np.array([1.0, 2.0, 4.0])
    d = deployment("llama-3.1-8b")
    cost: Any = estimate(d, Workload(), prices).usd_per_million_tokens
    for i, price in enumerate(prices):
        alone: Any = estimate(d, Workload(), float(price)).usd_per_million_tokens
        assert alone.expected == cost.expected[i]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3", "gemma-3-4b"])
def test_open_grids(name: str) -> None:
    B, S = np.array([1.0, 16.0, 200.0]), np.array([1.0, 100.0, 3000.0, 30_000.0])
    d = deployment(name)
    check_rows(d, Workload(B[:, None], S[None, :], 50.0), (3, 4),
               lambda i: (d, Workload(float(B[i[0]]), float(S[i[1]]), 50.0)))


def test_a_grid_of_bandwidth_by_batch() -> None:
    W, B = np.geomspace(1e12, 1e14, 5), np.array([1.0, 8.0, 64.0])
    d = deployment("llama-3.1-8b")

    def of(value: Any) -> Deployment:
        return d.replace(hardware=d.hardware.replace(memory_bandwidth=value))

    check_rows(of(W[:, None]), Workload(B[None, :], 800.0, 64.0), (5, 3),
               lambda i: (of(float(W[i[0]])), Workload(float(B[i[1]]), 800.0, 64.0)))


# long arrays are cut into chunks

def rows(count: int) -> Workload:
    rng = np.random.default_rng(4)
    return Workload(*(rng.integers(1, high, count).astype(float) for high in (200, 9000, 800)))


def equal(a: Estimate, b: Estimate) -> None:
    x, y = values(a), values(b)
    for name in x:
        assert np.array_equal(*np.broadcast_arrays(x[name], y[name]), equal_nan=True), name


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3"])
@pytest.mark.parametrize("count", [CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_chunks_are_the_whole(name: str, count: int) -> None:
    d, w = deployment(name), rows(count)
    chunked = estimate(d, w)
    equal(chunked, request_module._estimate(d, w, None, False))
    assert chunked.tpot.expected.shape == (count,)
    assert chunked.workload.input is w.input


def test_no_rows() -> None:
    empty = np.array([])
    e = estimate(deployment("llama-3.1-8b"), Workload(empty, empty, empty))
    assert e.tpot.expected.shape == (0,)


@pytest.mark.parametrize("count", [2 * CHUNK, 2 * CHUNK + 5])
def test_chunks_where_other_arrays_vary_too(count: int) -> None:
    """Arrays of the spec broadcast against a long workload, in the same rows or across them."""
    d, w = deployment("llama-3.1-8b"), rows(count)
    W = np.geomspace(1e12, 1e13, count)
    paired = estimate(d.replace(hardware=d.hardware.replace(memory_bandwidth=W)), w)
    hits = estimate(d.replace(prefix_hit=np.linspace(0, 1, count)), w)
    across = estimate(d.replace(hardware=d.hardware.replace(
        memory_bandwidth=np.array([[1e12], [4e12]]))), w)
    priced: Any = estimate(d, w, np.linspace(1.0, 2.0, count)).usd_per_million_tokens
    assert across.tpot.expected.shape == (2, count)
    for i in (0, 3, CHUNK, count - 1):
        workload = Workload(*(float(v[i]) for v in (w.batch, w.input, w.output)))

        def at(bandwidth: float, workload: Workload = workload) -> Any:
            hardware = d.hardware.replace(memory_bandwidth=bandwidth)
            return estimate(d.replace(hardware=hardware), workload).tpot.expected

        assert same(paired.tpot.expected[i], at(float(W[i])))
        assert same(across.tpot.expected[0, i], at(1e12))
        assert same(across.tpot.expected[1, i], at(4e12))
        hit = d.replace(prefix_hit=float(np.linspace(0, 1, count)[i]))
        assert hits.ttft.expected[i] == estimate(hit, workload).ttft.expected
        price: Any = estimate(d, workload, float(np.linspace(1.0, 2.0, count)[i]))
        assert priced.expected[i] == price.usd_per_million_tokens.expected


def test_as_many_bandwidths_as_different_batches() -> None:
    """A spec's array is never taken for one entry a different batch."""
    B, W = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4e12, 1e12, 2e12, 3e12])
    d = deployment("llama-3.1-8b")

    def of(value: Any) -> Deployment:
        return d.replace(hardware=d.hardware.replace(memory_bandwidth=value))

    order = np.array([2, 0, 3, 1])
    check_rows(of(W), Workload(B[order], 800.0, 64.0), (4,),
               lambda i: (of(float(W[i])), Workload(float(B[order][i]), 800.0, 64.0)))


def test_operations_of_arrays_on_request() -> None:
    d, w = deployment("llama-3.1-8b"), Workload(np.array([1.0, 4.0]), 100.0, 20.0)
    assert estimate(d, w).decode.detail.operations == ()
    kept = estimate(d, w, operations=True).decode.detail
    assert sum(t.expected[1] for t in kept.operations if np.ndim(t.expected)) == pytest.approx(
        kept.expected[1] - kept.host[1] - sum(t.expected for t in kept.operations
                                           if not np.ndim(t.expected)))
    assert msgspec.structs.asdict(estimate(d).ttft).keys() == {"ceiling", "expected", "low", "high"}
