"""Charts: each function draws a Matplotlib Figure and returns it with the data as a DataFrame.

    from simulator import Deployment, Workload, plots

    figure, data = plots.throughput(Deployment.of("llama-3.1-8b", "h100"), Workload(64, 2048, 256))
    figure.savefig("throughput.png")

Matplotlib and pandas are imported with the first chart, never with the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.plots.breakdown_chart import breakdown
    from simulator.plots.context_chart import context
    from simulator.plots.executor_chart import executor, measured_roofline
    from simulator.plots.latency_chart import latency
    from simulator.plots.memory_chart import memory
    from simulator.plots.pareto_chart import pareto
    from simulator.plots.roofline_chart import roofline
    from simulator.plots.style import Plot, save
    from simulator.plots.throughput_chart import cost, throughput
    from simulator.plots.validation_chart import three_steps, validation

# The modules end in _chart, since a function can't share its name with a module beside it.
_HOMES = {
    "breakdown": "breakdown_chart", "context": "context_chart", "cost": "throughput_chart",
    "executor": "executor_chart", "measured_roofline": "executor_chart",
    "latency": "latency_chart", "memory": "memory_chart", "pareto": "pareto_chart",
    "roofline": "roofline_chart", "throughput": "throughput_chart",
    "three_steps": "validation_chart", "validation": "validation_chart",
    "Plot": "style", "save": "style",
}  # fmt: skip

__all__ = ["Plot", "breakdown", "context", "cost", "executor", "latency", "measured_roofline",
           "memory", "pareto", "roofline", "save", "three_steps", "throughput", "validation"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
