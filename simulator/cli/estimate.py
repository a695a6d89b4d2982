"""`tokline estimate`: TTFT, TPOT and rates, with the derivation on request."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import (
    asked_for,
    build,
    build_best,
    deployment_options,
    real,
    warnings,
    write_json,
    write_lines,
    write_warnings,
)
from simulator.cli.feature_flags import feature_options, feature_warnings, featured
from simulator.cli.offload_flags import offload_options, offloaded


@click.command("estimate")
@deployment_options
@feature_options
@offload_options
@click.option("--price", metavar="USD/H", help="Price of one device [default: the spec's, dated].")
@click.option("--optimise", metavar="GOAL", help="latency, throughput or cost: pick the "
              "parallelism, of the devices in front or of the fewest that fit.")
@click.option("--explain", is_flag=True, help="The textbook page: numbers put into the formulas.")
@click.option("--force", is_flag=True, help="Print rates even where it doesn't fit.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(price: str | None, optimise: str | None, explain: bool, force: bool, as_json: bool,
            **options: Any) -> int:
    """TTFT, TPOT and tok/s of MODEL on HARDWARE, with what limits them.

    MODEL is a catalogue name, a YAML path or a Hugging Face config.json; HARDWARE a catalogue name
    or a YAML path, with a number of devices in front if you like: 4xh100-sxm.
    """
    choice = None
    if optimise is None:
        deployment, workload = build(options)
    else:
        deployment, workload, choice = build_best(options, optimise.strip().lower())
    deployment = offloaded(featured(deployment, options), workload, options)
    dollars = None if price is None else real(price, "--price", 0.0)
    from simulator.output import basis, estimate_dict
    from simulator.request import causes as find_causes
    from simulator.request import estimate

    result = estimate(deployment, workload, dollars)
    causes = find_causes(deployment, workload, dollars)
    notes = [*warnings(deployment, workload), *feature_warnings(deployment)]
    write_warnings(notes)
    fits = bool(result.memory.fits)
    if as_json:
        answer = estimate_dict(result, causes, force, notes)
        if choice is not None:
            from simulator.choosing import alternatives_list

            answer |= {"optimised_for": choice.goal, "alternatives": alternatives_list(choice)}
        write_json(answer)
        return 0 if fits else 1
    from simulator.advice import changes_that_fit, improvements
    from simulator.report import estimate_lines

    lines = estimate_lines(
        result, [] if fits else changes_that_fit(result), improvements(result) if fits else [],
        causes, str(basis(result, causes)["text"]), force, asked_for("activations"))
    if choice is not None:
        from simulator.choosing import alternatives_lines

        lines += ["", *alternatives_lines(choice)]
    if explain:
        from simulator.explain import explain as page

        if deployment.speculation is not None or deployment.chunk is not None:
            from simulator.features import plain

            result = plain(result)
            lines += ["", "The page explains the plain pass and step, without speculation and "
                      "chunks."]
        lines += ["", *page(result)]
    write_lines(lines)
    return 0 if fits else 1
