"""Weights, experts or KV cache kept in a farther memory: host memory, or a tier of the device.

A share of their bytes streams from there in every pass. It crosses the far memory and the link
between, so the slower of the two counts. By default nothing hides it: a step takes the time of
the near bytes and then that of the far ones. Which experts are hot is not modelled: the expected
number of distinct experts is read, and each lies far with the same probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.operations import Operation
from simulator.specs.hardware import Hardware

# Share of a link's nominal rate that large pinned copies reach (25-27 of 32 GB/s on PCIe 4.0 x16,
# 52-56 of 64 GB/s on 5.0 x16, as commonly reported; not measured by us).
LINK_EFFICIENCY = 0.85


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """What lies far, and how fast it comes; sizes and rates of one device.

    weights, experts, kv   shares, 0 to 1; `experts` is of routed experts, None: as `weights`
    to           name of the far memory
    bandwidth    [bytes/s] of the slower of far memory and link, one device's share of it
    capacity     [bytes] there for one device; infinite where unknown
    linked       whether its bytes cross a link, or lie in a memory of the device itself
    overlap      share of the near time behind which far bytes may hide
    """

    weights: float = 0.0
    experts: float | None = None
    kv: float = 0.0
    to: str = "host"
    bandwidth: float = math.inf
    capacity: float = math.inf
    linked: bool = True
    overlap: float = 0.0

    def replace(self, **fields: float) -> Offload:
        """A copy with some fields set."""
        return msgspec.structs.replace(self, **fields)

    def share(self, role: str) -> float:
        """Share of the weights of a role that lies far."""
        if role in ("experts", "moe") and self.experts is not None:
            return self.experts
        return self.weights

    @property
    def any(self) -> bool:
        """Whether anything lies far."""
        return bool(self.weights or self.experts or self.kv)

    def check(self) -> None:
        """Refuse shares outside 0 to 1."""
        for name in ("weights", "experts", "kv", "overlap"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise InputError(f"offload: {name} {value!r} is not between 0 and 1")
        if not self.bandwidth > 0:
            raise InputError(f"offload: bandwidth {self.bandwidth!r} must be above 0")


class Far(msgspec.Struct, frozen=True):
    """What lies in the far memory [bytes], of one device, and whether it has the room."""

    weights: Array
    kv: Array
    total: Array
    capacity: Array
    fits: Array


def far_bandwidth(memory: Array, link: Array) -> Array:
    """min(W_memory, W_link): far bytes cross both, one after the other in a stream."""
    return np.minimum(memory, link)


def split_time(near: Array, far: Array, W: Array, W_far: Array) -> Array:
    """near / W + far / W_far: the near bytes, then the far ones; nothing overlaps."""
    return near / W + far / W_far


def exposed_time(far: Array, near: Array, overlap: Array) -> Array:
    """Time that far traffic adds to a pass of `near` [s], `overlap` of which may hide it."""
    return far - np.minimum(far, overlap * near)


def largest_share(capacity: Array, size: Array) -> Array:
    """Share of `size` [bytes] that must go elsewhere for the rest to fit `capacity`."""
    return np.clip(1.0 - capacity / size, 0.0, 1.0)


def near_part(o: Operation, f: Offload) -> Operation:
    """An operation without the bytes that come from the far memory."""
    if o.collective is not None or not (np.any(o.weights) or np.any(o.kv)):
        return o
    return msgspec.structs.replace(o, weights=o.weights * (1.0 - f.share(o.kind)),
                                   kv=o.kv * (1.0 - f.kv))


def far_part(o: Operation, f: Offload) -> Operation:
    """The far bytes of an operation as a copy with no arithmetic."""
    return msgspec.structs.replace(o, flops=0.0, weights=o.weights * f.share(o.kind),
                                   kv=o.kv * f.kv, activations=0.0, launches=0.0)


def far_parts(operations: Iterable[Operation], f: Offload) -> list[Operation]:
    """The far bytes of a list of operations; those of collectives are none."""
    return [far_part(o, f) for o in operations if o.collective is None]


def far_memory(hardware: Hardware, to: str, memory: float | None = None,
               capacity: float | None = None) -> Offload:
    """The far memory `to` of a device: `host`, or a tier of its spec by name or part of it.

    memory     [bytes/s] of the host's memory for one device, where it is slower than the link
    capacity   [bytes] of host memory for one device
    """
    if to.strip().lower() == "host":
        link = hardware.host_bandwidth
        if link is None:
            raise InputError(f"offload-to host: hardware '{hardware.name}' has no host link; add "
                             "for example 'host_bandwidth: 64 GB/s'" + _tiers(hardware))
        rate = link if memory is None else float(far_bandwidth(memory, link))
        return Offload(to="host", bandwidth=rate,
                       capacity=math.inf if capacity is None else capacity)
    wanted = to.strip().lower()
    found = [t for t in hardware.tiers if wanted == t.name.lower()] or [
        t for t in hardware.tiers if wanted and wanted in t.name.lower()]
    if len(found) != 1:
        names = [t.name for t in hardware.tiers]
        reason = "several tiers match" if found else f"no such tier{nearest(to, ['host', *names])}"
        raise InputError(f"offload-to: '{to}': {reason}; hardware '{hardware.name}' has host"
                         + "".join(f", '{n}'" for n in names))
    tier = found[0]
    if tier.bandwidth > hardware.memory_bandwidth:
        raise InputError(f"offload-to: '{tier.name}' is faster than the memory of "
                         f"'{hardware.name}'; it is a cache, not a place to offload to")
    return Offload(to=tier.name, bandwidth=tier.bandwidth, capacity=tier.capacity, linked=False)


def _tiers(hardware: Hardware) -> str:
    return "".join(f", or offload to '{t.name}'" for t in hardware.tiers
                   if t.bandwidth <= hardware.memory_bandwidth)
