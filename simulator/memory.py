"""Does it fit: weights, KV cache, activations and reserve against what the driver reports.

All sizes [bytes] of one device, the fullest rank. KV is given twice: ideal (what the architecture
needs) and allocated (what the engine reserves, in whole blocks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment
from simulator.kv_cache import mixer_kv_elements, mixer_state_elements
from simulator.layers import Shares, attention_limits, kv_heads_per_rank
from simulator.operations import ssm
from simulator.parameters import Tensor, model_tensors
from simulator.specs.model import (
    Attention,
    Dense,
    LayerGroup,
    Mla,
    Model,
    Moe,
)

_SPLIT_BY_TP = frozenset({"attention", "ffn", "ssm", "shared_experts", "head", "embedding"})
_REPLICATED = frozenset({"q_down", "kv_down", "indexer", "positions"})


@dataclass(frozen=True)
class Memory:
    """Sizes [bytes] of one device, the fullest rank.

    kv_per_token       growing part of the KV cache a token and sequence
    kv, kv_ideal       at input + output, as allocated and as the architecture needs, all sequences
    fixed_state        recurrent state of all sequences, part of kv and kv_ideal
    max_batch          sequences of the deployment at the asked lengths
    max_context        input + output at the asked batch, capped by the model's positions
    """

    weights: Array
    kv_per_token: Array
    kv: Array
    kv_ideal: Array
    fixed_state: Array
    activations: Array
    reserved: Array
    total: Array
    capacity: Array
    fits: Array
    max_batch: Array
    max_context: Array


def _tensor_share(d: Deployment, tensor: Tensor) -> float:
    shares = Shares.of(d)
    if tensor.role == "experts":
        return 1.0 / (shares.experts * shares.expert_width)
    if tensor.role == "head" and d.engine.head_replicated:
        return 1.0
    if tensor.role in _SPLIT_BY_TP and tensor.name not in _REPLICATED:
        return 1.0 / shares.tp
    return 1.0


def weight_bytes(d: Deployment) -> Array:
    """Weights of the fullest rank; with stages, the larger of embedding and head counts."""
    layers: Array = 0.0
    edges: dict[str, Array] = {"embedding": 0.0, "head": 0.0}
    for tensor in model_tensors(d.model):
        size = tensor.total * d.weight_format(tensor.role).bytes * _tensor_share(d, tensor)
        if tensor.name in ("embedding", "positions", "embedding_norm", "embedding_bridges"):
            edges["embedding"] = edges["embedding"] + size
        elif tensor.name in ("lm_head", "final_norm", "head_bias"):
            edges["head"] = edges["head"] + size
        else:
            layers = layers + size
    if d.parallelism.pp == 1:
        return layers + edges["embedding"] + edges["head"]
    share = -(-d.model.layer_count // d.parallelism.pp) / d.model.layer_count
    return layers * share + np.maximum(edges["embedding"], edges["head"])


def cached_values(d: Deployment, group: LayerGroup) -> float:
    """Values a token caches in one layer of a group, on one rank; MLA's latent is replicated."""
    mixer, values = group.mixer, mixer_kv_elements(group.mixer)
    if isinstance(mixer, Attention):
        return values * kv_heads_per_rank(mixer.kv_heads, d.parallelism.tp) / mixer.kv_heads
    return values


def state_bytes(d: Deployment, group: LayerGroup) -> float:
    """Fixed state of one sequence in one layer of a group [bytes], on one rank."""
    values = mixer_state_elements(group.mixer, d.model.hidden)
    return values / d.parallelism.tp * ssm.STATE_BYTES


def _kept(group: LayerGroup) -> float | None:
    """Tokens of a group's cache at most: its window, but all of them under a sparse index."""
    return None if isinstance(group.mixer, Mla) else attention_limits(group)


