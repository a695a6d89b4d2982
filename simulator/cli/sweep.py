"""`tokline sweep`: every estimate of a grid; the best of them on screen, the table in a file."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from simulator.cli.common import write_json, write_lines
from simulator.errors import InputError

if TYPE_CHECKING:
    from concurrent.futures import Executor

_LISTS = {
    "--models": "Models, separated by commas; or the first argument.",
    "--hardware": "Devices, separated by commas; or the second argument. 4xh100 is 4 of them.",
    "--weights": "Weight formats; 'own' is the model's own [default: own].",
    "--activations": "Activation formats [default: bf16].",
    "--kv": "KV cache formats; 'own' follows the model or the activations [default: own].",
    "--engines": "Engine profiles [default: vllm].",
    "--tp": "Tensor-parallel degrees, as a list or range.",
    "--pp": "Pipeline-parallel degrees.",
    "--ep": "Expert-parallel degrees.",
    "--cp": "Context-parallel degrees.",
    "--dp": "Data-parallel replicas.",
    "--batch": "Concurrent sequences: 1,8,64 or 1:512:x2 [default: 1].",
    "--input": "Prompt tokens: 1k:128k:x2 [default: 1024].",
    "--output": "Output tokens [default: 256].",
}


def _list_options(function: Any) -> Any:
    for flag, words in reversed(_LISTS.items()):
        names = {"--models": ("--models", "--model"), "--engines": ("--engines", "--engine")}
        function = click.option(*names.get(flag, (flag,)), flag.strip("-") + "_", metavar="LIST",
                                help=words)(function)
    return function


@click.command("sweep")
@click.argument("models_argument", metavar="[MODELS]", required=False)
@click.argument("hardware_argument", metavar="[HARDWARE]", required=False)
@_list_options
@click.option("--grid", "grid_file", metavar="FILE",
              help="YAML file with any of these lists; flags replace what it says.")
@click.option("--prefix-hit", metavar="R", help="Share of the prompt in the prefix cache.")
@click.option("--price", metavar="USD/H", help="Price of one device [default: the spec's].")
@click.option("--where", metavar="CONDITION", help="Rows to keep: 'fits and tpot_s < 0.05'.")
@click.option("--goal", metavar="COLUMN",
              help="What the top rows are best in [default: output_tokens_per_s_per_device].")
@click.option("--pareto", metavar="COLUMNS", help="Objectives of the front "
              "[default: tokens_per_s_per_user,output_tokens_per_s_per_device].")
@click.option("--top", metavar="N", help="Number of top rows [default: 10].")
@click.option("-o", "--out", "--file", "path", metavar="FILE",
              help="Write the whole table: .csv, .jsonl or .parquet. Goes on where it stopped.")
@click.option("--columns", metavar="COLUMNS", help="Columns of the file [default: all].")
@click.option("--overwrite", is_flag=True, help="Begin the file again.")
@click.option("--workers", metavar="N", help="Processes [default: 1].")
@click.option("--dask", metavar="ADDRESS", help="Scheduler of a Dask cluster, tcp://host:8786.")
@click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")
def command(path: str | None, overwrite: bool, workers: str | None, dask: str | None,
            as_json: bool, grid_file: str | None, **options: Any) -> int:
    """Every estimate of a grid of models, hardware, formats, engines, degrees and workloads.

    MODELS and HARDWARE are names separated by commas; --models and --hardware say the same. Prints
    the Pareto front and the best rows; -o writes the whole table.
    """
    from simulator.sweep_ask import ask
    from simulator.sweep_report import result_dict, result_lines
    from simulator.sweep_run import run_sweep

    question = ask(grid_file, options)
    with _executor(workers, dask) as executor, _progress() as progress, _terminable():
        result = run_sweep(question.grid, question.summary, question.where, path,
                           question.columns, executor, overwrite, progress)
    if as_json:
        write_json(result_dict(result, path))
    else:
        write_lines(result_lines(result, path))
    return 0 if result.summary.feasible else 1


@contextlib.contextmanager
def _executor(workers: str | None, dask: str | None) -> Iterator[Executor | None]:
    from simulator.cli.common import whole

    count = 1 if workers is None else whole(workers, "--workers", 1024)
    if dask is not None:
        if workers is not None:
            raise InputError("--workers and --dask: choose one")
        from simulator.sweep_cluster import dask_executor

        with dask_executor(dask) as executor:
            yield executor
        return
    if count == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A polite kill ends a sweep as Ctrl-C does: with whole rows in its file."""
    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """A line on stderr that is drawn again, on a terminal only."""
    import sys

    from simulator.sweep_report import ProgressLine

    line = ProgressLine()
    if not sys.stderr.isatty():
        yield lambda done, rows: None
        return

    def show(done: int, rows: int) -> None:
        text = line.text(done, rows)
        if text is not None:
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)

    try:
        yield show
    finally:
        if line.drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
