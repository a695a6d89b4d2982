"""Disaggregated against aggregated serving, as text and as JSON."""

from __future__ import annotations

import math
from typing import Any

from simulator.deployment import Deployment, Workload
from simulator.disaggregation import (
    AGGREGATED,
    DISAGGREGATED,
    Crossing,
    Link,
    Pools,
    Row,
    Served,
    hiding_bandwidth,
)
from simulator.output import SCHEMA_VERSION, number
from simulator.report import wrap
from simulator.units import format_bandwidth, format_memory, format_number, format_time

_WORDS = {DISAGGREGATED: "pools", AGGREGATED: "aggregated"}


def _devices(p: Deployment, d: Deployment, s: Pools) -> int:
    return s.n_p * p.devices + s.n_d * d.devices


def _instance_dict(d: Deployment, instances: float) -> dict[str, Any]:
    q = d.parallelism
    return {
        "hardware": d.hardware.name,
        "instances": instances,
        "devices_per_instance": d.devices,
        "parallelism": {"tp": q.tp, "pp": q.pp, "ep": q.ep, "cp": q.cp, "dp": q.dp},
    }


def _better(pools: bool) -> str:
    return DISAGGREGATED if pools else AGGREGATED


def _served(x: Served, output: float, devices: int, limit: float, goodput: float) -> dict[str, Any]:
    tokens = x.rate * output if x.stable else math.nan
    return {
        "stable": x.stable,
        "ttft_s": number(x.ttft),
        "tpot_s": number(x.tpot),
        "e2e_s": number(x.e2e),
        "batch_per_instance": number(x.batch),
        "output_tokens_per_s": number(tokens),
        "output_tokens_per_s_per_device": number(tokens / devices),
        "max_rate_per_s": number(limit),
        "goodput_per_s": number(goodput),
        "goodput_tokens_per_s_per_device": number(goodput * output / devices),
    }


def _crossing(c: Crossing) -> dict[str, Any]:
    return {
        "along": c.name, "low": number(c.low), "high": number(c.high), "first": c.first,
        "turns": [{"value": v, "better_above": who} for v, who in c.turns],
        "disaggregated_loses": [list(x) for x in c.spans(AGGREGATED)],
    }


def disaggregation_dict(p: Deployment, d: Deployment, w: Workload, s: Pools, link: Link,
                        rate: float, tpot: float, crossings: tuple[Crossing, Crossing],
                        rows: list[Row], notes: list[str]) -> dict[str, Any]:
    """The whole answer; expected times, SI units."""
    devices, output = _devices(p, d, s), float(w.output)
    one, two = s.disaggregated(rate), s.aggregated(rate)
    a, b = s.goodput(tpot), s.aggregated_goodput(tpot)
    return {
        "schema_version": SCHEMA_VERSION,
        "model": d.model.name,
        "engine": d.engine.name,
        "devices": devices,
        "workload": {"input": float(w.input), "output": output},
        "prefill": _instance_dict(p, s.n_p) | {
            "time_s": s.p.prefill, "utilisation": rate / s.n_p * s.p.service},
        "decode": _instance_dict(d, s.n_d) | {
            "batch": float(s.batch), "step_s": s.d.step(s.batch), "max_batch": s.d.most},
        "ratio": number(s.ratio),
        "kv_transfer": {
            "bytes": s.kv_bytes, "link": link.name, "bandwidth_bytes_per_s": link.bandwidth,
            "latency_s": link.latency, "time_s": s.transfer, "exposed_s": s.exposed,
            "hiding_bandwidth_bytes_per_s": float(hiding_bandwidth(s.kv_bytes, s.p.prefill)),
            "max_rate_per_s": number(s.link_rate), "wait_s": number(s.link_wait(rate)),
        },
        "rate_per_s": rate,
        "tpot_target_s": tpot,
        DISAGGREGATED: _served(one, output, devices, s.rate(s.d.most), a),
        AGGREGATED: _instance_dict(d, s.n) | _served(
            two, output, devices, s.aggregated_goodput(math.inf), b),
        "better_at_rate": _better(one.e2e < two.e2e) if one.stable or two.stable else None,
        "better_goodput": _better(a > b) if a or b else None,
        "goodput_ratio": number(a / b) if b else None,
        "crossings": [_crossing(c) for c in crossings],
        "by_input": [{"input": r.input, "prefill_instances": r.n_p, "decode_instances": r.n_d,
                      "disaggregated_per_s": r.disaggregated, "aggregated_per_s": r.aggregated}
                     for r in rows],
        "warnings": notes,
    }


def _time(value: float) -> str:
    return format_time(value) if math.isfinite(value) else "no end"


def _spans(c: Crossing, unit: str) -> str:
    """Where pools lose, in words."""
    lost = c.spans(AGGREGATED)
    if not lost:
        return f"never from {format_number(c.low)} to {format_number(c.high)} {unit}"
    words = []
    for low, high in lost:
        below, above = low <= c.low, high >= c.high
        words.append(
            f"at every {unit} from {format_number(low)} to {format_number(high)}"
            if below and above else f"below {format_number(high)} {unit}" if below else
            f"above {format_number(low)} {unit}" if above else
            f"from {format_number(low)} to {format_number(high)} {unit}")
    return "; ".join(words)


