"""An estimate as text of at most 100 columns: verdict first, then speed, then what limits it."""

from __future__ import annotations

import numpy as np

from simulator.advice import Change, Improvement, native_change
from simulator.deployment import Deployment, has_features, native_activations
from simulator.memory import GivenKv, Memory
from simulator.memory import memory as memory_of
from simulator.offload_report import far_lines, missing_room, os_line
from simulator.placement import has_experts
from simulator.request import Cause, Estimate, Figure, Phase
from simulator.units import (
    format_bandwidth,
    format_flops,
    format_memory,
    format_number,
    format_time,
)

WIDTH = 100


def wrap(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """`text` in lines of at most `width`, continued under `indent`."""
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=True) or [""]


def title(e: Estimate) -> list[str]:
    """What was asked, in one or two lines."""
    d, w, p = e.deployment, e.workload, e.deployment.parallelism
    degrees = " ".join(f"{n}={getattr(p, n)}" for n in ("tp", "pp", "ep", "cp", "dp")
                       if getattr(p, n) > 1)
    devices = f"{d.devices} x " if d.devices > 1 else ""
    nodes = f" in {d.nodes} nodes" if d.nodes > 1 else ""
    status = d.hardware.status
    mark = f" [{status}: not a specification]" if status in ("announced", "hypothetical") else ""
    formats = (f"weights {d.weight_format('ffn').name}, activations {d.activation_format.name}, "
               f"KV {d.kv_format.name}, computes in {e.prefill.peak_format}")
    if d.formats:
        formats += ", but " + ", ".join(f"{role} {name}" for role, name in d.formats.items())
    hit = f", prefix hit {float(d.prefix_hit):.0%}" if d.prefix_hit else ""
    return [
        *wrap(f"{d.model.title or d.model.name} on {devices}{d.hardware.title}{nodes}{mark}, "
              f"{d.engine.title} {d.engine.version}" + (f", {degrees}" if degrees else "")),
        *wrap(f"batch {w.batch:,.0f} (deployment), input {w.input:,.0f}, output {w.output:,.0f} "
              f"tokens{hit}; {formats}"),
    ]


def widened(d: Deployment, flag: str, chips: str = "this chip") -> str:
    """That weights multiply in a wider precision than the chip could, and the flag that tells."""
    return (f"Weights are widened to {d.activations}, the default activations, and multiply there; "
            f"engines with {native_activations(d)} kernels for {chips} run such checkpoints at "
            f"`{flag}`")


def native_lines(e: Estimate, found: list[Improvement]) -> list[str]:
    """The same of an estimate; nothing where weights multiply in their own precision."""
    change = native_change(e.deployment, e.workload)
    if change is None:
        return []
    first = ": the first of the single changes below" if found else ""
    return wrap(f"{widened(e.deployment, change.flag)}{first}.")


def memory_lines(e: Estimate) -> list[str]:
    """The verdict, and what fills a device."""
    m, d = e.memory, e.deployment
    each = " on each device" if d.devices > 1 else ""
    if m.fits:
        verdict = (f"FITS{each}: {format_memory(float(m.total))} of "
                   f"{format_memory(float(m.capacity))}, "
                   f"{format_memory(float(m.capacity - m.total))} free")
    else:
        verdict = f"DOES NOT FIT{each}: {missing_room(m, d.offload)}"
    lines = wrap(verdict + _capacity_range(e), "  ")
    state = f" (fixed state {format_memory(float(m.fixed_state))})" if m.fixed_state else ""
    lines += wrap(
        f"  weights {format_memory(float(m.weights))} + KV {format_memory(float(m.kv))} allocated "
        f"({format_memory(float(m.kv_ideal))} ideal){state} + activations "
        f"{format_memory(float(m.activations))} + reserve {format_memory(float(m.reserved))}", "  ")
    lines += wrap(f"  KV {float(m.kv_per_token):,.0f} B a token{each}; max batch "
                  f"{m.max_batch:,.0f} at this length; max context {m.max_context:,.0f} at this "
                  "batch", "  ")
    if os_line(d.hardware):
        lines += wrap(os_line(d.hardware), "  ")
    if d.offload is not None:
        for line in far_lines(d.offload, m, each, has_experts(d)):
            lines += wrap(line, "  ")
    if m.fits and m.pool.blocks:
        lines += wrap(f"  KV pool {format_memory(float(m.pool.bytes))}{each}: "
                      f"{float(m.pool.tokens):,.0f} tokens in {float(m.pool.blocks):,.0f} blocks "
                      f"of {m.pool.block_size:.0f}; {float(m.pool.max_concurrency):,.2f}x of this "
                      "length", "  ")
    return lines


