"""Constants of kernels by chip, family, format and library, and whose a chip borrows.

Files of `fitted/`: `<chip>.yaml` holds each framework's constants and `default`, fitted on all of
them together; `<chip>.kernels.yaml` those of single kernels (`framework/kernel`), read only when a
kernel is asked for. A chip without its own borrows from the nearest chip of its architecture, then
from the nearest of its vendor and memory class, then `generic`. Every step widens the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.specs.catalogue import find, load_hardware
from simulator.specs.hardware import Hardware
from simulator.specs.strict_yaml import load_yaml

Level = Literal["chip", "architecture", "memory", "generic"]
LEVELS: tuple[Level, ...] = ("chip", "architecture", "memory", "generic")

_folder = Path(__file__).with_name("fitted")


class Chain(msgspec.Struct, frozen=True, gc=False):
    """GEMM and prefill. e, h, g: shares of peak and bandwidth; t0 [s]: floor; tau [s]: a step of
    the serial chain; tw [s]: start of a tile; p: overlap exponent."""

    e: Array
    h: Array
    g: Array
    t0: Array
    tau: Array
    tw: Array
    p: Array


class Split(msgspec.Struct, frozen=True, gc=False):
    """Decode attention. As Chain; beta: bandwidth of one unit over its fair share."""

    e: Array
    h: Array
    g: Array
    t0: Array
    beta: Array
    tw: Array
    p: Array


class Experts(msgspec.Struct, frozen=True, gc=False):
    """Mixture of experts. te [s]: bookkeeping of 64 experts; cact, c2: passes over the rows."""

    e: Array
    h: Array
    t0: Array
    beta: Array
    cact: Array
    c2: Array
    te: Array
    p: Array


class Pass(msgspec.Struct, frozen=True, gc=False):
    """Element-wise kernels: one pass over the data."""

    h: Array
    g: Array
    t0: Array


class Lines(msgspec.Struct, frozen=True, gc=False):
    """Collectives: a0 + a1 (n-1) [s] at x of the link, b0 + b1 (n-1) [s] at h of the link."""

    a0: Array
    a1: Array
    x: Array
    b0: Array
    b1: Array
    h: Array


Constants: TypeAlias = Chain | Split | Experts | Pass | Lines

# Name, architecture, vendor, memory class, logarithms of sizes.
DonorKey: TypeAlias = tuple[str, str | None, str | None, str | None, tuple[float, ...]]

FAMILIES: dict[str, type[Constants]] = {
    "gemm": Chain, "attention_prefill": Chain, "mla_prefill": Chain,
    "attention_decode": Split, "mla_decode": Split, "moe": Experts, "elementwise": Pass,
    "collectives": Lines,
}

# Times stand in the files in microseconds, in the structs in seconds.
TIMES = frozenset({"t0", "tau", "tw", "te", "a0", "a1", "b0", "b1"})

# Share of h that g has at least where it is borrowed.
LEAST_CACHE = 0.5

# Whose constants serve where no chip has a format measured: nearest kernels first.
RELATED = {
    "fp8-block": ("fp8", "bf16"), "fp8": ("fp8-block", "bf16"), "nvfp4": ("mxfp4", "fp8", "bf16"),
    "mxfp4": ("nvfp4", "fp8", "bf16"), "int8": ("fp8", "bf16"), "int8-weight": ("int4-weight",
    "bf16"), "int4-weight": ("int8-weight", "bf16"),
    "int2-weight": ("int4-weight", "int8-weight", "bf16"), "mxfp4-weight": ("int4-weight", "bf16"),
    "mxfp4-mxfp8": ("mxfp4-weight", "nvfp4", "fp8", "bf16"), "int4-fp8": ("fp8", "bf16"),
    "bf16-kv-fp8": ("fp8", "bf16"), "fp32": ("bf16",),
}


# Families whose constants follow the memory more than the architecture.
MEMORY_DECIDES = frozenset({"elementwise"})

# What picks the nearest chip: the sum of the logarithms of these ratios.
SIZE = ("units", "narrow_over_bf16")


class Found(msgspec.Struct, frozen=True):
    """Constants, the level of the chain and the chip that they come from, and the typical factor
    by which a time may miss (1.1: ten percent)."""

    constants: Constants
    level: Level
    donor: str
    format: str
    library: str
    error: float


def constants(hardware: Hardware, family: str, format: str, library: str | None = None,
              without_own: bool = False, start: Level = "chip") -> Found:
    """Nearest constants for a kernel family and format on a device.

    library       framework (`vllm`), or one kernel of it (`vllm/vllm-flash-attn-fa3`); None, or
                  one that nobody timed: all pooled
    without_own   as if the device itself had never been measured
    start         as if nothing nearer than this level had been measured
    """
    return constants_of(donor_key(hardware), family, format, library,
                        max(LEVELS.index(start), int(without_own)))


def constants_of(key: DonorKey, family: str, format: str, library: str | None = None,
                 first: int = 0) -> Found:
    """As `constants`, for what `donor_key` says of a device, from level `first` on."""
    if family not in FAMILIES:
        raise InputError(f"unknown kernel family '{family}'{nearest(family, FAMILIES)}")
    library = library and library.replace("tensorrt-llm", "trtllm")
    found = _find(*key, family, format, library, first)
    if found is None:
        known = sorted({f for chip in index()["chips"] for f in load(chip).get(family, {})})
        raise InputError(f"no constants for '{family}' in format '{format}'"
                         f"{nearest(format, known)}")
    return found


def _found(family: str, format: str, level: Level, chip: str, library: str,
           values: dict[str, Any]) -> Found:
    """An entry of a file, with the larger of its own error and its level's."""
    own = 1.0 + float(values.get("mape", 0.0)) / 100.0
    return Found(build(family, values), level, chip, format, library,
                 max(own, error(family, level)))


