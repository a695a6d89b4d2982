"""Figures of an estimate by name: what deployments are ordered by, and what a target asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.request import Estimate, Figure
from simulator.units import format_number, format_time, parse_quantity


def _dollars(e: Estimate) -> Figure | None:
    return e.usd_per_million_tokens


def _tokens_per_dollar(e: Estimate) -> Figure | None:
    f = e.usd_per_million_tokens
    free = f is not None and bool(np.any(np.asarray(f.expected) == 0))
    return None if f is None or free else f.rate(1e6)


def _tokens_per_watt(e: Estimate) -> Figure | None:
    tdp = e.deployment.hardware.tdp
    if tdp is None:
        return None
    return e.e2e.rate(e.workload.batch * e.workload.output / (tdp * e.deployment.devices))


@dataclass(frozen=True)
class Metric:
    """A figure of an estimate that deployments are ordered by.

    key      as in `--target key=value`; json: the key in JSON
    kind     time or rate: how a value is written
    smaller  whether less is better
    decode   whether it has no value with one output token
    """

    key: str
    json: str
    title: str
    kind: str
    smaller: bool
    get: Callable[[Estimate], Figure | None]
    decode: bool = True

    def format(self, value: float) -> str:
        """A value; a time with its unit, the title names the others."""
        return format_time(value) if self.kind == "time" else format_number(value)


METRICS = {m.key: m for m in (
    Metric("ttft", "ttft_s", "TTFT", "time", True, lambda e: e.ttft, False),
    Metric("tpot", "tpot_s", "TPOT", "time", True, lambda e: e.tpot),
    Metric("e2e", "e2e_s", "end to end", "time", True, lambda e: e.e2e, False),
    Metric("tok/s", "tokens_per_s_per_user", "tok/s per user", "rate", False,
           lambda e: e.tokens_per_s_per_user),
    Metric("total-tok/s", "output_tokens_per_s", "tok/s total", "rate", False,
           lambda e: e.output_tokens_per_s),
    Metric("device-tok/s", "output_tokens_per_s_per_device", "tok/s per device", "rate", False,
           lambda e: e.tpot.rate(e.workload.batch / e.deployment.devices)),
    Metric("usd", "usd_per_million_output_tokens", "USD per M output tokens", "rate", True,
           _dollars, False),
    Metric("joules", "energy_joules_per_output_token", "J per output token", "rate", True,
           lambda e: e.energy_per_token, False),
    Metric("tok/usd", "output_tokens_per_usd", "tokens per USD", "rate", False,
           _tokens_per_dollar, False),
    Metric("tok/W", "output_tokens_per_s_per_watt", "tok/s per W", "rate", False,
           _tokens_per_watt, False),
)}


@dataclass(frozen=True)
class Target:
    """A figure of the estimate and the value that it must reach: at most, or at least."""

    metric: Metric
    value: float

    @property
    def text(self) -> str:
        """`TPOT at most 10 ms`."""
        return (f"{self.metric.title} {'at most' if self.metric.smaller else 'at least'} "
                f"{self.metric.format(self.value)}")

    def excess(self, e: Estimate, figure: str) -> Array:
        """How far the figure misses: 1 is met exactly, above 1 missed by that factor."""
        f = self.metric.get(e)
        assert f is not None
        value = np.asarray(getattr(f, figure), dtype=float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return value / self.value if self.metric.smaller else self.value / value


def parse_target(text: str) -> Target:
    """`tpot=10ms`, `tok/s=100`, `ttft=0.2s`, `usd=0.5`; the JSON's SI names work too."""
    key, equals, number = (part.strip() for part in text.partition("="))
    by_json = {m.json: m for m in METRICS.values()}
    metric = METRICS.get(key.lower()) or by_json.get(key.lower())
    if metric is None or not equals:
        example = nearest(key, [*METRICS, *by_json]) or f" (valid: {', '.join(METRICS)})"
        raise InputError(f"--target: '{text}' is not key=value{example}" if not equals else
                         f"--target: '{text}': unknown key '{key}'{example}")
    if metric.kind == "time" and not (key.lower() in by_json and _is_number(number)):
        value = parse_quantity(number, "time", f"--target: {key}")
    elif _is_number(number):
        value = float(number)
    else:
        raise InputError(f"--target: {key}: '{number}' is not a number")
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"--target: {key}: '{number}' must be above 0 and finite")
    return Target(metric, value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