def given_kv_lines(e: Estimate, g: GivenKv) -> list[str]:
    """What a given KV room holds, in the words of the engine's start-up log."""
    each = " on each device" if e.deployment.devices > 1 else ""
    room, batch = format_memory(float(g.pool.bytes)), float(e.workload.batch)
    context, held = float(g.context), float(g.pool.max_concurrency)
    if not g.possible:
        verdict = (f"DOES NOT FIT{each}: the weights leave {format_memory(float(g.left))}, so "
                   f"{room} for KV are impossible")
    else:
        word = "FITS" if g.enough else "DOES NOT FIT"
        many = "sequence" if batch == 1 else "sequences"
        verdict = f"{word}{each}: {batch:,.0f} {many} of {context:,.0f} tokens in {room} of KV"
    return [
        *wrap(verdict, "  "),
        *wrap(f"  KV memory {room} as given{each}: {float(g.pool.tokens):,.0f} tokens in "
              f"{float(g.pool.blocks):,.0f} blocks of {g.pool.block_size}; concurrency "
              f"{held:,.2f}x of {context:,.0f} tokens", "  "),
        *wrap(f"  KV {float(g.kv_per_token):,.0f} B a token{each}; one sequence "
              f"{format_memory(float(g.sequence))} allocated ({format_memory(float(g.ideal))} "
              "ideal)", "  "),
    ]


def _capacity_range(e: Estimate) -> str:
    r = e.deployment.hardware.ranges.get("memory_capacity")
    if r is None:
        return ""
    verdicts = [_fits_at(e, value) for value in (r.low, r.high)]
    words = ["fits" if v.fits else "does not fit" for v in verdicts]
    return (f" (capacity is a range: {words[0]} at {format_memory(r.low)}, {words[1]} at "
            f"{format_memory(r.high)})")


def _fits_at(e: Estimate, capacity: float) -> Memory:
    d, w = e.deployment, e.workload
    return memory_of(d.replace(hardware=d.hardware.replace(memory_capacity=capacity)), w.batch,
                     w.input, w.output)


def fit_lines(changes: list[Change]) -> list[str]:
    """The smallest changes that would fit."""
    if not changes:
        return ["  No single change makes it fit: fewer bits and more devices together are needed."]
    lines = ["  Each of these alone would fit:"]
    for c in changes:
        w = c.workload
        total = memory_of(c.deployment, w.batch, w.input, w.output)
        size = f"{format_memory(float(total.total))} of {format_memory(float(total.capacity))}"
        lines += wrap(f"    {c.text:<42} {c.flag:<28} {size}", " " * 47)
    return lines


def _row(name: str, f: Figure, form: object, note: str) -> str:
    text = [form(float(v)) if callable(form) else str(v)
            for v in (f.expected, f.low, f.high, f.ceiling)]
    return f"  {name:<26}{text[0]:>11}{text[1]:>11} ..{text[2]:>10}{text[3]:>12}   {note}".rstrip()


def _rate(value: float) -> str:
    return format_number(value)


def speed_lines(e: Estimate) -> list[str]:
    """TTFT, TPOT, rates, energy and cost: expected, range, ceiling."""
    w, d = e.workload, e.deployment
    lines = [f"  {'':<26}{'expected':>11}{'low':>11} ..{'high':>10}{'ceiling':>12}",
             _row("TTFT (no queue)", e.ttft, format_time, "whole batch at once")]
    if d.engine.request_time:
        lines.append(_row("TTFT at the client", e.client_ttft, format_time,
                          f"+{format_time(float(d.engine.request_time))} in the server"))
    if w.output > 1:
        lines += [
            _row("TPOT", e.tpot, format_time, "mean step" if d.speculation is None else
                 "round / tokens a round"),
            _row("end to end", e.e2e, format_time, "one request"),
            _row("tok/s per user", e.tokens_per_s_per_user, _rate, "1 / TPOT"),
            _row("tok/s total", e.output_tokens_per_s, _rate, "decode, batch / TPOT"),
        ]
        if d.devices > 1:
            lines.append(_row("tok/s per device", e.tpot.rate(w.batch / d.devices), _rate,
                              f"of {d.devices}"))
    lines.append(_row("tok/s incl. prefill", e.request_output_tokens_per_s, _rate,
                      "batch x output / E2E"))
    if e.energy_per_token is not None:
        lines.append(_row("J per output token", e.energy_per_token, _rate, "incl. prefill"))
    if e.usd_per_million_tokens is not None:
        lines.append(_row("USD per M output tokens", e.usd_per_million_tokens, _rate,
                          "incl. prefill"))
    return lines


