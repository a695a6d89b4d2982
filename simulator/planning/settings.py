"""Ready-to-use settings of the serving engines for one replica of a plan.

Flags as documented by vLLM (engine arguments), SGLang (server arguments) and TensorRT-LLM
(trtllm-serve). Each engine counts its share of the memory differently, so the KV room that the plan
counts on is translated: of the whole device (vLLM), of weights and KV (SGLang), of what weights and
activations leave (TensorRT-LLM).
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, field

import numpy as np

from simulator.memory import memory
from simulator.planning.ask import Ask
from simulator.planning.finalists import set_up
from simulator.planning.search import Option
from simulator.specs.model import Model

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:\s|$)")
ENGINES = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True)
class Settings:
    """What starts one replica of an engine.

    command  one shell command; files: texts that it reads, by name
    planned  whether it is the engine that the plan's figures are of
    notes    what the command can't say
    """

    engine: str
    command: str
    files: dict[str, str] = field(default_factory=dict)
    planned: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Numbers:
    """What the engines are told, whatever their flags are called."""

    model: str
    tp: int
    pp: int
    dp: int
    ep: int
    nodes: int
    sequences: int
    tokens: int
    length: int
    weights: str
    kv: str
    own: bool
    of_device: float
    of_static: float
    of_free: float
    prefix: bool


def repository(model: Model) -> str | None:
    """The Hugging Face id that the model's file names as its source."""
    source = "" if model.source is None else model.source.source or ""
    found = _REPOSITORY.match(source)
    return None if found is None else found.group(1)


def model_length(longest: int, positions: float) -> int:
    """Context to ask for: the longest request in whole thousands of 1024, at most the model's."""
    return int(min(math.ceil(longest / 1024) * 1024, positions))


def _floor(value: float) -> float:
    """Two decimals, so that the engine never gets more than planned; at least 0.05."""
    return max(math.floor(min(value, 0.98) * 100.0 + 1e-9) / 100.0, 0.05)


def _numbers(ask: Ask, o: Option) -> _Numbers:
    assert o.setting is not None
    d, p = set_up(o), o.candidate.parallelism
    longest = ask.load.longest
    m = memory(d, 1.0, max(float(longest - 1), 1.0), 1.0)
    capacity, weights, act = float(m.capacity), float(m.weights), float(m.activations)
    context = d.engine.context_bytes
    room = capacity - weights - act - float(m.reserved)
    return _Numbers(
        repository(d.model) or d.model.name, p.tp, p.pp, p.dp, p.ep, o.candidate.nodes,
        o.setting.places, o.setting.budget, model_length(longest, float(np.max(d.model.positions))),
        d.weight_format("ffn").name, d.kv_format.name, d.weights is None,
        _floor((weights + act + context + room) / capacity), _floor((weights + room) / capacity),
        _floor(room / max(capacity - weights - act - context, 1.0)),
        bool(ask.load.shared_prefix) or ask.requests.blocks is not None)


def settings(ask: Ask, o: Option) -> list[Settings]:
    """The commands of every engine, that of the plan first."""
    n, planned = _numbers(ask, o), o.candidate.deployment.engine.name
    own = next((e for e in ENGINES if planned.startswith(e)), None)
    makers = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt}
    vendor = (o.candidate.offer.hardware.vendor or "").lower()
    runs = [e for e in ENGINES if e != "tensorrt-llm" or "nvidia" in vendor]
    order = sorted(runs, key=lambda e: e != own)
    return [makers[e](n, e == own) for e in order]


def _checkpoint(n: _Numbers, online: tuple[str, ...]) -> tuple[str, ...]:
    """A note where the weights must come in their format."""
    if n.own or n.weights in ("bf16", "fp16", *online):
        return ()
    return (f"the plan counts on {n.weights} weights: name a checkpoint in that format",)


def _joined(first: str, flags: list[tuple[str, object]]) -> str:
    words = [f"{name} {shlex.quote(str(value))}" if value != "" else name for name, value in flags]
    return " \\\n  ".join([first, *words])


