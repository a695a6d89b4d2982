"""Rows to cases: phase and figure, how devices split, and which rows are refused and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.validation.cases import APART, PHASES, Case, case_of, cases_of, rough_phase
from simulator.validation.measurements import METRICS, Row
from simulator.validation.names import UnknownError
from simulator.validation.predict import predict

ROW = Row("T1", "s", "2025-11", "", "NVIDIA H100 SXM 80GB", 1, "vLLM", "0.10", "Llama-3.1-8B",
          "bf16", "", None, None, None, 8.0, "", 1024.0, 256.0, "tpot_ms", 10.0, "A", "")
STATIC = {"engine": "FasterTransformer", "version": "5.x"}


def case(**changes: Any) -> Case:
    return case_of(0, replace(ROW, **changes))


def refused(**changes: Any) -> str:
    with pytest.raises(UnknownError) as error:
        case(**changes)
    return str(error.value)


@pytest.mark.parametrize(("changes", "phase", "figure"), [
    ({"metric": "decode_tok_s_per_user", "batch": 1.0}, "batch1_decode", "decode_tok_s_per_user"),
    ({"metric": "tpot_ms", "batch": 1.0}, "batch1_decode", "tpot_ms"),
    ({"metric": "decode_tok_s_total", "batch": 1.0}, "batch1_decode", "decode_tok_s_total"),
    ({"metric": "tpot_ms", "batch": 1.0, "n_devices": 2}, "tpot", "tpot_served"),
    ({"metric": "decode_tok_s_per_user"}, "tpot", "rate_served"),
    ({"metric": "tpot_ms"}, "tpot", "tpot_served"),
    ({"metric": "tpot_ms", **STATIC}, "tpot", "tpot_ms"),
    ({"metric": "decode_tok_s_total"}, "static_throughput", "decode_tok_s_total"),
    ({"metric": "throughput_out_tok_s"}, "static_throughput", "throughput_out_tok_s"),
    ({"metric": "throughput_out_tok_s", "batch": None}, "max_throughput", "throughput_out_tok_s"),
    ({"metric": "req_s", "rate": "inf"}, "max_throughput", "req_s"),
    ({"metric": "throughput_total_tok_s", "rate": "offline"}, "max_throughput",
     "throughput_total_tok_s"),
    ({"metric": "throughput_out_tok_s", "notes": "benchmark_serving.py"}, "static_throughput",
     "out_served"),
    ({"metric": "throughput_total_tok_s", "notes": "InferenceMAX"}, "static_throughput",
     "total_served"),
    ({"metric": "req_s", "notes": "closed loop, 8 users"}, "static_throughput", "requests_served"),
    ({"metric": "req_s", "notes": "closed loop", **STATIC}, "static_throughput", "req_s"),
    ({"metric": "req_s", "notes": "observed"}, "static_throughput", "req_s"),
    ({"metric": "decode_tok_s_total", "notes": "served"}, "static_throughput", "rates_served"),
    ({"metric": "ttft_ms", "engine": "llama-server", "version": "b5500", "weights": "Q4_K_M",
      "notes": "closed loop"}, "ttft", "ttft_served"),
    ({"metric": "ttft_ms", "engine": "LMDeploy", "notes": "benchmark_serving"}, "ttft",
     "ttft_served"),
    ({"metric": "prefill_ms", "batch": 1.0}, "prefill", "prefill_ms"),
    ({"metric": "prefill_tok_s", "batch": 1.0, "input": 511.0}, "prefill_short", "prefill_tok_s"),
    ({"metric": "prefill_tok_s", "batch": 1.0, "input": 512.0}, "prefill", "prefill_tok_s"),
    ({"metric": "ttft_ms", "batch": 1.0}, "prefill", "ttft_ms"),
    ({"metric": "ttft_ms", "batch": 1.0, "input": 64.0}, "prefill_short", "ttft_ms"),
    ({"metric": "ttft_ms"}, "ttft", "ttft_served"),
    ({"metric": "ttft_ms", "rate": "inf"}, "ttft", "ttft_served"),
    ({"metric": "ttft_ms", **STATIC}, "ttft", "prefill_ms"),
    ({"metric": "weights_gib"}, "memory", "weights_gib"),
])
def test_phases(changes: dict[str, Any], phase: str, figure: str) -> None:
    found = case(**changes)
    assert (found.phase, found.figure) == (phase, figure)


def test_throughput_beside_latencies_is_of_the_same_users() -> None:
    """No word of a server: the TTFT printed of the same run tells."""
    rows = [replace(ROW, metric=m) for m in ("ttft_ms", "throughput_out_tok_s", "req_s")]
    other = replace(ROW, metric="req_s", batch=16.0)
    found = cases_of([*rows, other])[0]
    assert [c.figure for c in found] == ["ttft_served", "out_served", "requests_served", "req_s"]


def test_a_burst_waits_for_half_of_the_others() -> None:
    """64 prompts at once: half of the other 63 are computed before the one in the middle."""
    alone, burst, steady = predict([
        case(metric="ttft_ms", **changes) for changes in (
            {"batch": 1.0, "input": 1024.0}, {"batch": 64.0, "rate": "burst"}, {"batch": 64.0}
        )]).expected
    assert case(metric="ttft_ms", batch=64.0, rate="burst").rounds == 1.0
    assert burst > 63.0 / 2.0 * 0.5 * alone
    assert burst > 2.0 * steady


def test_a_model_in_its_own_format_is_as_published() -> None:
    """gpt-oss: experts in MXFP4, the rest in 16 bits, whichever of the two names it."""
    own, wide = (case(model="gpt-oss-20b", weights=w).setup.weights for w in ("mxfp4", "bf16"))
    assert own is wide is None


@pytest.mark.parametrize("batch", [1.0, 16.0, 5000.0])
def test_a_served_run_tells_one_story(batch: float) -> None:
    """Requests in the system = rate x time of a request (Little): throughput, TTFT and TPOT of one
    run agree, also where users wait for a place."""
    metrics = ("ttft_ms", "tpot_ms", "throughput_out_tok_s", "throughput_total_tok_s", "req_s")
    cases = [case(metric=m, batch=batch, notes="closed loop", n_devices=2, tp=2) for m in metrics]
    ttft, tpot, out, total, rate = predict(cases).expected
    if batch == 1.0:
        ttft = predict([case(metric="ttft_ms", batch=batch, rate="inf", n_devices=2,
                             tp=2)]).expected[0]
    assert rate == pytest.approx(batch / ((ttft + 255.0 * tpot) * 1e-3))
    assert (out, total) == pytest.approx((256.0 * rate, 1280.0 * rate))


def test_the_rough_phase_is_the_phase() -> None:
    """What metric and batch alone tell agrees with the case, so that coverage is of one set."""
    for metric, batch, prompt in (("tpot_ms", 8.0, 64.0), ("tpot_ms", 1.0, 64.0),
                                  ("ttft_ms", 8.0, 64.0), ("ttft_ms", 1.0, 64.0),
                                  ("ttft_ms", 1.0, 600.0), ("prefill_ms", 1.0, 600.0),
                                  ("req_s", None, 64.0), ("req_s", 8.0, 64.0),
                                  ("peak_mem_gib", 1.0, 64.0)):
        found = case(metric=metric, batch=batch, input=prompt)
        assert rough_phase(found.row) == found.phase, metric


def test_every_metric_has_a_phase() -> None:
    """Also where a row can't be mapped, so that it is counted where it belongs."""
    for metric in METRICS:
        for batch in (None, 1.0, 8.0, "many"):
            assert rough_phase(replace(ROW, metric=metric, batch=batch)) in (
                *PHASES, "prefill_short", "memory")


