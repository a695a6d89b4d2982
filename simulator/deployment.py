"""What is asked: a model on hardware with an engine, split and quantised, under a workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np

from simulator.arrays import Array, holds_arrays
from simulator.efficiency.hosts import host_times
from simulator.errors import InputError, nearest
from simulator.formats import NumberFormat, compute_format, file_head, number_format
from simulator.offload import Offload
from simulator.sharding import Parallelism, check_parallelism
from simulator.specs.engine import Engine, load_engine
from simulator.specs.hardware import FP16_SUMS, Hardware
from simulator.specs.model import FORMAT_CLASSES, Model
from simulator.speculation import Speculation

# Roles that a weight format applies to; all other weights stay at 16 bits unless named.
QUANTISED_ROLES = ("attention", "ffn", "experts", "shared_experts", "ssm")
# Roles that may have a format of their own.
FORMAT_ROLES = tuple(c for c in FORMAT_CLASSES if c != "weights")


@dataclass(frozen=True)
class Workload:
    """Concurrent sequences of the deployment, prompt and output length [tokens]; may be arrays."""

    batch: Array = 1
    input: Array = 1024
    output: Array = 256


F = TypeVar("F", bound=Callable[..., Any])


def once(function: F) -> F:
    """Work out what depends on a deployment alone once for each, since an estimate asks often."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(d: Deployment) -> Any:
        if name not in d.memo:
            d.memo[name] = function(d)
        return d.memo[name]

    return kept  # type: ignore[return-value]


@dataclass(frozen=True)
class Deployment:
    """A model on hardware with an engine; see `Deployment.of` for names instead of specs.

    weights, activations, kv   number formats; None: the model's own, bf16, that of activations
    formats        exceptions by role, as in {"head": "int8"}
    prefix_hit     share of the prompt found in the prefix cache, between 0 and 1; hits come in
                   whole blocks of the engine
    speculation    what drafts tokens, if anything
    chunk          prompt tokens a step where prefill is chunked; None: the prompt in one pass
    expert_skew    factor on the expected largest load of an expert-parallel rank; 1: uniform
                   routing
    offload        what lies in a farther memory; None: nothing
    busy_replicas  replicas' worth of tokens that reach the experts; None: dp, all equally full
    nodes          nodes that the devices stand in, joined by the scale-out link; 1: one node, or as
                   many as the link's domain makes
    """

    model: Model
    hardware: Hardware
    engine: Engine = field(default_factory=lambda: load_engine("vllm"))
    weights: str | None = None
    activations: str = "bf16"
    kv: str | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    parallelism: Parallelism = field(default_factory=Parallelism)
    prefix_hit: Array = 0.0
    offload: Offload | None = None
    nodes: int = 1
    speculation: Speculation | None = None
    chunk: int | None = None
    expert_skew: Array = 1.0
    busy_replicas: Array | None = None
    memo: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, model: str, hardware: str, engine: str = "vllm", **rest: Any) -> Deployment:
        """Deployment from catalogue names, aliases or paths."""
        return cls(Model.load(model), Hardware.load(hardware), load_engine(engine), **rest)

    def replace(self, **fields: Any) -> Deployment:
        """A copy with some fields set."""
        return replace(self, **fields)

    def __post_init__(self) -> None:
        for role in self.formats:
            if role not in FORMAT_ROLES:
                raise InputError(f"formats: unknown role '{role}'{nearest(role, FORMAT_ROLES)}")
        check_parallelism(self.model, self.parallelism,
                          {role: self.weight_format(role).name for role in QUANTISED_ROLES})
        if self.offload is not None:
            self.offload.check()
        compute_format(self.weight_format("attention"), self.activation_format)
        number_format(self.kv_format.name, "kv")
        for role, name in self.formats.items():
            number_format(name, f"formats.{role}")
        self._check_features()

    def _check_features(self) -> None:
        chunk, p = self.chunk, self.parallelism
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int)
                                  or chunk < 1):
            raise InputError(f"chunk: {chunk!r} is not a whole number of at least 1")
        if not np.all(np.isfinite(self.expert_skew)) or np.any(np.less(self.expert_skew, 1.0)):
            raise InputError("expert-skew: must be at least 1 and finite")
        if self.speculation is None:
            return
        if p.pp > 1:
            raise InputError(f"speculate: not with pipeline stages (pp {p.pp}), whose drafts would "
                             "have to pass all of them")
        if self.speculation.kind == "mtp" and not self.model.mtp:
            raise InputError(f"speculate: {self.model.name} has no multi-token-prediction layers; "
                             "draft with a model or with ngram")
        _ = self.draft

    @cached_property
    def draft(self) -> Deployment | None:
        """What drafts, on the same devices; None without speculation, and for n-grams.

        A draft model has its own weight format and is split by tp like the model, or held whole
        by each rank where it can't be. The engine schedules once a round, so its host time a step
        is the model's alone.
        """
        s = self.speculation
        if s is None or s.kind == "ngram":
            return None
        engine = self.engine.replace(host_time=0.0)
        if s.draft is None:
            m = self.model
            layers = m.replace(layers=m.mtp, mtp=(), name=f"{m.name} (mtp)", extra=())
            return replace(self, model=layers, engine=engine, speculation=None)
        split = replace(self.parallelism, ep=1)
        alone = replace(self.parallelism, tp=1, ep=1, cp=1)
        for p in (split, alone):
            try:
                return Deployment(s.draft, self.hardware, engine, activations=self.activations,
                                  kv=self.kv, parallelism=p, prefix_hit=self.prefix_hit,
                                  nodes=self.nodes if p is split else 1, chunk=self.chunk)
            except InputError:
                if p is alone:
                    raise
        return None

    @property
    def verified(self) -> int:
        """Tokens of a sequence in one step of the model: the next one and those drafted."""
        return 1 if self.speculation is None else 1 + self.speculation.drafts

    @property
    def batched_tokens(self) -> int | None:
        """Largest number of tokens in one pass: the chunk, else the engine's budget, if any."""
        return self.engine.batched_tokens if self.chunk is None else self.chunk

    @property
    def activation_format(self) -> NumberFormat:
        """Format of the activations."""
        return number_format(self.activations, "activations")

    @property
    def kv_format(self) -> NumberFormat:
        """Format of the KV cache: as asked, else the model's own, else that of activations."""
        own = self.model.kv_format or self.activations
        return number_format(own if self.kv is None else self.kv, "kv")

    def weight_format(self, role: str) -> NumberFormat:
        """Format of the weights of a role."""
        if role in self.formats:
            return number_format(self.formats[role], f"formats.{role}")
        native = self.model.formats
        asked = self.weights
        plain = native.get("weights", "bf16")
        default = number_format(plain if asked is None else asked, "weights")
        if asked is not None and self.engine.quantised_head and (
                role == "head" or (role == "embedding" and default.name.startswith(("q", "iq")))):
            return number_format(file_head(default.name))    # a GGUF file holds the embedding too
        if role in QUANTISED_ROLES:
            return number_format(native.get(role, default.name)) if asked is None else default
        if role in native:
            return number_format(native[role])
        return default if default.name in ("fp32", "fp16", "bf16") else number_format("bf16")

    def compute(self, role: str) -> str:
        """Precision at which the matrix unit multiplies the weights of a role."""
        compute = compute_format(self.weight_format(role), self.activation_format)
        if not (self.engine.fp16_accumulate and compute in ("fp16", "bf16", "fp32")):
            return compute
        h = self.hardware
        if h.peak_fp16 is None and h.peak_bf16 is None and h.peak_int8 is not None and (
                self.weight_format(role).compute is None):
            return "int8"    # such engines quantise the input too, and take integer dot products
        return compute if compute == "fp32" else FP16_SUMS

    @property
    def prefill_chunk(self) -> int | None:
        """Prompt tokens a step at most: as asked, else the engine's own way; None: no limit."""
        return self.engine.prefill_chunk if self.chunk is None else self.chunk

    @property
    def host_times(self) -> tuple[Array, Array, Array]:
        """Host time [s] of a step, of a layer and of a sequence, on the device's own host."""
        return host_times(self.engine, self.hardware)

    @property
    def host_layers(self) -> float:
        """Layers as the host meets them: a loop over all experts makes a share of one of each."""
        return self.model.layer_count + self.engine.expert_share * self.model.expert_count

    @property
    def devices(self) -> int:
        """Devices of the whole deployment."""
        return self.parallelism.devices

    @property
    def node(self) -> int | None:
        """Devices of a node where there are several; None: what the link joins."""
        return self.devices // self.nodes if self.nodes > 1 else None


