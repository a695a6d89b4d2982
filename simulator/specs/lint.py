"""What a hardware file says that can hardly be true, and what it leaves without a source.

Nearly every wrong simulator input is one of a few slips: a sparse peak taken for a dense one, GB
taken for GiB, twice the family's rate, or a number that nobody can trace. The checks are pure
and look at one device; a `note` beside a value says that an odd ratio is meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from simulator.specs.hardware import QUANTITIES, Hardware
from simulator.specs.sourced import Provenance
from simulator.units import format_flops, format_memory

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One complaint about one key of a device."""

    level: Level
    key: str
    message: str


# FLOP of dense fp16 per unit (SM or CU) and cycle that the largest part of a family does with
# fp32 accumulation. Read off the catalogue (peak / units / clock); smaller parts of the family
# do a half or a quarter, no part does more.
FAMILY_RATE: Final[dict[str, float]] = {
    "volta": 1024, "turing": 1024, "ampere": 2048, "ada": 1024, "hopper": 4096,
    "blackwell": 8192, "cdna2": 1024, "cdna3": 2048, "cdna4": 4096, "rdna3": 512,
    "rdna3.5": 512, "rdna4": 1024, "mn-core": 512,
}  # fmt: skip

# Ridge point [FLOP/B] = dense fp16 or bf16 peak / memory bandwidth, the span of the catalogue
# rounded outwards. Ends of the catalogue: hbm MI210 111, TPU v6e 560; gddr RTX 3060 71,
# MN-Core 2 768; lpddr Apple M1 26, MN-Core 1310; ddr Graviton3 35, Xeon 8480+ 746;
# sram WSE-3 0.74, Groq 2.35; stacked MN-Core L 31 (fp8 study point 68).
RIDGE_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "hbm": (100, 600), "gddr": (60, 800), "lpddr": (20, 1400), "ddr": (25, 800),
    "sram": (0.5, 5), "stacked": (10, 150),
}  # fmt: skip
RIDGE_ERROR: Final = 4.0
"""Beyond the bounds by this factor a unit or a prefix is wrong; nearer, the device is only odd."""

MATRIX_TO_VECTOR: Final = (0.9, 40.0)
"""Dense fp16 over fp32 vector peak: 1 for shader cores to 33 (Jetson Thor) in the catalogue."""

BINARY_SLIP: Final = 2.0**30 / 1e9
CAPACITY_TOLERANCE: Final = 0.10
_SAME: Final = 0.02
_SLIP_TOLERANCE: Final = 0.003
_EXACT: Final = 0.004

_SPARSE_ENTRY: Final = re.compile(r"([^;=]*)=\s*(\d+(?:\.\d+)?)")
_PRECISION: Final = re.compile(r"bf16|tf32|fp\d+|int\d+")
_SAME_UNITS: Final = {"fp16": ("fp16", "bf16"), "bf16": ("fp16", "bf16")}
_KEY_NUMBERS: Final = ("memory_bandwidth", "memory_capacity")


def lint(hardware: Hardware) -> list[Finding]:
    """All findings about a device as its file gives it, errors first."""
    findings = [finding for check in _CHECKS for finding in check(hardware)]
    return sorted(findings, key=lambda finding: finding.level != "error")


def _values(hardware: Hardware) -> dict[str, float]:
    """The numbers that the device gives, by key."""
    return {key: getattr(hardware, key) for key in QUANTITIES
            if getattr(hardware, key) is not None}


def _provenance(hardware: Hardware, key: str) -> Provenance:
    return hardware.provenance.get(key, Provenance())


def _near(value: float, target: float, tolerance: float = _SAME) -> bool:
    return abs(value / target - 1) <= tolerance


def _half_precision(hardware: Hardware) -> tuple[str, float] | None:
    """Key and value of the 16-bit peak; None for a device that publishes none."""
    for key in ("peak_bf16", "peak_fp16"):
        value: float | None = getattr(hardware, key)
        if value is not None:
            return key, value
    return None


def _sparse_rates(text: str) -> Iterator[tuple[str, float]]:
    """(precision, FLOP/s) for each `fp16=624` of a sparse marketing text, which counts in tera."""
    for names, number in _SPARSE_ENTRY.findall(text):
        for precision in _PRECISION.findall(names):
            yield precision, float(number) * 1e12


