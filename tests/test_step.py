"""Passes: sums, the mean decode step against a step-by-step loop, laws of the step formula."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Hardware, Model, Workload, estimate
from simulator.deployment import Parallelism
from simulator.efficiency import Efficiency
from simulator.layers import Segment
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import load_engine
from simulator.specs.hardware import parse_inline
from simulator.specs.model import Attention, Dense, Indexer, LayerGroup, Mla
from simulator.step import PassTime, decode, forward_pass, largest_part, prefill

H100 = Hardware.load("h100-sxm5-80gb")
BARE = parse_inline({
    "name": "bare", "memory_bandwidth": "2 TB/s", "memory_capacity": "80 GB",
    "peak_bf16": "312 TFLOP/s", "vector_bf16": "30 TFLOP/s",
})
MODELS = list(catalogue("models"))
DEVICES = list(catalogue("hardware"))
PARTS = ("compute", "memory", "network", "overhead")


def small(*mixers: Any, **more: Any) -> Model:
    groups = tuple(LayerGroup(count=4, mixer=m, ffn=Dense(width=1024)) for m in mixers)
    return Model(**({"name": "small", "hidden": 512, "vocabulary": 2000, "positions": 10**6,
                     "layers": groups} | more))


FULL = Attention(heads=8, kv_heads=2, head_dim=64)
LATENT = {"heads": 16, "q_rank": 256, "kv_rank": 128, "nope_dim": 64, "rope_dim": 32,
          "value_dim": 64}
INLINE = {
    "full": small(FULL),
    "window": small(FULL, FULL.replace(window=128)),
    "chunk": small(FULL.replace(chunk=96), FULL),
    "mla": small(Mla(**LATENT)),
    "index": small(Mla(**LATENT, indexer=Indexer(heads=4, head_dim=32, top_k=150))),
}


@cache
def deployment(name: str, hardware: str = "h100-sxm5-80gb", engine: str = "vllm") -> Deployment:
    m = INLINE[name] if name in INLINE else Model.load(name)
    return Deployment(m, Hardware.load(hardware), load_engine(engine))


def run(d: Deployment, batch: Any, first: Any, last: Any = None) -> PassTime:
    return decode(d, d.hardware, Efficiency(d.hardware, d.engine), batch, first,
                  first if last is None else last)


def prompt(d: Deployment, batch: Any, length: Any, hit: Any = 0.0) -> PassTime:
    return prefill(d, d.hardware, Efficiency(d.hardware, d.engine), batch, length, hit)


# sums

SUMMED = ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3.2", "jamba-1.5-mini", "mixtral-8x7b",
          "llama-4-scout", "zamba2-7b"]


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("engine", ["vllm", "ideal", "transformers"])
def test_operations_sum_to_the_step(name: str, engine: str) -> None:
    d = deployment(name, engine=engine)
    for step in (run(d, 8.0, 1000.0, 1300.0), prompt(d, 4.0, 777.0), prompt(d, 1.0, 500.0, 0.5)):
        operations = step.operations
        assert sum(t.expected for t in operations) + step.host == pytest.approx(
            step.expected, rel=1e-13)
        for field in ("ceiling", "ceiling_compute", "flops", "bytes", "compute", "memory",
                      "network", "wire"):
            assert sum(getattr(t, field) for t in operations) == pytest.approx(
                getattr(step, field), rel=1e-13), field
        assert sum(t.overhead for t in operations) + step.host == pytest.approx(
            step.overhead, rel=1e-13, abs=1e-30)
        assert sum(getattr(step, p) for p in PARTS) == pytest.approx(step.expected, rel=1e-12)
        for t in operations:
            assert sum(getattr(t, p) for p in PARTS) == pytest.approx(t.expected, rel=1e-12)
            assert t.expected >= t.ceiling * (1 - 1e-14)
        assert step.ceiling >= step.bytes / H100.memory_bandwidth * (1 - 1e-13)
        start, layer, sequence = d.host_times
        host = start + d.host_layers * layer
        if d.engine.async_host:
            host = max(host - sum(t.expected for t in operations), 0.0)
        assert step.host >= host * (1 - 1e-12)
        assert step.host <= host + 8.0 * sequence + 1e-15


def test_only_one_way_of_mla_runs() -> None:
    for step in (run(deployment("deepseek-v3"), 1.0, 4000.0, 4100.0),
                 prompt(deployment("deepseek-v3"), 1.0, 4000.0)):
        names = {t.operation.name for t in step.operations if t.expected}
        assert len(names & {"mla_absorbed", "mla_expanded"}) == 1
        assert ("mla_absorb" in names) == ("mla_absorbed" in names)
        assert ("mla_expand" in names) == ("mla_expanded" in names)


def test_bounds() -> None:
    assert run(deployment("llama-3.1-8b", engine="ideal"), 1.0, 1000.0).ceiling_bound == "memory"
    assert prompt(deployment("llama-3.1-8b"), 1.0, 4096.0).ceiling_bound == "compute"
    assert run(deployment("llama-3.1-70b"), 1.0, 1000.0).bound == "memory"
    assert prompt(deployment("llama-3.1-70b"), 4.0, 4096.0).bound == "compute"
    assert run(deployment("gpt2"), 1.0, 10.0).bound == "overhead"
    assert largest_part(1, 2, 3, 2) == "network"
    assert largest_part(np.array([3, 0]), np.array([1, 2]), 0, 0).tolist() == ["compute", "memory"]


# the mean decode step against a loop over every context

def loop(d: Deployment, batch: Any, first: int, last: int) -> dict[str, float]:
    """Means over a loop; long ones as one call with all contexts, which is the same bit for bit."""
    contexts = np.arange(first, last + 1, dtype=float)
    fields = ("ceiling", "expected", "flops", "bytes")
    if len(contexts) > 64:
        step = run(d, batch, contexts)
        check = run(d, batch, float(contexts[37]))
        assert all(np.broadcast_to(getattr(step, f), contexts.shape)[37] == getattr(check, f)
                   for f in fields)
        return {f: float(np.mean(getattr(step, f))) for f in fields}
    steps = [run(d, batch, float(c)) for c in contexts]
    return {f: float(np.mean([getattr(s, f) for s in steps])) for f in fields}


def check_mean(d: Deployment, batch: float, first: int, last: int, exact: float = 1e-12) -> None:
    wanted, mean = loop(d, batch, first, last), run(d, batch, float(first), float(last))
    assert mean.ceiling == pytest.approx(wanted["ceiling"], rel=exact)
    assert mean.expected == pytest.approx(wanted["expected"], rel=1e-4)
    for field in ("flops", "bytes"):
        assert getattr(mean, field) == pytest.approx(wanted[field], rel=exact)


SPANS = [(1.0, 2, 2), (1.0, 2, 3), (1.0, 2, 200), (64.0, 100, 160), (300.0, 90, 400),
         (7.0, 127, 129), (7.0, 128, 128), (7.0, 129, 300), (2000.0, 20, 300)]


@pytest.mark.parametrize("span", SPANS, ids=str)
@pytest.mark.parametrize("name", ["full", "window", "chunk"])
@pytest.mark.parametrize("engine", ["ideal", "vllm"])
def test_mean_step_is_the_loop(name: str, engine: str, span: Any) -> None:
    check_mean(deployment(name, engine=engine), *span)


@pytest.mark.parametrize("span", [(1.0, 2, 3), (16.0, 2, 22), (1.0, 20, 200), (64.0, 100, 160),
                                  (300.0, 90, 400), (7.0, 149, 151), (2000.0, 20, 200)], ids=str)
@pytest.mark.parametrize("name", ["mla", "index"])
@pytest.mark.parametrize("engine", ["ideal", "vllm"])
def test_mean_step_of_latent_attention_is_the_loop(name: str, engine: str, span: Any) -> None:
    check_mean(deployment(name, engine=engine), *span)


@pytest.mark.parametrize(("name", "batch", "first", "last"), [
    ("llama-3.1-8b", 1.0, 1025, 1280), ("llama-3.1-8b", 256.0, 65, 400),
    ("gpt-oss-20b", 16.0, 100, 300), ("gemma-3-4b", 32.0, 1000, 1100),
    ("deepseek-v3", 32.0, 1000, 1100), ("deepseek-v3", 2.0, 2, 102), ("kimi-k2", 1.0, 32, 302),
    ("minicpm3-4b", 256.0, 2, 7), ("deepseek-v3.2", 8.0, 2000, 2100),
    ("llama-4-scout", 8.0, 8150, 8250), ("falcon-mamba-7b", 8.0, 10, 50),
])  # fmt: skip
def test_mean_step_of_the_catalogue_is_the_loop(name: str, batch: Any, first: Any,
                                                last: Any) -> None:
    check_mean(deployment(name), batch, first, last)
    check_mean(deployment(name, "mn-core-l1400", "ideal"), batch, first, last)


@given(st.sampled_from(["full", "window", "chunk"]), st.integers(1, 3000), st.integers(2, 400),
       st.integers(1, 120), st.sampled_from(["ideal", "vllm"]))
@settings(max_examples=40, deadline=None)
def test_mean_step_anywhere(name: Any, batch: Any, first: Any, steps: Any, engine: Any) -> None:
    check_mean(deployment(name, engine=engine), float(batch), first, first + steps - 1)


def test_closed_form_of_a_whole_output() -> None:
    """Bytes of n steps: n times the static ones, and the cache of 1 + 2 + ... + n tokens."""
    d = deployment("full", engine="ideal")
    n, batch = 5000.0, 3.0
    mean, one = run(d, batch, 1.0, n), run(d, batch, 1.0)
    per_token = batch * 4 * 2 * 2 * 64 * 2    # layers, K and V, KV heads, head size, bf16
    assert n * mean.bytes == pytest.approx(n * (one.bytes - per_token)
                                           + per_token * n * (n + 1) / 2, rel=1e-12)


def test_huge_outputs() -> None:
    d = deployment("llama-3.1-8b")
    huge = run(d, 1.0, 1025.0, 1e9)
    assert np.isfinite(huge.expected)
    assert huge.bytes == pytest.approx((run(d, 1.0, 1025.0).bytes + run(d, 1.0, 1e9).bytes) / 2)
    windowed = run(deployment("mistral-7b-v0.1"), 1.0, 1025.0, 1e9)
    assert windowed.expected == pytest.approx(
        run(deployment("mistral-7b-v0.1"), 1.0, 1e9).expected, rel=1e-4)


# laws

def scaled(d: Deployment, factor: float) -> Deployment:
    rates = {name: value * factor for name in Hardware.__struct_fields__
             if (name in ("memory_bandwidth", "link_bandwidth", "vector_fp32", "vector_bf16")
                 or name.startswith("peak_")) and (value := getattr(d.hardware, name)) is not None}
    return d.replace(hardware=d.hardware.replace(**rates))


@given(st.sampled_from(MODELS), st.sampled_from(DEVICES), st.integers(1, 500),
       st.integers(1, 20_000))
@settings(max_examples=60, deadline=None)
def test_ideal_is_the_ceiling_and_doubling_every_rate_halves_it(
    name: Any, hardware: Any, batch: Any, context: Any,
) -> None:
    d = deployment(name, hardware, "ideal")
    fast = scaled(d, 2.0)
    for a, b in ((run(d, batch, context + 1.0, context + 50.0),
                  run(fast, batch, context + 1.0, context + 50.0)),
                 (prompt(d, batch, float(context)), prompt(fast, batch, float(context)))):
        assert a.expected == a.ceiling
        assert b.ceiling == pytest.approx(a.ceiling / 2, rel=1e-13)
        assert (b.flops, b.bytes) == (a.flops, a.bytes)


@given(st.sampled_from(MODELS), st.sampled_from(DEVICES), st.sampled_from(["vllm", "ideal",
       "llama.cpp", "transformers"]), st.integers(1, 500), st.integers(1, 20_000),
       st.floats(1.0, 8.0))
@settings(max_examples=50, deadline=None)
def test_monotone(name: Any, hardware: Any, engine: Any, batch: Any, context: Any,
                  factor: Any) -> None:
    d = deployment(name, hardware, engine)
    wide = d.replace(hardware=d.hardware.replace(
        memory_bandwidth=d.hardware.memory_bandwidth * factor))
    peaks = {f: getattr(d.hardware, f) * factor for f in Hardware.__struct_fields__
             if f.startswith("peak_") and getattr(d.hardware, f) is not None}
    strong = d.replace(hardware=d.hardware.replace(**peaks))
    S, last = float(context), float(context) + 64
    slack = 1 + 1e-12
    for time in (lambda e, b, s: run(e, b, s, s + 64), prompt):
        base = time(d, float(batch), S)
        for more in (time(d, batch * factor, S), time(d, float(batch), S * factor)):
            assert more.expected * slack >= base.expected
            assert more.ceiling * slack >= base.ceiling
        for less in (time(wide, float(batch), S), time(strong, float(batch), S)):
            assert less.expected <= base.expected * slack
            assert less.ceiling <= base.ceiling * slack
    longer = run(d, float(batch), S, last + 100)
    assert longer.expected * slack >= run(d, float(batch), S, last).expected


@given(st.sampled_from(MODELS),
       st.sampled_from(["h100-sxm5-80gb", "rtx-4090-24gb", "mn-core-l1400"]), st.integers(1, 400),
       st.integers(2, 100_000))
@settings(max_examples=60, deadline=None)
def test_no_jumps(name: Any, hardware: Any, batch: Any, context: Any) -> None:
    """One more token or sequence costs at most its share of the work that grows with it."""
    d = deployment(name, hardware)
    base = run(d, float(batch), float(context))
    longer = run(d, float(batch), context + 1.0)
    # MLA turns from expanded to absorbed where the work does, not where the kernels' times cross.
    least = -2e-3 if any(isinstance(g.mixer, Mla) for g in d.model.layers) else 0.0
    assert least <= longer.expected / base.expected - 1 + 1e-12 <= 1.01 / context + 1e-12
    wider = run(d, batch + 1.0, float(context))
    assert 0 <= wider.expected / base.expected - 1 + 1e-12 <= 1.01 / batch + 1e-12


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "minicpm3-4b"])
def test_mla_takes_the_faster_way(name: str) -> None:
    """Long prompts expand, decode absorbs; a prompt's time is the smaller of the two sums."""
    d = deployment(name, engine="ideal")
    used = {t.operation.name for t in prompt(d, 1.0, 8192.0).operations}
    assert "mla_expanded" in used
    assert "mla_absorbed" in {t.operation.name for t in run(d, 8.0, 8192.0).operations}
    clock = Efficiency(d.hardware, d.engine)
    before = None
    for new in (1.0, 20.0, 100.0, 171.0, 400.0, 2000.0):
        time = forward_pass(d, d.hardware, clock, [Segment(1.0, new, 30_000.0, "prefill")], 1.0)
        assert before is None or time.expected >= before
        before = time.expected
    assert {t.operation.name for t in forward_pass(
        d, d.hardware, clock, [Segment(4.0, 8.0, 30_000.0, "prefill")], 4.0).operations} >= {
            "mla_absorbed"}


