"""Files of benchmark tools as measurement rows, told apart by what they hold, never by their name.

What a file doesn't tell (the device, the engine, the format of the weights) comes from flags; what
neither tells is an error that names the file, the key and the flag.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from simulator.calibration import aiperf, guidellm, llama_bench, vllm_bench
from simulator.calibration.runs import Run, json_objects
from simulator.errors import InputError, nearest
from simulator.specs.catalogue import load_hardware, load_model, split_devices, suggest
from simulator.specs.engine import engine_names, load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import Model
from simulator.validation import names
from simulator.validation.measurements import NEEDED, Row, parse_rows, read_text

_TOOLS: tuple[ModuleType, ...] = (llama_bench, guidellm, aiperf, vllm_bench)
KNOWN = ("vllm bench serve --save-result JSON, GuideLLM benchmarks.json, AIPerf or genai-perf "
         "export JSON, llama-bench json, jsonl or csv, or a measurement CSV")
OWN = "own"
CSV_TOOL = "measurement CSV"


@dataclass(frozen=True)
class Given:
    """What the flags say of all files; None where nothing is said.

    hardware   catalogue name, alias or YAML path, optionally `4x` in front
    weights    a printed format, or `own`: as the model was published
    """

    hardware: str | None = None
    model: str | None = None
    engine: str | None = None
    weights: str | None = None
    kv: str | None = None
    tp: int | None = None
    pp: int | None = None
    batch: float | None = None
    input: float | None = None
    output: float | None = None


@dataclass(frozen=True)
class Placed:
    """A row, where it stands, which tool wrote it, and why it can't be fitted on (or '')."""

    place: str
    tool: str
    row: Row
    loose: str = ""


@dataclass(frozen=True)
class _Flags:
    """The flags, checked once."""

    given: Given
    name: str | None
    hardware: Hardware | None
    tp: int | None
    model: Model | None
    engine: str | None


def read_files(paths: Sequence[str], given: Given) -> list[Placed]:
    """The rows of all files."""
    flags = _checked(given)
    return [placed for path in paths for placed in _read(path, flags)]


def _checked(given: Given) -> _Flags:
    count, name = None, given.hardware
    if name is not None:
        count, name = split_devices(name)
        if count is not None and given.tp is not None and count != given.tp:
            raise InputError(f"--hardware '{given.hardware}' is {count} devices, and --tp says "
                             f"{given.tp}")
    hardware = None if name is None else load_hardware(name)
    model = None if given.model is None else load_model(given.model)
    if model is not None and given.model is not None and given.model.endswith(".gguf"):
        raise InputError("--model: a GGUF file isn't read here; name a model of the catalogue, "
                         "a YAML file or a config.json")
    engine = given.engine
    if engine is not None:
        if engine.strip().lower() in engine_names() or engine.endswith((".yaml", ".yml")):
            load_engine(engine)
            engine = names.PROFILE + engine.strip()
        elif names.engine_known(engine) is None:
            raise InputError(f"--engine: unknown engine '{engine}'"
                             f"{nearest(engine, engine_names())}")
    if given.weights not in (None, OWN):
        try:
            names.formats_of(str(given.weights), "")
        except names.UnknownError:
            raise InputError(f"--weights: unknown format '{given.weights}' (for example bf16, "
                             "fp8, int4-g128, q4_k_m, or own: the model's own)") from None
    return _Flags(given, name, hardware, count or given.tp, model, engine)


def _read(path: str, flags: _Flags) -> list[Placed]:
    text = read_text(path, "a benchmark file", "neither JSON nor CSV")
    if text.lstrip()[:1] in ("{", "["):
        records: list[Any] = list(json_objects(text, path))
    else:
        header = next(csv.reader(io.StringIO(text)), [])
        if not {"avg_ts", "n_gen"} <= {name.strip() for name in header}:
            return _measurements(path, text, header, flags)
        records = _csv_records(text, path)
    placed = []
    for i, record in enumerate(records):
        tool = next((tool for tool in _TOOLS if tool.matches(record)), None)
        place = path if len(records) == 1 else f"{path}: record {i + 1}"
        if tool is None:
            keys = ", ".join(map(str, list(record)[:6])) or "none"
            raise InputError(f"{place}: not a file of a benchmark tool that is known here (its "
                             f"keys: {keys}); read are {KNOWN}")
        made: Callable[[Any, str], list[Run]] = tool.runs
        placed += [one for run in made(record, place) for one in _rows(run, flags, path)]
    return placed


