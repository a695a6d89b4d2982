"""Does it fit: weights, KV cache, activations and reserve against what the driver reports.

All sizes [bytes] of one device, the fullest rank. KV is given twice: ideal (what the architecture
needs) and allocated (what the engine reserves, in whole blocks).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from simulator.allocation import (
    KvPool,
    allocated_bytes,
    fixed_state_bytes,
    ideal_bytes,
    kv_bytes_per_token,
    longest_context,
    pool,
)
from simulator.arrays import Array, larger, only_where
from simulator.deployment import Deployment, arrays_inside, once
from simulator.layer_parts import Shares, kv_heads_per_rank, sum_of
from simulator.offload import Far, Offload
from simulator.parameters import Tensor, edge_tensors, group_tensors
from simulator.sharding import Parallelism
from simulator.specs.model import Attention, Dense, Mla, Model, Moe
from simulator.stages import fullest_stage

_SPLIT_BY_TP = frozenset({"attention", "ffn", "ssm", "shared_experts", "head", "embedding"})
_REPLICATED = frozenset({"q_down", "kv_down", "indexer", "positions", "latent",
                         "embedding_bridges"})


_ENTRANCE = frozenset({"embedding", "positions", "embedding_norm", "embedding_bridges"})


class Memory(msgspec.Struct, frozen=True):
    """Sizes [bytes] of one device, the fullest rank.

    kv_per_token       growing part of the KV cache a token and sequence
    kv, kv_ideal       at input + output, as allocated and as the architecture needs, all sequences
    fixed_state        recurrent state of all sequences, part of kv and kv_ideal
    max_batch          sequences of the deployment at the asked lengths
    max_context        input + output at the asked batch, capped by the model's positions
    pool               blocks, tokens and concurrency, as the engine's start-up log prints them
    far                what is offloaded; weights, kv and the rest are what stays near
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
    pool: KvPool
    far: Far | None = None


def _tensor_share(d: Deployment, tensor: Tensor) -> float:
    shares = Shares.of(d)
    if tensor.role == "experts":
        return 1.0 / (shares.experts * shares.expert_width)
    if tensor.name == "expert_bias":
        return 1.0 / shares.experts
    if tensor.role == "head" and d.engine.head_replicated:
        return 1.0
    if tensor.name == "qkv" and d.parallelism.ranks > 1:
        return _qkv_share(d)
    if tensor.role in _SPLIT_BY_TP and tensor.name not in _REPLICATED:
        return 1.0 / shares.ranks
    return 1.0


def _qkv_share(d: Deployment) -> float:
    """Share of the QKV projections on one rank: beyond the KV heads, K and V are replicated."""
    whole = rank = 0.0
    tp = d.parallelism.tp
    for group in d.model.layers:
        a = group.mixer
        if isinstance(a, Attention):
            width = d.model.hidden if a.input_width is None else a.input_width
            queries = a.heads * a.head_dim * (2 if a.output_gate else 1)
            own = 0 if a.shares_kv else a.head_dim + (0 if a.keys_are_values else a.values)
            whole += group.count * width * (queries + a.kv_heads * own)
            rank += group.count * width * (queries / tp
                                           + kv_heads_per_rank(a.kv_heads, tp) * own)
    return rank / whole / d.parallelism.cp


