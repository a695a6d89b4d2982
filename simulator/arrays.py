"""The type of every number in a formula: a float, or an array that broadcasts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, TypeAlias

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


def present(value: Array) -> bool:
    """Whether a count is there at all: not None and not 0 everywhere."""
    if isinstance(value, int | float):
        return value != 0
    return value is not None and bool(np.any(np.asarray(value) != 0))
