"""A grid: which models, devices, formats, engines, degrees and workloads a sweep goes through.

Its rows are numbered: models x weights x activations x KV formats x engines x degrees, then
hardware, batch, input and output, the last one fastest. They are worked out in blocks of
consecutive rows, each small enough for a core's cache, so memory stays bounded whatever the size.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from simulator.deployment import Workload
from simulator.errors import InputError, nearest
from simulator.formats import number_format
from simulator.request import check_workload
from simulator.sharding import Parallelism
from simulator.specs.engine import Engine, load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import Model
from simulator.units import parse_list

MOST_ROWS = 10_000_000_000
BLOCK_ROWS = 32_768
_DEGREES = tuple(f.name for f in fields(Parallelism))


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one model, formats, engine and degrees: hardware x batch x input x
    output. It holds all it needs, so that a worker elsewhere can work it out.
    """

    model: Model
    hardware: tuple[Hardware, ...]
    engine: Engine
    weights: str | None
    activations: str
    kv: str | None
    parallelism: Parallelism
    prefix_hit: float
    price: float | None
    batch: Any
    input: Any
    output: Any

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Devices, batches, inputs, outputs."""
        return len(self.hardware), len(self.batch), len(self.input), len(self.output)

    @property
    def workload(self) -> Workload:
        """The workload along the last three of four axes."""
        return Workload(self.batch[None, :, None, None], self.input[None, None, :, None],
                        self.output[None, None, None, :])


@dataclass(frozen=True)
class Family:
    """Hardware and the degrees that it is used with, all alike."""

    hardware: tuple[Hardware, ...]
    parallelism: tuple[Parallelism, ...]


@dataclass(frozen=True)
class Grid:
    """What a sweep goes through; see `Grid.of` for names and lists instead of specs."""

    models: tuple[Model, ...]
    families: tuple[Family, ...]
    weights: tuple[str | None, ...]
    activations: tuple[str, ...]
    kv: tuple[str | None, ...]
    engines: tuple[Engine, ...]
    batch: Any
    input: Any
    output: Any
    prefix_hit: float = 0.0
    price: float | None = None
    block_rows: int = BLOCK_ROWS

    @classmethod
    def of(cls, models: Any, hardware: Any, batch: Any = 1, input: Any = 1024, output: Any = 256,
           weights: Any = None, activations: Any = "bf16", kv: Any = None, engines: Any = "vllm",
           parallelism: Any = None, prefix_hit: float = 0.0, price: float | None = None) -> Grid:
        """A grid from names, specs, and numbers or lists; every name is looked up now."""
        from simulator.specs.catalogue import load_model

        _check_share(prefix_hit)
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise InputError(f"price: {price} is not at least 0")
        grid = cls(
            models=tuple(m if isinstance(m, Model) else load_model(m)
                         for m in _listed("models", models)),
            families=_families(_listed("hardware", hardware), parallelism),
            weights=_formats("weights", weights),
            activations=tuple(f for f in _formats("activations", activations) if f),
            kv=_formats("kv", kv),
            engines=tuple(e if isinstance(e, Engine) else load_engine(e)
                          for e in _listed("engines", engines)),
            batch=_axis("batch", batch), input=_axis("input", input),
            output=_axis("output", output), prefix_hit=float(prefix_hit), price=price)
        if grid.rows > MOST_ROWS:
            raise InputError(f"the grid has {grid.rows:.3g} rows, the most is {MOST_ROWS:,}")
        return grid

    @property
    def combinations(self) -> int:
        """Choices of model, formats and engine."""
        return (len(self.models) * len(self.weights) * len(self.activations) * len(self.kv)
                * len(self.engines))

    @property
    def workloads(self) -> int:
        """Choices of batch, input and output."""
        return len(self.batch) * len(self.input) * len(self.output)

    @property
    def rows(self) -> int:
        """Rows of the whole table."""
        return self.workloads * self.combinations * sum(
            len(f.hardware) * len(f.parallelism) for f in self.families)

    @cached_property
    def _slices(self) -> tuple[tuple[int, int, int, int], ...]:
        """For each family: (axis that is cut, length of a piece, pieces, blocks of one choice)."""
        found = []
        for family in self.families:
            sizes = (len(family.hardware), len(self.batch), len(self.input), len(self.output))
            axis = next((k for k in range(4) if math.prod(sizes[k + 1:]) <= self.block_rows), 3)
            length = max(1, self.block_rows // max(math.prod(sizes[axis + 1:]), 1))
            if family.parallelism and any(p.devices > 1 for p in family.parallelism) and axis == 0:
                length = 1  # devices with links differ in more than numbers
            pieces = -(-sizes[axis] // length)
            found.append((axis, length, pieces, math.prod(sizes[:axis]) * pieces))
        return tuple(found)

    @cached_property
    def blocks(self) -> int:
        """Number of blocks."""
        return sum(self._of_family(i) for i in range(len(self.families)))

    def _of_family(self, index: int) -> int:
        return (self._slices[index][3] * self.combinations
                * len(self.families[index].parallelism))

    def block_size(self, index: int) -> int:
        """Rows of block `index`."""
        return math.prod(self._place(index)[2])

    def block(self, index: int) -> Block:
        """The rows of block `index`, 0 to `blocks` - 1."""
        family, choice, shape, starts = self._place(index)
        picks: list[Any] = []
        for options in (family.parallelism, self.engines, self.kv, self.activations, self.weights,
                        self.models):
            choice, pick = divmod(choice, len(options))
            picks.append(options[pick])
        degrees, engine, kv, activations, weights, model = picks
        axes = [axis[start:start + length] for axis, start, length in zip(
            (family.hardware, self.batch, self.input, self.output), starts, shape, strict=True)]
        return Block(model, axes[0], engine, weights, activations, kv, degrees, self.prefix_hit,
                     self.price, *axes[1:])

    def _place(self, index: int) -> tuple[Family, int, list[int], list[int]]:
        """Of a block: family, number of the choice, and lengths and starts along the four axes."""
        number = 0
        while index >= self._of_family(number):
            index -= self._of_family(number)
            number += 1
        family = self.families[number]
        axis, length, pieces, each = self._slices[number]
        choice, within = divmod(index, each)
        sizes = [len(family.hardware), len(self.batch), len(self.input), len(self.output)]
        starts, shape = [0, 0, 0, 0], list(sizes)
        within, piece = divmod(within, pieces)
        starts[axis] = piece * length
        shape[axis] = min(length, sizes[axis] - starts[axis])
        for k in reversed(range(axis)):
            within, starts[k] = divmod(within, sizes[k])
            shape[k] = 1
        return family, choice, shape, starts

    def fingerprint(self) -> str:
        """Changes with every number that a row depends on."""
        from simulator import __version__

        digest = hashlib.sha256(__version__.encode())
        for part in (self.models, [f.hardware for f in self.families], self.engines):
            digest.update(msgspec.json.encode(part))
        for axis in (self.batch, self.input, self.output):
            digest.update(axis.tobytes() + b"/")
        digest.update(repr((self.weights, self.activations, self.kv, self.prefix_hit, self.price,
                            self.block_rows, [f.parallelism for f in self.families])).encode())
        return digest.hexdigest()


def _listed(name: str, value: Any) -> list[Any]:
    items = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if not items:
        raise InputError(f"{name}: the list is empty")
    for item in items:
        if item is None or (isinstance(item, str) and not item.strip()):
            raise InputError(f"{name}: a name is empty")
    return list(dict.fromkeys(items)) if all(isinstance(i, str) for i in items) else items


def _formats(name: str, value: Any) -> tuple[str | None, ...]:
    """Number formats; None or `own` is the model's own, or that of the activations."""
    items: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if not items:
        raise InputError(f"{name}: the list is empty")
    found: dict[str | None, None] = {}
    for item in items:
        own = item is None or (isinstance(item, str) and item.strip().lower() == "own")
        if own and name == "activations":
            raise InputError("activations: name a format, for example bf16")
        found[None if own else number_format(item, name).name] = None
    return tuple(found)