def bound_line(e: Estimate, name: str, phase: Phase, quantity: str) -> str:
    """Which term decides a phase, and by how much."""
    detail = phase.detail
    parts = {p: float(getattr(detail, p) / detail.expected)
             for p in ("compute", "memory", "network", "overhead")}
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    rest = ", ".join(f"{k} {v:.0%}" for k, v in ranked[1:] if v >= 0.005)
    arithmetic = float(detail.flops / phase.peak)
    traffic = float(detail.bytes / e.deployment.hardware.memory_bandwidth)
    by_bytes = traffic > arithmetic
    ratio = format_number(max(traffic, arithmetic) / max(min(traffic, arithmetic), 1e-300), 2)
    far = any(t.operation.kind == "offload" and t.ceiling > 0 for t in detail.operations)
    near = "near " if far else ""
    longer = "far bytes take longest, " if far else ""
    longer += f"{near}bytes take {ratio}x the FLOPs" if by_bytes else (
        f"FLOPs take {ratio}x the {near}bytes")
    return (f"  {name:<8} {ranked[0][0]}-bound, {ranked[0][1]:.0%} of the time"
            + (f" ({rest})" if rest else "")
            + f"; ceiling {detail.ceiling_bound}-bound: {longer}; {quantity} "
            f"{float(phase.utilisation):.0%}")


def bound_lines(e: Estimate) -> list[str]:
    """The bound of each phase."""
    lines = wrap(bound_line(e, "prefill", e.prefill, "MFU"), " " * 11)
    if e.workload.output > 1:
        lines += wrap(bound_line(e, "decode", e.decode, "MBU"), " " * 11)
    return lines


def limit_lines(e: Estimate) -> list[str]:
    """What fills the decode step, in words."""
    d, detail = e.deployment, e.decode.detail
    if e.workload.output <= 1:
        return []
    time = float(detail.expected)
    weights, attention = (
        sum(float(t.expected - t.overhead) for t in detail.operations if t.operation.kind in kinds)
        for kinds in (("gemm", "moe"), ("attention", "ssm")))
    fixed = float(detail.overhead)
    lines = wrap(
        f"  A decode step spends {weights / time:.0%} streaming weight matrices, "
        f"{attention / time:.0%} on the KV cache; {fixed / time:.0%} ({format_time(fixed)}) are "
        "fixed costs that no bandwidth shrinks.", "  ")
    hw = d.hardware
    lines += wrap(
        f"  {hw.title}: {format_bandwidth(float(hw.memory_bandwidth))}, "
        f"{format_flops(float(e.prefill.peak))} {e.prefill.peak_format} dense, ridge at "
        f"{format_number(float(e.prefill.peak / hw.memory_bandwidth))} FLOP/byte a device.", "  ")
    return lines


def wrapped_features(e: Estimate) -> list[str]:
    """What the features of the deployment did."""
    if not has_features(e.deployment):
        return []
    from simulator.features import features
    from simulator.features_report import features_lines

    return [x for line in features_lines(features(e)) for x in wrap(line, "    ")]


def improvement_lines(e: Estimate, found: list[Improvement]) -> list[str]:
    """What each change would do to the expected figures."""
    lines = []
    for item in found:
        r = item.result
        ttft = f"TTFT {format_time(float(r.ttft.expected))}"
        tpot = f"TPOT {format_time(float(r.tpot.expected))}, " if e.workload.output > 1 else ""
        total = (f", {format_number(float(r.output_tokens_per_s.expected))} tok/s total"
                 if e.workload.output > 1 else "")
        note = "" if r.memory.fits else " (would not fit)"
        lines.append(f"    {item.change.text:<36} {tpot}{ttft}{total}{note}")
    return ["  Single changes, expected:", *lines] if lines else []


def cause_lines(causes: list[Cause]) -> list[str]:
    """Which range of the spec moves the answer, and by how much."""
    if not causes:
        return []
    forms = (("TPOT", "tpot", format_time), ("TTFT", "ttft", format_time),
             ("J", "energy_per_token", format_number),
             ("USD/M", "usd_per_million_tokens", format_number))
    lines = ["  Ranges in the hardware file, each moved alone, expected figures:"]
    for c in causes:
        moved = [f"{name} {form(float(ends[0]))} .. {form(float(ends[1]))}"
                 for name, field, form in forms
                 if np.isfinite((ends := getattr(c, field))[0])
                 and form(float(ends[0])) != form(float(ends[1]))]
        lines += wrap(f"    {c.field:<22} " + "; ".join(moved), " " * 27)
    return lines


def estimate_lines(e: Estimate, changes: list[Change], found: list[Improvement],
                   causes: list[Cause], basis: str, force: bool,
                   asked: bool = False) -> list[str]:
    """The whole answer for a terminal; `asked`: the activations are the user's, not the default."""
    lines = [*title(e), *([] if asked else native_lines(e, found)), "", *memory_lines(e)]
    if not e.memory.fits:
        lines += fit_lines(changes)
        if not force:
            return [*lines, "", "No rates for what does not fit; --force prints them."]
    lines += ["", *speed_lines(e), "", *bound_lines(e), *limit_lines(e), *wrapped_features(e),
              *improvement_lines(e, found), *cause_lines(causes), "",
              *wrap(f"Range: {basis}.", "  ")]
    return lines
