"""`tokline measure`: run a real decoder on this machine and time it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from simulator.cli.common import names, real, write_json, write_lines
from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.specs.hardware import Hardware

MOST_POINTS = 1000


@click.command("measure")
@click.argument("model", shell_complete=names("models"))
@click.option("--device", metavar="NAME", help="cpu, cuda or cuda:N [default: cuda where there is "
              "one].")
@click.option("--layers", metavar="N", help="So many layers, each kind by its share [default: "
              "all].")
@click.option("--scale", metavar="X", default="1", show_default=True,
              help="Factor on hidden size, heads, widths and vocabulary.")
@click.option("--batch", metavar="LIST", default="1", show_default=True, help="Sequences.")
@click.option("--input", "input_", metavar="LIST", default="128", show_default=True,
              help="Prompt tokens.")
@click.option("--output", metavar="N", default="32", show_default=True,
              help="Output tokens; 1: prefill alone.")
@click.option("--dtype", metavar="NAME", help="bf16, fp16 or fp32 [default: bf16 on cuda, fp32 on "
              "cpu].")
@click.option("--compile", "compiled", is_flag=True, help="torch.compile, decode at fixed shapes.")
@click.option("--cuda-graph", "graph", is_flag=True, help="Decode steps as a CUDA graph.")
@click.option("--repeats", metavar="N", default="5", show_default=True,
              help="Timed runs of each, at least 3; fewer where they take over 10 s.")
@click.option("--threads", metavar="N", help="CPU threads [default: all CPUs it may use].")
@click.option("--hardware", metavar="NAME", help="Catalogue name of the device, or "
              "the file calibrate wrote of it, for the CSV.")
@click.option("-o", "file", metavar="FILE.csv", help="Write measurement rows, which validate "
              "reads.")
@click.option("--csv", "as_csv", is_flag=True, help="The same rows on stdout.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(model: str, device: str | None, layers: str | None, scale: str, batch: str, input_: str,
            output: str, dtype: str | None, compiled: bool, graph: bool, repeats: str,
            threads: str | None, hardware: str | None, file: str | None, as_csv: bool,
            as_json: bool) -> int:
    """Run MODEL with random weights on this machine and time prefill and decode.

    MODEL is a catalogue name, a YAML path or a Hugging Face config.json. Lists are 1,2,4, a:b:step
    or a:b:xratio; every batch is run with every input. --layers and --scale fit it to the machine.
    """
    if as_csv and as_json:
        raise InputError("--csv, --json: give one of them")
    counts = {flag: _counts(text, flag, most) for flag, text, most in (
        ("--batch", batch, 1e6), ("--input", input_, 1e8))}
    tokens, runs = _one(output, "--output", 1e8), _one(repeats, "--repeats", 1e5)
    points = len(counts["--batch"]) * len(counts["--input"])
    if points > MOST_POINTS:
        raise InputError(f"--batch, --input: {points:,} points, the most is {MOST_POINTS:,}")
    if runs < 3:
        raise InputError(f"--repeats: {runs} is too few for a median with a spread, use at least 3")
    factor = real(scale, "--scale", 1e-4, 1e4)
    first = None if layers is None else _one(layers, "--layers", 1e4)
    used = None if threads is None else _one(threads, "--threads", 4096)
    from simulator.specs.catalogue import load_hardware, load_model

    spec = load_model(model)
    named_device = None if hardware is None else load_hardware(hardware)
    from simulator.validation.report import check_writable

    check_writable(file, "-o", [])
    from simulator.executor import need_torch

    need_torch()
    from simulator.executor.measure import find_dtype
    from simulator.executor.session import TooLargeError, measure_model
    from simulator.executor.timing import default_device

    place = default_device() if device is None else device
    named = _name(hardware, named_device, place)
    chosen = ("bf16" if place.startswith("cuda") else "fp32") if dtype is None else dtype
    find_dtype(chosen)
    begin = time.perf_counter()
    try:
        session = measure_model(
            spec, place, chosen.strip().lower(), counts["--batch"], counts["--input"], tokens,
            first, factor, runs, used, compiled, graph, named, _progress)
    except TooLargeError as error:
        click.echo(f"tokline: {error}", err=True)
        if as_json:
            write_json({"fits": False, "needed_bytes": error.needed, "free_bytes": error.free,
                        "layers_that_fit": error.layers})
        return 1
    finally:
        _progress(None)
    from simulator.executor.measure_report import csv_text, session_dict, session_lines

    if file is not None:
        try:
            with open(file, "w", encoding="utf-8", newline="") as target:
                target.write(csv_text(session))
        except OSError as error:
            raise InputError(f"-o: '{file}' can't be written: {error.strerror}") from None
    if as_json:
        write_json(session_dict(session, time.perf_counter() - begin, file))
    elif as_csv:
        click.echo(csv_text(session), nl=False)
    else:
        write_lines(session_lines(session, file))
    return 0


def _name(given: str | None, hardware: Hardware | None, place: str) -> str | None:
    """What the rows call the device: the path of its file, or its name in the catalogue."""
    if given is None or hardware is None:
        return None
    if not place.startswith("cuda") and (hardware.vendor == "NVIDIA" or hardware.memory_class
                                         not in (None, "ddr", "lpddr")):
        raise InputError(f"--hardware: '{given}' is {hardware.title}, but this runs on the CPU; "
                         "leave it out, or name the CPU")
    return given if given.endswith((".yaml", ".yml")) else hardware.name


def _counts(text: str, flag: str, most: float) -> list[int]:
    """Counts of at least 1 from a list flag."""
    from simulator.units import parse_list

    values = list(dict.fromkeys(parse_list(text, flag)))
    for value in values:
        if not 1 <= value <= most:
            raise InputError(f"{flag}: {value:,.0f} is not between 1 and {most:,.0f}")
    return [int(v) for v in values]


def _one(text: str, flag: str, most: float) -> int:
    """One count of at least 1."""
    found = _counts(text, flag, most)
    if len(found) > 1:
        raise InputError(f"{flag}: '{text}' is a list; it takes one number")
    return found[0]


def _progress(text: str | None) -> None:
    """What is being run, on one line of stderr, on a terminal only; None clears it."""
    if sys.stderr.isatty():
        click.echo(f"\r{text or ''}\x1b[K" + ("" if text else "\r"), err=True, nl=False)