def all_found(key: DonorKey, family: str, format: str) -> Iterator[Found]:
    """Every fit of a family in a format: from the nearest chip outwards, the surest first."""
    chain = _chain(*key, family in MEMORY_DECIDES)
    for level in LEVELS[:-1]:
        for chip in chain[level]:
            entries = load(chip).get(family, {}).get(format, {})
            for library in sorted(entries, key=lambda x: float(entries[x].get("mape", np.inf))):
                yield _found(family, format, level, chip, library, entries[library])


def libraries(family: str, found: Found) -> set[str]:
    """Libraries whose timings a fit rests on."""
    entries = load(found.donor).get(family, {}).get(found.format, {})
    return {found.library} if found.library != "default" else set(entries) - {"default"}


def donor_key(h: Hardware) -> DonorKey:
    """What picks the donors of a device: its name, kind and sizes."""
    from simulator.efficiency.kernel_formats import peak

    # Neither bandwidth nor peak picks a donor: in a sweep over either, a better figure must never
    # bring other kernels. Of what a device is made of, its units and formats tell it apart.
    h = _published(h)
    # The ratio of the narrowest format's peak to bf16 tells revisions of one architecture apart:
    # B300 and GB300 do attention faster than B200 and GB200, whose bf16 and bandwidth they share.
    size = (h.units or 100.0, peak(h, "fp4") / peak(h, "bf16"))
    return (h.name, h.architecture, h.vendor, h.memory_class,
            tuple(math.log(float(x if isinstance(x, int | float) else np.median(x)))
                  for x in size))


def _published(h: Hardware) -> Hardware:
    """The catalogue's own figures of a device; those given where it isn't in the catalogue."""
    return h if h.path is None else _of_catalogue(h.name, h.path) or h


@lru_cache(maxsize=512)
def _of_catalogue(name: str, path: str) -> Hardware | None:
    return load_hardware(name) if str(find("hardware", name)) == path else None


@lru_cache(maxsize=4096)
def _find(name: str, architecture: str | None, vendor: str | None, memory: str | None,
          size: tuple[float, ...], family: str, format: str, library: str | None, first: int
          ) -> Found | None:
    chain = _chain(name, architecture, vendor, memory, size, family in MEMORY_DECIDES)
    formats = (format, *RELATED.get(format, ()))
    # A kernel of another format on a chip that is like it is nearer than what all chips share.
    places = [(wanted, level) for wanted in formats for level in LEVELS[first:-1]]
    for wanted, level in (*places, *((wanted, LEVELS[-1]) for wanted in formats)):
        held = [(chip, load(chip)[family][wanted]) for chip in chain[level]
                if load(chip).get(family, {}).get(wanted)]
        if held:
            framework = (library or "default").split("/")[0]
            chip, entry = next((x for x in held if framework in x[1]), held[0])
            used, values = _of_library(chip, family, wanted, library, entry)
            if level != "chip" and "g" in values:
                # What few timings say of a chip's cache is not lent to another.
                values = values | {"g": max(values["g"], LEAST_CACHE * values["h"])}
            return _found(family, wanted, level, chip, used, values)
    return None


