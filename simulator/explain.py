"""The textbook page: the numbers put into the formulas, line by line, to be redone on paper."""

from __future__ import annotations

import textwrap

from simulator.layers import sum_of
from simulator.operations.moe import experts_touched
from simulator.request import Estimate
from simulator.specs.model import Mla, Moe
from simulator.step import OperationTime, PassTime
from simulator.units import (
    format_bandwidth,
    format_decimal_bytes,
    format_flops,
    format_number,
    format_time,
)

WIDTH = 100


def _line(label: str, formula: str, value: str) -> str:
    """A label, how its value comes about, and the value, the values right-aligned."""
    indent = " " * 25
    lines = textwrap.wrap(f"  {label:<22} {formula}", WIDTH, subsequent_indent=indent)
    room = WIDTH - len(value) - 1
    if len(lines[-1]) > room:
        lines = textwrap.wrap(f"  {label:<22} {formula}", room, subsequent_indent=indent)
    lines[-1] = f"{lines[-1]:<{room}} {value}"
    return "\n".join(lines)


def _sum(detail: PassTime, part: str) -> float:
    return float(sum_of(getattr(t.operation, part) * t.operation.count
                        for t in detail.operations))


def _kinds(detail: PassTime) -> list[tuple[str, list[OperationTime]]]:
    kinds: dict[str, list[OperationTime]] = {}
    for t in detail.operations:
        kinds.setdefault(t.operation.kind, []).append(t)
    return sorted(kinds.items(), key=lambda item: -float(sum_of(t.expected for t in item[1])))


def operations_table(detail: PassTime, most: int = 14) -> list[str]:
    """Operations by expected time: count, FLOPs, bytes, intensity, ceiling, expected, bound."""
    rows = sorted(detail.operations, key=lambda t: -float(t.expected))
    head = (f"  {'operation':<24}{'count':>6}{'FLOP':>12}{'bytes':>11}{'FLOP/B':>9}"
            f"{'ceiling':>11}{'expected':>11}  bound")
    lines = [head]
    for t in rows[:most]:
        intensity = format_number(float(t.flops / t.bytes), 3) if t.bytes else "-"
        lines.append(
            f"  {t.operation.name[:23]:<24}{t.operation.count:>6.0f}"
            f"{format_flops(float(t.flops), ''):>12}{format_decimal_bytes(float(t.bytes)):>11}"
            f"{intensity:>9}{format_time(float(t.ceiling)):>11}"
            f"{format_time(float(t.expected)):>11}  {t.bound}")
    rest = rows[most:]
    if rest:
        lines.append(f"  {f'{len(rest)} more':<24}{'':>6}"
                     f"{format_flops(float(sum_of(t.flops for t in rest)), ''):>12}"
                     f"{format_decimal_bytes(float(sum_of(t.bytes for t in rest))):>11}{'':>9}"
                     f"{format_time(float(sum_of(t.ceiling for t in rest))):>11}"
                     f"{format_time(float(sum_of(t.expected for t in rest))):>11}")
    if float(detail.host):
        lines.append(f"  {'host, a step':<24}{'':>6}{'':>12}{'':>11}{'':>9}{format_time(0.0):>11}"
                     f"{format_time(float(detail.host)):>11}  overhead")
    return lines


def _weights_formula(e: Estimate, weights: float) -> str:
    d = e.deployment
    form = d.weight_format("ffn")
    values = weights / form.bytes
    share = f" on each of {d.devices} devices" if d.devices > 1 else ""
    return f"about {format_number(values / 1e9)}e9 values x {form.bytes:g} B ({form.name}){share}"


def _experts(e: Estimate, batch: float) -> list[str]:
    lines = []
    for moe in {g.ffn for g in e.deployment.model.layers if isinstance(g.ffn, Moe)}:
        touched = float(experts_touched(moe.experts, moe.top_k, batch))
        lines.append(_line(
            "experts touched", f"E(1-(1-k/E)^T) = {moe.experts} x (1 - (1 - {moe.top_k}/"
            f"{moe.experts})^{batch:g})", f"{touched:.1f} of {moe.experts}"))
    return lines


def decode_page(e: Estimate) -> list[str]:
    """Decode: bytes over bandwidth, then what the expectation adds."""
    d, w, detail, m = e.deployment, e.workload, e.decode.detail, e.memory
    hw, p = d.hardware, d.parallelism
    W, C = hw.memory_bandwidth, e.decode.peak
    weights, kv, rest = (_sum(detail, part) for part in ("weights", "kv", "activations"))
    batch = float(w.batch) / p.dp
    mean = float(w.input + w.output / 2.0)
    kv = float(detail.bytes) - weights - rest if p.pp == 1 else kv
    term = weights / W
    lines = [
        "DECODE makes one token a sequence and step: it streams every weight and the KV cache,",
        "so bytes/s decide.",
        _line("weights streamed", _weights_formula(e, weights), format_decimal_bytes(weights)),
        *_experts(e, batch),
        _line("KV cache moved", f"{float(m.kv_per_token):,.0f} B/token x "
              f"{mean:,.0f} tokens (mean context) x {batch:g} sequences",
              format_decimal_bytes(kv)),
        _line("activations moved", "reads and writes of all kernels", format_decimal_bytes(rest)),
        _line("weights term", f"{format_decimal_bytes(weights)} / {format_bandwidth(W)} = "
              f"{format_time(term)} -> {format_number(1 / term)} tok/s a user, weights alone",
              format_time(term)),
        _line("KV term", f"{format_decimal_bytes(kv)} / {format_bandwidth(W)}",
              format_time(kv / W)),
        _line("all bytes, Q/W", f"{format_decimal_bytes(float(detail.bytes))} / "
              f"{format_bandwidth(W)}", format_time(float(detail.bytes) / W)),
        _line("arithmetic, F/C", f"{format_flops(float(detail.flops), 'FLOP')} / "
              f"{format_flops(C)} ({e.decode.peak_format}, dense)",
              format_time(float(detail.flops) / C)),
        _line("CEILING", f"sum over operations of max(F/C, Q/W), {detail.ceiling_bound}-bound; "
              f"1/TPOT = {format_number(float(1 / e.tpot.ceiling))} tok/s",
              format_time(float(e.tpot.ceiling))),
    ]
    return lines + _expected_lines(e, detail, float(e.tpot.expected), "decode") + [
        _line("TPOT", f"expected {format_time(float(e.tpot.expected))}, between "
              f"{format_time(float(e.tpot.low))} and {format_time(float(e.tpot.high))}",
              f"{format_number(float(1 / e.tpot.expected))} tok/s a user")]


