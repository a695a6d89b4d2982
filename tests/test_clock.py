"""The clock: kernels by hand, levels, host, chunks of an engine, and means over contexts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Engine, Hardware, Model, Parallelism, Workload, estimate, roofline
from simulator.clock import Clock
from simulator.efficiency import BANDWIDTH_CAP, COMPUTE_CAP, Efficiency
from simulator.efficiency.constants import Chain, Experts, Split, constants
from simulator.efficiency.levels import Level, level_of, levels, link_level, owners
from simulator.layers import Segment, attention_operations, pass_operations
from simulator.network import link_class
from simulator.operations import Operation, gemm
from simulator.specs.engine import load_engine
from simulator.specs.hardware import FP16_SUMS, parse_inline
from simulator.step import PassTime, decode, prefill

H100 = Hardware.load("h100-sxm5-80gb")
S, W = 132.0, float(H100.memory_bandwidth)
PLAIN = load_engine("vllm").replace(
    memory_scale=1.0, compute_scale=1.0, launch_scale=1.0, host_time=0.0, layer_time=0.0,
    sequence_time=0.0)
LLAMA, MIXTRAL = Model.load("llama-3.1-8b"), Model.load("mixtral-8x7b")


def clock(phase: Any = "decode", hardware: Hardware = H100, engine: Engine = PLAIN) -> Clock:
    """A clock of kernels alone: no level of a device."""
    with levels({}):
        return Clock(hardware, Efficiency(hardware, engine), phase)


def run(d: Deployment, batch: Any, first: Any, last: Any = None) -> PassTime:
    return decode(d, d.hardware, Efficiency(d.hardware, d.engine), batch, first,
                  first if last is None else last)


def norm(terms: tuple[float, ...], p: float) -> float:
    return math.fsum(x**p for x in terms) ** (1 / p)


def shares(c: Chain | Split | Experts) -> tuple[float, float]:
    """Of peak and bandwidth, below what no whole step exceeds."""
    return min(float(c.e), COMPUTE_CAP), min(float(c.h), BANDWIDTH_CAP)


# by hand, from the constants

@pytest.mark.parametrize(("m", "form", "compute", "weight"), [
    (1.0, "bf16", "bf16", 2.0), (512.0, "bf16", "bf16", 2.0), (4096.0, "bf16", "bf16", 2.0),
    (4096.0, "fp8", "fp8", 1.0)])
def test_gemm_by_hand(m: float, form: str, compute: str, weight: float) -> None:
    k, n = 4096.0, 6144.0
    c = constants(H100, "gemm", form, "vllm").constants
    assert isinstance(c, Chain)
    peak, (e, h) = float(H100.peak(compute)[0]), shares(c)
    blocks = max(m / 128, 1.0) * 48    # 6144/128 columns of tiles
    steps = 64.0                       # 4096/64 along k
    terms = (2 * m * k * n / (e * peak), (weight * k * n + weight * m * (k + n)) / (h * W),
             c.tw * max(blocks / S, 1.0) + c.tau * max(blocks * steps / S, steps))
    o = gemm("x", 3.0, m, k, n, weight, weight, compute, form)
    t = clock().point(o)
    assert t.expected == pytest.approx(3 * (c.t0 + norm(terms, float(c.p))), rel=1e-12)
    assert t.ceiling == pytest.approx(3 * max(2 * m * k * n / peak, o.bytes / W), rel=1e-12)
    assert t.compute + t.memory + t.overhead == pytest.approx(t.expected, rel=1e-12)


@pytest.mark.parametrize(("n", "keys"), [(1.0, 500.0), (1.0, 20000.0), (16.0, 4000.0)])
def test_decode_attention_by_hand(n: float, keys: float) -> None:
    """8 KV heads of 128 with 4 query heads each, padded to 16 rows; 512 B of K and V a token."""
    c = constants(H100, "attention_decode", "bf16", "vllm").constants
    assert isinstance(c, Split)
    d = Deployment(LLAMA, H100, PLAIN)
    o, = attention_operations(d, LLAMA.layers[0], Segment(n, 1.0, keys, "decode"))
    peak, tau, (e, h) = float(H100.peak("bf16")[0]), S / (c.beta * W), shares(c)
    kv = n * 8 * keys * 512
    terms = (2 * 256 * n * 8 * 16 * keys / (e * peak), (kv + n * 32 * 256 * 2) / (h * W),
             c.tw * max(n * 8 / S, 1.0) + tau * max(kv / S, 256 * 512))
    once = c.t0 + norm(terms, float(c.p))
    assert clock().point(o).expected == pytest.approx(32 * once, rel=1e-12)
    assert clock().span(o, o, keys, keys).expected == pytest.approx(32 * once, rel=1e-9)


@pytest.mark.parametrize("tokens", [1.0, 40.0, 3000.0])
def test_experts_by_hand(tokens: float) -> None:
    """Mixtral: 2 of 8 experts of 4096 x 14336, three matrices; the best of three tile heights."""
    c = constants(H100, "moe", "bf16", "vllm").constants
    assert isinstance(c, Experts)
    d = Deployment(MIXTRAL, H100, PLAIN)
    o = next(o for o in pass_operations(d, [Segment(tokens, 1.0, 100.0, "decode")], tokens)
             if o.kind == "moe")
    peak, H, F, (e, h) = float(H100.peak("bf16")[0]), 4096.0, 14336.0, shares(c)
    active, rows = 8 * (1 - 0.75**tokens), 2 * tokens
    best = math.inf
    for height in (16.0, 64.0, 128.0):
        tiles, both = max(active, rows / height + active / 2), 0.0
        for wide, deep in ((2 * F, H), (H, F)):
            one = max(2 * height * 128 * deep * S / (e * peak),
                      (height + 128) * 2 * deep * S / (c.beta * W))
            both += max(tiles * math.ceil(wide / 128) / S + 0.5, 1.0) * one
        best = min(best, both)
    weights = active * 3 * H * F * 2
    body = norm((best, weights / (h * W)), float(c.p))
    moved = (c.cact * (tokens * 4 * H + rows * (4 * H + 6 * F))
             + c.c2 * rows * (2 * H + 6 * F)) / W
    once = o.launches * c.t0 + c.te * 8 / 64 + body + moved
    t = clock().point(o)
    assert o.weights == pytest.approx(weights, rel=1e-12)
    assert t.expected == pytest.approx(32 * once, rel=1e-9)
    assert t.compute + t.memory + t.overhead == pytest.approx(t.expected, rel=1e-12)


def test_a_prior_has_no_chain() -> None:
    """Where kernels were not timed: launches x t0 + ((F / eC)^p + (Q / hW)^p)^(1/p)."""
    apple = Hardware.load("apple-m1-max")
    o = gemm("x", 2.0, 64.0, 4096.0, 6144.0, 2.0, 2.0, "bf16", launches=3.0)
    with levels({}):
        k = Efficiency(apple, PLAIN).kernel("gemm")
    body = norm((o.flops / k.e / apple.peak("bf16")[0], o.bytes / k.h / apple.memory_bandwidth),
                float(k.p or 0))
    assert clock(hardware=apple).point(o).expected == pytest.approx(2 * (3 * k.t0 + body),
                                                                   rel=1e-12)


# the host

@pytest.mark.parametrize(("host", "layer", "sequence"), [
    (5e-3, 0.0, 0.0), (0.0, 1e-3, 0.0), (0.0, 0.0, 1e-3), (1e-3, 1e-4, 1e-5), (1e-6, 0.0, 0.0)])
def test_an_eager_host_hides_behind_kernels(host: float, layer: float, sequence: float) -> None:
    engine = PLAIN.replace(host_time=host, layer_time=layer, sequence_time=sequence)
    d = Deployment(LLAMA, H100, engine)
    whole = host + 32 * layer + 8 * sequence
    for make in (lambda x: run(x, 8.0, 1000.0),
                 lambda x: prefill(x, x.hardware, Efficiency(x.hardware, x.engine), 8.0, 300.0)):
        after = make(d)
        eager = make(d.replace(engine=engine.replace(async_host=True)))
        kernels = sum(t.expected for t in eager.operations)
        assert after.host == pytest.approx(whole, rel=1e-12)
        assert after.expected == pytest.approx(kernels + whole, rel=1e-12)
        assert eager.expected == pytest.approx(max(kernels, whole), rel=1e-12)
        assert eager.host == pytest.approx(max(whole - kernels, 0.0), rel=1e-9, abs=1e-15)
        assert eager.ceiling == after.ceiling
        assert eager.compute + eager.memory + eager.network + eager.overhead == pytest.approx(
            eager.expected, rel=1e-12)


# kernels for few rows

def test_kernels_for_single_rows_expand_the_weights_for_each() -> None:
    """GEMV kernels: five vector instructions a weight and row, so that a batch hardly pays."""
    chip = Hardware.load("rtx-4090-24gb")
    plain, rows = (PLAIN.replace(vector_products=x) for x in (False, True))
    with levels({}):
        k = Efficiency(chip, rows).kernel("gemm", "int4-weight")
    assert k.e * chip.peak("fp16")[0] * 5.0 == pytest.approx(
        COMPUTE_CAP * chip.vector_peak)
    assert Efficiency(chip, rows).kernel("gemm", "bf16") == Efficiency(chip, plain).kernel("gemm")
    llama = Model.load("llama-2-7b")

    def gain(engine: Engine) -> float:
        d = Deployment(llama, chip, engine, weights="int4-g128", activations="fp16")
        one, eight = (run(d, b, 100.0).expected for b in (1.0, 8.0))
        return float(8.0 * one / eight)

    assert gain(rows) < 0.7 * gain(plain)


def test_streamed_experts_have_no_tiles() -> None:
    chip, model = Hardware.load("dgx-spark-gb10"), Model.load("gpt-oss-20b")
    tiled, streamed = (run(Deployment(model, chip, PLAIN.replace(streams_experts=x)), 1.0, 100.0)
                       for x in (False, True))
    assert streamed.expected < tiled.expected
    assert (streamed.ceiling, streamed.bytes) == (tiled.ceiling, tiled.bytes)


# what an engine does beyond what physics asks for

@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b"])
def test_copies_of_the_cache_are_no_work(name: str) -> None:
    eager = PLAIN.replace(kv_copies=1.5, cache_copies=2.0)
    plain, more = (run(Deployment(Model.load(name), H100, e), 8.0, 900.0, 1300.0)
                   for e in (PLAIN, eager))
    copies = [t for t in more.operations if not t.operation.needed]
    assert copies
    assert all((t.ceiling, t.ceiling_compute, t.flops, t.bytes) == (0, 0, 0, 0) for t in copies)
    for field in ("ceiling", "ceiling_compute", "flops", "bytes", "wire", "compute"):
        assert getattr(more, field) == pytest.approx(getattr(plain, field), rel=1e-13), field
    assert more.expected - plain.expected == pytest.approx(
        sum(t.expected for t in copies), rel=1e-9)
    assert more.memory > plain.memory


def test_copies_by_hand() -> None:
    """The cache twice, and K and V of 32 query heads that share 8: 4 times the cache, once."""
    engine = PLAIN.replace(kv_copies=1.0, cache_copies=2.0)
    _, o = attention_operations(Deployment(LLAMA, H100, engine), LLAMA.layers[0],
                                Segment(3.0, 1.0, 1000.0, "decode"))
    assert o.kv == 3 * 1000 * 4096 * (2 + 4)
    assert not o.needed


# the mean step

def mean_by_loop(d: Deployment, batch: float, first: int, last: int) -> dict[str, float]:
    at = clock(hardware=d.hardware, engine=d.engine)
    o = [attention_operations(d, d.model.layers[0], Segment(batch, 1.0, float(x), "decode"))[0]
         for x in range(first, last + 1)]
    times = [at.point(x) for x in o]
    return {f: math.fsum(float(getattr(t, f)) for t in times) / len(times)
            for f in ("expected", "compute", "memory", "overhead", "ceiling", "bytes", "flops")}


@pytest.mark.parametrize("name", ["h100", "mi300x", "a100", "b200"])
@given(batch=st.sampled_from([1.0, 2.0, 3.0, 7.0]), side=st.floats(0.02, 0.98),
       steps=st.integers(3, 900))
@settings(max_examples=25, deadline=None)
def test_mean_where_the_chain_starts_to_grow(name: str, batch: float, side: float,
                                             steps: int) -> None:
    """A unit's share of the cache passes its longest block at 256 units / (8 sequences) tokens."""
    device = Hardware.load(name)
    turn = 256 * float(device.units or 0) / (8 * batch)
    first = max(int(turn - side * steps), 1)
    last = first + steps - 1
    d = Deployment(LLAMA, device, PLAIN)
    ends = [attention_operations(d, LLAMA.layers[0], Segment(batch, 1.0, float(x), "decode"))[0]
            for x in (first, last)]
    t = clock(hardware=device).span(*ends, float(first), float(last))
    wanted = mean_by_loop(d, batch, first, last)
    for field in ("expected", "compute", "memory", "overhead"):    # of the whole
        assert abs(getattr(t, field) - wanted[field]) < 2e-4 * wanted["expected"], field
    for field in ("ceiling", "bytes", "flops"):
        assert getattr(t, field) == pytest.approx(wanted[field], rel=1e-11), field


