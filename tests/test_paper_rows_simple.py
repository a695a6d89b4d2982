"""Published numbers that need no engine: ridge points, matrix times, parameters, KV bytes."""

from __future__ import annotations

import csv
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator import parameters
from simulator.kv_cache import kv_elements_at, kv_elements_per_token
from simulator.roofline import (
    ceiling_time,
    compute_time,
    critical_batch,
    memory_time,
    ridge_point,
)
from simulator.specs.catalogue import find
from simulator.specs.model import Attention, Dense, LayerGroup, Mla, Model, Moe

FILE = Path(__file__).parent / "data" / "paper_rows.csv"
TOPICS = {
    "roofline", "kv", "memory", "decode_step", "prefill", "parameters", "bound_below_measurement",
    "collectives", "moe", "mla", "energy", "queueing", "speculation", "parallel", "cost",
}  # fmt: skip
A100 = (312e12, 2.039e12)


@cache
def rows() -> dict[str, dict[str, str]]:
    with FILE.open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def published(name: str) -> Any:
    row = rows()[name]
    return pytest.approx(float(row["value"]), rel=float(row["tolerance"]))


def of_topic(*topics: str) -> set[str]:
    return {name for name, row in rows().items() if row["topic"] in topics}


def decoder(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, *, width: int = 1,
    vocabulary: int = 1, gated: bool = True, tied: bool = False,
) -> Model:
    return Model(
        name="inline", hidden=hidden, vocabulary=vocabulary, positions=4096, tied_embeddings=tied,
        layers=(LayerGroup(
            count=layers, mixer=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
            ffn=Dense(width=width, gated=gated)),),
    )  # fmt: skip


def gpt(layers: int, hidden: int, head_dim: int = 128) -> Model:
    """GPT shape: every head has its own K and V, an MLP of 4 D without a gate."""
    heads = hidden // head_dim
    return decoder(layers, hidden, heads, heads, head_dim, width=4 * hidden, gated=False)


def test_file() -> None:
    with FILE.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(rows()) == len(found)
    for row in found:
        assert row["topic"] in TOPICS
        assert float(row["value"]) > 0
        assert 0 <= float(row["tolerance"]) <= 0.11
        measured = row["metric"].startswith("measured")
        assert measured == (float(row["tolerance"]) == 0), row["id"]
        assert row["unit"] or row["metric"] == "params"
        assert row["source_note"]
        assert not row["conditions"].startswith(("same", ","))


CHECKED = {
    "roofline": {"scaling-book-07", "scaling-book-08", "scaling-book-09", "scaling-book-16",
                 "kipply-02"},
    "parameters": {"scaling-book-23", "scaling-book-24", "kipply-01"},
    "kv": {"scaling-book-01", "scaling-book-02", "kipply-05", "deepseek-01", "deepseek-02",
           "deepseek-03", "pagedattention-01", "distserve-01"},
}  # fmt: skip


@pytest.mark.parametrize("topic", list(CHECKED))
def test_every_row_of_these_topics_is_tested_here(topic: Any) -> None:
    assert of_topic(topic) == CHECKED[topic]


# roofline

V5E = {"bf16": 1.97e14, "int8": 3.94e14}


@pytest.mark.parametrize(("name", "compute", "weight_bytes"), [
    ("scaling-book-07", "bf16", 2), ("scaling-book-08", "bf16", 1), ("scaling-book-09", "int8", 1),
])  # fmt: skip
def test_critical_batch(name: str, compute: Any, weight_bytes: Any) -> None:
    assert critical_batch(V5E[compute], 8.2e11, weight_bytes) == published(name)


def test_ridge_point() -> None:
    assert ridge_point(312e12, 1.5e12) == published("kipply-02")
    assert critical_batch(312e12, 1.5e12, 2) == published("kipply-02")


def test_weights_of_one_matrix_over_32_chips() -> None:
    flops, size = 2 * 64 * 8192 * 28672, 2 * 8192 * 28672
    C, W = 32 * V5E["bf16"], 32 * 8.1e11
    assert memory_time(size, W) == published("scaling-book-16")
    assert compute_time(flops, C) == pytest.approx(4.77e-6, rel=1e-3)
    assert ceiling_time(flops, size, C, W) == memory_time(size, W)


