"""A measured machine as a hardware file, as words and as JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from simulator.specs.hardware import Hardware, parse_hardware
from simulator.units import format_bandwidth, format_flops

SOURCE = "here"


@dataclass(frozen=True)
class Kernel:
    """A measured kernel, as an entry of `kernels` in a hardware file; SI."""

    kernel: str
    format: str
    rows: tuple[float, ...]
    rates: tuple[float, ...]
    operation: str | None = None
    floor: float = 0.0
    each: float = 0.0
    start: float = 0.0
    cold_rates: tuple[float, ...] | None = None
    floors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Machine:
    """All that was measured. curve: (bytes, read bytes/s, copied bytes/s) of each size."""

    environment: dict[str, Any]
    capacity: float
    curve: tuple[tuple[float, float, float], ...]
    bandwidth: float
    caches: tuple[tuple[str, float, float], ...]
    kernels: tuple[Kernel, ...]
    peaks: dict[str, float]
    kernel_floor: float
    layer_overhead: float = 0.0
    step_overhead: float = 0.0
    notes: tuple[str, ...] = field(default=())


def machine_name(machine: Machine) -> str:
    """A slug from what the device calls itself: `amd-epyc-2-threads`."""
    env = machine.environment
    words = re.sub(r"\((r|tm)\)|@.*", "", str(env["device_name"]).lower())
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-") or str(env["device"])
    return slug if env["device"] == "cuda" else f"{slug}-{env['threads']}-threads"


def machine_data(machine: Machine, name: str | None = None) -> dict[str, Any]:
    """The mapping that a hardware file of the machine holds."""
    env = machine.environment
    cuda = env["device"] == "cuda"
    title = f"{env['device_name']}" + ("" if cuda else f", {env['threads']} threads")
    what = (f"tokline calibrate on this machine, torch {env['torch']}"
            + (f", CUDA {env['cuda']}, driver {env['driver']}" if cuda else ""))
    data: dict[str, Any] = {
        "name": name or machine_name(machine), "title": title,
        "architecture": "cpu" if not cuda else None, "form_factor": "measured machine",
        "notes": ["Ceilings are the best that was measured here, not what a datasheet says",
                  *machine.notes],
        "sources": {SOURCE: {"title": what, "date": env["date"], "confidence": "measured",
                             "verified": True}},
        "memory_class": "ddr" if not cuda else None,
        "memory_bandwidth": _of(machine.bandwidth, "GB/s", 1e9),
        "memory_capacity": _of(machine.capacity, "GiB", 2.0**30),
        **{f"peak_{f}": _of(peak, "GFLOP/s", 1e9) for f, peak in machine.peaks.items()},
        "vector_fp32": _of(max(machine.peaks.values()), "GFLOP/s", 1e9,
                           "taken from the products: passes are bound by bytes"),
        "unit_kind": None if cuda else "thread",
        "units": None if cuda else {"value": int(env["threads"]), "source": SOURCE},
        "kernel_floor": _of(machine.kernel_floor, "us", 1e-6),
        "layer_overhead": _of(machine.layer_overhead, "us", 1e-6),
        "step_overhead": _of(machine.step_overhead, "us", 1e-6),
        "caches": [{"name": n, "capacity": f"{c / 2**20:.6g} MiB",
                    "bandwidth": f"{w / 1e9:.4g} GB/s", "source": SOURCE}
                   for n, c, w in machine.caches],
        "kernels": [_entry(k) for k in machine.kernels],
    }
    return {k: v for k, v in data.items() if v is not None}


def _of(value: float, unit: str, factor: float, note: str | None = None) -> dict[str, Any]:
    return {"value": f"{value / factor:.6g} {unit}", "source": SOURCE} | (
        {} if note is None else {"note": note})


def _entry(k: Kernel) -> dict[str, Any]:
    bytes_ = k.kernel == "elementwise"
    entry: dict[str, Any] = {
        "kernel": k.kernel, "format": k.format, "operation": k.operation,
        "floor": f"{k.floor * 1e6:.4g} us",
        "each": f"{k.each * 1e6:.4g} us" if k.each else None,
        "start": round(k.start, 1) if k.start else None,
        "rows": [f"{r / 1024:.6g} KiB" if bytes_ else int(r) for r in k.rows] or None,
        "rates": _rates(k.rates, bytes_), "cold_rates": _rates(k.cold_rates, bytes_),
        "floors": [f"{t * 1e6:.4g} us" for t in k.floors or ()] or None,
        "source": SOURCE,
    }
    return {key: v for key, v in entry.items() if v is not None}


def _rates(rates: tuple[float, ...] | None, bytes_: bool) -> list[str] | None:
    return [f"{r / 1e9:.4g} {'GB/s' if bytes_ else 'GFLOP/s'}" for r in rates or ()] or None


def machine_hardware(machine: Machine) -> Hardware:
    """The machine as the simulator sees it."""
    return parse_hardware(machine_data(machine), "this machine")


def machine_yaml(machine: Machine, name: str | None = None) -> str:
    """The hardware file."""
    import yaml

    data = machine_data(machine, name)
    head = {k: v for k, v in data.items() if k not in ("caches", "kernels")}
    lines = [yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=100)]
    for key in ("caches", "kernels"):
        if data[key]:
            lines.append(f"{key}:\n" + "".join("  - " + yaml.safe_dump(
                e, sort_keys=False, width=10_000, default_flow_style=True) for e in data[key]))
    return "\n".join(lines)


def machine_dict(machine: Machine) -> dict[str, Any]:
    """What was measured, in SI numbers."""
    return {
        "environment": machine.environment,
        "memory_bandwidth": machine.bandwidth, "memory_capacity": machine.capacity,
        "curve": [{"bytes": s, "read": r, "copy": c} for s, r, c in machine.curve],
        "caches": [{"name": n, "capacity": c, "bandwidth": w} for n, c, w in machine.caches],
        "peaks": machine.peaks,
        "kernel_floor_s": machine.kernel_floor, "layer_overhead_s": machine.layer_overhead,
        "step_overhead_s": machine.step_overhead, "notes": list(machine.notes),
        "kernels": [{
            "kernel": k.kernel, "format": k.format, "operation": k.operation, "floor_s": k.floor,
            "each_s": k.each, "start": k.start, "rows": list(k.rows), "rates": list(k.rates),
            "cold_rates": None if k.cold_rates is None else list(k.cold_rates),
            "floors_s": None if k.floors is None else list(k.floors)}
            for k in machine.kernels],
    }


def machine_lines(machine: Machine) -> list[str]:
    """What was measured, in words."""
    env = machine.environment
    lines = [f"{env['device_name']}, {env['threads']} threads, torch {env['torch']}, {env['date']}",
             *machine.notes, "", "Bandwidth, measured (read and copy, whole device)"]
    lines += [f"  {s / 2**20:>9,.4g} MiB  {format_bandwidth(r):>11} "
              f"{format_bandwidth(c):>11}" for s, r, c in machine.curve]
    lines += [f"  {n} serves {c / 2**20:,.4g} MiB at {format_bandwidth(w)}"
              for n, c, w in machine.caches]
    lines += [f"  memory serves {format_bandwidth(machine.bandwidth)}", "",
              "Products, measured (weights in a cache), by rows"]
    for k in machine.kernels:
        if k.kernel == "gemm":
            best = max(k.rates)
            some = ", ".join(f"{r:g}: {format_flops(v)}"
                             for r, v in zip(k.rows, k.rates, strict=True)
                             if r in (1, 4, 16, 64, 256, 1024))
            lines.append(f"  {k.format:<5} {some}; best {format_flops(best)}")
    lines += ["", f"Fixed times: {machine.kernel_floor * 1e6:.3g} us a kernel at least, "
              f"{machine.layer_overhead * 1e6:.3g} us a layer and "
              f"{machine.step_overhead * 1e6:.3g} us a step beside the kernels"]
    return lines


__all__ = ["Kernel", "Machine", "machine_data", "machine_dict", "machine_hardware",
           "machine_lines", "machine_name", "machine_yaml"]