def _csv_records(text: str, path: str) -> list[dict[str, str | None]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        records = list(reader)
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: {error}") from None
    if not records:
        raise InputError(f"{path}: no rows below the header")
    for i, record in enumerate(records):
        if None in record or None in record.values():
            raise InputError(f"{path}: line {i + 2}: as many cells as the header has columns "
                             "expected (is it cut off?)")
    return records


def _measurements(path: str, text: str, header: Sequence[str], flags: _Flags) -> list[Placed]:
    """Rows of the project's own schema; of the device that --hardware names, where it does."""
    if not set(NEEDED) & {name.strip() for name in header}:
        raise InputError(f"{path}: neither JSON nor a CSV with the columns of a measurement file "
                         f"({', '.join(NEEDED)}) or of llama-bench; read are {KNOWN}")
    found = []
    for i, printed in enumerate(parse_rows(text, path)):
        row = printed
        place = f"{path}: row {i + 1}" + (f" ({row.id})" if row.id else "")
        loose = "quality C: loose conditions" if row.quality == "C" else ""
        if flags.hardware is not None:
            device = _known(names.hardware_of, row.hardware)
            if device is None or device.name != flags.hardware.name:
                loose = f"not of {flags.hardware.name}"
            elif flags.name is not None and flags.name.endswith((".yaml", ".yml")):
                row = replace(row, hardware=flags.name)
        if flags.engine is not None and row.engine == "":
            row = replace(row, engine=flags.engine)
        found.append(Placed(place, CSV_TOOL, row, loose))
    return found


def _rows(run: Run, flags: _Flags, path: str) -> list[Placed]:
    """A row for each figure of a run."""
    given = flags.given
    hardware = _hardware(run, flags)
    model, printed = _model(run, flags)
    weights = _weights(run, flags, model, printed)
    engine = flags.engine or run.engine
    if not engine:
        raise InputError(f"{run.place}: doesn't tell which engine answered; say --engine NAME")
    if flags.engine is None and _known(names.engine_of, engine, run.version, run.date,
                                       hardware) is None:
        raise InputError(f"{run.place}: engine '{engine}' has no profile; say --engine NAME"
                         f"{nearest(engine, engine_names())}")
    lengths = {key: _told(run, key, getattr(given, key)) for key in ("input", "output")}
    batch = run.batch
    if batch is None and not run.rate:
        batch = _told(run, "batch", given.batch)
    tp = flags.tp or run.devices or 1
    pp = given.pp or 1
    loose = run.loose
    if run.layers is not None and run.layers < model.layer_count:
        loose = loose or (f"{run.layers:.0f} of {model.layer_count} layers on the device, the "
                          "others on the CPU")
    return [Placed(run.place, run.tool, Row(
        id="", source=f"{run.tool}: {Path(path).name}", date=run.date, licence="",
        hardware=hardware, n_devices=tp * pp, engine=engine, version=run.version, model=printed,
        weights=weights, kv=given.kv or run.kv, tp=tp, pp=pp, ep=None, batch=batch, rate=run.rate,
        input=lengths["input"], output=lengths["output"], metric=metric, value=value,
        quality="C" if loose else "A",
        notes="; ".join([*run.notes, *([loose] if loose else [])])), loose)
        for metric, value in run.figures.items()]


def _known(look: Callable[..., Any], *arguments: str) -> Any:
    """What a look-up finds; None where the name isn't known."""
    try:
        return look(*arguments)
    except names.UnknownError:
        return None


def _told(run: Run, key: str, flag: float | None) -> float:
    value: float | None = getattr(run, key)
    if value is not None:
        return value
    if flag is None:
        what = {"input": "prompt tokens", "output": "output tokens",
                "batch": "concurrent requests"}[key]
        raise InputError(f"{run.place}: doesn't tell the {what}; say --{key} N")
    return flag


def _hardware(run: Run, flags: _Flags) -> str:
    stated: Hardware | None = _known(names.hardware_of, run.hardware) if run.hardware else None
    if flags.hardware is not None and flags.name is not None:
        if stated is not None and stated.name != flags.hardware.name:
            raise InputError(f"{run.place}: ran on '{run.hardware}', and --hardware says "
                             f"'{flags.name}'")
        return flags.name
    if stated is not None:
        return run.hardware
    if not run.hardware:
        raise InputError(f"{run.place}: doesn't tell which device it ran on; say --hardware NAME")
    raise InputError(f"{run.place}: hardware '{run.hardware}' is not in the catalogue"
                     f"{suggest('hardware', run.hardware)}; say --hardware NAME")


def _model(run: Run, flags: _Flags) -> tuple[Model, str]:
    """(model, the name that the row prints for it)."""
    stated = next(((found[0], name) for name in run.models
                   if (found := _known(names.model_of, name)) is not None), None)
    given = flags.given.model
    if flags.model is not None and given is not None:
        if stated is not None and stated[0].name != flags.model.name:
            raise InputError(f"{run.place}: model '{stated[1]}', and --model says '{given}'")
        return flags.model, given
    if stated is not None:
        return stated
    if not run.models:
        raise InputError(f"{run.place}: doesn't tell the model; say --model NAME")
    raise InputError(f"{run.place}: model '{run.models[0]}' is not in the catalogue"
                     f"{suggest('models', run.models[0].rsplit('/', 1)[-1])}; say --model NAME")


def _weights(run: Run, flags: _Flags, model: Model, printed: str) -> str:
    """Printed format of the weights: the flag's, else the file's, else what a name ends in."""
    given = flags.given.weights
    if given == OWN:
        own = str(model.formats.get("weights", "bf16"))
        if _known(names.formats_of, own, "") is None:
            raise InputError(f"{run.place}: the own format of {model.name} is {own}, which no "
                             "measured row names; say --weights FORMAT")
        return own
    if given is not None:
        return given
    if run.weights and _known(names.formats_of, run.weights.lower(), "") is not None:
        return run.weights
    for name in (printed, *run.models):
        found = _known(names.model_of, name)
        if found is not None and _known(names.formats_of, "", found[1]) is not None:
            return str(found[1])
    raise InputError(f"{run.place}: doesn't tell the format of the weights; say --weights FORMAT "
                     f"(for example bf16, or {OWN}: the model's own)")


__all__ = ["CSV_TOOL", "KNOWN", "Given", "Placed", "read_files"]
