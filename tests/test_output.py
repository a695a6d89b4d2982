"""The JSON of an estimate: every pinned key, SI numbers, null instead of NaN."""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Hardware, Model, Parallelism, Workload, estimate
from simulator.output import estimate_dict, figure, number, whole
from simulator.request import Figure, causes
from simulator.specs.catalogue import catalogue
from simulator.specs.engine import load_engine

MODELS, DEVICES = list(catalogue("models")), list(catalogue("hardware"))
TOP = {
    "schema_version", "model", "hardware", "devices", "engine", "parallelism", "workload",
    "ttft_s", "tpot_s", "e2e_s", "tokens_per_s_per_user", "output_tokens_per_s",
    "output_tokens_per_s_per_device", "request_output_tokens_per_s", "prefill", "decode",
    "memory", "energy_joules_per_output_token", "usd_per_million_output_tokens", "basis",
}  # fmt: skip
PHASE = {"time_s", "flops", "bytes", "bound", "ceiling_bound", "operations"}
OPERATION = {"name", "kind", "count", "flops", "bytes", "time_s", "bound"}
MEMORY = {
    "weights_bytes", "kv_bytes_per_token", "kv_bytes", "kv_bytes_ideal", "activation_bytes",
    "reserved_bytes", "total_bytes", "capacity_bytes", "fits", "max_batch", "max_context",
}  # fmt: skip
FOUR = {"ceiling", "expected", "low", "high"}
TIMES = ("ttft_s", "tpot_s", "e2e_s")
RATES = ("tokens_per_s_per_user", "output_tokens_per_s", "output_tokens_per_s_per_device",
         "request_output_tokens_per_s")


@cache
def model(name: str) -> Model:
    return Model.load(name)


def answer(name: str = "llama-3.1-8b", hardware: str = "h100-sxm5-80gb", engine: str = "vllm",
           w: Workload | None = None, force: bool = False, **more: Any) -> Any:
    """The answer as it is read back from its text."""
    d = Deployment(model(name), Hardware.load(hardware), load_engine(engine), **more)
    w = Workload() if w is None else w
    text = msgspec.json.encode(estimate_dict(estimate(d, w), causes(d, w), force)).decode()
    assert "NaN" not in text
    assert "Infinity" not in text
    return json.loads(text)