def _axis(name: str, value: Any) -> Any:
    """A sorted-as-given axis of whole numbers from a number, a list, an array or `1:512:x2`."""
    if isinstance(value, str):
        value = parse_list(value, name)
    elif isinstance(value, list | tuple) and any(isinstance(v, str) for v in value):
        value = [x for v in value for x in (parse_list(v, name) if isinstance(v, str) else [v])]
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"{name}: {value!r} is not a number or a list of numbers") from None
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"{name}: the list is empty" if values.size == 0
                         else f"{name}: must be a number or a flat list")
    check_workload(Workload(**{name: values}))
    if np.any(values != np.floor(values)):
        raise InputError(f"{name}: {values[values != np.floor(values)][0]} is not a whole number")
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]


def _check_share(value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"prefix-hit: {value} does not lie between 0 and 1")


def degrees(value: Any) -> Parallelism:
    """Degrees from a Parallelism, a mapping or a text such as `tp=8,ep=8`."""
    if isinstance(value, Parallelism):
        return value
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",")]
        value = {key.strip().lower(): number.strip() for key, _, number in parts}
    if not isinstance(value, Mapping):
        raise InputError(f"parallelism: {value!r} is not degrees, write for example 'tp=8'")
    found: dict[str, int] = {}
    for key, number in value.items():
        if key not in _DEGREES:
            raise InputError(f"parallelism: unknown degree '{key}'{nearest(str(key), _DEGREES)}")
        try:
            found[key] = int(number)
        except (TypeError, ValueError):
            found[key] = 0
        if not 1 <= found[key] <= 4096 or found[key] != float(number or 0):
            raise InputError(f"parallelism: {key}: {number!r} is not between 1 and 4,096")
    return Parallelism(**found)


def _families(hardware: Sequence[Any], parallelism: Any) -> tuple[Family, ...]:
    """Hardware with equal degrees together; `4xh100` runs at the degrees that make 4 devices."""
    from simulator.specs.catalogue import load_hardware, split_devices

    asked: list[Parallelism] | None = None
    if parallelism is not None:
        items = parallelism if isinstance(parallelism, list | tuple) else [parallelism]
        asked = list(dict.fromkeys(degrees(p) for p in items))
        if not asked:
            raise InputError("parallelism: the list is empty")
    by_count: dict[int | None, list[Hardware]] = {}
    for item in hardware:
        count, name = split_devices(item) if isinstance(item, str) else (None, item)
        if count is not None and count > 4096:
            raise InputError(f"hardware '{item}': {count} devices, must be between 1 and 4,096")
        device = load_hardware(name) if isinstance(name, str) else name
        by_count.setdefault(count, []).append(device)
    families = []
    for count, devices in by_count.items():
        chosen = asked if asked is not None else [Parallelism(tp=count or 1)]
        if count is not None:
            chosen = [p for p in chosen if p.devices == count]
            if not chosen:
                raise InputError(f"'{count}x{devices[0].name}' is {count} devices, but none of "
                                 "the degrees asked for makes that many")
        families.append(Family(tuple(devices), tuple(chosen)))
    return tuple(families)


def product(**lists: Iterable[int]) -> list[Parallelism]:
    """Every combination of the degrees listed."""
    found = [Parallelism()]
    for name, values in lists.items():
        found = [replace(p, **{name: v}) for p in found for v in values]
    return list(dict.fromkeys(found))


