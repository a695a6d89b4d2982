"""Nodes and links: what a number of devices and nodes means, and which degrees links allow.

A node is what the link joins: eight GPUs on an NVSwitch, a rack. Several nodes are joined by the
scale-out link of the spec. Data-parallel replicas exchange nothing and need no link, unless experts
are spread over them.
"""

from __future__ import annotations

from simulator.deployment import Deployment
from simulator.errors import InputError
from simulator.network import link_domain
from simulator.sharding import Parallelism
from simulator.specs.hardware import Hardware


def default_parallelism(devices: int, nodes: int = 1, ep: int = 1) -> Parallelism:
    """Degrees of `devices` in each of `nodes` where none are given: tp inside, pp across.

    Tensor parallelism sums activations twice a layer, a pipeline hands them over once a stage, so
    the slower link between nodes gets the pipeline.
    """
    return Parallelism(tp=devices, pp=nodes, ep=ep)


def connected(p: Parallelism) -> int:
    """Devices that exchange data: a replica's, or all replicas' where they share experts."""
    return p.ranks * p.pp * (p.dp if p.ep > 1 else 1)


def check_links(d: Deployment, implied: bool = False) -> None:
    """Refuse degrees that the links of the deployment don't join, with the reason.

    implied   more devices than the link joins stand in as many nodes as they need, unsaid
    """
    h, p, group = d.hardware, d.parallelism, connected(d.parallelism)
    if d.devices % d.nodes:
        raise InputError(f"nodes: {d.nodes} do not divide {d.devices} devices ({_degrees(p)})")
    if group == 1:
        return
    if h.link_bandwidth is None and (d.nodes == 1 or h.scale_out_bandwidth is None):
        raise InputError(f"hardware '{h.name}': {group} devices need a link, and the "
                         "spec has none; add for example 'link_bandwidth: 64 GB/s'")
    joined, node = link_domain(h), d.devices // d.nodes
    across = implied and d.nodes == 1 and h.scale_out_bandwidth is not None
    if joined is not None and min(group, node) > joined and not across:
        raise InputError(_beyond(d, group, joined))
    if d.nodes > 1 and group > node and h.scale_out_bandwidth is None:
        raise InputError(f"hardware '{h.name}': {d.nodes} nodes need a scale-out link, and the "
                         "spec has none; add for example 'scale_out_bandwidth: 50 GB/s'")


def _degrees(p: Parallelism) -> str:
    """`tp 16`, `tp 8 x pp 2`: the degrees above 1."""
    return " x ".join(f"{n} {getattr(p, n)}" for n in ("tp", "pp", "cp", "dp")
                      if getattr(p, n) > 1) or "one device"


def _beyond(d: Deployment, group: int, joined: int) -> str:
    """Why more devices than the link joins are refused, and what to write instead."""
    h, count = d.hardware, d.devices
    link = f"its link ({h.link})" if h.link else "its link"
    where = f"a node of {d.devices // d.nodes}" if d.nodes > 1 else _degrees(d.parallelism)
    text = (f"hardware '{h.name}': {where} puts {group} devices into one group, and {link} joins "
            f"{joined if joined > 1 else 'no two'}")
    if h.scale_out_bandwidth is None:
        return (f"{text}; the spec has no scale-out link to go on (--dp replicas need none); add "
                "for example 'scale_out_bandwidth: 50 GB/s'")
    nodes = -(-count // joined)
    if count % nodes:
        return f"{text}; use --nodes for more, joined by the scale-out link"
    each = count // nodes
    front = f"{each}x" if each > 1 else ""
    return f"{text}; for more use --nodes: {front}{h.name} --nodes {nodes}"


def bridged(d: Deployment) -> Deployment:
    """The deployment over the bridges between pairs (or fours) of cards instead of the host's PCIe.

    A group beyond one bridge is refused: its messages would cross the host at PCIe speed anyway.
    """
    h, group = d.hardware, connected(d.parallelism)
    if h.bridge_bandwidth is None or h.bridge_domain is None:
        raise InputError(f"--bridge: the spec of '{h.name}' has none; add for example "
                         "'bridge_bandwidth: 300 GB/s' and 'bridge_domain: 2'")
    if group > h.bridge_domain:
        raise InputError(f"--bridge: the {h.bridge or 'bridge'} of '{h.name}' joins "
                         f"{h.bridge_domain:.0f} devices, not {group}; without --bridge they use "
                         f"{h.link or 'the host link'}")
    return d.replace(hardware=h.replace(
        link=h.bridge, link_topology="bridge", link_bandwidth=h.bridge_bandwidth,
        link_domain=h.bridge_domain, collectives=()))


def node_sizes(hardware: Hardware, most_nodes: int = 8, most: int = 64) -> list[tuple[int, int]]:
    """(devices, nodes) to try, smallest first: powers of two in a node, then whole nodes."""
    joined = link_domain(hardware)
    limit = most if joined is None else min(joined, most)
    sizes = [(1, 1)]
    while sizes[-1][0] * 2 <= limit:
        sizes.append((sizes[-1][0] * 2, 1))
    if joined is not None and joined <= most and hardware.scale_out_bandwidth is not None:
        nodes = 2
        while nodes <= most_nodes:
            sizes.append((joined * nodes, nodes))
            nodes *= 2
    return sizes


__all__ = ["bridged", "check_links", "connected", "default_parallelism", "node_sizes"]
