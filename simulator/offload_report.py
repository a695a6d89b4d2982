"""What lies in a farther memory, as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from simulator.memory import Memory
from simulator.offload import LINK_EFFICIENCY, Offload
from simulator.specs.hardware import Hardware
from simulator.units import format_bandwidth, format_memory


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def far_dict(f: Offload, m: Memory) -> dict[str, Any]:
    """`memory.offload` of the JSON output; sizes [bytes] of one device."""
    assert m.far is not None
    return {
        "to": f.to,
        "bandwidth_bytes_per_s": float(f.bandwidth),
        "efficiency": LINK_EFFICIENCY,
        "overlap": f.overlap,
        "weights_share": f.weights,
        "experts_share": f.share("experts"),
        "kv_share": f.kv,
        "weights_bytes": float(m.far.weights),
        "kv_bytes": float(m.far.kv),
        "total_bytes": float(m.far.total),
        "capacity_bytes": _finite(float(m.far.capacity)),
        "fits": bool(m.far.fits),
    }


def missing_room(m: Memory, f: Offload | None) -> str:
    """What is needed, there and too much: of the memories that lack the room."""
    def lacks(need: float, room: float) -> str:
        return (f"{format_memory(need)} needed, {format_memory(room)} there, "
                f"{format_memory(need - room)} too much")

    near = lacks(float(m.total), float(m.capacity))
    if f is None or m.far is None or m.far.fits:
        return near
    far = f"far memory {f.to}: {lacks(float(m.far.total), float(m.far.capacity))}"
    return far if m.total <= m.capacity else f"{near}; {far}"


def far_lines(f: Offload, m: Memory, each: str, experts: bool) -> list[str]:
    """What lies far, whether it has the room, and what its time assumes."""
    assert m.far is not None
    shares = [f"{value:.1%} of the {name}" for name, value in (
        ("weights", f.weights), ("routed experts", f.experts or 0.0), ("KV cache", f.kv)) if value]
    room = ("capacity not given, not checked" if math.isinf(m.far.capacity) else
            f"{'FITS' if m.far.fits else 'DOES NOT FIT'} {format_memory(float(m.far.capacity))}")
    hot = (" Hot and cold experts are not told apart: the expected number of distinct ones is "
               "read." if experts and f.share("experts") else "")
    hidden = (f"{f.overlap:.0%} of the other work hides it" if f.overlap else
              "nothing hides it")
    return [f"  Far memory {f.to}{each}: {format_memory(float(m.far.total))} "
            f"({', '.join(shares)}), {room}",
            f"  It streams at {format_bandwidth(float(f.bandwidth))}, "
            f"{LINK_EFFICIENCY:.0%} of it expected, in each pass; {hidden}.{hot}"]


def os_line(h: Hardware) -> str:
    """What the OS of a unified-memory machine keeps, in the words of the verdict; or nothing."""
    if h.os_reserve is None:
        return ""
    r = h.ranges.get("os_reserve")
    ends = "" if r is None else f", {r.low:.0%} to {r.high:.0%}"
    kept = format_memory(float(h.memory_capacity - h.usable_capacity))
    return f"  unified memory: the OS keeps {kept} of it ({h.os_reserve:.0%}{ends}), in the reserve"
