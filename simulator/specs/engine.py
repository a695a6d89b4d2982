"""What runs the model: its fixed costs, how it allocates memory, with version and date.

An engine file may inherit from another and then states only what differs.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from simulator.errors import InputError, nearest
from simulator.specs.sourced import check_keys
from simulator.specs.strict_yaml import load_yaml
from simulator.units import parse_quantity


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An inference engine. Times [s], sizes [bytes], all per device or per step as named.

    ideal              no efficiency, no kernel floor, no host: expected = ceiling
    memory_scale       multiplier on the time that kernels take to move their bytes;
                       compute_scale that of their arithmetic in prefill; launch_scale of floors
    prefill_launch_scale  times more that floors take in prefill, where no graph holds the kernels
                       and the host launches each
    host_time          fixed host time a step: scheduling, sampling, detokenising
    sequence_time      host time of each sequence in a step: its scheduling, sampling and text
    layer_time         fixed time a layer beyond the kernels' own floors; expert_share: as a share
                       of it, that of each expert, where a loop calls all of them
    fused              residual adds and activations run inside their neighbours
    unfused_attention  scores are written to memory
    head_replicated    every tensor-parallel rank holds and streams the whole LM head
    kernels            library whose kernels it runs (efficiency/fitted/): vllm, sglang, trtllm;
                       None: all pooled
    collective_library whose all-reduce lines hold, beside NCCL's (efficiency/collectives.yaml)
    overlap            share of a collective that hides behind arithmetic
    memory_policy      what `memory_fraction` is a share of: `total` (vLLM: the device's memory, of
                       which the engine may take so much), `static` (SGLang: weights and KV
                       alone), `free` (TensorRT-LLM: what weights and activations leave), `all`
                       (no reserve)
    context_bytes      runtime context, graphs and communication buffers
    kv_allocator       how KV memory is reserved, see simulator/allocation.py
    block_size         tokens a KV block; mla_block_size: of latent attention, where it differs
    group_padding      hybrid allocator: where the commonest kind of layer has less than this many
                       times the layers of the rarest, all kinds are padded to it
    log_tokens         what the log calls tokens of a hybrid pool: `blocks` of one group, or
                       `concurrency` times the context
    state_format       recurrent state of models that name no format for it
    conv_format        last columns of the short convolutions, kept beside the recurrent state
    conv_columns       `past`: all but the newest column, which the step has at hand
    batched_tokens     largest number of tokens in one pass, which sizes the activations;
                       None: the whole prompt of the whole batch
    continuous         requests join and leave the batch between steps; else it is static
    serves             as a server it does so too, where a source says that it ran as one
    prefills_alone     prompts of a static batch are computed one after the other
    splits             what several devices share unless told: `tensor` parallel, or `layers` in
                       turn
    quantised_head     the LM head is quantised too; in GGUF files the embedding as well
    async_host         the host dispatches kernels while the device works (eager): a step takes the
                       longer of the two, not their sum
    fp16_accumulate    16-bit products are summed in fp16, where the device is faster at that
    kv_copies          times that decode attention reads or writes the cache, expanded to all query
                       heads, beyond reading it once; cache_copies: of the cache as it is
    vector_products    weight-only products run on the vector units, which expand the weights anew
                       for each row (GEMV kernels)
    streams_experts    experts of a decode step run kernels for single rows, which have no tiles
    dequantises        weight-only formats are expanded to 16 bits in memory before each product
    prefill_chunk      prompt tokens a step at most, whatever is asked; None: the whole prompt
    fp8_kv             served with an FP8 KV cache where the products are FP8: what an unstated
                       cache format of a measured row is taken to be
    max_sequences      sequences in a step at most
    request_time       fixed time of a request outside the steps: HTTP, tokens, admission
    queue_steps        decode steps that a new request waits for its turn under load;
                       balance_steps: those more where ranks attend apart and share experts, and
                       wait for each other's requests
    interference       share of a prefill by which it delays the others' decode steps
    burst              share of the others' prefills that a new request waits for
    fill               share of its largest rate that a saturated engine reaches: scheduling gaps
    admits             KV that a request must find free to start: of its `whole` length, or of the
                       `current` one, which grows
    """

    name: str
    title: str
    version: str
    date: str
    source: str
    notes: tuple[str, ...] = ()
    ideal: bool = False
    memory_scale: float = 1.0
    compute_scale: float = 1.0
    launch_scale: float = 1.0
    prefill_launch_scale: float = 1.0
    host_time: float = 0.0
    layer_time: float = 0.0
    expert_share: float = 0.0
    sequence_time: float = 0.0
    fused: bool = True
    unfused_attention: bool = False
    head_replicated: bool = False
    kernels: str | None = None
    collective_library: str = "nccl"
    overlap: float = 0.0
    memory_policy: Literal["total", "static", "free", "all"] = "all"
    memory_fraction: float = 1.0
    kv_allocator: Literal["exact", "windowed", "uniform", "hybrid", "cells"] = "exact"
    context_bytes: float = 0.0
    block_size: int = 1
    mla_block_size: int | None = None
    group_padding: float = 1.25
    log_tokens: Literal["blocks", "concurrency"] = "blocks"
    state_format: Literal["fp32", "activations"] = "fp32"
    conv_format: Literal["fp32", "activations"] = "fp32"
    conv_columns: Literal["all", "past"] = "all"
    batched_tokens: int | None = None
    continuous: bool = False
    serves: bool = False
    prefills_alone: bool = False
    splits: Literal["tensor", "layers"] = "tensor"
    quantised_head: bool = False
    fp8_kv: bool = False
    async_host: bool = False
    fp16_accumulate: bool = False
    kv_copies: float = 0.0
    cache_copies: float = 0.0
    vector_products: bool = False
    streams_experts: bool = False
    dequantises: bool = False
    prefill_chunk: int | None = None
    max_sequences: int | None = None
    request_time: float = 0.0
    queue_steps: float = 0.0
    balance_steps: float = 0.0
    interference: float = 1.0
    burst: float = 0.05
    fill: float = 1.0
    admits: Literal["whole", "current"] = "current"

    @classmethod
    def load(cls, name: str | Path) -> Engine:
        """Engine by name or YAML path."""
        return load_engine(str(name))

    def replace(self, **fields: Any) -> Engine:
        """A copy with some fields set; a number may be an array."""
        for key in fields:
            if key not in self.__struct_fields__:
                raise InputError(f"engine '{self.name}': unknown field '{key}'"
                                 f"{nearest(key, self.__struct_fields__)}")
        return msgspec.structs.replace(self, **fields)