def test_means_of_many_spans_are_those_of_each() -> None:
    """Before, across and after the point where the chain starts to grow, to the last bit."""
    first = np.array([10.0, 3000.0, 4223.0, 4224.0, 5000.0])
    last = first + np.array([5.0, 3000.0, 2.0, 100.0, 0.0])
    d = Deployment(LLAMA, H100, PLAIN)

    def span(a: Any, b: Any) -> Any:
        ends = [attention_operations(d, LLAMA.layers[0], Segment(1.0, 1.0, x, "decode"))[0]
                for x in (a, b)]
        return clock().span(*ends, a, b)

    together = span(first, last)
    for i in range(len(first)):
        alone = span(float(first[i]), float(last[i]))
        for field in ("expected", "compute", "memory", "overhead", "ceiling"):
            assert getattr(together, field)[i] == getattr(alone, field), (i, field)


# the overlap

term = st.one_of(st.just(0.0), st.floats(1e-12, 1e3))


@given(term, term, term, st.sampled_from([None, 1.0, 1.06, 1.5, 2.0, 2.7, 12.0]))
def test_overlapped_parts_are_the_whole(c: Any, m: Any, s: Any, p: Any) -> None:
    parts = roofline.overlapped(c, m, s, p)
    assert all(x >= 0 for x in parts)
    assert roofline.overlapped(c, m, s, p, 0.3) == pytest.approx([0.3 * x for x in parts])
    total = sum(parts)
    if p is None:
        assert total == max(c, m)
        assert parts[2] == 0
    else:
        assert total >= max(c, m, s) * (1 - 1e-12)
        assert total <= (c + m + s) * (1 + 1e-12)
        if c and m and s:
            assert total == pytest.approx(norm((c, m, s), p), rel=1e-9)


