"""`tokline plan`: how many of which machine, set up how, serve a traffic within its targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from simulator.cli.common import names, real, whole, write_json, write_lines, write_warnings
from simulator.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from simulator.planning import Plan
    from simulator.planning.ask import Ask
    from simulator.planning.day import Day
    from simulator.serving.requests import Requests


@click.command("plan")
@click.argument("model", shell_complete=names("models"))
@click.option("--rate", metavar="R", help="Requests a second [default: those of the trace].")
@click.option("--trace", metavar="FILE", help="Request trace: arrivals, lengths, prefixes.")
@click.option("--scale", metavar="X", default="1", show_default=True,
              help="Factor on a trace's rate.")
@click.option("--window", metavar="A:B", help="Part of a trace, as in 10min:20min.")
@click.option("--limit", metavar="N", help="Requests of a trace, the first ones.")
@click.option("--input", "input_", metavar="N", help="Prompt tokens: 1024, uniform:128:2048, "
              "lognormal:1024:0.8 (mean and cv), file:PATH [default: 1024].")
@click.option("--output", metavar="N", help="Answer tokens, likewise [default: 256].")
@click.option("--arrivals", metavar="KIND", default="poisson", show_default=True,
              help="poisson, constant or gamma:CV.")
@click.option("--shared-prefix", metavar="N", default="0", show_default=True,
              help="First tokens that all prompts share, in the prefix cache.")
@click.option("--ttft-p99", metavar="TIME", help="Target of the time to first token, queue "
              "included: 500ms.")
@click.option("--tpot-p99", metavar="TIME", help="Target of the time per output token: 50ms.")
@click.option("--hardware", metavar="A,8xB,..", help="Devices to choose from, with a number in "
              "front at most so many; all [default: every device with a price].")
@click.option("--price", "prices", metavar="NAME=USD", multiple=True,
              help="USD/h of one device, in place of the spec's (repeatable).")
@click.option("--max-cost", metavar="USD", help="USD an hour at most.")
@click.option("--formats", metavar="F,G,..", default="own", show_default=True,
              help="Number formats to try: own, fp8, int4-g128, or weights/activations/kv.")
@click.option("--engine", "engines", metavar="A,B,..", default="vllm", show_default=True,
              help="Engines to try.")
@click.option("--max-utilisation", metavar="R", default="0.85", show_default=True,
              help="Share of the saturation rate that may be used.")
@click.option("--announced", is_flag=True, help="Announced and hypothetical devices too.")
@click.option("--no-simulation", is_flag=True, help="Formulas alone; the finalists are not "
              "simulated.")
@click.option("--carry", "carries", is_flag=True, help="The inverse: the rate and the users that "
              "the devices of --hardware carry.")
@click.option("--think", metavar="TIME", help="Time between answer and next request of a user, "
              "for --carry [default: 0s].")
@click.option("--day", "day_text", metavar="SHAPE|FILE", help="Traffic over a day: peak:2.5, 24 "
              "numbers with commas, a file of them, or a trace. Plans for the peak.")
@click.option("--start-up", metavar="TIME", help="Time until a new replica serves, for --day "
              "[default: 5min].")
@click.option("--workers", metavar="N", help="Processes of the search [default: one a core where "
              "they pay].")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
@click.option("-o", "--output-file", metavar="FILE", help="Chart: cost against latency, or with "
              "--day replicas over the day (png, svg or pdf).")
@click.option("--theme", default="light", show_default=True, metavar="light|dark",
              help="White paper or a dark slide.")
def command(as_json: bool, output_file: str | None, theme: str, **options: Any) -> int:
    """The cheapest deployment of MODEL that serves a traffic within targets, and why not others.

    Exit code 1 where no configuration does; then it names the nearest and what limits it.
    """
    if output_file is not None:
        from simulator.plots.style import check_path, theme_of

        check_path(output_file)
        theme_of(theme)
    _check_flags(options)
    if options["carries"]:
        if output_file is not None or options["day_text"] is not None:
            raise InputError("--carry: has no chart and no day; leave out -o and --day")
        return _carry(options, as_json)
    hourly = _hours(options)
    ask = _ask(options, None if hourly is None else float(hourly.max()))
    from simulator.planning import plan

    with _executor(options["workers"], ask) as executor:
        p = plan(ask, not options["no_simulation"], executor, _progress)
    write_warnings(list(p.warnings))
    day = _day(p, hourly, options["start_up"] or "5min")
    _write(p, day, as_json)
    if output_file is not None and p.best is not None:
        _draw(p, day, output_file, theme)
    return 0 if p.best is not None else 1


def _check_flags(options: dict[str, Any]) -> None:
    """Refuse flags that would change nothing beside, or without, others."""
    for flag, name, other in (("--start-up", "start_up", "day_text"),
                              ("--think", "think", "carries")):
        if options[name] is not None and not options[other]:
            needed = {"day_text": "--day", "carries": "--carry"}[other]
            raise InputError(f"{flag}: '{options[name]}' is a part of {needed}, which isn't there; "
                             "leave it out")
    if options["carries"] and options["max_cost"] is not None:
        raise InputError("--max-cost: --carry asks what machines carry, not what to buy; leave it "
                         "out")
    if options["trace"] is None and options["scale"] != "1":
        raise InputError("--scale: there is no --trace that it could scale")


def _progress(text: str) -> None:
    import sys

    if sys.stderr.isatty():
        click.echo(f"tokline: {text}", err=True)


def _write(p: Plan, day: Day | None, as_json: bool) -> None:
    from simulator.planning.day_report import day_dict, day_lines
    from simulator.planning.plan_json import plan_dict
    from simulator.planning.report import plan_lines
    from simulator.planning.settings import settings

    starts = [] if p.best is None else settings(p.ask, p.best)
    if as_json:
        found = plan_dict(p, starts)
        if day is not None and p.best is not None:
            found["day"] = day_dict(day, p.best)
        write_json(found)
        return
    lines = plan_lines(p, starts)
    if day is not None and p.best is not None:
        lines += ["", *day_lines(day, p.best)]
    write_lines(lines)


def _draw(p: Plan, day: Day | None, path: str, theme: str) -> None:
    from simulator.planning.report import name, traffic
    from simulator.plots.style import save

    assert p.best is not None
    if day is not None:
        from simulator.plots.day_chart import day as chart

        save(chart(day, name(p.best), theme=theme).figure, path)
        return
    from simulator.plots.plan_chart import plan as chart_of_plan

    save(chart_of_plan(p.options, p.front, p.best, p.ask.load.mean_output, traffic(p.ask),
                       theme=theme).figure, path)


def _carry(options: dict[str, Any], as_json: bool) -> int:
    import time

    from simulator.planning.carry import carry
    from simulator.planning.plan_json import carried_dict
    from simulator.planning.report import carried_lines
    from simulator.serving.traces import parse_duration

    if options["hardware"] is None:
        raise InputError("--carry: name the machine, as in --hardware 4xh100")
    began = time.perf_counter()
    ask, think = _ask(options, 1.0), parse_duration(options["think"] or "0s", "--think")
    with _executor(options["workers"], ask) as executor:
        found = carry(ask, think, executor)
    write_warnings(list(ask.notes))
    if as_json:
        write_json(carried_dict(ask, found, think, time.perf_counter() - began))
    else:
        write_lines(carried_lines(ask, found, think))
    return 0 if any(c.rate > 0.0 for c in found) else 1


def _hours(options: dict[str, Any]) -> Any:
    """Hourly rates of --day; None without it."""
    if options["day_text"] is None:
        return None
    from simulator.planning.day import parse_day

    return parse_day(options["day_text"], _rate(options["rate"]))


def _day(p: Plan, hourly: Any, start_up: str) -> Day | None:
    if hourly is None or p.best is None:
        return None
    from simulator.planning.day import over_day
    from simulator.serving.traces import parse_duration

    each = min(p.max_rate / p.best.replicas,
               p.ask.utilisation * p.best.saturation / p.best.replicas)
    return over_day(hourly, each, parse_duration(start_up, "--start-up"))


def _rate(text: str | None) -> float | None:
    from simulator.serving.arrivals import check_rate

    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--rate: '{text}' is not a number") from None
    return check_rate(value, "--rate")


def _time(text: str | None, flag: str) -> float | None:
    """A time with a unit, above 0."""
    from simulator.units import parse_quantity

    if text is None:
        return None
    value = parse_quantity(text, "time", flag)
    if value <= 0.0:
        raise InputError(f"{flag}: '{text}' is not above 0")
    return value


def _listed(text: str, flag: str) -> tuple[str, ...]:
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise InputError(f"{flag}: '{text}' has an empty entry; write names with commas between")
    return tuple(dict.fromkeys(found))


def _ask(options: dict[str, Any], rate: float | None) -> Ask:
    """The question of the flags; `rate` in place of --rate where it is known already."""
    from simulator.planning import ask as asked
    from simulator.planning.candidates import check_engine, check_format
    from simulator.serving.arrivals import parse_arrivals
    from simulator.specs.catalogue import load_model
    from simulator.specs.engine import load_engine

    targets = _time(options["ttft_p99"], "--ttft-p99"), _time(options["tpot_p99"], "--tpot-p99")
    cost = options["max_cost"]
    most = None if cost is None else real(cost, "--max-cost", 0.0)
    utilisation = real(options["max_utilisation"], "--max-utilisation", 0.0)
    asked.check_targets(*targets, most, utilisation)
    model = load_model(options["model"])
    engines = tuple(load_engine(name) for name in _listed(options["engines"], "--engine"))
    for engine in engines:
        check_engine(engine)
    formats = _listed(options["formats"], "--formats")
    for text in formats:
        check_format(text)
    arrivals = parse_arrivals(options["arrivals"])
    if rate is None:
        rate = _rate(options["rate"])
    requests = _requests(options, rate)
    traced = options["trace"] is not None
    where = (f"--trace {options['trace']}" if traced else
             f"--input {options['input_'] or '1024'} --output {options['output'] or '256'}")
    requests, notes = asked.within_positions(requests, model, where)
    asked.check_prefix(requests, where)
    devices = asked.offers(options["hardware"], asked.parse_prices(options["prices"]),
                           options["announced"])
    found = asked.rate_of(requests, rate)
    return asked.Ask(model, devices, engines, found, requests,
                     asked.load_of(requests, traced, arrivals), *targets, formats, most,
                     utilisation, traced, arrivals, (*requests.notes, *notes))


def _requests(options: dict[str, Any], rate: float | None) -> Requests:
    """Requests of the trace, or made up from the flags."""
    shared = int(real(options["shared_prefix"], "--shared-prefix", 0.0, 1e8))
    if options["trace"] is None:
        from simulator.planning.ask import drawn_lengths, made_up
        from simulator.serving.arrivals import parse_arrivals
        from simulator.serving.lengths import parse_lengths

        for flag in ("window", "limit"):
            if options[flag] is not None:
                raise InputError(f"--{flag}: is a part of a trace; there is no --trace")
        if rate is None:
            raise InputError("--rate: say how many requests arrive a second, or give a --trace")
        prompt = parse_lengths(options["input_"] or "1024", "--input")
        output = parse_lengths(options["output"] or "256", "--output")
        return made_up(prompt, output, rate, parse_arrivals(options["arrivals"]),
                       drawn_lengths(prompt, output), shared_prefix=shared)
    from simulator.serving.traces import load_trace, parse_window

    for flag, name in (("--input", "input_"), ("--output", "output")):
        if options[name] is not None:
            raise InputError(f"{flag}: the trace has its own lengths; leave out one of them")
    window = None if options["window"] is None else parse_window(options["window"])
    limit = None if options["limit"] is None else whole(options["limit"], "--limit")
    found = load_trace(options["trace"], real(options["scale"], "--scale", 0.0, 1e9), window, limit,
                       rate)
    return replace(found, shared_prefix=shared)


@contextmanager
def _executor(workers: str | None, ask: Ask) -> Iterator[Executor | None]:
    """Processes to share the search; forked, since importing NumPy again takes longer than most
    searches.
    """
    import os
    import sys

    parts = len(ask.offers) * len(ask.engines) * len(ask.formats)
    usual = min(os.cpu_count() or 1, 8) if sys.platform == "linux" and parts >= 8 else 1
    count = usual if workers is None else whole(workers, "--workers", 1024)
    if count == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    context = get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(count, mp_context=context) as executor:
        yield executor
