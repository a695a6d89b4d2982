"""The times of cases in parts, so that a fit can scale each.

The step model gives the parts at some constants; a fit looks for factors on them. Since the bound
of a kernel moves with the constants, a fit takes the parts again at what it found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.arrays import Array
from simulator.deployment import Deployment, Workload
from simulator.efficiency import BANDWIDTH_CAP, COMPUTE_CAP
from simulator.efficiency.hosts import host_speed
from simulator.efficiency.levels import levels, owners
from simulator.network import link_class
from simulator.request import estimate
from simulator.specs.hardware import Hardware
from simulator.step import PassTime
from simulator.validation.cases import Case
from simulator.validation.predict import (
    Serving,
    Terms,
    balance_steps,
    batches,
    by_setup,
    rounds_of,
    setup_arrays,
    workloads,
)

SCALES = ("compute_scale", "memory_scale", "launch_scale", "prefill_launch_scale")


@dataclass
class Constants:
    """Fitted constants by name.

    engines   engines[constant][engine]
    levels    levels[kind][owner] = {"memory": factor, "compute": factor}, kinds as in `owners`
    links     factor on collectives by kind of link
    """

    engines: dict[str, dict[str, float]] = field(default_factory=dict)
    levels: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    links: dict[str, float] = field(default_factory=dict)

    def scales(self, engine: str) -> dict[str, float]:
        """Scales of an engine; 1 where nothing was fitted."""
        return {name: self.engines.get(name, {}).get(engine, 1.0) for name in SCALES}

    def table(self) -> dict[str, Any]:
        """As `efficiency.levels` reads it."""
        return {**self.levels, "link": self.links}


@dataclass
class Pass:
    """Parts of one pass [s]: arithmetic, memory, launches, collectives; the ceiling; its passes.

    least   (arithmetic, memory) at the caps of both, below which no factor brings them
    floors  what of the launches is floors that the host makes longer in eager prefill
    """

    least: Any
    compute: Array
    memory: Array
    launches: Array
    network: Array
    ceiling: Array
    passes: Array
    sequences: Array
    floors: Array

    def time(self, factors: tuple[Array, Array, Array, Array], host: tuple[Array, Array],
             hidden: Array, eager: Array = 1.0) -> Array:
        """Each part by its factor, and host time, added or hidden behind the kernels."""
        launches = self.launches + (eager - 1.0) * self.floors
        parts = (self.compute, self.memory, launches, self.network)
        scaled = [f * p for f, p in zip(factors, parts, strict=True)]
        device = (np.maximum(scaled[0], self.least[0]) + np.maximum(scaled[1], self.least[1])
                  + scaled[2] + scaled[3])
        waits = self.passes * host[0] + self.sequences * host[1]
        longer = (device**8 + waits**8) ** (1.0 / 8.0)    # a maximum with a slope for the fit
        return np.maximum(np.where(hidden, longer, device + waits), self.ceiling)


@dataclass
class Parts:
    """Parts of all cases, one value a row, and what each row belongs to."""

    step: Pass
    whole: Pass
    one: Pass
    shared: Pass
    flight: Array
    users: Array
    replicas: Array
    prompt: Array
    output: Array
    balance: Array
    layers: Array
    host: Array
    hidden: Array
    engine: Array
    device: Array
    architecture: Array
    vendor: Array
    memory: Array
    link: Array
    figure: Array
    rounds: Array
    full: Array
    value: Array

    def terms(self, factors: tuple[Array, Array, Array, Array], at_few_rows: Array,
              host: tuple[Array, Array], eager: Array = 1.0) -> Terms:
        """Times with a factor on each part; `at_few_rows` on the arithmetic of decode, `eager` on
        the floors of prefill.
        """
        host = host[0] / self.host, host[1] / self.host
        step = self.step.time((at_few_rows, *factors[1:]), host, self.hidden)
        whole, one, shared = (p.time(factors, host, self.hidden, eager)
                              for p in (self.whole, self.one, self.shared))
        return Terms(step, whole, one, shared, self.flight, self.users, self.replicas, self.prompt,
                     self.output, self.balance)

    def ceilings(self) -> Terms:
        """The ceilings."""
        return Terms(self.step.ceiling, self.whole.ceiling, self.one.ceiling, self.shared.ceiling,
                     self.flight, self.users, self.replicas, self.prompt, self.output,
                     0.0 * self.balance)


def _parts(p: PassTime, n: int, places: slice, by: Array, passes: Array, sequences: Array,
           doubled: PassTime | None = None) -> Pass:
    """`doubled`: the same pass with floors twice as long."""
    def take(x: Array) -> Array:
        return np.broadcast_to(np.asarray(x, float), (3 * n,))[places] / by

    bound = take(p.ceiling_compute)
    least = (np.minimum(take(p.compute), bound / COMPUTE_CAP),
             np.minimum(take(p.memory), (take(p.ceiling) - bound) / BANDWIDTH_CAP))
    return Pass(np.array(least), take(p.compute), take(p.memory),
                take(p.overhead - p.host), take(p.network), take(p.ceiling), passes,
                passes * sequences,
                take(0.0 if doubled is None else doubled.overhead - p.overhead))


def _names(hardware: Hardware) -> dict[str, str]:
    kinds = dict(owners(hardware))
    return {**kinds, "link": link_class(hardware) or "other"}


def _of_setup(plain: Deployment, mine: Sequence[Case], scales: Mapping[str, float]
              ) -> dict[str, Any]:
    d = plain.replace(engine=plain.engine.replace(
        **scales, host_time=0.0, layer_time=0.0, sequence_time=0.0, async_host=False))
    users, prompt, output = setup_arrays(mine)
    flight, users = batches(plain, users, prompt, output)
    batch, side = workloads(plain, flight, prompt)
    n = len(mine)
    w = Workload(batch, np.tile(prompt, 3), np.tile(output + (output <= 1), 3))
    e = estimate(d, w)
    first, ones, twice = e.prefill.detail, np.ones(n), None
    if plain.engine.prefill_launch_scale != 1.0:
        twice = estimate(d.replace(engine=d.engine.replace(
            prefill_launch_scale=2.0 * d.engine.prefill_launch_scale)), w).prefill.detail
    chunks = ones if d.prefill_chunk is None else np.ceil(prompt / d.prefill_chunk)
    names = {key: np.array([value] * n) for key, value in _names(d.hardware).items()}
    return {
        "step": _parts(e.decode.detail, n, slice(0, n), 1.0, ones, flight),
        "whole": _parts(first, n, slice(0, n), 1.0, chunks, flight, twice),
        "one": _parts(first, n, slice(n, 2 * n), 1.0, chunks, ones, twice),
        "shared": _parts(first, n, slice(2 * n, 3 * n), side, chunks / side, side, twice),
        "flight": flight, "users": users, "prompt": prompt, "output": output,
        "replicas": ones * d.parallelism.dp, "balance": balance_steps(d, mine),
        "layers": ones * d.host_layers, "host": ones * host_speed(d.hardware),
        "hidden": np.full(n, plain.engine.async_host),
        "figure": np.array([c.figure for c in mine]), "rounds": rounds_of(mine),
        "full": np.array([c.phase == "max_throughput" for c in mine]),
        "value": np.array([c.row.value for c in mine]), **names,
    }


def parts_of(cases: Sequence[Case], constants: Constants | None = None) -> Parts:
    """Parts of all cases, in their order, at constants; by default scales and levels of one."""
    at = Constants() if constants is None else constants
    columns: dict[str, list[Any]] = {}
    order: list[int] = []
    with levels(at.table()):
        for setup, places in by_setup(cases).items():
            mine = [cases[i] for i in places]
            found = _of_setup(setup.deployment(), mine, at.scales(setup.engine))
            found["engine"] = np.array([setup.engine] * len(mine))
            order += places
            for name, value in found.items():
                columns.setdefault(name, []).append(value)
    return _in_order(columns, np.argsort(order))


def _in_order(columns: dict[str, list[Any]], at: Array) -> Parts:
    joined: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values[0], Pass):
            joined[name] = Pass(*(np.concatenate([getattr(v, f) for v in values], axis=-1)[..., at]
                                  for f in ("least", "compute", "memory", "launches", "network",
                                            "ceiling", "passes", "sequences",
                                            "floors")))
        else:
            joined[name] = np.concatenate(values)[at]
    return Parts(**joined)


# What a plain roofline says under load: nothing but prefills and steps.
BARE = Serving(0.0, 0.0, 0.0, 1.0, 1.0)

__all__ = ["BARE", "SCALES", "Constants", "Parts", "Pass", "parts_of"]
