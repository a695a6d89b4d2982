"""Attention as a fused kernel: scores never leave the chip, so its bytes are Q, K, V and output.

Notation: n sequences, h query heads, K KV heads, d_k and d_v head sizes, q new tokens a sequence,
S keys visible to the last of them.
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array


def visible_pairs(new: Array, context: Array, window: Array | None = None) -> Array:
    """Query-key pairs of `new` causal tokens that end a context of `context` tokens.

    Token i sees min(i, window) keys, itself included; the sum over the last `new` tokens.
    """
    def up_to(x: Array) -> Array:
        if window is None:
            return x * (x + 1.0) / 2.0
        short = np.minimum(x, window)
        return short * (short + 1.0) / 2.0 + (x - short) * window

    return up_to(context) - up_to(context - new)


def chunked_pairs(new: Array, context: Array, chunk: Array) -> Array:
    """Query-key pairs where token i sees only its own chunk (Llama 4)."""
    def up_to(x: Array) -> Array:
        whole = np.floor(x / chunk)
        rest = x - whole * chunk
        return whole * chunk * (chunk + 1.0) / 2.0 + rest * (rest + 1.0) / 2.0

    return up_to(context) - up_to(context - new)


def keys_read(new: Array, context: Array, window: Array | None = None) -> Array:
    """Keys that `new` tokens ending a context need at least once."""
    if window is None:
        return context
    return np.minimum(context, new + window - 1.0)


def attention_flops(n: Array, h: Array, pairs: Array, d_k: Array, d_v: Array) -> Array:
    """2 (d_k + d_v) FLOPs a query-key pair and head: QK^T and PV."""
    return 2.0 * (d_k + d_v) * n * h * pairs


def kv_bytes(n: Array, K: Array, keys: Array, d_k: Array, d_v: Array, k: Array) -> Array:
    """Bytes of `keys` cached tokens in n sequences, `k` bytes a value."""
    return n * keys * K * (d_k + d_v) * k


def query_bytes(n: Array, h: Array, new: Array, d_k: Array, d_v: Array, a: Array) -> Array:
    """Bytes of the queries read and outputs written, `a` bytes a value."""
    return n * new * h * (d_k + d_v) * a


def score_bytes(n: Array, h: Array, pairs: Array, a: Array) -> Array:
    """Traffic of materialised scores in unfused attention: written and read twice (softmax)."""
    return 4.0 * n * h * pairs * a


def mla_absorbed_flops(n: Array, h: Array, pairs: Array, d_c: Array, d_r: Array) -> Array:
    """Absorbed MLA attends in the latent space: 2 h (2 d_c + d_r) a pair (2405.04434)."""
    return attention_flops(n, h, pairs, d_c + d_r, d_c)


def mla_absorb_flops(tokens: Array, h: Array, d_c: Array, d_n: Array, d_v: Array) -> Array:
    """Absorbing W_UK into the query and W_UV out of the latent: 2 h d_c (d_n + d_v) a new token."""
    return 2.0 * tokens * h * d_c * (d_n + d_v)


def mla_expand_flops(keys: Array, h: Array, d_c: Array, d_n: Array, d_v: Array) -> Array:
    """Expanding the latents of all `keys` to K and V: 2 d_c h (d_n + d_v) a key."""
    return 2.0 * keys * d_c * h * (d_n + d_v)
