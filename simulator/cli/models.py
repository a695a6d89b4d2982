"""`tokline models list|show|import`: the catalogue of models, and models from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simulator.cli.common import names, write_json, write_lines
from simulator.errors import InputError


@click.group("models", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """List, show and import models."""


@command.command("list")
@click.option("--family", metavar="NAME", help="Only this family.")
@click.option("--smallest", metavar="N", help="At least this many parameters, as in 7e9.")
@click.option("--largest", metavar="N", help="At most this many parameters, as in 80e9.")
@click.option("--sort", type=click.Choice(["name", "family", "parameters", "active", "kv"]),
              default="name", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def list_(as_json: bool, **filters: Any) -> int:
    """Models, filtered and sorted: exact parameters, KV bytes per token at 2 bytes a value."""
    from simulator.listing import model_lines, model_rows

    rows = model_rows(**filters)
    if as_json:
        write_json(rows)
    else:
        write_lines(model_lines(rows))
    return 0


@command.command("show")
@click.argument("name", shell_complete=names("models"))
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def show(name: str, as_json: bool) -> int:
    """One model: exact parameters, KV cache by layer kind, fixed state."""
    from simulator.listing import model_dict, model_show_lines
    from simulator.specs.catalogue import load_model

    model = load_model(name)
    if as_json:
        write_json(model_dict(model))
    else:
        write_lines(model_show_lines(model))
    return 0


@command.command("import")
@click.argument("path", type=click.Path())
@click.option("-o", "--output", metavar="FILE", help="Write the YAML here instead of stdout.")
@click.option("--json", "as_json", is_flag=True,
              help="Counts, spec and what was inferred as one JSON value on stdout.")
def import_(path: str, output: str | None, as_json: bool) -> int:
    """Read a config.json (or its folder) or a GGUF file and write it as YAML."""
    from simulator.importers import import_with_notes, write_yaml

    if not Path(path).exists():
        raise InputError(f"'{path}': no such file")
    imported = import_with_notes(Path(path))
    for note in imported.notes:
        click.echo(f"tokline: {note}", err=True)
    text = write_yaml(imported.model)
    if output is not None:
        try:
            Path(output).write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--output: '{output}' cannot be written: {error.strerror}") from None
    if as_json:
        from simulator.listing import model_dict

        write_json(model_dict(imported.model) | {"notes": list(imported.notes)})
    elif output is None:
        click.echo(text, nl=False)
    return 0