def _kv(name: str) -> str:
    return "fp8" if name.startswith("fp8") else "auto"


def _vllm(n: _Numbers, planned: bool) -> Settings:
    flags: list[tuple[str, object]] = [("--tensor-parallel-size", n.tp)]
    if n.pp > 1:
        flags.append(("--pipeline-parallel-size", n.pp))
    if n.dp > 1:
        flags.append(("--data-parallel-size", n.dp))
    if n.ep > 1:
        flags.append(("--enable-expert-parallel", ""))
    if n.weights.startswith("fp8") and not n.own:
        flags.append(("--quantization", "fp8"))
    flags += [("--kv-cache-dtype", _kv(n.kv)), ("--max-model-len", n.length),
              ("--max-num-seqs", n.sequences), ("--max-num-batched-tokens", n.tokens),
              ("--gpu-memory-utilization", n.of_device), ("--enable-chunked-prefill", ""),
              ("--enable-prefix-caching" if n.prefix else "--no-enable-prefix-caching", "")]
    notes = list(_checkpoint(n, ("fp8", "fp8-channel", "fp8-block")))
    if n.nodes > 1:
        notes.append(f"{n.nodes} nodes: start it on a Ray cluster of them "
                     "(--distributed-executor-backend ray)")
    return Settings("vllm", _joined(f"vllm serve {shlex.quote(n.model)}", flags), {}, planned,
                    tuple(notes))


def _sglang(n: _Numbers, planned: bool) -> Settings:
    flags: list[tuple[str, object]] = [
        ("--model-path", n.model), ("--tp-size", n.tp * n.dp if n.ep > 1 else n.tp)]
    if n.pp > 1:
        flags.append(("--pp-size", n.pp))
    if n.dp > 1:
        flags += [("--dp-size", n.dp), ("--enable-dp-attention", "")]
    if n.ep > 1:
        flags.append(("--ep-size", n.ep))
    if n.weights.startswith("fp8") and not n.own:
        flags.append(("--quantization", "fp8"))
    flags += [("--kv-cache-dtype", "fp8_e4m3" if _kv(n.kv) == "fp8" else "auto"),
              ("--context-length", n.length), ("--max-running-requests", n.sequences * n.dp),
              ("--chunked-prefill-size", n.tokens * n.dp), ("--mem-fraction-static", n.of_static)]
    if not n.prefix:
        flags.append(("--disable-radix-cache", ""))
    notes = list(_checkpoint(n, ("fp8", "fp8-channel", "fp8-block")))
    if n.nodes > 1:
        flags.append(("--nnodes", n.nodes))
        notes.append("start it on each node with its --node-rank and the same --dist-init-addr")
    return Settings("sglang", _joined("python -m sglang.launch_server", flags), {}, planned,
                    tuple(notes))


def _tensorrt(n: _Numbers, planned: bool) -> Settings:
    flags: list[tuple[str, object]] = [("--tp_size", n.tp * n.dp if n.ep > 1 else n.tp)]
    if n.pp > 1:
        flags.append(("--pp_size", n.pp))
    if n.ep > 1:
        flags.append(("--ep_size", n.ep))
    flags += [("--max_batch_size", n.sequences), ("--max_num_tokens", n.tokens),
              ("--max_seq_len", n.length), ("--kv_cache_free_gpu_memory_fraction", n.of_free),
              ("--extra_llm_api_options", "options.yaml")]
    lines = ["enable_chunked_prefill: true", *(["enable_attention_dp: true"] if n.dp > 1 else []),
             "kv_cache_config:", f"  enable_block_reuse: {str(n.prefix).lower()}",
             f"  free_gpu_memory_fraction: {n.of_free}", f"  dtype: {_kv(n.kv)}"]
    return Settings("tensorrt-llm", _joined(f"trtllm-serve {shlex.quote(n.model)}", flags),
                    {"options.yaml": "\n".join(lines) + "\n"}, planned, _checkpoint(n, ()))
