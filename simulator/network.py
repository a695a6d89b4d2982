"""Time of a collective between the devices of a deployment.

In this order: the device file's own measured table; the fitted lines of the chip, then of its kind
of link, for the engine's library or NCCL, whichever is faster; the best textbook algorithm at the
latency and bandwidth of the spec. Groups that reach beyond one node (or what the link joins) go
hierarchically over the scale-out link.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from simulator import collectives
from simulator.arrays import Array
from simulator.efficiency.levels import link_level
from simulator.errors import InputError
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.stack import Stack, stacked
from simulator.specs.strict_yaml import load_yaml

_CLASSES = {"nvlink2": "nvlink3", "nvlink3": "nvlink3", "nvlink4": "nvlink4", "nvlink5": "nvlink5",
            "nvlink6": "nvlink5", "pcie 3": "pcie4", "pcie 4": "pcie4", "pcie 5": "pcie5",
            "pcie 6": "pcie5"}


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return load_yaml(Path(__file__).parent / "efficiency" / "collectives.yaml")


def link_class(hardware: Hardware) -> str | None:
    """Kind of link whose lines hold for a device; None where nothing of the kind was measured."""
    text = (hardware.link or "").lower()
    return next((kind for prefix, kind in _CLASSES.items() if text.startswith(prefix)), None)


def lines_of(hardware: Hardware) -> dict[str, dict[str, dict[str, float]]]:
    """Fitted lines by operation and library: the chip's own before those of its kind of link."""
    table = _table()
    shared = table["links"].get(link_class(hardware), {})
    own = table["chips"].get(hardware.name, {})
    return {operation: shared.get(operation, {}) | own.get(operation, {})
            for operation in {*shared, *own}}


def link_domain(hardware: Hardware) -> int | None:
    """Devices that the link joins at most: 1 without a link, None where the spec doesn't say."""
    if hardware.link_bandwidth is None:
        return 1
    return None if hardware.link_domain is None else int(np.min(hardware.link_domain))


def _or_zero(value: Array | None) -> Array:
    return 0.0 if value is None else value


class Network:
    """The links of one device and the library that drives them.

    node   devices of a node, where a deployment has several; None: what the link joins
    """

    def __init__(self, hardware: Hardware, engine: Engine, node: int | None = None) -> None:
        self.hardware, self.engine = hardware, engine
        self.domain = link_domain(hardware) if node is None else node
        self._lines = {} if engine.ideal else lines_of(hardware)

    def time(self, operation: str, S: Array, ranks: int, extent: int) -> Array:
        """Time [s] of a collective of S bytes between `ranks` of the `extent` devices they span."""
        if ranks == 1:
            return 0.0 * S
        h, domain = self.hardware, self.domain
        if domain is None or extent <= domain:
            return self._inside(operation, S, ranks)
        if h.scale_out_bandwidth is None:
            raise InputError(
                f"hardware '{h.name}': a group spans {extent} devices, the link joins {domain}, "
                "and the spec has no scale-out link; add e.g. 'scale_out_bandwidth: 50 GB/s'")
        local = int(np.gcd(ranks, domain)) if extent == ranks else 1
        return self._across(operation, S, local, ranks // local)

    def _inside(self, operation: str, S: Array, n: int) -> Array:
        h = self.hardware
        for row in h.collectives:
            if row.operation == operation and row.ranks == n:
                return collectives.interpolated(S, row.sizes, row.times)
        libraries = self._lines.get(operation)
        if not libraries:
            return self._textbook(operation, S, n)
        chosen = [libraries[name] for name in {self.engine.collective_library, "nccl"}
                  if name in libraries]
        if not chosen:
            return self._textbook(operation, S, n)
        times = [self._two_lines(operation, S, n, line) for line in chosen]
        return times[0] if len(times) == 1 else np.minimum(times[0], times[1])

    def _two_lines(self, operation: str, S: Array, n: int, line: dict[str, float]) -> Array:
        link: Array = self.hardware.link_bandwidth
        reduce = operation == "all_reduce"
        share = (2.0 if reduce else 1.0) * (n - 1.0) / n
        first = (n - 1.0) if reduce else share
        return collectives.two_lines(
            S, float(n),
            (line["a0_us"] * 1e-6, line["a1_us"] * 1e-6, first / (line["x"] * link)),
            (line["b0_us"] * 1e-6, line["b1_us"] * 1e-6, share / (line["h"] * link)))

    def _textbook(self, operation: str, S: Array, n: int) -> Array:
        h = self.hardware
        alpha, W = _or_zero(h.link_latency), h.link_bandwidth
        if operation != "all_reduce":
            return collectives.BY_NAME[operation](S, float(n), alpha, W)
        best = np.minimum(collectives.all_reduce(S, float(n), alpha, W),
                          np.minimum(collectives.all_reduce_halving(S, float(n), alpha, W),
                                     collectives.all_reduce_tree(S, float(n), alpha, W)))
        topology = (h.link_topology or "").lower()
        if "switch" in topology or "mesh" in topology:
            best = np.minimum(best, collectives.all_reduce_one_shot(S, float(n), alpha, W))
        if "sharp" in topology:
            best = np.minimum(best, collectives.all_reduce_in_switch(S, float(n), alpha, W))
        return best

    def _across(self, operation: str, S: Array, local: int, nodes: int) -> Array:
        h = self.hardware
        alpha, W = _or_zero(h.scale_out_latency), h.scale_out_bandwidth
        if operation == "all_reduce":
            inside = 0.0 if local == 1 else (self._inside("reduce_scatter", S, local)
                                             + self._inside("all_gather", S, local))
            return inside + collectives.all_reduce(S / local, float(nodes), alpha, W)
        if operation in ("all_gather", "reduce_scatter"):
            inside = 0.0 if local == 1 else self._inside(operation, S, local)
            return inside + collectives.BY_NAME[operation](S / local, float(nodes), alpha, W)
        if operation == "all_to_all" and nodes > 1:
            remote = S * (nodes - 1.0) / nodes
            inside = 0.0 if local == 1 else self._inside(operation, S - remote, local)
            return np.maximum(inside, alpha + remote / W)
        return collectives.BY_NAME[operation](S, float(max(nodes, 2)), alpha, W)


class StackedNetwork:
    """The links of several devices at once: each member's own, along the first of four axes."""

    def __init__(self, hardware: Stack, engine: Engine, node: int | None = None) -> None:
        self.each = [Network(member, engine, node) for member in hardware.members]

    def time(self, operation: str, S: Array, ranks: int, extent: int) -> Array:
        """Time [s] of a collective of S bytes between `ranks` of the `extent` devices they span."""
        n = len(self.each)
        bytes_ = np.broadcast_to(S, np.broadcast_shapes(np.shape(S), (n, 1, 1, 1)))
        return np.concatenate([network.time(operation, bytes_[i:i + 1], ranks, extent)
                               for i, network in enumerate(self.each)])


def network_of(hardware: Hardware, engine: Engine, node: int | None = None
               ) -> Network | StackedNetwork:
    """The links of a device, or of several stacked into one."""
    if isinstance(hardware, Stack):
        return hardware.kept(("network", id(engine), node),
                             lambda: StackedNetwork(hardware, engine, node))
    return Network(hardware, engine, node)


def level_of_link(hardware: Hardware) -> Array:
    """Factor on the times of collectives over a device's link, of stacked ones each its own."""
    if isinstance(hardware, Stack):
        return stacked([link_level(link_class(member)) for member in hardware.members])
    return link_level(link_class(hardware))
