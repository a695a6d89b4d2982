"""A simulated run as text, as JSON and as a table of requests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from simulator.deployment import Deployment
from simulator.errors import InputError
from simulator.output import SCHEMA_VERSION, number
from simulator.report import wrap
from simulator.serving.run import FEWEST
from simulator.serving.simulate import Served
from simulator.units import format_number, format_time

_TIMES = {"ttft_s": "TTFT", "queue_s": "  of it queue", "ttft_no_queue_s": "  without queue",
          "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "end to end"}
_NOT_IN_A_PLAN = 0.85


def _clean(value: Any) -> Any:
    """The same with null for every NaN and infinity."""
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    return number(value)


def served_dict(s: Served, notes: list[str]) -> dict[str, Any]:
    """The whole answer, SI units."""
    d, p = s.deployment, s.deployment.parallelism
    answer: dict[str, Any] = _clean({
        "schema_version": SCHEMA_VERSION,
        "model": d.model.name,
        "hardware": d.hardware.name,
        "devices": d.devices,
        "engine": d.engine.name,
        "parallelism": {"tp": p.tp, "pp": p.pp, "ep": p.ep, "cp": p.cp, "dp": p.dp},
        "replicas": s.replicas,
        "prefill_replicas": len(s.run.prefill_replicas),
        "scheduler": s.policy.scheduler,
        "max_sequences": s.policy.max_sequences,
        "batched_tokens": s.policy.batched_tokens,
        "concurrency": s.run.concurrency,
        **s.summary(),
    })
    return answer | {"warnings": notes}


def unfit_dict(d: Deployment, reason: str) -> dict[str, Any]:
    """The answer where the model leaves no room for a request."""
    keys = (*_TIMES, "output_tokens_per_s", "goodput_requests_per_s", "utilisation",
            "prefix_hit_rate", "wall_s")
    return {"schema_version": SCHEMA_VERSION, "model": d.model.name, "hardware": d.hardware.name,
            "devices": d.devices, "requests": 0, "fits": False, "stable": False, "preemptions": 0,
            "reason": reason, **dict.fromkeys(keys)}


def unfit_lines(reason: str) -> list[str]:
    """The same as text."""
    return wrap(f"DOES NOT FIT: {reason}", "    ")


def _requests(n: int) -> str:
    return f"{n:,} request{'' if n == 1 else 's'}"


def _head(s: Served) -> list[str]:
    d, p, r = s.deployment, s.policy, s.run.requests
    pools = (f"{len(s.run.prefill_replicas)} prefill and {s.replicas} decode instances of"
             if s.run.prefill_replicas else f"{s.replicas} replicas of" if s.replicas > 1 else "")
    where = f"{d.devices} x {d.hardware.title}" if d.devices > 1 else d.hardware.title
    users = (f"{s.run.concurrency:,} users" if s.run.concurrency is not None else
             "one alone" if len(r) == 1 else "all at once" if r.duration == 0.0 else
             f"{format_number(s.offered_rate)} requests/s")
    lengths = (f"{np.mean(r.input):,.0f} tokens in, {np.mean(r.output):,.0f} out"
               f"{'' if np.ptp(r.input) == np.ptp(r.output) == 0 else ' on average'}")
    return [*wrap(f"{d.model.title or d.model.name} on {pools} {where}, {d.engine.title}, "
                  f"{p.scheduler} scheduler, {p.max_sequences:,} sequences and "
                  f"{p.batched_tokens:,} tokens a step, {s.memory.tokens:,} tokens of KV cache"
                  .replace("  ", " "), "    "),
            f"{_requests(len(r))}, {users}, {lengths}"]


def _verdict(s: Served, x: dict[str, Any]) -> list[str]:
    load = "" if x["utilisation"] is None else (
        f"{x['utilisation']:.0%} of the largest rate, "
        f"{format_number(x['largest_requests_per_s'])} requests/s")
    if s.run.concurrency is not None:
        return wrap(f"CLOSED LOOP  answers at {load}", "    ")
    if not s.judged:
        n = len(s.arrival)
        what = ("all arrive at once, so that they have no rate" if n > 1
                and s.run.requests.duration == 0.0 else
                f"{_requests(n)} {'are' if n > 1 else 'is'} too few for a rate and a steady state "
                f"(from {FEWEST} on)")
        return wrap(f"NOT JUDGED  {what}: whether it keeps up is not said; the figures are of "
                    "this run alone", "    ")
    if x["stable"]:
        lines = wrap(f"KEEPS UP  arrivals are {load}", "    ")
        if (x["utilisation"] or 0.0) > _NOT_IN_A_PLAN:
            lines += wrap(f"  above {_NOT_IN_A_PLAN:.0%} small errors of the step time move the "
                          "queue a lot: mind the range", "    ")
        return lines
    why = (f"arrivals are {load}" if (x["utilisation"] or 0.0) >= 1.0 else
           f"the queue grew by {x['queue_growth']:.0%} of the arrivals ({load})")
    return wrap(f"UNSTABLE  {why}; the queue has no end, so no percentile is given", "    ")


def _times(s: Served, x: dict[str, Any]) -> list[str]:
    if not any(x[key] for key in _TIMES):
        return []
    columns = ("mean", "p50", "p90", "p95", "p99")
    lines = ["", f"{'expected':<16}" + "".join(f"{c:>10}" for c in columns)
             + ("   range of p50 and p99" if s.low is not None else "")]
    for key, title in _TIMES.items():
        values = x[key]
        if values is None:
            continue
        text = f"{title:<16}" + "".join(f"{format_time(values[c]):>10}" for c in columns)
        if s.low is not None:
            text += "   " + ", ".join(_ends(values, c) for c in ("p50", "p99"))
        lines.append(text)
    return lines


def _ends(values: dict[str, Any], share: str) -> str:
    low, high = values.get("low"), values.get("high")
    return (f"{format_time(low[share]) if low else '-'} to "
            f"{format_time(high[share]) if high else 'unstable'}")


def served_lines(s: Served) -> list[str]:
    """The answer as text."""
    x = s.summary()
    lines = [*_head(s), *_verdict(s, x), *_times(s, x), ""]
    ends = x["output_tokens_per_s_range"]
    low, high = ends["low"], ends["high"]
    between = "" if low is None or high is None else (
        f" ({format_number(low)} to {format_number(high)})")
    lines += [f"Output       {format_number(x['output_tokens_per_s'])} tok/s total{between}, "
              f"{format_number(x['requests_per_s'])} requests/s"]
    if x["slo_attainment"] is not None and x["stable"]:
        lines += [f"Goodput      {format_number(x['goodput_requests_per_s'])} requests/s within "
                  f"the targets, {x['slo_attainment']:.1%} of them"]
    o, busy = x["occupancy"], x["busy"]
    lines += [f"Batch        {o['running_mean']:.1f} sequences running, {o['waiting_mean']:.1f} "
              f"waiting on average and replica",
              f"KV cache     {o['kv_mean']:.0%} full on average, {o['kv_max']:.0%} at most; "
              f"{x['preemptions']:,} preemptions, {x['prefix_hit_rate']:.0%} of the prompt tokens "
              "found",
              "Busy         " + ", ".join(f"{k.replace('_', ' ')} {v:.0%}" for k, v in busy.items()
                                          if v >= 0.005)]
    for words, count in {**x["rejected"], **x["dropped"]}.items():
        lines += wrap(f"Left out     {_requests(count)}: {words}", "    ")
    closed = s.run.concurrency is not None
    cut = (f"The first and last {x['cut']:.0%} of the run are cut"
           + (", and what comes after the last request was sent" if closed else "")
           if x["cut"] else
           "Nothing is cut: the run is short, so that it holds its start and its end")
    few = "" if s.low is None or len(s.arrival) <= len(s.low.arrival) else (
        f" (ratios of the first {len(s.low.arrival):,})")
    lines += ["", *wrap(f"{cut}; {_requests(x['requests'])} counted. Expectations: every step "
                        "takes the time that estimate gives; the range is that of the same "
                        f"requests with every step at its low and high end{few}"
                        f". ITL in classes of {x['itl_resolution']:.0%}.", "    "),
              f"{_requests(len(s.arrival))} in {format_time(x['wall_s'])}"]
    return lines


def write_requests(s: Served, path: str) -> None:
    """One line a request: when it came, was admitted, spoke first and ended [s]."""
    import pandas as pd

    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise InputError(f"--csv: '{path}' can't be written: "
                         + ("it is a folder" if target.is_dir() else
                            f"folder '{target.parent}' does not exist"))
    output = s.output
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(output > 1, (s.finish - s.first_token) / np.maximum(output - 1, 1),
                        math.nan)
    frame = pd.DataFrame({
        "arrival_s": s.arrival, "admitted_s": s.run.admitted, "first_token_s": s.first_token,
        "finish_s": s.finish, "input": s.input, "output": output, "replica": s.replica,
        "ttft_s": s.first_token - s.arrival, "tpot_s": each, "e2e_s": s.finish - s.arrival})
    try:
        frame.to_csv(target, index=False, float_format="%.9g")
    except OSError as error:
        raise InputError(f"--csv: '{path}' can't be written: {error.strerror}") from None


__all__ = ["served_dict", "served_lines", "unfit_dict", "unfit_lines", "write_requests"]
