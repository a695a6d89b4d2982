"""`tokline plot`: latency, throughput, cost, memory, pareto, breakdown and context as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from simulator.cli.common import (
    build,
    deployment_flags,
    names,
    real,
    warnings,
    write_json,
    write_warnings,
)
from simulator.errors import InputError, nearest

if TYPE_CHECKING:
    from simulator.deployment import Deployment, Workload
    from simulator.plots.style import Plot

F = TypeVar("F", bound=Callable[..., Any])

KINDS = ("latency", "throughput", "cost", "memory", "pareto", "breakdown", "context")
_OVER_BATCH = ("latency", "throughput", "cost", "memory", "pareto")
_MOST = 2.0**30
_MOST_VALUES = 2000


def chart_options(function: F) -> F:
    """Where a chart goes and how it looks."""
    options = [
        click.option("-o", "--output-file", metavar="FILE", help="png, svg or pdf."),
        click.option("--theme", default="light", show_default=True, metavar="light|dark",
                     help="White paper or a dark slide."),
        click.option("--transparent", is_flag=True, help="No background."),
        click.option("--title", metavar="TEXT", help="Another message than the one found."),
        click.option("--json", "as_json", is_flag=True, help="The data drawn, as one JSON value."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def counts(text: str, flag: str) -> list[float]:
    """A list of counts of at least 1: `1,8,64` or `1:512:x2`."""
    from simulator.units import parse_list

    values = sorted(set(parse_list(text, flag)))
    for value in values:
        if not 1 <= value <= _MOST:
            raise InputError(f"{flag}: {value:,.0f} in '{text}' is not between 1 and {_MOST:,.0f}")
    if len(values) > _MOST_VALUES:
        raise InputError(f"{flag}: '{text}' has {len(values):,} values, a chart takes "
                         f"{_MOST_VALUES:,}")
    return values


def build_several(model: str, hardware: Sequence[str],
                  options: dict[str, Any]) -> tuple[list[Deployment], Workload]:
    """A deployment for each device, all with the same flags and workload."""
    built = [build(options | {"model": model, "hardware": name}) for name in hardware]
    return [d for d, _ in built], built[0][1]


def deliver(kind: str, draw: Callable[[], Plot], output_file: str | None, transparent: bool,
            as_json: bool, chips: Sequence[Deployment], w: Workload) -> int:
    """Draw, write the file, then say what was written or print the data."""
    if output_file is None and not as_json:
        raise InputError(f"-o: name the picture, for example '-o {kind}.png', or ask for --json")
    from simulator.deployment import Workload
    from simulator.plots.style import check_path, save

    if output_file is not None:
        check_path(output_file)
    chart = draw()
    size = None if output_file is None else save(chart.figure, output_file, transparent)
    longest = Workload(w.batch, int(chart.data["input"].max()), w.output)
    found = dict.fromkeys(t for d in chips for t in warnings(d, longest))
    left_out = chart.data.attrs.get("left_out", [])
    write_warnings([*found, *(f"{name} has no price: not drawn; give --price"
                              for name in left_out)])
    fits = {name: bool(rows["fits"].any())
            for name, rows in chart.data[chart.data["fits"].notna()].groupby("device", sort=False)}
    bad = [str(name) for name, ok in fits.items() if not ok]
    if as_json:
        write_json({"plot": kind, "title": message_of(chart), "file": output_file,
                    "fits": not bad, "data": records(chart.data)})
    else:
        click.echo(f"{output_file}: {message_of(chart)} ({len(chart.data):,} rows drawn, "
                   f"{(size or 0) / 1000:,.0f} kB)")
    if bad:
        click.echo(f"tokline: does not fit: {', '.join(bad)}", err=True)
    return 1 if bad else 0


def message_of(chart: Plot) -> str:
    """The title, on one line."""
    return str(chart.data.attrs["title"])


def records(data: Any) -> list[dict[str, Any]]:
    """Rows as JSON values; what a kind of row does not have is left out, unknowns are null."""
    from simulator.output import number

    parts = [rows.dropna(axis=1, how="all") for _, rows in data.groupby("series", sort=False)
             ] if "series" in data else [data]
    return [{str(key): number(value) for key, value in row.items()}
            for part in parts for row in part.to_dict("records")]


@click.command("plot")
@click.argument("kind", metavar="KIND", shell_complete=lambda *_: list(KINDS))
@click.argument("model", shell_complete=names("models"))
@click.argument("hardware", nargs=-1, required=True, shell_complete=names("hardware"))
@deployment_flags
@click.option("--context", metavar="N,..", help="Prompt lengths to draw: 1k,8k,64k or 1k:64k:x2.")
@click.option("--slo-tpot", metavar="TIME", help="Target of latency and pareto: '50 ms'.")
@click.option("--price", metavar="USD/H,..", help="Price of one device for cost, or a list, one "
              "for each [default: the spec's, dated].")
@chart_options
def command(kind: str, model: str, hardware: tuple[str, ...], context: str | None,
            slo_tpot: str | None, price: str | None, output_file: str | None, theme: str,
            transparent: bool, title: str | None, as_json: bool, **options: Any) -> int:
    """Draw a chart of MODEL on HARDWARE..., -o names a png, svg or pdf file.

    KIND is latency, throughput, cost, memory or pareto (over --batch, a list or chosen for you),
    context (over --context), or breakdown (one prefill beside one decode step).
    """
    if kind not in KINDS:
        raise InputError(f"unknown plot '{kind}'{nearest(kind, KINDS)}")
    more: dict[str, Any] = {"theme": theme, "title": title}
    source = click.get_current_context().get_parameter_source("batch")
    given = source is not click.core.ParameterSource.DEFAULT
    batches = counts(options["batch"], "--batch")
    if kind in _OVER_BATCH and given:
        more["batches"] = batches
    elif len(batches) > 1:
        raise InputError(f"--batch: '{options['batch']}' is a list; {kind} takes one number")
    if context and kind != "context":
        raise InputError(f"--context: {kind} is drawn over another axis; use --input")
    if kind == "context" and context:
        more["contexts"] = counts(context, "--context")
    if slo_tpot is not None:
        if kind not in ("latency", "pareto"):
            raise InputError(f"--slo-tpot: {kind} has no target line; latency and pareto have")
        more["slo_tpot"] = _seconds(slo_tpot)
    if price is not None and kind != "cost":
        raise InputError(f"--price: {kind} draws no money; cost does")
    chips, w = build_several(model, hardware, options | {"batch": str(int(batches[0]))})
    chips = _priced(chips, price)
    from simulator import plots

    function: Callable[..., Plot] = getattr(plots, kind)
    return deliver(kind, lambda: function(chips, w, **more), output_file, transparent, as_json,
                   chips, w)


def _priced(chips: list[Deployment], text: str | None) -> list[Deployment]:
    """The deployments at the prices given, one for all or one for each."""
    if text is None:
        return chips
    from simulator.units import parse_quantity

    parts = text.split(",")
    for part in parts:
        real(part, "--price", 0.0)
    if len(parts) not in (1, len(chips)):
        raise InputError(f"--price: '{text}' has {len(parts)} prices for {len(chips)} devices; "
                         f"give 1 or {len(chips)}")
    found = []
    for d, part in zip(chips, parts if len(parts) > 1 else parts * len(chips), strict=True):
        dollars = parse_quantity(f"{part} USD/h", "price", "--price")
        ranges = {k: v for k, v in d.hardware.ranges.items() if k != "price"}
        found.append(d.replace(hardware=d.hardware.replace(price=dollars, ranges=ranges)))
    return found


def _seconds(text: str) -> float:
    from simulator.units import parse_quantity

    value = parse_quantity(text, "time", "--slo-tpot")
    if value <= 0:
        raise InputError(f"--slo-tpot: '{text}' is not above 0")
    return value
