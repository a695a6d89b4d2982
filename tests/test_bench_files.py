"""Files in each tool's shape, with values by hand, as measurement rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.calibration.bench_files import Given, Placed, read_files
from simulator.calibration.runs import day
from simulator.errors import InputError
from simulator.validation.cases import cases_of
from simulator.validation.measurements import read_rows, write_rows
from simulator.validation.report import columns_of

BENCH = {
    "date": "20251003-120000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "t", "num_prompts": 100,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 20.0,
    "completed": 100, "failed": 0, "total_input_tokens": 102400, "total_output_tokens": 25600,
    "request_throughput": 5.0, "output_throughput": 1280.0, "total_token_throughput": 6400.0,
    "mean_ttft_ms": 61.0, "median_ttft_ms": 55.0, "p99_ttft_ms": 140.0, "mean_tpot_ms": 8.5,
    "median_tpot_ms": 8.25, "p99_tpot_ms": 9.9, "median_itl_ms": 8.1}
LLAMA = {
    "build_commit": "abc", "build_number": 6500, "cpu_info": "AMD EPYC 7763 64-Core Processor",
    "gpu_info": "NVIDIA GeForce RTX 4090", "backends": "CUDA",
    "model_filename": "models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
    "model_type": "llama 8B Q4_K - Medium", "model_size": 4912898304, "model_n_params": 8030261312,
    "n_batch": 2048, "n_ubatch": 512, "n_threads": 16, "type_k": "f16", "type_v": "f16",
    "n_gpu_layers": 99, "n_cpu_moe": 0, "split_mode": "layer", "n_prompt": 512, "n_gen": 0,
    "n_depth": 0, "test_time": "2025-09-20T10:00:00Z", "avg_ns": 50000000, "stddev_ns": 100,
    "avg_ts": 10240.0, "stddev_ts": 3.0}
GIVEN = Given(hardware="h100", engine="vllm", weights="bf16")


def guide(strategy: dict[str, Any], old: bool = False, **more: Any) -> dict[str, Any]:
    def told(x: float) -> dict[str, Any]:
        return {"successful": {"mean": x + 1.0, "median": x, "percentiles": {"p50": x}}}

    metrics = {"time_to_first_token_ms": told(50.0), "inter_token_latency_ms": told(9.0),
               "time_per_output_token_ms": told(9.4), "requests_per_second": told(4.0),
               "prompt_token_count": told(1023.0), "output_token_count": told(127.0)}
    config = {"strategy": strategy}
    if old:
        return {"benchmarks": [{"args": config, "metrics": metrics | more, "start_time": 1759492800,
                                "worker": {"backend_model": "Qwen/Qwen2.5-7B-Instruct"}}]}
    return {"metadata": {"version": 1, "guidellm_version": "0.5.3"},
            "args": {"backend_kwargs": {"model": "Qwen/Qwen2.5-7B-Instruct"}},
            "benchmarks": [{"config": config, "metrics": metrics | more,
                            "scheduler_metrics": {"start_time": 1759492800.0}}]}


def perf(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"request_throughput": {"unit": "requests/sec", "avg": 2.0},
            "time_to_first_token": {"unit": "ms", "avg": 90.0, "p50": 80.0},
            "inter_token_latency": {"unit": "ms", "avg": 11.0, "p50": 10.0},
            "output_token_throughput": {"unit": "tokens/sec", "avg": 400.0},
            "input_sequence_length": {"unit": "tokens", "avg": 550.0},
            "output_sequence_length": {"unit": "tokens", "avg": 200.0},
            "request_count": {"unit": "requests", "avg": 64.0},
            "start_time": "2025-10-17T20:22:08.939332", "input_config": config} | more


def read(tmp_path: Path, data: object, given: Given = GIVEN, name: str = "a.bin") -> list[Placed]:
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_files([str(path)], given)


def figures(rows: list[Placed]) -> dict[str, float]:
    return {p.row.metric: p.row.value for p in rows}


def refusal(tmp_path: Path, data: object, given: Given = GIVEN) -> str:
    with pytest.raises(InputError) as error:
        read(tmp_path, data, given)
    return str(error.value)


def test_vllm_bench(tmp_path: Path) -> None:
    rows = read(tmp_path, BENCH, Given(hardware="2xh100", weights="bf16"))
    assert figures(rows) == {"ttft_ms": 55.0, "tpot_ms": 8.25, "throughput_out_tok_s": 1280.0}
    row = rows[0].row
    assert (row.batch, row.rate, row.input, row.output) == (8.0, "", 1024.0, 256.0)
    assert (row.engine, row.date, row.tp, row.n_devices) == ("vllm", "2025-10-03", 2, 2)
    assert row.quality == "A"
    assert rows[0].tool == "vllm bench serve"
    cases, missing = cases_of([p.row for p in rows])
    assert not missing
    assert {c.setup.engine for c in cases} == {"vllm"}


def test_the_mean_stands_in_for_a_median(tmp_path: Path) -> None:
    data = {k: v for k, v in BENCH.items() if k != "median_tpot_ms"}
    assert figures(read(tmp_path, data))["tpot_ms"] == 8.5


def test_a_burst_without_a_limit_holds_all_prompts(tmp_path: Path) -> None:
    row = read(tmp_path, BENCH | {"max_concurrency": None})[0].row
    assert (row.batch, row.rate) == (100.0, "inf")
    row = read(tmp_path, BENCH | {"max_concurrency": None, "request_rate": 3.5})[0].row
    assert (row.batch, row.rate) == (None, "3.5")


def test_appended_results_are_read_one_by_one(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(BENCH | {"max_concurrency": n}) for n in (1, 2, 4))
    rows = read(tmp_path, lines)
    assert [p.row.batch for p in rows] == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    assert rows[3].place.endswith("record 2")


def test_speculation_and_failures_are_not_fitted_on(tmp_path: Path) -> None:
    rows = read(tmp_path, BENCH | {"spec_decode_acceptance_length": 2.5})
    assert "speculative" in cases_of([rows[0].row])[1][0]
    assert read(tmp_path, BENCH | {"failed": 30})[0].loose == "30 of 130 requests failed"


@pytest.mark.parametrize("old", [False, True])
def test_guidellm(tmp_path: Path, old: bool) -> None:
    rows = read(tmp_path, guide({"type_": "concurrent", "streams": 16}, old))
    # Not time_per_output_token_ms, which has the first token in it.
    assert figures(rows) == {"ttft_ms": 50.0, "tpot_ms": 9.0, "req_s": 5.0}
    row = rows[0].row
    assert (row.batch, row.input, row.output, row.date) == (16.0, 1024.0, 128.0, "2025-10-03")
    assert row.model == "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(("strategy", "batch", "rate"), [
    ({"type_": "synchronous"}, 1.0, ""), ({"type_": "constant", "rate": 2.5}, None, "2.5"),
    ({"type_": "throughput", "max_concurrency": 512}, 512.0, "inf"),
    ({"type_": "throughput"}, None, "inf"), ({"type_": "poisson", "rate": 4}, None, "4")])
def test_guidellm_strategies(tmp_path: Path, strategy: dict[str, Any], batch: float | None,
                             rate: str) -> None:
    row = read(tmp_path, guide(strategy))[0].row
    assert (row.batch, row.rate) == (batch, rate)


@pytest.mark.parametrize("config", [
    {"endpoint": {"model_names": ["Qwen/Qwen2.5-7B-Instruct"]}, "loadgen": {"concurrency": 4}},
    {"model_names": ["Qwen/Qwen2.5-7B-Instruct"], "perf_analyzer": {"stimulus": {
        "concurrency": 4}}, "endpoint": {"backend": "vllm"}},
    {"model": ["Qwen/Qwen2.5-7B-Instruct"], "concurrency": 4, "backend": "vllm"},
    {"models": {"items": [{"name": "Qwen/Qwen2.5-7B-Instruct"}]}, "phases": [
        {"name": "warmup", "concurrency": 1}, {"name": "profiling", "concurrency": 4}]}])
def test_aiperf_and_genai_perf(tmp_path: Path, config: dict[str, Any]) -> None:
    rows = read(tmp_path, perf(config))
    assert figures(rows) == {"ttft_ms": 80.0, "tpot_ms": 10.0, "throughput_out_tok_s": 400.0}
    row = rows[0].row
    assert (row.model, row.batch, row.rate) == ("Qwen/Qwen2.5-7B-Instruct", 4.0, "")
    assert (row.input, row.output, row.date) == (550.0, 200.0, "2025-10-17")


def test_aiperf_units_and_devices(tmp_path: Path) -> None:
    gpu = {"endpoints": {"x": {"gpus": {"gpu_0": {"gpu_name": "NVIDIA H100 80GB HBM3"}}}}}
    config = {"model_names": ["Qwen/Qwen2.5-7B-Instruct"], "concurrency": 1}
    data = perf(config, telemetry_data=gpu,
                time_to_first_token={"unit": "ns", "avg": 3e7, "p50": 2.5e7})
    rows = read(tmp_path, data, Given(engine="vllm", weights="bf16"))
    assert figures(rows)["ttft_ms"] == pytest.approx(25.0)
    assert rows[0].row.hardware == "NVIDIA H100 80GB HBM3"
    assert "--hardware says 'a100'" in refusal(tmp_path, data, Given(
        hardware="a100", engine="vllm", weights="bf16"))
    data["time_to_first_token"] = {"unit": "parsec", "p50": 1.0}
    assert "'parsec' is no unit of time" in refusal(tmp_path, data)


def llama(**more: Any) -> dict[str, Any]:
    return LLAMA | more


def test_llama_bench(tmp_path: Path) -> None:
    tests = [llama(), llama(n_prompt=0, n_gen=128, avg_ts=130.0),
             llama(n_prompt=0, n_gen=64, n_depth=4096, avg_ts=110.0),
             llama(n_prompt=512, n_gen=128, avg_ts=600.0)]
    rows = read(tmp_path, tests, Given())
    assert [(p.row.metric, p.row.value, p.row.input, p.row.output) for p in rows] == [
        ("prefill_tok_s", 10240.0, 512.0, 1.0), ("decode_tok_s_per_user", 130.0, 1.0, 128.0),
        ("decode_tok_s_per_user", 110.0, 4096.0, 64.0),
        ("throughput_total_tok_s", 600.0, 512.0, 128.0)]
    row = rows[0].row
    assert (row.engine, row.date, row.hardware) == (
        "llama.cpp CUDA", "2025-09-20", "NVIDIA GeForce RTX 4090")
    assert (row.weights, row.notes) == ("Q4_K - Medium", "model_bytes=4912898304")
    cases, missing = cases_of([p.row for p in rows])
    assert not missing
    assert {c.setup.engine for c in cases} == {"llama.cpp"}


def test_llama_bench_formats_agree(tmp_path: Path) -> None:
    tests = [llama(), llama(n_prompt=0, n_gen=128, avg_ts=130.0)]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(LLAMA), quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(tests)
    lines = "\n".join(map(json.dumps, tests))
    found = [figures(read_files([str(path)], Given())), figures(read(tmp_path, tests, Given())),
             figures(read(tmp_path, lines, Given()))]
    assert found[0] == found[1] == found[2] == {"prefill_tok_s": 10240.0,
                                                "decode_tok_s_per_user": 130.0}


@pytest.mark.parametrize(("change", "why"), [
    ({"n_gpu_layers": 20}, "20 of 32 layers"), ({"n_gpu_layers": 0}, "0 of 32 layers"),
    ({"n_cpu_moe": 4}, "experts of 4 layers"), ({"n_depth": 2048}, "context that is there"),
    ({"backends": "CUDA,RPC"}, "several machines"), ({"n_gpu_layers": 33}, ""),
    ({"n_gpu_layers": -1}, "")])
def test_llama_bench_conditions_that_no_row_tells(tmp_path: Path, change: dict[str, Any],
                                                  why: str) -> None:
    placed = read(tmp_path, [llama(**change)], Given())[0]
    assert (why in placed.loose) if why else placed.loose == ""
    assert placed.row.quality == ("C" if why else "A")


def test_llama_bench_on_two_devices_and_on_a_processor(tmp_path: Path) -> None:
    two = read(tmp_path, [llama(gpu_info="NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 4090")],
               Given())[0].row
    assert (two.n_devices, two.hardware) == (2, "NVIDIA GeForce RTX 4090")
    cpu = read(tmp_path, [llama(backends="CPU", gpu_info="")], Given(hardware="xeon-8480-plus"))[0]
    assert cpu.row.engine == "llama.cpp CPU"
    assert "threads=16" in cpu.row.notes


def test_rows_go_round_through_a_measurement_file(tmp_path: Path) -> None:
    rows = [p.row for p in read(tmp_path, BENCH)]
    path = tmp_path / "rows.csv"
    write_rows(path, [columns_of(r) for r in rows])
    assert read_rows(path) == rows
    again = read_files([str(path)], Given(hardware="h100"))
    assert [p.row for p in again] == rows
    assert not any(p.loose for p in again)
    assert all("not of" in p.loose for p in read_files([str(path)], Given(hardware="a100")))


@pytest.mark.parametrize(("given", "flag"), [
    (Given(engine="vllm", weights="bf16"), "--hardware"),
    (Given(hardware="h100", engine="vllm"), "--weights")])
def test_what_a_file_does_not_tell_names_the_flag(tmp_path: Path, given: Given, flag: str) -> None:
    found = refusal(tmp_path, BENCH, given)
    assert found.startswith(str(tmp_path / "a.bin"))
    assert f"say {flag}" in found


def test_more_flags_that_are_needed(tmp_path: Path) -> None:
    weights = Given(hardware="h100", weights="own")
    assert "say --engine" in refusal(tmp_path, BENCH | {"backend": "openai"}, weights)
    assert "say --model" in refusal(tmp_path, BENCH | {"model_id": "my-tuned-model"})
    assert "say --batch" in refusal(tmp_path, perf({"model": "Qwen/Qwen2.5-7B"}))
    named = Given(hardware="h100", model="qwen2.5-7b", weights="own")
    assert "--model says 'qwen2.5-7b'" in refusal(tmp_path, BENCH, named)
    assert read(tmp_path, BENCH | {"model_id": "x"}, named)[0].row.model == "qwen2.5-7b"
    ended = BENCH | {"model_id": "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"}
    assert read(tmp_path, ended, Given(hardware="h100"))[0].row.weights.lower() == "fp8"


@pytest.mark.parametrize(("data", "words"), [
    ("", "empty"), ("[]", "empty list"), ('{"a": 1', "not valid JSON"), ("a,b\n1,2\n", "neither"),
    ({"answer": 42}, "its keys: answer"), ("[1, 2]", "value 1 is 1"),
    (BENCH | {"completed": 0}, "no request succeeded"),
    (BENCH | {"median_tpot_ms": "fast"}, "median_tpot_ms: 'fast' is not a number"),
    (BENCH | {"median_tpot_ms": -1}, "must be 0 or more"),
    (BENCH | {"median_tpot_ms": float("nan")}, "not finite"),
    ({k: v for k, v in BENCH.items() if "tpot" not in k and "ttft" not in k}, "are missing"),
    ({k: v for k, v in BENCH.items() if k != "total_output_tokens"}, "'total_output_tokens' is"),
    ({"benchmarks": []}, "'benchmarks' is empty"), ({"benchmarks": [{}]}, "'metrics' is missing"),
    (guide({"type_": "concurent", "streams": 1}), "did you mean 'concurrent'"),
    ([llama(avg_ts=0)], "must be above 0"), ([llama(n_prompt=0)], "both 0"),
    ([{k: v for k, v in LLAMA.items() if k != "avg_ts"}], "'avg_ts' is missing")])
def test_bad_files(tmp_path: Path, data: object, words: str) -> None:
    found = refusal(tmp_path, data)
    assert words in found
    assert found.startswith(str(tmp_path / "a.bin"))
    assert "\n" not in found


def test_binary_folder_and_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for data in (b"\x00\x01\xff\xfe" * 9, b"a\0b"):
        path.write_bytes(data)
        with pytest.raises(InputError, match="neither JSON nor CSV"):
            read_files([str(path)], GIVEN)
    with pytest.raises(InputError, match="is a folder"):
        read_files([str(tmp_path)], GIVEN)
    with pytest.raises(InputError, match="can't be read"):
        read_files([str(tmp_path / "none.json")], GIVEN)


@pytest.mark.parametrize(("value", "text"), [
    ("20251003-120000", "2025-10-03"), ("2025-10-17T20:22:08", "2025-10-17"),
    (1759492800, "2025-10-03"), (None, ""), ("soon", ""), (1e30, ""), (True, "")])
def test_days(value: object, text: str) -> None:
    assert day(value) == text
