"""The type of every number in a formula: a float, or an array that broadcasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import msgspec
import numpy as np

# A float or a NumPy array. `Any` because NumPy's own stubs lose the scalar case in arithmetic.
Array: TypeAlias = Any


def larger(*values: Array) -> Array:
    """Largest of numbers or arrays, element by element; plain numbers stay plain."""
    return reduce(_larger, values)


def largest(values: Iterable[Array], default: Array = 0.0) -> Array:
    """Largest of any number of values, element by element; `default` where there are none."""
    found = list(values)
    return larger(*found) if found else default


def smaller(*values: Array) -> Array:
    """Smallest of numbers or arrays, element by element."""
    return reduce(_smaller, values)


def _larger(a: Array, b: Array) -> Array:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return max(a, b)
    return max(a, b) if np.ndim(a) == np.ndim(b) == 0 else np.maximum(a, b)


def _smaller(a: Array, b: Array) -> Array:
    return min(a, b) if np.ndim(a) == np.ndim(b) == 0 else np.minimum(a, b)


def several(value: Array) -> bool:
    """Whether it is an array of numbers, not one alone: `np.ndim` without its price."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def holds_arrays(value: Any) -> bool:
    """Whether a number in a spec, or in a tuple of them, is an array of numbers."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    if isinstance(value, msgspec.Struct):
        return any(holds_arrays(getattr(value, f)) for f in value.__struct_fields__)
    return isinstance(value, tuple) and any(map(holds_arrays, value))


def only_where(mask: Array, function: Callable[..., tuple[Array, ...]],
               otherwise: tuple[Array, ...], *values: Array) -> tuple[Array, ...]:
    """`function(*values)` where `mask` holds, worked out there alone; `otherwise` elsewhere."""
    if not several(mask):
        return function(*values) if mask else otherwise
    if not np.any(mask) or np.all(mask):
        return function(*values) if np.all(mask) else otherwise
    shape = np.broadcast_shapes(mask.shape, *map(np.shape, (*values, *otherwise)))
    places = np.nonzero(np.broadcast_to(mask, shape))

    def picked(value: Array) -> Array:
        axes = places[len(shape) - np.ndim(value):]
        return value[tuple(i if size > 1 else 0 for i, size in zip(axes, value.shape, strict=True))]

    found = tuple(np.zeros(shape) + other for other in otherwise)
    for whole, part in zip(found, function(*(picked(v) if several(v) else v for v in values)),
                           strict=True):
        whole[places] = part
    return found


def present(value: Array) -> bool:
    """Whether a count is there at all: not None and not 0 everywhere."""
    if isinstance(value, int | float):
        return value != 0
    return value is not None and bool(np.any(np.asarray(value) != 0))