def floats(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [f for v in value.values() for f in floats(v)]
    if isinstance(value, list):
        return [f for v in value for f in floats(v)]
    return [value] if isinstance(value, float) else []


def check_shape(a: Any) -> None:
    assert set(a) >= TOP
    assert set(a["parallelism"]) == {"tp", "pp", "ep", "cp", "dp"}
    assert set(a["workload"]) >= {"batch", "input", "output"}
    assert set(a["prefill"]) >= PHASE | {"mfu"}
    assert set(a["decode"]) >= PHASE | {"mbu"}
    assert set(a["memory"]) >= MEMORY
    for name in (*TIMES, *RATES, "energy_joules_per_output_token",
                 "usd_per_million_output_tokens"):
        assert a[name] is None or set(a[name]) == FOUR
    for phase in (a["prefill"], a["decode"]):
        for o in phase["operations"]:
            assert set(o) >= OPERATION
            assert o["bound"] in ("compute", "memory", "network", "overhead")
        if phase["bound"] is not None:
            assert phase["bound"] in ("compute", "memory", "network", "overhead")
            assert phase["ceiling_bound"] in ("compute", "memory")
    assert all(math.isfinite(f) for f in floats(a))
    for key in ("max_batch", "max_context"):
        assert isinstance(a["memory"][key], int)
    assert isinstance(a["memory"]["fits"], bool)
    assert isinstance(a["devices"], int)


def test_pinned_keys() -> None:
    a = answer()
    check_shape(a)
    assert (a["model"], a["hardware"], a["devices"], a["engine"]) == (
        "llama-3.1-8b", "h100-sxm5-80gb", 1, "vllm")
    assert a["workload"]["batch"] == 1
    assert (a["workload"]["input"], a["workload"]["output"]) == (1024, 256)
    assert isinstance(a["schema_version"], int)
    assert a["basis"]


def test_sums_and_definitions() -> None:
    a = answer(w=Workload(4, 700, 50), parallelism=Parallelism(tp=2))
    for phase in (a["prefill"], a["decode"]):
        operations = phase["operations"]
        assert sum(o["time_s"] for o in operations) == pytest.approx(phase["time_s"]["expected"],
                                                                     rel=1e-9)
        for key in ("flops", "bytes"):
            assert sum(o[key] for o in operations) == pytest.approx(phase[key], rel=1e-9)
    assert a["tpot_s"] == a["decode"]["time_s"]
    assert a["ttft_s"] == a["prefill"]["time_s"]
    assert a["tokens_per_s_per_user"]["expected"] == pytest.approx(1 / a["tpot_s"]["expected"])
    assert a["output_tokens_per_s"]["expected"] == pytest.approx(4 / a["tpot_s"]["expected"])
    assert a["output_tokens_per_s_per_device"]["expected"] == pytest.approx(
        2 / a["tpot_s"]["expected"])
    assert a["request_output_tokens_per_s"]["low"] == pytest.approx(200 / a["e2e_s"]["high"])
    m = a["memory"]
    assert m["total_bytes"] == pytest.approx(
        m["weights_bytes"] + m["kv_bytes"] + m["activation_bytes"] + m["reserved_bytes"])
    assert a["devices"] == 2


def test_output_of_one_token() -> None:
    a = answer(w=Workload(1, 100, 1))
    check_shape(a)
    assert a["tpot_s"] is None
    assert a["tokens_per_s_per_user"] is None
    assert a["decode"]["time_s"] is None
    assert a["decode"]["mbu"] is None
    assert a["decode"]["operations"] == []
    assert a["e2e_s"] == a["ttft_s"]
    assert a["request_output_tokens_per_s"]["expected"] == pytest.approx(
        1 / a["ttft_s"]["expected"])


def test_no_rates_for_what_does_not_fit() -> None:
    a = answer("llama-3.1-70b")
    check_shape(a)
    assert a["memory"]["fits"] is False
    assert a["memory"]["max_batch"] == 0
    for name in (*RATES, "energy_joules_per_output_token", "usd_per_million_output_tokens"):
        assert a[name] is None
    forced = answer("llama-3.1-70b", force=True)
    assert forced["memory"] == a["memory"]
    for name in RATES:
        assert forced[name]["expected"] > 0


def test_ranges() -> None:
    a = answer("llama-3.1-70b", "mn-core-l1400", force=True)
    check_shape(a)
    assert a["tpot_s"]["ceiling"] < a["tpot_s"]["low"] < a["tpot_s"]["expected"] < (
        a["tpot_s"]["high"])
    fields = [r["field"] for r in a["basis"]["ranges"]]
    assert "memory_bandwidth" in fields
    assert "not a specification" in a["basis"]["text"]


@given(st.sampled_from(MODELS), st.sampled_from(DEVICES), st.sampled_from(["vllm", "ideal",
       "llama.cpp", "tensorrt-llm"]), st.integers(1, 1000), st.integers(1, 50_000),
       st.integers(1, 5000), st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_pair(name: Any, hardware: Any, engine: Any, batch: Any, length: Any, output: Any,
                  force: Any) -> None:
    a = answer(name, hardware, engine, Workload(batch, length, output), force)
    check_shape(a)
    slack = 1 + 1e-12
    for key in (*TIMES, *RATES):
        f = a[key]
        if f is None:
            assert output == 1 or (key in RATES and not (a["memory"]["fits"] or force))
            continue
        order = ("ceiling", "low", "expected", "high") if key in TIMES else (
            "low", "expected", "high", "ceiling")
        values = [f[k] for k in order]
        assert all(x <= y * slack for x, y in pairwise(values))
    assert 0 < a["prefill"]["mfu"] <= 1
    if output > 1:
        assert 0 < a["decode"]["mbu"] <= 1


def test_numbers() -> None:
    assert number(math.nan) is None
    assert number(np.float64("inf")) is None
    assert number(np.int64(3)) == 3
    assert number(np.bool_(True)) is True
    assert whole(3.0) == 3
    assert whole(math.nan) is None
    assert figure(None) is None
    assert figure(Figure(math.nan, math.nan, math.nan, math.nan)) is None
