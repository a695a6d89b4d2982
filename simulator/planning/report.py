"""A plan in words: what to buy, how sure that is, what breaks first, why not the others."""

from __future__ import annotations

import math
from typing import Any

from simulator.deployment import native_activations
from simulator.planning import Plan
from simulator.planning.ask import Ask
from simulator.planning.carry import Carried
from simulator.planning.limits import Limit, Spread
from simulator.planning.search import Option, shortage
from simulator.planning.settings import Settings
from simulator.report import widened, wrap
from simulator.units import format_number, format_time

MOST_LOSERS = 6
BASIS = ("expected step times of the estimate; low and high are the queue with step times at the "
         "better and the worse end of their range")


def usd(value: float) -> str:
    """Dollars an hour: `USD 7.98/h`."""
    return "no price" if math.isnan(value) else f"USD {value:,.2f}/h"


def watts(value: float) -> str:
    """Watts or kilowatts."""
    if math.isnan(value):
        return "-"
    return f"{value / 1e3:,.3g} kW" if value >= 1000.0 else f"{value:,.0f} W"


def split(o: Option) -> str:
    """`tp=4 pp=2`, or `one device`."""
    p = o.candidate.parallelism
    return " ".join(f"{n}={getattr(p, n)}" for n in ("tp", "pp", "ep", "dp")
                    if getattr(p, n) > 1) or "one device"


def formats(o: Option) -> dict[str, str]:
    """Number formats of a candidate."""
    c = o.candidate
    if c.base is None:
        return {"weights": c.format, "activations": "", "kv": ""}
    return {"weights": c.base.weight_format("ffn").name, "activations": c.base.activations,
            "kv": c.base.kv_format.name}


def name(o: Option) -> str:
    """`2 x 4 h100-sxm5-80gb (tp=4), fp8`."""
    c = o.candidate
    engine = "" if c.base is None else f", {c.base.engine.name}"
    return (f"{max(o.replicas, 1)} x {c.devices} {c.offer.hardware.name} ({split(o)}), "
            f"{'/'.join(v for v in formats(o).values() if v)}{engine}")


def native_lines(o: Option) -> list[str]:
    """That weights multiply in a wider precision than the chip could, where nobody asked for it."""
    d = o.candidate.base
    native = None if d is None or "/" in o.candidate.format else native_activations(d)
    if d is None or native is None:
        return []
    flag = f"--formats {o.candidate.format}/{native}/{d.kv_format.name}"
    return wrap(f"    {widened(d, flag)}.", "    ")


def _bracket(low: float, high: float, form: Any) -> str:
    return f"[{form(low)} to {form(high) if math.isfinite(high) else 'unstable'}]"


def above(ratio: float) -> str:
    """`12% above the rate asked for`, or from ten times on how many times it."""
    return (f"{ratio - 1.0:.0%} above the rate asked for" if ratio < 10.0 else
            f"{format_number(ratio)} times the rate asked for")


def scaled(s: Spread, value: float) -> tuple[float, float]:
    """Ends of a range around a simulated value, as far from it as those of the formulas."""
    if not (math.isfinite(s.expected) and s.expected > 0.0):
        return s.low, s.high
    return s.low / s.expected * value, s.high / s.expected * value


def plan_lines(p: Plan, settings: list[Settings]) -> list[str]:
    """The plan for a terminal."""
    ask, best = p.ask, p.best
    lines = [traffic(ask), ""]
    if best is None:
        return [*lines, *_impossible(p)]
    lines += _best_lines(p, best) + _limit_lines(p.limits, best.rate) + _losers(p)
    lines += _front_lines(p)
    for i, s in enumerate(settings):
        title = "the engine of the plan" if s.planned else "the same machine with another engine"
        lines += ["", f"  {s.engine}, each of {best.replicas} replica(s): {title}"
                  if i == 0 else f"  {s.engine} ({title})"]
        lines += [f"    {line}" for line in s.command.splitlines()]
        for file, text in s.files.items():
            lines += [f"    {file}:", *(f"      {line}" for line in text.splitlines())]
        lines += [line for note in s.notes for line in wrap(f"    {note}", "    ")]
    return [*lines, "", f"  {len(p.options):,} replicas compared in "
            f"{format_time(p.analytical)}, {format_time(p.wall)} in all."]


