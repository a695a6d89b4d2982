"""How engines reserve KV memory: blocks, windows, groups of layers, and what their logs print.

`ideal` is what the architecture needs. An allocator is what an engine reserves for it:
exact     no blocks
windowed  whole blocks, a window layer keeps its window
uniform   whole blocks, every layer is charged as the largest one and for the whole context
hybrid    vLLM's hybrid manager (vllm/v1/core/kv_cache_utils.py, kv_cache_interface.py): layers of
          a kind form groups of equal size that share one pool of pages; a window layer keeps its
          window and one block more, a recurrent layer one page
cells     llama.cpp (src/llama-kv-cache-iswa.cpp): a window layer keeps window + ubatch cells, all
          lengths padded to 256
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from simulator.arrays import Array, larger, largest, present, smaller
from simulator.deployment import Deployment, once
from simulator.formats import number_format
from simulator.kv_cache import mixer_convolution, mixer_kv_elements, mixer_state_elements
from simulator.layer_parts import kv_heads_per_rank
from simulator.layers import attention_limits
from simulator.specs.model import Attention, LayerGroup, Mla
from simulator.stages import fullest_stage

CELL_PADDING = 256


class CacheClass(msgspec.Struct, frozen=True):
    """Layers of one rank that cache alike: their number, window, and bytes a token in one layer.

    chunked   the window is a chunk: it starts where the chunk does, it doesn't slide
    """

    layers: float
    window: float | None
    bytes_per_token: float
    chunked: bool = False


class KvPool(msgspec.Struct, frozen=True):
    """What an engine's start-up log says about its KV pool, on one device."""

    bytes: Array
    block_size: Array
    blocks: Array
    tokens: Array
    max_concurrency: Array


def cached_values(d: Deployment, group: LayerGroup) -> Array:
    """Values a token caches in one layer of a group, on one rank; MLA's latent is replicated."""
    mixer, values = group.mixer, mixer_kv_elements(group.mixer)
    if isinstance(mixer, Attention):
        return values * kv_heads_per_rank(mixer.kv_heads, d.parallelism.tp) / mixer.kv_heads
    return values


def window_of(group: LayerGroup) -> float | None:
    """Tokens of a group's cache at most: its window; all of them under a sparse index."""
    return None if isinstance(group.mixer, Mla) else attention_limits(group)


@once
def cache_classes(d: Deployment) -> list[CacheClass]:
    """Layers that cache, merged by window and size, the smallest window first."""
    scale = d.kv_format.bytes / d.parallelism.cp
    if d.offload is not None:
        scale = scale * (1.0 - d.offload.kv)
    merged: dict[tuple[str, str, bool], CacheClass] = {}
    for group, count in zip(d.model.layers, fullest_stage(d, "kv")[0], strict=True):
        size = cached_values(d, group) * scale
        if present(size) and present(count):
            m, window = group.mixer, window_of(group)
            key = (str(window), str(size), isinstance(m, Attention) and m.chunk is not None)
            known = merged.get(key)
            layers = count + (0.0 if known is None else known.layers)
            merged[key] = CacheClass(layers, window, size, key[2])
    return sorted(merged.values(),
                  key=lambda c: math.inf if c.window is None else float(np.max(c.window)))


@once
def kv_bytes_per_token(d: Deployment) -> float:
    """Growing part of the cache of one token on one rank, below every window; drafts included."""
    own = sum(c.layers * c.bytes_per_token for c in cache_classes(d))
    return own if d.draft is None else own + kv_bytes_per_token(d.draft)


def state_bytes_per_layer(d: Deployment, group: LayerGroup) -> float:
    """Fixed state of one sequence in one layer of a group [bytes], on one rank.

    The recurrent state is kept in the model's own format for it, else as the engine does it.
    """
    values, engine = mixer_state_elements(group.mixer, d.model.hidden), d.engine
    width, columns, past = mixer_convolution(group.mixer, d.model.hidden)
    kept = width * (past if engine.conv_columns == "past" else columns)
    own = d.activation_format.name
    state = d.model.state_format or (own if engine.state_format == "activations" else "fp32")
    conv = own if engine.conv_format == "activations" else "fp32"
    size = ((values - width * columns) * number_format(state).bytes
            + kept * number_format(conv).bytes)
    return size / d.parallelism.ranks


def _state_layers(d: Deployment) -> list[Array]:
    """Layers of each group in a stage that holds its share of all kinds, rounded up."""
    p = d.parallelism.pp
    return [g.count if p == 1 else np.ceil(g.count / p) for g in d.model.layers]