def _expected_lines(e: Estimate, detail: PassTime, expected: float, phase: str) -> list[str]:
    k = e.efficiency.kernel("gemm", phase)
    floors = float(detail.overhead - detail.host)
    launches = float(sum_of(t.operation.count * t.operation.launches for t in detail.operations))
    lines = []
    if e.efficiency.level != "ideal":
        lines.append(_line(
            "kernels in practice", f"bytes at {float(k.h):.0%} of bandwidth, FLOPs at "
            f"{float(k.e):.0%} of peak (GEMM; others in the table)",
            format_time(float(detail.compute + detail.memory))))
        lines.append(_line("kernel floors", f"{launches:.0f} kernels x a few µs",
                           format_time(floors)))
    if float(detail.network):
        lines.append(_line("collectives", f"{e.deployment.devices} devices, latency + bytes / link",
                           format_time(float(detail.network))))
    if float(detail.host):
        lines.append(_line("host", f"{format_time(float(e.deployment.engine.host_time))} a step and"
                           f" {e.deployment.model.layer_count} layers, does not shrink with "
                           "bandwidth", format_time(float(detail.host))))
    lines.append(_line("EXPECTED", "sum of the lines above", format_time(expected)))
    return lines


def prefill_page(e: Estimate) -> list[str]:
    """Prefill: FLOPs over peak, then what the expectation adds."""
    d, w, detail = e.deployment, e.workload, e.prefill.detail
    C, W = e.prefill.peak, d.hardware.memory_bandwidth
    attention = float(sum_of(t.flops for t in detail.operations if t.operation.kind == "attention"))
    matrices = float(sum_of(t.flops for t in detail.operations
                            if t.operation.kind in ("gemm", "moe")))
    tokens = float(w.batch) / d.parallelism.dp * float(w.input) * (1 - float(d.prefix_hit))
    per_token = matrices / 2 / max(tokens, 1.0)
    hit = f" (prefix hit {float(d.prefix_hit):.0%})" if d.prefix_hit else ""
    return [
        "PREFILL multiplies matrices over the whole prompt at once: every weight serves all its",
        "tokens, so FLOP/s decide.",
        _line("matrix FLOPs", f"2 x {format_number(per_token / 1e9)}e9 weights used a token x "
              f"{tokens:,.0f} tokens{hit}", format_flops(matrices, "FLOP")),
        _line("attention FLOPs", "2(d_k+d_v) a head and visible query-key pair, causal",
              format_flops(attention, "FLOP")),
        _line("arithmetic, F/C", f"{format_flops(float(detail.flops), 'FLOP')} / {format_flops(C)} "
              f"({e.prefill.peak_format}, dense)", format_time(float(detail.flops) / C)),
        _line("all bytes, Q/W", f"{format_decimal_bytes(float(detail.bytes))} / "
              f"{format_bandwidth(W)}", format_time(float(detail.bytes) / W)),
        _line("CEILING", f"sum over operations of max(F/C, Q/W), {detail.ceiling_bound}-bound",
              format_time(float(e.ttft.ceiling))),
        *_expected_lines(e, detail, float(e.ttft.expected), "prefill"),
        _line("TTFT, no queue", f"expected {format_time(float(e.ttft.expected))}, between "
              f"{format_time(float(e.ttft.low))} and {format_time(float(e.ttft.high))}; MFU "
              f"{float(e.prefill.utilisation):.0%}", format_time(float(e.ttft.expected))),
    ]


def explain(e: Estimate) -> list[str]:
    """The page: ridge point, prefill, decode, end to end, and both tables of operations."""
    d, w = e.deployment, e.workload
    hw = d.hardware
    C, W = e.prefill.peak, hw.memory_bandwidth
    lines = [
        f"RIDGE POINT  C/W = {format_flops(C)} / {format_bandwidth(W)} = {format_number(C / W)} "
        "FLOP/byte:", "  below it bytes decide, above it FLOPs.",
        "",
        *prefill_page(e),
    ]
    if w.output > 1:
        steps = float(w.output) - 1
        lines += [
            "", *decode_page(e), "",
            "END TO END",
            _line("E2E", f"TTFT + (output - 1) x TPOT = {format_time(float(e.ttft.expected))} + "
                  f"{steps:,.0f} x {format_time(float(e.tpot.expected))}",
                  format_time(float(e.e2e.expected))),
        ]
    lines += ["", "PREFILL, BY OPERATION (one device, all executions)",
              *operations_table(e.prefill.detail)]
    if w.output > 1:
        lines += ["", "DECODE, BY OPERATION (one device, mean step, all executions)",
                  *operations_table(e.decode.detail)]
    if any(isinstance(g.mixer, Mla) for g in d.model.layers):
        lines += ["", "MLA runs absorbed or expanded, whichever is faster in that phase; only that "
                  "one is listed."]
    return lines
