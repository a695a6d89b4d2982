"""AIPerf's profile_export_aiperf.json and its ancestor's profile_export_genai_perf.json."""

from __future__ import annotations

from typing import Any

from simulator.calibration.runs import Run, day, first, number, take, words
from simulator.errors import InputError, nearest, shown

TOOL = "AIPerf"
_METRICS = ("time_to_first_token", "inter_token_latency", "output_token_throughput",
            "request_throughput", "input_sequence_length", "output_sequence_length")
_MILLISECONDS = {"ms": 1.0, "milliseconds": 1.0, "sec": 1e3, "s": 1e3, "seconds": 1e3, "us": 1e-3,
                 "ns": 1e-6, "nanoseconds": 1e-6}


def matches(data: dict[str, Any]) -> bool:
    """Whether the object is one of these tools'."""
    return "input_config" in data or any(
        isinstance(data.get(name), dict) and "avg" in data[name] for name in _METRICS)


def runs(data: dict[str, Any], place: str) -> list[Run]:
    """The one run of an export."""
    figures = {metric: value for metric, value in (
        ("ttft_ms", _time(data, "time_to_first_token", place)),
        ("tpot_ms", _time(data, "inter_token_latency", place)),
        ("throughput_out_tok_s", _mean(data, "output_token_throughput", place))) if value}
    if "ttft_ms" not in figures and "tpot_ms" not in figures:
        raise InputError(f"{place}: 'time_to_first_token' and 'inter_token_latency' are missing "
                         "(the run must stream)")
    config = data.get("input_config")
    batch = number(first(config, "loadgen.concurrency", "perf_analyzer.stimulus.concurrency",
                         "concurrency.0", "concurrency", *_phases(config, "concurrency")),
                   f"{place}: input_config.loadgen.concurrency")
    rate = number(first(config, "loadgen.request_rate", "perf_analyzer.stimulus.request_rate",
                        "request_rate", *_phases(config, "rate")),
                  f"{place}: input_config.loadgen.request_rate")
    good = _mean(data, "request_count", place) or 0.0
    bad = _mean(data, "error_request_count", place) or 0.0
    engine = words(first(config, "endpoint.backend", "backend"))
    return [Run(
        place=place, tool=TOOL, models=_models(config), figures=figures,
        date=day(data.get("start_time")), hardware=_gpu(data),
        engine=engine.replace("tensorrtllm", "tensorrt-llm"), batch=batch,
        rate="" if rate is None or batch is not None else f"{rate:g}",
        input=_mean(data, "input_sequence_length", place) or None,
        output=_mean(data, "output_sequence_length", place) or None,
        loose=f"{bad:,.0f} of {good + bad:,.0f} requests failed"
        if bad > 0.05 * (good + bad) else "")]


def _mean(data: dict[str, Any], name: str, place: str) -> float | None:
    return number(take(data, name, "avg"), f"{place}: {name}.avg", positive=False)


def _time(data: dict[str, Any], name: str, place: str) -> float | None:
    """Median of a time in ms; its mean where no median stands."""
    value = number(first(data, f"{name}.p50", f"{name}.avg"), f"{place}: {name}.p50",
                   positive=False)
    if value is None:
        return None
    unit = take(data, name, "unit") or "ms"
    if unit not in _MILLISECONDS:
        raise InputError(f"{place}: {name}.unit: {shown(unit)} is no unit of time"
                         f"{nearest(str(unit), _MILLISECONDS)}")
    return value * _MILLISECONDS[unit]


def _phases(config: Any, key: str) -> list[str]:
    """Paths of a key in the profiling phase, where a newer file lists phases."""
    listed = take(config, "phases")
    phases = listed if isinstance(listed, list) else []
    return [f"phases.{i}.{key}" for i, phase in enumerate(phases)
            if isinstance(phase, dict) and phase.get("name", "profiling") == "profiling"]


def _models(config: Any) -> tuple[str, ...]:
    found = words(first(config, "endpoint.model_names.0", "model_names.0", "models.0.name",
                        "models.items.0.name", "models.0", "model.0", "model"))
    return (found,) if found else ()


def _gpu(data: dict[str, Any]) -> str:
    """Name of the devices that telemetry saw, where all are the same."""
    names = set()
    for endpoint in (take(data, "telemetry_data", "endpoints") or {}).values():
        for gpu in (take(endpoint, "gpus") or {}).values():
            names.add(words(take(gpu, "gpu_name")))
    return names.pop() if len(names) == 1 else ""