def _chain(name: str, architecture: str | None, vendor: str | None, memory: str | None,
           size: tuple[float, ...], memory_decides: bool) -> dict[Level, list[str]]:
    """Chips to ask at each level, nearest first; siblings of another memory class stand last, and
    nowhere for kernels that only move data."""
    chips: dict[str, Any] = index()["chips"]

    def distance(chip: str) -> float:
        entry = chips[chip]
        far = sum(abs(a - b) for a, b in zip(size, (
            math.log(entry[k]) for k in SIZE), strict=True))
        return float(far + (10.0 if entry["memory_class"] != memory else 0.0))

    # Of chips alike in size the one with the most timings lends.
    others = sorted((c for c in chips if c != name),
                    key=lambda c: (round(distance(c), 6), -chips[c]["timings"]))
    kin = [c for c in others if architecture and chips[c]["architecture"] == architecture
           and not (memory_decides and chips[c]["memory_class"] != memory)]
    like = [c for c in others if c not in kin and chips[c]["memory_class"] == memory
            and chips[c]["vendor"] == vendor]
    return {"chip": [name] if name in chips else [], "architecture": kin, "memory": like,
            "generic": ["generic"]}


def _of_library(chip: str, family: str, format: str, library: str | None, entry: dict[str, Any]
                ) -> tuple[str, dict[str, Any]]:
    if library is not None and "/" in library:
        kernels = _load_kernels(chip).get(family, {}).get(format, {})
        if library in kernels:
            return library, kernels[library]
    framework = (library or "default").split("/")[0]
    used = framework if framework in entry else "default"
    return used, entry[used]


def build(family: str, values: dict[str, Any]) -> Constants:
    """Constants of a family from an entry of a file."""
    kind = FAMILIES[family]
    return kind(**{f: values[f"{f}_us"] * 1e-6 if f in TIMES else values[f]
                   for f in kind.__struct_fields__})


def entry_of(constants: Constants) -> dict[str, float]:
    """Entry of a file from constants: the inverse of `build`, to four digits."""
    def digits(x: float) -> float:
        return float(f"{x:.4g}")

    return {(f"{f}_us" if f in TIMES else f):
            digits(getattr(constants, f) * (1e6 if f in TIMES else 1.0))
            for f in constants.__struct_fields__}


def error(family: str, level: Level) -> float:
    """Typical factor by which a time at a level misses: measured, `fitted/index.yaml` says how."""
    return float(index()["errors"][family][level])


@lru_cache(maxsize=1)
def index() -> dict[str, Any]:
    """Chips with constants, what picks the nearest of them, and the errors of the levels."""
    return load_yaml(_folder / "index.yaml")


@lru_cache(maxsize=64)
def load(chip: str) -> dict[str, Any]:
    """family -> format -> library -> values of one chip."""
    return read(_folder / f"{chip}.yaml")


def read(path: Path) -> dict[str, Any]:
    """family -> format -> library -> values of one file, whose sets stand as `e=0.8 h=0.7 ...`."""
    def values(text: str) -> dict[str, float]:
        pairs = (word.split("=", maxsplit=1) for word in text.split())
        return {name: float(number) for name, number in pairs}

    return {family: {format: {library: values(text) for library, text in libraries.items()}
                     for format, libraries in formats.items()}
            for family, formats in (load_yaml(path) or {}).items()}


@lru_cache(maxsize=64)
def _load_kernels(chip: str) -> dict[str, Any]:
    path = _folder / f"{chip}.kernels.yaml"
    return read(path) if path.is_file() else {}


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read constants from another folder for a while, as a refit does to measure what it wrote."""
    global _folder    # noqa: PLW0603
    before, _folder = _folder, folder
    _forget()
    try:
        yield
    finally:
        _folder = before
        _forget()


def _forget() -> None:
    for cached in (index, load, _load_kernels, _find):
        cached.cache_clear()
