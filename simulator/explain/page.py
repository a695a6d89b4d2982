"""The textbook page: the numbers put into the formulas, line by line, to be redone on paper.

Every line reads `label  formula; remark  value`. Lines marked + add up to the next line marked =.
"""

from __future__ import annotations

from simulator.explain.cache import cache_a_token, cache_part
from simulator.explain.flops import flops_lines
from simulator.explain.lines import exact, many, note, row
from simulator.explain.passes import Pass, both_passes, parts_of
from simulator.explain.times import expected_lines, operations_table, roof_lines
from simulator.explain.weights import weights_part
from simulator.memory import per_replica
from simulator.request import Estimate, Figure
from simulator.specs.hardware import Hardware
from simulator.specs.model import Mla
from simulator.units import (
    format_bandwidth,
    format_decimal_bytes,
    format_flops,
    format_number,
    format_time,
)


def decode_page(e: Estimate, p: Pass) -> list[str]:
    """Decode: bytes over bandwidth, then what the expectation adds."""
    (first, last), W = p.context, float(p.best.memory_bandwidth)
    weight_lines, weights = weights_part(p)
    kv_lines, kv = cache_part(p)
    rest = float(p.ceiling.bytes) - weights - kv
    term, tpot = weights / W, e.tpot
    return [
        "DECODE makes one token a sequence and step: it streams every weight and the KV cache,",
        "so bytes/s decide.",
        *weight_lines,
        cache_a_token(p.d),
        row("mean context", f"({exact(first)} + {exact(last)}) / 2",
              f"{exact((first + last) / 2)} tokens", "first and last step"),
        *kv_lines,
        row("+ weights", "", format_decimal_bytes(weights)),
        row("+ KV cache", "", format_decimal_bytes(kv)),
        row("+ activations", "", format_decimal_bytes(rest), "reads and writes of all kernels"),
        row("= all bytes", "", format_decimal_bytes(float(p.ceiling.bytes))),
        *flops_lines(p),
        row("weights term", f"{format_decimal_bytes(weights)} / {format_bandwidth(W)} = "
              f"{format_time(term)} -> {format_number(1 / term)} tok/s a user, weights alone",
              format_time(term)),
        row("KV term", f"{format_decimal_bytes(kv)} / {format_bandwidth(W)}",
              format_time(kv / W)),
        *roof_lines(p, float(tpot.ceiling),
                     f"1/TPOT = {format_number(float(1 / tpot.ceiling))} tok/s"),
        *expected_lines(e, p, float(tpot.expected)),
        *pipeline_lines(p, tpot, "micro-batches in flight wait for the fullest stage"),
        row("TPOT", f"1 / {format_time(float(tpot.expected))}",
              f"{format_number(float(1 / tpot.expected))} tok/s a user",
              f"time a token, between {format_time(float(tpot.low))} and "
              f"{format_time(float(tpot.high))}")]


def pipeline_lines(p: Pass, figure: Figure, why: str) -> list[str]:
    """What a pipeline or chunks make of the times of one pass; nothing where they make none."""
    what = "chunks" if p.mid is p.time else "pipeline"
    lines = []
    for name, once, time in (("ceiling", p.ceiling.ceiling, figure.ceiling),
                             ("expected", p.time.expected, figure.expected)):
        factor = float(time) / float(once)
        if abs(factor - 1.0) > 1e-3:
            lines.append(row(f"{name}, {what}", f"{format_time(float(once))} x "
                             f"{format_number(factor, 4)}", format_time(float(time)), why))
    return lines


