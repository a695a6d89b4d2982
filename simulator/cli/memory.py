"""`tokline memory`: the verdict, with what fills a device."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import (
    build,
    deployment_options,
    warnings,
    whole,
    write_json,
    write_lines,
    write_warnings,
)
from simulator.cli.feature_flags import feature_options, featured
from simulator.cli.offload_flags import offload_options, offloaded
from simulator.errors import InputError


def _set_context(options: dict[str, Any], context: str | None) -> None:
    """`--context` stands for input + output: the prompt is what the output leaves of it."""
    if context is None:
        return
    source = click.get_current_context().get_parameter_source("input_")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise InputError("--context: is input + output, so it can't stand beside --input")
    total, output = whole(context, "--context"), whole(options["output"], "--output")
    if total <= output:
        raise InputError(f"--context: {total} is not above the output of {output}")
    options["input_"] = str(total - output)


@click.command("memory")
@deployment_options
@feature_options
@offload_options
@click.option("--context", metavar="N", help="Input + output, instead of --input.")
@click.option("--kv-memory", metavar="SIZE",
              help="KV memory of one device, as an engine's log states it: '46.80 GiB'.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(context: str | None, kv_memory: str | None, as_json: bool, **options: Any) -> int:
    """Whether MODEL fits on HARDWARE, and the largest batch and context that do.

    With --kv-memory, the tokens, blocks and concurrency of a known KV pool, to check a log.
    """
    _set_context(options, context)
    room = None if kv_memory is None else _size(kv_memory)
    deployment, workload = build(options)
    deployment = offloaded(featured(deployment, options), workload, options)
    from simulator.advice import changes_that_fit
    from simulator.memory import given_kv
    from simulator.output import given_kv_dict, identity, memory_dict
    from simulator.report import fit_lines, given_kv_lines, memory_lines, title
    from simulator.request import estimate

    result = estimate(deployment, workload)
    notes = warnings(deployment, workload)
    write_warnings(notes)
    fits = bool(result.memory.fits)
    changes = [] if fits or room is not None else changes_that_fit(result)
    found = {
        "memory": memory_dict(result),
        "changes_that_fit": [{"change": c.text, "flag": c.flag} for c in changes],
        "warnings": notes,
    }
    lines = [*memory_lines(result), *([] if fits else fit_lines(changes))]
    if room is not None:
        given = given_kv(deployment, room, workload.batch, workload.input + workload.output)
        fits = bool(given.possible and given.enough)
        found["kv_memory"] = given_kv_dict(given)
        lines = given_kv_lines(result, given)
    if as_json:
        write_json(identity(result) | found)
    else:
        write_lines([*title(result), "", *lines])
    return 0 if fits else 1


def _size(text: str) -> float:
    from simulator.units import parse_quantity

    size = parse_quantity(text, "memory", "--kv-memory")
    if size <= 0:
        raise InputError(f"--kv-memory: '{text}' is not above 0")
    return size
