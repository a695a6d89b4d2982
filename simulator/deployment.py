"""What is asked: a model on hardware with an engine, split and quantised, under a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.formats import NumberFormat, compute_format, number_format
from simulator.sharding import Parallelism, check_parallelism
from simulator.specs.engine import Engine, load_engine
from simulator.specs.hardware import Hardware
from simulator.specs.model import FORMAT_CLASSES, Model

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


@dataclass(frozen=True)
class Deployment:
    """A model on hardware with an engine; see `Deployment.of` for names instead of specs.

    weights, activations, kv   number formats; None: the model's own, bf16, that of activations
    formats        exceptions by role, as in {"head": "int8"}
    prefix_hit     share of the prompt found in the prefix cache, between 0 and 1
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
        compute_format(self.weight_format("attention"), self.activation_format)
        number_format(self.kv_format.name, "kv")
        for role, name in self.formats.items():
            number_format(name, f"formats.{role}")

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
        if role in QUANTISED_ROLES:
            return number_format(native.get(role, default.name)) if asked is None else default
        if role in native:
            return number_format(native[role])
        return default if default.name in ("fp32", "fp16", "bf16") else number_format("bf16")

    def compute(self, role: str) -> str:
        """Precision at which the matrix unit multiplies the weights of a role."""
        return compute_format(self.weight_format(role), self.activation_format)

    @property
    def devices(self) -> int:
        """Devices of the whole deployment."""
        return self.parallelism.devices


__all__ = ["FORMAT_ROLES", "QUANTISED_ROLES", "Deployment", "Parallelism", "Workload",
           "check_parallelism"]
