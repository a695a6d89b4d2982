"""Published numbers through the public API: two-sided where a formula gave them, else one-sided.

Every row of tests/data/paper_rows.csv is checked here or in test_paper_rows_simple.py, or is named
in UNCOVERED with the reason.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from test_paper_rows_simple import CHECKED, MATMULS, published, rows

from simulator import (
    Deployment,
    Hardware,
    Model,
    Parallelism,
    Workload,
    collectives,
    estimate,
    speculation,
)
from simulator.allocation import paged_occupancy
from simulator.efficiency import Efficiency
from simulator.layers import Segment, matrix_flops
from simulator.memory import memory, weight_bytes
from simulator.operations import attention as att
from simulator.parameters import parameters_active_no_input_embedding, parameters_total
from simulator.roofline import ceiling_time, memory_time
from simulator.specs.engine import load_engine
from simulator.specs.hardware import parse_inline
from simulator.specs.model import Attention, Dense, LayerGroup
from simulator.step import PassTime, forward_pass

IDEAL = load_engine("ideal")
GIB = 2.0**30
UNCOVERED = {
    "sarathi-02": "tile quantisation is a kernel effect, and the plain form has no tiles",
    "scaling-book-17": "rests on an ICI ridge of 2550 FLOP/B that no rate in the row gives",
    **{f"scaling-book-{n}": "request rates and servers of a serving system: no API yet"
       for n in (12, 13, 14, 19, 20)},
}
DONE: set[str] = {name for names in CHECKED.values() for name in names} | set(MATMULS)


def covers(*names: str) -> Any:
    """Mark the rows that a test checks and hand it each of them."""
    DONE.update(names)
    return pytest.mark.parametrize("name", names)


def value(name: str) -> float:
    return float(rows()[name]["value"])


def device(bandwidth: float, peak: float, capacity: float = 1e15, **more: Any) -> Hardware:
    """A hypothetical device, or several pooled into one."""
    return parse_inline({
        "name": "inline", "memory_bandwidth": f"{bandwidth:.17g} B/s",
        "memory_capacity": f"{capacity:.17g} B", "peak_bf16": f"{peak:.17g} FLOP/s", **more,
    })


@cache
def sized(params: float, layers: int, hidden: int, kv_values: int, heads: int = 64,
          gated: bool = True) -> Model:
    """A decoder of `params` parameters (to 2e-4) that caches `kv_values` a layer and token."""
    kv_heads = 8 if kv_values % 16 == 0 else 4
    head = kv_values // 2 // kv_heads
    fixed = hidden * head * (2 * heads + 2 * kv_heads)
    matrices = 3 if gated else 2
    width = round((params / layers - fixed) / (matrices * hidden))
    m = decoder(layers, hidden, heads, kv_heads, head, width, gated)
    assert parameters_total(m) == pytest.approx(params, rel=2e-4)
    return m


def decoder(layers: int, hidden: int, heads: int, kv_heads: int, head: int, width: int,
            gated: bool, vocabulary: int = 1, **more: Any) -> Model:
    return Model(name="inline", hidden=hidden, vocabulary=vocabulary, positions=10**6, layers=(
        LayerGroup(count=layers, mixer=Attention(heads=heads, kv_heads=kv_heads, head_dim=head),
                   ffn=Dense(width=width, gated=gated), **more),))


def gpt(layers: int, hidden: int, heads: int, vocabulary: int = 1) -> Model:
    """GPT shape: 12 L D^2 weights."""
    return decoder(layers, hidden, heads, heads, hidden // heads, 4 * hidden, False, vocabulary)


def deployment(m: Model, h: Hardware, weights: str = "bf16", **more: Any) -> Deployment:
    return Deployment(m, h, IDEAL, weights, kv=more.pop("kv", None), **more)


def passed(d: Deployment, sequences: float, new: float, context: float) -> PassTime:
    phase: Any = "decode" if new == 1 else "prefill"
    return forward_pass(d, d.hardware, Efficiency(d.hardware, d.engine),
                        [Segment(float(sequences), float(new), float(context), phase)],
                        float(sequences))


def traffic(p: PassTime) -> float:
    """Bytes of weights and KV alone, which is all that the publications count."""
    return float(sum((t.operation.weights + t.operation.kv) * t.operation.count
                     for t in p.operations))


def of_kinds(p: PassTime, *kinds: str) -> float:
    return float(sum(t.ceiling for t in p.operations if t.operation.kind in kinds))


# Scaling book: the book's own roundings, 70e9 weights and 160 kB a token (int8), are the model's

BOOK_70B = sized(70e9, 80, 8192, 2000)
V5E = (8.1e11, 1.97e14)


@covers("scaling-book-04", "scaling-book-05", "scaling-book-06")
def test_scaling_book_decode(name: str) -> None:
    chips = 16 if name == "scaling-book-06" else 8
    d = deployment(BOOK_70B, device(chips * V5E[0], chips * V5E[1]), "int8", kv="int8")
    step = passed(d, 32, 1, 8192)
    time = traffic(step) / d.hardware.memory_bandwidth
    assert time <= step.ceiling <= 1.03 * time
    assert (32 / time / chips if name == "scaling-book-05" else time) == published(name)


@covers("scaling-book-11")
def test_scaling_book_full_memory(name: str) -> None:
    assert memory_time(16e9, 8.2e11) == published(name)


@covers("scaling-book-21", "scaling-book-22")
def test_scaling_book_quiz(name: str) -> None:
    batch = 4 if name == "scaling-book-21" else 256
    m = sized(30e9, 50, 6144, 2000)
    d = deployment(m, device(16 * V5E[0], 16 * V5E[1]), "int8", kv="int8")
    assert of_kinds(passed(d, batch, 1, 8192), "gemm", "attention") == published(name)


@covers("scaling-book-03")
def test_scaling_book_memory(name: str) -> None:
    m = memory(deployment(BOOK_70B, device(*V5E), "int8", kv="int8"), 32.0, 8191.0, 1.0)
    assert m.weights + m.kv_ideal == published(name)


@covers("scaling-book-10")
def test_scaling_book_sequences(name: str) -> None:
    m = memory(deployment(sized(70e9, 80, 8192, 2048), device(*V5E)), 1.0, 8191.0, 1.0)
    assert (16 * 16e9 - m.weights) // m.kv_ideal == published(name)


@covers("scaling-book-18")
def test_scaling_book_prefill(name: str) -> None:
    d = deployment(BOOK_70B, device(*V5E))
    flops = sum(t.flops for t in passed(d, 1, 8192, 8192).operations if t.operation.kind == "gemm")
    assert flops / (16 * V5E[1] * 0.4) == published(name)


@covers("scaling-book-15")
def test_scaling_book_link_time_of_a_matrix(name: str) -> None:
    assert collectives.all_gather(64 * 8192 * 2, 32, 0.0, 9e10) == published(name)


@covers("scaling-book-25")
def test_latency_floor(name: str) -> None:
    """Below this size the hops of a ring take longer than the bytes."""
    S = value(name)
    hops = collectives.all_reduce_ring(0.0, 8, 1e-6, 4.5e10)
    wire = collectives.all_reduce_ring(S, 8, 0.0, 4.5e10)
    assert S * hops / wire == published(name)


@covers("scaling-book-26")
def test_all_reduce_of_the_book(name: str) -> None:
    """The book leaves out the factor (n-1)/n: a ring of many ranks."""
    assert collectives.all_reduce_ring(2 * 1024 * 4096, 1e9, 0.0, 9e10) == published(name)


# kipply

A100_40 = (1.5e12, 312e12)


@covers("kipply-03", "kipply-04", "kipply-13")
def test_kipply_memory_bound(name: str) -> None:
    chips = 4 if name == "kipply-04" else 1
    m = gpt(40, 5120, 40) if name == "kipply-13" else gpt(64, 8192, 64)
    d = deployment(m, device(chips * A100_40[0], chips * A100_40[1]))
    step = passed(d, 1, 1, 1)
    weights = sum(t.operation.weights * t.operation.count for t in step.operations
                  if t.operation.kind == "gemm")
    assert weights / d.hardware.memory_bandwidth == published(name)
    assert step.ceiling == pytest.approx(value(name), rel=0.02)
    assert step.ceiling_bound == "memory"


@covers("kipply-07")
def test_kipply_260b(name: str) -> None:
    d = deployment(sized(260e9, 80, 16384, 32768, 128, False), device(16 * 1.5e12, 16 * 312e12))
    assert traffic(passed(d, 1, 1, 1)) / (16 * 1.5e12) == published(name)


@covers("kipply-09", "kipply-11")
def test_kipply_compute_bound(name: str) -> None:
    chips, batch, m = ((16, 512, gpt(80, 16384, 128)) if name == "kipply-09"
                       else (4, 256, gpt(64, 8192, 64)))
    d = deployment(m, device(chips * A100_40[0], chips * A100_40[1]))
    step = passed(d, batch, 1, 1)
    assert of_kinds(step, "gemm") == published(name)


@covers("kipply-08", "kipply-10", "kipply-12")
def test_kipply_messages(name: str) -> None:
    """Four messages a layer."""
    layers, hidden = (64, 8192) if name == "kipply-12" else (80, 16384)
    batch = {"kipply-08": 0, "kipply-10": 512, "kipply-12": 256}[name]
    alpha = 8e-6 if name == "kipply-08" else 0.0
    each = collectives.point_to_point(batch * 2 * hidden, 2, alpha, 300e9)
    assert 4 * layers * each == published(name)


@covers("kipply-06")
def test_kipply_tokens(name: str) -> None:
    m = memory(deployment(gpt(64, 8192, 64), device(*A100_40, capacity=120e9)), 1.0, 1.0, 1.0)
    assert (120e9 - 104e9) / m.kv_per_token == published(name)


@covers("kipply-14", "kipply-15", "kipply-16", "kipply-17", "kipply-18", "kipply-19")
def test_kipply_measured(name: str) -> None:
    tp = 2 if name in ("kipply-15", "kipply-17", "kipply-19") else 1
    d = deployment(gpt(40, 5120, 40, 51200), Hardware.load("a100-sxm4-40gb"),
                   parallelism=Parallelism(tp=tp))
    e = estimate(d, Workload(1, 512, 10))
    time = {"decode": e.tpot, "prefill": e.ttft, "total": e.e2e}[
        rows()[name]["metric"].removeprefix("measured ")]
    assert 0.3 * value(name) < time.ceiling <= value(name)


# Pope et al., PaLM 540B on 64 TPU v4 of 275 TFLOP/s, 1.2 TB/s, 32 GiB

PALM = decoder(118, 18432, 64, 1, 256, 73728, True, 256000, parallel=True)
POPE = {    # tokens of the run, weights
    "pope-01": ("pope-02", 2048), "pope-03": ("pope-04", 64 * 64),
    "pope-05": ("pope-06", 512 * 2048), "pope-07": ("pope-08", 512 * 64),
}


@covers(*POPE)
def test_pope_mfu(name: str) -> None:
    latency, tokens = POPE[name]
    d = deployment(sized(540e9, 118, 18432, 512, 48), device(1.2e12, 275e12))
    flops = sum(t.flops for t in passed(d, 1, tokens, tokens).operations
                if t.operation.kind == "gemm")
    assert 100 * flops / (64 * 275e12 * value(latency)) == published(name)


@covers("pope-02", "pope-04", "pope-06", "pope-08", "pope-09")
def test_pope_measured(name: str) -> None:
    weights = "int8" if name in ("pope-02", "pope-04", "pope-09") else "bf16"
    d = deployment(PALM, device(64 * 1.2e12, 64 * 275e12), weights)
    batch = {"pope-02": 1, "pope-04": 64, "pope-06": 512, "pope-08": 512, "pope-09": 64}[name]
    e = estimate(d, Workload(batch, 2048, 65))
    time = {"pope-02": e.ttft.ceiling, "pope-06": e.ttft.ceiling, "pope-09": e.tpot.ceiling}.get(
        name, 64 * e.tpot.ceiling)
    assert 0.05 * value(name) < time <= value(name)


@covers(*(f"pope-{n}" for n in range(10, 16)))
def test_pope_context(name: str) -> None:
    """30 % of 32 GiB for KV; heads split over 64 chips, or the batch."""
    heads = {"pope-10": 64, "pope-11": 64}.get(name, 1)
    batch = 128 if name in ("pope-10", "pope-12", "pope-14") else 512
    by_batch = name in ("pope-14", "pope-15")
    m = decoder(118, 18432, 64, heads, 128 if heads == 64 else 256, 73728, True)
    chip = device(1.2e12, 275e12, 32 * GIB, link_bandwidth="270 GB/s", link_domain=64)
    degrees = Parallelism(dp=64) if by_batch else Parallelism(tp=64)
    d = deployment(m, chip, parallelism=degrees)
    each = memory(d, batch, 1.0, 1.0).kv_per_token * (batch / 64 if by_batch else batch)
    assert 0.3 * 32 * GIB / each == published(name)


# LIMINAL: Llama-3.1-405B fp8, chips pooled, bandwidth in TiB/s

@covers(*(f"liminal-0{n}" for n in range(1, 7)))
def test_liminal(name: str) -> None:
    chips = {1: 8, 2: 8, 3: 32, 4: 32}.get(int(name[-1]), 128)
    context = 4096 if int(name[-1]) % 2 else 131_072
    m = sized(405e9, 126, 16384, 2048, 128)
    d = deployment(m, device(chips * 4 * 2.0**40, chips * 2.25e15), "fp8", kv="fp8")
    alpha = 200e-9 if chips == 8 else 1500e-9
    sync = 3 * 126 * collectives.point_to_point(0.0, chips, alpha, 1e12)
    time = traffic(passed(d, 1, 1, context)) / d.hardware.memory_bandwidth + sync
    assert 1 / time == published(name)


# LLMCompass: one GPT-3 layer on four A100-80G, TP 4, batch 8, fp16

GPT3 = gpt(1, 12288, 96)
A100 = Hardware.load("a100-sxm4-80gb")
LAYER = [f"llmcompass-{n:02}" for n in range(1, 27)]
KERNELS = {"Q_K_V": "qkv", "Wo_proj": "attention_output", "W1_proj": "mlp_up",
           "W2_proj": "mlp_down", "GeLU": "mlp_activation"}


@cache
def layer_times(phase: str) -> tuple[dict[str, float], float]:
    """Ceilings of a layer's kernels by their published names, and of the layer."""
    new, context = (2048, 2048) if phase == "prefill" else (1, 3072)
    d = deployment(GPT3, A100, "fp16", activations="fp16", parallelism=Parallelism(tp=4))
    step = passed(d, 8, new, context)
    by_name = {t.operation.name: t for t in step.operations}
    times = {k: float(by_name[v].ceiling) for k, v in KERNELS.items()}
    norm = float(by_name["norm"].ceiling / by_name["norm"].operation.count)
    times |= {"LayerNorm_MHA": norm, "LayerNorm_FFN": norm}
    pairs = att.visible_pairs(float(new), float(context))
    half = att.attention_flops(8, 24, pairs, 128, 0)
    read = att.kv_bytes(8, 24, context, 128, 0, 2)
    product = ceiling_time(half, read, A100.peak("fp16")[0], A100.memory_bandwidth)
    times |= {"Q_mul_K": product, "A_mul_V": product,
              "Softmax": memory_time(2 * 8 * 24 * pairs * 2, A100.memory_bandwidth)}
    reduced = collectives.all_reduce(8 * new * 12288 * 2, 4, 0.0, A100.link_bandwidth)
    times |= {"AllReduce_MHA": reduced, "AllReduce_FFN": reduced}
    inside = {*KERNELS.values(), "norm", "attention"}
    return times, float(sum(t.ceiling for n, t in by_name.items() if n in inside))


