"""One device and its links, as data: every number in SI, with its source, date and confidence.

A file holds one device, flat: `memory_bandwidth: {value: 2039 GB/s, source: datasheet}`. A number
that nobody has published as a point is a range `{low, mid, high}`; the device then carries the mid
value, and `at_ends` gives the favourable and the unfavourable device.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from simulator.errors import InputError, nearest
from simulator.specs.hardware_parts import (
    Cache,
    Claim,
    CollectiveTable,
    KernelTable,
    Tier,
    choice,
    mappings,
    parse_cache,
    parse_claim,
    parse_collective,
    parse_kernel,
    parse_tier,
    text,
)
from simulator.specs.hardware_parts import texts as text_list
from simulator.specs.sourced import (
    UNSOURCED,
    Provenance,
    Range,
    Sourced,
    check_keys,
    parse_sourced,
    parse_sources,
)
from simulator.specs.strict_yaml import load_yaml

STATUSES = ("shipping", "retired", "cloud only", "announced", "hypothetical")
# Products of fp16 summed in fp16: twice as fast as summed in fp32 on GeForce cards.
FP16_SUMS: Final = "fp16_accumulate_fp16"
MEMORY_CLASSES = ("hbm", "gddr", "lpddr", "ddr", "sram", "stacked")


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """One device. Rates are per device, peaks dense, links one direction; all SI."""

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    vendor: str | None = None
    architecture: str | None = None
    form_factor: str | None = None
    status: str = "shipping"
    granularity: str | None = None
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()

    memory_type: str | None = None
    memory_class: str | None = None
    memory_bandwidth: float
    memory_capacity: float
    memory_capacity_marketing: float | None = None
    os_reserve: float | None = None

    peak_fp64: float | None = None
    peak_fp32: float | None = None
    peak_tf32: float | None = None
    peak_fp16: float | None = None
    peak_bf16: float | None = None
    peak_fp8: float | None = None
    peak_fp6: float | None = None
    peak_fp4: float | None = None
    peak_int8: float | None = None
    peak_int4: float | None = None
    peak_fp16_accumulate_fp16: float | None = None
    vector_fp32: float | None = None
    vector_bf16: float | None = None
    sparse_marketing: str | None = None

    units: float | None = None
    unit_kind: str | None = None
    clock: float | None = None
    cache_capacity: float | None = None
    cache_bandwidth: float | None = None
    shared_memory: float | None = None
    onchip_memory: float | None = None
    onchip_bandwidth: float | None = None
    tiers: tuple[Tier, ...] = ()
    caches: tuple[Cache, ...] = ()
    kernels: tuple[KernelTable, ...] = ()

    link: str | None = None
    link_topology: str | None = None
    link_bandwidth: float | None = None
    link_latency: float | None = None
    link_domain: float | None = None
    bridge: str | None = None
    bridge_bandwidth: float | None = None
    bridge_domain: float | None = None
    host: str | None = None
    host_link: str | None = None
    host_bandwidth: float | None = None
    collectives: tuple[CollectiveTable, ...] = ()
    scale_out: str | None = None
    scale_out_bandwidth: float | None = None
    scale_out_latency: float | None = None

    tdp: float | None = None
    idle_power: float | None = None
    memory_energy: float | None = None
    compute_energy: float | None = None
    link_energy: float | None = None
    price: float | None = None
    list_price: str | None = None

    launch_time: float | None = None
    kernel_floor: float | None = None
    bandwidth_efficiency: float | None = None
    compute_efficiency: float | None = None
    memory_level: float | None = None
    compute_level: float | None = None
    layer_overhead: float | None = None
    step_overhead: float | None = None
    year: float | None = None

    ranges: dict[str, Range] = {}
    provenance: dict[str, Provenance] = {}
    path: str | None = None

    @classmethod
    def load(cls, name: str | Path) -> Hardware:
        """Device by catalogue name, alias or YAML path."""
        from simulator.specs.catalogue import load_hardware

        return load_hardware(str(name))

    def replace(self, **fields: Any) -> Hardware:
        """A copy with some fields set; a number may be an array.

        A replaced number loses its range and its source: nobody published it.

        A `Range` as the value makes the field a range with its mid value.
        """
        for key in fields:
            if key not in self.__struct_fields__:
                raise InputError(f"hardware '{self.name}': unknown field '{key}'"
                                 f"{nearest(key, FIELDS)}")
        for key, value in fields.items():
            if key in QUANTITIES and not isinstance(value, Range):
                _check_numbers(self.name, key, value)
        ranges = {k: v for k, v in self.ranges.items() if k not in fields}
        ranges |= {k: v for k, v in fields.items() if isinstance(v, Range)}
        values = {k: v.mid if isinstance(v, Range) else v for k, v in fields.items()}
        provenance = {k: UNSOURCED if k in fields else p for k, p in self.provenance.items()}
        return msgspec.structs.replace(
            self, **({"ranges": ranges, "provenance": provenance} | values))

    def at_ends(self, favourable: bool, fields: Iterable[str] | None = None) -> Hardware:
        """The device with its ranges (or those of `fields`) at the favourable or the other end.

        A field without a range stays as it is.
        """
        ends = {}
        for name in self.ranges if fields is None else fields:
            if name not in QUANTITIES:
                raise InputError(f"hardware '{self.name}': no number is called '{name}'"
                                 f"{nearest(name, QUANTITIES)}")
            if name not in self.ranges:
                continue
            end = self.ranges[name]
            rising = name not in SMALLER_IS_FASTER
            ends[name] = end.high if rising == favourable else end.low
        return msgspec.structs.replace(self, **ends) if ends else self

    @property
    def timed_ranges(self) -> tuple[str, ...]:
        """The ranges that move a time: all but capacity, power, energy and price."""
        return tuple(n for n in self.ranges if n not in UNTIMED)

    def peak(self, compute: str) -> tuple[float, str]:
        """Dense peak [FLOP/s] for matrices at `compute`, and the precision that provides it.

        A device without that precision works at the next wider one it has: fp8 operands on an
        A100 are expanded and multiplied as bf16. One with narrower precisions only is taken to
        slow down with the bits, and the name says so: `int8 / 2`.
        """
        if compute not in _WIDER:
            raise InputError(f"hardware '{self.name}': no precision is called '{compute}'"
                             f"{nearest(compute, _WIDER)}")
        for name in _WIDER[compute]:
            value = getattr(self, f"peak_{name}")
            if value is not None:
                return value, name
        for name in _NARROWER:
            value = getattr(self, f"peak_{name}")
            if value is not None:
                ratio = _BITS[compute] / _BITS[name]
                return value / ratio, name if ratio == 1 else f"{name} / {ratio:g}"
        raise InputError(f"hardware '{self.name}': no peak for {compute}; "
                         f"add for example 'peak_bf16: 312 TFLOP/s'")

    @property
    def usable_capacity(self) -> float:
        """Memory that programs may use: all, or what the OS of a unified machine leaves."""
        if self.os_reserve is None:
            return self.memory_capacity
        return self.memory_capacity * (1.0 - self.os_reserve)

    @property
    def runtime(self) -> float:
        """1 where a driver and its runtime live in the memory; 0 for on-chip memory alone.

        Chips that hold a whole program in SRAM run it without a driver context or an allocator.
        """
        return 0.0 if self.memory_class == "sram" else 1.0

    @property
    def vector_peak(self) -> float:
        """Peak of the vector units [FLOP/s]; without one known, the matrix peak (a ceiling)."""
        for value in (self.vector_bf16, self.vector_fp32, self.peak_fp32):
            if value is not None:
                return value
        return self.peak("bf16")[0]


_WIDER: Final = {
    "fp32": ("fp32", "tf32", "bf16", "fp16"),
    "tf32": ("tf32", "fp32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16", "tf32", "fp32"),
    "fp16": ("fp16", "bf16", "tf32", "fp32"),
    FP16_SUMS: (FP16_SUMS, "fp16", "bf16", "tf32", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "fp6": ("fp6", "fp8", "bf16", "fp16", "tf32", "fp32"),
    "fp4": ("fp4", "fp6", "fp8", "bf16", "fp16", "tf32", "fp32"),
    "int8": ("int8", "bf16", "fp16", "tf32", "fp32"),
}
_NARROWER: Final = ("fp8", "int8", "fp6", "fp4", "int4")
_BITS: Final = {"fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, FP16_SUMS: 16, "fp8": 8, "int8": 8,
                "fp6": 6, "fp4": 4, "int4": 4}

QUANTITIES: Final[dict[str, str]] = {
    "memory_bandwidth": "bandwidth", "memory_capacity": "memory",
    "memory_capacity_marketing": "memory", "os_reserve": "fraction",
    **{f"peak_{p}": "compute" for p in ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6",
                                         "fp4", "int8", "int4", "fp16_accumulate_fp16")},
    "vector_fp32": "compute", "vector_bf16": "compute",
    "units": "count", "clock": "frequency", "cache_capacity": "memory",
    "cache_bandwidth": "bandwidth", "shared_memory": "memory", "onchip_memory": "memory",
    "onchip_bandwidth": "bandwidth",
    "link_bandwidth": "bandwidth", "link_latency": "time", "link_domain": "count",
    "bridge_bandwidth": "bandwidth", "bridge_domain": "count", "host_bandwidth": "bandwidth",
    "scale_out_bandwidth": "bandwidth", "scale_out_latency": "time",
    "tdp": "power", "idle_power": "power", "memory_energy": "energy_per_byte",
    "compute_energy": "energy_per_flop", "link_energy": "energy_per_byte", "price": "price",
    "launch_time": "time", "kernel_floor": "time", "bandwidth_efficiency": "fraction",
    "compute_efficiency": "fraction", "layer_overhead": "time", "step_overhead": "time",
    "memory_level": "factor", "compute_level": "factor", "year": "count",
}  # fmt: skip

SMALLER_IS_FASTER: Final = frozenset(
    {"link_latency", "scale_out_latency", "launch_time", "kernel_floor", "layer_overhead",
     "step_overhead", "memory_level", "compute_level",
     "tdp", "idle_power", "memory_energy", "compute_energy", "link_energy", "price",
     "os_reserve"}
)
UNTIMED: Final = frozenset(
    {"memory_capacity", "memory_capacity_marketing", "tdp", "idle_power", "memory_energy",
     "compute_energy", "link_energy", "price", "year", "cache_capacity", "onchip_memory",
     "shared_memory", "os_reserve"}
)
_MAY_BE_ZERO: Final = frozenset({"link_latency", "scale_out_latency", "layer_overhead",
                                 "step_overhead",
                                 "launch_time", "kernel_floor", "idle_power", "price"})
_TEXTS: Final = ("name", "title", "vendor", "architecture", "form_factor", "status", "granularity",
                 "memory_type", "memory_class", "sparse_marketing", "unit_kind", "link",
                 "link_topology", "bridge", "host", "host_link", "scale_out", "list_price")
_OTHER: Final = ("aliases", "sources", "notes", "claims", "tiers", "caches", "kernels",
                 "collectives")
FIELDS: Final = (*_TEXTS, *QUANTITIES, *_OTHER)


def _check_numbers(name: str, key: str, value: Any) -> None:
    """Refuse what is no number, or of the wrong sign, as the YAML loader does."""
    import numpy as np

    if value is None:
        return
    try:
        numbers = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"hardware '{name}': {key}: {value!r} is not a number [SI]") from None
    low = numbers >= 0 if key in _MAY_BE_ZERO else numbers > 0
    if not np.all(low):    # False for NaN too; infinity is the limit of a faster device
        raise InputError(f"hardware '{name}': {key}: {value!r} must be above 0")


def parse_hardware(data: dict[str, Any], where: str) -> Hardware:
    """The device that a file's mapping describes; `where` names the file in messages."""
    check_keys(data, FIELDS, where)
    sources = parse_sources(data.get("sources"), f"{where}: sources")
    for key in ("name", "memory_bandwidth", "memory_capacity"):
        if data.get(key) in (None, ""):
            raise InputError(f"{where}: '{key}' is missing")
    numbers: dict[str, Sourced] = {
        key: parse_sourced(data[key], dimension, sources, f"{where}: {key}",
                           positive=key not in _MAY_BE_ZERO)
        for key, dimension in QUANTITIES.items()
        if data.get(key) is not None
    }
    if not any(k.startswith("peak_") for k in numbers):
        raise InputError(f"{where}: no peak; add for example 'peak_bf16: 312 TFLOP/s' (dense)")
    texts = {key: text(data, key, where) for key in _TEXTS}
    choice(texts["status"], STATUSES, "status", where)
    choice(texts["memory_class"], MEMORY_CLASSES, "memory_class", where)
    texts["title"] = texts["title"] or texts["name"]
    texts["status"] = texts["status"] or "shipping"
    hardware: Hardware = Hardware(
        **texts,  # type: ignore[arg-type]
        **{key: number.value for key, number in numbers.items()},  # type: ignore[arg-type]
        aliases=text_list(data, "aliases", where),
        notes=text_list(data, "notes", where),
        claims=tuple(parse_claim(c, f"{where}: claims") for c in mappings(data, "claims", where)),
        tiers=tuple(parse_tier(t, sources, f"{where}: tiers")
                    for t in mappings(data, "tiers", where)),
        caches=_caches(data, sources, where),
        kernels=tuple(parse_kernel(k, sources, f"{where}: kernels")
                      for k in mappings(data, "kernels", where)),
        collectives=tuple(parse_collective(c, sources, f"{where}: collectives")
                          for c in mappings(data, "collectives", where)),
        ranges={key: number.range for key, number in numbers.items() if number.range is not None},
        provenance={key: number.provenance for key, number in numbers.items()},
        path=where,
    )
    return _consistent(hardware, where)


