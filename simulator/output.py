"""An estimate as one JSON value: SI units, no NaN, every key as documented in docs/json.md."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from simulator.allocation import KvPool
from simulator.clock import OperationTime
from simulator.deployment import has_features, native_activations
from simulator.efficiency import SHORT_PROMPT, far_outside
from simulator.efficiency.points import points_of
from simulator.memory import GivenKv
from simulator.offload_report import far_dict
from simulator.request import Cause, Estimate, Figure, Phase
from simulator.units import format_time

SCHEMA_VERSION = 1

# What one factor of uncertainty rests on, by the level that the constants come from.
_LEVELS = {
    "ideal": "no efficiency applied: expected equals the ceiling wherever nothing crosses a link",
    "chip": "kernel constants fitted to public timings of this chip",
    "architecture": "kernel constants borrowed from the same architecture",
    "memory": "kernel constants borrowed from parts with the same class of memory",
    "generic": "generic kernel constants, nothing near this chip is known",
    "spec": "efficiency stated in the hardware file",
    "measured": "kernels, caches and overheads timed on this machine",
}


def number(value: Any) -> Any:
    """A JSON number; null for NaN and infinity; whole floats stay floats."""
    value = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def whole(value: Any) -> int | None:
    """A count as a JSON integer."""
    value = number(value)
    return None if value is None else int(value)


def figure(f: Figure | None) -> dict[str, Any] | None:
    """{ceiling, expected, low, high}; null where there is nothing to say."""
    if f is None:
        return None
    values = {k: number(getattr(f, k)) for k in ("ceiling", "expected", "low", "high")}
    return None if values["expected"] is None else values


def operation(t: OperationTime) -> dict[str, Any]:
    """One operation; FLOPs, bytes and times are those of all its `count` executions."""
    return {
        "name": t.operation.name,
        "kind": t.operation.kind,
        "count": number(t.operation.count),
        "flops": number(t.flops),
        "bytes": number(t.bytes),
        "time_s": number(t.expected),
        "ceiling_s": number(t.ceiling),
        "bound": t.bound,
    }


def _phase(phase: Phase, utilisation: str) -> dict[str, Any]:
    detail = phase.detail
    operations = [operation(t) for t in detail.operations]
    if number(detail.host):
        operations.append({"name": "host", "kind": "host", "count": 1, "flops": 0.0, "bytes": 0.0,
                           "time_s": number(detail.host), "ceiling_s": 0.0, "bound": "overhead"})
    return {
        "time_s": figure(phase.time),
        "flops": number(detail.flops),
        "bytes": number(detail.bytes),
        "bound": detail.bound,
        "ceiling_bound": detail.ceiling_bound,
        utilisation: number(phase.utilisation),
        "shares": {part: number(getattr(detail, part) / detail.expected)
                   for part in ("compute", "memory", "network", "overhead")},
        "operations": operations,
    }


def _no_decode() -> dict[str, Any]:
    empty = dict.fromkeys(("time_s", "flops", "bytes", "bound", "ceiling_bound", "mbu", "shares"))
    return empty | {"operations": []}


def kv_pool_dict(pool: KvPool) -> dict[str, Any]:
    """The KV pool of one device."""
    return {
        "bytes": number(pool.bytes),
        "block_size": whole(pool.block_size),
        "blocks": whole(pool.blocks),
        "tokens": whole(pool.tokens),
        "max_concurrency": number(pool.max_concurrency),
    }


def given_kv_dict(g: GivenKv) -> dict[str, Any]:
    """What a given KV room holds, of one device; bytes of a sequence ideal and allocated."""
    return kv_pool_dict(g.pool) | {
        "context": whole(g.context),
        "kv_bytes_per_token": number(g.kv_per_token),
        "sequence_bytes": number(g.sequence),
        "sequence_bytes_ideal": number(g.ideal),
        "left_by_weights_bytes": number(g.left),
        "possible": bool(g.possible),
        "enough": bool(g.enough),
    }


def memory_dict(e: Estimate) -> dict[str, Any]:
    """Sizes [bytes] of one device, the fullest rank; max_batch is for the deployment."""
    m = e.memory
    capacity = e.deployment.hardware.ranges.get("memory_capacity")
    values: dict[str, Any] = {
        "weights_bytes": number(m.weights),
        "kv_bytes_per_token": number(m.kv_per_token),
        "kv_bytes": number(m.kv),
        "kv_bytes_ideal": number(m.kv_ideal),
        "fixed_state_bytes": number(m.fixed_state),
        "activation_bytes": number(m.activations),
        "reserved_bytes": number(m.reserved),
        "total_bytes": number(m.total),
        "capacity_bytes": number(m.capacity),
        "fits": bool(m.fits),
        "max_batch": whole(m.max_batch),
        "max_context": whole(m.max_context),
        "kv_pool": kv_pool_dict(m.pool),
    }
    if e.deployment.hardware.os_reserve is not None:
        values["os_reserved_bytes"] = number(m.capacity - e.deployment.hardware.usable_capacity)
    if e.deployment.offload is not None:
        values["offload"] = far_dict(e.deployment.offload, m)
    if capacity is not None:
        values["capacity_range_bytes"] = msgspec.to_builtins(capacity)
    return values


_OWNERS = {"architecture": "its architecture", "vendor": "its vendor's parts of this memory",
           "memory": "its class of memory", "none": "nothing like it"}


def measured(e: Estimate) -> str:
    """How many figures were measured on the device, and whether the model was among them."""
    hardware, model = e.deployment.hardware, e.deployment.model
    points = points_of(hardware.name)
    if points is None and e.efficiency.level == "measured":
        return (f"{hardware.title}: {len(hardware.kernels)} kernels timed one by one, none of "
                "them in a whole model")
    if points is None and e.efficiency.level == "spec":
        return f"no figure measured on {hardware.title}: its efficiency is the file's word"
    if points is None:
        return (f"no figure measured on {hardware.title}: its level is that of "
                f"{_OWNERS.get(e.efficiency.known, 'another device')}")
    said = f"{hardware.title}: {points.rows:,} measured points"
    if points.median is not None:
        said += f", {points.median:.0%} median error on the {points.held_back:,} kept back"
    if model.name not in points.models:
        said += f"; {model.title} not among them"
    return said


def _held(e: Estimate) -> str:
    """What the factors of the range are known to hold."""
    if e.efficiency.level == "measured":
        return "is checked by `tokline validate --executor`"
    if far_outside(e.deployment.engine.name, e.deployment.hardware.name) > 1.0:
        return "is wider than elsewhere and may still be too narrow"
    if e.efficiency.level == "spec":
        return "is that of a measured device, not checked on this one"
    if e.efficiency.known == "device":
        return "held 80 % of measurements kept back from the fit"
    return "is widened from what held 80 % on measured devices, not checked on this one"


def basis(e: Estimate, causes: list[Cause]) -> dict[str, Any]:
    """What the range rests on, in words and as data."""
    level = e.efficiency.level
    spread = e.efficiency.spread
    text = f"{_LEVELS[level]} ({e.efficiency.donor})"
    hardware = e.deployment.hardware
    if level != "ideal":
        alone = whole(e.workload.batch) == 1 and e.deployment.devices == 1
        fixed = float(e.deployment.engine.request_time)
        prefill = float(e.efficiency.prefill_spread(e.workload.input))
        short = f" of less than {SHORT_PROMPT} tokens" if e.workload.input < SHORT_PROMPT else ""
        text += (f"; engine {e.deployment.engine.title} {e.deployment.engine.version}"
                 + (f", whose constants add {format_time(fixed)} a request at the client"
                    if fixed else "")
                 + f"; {measured(e)}; the range x{spread['one' if alone else 'decode']:.4g} on "
                 f"decode, x{prefill:.4g} on prefill{short} {_held(e)} (docs/accuracy.md)")
    odd = far_outside(e.deployment.engine.name, hardware.name)
    if odd > 1.0:
        text += (f"; what was measured on this device lies up to {odd:g} usual ranges away: "
                 "measure before you believe it")
    if hardware.status in ("announced", "hypothetical"):
        text += f"; {hardware.title} is {hardware.status}: its figures are not a specification"
    if causes:
        text += "; ranges in the hardware file: " + ", ".join(c.field for c in causes)
    return {
        "text": text,
        "level": level,
        "donor": e.efficiency.donor,
        "engine": e.deployment.engine.source,
        "spread": dict(spread),
        "ranges": [{
            "field": c.field, "low": c.low, "mid": c.mid, "high": c.high,
            "tpot_s": [number(v) for v in c.tpot], "ttft_s": [number(v) for v in c.ttft],
            "energy_joules_per_output_token": [number(v) for v in c.energy_per_token],
            "usd_per_million_output_tokens": [number(v) for v in c.usd_per_million_tokens],
        } for c in causes],
    }


def identity(e: Estimate) -> dict[str, Any]:
    """What was asked: model, hardware, engine, parallelism, formats, workload."""
    d, w, p = e.deployment, e.workload, e.deployment.parallelism
    return {
        "schema_version": SCHEMA_VERSION,
        "model": d.model.name,
        "hardware": d.hardware.name,
        "devices": d.devices,
        "nodes": d.nodes,
        "engine": d.engine.name,
        "parallelism": {"tp": p.tp, "pp": p.pp, "ep": p.ep, "cp": p.cp, "dp": p.dp},
        "formats": {
            "weights": d.weight_format("ffn").name,
            "activations": d.activation_format.name,
            "kv": d.kv_format.name,
            "compute": e.prefill.peak_format,
            "native_activations": native_activations(d),
            "exceptions": dict(d.formats),
        },
        "workload": {"batch": whole(w.batch), "input": whole(w.input), "output": whole(w.output),
                     "prefix_hit": number(d.prefix_hit)},
    }


def _features(e: Estimate) -> dict[str, Any]:
    """What the features of the deployment did; imported only where it has one."""
    if not has_features(e.deployment):
        return dict.fromkeys(("speculation", "chunked_prefill", "prefix_cache",
                              "expert_imbalance"))
    from simulator.features import features
    from simulator.features_report import features_dict

    return features_dict(features(e))


def estimate_dict(e: Estimate, causes: list[Cause], force: bool = False,
                  warnings: list[str] | None = None) -> dict[str, Any]:
    """The whole answer. Rates, energy and cost are null where it doesn't fit, unless forced."""
    stands = bool(e.memory.fits) or force
    steps = e.workload.output > 1
    rate = figure if stands else (lambda _: None)
    return identity(e) | {
        "ttft_s": figure(e.ttft),
        "request_time_s": number(e.deployment.engine.request_time),
        "client_ttft_s": figure(e.client_ttft),
        "tpot_s": figure(e.tpot),
        "e2e_s": figure(e.e2e),
        "tokens_per_s_per_user": rate(e.tokens_per_s_per_user),
        "output_tokens_per_s": rate(e.output_tokens_per_s),
        "output_tokens_per_s_per_device": rate(
            e.tpot.rate(e.workload.batch / e.deployment.devices)),
        "request_output_tokens_per_s": rate(e.request_output_tokens_per_s),
        "prefill": _phase(e.prefill, "mfu"),
        "decode": _phase(e.decode, "mbu") if steps else _no_decode(),
        "memory": memory_dict(e),
        "features": _features(e),
        "energy_joules_per_output_token": rate(e.energy_per_token),
        "usd_per_million_output_tokens": rate(e.usd_per_million_tokens),
        "basis": basis(e, causes),
        "warnings": warnings or [],
    }