def weight_bytes(d: Deployment, far: bool = False, edges_too: bool = True) -> Array:
    """Weights of the fullest rank: of its layers, and of embedding and head where it has them.

    Those in its own memory; with `far` those that are offloaded. Those of a draft model too;
    prediction layers share the embedding and the head of their model.
    """
    def size(tensors: Sequence[Tensor]) -> Array:
        if d.offload is not None:
            shares = {t.role: d.offload.share(t.role) for t in tensors}
            return sum_of(t.total * d.weight_format(t.role).bytes * _tensor_share(d, t)
                          * (shares[t.role] if far else 1.0 - shares[t.role]) for t in tensors)
        return sum_of(t.total * d.weight_format(t.role).bytes * _tensor_share(d, t)
                      for t in tensors)

    counts, first, last = fullest_stage(d)
    total = sum_of(size(group_tensors(d.model, g)) * (n / g.count)
                   for g, n in zip(d.model.layers, counts, strict=True))
    if d.draft is not None:
        shared = d.speculation is not None and d.speculation.kind == "mtp"
        total = total + weight_bytes(d.draft, far, not shared)
    edges = edge_tensors(d.model) if edges_too else []
    entrance = [t for t in edges if t.name in _ENTRANCE]
    rest = [t for t in edges if t.name not in _ENTRANCE]
    return total + (size(entrance) if first else 0.0) + (size(rest) if last else 0.0)


def _widest(model: Model, p: Parallelism) -> Array:
    """Values a token needs at the widest point of a layer, on one rank."""
    tp, ranks = p.tp, p.ranks
    widths = [0.0]
    for group in model.layers:
        mixer, ffn = group.mixer, group.ffn
        if isinstance(ffn, Dense):
            widths.append((3.0 if ffn.gated else 1.0) * ffn.width / ranks)
        if isinstance(ffn, Moe):
            inputs = 3.0 if ffn.gated else 1.0
            widths.append(ffn.top_k * (inputs * ffn.width / ranks + model.hidden))
        if isinstance(mixer, Attention):
            widths.append((2.0 * mixer.heads + 2.0 * mixer.kv_heads) * mixer.head_dim / tp)
        if isinstance(mixer, Mla):
            heads = mixer.heads / tp
            widths.append(heads * (2.0 * mixer.nope_dim + mixer.rope_dim + 2.0 * mixer.value_dim))
    return larger(*widths)


@once
def activation_bytes_per_token(d: Deployment) -> Array:
    """Peak activations a token of a pass: residual stream, its norm, and the widest layer part."""
    values = 2.0 * d.model.hidden + _widest(d.model, d.parallelism)
    return values * d.activation_format.bytes


@once
def logits_bytes_per_sequence(d: Deployment) -> float:
    """FP32 logits of one sequence, gathered on every rank for sampling."""
    return 4.0 * d.model.head_rows * d.verified


def tokens_in_pass(d: Deployment, batch: Array, prompt: Array) -> Array:
    """Tokens of the largest pass: all prompts, or the engine's budget of batched tokens."""
    limit = d.batched_tokens
    tokens = batch * prompt
    return tokens if limit is None else np.minimum(tokens, np.maximum(limit, batch))


def policy(d: Deployment) -> tuple[Array, Array]:
    """(share of the memory, bytes of its runtime) of the engine; on-chip memory has neither."""
    share, context, runtime = d.engine.memory_fraction, d.engine.context_bytes, d.hardware.runtime
    if np.ndim(runtime) == 0:
        return (share, context) if runtime else (1.0, 0.0)
    return np.where(runtime, share, 1.0), context * runtime


def kv_room(d: Deployment, capacity: Array, weights: Array, activations: Array) -> Array:
    """Bytes that the engine's policy leaves to the KV cache of one device; may be negative.

    `capacity` is what programs may use of the memory.
    """
    share, context = policy(d)
    after = capacity - weights - activations - context
    if d.engine.memory_policy == "total":
        return after - (1.0 - share) * capacity
    if d.engine.memory_policy == "static":
        return np.minimum(share * capacity - weights, after)
    if d.engine.memory_policy == "free":
        return np.where(after > 0, share * after, after)
    return after


def per_replica(d: Deployment, batch: Array) -> Array:
    """Sequences of the fullest data-parallel replica."""
    return batch if d.parallelism.dp == 1 else np.ceil(batch / d.parallelism.dp)


def activation_bytes(d: Deployment, local: Array, prompt: Array) -> Array:
    """Activations of the largest pass and the logits of `local` sequences."""
    return (activation_bytes_per_token(d) * tokens_in_pass(d, local, prompt)
            + logits_bytes_per_sequence(d) * local)