@covers(*LAYER)
def test_llmcompass_layer(name: str) -> None:
    row = rows()[name]
    times, layer = layer_times(row["conditions"].split(",")[0])
    kernel = row["metric"].removeprefix("measured ")
    ceiling = layer if kernel == "layer total" else times[kernel]
    assert 0 < ceiling <= value(name)


ALL_REDUCE = [f"llmcompass-{n}" for n in range(37, 69)]


@covers(*ALL_REDUCE)
def test_llmcompass_all_reduce(name: str) -> None:
    match = re.fullmatch(r"all-reduce (\d+) B", rows()[name]["conditions"])
    assert match is not None
    S = float(match.group(1))
    ceiling = collectives.all_reduce(S, 4, 0.0, A100.link_bandwidth)
    assert ceiling <= value(name)
    if S > 1e9:
        assert ceiling > 0.7 * value(name)


# gpt-fast on A100-80G

GPT_FAST = [name for name in rows() if name.startswith("gpt-fast")]
RATES = [name for name in GPT_FAST if rows()[name]["metric"] == "measured decode rate"]
BANDWIDTHS = [name for name in GPT_FAST if "bandwidth" in rows()[name]["metric"]]
FORMATS = {"bf16": "bf16", "int8": "int8", "int4 g32": "int4-g32-z16"}


