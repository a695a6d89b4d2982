"""Makes the packaged kernel constants again from timing files.

    python -m simulator.efficiency.refit FILES... --out FOLDER [--published CSV]

Writes `<chip>.yaml`, `<chip>.kernels.yaml`, `generic.yaml` and `index.yaml`. `--published` is a
table of fitted constants (columns fit, hardware, framework, kernel, dtype_*, e, h, g, t0, ...) for
chips whose timings aren't at hand: each set is turned into times of typical shapes, to which
constants within the caps are fitted.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simulator.efficiency import LEAST_OF_CACHE
from simulator.efficiency.constants import FAMILIES, LEVELS, Level, build, entry_of, reading
from simulator.efficiency.fits import ENOUGH_ROWS, MIN_ROWS, fit, fit_pooled, predict
from simulator.efficiency.kernel_formats import peak
from simulator.errors import InputError
from simulator.specs.hardware import Hardware

if TYPE_CHECKING:
    import pandas as pd

# By how much more a level of the chain may miss than the one before it, at least.
WIDER = 1.1
# Classes that say nothing of serving: training in FP32, topologies of a host that nobody states.
_ASIDE = ("elementwise fp32", "collectives other")

Nested = dict[str, dict[str, dict[str, dict[str, float]]]]

SOURCES = """\
# Fitted to public kernel timings by `python -m simulator.efficiency.refit`: NVIDIA AIConfigurator
# (aiconfigurator-core 0.12.0, Apache-2.0), microsoft/vidur and its fork in NetX-lab/Frontier (MIT),
# ROCm/aiter (MIT), casys-kaist/LLMServingSim (MIT), alibaba/InferSim (Apache-2.0), NeuSight (MIT).
# Entries with n=0 carry over fitted constants of a chip whose timings weren't at hand; their mape
# is that of the original fit. family -> format -> library; `default` pools all libraries. e, h, g:
# shares of peak and bandwidth; times in microseconds; mape, median: percent, in sample. A set is
# one text, since a file of a thousand YAML numbers takes longer to read than an estimate may.
"""


def _entry(family: str, rows: pd.DataFrame, hardware: Hardware, format: str) -> dict[str, float]:
    found = fit(family, rows, hardware, format)
    miss = np.abs(predict(family, rows, hardware, format, found)
                  / (rows["time_us"].to_numpy() * 1e-6) - 1.0) * 100.0
    return {**entry_of(found), "n": len(rows), "mape": round(float(miss.mean()), 1),
            "median": round(float(np.median(miss)), 1)}


def _thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """At most ENOUGH_ROWS rows, spread evenly: a long table must not outvote a short one."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), ENOUGH_ROWS)).astype(int)
    return rows.iloc[np.unique(chosen)]


def fit_chip(hardware: Hardware, rows: pd.DataFrame) -> tuple[Nested, Nested]:
    """Constants of one chip by library, and by kernel."""
    import pandas as pd

    from simulator.validation.timings import slug

    main: Nested = defaultdict(lambda: defaultdict(dict))
    kernels: Nested = defaultdict(lambda: defaultdict(dict))
    for key, part in rows.groupby(["family", "format"]):
        family, format = map(str, key)
        # Triton's attention is off the roofline, and so is what writes a narrow cache out first;
        # the pooled constants are those of the others.
        slow = part["kernel"].str.lower().str.contains("triton") & part["family"].str.startswith(
            "attention")
        for (library, kernel), own in part.groupby(["library", "kernel"]):
            if len(own) >= MIN_ROWS:
                name = f"{library}/{slug(str(kernel)) or 'all'}"
                entry = kernels[family][format][name] = _entry(family, own, hardware, format)
                if family.endswith("decode") and "-kv-" in format and entry["h"] < LEAST_OF_CACHE:
                    slow |= part.index.isin(own.index)
        usual = part[~slow] if (~slow).sum() >= MIN_ROWS else part
        pool = pd.concat([_thinned(x) for _, x in usual.groupby(["library", "kernel"])])
        if len(pool) < MIN_ROWS:
            continue
        main[family][format]["default"] = _entry(family, pool, hardware, format)
        for library, own in pool.groupby("library"):
            if len(own) >= MIN_ROWS:
                main[family][format][str(library)] = _entry(family, own, hardware, format)
    return main, kernels


def fit_generic(table: pd.DataFrame, devices: dict[str, Hardware]) -> Nested:
    """Constants of all chips together, each with the same say."""
    result: Nested = defaultdict(lambda: defaultdict(dict))
    for key, part in table.groupby(["family", "format"]):
        family, format = map(str, key)
        parts = [(_thinned(rows).iloc[::3], devices[str(chip)])
                 for chip, rows in part.groupby("chip")]
        if sum(len(rows) for rows, _ in parts) >= MIN_ROWS:
            entry = entry_of(fit_pooled(family, parts, format))
            result[family][format]["default"] = {**entry, "n": len(part)}
    return result


