"""`tokline estimate`: TTFT, TPOT and rates, with the derivation on request."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import (
    build,
    deployment_options,
    real,
    warnings,
    write_json,
    write_lines,
    write_warnings,
)


@click.command("estimate")
@deployment_options
@click.option("--price", metavar="USD/H", help="Price of one device [default: the spec's, dated].")
@click.option("--explain", is_flag=True, help="The textbook page: numbers put into the formulas.")
@click.option("--force", is_flag=True, help="Print rates even where it doesn't fit.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(price: str | None, explain: bool, force: bool, as_json: bool, **options: Any) -> int:
    """TTFT, TPOT and tok/s of MODEL on HARDWARE, with what limits them.

    MODEL is a catalogue name, a YAML path or a Hugging Face config.json; HARDWARE a catalogue name
    or a YAML path, with a number of devices in front if you like: 4xh100-sxm.
    """
    deployment, workload = build(options)
    dollars = None if price is None else real(price, "--price", 0.0)
    from simulator.output import basis, estimate_dict
    from simulator.request import causes as find_causes
    from simulator.request import estimate

    result = estimate(deployment, workload, dollars)
    causes = find_causes(deployment, workload, dollars)
    notes = warnings(deployment, workload)
    write_warnings(notes)
    fits = bool(result.memory.fits)
    if as_json:
        write_json(estimate_dict(result, causes, force, notes))
        return 0 if fits else 1
    from simulator.advice import changes_that_fit, improvements
    from simulator.report import estimate_lines

    lines = estimate_lines(
        result, [] if fits else changes_that_fit(result), improvements(result) if fits else [],
        causes, str(basis(result, causes)["text"]), force)
    if explain:
        from simulator.explain import explain as page

        lines += ["", *page(result)]
    write_lines(lines)
    return 0 if fits else 1