@once
def fixed_state_bytes(d: Deployment) -> Array:
    """Recurrent state of one sequence on one rank [bytes]."""
    own = sum(state_bytes_per_layer(d, g) * n
              for g, n in zip(d.model.layers, _state_layers(d), strict=True))
    return own if d.draft is None else own + fixed_state_bytes(d.draft)


@once
def block_of(d: Deployment) -> int:
    """Tokens a block; the kernels of latent attention may ask for larger ones."""
    latent = any(isinstance(g.mixer, Mla) for g in d.model.layers)
    size = d.engine.mla_block_size if latent else None
    return d.engine.block_size if size is None else size


def blocks(context: Array, block: float) -> Array:
    """Tokens that whole blocks of `block` tokens hold for `context` tokens."""
    return np.ceil(context / block) * block


def cached_prefix(d: Deployment, prompt: Array, hit: Array) -> Array:
    """Prompt tokens found in the prefix cache: whole blocks of a share `hit` of the prompt.

    At least the last token is computed, since its logits are needed.
    """
    block = block_of(d)
    return np.floor((np.minimum(hit * prompt, prompt - 1.0) + 1e-6) / block) * block


def turns_hit_rate(G: Array) -> Array:
    """(G - 1)/(G + 1): hit rate of an endless cache in chats of G equal turns.

    Turn i repeats i - 1 of its i parts: sum of (i - 1) over sum of i.
    """
    return (G - 1.0) / (G + 1.0)


def paged_waste(b: Array) -> Array:
    """(b - 1)/2: tokens that a sequence's last block of b tokens leaves empty, on average."""
    return (b - 1.0) / 2.0


def paged_occupancy(S: Array, b: Array) -> Array:
    """S / (S + (b - 1)/2): share of its blocks that a sequence of S tokens fills (2309.06180)."""
    return S / (S + paged_waste(b))


def ideal_bytes(d: Deployment, context: Array) -> Array:
    """KV cache that the architecture needs for one sequence of `context` tokens on one rank."""
    total: Array = 0.0 * context
    for c in cache_classes(d):
        kept = context if c.window is None else np.minimum(context, c.window)
        total = total + c.layers * c.bytes_per_token * kept
    return total if d.draft is None else total + ideal_bytes(d.draft, context)


def kept_tokens(d: Deployment, c: CacheClass, context: Array) -> Array:
    """Tokens that the engine reserves in a layer of a class for one sequence."""
    block, allocator = block_of(d), d.engine.kv_allocator
    if allocator == "exact":
        return context if c.window is None else np.minimum(context, c.window)
    if allocator == "cells":
        cells = blocks(context, CELL_PADDING)
        if c.window is None:
            return cells
        ubatch = d.batched_tokens or 0
        return np.minimum(cells, blocks(c.window + ubatch, CELL_PADDING))
    whole = blocks(context, block)
    if c.window is None or allocator == "uniform":
        return whole
    slack = block if allocator == "hybrid" else 0
    return np.minimum(whole, blocks(c.window, block) + slack)


def allocated_bytes(d: Deployment, context: Array) -> Array:
    """KV cache that the engine reserves for one sequence of `context` tokens on one rank."""
    classes = cache_classes(d)
    most = largest(c.bytes_per_token for c in classes)
    total: Array = 0.0 * context
    for c in classes:
        size = most if d.engine.kv_allocator == "uniform" else c.bytes_per_token
        total = total + c.layers * size * kept_tokens(d, c, context)
    return total if d.draft is None else total + allocated_bytes(d.draft, context)


def longest_context(d: Deployment, room: Array) -> Array:
    """Largest context whose cache the engine can reserve in `room` [bytes] for one sequence.

    `allocated_bytes` rises in whole blocks (or cells) and is concave in them, so the answer on one
    of its lines is the largest over the lines; a windowed class is a constant once it is full.
    """
    uniform = d.engine.kv_allocator == "uniform"
    step = {"exact": 1, "cells": CELL_PADDING}.get(d.engine.kv_allocator, block_of(d))
    sizes: list[Array] = []
    caps: list[Array] = []
    for part in (d,) if d.draft is None else (d, d.draft):
        classes = cache_classes(part)
        most = largest(c.bytes_per_token for c in classes)
        sizes += [c.layers * (most if uniform else c.bytes_per_token) for c in classes]
        caps += [math.inf if c.window is None or uniform else kept_tokens(part, c, 1e15)
                 for c in classes]
    best: Array = 0.0 * room
    for full in [0.0, *(cap for cap in caps if not np.all(np.isinf(cap)))]:
        slope = sum(s * (cap > full) for s, cap in zip(sizes, caps, strict=True))
        fixed = sum(s * np.where(cap <= full, np.minimum(cap, 1e15), 0.0)
                    for s, cap in zip(sizes, caps, strict=True))
        rising = np.floor((room - fixed) / np.where(slope > 0, slope, 1.0) / step
                          * (1 + 1e-15)) * step
        best = np.maximum(best, np.where(slope > 0, rising, np.where(room >= fixed, 1e15, 0.0)))
    return np.maximum(best, 0.0)


