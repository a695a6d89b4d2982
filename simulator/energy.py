"""Energy of a pass: bytes, FLOPs, wire and idle power; never above the board's power.

E = Q e_mem + F e_op + wire e_link + P_idle t for each device (energies a byte already hold the
factor 8 of the published pJ/bit).
"""

from __future__ import annotations

import numpy as np

from simulator.arrays import Array
from simulator.specs.hardware import Hardware


def dynamic_energy(Q: Array, F: Array, wire: Array, e_mem: Array, e_op: Array,
                   e_link: Array) -> Array:
    """Energy [J] of moving Q [bytes], computing F [FLOP], and sending `wire` [bytes]."""
    return Q * e_mem + F * e_op + wire * e_link


def device_energy(dynamic: Array, t: Array, idle: Array, limit: Array) -> Array:
    """Energy [J] of one device over t [s]: dynamic plus idle, at most the power limit times t."""
    return np.minimum(dynamic + idle * t, limit * t)


def known(hardware: Hardware) -> bool:
    """Whether the spec has what the energy model needs."""
    needed = (hardware.memory_energy, hardware.compute_energy, hardware.idle_power, hardware.tdp)
    return all(value is not None for value in needed)


def pass_dynamic(hardware: Hardware, Q: Array, F: Array, wire: Array, load: Array = 1.0) -> Array:
    """Dynamic energy [J] of one device in a pass; call only where `known`.

    load   work of the mean device over that of the fullest: replicas without sequences only idle
    """
    link = 0.0 if hardware.link_energy is None else hardware.link_energy
    return dynamic_energy(Q, F, wire, load * hardware.memory_energy,
                          load * hardware.compute_energy, load * link)
