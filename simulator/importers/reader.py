"""Reads one block of a configuration: aliases, class defaults, types, and a note for each guess.

Configurations spell the same fact in many ways and leave out what equals the default of a class,
so a key is asked for by its canonical name and every answer that the file does not give is noted.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.errors import InputError
from simulator.importers.class_defaults import CLASS_DEFAULTS
from simulator.importers.keys import ALIASES, DIMENSIONS, KNOWN

LARGEST = 10**9
MOST_LAYERS = 10_000
# Facts that files give in several spellings with unequal values; the first spelling counts.
LOOSE = frozenset(("positions", "vocabulary"))


def short(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def defaults_of(kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of a class by canonical name; `own` are those that no field of the class holds."""
    table = CLASS_DEFAULTS.get("deepseek_v3" if kind == "kimi_k2" else kind, {})
    named = {name: table[key] for name, keys in ALIASES.items() for key in keys if key in table}
    return {**own, **table, **named}


class Config:
    """A block of a configuration file, with the class defaults of its family.

    where     file (and nested block) named in messages
    defaults  what the configuration class assumes where the file says nothing
    origin    that class, named in notes
    nested    the block is a nested one: such blocks are saved as differences to the class
              defaults, so even dimensions may be left out
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        where: str,
        notes: list[str],
        *,
        defaults: Mapping[str, Any] | None = None,
        origin: str = "",
        nested: bool = False,
    ) -> None:
        self.data = data
        self.where = where
        self.notes = notes
        self.defaults = dict(defaults or {})
        self.origin = origin
        self.nested = nested
        self.read: set[str] = set()

    def note(self, text: str) -> None:
        """Record what was inferred, once."""
        if text not in self.notes:
            self.notes.append(text)

    def found(self, name: str) -> tuple[str, Any] | None:
        """(key, value) of the first alias of `name` that has a value; null counts as missing."""
        keys = ALIASES.get(name, (name,))
        told = [(key, self.data[key]) for key in keys if self.data.get(key) is not None]
        if not told:
            return None
        self.read.update(k for k, v in told if v == told[0][1] or name in LOOSE)
        return told[0]

    def unused(self, *names: str) -> None:
        """Record that the class has these keys and does not use them in this file."""
        for name in names:
            self.read.update(ALIASES.get(name, (name,)))

    def has_null(self, name: str) -> bool:
        """Whether the file says null, which switches an optional part off."""
        keys = ALIASES.get(name, (name,))
        return any(key in self.data and self.data[key] is None for key in keys)

    def _default(self, name: str) -> Any:
        if name not in self.defaults or (name in DIMENSIONS and not self.nested):
            return None
        value = self.defaults[name]
        if value is not None:
            key = ALIASES.get(name, (name,))[0]
            self.note(f"{key}: not in the file, {short(value)} is the default of {self.origin}")
        return value

    def raw(self, name: str) -> Any:
        """Value of any type, or the class default, or None."""
        found = self.found(name)
        return self._default(name) if found is None else found[1]

    def optional(self, name: str, least: int = 1) -> int | None:
        """An integer that may be absent; an explicit null wins over the class default."""
        found = self.found(name)
        if found is not None:
            return self._integer(found[0], found[1], least)
        if self.has_null(name):
            return None
        value = self._default(name)
        return None if value is None else self._integer(name, value, least)

    def integer(self, name: str, fallback: int | None = None, why: str = "",
                least: int = 1) -> int:
        """An integer that must be there, be a class default, or be the noted `fallback`."""
        found = self.found(name)
        value = self._default(name) if found is None else found[1]
        key = ALIASES.get(name, (name,))[0] if found is None else found[0]
        if value is None and fallback is not None:
            self.note(f"{key}: missing, taken as {fallback}{f' ({why})' if why else ''}")
            return fallback
        if value is None:
            raise InputError(f"{self.where}: '{key}' is missing{self._lookalike(name)}")
        return self._integer(key, value, least)

    def number(self, name: str, fallback: float) -> float:
        """A positive number; `fallback` where it is missing."""
        found = self.found(name)
        value = self._default(name) if found is None else found[1]
        if value is None:
            self.note(f"{name}: missing, taken as {fallback}")
            return fallback
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise InputError(f"{self.where}: {name}: {value!r} is not a number above 0")
        return float(value)

    def flag(self, name: str, fallback: bool = False) -> bool:
        """A true or false; the class default, else `fallback`, where it is missing."""
        found = self.found(name)
        value = self._default(name) if found is None else found[1]
        if value is None:
            key = ALIASES.get(name, (name,))[0]
            self.note(f"{key}: not in the file, {str(fallback).lower()} is the default of "
                      f"{self.origin}")
            return fallback
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise InputError(f"{self.where}: {name}: {value!r} is not true or false")
        return bool(value)

    def listed(self, name: str) -> Sequence[Any] | None:
        """A list, or None where there is none."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise InputError(f"{self.where}: {name}: {short(value)} is not a list")
        return value

    def per_layer(self, name: str, index: int, layers: int, least: int = 1) -> int | None:
        """An integer that may be given once or as a list with one entry a layer."""
        found = self.found(name)
        if found is not None and isinstance(found[1], list):
            key, values = found
            if len(values) != layers:
                raise InputError(f"{self.where}: {key}: {len(values)} entries for {layers} layers")
            return self._integer(f"{key}[{index}]", values[index], least)
        return self.optional(name, least)

    def layer_list(self, name: str, layers: int) -> Sequence[Any] | None:
        """A list with one entry a layer, or None where there is none or it is empty."""
        values = self.listed(name)
        if not values:
            return None
        if len(values) != layers:
            raise InputError(f"{self.where}: {name}: {len(values)} entries for {layers} layers")
        return values

    def block(self, name: str) -> Config | None:
        """A nested block, read with the same defaults."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InputError(f"{self.where}: {name}: {short(value)} is not a mapping")
        return Config(value, f"{self.where}: {name}", self.notes, origin=self.origin,
                      nested=self.nested)

    def layers(self) -> int:
        """Number of layers, bounded so that a typing error cannot exhaust memory."""
        count = self.integer("layers")
        if count > MOST_LAYERS:
            raise InputError(f"{self.where}: {self.key('layers')}: {count} is more than "
                             f"{MOST_LAYERS} layers")
        return count

    def key(self, name: str) -> str:
        """The file's own spelling of `name`."""
        found = self.found(name)
        return ALIASES.get(name, (name,))[0] if found is None else found[0]

    def _integer(self, key: str, value: Any, least: int) -> int:
        if isinstance(value, float) and abs(value) <= LARGEST and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            hint = ", write it without quotes" if isinstance(value, str) else ""
            raise InputError(f"{self.where}: {key}: {short(value)} is not an integer{hint}")
        if not least <= value <= LARGEST:
            raise InputError(f"{self.where}: {key}: {value} is not between {least} and {LARGEST}")
        return value

    def _lookalike(self, name: str) -> str:
        keys = [k for k in self.data if k not in KNOWN]
        for alias in ALIASES.get(name, (name,)):
            close = difflib.get_close_matches(alias, keys, 1, 0.75)
            if close:
                return f" (is '{close[0]}' meant to be '{alias}'?)"
        return ""
