"""`tokline roofline`: every operation of prefill and decode under the lines that bound it."""

from __future__ import annotations

from typing import Any

import click

from simulator.cli.common import deployment_flags, names
from simulator.cli.plot import build_several, chart_options, counts, deliver


@click.command("roofline")
@click.argument("model", shell_complete=names("models"))
@click.argument("hardware", nargs=-1, required=True, shell_complete=names("hardware"))
@deployment_flags
@click.option("--context", metavar="N,..", help="Prompt lengths of a trajectory: 1k,8k,64k.")
@chart_options
def command(model: str, hardware: tuple[str, ...], context: str | None, output_file: str | None,
            theme: str, transparent: bool, title: str | None, as_json: bool,
            **options: Any) -> int:
    """Draw MODEL on the roofline of one to four devices; -o names a png, svg or pdf file.

    --batch and --context take lists, as in 1,8,64,512 or 1k:64k:x8: decode's path as they grow.
    Markers are the operations at the first batch. Dashed: ceiling; solid: what kernels reach.
    """
    batches = counts(options["batch"], "--batch")
    contexts = counts(context, "--context") if context else []
    if contexts:
        options["input_"] = str(int(contexts[0]))
    chips, w = build_several(model, hardware, options | {"batch": str(int(batches[0]))})
    from simulator import plots

    def draw() -> plots.Plot:
        return plots.roofline(chips, w, batches=batches, contexts=contexts, theme=theme,
                              title=title)

    return deliver("roofline", draw, output_file, transparent, as_json, chips, w)