MATMUL = re.compile(r"M=(\d+) K=(\d+) N=(\d+) fp16|matmul (\d+)x(\d+)x(\d+)")
MATMULS = [name for name, row in rows().items() if MATMUL.fullmatch(row["conditions"])]


@pytest.mark.parametrize("name", MATMULS)
def test_no_matrix_product_was_measured_below_its_ceiling(name: str) -> None:
    match = MATMUL.fullmatch(rows()[name]["conditions"])
    assert match is not None
    m, k, n = (int(g) for g in match.groups() if g)
    ceiling = ceiling_time(2 * m * k * n, 2 * (m * k + k * n + m * n), *A100)
    assert 0.3 * float(rows()[name]["value"]) < ceiling <= float(rows()[name]["value"])


def test_matrix_products_are_there() -> None:
    assert len(MATMULS) == 12


# parameters

def test_parameters_of_llama_2_13b() -> None:
    model = decoder(40, 5120, 40, 40, 128, width=13824, vocabulary=32000)
    assert parameters.parameters_total(model) == published("scaling-book-23")
    assert parameters.parameters_total(model) == 13_015_864_320


def test_parameters_of_the_toy() -> None:
    model = decoder(64, 4096, 32, 8, 256, width=16384, vocabulary=32128, tied=True)
    assert parameters.parameters_total(model) == published("scaling-book-24")


def test_flops_of_keys_and_values() -> None:
    model = gpt(64, 8192)
    qkv = sum(t.total for t in parameters.model_tensors(model) if t.name == "qkv")
    assert 2 * qkv * 2 / 3 == published("kipply-01")
    assert 2 * model.hidden * kv_elements_per_token(model) == published("kipply-01")


@pytest.mark.parametrize(("layers", "hidden", "billions"), [
    (64, 8192, 52), (80, 16384, 260), (40, 5120, 13),
])  # fmt: skip
def test_kipply_shapes_are_12_l_d_squared(layers: Any, hidden: Any, billions: Any) -> None:
    model = gpt(layers, hidden)
    matrices = sum(t.total for t in parameters.model_tensors(model)
                   if t.role in ("attention", "ffn"))
    assert matrices == 12 * layers * hidden**2
    assert matrices == pytest.approx(billions * 1e9, rel=0.04)


# KV cache

LATENT = Model(
    name="latent", hidden=7168, vocabulary=1, positions=4096,
    layers=(LayerGroup(
        count=61, mixer=Mla(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64,
                            value_dim=128),
        ffn=Moe(experts=256, top_k=8, width=2048)),),
)  # fmt: skip
LLAMA_70B = decoder(80, 8192, 64, 8, 128)
KV = [
    ("scaling-book-01", LLAMA_70B, 1, 1, 1),
    ("scaling-book-02", LLAMA_70B, 1, 32768, 1),
    ("kipply-05", gpt(64, 8192), 2, 1, 1),
    ("deepseek-01", LATENT, 2, 1, 1),
    ("deepseek-02", decoder(80, 8192, 64, 8, 128), 2, 1, 1),
    ("deepseek-03", decoder(126, 16384, 128, 8, 128), 2, 1, 1),
    ("pagedattention-01", gpt(40, 5120), 2, 1, 1),
    ("distserve-01", gpt(64, 9216), 2, 512, 2.0**30),
]


@pytest.mark.parametrize(("name", "model", "width", "tokens", "unit"), KV, ids=[k[0] for k in KV])
def test_kv_bytes(name: str, model: Any, width: Any, tokens: Any, unit: Any) -> None:
    assert kv_elements_per_token(model) * width * tokens / unit == published(name)
    assert kv_elements_at(model, tokens) * width / unit == published(name)


@pytest.mark.parametrize(("model", "name", "width"), [
    ("llama-3.1-70b", "scaling-book-01", 1), ("deepseek-v3", "deepseek-01", 2),
    ("qwen2.5-72b", "deepseek-02", 2), ("llama-3.1-405b", "deepseek-03", 2),
])  # fmt: skip
def test_kv_bytes_of_the_catalogue(model: Any, name: str, width: Any) -> None:
    if find("models", model) is None:
        pytest.skip(f"no {model} in the catalogue")
    assert kv_elements_per_token(Model.load(model)) * width == published(name)


def test_published_numbers_are_finite() -> None:
    assert all(math.isfinite(float(row["value"])) for row in rows().values())
