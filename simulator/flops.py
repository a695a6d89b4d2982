"""FLOPs of a forward pass as counters see them: matrix products and attention, nothing else.

A multiply-add is 2. With `causal` (the default, what a fused kernel computes) attention counts the
S(S+1)/2 visible pairs of a prompt of S; without it, it counts the full S x S square that eager
implementations multiply before masking, windows included.
"""

from __future__ import annotations

from simulator.arrays import Array
from simulator.deployment import Deployment
from simulator.layers import Phase, Segment, attention_operations, static_operations, sum_of
from simulator.operations import Operation
from simulator.specs.engine import load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import Attention, LayerGroup, Model

_KINDS = ("gemm", "attention", "moe", "ssm")


def _unmasked(group: LayerGroup) -> LayerGroup:
    """The group without its window: a mask, but no work saved."""
    if isinstance(group.mixer, Attention):
        return group.replace(mixer=group.mixer.replace(window=None, chunk=None))  # type: ignore[no-any-return]
    return group


def _square(o: Operation, S: Array) -> Operation:
    """An attention operation over all S x S pairs instead of the visible ones."""
    if o.kind != "attention":
        return o
    return replace_flops(o, o.flops * 2.0 * S / (S + 1.0))


def replace_flops(o: Operation, flops: Array) -> Operation:
    """The operation with other FLOPs."""
    import msgspec

    return msgspec.structs.replace(o, flops=flops)


def forward_flops(model: Model, batch: Array, new: Array, context: Array, rows: Array,
                  causal: bool = True, absorbed: bool = True) -> dict[str, Array]:
    """FLOPs by kind of `batch` sequences that add `new` tokens to reach `context`.

    rows      positions that the LM head computes, over all sequences
    causal    False counts the full square in a prefill (new = context)
    absorbed  MLA attends in the latent space; False expands K and V of the whole context
    """
    phase: Phase = "decode" if causal and _is_one(new) else "prefill"
    segment = Segment(batch, new, context, phase)
    shown = model if causal else model.replace(layers=tuple(_unmasked(g) for g in model.layers))
    d = Deployment(shown, _anything(), load_engine("ideal"))
    operations = static_operations(d, [segment], rows)
    for group in shown.layers:
        cores = attention_operations(d, group, segment)
        kept = [o for o in cores if o.alternative is None or (o.alternative[1] == 0) == absorbed]
        operations += kept if causal else [_square(o, context) for o in kept]
    return {kind: sum_of(o.flops * o.count for o in operations if o.kind == kind)
            for kind in _KINDS}


def _is_one(new: Array) -> bool:
    import numpy as np

    return bool(np.all(np.asarray(new) == 1))


def _anything() -> Hardware:
    """A device, since a deployment has one; FLOPs don't depend on it."""
    return Hardware(name="any", title="any", memory_bandwidth=1.0, memory_capacity=1.0,
                    peak_bf16=1.0)


