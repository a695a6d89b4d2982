"""`tokline memory`: the verdict, with what fills a device."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import (
    build,
    deployment_options,
    warnings,
    write_json,
    write_lines,
    write_warnings,
)


@click.command("memory")
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(as_json: bool, **options: Any) -> int:
    """Whether MODEL fits on HARDWARE, and the largest batch and context that do."""
    deployment, workload = build(options)
    from simulator.advice import changes_that_fit
    from simulator.output import identity, memory_dict
    from simulator.report import fit_lines, memory_lines, title
    from simulator.request import estimate

    result = estimate(deployment, workload)
    notes = warnings(deployment, workload)
    write_warnings(notes)
    fits = bool(result.memory.fits)
    changes = [] if fits else changes_that_fit(result)
    if as_json:
        write_json(identity(result) | {
            "memory": memory_dict(result),
            "changes_that_fit": [{"change": c.text, "flag": c.flag} for c in changes],
            "warnings": notes,
        })
    else:
        write_lines([*title(result), "", *memory_lines(result),
                     *([] if fits else fit_lines(changes))])
    return 0 if fits else 1
