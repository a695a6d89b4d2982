"""What would help: the smallest changes that make it fit, and what moves the term that limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.deployment import Deployment, Parallelism, Workload
from simulator.errors import InputError
from simulator.memory import memory
from simulator.request import Estimate, estimate

_FEWER_BITS = ("fp8", "int4-g128")


@dataclass(frozen=True)
class Change:
    """A change to a deployment: the flag that makes it, and what it leads to."""

    text: str
    flag: str
    deployment: Deployment
    workload: Workload


def _weights(d: Deployment, w: Workload) -> Iterator[Change]:
    bits = d.weight_format("ffn").bits
    for name in _FEWER_BITS:
        smaller = d.replace(weights=name)
        if smaller.weight_format("ffn").bits < bits:
            yield Change(f"{name} weights", f"--weights {name}", smaller, w)


def _kv(d: Deployment, w: Workload) -> Iterator[Change]:
    if d.kv_format.bits > 8:
        yield Change("fp8 KV cache", "--kv fp8", d.replace(kv="fp8"), w)


def _devices(d: Deployment, w: Workload, most: int = 256) -> Iterator[Change]:
    """Larger tensor parallelism, as far as the model and the device's link allow."""
    hardware, p = d.hardware, d.parallelism
    if hardware.link_bandwidth is None:
        return
    domain = most if hardware.link_domain is None else int(hardware.link_domain)
    for tp in range(p.tp + 1, min(domain, most) + 1):
        wider = Parallelism(tp, p.pp, p.ep, p.cp, p.dp)
        try:
            yield Change(f"{wider.devices} devices (tensor parallel {tp})",
                         f"{wider.devices}x{hardware.name}", d.replace(parallelism=wider), w)
        except InputError:
            continue


def changes_that_fit(e: Estimate) -> list[Change]:
    """The smallest change of each kind that makes it fit; fewer bits of both kinds last."""
    d, w, m = e.deployment, e.workload, e.memory

    def fits(change: Change) -> bool:
        v = change.workload
        return bool(memory(change.deployment, v.batch, v.input, v.output).fits)

    found = []
    for candidates in (_kv(d, w), _weights(d, w), _devices(d, w)):
        first = next((c for c in candidates if fits(c)), None)
        if first is not None:
            found.append(first)
    if 1 <= m.max_batch < w.batch:
        batch = int(m.max_batch)
        found.append(Change(f"batch {batch}", f"--batch {batch}", d,
                            Workload(batch, w.input, w.output)))
    if w.output < m.max_context < w.input + w.output:
        shorter = int(m.max_context - w.output)
        found.append(Change(f"input {shorter}", f"--input {shorter}", d,
                            Workload(w.batch, shorter, w.output)))
    if not found:
        both = next((Change(f"{c.text} and fp8 KV cache", f"{c.flag} --kv fp8",
                            c.deployment.replace(kv="fp8"), w)
                     for c in _weights(d, w)
                     if fits(Change("", "", c.deployment.replace(kv="fp8"), w))), None)
        found += [both] if both is not None else []
    return found


@dataclass(frozen=True)
class Improvement:
    """A change and the expected times after it."""

    change: Change
    result: Estimate


def improvements(e: Estimate) -> list[Improvement]:
    """Single changes that speed up the phase they touch, each estimated in full."""
    d, w = e.deployment, e.workload
    wider = next(_devices(d, w), None)
    candidates = [*list(_weights(d, w))[-1:], *_kv(d, w), *([wider] if wider else [])]
    if w.batch * 8 <= e.memory.max_batch:
        batch = int(w.batch * 8)
        candidates.append(Change(f"batch {batch}", f"--batch {batch}", d,
                                 Workload(batch, w.input, w.output)))
    return [Improvement(c, estimate(c.deployment, c.workload)) for c in candidates]
