"""What runs the model: its fixed costs, how it allocates memory, with version and date.

An engine file may inherit from another and then states only what differs.
"""

from __future__ import annotations

import os
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
    decode_scale       multiplier on the kernel times of decode; prefill_scale that of prefill
    host_time          fixed host time a step: scheduling, sampling, detokenising
    layer_time         fixed time a layer beyond the kernels' own floors
    fused              residual adds and activations run inside their neighbours
    unfused_attention  scores are written to memory
    head_replicated    every tensor-parallel rank holds and streams the whole LM head
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
    """

    name: str
    title: str
    version: str
    date: str
    source: str
    notes: tuple[str, ...] = ()
    ideal: bool = False
    decode_scale: float = 1.0
    prefill_scale: float = 1.0
    host_time: float = 0.0
    layer_time: float = 0.0
    fused: bool = True
    unfused_attention: bool = False
    head_replicated: bool = False
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
_DIMENSIONS = {"host_time": "time", "layer_time": "time", "context_bytes": "memory"}


def engine_names() -> list[str]:
    """Names of the engines that come with tokline."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_engine(name: str) -> Engine:
    """Engine by name or YAML path."""
    path = _FOLDER / f"{name.strip().lower()}.yaml"
    if not os.path.isfile(path):
        path = Path(name)
        if path.suffix.lower() not in (".yaml", ".yml"):
            raise InputError(f"unknown engine '{name}'{nearest(name, engine_names())}")
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
    for key in ("decode_scale", "prefill_scale", "memory_fraction"):
        if getattr(engine, key) <= 0:
            raise InputError(f"{where}: {key}: {getattr(engine, key)} must be above 0")
    if engine.memory_fraction > 1:
        raise InputError(f"{where}: memory_fraction: {engine.memory_fraction} is above 1")
    for key in ("host_time", "layer_time", "context_bytes"):
        if getattr(engine, key) < 0:
            raise InputError(f"{where}: {key} is negative")
    for key in ("block_size", "mla_block_size", "group_padding"):
        value = getattr(engine, key)
        if value is not None and not value >= 1:
            raise InputError(f"{where}: {key}: {value} must be at least 1")
    if engine.batched_tokens is not None and engine.batched_tokens < 1:
        raise InputError(f"{where}: batched_tokens: {engine.batched_tokens} must be at least 1")