def _layer_share(d: Deployment) -> float:
    return -(-d.model.layer_count // d.parallelism.pp) / d.model.layer_count


def kv_classes(d: Deployment) -> list[tuple[float | None, float]]:
    """(window or None, bytes a token) of all layers that cache, grouped by window."""
    classes: dict[float | None, float] = {}
    scale = d.kv_format.bytes * _layer_share(d) / d.parallelism.cp
    for group in d.model.layers:
        size = cached_values(d, group) * group.count * scale
        if size:
            classes[_kept(group)] = classes.get(_kept(group), 0.0) + size
    return sorted(classes.items(), key=lambda item: item[0] or float("inf"))


def blocks(context: Array, block: int) -> Array:
    """Tokens that whole blocks of `block` tokens hold for `context` tokens."""
    return np.ceil(context / block) * block


def kv_bytes_per_sequence(d: Deployment, context: Array, block: int = 1) -> Array:
    """KV cache of one sequence of `context` tokens on one rank; `block` = 1 is the ideal."""
    total: Array = 0.0 * context
    for window, size in kv_classes(d):
        kept = context if window is None else np.minimum(context, window)
        total = total + size * blocks(kept, block)
    return total


def fixed_state_bytes(d: Deployment) -> float:
    """Recurrent state of one sequence on one rank."""
    return sum(state_bytes(d, g) * g.count for g in d.model.layers) * _layer_share(d)


def _widest(model: Model, tp: int) -> float:
    """Values a token needs at the widest point of a layer, on one rank."""
    widths = [0.0]
    for group in model.layers:
        mixer, ffn = group.mixer, group.ffn
        if isinstance(ffn, Dense):
            widths.append((3.0 if ffn.gated else 1.0) * ffn.width / tp)
        if isinstance(ffn, Moe):
            inputs = 3.0 if ffn.gated else 1.0
            widths.append(ffn.top_k * (inputs * ffn.width / tp + model.hidden))
        if isinstance(mixer, Attention):
            widths.append((2.0 * mixer.heads + 2.0 * mixer.kv_heads) * mixer.head_dim / tp)
        if isinstance(mixer, Mla):
            heads = mixer.heads / tp
            widths.append(heads * (2.0 * mixer.nope_dim + mixer.rope_dim + 2.0 * mixer.value_dim))
    return max(widths)


def activation_bytes_per_token(d: Deployment) -> float:
    """Peak activations a token of a pass: residual stream, its norm, and the widest layer part."""
    values = 2.0 * d.model.hidden + _widest(d.model, d.parallelism.tp)
    return values * d.activation_format.bytes


def logits_bytes_per_sequence(d: Deployment) -> float:
    """FP32 logits of one sequence, gathered on every rank for sampling."""
    return 4.0 * d.model.head_rows


def tokens_in_pass(d: Deployment, batch: Array, prompt: Array) -> Array:
    """Tokens of the largest pass: all prompts, or the engine's budget of batched tokens."""
    limit = d.engine.batched_tokens
    tokens = batch * prompt / d.parallelism.cp
    return tokens if limit is None else np.minimum(tokens, np.maximum(limit, batch))


def reserved_bytes(d: Deployment, capacity: Array) -> Array:
    """What the engine leaves to others, and its own context; the ideal engine reserves nothing."""
    return capacity * (1.0 - d.engine.memory_utilisation) + d.engine.context_bytes


def per_replica(d: Deployment, batch: Array) -> Array:
    """Sequences of the fullest data-parallel replica."""
    return batch if d.parallelism.dp == 1 else np.ceil(batch / d.parallelism.dp)


def memory(d: Deployment, batch: Array, prompt: Array, output: Array) -> Memory:
    """Memory of one device at the end of the request, when the context is prompt + output."""
    local, context = per_replica(d, batch), prompt + output
    capacity, weights, state = d.hardware.memory_capacity, weight_bytes(d), fixed_state_bytes(d)
    ideal = local * (kv_bytes_per_sequence(d, context) + state)
    allocated = local * (kv_bytes_per_sequence(d, context, d.engine.block_size) + state)
    logits = logits_bytes_per_sequence(d)
    activations = (activation_bytes_per_token(d) * tokens_in_pass(d, local, prompt)
                   + logits * local)
    reserved = reserved_bytes(d, capacity)
    total = weights + allocated + activations + reserved
    room = capacity - reserved - weights
    return Memory(
        weights=weights,
        kv_per_token=sum(size for _, size in kv_classes(d)),
        kv=allocated,
        kv_ideal=ideal,
        fixed_state=local * state,
        activations=activations,
        reserved=reserved,
        total=total,
        capacity=capacity,
        fits=total <= capacity,
        max_batch=_max_batch(d, room, prompt, context) * d.parallelism.dp,
        max_context=_max_context(d, room, local, context, prompt),
    )


def _max_batch(d: Deployment, room: Array, prompt: Array, context: Array) -> Array:
    """Largest batch whose KV, logits and activations fit in `room`.

    Activations are a minimum of two lines in the batch, so their sum is one too, and the largest
    batch is the larger of the two lines' answers.
    """
    each = (kv_bytes_per_sequence(d, context, d.engine.block_size) + fixed_state_bytes(d)
            + logits_bytes_per_sequence(d))
    per_token = activation_bytes_per_token(d)
    unlimited = room / (each + per_token * prompt / d.parallelism.cp)
    if d.engine.batched_tokens is None:
        return np.maximum(np.floor(unlimited), 0.0)
    budget = d.engine.batched_tokens
    limited = np.minimum((room - per_token * budget) / each, budget)
    beyond = room / (each + per_token)
    limited = np.where(beyond > budget, beyond, limited)
    return np.maximum(np.floor(np.maximum(unlimited, limited)), 0.0)


def _max_context(d: Deployment, room: Array, local: Array, context: Array, prompt: Array) -> Array:
    """Largest prompt + output at the asked batch; the output stays as asked.

    KV is a concave piecewise-linear function of the context (windows), hence the minimum of its
    lines: the largest context is the largest of the lines' answers.
    """
    block = d.engine.block_size
    free = room - local * (fixed_state_bytes(d) + logits_bytes_per_sequence(d))
    per_token, budget = activation_bytes_per_token(d), d.engine.batched_tokens
    output = context - prompt
    classes = kv_classes(d)
    windows = sorted({w for w, _ in classes if w is not None})
    best: Array = 0.0 * (free + local + context)
    for full in [0.0, *windows]:
        slope = local * sum(size for w, size in classes if w is None or w > full)
        fixed = local * sum(size * blocks(w, block) for w, size in classes
                            if w is not None and w <= full)
        streaming = local * per_token / d.parallelism.cp
        tries = [(free - fixed + streaming * output, slope + streaming)]
        if budget is not None:
            tries.append((free - fixed - per_token * np.maximum(budget, local), slope))
        for numerator, denominator in tries:
            # A model without a growing cache (slope 0) has no limit but its positions.
            rows = np.maximum(denominator, 1e-9)
            best = np.maximum(best, np.where(numerator > 0, numerator / rows, 0.0))
    longest = np.minimum(np.floor(best / block) * block, d.model.positions)
    return np.maximum(longest, 0.0)
