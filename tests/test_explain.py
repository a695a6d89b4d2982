"""The textbook page: every printed product is its printed result, every sum that of its lines."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from simulator import Deployment, Parallelism, Workload
from simulator.explain import explain
from simulator.explain.passes import kept_tokens
from simulator.request import estimate

PREFIXES = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
            "P": 1e15, "E": 1e18}
UNIT = r"(?:min|d|(?P<prefix>[nµmkMGTPE]?)(?P<base>s|B|FLOP)(?:/s)?(?:/token)?)(?![A-Za-z])"
NUMBER = re.compile(rf"(?P<number>[0-9][0-9,]*(?:\.[0-9]+)?(?:e[0-9]+)?)(?: ?(?P<unit>{UNIT}))?")

CASES: dict[str, Any] = {
    "dense": ("7b-fp16", "textbook-2tbs", {}, (1, 1024, 256)),
    "ideal": ("7b-fp16", "textbook-2tbs", {"engine": "ideal"}, (4, 100, 2)),
    "gqa": ("llama-3.1-8b", "h100", {}, (32, 1000, 500)),
    "window": ("mistral-7b-v0.1", "h100", {}, (1, 8000, 1000)),
    "window fills up": ("mistral-7b-v0.1", "h100", {}, (3, 3000, 3000)),
    "chunk": ("llama-4-scout", "h100", {"tp": 8}, (2, 20000, 100)),
    "two windows": ("gemma-3-27b", "h200", {}, (2, 900, 900)),
    "jamba": ("jamba-1.5-mini", "h200", {}, (8, 4096, 64)),
    "qwen3-next": ("qwen3-next-80b-a3b", "b200", {}, (16, 2048, 128)),
    "mamba": ("falcon-mamba-7b", "h100", {}, (4, 512, 64)),
    "moe": ("mixtral-8x7b", "h100", {"tp": 2}, (4, 512, 128)),
    "gpt-oss": ("gpt-oss-20b", "h100", {}, (8, 1024, 256)),
    "mla": ("deepseek-v3", "h200", {"tp": 8}, (16, 1024, 256)),
    "mla, dp and ep": ("deepseek-v3", "h200", {"dp": 8, "ep": 8}, (64, 1024, 256)),
    "sparse": ("deepseek-v3.2", "h200", {"tp": 8}, (4, 8192, 256)),
    "int4": ("llama-3.1-8b", "h100", {"weights": "int4-g128"}, (1, 1024, 256)),
    "fp8": ("llama-3.1-70b", "h100", {"tp": 2, "weights": "fp8", "activations": "fp8",
                                      "kv": "fp8"}, (64, 2048, 512)),
    "tp": ("llama-3.1-70b", "h100", {"tp": 2}, (1, 1024, 256)),
    "cp": ("llama-3.1-8b", "h100", {"cp": 2}, (1, 10000, 256)),
    "prefix": ("llama-3.1-8b", "h100", {"prefix_hit": 0.5}, (1, 10000, 256)),
    "pp": ("llama-3.1-70b", "h100", {"pp": 4}, (16, 1024, 256)),
    "pp, one sequence": ("llama-3.1-8b", "h100", {"pp": 3}, (1, 1024, 256)),
    "pp, tp, dp": ("gpt-oss-120b", "h100", {"pp": 2, "tp": 2, "dp": 2}, (9, 1024, 256)),
    "range": ("llama-3.1-70b", "mn-core-l1400", {}, (1, 1024, 256)),
    "range, int4": ("llama-3.1-8b", "mn-core-l1400", {"weights": "int4-g128"}, (64, 1024, 256)),
    "llama.cpp": ("gemma-2-9b", "rtx-4090-24gb", {"engine": "llama.cpp", "weights": "q4_k"},
                  (1, 6000, 300)),
    "pp, llama.cpp": ("gemma-2-9b", "rtx-4090-24gb", {"engine": "llama.cpp", "weights": "q4_k",
                                                      "pp": 2}, (2, 3000, 300)),
    "chunked": ("llama-3.1-8b", "h100", {"chunk": 300}, (2, 1000, 100)),
    "eager": ("gemma-2-9b", "rtx-4090-24gb", {"engine": "transformers"}, (4, 1000, 300)),
    "host decides": ("llama-3.2-1b", "h100", {"engine": "transformers"}, (1, 10, 30)),
    "shared kv": ("gemma-4-e2b", "a100-sxm", {}, (1, 1024, 64)),
    "one token": ("llama-3.1-8b", "h100", {}, (1, 1024, 1)),
}  # fmt: skip


def _estimate(name: str) -> Any:
    model, hardware, options, lengths = CASES[name]
    options = dict(options)
    split = {k: options.pop(k) for k in ("tp", "pp", "dp", "ep", "cp") if k in options}
    d = Deployment.of(model, hardware, options.pop("engine", "vllm"), **options,
                      parallelism=Parallelism(**split))
    return estimate(d, Workload(*lengths))


def _scaled(match: re.Match[str]) -> str:
    value = float(match["number"].replace(",", ""))
    factor = ({"min": 60.0, "d": 86400.0}.get(match["unit"] or "")
              or PREFIXES[match["prefix"] or ""])
    return f" {value * factor!r} "


def _number(text: str) -> float:
    found = NUMBER.search(text)
    assert found, text
    return float(_scaled(found))


def _evaluated(formula: str) -> float:
    """What a formula such as `2 x (128 + 128) x 32 heads / 2 devices` comes to."""
    text = re.sub(r"\((?=[a-z])[^()]*\)", "", formula)      # (bf16, dense)
    text = re.sub(r"\bof [0-9.,]+[kMGT]?B\b", "", text)     # of 8.19kB
    text = re.sub(r"\b[48]-bit\b", "", text)
    text = re.sub(r"(?<=[0-9) a-zA-Z]) x (?=[0-9( ])", " * ", text)
    tokens = re.compile(rf"{NUMBER.pattern}|[A-Za-z][A-Za-z-]*")
    text = tokens.sub(lambda m: _scaled(m) if m["number"] else "", text).replace("^", "**")
    text = re.sub(r"\s+", " ", text).strip()
    assert re.fullmatch(r"[0-9.e+*/() -]+", text), (formula, text)
    return float(eval(text))


def _entries(page: list[str]) -> list[tuple[str, str, str]]:
    """(label, formula without its remark, value) of every line that ends in a value."""
    joined: list[str] = []
    lines = "\n".join(page).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("PREFILL"))
    end = next(i for i, line in enumerate(lines) if "BY OPERATION" in line)
    for line in lines[start:end]:
        assert len(line) <= 100, line
        if line.startswith(" " * 26) and line.strip():
            joined[-1] += " " + line[26:]
        else:
            joined.append(line)
    found = []
    for line in joined:
        if re.match(r"  \S", line) and len(line) > 26 and line[25] == " ":
            label, rest = line[:26].strip(), line[26:]
            parts = re.split(r" {2,}", rest.strip())
            *formula, value = parts
            found.append((label, " ".join(formula).split("; ")[0], value))
    return found


@pytest.mark.parametrize("name", CASES)
def test_products_and_sums_are_true(name: str) -> None:
    """Each product within 1 % of its result; each sum is that of the lines marked + above it."""
    entries = _entries(explain(_estimate(name)))
    total, summands, products = 0.0, 0, 0
    for label, formula, value in entries:
        result = _number(value)
        if label.startswith("= "):
            if summands:
                assert total == pytest.approx(result, rel=0.01), label
            else:
                assert result == 0, label
            total, summands = 0.0, 0
            continue
        if re.search(r"[0-9]", formula) and label != "TTFT, no queue":    # a remark alone
            for side in formula.split(" -> ")[0].split(" = "):
                assert _evaluated(side) == pytest.approx(result, rel=0.011), (label, side, value)
            products += 1
        if label.startswith("+ "):
            total += result
            summands += 1
    assert not summands
    assert products > (10 if name == "one token" else 20)


@pytest.mark.parametrize("name", CASES)
def test_page_is_the_estimate(name: str) -> None:
    """The ceiling and the expected time that the page leads to are those of the estimate."""
    e = _estimate(name)
    entries = _entries(explain(e))
    for kind, at in (("ceiling", "= CEILING"), ("expected", "= EXPECTED")):
        found: list[str] = []
        for label, _, value in entries:
            if label == at:
                found.append(value)
            elif label in (f"{kind}, pipeline", f"{kind}, chunks"):
                found[-1] = value
        assert _number(found[0]) == pytest.approx(float(getattr(e.ttft, kind)), rel=0.006)
        if name != "one token":
            assert _number(found[1]) == pytest.approx(float(getattr(e.tpot, kind)), rel=0.006)


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith(("pp", "one token"))])
def test_bytes_are_those_of_the_operations(name: str) -> None:
    """Weights and all bytes of a decode step, against the sums that the estimate holds."""
    e = _estimate(name)
    entries = {label: value for label, _, value in _entries(explain(e))}
    weights = sum(float(t.operation.weights * t.operation.count)
                  for t in e.decode.detail.operations)
    assert _number(entries["= weights streamed"]) == pytest.approx(weights, rel=0.006)
    assert _number(entries["= all bytes"]) == pytest.approx(float(e.decode.detail.bytes), rel=0.006)


@pytest.mark.parametrize(("first", "last", "limit"), [
    (1, 1, None), (5, 9, None), (5, 9, 7), (5, 9, 3), (5, 9, 9), (5, 9, 8), (100, 100, 99)])
def test_kept_tokens(first: int, last: int, limit: int | None) -> None:
    contexts = np.arange(first, last + 1)
    kept = contexts if limit is None else np.minimum(contexts, limit)
    assert kept_tokens(first, last, limit) == pytest.approx(kept.mean())


def _text(name: str) -> str:
    page = "\n".join(explain(_estimate(name)))
    return re.sub(r"\s+", " ", page)


@pytest.mark.parametrize(("name", "texts"), [
    ("dense", ["14.0 GB / 2.00 TB/s = 7.00 ms -> 143 tok/s", "7.00e9 values x 2 B (fp16)",
               "x 1,152 tokens x 1 sequence", "1,024 x 1,025 / 2"]),
    ("window", ["32 layers x 4,096 B/token x 4,096 tokens x 1 sequence", "537 MB"]),
    ("int4", ["6.98e9 values x 0.515625 B (int4-g128)", "526e6 values x 2 B (bf16)"]),
    ("mla, dp and ep", ["256 x (1 - (1 - 8/256)^64)", "T = 64 tokens of all 8 replicas",
                        "which holds 32 of 256 experts", "All numbers are those of one device"]),
    ("range", ["favourable end of each (40.0 TB/s, 1.20 PFLOP/s)", "/ 40.0 TB/s",
               "take the middle (25.6 TB/s, 800 TFLOP/s)"]),
    ("pp", ["all 4 stages one after the other", "micro-batch"]),
    ("sparse", ["best keys 2,048", "+ index keys read", "61 layers x 576 B"][:2]),
    ("jamba", ["+ recurrent state", "4 layers x 4,096 B/token"]),
    ("chunk", ["chunk 8,192", "2 x 8,192 x 8,193 / 2 + 3,616 x 3,617 / 2"]),
    ("gqa", ["GEMM x", "attention x", "2 x (128 + 128) x 32 heads"]),
    ("mla", ["2 x (576 + 512) x 16 heads", "2 x (192 + 128) x 16 heads"]),
])  # fmt: skip
def test_page_says(name: str, texts: list[str]) -> None:
    page = _text(name)
    for text in texts:
        assert text in page, text
