"""A day's replicas in words and as JSON."""

from __future__ import annotations

import math
from typing import Any

from simulator.output import number
from simulator.planning.day import STEP, STEPS, Day
from simulator.planning.search import Option
from simulator.report import wrap
from simulator.units import format_number, format_time


def _by_hour(values: Any) -> Any:
    """The five-minute steps of each hour, [24, 12]."""
    return values.reshape(24, STEPS // 24)


def day_lines(d: Day, o: Option) -> list[str]:
    """A table by the hour, replica-hours, and what a scaler without a forecast would do."""
    lines = [f"  Over the day: peak over mean {d.peak_to_mean:.2f}; one replica carries "
             f"{format_number(d.each)} requests/s within the targets, by what the plan found",
             *wrap("    Worked out every five minutes: needed and running are replica-hours of the "
                   "hour, which sum to those of the day; the rate is the mean and the largest of "
                   "the hour", "    "),
             f"    {'hour':>4}{'requests/s':>12}{'largest':>9}{'needed':>8}{'running':>9}"]
    for hour, (rate, need, run) in enumerate(zip(*map(
            _by_hour, (d.rates, d.need, d.scheduled)), strict=True)):
        lines.append(f"    {hour:>4}{format_number(float(rate.mean())):>12}"
                     f"{format_number(float(rate.max())):>9}{need.mean():>8.2f}{run.mean():>9.2f}")
    price = o.usd_per_hour / o.replicas
    for label, replicas in (("as many as the peak needs, all day", d.fixed),
                            ("needed, a lower bound", d.need),
                            (f"started {format_time(d.delay)} ahead", d.scheduled)):
        hours = d.hours(replicas)
        money = "" if math.isnan(price) else f", USD {hours * price:,.2f}"
        lines.append(f"    {hours:>8.1f} replica-hours a day{money}: {label}")
    if d.short > 0.0:
        lines += wrap(f"    Started only when the traffic is there, {d.short:.1f} h a day would "
                      f"have too few replicas; planning for {d.spare:.2f} times the traffic seen "
                      "would cover that.", "    ")
    return lines


def day_dict(d: Day, o: Option) -> dict[str, Any]:
    """The day as JSON: every five minutes, rates of the service, replicas, hours and money."""
    price = number(o.usd_per_hour / o.replicas)

    def total(replicas: Any) -> dict[str, Any]:
        hours = d.hours(replicas)
        return {"replica_hours": hours, "usd_per_day": None if price is None else hours * price}

    return {
        "step_s": STEP,
        "start_up_s": d.delay,
        "rate_per_replica_per_s": d.each,
        "peak_to_mean": d.peak_to_mean,
        "hourly_rate_per_s": [float(v) for v in d.hourly],
        "rate_per_s": [float(v) for v in d.rates],
        "replicas_needed": [int(v) for v in d.need],
        "replicas_running": [int(v) for v in d.scheduled],
        "replicas_reactive": [int(v) for v in d.late],
        "fixed": total(d.fixed) | {"replicas": d.fixed},
        "lower_bound": total(d.need),
        "scheduled": total(d.scheduled),
        "reactive_short_hours": d.short,
        "reactive_factor": number(d.spare),
    }
