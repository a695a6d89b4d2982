"""Operations: one kernel kind in one layer group, as FLOPs and bytes, with no hardware in it."""

from __future__ import annotations

from typing import Literal

import msgspec

from simulator.arrays import Array

Kind = Literal["embedding", "norm", "gemm", "attention", "moe", "ssm", "elementwise", "collective",
               "sampling", "offload"]


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One execution of a kernel on one device; a layer group executes it `count` times.

    kernel       family that decides its efficiency: gemm, attention_prefill, attention_decode, ...
    flops        [FLOP] of one execution on one device
    weights, kv, activations   [bytes] read and written by class, of one execution on one device
    compute      number format its unit works at; "vector" for the vector units
    launches     kernels launched in one execution (0: fused into its neighbour)
    wire         [bytes] of the buffer that a collective moves; collective names its algorithm
    ranks        devices that take part in the collective
    extent       devices they are spread over, where that is more than themselves
    alternative  (group, index): of the alternatives in a group only the fastest runs
    stage        share of its executions on the fullest pipeline stage
    limit        context [tokens] above which its cost stops growing (a window)
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


def gemm(
    name: str, count: Array, m: Array, k: Array, n: Array, w: Array, a: Array, compute: str,
    kernel: str = "gemm", launches: float = 1.0,
) -> Operation:
    """Weights (k, n) of `w` bytes a value applied to m tokens of `a` bytes a value."""
    return Operation(name, "gemm", kernel, count, gemm_flops(m, k, n), w * k * n, 0.0,
                     gemm_activation_bytes(m, k, n, a), compute, launches)


def elementwise(
    name: str, count: Array, values: Array, a: Array, flops_per_value: float, passes: float,
    kind: Kind = "elementwise", weights: Array = 0.0, kv: Array = 0.0, launches: float = 1.0,
) -> Operation:
    """A kernel that touches each of `values`: `passes` reads and writes of `a` bytes."""
    return Operation(name, kind, "elementwise", count, flops_per_value * values, weights, kv,
                     passes * values * a, "vector", launches)
