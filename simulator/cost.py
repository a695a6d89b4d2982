"""Dollars: the price of the devices over the time that a request takes, shared by its tokens."""

from __future__ import annotations

from simulator.arrays import Array


def usd_per_million_tokens(price: Array, devices: Array, tokens_per_s: Array) -> Array:
    """price [USD/s a device] x devices / (tokens/s of the deployment) x 1e6."""
    return price * devices / tokens_per_s * 1e6