def check_sparse_text(hardware: Hardware) -> Iterator[Finding]:
    """A peak that equals the marketed sparse figure of its own precision."""
    for precision, rate in _sparse_rates(hardware.sparse_marketing or ""):
        for name in _SAME_UNITS.get(precision, (precision,)):
            key = f"peak_{name}"
            value: float | None = getattr(hardware, key, None)
            if value is not None and _near(value, rate):
                yield Finding("error", key, f"{format_flops(value)} is the sparse figure of "
                                            f"'{hardware.sparse_marketing}'; peaks are dense")


def check_fp8_ratio(hardware: Hardware) -> Iterator[Finding]:
    """fp8 runs at the 16-bit rate or at twice it; any other ratio needs a note to be believed."""
    half = _half_precision(hardware)
    if half is None or hardware.peak_fp8 is None:
        return
    ratio = hardware.peak_fp8 / half[1]
    noted = any(_provenance(hardware, key).note for key in ("peak_fp8", half[0]))
    if not noted and not any(_near(ratio, usual, 0.03) for usual in (1.0, 2.0)):
        yield Finding("error", "peak_fp8", f"{ratio:.2f} times {half[0]}, where 1 or 2 is usual: "
                                           "one of them looks sparse (a note beside the value "
                                           "says that it is meant)")


def check_vector_ratio(hardware: Hardware) -> Iterator[Finding]:
    """The 16-bit matrix peak against the fp32 vector peak."""
    half = _half_precision(hardware)
    vector = hardware.vector_fp32 or hardware.peak_fp32
    if half is None or vector is None:
        return
    low, high = MATRIX_TO_VECTOR
    ratio = half[1] / vector
    if not low <= ratio <= high:
        yield Finding("error", half[0], f"{ratio:.3g} times the fp32 vector peak, "
                                        f"where {low:g} to {high:g} is known")


def check_family_rate(hardware: Hardware) -> Iterator[Finding]:
    """FLOP per unit and cycle against the family's largest part: sparse counts come out double."""
    half = _half_precision(hardware)
    usual = FAMILY_RATE.get(hardware.architecture or "")
    if half is None or usual is None or not hardware.units or not hardware.clock:
        return
    rate = half[1] / hardware.units / hardware.clock
    if rate > 1.5 * usual:
        yield Finding("error", half[0], f"{rate:.0f} FLOP per unit and cycle, where "
                                        f"{hardware.architecture} does at most {usual:.0f}: "
                                        "sparse, or another part's clock")


def check_capacity(hardware: Hardware) -> Iterator[Finding]:
    """Capacity against the marketed figure: GB for GiB, or another device's memory.

    A measured capacity above the marketed one is no slip: an "80 GB" part holds 80 GiB.
    """
    marketing = hardware.memory_capacity_marketing
    if marketing is None or "memory_capacity" in hardware.ranges:
        return
    ratio = hardware.memory_capacity / marketing
    measured = _provenance(hardware, "memory_capacity").confidence == "measured"
    sizes = f"{format_memory(hardware.memory_capacity)} against {format_memory(marketing)} marketed"
    if (not measured and _near(ratio, BINARY_SLIP, _SLIP_TOLERANCE)) or _near(
            ratio, 1 / BINARY_SLIP, _SLIP_TOLERANCE):
        yield Finding("error", "memory_capacity", f"{sizes}: GB and GiB are mixed up")
    elif abs(ratio - 1) > CAPACITY_TOLERANCE:
        yield Finding("error", "memory_capacity", f"{sizes}: {ratio:.3g} times as much")


def check_ridge(hardware: Hardware) -> Iterator[Finding]:
    """The ridge point against the span of the device's memory class."""
    half = _half_precision(hardware)
    bounds = RIDGE_BOUNDS.get(hardware.memory_class or "")
    if half is None or bounds is None:
        return
    ridge = half[1] / hardware.memory_bandwidth
    low, high = bounds
    if low <= ridge <= high:
        return
    excess = max(low / ridge, ridge / high)
    level: Level = "error" if excess > RIDGE_ERROR else "warning"
    yield Finding(level, "memory_bandwidth", f"ridge point {ridge:.3g} FLOP/B ({half[0]}), where "
                                             f"{hardware.memory_class} devices have "
                                             f"{low:g} to {high:g}")


@lru_cache(maxsize=1)
def _catalogue() -> tuple[Hardware, ...]:
    from simulator.specs.catalogue import catalogue, load_hardware

    return tuple(load_hardware(name) for name in catalogue("hardware"))


