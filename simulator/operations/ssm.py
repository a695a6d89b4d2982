"""State-space and linear attention: a fixed state is read and written, whatever the context."""

from __future__ import annotations

from simulator.arrays import Array

# Engines keep the recurrent state in FP32 (mamba_ssm_cache_dtype) since errors accumulate in it.
STATE_BYTES = 4.0


def scan_flops(tokens: Array, width: Array, state: Array) -> Array:
    """Decay, update and read-out of the state: 3 multiply-adds a state value and token."""
    return 6.0 * tokens * width * state


def state_traffic(n: Array, values: Array) -> Array:
    """Bytes to read and write the state of n sequences once in a pass."""
    return 2.0 * n * values * STATE_BYTES
