"""tokline: how fast a language model runs on a chip, why, and what it would take.

The public names are imported on first use, so that `tokline --help` imports no NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.deployment import Deployment, Workload
    from simulator.errors import InputError
    from simulator.request import Estimate, estimate
    from simulator.sharding import Parallelism
    from simulator.specs.engine import Engine
    from simulator.specs.hardware import Hardware
    from simulator.specs.model import Model
    from simulator.sweep_grid import Grid
    from simulator.sweeps import sweep, sweep_chunks

__version__ = "0.1.0"

_HOMES = {
    "Hardware": "simulator.specs.hardware",
    "Model": "simulator.specs.model",
    "Engine": "simulator.specs.engine",
    "Deployment": "simulator.deployment",
    "Parallelism": "simulator.sharding",
    "Workload": "simulator.deployment",
    "sweep": "simulator.sweeps",
    "sweep_chunks": "simulator.sweeps",
    "Grid": "simulator.sweep_grid",
    "Estimate": "simulator.request",
    "estimate": "simulator.request",
    "InputError": "simulator.errors",
}

__all__ = ["Deployment", "Engine", "Estimate", "Grid", "Hardware", "InputError", "Model",
           "Parallelism", "Workload", "__version__", "estimate", "sweep", "sweep_chunks"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'simulator' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