def check_known_sparse(hardware: Hardware) -> Iterator[Finding]:
    """A peak that is the marketed sparse figure of some device, and no device's dense one."""
    for precision in ("bf16", "fp16", "fp8", "int8", "fp4"):
        key = f"peak_{precision}"
        value: float | None = getattr(hardware, key)
        if value is None or _provenance(hardware, key).note or any(
                _near(getattr(d, key) or -1.0, value, _EXACT) for d in _catalogue()):
            continue
        owner = next((d.name for d in _catalogue()
                      for p, rate in _sparse_rates(d.sparse_marketing or "")
                      if precision in (p, *_SAME_UNITS.get(p, ())) and _near(value, rate, _EXACT)),
                     None)
        if owner is not None:
            yield Finding("error", key, f"{format_flops(value)} is the sparse figure of {owner}; "
                                        "peaks are dense")


def check_known_bandwidth(hardware: Hardware) -> Iterator[Finding]:
    """A bandwidth off by a prefix, or by GiB for GB, from a device with the very same peak."""
    half = _half_precision(hardware)
    if half is None or any(d.name == hardware.name for d in _catalogue()):
        return
    for d in _catalogue():
        other = _half_precision(d)
        if other is None or not _near(other[1], half[1], _EXACT):
            continue
        ratio = hardware.memory_bandwidth / d.memory_bandwidth
        if any(_near(ratio, slip, _SLIP_TOLERANCE) for slip in (
                BINARY_SLIP, 1 / BINARY_SLIP, 0.1, 10.0, 1e-3, 1e3)):
            yield Finding("error", "memory_bandwidth",
                          f"{ratio:.4g} times that of {d.name}, which has the same peak: "
                          "a prefix, or GiB for GB")


def check_class(hardware: Hardware) -> Iterator[Finding]:
    """Without a memory class the ridge point can only be held against all classes together."""
    half = _half_precision(hardware)
    if hardware.memory_class is not None or half is None:
        return
    ridge = half[1] / hardware.memory_bandwidth
    low, high = 10.0, 1400.0
    yield Finding("warning", "memory_class", "unknown: the ridge point is held against all "
                                             "classes together, and constants are generic")
    if not low <= ridge <= high:
        yield Finding("error", "memory_bandwidth", f"ridge point {ridge:.3g} FLOP/B ({half[0]}), "
                                                   f"where DRAM devices have {low:g} to {high:g}")


def _sources(hardware: Hardware) -> Iterator[tuple[str, Provenance]]:
    for key in _values(hardware):
        yield key, _provenance(hardware, key)
    for tier in hardware.tiers:
        yield f"tiers.{tier.name}", tier.provenance


def check_sources(hardware: Hardware) -> Iterator[Finding]:
    """Numbers that nobody can trace, and those that nobody has read in their source."""
    for key, provenance in _sources(hardware):
        if provenance.source is None:
            yield Finding("error", key, "has no source")
        elif not provenance.verified:
            yield Finding("warning", key, f"not verified ({provenance.confidence}: "
                                          f"{provenance.source})")


def check_dates(hardware: Hardware) -> Iterator[Finding]:
    """A price moves by the month, so that one without a date is worth nothing."""
    for key, provenance in _sources(hardware):
        if provenance.date is None and (key == "price" or provenance.source is not None):
            level: Level = "error" if key == "price" else "warning"
            yield Finding(level, key, "has no date")


def check_announced(hardware: Hardware) -> Iterator[Finding]:
    """A part that nobody has measured carries ranges or inferred numbers, not facts."""
    if hardware.status not in ("announced", "hypothetical"):
        return
    for key in _values(hardware):
        if not (key in _KEY_NUMBERS or key.startswith("peak_")) or key in hardware.ranges:
            continue
        confidence = _provenance(hardware, key).confidence
        if confidence == "announced":
            yield Finding("warning", key, "a vendor's announced point, not a measured one")
        elif confidence != "inferred":
            yield Finding("error", key, f"a point with confidence '{confidence}' on a part that "
                                        f"is {hardware.status}: give low, mid and high, or "
                                        "mark it inferred")


_CHECKS: Final[tuple[Callable[[Hardware], Iterator[Finding]], ...]] = (
    check_sparse_text, check_fp8_ratio, check_vector_ratio, check_family_rate, check_capacity,
    check_ridge, check_class, check_known_sparse, check_known_bandwidth, check_sources, check_dates,
    check_announced,
)  # fmt: skip