_FOLDER = Path(__file__).resolve().parent.parent / "engines"
_DIMENSIONS = {"host_time": "time", "layer_time": "time", "sequence_time": "time",
               "request_time": "time",
               "context_bytes": "memory"}


def engine_names() -> list[str]:
    """Names of the engines that come with tokline."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


# What people call engines, without signs; by its letters another name may be nearer.
_SHORT = {"trtllm": "tensorrt-llm", "trt": "tensorrt-llm", "tensorrt": "tensorrt-llm",
          "tensorrtllm": "tensorrt-llm", "llamacpp": "llama.cpp", "hf": "transformers"}


def load_engine(name: str) -> Engine:
    """Engine by name or YAML path."""
    path = _FOLDER / f"{name.strip().lower()}.yaml"
    if not os.path.isfile(path):
        path = Path(name)
        if path.suffix.lower() not in (".yaml", ".yml"):
            meant = _SHORT.get(re.sub(r"[^a-z]", "", name.lower()), name)
            raise InputError(f"unknown engine '{name}'{nearest(meant, engine_names())}")
        if not os.path.isfile(path):
            raise InputError(f"engine '{name}': no such file")
    return _read_engine(path, ())


@lru_cache(maxsize=64)
def _read_engine(path: Path, above: tuple[str, ...]) -> Engine:
    data = load_yaml(path)
    where = str(path)
    parent = data.pop("inherits", None)
    check_keys(data, Engine.__struct_fields__, where)
    base: dict[str, Any] = {}
    if parent is not None:
        if str(parent) in above or str(parent) == path.stem:
            raise InputError(f"{where}: inherits: '{parent}' inherits from itself")
        file = _FOLDER / f"{parent}.yaml"
        if not os.path.isfile(file):
            raise InputError(f"{where}: inherits: unknown engine '{parent}'"
                             f"{nearest(str(parent), engine_names())}")
        base = msgspec.structs.asdict(_read_engine(file, (*above, path.stem)))
        base["notes"] = ()
    values = base | {
        key: parse_quantity(value, _DIMENSIONS[key], f"{where}: {key}")
        if key in _DIMENSIONS else value
        for key, value in data.items()
    }
    for key in ("name", "title", "version", "date", "source"):
        if values.get(key) is None:
            raise InputError(f"{where}: '{key}' is missing")
    try:
        engine = msgspec.convert(values, Engine, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {str(error).replace('`', '')}") from None
    _check(engine, where)
    return engine


def _check(engine: Engine, where: str) -> None:
    for key in ("memory_scale", "compute_scale", "launch_scale",
                "prefill_launch_scale", "memory_fraction", "fill"):
        if getattr(engine, key) <= 0:
            raise InputError(f"{where}: {key}: {getattr(engine, key)} must be above 0")
    if engine.memory_fraction > 1:
        raise InputError(f"{where}: memory_fraction: {engine.memory_fraction} is above 1")
    for key in ("host_time", "layer_time", "sequence_time", "request_time", "context_bytes",
                "queue_steps", "balance_steps", "interference", "burst", "expert_share",
                "kv_copies", "cache_copies"):
        if getattr(engine, key) < 0:
            raise InputError(f"{where}: {key} is negative")
    for key in ("block_size", "mla_block_size", "group_padding"):
        value = getattr(engine, key)
        if value is not None and not value >= 1:
            raise InputError(f"{where}: {key}: {value} must be at least 1")
    for key in ("batched_tokens", "max_sequences", "prefill_chunk"):
        value = getattr(engine, key)
        if value is not None and value < 1:
            raise InputError(f"{where}: {key}: {value} must be at least 1")
