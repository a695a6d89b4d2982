"""`tokline disaggregate`: prefill and decode on pools of their own, or both together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from simulator.cli.common import (
    build,
    deployment_options,
    names,
    warnings,
    whole,
    write_json,
    write_lines,
    write_warnings,
)
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.deployment import Deployment, Workload


@click.command("disaggregate")
@deployment_options
@click.option("--prefill-hardware", metavar="HW", shell_complete=names("hardware"),
              help="Another device for the prefill pool, with a number in front: 4xl40s.")
@click.option("--prefill-tp", metavar="N", help="Tensor parallel of a prefill instance.")
@click.option("--prefill-pp", metavar="N", help="Pipeline stages of a prefill instance.")
@click.option("--prefill", "n_p", metavar="N", help="Prefill instances [default: rate matching].")
@click.option("--decode", "n_d", metavar="N", help="Decode instances [default: rate matching].")
@click.option("--rate", metavar="R", help="Requests a second [default: 80 % of the most].")
@click.option("--tpot", metavar="TIME", help="TPOT to hold [default: the pools' step].")
@click.option("--over", metavar="LINK", default="scale-out", show_default=True,
              help="What the KV cache crosses: scale-out, or link (inside one domain).")
@click.option("--link-bandwidth", metavar="RATE", help="Of one device, in place of the spec's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(n_p: str | None, n_d: str | None, rate: str | None, tpot: str | None, over: str,
            link_bandwidth: str | None, as_json: bool, **options: Any) -> int:
    """MODEL on HARDWARE with a prefill pool and a decode pool, against the same devices without.

    HARDWARE and the flags of parallelism describe one instance; --batch is a decode instance's.
    Exit code 1 where the pools don't keep up with the rate.
    """
    decode, prefill, workload, batch = _asked(options)
    counts = tuple(None if text is None else whole(text, flag, 4096)
                   for text, flag in ((n_p, "--prefill"), (n_d, "--decode")))
    target = _positive(tpot, "time", "--tpot")
    given = _rate(rate)
    if over not in ("scale-out", "link"):
        raise InputError(f"--over: '{over}' is neither scale-out nor link")
    from simulator.disaggregation import input_crossing, pool_link, pools, rate_crossing
    from simulator.disaggregation_report import disaggregation_dict, disaggregation_lines

    link = pool_link(prefill, decode, over, _positive(link_bandwidth, "bandwidth",
                                                      "--link-bandwidth"))
    s = pools(prefill, decode, workload, link, (counts[0], counts[1]), batch, target)
    at, within = s.default_rate if given is None else given, target or s.d.step(s.batch)
    by_input, rows = input_crossing(prefill, decode, workload, s, within)
    crossings = (rate_crossing(s), by_input)
    notes = warnings(decode, workload)
    write_warnings(notes)
    if as_json:
        write_json(disaggregation_dict(prefill, decode, workload, s, link, at, within, crossings,
                                       rows, notes))
    else:
        write_lines(disaggregation_lines(prefill, decode, workload, s, link, at, within, crossings,
                                         rows))
    return 0 if s.disaggregated(at).stable else 1


for _option in command.params:
    # The shared flag is one of 1 by default; here it is the batch that the pools are matched for.
    if isinstance(_option, click.Option) and _option.name == "batch":
        _option.show_default = False
        _option.help = ("Sequences of a decode instance [default: the most within --tpot; without "
                        "it 64, or what fits].")


def _asked(options: dict[str, Any]) -> tuple[Deployment, Deployment, Workload, float | None]:
    """Decode and prefill instance, workload, and the batch where one is given."""
    hardware, tp, pp = (options.pop(f"prefill_{name}") for name in ("hardware", "tp", "pp"))
    source = click.get_current_context().get_parameter_source("batch")
    given = source is click.core.ParameterSource.COMMANDLINE
    if options["prefix_hit"] not in ("0", "0.0"):
        raise InputError("--prefix-hit: is not counted here; give the uncached input")
    decode, workload = build(options)
    prefill = decode
    if hardware is not None or tp is not None or pp is not None:
        degrees = {"tp": tp, "pp": pp} if tp is not None or pp is not None else (
            dict.fromkeys(("tp", "pp")) if hardware is not None and "x" in hardware else
            {name: str(getattr(decode.parallelism, name)) for name in ("tp", "pp")})
        prefill, _ = build(options | degrees | {
            "hardware": hardware or decode.hardware.name, "nodes": None,
            **dict.fromkeys(("ep", "cp", "dp"))})
    return decode, prefill, workload, float(workload.batch) if given else None


def _positive(text: str | None, dimension: str, flag: str) -> float | None:
    from simulator.units import parse_quantity

    if text is None:
        return None
    value = float(parse_quantity(text, dimension, flag))
    if value <= 0:
        raise InputError(f"{flag}: '{text}' is not above 0")
    return value


def _rate(text: str | None) -> float | None:
    from simulator.cli.common import real

    if text is None:
        return None
    value = real(text, "--rate", 0.0, 1e9)
    if value == 0:
        raise InputError(f"--rate: '{text}' is not above 0")
    return value
