"""Engine settings: each matches what was planned, in the engine's own words."""

from __future__ import annotations

import shlex
from dataclasses import replace

import numpy as np
import pytest

from simulator.planning.ask import Ask, load_of, made_up, offers
from simulator.planning.candidates import Setting, candidates
from simulator.planning.search import Option, sized_at
from simulator.planning.settings import Settings, model_length, repository, settings
from simulator.serving.arrivals import Arrivals
from simulator.serving.lengths import parse_lengths
from simulator.sharding import Parallelism
from simulator.specs.catalogue import load_model
from simulator.specs.engine import load_engine


def planned(model: str, hardware: str, p: Parallelism, text: str = "own", engine: str = "vllm",
            shared: int = 0) -> tuple[Ask, Option]:
    """One candidate, sized by hand: 3 replicas, 96 sequences, 4096 tokens a step."""
    requests = made_up(parse_lengths("1500", ""), parse_lengths("300", ""), 1.0, Arrivals(), 1,
                       shared_prefix=shared)
    ask = Ask(load_model(model), offers(hardware, {}, False), (load_engine(engine),), 1.0, requests,
              load_of(requests, False, Arrivals()), formats=(text,))
    found = next(c for c in candidates(ask) if c.parallelism == p and c.profile is not None)
    return ask, sized_at(ask, (found, Setting(4096, 96)), 3, 1.0)


def flags(s: Settings) -> dict[str, str]:
    """Flags of a command with their values."""
    words, found = shlex.split(s.command.replace("\\\n", " ")), {}
    for word, value in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if value.startswith("--") else value
    return found


def by_engine(ask: Ask, o: Option) -> dict[str, Settings]:
    return {s.engine: s for s in settings(ask, o)}


def test_vllm_is_told_what_was_planned() -> None:
    found = by_engine(*planned("llama-3.1-70b", "h100", Parallelism(tp=4, pp=2)))
    assert next(iter(found)) == "vllm"
    assert found["vllm"].planned
    assert found["vllm"].command.startswith("vllm serve meta-llama/")
    f = flags(found["vllm"])
    assert f["--tensor-parallel-size"] == "4"
    assert f["--pipeline-parallel-size"] == "2"
    assert f["--max-num-seqs"] == "96"
    assert f["--max-num-batched-tokens"] == "4096"
    assert f["--gpu-memory-utilization"] == "0.9"
    assert f["--max-model-len"] == "2048"
    assert "--enable-chunked-prefill" in f
    assert "--no-enable-prefix-caching" in f
    assert "--quantization" not in f
    assert "--data-parallel-size" not in f


def test_the_other_engines_are_told_the_same_in_their_words() -> None:
    found = by_engine(*planned("llama-3.1-70b", "h100", Parallelism(tp=4, pp=2), shared=512))
    sglang, trt = flags(found["sglang"]), flags(found["tensorrt-llm"])
    assert (sglang["--tp-size"], sglang["--pp-size"]) == ("4", "2")
    assert sglang["--max-running-requests"] == "96"
    assert sglang["--chunked-prefill-size"] == "4096"
    assert sglang["--context-length"] == "2048"
    assert "--disable-radix-cache" not in sglang
    assert (trt["--tp_size"], trt["--pp_size"]) == ("4", "2")
    assert (trt["--max_batch_size"], trt["--max_num_tokens"]) == ("96", "4096")
    options = found["tensorrt-llm"].files["options.yaml"]
    assert "enable_chunked_prefill: true" in options
    assert "enable_block_reuse: true" in options
    assert "--enable-prefix-caching" in flags(found["vllm"])


def test_memory_shares_leave_the_same_kv_room() -> None:
    ask, o = planned("llama-3.1-8b", "h100", Parallelism())
    found = by_engine(ask, o)
    static = float(flags(found["sglang"])["--mem-fraction-static"])
    free = float(flags(found["tensorrt-llm"])["--kv_cache_free_gpu_memory_fraction"])
    h = ask.offers[0].hardware
    weights = 16.06e9    # 8.03e9 parameters at two bytes
    room = static * h.memory_capacity - weights
    assert free * (h.memory_capacity - weights) == pytest.approx(room, rel=0.06)
    assert static < float(flags(found["vllm"])["--gpu-memory-utilization"]) + 0.005


def test_fp8_is_quantised_at_the_start_other_formats_need_a_checkpoint() -> None:
    fp8 = by_engine(*planned("llama-3.1-8b", "h100", Parallelism(), "fp8/fp8/fp8"))
    assert flags(fp8["vllm"])["--quantization"] == "fp8"
    assert flags(fp8["vllm"])["--kv-cache-dtype"] == "fp8"
    assert flags(fp8["sglang"])["--kv-cache-dtype"] == "fp8_e4m3"
    assert "dtype: fp8" in fp8["tensorrt-llm"].files["options.yaml"]
    assert any("checkpoint" in note for note in fp8["tensorrt-llm"].notes)
    int4 = by_engine(*planned("llama-3.1-8b", "h100", Parallelism(), "int4-g128"))
    assert "--quantization" not in flags(int4["vllm"])
    assert any("int4-g128" in note for note in int4["vllm"].notes)


def test_experts_are_spread_as_planned() -> None:
    found = by_engine(*planned("deepseek-v3", "h200", Parallelism(tp=1, ep=8, dp=8)))
    vllm, sglang, trt = (flags(found[e]) for e in ("vllm", "sglang", "tensorrt-llm"))
    assert vllm["--data-parallel-size"] == "8"
    assert "--enable-expert-parallel" in vllm
    assert "--quantization" not in vllm     # its own checkpoint is in fp8
    assert (sglang["--tp-size"], sglang["--dp-size"], sglang["--ep-size"]) == ("8", "8", "8")
    assert "--enable-dp-attention" in sglang
    assert (trt["--tp_size"], trt["--ep_size"]) == ("8", "8")
    assert "enable_attention_dp: true" in found["tensorrt-llm"].files["options.yaml"]


def test_the_engine_of_the_plan_comes_first() -> None:
    found = settings(*planned("llama-3.1-8b", "h100", Parallelism(), engine="sglang"))
    assert [s.engine for s in found] == ["sglang", "vllm", "tensorrt-llm"]
    assert [s.planned for s in found] == [True, False, False]


def test_tensorrt_is_not_offered_for_other_vendors() -> None:
    found = settings(*planned("llama-3.1-8b", "mi300x", Parallelism()))
    assert [s.engine for s in found] == ["vllm", "sglang"]


def test_a_model_without_a_known_repository_keeps_its_name() -> None:
    model = load_model("llama-3.1-8b")
    assert repository(model) == "meta-llama/Meta-Llama-3.1-8B"
    assert repository(model.replace(source=None)) is None
    ask, o = planned("llama-3.1-8b", "h100", Parallelism())
    anonymous = replace(o.candidate, base=o.candidate.base.replace(  # type: ignore[union-attr]
        model=model.replace(source=None, name="mine")))
    assert "vllm serve mine " in settings(ask, replace(o, candidate=anonymous))[0].command


def test_context_lengths_are_whole_thousands_within_the_model() -> None:
    assert model_length(1800, 131_072.0) == 2048
    assert model_length(2048, 131_072.0) == 2048
    assert model_length(131_000, 131_072.0) == 131_072
    assert model_length(4000, 4000.0) == 4000
    assert all(model_length(int(n), 8192.0) >= n for n in np.arange(1, 8193, 97))
