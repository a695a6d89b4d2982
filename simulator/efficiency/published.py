"""Kernel constants that others published, carried over within the caps of this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.efficiency.constants import FAMILIES, TIMES, Lines, entry_of
from simulator.efficiency.fits import FORMS, fit, predict
from simulator.errors import InputError
from simulator.specs.hardware import Hardware

if TYPE_CHECKING:
    import pandas as pd

# Fits of the published table that have the forms of this package.
_FITS = {"gemm_phys:f": "gemm", "prefill_phys:f": "attention_prefill",
         "decode_phys:f": "attention_decode", "mladecode_phys:f": "mla_decode",
         "mlaprefill:f": "mla_prefill", "moe_llm:f": "moe", "elem:f": "elementwise",
         "comm:f": "collectives"}
_SHAPES = 600
# Device names that stand for corrupt or unusual tables.
_SKIPPED = frozenset({"a30", "a800"})


def carry_over(path: Path, table: pd.DataFrame, measured: dict[str, Any],
               devices: dict[str, Hardware]) -> None:
    """Add to `measured` and `devices` what a published table has and no timings."""
    import pandas as pd

    from simulator.validation import timings

    try:
        sets = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a table of constants: {error}") from None
    for name in sets["hardware"].unique():
        hardware = timings.device(str(name))
        if hardware is None or name in _SKIPPED:
            continue
        devices[hardware.name] = hardware
        found = measured.setdefault(hardware.name, ({}, {}))
        for _, row in sets[(sets["hardware"] == name) & sets["fit"].isin(_FITS)].iterrows():
            _carry(row, hardware, table, found)
        for family in found[0].values():
            for format in family.values():
                if format and "default" not in format:
                    format["default"] = format.get("nccl") or _middle(list(format.values()))


def _carry(row: pd.Series[Any], hardware: Hardware, table: pd.DataFrame, found: Any) -> None:
    from simulator.validation import timings

    family = _FITS[row["fit"]]
    known = timings.names()
    text = {k: str(row[k]) if row[k] == row[k] else "" for k in (
        "framework", "kernel", "dtype_w", "dtype_a", "dtype_kv", "coll_or_op", "sub_op")}
    format = _format(family, text, known)
    library = known["libraries"].get(text["framework"], text["framework"])
    kernel = text["sub_op"] if family == "elementwise" else text["kernel"]
    if family == "collectives":
        library = next((x for x in ("nccl", "trtllm", "sglang", "vllm")
                        if text["kernel"].lower().startswith(x)), "nccl")
        if hardware.name in known["link_lines_of"]:    # in efficiency/collectives.yaml already
            return
    name = f"{library}/{timings.slug(kernel) or 'all'}"
    kernels = found[1].setdefault(family, {}).setdefault(format, {})
    # Outside TensorRT-LLM the time of a dynamic scale is a difference of two, not a kernel's.
    difference = format == "quantise-dynamic" and library != "trtllm"
    if difference or kernels.get(name, {}).get("n"):
        return
    if family == "collectives":
        constants: Any = Lines(*(float(row[k]) * 1e-6 if k in TIMES else min(float(row[k]), 0.95)
                                 for k in ("a0", "a1", "x", "b0", "b1", "hw")))
    else:
        constants = _within_caps(row, family, format, hardware, table)
    if constants is None:
        return
    mape = row["group_MAPE"] if row["group_MAPE"] == row["group_MAPE"] else row["half_MAPE"]
    entry = {**entry_of(constants), "n": 0, "mape": round(float(mape), 1)}
    kernels[name] = entry
    libraries = found[0].setdefault(family, {}).setdefault(format, {})
    held = libraries.get(library)
    # A library's own entry is its best described kernel; Triton's attention is off the roofline.
    slow = family.startswith("attention") and "triton" in kernel.lower()
    if not slow and (held is None or (not held["n"] and entry["mape"] < held["mape"])):
        libraries[library] = entry


def _format(family: str, text: dict[str, str], known: dict[str, Any]) -> str:
    def plain(x: str) -> str:
        return str(known["formats"].get(x, x))

    if family == "collectives":
        return str(known["collectives"][text["coll_or_op"]])
    if family == "elementwise":
        return str(known["elementwise"].get(text["sub_op"], "pointwise"))
    if family in ("gemm", "moe"):
        return plain(text["dtype_w"])
    a, kv = plain(text["dtype_a"] or "bfloat16"), plain(text["dtype_kv"])
    return kv if a == kv else f"{a}-kv-{kv}"


def _within_caps(row: pd.Series[Any], family: str, format: str, hardware: Hardware,
                 table: pd.DataFrame) -> Any:
    """Constants within the caps whose times are nearest to those of a published set."""
    shapes = table[(table["family"] == family)]
    same = shapes[shapes["format"] == format]
    shapes = same if len(same) >= _SHAPES else shapes
    if len(shapes) == 0:
        return None
    chosen = np.linspace(0, len(shapes) - 1, min(len(shapes), _SHAPES)).astype(int)
    shapes = shapes.iloc[np.unique(chosen)].copy()
    kind = FAMILIES[family]
    values = {f: float(row[f]) if row.get(f) == row.get(f) else FORMS[family].fixed.get(f)
              for f in kind.__struct_fields__}
    if any(v is None for v in values.values()):
        return None
    published = kind(**{k: v * 1e-6 if k in TIMES else v for k, v in values.items()
                        if v is not None})
    shapes["time_us"] = predict(family, shapes, hardware, format, published) * 1e6
    return fit(family, shapes, hardware, format)


def _middle(entries: list[dict[str, float]]) -> dict[str, float]:
    """The entry of the library whose error is the median: real constants, no mean of several."""
    ordered = sorted(entries, key=lambda e: e["mape"])
    return ordered[(len(ordered) - 1) // 2]
