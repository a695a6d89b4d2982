"""`vllm bench serve --save-result` (and SGLang's bench_serving, which prints the same keys)."""

from __future__ import annotations

from typing import Any

from simulator.calibration.runs import Run, day, first, needed, number, words
from simulator.errors import InputError

TOOL = "vllm bench serve"
# Endpoints that are a protocol, not an engine: the file doesn't tell what answered.
_PROTOCOLS = ("openai", "openai-chat", "openai-audio", "openai-comp", "custom")
_FAILED = 0.05


def matches(data: dict[str, Any]) -> bool:
    """Whether the object is one of this tool's."""
    return "total_input_tokens" in data and "request_throughput" in data


def runs(data: dict[str, Any], place: str) -> list[Run]:
    """The one run of a result."""
    completed = needed(data, place, "completed", positive=False)
    if completed < 1:
        raise InputError(f"{place}: completed: 0, no request succeeded")
    figures = {}
    for metric, keys in (("ttft_ms", ("median_ttft_ms", "mean_ttft_ms")),
                         ("tpot_ms", ("median_tpot_ms", "mean_tpot_ms")),
                         ("throughput_out_tok_s", ("output_throughput",))):
        # No second token: the tool prints a TPOT of 0.
        value = number(first(data, *keys), f"{place}: {keys[0]}", positive=False)
        if value:
            figures[metric] = value
    if "ttft_ms" not in figures and "tpot_ms" not in figures:
        raise InputError(f"{place}: 'median_ttft_ms' and 'median_tpot_ms' are missing "
                         "(--percentile-metrics must name ttft and tpot)")
    failed = number(data.get("failed"), f"{place}: failed", positive=False) or 0.0
    batch = number(data.get("max_concurrency"), f"{place}: max_concurrency")
    rate = _rate(data, place)
    if batch is None and rate == "inf":
        batch = needed(data, place, "num_prompts", "completed")
    engine = words(first(data, "backend", "endpoint_type"))
    speculated = data.get("spec_decode_acceptance_length") is not None
    return [Run(
        place=place, tool=TOOL, models=tuple(filter(None, [words(data.get("model_id"))])),
        figures=figures, date=day(data.get("date")),
        hardware=words(first(data, "hardware", "gpu", "device")),
        devices=_devices(data, place), engine="" if engine in _PROTOCOLS else engine,
        version=words(first(data, "engine_version", "vllm_version", "version")),
        weights=words(first(data, "quantization", "dtype")), batch=batch,
        # A limit on concurrency that all requests wait for is a closed loop.
        rate="" if rate == "inf" and data.get("max_concurrency") is not None else rate,
        input=needed(data, place, "total_input_tokens") / completed,
        output=needed(data, place, "total_output_tokens") / completed,
        loose=f"{failed:,.0f} of {failed + completed:,.0f} requests failed"
        if failed > _FAILED * (failed + completed) else "",
        notes=("speculative decoding: on",) if speculated else ())]


def _rate(data: dict[str, Any], place: str) -> str:
    if data.get("ramp_up_strategy") is not None:
        return "ramp-up"
    value = first(data, "request_rate")
    if value is None or value in ("inf", "Infinity") or value == float("inf"):
        return "inf"
    found = number(value, f"{place}: request_rate")
    return "" if found is None else f"{found:g}"


def _devices(data: dict[str, Any], place: str) -> int | None:
    """Tensor-parallel degree, where the user put it into the file by --metadata."""
    found = number(first(data, "tensor_parallel_size", "tp"), f"{place}: tp")
    return None if found is None else int(found)