def traffic(ask: Ask) -> str:
    """The traffic and the targets on one line."""
    load = ask.load
    targets = [f"{n} p99 at most {format_time(t)}" for n, t in
               (("TTFT", ask.ttft), ("TPOT", ask.tpot)) if t is not None]
    return (f"{ask.model.title or ask.model.name}: {format_number(ask.rate)} requests/s, prompts "
            f"of {load.mean_prompt:,.0f}, answers of {load.mean_output:,.0f} tokens (means); "
            + (", ".join(targets) or "no targets, stable only"))


def _best_lines(p: Plan, o: Option) -> list[str]:
    ask, s = p.ask, p.spreads
    how = "simulated" if p.simulated else "by formula"
    ttft, tpot = scaled(s["ttft"], o.ttft), scaled(s["tpot"], o.tpot)
    top = scaled(s["max_rate"], p.max_rate)
    use = scaled(s["utilisation"], o.utilisation)
    lines = wrap(f"BUY: {name(o)}: {o.devices} device(s), {usd(o.usd_per_hour)}", "  ")
    lines += native_lines(o)

    def row(label: str, value: str, rest: str = "") -> str:
        return f"    {label:<16}{value:>12}  {rest}".rstrip()

    target = {"TTFT": ask.ttft, "TPOT": ask.tpot}
    for label, value, (low, high) in (("TTFT", o.ttft, ttft), ("TPOT", o.tpot, tpot)):
        aim = target[label]
        lines.append(row(f"{label} p99", format_time(value), _bracket(low, high, format_time)
                         + (f", target {format_time(aim)}" if aim is not None else "")
                         + f", {how}"))
    lines.append(row("largest rate", f"{format_number(p.max_rate)}/s", _bracket(
        top[1], top[0], format_number) + f", {above(p.max_rate / o.rate)}, {how}"))
    lines.append(row("utilisation", f"{o.utilisation:.0%}", _bracket(
        *use, lambda v: f"{v:.0%}") + f" of the {format_number(o.saturation)}/s at "
        "which the queue has no end"))
    lines.append(row("batch", f"{o.batch:,.1f}", "sequences decode on one replica, on average; a "
                     f"step takes {format_time(o.step)}"))
    if not math.isnan(o.usd_per_hour):
        per = o.usd_per_million_tokens(ask.load.mean_output)
        lines.append(row("cost", f"USD {per:,.3g}", "per million output tokens at the rate asked "
                         "for"))
    else:
        lines.append(row("cost", "no price", "ranked by power; give --price NAME=USD"))
    if not math.isnan(o.watts):
        each = o.watts / (o.rate * ask.load.mean_output)
        most = "at most, the limit of the boards" if o.bounded else "expected"
        lines.append(row("power", watts(o.watts), f"{most}; {format_number(each)} J per output "
                         "token"))
    for v in p.verified:
        if v.option is o or (v.option.candidate is o.candidate):
            lines += wrap(f"    Formulas: TTFT p99 {format_time(v.analytical[0])}, TPOT p99 "
                          f"{format_time(v.analytical[1])}. {v.note}".rstrip(), "    ")
    return [*lines, *wrap(f"    [ ] {BASIS}.", "    "), ""]


def times(ratio: float) -> str:
    """`1.53x`, short for large ones."""
    if ratio >= 1e5:
        return f"{ratio:.0e}x"
    return f"{ratio:.2f}x" if ratio < 100.0 else f"{ratio:.0f}x"


def _limit_lines(limits: tuple[Limit, ...], rate: float) -> list[str]:
    lines = ["  What breaks first as the rate grows:"]
    return lines + [f"    {format_number(x.rate):>9}/s  {times(x.rate / rate):>6}  {x.name}: "
                    f"{x.meaning} ({x.basis})" for x in limits]


