"""Which parallelism to run: every split of the devices estimated, the best for a goal, and why not
the others.

latency      the shortest request, first token to last, at the asked batch
throughput   the most output tokens a second with as many sequences as fit (at least the asked ones)
cost         the fewest device-seconds an output token at the asked batch
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from simulator.deployment import Deployment, Workload
from simulator.errors import InputError
from simulator.memory import memory
from simulator.placement import fewest_devices
from simulator.request import Estimate, estimate
from simulator.sharding import Parallelism
from simulator.specs.model import Model, Moe
from simulator.systems import check_links, node_sizes
from simulator.units import format_memory, format_number, format_time

GOALS = ("latency", "throughput", "cost")
CRITERIA = {
    "latency": "shortest end-to-end time of a request at the asked batch",
    "throughput": "most output tok/s, prefill included, with as many sequences as fit",
    "cost": "fewest device-seconds an output token at the asked batch",
}
# More sequences than any engine schedules at once by default.
MOST_SEQUENCES = 4096
WIDTH = 100


@dataclass(frozen=True)
class Option:
    """One split of the devices; without an estimate where it is refused or doesn't fit.

    value   what the goal ranks by, larger is better; None: not a candidate
    reason  why it is not the chosen one; empty for the chosen one
    """

    parallelism: Parallelism
    devices: int
    nodes: int
    fits: bool
    deployment: Deployment | None
    estimate: Estimate | None
    at_most_batch: float | None
    value: float | None
    reason: str


@dataclass(frozen=True)
class Choice:
    """The chosen split and its deployment, and the others, the nearest first."""

    goal: str
    chosen: Option
    deployment: Deployment
    alternatives: tuple[Option, ...]


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


def splits(model: Model, devices: int) -> Iterator[Parallelism]:
    """Every (tp, pp, ep, dp) with tp x pp x dp = devices; ep 1 or a divisor of tp x dp."""
    experts = [g.ffn.experts for g in model.layers if isinstance(g.ffn, Moe)]
    for tp in _divisors(devices):
        for pp in _divisors(devices // tp):
            dp = devices // tp // pp
            for ep in _divisors(tp * dp) if experts else [1]:
                if all(count % ep == 0 for count in experts):
                    yield Parallelism(tp=tp, pp=pp, ep=ep, dp=dp)


def _value(goal: str, e: Estimate, w: Workload) -> tuple[float, float | None]:
    """(what the goal ranks by, the batch of it where that isn't the asked one)."""
    if goal == "latency":
        return -float(e.e2e.expected), None
    if goal == "cost":
        return float(e.request_output_tokens_per_s.expected) / e.deployment.devices, None
    batch = max(float(w.batch), min(float(e.memory.max_batch), float(MOST_SEQUENCES)))
    full = e if batch == w.batch else estimate(e.deployment, Workload(batch, w.input, w.output))
    return float(full.request_output_tokens_per_s.expected), batch


def _option(d: Deployment, w: Workload, p: Parallelism, nodes: int, goal: str) -> Option:
    try:
        split = d.replace(parallelism=p, nodes=nodes)
        check_links(split)
    except InputError as refused:
        return Option(p, p.devices, nodes, False, None, None, None, None, str(refused))
    m = memory(split, w.batch, w.input, w.output)
    if not m.fits:
        return Option(p, p.devices, nodes, False, split, None, None, None, "does not fit: "
                      f"{format_memory(float(m.total))} of {format_memory(float(m.capacity))}")
    e = estimate(split, w)
    value, batch = _value(goal, e, w)
    return Option(p, p.devices, nodes, True, split, e, batch, value, "")


def _score(o: Option, goal: str) -> str:
    """What the goal ranks by, in words."""
    value = _number(o.value)
    if goal == "latency":
        return f"end to end {format_time(-value)}"
    if goal == "throughput":
        return f"{format_number(value)} tok/s at batch {o.at_most_batch:,.0f}"
    return f"{format_number(1e6 / value / 3600)} device-hours per M tokens"


def _against(best: Option, other: Option, goal: str) -> str:
    """Why another split that fits was not taken."""
    if best.value == other.value:
        return "as good, and a simpler split comes first"
    return f"{_score(other, goal)}, against {_score(best, goal)}"


def _simplicity(p: Parallelism) -> tuple[int, ...]:
    """Ties go to fewer kinds of parallelism, then to tensor parallelism."""
    return sum(n > 1 for n in (p.tp, p.pp, p.ep, p.dp)), p.pp, p.dp, p.ep


def choose(d: Deployment, w: Workload, goal: str, devices: int | None = None,
           nodes: int = 1) -> Choice:
    """The best split of `devices`; without a number of the fewest devices that fit at all.

    `devices` are those of all `nodes`. Where none of `node_sizes` fits, the
    devices are those of the smallest tp x pp that does. Where nothing fits, the split that needs
    the least memory is returned, and its estimate says that it doesn't fit.
    """
    if goal not in GOALS:
        raise InputError(f"--optimise: '{goal}' is none of {', '.join(GOALS)}")
    tried: list[Option] = []
    for count, in_nodes in [(devices, nodes)] if devices else node_sizes(d.hardware):
        found = [_option(d, w, p, in_nodes, goal) for p in splits(d.model, count)]
        tried += found
        if any(o.fits for o in found):
            break
    fitting = [o for o in tried if o.value is not None]
    if not fitting and devices is None:
        wide = fewest_devices(d, w)
        if wide is not None:
            tried += [_option(d, w, p, wide.nodes, goal) for p in splits(d.model, wide.devices)]
            fitting = [o for o in tried if o.value is not None]
    if not fitting:
        return _nothing_fits(goal, tried, w)
    best = min(fitting, key=lambda o: (-_number(o.value), _simplicity(o.parallelism)))
    others = [_with_reason(o, best, goal) for o in tried if o is not best]
    assert best.deployment is not None
    return Choice(goal, best, best.deployment, tuple(sorted(others, key=_order)))


def _nothing_fits(goal: str, tried: list[Option], w: Workload) -> Choice:
    built = [(o, o.deployment) for o in tried if o.deployment is not None]
    if not built:
        raise InputError(tried[0].reason)

    def missing(d: Deployment) -> float:
        m = memory(d, w.batch, w.input, w.output)
        return float(m.total - m.capacity)

    best, deployment = min(built, key=lambda pair: missing(pair[1]))
    others = sorted((o for o in tried if o is not best), key=_order)
    return Choice(goal, best, deployment, tuple(others))


def _number(value: float | None) -> float:
    return float("-inf") if value is None else value


def _with_reason(o: Option, best: Option, goal: str) -> Option:
    return o if o.value is None else replace(o, reason=_against(best, o, goal))


def _order(o: Option) -> tuple[Any, ...]:
    """The nearest first: those that fit by their value, then what doesn't fit, then refusals."""
    return -_number(o.value), o.deployment is None, o.devices, _simplicity(o.parallelism)


def alternatives_list(choice: Choice) -> list[dict[str, Any]]:
    """The others as JSON: SI units, expected values; null where it doesn't fit."""
    found = []
    for o in choice.alternatives:
        e, p = o.estimate, o.parallelism
        steps = e is not None and float(e.workload.output) > 1
        found.append({
            "parallelism": {"tp": p.tp, "pp": p.pp, "ep": p.ep, "cp": p.cp, "dp": p.dp},
            "devices": o.devices,
            "nodes": o.nodes,
            "fits": o.fits,
            "ttft_s": None if e is None else float(e.ttft.expected),
            "tpot_s": float(e.tpot.expected) if e is not None and steps else None,
            "output_tokens_per_s": float(e.output_tokens_per_s.expected)
            if e is not None and steps else None,
            "max_batch": None if e is None else int(e.memory.max_batch),
            "reason": o.reason,
        })
    return found


def _name(p: Parallelism) -> str:
    return " ".join(f"{n}={getattr(p, n)}" for n in ("tp", "pp", "ep", "dp")
                    if getattr(p, n) > 1) or "one device"


def _row(o: Option, note: str) -> str:
    e, cells = o.estimate, ["-"] * 3
    if e is not None:
        cells[0] = format_time(float(e.ttft.expected))
        if float(e.workload.output) > 1:
            cells[1:] = [format_time(float(e.tpot.expected)),
                         format_number(float(e.output_tokens_per_s.expected))]
    line = f"    {_name(o.parallelism):<22}{cells[0]:>9}{cells[1]:>9}{cells[2]:>8}   {note}"
    return line if len(line) <= WIDTH else line[:WIDTH - 3] + "..."


def alternatives_lines(choice: Choice, most: int = 8) -> list[str]:
    """A small table: the chosen split and the nearest of the others."""
    goal, best = choice.goal, choice.chosen
    lines = [f"  Parallelism for {goal}: {CRITERIA[goal]}",
             f"    {'split':<22}{'TTFT':>9}{'TPOT':>9}{'tok/s':>8}   chosen, then rejected",
             _row(best, best.reason or f"chosen: {_score(best, goal)}")]
    lines += [_row(o, o.reason.split(", against")[0]) for o in choice.alternatives[:most]]
    rest = len(choice.alternatives) - most
    return [*lines, *([f"    and {rest} more, all of them in the JSON"] if rest > 0 else [])]
