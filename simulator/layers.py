"""Model x Deployment x tokens -> Operations: the only place that knows a transformer's shape.

Every operation is what ONE device executes, in the fullest rank. Static operations depend on the
tokens of the pass; attention also on the context, and comes from `attention_operations`, so that
decode can integrate it over the growing context.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simulator.arrays import Array, present
from simulator.deployment import Deployment
from simulator.layer_parts import (
    Phase,
    Segment,
    Shares,
    all_reduce,
    attention_format,
    attention_projections,
    context_exchange,
    dense_operations,
    expert_exchange,
    gemm_format,
    kv_heads_per_rank,
    matrix,
    mla_projections,
    moe_operations,
    ssm_operations,
    sum_of,
)
from simulator.operations import Chain, Operation, elementwise, gemm_flops
from simulator.operations import attention as att
from simulator.operations import tiles as cut
from simulator.parameters import norm_elements, small_elements
from simulator.specs.model import (
    Attention,
    Dense,
    LayerGroup,
    Mla,
    Moe,
)
from simulator.stages import fullest_stage, group_shares, mixer_share


def layer_operations(d: Deployment, group: LayerGroup,
                     segments: Sequence[Segment]) -> list[Operation]:
    """Static operations of a group: all but the attention over the context."""
    T = sum_of(s.tokens for s in segments)
    D, hidden = d.activation_format.bytes, d.model.hidden
    small = small_elements(d.model, group) * d.weight_format("norm").bytes
    norms, residuals = 1.0 * group.norms, float((group.mixer is not None) + (
        group.ffn is not None and not group.parallel))
    operations = [elementwise("norm", norms, T * hidden, D, 4, 2, "norm", weights=small / norms)
                  if norms else Operation("small_weights", "norm", "elementwise", 1.0,
                                          weights=small, launches=0.0)]
    fused = d.engine.fused
    operations.append(elementwise("residual", residuals, T * hidden, D, 1, 2 if fused else 3,
                                  launches=0.0 if fused else 1.0))
    mixer, ffn = group.mixer, group.ffn
    if isinstance(mixer, Attention):
        operations += attention_projections(d, mixer, T)
    elif isinstance(mixer, Mla):
        operations += mla_projections(d, mixer, T)
    elif mixer is not None:
        operations += ssm_operations(d, mixer, segments)
    operations += context_exchange(d, mixer, T)
    if mixer is not None and not group.parallel:
        operations += all_reduce(d, "attention_all_reduce", T)
    if isinstance(ffn, Dense):
        operations += dense_operations(d, ffn.width, ffn.gated, T)
    elif isinstance(ffn, Moe):
        operations += moe_operations(d, ffn, T)
        operations += expert_exchange(d, ffn, T)
    if ffn is not None or group.parallel:
        operations += all_reduce(d, "mlp_all_reduce", T)
    count = 1.0 * group.count
    for tensor in group.extra:
        if tensor.streamed and present(tensor.elements):
            operations.append(Operation(tensor.name, "elementwise", "elementwise", 1.0,
                                        weights=tensor.elements * d.weight_format("other").bytes,
                                        launches=0.0))
    return [o.with_count(o.count * count) for o in operations]


def attention_limits(group: LayerGroup) -> float | None:
    """Keys that one token of a group attends to at most; None: all of the context."""
    mixer = group.mixer
    if isinstance(mixer, Attention):
        return mixer.window if mixer.window is not None else mixer.chunk
    if isinstance(mixer, Mla) and mixer.indexer is not None:
        return mixer.indexer.top_k
    return None


def _pairs(mixer: Attention | Mla, s: Segment, limit: float | None) -> Array:
    if isinstance(mixer, Attention) and mixer.chunk is not None and s.phase == "prefill":
        return att.chunked_pairs(s.new, s.context, mixer.chunk)
    if s.phase == "decode":
        causal = s.new * s.context - s.new * (s.new - 1.0) / 2.0
        return causal if limit is None else np.minimum(causal, s.new * limit)
    return att.visible_pairs(s.new, s.context, limit)


def attention_operations(d: Deployment, group: LayerGroup, s: Segment,
                         key: str = "") -> list[Operation]:
    """Operations of a group that depend on the context: attention itself.

    In decode their FLOPs and bytes are affine in the context up to their `limit`, and constant
    above. `key` keeps the alternatives of different groups and segments apart.
    """
    mixer, count, cp = group.mixer, 1.0 * group.count, d.parallelism.cp
    if not isinstance(mixer, Attention | Mla) or (isinstance(mixer, Attention) and mixer.cross):
        return []
    limit = attention_limits(group)
    pairs = _pairs(mixer, s, limit) / cp
    keys = att.keys_read(s.new, s.context, limit) / cp
    if isinstance(mixer, Mla):
        cores = _mla_cores(d, mixer, s, pairs, keys, limit, key)
    else:
        cores = _attention_cores(d, mixer, s, pairs, keys, limit)
    if d.parallelism.pp > 1:
        share = mixer_share(d, mixer)
        cores = [o.on_stage(share) for o in cores]
    return [o.with_count(count) for o in cores]


def _attention_cores(d: Deployment, a: Attention, s: Segment, pairs: Array, keys: Array,
                     limit: float | None) -> list[Operation]:
    tp, D, k = d.parallelism.tp, d.activation_format.bytes, d.kv_format.bytes
    h, K, n = a.heads / tp, kv_heads_per_rank(a.kv_heads, tp), s.sequences
    compute = d.activation_format.compute or "bf16"
    kernel = f"attention_{s.phase}"
    name = (f"attention_window_{a.window}" if a.window is not None else
            f"attention_chunk_{a.chunk}" if a.chunk is not None else "attention")
    flops = att.attention_flops(n, h, pairs, a.head_dim, a.values)
    read = att.kv_bytes(n, K, keys, a.head_dim, a.values, k)
    rows = att.query_bytes(n, h, s.new, a.head_dim, a.values, D)
    fused = Operation(name, "attention", kernel, 1.0, flops, 0.0, read, rows, compute,
                      limit=limit, format=attention_format(d), chain=_chain(
                          s, n, h, K, keys, (a.head_dim + a.values) * k, limit,
                          a.head_dim + a.values),
                      rows=s.new if s.phase == "prefill" else s.new * (h / K), inner=a.head_dim)
    copies = [] if s.phase == "prefill" else _cache_copies(d, read, h / K, limit)
    if not d.engine.unfused_attention:
        return [fused, *copies]
    scores = Operation("attention_scores", "elementwise", "elementwise", 1.0, 5.0 * n * h * pairs,
                       activations=att.score_bytes(n, h, pairs, D), limit=limit)
    return [fused, scores, *copies]


def _chain(s: Segment, n: Array, h: Array, K: Array, keys: Array, token: Array,
           limit: float | None, width: Array) -> Chain:
    """Score tiles of a prefill; KV bytes of a decode step, `token` of a KV head and token."""
    if s.phase == "prefill":
        # On the average half a tile of each row of tiles lies beyond the diagonal.
        tile = cut.SCORE_TILE
        padded = att.visible_pairs(s.new, s.context, limit) + s.new * tile / 2.0
        row = s.context if limit is None else np.minimum(s.context, limit + tile)
        return Chain(2.0 * width * n * h * padded, n * h * s.new / tile, row / tile,
                     n * h * padded / tile**2)
    rows = cut.query_rows(h / K * s.new)
    return Chain(2.0 * width * n * K * rows * keys, n * K, cut.SPLIT_TOKENS * token,
                 n * K * keys * token)


def _mla_chain(s: Segment, n: Array, h: Array, keys: Array, latent: Array, k: Array, rank: Array
               ) -> Chain:
    """Absorbed MLA: tiles of 64 heads share the latent of a token."""
    tiles = np.ceil(h * s.new / cut.MLA_HEADS)
    return Chain(2.0 * (latent + rank) * n * tiles * cut.MLA_HEADS * keys, n * tiles,
                 cut.SPLIT_TOKENS * latent * k, n * tiles * keys * latent * k)


def _cache_copies(d: Deployment, read: Array, group: Array, limit: float | None) -> list[Operation]:
    """What an eager engine copies: the cache when it grows, and K and V of each query head."""
    times = d.engine.cache_copies + d.engine.kv_copies * group
    if not (d.engine.cache_copies or d.engine.kv_copies):
        return []
    # A long copy streams as a matrix does; element-wise kernels were timed on small tensors.
    return [Operation("cache_copies", "elementwise", "gemm", 1.0, kv=read * times,
                      limit=limit, needed=False)]


def _mla_cores(d: Deployment, a: Mla, s: Segment, pairs: Array, keys: Array,
               limit: float | None, key: str) -> list[Operation]:
    """Absorbed or expanded, whichever is faster: two alternatives of one group."""
    tp, D, k = d.parallelism.tp, d.activation_format.bytes, d.kv_format.bytes
    h, n, latent = a.heads / tp, s.sequences, a.kv_rank + a.rope_dim
    compute = d.activation_format.compute or "bf16"
    up, w = a.nope_dim + a.value_dim, d.weight_format("attention").bytes * a.kv_rank
    gemm_type, wide = gemm_format(d, "attention"), d.compute("attention")
    cached, T = n * keys * latent * k, s.tokens
    own = h / d.parallelism.cp    # heads that a context rank absorbs; it attends with all
    absorb = Operation(
        "mla_absorb", "gemm", "gemm", 1.0,
        att.mla_absorb_flops(T, own, a.kv_rank, a.nope_dim, a.value_dim), w * own * up, 0.0,
        D * T * own * (2 * a.kv_rank + up), wide, 2.0, alternative=(key, 0), steady=True,
        format=gemm_type, rows=T, inner=a.nope_dim)
    core = Operation(
        "mla_absorbed", "attention", "mla_decode", 1.0,
        att.mla_absorbed_flops(n, h, pairs, a.kv_rank, a.rope_dim), 0.0, cached,
        att.query_bytes(n, h, s.new, latent, a.kv_rank, D), compute, alternative=(key, 0),
        limit=limit, format=attention_format(d), chain=_mla_chain(s, n, h, keys, latent, k,
                                                                  a.kv_rank),
        rows=h * s.new, inner=latent)
    expanded_keys = n * att.keys_read(s.new, s.context) / d.parallelism.cp
    expand = Operation(
        "mla_expand", "gemm", "gemm", 1.0,
        att.mla_expand_flops(expanded_keys, h, a.kv_rank, a.nope_dim, a.value_dim), w * h * up,
        expanded_keys * latent * k, D * expanded_keys * h * up, wide, 1.0,
        alternative=(key, 1), format=gemm_type, rows=expanded_keys, inner=a.kv_rank)
    wide_head, kernel = a.nope_dim + a.rope_dim, f"attention_{s.phase}"
    plain = Operation(
        "mla_expanded", "attention", "mla_prefill" if s.phase == "prefill" else kernel, 1.0,
        att.attention_flops(n, h, pairs, wide_head, a.value_dim), 0.0, 0.0,
        att.kv_bytes(n, h, keys, wide_head, a.value_dim, D)
        + att.query_bytes(n, h, s.new, wide_head, a.value_dim, D),
        compute, alternative=(key, 1), limit=limit, format=attention_format(d),
        chain=_chain(s, n, h, h, keys, (wide_head + a.value_dim) * D, limit,
                     wide_head + a.value_dim), rows=s.new, inner=wide_head)
    operations = [absorb, core, expand, plain]
    if a.indexer is not None:
        i, all_pairs = a.indexer, _pairs(a, s, None) / d.parallelism.cp
        operations.append(Operation(
            "indexer_scores", "attention", f"attention_{s.phase}", 1.0,
            2.0 * n * i.heads * i.head_dim * all_pairs, 0.0,
            n * s.context / d.parallelism.cp * i.head_dim * k,
            n * s.new * i.heads * i.head_dim * D, compute,
            rows=s.new if s.phase == "prefill" else i.heads * s.new, inner=i.head_dim))
    return operations


def edge_operations(d: Deployment, segments: Sequence[Segment], rows: Array) -> list[Operation]:
    """Embedding look-up, final norm, LM head on `rows` positions, sampling; and PP hand-over."""
    p, model, D = d.parallelism, d.model, d.activation_format.bytes
    T = sum_of(s.tokens for s in segments)
    width = model.hidden if model.embedding_width is None else model.embedding_width
    split = 1 if d.engine.head_replicated else p.ranks
    looked_up = T * width * d.weight_format("embedding").bytes
    small = d.weight_format("norm").bytes
    operations = [Operation("embedding", "embedding", "elementwise", 1.0,
                            weights=looked_up, activations=T * width * D)]
    if model.embedding_norm:
        operations.append(elementwise("embedding_norm", 1.0, T * model.hidden, D, 4, 2, "norm",
                                      weights=small * norm_elements(model, model.hidden)))
    if model.embedding_width is not None:
        operations += [matrix(d, "embedding_up", "ffn", T, width, model.hidden),
                       matrix(d, "embedding_down", "ffn", rows, model.hidden, width)]
    for extra in model.extra:
        if extra.streamed and present(extra.elements):
            operations.append(Operation(extra.name, "elementwise", "elementwise", 1.0,
                                        weights=extra.elements * d.weight_format("other").bytes))
    operations += all_reduce(d, "embedding_all_reduce", T)
    if model.final_norm:
        operations.append(elementwise("final_norm", 1.0, rows * model.hidden, D, 4, 2, "norm",
                                      weights=small * norm_elements(model, model.hidden)))
    vocabulary = model.head_rows / split
    operations.append(matrix(d, "lm_head", "head", rows, width, vocabulary))
    if model.head_bias:
        operations.append(elementwise("head_bias", 1.0, rows * vocabulary, D, 1, 0,
                                      weights=small * vocabulary, launches=0.0))
    operations.append(elementwise("sampling", 1.0, rows * vocabulary, 4.0, 5, 2, "sampling"))
    if split > 1:
        operations.append(Operation(
            "logits_all_gather", "collective", "collective", 1.0,
            wire=rows * model.head_rows * D, collective="all_gather", ranks=split))
    if p.pp > 1:
        operations.append(Operation(
            "stage_hand_over", "collective", "collective", float(p.pp - 1),
            wire=T * model.hidden * D, collective="point_to_point", ranks=2,
            extent=d.devices // p.dp))
    return operations


_FIRST_STAGE = frozenset({"embedding", "embedding_norm", "embedding_up", "embedding_all_reduce"})


def static_operations(d: Deployment, segments: Sequence[Segment],
                      rows: Array) -> list[Operation]:
    """All operations of a pass but the attention over the context."""
    operations = edge_operations(d, segments, rows)
    layers = [layer_operations(d, group, segments) for group in d.model.layers]
    if d.parallelism.pp > 1:
        _, first, last = fullest_stage(d)
        operations = [o.on_stage(1.0 * (first if o.name in _FIRST_STAGE else last))
                      for o in operations]
        layers = [[o.on_stage(share) for o in group]
                  for group, share in zip(layers, group_shares(d), strict=True)]
    return operations[:1] + [o for group in layers for o in group] + operations[1:]


def pass_operations(d: Deployment, segments: Sequence[Segment], rows: Array) -> list[Operation]:
    """Every operation of one pass over `segments`, with logits at `rows` positions.

    Both alternatives of MLA are listed, marked as such.
    """
    attention = [o for i, group in enumerate(d.model.layers) for j, s in enumerate(segments)
                 for o in attention_operations(d, group, s, f"{i}.{j}")]
    return static_operations(d, segments, rows) + attention


def matrix_flops(operations: Iterable[Operation]) -> Array:
    """FLOPs of matrix-class operations alone: what 2 P T counts."""
    return sum_of(o.flops * o.count for o in operations
                  if o.kind in ("gemm", "attention", "moe", "ssm"))


__all__ = ["Phase", "Segment", "Shares", "attention_limits", "attention_operations",
           "gemm_flops", "matrix_flops", "pass_operations", "static_operations", "sum_of"]