def test_a_metric_without_a_prediction() -> None:
    assert "at a rate of their own" in refused(rate="2 req/s Poisson")
    assert "n_devices says 4" in refused(hardware="8x H100", n_devices=4)
    assert refused(metric="mood") == "metric without a prediction: mood"
    assert rough_phase(replace(ROW, metric="mood")) == "other"


@pytest.mark.parametrize("metric", ["tpot_ms", "ttft_ms", "prefill_ms", "decode_tok_s_per_user"])
def test_percentiles_are_no_means(metric: str) -> None:
    assert refused(metric=metric, notes="as printed; p99") == (
        "a percentile (p99), predictions are means")
    assert case(metric=metric, notes="median; p99 = 210 ms").row.metric == metric


def test_a_percentile_of_another_figure() -> None:
    """A limit on the tail conditions a throughput; a metric may be a percentile by its name."""
    assert case(metric="req_s", notes="p99").phase == "static_throughput"
    assert refused(metric="ttft_p95_ms") == "a percentile (p95), predictions are means"
    assert refused(metric="ttft_p50_ms") == "metric without a prediction: ttft_p50_ms"


@pytest.mark.parametrize(("changes", "reason"), [
    ({"batch": 1e9}, "1,000,000,000 sequences at once are more than 65,536 a device"),
    ({"input": 1e9}, "1,000,000,256 tokens are more than 32 times the 131,072 positions"),
    ({"output": 1e9}, "1,000,001,024 tokens are more than 32 times"),
    ({"input": 4e6}, "the cache of one sequence of 4,000,256 tokens exceeds the memory"),
    ({"n_devices": 10**6}, "n_devices 1,000,000: between 1 and 10,000"),
    ({"tp": 10**6}, "tp 1,000,000: between 1 and 10,000"),
    ({"pp": 10**6}, "pp 1,000,000: between 1 and 10,000"),
    ({"tp": 0}, "tp 0: between 1 and 10,000"),
    ({"pp": 0}, "pp 0: between 1 and 10,000"),
    ({"batch": 0.0}, "batch or concurrency below 1"),
    ({"input": 0.0, "metric": "ttft_ms"}, "a prompt of 0 tokens"),
    ({"input": 0.5}, "a prompt of 0.5 tokens"),
    ({"output": 0.0}, "an output of 0 tokens"),
    ({"output": 0.0, "metric": "req_s"}, "an output of 0 tokens"),
])
def test_what_nobody_can_have_measured(changes: dict[str, Any], reason: str) -> None:
    """Reported, never predicted; a prompt alone has no output, a decode alone no prompt."""
    cases, missing = cases_of([replace(ROW, **changes)])
    assert not cases
    assert reason in missing[0]


