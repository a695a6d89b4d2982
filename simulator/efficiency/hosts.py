"""How fast the processor beside a device launches its kernels.

A step's host time is one thread's: it shrinks with the clock and with the instructions a cycle of
the machine that the device is sold in. An engine's constants are for the reference processor.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.specs.engine import Engine
from simulator.specs.hardware import Hardware
from simulator.specs.stack import Stack, stacked
from simulator.specs.strict_yaml import load_yaml


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return load_yaml(Path(__file__).with_name("hosts.yaml"))


def _speed(processor: str) -> float:
    """Turbo clock times instructions a cycle."""
    processors = _table()["processors"]
    if processor not in processors:
        raise InputError(f"host: unknown processor '{processor}'{nearest(processor, processors)}")
    clock, per_cycle = map(float, processors[processor].split())
    return clock * per_cycle


def host_of(hardware: Hardware) -> str | None:
    """The processor that a device states, or is usually found beside; None where it is its own
    host, or where nobody says.
    """
    if hardware.host is not None:
        return hardware.host
    return _host_of(hardware.name, f"{hardware.architecture} {hardware.memory_class}")


@lru_cache(maxsize=1024)
def _host_of(name: str, kind: str) -> str | None:
    hosts = _table()["hosts"]
    for key in (name, "-".join(name.split("-")[:2]), name.split("-", 1)[0], kind):
        if key in hosts:
            return str(hosts[key])
    return None


@lru_cache(maxsize=1024)
def _relative(processor: str | None) -> float:
    return 1.0 if processor is None else _speed(processor) / _speed(_table()["reference"])


def host_speed(hardware: Hardware) -> Array:
    """Single-thread speed of a device's host over the reference's; 1 where it isn't known."""
    if isinstance(hardware, Stack):
        return hardware.kept("host", lambda: stacked([host_speed(m) for m in hardware.members]))
    return _relative(host_of(hardware))


def host_times(engine: Engine, hardware: Hardware) -> tuple[Array, Array, Array]:
    """Host time [s] of a step, of a layer and of a sequence, on the device's own host."""
    speed = host_speed(hardware)
    return (engine.host_time / speed, engine.layer_time / speed, engine.sequence_time / speed)
