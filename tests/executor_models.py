"""Tiny models of every kind of layer that the executor runs, and how the tests build them."""

from __future__ import annotations

from typing import Any

import torch

from simulator.executor.comparison_shapes import dense, experts
from simulator.executor.modules import Numerics
from simulator.executor.transformer import Transformer
from simulator.specs.model import (
    Attention,
    Dense,
    Extra,
    GatedDelta,
    Indexer,
    LayerGroup,
    Mamba,
    Mamba2,
    Mla,
    Model,
    Moe,
    ShortConv,
)

GQA = Attention(heads=4, kv_heads=2, head_dim=16)
MLP = Dense(width=96)
MLA = Mla(heads=4, q_rank=24, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=12)
ROUTED = Moe(experts=6, top_k=2, width=48)


def group(mixer: Any = GQA, ffn: Any = MLP, count: int = 2, **more: Any) -> LayerGroup:
    return LayerGroup(count=count, mixer=mixer, ffn=ffn, **more)


def tiny(name: str, *groups: LayerGroup, **more: Any) -> Model:
    return Model(name=name, hidden=64, vocabulary=160, positions=256, layers=groups, **more)


TINY = dense("llama", 64, 3, 4, 2, 16, 96, 160)
# The models of these kinds that transformers has too, the layers in the executor's order.
FAMILIES: dict[str, tuple[Model, Numerics]] = {m.name: (m, n) for m, n in (
    (TINY, Numerics()),
    (dense("mistral", 64, 3, 4, 2, 16, 96, 160, window=5), Numerics()),
    (dense("qwen2", 64, 3, 4, 2, 16, 96, 160, qkv_bias=True, tied=True), Numerics()),
    (dense("qwen3", 64, 3, 4, 2, 32, 96, 160, qk_norm=True, tied=True), Numerics()),
    (experts("mixtral", 64, 3, 4, 2, 16, 6, 2, 48, 160), Numerics()),
    (tiny("gpt2", group(Attention(heads=4, kv_heads=4, head_dim=16, rope=False, qkv_bias=True,
                                  output_bias=True), Dense(width=96, gated=False, bias=True), 3),
          norm="layer", learned_positions=64, tied_embeddings=True),
     Numerics(activation="gelu-tanh")),
    (tiny("opt", group(Attention(heads=4, kv_heads=4, head_dim=16, rope=False, qkv_bias=True,
                                 output_bias=True), Dense(width=96, gated=False, bias=True), 3),
          norm="layer", learned_positions=66, tied_embeddings=True, embedding_width=32),
     Numerics(activation="relu")),
    (tiny("gpt-neox", group(Attention(heads=4, kv_heads=4, head_dim=16, qkv_bias=True,
                                      output_bias=True),
                            Dense(width=96, gated=False, bias=True), 3, parallel=True),
          norm="layer"), Numerics(rotary=0.5)),
    (tiny("cohere", group(count=3, parallel=True, norms=1), norm="layer-no-bias",
          tied_embeddings=True), Numerics()),
    (tiny("gemma2", group(GQA.replace(window=5), count=2, norms=4), group(count=2, norms=4),
          tied_embeddings=True),
     Numerics(activation="gelu-tanh", embedding_scale=8.0, norm_eps=1e-6)),
    (tiny("olmo2", group(GQA.replace(qk_norm="full"), count=3)), Numerics(norms_after=True)),
    (tiny("qwen2-moe", group(GQA.replace(qkv_bias=True), ROUTED.replace(
        shared_width=80, shared_gate=True), 3)), Numerics(normalise_picks=False)),
    (tiny("gpt-oss", *(group(GQA.replace(window=w, qkv_bias=True, output_bias=True, sinks=True),
                             Moe(experts=6, top_k=2, width=96, router_bias=True,
                                 expert_bias=True)) for w in (5, None))),
     Numerics(activation="clamped-swiglu")),
    (tiny("deepseek-v3", group(MLA, MLP, 1), group(MLA, ROUTED.replace(shared_width=48), 2)),
     Numerics(scoring="sigmoid", router_scale=1.5, norm_eps=1e-6)),
    (tiny("deepseek-v2", group(MLA.replace(q_rank=None), MLP, 1),
          group(MLA.replace(q_rank=None), ROUTED.replace(shared_width=48), 2)),
     Numerics(normalise_picks=False, norm_eps=1e-6)),
    (tiny("deepseek-v3.2", group(MLA.replace(indexer=Indexer(heads=24, head_dim=16, top_k=5)),
                                 MLP, 2)), Numerics(norm_eps=1e-6)),
    (tiny("mamba", group(Mamba(inner=128, state=8, conv=4, dt_rank=6), None, 3, norms=1),
          tied_embeddings=True), Numerics()),
    (tiny("mamba2", group(Mamba2(heads=8, head_dim=16, state=8, groups=2, conv=4), None, 3,
                          norms=1)), Numerics()),
    (tiny("jamba", group(Mamba(inner=128, state=8, conv=4, dt_rank=6, inner_norms=True), MLP, 3),
          group(GQA.replace(rope=False), MLP, 1)), Numerics(norm_eps=1e-6)),
    (tiny("qwen3-next", group(GatedDelta(key_heads=2, value_heads=4, key_dim=8, value_dim=12,
                                         conv=4), ROUTED.replace(shared_width=80,
                                                                 shared_gate=True), 3),
          group(GQA.replace(qk_norm="head", output_gate=True), ROUTED.replace(
              shared_width=80, shared_gate=True), 1)), Numerics(norm_eps=1e-6)),
    (tiny("lfm2", group(ShortConv(conv=3), MLP, 3), group(GQA.replace(qk_norm="head"), MLP, 1),
          tied_embeddings=True), Numerics()),
)}
# Kinds that no family above has.
OTHERS: dict[str, Model] = {m.name: m for m in (
    dense("multi-query", 64, 3, 4, 1, 16, 96, 160),
    dense("multi-head", 64, 3, 4, 4, 16, 96, 160),
    tiny("chunked", group(GQA.replace(chunk=6)), group(GQA.replace(rope=False), count=1)),
    tiny("shared-kv", group(GQA.replace(window=5), count=1), group(count=1), group(
        GQA.replace(window=5, shares_kv=True)), group(GQA.replace(shares_kv=True), count=1)),
    tiny("keys-are-values", group(GQA.replace(keys_are_values=True, qk_norm="head"))),
    tiny("other-values", group(GQA.replace(value_dim=8)), group(GQA.replace(value_dim=24))),
    tiny("windows-with-sinks", group(GQA.replace(window=4, sinks=True, value_dim=8))),
    tiny("cross", group(GQA.replace(cross=True, rope=False)), output_vocabulary=152),
    tiny("no-mixer", group(None, MLP, 1, norms=1), group(), head_bias=True, norm="none"),
    tiny("latent-experts", group(ffn=ROUTED.replace(gated=False, latent=32, shared_width=48,
                                                    dense_width=32))),
    tiny("shared-layers", group(Mamba2(heads=8, head_dim=16, state=8, groups=1, conv=4,
                                       projection_bias=True, gated_norm=False), None, norms=1),
         group(GQA.replace(input_width=128), count=5, norms=3, distinct=2)),
    tiny("counted-tensors", group(extra=(Extra(name="adapter", elements=77),)), extra=(
        Extra(name="table", elements=500, streamed=False), Extra(name="more", elements=9))),
    tiny("mamba-heads", group(Mamba(inner=128, state=8, conv=4, dt_rank=6, dt_heads=8,
                                    conv_bias=False, inner_norms=True, projection_bias=True))),
    tiny("biased-latent", group(MLA.replace(qkv_bias=True, output_bias=True)),
         group(MLA.replace(q_rank=None, value_dim=32), count=1), embedding_norm=True),
    tiny("ties", group(MLA.replace(indexer=Indexer(heads=2, head_dim=10, top_k=3)))),
    tiny("five-norms", group(norms=5, count=1), final_norm=False),
)}
ALL: dict[str, Model] = {name: model for name, (model, _) in FAMILIES.items()} | OTHERS


def built(model: Model, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0,
          numerics: Numerics | None = None) -> Transformer:
    """The model with random norms and biases too: ones and zeros would hide that they are unused.
    """
    if numerics is None and model.name in FAMILIES:
        numerics = FAMILIES[model.name][1]
    found = Transformer(model, dtype, device, tokens=64, seed=seed, numerics=numerics)
    generator = torch.Generator(device=device).manual_seed(seed + 7)
    for name, p in found.named_parameters():
        if p.dim() == 1 or name.endswith("bias"):
            p.add_(0.3 * torch.randn(p.shape, generator=generator, device=device).to(dtype))
    return found


def prompt(model: Model, batch: int = 2, length: int = 19, seed: int = 3) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.vocabulary, (batch, length), generator=generator)
