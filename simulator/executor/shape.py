"""What decides the tensors of the executor's decoder, and the shapes that are compared.

Without torch, so that a measured shape can be predicted where it isn't installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """All that decides the tensors of the decoder; every layer is alike.

    ffn          width of the gated MLP; 0 where experts take its place
    window       tokens that a token attends to, itself included; None: all before it
    qk_norm      RMS norm of each head of q and k
    norm_topk    weights of the picked experts sum to 1
    rope_theta, norm_eps   matter for the numbers alone, not for time
    """

    hidden: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    experts: int = 0
    active_experts: int = 0
    expert_ffn: int = 0
    tied: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    window: int | None = None
    rope: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    norm_topk: bool = True
    positions: int = 131_072

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.query_heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all KV heads, for K and for V alike."""
        return self.kv_heads * self.head_dim


def _dense(hidden: int, layers: int, heads: int, kv_heads: int, d: int, ffn: int, vocabulary: int,
           **more: bool | int | None) -> Shape:
    return Shape(hidden=hidden, layers=layers, query_heads=heads, kv_heads=kv_heads, head_dim=d,
                 ffn=ffn, vocabulary=vocabulary, **more)  # type: ignore[arg-type]


def _experts(hidden: int, layers: int, heads: int, kv_heads: int, d: int, experts: int, k: int,
             width: int, vocabulary: int) -> Shape:
    return Shape(hidden=hidden, layers=layers, query_heads=heads, kv_heads=kv_heads, head_dim=d,
                 ffn=0, vocabulary=vocabulary, experts=experts, active_experts=k, expert_ffn=width)


# Widths, depths, head counts and head sizes other than those that calibration multiplies.
SHAPES: dict[str, Shape] = {
    "dense-3M": _dense(256, 3, 4, 2, 64, 704, 2048, tied=True),
    "dense-10M": _dense(320, 6, 5, 5, 64, 896, 4096, tied=True),
    "dense-30M": _dense(576, 8, 9, 3, 64, 1536, 8192, tied=True),
    "dense-90M": _dense(768, 10, 12, 4, 64, 2304, 16384, tied=True, qk_norm=True),
    "dense-120M": _dense(896, 9, 14, 2, 64, 3584, 16000, qkv_bias=True),
    "dense-250M": _dense(1280, 11, 10, 10, 128, 3456, 24000, tied=True),
    "dense-420M": _dense(2048, 7, 16, 4, 128, 5632, 32000),
    "window-40M": _dense(640, 7, 10, 2, 64, 2048, 8192, tied=True, window=256),
    "experts-25M": _experts(384, 5, 6, 2, 64, 8, 2, 512, 4096),
    "experts-110M": _experts(640, 6, 10, 5, 64, 16, 4, 640, 8192),
    "experts-160M": _experts(896, 5, 7, 7, 128, 32, 2, 288, 12000),
}


__all__ = ["SHAPES", "Shape"]
