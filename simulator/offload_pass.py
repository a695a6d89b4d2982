"""A pass with a part of its bytes in a farther memory: the near pass, and one operation more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.clock import OperationTime
from simulator.layer_parts import sum_of
from simulator.offload import LINK_EFFICIENCY, Offload, exposed_time, far_parts, near_part
from simulator.operations import Operation
from simulator.step import PassTime

Seen = Callable[[list[Operation]], list[Operation]]


def near_seen(f: Offload) -> Seen:
    """What stays near of a list of operations."""
    return lambda operations: [near_part(o, f) for o in operations]


def far_seen(f: Offload) -> Seen:
    """What comes from afar in a list of operations."""
    return lambda operations: far_parts(operations, f)


def with_far(near: PassTime, far: Sequence[OperationTime], f: Offload, ideal: bool) -> PassTime:
    """The near pass and the far bytes of `far`, timed at the nominal far bandwidth.

    Ceiling: far bytes hide behind everything else, max(near, far). Expected: at the share of the
    rate that copies reach, hidden as far as `overlap` says.
    """
    nominal, moved = sum_of(t.expected for t in far), sum_of(t.bytes for t in far)
    reached = nominal if ideal else nominal / LINK_EFFICIENCY
    shown = exposed_time(reached, near.expected, f.overlap)
    over = np.maximum(nominal - near.ceiling, 0.0)
    zero = 0.0 * shown
    network, memory = (shown, zero) if f.linked else (zero, shown)
    # `bytes` are those of the device's own memory, against which MBU stands.
    wire = moved if f.linked else zero
    operation = Operation("offload", "offload", "elementwise", 1.0, launches=0.0)
    extra = OperationTime(operation, over, zero, shown, zero, memory, network, zero, zero, zero,
                          wire)
    sums: dict[str, Array] = {name: getattr(near, name) + getattr(extra, name) for name in (
        "ceiling", "expected", "memory", "network", "wire")}
    return msgspec.structs.replace(near, operations=(*near.operations, extra), **sums)
