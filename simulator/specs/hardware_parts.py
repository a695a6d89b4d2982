"""Parts of a device's file with several numbers each: memories, caches, timed kernels, links."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from simulator.errors import InputError, nearest
from simulator.specs.sourced import (
    Provenance,
    check_keys,
    parse_provenance,
    parse_sourced,
    parse_word,
)

KERNELS: Final = ("gemm", "moe", "attention_prefill", "attention_decode", "ssm", "elementwise")
KERNEL_FORMATS: Final = ("fp32", "bf16", "fp16")
PASSES: Final = ("norm", "rope", "activation", "other")
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")
_PROVENANCE: Final = ("source", "date", "confidence", "verified", "note")


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """A further memory of the device: SRAM, LPDDR behind the HBM, host memory over a link."""

    name: str
    capacity: float
    bandwidth: float
    provenance: Provenance


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """A cache that serves what fits into it, all cores together: capacity [bytes], [bytes/s]."""

    name: str
    capacity: float
    bandwidth: float
    provenance: Provenance


class KernelTable(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a kernel was measured to be on this device, with its data in a cache or in memory.

    kernel     gemm, moe, attention_prefill, attention_decode, ssm or elementwise
    format     number format that it computes in: fp32, bf16, fp16
    operation  of elementwise: which one it is, norm, rope, activation or other
    floor      time [s] of an execution that has nothing to do
    floors     the same by rows, where few rows take another path through the library
    each       further time [s] of each expert that it visits (moe)
    start      values that the start of an inner product costs as much as
    rows       of the left operand (gemm), queries a sequence (attention), bytes (elementwise)
    rates      [FLOP/s], or [bytes/s] of elementwise, at those rows, with its data in a cache (moe:
               none, experts are gemms)
    cold_rates the same with its weights, or K and V, in memory; where not given, as in a cache
    """

    kernel: str
    format: str
    operation: str | None
    floor: float
    each: float
    start: float
    rows: tuple[float, ...]
    rates: tuple[float, ...]
    cold_rates: tuple[float, ...]
    floors: tuple[float, ...]
    provenance: Provenance


class CollectiveTable(msgspec.Struct, frozen=True, kw_only=True):
    """Measured times [s] of a collective between `ranks` devices, by size of the buffer [bytes]."""

    operation: str
    ranks: int
    sizes: tuple[float, ...]
    times: tuple[float, ...]
    provenance: Provenance


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a vendor announced, in its own words, with where and when."""

    text: str
    source: str
    date: str


def text(data: dict[str, Any], key: str, where: str) -> str | None:
    """Text under a key, if there is any."""
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: {key}: {value!r} is not text")
    return value


def texts(data: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list of texts; a whole number counts as text, so that the alias 4090 needs no quotes."""
    value = data.get(key) or []
    if not isinstance(value, list) or not all(
        isinstance(v, str | int) and not isinstance(v, bool) for v in value
    ):
        raise InputError(f"{where}: {key}: must be a list of texts")
    return tuple(str(v) for v in value)