@once
def arrays_inside(d: Deployment) -> bool:
    """Whether a number of the model or of the engine is an array."""
    return holds_arrays((d.model, d.engine))


# Activations at which weights multiply in a precision of their own. MXFP4 weights have none:
# engines run them beside 16-bit activations, or 8-bit ones that are no part of the checkpoint.
_NATIVE = {"fp8": "fp8", "int8": "int8", "fp4": "nvfp4"}


@once
def native_activations(d: Deployment) -> str | None:
    """Activations at which the chip would multiply weights, that are widened to 16 bits as asked,
    in their own precision, faster; None: they already do, or the chip has no such unit.
    """
    if d.activation_format.bits < 16.0:
        return None
    h, wide = d.hardware, d.hardware.peak(d.activation_format.compute or "bf16")[0]
    stored = [d.weight_format(role) for role in QUANTISED_ROLES]
    for weights in sorted(stored, key=lambda f: f.bits):
        name = _NATIVE.get(weights.compute or "")
        if name is None or weights.name.startswith("mxfp4"):
            continue
        peak = getattr(h, f"peak_{weights.compute}")
        if peak is not None and np.all(np.greater(peak, wide)):
            return name
    return None


def has_features(d: Deployment) -> bool:
    """Whether anything of a deployment is more than plain prefill and decode."""
    return (d.speculation is not None or d.chunk is not None or bool(d.prefix_hit)
            or d.parallelism.ep > 1)


__all__ = ["FORMAT_ROLES", "QUANTISED_ROLES", "Deployment", "Parallelism", "Speculation",
           "Workload", "check_parallelism",
           "has_features", "native_activations"]
