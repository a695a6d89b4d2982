"""`tokline validate`: predictions beside what others measured, and how far off they are."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from simulator.cli.common import names, real, whole, write_json, write_lines, write_warnings
from simulator.errors import InputError


@click.command("validate")
@click.argument("files", nargs=-1, metavar="[CSV]...")
@click.option("--csv", "csv_file", metavar="FILE", help="Every row with its prediction.")
@click.option("-o", "--output", "chart_file", metavar="FILE",
              help="Measured against predicted; png, svg or pdf.")
@click.option("--include-fitted", is_flag=True,
              help="Count rows that the packaged constants were fitted on too.")
@click.option("--theme", default="light", show_default=True, metavar="light|dark",
              help="White paper or a dark slide.")
@click.option("--executor", "by_executor", is_flag=True,
              help="Run small models on this machine and compare; needs tokline[torch].")
@click.option("--hardware", metavar="FILE", shell_complete=names("hardware"),
              help="What calibrate wrote of this machine [default: calibrate now].")
@click.option("--device", metavar="cpu|cuda", help="Where the executor runs [default: cpu].")
@click.option("--dtype", metavar="LIST", help="Its formats [default: fp32,bf16,fp16].")
@click.option("--threads", metavar="N", help="Its threads [default: all cores].")
@click.option("--minutes", metavar="M", help="Its time at most [default: 9].")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(files: tuple[str, ...], csv_file: str | None, chart_file: str | None,
            include_fitted: bool, theme: str, by_executor: bool, as_json: bool,
            **options: Any) -> int:
    """Predict the rows of measurement files and say how far off that is.

    Without CSV the packaged measurements are read, none of which a constant was fitted on. By phase
    and by source: rows, coverage, median and ninth decile of |ln(predicted/measured)|, bias, the
    share inside the predicted range; then the rows furthest off.

    With --executor this machine is the witness: it is calibrated, unless --hardware is what
    `tokline calibrate` wrote of it, small models that calibration never saw are predicted, run
    and compared.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if given and not by_executor:
        raise InputError(f"--{next(iter(given))}: holds with --executor only")
    if by_executor and (files or include_fitted):
        raise InputError("--executor: measures this machine; leave out "
                         + (f"'{files[0]}'" if files else "--include-fitted"))
    if chart_file is not None or theme != "light":
        from simulator.plots.style import check_path, theme_of

        theme_of(theme)
        if chart_file is not None:
            check_path(chart_file)
    if by_executor:
        return _executor(csv_file, chart_file, theme, as_json, given)
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


def _executor(csv_file: str | None, chart_file: str | None, theme: str, as_json: bool,
              given: dict[str, Any]) -> int:
    """Calibrate, predict, run and compare on this machine."""
    from simulator.executor import need_torch

    need_torch()
    from simulator.executor.comparison_report import (
        comparison_dict,
        comparison_lines,
        run_comparison,
        write_comparison,
    )
    from simulator.executor.measure import find_dtype
    from simulator.executor.timing import find_device
    from simulator.specs.catalogue import load_hardware
    from simulator.validation.report import check_writable

    check_writable(csv_file, "--csv", ())
    check_writable(chart_file, "-o", [csv_file] if csv_file else [])
    dtypes = [name.strip().lower() for name in given.get("dtype", "fp32,bf16,fp16").split(",")]
    for name in dtypes:
        find_dtype(name)
    device = given.get("device", "cpu")
    find_device(device)
    threads = whole(given["threads"], "--threads", 4096) if "threads" in given else None
    minutes = real(given.get("minutes", "9"), "--minutes", 0.2, 600.0)
    hardware = load_hardware(given["hardware"]) if "hardware" in given else None
    if hardware is not None and not hardware.kernels:
        raise InputError(f"--hardware: '{given['hardware']}' holds no timed kernels; give the file "
                         "that `tokline calibrate -o FILE` wrote on this machine")
    timed = sorted({k.format for k in hardware.kernels}) if hardware is not None else dtypes
    for name in dtypes:
        if name not in timed:
            raise InputError(f"--dtype: '{given.get('hardware')}' holds no kernels timed in {name} "
                             f"(it holds {', '.join(timed)}); calibrate with --dtype "
                             f"{','.join(dtypes)}, or give --dtype {','.join(timed)}")
    found = run_comparison(hardware, device, dtypes, threads, minutes, _say())
    if csv_file is not None:
        write_comparison(csv_file, found)
    if chart_file is not None:
        from simulator.plots import executor
        from simulator.plots.style import save

        save(executor(found, theme=theme).figure, chart_file)
    if as_json:
        write_json(comparison_dict(found) | {"csv": csv_file, "chart": chart_file})
    else:
        write_lines([*comparison_lines(found), *(
            f"{name} written" for name in (csv_file, chart_file) if name is not None)])
    return 0


def _say() -> Callable[[str], None]:
    """Progress on stderr, on a terminal only."""
    def say(text: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
    return say


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
