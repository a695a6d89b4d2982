"""`tokline hardware list|show|check`: the catalogue of devices."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import names, write_json, write_lines
from simulator.errors import InputError


@click.group("hardware", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """List, show and check the devices of the catalogue."""


@command.command("list")
@click.option("--vendor", metavar="NAME", help="Only this vendor.")
@click.option("--memory", metavar="SIZE", help="At least this much memory, as in '80 GiB'.")
@click.option("--bandwidth", metavar="RATE", help="At least this bandwidth, as in '2 TB/s'.")
@click.option("--status", metavar="STATUS", help="Only this status, as in 'shipping'.")
@click.option("--sort", type=click.Choice(["name", "vendor", "memory", "bandwidth", "bf16", "year",
                                           "price"]), default="name", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def list_(as_json: bool, **filters: Any) -> int:
    """Devices, filtered and sorted; rates are per device, peaks dense."""
    from simulator.listing import hardware_lines, hardware_rows

    rows = hardware_rows(**filters)
    if as_json:
        write_json(rows)
    else:
        write_lines(hardware_lines(rows))
    return 0


@command.command("show")
@click.argument("name", shell_complete=names("hardware"))
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout, SI units.")
def show(name: str, as_json: bool) -> int:
    """One device: every number with its source, date and confidence."""
    from simulator.listing import hardware_dict, hardware_show_lines
    from simulator.specs.catalogue import load_hardware

    hardware = load_hardware(name)
    if as_json:
        write_json(hardware_dict(hardware))
    else:
        write_lines(hardware_show_lines(hardware))
    return 0


@command.command("check")
@click.argument("name", required=False, nargs=-1, shell_complete=names("hardware"))
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def check(name: tuple[str, ...], as_json: bool) -> int:
    """Lint specs: sparse-looking peaks, GB/GiB slips, missing sources; all of them by default."""
    from simulator.listing import check_lines, check_rows
    from simulator.specs.catalogue import catalogue

    chosen = name or tuple(catalogue("hardware"))
    if not chosen:
        raise InputError("the catalogue holds no hardware")
    rows = check_rows(chosen)
    if as_json:
        write_json(rows)
    else:
        write_lines(check_lines(rows, len(chosen)))
    return 1 if any(row["level"] == "error" for row in rows) else 0