@pytest.mark.parametrize("p", [None, 1.0, 1.5, 2.0, 3.3])
def test_nothing_takes_no_time(p: Any) -> None:
    """Not 0/0: an operation whose bytes cost nothing, as with infinite bandwidth."""
    with np.errstate(divide="raise", invalid="raise"):
        assert roofline.overlapped(0.0, 0.0, 0.0, p) == (0.0, 0.0, 0.0)
        both = roofline.overlapped(np.array([0.0, 1.0]), np.zeros(2), np.zeros(2), p)
    assert both[0].tolist() == [0.0, 1.0]


def test_exponents_of_several_devices_are_those_of_each() -> None:
    rng = np.random.default_rng(3)
    p = rng.choice([1.0, 1.5, 2.0, 2.3], 400)
    ends = [(rng.uniform(0.1, 1, 400), rng.uniform(1, 2, 400)) for _ in range(3)]
    n = rng.integers(8, 50, 400).astype(float)
    point = roofline.overlapped(*(x for x, _ in ends), p)
    mean = roofline.mean_of_overlapped(*ends, n, p)
    for i in range(400):
        own = [(float(x[i]), float(y[i])) for x, y in ends]
        alone = roofline.overlapped(*(x for x, _ in own), float(p[i]))
        assert [v[i] for v in point] == list(alone)
        assert [v[i] for v in mean] == list(roofline.mean_of_overlapped(*own, float(n[i]),
                                                                        float(p[i])))


