"""What a sequence keeps between tokens: the KV cache, and the fixed state of recurrent layers.

Counts are values, not bytes, so that the cache format is applied in one place. They are those of
the architecture; what an engine allocates for them is more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.specs.model import (
    Attention,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Mixer,
    Mla,
    Model,
    ShortConv,
)


def mixer_kv_elements(mixer: Mixer | None) -> float:
    """Values that one layer caches for each token.

    Attention caches K and V of its KV heads, even where V is a copy of K; latent attention caches
    its latent and the RoPE part once, and one key of the index where it has one. Layers that
    reuse another layer's cache or attend to an image cache nothing of the text.
    """
    if isinstance(mixer, Attention):
        if mixer.shares_kv or mixer.cross:
            return 0.0
        return 1.0 * (mixer.kv_heads * (mixer.head_dim + mixer.values))
    if isinstance(mixer, Mla):
        index = 0 if mixer.indexer is None else mixer.indexer.head_dim
        return 1.0 * (mixer.kv_rank + mixer.rope_dim + index)
    return 0.0


def visible_tokens(mixer: Mixer | None, context: Any) -> Any:
    """Tokens of a context that a layer still needs: at most its window or chunk."""
    if isinstance(mixer, Attention):
        limit = mixer.window if mixer.window is not None else mixer.chunk
        if limit is not None:
            return np.minimum(context, float(limit))
    return context


def kv_elements_per_token(model: Model) -> float:
    """Values cached for one more token while the context is below every window."""
    return sum(group.count * mixer_kv_elements(group.mixer) for group in model.layers)


def kv_elements_at(model: Model, context: Any) -> Any:
    """Values cached by one sequence of `context` tokens, a number or a NumPy array of numbers."""
    length = np.asarray(context, dtype=float)
    total = np.zeros_like(length)
    for group in model.layers:
        total = total + (group.count * mixer_kv_elements(group.mixer)
                         * visible_tokens(group.mixer, length))
    return float(total) if total.ndim == 0 else total


def mixer_state_elements(mixer: Mixer | None, hidden: float) -> float:
    """Values of fixed state in one layer: the recurrent state and the last convolution columns."""
    if isinstance(mixer, Mamba):
        # PLaMo 2, with one step size a head, keeps the newest column out of its state.
        columns = mixer.conv if mixer.dt_heads is None else mixer.conv - 1
        return 1.0 * (mixer.inner * (mixer.state + columns))
    if isinstance(mixer, Mamba2):
        inner = mixer.heads * mixer.head_dim
        return 1.0 * (inner * mixer.state + (inner + 2 * mixer.groups * mixer.state) * mixer.conv)
    if isinstance(mixer, GatedDelta):
        columns = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
        state = mixer.value_heads * mixer.key_dim * mixer.value_dim
        return 1.0 * (state + columns * mixer.conv)
    if isinstance(mixer, ShortConv):
        return 1.0 * (hidden * mixer.conv)
    return 0.0


def mixer_convolution(mixer: Mixer | None, hidden: float) -> tuple[float, int, int]:
    """(values of a column, columns in `mixer_state_elements`, columns before the newest)."""
    if isinstance(mixer, Mamba):
        columns = mixer.conv if mixer.dt_heads is None else mixer.conv - 1
        return float(mixer.inner), columns, mixer.conv - 1
    if isinstance(mixer, Mamba2):
        width = mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.state
        return float(width), mixer.conv, mixer.conv - 1
    if isinstance(mixer, GatedDelta):
        width = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
        return float(width), mixer.conv, mixer.conv - 1
    if isinstance(mixer, ShortConv):
        return float(hidden), mixer.conv, mixer.conv - 1
    return 0.0, 0, 0


def fixed_state_elements(model: Model) -> float:
    """Values of fixed state that one sequence keeps, whatever its length."""

    def of_group(group: LayerGroup) -> float:
        return group.count * mixer_state_elements(group.mixer, model.hidden)

    return sum(of_group(group) for group in model.layers)