def write(path: Path, data: Nested) -> None:
    """One file of constants."""
    lines = [SOURCES]
    for family in sorted(data):
        lines.append(f"{family}:")
        for format in sorted(data[family]):
            lines.append(f"  {format}:")
            entries = data[family][format]
            for library in sorted(entries, key=lambda x: (x != "default", x)):
                values = " ".join(f"{k}={v:g}" for k, v in entries[library].items())
                lines.append(f"    {library}: {values}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_index(path: Path, devices: dict[str, Hardware], timed: Mapping[str, int],
                errors: Mapping[str, Mapping[Level, float]]) -> None:
    """Chips with constants, what picks the nearest of them, and the errors of the levels."""
    lines = ["# Chips with fitted kernel constants, and what picks the nearest of them.",
             "chips:"]
    for name in sorted(devices):
        h = devices[name]
        lines.append(
            f"  {name}: {{architecture: {h.architecture}, vendor: {h.vendor}, memory_class: "
            f"{h.memory_class},\n    peak_bf16: {float(np.median(peak(h, 'bf16'))):.4g}, "
            f"memory_bandwidth: {float(np.median(h.memory_bandwidth)):.4g}, units: "
            f"{float(np.median(h.units or 100.0)):g}, narrow_over_bf16: "
            f"{float(np.median(peak(h, 'fp4') / peak(h, 'bf16'))):.3g}, timings: {timed[name]}}}")
    lines += ["",
              "# Typical factor by which a time misses at each level: 1 + the median over groups",
              "# (hardware x framework x kernel x format) of the mean absolute error, each group",
              "# predicted as if nothing nearer than the level had been timed (generic: fitted",
              "# without the group's architecture). A level states at least a tenth more error",
              "# than the one before it.", "errors:"]
    for family in sorted(errors):
        values = ", ".join(f"{k}: {v:.3g}" for k, v in errors[family].items())
        lines.append(f"  {family}: {{{values}}}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def transfer_errors(table: pd.DataFrame, devices: dict[str, Hardware]
                    ) -> dict[str, dict[Level, float]]:
    """Factor by family and level from predicting each group with the chain started there."""
    from simulator.efficiency.constants import constants
    from simulator.validation.kernels import FEW, library, op_class, packaged
    from simulator.validation.timings import groups

    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    strangers = _without_each_architecture(table, devices)
    for names, rows in groups(table):
        family, format = names["family"], names["format"]
        hardware = devices[names["chip"]]
        if len(rows) < FEW or op_class(names, hardware) in _ASIDE:
            continue
        for level in LEVELS:
            used = constants(hardware, family, format, library(names), start=level)
            if used.level == level and used.format == format:
                # A chip's own collectives are the lines of its link.
                chosen = packaged(hardware, names)[0] if level == "chip" else used.constants
                if level == "generic":
                    entry = strangers[str(hardware.architecture)].get(family, {}).get(format)
                    if not entry:
                        continue
                    chosen = build(family, entry["default"])
                time = predict(family, rows, hardware, format, chosen)
                miss = np.abs(time / (rows["time_us"].to_numpy() * 1e-6) - 1.0)
                found[family][level].append(float(miss.mean()))
    result: dict[str, dict[Level, float]] = {}
    for family, levels in found.items():
        factor, result[family] = 1.0, {}
        for level in LEVELS:
            found_here = 1.0 + float(np.median(levels.get(level, [0.0])))
            factor = max(1.0 + WIDER * (factor - 1.0), found_here)
            result[family][level] = factor
    return result


def _without_each_architecture(table: pd.DataFrame, devices: dict[str, Hardware]
                               ) -> dict[str, Nested]:
    """Generic constants fitted without the chips of one architecture, for each of them."""
    kinds = table["chip"].map({name: h.architecture for name, h in devices.items()})
    return {str(kind): fit_generic(table[kinds != kind], devices) for kind in kinds.unique()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulator.efficiency.refit",
                                     description="Kernel constants from timing files.")
    parser.add_argument("files", nargs="+", type=Path, help="timing tables, CSV or Parquet")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--published", type=Path, help="table of constants to carry over")
    a = parser.parse_args(arguments)
    try:
        refit(a.files, a.out, a.published)
    except InputError as error:
        print(f"tokline: error: {error}", file=sys.stderr)
        return 2
    return 0


def refit(files: Sequence[Path], out: Path, published: Path | None = None) -> None:
    """Fit all chips of the files and write the folder `out`."""
    from simulator.efficiency.published import carry_over
    from simulator.validation import timings

    table, _ = timings.prepare(timings.read(files))
    devices: dict[str, Hardware] = {}
    for name in table["hardware"].unique():
        hardware = timings.device(str(name))
        if hardware is not None:
            devices[hardware.name] = hardware
    own_lines = frozenset(timings.names()["link_lines_of"])
    out.mkdir(parents=True, exist_ok=True)
    usual = table[table["family"] != "collectives"]
    measured: dict[str, tuple[Nested, Nested]] = {}
    for name, hardware in devices.items():
        rows = table[table["chip"] == name]
        if name in own_lines:    # torch alone has no lines in efficiency/collectives.yaml
            rows = rows[(rows["family"] != "collectives") | (rows["library"] == "torch")]
        measured[name] = fit_chip(hardware, rows)
    if published is not None:
        carry_over(published, usual, measured, devices)
    for name, (main_part, kernels) in measured.items():
        write(out / f"{name}.yaml", main_part)
        write(out / f"{name}.kernels.yaml", kernels)
    write(out / "generic.yaml", fit_generic(table, devices))
    timed = {name: sum(int(library["default"]["n"]) for formats in main_part.values()
                       for library in formats.values())
             for name, (main_part, _) in measured.items()}
    flat = {f: dict.fromkeys(LEVELS, 1.0) for f in FAMILIES}
    write_index(out / "index.yaml", devices, timed, flat)
    with reading(out):
        errors = transfer_errors(table, devices)
    write_index(out / "index.yaml", devices, timed, flat | errors)


if __name__ == "__main__":
    raise SystemExit(main())
