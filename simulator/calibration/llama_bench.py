"""llama-bench: `-o json`, `-o jsonl` and `-o csv`, whose records have the same fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from simulator.calibration.runs import Run, day, needed, number, words
from simulator.errors import InputError

TOOL = "llama-bench"
# `llama 8B Q4_K - Medium`, `qwen3moe 30B.A3B Q6_K`, `gpt-oss 20B MXFP4 MoE`: what follows the size.
_FORMAT = re.compile(r"\b(?:\?B|[\d.]+[BMTK](?:\.A[\d.]+[BM])?)\s+(?:\(guessed\) |all )?(.+)")
# Backends as older versions print them, one flag each.
_FLAGS = ("cuda", "vulkan", "kompute", "metal", "sycl", "hipblas")


def matches(data: Mapping[str, Any]) -> bool:
    """Whether the record is one of this tool's."""
    return "avg_ts" in data or ("n_gen" in data and "model_filename" in data)


def runs(data: Mapping[str, Any], place: str) -> list[Run]:
    """The one test of a record: a prompt, a generation, or one after the other."""
    prompt, output, depth = (number(data.get(key), f"{place}: {key}", positive=False) or 0.0
                             for key in ("n_prompt", "n_gen", "n_depth"))
    if not prompt and not output:
        raise InputError(f"{place}: n_prompt and n_gen are both 0 or missing")
    rate = needed(data, place, "avg_ts")
    backend = _backend(data)
    processor = not backend or "cpu" in backend.lower() or backend.lower() == "blas"
    if prompt and output:
        figures, length = {"throughput_total_tok_s": rate}, prompt + depth
    elif prompt:
        figures, length = {"prefill_tok_s": rate}, prompt
    else:
        figures, length = {"decode_tok_s_per_user": rate}, max(depth, 1.0)
    model_type = words(data.get("model_type"))
    size = number(data.get("model_size"), f"{place}: model_size")
    notes = [f"model_bytes={size:.0f}"] if size else []
    if processor:
        threads = number(data.get("n_threads"), f"{place}: n_threads")
        notes += [f"threads={threads:.0f}"] if threads else []
    gpus = _gpus(data)
    whole = words(data.get("split_mode")) != "none"
    told = _FORMAT.search(model_type)
    build = number(data.get("build_number"), f"{place}: build_number", positive=False)
    return [Run(
        place=place, tool=TOOL, figures=figures, date=day(data.get("test_time")),
        models=tuple(filter(None, (
            PurePosixPath(words(data.get("model_filename")).replace("\\", "/")).name,
            model_type[:told.start(1)].strip() if told else model_type))),
        hardware=words(data.get("cpu_info")) if processor else gpus[0] if gpus else "",
        devices=len(gpus) if gpus and whole and not processor else 1,
        engine=f"llama.cpp {backend or 'CPU'}", version=f"b{build:.0f}" if build else "",
        weights=told.group(1).removesuffix(" MoE").strip() if told else "",
        kv=words(data.get("type_k")), batch=1.0, input=length, output=output or 1.0,
        layers=None if processor else _layers(data, place),
        loose=_loose(data, place, gpus, bool(prompt and depth)), notes=tuple(notes))]


def _backend(data: Mapping[str, Any]) -> str:
    found = words(data.get("backends"))
    if found:
        return found.replace("MTL", "Metal").removesuffix(",BLAS").removeprefix("BLAS,")
    return next((flag for flag in _FLAGS if str(data.get(flag)).lower() in ("true", "1")), "")


def _gpus(data: Mapping[str, Any]) -> list[str]:
    return [name.strip() for name in re.split(r"[,/]\s*", words(data.get("gpu_info")))
            if name.strip()]


def _layers(data: Mapping[str, Any], place: str) -> float | None:
    """Layers on the device; a negative number means all."""
    text = str(data.get("n_gpu_layers") or 0).strip()
    return None if text.startswith("-") or "n_gpu_layers" not in data else number(
        text, f"{place}: n_gpu_layers", positive=False)


def _loose(data: Mapping[str, Any], place: str, gpus: list[str], behind: bool) -> str:
    """Why a record's conditions can't be told as a deployment of one kind of device."""
    offloaded = number(data.get("n_cpu_moe"), f"{place}: n_cpu_moe", positive=False)
    if offloaded:
        return f"the experts of {offloaded:.0f} layers stay on the CPU"
    if "RPC" in words(data.get("backends")):
        return "devices of several machines"
    if len(set(gpus)) > 1:
        return "devices of several kinds"
    if behind:
        return "a prompt behind a context that is there already"
    return ""
