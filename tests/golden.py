"""The golden predictions: 200 pairs of model and hardware, `tests/data/golden_predictions.csv`.

    python tests/golden.py          how far the program has moved from them
    python tests/golden.py --write  make them anew; then name the reason in CHANGELOG.md, beside the
                                    revision that this prints
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

from simulator import Deployment, Workload, estimate
from simulator.deployment import Parallelism

FILE = Path(__file__).resolve().parent / "data" / "golden_predictions.csv"
MODELS = ("llama-2-7b", "llama-3.1-8b", "llama-3.3-70b", "qwen3-32b", "gemma-3-27b", "mixtral-8x7b",
          "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b", "mamba-2.8b")
CHIPS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "l40s", "rtx-4090-24gb", "mi300x",
         "tpu-v5e", "apple-m3-max", "epyc-9654", "mn-core-l1400")
# Engine, formats, batch, input, output, tensor parallel: one of two for each pair, in turn.
ASKED: tuple[tuple[str, dict[str, Any], tuple[int, int, int], int], ...] = (
    ("vllm", {}, (1, 1024, 256), 1),
    ("sglang", {"weights": "fp8", "activations": "fp8"}, (32, 2048, 512), 4),
    ("llama.cpp", {"weights": "q4_k_m"}, (1, 512, 128), 1),
    ("tensorrt-llm", {"weights": "nvfp4", "activations": "nvfp4"}, (128, 8192, 1024), 8),
)
# Chips that share the models that one can't hold.
SPLIT = ("a100", "h100", "b200", "mi300")
FIELDS = ("ttft_s", "tpot_s", "ttft_ceiling_s", "tpot_ceiling_s")


def pairs() -> list[dict[str, Any]]:
    """Conditions of every row."""
    found = []
    for i, model in enumerate(MODELS):
        for j, chip in enumerate(CHIPS):
            for k in ((i + j) % 2, 2 + (i + j) % 2):
                engine, formats, workload, tp = ASKED[k]
                found.append({"model": model, "hardware": chip, "engine": engine, **formats,
                              "batch": workload[0], "input": workload[1], "output": workload[2],
                              "tp": tp if chip.startswith(SPLIT) else 1})
    return found


def predicted(asked: dict[str, Any]) -> dict[str, float]:
    """Figures of a row, to six digits."""
    formats = {k: asked[k] for k in ("weights", "activations") if asked.get(k)}
    d = Deployment.of(asked["model"], asked["hardware"], asked["engine"], **formats,
                      parallelism=Parallelism(tp=int(asked["tp"])))
    e = estimate(d, Workload(*(float(asked[k]) for k in ("batch", "input", "output"))))
    values = (e.ttft.expected, e.tpot.expected, e.ttft.ceiling, e.tpot.ceiling)
    return {name: float(f"{float(value):.6g}") for name, value in zip(FIELDS, values, strict=True)}


def read() -> tuple[int, list[dict[str, str]]]:
    """(revision, rows) of the file."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    match = re.fullmatch(r"# revision (\d+)", lines[0])
    if match is None:
        raise SystemExit(f"{FILE}: the first line names no revision")
    return int(match.group(1)), list(csv.DictReader(lines[1:]))


def moved() -> list[str]:
    """Rows that have moved by more than 1 %, in words."""
    found = []
    for row in read()[1]:
        now = predicted(row)
        for name in FIELDS:
            change = now[name] / float(row[name]) - 1.0
            if abs(change) > 0.01:
                found.append(f"{row['model']} on {row['hardware']} ({row['engine']}): {name} "
                             f"{float(row[name]):.4g} -> {now[name]:.4g} ({change:+.1%})")
    return found


def write() -> int:
    """The file made anew; its revision."""
    revision = read()[0] + 1 if FILE.is_file() else 1
    keys = ("model", "hardware", "engine", "weights", "activations", "batch", "input", "output",
            "tp")
    with open(FILE, "w", encoding="utf-8", newline="") as file:
        file.write(f"# revision {revision}\n")
        writer = csv.DictWriter(file, (*keys, *FIELDS), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**asked, **predicted(asked)} for asked in pairs())
    return revision


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        print(f"golden predictions, revision {write()}")
    else:
        print("\n".join(moved()) or "none moved by more than 1 %")
