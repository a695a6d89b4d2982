"""A sweep's flags and its YAML file become a grid, a condition and a summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.specs.sourced import check_keys
from simulator.sweep_columns import NAMES
from simulator.sweep_grid import Grid, product
from simulator.sweep_summary import GOAL, OBJECTIVES, Summary
from simulator.units import parse_list
from simulator.where import check_where

_DEGREES = ("tp", "pp", "ep", "cp", "dp")
_WORDS = ("models", "hardware", "weights", "activations", "kv", "engines", "columns", "pareto")
_RANGES = ("batch", "input", "output", *_DEGREES)
_KEYS = (*_WORDS, *_RANGES, "parallelism", "prefix_hit", "price", "where", "goal", "top")


@dataclass(frozen=True)
class Question:
    """What a sweep is asked: the grid, rows to keep, what to print, and columns of the file."""

    grid: Grid
    where: str | None
    summary: Summary
    columns: tuple[str, ...] | None


def ask(path: str | None, options: Mapping[str, Any]) -> Question:
    """The question of a YAML file (where there is one) and of flags, which replace its keys."""
    asked = {} if path is None else _from_file(path)
    flags = {key.rstrip("_"): value for key, value in options.items() if value is not None}
    for kind in ("models", "hardware"):
        argument = flags.pop(f"{kind}_argument", None)
        if argument is not None:
            if kind in flags:
                raise InputError(f"{kind}: given twice, as '{argument}' and with --{kind}")
            flags[kind] = argument
    if any(n in flags for n in _DEGREES):
        asked.pop("parallelism", None)
    asked |= flags
    for kind in ("models", "hardware"):
        if not asked.get(kind):
            raise InputError(f"{kind}: name at least one, as in 'tokline sweep llama-3.1-8b h100 "
                             "--batch 1:512:x2'")
    for key in _WORDS:
        if key in asked:
            asked[key] = _words(key, asked[key])
    where = asked.get("where")
    if where is not None:
        check_where(str(where), NAMES)
    grid = Grid.of(
        prefix_hit=_number("prefix-hit", asked.get("prefix_hit", 0.0)),
        price=None if asked.get("price") is None else _number("price", asked["price"]),
        parallelism=_degrees(asked),
        **{k: asked[k] for k in ("models", "hardware", "weights", "activations", "kv", "engines")
           if k in asked},
        **{k: _range(k, asked[k]) for k in ("batch", "input", "output") if k in asked})
    top = _number("--top", asked.get("top", 10))
    if not 0 <= top <= 10_000 or top != int(top):
        raise InputError(f"--top: {top:g} is not between 0 and 10,000")
    summary = Summary(str(asked.get("goal", GOAL)), asked.get("pareto", OBJECTIVES), int(top))
    columns = asked.get("columns")
    return Question(grid, None if where is None else str(where), summary,
                    None if columns is None else tuple(columns))


def _from_file(path: str) -> dict[str, Any]:
    from simulator.specs.strict_yaml import load_yaml

    data = load_yaml(Path(path))
    check_keys(data, _KEYS, path)
    return {k: v for k, v in data.items() if v is not None}


def _words(key: str, value: Any) -> list[Any]:
    """`a,b` or a list."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise InputError(f"{key}: must be a list of names")
    found = [v.strip() if isinstance(v, str) else v for v in items]
    if any(not isinstance(v, str | None) for v in found):
        raise InputError(f"{key}: must be a list of names")
    return found


def _range(key: str, value: Any) -> list[float]:
    """Numbers of `1,2,8`, `1:512:x2`, a number, or a list of these."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | list):
        raise InputError(f"{key}: {value!r} is not a list or a range")
    if isinstance(value, list):
        return [x for v in value for x in _range(key, v)]
    return parse_list(str(value), key) if isinstance(value, str) else [float(value)]


def _degrees(asked: Mapping[str, Any]) -> Any:
    lists: dict[str, list[int]] = {}
    for name in _DEGREES:
        if name in asked:
            values = _range(name, asked[name])
            if not all(1 <= v <= 4096 and v == int(v) for v in values):
                raise InputError(f"{name}: every degree must be between 1 and 4,096")
            lists[name] = [int(v) for v in values]
    if lists and asked.get("parallelism") is not None:
        raise InputError("parallelism: give either it or tp, pp, ep, cp, dp")
    return product(**lists) if lists else asked.get("parallelism")


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{key}: {value!r} is not a number") from None
