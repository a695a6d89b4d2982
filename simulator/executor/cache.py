"""What the layers of a model keep between steps, and where a pass stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from simulator.kv_cache import mixer_convolution
from simulator.specs.model import (
    Attention,
    GatedDelta,
    Mamba,
    Mamba2,
    Mixer,
    Mla,
    Model,
    ShortConv,
)

Rope = dict[int, tuple[Tensor, Tensor]]


@dataclass
class Step:
    """Where the new tokens of a pass stand.

    start     tokens before them
    position  (1,) on the device for a step of fixed shapes: one token a sequence, standing there
    rope      cos and sin of their positions, by the width that is turned
    embedded  what the first layer saw
    lent      K and V of layers that others share
    """

    start: int
    position: Tensor | None
    rope: Rope
    embedded: Tensor
    lent: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class TokenCache:
    """Tensors (B, heads, N, width) that each token adds to."""

    def __init__(self, sizes: Sequence[tuple[int, int]], batch: int, tokens: int,
                 dtype: torch.dtype, device: torch.device | str) -> None:
        self.tensors = [torch.zeros(batch, heads, tokens, width, dtype=dtype, device=device)
                        for heads, width in sizes]

    def put(self, step: Step, *new: Tensor) -> list[Tensor]:
        """Write the new tokens (B, heads, S, width); all that are filled then.

        Of fixed shapes: all that there is room for, filled or not.
        """
        if step.position is not None:
            for kept, value in zip(self.tensors, new, strict=True):
                kept.index_copy_(2, step.position, value)
            return self.tensors
        end = step.start + new[0].shape[2]
        for kept, value in zip(self.tensors, new, strict=True):
            kept[:, :, step.start:end] = value
        return [kept[:, :, :end] for kept in self.tensors]


class State:
    """Tensors (B, ...) of fixed size: the recurrent state in fp32 and the last columns of a
    convolution."""

    def __init__(self, columns: tuple[int, int], state: tuple[int, ...] | None, batch: int,
                 dtype: torch.dtype, device: torch.device | str) -> None:
        self.columns = torch.zeros(batch, *columns, dtype=dtype, device=device)
        self.state = None if state is None else torch.zeros(batch, *state, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """All that is kept."""
        return [self.columns, *([] if self.state is None else [self.state])]


def layer_cache(mixer: Mixer | None, hidden: int, batch: int, tokens: int, dtype: torch.dtype,
                device: torch.device | str) -> TokenCache | State | None:
    """The cache of one layer; None where it keeps nothing."""
    def kept(*sizes: tuple[int, int]) -> TokenCache:
        return TokenCache(sizes, batch, tokens, dtype, device)

    def state(*size: int) -> State:
        channels, _, before = mixer_convolution(mixer, hidden)
        return State((int(channels), before), size or None, batch, dtype, device)

    if isinstance(mixer, Attention):
        if mixer.shares_kv or mixer.cross:
            return None
        return kept((mixer.kv_heads, mixer.head_dim), (mixer.kv_heads, mixer.values))
    if isinstance(mixer, Mla):
        index = [] if mixer.indexer is None else [(1, mixer.indexer.head_dim)]
        return kept((1, mixer.kv_rank + mixer.rope_dim), *index)
    if isinstance(mixer, Mamba):
        return state(mixer.inner, mixer.state)
    if isinstance(mixer, Mamba2):
        return state(mixer.heads, mixer.state, mixer.head_dim)
    if isinstance(mixer, GatedDelta):
        return state(mixer.value_heads, mixer.key_dim, mixer.value_dim)
    return state() if isinstance(mixer, ShortConv) else None


class Cache:
    """Caches of all layers, allocated for `tokens` a sequence; `length` are filled."""

    def __init__(self, model: Model, batch: int, tokens: int, dtype: torch.dtype,
                 device: torch.device | str) -> None:
        self.tokens, self.length = tokens, 0
        self.layers = [layer_cache(g.mixer, model.hidden, batch, tokens, dtype, device)
                       for g in model.layers for _ in range(g.count)]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of all layers."""
        return [t for layer in self.layers if layer is not None for t in layer.tensors]

    def reset(self, length: int = 0) -> None:
        """Forget all but the first `length` tokens; a recurrent state can only be forgotten whole.
        """
        self.length = length
        if length == 0:
            for layer in self.layers:
                if isinstance(layer, State):
                    for tensor in layer.tensors:
                        tensor.zero_()


__all__ = ["Cache", "Rope", "State", "Step", "TokenCache"]