def test_prefix_hit_is_monotone() -> None:
    for name in ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "llama-4-scout"):
        d = deployment(name)
        times = [prompt(d, 2.0, 4096.0, h).expected for h in np.linspace(0, 1, 21)]
        assert all(a > b for a, b in pairwise(times))


# mixed passes

def test_equal_segments_are_one_pass() -> None:
    d = deployment("llama-3.1-8b")
    clock = Efficiency(d.hardware, d.engine)
    one = forward_pass(d, d.hardware, clock, [Segment(6.0, 1.0, 500.0, "decode")], 6.0)
    assert one.expected == run(d, 6.0, 500.0).expected
    two = forward_pass(d, d.hardware, clock, [Segment(2.0, 1.0, 500.0, "decode"),
                                              Segment(4.0, 1.0, 500.0, "decode")], 6.0)
    assert two.ceiling == pytest.approx(one.ceiling, rel=1e-12)
    assert two.bytes == pytest.approx(one.bytes, rel=1e-12)


def test_a_mixed_pass_is_cheaper_than_two() -> None:
    d = deployment("llama-3.1-8b")
    clock = Efficiency(d.hardware, d.engine)
    tokens, part = Segment(16.0, 1.0, 900.0, "decode"), Segment(1.0, 512.0, 512.0, "prefill")
    mixed = forward_pass(d, d.hardware, clock, [tokens, part], 17.0)
    alone = [forward_pass(d, d.hardware, clock, [s], s.sequences) for s in (tokens, part)]
    assert max(a.ceiling for a in alone) < mixed.ceiling < sum(a.ceiling for a in alone)