def test_long_contexts_that_fit_are_predicted() -> None:
    """Rotations scaled beyond the positions of the model, and what stands at the other edge."""
    assert cases_of([replace(ROW, input=400_000.0)])[1] == {}
    assert cases_of([replace(ROW, batch=65_536.0)])[1] == {}
    assert case(metric="prefill_ms", output=0.0).phase == "prefill"
    assert case(input=0.0).phase == "tpot"


@pytest.mark.parametrize(("changes", "degrees"), [
    ({"n_devices": 8, "tp": None}, (8, 1, 1, 1)),
    ({"n_devices": None, "tp": 4}, (4, 1, 1, 1)),
    ({"n_devices": None, "tp": 2, "pp": 2}, (2, 2, 1, 1)),
    ({"n_devices": 8, "tp": 4, "pp": 2}, (4, 2, 1, 1)),
    ({"n_devices": 8, "tp": 2}, (2, 1, 1, 4)),                   # the rest are replicas
    ({"n_devices": 8, "tp": 2, "metric": "throughput_out_tok_s"}, (2, 1, 1, 4)),
    ({"n_devices": 8, "tp": 8, "ep": 8, "model": "DeepSeek-R1", "weights": "fp8"}, (8, 1, 8, 1)),
    ({"n_devices": 8, "tp": 1, "ep": 8, "model": "DeepSeek-R1", "weights": "fp8"}, (1, 1, 8, 8)),
    ({"n_devices": 4, "engine": "llama.cpp", "version": ""}, (1, 4, 1, 1)),     # layers in turn
    ({"n_devices": 4, "engine": "llama.cpp", "version": "", "tp": 4}, (1, 4, 1, 1)),
])
def test_degrees(changes: dict[str, Any], degrees: tuple[int, int, int, int]) -> None:
    s = case(**changes).setup
    assert (s.tp, s.pp, s.ep, s.dp) == degrees
    assert s.devices == (changes["n_devices"] or s.tp * s.pp)
    assert s.deployment().devices == s.devices


def test_degrees_counted_in_cores() -> None:
    """24 cores of 12 chips: a degree that divides the heads, with more chips behind each rank."""
    s = case(hardware="AWS Inferentia2", engine="Transformers NeuronX", version="Neuron 2.18",
             n_devices=12, tp=24).setup
    assert s.devices == pytest.approx(12)
    assert 32 % s.tp == 0
    assert s.pooled == pytest.approx(12 / s.tp)
    chip = case(hardware="AWS Inferentia2", engine="Transformers NeuronX", n_devices=1).setup
    one, many = chip.deployment().hardware, s.deployment().hardware
    assert many.memory_capacity == pytest.approx(one.memory_capacity * s.pooled)
    assert many.memory_bandwidth == pytest.approx(one.memory_bandwidth * s.pooled)