# levels

def test_the_nearest_owner_wins() -> None:
    table: dict[str, Any] = {kind: {name: {"memory": 1.0 + i, "compute": 2.0 + i}}
                             for i, (kind, name) in enumerate(owners(H100))}
    assert [kind for kind, _ in owners(H100)] == ["device", "architecture", "vendor", "memory"]
    assert dict(owners(H100)) == {"device": "h100-sxm5-80gb", "architecture": "hopper hbm",
                                  "vendor": "nvidia hbm", "memory": "hbm"}
    for i, (kind, name) in enumerate(owners(H100)):
        with levels(table):
            assert level_of(H100) == Level(1.0 + i, 2.0 + i, name, kind)
        del table[kind]
    with levels(table):
        assert level_of(H100) == Level()
    assert Level() == Level(1.0, 1.0, "", "none")


def test_levels_are_restored() -> None:
    before, d = level_of(H100), Deployment(LLAMA, H100, PLAIN)
    plain = run(d, 8.0, 1000.0).expected
    slow = {"device": {H100.name: {"memory": 50.0, "compute": 50.0}}}
    with levels(slow):
        assert level_of(H100).memory == 50.0
        with levels({}):
            assert level_of(H100) == Level()
        assert level_of(H100).memory == 50.0
        assert run(d, 8.0, 1000.0).expected > 5 * plain
        assert estimate(d).tpot.expected > 5 * plain
    with pytest.raises(RuntimeError), levels(slow):
        raise RuntimeError
    assert level_of(H100) == before
    assert run(d, 8.0, 1000.0).expected == plain


