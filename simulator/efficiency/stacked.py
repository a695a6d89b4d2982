"""The kernel constants of several devices at once."""

from __future__ import annotations

from typing import Any

from simulator.efficiency import Efficiency, KernelConstants
from simulator.efficiency.levels import table_in_use
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.stack import Stack, UnstackableError, stacked


class StackedEfficiency(Efficiency):
    """What `Efficiency` says of each member, as arrays; `level` and `donor` are the first's."""

    def __init__(self, hardware: Stack, engine: Engine) -> None:
        super().__init__(hardware.members[0], engine)
        self.each = [Efficiency(member, engine) for member in hardware.members]
        self.spread = {phase: stacked([e.spread[phase] for e in self.each])
                       for phase in self.spread}
        self.units = stacked([e.units for e in self.each])

    def kernel(self, family: str, format: str = "bf16", phase: str = "decode") -> KernelConstants:
        """Constants of a kernel family in a number format."""
        key = (family, format, phase)
        if key not in self._kept:
            self._kept[key] = _stack_constants([e.kernel(family, format, phase) for e in self.each])
        return self._kept[key]


def _stack_constants(each: list[KernelConstants]) -> KernelConstants:
    values: dict[str, Any] = {}
    for name in each[0].__struct_fields__:
        column = [getattr(constants, name) for constants in each]
        if all(value == column[0] for value in column):
            values[name] = column[0]
        elif not all(isinstance(value, int | float) for value in column):
            # No exponent means the maximum, another formula.
            raise UnstackableError(name)
        else:
            values[name] = stacked(column)
    return KernelConstants(**values)


# Constants of devices under engines that were asked for, since an estimate asks again and again.
_KEPT: dict[tuple[int, int, int], tuple[Efficiency, Any]] = {}
MOST_KEPT = 256


def efficiency_of(hardware: Hardware, engine: Engine) -> Efficiency:
    """The constants of a device, or of several stacked into one."""
    if isinstance(hardware, Stack):
        # The cached object holds the engine, so its id stays its own.
        return hardware.kept(("efficiency", id(engine)),
                             lambda: StackedEfficiency(hardware, engine))
    key = (id(hardware), id(engine), id(table_in_use()))
    kept = _KEPT.get(key)
    if kept is None:
        if len(_KEPT) >= MOST_KEPT:
            _KEPT.clear()
        # The objects are held, so that their ids stay theirs.
        kept = _KEPT[key] = (Efficiency(hardware, engine), (hardware, engine, table_in_use()))
    return kept[0]