def _groups(d: Deployment) -> tuple[Array, list[tuple[CacheClass | None, float]]]:
    """(layers of a group, [(class or None for recurrent layers, groups)]) of the hybrid manager.

    Layers of a kind are cut into groups of the size of the rarest kind, or of the commonest where
    all kinds are nearly as common.
    """
    classes = cache_classes(d)
    recurrent = sum(n for g, n in zip(d.model.layers, _state_layers(d), strict=True)
                    if present(mixer_state_elements(g.mixer, d.model.hidden)))
    kinds: list[tuple[CacheClass | None, float]] = [(c, c.layers) for c in classes]
    if present(recurrent):
        kinds.append((None, recurrent))
    counts = [n for _, n in kinds]
    most, least = larger(*counts), smaller(*counts)
    size: Array = np.where(most < d.engine.group_padding * least, most, least)
    return size, [(c, np.ceil(n / size)) for c, n in kinds]


def _page_tokens(d: Deployment) -> Array:
    """Tokens a block: with recurrent layers, as many as fill a page of the largest state."""
    state = largest(state_bytes_per_layer(d, g) for g in d.model.layers)
    block, classes = block_of(d), cache_classes(d)
    if not present(state) or not classes:
        return block
    return np.ceil(state / largest(c.bytes_per_token for c in classes) / block) * block


def _most_pages(d: Deployment, c: CacheClass, block: Array, context: Array) -> Array:
    """Pages of one group that a sequence of `context` tokens holds at most.

    While a prompt is computed in passes, a window layer holds its window but one and the tokens of
    a pass; one page more, since a window may start inside a page.
    """
    if c.window is None:
        return np.ceil(context / block)
    step = d.batched_tokens or 0
    if c.chunked:
        return np.ceil(np.minimum(c.window + step, context) / block)
    return np.ceil(np.minimum(c.window - 1 + step, context) / block) + 1


def _hybrid_pool(d: Deployment, room: Array, context: Array) -> KvPool:
    """The pool that groups of layers share: pages of one size, a sequence's in each group."""
    block, (size, groups) = _page_tokens(d), _groups(d)
    most = largest(c.bytes_per_token for c in cache_classes(d))
    count = np.floor(room / (most * block * size) * (1 + 1e-15))
    pages: Array = 0.0
    for c, n in groups:
        if c is None:
            pages = pages + n
            continue
        # Layers that cache less a token fill the same page with more tokens, where it divides.
        times = most / c.bytes_per_token
        pages = pages + n * _most_pages(d, c, block * np.where(times % 1 == 0, times, 1), context)
    concurrency = count / pages
    if d.engine.log_tokens == "concurrency":
        tokens = np.floor(concurrency * context)
    else:
        tokens = np.floor(count / sum(n for _, n in groups)) * block
    return KvPool(room, block, count, tokens, concurrency)


def pool(d: Deployment, room: Array, context: Array) -> KvPool:
    """Blocks, tokens and concurrency at `context` that `room` [bytes] of one device give.

    Concurrency counts whole blocks of every sequence, as the engines' start-up logs do.
    """
    room = np.maximum(room, 0.0)
    classes, block = cache_classes(d), block_of(d)
    if d.engine.kv_allocator == "hybrid" and classes and len(_groups(d)[1]) > 1:
        if d.draft is not None:    # its cache takes its share of the room
            alone = d.replace(speculation=None)
            room = room * allocated_bytes(alone, context) / allocated_bytes(d, context)
        return _hybrid_pool(d, room, context)
    per_token = kv_bytes_per_token(d)
    if d.engine.kv_allocator == "uniform" and classes:
        per_token = largest(c.bytes_per_token for c in classes) * sum(c.layers for c in classes)
        if d.draft is not None:
            per_token = per_token + kv_bytes_per_token(d.draft)
    if not present(per_token):
        each = fixed_state_bytes(d)
        return KvPool(room, block, 0.0 * room, 0.0 * room, room / larger(each, 1.0))
    count = np.floor(room / (per_token * block) * (1 + 1e-15))
    each = allocated_bytes(d, context) + fixed_state_bytes(d)
    return KvPool(room, block, count, count * block, count * block * per_token / each)
