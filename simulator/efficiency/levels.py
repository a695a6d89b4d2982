"""How a whole device does against the constants of its kernels, from measured end-to-end rows.

Clocks, cooling, error correction and young software slow a device down as a whole. A level is a
factor on the times of its kernels: of the device where rows of it were fitted, else of its
architecture, else of its vendor's class of memory, else of the class of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from simulator.specs.hardware import Hardware
from simulator.specs.strict_yaml import load_yaml


class Level(msgspec.Struct, frozen=True):
    """Factors on the times of memory, of arithmetic and of collectives; `of` names their owner."""

    memory: float = 1.0
    compute: float = 1.0
    of: str = ""
    known: str = "none"


@lru_cache(maxsize=1)
def _packaged() -> dict[str, Any]:
    """The file's entries, `memory=1.02 compute=0.98`: texts, since maps take longer to read."""
    return {kind: entries if kind == "link" else {
        name: {k: float(v) for k, v in (word.split("=") for word in text.split())}
        for name, text in entries.items()}
        for kind, entries in load_yaml(Path(__file__).with_name("levels.yaml")).items()}


_instead: ContextVar[dict[str, Any] | None] = ContextVar("levels", default=None)


def table_in_use() -> dict[str, Any]:
    """The levels in force: the packaged ones, or those of `levels`."""
    instead = _instead.get()
    return _packaged() if instead is None else instead


@contextmanager
def levels(table: dict[str, Any]) -> Iterator[None]:
    """Use these levels instead of the packaged ones, as a fit does."""
    token = _instead.set(table)
    try:
        yield
    finally:
        _instead.reset(token)


# Rows of a device from which its own level counts as known.
FEWEST_ROWS = 3


def owners(hardware: Hardware) -> list[tuple[str, str]]:
    """(kind, name) of whose level holds, the nearest first."""
    memory = hardware.memory_class or "other"
    if hardware.architecture == "cpu":
        memory = f"{memory} cpu"    # cores reach less of a memory than an accelerator beside them
    vendor = f"{(hardware.vendor or 'other').lower()} {memory}"
    # Chips of an architecture differ by their memory; what makes a processor is not one.
    kind = vendor if hardware.architecture == "cpu" else (
        f"{hardware.architecture or 'other'} {memory}")
    return [("device", hardware.name), ("architecture", kind), ("vendor", vendor),
            ("memory", memory)]


def level_of(hardware: Hardware) -> Level:
    """The level of a device, or of what it is most like; a file that states its own knows best."""
    found, stated = _fitted(hardware), {
        kind: value for kind, value in (("memory", hardware.memory_level),
                                        ("compute", hardware.compute_level)) if value is not None}
    if not stated:
        return found
    return msgspec.structs.replace(found, **stated, of=hardware.name, known="device")


def _fitted(hardware: Hardware) -> Level:
    for kind, name in owners(hardware):
        entries = table_in_use().get(kind, {})
        if kind == "architecture" and hardware.memory_class is None:
            of = next((n for n in entries if n.split()[0] == hardware.architecture), name)
        else:
            of = name
        entry = entries.get(of)
        if entry is not None and entry.get("rows", FEWEST_ROWS) >= FEWEST_ROWS:
            return Level(entry["memory"], entry["compute"], of, kind)
    return Level()


def link_level(kind: str | None) -> float:
    """Factor on the times of collectives over a kind of link."""
    return float(table_in_use().get("link", {}).get(kind or "other", 1.0))