def memory(d: Deployment, batch: Array, prompt: Array, output: Array) -> Memory:
    """Memory of one device at the end of the request, when the context is prompt + output."""
    local, context = per_replica(d, batch), prompt + output
    capacity, usable = d.hardware.memory_capacity, d.hardware.usable_capacity
    weights, state = np.rint(weight_bytes(d)), fixed_state_bytes(d)
    ideal = local * (ideal_bytes(d, context) + state)
    allocated = local * (allocated_bytes(d, context) + state)
    activations = activation_bytes(d, local, prompt)
    room = kv_room(d, usable, weights, activations)
    reserved = capacity - weights - activations - room
    total = weights + allocated + activations + reserved
    near = Memory(
        weights=weights,
        kv_per_token=kv_bytes_per_token(d),
        kv=allocated,
        kv_ideal=ideal,
        fixed_state=local * state,
        activations=activations,
        reserved=reserved,
        total=total,
        capacity=capacity,
        fits=allocated <= room,
        max_batch=_max_batch(d, usable - weights, prompt, context) * d.parallelism.dp,
        max_context=_max_context(d, usable - weights, local, output),
        pool=pool(d, room, context),
    )
    return near if d.offload is None else _with_far(d, d.offload, near, local, context, output)


def _with_far(d: Deployment, f: Offload, near: Memory, local: Array, context: Array,
              output: Array) -> Memory:
    """The near memory with what lies far, whose room limits batch and context as well."""
    weights = weight_bytes(d, far=True)
    if not f.kv:
        fits = np.less_equal(weights, f.capacity)
        far = Far(weights, 0.0 * near.kv, weights, f.capacity, fits)
        # Weights that have no room leave none for any sequence.
        return replace(near, far=far, fits=near.fits & fits, max_batch=near.max_batch * fits,
                       max_context=near.max_context * fits)
    moved = d.replace(offload=f.replace(kv=1.0 - f.kv))
    each, room = allocated_bytes(moved, context), f.capacity - weights
    kv = local * each
    fits = np.less_equal(kv, room)
    most = np.floor(np.maximum(room, 0.0) / each) * d.parallelism.dp
    longest = np.maximum(longest_context(moved, np.minimum(room, 1e18) / local), 0.0) * (room > 0)
    ideal = local * (ideal_bytes(moved, context) + ideal_bytes(d, context))
    return replace(near, far=Far(weights, kv, weights + kv, f.capacity, fits),
                   fits=near.fits & fits, max_batch=np.minimum(near.max_batch, most),
                   max_context=np.minimum(near.max_context, longest),
                   kv_ideal=ideal + near.fixed_state)


class GivenKv(msgspec.Struct, frozen=True):
    """What a known KV room of one device holds, as its engine's log says it.

    context             input + output, for which the pool's concurrency stands
    kv_per_token        growing part of the KV cache a token and sequence
    sequence, ideal     bytes of one sequence at the context: allocated, and the architecture's need
    left                what the weights leave of the device
    possible            whether the room is in it
    enough              whether the asked batch is in the room
    """

    pool: KvPool
    context: Array
    kv_per_token: Array
    sequence: Array
    ideal: Array
    left: Array
    possible: Array
    enough: Array


def given_kv(d: Deployment, room: Array, batch: Array, context: Array) -> GivenKv:
    """Tokens, blocks and concurrency of `room` [bytes] for KV on each device."""
    state, found = fixed_state_bytes(d), pool(d, room, context)
    left = d.hardware.usable_capacity - weight_bytes(d)
    return GivenKv(
        pool=found,
        context=context,
        kv_per_token=kv_bytes_per_token(d),
        sequence=allocated_bytes(d, context) + state,
        ideal=ideal_bytes(d, context) + state,
        left=left,
        possible=room <= left,
        enough=found.max_concurrency >= per_replica(d, batch),
    )


