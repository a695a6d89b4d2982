"""`tokline validate`: predictions beside what others measured, and how far off they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from simulator.cli.common import write_json, write_lines, write_warnings


@click.command("validate")
@click.argument("files", nargs=-1, metavar="[CSV]...")
@click.option("--csv", "csv_file", metavar="FILE", help="Every row with its prediction.")
@click.option("-o", "--output", "chart_file", metavar="FILE",
              help="Measured against predicted; png, svg or pdf.")
@click.option("--include-fitted", is_flag=True,
              help="Count rows that the packaged constants were fitted on too.")
@click.option("--theme", default="light", show_default=True, metavar="light|dark",
              help="White paper or a dark slide.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(files: tuple[str, ...], csv_file: str | None, chart_file: str | None,
            include_fitted: bool, theme: str, as_json: bool) -> int:
    """Predict the rows of measurement files and say how far off that is.

    Without CSV the packaged measurements are read, none of which a constant was fitted on. By phase
    and by source: rows, coverage, median and ninth decile of |ln(predicted/measured)|, bias, the
    share inside the predicted range; then the rows furthest off.
    """
    if chart_file is not None or theme != "light":
        from simulator.plots.style import check_path, theme_of

        theme_of(theme)
        if chart_file is not None:
            check_path(chart_file)
    from simulator.validation.report import (
        check_writable,
        report_dict,
        report_lines,
        unpredicted,
        write_csv,
    )
    from simulator.validation.run import PACKAGED, validate

    read = files or (PACKAGED,)
    check_writable(csv_file, "--csv", read)
    check_writable(chart_file, "-o", [*read, *([csv_file] if csv_file else [])])
    with _progress():
        report = validate(files, include_fitted)
        if csv_file is not None:
            write_csv(csv_file, report)
        if chart_file is not None:
            from simulator.plots import validation
            from simulator.plots.style import save

            save(validation(report, theme=theme).figure, chart_file)
    write_warnings(unpredicted(report))
    if as_json:
        write_json(report_dict(report, include_fitted)
                   | {"csv": csv_file, "chart": chart_file})
    else:
        written = [f"{name} written" for name in (csv_file, chart_file) if name is not None]
        write_lines([*report_lines(report, include_fitted), *written])
    return 0


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """A line on stderr while it works, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    click.echo("\rreading and predicting, a second for about 1,000 rows\x1b[K", err=True, nl=False)
    try:
        yield
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)