def gpt_fast(name: str) -> Deployment:
    row = rows()[name]
    tp = int(row["hardware"].split("x")[0])
    form = next(f for text, f in FORMATS.items() if row["conditions"].startswith(text))
    return Deployment(Model.load(row["model"].lower()), A100, load_engine("gpt-fast"), form,
                      formats={"head": form}, parallelism=Parallelism(tp=tp))


@covers(*RATES)
def test_no_decode_rate_beats_the_ceiling(name: str) -> None:
    e = estimate(gpt_fast(name), Workload(1, 1, 2))
    assert value(name) <= e.tokens_per_s_per_user.ceiling < 6 * value(name)


@covers(*BANDWIDTHS)
def test_bytes_per_token(name: str) -> None:
    """Blocks over TP and the whole head; for Llama 2 the README counts the whole embedding too."""
    d = gpt_fast(name)
    embedding = 2.0 * d.model.vocabulary * d.model.hidden
    counted = embedding if "Llama-2" in rows()[name]["model"] else 0.0
    size = weight_bytes(d) - embedding / d.parallelism.tp + counted
    rate = value(f"gpt-fast-{int(name[-2:]) - 1:02}")
    assert rate * size / 1e9 == published(name)


# experts

@covers("deepseek-04", "deepseek-05", "deepseek-06")
def test_expert_exchange(name: str) -> None:
    """Dispatch at 1 byte and combine at 2, 32 tokens to 9 destinations, hidden taken as 7000."""
    link = 900e9 if name == "deepseek-06" else 50e9
    pair = sum(collectives.point_to_point(32 * 9 * 7000 * size, 2, 0.0, link) for size in (1, 2))
    assert (pair if name == "deepseek-04" else 2 * 61 * pair) == published(name)


