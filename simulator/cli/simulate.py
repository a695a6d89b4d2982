"""`tokline simulate`: requests through a deployment, with queues, batches and full memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from simulator.cli.common import (
    build,
    deployment_options,
    names,
    real,
    warnings,
    whole,
    write_json,
    write_lines,
    write_warnings,
)
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.deployment import Deployment
    from simulator.serving.policy import Policy
    from simulator.serving.requests import Requests
    from simulator.serving.simulate import DecodePool, Served

_REQUESTS = 2000


@click.command("simulate")
@deployment_options
@click.option("--rate", metavar="R", help="Requests a second; of a trace the rate to stretch it "
              "to.")
@click.option("--trace", metavar="FILE", help="Request trace: arrivals, lengths, prefixes.")
@click.option("--concurrency", metavar="N", help="Closed loop: users who each send the next "
              "request when answered.")
@click.option("--arrivals", metavar="KIND", default="poisson", show_default=True,
              help="poisson, constant or gamma (with --cv, or gamma:CV).")
@click.option("--cv", metavar="X", help="Coefficient of variation of gamma gaps; above 1 bursts.")
@click.option("--requests", metavar="N", help="How many [default: 2000, or all of a trace].")
@click.option("--duration", metavar="TIME", help="How long they arrive, in place of --requests: "
              "600, 10min.")
@click.option("--seed", metavar="N", default="0", show_default=True,
              help="Of arrivals and lengths; the same seed gives the same figures.")
@click.option("--scale", metavar="X", default="1", show_default=True,
              help="Factor on a trace's rate.")
@click.option("--window", metavar="A:B", help="Part of a trace, as in 10min:20min.")
@click.option("--limit", metavar="N", help="Requests of a trace, the first ones.")
@click.option("--shared-prefix", metavar="N", default="0", show_default=True,
              help="First tokens that all prompts share.")
@click.option("--scheduler", metavar="NAME", help="chunked, prefill-first or static [default: the "
              "engine's].")
@click.option("--max-sequences", metavar="N", help="Sequences in a step [default: the engine's].")
@click.option("--batched-tokens", metavar="N", help="Tokens in a step with prompts [default: the "
              "engine's].")
@click.option("--preemption", metavar="HOW", default="recompute", show_default=True,
              help="recompute or swap, where the KV memory is full.")
@click.option("--no-prefix-cache", is_flag=True, help="Compute every prompt whole.")
@click.option("--replicas", metavar="N", default="1", show_default=True,
              help="Copies of the deployment behind one address.")
@click.option("--routing", metavar="HOW", default="round-robin", show_default=True,
              help="round-robin, least-outstanding or prefix-aware.")
@click.option("--prefill-replicas", metavar="N", help="Disaggregated: so many instances only "
              "prefill, --replicas only decode.")
@click.option("--prefill-hardware", metavar="HW", shell_complete=names("hardware"),
              help="Another device for the prefill pool: 4xl40s.")
@click.option("--over", metavar="LINK", default="scale-out", show_default=True,
              help="What the KV cache crosses between pools: scale-out or link.")
@click.option("--link-bandwidth", metavar="RATE", help="Of one device, in place of the spec's.")
@click.option("--slo-ttft", metavar="TIME", help="Target of a request's TTFT: goodput counts "
              "those within.")
@click.option("--slo-tpot", metavar="TIME", help="Target of a request's TPOT.")
@click.option("--csv", "csv_file", metavar="FILE", help="One line a request.")
@click.option("-o", "--output-file", metavar="FILE", help="Timeline: png, svg or pdf.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(csv_file: str | None, output_file: str | None, as_json: bool, **options: Any) -> int:
    """Serve requests on MODEL on HARDWARE and say what their users see.

    --input and --output take lengths or distributions: 512, uniform:128:1024, lognormal:512:0.8
    (mean and cv), file:PATH. Exit code 1 where it doesn't fit or doesn't keep up.
    """
    from simulator.serving.report import (
        served_dict,
        served_lines,
        unfit_dict,
        unfit_lines,
        write_requests,
    )
    from simulator.serving.simulate import DoesNotFit

    if output_file is not None:
        from simulator.plots.style import check_path

        check_path(output_file)
    d, requests = _asked(options)
    try:
        served = _served(d, requests, options)
    except DoesNotFit as error:
        if as_json:
            write_json(unfit_dict(d, str(error)))
        else:
            write_lines(unfit_lines(str(error)))
        return 1
    from simulator.deployment import Workload

    notes = [*warnings(d, Workload(1, 1, 1)), *requests.notes]
    write_warnings(notes)
    if csv_file is not None:
        write_requests(served, csv_file)
    if output_file is not None:
        from simulator.plots.style import save
        from simulator.plots.timeline_chart import timeline

        save(timeline(served).figure, output_file)
    if as_json:
        write_json(served_dict(served, notes))
    else:
        write_lines(served_lines(served))
    return 0 if served.stable else 1


# The batch is what the simulation finds, and so is the share of the prompts in the cache.
command.params = [p for p in command.params if p.name not in ("batch", "prefix_hit")]
for _option in command.params:
    if isinstance(_option, click.Option) and _option.name in ("input_", "output"):
        _option.default, _option.show_default = None, False
        tokens = 1024 if _option.name == "input_" else 256
        _option.help = f"Tokens, or a distribution of them [default: {tokens}]."


def _asked(options: dict[str, Any]) -> tuple[Deployment, Requests]:
    from simulator.serving.lengths import parse_lengths

    texts = {name: options.pop(name) for name in ("input_", "output")}
    trace = options["trace"]
    ways = [f"--{n}" for n in ("rate", "trace", "concurrency") if options[n] is not None]
    if not ways or (trace is None and len(ways) > 1) or (
            None not in (options["rate"], options["concurrency"])):
        raise InputError("give one of --rate, --trace or --concurrency"
                         + (f", not {' and '.join(ways)}" if ways else ""))
    if options["concurrency"] is not None:
        _no_arrivals(options)
    d, _ = build(options | {"batch": "1", "input_": "1", "output": "1", "prefix_hit": "0"})
    shared = 0 if options["shared_prefix"] in ("0", 0) else whole(
        options["shared_prefix"], "--shared-prefix")
    if trace is not None:
        for name, flag in (("input_", "--input"), ("output", "--output")):
            if texts[name] is not None:
                raise InputError(f"{flag}: a trace has lengths of its own; leave it out")
        return d, _checked(_trace(options, shared), d, f"--trace {trace}")
    for name in ("window", "limit"):
        if options[name] is not None:
            raise InputError(f"--{name}: there is no --trace that it could cut")
    if options["scale"] != "1":
        raise InputError("--scale: there is no --trace that it could scale")
    first, second = texts["input_"] or "1024", texts["output"] or "256"
    prompt, answer = parse_lengths(first, "--input"), parse_lengths(second, "--output")
    return d, _checked(_made_up(options, prompt, answer, shared), d,
                       f"--input {first} --output {second}")


def _checked(requests: Requests, d: Deployment, where: str) -> Requests:
    """Refused where no request fits the context, or a shared prefix any prompt."""
    from simulator.serving.requests import within_positions

    within_positions(requests, d.model, where)
    if requests.shared_prefix > requests.input.max():
        raise InputError(f"--shared-prefix: {requests.shared_prefix:,} tokens are longer than "
                         f"every prompt; the longest of {where} has {requests.input.max():,}")
    if requests.shared_prefix and requests.blocks is not None:
        raise InputError("--shared-prefix: the trace has prefix blocks of its own; leave it out")
    return requests


def _no_arrivals(options: dict[str, Any]) -> None:
    """Users of a closed loop send when answered: nothing else can say when."""
    for name, usual in (("arrivals", "poisson"), ("cv", None), ("scale", "1")):
        if options[name] != usual:
            raise InputError(f"--{name}: not with --concurrency, whose users send when answered")


def _trace(options: dict[str, Any], shared: int) -> Requests:
    from dataclasses import replace

    from simulator.serving.traces import load_trace, parse_window

    if options["duration"] is not None:
        raise InputError("--duration: a trace has its own; cut it with --window")
    limit = options["limit"] or options["requests"]
    rate = None if options["rate"] is None else _rate(options["rate"])
    found = load_trace(
        options["trace"], real(options["scale"], "--scale", 1e-9, 1e9),
        None if options["window"] is None else parse_window(options["window"]),
        None if limit is None else whole(limit, "--limit"), rate, _arrivals(options),
        _seed(options))
    return replace(found, shared_prefix=shared) if shared else found


def _made_up(options: dict[str, Any], prompt: Any, answer: Any, shared: int) -> Requests:
    import numpy as np

    from simulator.serving.arrivals import MOST_REQUESTS
    from simulator.serving.requests import requests_of
    from simulator.serving.traces import parse_duration

    rng = np.random.default_rng(_seed(options))
    n = _REQUESTS if options["requests"] is None else whole(options["requests"], "--requests")
    if options["duration"] is not None:
        if options["requests"] is not None:
            raise InputError("--duration: not with --requests, which says the same")
        if options["rate"] is None:
            raise InputError("--duration: needs --rate")
        seconds = parse_duration(options["duration"], "--duration")
        n = max(int(_rate(options["rate"]) * seconds), 1)
    if n > MOST_REQUESTS:
        raise InputError(f"--requests: {n:,} is above {MOST_REQUESTS:,}")
    times = (np.zeros(n) if options["rate"] is None
             else _arrivals(options).times(n, _rate(options["rate"]), rng))
    return requests_of(times, prompt.draw(n, rng), answer.draw(n, rng), shared)


def _rate(text: str) -> float:
    from simulator.serving.arrivals import check_rate

    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--rate: '{text}' is not a number") from None
    return check_rate(value, "--rate")


def _seed(options: dict[str, Any]) -> int:
    text = options["seed"]
    if not str(text).isdigit():
        raise InputError(f"--seed: '{text}' is not a whole number of at least 0")
    return int(text)


def _arrivals(options: dict[str, Any]) -> Any:
    from simulator.serving.arrivals import parse_arrivals

    kind, cv = options["arrivals"].strip().lower(), options["cv"]
    if cv is not None:
        if kind != "gamma":
            raise InputError(f"--cv: stands for --arrivals gamma, not for {kind}")
        return parse_arrivals(f"gamma:{cv}")
    return parse_arrivals(kind)


def _served(d: Deployment, requests: Requests, options: dict[str, Any]) -> Served:
    from simulator.serving.policy import ROUTINGS
    from simulator.serving.simulate import Slo, simulate

    if options["routing"] not in ROUTINGS:
        from simulator.errors import nearest

        raise InputError(f"--routing: unknown '{options['routing']}'"
                         f"{nearest(options['routing'], ROUTINGS)}")
    users = options["concurrency"]
    return simulate(
        d, requests, _policy(d, options), whole(options["replicas"], "--replicas", 4096),
        options["routing"], None if users is None else whole(users, "--concurrency", 1e6),
        Slo(*(_time(options[f"slo_{n}"], f"--slo-{n}") for n in ("ttft", "tpot"))),
        _pool(d, options))


def _policy(d: Deployment, options: dict[str, Any]) -> Policy:
    from simulator.serving.policy import Policy

    counts = {n: None if options[n] is None else whole(options[n], f"--{n.replace('_', '-')}", 1e7)
              for n in ("max_sequences", "batched_tokens")}
    one = d.parallelism
    if one.dp > 1 and one.ep == 1:
        d = d.replace(parallelism=type(one)(tp=one.tp, pp=one.pp, cp=one.cp))
    return Policy.of(d, options["scheduler"], counts["max_sequences"], counts["batched_tokens"],
                     options["preemption"], not options["no_prefix_cache"])


def _pool(d: Deployment, options: dict[str, Any]) -> DecodePool | None:
    from simulator.disaggregation import pool_link
    from simulator.serving.simulate import DecodePool
    from simulator.units import parse_quantity

    number, hardware = options["prefill_replicas"], options["prefill_hardware"]
    if number is None:
        for name in ("prefill_hardware", "link_bandwidth"):
            if options[name] is not None:
                raise InputError(f"--{name.replace('_', '-')}: there is no prefill pool; add "
                                 "--prefill-replicas")
        if options["over"] != "scale-out":
            raise InputError("--over: there is no prefill pool; add --prefill-replicas")
        return None
    if options["over"] not in ("scale-out", "link"):
        raise InputError(f"--over: '{options['over']}' is neither scale-out nor link")
    if options["routing"] != "round-robin":
        raise InputError("--routing: pools are served in round robin")
    prefill = d
    if hardware is not None:
        prefill, _ = build(options | {
            "hardware": hardware, "batch": "1", "input_": "1", "output": "1", "prefix_hit": "0",
            "nodes": None, **dict.fromkeys(("tp", "pp", "ep", "cp", "dp"))})
    bandwidth = options["link_bandwidth"]
    link = pool_link(prefill, d, options["over"], None if bandwidth is None else float(
        parse_quantity(bandwidth, "bandwidth", "--link-bandwidth")))
    return DecodePool(prefill, whole(number, "--prefill-replicas", 4096), link)


def _time(text: str | None, flag: str) -> float | None:
    from simulator.units import parse_quantity

    if text is None:
        return None
    value = float(parse_quantity(text, "time", flag))
    if value <= 0:
        raise InputError(f"{flag}: '{text}' is not above 0")
    return value