@pytest.mark.parametrize("engine", [PLAIN, load_engine("ideal")], ids=["vllm", "ideal"])
def test_the_level_of_a_link(engine: Engine) -> None:
    """Collectives alone take longer; physics knows no level."""
    kind = link_class(H100)
    assert kind is not None
    d = Deployment(LLAMA, H100, engine, parallelism=Parallelism(tp=4))
    times = []
    for table in ({}, {"link": {kind: 2.5}}, {"link": {"another": 2.5}}):
        with levels(table):
            assert link_level("another") == table.get("link", {}).get("another", 1.0)
            times.append(run(d, 8.0, 1000.0))
    factor = 1.0 if engine.ideal else 2.5
    assert times[0].network > 0
    assert times[1].network == pytest.approx(factor * times[0].network, rel=1e-12)
    assert times[1].expected - times[1].network == pytest.approx(
        times[0].expected - times[0].network, rel=1e-12)
    assert times[2].network == times[0].network


# sums in fp16, chunks of the engine

def test_sums_in_fp16_double_a_geforce() -> None:
    engine = PLAIN.replace(fp16_accumulate=True)
    for name, factor in (("rtx-4090", 2.0), ("rtx-3090", 2.0), ("h100", 1.0),
                         ("apple-m1-max", 1.0)):
        device = Hardware.load(name)
        usual, fast = (Deployment(LLAMA, device, e) for e in (PLAIN, engine))
        assert fast.compute("ffn") == FP16_SUMS
        assert usual.compute("ffn") in ("bf16", "fp16")
        ratio = device.peak(fast.compute("ffn"))[0] / device.peak(usual.compute("ffn"))[0]
        assert ratio == pytest.approx(factor, rel=0.01), name
    narrow = Deployment(LLAMA, Hardware.load("rtx-4090"), engine, weights="fp8", activations="fp8")
    assert narrow.compute("ffn") == "fp8"


def test_quantised_weights_without_16_bit_units_are_multiplied_as_integers() -> None:
    """A P40 did 935 tok/s of a 7B Q4_0 prompt (llama.cpp pull 4766), above its fp32 peak."""
    engine = PLAIN.replace(fp16_accumulate=True)
    device = Hardware.load("p40")
    model = Model.load("llama-2-7b")
    narrow = Deployment(model, device, engine, weights="q4_0")
    assert narrow.compute("ffn") == "int8"
    assert Deployment(model, device, engine).compute("ffn") == FP16_SUMS
    turing = Deployment(model, Hardware.load("t4"), engine, weights="q4_0")
    assert turing.compute("ffn") == FP16_SUMS
    assert 512.0 / float(estimate(narrow, Workload(1, 512, 1)).ttft.ceiling) > 935.0