def _losers(p: Plan) -> list[str]:
    lines, shown = ["", "  Why not the others:"], set[str]()
    for o in p.options[1:]:
        device = o.candidate.offer.hardware.name
        if device in shown or o.candidate is p.options[0].candidate:
            continue
        shown.add(device)
        lines += wrap(f"    {name(o)}: {o.reason}", "      ")
        if len(shown) == MOST_LOSERS:
            break
    return lines if len(lines) > 2 else []


def _front_lines(p: Plan) -> list[str]:
    if len(p.front) < 2:
        return []
    output = p.ask.load.mean_output
    lines = ["", "  Cost against latency (TTFT p99 + mean answer x TPOT p99), by formula:"]
    return lines + [f"    {usd(o.usd_per_hour):>16}  {format_time(o.latency(output)):>9}  {name(o)}"
                    for o in p.front[:8]]


def nearest_option(p: Plan) -> tuple[Option | None, str]:
    """The option that comes nearest to impossible targets, and what limits it."""
    ask = p.ask
    built = [o for o in p.options if o.candidate.profile is not None]
    if not built:
        return None, "no device holds the model" if p.options else "there is no device"
    sized = [o for o in built if o.replicas > 0]
    if sized:
        priced = [o for o in sized if not math.isnan(o.usd_per_hour)]
        nearest = min(priced or sized, key=lambda o: (o.usd_per_hour if priced else o.devices))
        short = shortage(ask, nearest)
        return nearest, nearest.reason + (f"; {short}" if short else "")

    def excess(o: Option) -> float:
        ratios = [value / target for value, target in ((o.ttft, ask.ttft), (o.tpot, ask.tpot))
                  if target is not None]
        return max(ratios, default=math.inf)

    nearest = min(built, key=excess)
    return nearest, nearest.reason


def _impossible(p: Plan) -> list[str]:
    nearest, reason = nearest_option(p)
    lines = wrap("IMPOSSIBLE: no configuration serves this within the targets"
                 + (" and the budget" if p.ask.max_cost is not None else ""), "  ")
    if nearest is None:
        text = reason
        reasons = sorted({o.reason for o in p.options}, key=len)[:3]
        return [*lines, *wrap(f"    {text}: {'; '.join(reasons)}", "    ")]
    return [*lines, *wrap(f"    Nearest: {name(nearest)}: {reason}", "    ")]


def carried_lines(ask: Ask, found: list[Carried], think: float) -> list[str]:
    """What each machine carries, for a terminal."""
    targets = [f"{n} p99 at most {format_time(t)}" for n, t in
               (("TTFT", ask.ttft), ("TPOT", ask.tpot)) if t is not None]
    load = ask.load
    lines = [f"{ask.model.title or ask.model.name}: prompts of {load.mean_prompt:,.0f}, answers of "
             f"{load.mean_output:,.0f} tokens (means); "
             + (", ".join(targets) or f"no targets, at most {ask.utilisation:.0%} utilisation"), ""]
    for c in found:
        count = f"{c.offer.most or 1} x {c.offer.hardware.name}"
        if c.option is None or c.rate <= 0.0:
            lines += wrap(f"  {count}: CARRIES NOTHING: {c.reason}", "    ")
            continue
        o = c.option
        lines += wrap(f"  {count}: CARRIES {format_number(c.rate)} requests/s "
                      f"[{format_number(c.low)} to {format_number(c.high)}], about "
                      f"{c.users:,.0f} users"
                      + (f" who think {format_time(think)} between answers" if think else
                         " at once"), "    ")
        lines += wrap(f"    as {name(o)}, {o.setting.places if o.setting else 0:,} sequences and "
                      f"{o.setting.budget if o.setting else 0:,} tokens a step; utilisation "
                      f"{o.utilisation:.0%}, TTFT p99 {format_time(o.ttft)}, TPOT p99 "
                      f"{format_time(o.tpot)}, {usd(o.usd_per_hour)}", "    ")
        lines += native_lines(o)
        if c.limits:
            first = c.limits[0]
            lines += wrap(f"    breaks first: {first.name} at {format_number(first.rate)}/s "
                          f"({first.meaning})", "    ")
    return [*lines, "", *wrap(f"  [ ] {BASIS}; by formula.", "  ")]