def _lines(d: Deployment, room: Array) -> list[tuple[Array, float, float]]:
    """(bytes, factor of KV, factor of activations): KV and activations must stay below each line.

    `room` is what the weights leave. They state `kv_room` again, solved for the KV cache.
    """
    share, context = policy(d)
    capacity = d.hardware.usable_capacity
    if d.engine.memory_policy == "total":
        return [(room - context - (1.0 - share) * capacity, 1.0, 1.0)]
    if d.engine.memory_policy == "static":
        return [(room - (1.0 - share) * capacity, 1.0, 0.0), (room - context, 1.0, 1.0)]
    if d.engine.memory_policy == "free":
        return [(room - context, 1.0 / share, 1.0)]
    return [(room - context, 1.0, 1.0)]


def _max_batch(d: Deployment, room: Array, prompt: Array, context: Array) -> Array:
    """Largest batch of a replica whose KV cache and activations stay below every line.

    Activations are the smaller of two lines in the batch, so what fits is the larger of the two
    answers.
    """
    each = allocated_bytes(d, context) + fixed_state_bytes(d)
    logits, token = logits_bytes_per_sequence(d), activation_bytes_per_token(d)
    budget, best = d.batched_tokens, None
    for space, kv, act in _lines(d, room):
        slope = kv * each + act * logits
        found = space / (slope + act * token * prompt)
        if budget is not None:
            beyond = space / (slope + act * token)
            below = np.minimum((space - act * token * budget) / slope, budget)
            found = np.maximum(found, np.where(beyond > budget, beyond, below))
        found = np.floor(np.maximum(found, 0.0))
        best = found if best is None else np.minimum(best, found)
    return best


def _max_context(d: Deployment, room: Array, local: Array, output: Array) -> Array:
    """Largest prompt + output of `local` sequences each; the output stays as asked.

    The engine's largest pass is planned for, so activations are those of its token budget, or of
    the positions of the model where it has none.
    """
    state, positions = fixed_state_bytes(d), d.model.positions * 1.0
    longest: Array = None
    for space, kv, act in _lines(d, room):
        found = _context_below(d, space, kv, act, local, output, state)
        longest = found if longest is None else np.minimum(longest, found)
    return np.maximum(np.minimum(longest, positions), 0.0)


def _context_below(d: Deployment, space: Array, kv: float, act: float, local: Array,
                   output: Array, state: float) -> Array:
    """Largest context below one line: at once where the pass is as large as the engine's budget."""
    budget = d.batched_tokens
    if budget is None:
        return _bisected(d, space, kv, act, local, output, state)
    if not np.any(space > 0):
        return 0.0 * (space + local + output)
    largest_pass = (activation_bytes_per_token(d) * np.maximum(budget, local)
                    + logits_bytes_per_sequence(d) * local)
    found = longest_context(d, (space - act * largest_pass) / (kv * local) - state)
    # Without any space `found` is 0 already.
    short = ((np.minimum(found, d.model.positions) - output) * local < budget) & (space >= 0)
    if not np.any(short):
        return found
    if arrays_inside(d):
        return np.where(short, _bisected(d, space, kv, act, local, output, state), found)
    return only_where(short, lambda *own: (_bisected(d, own[0], kv, act, own[1], own[2], state),),
                      (found,), space, local, output)[0]


def _bisected(d: Deployment, space: Array, kv: float, act: float, local: Array, output: Array,
              state: float) -> Array:
    """The same by bisection, where the activations grow with the prompt too."""
    low: Array = 0.0 * (space + local + output)
    high: Array = low + d.model.positions * 1.0
    for _ in range(int(np.ceil(np.log2(np.max(d.model.positions)))) + 1):
        middle = np.ceil((low + high) / 2.0)
        prompt = np.maximum(middle - output, 1.0)
        cost = (kv * local * (allocated_bytes(d, middle) + state)
                + act * activation_bytes(d, local, prompt))
        fits = cost <= space
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low