def mappings(data: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """A list of mappings; empty where the key is absent."""
    value = data.get(key) or []
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise InputError(f"{where}: {key}: must be a list of entries")
    return value


def choice(value: str | None, choices: tuple[str, ...], key: str, where: str) -> str | None:
    """The value, if it is one of the choices."""
    if value is not None and value not in choices:
        raise InputError(f"{where}: {key}: unknown {key} '{value}'{nearest(value, choices)}")
    return value


def parse_tier(data: dict[str, Any], sources: dict[str, Provenance], where: str) -> Tier:
    """One entry of `tiers`."""
    check_keys(data, ("name", "capacity", "bandwidth", *_PROVENANCE), where)
    name = text(data, "name", where) or "tier"
    sizes = {key: parse_sourced(data.get(key), dimension, sources, f"{where}.{name}.{key}").value
             for key, dimension in (("capacity", "memory"), ("bandwidth", "bandwidth"))}
    provenance = parse_provenance(data, sources, f"{where}.{name}")
    return Tier(name=name, capacity=sizes["capacity"], bandwidth=sizes["bandwidth"],
                provenance=provenance)


def parse_cache(data: dict[str, Any], sources: dict[str, Provenance], where: str) -> Cache:
    """One entry of `caches`."""
    return Cache(**msgspec.structs.asdict(parse_tier(data, sources, where)))


def parse_kernel(data: dict[str, Any], sources: dict[str, Provenance], where: str) -> KernelTable:
    """One entry of `kernels`."""
    check_keys(data, ("kernel", "format", "operation", "floor", "each", "start", "rows", "rates",
                      "cold_rates", "floors", *_PROVENANCE), where)
    kernel = choice(text(data, "kernel", where), KERNELS, "kernel", where)
    format_ = choice(text(data, "format", where), KERNEL_FORMATS, "format", where)
    operation = choice(text(data, "operation", where), PASSES, "operation", where)
    if kernel is None or format_ is None or (operation is None) != (kernel != "elementwise"):
        raise InputError(f"{where}: needs a kernel and a format, and elementwise an operation")
    where = f"{where}.{kernel}.{format_}"
    dimension = "bandwidth" if kernel == "elementwise" else "compute"
    sizes = "memory" if kernel == "elementwise" else "count"
    rows, rates = (() if kernel == "moe" else _numbers(data, key, unit, sources, where)
                   for key, unit in (("rows", sizes), ("rates", dimension)))
    cold = rates if data.get("cold_rates") is None else _numbers(
        data, "cold_rates", dimension, sources, where)
    floors = () if data.get("floors") is None else _numbers(
        data, "floors", "time", sources, where)
    lengths = {len(rows), len(rates), len(cold), len(floors or rows)}
    if len(lengths) > 1 or list(rows) != sorted(set(rows)):
        raise InputError(f"{where}: needs rising rows, and as many rates as rows (floors too)")
    values = {key: 0.0 if data.get(key) is None else parse_sourced(
                  data[key], unit, sources, f"{where}.{key}", positive=False).value
              for key, unit in (("floor", "time"), ("each", "time"), ("start", "factor"))}
    return KernelTable(kernel=kernel, format=format_, operation=operation, rows=rows, rates=rates,
                       cold_rates=cold, floors=floors or (values["floor"],) * len(rows),
                       provenance=parse_provenance(data, sources, where), **values)


def _numbers(data: dict[str, Any], key: str, dimension: str, sources: dict[str, Provenance],
             where: str) -> tuple[float, ...]:
    """A list of numbers with a unit in each."""
    values = data.get(key)
    if not isinstance(values, list) or not values:
        raise InputError(f"{where}.{key}: must be a list with a unit in each entry")
    return tuple(parse_sourced(v, dimension, sources, f"{where}.{key}").value for v in values)


def parse_collective(data: dict[str, Any], sources: dict[str, Provenance],
                      where: str) -> CollectiveTable:
    """One entry of `collectives`."""
    check_keys(data, ("operation", "ranks", "sizes", "times", *_PROVENANCE), where)
    operation = choice(text(data, "operation", where), COLLECTIVES, "operation", where)
    ranks = int(parse_sourced(data.get("ranks"), "count", sources, f"{where}.ranks").value)
    sizes = _numbers(data, "sizes", "memory", sources, where)
    times = _numbers(data, "times", "time", sources, where)
    if operation is None or len(sizes) != len(times) or list(sizes) != sorted(set(sizes)):
        raise InputError(f"{where}: needs an operation, rising sizes, and as many times as sizes")
    return CollectiveTable(operation=operation, ranks=ranks, sizes=sizes, times=times,
                           provenance=parse_provenance(data, sources, where))


def parse_claim(data: dict[str, Any], where: str) -> Claim:
    """One entry of `claims`."""
    check_keys(data, ("text", "source", "date"), where)
    texts = {key: text(data, key, where) for key in ("text", "source")}
    texts["date"] = parse_word(data, "date", where)
    if not all(texts.values()):
        raise InputError(f"{where}: a claim has text, source and date")
    return Claim(**texts)  # type: ignore[arg-type]