def test_contradictory_degrees() -> None:
    assert "tp 3 x pp 1 doesn't make the 8 devices" in refused(n_devices=8, tp=3)
    assert "ep 3 doesn't divide tp 8" in refused(n_devices=8, tp=8, ep=3)
    assert "no devices" in refused(n_devices=0)
    assert refused(n_devices=1, tp=8) == "tp 8 is more than the 1 devices stated"
    said = refused(hardware="NVIDIA H200 SXM 141GB", n_devices=64, tp=64, ep=8,
                   model="DeepSeek-R1", weights="fp8")
    assert "printed as tp x ep?" in said


def test_what_was_not_one_deployment() -> None:
    assert "prefill and decode on different workers" in refused(engine="vllm (disagg)")
    assert "speculative decoding" in refused(notes="8k/1k, with MTP-3")
    assert "speculative decoding" in refused(notes="Speculative decoding: on")
    assert case(notes="best figures, no MTP").phase == "tpot"
    cpu = {"hardware": "Raspberry Pi 5 CPU", "engine": "llama.cpp", "batch": 1.0,
           "metric": "decode_tok_s_per_user"}
    assert "some of the processor's cores" in refused(notes="threads=1", **cpu)
    assert case(notes="threads=4", **cpu).phase == "batch1_decode"


def test_lengths() -> None:
    """Not stated beside a decode rate at batch 1: a short chat, which is said; else no case."""
    short = case(metric="decode_tok_s_per_user", batch=1.0, input=None, output=None)
    assert (short.input, short.output) == (128.0, 128.0)
    assert "lengths not stated, 128 + 128 assumed" in short.assumed
    assert "length not stated" in refused(input=None)
    assert "length not stated" in refused(metric="throughput_out_tok_s", output=None)
    assert case(metric="prefill_ms", batch=1.0, output=None).output == 1.0
    assert case(input="few tokens").input == 8.0
    assert "length is not a number: ShareGPT" in refused(input="ShareGPT")
    assert "length is not a number: ShareGPT" in refused(output="ShareGPT")
    assert case(input=0.0).input == 1.0
    assert case().assumed == ""
    assert "engine version not stated" in case(date="", version="").assumed


def test_batches() -> None:
    assert "batch or concurrency not stated" in refused(batch=None)
    assert "below 1" in refused(batch=0.5)
    assert case(metric="req_s", batch=None).batch is None
    assert case(batch=32.0).batch == 32.0


def test_formats() -> None:
    """As printed; a 16-bit file of a model whose experts are narrower keeps the model's own."""
    s = case(model="gpt-oss-20b-F16", weights="").setup
    assert s.weights is None
    s = case(weights="fp8").setup
    assert (s.weights, s.activations) == ("fp8", "fp8")
    s = case(weights="fp8", hardware="NVIDIA A100 SXM 80GB").setup
    assert s.activations != "fp8"                     # no unit for it there
    total = 8_030_261_248
    s = case(model="llama-3.1-8b.Q4_K_M", weights="", notes=f"model_bytes={total // 2}").setup
    assert s.weights is not None
    assert s.weights.startswith("mix-")
    assert float(s.weights.removeprefix("mix-")) == pytest.approx(4.0, rel=0.01)
    assert case(kv="fp8").setup.kv == "fp8"


def test_larger_than_the_memory() -> None:
    """Seen when the deployment is built: all rows of that setup have the reason."""
    big = replace(ROW, model="Llama-3.1-405B")
    cases, missing = cases_of([big, ROW, replace(big, batch=1.0)])
    assert [c.index for c in cases] == [1]
    assert set(missing) == {0, 2}
    assert all("exceed the memory" in reason for reason in missing.values())


def test_a_degree_that_heads_do_not_allow() -> None:
    cases, missing = cases_of([replace(ROW, n_devices=6, tp=6)])
    assert cases == []
    assert "deployment not possible: tp: 6" in missing[0]


def test_a_known_benchmark_sets_rounds_and_mean_lengths() -> None:
    plain, known = case(), case(notes="InferenceMAX db-dump")
    assert (plain.rounds, plain.input, plain.output) == (None, 1024.0, 256.0)
    assert known.rounds == 10.0
    assert (known.input, known.output) == pytest.approx((0.9 * 1024, 0.9 * 256))


