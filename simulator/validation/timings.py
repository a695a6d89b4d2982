"""Tables of kernel timings: read, named, and cleared of rows that are no kernel time.

Columns are those of the public collection that the constants were fitted to: hardware, framework,
op, sub_op, dtype_w, dtype_a, dtype_kv, the shape (m, n, k, batch, q_len, kv_len, n_heads,
n_kv_heads, head_dim, window, topk, n_experts, ep, tp, message_bytes), time_us, kernel, source,
notes. A table needs the columns of the operations in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.specs.catalogue import load_hardware
from simulator.specs.hardware import Hardware
from simulator.specs.strict_yaml import load_yaml
from simulator.validation.routing import FIELDS, routed

if TYPE_CHECKING:
    import pandas as pd

TEXTS = ("hardware", "framework", "op", "sub_op", "dtype_w", "dtype_a", "dtype_kv", "kernel",
         "source", "notes")
NUMBERS = ("m", "n", "k", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "window",
           "topk", "n_experts", "ep", "tp", "message_bytes", "time_us")

# Columns that each operation needs in every row, and those that name its shape family: what is
# held back together.
_ATTENTION = ("batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim")
NEEDS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype_w", "m", "n", "k"),
    "attention_prefill": ("dtype_a", "dtype_kv", *_ATTENTION),
    "attention_decode": ("dtype_a", "dtype_kv", *_ATTENTION),
    "mla_prefill": ("dtype_a", "dtype_kv", "batch", "q_len", "kv_len", "n_heads"),
    "mla_decode": ("dtype_a", "dtype_kv", "batch", "kv_len", "n_heads"),
    "moe": ("dtype_w", "m", "n", "k", "topk", "n_experts", "ep", "tp"),
    "elementwise": ("sub_op", "m"),
    "collectives": ("tp", "message_bytes"),
}
SHAPE_FAMILY: dict[str, tuple[str, ...]] = {
    "gemm": ("n", "k"), "attention_prefill": ("n_heads", "n_kv_heads", "head_dim"),
    "attention_decode": ("n_heads", "n_kv_heads", "head_dim"), "mla_prefill": ("n_heads",),
    "mla_decode": ("n_heads",), "moe": ("k", "n", "n_experts", "topk"), "elementwise": ("width",),
    "collectives": ("tp",),
}
_ELEMENTWISE = ("norm", "activation", "softmax")
GROUP = ("hardware", "framework", "kernel", "op", "dtype")


@lru_cache(maxsize=1)
def names() -> dict[str, Any]:
    """Names in timing tables and what they are here."""
    return load_yaml(Path(__file__).with_name("timing_names.yaml"))


@lru_cache(maxsize=256)
def device(name: str) -> Hardware | None:
    """Device that a table calls `name`; None where the catalogue has none."""
    try:
        return load_hardware(names()["hardware"].get(name, name))
    except InputError:
        return None


def read(paths: Sequence[Path]) -> pd.DataFrame:
    """All rows of the tables in CSV or Parquet files."""
    import pandas as pd

    return pd.concat([_read_one(Path(p)) for p in paths], ignore_index=True)


def _read_one(path: Path) -> pd.DataFrame:
    import pandas as pd

    if not path.is_file():
        raise InputError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        if head[:4] == b"PAR1" or path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
        elif b"\x00" in head:
            raise InputError(f"{path}: not a CSV or Parquet file (binary content)")
        else:
            texts = dict.fromkeys(TEXTS, str)
            table = pd.read_csv(path, dtype=texts, keep_default_na=True)
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow; pip install 'tokline[parquet]', or pass "
                         "CSV") from None
    except InputError:
        raise
    except (OSError, ValueError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a table of timings: {reason}") from None
    return _clean(table, path)


def _clean(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    import pandas as pd

    if len(table) == 0:
        raise InputError(f"{path}: holds no rows")
    for key in ("hardware", "framework", "op", "time_us"):
        if key not in table.columns:
            raise InputError(f"{path}: column '{key}' is missing"
                             f"{nearest(key, map(str, table.columns))}")
    result: dict[str, Any] = {}
    for key in TEXTS:
        column = table[key] if key in table.columns else pd.Series("", index=table.index)
        result[key] = column.astype(object).where(column.notna(), "").astype(str)
    for key in NUMBERS:
        result[key] = (_numbers(table[key], key, path) if key in table.columns
                       else np.full(len(table), np.nan))
    family = _families(result["op"])
    for name, needed in NEEDS.items():
        present = family == name
        if present.any():
            for key in needed:
                if key not in table.columns:
                    raise InputError(f"{path}: column '{key}' is missing, which '{name}' rows need")
    time = result["time_us"]
    bad = np.flatnonzero(~(time >= 0) & ~np.isinf(time))
    if bad.size:
        raise InputError(f"{path}: row {bad[0] + 1}: time_us: {table['time_us'].iloc[bad[0]]!r} is "
                         "not a time in microseconds above 0")
    return pd.DataFrame({**result, "family": family})


def _numbers(column: pd.Series[Any], key: str, path: Path) -> Array:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    wrong = np.flatnonzero((numbers.isna() & column.notna()).to_numpy(bool))
    if wrong.size:
        raise InputError(f"{path}: row {wrong[0] + 1}: {key}: {column.iloc[wrong[0]]!r} is not a "
                         "number")
    result = numbers.to_numpy(float, na_value=np.nan)
    negative = np.flatnonzero(result < 0)
    if negative.size:
        raise InputError(f"{path}: row {negative[0] + 1}: {key}: {result[negative[0]]:g} is below "
                         "0")
    return result


def _families(op: pd.Series[Any]) -> Array:
    table = {o: o for o in NEEDS if o not in ("elementwise", "collectives")}
    table |= dict.fromkeys(_ELEMENTWISE, "elementwise")
    table |= dict.fromkeys(names()["collectives"], "collectives")
    return op.map(table).fillna("").to_numpy(str)


def prepare(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Rows that a form covers, with the columns the forms need; and why others are left out."""
    chips = {name: device(name) for name in table["hardware"].unique()}
    known = table["hardware"].map({k: v.name for k, v in chips.items() if v is not None})
    reason = _excluded(table, known.isna().to_numpy())
    counted: dict[str, int] = {}
    for word, n in zip(*np.unique(reason[reason != ""], return_counts=True), strict=True):
        counted[str(word)] = int(n)
    kept = table[reason == ""].copy()
    kept["chip"] = known[reason == ""]
    _derive(kept)
    shape = [c for c in kept.columns if c not in ("source", "notes")]
    unique = kept[~kept.duplicated(shape)].copy()
    if len(kept) > len(unique):
        counted["the same row again in another version of the table"] = len(kept) - len(unique)
    unique["dtype"] = _labels(unique)
    return _with_routing(unique), dict(sorted(counted.items()))


