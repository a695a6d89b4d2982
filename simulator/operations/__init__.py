"""Operations: one kernel kind in one layer group, as FLOPs and bytes, with no hardware in it."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.operations import tiles as cut

Kind = Literal["embedding", "norm", "gemm", "attention", "moe", "ssm", "elementwise", "collective",
               "sampling", "offload"]


class Chain(msgspec.Struct, frozen=True, gc=False):
    """What a kernel does one after the other on one unit, and what it pads.

    padded   FLOPs executed, whole tiles; blocks: tiles or blocks that the units share
    longest  steps of the longest block (of 64 along k, of 128 x 128 scores) or bytes of KV, which
             one unit works through alone; total: of all blocks, None where all are that long
    """

    padded: Array
    blocks: Array
    longest: Array
    total: Array | None = None


class Picks(msgspec.Struct, frozen=True, gc=False):
    """Shape of a layer's experts on one rank.

    tokens entering the layer, picks of experts a token, rows that reach this rank's `local`
    experts, `active` of them; width in and inside, `gates` matrices in, bytes a weight.
    """

    tokens: Array
    top_k: Array
    rows: Array
    active: Array
    local: Array
    hidden: Array
    inner: Array
    gates: float
    weight: Array


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One execution of a kernel on one device; a layer group executes it `count` times.

    kernel       family that decides its efficiency: gemm, attention_prefill, attention_decode, ...
    format       number format of the kernel, as kernels are timed by: bf16, fp8, bf16-kv-fp8, ...
    chain        its serial part, where the form of its kernel has one; picks: shape of experts
    rows         of the left operand: tokens of a product, queries that share K and V in attention
    inner        values that each of its inner products sums
    flops        [FLOP] of one execution on one device
    weights, kv, activations   [bytes] read and written by class, of one execution on one device
    compute      number format its unit works at; "vector" for the vector units
    launches     kernels launched in one execution (0: fused into its neighbour)
    wire         [bytes] of the buffer that a collective moves; collective names its algorithm
    ranks        devices that take part in the collective
    extent       devices they are spread over, where that is more than themselves
    alternative  (group, index): of the alternatives in a group only the fastest runs
    stage        share of its executions on the fullest pipeline stage
    needed       physics asks for it; else this engine alone does, and the ceiling leaves it out
    limit        context [tokens] above which its cost stops growing (a window)
    steady       its cost doesn't depend on the context at all
    """

    name: str
    kind: Kind
    kernel: str
    count: Array
    flops: Array = 0.0
    weights: Array = 0.0
    kv: Array = 0.0
    activations: Array = 0.0
    compute: str = "vector"
    launches: float = 1.0
    wire: Array = 0.0
    collective: str | None = None
    ranks: int = 1
    extent: int = 0
    alternative: tuple[str, int] | None = None
    limit: float | None = None
    steady: bool = False
    needed: bool = True
    format: str = "bf16"
    chain: Chain | None = None
    picks: Picks | None = None
    rows: Array | None = None
    inner: Array | None = None
    stage: Array = 1.0

    @property
    def bytes(self) -> Array:
        """All bytes of one execution [bytes]."""
        return self.weights + self.kv + self.activations

    def on_stage(self, share: Array) -> Operation:
        """The same operation, `share` of whose executions are on the fullest stage."""
        return msgspec.structs.replace(self, stage=share)

    def with_count(self, count: Array) -> Operation:
        """The same operation executed `count` times."""
        return msgspec.structs.replace(self, count=count)


def gemm_flops(m: Array, k: Array, n: Array) -> Array:
    """FLOPs 2 m k n of an (m, k) by (k, n) product; a multiply-add is 2."""
    return 2.0 * m * k * n


def gemm_activation_bytes(m: Array, k: Array, n: Array, a: Array) -> Array:
    """Bytes of the operands that aren't weights: (m, k) read and (m, n) written, `a` bytes each."""
    return a * m * (k + n)


def gemm_chain(m: Array, k: Array, n: Array, flops: Array) -> Chain:
    """Output tiles of a product and the steps along k of each; its FLOPs are as they are.

    The tiles of a step are continuous in m: which of a library's tile heights a batch gets is not
    known, and one more sequence must not cost more than its share.
    """
    return Chain(flops, np.maximum(m / cut.TILE, 1.0) * np.ceil(n / cut.TILE), k / cut.K_TILE)


def gemm(
    name: str, count: Array, m: Array, k: Array, n: Array, w: Array, a: Array, compute: str,
    format: str = "bf16", launches: float = 1.0,
) -> Operation:
    """Weights (k, n) of `w` bytes a value applied to m tokens of `a` bytes a value."""
    flops = gemm_flops(m, k, n)
    return Operation(name, "gemm", "gemm", count, flops, w * k * n, 0.0,
                     gemm_activation_bytes(m, k, n, a), compute, launches, format=format,
                     chain=gemm_chain(m, k, n, flops), rows=m, inner=k)


def elementwise(
    name: str, count: Array, values: Array, a: Array, flops_per_value: float, passes: float,
    kind: Kind = "elementwise", weights: Array = 0.0, kv: Array = 0.0, launches: float = 1.0,
    format: str = "norm",
) -> Operation:
    """A kernel that touches each of `values`: `passes` reads and writes of `a` bytes."""
    return Operation(name, kind, "elementwise", count, flops_per_value * values, weights, kv,
                     passes * values * a, "vector", launches, format=format)
