"""Pipeline stages: which layers the fullest stage holds, and what a pipeline does to times.

A stage is a run of consecutive layers. Where the first layers of a model are dense and the rest are
experts, the order is known and the stages are exact. Where kinds of layers alternate, a stage holds
its share of each kind, rounded up, the heaviest first: the fullest that any stage can be.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment
from simulator.kv_cache import mixer_kv_elements
from simulator.parameters import group_tensors
from simulator.specs.model import Dense, LayerGroup, Model

Measure = Literal["weights", "kv"]

# Micro-batches a stage that keep the pipeline busy in a prefill of many sequences.
MICRO_BATCHES_PER_STAGE = 4


def stage_sizes(layers: int, stages: int) -> list[int]:
    """Layers of each stage as vLLM deals them: the rest goes to the last but one and before."""
    sizes = [layers // stages] * stages
    for extra in range(layers % stages):
        sizes[(stages - 2 - extra) % stages] += 1
    return sizes


def _consecutive(model: Model) -> bool:
    """Whether the groups of a model follow one another, as first dense layers do."""
    first, rest = model.layers[0], model.layers[1:]
    return len(model.layers) == 1 or (
        len(rest) == 1 and isinstance(first.ffn, Dense) and not isinstance(rest[0].ffn, Dense)
        and first.mixer == rest[0].mixer and 4 * first.count < rest[0].count)


def by_mixer(model: Model) -> list[LayerGroup]:
    """Layers whose attention is the same as one group, however their MLPs differ."""
    groups: dict[Any, LayerGroup] = {}
    for i, group in enumerate(model.layers):
        try:
            hash(key := group.mixer)
        except TypeError:    # it holds arrays
            key = i  # type: ignore[assignment]
        known = groups.get(key)
        groups[key] = group if known is None else known.replace(count=known.count + group.count)
    return list(groups.values())


def _weight(d: Deployment, group: LayerGroup) -> float:
    """Bytes of one layer of a group, before any split: what orders the kinds."""
    return sum(t.elements * d.weight_format(t.role).bytes for t in group_tensors(d.model, group))


def _dealt(groups: tuple[LayerGroup, ...], sizes: list[int]) -> list[list[float]]:
    """Layers of each group in each stage, where the groups follow one another."""
    left = [float(g.count) for g in groups]
    table = []
    for size in sizes:
        row, room = [0.0] * len(groups), float(size)
        for i, count in enumerate(left):
            row[i] = min(count, room)
            left[i] -= row[i]
            room -= row[i]
        table.append(row)
    return table


def fullest_stage(d: Deployment, by: Measure = "weights") -> tuple[list[Array], bool, bool]:
    """(layers of each group, holds the embedding, holds the head) of the stage with the most.

    `by` is what it has the most of: bytes of weights, or of KV cache.
    """
    groups, stages = d.model.layers, d.parallelism.pp
    if stages == 1:
        return [g.count for g in groups], True, True
    weights = [_weight(d, g) if by == "weights" else mixer_kv_elements(g.mixer) for g in groups]
    sizes = stage_sizes(d.model.layer_count, stages)
    if _consecutive(d.model):
        rows = _dealt(groups, sizes)
        edges = _edges(d) if by == "weights" else (0.0, 0.0)
        loads = [sum(n * w for n, w in zip(row, weights, strict=True))
                 + edges[0] * (i == 0) + edges[1] * (i == stages - 1)
                 for i, row in enumerate(rows)]
        best = max(range(stages), key=lambda i: (loads[i], i))
        return list(rows[best]), best == 0, best == stages - 1
    entrance, head = _edges(d) if by == "weights" else (0.0, 0.0)
    found = []
    for size, first, last in ((sizes[0], True, False), (max(sizes), False, False),
                              (sizes[-1], False, True)):
        row = _mixed(groups, weights, size)
        load = sum(n * w for n, w in zip(row, weights, strict=True))
        found.append((load + entrance * first + head * last, last, first, row))
    _, last, first, row = max(found, key=lambda x: x[:3])
    return list(row), first, last


def _mixed(groups: tuple[LayerGroup, ...], weights: list[float], size: int) -> list[float]:
    """Layers of each group in a stage of `size`: its share of each, rounded up, heaviest first."""
    total = sum(g.count for g in groups)
    row, room = [0.0] * len(groups), float(size)
    for i in sorted(range(len(groups)), key=lambda i: -weights[i]):
        row[i] = min(float(np.ceil(groups[i].count * size / total)), room)
        room -= row[i]
    return row


def _edges(d: Deployment) -> tuple[float, float]:
    """Bytes of the embedding and of the head, before any split."""
    m = d.model
    return (m.vocabulary * m.hidden * d.weight_format("embedding").bytes,
            m.head_rows * m.hidden * d.weight_format("head").bytes)


def group_shares(d: Deployment, by: Measure = "weights") -> list[Array]:
    """Share of each group's layers that the fullest stage holds."""
    counts, _, _ = fullest_stage(d, by)
    return [n / g.count for n, g in zip(counts, d.model.layers, strict=True)]


def mixer_share(d: Deployment, mixer: object) -> float:
    """Share of all layers with a mixer that the fullest stage holds."""
    counts, _, _ = fullest_stage(d)
    alike = [(n, g.count) for n, g in zip(counts, d.model.layers, strict=True) if g.mixer == mixer]
    return float(sum(n for n, _ in alike) / sum(count for _, count in alike))


def last_share(d: Deployment) -> float:
    """Share of the layers that the last stage holds, beside the head."""
    return stage_sizes(d.model.layer_count, d.parallelism.pp)[-1] / d.model.layer_count


def bubble(stages: Array, micro_batches: Array) -> Array:
    """(p-1)/(m+p-1): share of the time that a stage waits (GPipe, 1811.06965)."""
    return (stages - 1.0) / (micro_batches + stages - 1.0)


def decode_micro_batch(batch: Array, stages: int) -> Array:
    """Sequences a micro-batch in decode: each stage works on another one, at least one sequence."""
    return batch if stages == 1 else np.maximum(batch / stages, 1.0)


def prefill_micro_batch(batch: Array, stages: int) -> Array:
    """Sequences a micro-batch in prefill: enough of them to fill the pipeline, if there are."""
    if stages == 1:
        return batch
    return batch / np.minimum(batch, float(MICRO_BATCHES_PER_STAGE * stages))


def fill_and_drain(micro_batches: Array, slowest: Array) -> Array:
    """Time of m micro-batches over that of one: 1 + (m - 1) s, s the slowest stage's share.

    One micro-batch passes every stage: a pipeline doesn't shorten a single request.
    """
    return 1.0 + (micro_batches - 1.0) * slowest
