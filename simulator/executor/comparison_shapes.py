"""The models that are compared: predicted, run and measured on a machine that was calibrated.

Without torch, so that a measured shape can be predicted where it isn't installed.
"""

from __future__ import annotations

from simulator.specs.model import Attention, Dense, LayerGroup, Mamba2, Mixer, Mla, Model, Moe

POSITIONS = 131_072


def dense(name: str, hidden: int, layers: int, heads: int, kv_heads: int, d: int, ffn: int,
          vocabulary: int, tied: bool = False, qk_norm: bool = False, qkv_bias: bool = False,
          window: int | None = None) -> Model:
    """A Llama-like decoder: `heads` query heads of size `d`, a gated MLP of width `ffn`."""
    mixer = Attention(heads=heads, kv_heads=kv_heads, head_dim=d, window=window, qkv_bias=qkv_bias,
                      qk_norm="head" if qk_norm else None)
    return Model(name=name, hidden=hidden, vocabulary=vocabulary, positions=POSITIONS,
                 tied_embeddings=tied,
                 layers=(LayerGroup(count=layers, mixer=mixer, ffn=Dense(width=ffn)),))


def experts(name: str, hidden: int, layers: int, heads: int, kv_heads: int, d: int, count: int,
            picked: int, width: int, vocabulary: int) -> Model:
    """A Mixtral-like decoder: `picked` of `count` experts of `width` a token."""
    mixer = Attention(heads=heads, kv_heads=kv_heads, head_dim=d)
    ffn = Moe(experts=count, top_k=picked, width=width)
    return Model(name=name, hidden=hidden, vocabulary=vocabulary, positions=POSITIONS,
                 layers=(LayerGroup(count=layers, mixer=mixer, ffn=ffn),))


def _layers(count: int, mixer: Mixer, ffn: int, **more: bool) -> LayerGroup:
    return LayerGroup(count=count, mixer=mixer, ffn=Dense(width=ffn, **more))


def _latent() -> Model:
    """Like MiniCPM 3: MLA and a gated MLP."""
    mixer = Mla(heads=10, q_rank=384, kv_rank=192, nope_dim=64, rope_dim=32, value_dim=64)
    return Model(name="latent-50M", hidden=704, vocabulary=12_288, positions=POSITIONS,
                 layers=(_layers(7, mixer, 1920),))


def _biased() -> Model:
    """Like GPT-2: LayerNorm, biases, learned positions, no gate."""
    mixer = Attention(heads=11, kv_heads=11, head_dim=64, rope=False, qkv_bias=True,
                      output_bias=True)
    return Model(name="biased-50M", hidden=704, vocabulary=16_128, positions=2048, norm="layer",
                 learned_positions=2048, tied_embeddings=True,
                 layers=(_layers(6, mixer, 2816, gated=False, bias=True),))


def _sinks() -> Model:
    """Like gpt-oss without experts: windows and whole contexts, a sink in each head."""
    mixer = Attention(heads=9, kv_heads=3, head_dim=64, sinks=True, qkv_bias=True)
    return Model(name="sinks-35M", hidden=576, vocabulary=10_240, positions=POSITIONS, layers=(
        _layers(3, mixer.replace(window=128), 1728), _layers(3, mixer, 1728)))


def _states() -> Model:
    """Like a hybrid: Mamba-2 layers, and a few of attention."""
    mixer = Mamba2(heads=24, head_dim=64, state=64, groups=1, conv=4)
    return Model(name="states-45M", hidden=768, vocabulary=8_192, positions=POSITIONS, layers=(
        LayerGroup(count=6, mixer=mixer, norms=1),
        _layers(2, Attention(heads=12, kv_heads=4, head_dim=64), 2304)))


# Widths, depths, head counts and head sizes other than those that calibration multiplies.
SHAPES: dict[str, Model] = {m.name: m for m in (
    dense("dense-3M", 256, 3, 4, 2, 64, 704, 2048, tied=True),
    dense("dense-10M", 320, 6, 5, 5, 64, 896, 4096, tied=True),
    dense("dense-30M", 576, 8, 9, 3, 64, 1536, 8192, tied=True),
    dense("dense-90M", 768, 10, 12, 4, 64, 2304, 16384, tied=True, qk_norm=True),
    dense("dense-120M", 896, 9, 14, 2, 64, 3584, 16000, qkv_bias=True),
    dense("dense-250M", 1280, 11, 10, 10, 128, 3456, 24000, tied=True),
    dense("dense-420M", 2048, 7, 16, 4, 128, 5632, 32000),
    dense("window-40M", 640, 7, 10, 2, 64, 2048, 8192, tied=True, window=256),
    experts("experts-25M", 384, 5, 6, 2, 64, 8, 2, 512, 4096),
    experts("experts-110M", 640, 6, 10, 5, 64, 16, 4, 640, 8192),
    experts("experts-160M", 896, 5, 7, 7, 128, 32, 2, 288, 12000),
    _latent(), _biased(), _sinks(), _states(),
)}


__all__ = ["SHAPES", "dense", "experts"]