INFERSIM = {    # model, peak of the part: H800 fp8 1979, H20 bf16 148, fp8 296 TFLOP/s
    "infersim-01": ("deepseek-v3", 1979e12), "infersim-02": ("deepseek-v3", 1979e12),
    "infersim-03": ("qwen3-30b-a3b", 148e12), "infersim-04": ("qwen3-30b-a3b", 148e12),
    "infersim-05": ("qwen3-8b", 296e12), "infersim-06": ("qwen3-8b", 296e12),
}


@covers(*INFERSIM)
def test_no_rate_beats_the_arithmetic(name: str) -> None:
    """The setting is not stated, so only FLOPs bound it: 2 a parameter and token, head aside."""
    model, peak = INFERSIM[name]
    m = Model.load(model)
    d = deployment(m, device(1e18, peak))
    flops = matrix_flops(t.operation for t in passed(d, 1, 1000, 1000).operations) / 1000
    assert flops == pytest.approx(2 * (parameters_active_no_input_embedding(m)
                                       - m.vocabulary * m.hidden), rel=0.1)
    assert value(name) < peak / flops


# memory

@covers("pagedattention-02", "pagedattention-03")
def test_kv_slots(name: str) -> None:
    m, room = ((gpt(40, 5120, 40), 12 * GIB) if name == "pagedattention-02"
               else (gpt(96, 12288, 96), 264 * GIB))
    kv = memory(deployment(m, device(1e12, 1e12)), 1.0, 1.0, 1.0).kv_per_token
    assert room / kv == published(name)