def _table(s: Pools, devices: int, rate: float, tpot: float, output: float) -> list[str]:
    one, two = s.disaggregated(rate), s.aggregated(rate)
    a, b = s.goodput(tpot), s.aggregated_goodput(tpot)
    rows = [
        ("TTFT (queue, prefill, transfer)", _time(one.ttft), _time(two.ttft)),
        ("TPOT", _time(one.tpot), _time(two.tpot)),
        ("end to end", _time(one.e2e), _time(two.e2e)),
        ("sequences a decoding instance", f"{one.batch:.3g}", f"{two.batch:.3g}"),
        ("most requests/s at all", format_number(s.rate(s.d.most)),
         format_number(s.aggregated_goodput(math.inf))),
        (f"most requests/s, TPOT <= {format_time(tpot)}", format_number(a), format_number(b)),
        ("  tok/s per device there", format_number(a * output / devices),
         format_number(b * output / devices)),
    ]
    at = f"at {format_number(rate)} requests/s, expected"
    head = f"  {at:<42}{'pools':>12}{'aggregated':>14}"
    return [head, *(f"  {name:<42}{x:>12}{y:>14}" for name, x, y in rows)]


def _verdict(s: Pools, rate: float, tpot: float) -> str:
    one, two = s.disaggregated(rate), s.aggregated(rate)
    if not (one.stable or two.stable):
        return f"NEITHER keeps up with {format_number(rate)} requests/s"
    who = _better(one.e2e < two.e2e)
    fast, slow = sorted((one.e2e, two.e2e))
    if slow < 1.01 * fast:
        head = f"NO DIFFERENCE at {format_number(rate)} requests/s: end to end within 1 %"
    else:
        head = (f"{_WORDS[who].upper()} WIN{'S' if who == AGGREGATED else ''} at "
                f"{format_number(rate)} requests/s: ")
    gain = (f"requests end {slow / fast:.2f} times as fast" if math.isfinite(slow) else
            "the other does not keep up")
    a, b = s.goodput(tpot), s.aggregated_goodput(tpot)
    more = ("neither meets the TPOT" if not (a or b) else
            f"{_WORDS[_better(a > b)]} serve "
            + (f"{max(a, b) / min(a, b):.2f}x the requests" if min(a, b) else "all the requests")
            + f" within a TPOT of {format_time(tpot)}")
    return f"{head}{gain}; {more}" if slow >= 1.01 * fast else f"{head}; {more}"


def disaggregation_lines(p: Deployment, d: Deployment, w: Workload, s: Pools, link: Link,
                         rate: float, tpot: float, crossings: tuple[Crossing, Crossing],
                         rows: list[Row]) -> list[str]:
    """The answer for a terminal."""
    devices, output = _devices(p, d, s), float(w.output)

    def pool(n: float, x: Deployment) -> str:
        return f"{n:g} x ({x.devices} x {x.hardware.title})"

    lines = wrap(f"{d.model.title or d.model.name}, {d.engine.title} {d.engine.version}, input "
                 f"{w.input:,.0f}, output {w.output:,.0f} tokens, {devices} devices")
    lines += wrap(f"prefill {pool(s.n_p, p)}, decode {pool(s.n_d, d)}; aggregated "
                  f"{pool(s.n, d)}", "  ")
    lines += ["", *wrap(_verdict(s, rate, tpot), "  ")]
    lines += wrap(f"  Rate matching: {s.ratio:.3g} prefill instances for a decode instance at "
                  f"batch {s.batch:,.0f} (prefill {format_time(s.p.prefill)}, step "
                  f"{format_time(s.d.step(s.batch))}, {w.output - 1:,.0f} steps)", "  ")
    need = format_bandwidth(float(hiding_bandwidth(s.kv_bytes, s.p.prefill)))
    lines += wrap(f"  KV cache of a request {format_memory(s.kv_bytes)} over {link.name} at "
                  f"{format_bandwidth(link.bandwidth)} an instance: {format_time(s.transfer)}, of "
                  f"which {format_time(s.exposed)} show (layer by layer, last layer and latency); "
                  f"a link above {need} hides the rest; all links carry at most "
                  f"{format_number(s.link_rate)} requests/s", "  ")
    lines += ["", *_table(s, devices, rate, tpot, output), ""]
    lines += wrap(f"  Pools lose (end to end): {_spans(crossings[0], 'requests/s')}.", "  ")
    lines += wrap(f"  Pools lose (requests within the TPOT, devices divided anew): "
                  f"{_spans(crossings[1], 'input tokens')}.", "  ")
    lines.append(f"    {'input':>8}{'prefill : decode':>18}{'pools':>12}{'aggregated':>12}"
                 "   requests/s")
    lines += [f"    {r.input:>8,.0f}{f'{r.n_p} : {r.n_d}':>18}{format_number(r.disaggregated):>12}"
              f"{format_number(r.aggregated):>12}" for r in rows]
    return lines