def _excluded(t: pd.DataFrame, unknown: Array) -> Array:
    """Why a row is left out, or '': the first reason that holds."""
    family, op, sub = t["family"].to_numpy(str), t["op"], t["sub_op"]
    framework, kernel, time = t["framework"], t["kernel"].str.lower(), t["time_us"]
    aic = t["source"].str.startswith("aiconfigurator")
    lacking = np.zeros(len(t), bool)
    for name, needed in NEEDS.items():
        numbers = [c for c in needed if c in NUMBERS]
        lacking |= (family == name) & ~(t[numbers] > 0).all(axis=1).to_numpy()
    eager = (aic & (op == "gemm") & (framework == "vllm") & (t["dtype_w"] == "fp8_block")) | (
        kernel.str.endswith("eager"))
    topology = t["hardware"].isin(["a100_dgx"]) | (
        t["hardware"].str.endswith("pairwise_nvlink") & (family == "collectives"))
    parts = (family == "moe") & sub.str.startswith(("wideep", "grouped"))
    module = np.isin(family, ["mla_prefill", "mla_decode"]) & ~sub.isin(["", "mla"])
    exchange = (family == "collectives") & t["message_bytes"].isna()
    # Zeros in one fork of Vidur, launch gaps in Frontier's traces, placeholders in AITER's tables.
    corrupt = np.isinf(time) | (time <= 0) | ((time == 1.0) & (framework == "aiter"))
    for chip, origin in (("a30", "vidur"), ("a800", "frontier"), ("mi308x", "aiter")):
        corrupt |= t["hardware"].eq(chip) & t["source"].str.lower().str.contains(origin)
    broken = (t["hardware"] == "l40s") & (sub == "custom_allreduce") & (t["tp"] >= 8)
    fallback = t["hardware"].eq("b60") & np.isin(family, ["attention_prefill", "attention_decode"])
    dtypes = t["dtype_a"].eq("fp8") | t["dtype_kv"].eq("fp8")
    fallback |= (t["hardware"].isin(["l40s", "rtx_pro_6000_server"]) & framework.eq("trtllm")
                 & np.isin(family, ["attention_prefill", "attention_decode"]) & dtypes)
    # SGLang's dynamic scale is a difference too: most of its times are 0.
    difference = kernel.str.contains("_minus_") | (sub.eq("computescale") & framework.eq("sglang"))
    strange = ", ".join(sorted(map(str, t["hardware"][unknown].unique())))
    tests = [
        (family == "", "operation without a form"),
        (unknown, f"hardware not in the catalogue: {strange}"),
        (exchange, "expert dispatch and combine: no plain collective"),
        (lacking, "shape incomplete"), (corrupt, "corrupt or placeholder times"),
        (eager, "eager launch: processor time, not kernel time"),
        (parts, "part of an expert layer, not all of it"),
        (module, "whole module or sparse attention, not one kernel"),
        (topology | broken, "link topology other than the device's"),
        (fallback, "fallback attention kernel off the roofline"),
        (difference, "difference of two times"),
        (t["notes"].str.startswith("best shape"), "one best shape, not a timing table"),
        (~_usual(t, family), "shape outside of LLM serving"),
    ]
    return np.select([np.asarray(c, bool) for c, _ in tests], [w for _, w in tests], "")