@covers("pagedattention-04")
def test_blocks_hold_live_tokens(name: str) -> None:
    engine = IDEAL.replace(block_size=16, kv_allocator="windowed")
    d = deployment(gpt(40, 5120, 40), device(1e12, 1e12)).replace(engine=engine)
    held = [memory(d, 1.0, c - 1.0, 1.0) for c in range(322, 338)]
    share = sum(m.kv_ideal for m in held) / sum(m.kv for m in held)
    assert 100 * share == published(name)


@covers("pagedattention-04")
def test_occupancy_by_formula(name: str) -> None:
    """About 330 tokens resident, as the row says."""
    assert 100 * paged_occupancy(330.0, 16.0) == published(name)


# speculation

LEVIATHAN = re.compile(r"alpha ([0-9.]+), gamma (\d+), c=c_hat=0|"
                       r".*gamma (\d+), alpha ([0-9.]+), c ([0-9.]+)")


@covers(*(f"leviathan-{n:02}" for n in range(1, 19)))
def test_leviathan(name: str) -> None:
    row = rows()[name]
    match = LEVIATHAN.fullmatch(row["conditions"])
    assert match is not None
    a, g, c = (float(x) for x in (match[1] or match[4], match[2] or match[3], match[5] or 0.0))
    if row["metric"] == "operations":
        assert float(speculation.operations_factor(a, g, c)) == published(name)
    else:
        assert float(speculation.speed_up(a, g, c)) == published(name)


@covers("sarathi-01")
def test_chunked_prefill_overhead(name: str) -> None:
    d = Deployment.of("yi-34b", "a100-sxm4-80gb", parallelism=Parallelism(tp=2))
    for prompt in (2048, 4096, 8192, 16384):
        one, cut = (estimate(x, Workload(1, prompt, 2)).ttft for x in (d, d.replace(chunk=512)))
        assert 0 < 100 * (cut.expected / one.expected - 1) <= value(name)


# energy: published constants, read through the units of a hardware file

ENERGY = [f"energy-{n:02}" for n in range(1, 11)]


@covers(*ENERGY)
def test_energy_constants(name: str) -> None:
    row = rows()[name]
    key = "memory_energy" if row["unit"] == "pJ/bit" else "compute_energy"
    h = device(1e12, 1e12, **{key: f"{row['value']} {row['unit']}"})
    joules = getattr(h, key)
    assert 1e12 * (joules / 8 if key == "memory_energy" else joules) == published(name)


# every row

def test_every_row_is_covered_or_named() -> None:
    assert set(rows()) - DONE == set(UNCOVERED)
    assert all(UNCOVERED.values())
