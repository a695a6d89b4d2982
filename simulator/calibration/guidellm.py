"""GuideLLM's benchmarks.json: 0.2 and 0.3 (`args`, `worker`), 0.4 and later (`config`)."""

from __future__ import annotations

from typing import Any

from simulator.calibration.runs import Run, day, first, number, words
from simulator.errors import InputError, nearest, shown

TOOL = "GuideLLM"
_STRATEGIES = ("synchronous", "concurrent", "throughput", "constant", "poisson")


def matches(data: dict[str, Any]) -> bool:
    """Whether the object is one of this tool's."""
    return isinstance(data.get("benchmarks"), list)


def runs(data: dict[str, Any], place: str) -> list[Run]:
    """One run for each benchmark of a report."""
    found = []
    for i, benchmark in enumerate(data["benchmarks"]):
        where = f"{place}: benchmarks[{i}]"
        if not isinstance(benchmark, dict) or not isinstance(benchmark.get("metrics"), dict):
            raise InputError(f"{where}: 'metrics' is missing")
        found.append(_run(data, benchmark, where))
    if not found:
        raise InputError(f"{place}: 'benchmarks' is empty")
    return found


def _run(report: dict[str, Any], data: dict[str, Any], place: str) -> Run:
    metrics = data["metrics"]

    def figure(name: str, *kinds: str) -> float | None:
        return number(first(metrics, *(f"{name}.successful.{kind}" for kind in kinds)),
                      f"{place}: metrics.{name}.successful.{kinds[0]}", positive=False)

    # `time_per_output_token_ms` has the first token in it: TPOT is what this tool calls ITL.
    figures = {"ttft_ms": figure("time_to_first_token_ms", "median", "mean"),
               "tpot_ms": figure("inter_token_latency_ms", "median", "mean"),
               "req_s": figure("requests_per_second", "mean")}
    if not figures["ttft_ms"] and not figures["tpot_ms"]:
        raise InputError(f"{place}: metrics: no request streamed, so neither "
                         "'time_to_first_token_ms' nor 'inter_token_latency_ms' tells")
    batch, rate = _load(data, place)
    model = first(data, "config.backend.model", "worker.backend_model", "request_loader.processor")
    models = [words(model), *(words(first(report, path)) for path in (
        "args.model", "args.backend_kwargs.model", "args.backend.model"))]
    return Run(
        place=place, tool=TOOL, models=tuple(dict.fromkeys(filter(None, models))),
        figures={k: v for k, v in figures.items() if v},
        date=day(first(data, "start_time", "scheduler_metrics.start_time", "run_stats.start_time")),
        version="", batch=batch, rate=rate,
        input=figure("prompt_token_count", "mean") or None,
        output=figure("output_token_count", "mean") or None,
        loose=_failed(data, place))


def _load(data: dict[str, Any], place: str) -> tuple[float | None, str]:
    """(concurrent requests, rate of arrival) of a strategy."""
    strategy = first(data, "config.strategy", "args.strategy") or {}
    kind = words(strategy.get("type_")) if isinstance(strategy, dict) else ""
    if kind == "synchronous":
        return 1.0, ""
    if kind == "concurrent":
        return number(strategy.get("streams"), f"{place}: strategy.streams"), ""
    if kind == "throughput":
        return number(strategy.get("max_concurrency"), f"{place}: strategy.max_concurrency"), "inf"
    if kind in ("constant", "poisson"):
        rate = number(strategy.get("rate"), f"{place}: strategy.rate")
        return None, f"{rate or 0.0:g}"
    raise InputError(f"{place}: strategy.type_: {shown(kind or None)} is not known"
                     f"{nearest(kind, _STRATEGIES)}")


def _failed(data: dict[str, Any], place: str) -> str:
    totals = first(data, "metrics.request_totals", "request_totals") or {}
    good, bad = (number(totals.get(k), f"{place}: request_totals.{k}", positive=False) or 0.0
                 for k in ("successful", "errored"))
    return f"{bad:,.0f} of {good + bad:,.0f} requests failed" if bad > 0.05 * (good + bad) else ""
