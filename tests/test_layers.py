"""Operations of a pass against the parameter table: bytes, FLOPs, shards, experts, states."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from simulator import Deployment, Hardware, Model, Parallelism
from simulator.kv_cache import kv_elements_at, mixer_state_elements
from simulator.layers import Segment, matrix_flops, pass_operations, sum_of
from simulator.operations import Operation
from simulator.operations.moe import experts_touched, imbalance
from simulator.parameters import (
    model_tensors,
    parameters_active_no_input_embedding,
    parameters_total,
)
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import load_engine
from simulator.specs.model import Attention, Dense, LayerGroup, Mla, Moe

H100 = Hardware.load("h100-sxm5-80gb")
MODELS = list(catalogue("models"))


@cache
def model(name: str) -> Model:
    return Model.load(name)


def deployment(m: Model, **more: Any) -> Deployment:
    return Deployment(m, H100, **more)


def decode(sequences: Any, context: Any) -> list[Segment]:
    return [Segment(sequences, 1.0, context, "decode")]


def prefill(sequences: Any, new: Any, context: Any = None) -> list[Segment]:
    return [Segment(sequences, new, new if context is None else context, "prefill")]


def first_choice(operations: list[Operation]) -> list[Operation]:
    """One alternative of each group (the absorbed one for MLA)."""
    return [o for o in operations if o.alternative is None or o.alternative[1] == 0]


def total(operations: list[Operation], part: str, *names: str) -> Any:
    return sum_of(getattr(o, part) * o.count for o in operations if not names or o.name in names)


def is_dense(m: Model) -> bool:
    return all(isinstance(g.mixer, Attention) and isinstance(g.ffn, Dense) and not g.mixer.cross
               and g.distinct is None and not g.extra for g in m.layers)


DENSE = [name for name in MODELS if is_dense(model(name))]


def streamed_bytes(d: Deployment) -> float:
    """Weights that one pass over many tokens reads; layers that share weights read them again."""
    flat = d.model.replace(layers=tuple(g.replace(distinct=None) for g in d.model.layers))
    return sum(t.total * d.weight_format(t.role).bytes for t in model_tensors(flat) if t.streamed)


# weights

@pytest.mark.parametrize("name", MODELS)
def test_a_large_batch_streams_every_weight_once(name: str) -> None:
    """To the byte, norms and biases included: the operations and the table cannot disagree."""
    d = deployment(model(name))
    operations = first_choice(pass_operations(d, decode(1e6, 8.0), 1e6))
    read = total([o for o in operations if o.name != "embedding"], "weights")
    assert read == streamed_bytes(d)
    prompt = first_choice(pass_operations(d, prefill(1e3, 1e3), 1e3))
    assert total([o for o in prompt if o.name != "embedding"], "weights") == streamed_bytes(d)


@pytest.mark.parametrize("weights", ["fp8", "int4-g128", "q4_k", "nvfp4"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "jamba-1.5-mini"])
def test_quantised_weights_are_streamed_at_their_effective_bits(name: str, weights: str) -> None:
    d = deployment(model(name), weights=weights)
    operations = first_choice(pass_operations(d, decode(1e6, 8.0), 1e6))
    read = total([o for o in operations if o.name != "embedding"], "weights")
    assert read == pytest.approx(streamed_bytes(d), rel=1e-12)


def test_the_textbook_model_streams_14_gigabytes() -> None:
    operations = pass_operations(deployment(model("7b-fp16")), decode(1.0, 8.0), 1.0)
    assert total([o for o in operations if o.name != "embedding"], "weights") == 14e9


def test_a_tied_matrix_is_stored_once_and_still_multiplied() -> None:
    m = model("gemma-2b")
    assert m.tied_embeddings
    head = [o for o in pass_operations(deployment(m), decode(1.0, 8.0), 1.0)
            if o.name == "lm_head"]
    assert head[0].weights == 2 * m.vocabulary * m.hidden
    assert head[0].flops == 2 * m.vocabulary * m.hidden
    untied = m.replace(tied_embeddings=False)
    assert parameters_total(untied) - parameters_total(m) == m.vocabulary * m.hidden
    assert pass_operations(deployment(untied), decode(1.0, 8.0), 1.0) == pass_operations(
        deployment(m), decode(1.0, 8.0), 1.0)


# FLOPs

@pytest.mark.parametrize("name", DENSE)
def test_prefill_flops_are_2_p_t(name: str) -> None:
    """2 x parameters a token, the head on the last rows only, and causal attention."""
    m, B, S = model(name), 3.0, 500.0
    operations = pass_operations(deployment(m), prefill(B, S), B)
    width = m.hidden if m.embedding_width is None else m.embedding_width
    head = m.head_rows * width
    tokens, attention = B * S, 0.0
    for g in m.layers:
        assert isinstance(g.mixer, Attention)
        w = g.mixer.window or g.mixer.chunk
        pairs = sum(min(i, w) if w and g.mixer.window else ((i - 1) % w + 1 if w else i)
                    for i in range(1, int(S) + 1))
        attention += (g.count * 2 * g.mixer.heads * (g.mixer.head_dim + g.mixer.values)
                      * pairs * B)
    extra = m.learned_positions * m.hidden
    active = parameters_active_no_input_embedding(m) - extra
    wanted = 2 * (active - head) * tokens + 2 * head * B + attention
    assert matrix_flops(operations) == pytest.approx(wanted, rel=0.01)
    assert total(operations, "flops", "attention", *(o.name for o in operations
                 if o.kind == "attention")) == pytest.approx(attention, rel=1e-12)


def test_attention_alone_depends_on_the_context() -> None:
    d = deployment(model("llama-3.1-8b"))
    short = pass_operations(d, decode(4.0, 100.0), 4.0)
    long = pass_operations(d, decode(4.0, 5000.0), 4.0)
    assert {a.name for a, b in zip(short, long, strict=True) if a != b} == {"attention"}


def test_a_prefix_is_read_but_not_computed() -> None:
    """600 of 1000 tokens cached: matrices see 400 tokens, attention 400 queries over 1000 keys."""
    d = deployment(model("llama-3.1-8b"))
    suffix = pass_operations(d, prefill(1.0, 400.0, 1000.0), 1.0)
    short = pass_operations(d, prefill(1.0, 400.0), 1.0)
    whole = pass_operations(d, prefill(1.0, 1000.0), 1.0)
    prefix = pass_operations(d, prefill(1.0, 600.0), 1.0)
    assert total(suffix, "flops", "qkv") == total(short, "flops", "qkv")
    assert total(suffix, "flops", "attention") == total(whole, "flops", "attention") - total(
        prefix, "flops", "attention")
    assert total(suffix, "kv", "attention") == total(whole, "kv", "attention")


# KV cache

@pytest.mark.parametrize("name", [n for n in MODELS if not any(
    getattr(g.mixer, "shares_kv", False) or getattr(g.mixer, "indexer", None)
    or getattr(g.mixer, "keys_are_values", False) for g in model(n).layers)])
def test_a_decode_step_reads_the_cache_once(name: str) -> None:
    m, B, S = model(name), 5.0, 3000.0
    d = deployment(m, kv="bf16")
    operations = first_choice(pass_operations(d, decode(B, S), B))
    read = total([o for o in operations if o.kind == "attention"], "kv")
    assert read == pytest.approx(2 * B * kv_elements_at(m, S), rel=1e-12)
    state = total([o for o in operations if o.kind == "ssm"], "kv")
    wanted = sum(g.count * mixer_state_elements(g.mixer, m.hidden) for g in m.layers)
    assert state == pytest.approx(2 * 4 * B * wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "deepseek-v3", "jamba-1.5-mini"])
def test_a_prompt_writes_its_cache_once(name: str) -> None:
    m, B, S = model(name), 2.0, 300.0
    operations = pass_operations(deployment(m, kv="bf16"), prefill(B, S), B)
    written = total(operations, "kv", "rope_and_kv_write", "kv_write")
    assert written == pytest.approx(2 * B * kv_elements_at(m, 1) * S, rel=1e-12)


def test_kv_format_scales_the_cache_alone() -> None:
    m = model("llama-3.1-8b")
    a = pass_operations(deployment(m, kv="bf16"), decode(2.0, 777.0), 2.0)
    b = pass_operations(deployment(m, kv="fp8"), decode(2.0, 777.0), 2.0)
    assert total(b, "kv") == total(a, "kv") / 2
    assert total(b, "weights") == total(a, "weights")
    assert total(b, "activations") == total(a, "activations")


# shards

def shards(name: str, degree: int, **more: Any) -> tuple[list[Operation], list[Operation]]:
    m = model(name)
    whole = pass_operations(deployment(m, **more), decode(4.0, 2000.0), 4.0)
    part = pass_operations(deployment(m, parallelism=Parallelism(tp=degree), **more),
                           decode(4.0, 2000.0), 4.0)
    return whole, part


@pytest.mark.parametrize("degree", [2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-2-13b", "gemma-2-27b", "mixtral-8x7b",
                                  "qwen2.5-72b"])
def test_tensor_parallel_shards_sum_to_the_whole(name: str, degree: int) -> None:
    whole, part = shards(name, degree)
    split = ("qkv", "attention_output", "mlp_gate_up", "mlp_down", "lm_head", "attention",
             "attention_window_4096", "experts")
    for field in ("flops", "weights", "kv"):
        for o in split:
            assert degree * total(part, field, o) == pytest.approx(
                total(whole, field, o), rel=1e-12), (o, field)
    assert total(part, "weights", "router") == total(whole, "weights", "router")
    reduced = [o for o in part if o.collective == "all_reduce"]
    layers = model(name).layer_count
    assert sum(o.count for o in reduced) == 2 * layers + 1
    assert all(o.wire == 4 * model(name).hidden * 2 and o.ranks == degree for o in reduced)
    assert not [o for o in whole if o.collective]


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    _, eight = shards("llama-3.1-8b", 8)
    _, sixteen = shards("llama-3.1-8b", 16)
    assert total(sixteen, "kv", "attention") == total(eight, "kv", "attention")
    assert total(sixteen, "flops", "attention") == total(eight, "flops", "attention") / 2


def test_the_latent_cache_is_replicated() -> None:
    whole, part = shards("deepseek-v3", 8)
    assert total(part, "kv", "mla_absorbed") == total(whole, "kv", "mla_absorbed")
    assert total(part, "flops", "mla_absorbed") == total(whole, "flops", "mla_absorbed") / 8


def test_the_head_is_whole_where_the_engine_replicates_it() -> None:
    engine = load_engine("gpt-fast")
    whole, part = shards("llama-3.1-8b", 8, engine=engine)
    assert total(part, "weights", "lm_head") == total(whole, "weights", "lm_head")


# experts

def pair(top_k: int) -> tuple[Model, Model]:
    attention = Attention(heads=8, kv_heads=2, head_dim=64)
    parts: list[Any] = [Moe(experts=4, top_k=top_k, width=256), Dense(width=1024)]
    sparse, dense = (
        Model(name="m", hidden=512, vocabulary=1000, positions=4096,
              layers=(LayerGroup(count=3, mixer=attention, ffn=ffn),)) for ffn in parts)
    return sparse, dense


@pytest.mark.parametrize("segments", [decode(1.0, 100.0), decode(64.0, 100.0), prefill(2.0, 77.0)])
def test_all_experts_of_four_are_the_dense_layer(segments: Any) -> None:
    sparse, dense = (pass_operations(deployment(m), segments, 1.0) for m in pair(4))
    for field in ("flops", "weights"):
        assert total(sparse, field, "experts") == pytest.approx(
            total(dense, field, "mlp_gate_up", "mlp_down"), rel=1e-12)


def test_few_experts_are_read_by_few_tokens() -> None:
    d = deployment(model("deepseek-v3"))
    one = total(pass_operations(d, decode(1e9, 1.0), 1.0), "weights", "experts") / 256
    for tokens, touched in ((1.0, 8.0), (8.0, 57.4), (32.0, 163.3), (128.0, 251.6)):
        read = total(pass_operations(d, decode(tokens, 1.0), 1.0), "weights", "experts")
        assert read / one == pytest.approx(touched, abs=0.05)


def test_shared_experts_and_first_dense_layers_are_always_there() -> None:
    m = model("deepseek-v3")
    operations = pass_operations(deployment(m, weights="bf16"), decode(1.0, 1.0), 1.0)
    names = {o.name: o for o in operations}
    assert names["mlp_gate_up"].count == 3
    assert names["experts"].count == 58
    assert total(operations, "weights", "shared_experts_gate_up", "shared_experts_down") == (
        58 * 3 * 7168 * 2048 * 2)


def test_experts_spread_over_replicas() -> None:
    """ep = 8 = dp: each rank holds 1/8 of the experts and gets the tokens of all replicas.

    The fullest has its imbalance times the mean load, and touches what so many tokens pick.
    """
    m = model("deepseek-v3")
    one = pass_operations(deployment(m), decode(8.0, 1.0), 8.0)
    spread = pass_operations(deployment(m, parallelism=Parallelism(ep=8, dp=8)), decode(1.0, 1.0),
                             1.0)
    fullest = imbalance(8.0, 8, 256, 8)
    assert 1.5 < fullest < 2
    assert 8 * total(spread, "flops", "experts") == pytest.approx(
        fullest * total(one, "flops", "experts"))
    assert 8 * total(spread, "weights", "experts") == pytest.approx(
        total(one, "weights", "experts") * experts_touched(256, 8, 8.0 * fullest)
        / experts_touched(256, 8, 8.0))
    assert {o.name for o in spread if o.collective} == {"expert_dispatch", "expert_combine"}


# MLA

def test_mla_lists_both_ways() -> None:
    operations = pass_operations(deployment(model("deepseek-v3")), decode(1.0, 1000.0), 1.0)
    groups = {o.alternative[0] for o in operations if o.alternative}
    assert len(groups) == 2
    for group in groups:
        members = {o.name: o.alternative[1] for o in operations
                   if o.alternative and o.alternative[0] == group}
        assert members == {"mla_absorb": 0, "mla_absorbed": 0, "mla_expand": 1, "mla_expanded": 1}


def test_mla_golden_flops() -> None:
    """FORMULAS section 13: 278,528 S absorbed, 81,920 S and the expansion expanded, a layer."""
    m = Model(name="m", hidden=7168, vocabulary=10, positions=4096, layers=(LayerGroup(
        count=1, mixer=Mla(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64,
                           value_dim=128), ffn=Dense(width=64)),))
    operations = pass_operations(deployment(m), decode(1.0, 1000.0), 1.0)
    flops = {o.name: o.flops for o in operations}
    assert flops["mla_absorbed"] == 278_528_000
    assert flops["mla_expanded"] == 81_920_000
    assert flops["mla_absorb"] == 2 * 128 * 512 * 256
    assert flops["mla_expand"] == 1000 * 2 * 128 * 512 * 256


# options

def test_unfused_attention_writes_its_scores() -> None:
    engine = load_engine("vllm").replace(unfused_attention=True)
    m = model("llama-3.1-8b")
    fused = pass_operations(deployment(m), prefill(2.0, 100.0), 2.0)
    unfused = pass_operations(deployment(m, engine=engine), prefill(2.0, 100.0), 2.0)
    added = [o for o in unfused if o.name not in {x.name for x in fused}]
    assert [o.name for o in added] == ["attention_scores"]
    assert total(added, "activations") == 32 * 4 * 2 * 32 * (100 * 101 / 2) * 2


def test_segments_add_up() -> None:
    """Sequences of mixed contexts, and prefill beside decode, share one pass over the weights."""
    d = deployment(model("llama-3.1-8b"))
    a, b, c = Segment(3.0, 1.0, 100.0, "decode"), Segment(2.0, 1.0, 900.0, "decode"), Segment(
        1.0, 64.0, 64.0, "prefill")
    mixed = pass_operations(d, [a, b, c], 6.0)
    assert total(mixed, "flops", "attention") == sum(
        total(pass_operations(d, [s], 1.0), "flops", "attention") for s in (a, b, c))
    assert total(mixed, "flops", "qkv") == (3 + 2 + 64) * total(
        pass_operations(d, decode(1.0, 1.0), 1.0), "flops", "qkv")
    assert total(mixed, "weights", "qkv") == total(pass_operations(d, [a], 1.0), "weights", "qkv")
    equal = pass_operations(d, decode(5.0, 300.0), 5.0)
    split = pass_operations(d, [*decode(2.0, 300.0), *decode(3.0, 300.0)], 5.0)
    for field in ("flops", "weights", "kv", "activations"):
        assert total(split, field) == pytest.approx(total(equal, field), rel=1e-14)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3.2", "gemma-3-27b", "llama-4-scout",
                                  "jamba-1.5-mini", "zamba2-7b", "gpt-oss-20b"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_vector_is_scalar(name: str, phase: Any) -> None:
    d = deployment(model(name))
    rng = np.random.default_rng(1)
    B = rng.integers(1, 300, 20).astype(float)
    S = rng.integers(1, 30_000, 20).astype(float)
    new = S if phase == "prefill" else np.ones(20)
    together = pass_operations(d, [Segment(B, new, S, phase)], B)
    for i in range(20):
        alone = pass_operations(
            d, [Segment(float(B[i]), float(new[i]), float(S[i]), phase)], float(B[i]))
        for x, y in zip(together, alone, strict=True):
            for field in ("flops", "weights", "kv", "activations"):
                column = np.broadcast_to(getattr(x, field), (20,))
                assert column[i] == getattr(y, field), (x.name, field)
