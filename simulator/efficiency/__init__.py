"""How close real kernels come to the roofline: constants by chip, kernel family and format.

Constants are data (`kernels.yaml`). A chip without its own borrows: same architecture, then same
memory class, then generic; each step is named in the estimate and widens its range.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from simulator.arrays import Array
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.strict_yaml import load_yaml

# No kernel measured so far moves or computes faster than this share of the peak.
FRACTION_CAP = 0.95


class KernelConstants(msgspec.Struct, frozen=True, gc=False):
    """e: share of peak FLOP/s; h: share of peak bandwidth; t0 [s]: floor; p: overlap exponent."""

    e: Array
    h: Array
    t0: Array
    p: float | None


IDEAL = KernelConstants(1.0, 1.0, 0.0, None)


class Efficiency:
    """The constants of one device under one engine.

    level    which step of the fallback chain they come from: ideal, chip, architecture, memory,
             generic, or spec (the hardware file states its own)
    donor    whose constants they are
    spread   factor by which the truth may lie above or below, by phase
    """

    def __init__(self, hardware: Hardware, engine: Engine) -> None:
        self.hardware, self.engine = hardware, engine
        self.level, self.donor, self._entry = _source(hardware, engine)
        self.spread: dict[str, float] = _table()["spread"][self.level]
        self._known: dict[tuple[str, str], KernelConstants] = {}

    def kernel(self, family: str, phase: str) -> KernelConstants:
        """Constants of a kernel family in a phase."""
        if self.engine.ideal:
            return IDEAL
        key = (family, phase)
        if key not in self._known:
            self._known[key] = self._constants(family, phase)
        return self._known[key]

    def _constants(self, family: str, phase: str) -> KernelConstants:
        values = _table()["generic"][family] | self._entry.get(family, {})
        own_e, own_h = self.hardware.compute_efficiency, self.hardware.bandwidth_efficiency
        scale = (1.0 if self.level == "spec" else
                 self.engine.prefill_scale if phase == "prefill" else self.engine.decode_scale)
        static = self.hardware.layer_overhead is not None
        return KernelConstants(
            e=_capped((values["e"] if own_e is None else own_e) / scale),
            h=_capped((values["h"] if own_h is None else own_h) / scale),
            t0=0.0 if static else values["t0_us"] * 1e-6 * scale,
            p=values["p"],
        )


def _capped(fraction: Array) -> Array:
    import numpy as np

    return min(fraction, FRACTION_CAP) if np.ndim(fraction) == 0 else np.minimum(
        fraction, FRACTION_CAP)


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return load_yaml(Path(__file__).with_name("kernels.yaml"))


def _source(hardware: Hardware, engine: Engine) -> tuple[str, str, dict[str, Any]]:
    """(level, donor, constants) of the nearest entry that the table has for a device.

    A hardware file that states `bandwidth_efficiency` or `compute_efficiency` overrides the
    table: that is how a chip that can't be bought yet, or one whose software is young, is told.
    One that states `layer_overhead` has no kernel launches: its program is static.
    """
    if engine.ideal:
        return "ideal", "physics", {}
    table = _table()
    own = (hardware.compute_efficiency, hardware.bandwidth_efficiency)
    for level, key in (("chip", hardware.name), ("architecture", hardware.architecture),
                       ("memory", hardware.memory_class)):
        entry = table[level].get(key)
        if entry is not None:
            if any(value is not None for value in own):
                return "spec", hardware.name, entry
            return level, entry.get("donor", str(key)), entry
    if any(value is not None for value in own):
        return "spec", hardware.name, {}
    return "generic", "all parts together", {}


def families() -> list[str]:
    """Kernel families that the table knows."""
    return list(_table()["generic"])