@pytest.mark.parametrize("batch", [1.0, 4.0])
@pytest.mark.parametrize("prompt", [100.0, 513.0, 6000.0])
def test_chunks_of_an_engine_keep_the_ceiling(batch: float, prompt: float) -> None:
    """The ceiling is that of the prompt in one pass: nobody asked for the chunks."""
    chunked = load_engine("llama.cpp").replace(prefill_chunk=512)
    whole = chunked.replace(prefill_chunk=None)
    w = Workload(batch, prompt, 2)
    a, b = (estimate(Deployment(LLAMA, Hardware.load("rtx-4090"), e), w) for e in (chunked, whole))
    assert a.ttft.ceiling == pytest.approx(b.ttft.ceiling, rel=1e-12)
    assert a.ttft.expected >= b.ttft.expected * (1 - 1e-12)
    assert a.prefill.detail.ceiling_compute <= a.prefill.detail.ceiling * (1 + 1e-12)
    for field in ("ceiling", "ceiling_compute"):
        assert sum(getattr(t, field) for t in a.prefill.detail.operations) == pytest.approx(
            getattr(a.prefill.detail, field), rel=1e-12), field
        assert getattr(a.prefill.detail, field) == pytest.approx(
            getattr(b.prefill.detail, field), rel=1e-12), field
    asked = estimate(Deployment(LLAMA, Hardware.load("rtx-4090"), whole, chunk=512), w)
    assert asked.ttft.ceiling >= a.ttft.ceiling * (1 - 1e-12)
    if prompt > 512:
        assert asked.ttft.ceiling > a.ttft.ceiling


@pytest.mark.parametrize("stages", [2, 4])
def test_chunks_of_an_engine_fill_a_pipeline(stages: int) -> None:
    """One prompt in one pass leaves all stages but one idle; its chunks follow one another."""
    chunked = load_engine("llama.cpp").replace(prefill_chunk=512)
    w = Workload(1.0, 8192.0, 2)
    times = [estimate(Deployment(LLAMA, H100, e, parallelism=Parallelism(pp=stages)), w).ttft
             for e in (chunked, chunked.replace(prefill_chunk=None))]
    assert times[0].expected < times[1].expected
    assert times[0].ceiling < times[1].ceiling
    one = estimate(Deployment(LLAMA, H100, chunked), w).ttft
    assert one.expected / stages < times[0].expected < one.expected
    assert one.ceiling / stages < times[0].ceiling < one.ceiling


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v2-lite", "mixtral-8x7b"])
@pytest.mark.parametrize("stages", [1, 2])
def test_chunks_of_an_engine_are_the_sum_of_their_operations(name: str, stages: int) -> None:
    d = Deployment(Model.load(name), H100, load_engine("llama.cpp").replace(prefill_chunk=512),
                   parallelism=Parallelism(pp=stages))
    prompts = np.array([100.0, 600.0, 3000.0, 9000.0])
    together = estimate(d, Workload(4.0, prompts, 2)).prefill.detail
    for i, prompt in enumerate(prompts):
        detail = estimate(d, Workload(4.0, float(prompt), 2)).prefill.detail
        for field in ("ceiling", "ceiling_compute"):
            assert getattr(detail, field) == getattr(together, field)[i], field
            if stages == 1:
                assert sum(getattr(t, field) for t in detail.operations) == pytest.approx(
                    getattr(detail, field), rel=1e-12), field


def test_chunks_of_an_engine_give_way_to_those_asked_for() -> None:
    d = Deployment(LLAMA, H100, PLAIN.replace(prefill_chunk=512))
    assert (d.prefill_chunk, d.replace(chunk=64).prefill_chunk) == (512, 64)
    assert Deployment(LLAMA, H100, PLAIN.replace(prefill_chunk=None)).prefill_chunk is None


# one operation of a bare device

def test_a_device_without_timings_by_hand() -> None:
    bare = parse_inline({"name": "bare", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
                         "peak_bf16": "300 TFLOP/s", "bandwidth_efficiency": 0.5,
                         "compute_efficiency": 0.25})
    o = Operation("x", "gemm", "gemm", 1.0, 3e12, 4e9, compute="bf16", launches=2.0)
    k = Efficiency(bare, PLAIN).kernel("gemm")
    assert (k.e, k.h, k.p) == (0.25, 0.5, 2)
    assert clock(hardware=bare).point(o).expected == pytest.approx(
        2 * k.t0 + math.hypot(3e12 / 75e12, 4e9 / 1e12), rel=1e-12)
