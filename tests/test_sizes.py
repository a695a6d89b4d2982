"""Figures of memory beside printed ones: what a process holds, and how wide their ranges are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.deployment import Deployment, Parallelism
from simulator.efficiency import spread_of
from simulator.errors import InputError
from simulator.memory import memory
from simulator.specs.catalogue import load_hardware, load_model
from simulator.specs.engine import load_engine
from simulator.validation.cases import case_of
from simulator.validation.fit_report import KNOWN
from simulator.validation.measurements import SIZES, Row, write_rows
from simulator.validation.run import validate
from simulator.validation.size_ranges import beyond, size_spreads
from simulator.validation.sizes import peak_bytes, prompt_logits_gib, size_of

GIB = 2.0**30


def deployment(model: str, hardware: str, engine: str, weights: str = "bf16", tp: int = 1,
               pp: int = 1, **formats: str) -> Deployment:
    return Deployment(load_model(model), load_hardware(hardware), load_engine(engine),
                      weights=weights, formats=formats,
                      parallelism=Parallelism(tp=tp, pp=pp))


def test_the_share_of_the_system_is_not_the_engines() -> None:
    """Qwen2-0.5B at 8 bits on a board of 16 GB took 0.65 GiB (rknn-llm benchmark, 2026)."""
    d = deployment("qwen2-0.5b", "rk3588-npu", "rkllm", "int8", head="int8",
                   embedding="int8")
    peak = peak_bytes(d, 1.0, 128.0, 64.0)
    m = memory(d, 1.0, 128.0, 64.0)
    assert peak == pytest.approx(float(m.weights + m.kv + m.activations) + d.engine.context_bytes)
    assert peak / GIB == pytest.approx(0.654, rel=0.15)
    assert float(m.total) > 3.0 * peak    # with what the operating system keeps


def test_one_process_holds_the_layers_of_all_devices() -> None:
    """Qwen2.5-72B on two and three A100 80GB: 136.2 and 149.1 (Qwen's page, transformers)."""
    for devices, prompt, measured in ((2, 1.0, 136.2), (3, 14336.0, 149.14)):
        d = deployment("qwen2.5-72b", "a100-sxm4-80gb", "transformers", pp=devices)
        peak = size_of(d, "peak_mem_gib", 1.0, prompt, 2048.0)
        assert peak == pytest.approx(measured, rel=0.05)
        assert peak > 80e9 / GIB


def test_a_process_for_each_device_holds_its_own() -> None:
    d = deployment("gpt-j-6b", "a100-sxm4-80gb", "fastertransformer", tp=2)
    m = memory(d, 4.0, 512.0, 32.0)
    assert peak_bytes(d, 4.0, 512.0, 32.0) == pytest.approx(
        float(m.weights + m.kv + m.activations) + d.engine.context_bytes)


@pytest.mark.parametrize("batch", [1.0, 64.0])
def test_a_pool_is_held_whole(batch: float) -> None:
    """vLLM takes its share of the device at the start, whatever is asked later."""
    d = deployment("llama-3.1-8b", "h100-sxm5-80gb", "vllm")
    capacity = d.hardware.memory_capacity
    assert peak_bytes(d, batch, 1024.0, 128.0) == pytest.approx(0.9 * capacity, rel=1e-6)


def test_weights_and_pool() -> None:
    """Llama-3.1-8B: 14.99 GiB in the start-up log of vLLM (PR 17122)."""
    d = deployment("llama-3.1-8b", "l40s", "vllm")
    assert size_of(d, "weights_gib", 1.0, 128.0, 128.0) == pytest.approx(14.9889, rel=0.005)
    tokens = size_of(d, "kv_tokens_capacity", 1.0, 128.0, 128.0)
    assert tokens == float(memory(d, 1.0, 128.0, 128.0).pool.tokens) > 100_000


def test_logits_of_a_prompt_that_old_versions_kept(tmp_path: Path) -> None:
    """Qwen2-0.5B, 30,720 tokens: 27.61 printed in June 2024; its successor, alike, 2.34.

    Qwen's pages, transformers on A100 80GB, no version printed: one prediction, a range over both.
    """
    d = deployment("qwen2-0.5b", "a100-sxm4-80gb", "transformers")
    kept = prompt_logits_gib(d, 1.0, 30_720.0)
    assert kept == pytest.approx(30_720 * 151_936 * 6 / GIB)
    assert size_of(d, "peak_mem_gib", 1.0, 30_720.0, 2048.0) + kept == pytest.approx(27.61, rel=0.1)
    assert prompt_logits_gib(deployment("qwen2-0.5b", "a100-sxm4-80gb", "vllm"), 1.0, 9e3) == 0.0
    path = tmp_path / "m.csv"
    write_rows(path, [{"source": "s", "hardware": "NVIDIA A100 SXM 80GB", "n_devices": 1,
                       "engine": "HF Transformers", "model": "Qwen2-0.5B-Instruct",
                       "dtype_weights": "bf16", "batch_or_concurrency": 1, "input_len": 30_720,
                       "output_len": 2048, "metric": metric, "value": value}
                      for metric, value in (("peak_mem_gib", 27.61), ("peak_mem_gib", 2.34),
                                            ("weights_gib", 0.92))])
    old, new, weights = validate([path]).scored
    assert old.inside
    assert new.inside
    assert old.predicted == new.predicted == pytest.approx(2.8, rel=0.1)
    assert beyond(old) == 0.0
    assert beyond(new) == pytest.approx(np.log(new.predicted / 2.34))
    assert beyond(weights) == pytest.approx(weights.error)


ROW = Row("T1", "s", "2025-11", "", "NVIDIA H100 SXM 80GB", 1, "vLLM", "0.10", "Llama-3.1-8B",
          "bf16", "", None, None, None, 8.0, "", 1024.0, 256.0, "peak_mem_gib", 10.0, "A", "")


def test_ranges_of_few_rows_are_those_of_all_sizes() -> None:
    cases = [case_of(i, replace(ROW, metric="weights_gib" if i < 4 else "peak_mem_gib"))
             for i in range(104)]
    error = np.concatenate([np.zeros(4), np.linspace(-1.0, 1.0, 100)])
    found = size_spreads(cases, error)
    assert set(found) == SIZES
    assert np.log(found["peak_mem_gib"]["device"]) == pytest.approx(0.8, abs=0.02)
    assert found["weights_gib"] == found["kv_tokens_capacity"]
    assert all(set(levels) == set(KNOWN) for levels in found.values())
    some = [replace(c, row=replace(c.row, metric="weights_gib")) for c in cases[:6]]
    spanned = size_spreads(some + cases[4:], np.concatenate([[0.1] * 5, [-0.2], error[4:]]))
    assert np.log(spanned["weights_gib"]["device"]) == pytest.approx(0.2, abs=1e-3)
    with pytest.raises(InputError, match="10 rows of memory are too few"):
        size_spreads(cases[:10], error[:10])


def test_every_size_has_its_range() -> None:
    for metric in SIZES:
        factors = {spread_of(metric, level) for level in KNOWN}
        assert len(factors) == 1
        assert 1.0 < factors.pop() < 3.0
