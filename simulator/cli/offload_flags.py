"""The flags of a farther memory, and the deployment that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simulator.cli.common import real
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.deployment import Deployment, Workload

F = TypeVar("F", bound=Callable[..., Any])

_SHARES = ("weights", "experts", "kv")
_FLAGS = (*(f"offload_{name}" for name in _SHARES), "offload_to", "offload_overlap", "host_memory",
          "host_bandwidth")


def offload_options(function: F) -> F:
    """--offload-weights and its kin."""
    options = [
        click.option("--offload-weights", metavar="R",
                     help="Share of the weights in a farther memory, 0 to 1, or 'auto': just what "
                     "doesn't fit."),
        click.option("--offload-experts", metavar="R", help="The same of the routed experts."),
        click.option("--offload-kv", metavar="R", help="The same of the KV cache."),
        click.option("--offload-to", metavar="NAME", 
                     help="host, or a tier of the spec by (part of) its name [default: host]."),
        click.option("--offload-overlap", metavar="R", 
                     help="Share of the other work behind which far bytes hide, 0 to 1 "
                     "[default: 0]."),
        click.option("--host-memory", metavar="SIZE", help="Host memory for each device."),
        click.option("--host-bandwidth", metavar="RATE",
                     help="Bandwidth of host memory for each device, where below the link's."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def offloaded(deployment: Deployment, workload: Workload, options: dict[str, Any]) -> Deployment:
    """The deployment with what the flags put into a farther memory; takes the flags out."""
    given = {name: options.pop(name) for name in _FLAGS}
    asked = {name: given[f"offload_{name}"] for name in _SHARES
             if given[f"offload_{name}"] is not None}
    from simulator.offload import far_memory

    to = "host" if given["offload_to"] is None else given["offload_to"]
    if given["offload_to"] is not None:
        far_memory(deployment.hardware, to)
    if not asked:
        for flag in ("offload_to", "offload_overlap", "host_memory", "host_bandwidth"):
            if given[flag] is not None:
                raise InputError(f"--{flag.replace('_', '-')}: nothing is offloaded; add for "
                                 "example --offload-weights auto")
        return deployment
    from simulator.placement import placed
    from simulator.units import parse_quantity

    def size(flag: str, dimension: str) -> float | None:
        text = given[flag]
        if text is None:
            return None
        name = f"--{flag.replace('_', '-')}"
        if to.strip().lower() != "host":
            raise InputError(f"{name}: stands for --offload-to host only")
        value = float(parse_quantity(text, dimension, name))
        if value <= 0:
            raise InputError(f"{name}: '{text}' is not above 0")
        return value

    automatic = [name for name, text in asked.items() if text.lower() == "auto"]
    shares = {name: real(text, f"--offload-{name}", 0.0, 1.0)
              for name, text in asked.items() if name not in automatic}
    far = far_memory(deployment.hardware, to, size("host_bandwidth", "bandwidth"),
                     size("host_memory", "memory"))
    far = far.replace(overlap=real(given["offload_overlap"] or "0", "--offload-overlap", 0.0, 1.0),
                      **shares)
    return placed(deployment, workload, far, automatic)
