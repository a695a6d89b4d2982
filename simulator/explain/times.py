"""From bytes and FLOPs to times: the ceiling, what kernels reach, floors, collectives, host."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.clock import OperationTime
from simulator.explain.lines import exact, many, row
from simulator.explain.passes import Pass
from simulator.layer_parts import gemm_format, sum_of
from simulator.operations import Operation
from simulator.request import Estimate
from simulator.specs.hardware import Hardware
from simulator.step import PassTime
from simulator.units import (
    format_bandwidth,
    format_decimal_bytes,
    format_flops,
    format_number,
    format_time,
)

FAMILIES = {
    "gemm": "GEMM", "attention_prefill": "attention", "mla_prefill": "attention",
    "attention_decode": "attention", "mla_decode": "latent attention", "moe": "experts",
    "ssm": "recurrence", "elementwise": "elementwise",
}  # fmt: skip


def unit_peak(hardware: Hardware, o: Operation) -> tuple[float, str]:
    """Peak [FLOP/s] and name of the unit that an operation uses."""
    if o.compute == "vector":
        return float(hardware.vector_peak), "vector units"
    peak, name = hardware.peak(o.compute)
    return float(peak), f"{name}, dense"


def over_peak(p: Pass, times: Iterable[OperationTime]) -> tuple[str, float]:
    """FLOPs over peaks, a term for each unit, and the time."""
    units: dict[tuple[float, str], float] = {}
    for t in times:
        if t.flops:
            unit = unit_peak(p.best, t.operation)
            units[unit] = units.get(unit, 0.0) + float(t.flops)
    terms = [f"{format_flops(F, 'FLOP')} / {format_flops(C)} ({name})"
             for (C, name), F in sorted(units.items(), key=lambda u: -u[1] / u[0][0])]
    return " + ".join(terms), sum(F / C for (C, _), F in units.items())


def roof_lines(p: Pass, ceiling: float, rate: str = "") -> list[str]:
    """All bytes over bandwidth, all FLOPs over peak, and the sum of the larger one of each."""
    W = float(p.best.memory_bandwidth)
    Q = float(p.ceiling.bytes)
    by_bytes: list[OperationTime] = []
    by_flops: list[OperationTime] = []
    turn = far = 0.0
    for t in p.ceiling.operations:
        if t.operation.collective is not None:
            continue
        if t.operation.kind == "offload":
            far += float(t.ceiling)
            continue
        c, m = float(t.flops) / unit_peak(p.best, t.operation)[0], float(t.bytes) / W
        (by_flops if c > m else by_bytes).append(t)
        turn += float(t.ceiling) - max(c, m)
    formula, arithmetic = over_peak(p, p.ceiling.operations)
    bytes_slow = float(sum_of(t.bytes for t in by_bytes))
    lines = [row("all bytes, Q/W", f"{format_decimal_bytes(Q)} / {format_bandwidth(W)}",
                   format_time(Q / W)),
             row("arithmetic, F/C", formula, format_time(arithmetic)),
             row("+ bytes decide", f"{format_decimal_bytes(bytes_slow)} / {format_bandwidth(W)}",
                   format_time(bytes_slow / W), "the operations whose bytes take longer")]
    if by_flops:
        formula, slow = over_peak(p, by_flops)
        lines.append(row("+ FLOPs decide", formula, format_time(slow),
                           "the operations whose FLOPs take longer"))
    if abs(turn) > 1e-3 * float(p.ceiling.ceiling):
        lines.append(row("+ both in turn", "", format_time(turn),
                           "operations that change sides as the context grows"))
    if far:
        lines.append(row("+ offloaded bytes", "far bytes / far bandwidth, beyond all the rest",
                         format_time(far), "the ceiling lets the rest hide behind them"))
    factor = ceiling / float(p.ceiling.ceiling)
    lines.append(row("= CEILING", "sum over operations of max(F/C, Q/W), "
                       f"{p.ceiling.ceiling_bound}-bound", format_time(float(p.ceiling.ceiling)),
                       rate if abs(factor - 1.0) < 1e-3 else p.piece))
    return lines


def kernel_lines(e: Estimate, p: Pass) -> list[str]:
    """Kernels in practice and their floors, by family."""
    bodies: dict[str, float] = {}
    floors: dict[tuple[str, float], float] = {}
    chains: dict[str, float] = {}
    for t in p.mid.operations:
        o = t.operation
        if o.collective is not None or o.kind == "offload":
            continue
        name = FAMILIES.get(o.kernel, o.kernel)
        body, waits = float(t.compute + t.memory), float(t.overhead)
        t0 = float(e.efficiency.kernel(o.kernel, o.format, p.phase).t0)
        if body:
            bodies[name] = bodies.get(name, 0.0) + body
        launched = min(float(o.count * o.launches) * p.share(o), waits / t0) if t0 else 0.0
        if launched:
            floors[name, t0] = floors.get((name, t0), 0.0) + launched
        if waits - launched * t0 > 1e-9 * float(t.expected):
            chains[name] = chains.get(name, 0.0) + waits - launched * t0
    terms = sorted(bodies.items(), key=lambda b: -b[1])
    k = e.efficiency.kernel("gemm", gemm_format(e.deployment, "ffn"), p.phase)
    ideal = e.efficiency.level == "ideal"
    reached = ("at full rates" if ideal else
               "at the rates that kernels reach: GEMM (matrix products) "
               f"{float(k.h):.0%} of bandwidth, {float(k.e):.0%} of peak FLOP/s")
    far = sum(float(t.compute + t.memory + t.network) for t in p.mid.operations
              if t.operation.kind == "offload")
    lines = [row("+ kernels in practice", " + ".join(f"{format_time(v)} {n}" for n, v in terms),
                   format_time(sum(bodies.values())),
                   f"sum over operations, {reached}; table below")]
    if floors:
        lines.append(row(
            "+ kernel floors", " + ".join(
                f"{exact(round(n, 2))} {name} x {format_time(t0)}"
                for (name, t0), n in sorted(floors.items(), key=lambda f: -f[1] * f[0][1])),
            format_time(sum(n * t0 for (_, t0), n in floors.items())),
            "a kernel takes this long however small"))
    if chains:
        lines.append(row(
            "+ chains in a kernel", " + ".join(
                f"{format_time(v)} {n}" for n, v in sorted(chains.items(), key=lambda c: -c[1])),
            format_time(sum(chains.values())),
            "steps that one unit does one after the other"))
    if far:
        lines.append(row("+ offloaded bytes", "far bytes over the slower of far memory and link",
                         format_time(far), "at the share of the rate that copies reach"))
    return lines


def exchange_line(p: Pass) -> list[str]:
    kinds: dict[tuple[str, float, int], tuple[float, float]] = {}
    for t in p.exchange:
        o = t.operation
        key = ((o.collective or "").replace("_", "-"), float(o.wire), o.ranks)
        n, time = kinds.get(key, (0.0, 0.0))
        kinds[key] = n + float(o.count), time + float(t.network)
    total = sum(time for _, time in kinds.values())
    if not total:
        return []
    formula = " + ".join(f"{exact(n)} {name} of {format_decimal_bytes(size).replace(' ', '')} x "
                         f"{format_time(time / n)}" for (name, size, _), (n, time) in kinds.items())
    return [row("+ between devices", formula, format_time(total),
                  "latency + bytes / link; the ceiling leaves it out")]


def host_line(e: Estimate, p: Pass) -> list[str]:
    d = e.deployment
    if not float(p.time.host) and not d.engine.async_host:
        return []
    more = d.hardware.layer_overhead if d.hardware.layer_overhead and not d.engine.ideal else 0.0
    step, layer, sequence = map(float, d.host_times)
    terms = [format_time(step)] if step else []
    terms += [f"{d.model.layer_count} layers x {format_time(float(each))}"
              for each in (layer, more) if each]
    looped = d.host_layers - d.model.layer_count
    if looped:
        terms.append(f"{d.model.expert_count} experts x "
                     f"{format_time(d.engine.expert_share * layer)}")
    if sequence:
        terms.append(f"{many(p.sequences, 'sequence')} x {format_time(sequence)}")
    what = "a step, layer and sequence" if sequence else "a step and layer"
    if not d.engine.async_host:
        return [row("+ host", " + ".join(terms), format_time(float(p.time.host)),
                    f"{what}; does not shrink with bandwidth")]
    alone = (step + d.model.layer_count * (layer + more) + looped * layer
             + p.sequences * sequence)
    return [row("host", " + ".join(terms), format_time(float(alone)),
                f"{what}; it starts kernels while the device works: the longer of both counts"),
            row("+ host", "", format_time(float(p.time.host)),
                "what all lines marked + above leave of it")]


def expected_lines(e: Estimate, p: Pass, expected: float) -> list[str]:
    once = float(p.time.expected)
    return [
        *kernel_lines(e, p), *exchange_line(p), *host_line(e, p),
        row("= EXPECTED", "sum of the + lines above", format_time(once),
              "" if abs(expected - once) < 1e-3 * once else p.piece)]


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
