"""Tensor-parallel degrees that a model allows, and the reason for each that it doesn't."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import Deployment, InputError, Model, Parallelism
from simulator.sharding import check_parallelism, refusals, tensor_parallel_degrees

VALID = {
    "qwen2.5-7b": [1, 2, 4],
    "qwen2.5-0.5b": [1, 2],
    "qwen2.5-14b": [1, 2, 4, 8],
    "llama-3.1-8b": [1, 2, 4, 8, 16, 32],
    "llama-3.1-405b": [1, 2, 4, 8, 16, 32],
    "mixtral-8x7b": [1, 2, 4, 8, 16, 32],
    "gemma-3-27b": [1, 2, 4, 8, 16, 32],
    "gpt-oss-120b": [1, 2, 4, 8, 16, 32],
    "falcon-7b": [1],
    "gpt2-xl": [1, 5, 25],
    "phi-3-medium-14b": [1, 2, 5, 10, 20],
    "qwen3-next-80b-a3b": [1, 2, 4, 8, 16],
    "glm-4.5": [1, 2, 4, 8, 16, 24, 32],
    "mamba-2.8b": [1, 2, 4, 5, 8, 10, 16, 20, 32],
    # FP8 in 128 x 128 blocks: each shard must hold whole ones
    "deepseek-v3": [1, 2, 4, 8, 16],
    "kimi-k2": [1, 2, 4, 8, 16],
    "qwen3-235b-a22b": [1, 2, 4, 8, 16, 32],
    "qwen3-235b-a22b-fp8": [1, 2, 4],
    "qwen3-30b-a3b-fp8": [1, 2],
    "minimax-m2.5": [1, 2, 4],
}


@pytest.mark.parametrize("name", VALID)
def test_valid_degrees(name: str) -> None:
    found = tensor_parallel_degrees(Model.load(name), 32)
    assert [d.tp for d in found] == list(range(1, 33))
    assert [d.tp for d in found if d.valid] == VALID[name]
    assert all(d.reason for d in found if not d.valid)


@pytest.mark.parametrize(("name", "tp", "reason"), [
    ("qwen2.5-7b", 7, "neither divides nor is a multiple of the 4 KV heads"),    # 28 heads do
    ("qwen2.5-7b", 8, "does not divide the 28 heads"),
    ("falcon-7b", 2, "does not divide the 71 heads"),
    ("phi-3-medium-14b", 4, "neither divides nor is a multiple of the 10 KV heads"),
    ("qwen2-57b-a14b", 16, "does not divide the 28 heads"),
    ("gpt-oss-120b", 7, "does not divide the 2880 columns of each expert"),
    ("llama-3.1-8b", 3, "does not divide the 14336 columns of the MLP"),
    ("qwen3-next-80b-a3b", 3, "does not divide the 16 key heads of the linear attention"),
    ("deepseek-v3", 3, "does not divide the 2048 columns of the shared experts"),
    ("mamba-2.8b", 3, "does not divide the 5120 Mamba channels"),
    ("qwen3-235b-a22b-fp8", 8, "192 columns of each expert"),
    ("deepseek-v3", 32, "576 columns of the MLP"),
])
def test_reasons(name: str, tp: int, reason: str) -> None:
    assert any(reason in found for found in refusals(Model.load(name), tp))


@pytest.mark.parametrize(("name", "tp", "reason"), [
    ("llama-3.1-8b", 8, ""), ("llama-3.1-8b", 16, "each of the 8 KV heads is held 2 times"),
    ("qwen3-235b-a22b", 8, "each of the 4 KV heads is held 2 times"),
    ("deepseek-v3", 8, "the latent KV cache is held 8 times"),
])
def test_what_a_valid_degree_replicates(name: str, tp: int, reason: str) -> None:
    degree = tensor_parallel_degrees(Model.load(name))[tp - 1]
    assert degree.valid
    assert degree.reason == reason


def test_experts_kept_whole_are_not_cut() -> None:
    """Expert parallelism is the way round a width that the degree cuts."""
    model = Model.load("qwen3-235b-a22b-fp8")
    assert refusals(model, 8, 1)
    assert refusals(model, 8, 8) == []
    check_parallelism(model, Parallelism(tp=8, ep=8))
    with pytest.raises(InputError, match=r"valid: 1, 2, 4\)"):
        check_parallelism(model, Parallelism(tp=8))


def test_the_format_that_is_served_decides() -> None:
    """Blocks are a matter of the weights' format, not of the model."""
    split: dict[str, Any] = {"parallelism": Parallelism(tp=8)}
    for weights in ("bf16", "fp8", "nvfp4"):
        assert Deployment.of("qwen3-235b-a22b-fp8", "h200", weights=weights, **split).devices == 8
    with pytest.raises(InputError, match="fp8-block"):
        Deployment.of("qwen3-235b-a22b", "h200", weights="fp8-block", **split)


def test_pipeline_and_expert_degrees() -> None:
    mixtral = Model.load("mixtral-8x7b")
    check_parallelism(mixtral, Parallelism(tp=2, ep=8, dp=4))
    for degrees, words in (({"pp": 33}, "33 stages"), ({"ep": 3, "dp": 3}, "valid: 1, 2, 4, 8"),
                           ({"ep": 4, "tp": 2}, "tp x dp = 2")):
        with pytest.raises(InputError, match=words):
            check_parallelism(mixtral, Parallelism(**degrees))
