"""FLOPs of a pass against counts of torch's FlopCounterMode on tiny models.

Convention: the counter sees eager attention, which multiplies the full S x S square before the
mask, so prefill is compared with `causal=False`; a fused kernel computes S(S+1)/2 of it, and
`causal=True`, the default, counts that. Decode is the same in both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import Model
from simulator.flops import forward_flops
from simulator.importers.huggingface import import_data

TRUTH: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "flops_truth.json").read_text(encoding="utf-8"))["models"]
# Recurrent layers: the counter sees the chunked products of one implementation in prefill and its
# padded or broadcast ones in decode, not the recurrence; see the two tests of them.
RECURRENT = ("qwen3_next", "mamba2")
EXACT = [name for name in TRUTH if name not in RECURRENT]


def model(name: str) -> Model:
    return import_data(TRUTH[name]["config"], name).model


def prefill(m: Model, batch: int, seq: int, rows: int, causal: bool = False) -> float:
    return float(sum(forward_flops(m, batch, seq, seq, rows, causal=causal).values()))


def decode(m: Model, batch: int, seq: int, absorbed: bool = True) -> float:
    return float(sum(forward_flops(m, batch, 1, seq + 1, batch, absorbed=absorbed).values()))


def test_eleven_of_thirteen() -> None:
    assert len(EXACT) == 11
    assert len(TRUTH) == 13


@pytest.mark.parametrize("name", EXACT)
def test_prefill(name: str) -> None:
    t = TRUTH[name]
    found = prefill(model(name), t["batch"], t["seq"], t["batch"] * t["seq"])
    assert found == t.get("prefill_topk", t["prefill"])


@pytest.mark.parametrize("name", EXACT)
def test_prefill_with_one_logit_a_sequence(name: str) -> None:
    t = TRUTH[name]
    found = prefill(model(name), t["batch"], t["seq"], t["batch"])
    truth = t["prefill_one_logit"] - (t["prefill"] - t.get("prefill_topk", t["prefill"]))
    if name == "opt":    # the class projects all positions to the embedding width before it picks
        m = model(name)
        assert m.embedding_width is not None
        truth -= 2 * t["batch"] * (t["seq"] - 1) * m.hidden * m.embedding_width
    assert found == truth


@pytest.mark.parametrize("name", EXACT)
def test_decode(name: str) -> None:
    """The class of latent attention expands the latent of the whole context in each step."""
    t = TRUTH[name]
    expands = "decode_absorbed" in t
    found = decode(model(name), t["batch"], t["seq"], absorbed=not expands)
    assert found == t.get("decode_topk", t["decode"])


def test_absorbed_latent_attention() -> None:
    t = TRUTH["deepseek_v3"]
    assert decode(model("deepseek_v3"), t["batch"], t["seq"]) == t["decode_absorbed"]


def test_all_experts_cost_more_than_the_chosen() -> None:
    """llama4's class multiplies every token with every expert; an engine does not."""
    t = TRUTH["llama4_text"]
    assert t["prefill"] > t["prefill_topk"]
    assert t["decode"] > t["decode_topk"]


def test_gated_delta_is_bound_to_an_implementation() -> None:
    """Prefill of the class runs chunks of 64 over 32 tokens: padded squares, 1.6 times the
    recurrence that is counted here. Decode updates the state by element-wise products, which the
    counter misses and which are 4 % here."""
    t = TRUTH["qwen3_next"]
    m = model("qwen3_next")
    assert 1.0 < t["prefill"] / prefill(m, t["batch"], t["seq"], t["batch"] * t["seq"]) < 1.7
    assert 0.95 < t["decode"] / decode(m, t["batch"], t["seq"]) < 1.0


def test_mamba2_is_bound_to_an_implementation() -> None:
    """Prefill is chunked, within 10 %. The decode step of the class goes through the prefill path
    with padding to a whole chunk of 16, 4.2 times the recurrence."""
    t = TRUTH["mamba2"]
    m = model("mamba2")
    assert 1.0 < t["prefill"] / prefill(m, t["batch"], t["seq"], t["batch"] * t["seq"]) < 1.1
    assert 1.0 < t["decode"] / decode(m, t["batch"], t["seq"]) < 4.5


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
def test_a_fused_kernel_counts_the_visible_pairs(name: str) -> None:
    """causal=True: the attention part is (S + 1) / 2S of the square."""
    t = TRUTH[name]
    m, S = model(name), t["seq"]
    square = forward_flops(m, t["batch"], S, S, t["batch"] * S, causal=False)
    seen = forward_flops(m, t["batch"], S, S, t["batch"] * S)
    assert seen["attention"] / square["attention"] == pytest.approx((S + 1) / (2 * S))
    assert seen["gemm"] == square["gemm"]
    assert seen["moe"] == square["moe"]


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_recounted_live(name: str) -> None:
    """The same count, made now with torch and transformers."""
    torch = pytest.importorskip("torch", reason="torch recounts the FLOPs (dev extra)")
    transformers = pytest.importorskip("transformers", reason="its classes are counted (dev extra)")
    from torch.utils.flop_counter import FlopCounterMode

    t = TRUTH[name]
    config = transformers.AutoConfig.for_model(**t["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.zeros(t["batch"], t["seq"], dtype=torch.long)
    m = model(name)
    with torch.no_grad():
        with FlopCounterMode(display=False) as first:
            cache = network(tokens, use_cache=True).past_key_values
        with FlopCounterMode(display=False) as step:
            network(tokens[:, :1], past_key_values=cache, use_cache=True)
    counted = first.get_total_flops(), step.get_total_flops()
    assert counted == (t["prefill"], t["decode"])
    assert counted == (prefill(m, t["batch"], t["seq"], t["batch"] * t["seq"]),
                       decode(m, t["batch"], t["seq"]))