def prefill_page(e: Estimate, p: Pass) -> list[str]:
    """Prefill: FLOPs over peak, then what the expectation adds."""
    ttft, parts = e.ttft, [parts_of(p, t) for t in p.ceiling.operations]
    weights, kv, rest = (sum(column) for column in zip(*parts, strict=True))
    lines = [
        "PREFILL multiplies matrices over the whole prompt at once: every weight serves all its",
        "tokens, so FLOP/s decide.",
        note("Matrices take 2 FLOPs a weight and token; attention 2(d_k+d_v) a head and visible "
              "query-key pair."),
        *flops_lines(p),
        row("+ weights", "", format_decimal_bytes(weights)),
        row("+ KV cache", "", format_decimal_bytes(kv)),
        row("+ activations", "", format_decimal_bytes(rest), "reads and writes of all kernels"),
        row("= all bytes", "", format_decimal_bytes(float(p.ceiling.bytes))),
        *roof_lines(p, float(ttft.ceiling)),
        *expected_lines(e, p, float(ttft.expected)),
    ]
    d = e.deployment
    passes = float(per_replica(d, e.workload.batch)) / p.sequences
    why = f"steps of at most {d.prefill_chunk} tokens, which read weights and cache again"
    if d.parallelism.pp > 1:
        many_stages = "1 + (m - 1) x the share of a pass that the fullest stage takes"
        why = (f"{why}; of m of them, {many_stages}" if d.prefill_chunk else
               f"{exact(passes)} micro-batches: {many_stages}")
    lines += pipeline_lines(p, ttft, why)
    return [*lines, row(
        "TTFT, no queue", "", format_time(float(ttft.expected)),
        f"between {format_time(float(ttft.low))} and {format_time(float(ttft.high))}; "
        f"{float(e.prefill.utilisation):.0%} of peak FLOP/s (MFU)")]


def basis_lines(e: Estimate, first: Pass, step: Pass) -> list[str]:
    """What all numbers below refer to: device, stages, ends of ranges."""
    d, best, n = e.deployment, first.best, e.deployment.parallelism
    lines = []
    if d.hardware.timed_ranges:
        peak = best.peak(d.compute("ffn"))[0]
        lines.append(note(
            f"Ranges: the ceiling takes the favourable end of each ({rates_text(best, peak)}), as "
            "do all lines above CEILING; the ridge point and the lines in practice take the "
            f"middle ({rates_text(d.hardware, e.prefill.peak)})."))
    if d.devices > n.pp:
        lines.append(note(f"All numbers are those of one device, the fullest of {d.devices}."))
    if n.pp > 1:
        lines.append(note(
            f"Each pass goes through all {n.pp} stages one after the other, and that whole pass is "
            f"shown, with {many(first.sequences, 'sequence')} in prefill and "
            f"{many(step.sequences, 'sequence')} in decode (a micro-batch). FLOPs and bytes in "
            "the JSON are those of one device."))
    return lines


def rates_text(hardware: Hardware, peak: float) -> str:
    return f"{format_bandwidth(float(hardware.memory_bandwidth))}, {format_flops(float(peak))}"


def explain(e: Estimate) -> list[str]:
    """The page: ridge point, prefill, decode, end to end, and both tables of operations."""
    d, w = e.deployment, e.workload
    C, W = e.prefill.peak, d.hardware.memory_bandwidth
    first, step = both_passes(e)
    lines = [
        f"RIDGE POINT  C/W = {format_flops(C)} / {format_bandwidth(W)} = {format_number(C / W)} "
        "FLOP/byte:", "  below it bytes decide, above it FLOPs.",
        note("Lines marked + add up to the next line marked =."),
        *basis_lines(e, first, step),
        "",
        *prefill_page(e, first),
    ]
    if w.output > 1:
        steps = float(w.output) - 1
        lines += [
            "", *decode_page(e, step), "",
            "END TO END",
            row("E2E", f"{format_time(float(e.ttft.expected))} + {steps:,.0f} x "
                  f"{format_time(float(e.tpot.expected))}", format_time(float(e.e2e.expected)),
                  "TTFT + (output - 1) x TPOT"),
        ]
    stages = f"all {d.parallelism.pp} stages" if d.parallelism.pp > 1 else "one device"
    lines += ["", f"PREFILL, BY OPERATION ({stages}, all executions)", *operations_table(first.mid)]
    if w.output > 1:
        lines += ["", f"DECODE, BY OPERATION ({stages}, mean step, all executions)",
                  *operations_table(step.mid)]
    if any(isinstance(g.mixer, Mla) for g in d.model.layers):
        lines += ["", "MLA runs absorbed or expanded, whichever is faster in that phase; only that "
                  "one is listed."]
    return lines