# From InferenceMAX's public scripts; SGLang takes up requests every 10 or 30 steps, so half that.
@pytest.mark.parametrize(("changes", "steps"), [
    ({"engine": "sglang", "hardware": "NVIDIA B200 SXM 180GB", "batch": 15.0}, 5.0),
    ({"engine": "sglang", "hardware": "NVIDIA B200 SXM 180GB", "batch": 16.0}, 15.0),
    ({"engine": "sglang", "hardware": "NVIDIA B200 SXM 180GB", "batch": 32.0, "tp": 4,
      "n_devices": 4, "weights": "fp8"}, 5.0),
    ({"engine": "sglang", "hardware": "NVIDIA H200 SXM 141GB", "batch": 16.0}, 0.0),
    ({"engine": "trtllm", "model": "meta-llama/Llama-3.1-70B", "n_devices": 4, "tp": 4}, 20.0),
    ({"engine": "trtllm", "model": "meta-llama/Llama-3.1-70B", "n_devices": 8, "tp": 8}, 0.0),
    ({"engine": "trtllm", "model": "meta-llama/Llama-3.1-70B", "n_devices": 4, "tp": 4,
      "output": 8192.0}, 0.0),
])
def test_a_known_benchmark_tells_how_long_its_server_holds_requests(changes: dict[str, Any],
                                                                    steps: float) -> None:
    asked = {"metric": "ttft_ms", "weights": "bf16", "input": 1024.0, "output": 1024.0, **changes}
    assert case(notes="InferenceMAX db-dump", **asked).held == steps
    assert case(notes="", **asked).held == 0.0


@pytest.mark.parametrize(("batch", "notes", "dp"), [
    (64.0, "", 1), (4096.0, "", 8), (4096.0, "agg tp=8 attn_dp=1", 1)])
def test_more_sequences_than_one_latent_cache_holds(batch: float, notes: str, dp: int) -> None:
    # Eight ranks hold MLA's cache eight times, unless each attends to sequences of its own.
    found = case(hardware="NVIDIA H200 SXM 141GB", n_devices=8, engine="TensorRT-LLM",
                 version="1.0", model="DeepSeek-R1", weights="fp8", batch=batch, input=1024.0,
                 output=2048.0, metric="throughput_out_tok_s", notes=notes)
    assert (found.setup.dp, found.setup.ep) == (dp, dp)
    assert (APART in found.assumed) == (dp > 1)


def test_the_host_beside_a_device_is_its_own() -> None:
    found = [case(hardware=f"{host} (Nvidia RTX 4090)", engine="Ollama").setup.deployment()
             for host in ("Pi CM5 - 16GB", "Intel 265K Custom PC")]
    assert [d.hardware.host for d in found] == ["cortex-a76", "core-ultra-7-265k"]
    slow, fast = (float(d.host_times[0]) for d in found)
    assert slow > 3.0 * fast


def test_runs_on_the_processor_beside_a_device_are_refused() -> None:
    assert refused(hardware="Framework Mainboard (128GB)", engine="Ollama",
                   notes="run on CPU; quant inferred") == (
        "ran on the processor, not on the device named")
    assert case(hardware="Pi 5 - 16GB", engine="Ollama", notes="run on CPU").setup.tp == 1


@pytest.mark.parametrize(("model", "copies"), [
    ("Mistral-7B-Instruct-v0.2", 2.0),    # 8 KV heads on 24 cores: three times each
    ("Llama-2-13b", 0.2),                 # 40, padded to 48
])
def test_cores_hold_whole_kv_heads(model: str, copies: float) -> None:
    setup = case(hardware="AWS Inferentia2", n_devices=12, tp=24, engine="Transformers NeuronX",
                 model=model).setup
    assert setup.copies == pytest.approx(copies)
    d = setup.deployment()
    assert d.engine.cache_copies == pytest.approx(copies)


@pytest.mark.parametrize(("changes", "devices"), [
    ({"hardware": "AMD EPYC 9654", "engine": "llama.cpp (CPU)", "model": "Llama-3.1-70B",
      "weights": "Q4_K_M"}, 2),
    ({"hardware": "NVIDIA H100 SXM 80GB", "tp": 16}, 16),
    ({"hardware": "Apple M4 Max (40-core GPU)", "engine": "MLX", "weights": "4bit"}, 2)])
def test_devices_that_nothing_joins_are_not_covered_row_by_row(changes: dict[str, Any],
                                                              devices: int) -> None:
    """A row of a group beyond its link is refused with the reason, or predicted over the next
    link; the rows beside it are scored all the same."""
    rows = [ROW, replace(ROW, **{"n_devices": devices, **changes}), ROW]
    cases, missing = cases_of(rows)
    assert [c.index for c in cases] == [i for i in range(3) if i not in missing]
    assert 0 not in missing
    assert 2 not in missing
    for reason in missing.values():
        assert "what joins" in reason
    assert np.all(predict(cases).expected > 0)
