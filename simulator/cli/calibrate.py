"""`tokline calibrate`: this machine's ceilings, or a chip's constants from benchmark files."""

from __future__ import annotations

import sys
from typing import Any

import click

from simulator.cli.common import names, real, whole, write_json, write_lines
from simulator.errors import InputError

_OF_FILES = ("hardware", "model", "engine", "weights", "kv", "tp", "pp", "batch", "input_",
             "output", "drop_impossible", "rows_file")
_OF_MACHINE = ("device", "dtype", "threads", "minutes", "name")


@click.command("calibrate")
@click.argument("files", nargs=-1, metavar="[FILES]...")
@click.option("--hardware", metavar="NAME", shell_complete=names("hardware"),
              help="Device of the files; 4xh100 is 4 of them. Of a CSV: which rows.")
@click.option("--model", metavar="NAME", shell_complete=names("models"),
              help="Model, where a file doesn't tell.")
@click.option("--engine", metavar="NAME", help="Engine or engine profile that answered.")
@click.option("--weights", metavar="FORMAT", help="Format of the weights; 'own': the model's.")
@click.option("--kv", metavar="FORMAT", help="Format of the KV cache.")
@click.option("--tp", metavar="N", help="Tensor-parallel degree [default: 1].")
@click.option("--pp", metavar="N", help="Pipeline-parallel degree [default: 1].")
@click.option("--batch", metavar="B", help="Concurrent requests, where a file doesn't tell.")
@click.option("--input", "input_", metavar="N", help="Prompt tokens, where a file doesn't tell.")
@click.option("--output", metavar="N", help="Output tokens, where a file doesn't tell.")
@click.option("--drop-impossible", is_flag=True,
              help="Fit without rows faster than physics, where a clear majority isn't.")
@click.option("--rows", "rows_file", metavar="FILE",
              help="The files as measurement rows, a CSV that validate reads.")
@click.option("--device", metavar="cpu|cuda", help="This machine's device [default: cpu].")
@click.option("--dtype", metavar="LIST", help="Formats to measure [default: bf16,fp16,fp32].")
@click.option("--threads", metavar="N", help="Threads on a CPU [default: all cores].")
@click.option("--minutes", metavar="M", help="About how long to measure; with few a "
              "second round is left out [default: 5].")
@click.option("--name", metavar="NAME", help="Name of the machine in its file.")
@click.option("-o", "--out", "path", metavar="FILE",
              help="Hardware file to write [default: print it].")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(files: tuple[str, ...], path: str | None, as_json: bool, **options: Any) -> int:
    """Measure this machine, or fit a chip's constants to benchmark files.

    FILES: vllm bench serve --save-result JSON, GuideLLM, AIPerf or genai-perf JSON, llama-bench
    JSON or CSV, measurement CSVs. They are told apart by what they hold. One part of the runs is
    fitted, the other scored; too few rows, or rows that contradict physics, are refused (exit 1).

    Without FILES the machine itself is measured; that needs the extra tokline[torch]. Either way
    the result is a hardware file that `tokline estimate MODEL FILE.yaml` uses.
    """
    given = {k: v for k, v in options.items() if v is not None and v is not False}
    wrong = [k for k in given if k in (_OF_MACHINE if files else _OF_FILES)]
    if wrong:
        flag = "--rows" if wrong[0] == "rows_file" else "--" + wrong[0].strip("_").replace("_", "-")
        raise InputError(f"{flag}: holds for measuring this machine, not with FILES" if files else
                         f"{flag}: holds for benchmark files; name them")
    return _fit(files, path, as_json, options) if files else _measure(path, as_json, given)


def _fit(files: tuple[str, ...], path: str | None, as_json: bool, options: dict[str, Any]) -> int:
    from datetime import date

    from simulator.calibration.bench_files import Given, read_files
    from simulator.calibration.chip_report import check_target, chip_yaml, fit_dict, fit_lines
    from simulator.calibration.fit_chip import fit_chip

    counts = {key: None if options[key] is None else whole(options[key], f"--{key.strip('_')}")
              for key in ("tp", "pp", "batch", "input_", "output")}
    check_target(path, files)
    rows = read_files(files, Given(
        options["hardware"], options["model"], options["engine"], options["weights"],
        options["kv"], counts["tp"], counts["pp"], counts["batch"], counts["input_"],
        counts["output"]))
    if options["rows_file"] is not None:
        from simulator.validation.measurements import write_rows
        from simulator.validation.report import check_writable, columns_of

        check_writable(options["rows_file"], "--rows", [*files, *([path] if path else [])])
        write_rows(options["rows_file"], [columns_of(p.row) for p in rows])
    fit = fit_chip(rows, options["drop_impossible"])
    text = "" if fit.refused else chip_yaml(fit, date.today())
    if path is not None and text:
        _write(path, text)
    if as_json:
        write_json(fit_dict(fit) | {"file": path if text else None, "yaml": text or None})
    elif path is None and text:
        click.echo(text, nl=False)
    else:
        write_lines([*fit_lines(fit), *(["", f"{path} written"] if text else [])])
    return 1 if fit.refused else 0


def _measure(path: str | None, as_json: bool, given: dict[str, Any]) -> int:
    from simulator.calibration.chip_report import MARK, check_target

    device = given.get("device", "cpu")
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device: '{device}' is not cpu or cuda")
    dtypes = [name.strip() for name in given.get("dtype", "bf16,fp16,fp32").split(",")]
    for name in dtypes:
        if name not in ("bf16", "fp16", "fp32"):
            raise InputError(f"--dtype: '{name}' is not one of bf16, fp16, fp32")
    threads = whole(given["threads"], "--threads", 4096) if "threads" in given else None
    minutes = real(given.get("minutes", "5"), "--minutes", 0.1, 120.0)
    check_target(path, ())
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("measuring this machine needs torch: pip install 'tokline[torch]'"
                         ) from None
    from simulator.executor.calibrate import (
        calibrate_machine,
        machine_dict,
        machine_lines,
        machine_yaml,
    )

    machine = calibrate_machine(device, dtypes, threads, minutes, _progress)
    text = machine_yaml(machine, given.get("name"))
    if not text.startswith(MARK):
        text = f"{MARK}\n{text}"
    if path is not None:
        _write(path, text)
    if as_json:
        write_json(machine_dict(machine) | {"file": path})
    elif path is None:
        click.echo(text, nl=False)
    else:
        write_lines([*machine_lines(machine), "", f"{path} written"])
    return 0


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"-o: '{path}' can't be written: {error.strerror}") from None


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{text}\x1b[K", err=True, nl=False)