def _usual(t: pd.DataFrame, family: Array) -> Array:
    """Shapes that LLM serving meets; beyond them libraries fall back to other code."""
    window = t["window"].fillna(0.0) > 0
    n, k, m = t["n"], t["k"], t["m"]
    gemm = (n >= 512) & (n <= 32768) & (k >= 512) & (k <= 32768)
    prefill = (t["q_len"] >= 128) & (t["n_heads"] >= 4) & ~window
    decode = ~window & (t["n_heads"] <= 16 * t["n_kv_heads"]) & (t["kv_len"] >= 128) & (
        t["batch"] <= 1024)
    inner = n / t["tp"].where(t["tp"] > 0, 1.0)
    moe = (m >= 8) & (t["ep"].fillna(1.0) <= 64) & (inner >= 128)
    ranks = (t["tp"] >= 2) & (t["message_bytes"] > 0)
    keep = {"gemm": gemm, "attention_prefill": prefill, "attention_decode": decode, "moe": moe,
            "mla_prefill": t["q_len"] >= 128, "collectives": ranks}
    return np.select([family == f for f in keep], [v.to_numpy(bool) for v in keep.values()], True)


def _derive(t: pd.DataFrame) -> None:
    """Add the columns that the forms need, in place."""
    known = names()
    aic = t["source"].str.startswith("aiconfigurator").to_numpy()
    t["library"] = t["framework"].replace(known["libraries"])
    t.loc[t["family"].eq("collectives") & t["library"].eq("oneccl"), "library"] = "nccl"
    t["weight_copies"] = np.where(aic, 5.0, 1e9)
    quantised = t["dtype_w"].isin(["fp8", "fp8_block", "nvfp4"]).to_numpy()
    t["quantises"] = np.where(aic & quantised, 1.0, 0.0)
    t["gates"] = np.where(t["kernel"].str.contains("nongated"), 1.0, 2.0)
    w, a, kv = (t[c].replace(known["formats"]) for c in ("dtype_w", "dtype_a", "dtype_kv"))
    kinds = t["sub_op"].map(known["elementwise"]).fillna("pointwise")
    ops = t["op"].map(known["collectives"])
    attention = np.where(a == kv, a, a + "-kv-" + kv)
    family = t["family"]
    t["format"] = np.select(
        [family == "elementwise", family == "collectives",
         family.str.contains("attention|mla")], [kinds, ops, attention], w)
    t["kernel"] = np.where(t["library"].isin(known["tuned"]), "", t["kernel"])
    t["kernel"] = np.where(family == "elementwise", t["sub_op"], t["kernel"])
    width = t["n"].fillna(t["k"])
    t["width"] = width
    fp8 = t["format"].isin(["quantise-static", "quantise-dynamic"])
    fp32 = t["dtype_w"].eq("float32")
    t["bytes"] = t["m"] * width * np.where(fp8, 3.0, np.where(fp32, 8.0, 4.0))


def _labels(t: pd.DataFrame) -> Array:
    """The number format of a row as the report names it."""
    family = t["family"]
    attention = family.str.contains("attention|mla")
    a, kv = t["dtype_a"], t["dtype_kv"].replace({"bf16": "bfloat16"})
    both = np.where(a == kv, kv, a + "/" + kv)
    plain = np.where(t["dtype_w"] != "", t["dtype_w"], t["dtype_a"])
    return np.select([attention, family == "collectives"], [both, ""], plain)


def _with_routing(t: pd.DataFrame) -> pd.DataFrame:
    """Add rows, active experts and tiles of the fullest rank to the expert rows."""
    for field in FIELDS:
        t[field] = np.nan
    moe = t[t["family"] == "moe"]
    if len(moe) == 0:
        return t
    law = moe["notes"].str.extract(r"dist(?:ribution)?=(?:power_law_)?([a-z0-9.]+)",
                                   expand=False).fillna("uniform").str.rstrip(".")
    keys = moe[["m", "topk", "n_experts", "ep"]].assign(law=law)
    distinct = keys.drop_duplicates().reset_index(drop=True)
    for key, part in distinct.groupby(["n_experts", "ep", "law"]):
        experts, ep, word = map(str, key)
        law_used = word if re.fullmatch(r"balanced|uniform|[0-9.]+", word) else "uniform"
        counts = routed(part["m"].to_numpy(), part["topk"].to_numpy(), int(float(experts)),
                        int(float(ep)), law_used)
        for field, values in counts.items():
            distinct.loc[part.index, field] = values
    joined = keys.merge(distinct, how="left", on=list(keys.columns))
    for field in FIELDS:
        t.loc[moe.index, field] = joined[field].to_numpy()
    return t


def slug(kernel: str) -> str:
    """Kernel name as a key: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", kernel.lower()).strip("-")


def groups(table: pd.DataFrame) -> Iterable[tuple[dict[str, str], pd.DataFrame]]:
    """(names, rows) of each hardware x framework x kernel x format group."""
    for key, part in table.groupby([*GROUP, "family", "format", "chip", "library"], sort=True):
        yield dict(zip((*GROUP, "family", "format", "chip", "library"), map(str, key),
                       strict=True)), part
