"""A plan as one JSON value: SI units, money in USD, null where there is nothing to say."""

from __future__ import annotations

import math
from typing import Any

from simulator.deployment import native_activations
from simulator.output import SCHEMA_VERSION, number
from simulator.planning import Plan
from simulator.planning.ask import Ask
from simulator.planning.carry import Carried
from simulator.planning.report import BASIS, formats, nearest_option, scaled
from simulator.planning.search import Option
from simulator.planning.settings import Settings


def option_dict(o: Option, output: float) -> dict[str, Any]:
    """An option as JSON: devices, money and watts of all replicas, SI units."""
    c, p = o.candidate, o.candidate.parallelism
    s = o.setting
    stands = o.replicas > 0
    priced = stands and not math.isnan(o.usd_per_hour)
    return {
        "hardware": c.offer.hardware.name,
        "status": c.offer.hardware.status,
        "devices": o.devices,
        "devices_per_replica": c.devices,
        "nodes_per_replica": c.nodes,
        "parallelism": {"tp": p.tp, "pp": p.pp, "ep": p.ep, "cp": p.cp, "dp": p.dp},
        "replicas": o.replicas,
        "formats": formats(o) | {
            "native_activations": None if c.base is None else native_activations(c.base)},
        "engine": None if c.base is None else c.base.engine.name,
        "engine_settings": None if s is None else {
            "max_num_seqs": s.places, "max_num_batched_tokens": s.budget},
        "utilisation": number(o.utilisation) if stands else None,
        "max_rate_per_s": number(o.max_rate) if stands else None,
        "saturation_rate_per_s": number(o.saturation) if stands else None,
        "batch": number(o.batch) if stands else None,
        "usd_per_hour": number(o.usd_per_hour) if priced else None,
        "usd_per_million_output_tokens": number(o.usd_per_million_tokens(output))
        if priced else None,
        "watts": number(o.watts) if stands else None,
        "watts_is_limit": o.bounded,
        "energy_joules_per_output_token": number(o.watts / (o.rate * output)) if stands else None,
        "ttft_s": {"p99": number(o.ttft) if stands else None},
        "tpot_s": {"p99": number(o.tpot) if stands else None},
        "reason": o.reason,
    }


def plan_dict(p: Plan, settings: list[Settings]) -> dict[str, Any]:
    """One JSON value; `best` null where nothing serves it; percentiles null without an end."""
    ask, best, output = p.ask, p.best, p.ask.load.mean_output
    nearest, limit = (None, "") if best is not None else nearest_option(p)
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": ask.model.name,
        "rate_per_s": ask.rate,
        "targets": {"ttft_p99_s": ask.ttft, "tpot_p99_s": ask.tpot,
                    "max_usd_per_hour": ask.max_cost, "max_utilisation": ask.utilisation},
        "workload": {"input_mean": ask.load.mean_prompt, "output_mean": output,
                     "longest": ask.load.longest, "burstiness": ask.load.burstiness,
                     "shared_prefix": ask.load.shared_prefix, "requests": len(ask.requests),
                     "dropped": dict(ask.requests.dropped)},
        "best": None if best is None else _best_dict(p, best),
        "nearest": None if nearest is None else option_dict(nearest, output),
        "limited_by": limit or None,
        "limits": [{"name": x.name, "rate_per_s": number(x.rate), "meaning": x.meaning,
                    "basis": x.basis}
                   for x in p.limits],
        "alternatives": [option_dict(o, output) for o in p.options if o is not best],
        "pareto": [option_dict(o, output) | {"latency_s": number(o.latency(output))}
                   for o in p.front],
        "simulated": [{
            "hardware": v.option.candidate.offer.hardware.name, "replicas": v.option.replicas,
            "requests": v.simulated.requests, "stable": v.simulated.stable,
            "utilisation": number(v.simulated.utilisation),
            "ttft_s": {"p99": number(v.simulated.ttft)},
            "tpot_s": {"p99": number(v.simulated.tpot)},
            "formula_ttft_s": {"p99": number(v.analytical[0])},
            "formula_tpot_s": {"p99": number(v.analytical[1])},
            "preemptions": v.simulated.preemptions, "note": v.note} for v in p.verified],
        "settings": {s.engine: {"command": s.command, "files": s.files, "planned": s.planned,
                                "notes": list(s.notes)} for s in settings},
        "basis": BASIS,
        "warnings": list(p.warnings),
        "analytical_s": p.analytical,
        "wall_s": p.wall,
    }
    return found


def _best_dict(p: Plan, o: Option) -> dict[str, Any]:
    """The plan with the range of each figure and where it comes from."""
    s, found = p.spreads, option_dict(o, p.ask.load.mean_output)
    for key, name_, value in (("ttft_s", "ttft", o.ttft), ("tpot_s", "tpot", o.tpot)):
        low, high = scaled(s[name_], value)
        found[key] = {"p99": number(value), "low": number(low), "high": number(high)}
    worst, most = scaled(s["max_rate"], p.max_rate)[::-1]
    found["max_rate_per_s"] = number(p.max_rate)
    found["max_rate_range_per_s"] = {"low": number(worst), "high": number(most)}
    low, high = scaled(s["utilisation"], o.utilisation)
    found["utilisation_range"] = {"low": number(low), "high": number(high)}
    found["headroom"] = number(p.max_rate / o.rate - 1.0)
    found["basis"] = "simulated" if p.simulated else "formula"
    return found


def carried_dict(ask: Ask, found: list[Carried], think: float, wall: float) -> dict[str, Any]:
    """What each machine carries as JSON; rates null where it carries nothing."""
    output = ask.load.mean_output
    return {
        "schema_version": SCHEMA_VERSION,
        "model": ask.model.name,
        "targets": {"ttft_p99_s": ask.ttft, "tpot_p99_s": ask.tpot,
                    "max_utilisation": ask.utilisation},
        "think_s": think,
        "carries": [{
            "hardware": c.offer.hardware.name, "devices": c.offer.most or 1,
            "rate_per_s": None if c.rate <= 0.0 else
            {"expected": number(c.rate), "low": number(c.low), "high": number(c.high)},
            "users": number(c.users) if c.rate > 0.0 else None,
            "best": None if c.option is None or c.rate <= 0.0 else option_dict(c.option, output),
            "limits": [{"name": x.name, "rate_per_s": number(x.rate), "basis": x.basis}
                       for x in c.limits],
            "reason": c.reason or None} for c in found],
        "basis": BASIS,
        "warnings": list(ask.notes),
        "wall_s": wall,
    }
