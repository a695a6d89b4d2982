"""The type of every number in a formula: a float, or an array that broadcasts."""

from __future__ import annotations

from typing import Any, TypeAlias

# A float or a NumPy array. `Any` because NumPy's own stubs lose the scalar case in arithmetic.
Array: TypeAlias = Any
