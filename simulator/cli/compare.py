"""`tokline compare`: deployments side by side, the reasons, and where the order changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from simulator.cli.common import (
    asked_for,
    build,
    deployment_flags,
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
    from simulator.deployment import Deployment, Workload

_MOST = 2**24


@click.command("compare")
@click.argument("model", required=False, shell_complete=names("models"))
@click.option("--hardware", metavar="A,B,..", required=True, shell_complete=names("hardware"),
              help="Devices, each with a number in front if you like: h100,2xl40s.")
@click.option("--models", metavar="X,Y,..", help="Models, after MODEL where that is given.")
@click.option("--formats", metavar="F,G,..",
              help="Weights, or weights/activations/kv: bf16,int4-g128,fp8/fp8/fp8.")
@deployment_flags
@click.option("--price", metavar="USD/H,..",
              help="Price of one device: one for all, or one for each of --hardware.")
@click.option("--max-batch", metavar="N", default="4096", show_default=True,
              help="Look for crossovers up to this batch.")
@click.option("--max-context", metavar="N",
              help="And up to this input + output [default: the positions, at most 131,072].")
@click.option("--force", is_flag=True, help="Compare rates even where something doesn't fit.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(model: str | None, hardware: str, models: str | None, formats: str | None,
            price: str | None, max_batch: str, max_context: str | None, force: bool,
            as_json: bool, **options: Any) -> int:
    """MODEL on several devices, several models on a device, or one model in several formats.

    The first of each list is the reference. Lists combine: each model on each device in each
    format. Ratios of times are taken apart into factors that multiply to them.
    """
    chosen = [*([model] if model else []), *_split(models, "--models")]
    if not chosen:
        raise InputError("compare: no model; write 'tokline compare MODEL --hardware A,B' or "
                         "--models X,Y")
    if formats and options["weights"]:
        raise InputError(f"--weights: '{options['weights']}' and --formats '{formats}' exclude "
                         "each other; put it into --formats")
    devices = _split(hardware, "--hardware")
    prices = _prices(price, devices)
    wanted: list[str | None] = [*_split(formats, "--formats")] or [None]
    built: list[Deployment] = []
    used: list[str | None] = []
    work: Workload | None = None
    notes: list[str] = []
    for name in chosen:
        for device, dollars in zip(devices, prices, strict=True):
            for form in wanted:
                d, work = build(options | {"model": name, "hardware": device} | _formats(form))
                if dollars is not None:
                    d = d.replace(hardware=d.hardware.replace(price=dollars))
                built.append(d)
                used.append(form)
                notes += warnings(d, work)
    assert work is not None
    from simulator.compare import compare, labels
    from simulator.compare_report import compare_dict, compare_lines

    most = whole(max_batch, "--max-batch", _MOST)
    longest = None if max_context is None else whole(max_context, "--max-context", _MOST)
    result = compare(list(zip(labels(built, used), built, strict=True)), work,
                     max_batch=most, max_context=longest, force=force)
    notes = list(dict.fromkeys(notes))
    write_warnings(notes)
    if as_json:
        write_json(compare_dict(result, force) | {"warnings": notes})
    else:
        told = asked_for("activations") or any(form and "/" in form for form in used)
        write_lines(compare_lines(result, force, told))
    return 0 if any(i.fits for i in result.items) else 1


def _split(text: str | None, flag: str) -> list[str]:
    if text is None:
        return []
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise InputError(f"{flag}: '{text}' has an empty entry; write names with commas between")
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise InputError(f"{flag}: '{twice[0]}' stands twice in '{text}'")
    return found


def _formats(text: str | None) -> dict[str, str | None]:
    """`fp8`, `fp8/fp8` or `fp8/fp8/fp8`: weights, activations, KV."""
    if text is None:
        return {}
    parts = text.split("/")
    if len(parts) > 3 or not all(parts):
        raise InputError(f"--formats: '{text}' is not weights, weights/activations or "
                         "weights/activations/kv")
    return dict(zip(("weights", "activations", "kv"), parts, strict=False))


def _prices(text: str | None, devices: list[str]) -> list[float | None]:
    """USD a second of each device."""
    if text is None:
        return [None] * len(devices)
    from simulator.units import parse_quantity

    parts = text.split(",")
    for part in parts:
        real(part, "--price", 0.0)
    found: list[float | None] = [parse_quantity(f"{part} USD/h", "price", "--price")
                                 for part in parts]
    if len(found) not in (1, len(devices)):
        raise InputError(f"--price: '{text}' has {len(found)} prices for {len(devices)} devices; "
                         f"give 1 or {len(devices)}")
    return found if len(found) == len(devices) else found * len(devices)