def _caches(data: dict[str, Any], sources: dict[str, Provenance],
            where: str) -> tuple[Cache, ...]:
    """The caches from the smallest on, each larger and slower than the one before."""
    found = tuple(parse_cache(c, sources, f"{where}: caches")
                  for c in mappings(data, "caches", where))
    for small, large in pairwise(found):
        if small.capacity >= large.capacity or small.bandwidth < large.bandwidth:
            raise InputError(f"{where}: caches: '{large.name}' must be larger than "
                             f"'{small.name}', and not faster")
    return found


def _consistent(h: Hardware, where: str) -> Hardware:
    """The device, if its caches are smaller and faster than its memory, its kernels all others."""
    for cache in h.caches:
        if cache.capacity >= h.memory_capacity or cache.bandwidth < h.memory_bandwidth:
            raise InputError(f"{where}: caches: '{cache.name}' must be smaller than the memory, "
                             "and not slower")
    names = [(k.kernel, k.format, k.operation) for k in h.kernels]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{where}: kernels: {' '.join(x for x in name if x)} stands twice")
    return h


def read_hardware(path: Path) -> Hardware:
    """The device in a YAML file."""
    return parse_hardware(load_yaml(path), str(path))


def parse_inline(entry: dict[str, Any]) -> Hardware:
    """A hypothetical device from a mapping in code, for studies: same keys as a file."""
    return parse_hardware(entry, f"hardware '{entry.get('name', '?')}'")
