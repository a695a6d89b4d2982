"""How far kernel times miss, by hardware, framework, kernel and format.

    python -m simulator.validation.kernels FILES... [--json] [--hold-out] [--without-own]

Scores the packaged constants on every row of timing tables (CSV, or Parquet with the extra).
`--hold-out` fits each group anew on other shape families than those it scores: what the form
itself can do on shapes nobody timed. `--without-own` takes away what a device's own timings gave:
what a device nobody timed can expect. Errors in percent; exit 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.arrays import Array
from simulator.efficiency.constants import Constants, Lines, constants
from simulator.efficiency.fits import MIN_ROWS, fit, predict
from simulator.errors import InputError
from simulator.network import lines_of, link_class
from simulator.specs.hardware import Hardware
from simulator.validation import timings

if TYPE_CHECKING:
    import pandas as pd

FOLDS = 3
CLASSES = ("gemm bf16", "gemm quantised", "gemm fp32", "attention_prefill", "attention_decode",
           "attention_prefill Triton", "attention_decode Triton", "mla_prefill", "mla_decode",
           "moe", "collectives NVLink", "collectives other", "elementwise", "elementwise fp32")
# Rows below which a group's error says little; it is listed, but not in the medians.
FEW = 30

Scored = tuple[Array, str]    # predicted times [s] (NaN: not scored), level
Scorer = Callable[[dict[str, str], "pd.DataFrame", Hardware], Scored]


def errors(predicted: Array, measured: Array) -> dict[str, float]:
    """MAPE, median and 90th percentile of |t/t' - 1|, and the median of t/t' - 1 [percent]."""
    miss = 100.0 * (predicted / measured - 1.0)
    size = np.abs(miss)
    return {"n": len(miss), "mape": float(size.mean()), "median": float(np.median(size)),
            "p90": float(np.quantile(size, 0.9)), "bias": float(np.median(miss))}


def op_class(names: dict[str, str], hardware: Hardware) -> str:
    """Class of operations that targets are stated for."""
    family, format = names["family"], names["format"]
    if family == "gemm":
        return {"bf16": "gemm bf16", "fp32": "gemm fp32"}.get(format, "gemm quantised")
    if family == "collectives":
        nvlink = (link_class(hardware) or "").startswith("nvlink")
        return "collectives NVLink" if nvlink else "collectives other"
    if family == "elementwise":
        return "elementwise fp32" if names["dtype"] == "float32" else family
    # Triton's attention is far off the roofline, a class of its own.
    slow = family.startswith("attention") and "triton" in names["kernel"].lower()
    return f"{family} Triton" if slow else family


def library(names: dict[str, str]) -> str:
    """Key of a group's kernel in the constants: `library/kernel`."""
    return f"{names['library']}/{timings.slug(names['kernel']) or 'all'}"


def packaged(hardware: Hardware, names: dict[str, str], without_own: bool = False
             ) -> tuple[Constants, str]:
    """Constants of a group and their level; collectives prefer the lines of the device's link."""
    family, format = names["family"], names["format"]
    if family == "collectives" and not without_own:
        own = constants(hardware, family, format, library(names))
        if own.level == "chip" and own.library.startswith(names["library"]):
            return own.constants, own.level
        lines = link_lines(hardware).get(format, {})
        name = names["library"].replace("trtllm", "tensorrt-llm")
        if name in lines or "nccl" in lines:
            level = "chip" if hardware.name in timings.names()["link_lines_of"] else "architecture"
            return lines.get(name) or lines["nccl"], level
    found = constants(hardware, family, format, library(names), without_own)
    return found.constants, found.level


def link_lines(hardware: Hardware) -> dict[str, dict[str, Lines]]:
    """Fitted lines of efficiency/collectives.yaml by operation and library."""
    return {operation: {name: Lines(**{
        k.removesuffix("_us"): v * 1e-6 if k.endswith("_us") else v for k, v in line.items()})
        for name, line in libraries.items()} for operation, libraries in lines_of(hardware).items()}


def score_packaged(without_own: bool) -> Scorer:
    """Scorer with the packaged constants."""
    def scorer(names: dict[str, str], rows: pd.DataFrame, hardware: Hardware) -> Scored:
        found, level = packaged(hardware, names, without_own)
        return predict(names["family"], rows, hardware, names["format"], found), level
    return scorer


def shape_families(family: str, rows: pd.DataFrame) -> Array:
    """Number of the fold of each row: whole shape families fall into one of FOLDS by hash."""
    columns = list(timings.SHAPE_FAMILY[family])
    keys = rows[columns].fillna(0).astype(int).astype(str).agg(" ".join, axis=1)
    hashed = sorted(keys.unique(), key=lambda k: zlib.crc32(k.encode()))
    fold = {key: i % FOLDS for i, key in enumerate(hashed)}
    return keys.map(fold).to_numpy(int)