def test_textbook_by_hand() -> None:
    """14e9 bytes of weights over 2 TB/s: exactly 7.0 ms a token."""
    d = Deployment(Model.load("7b-fp16"), Hardware.load("textbook-2tbs"), load_engine("ideal"))
    step = run(d, 1.0, 1000.0)
    weights = sum(t.operation.weights * t.operation.count for t in step.operations
                  if t.operation.name != "embedding")
    assert weights / 2e12 == 7.0e-3
    kv = 1000 * 458_752
    rest = step.bytes - weights - kv
    assert step.ceiling == pytest.approx((weights + kv + rest) / 2e12, rel=1e-12)
    assert 0 < rest < 1.2e7


def test_rows_of_data_parallel_experts_are_the_scalars() -> None:
    # Replicas that aren't all busy differ from row to row, also where their batch doesn't.
    d = Deployment.of("deepseek-v3", "h200-sxm-141gb", weights="fp8", activations="fp8",
                      parallelism=Parallelism(tp=2, ep=8, dp=4))
    batch, prompt = np.array([3.0, 4.0, 6.0, 64.0, 64.0]), np.array([128.0, 99.0, 99.0, 4.0, 7.0])
    rows = estimate(d, Workload(batch, prompt, 64)).tpot.expected
    for b, n, row in zip(batch, prompt, rows, strict=True):
        assert float(estimate(d, Workload(b, n, 64)).tpot.expected) == row
