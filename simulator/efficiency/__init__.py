"""How close real kernels come to the roofline: constants by chip, kernel family and format.

Constants are data. Those fitted to timings of kernels stand in `fitted/`, a file a chip; what was
never timed kernel by kernel (CPUs, NPUs, unified memory, SRAM, stacked DRAM) has priors by class
of memory in `kernels.yaml`. A chip without its own borrows: same architecture, then same vendor and
memory, then class of memory, then generic; each step is named in the estimate and widens its range.
What a whole device or engine does on top are levels (`levels.yaml`) and scales of the engine.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from simulator.arrays import Array, several, smaller
from simulator.efficiency.constants import (
    Chain,
    Experts,
    Found,
    Pass,
    Split,
    all_found,
    constants,
    constants_of,
    donor_key,
    index,
    libraries,
)
from simulator.efficiency.kernel_formats import kernel_format
from simulator.efficiency.levels import Level, level_of
from simulator.errors import InputError
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.strict_yaml import load_yaml

# No published batch-1 decode moves more than this share of the peak bandwidth, and no prefill
# computes more than this share of the right dense peak; the kernels of a whole step don't either.
BANDWIDTH_CAP, COMPUTE_CAP = 0.92, 0.85
# Caps of a single kernel on its own, in fits to its timings.
FRACTION_CAP = 0.95

# Factors of the range of a machine whose own kernels were timed: held about 80 % of the passes of
# the executor in trial runs (`tokline validate --executor` prints what they hold now).
MEASURED_SPREAD = {"prefill": 1.16, "decode": 1.25}
# Factor beyond which a range says nothing; the words say that rows lie outside even so.
WIDEST = 8.0
# Prompts below this length [tokens] measure launches more than arithmetic: a range of their own.
SHORT_PROMPT = 512

# Share of bandwidth below which a fit of experts tells of back ends that nobody serves with.
LEAST_OF_EXPERTS = 0.5
# The same of attention that writes a narrow cache out in 16 bits before it reads it: slower than
# leaving the cache in 16 bits, so engines choose another kernel.
LEAST_OF_CACHE = 0.3

# Which step of the fallback chain a level of the kernel constants is, for the whole device.
_ORDER = ("chip", "architecture", "memory")
# Families that every device has constants of its own for, where its kernels were timed.
_TELLING = ("gemm", "elementwise")
# Vendors whose kernels were timed: what others borrow is a prior by class of memory.
_TIMED_VENDORS = frozenset({"NVIDIA", "AMD"})


# Vector instructions of a multiply-add with a packed weight: shift, mask, convert, scale, and it.
INSTRUCTIONS_A_WEIGHT = 5.0
# The same on a processor, in multiply-adds of fp32: it has dot products of 8 bits, four to a lane,
# so that unpacking 4 bits is most of the work. Fewer bits, with scales of their own, take more.
PROCESSOR_INSTRUCTIONS = {"int2-weight": 5.0}
PROCESSOR_INSTRUCTIONS_A_WEIGHT = 1.25

# Cores that the floors of kernels.yaml mean on a processor: all wait for each other at the end of a
# kernel, which takes longer the more they are, by this power.
CORES_A_FLOOR, WAIT_FOR_CORES = 10.0, 0.7
# Library of fits to calls from Python: their floors are the processor's time, not the kernel's.
EAGER = "pytorch"


class KernelConstants(msgspec.Struct, frozen=True, gc=False):
    """e: share of peak FLOP/s; h: share of peak bandwidth; t0 [s]: floor; p: overlap exponent.

    tw [s]: start of a block; tau [s]: a step of the chain, or (decode attention) a byte of it.
    beta, cact, c2, te [s]: of experts, see efficiency/forms_moe.py.
    """

    e: Array
    h: Array
    t0: Array
    p: Array | None
    tw: Array = 0.0
    tau: Array = 0.0
    beta: Array = 0.0
    cact: Array = 0.0
    c2: Array = 0.0
    te: Array = 0.0

    @property
    def chained(self) -> bool:
        """Whether the kernel was timed with its tiles and its chain; a prior has neither."""
        if several(self.tw) or several(self.tau):
            return bool(np.any(self.tw)) or bool(np.any(self.tau))
        return bool(self.tw > 0 or self.tau > 0)


IDEAL = KernelConstants(1.0, 1.0, 0.0, None)


class Efficiency:
    """The constants of one device under one engine.

    level    which step of the fallback chain they come from: ideal, chip, architecture, memory,
             generic, spec (the hardware file states its own) or measured (it holds timed kernels)
    donor    whose constants they are
    known    whose end-to-end level the device has: device, architecture, vendor, memory or none
    units    compute units that kernels share; the donor's where the hardware file states none
    spread   factor by which the truth may lie above or below: prefill, that of short prompts,
             decode, and decode of one sequence on one device
    """

    def __init__(self, hardware: Hardware, engine: Engine) -> None:
        self.hardware, self.engine = hardware, engine
        self.timed = _timed(hardware)
        self.level, self.donor, self._entry = _source(hardware, engine, self.timed)
        self.units: Array = _units(hardware, self.donor)
        self._key = donor_key(hardware) if self.timed else None
        self._level = level_of(hardware)
        self.known = self._level.known
        self.spread: dict[str, float] = _spread(self.level, self._level, engine.name,
                                                  hardware.name)
        self._kept: dict[tuple[str, str, str], KernelConstants] = {}

    def prefill_spread(self, prompt: Array) -> Array:
        """Factor of the range of a prefill of prompts of so many tokens each."""
        return np.where(np.less(prompt, SHORT_PROMPT), self.spread["prefill_short"],
                        self.spread["prefill"])

    def kernel(self, family: str, format: str = "bf16", phase: str = "decode") -> KernelConstants:
        """Constants of a kernel family in a number format.

        The engine's scale on arithmetic holds in prefill: for few rows it runs other kernels.
        """
        if self.engine.ideal:
            return IDEAL
        key = (family, format, phase)
        if key not in self._kept:
            self._kept[key] = self._constants(family, format, phase)
        return self._kept[key]

    def _constants(self, family: str, format: str, phase: str) -> KernelConstants:
        h, engine = self.hardware, self.engine
        found = self._fitted(family, format) if self.timed else None
        base = self._prior(family, format) if found is None else _unified(
            found, self.units, h.memory_bandwidth)
        if found is not None and family == "gemm" and format != "bf16":
            base = msgspec.structs.replace(base, t0=smaller(base.t0, self._fused_floor()))
        if family == "gemm" and format == "int8-weight":
            # Widening 8 bits is no more work than unpacking 4.
            packed = self._fitted(family, "int4-weight") if self.timed else None
            if packed is not None:
                four = _unified(packed, self.units, h.memory_bandwidth)
                base = msgspec.structs.replace(base, e=np.maximum(base.e, four.e))
        spec = self.level in ("spec", "measured")
        scale = engine.compute_scale if phase == "prefill" else 1.0
        compute, memory = scale * self._level.compute, engine.memory_scale * self._level.memory
        if spec:
            compute, memory = (1.0 if level is None else level
                               for level in (h.compute_level, h.memory_level))
        if engine.dequantises and format.endswith("-weight"):
            # Read, written out at two bytes a value, and read again by the product.
            memory *= 1.0 + 4.0 / kernel_format(format).weight
        launch = 0.0 if h.layer_overhead is not None else 1.0 if spec else engine.launch_scale
        eager = engine.prefill_launch_scale if phase == "prefill" and not spec else 1.0
        own_e, own_h = h.compute_efficiency, h.bandwidth_efficiency
        if engine.vector_products and format.endswith("-weight"):
            share = COMPUTE_CAP * h.vector_peak / h.peak("fp16")[0]
            base = msgspec.structs.replace(base, e=share / _instructions(h, format))
        return msgspec.structs.replace(
            base,
            e=smaller((base.e if own_e is None else own_e) / compute, COMPUTE_CAP),
            h=smaller((base.h if own_h is None else own_h) / memory, BANDWIDTH_CAP),
            t0=base.t0 * launch * eager, tw=base.tw * launch, tau=base.tau * launch,
            te=base.te * launch)

    def _fused_floor(self) -> Array:
        """Floor of a product with packed or quantised values: that of 16 bits, and of a pass over
        its input. What timings of calls have beyond is work that an engine fuses or does once:
        finding the scale of the input, rearranging the weights.
        """
        product, one_pass = self._fitted("gemm", "bf16"), self._fitted("elementwise", "norm")
        if product is None or one_pass is None:
            return np.inf
        return sum(_unified(f, self.units, self.hardware.memory_bandwidth).t0
                   for f in (product, one_pass))

    def _fitted(self, family: str, format: str) -> Found | None:
        if family == "ssm" or self._key is None:
            return None
        if family == "elementwise" and format == "bf16":
            format = "norm"    # one pass over its data, as any that has no timings of its own
        if format == "fp32":
            format = "bf16"    # fp32 was timed in eager calls, with the processor's time in them
        try:
            found = constants_of(self._key, family, format, self.engine.kernels)
            if not _served(family, found):
                usual = constants_of(self._key, family, format)
                nearer = (usual, *(() if family == "moe" else all_found(self._key, family,
                                                                        found.format)))
                found = next((f for f in nearer if _served(family, f)), usual)
        except InputError:
            return None
        if found.level == "generic" or (isinstance(found.constants, Experts)
                                        and found.constants.h < LEAST_OF_EXPERTS):
            return None
        return found

    def _prior(self, family: str, format: str) -> KernelConstants:
        name = _prior_name(family, format)
        values = _table()["generic"][name] | self._entry.get(name, {})
        floor = values["t0_us"] * 1e-6
        if self.hardware.architecture == "cpu":
            floor = floor * (self.units / CORES_A_FLOOR) ** WAIT_FOR_CORES
        return KernelConstants(values["e"], values["h"], floor, values["p"])


def _instructions(hardware: Hardware, format: str) -> float:
    """Vector instructions of a multiply-add with a packed weight."""
    if hardware.architecture != "cpu":
        return INSTRUCTIONS_A_WEIGHT
    return PROCESSOR_INSTRUCTIONS.get(format, PROCESSOR_INSTRUCTIONS_A_WEIGHT)


def _served(family: str, found: Found) -> bool:
    """Whether engines serve with a kernel as fast as this fit says."""
    c = found.constants
    if libraries(family, found) == {EAGER}:
        return False
    if isinstance(c, Experts):
        return bool(min(c.h, 2.0 * c.e) >= LEAST_OF_EXPERTS)
    return not (isinstance(c, Split) and "-kv-" in found.format) or bool(c.h >= LEAST_OF_CACHE)


def _timed(h: Hardware) -> bool:
    """Whether kernels of the vendor were timed; an architecture of its tells a vendor untold."""
    if h.vendor is None:
        if not any(chip["architecture"] == h.architecture and chip["vendor"] in _TIMED_VENDORS
                   for chip in index()["chips"].values()):
            return False
    elif h.vendor not in _TIMED_VENDORS:
        return False
    return h.memory_class in (None, "hbm", "gddr", "lpddr")


def _units(hardware: Hardware, donor: str) -> Array:
    """Units that share the blocks of a kernel."""
    if hardware.units is not None:
        return hardware.units
    return float(index()["chips"].get(donor, {}).get("units", 1.0))


def _unified(found: Found, units: Array, bandwidth: Array) -> KernelConstants:
    """Constants of any family as one struct; in serving every byte comes from memory (g unused)."""
    c = found.constants
    if isinstance(c, Split):
        return KernelConstants(c.e, c.h, c.t0, c.p, c.tw, units / (c.beta * bandwidth))
    if isinstance(c, Chain):
        return KernelConstants(c.e, c.h, c.t0, c.p, c.tw, c.tau)
    if isinstance(c, Experts):
        return KernelConstants(c.e, c.h, c.t0, c.p, beta=c.beta, cact=c.cact, c2=c.c2, te=c.te)
    if isinstance(c, Pass):
        return KernelConstants(COMPUTE_CAP, c.h, c.t0, 2.0)
    raise TypeError(f"no kernel has constants of {type(c).__name__}")


def _prior_name(family: str, format: str) -> str:
    """Entry of kernels.yaml for a family and format."""
    if family == "gemm":
        if format in ("bf16", "fp32"):
            return "gemm"
        return ("gemm_weight_only" if format.endswith("-weight") else
                "gemm_fp4" if format in ("nvfp4", "mxfp4") else "gemm_fp8")
    return "attention_prefill" if family == "mla_prefill" else family


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return load_yaml(Path(__file__).with_name("kernels.yaml"))


@lru_cache(maxsize=1)
def spreads() -> dict[str, Any]:
    """Factors of the range by phase, and by how well a device is known."""
    return load_yaml(Path(__file__).with_name("spread.yaml"))


def spread_of(phase: str, known: str, engine: str = "", device: str = "") -> float:
    """Factor of the range of a phase; a class of memory alone tells no more than nothing.

    Of an engine on a device whose own rows lie far outside of it, a power of it.
    """
    factor = float(spreads()[phase]["none" if known == "memory" else known])
    return float(max(factor, min(factor ** far_outside(engine, device), WIDEST)))


def far_outside(engine: str, device: str) -> float:
    """Widths of the range that 80 % of the rows of an engine on a device need; 1: the usual.

    Of a device that several engines are far off on, the least of theirs for any other.
    """
    pairs = spreads().get("pairs", {})
    there = [power for name, power in pairs.items() if name.endswith(pair("", device))]
    return float(pairs.get(pair(engine, device), min(there) if len(there) > 1 else 1.0))


def pair(engine: str, device: str) -> str:
    """Name of an engine on a device, as spread.yaml has it."""
    return f"{engine} on {device}"


def _spread(level: str, known: Level, engine: str, device: str) -> dict[str, float]:
    if level == "ideal":
        return {"prefill": 1.0, "prefill_short": 1.0, "decode": 1.0, "one": 1.0}
    if level == "measured":
        return MEASURED_SPREAD | {"prefill_short": MEASURED_SPREAD["prefill"],
                                  "one": MEASURED_SPREAD["decode"]}
    # A statement in the hardware file is as good as its source: no better than a known device.
    how = "device" if level == "spec" else known.known
    return {phase: spread_of(name, how, engine, device) for phase, name in (
        ("prefill", "prefill"), ("prefill_short", "prefill_short"), ("decode", "decode"),
        ("one", "batch1_decode"))}


def _source(hardware: Hardware, engine: Engine, timed: bool) -> tuple[str, str, dict[str, Any]]:
    """(level, donor, priors) of a device.

    A hardware file that states `bandwidth_efficiency` or `compute_efficiency` overrides the
    constants: that is how a chip that can't be bought yet, or one whose software is young, is told.
    One that states `layer_overhead` has no kernel launches: its program is static.
    """
    if engine.ideal:
        return "ideal", "physics", {}
    prior = _table()["memory"].get(hardware.memory_class, {})
    if hardware.kernels:
        return "measured", hardware.name, prior
    if hardware.compute_efficiency is not None or hardware.bandwidth_efficiency is not None:
        return "spec", hardware.name, prior
    if timed:
        found = [constants(hardware, family, "bf16" if family == "gemm" else "norm")
                 for family in _TELLING]
        for level in _ORDER:
            for one in found:
                if one.level == level:
                    return level, one.donor, prior
    if prior:
        return "memory", str(prior.get("donor", hardware.memory_class)), prior
    return "generic", "all parts together", {}


def families() -> list[str]:
    """Kernel families that the table of priors knows."""
    return list(_table()["generic"])
