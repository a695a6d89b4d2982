"""The kernel constants of several devices at once."""

from __future__ import annotations

from typing import Any

from simulator.efficiency import Efficiency, KernelConstants
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

    def kernel(self, family: str, phase: str) -> KernelConstants:
        """Constants of a kernel family in a phase."""
        key = (family, phase)
        if key not in self._known:
            self._known[key] = _stack_constants([e.kernel(family, phase) for e in self.each])
        return self._known[key]


def _stack_constants(each: list[KernelConstants]) -> KernelConstants:
    values: dict[str, Any] = {}
    for name in each[0].__struct_fields__:
        column = [getattr(constants, name) for constants in each]
        if all(value == column[0] for value in column):
            values[name] = column[0]
        elif name == "p" or not all(isinstance(value, int | float) for value in column):
            # An exponent picks the formula, so it can't be an array.
            raise UnstackableError(name)
        else:
            values[name] = stacked(column)
    return KernelConstants(**values)


def efficiency_of(hardware: Hardware, engine: Engine) -> Efficiency:
    """The constants of a device, or of several stacked into one."""
    if isinstance(hardware, Stack):
        # The cached object holds the engine, so its id stays its own.
        return hardware.kept(("efficiency", id(engine)),
                             lambda: StackedEfficiency(hardware, engine))
    return Efficiency(hardware, engine)
