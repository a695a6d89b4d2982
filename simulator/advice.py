"""What would help: the smallest changes that make it fit, and what moves the term that limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.deployment import Deployment, Parallelism, Workload, native_activations
from simulator.errors import InputError
from simulator.memory import memory, weight_bytes
from simulator.network import link_domain
from simulator.request import Estimate, estimate
from simulator.systems import check_links, default_parallelism

_FEWER_BITS = ("fp8", "int4-g128")
# More ranks than any model in the catalogue has heads for gain nothing.
_WIDEST = 128


@dataclass(frozen=True)
class Change:
    """A change to a deployment: the flag that makes it, and what it leads to."""

    text: str
    flag: str
    deployment: Deployment
    workload: Workload


def native_change(d: Deployment, w: Workload) -> Change | None:
    """Activations in the precision that the chip could multiply the weights in, KV as it is."""
    name = native_activations(d)
    if name is None:
        return None
    # The cache would follow the activations, which no engine has it do.
    follows = d.kv is None and d.model.kv_format is None
    return Change(f"{name} activations", f"--activations {name}"
                  + (f" --kv {d.kv_format.name}" if follows else ""),
                  d.replace(activations=name, kv=d.kv_format.name), w)


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
    """Larger tensor parallelism, as far as the model and the link allow; then more nodes."""
    hardware, p = d.hardware, d.parallelism
    joined = link_domain(hardware)
    domain = most if joined is None else joined
    only_tp = p.pp == p.cp == p.dp == 1
    for tp in range(p.tp + 1, min(domain, most) + 1):
        wider = Parallelism(tp, p.pp, p.ep, p.cp, p.dp)
        degree = "" if only_tp else f" --tp {tp}"
        nodes = f" --nodes {d.nodes}" if d.nodes > 1 else ""
        try:
            change = d.replace(parallelism=wider)
            check_links(change)
            yield Change(f"{wider.devices} devices (tensor parallel {tp})",
                         f"{wider.devices // d.nodes}x{hardware.name}{nodes}{degree}", change, w)
        except InputError:
            continue
    if joined is None or joined == 1 or d.nodes > 1 or not only_tp:
        return
    for nodes_ in (2, 4, 8):
        try:
            change = d.replace(parallelism=default_parallelism(joined, nodes_, p.ep), nodes=nodes_)
            check_links(change)
            yield Change(f"{joined * nodes_} devices in {nodes_} nodes (tp {joined}, pp {nodes_})",
                         f"{joined}x{hardware.name} --nodes {nodes_}", change, w)
        except InputError:
            continue


def changed_stages(d: Deployment, w: Workload, most: int = 4096) -> Iterator[Change]:
    """The fewest devices, tensor parallel inside stages of a pipeline, whose memory is enough.

    Weights that no tensor parallelism brings down to one device's memory (chips with SRAM alone)
    need stages as well. Of equally many devices the fewest stages come first.
    """
    hardware, p, layers = d.hardware, d.parallelism, int(d.model.layer_count)
    domain = link_domain(hardware) or most
    found: list[tuple[int, int, Deployment]] = []
    for tp in range(min(domain, _WIDEST), 0, -1):
        try:
            one = d.replace(parallelism=Parallelism(tp, 1, p.ep, p.cp, p.dp), nodes=1)
        except InputError:
            continue
        least = max(2, int(weight_bytes(one) // hardware.usable_capacity))
        for pp in range(least, min(layers, most // tp) + 1):
            degrees = Parallelism(tp, pp, p.ep, p.cp, p.dp)
            count = degrees.devices
            nodes = 1 if count <= domain else count // domain
            if found and count > found[-1][0]:
                break
            if count % nodes or count // nodes > domain:
                continue
            staged = d.replace(parallelism=degrees, nodes=nodes)
            if memory(staged, w.batch, w.input, w.output).fits:
                found.append((count, pp, staged))
                break
    for count, pp, staged in sorted(found, key=lambda x: x[:2]):
        try:
            check_links(staged)
        except InputError:
            continue
        q, nodes = staged.parallelism, staged.nodes
        across = f" --nodes {nodes}" if nodes > 1 else ""
        yield Change(f"{count} devices (tp {q.tp} in each of {pp} stages)",
                     f"{count // nodes}x{hardware.name}{across} --tp {q.tp} --pp {pp}", staged, w)


def changes_that_fit(e: Estimate) -> list[Change]:
    """The smallest change of each kind that makes it fit; fewer bits of both kinds last."""
    d, w, m = e.deployment, e.workload, e.memory

    def fits(change: Change) -> bool:
        v = change.workload
        return bool(memory(change.deployment, v.batch, v.input, v.output).fits)

    found, devices = [], _devices(d, w)
    for candidates in (_kv(d, w), _weights(d, w), devices):
        first = next((c for c in candidates if fits(c)), None)
        if first is None and candidates is devices:
            first = next(changed_stages(d, w), None)
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
    if not found:
        spread = next((Change(f"{c.text}, {s.text}", f"{s.flag} {c.flag}", s.deployment, w)
                       for c in _weights(d, w) for s in changed_stages(c.deployment, w)), None)
        found += [spread] if spread is not None else []
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
    native = native_change(d, w)
    candidates = [*([native] if native else []), *list(_weights(d, w))[-1:], *_kv(d, w),
                  *([wider] if wider else [])]
    if w.batch * 8 <= e.memory.max_batch:
        batch = int(w.batch * 8)
        candidates.append(Change(f"batch {batch}", f"--batch {batch}", d,
                                 Workload(batch, w.input, w.output)))
    return [Improvement(c, estimate(c.deployment, c.workload)) for c in candidates]