def score_held_out(names: dict[str, str], rows: pd.DataFrame, hardware: Hardware) -> Scored:
    """Each fold predicted by constants fitted on the other folds of the same group."""
    fold = shape_families(names["family"], rows)
    result = np.full(len(rows), np.nan)
    for held in range(FOLDS):
        test, train = fold == held, fold != held
        if test.any() and train.sum() >= MIN_ROWS:
            found = fit(names["family"], rows[train], hardware, names["format"])
            result[test] = predict(names["family"], rows[test], hardware, names["format"], found)
    return result, "held-out"


def report(paths: Sequence[Path], scorer: Scorer, progress: bool = False) -> dict[str, Any]:
    """Errors by group and class of the rows in timing files."""
    table, not_covered = timings.prepare(timings.read(paths))
    ops: list[dict[str, Any]] = []
    for names, rows in timings.groups(table):
        hardware = timings.device(names["hardware"])
        assert hardware is not None
        try:
            predicted, level = scorer(names, rows, hardware)
        except InputError as error:
            reason = str(error).split(";")[0]
            not_covered[reason] = not_covered.get(reason, 0) + len(rows)
            continue
        scored = np.isfinite(predicted)
        if len(rows) > scored.sum():
            reason = "no other shape family to fit on"
            not_covered[reason] = not_covered.get(reason, 0) + int(len(rows) - scored.sum())
        if scored.any():
            measured = rows["time_us"].to_numpy()[scored] * 1e-6
            ops.append({k: names[k] for k in ("op", "hardware", "framework", "kernel", "dtype")}
                       | {"class": op_class(names, hardware),
                          "level": level} | errors(predicted[scored], measured))
            if progress:
                print(f"{len(ops)}: {ops[-1]}", file=sys.stderr)
    return {"ops": ops, "summary": summary(ops), "not_covered": not_covered}


def summary(ops: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the groups of each class that have enough rows."""
    result = []
    found = list(ops)
    for name in CLASSES:
        group = [o for o in found if o["class"] == name and o["n"] >= FEW]
        if group:
            result.append({"class": name, "groups": len(group),
                           "rows": sum(o["n"] for o in group)}
                          | {k: float(np.median([o[k] for o in group]))
                             for k in ("mape", "median", "p90", "bias")})
    return result


def _lines(result: dict[str, Any]) -> list[str]:
    head = f"{'':34}{'groups':>8}{'rows':>9}{'MAPE':>8}{'median':>8}{'p90':>8}{'bias':>8}"
    lines = ["Error of kernel times in percent, median over groups", "", head]
    for s in result["summary"]:
        lines.append(f"{s['class']:34}{s['groups']:8}{s['rows']:9}{s['mape']:8.1f}"
                     f"{s['median']:8.1f}{s['p90']:8.1f}{s['bias']:+8.1f}")
    lines += ["", "Groups: op, hardware, framework, kernel, dtype, level", ""]
    for o in result["ops"]:
        name = " ".join(filter(None, (o["op"], o["hardware"], o["framework"], o["kernel"][:36],
                                      o["dtype"], f"({o['level']})")))
        lines.append(f"{name:100}{o['n']:7}{o['mape']:8.1f}{o['median']:8.1f}{o['p90']:8.1f}"
                     f"{o['bias']:+8.1f}")
    lines += ["", "Rows not covered", ""]
    lines += [f"{n:9} {reason}" for reason, n in result["not_covered"].items()]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulator.validation.kernels",
                                     description="How far kernel times miss public timings.")
    parser.add_argument("files", nargs="+", type=Path, help="timing tables, CSV or Parquet")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
    parser.add_argument("--hold-out", action="store_true",
                        help="fit on other shape families than those scored")
    parser.add_argument("--without-own", action="store_true",
                        help="as if the device itself had never been timed")
    parser.add_argument("--progress", action="store_true", help="each group on stderr")
    a = parser.parse_args(arguments)
    try:
        if a.hold_out and a.without_own:
            raise InputError("--hold-out and --without-own exclude each other")
        scorer = score_held_out if a.hold_out else score_packaged(a.without_own)
        result = report(a.files, scorer, a.progress)
    except InputError as error:
        print(f"tokline: error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result) if a.json else "\n".join(_lines(result)))
    return 0


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:    # whoever read the output has had enough of it
        os._exit(0)
    raise SystemExit(code)
