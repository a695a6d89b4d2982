"""What all parts of the decoder are made of: products, norms, MLPs; and what only changes numbers.

Letters everywhere: B sequences, S new tokens, N tokens in the cache, D hidden, h query heads, K KV
heads, g = h / K query heads of a KV head, d head size, F width of an MLP, E experts, k a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from simulator.specs.model import NORMS

ONEDNN = bool(torch.backends.mkldnn.is_available())


@dataclass(frozen=True)
class Numerics:
    """What the values of a model depend on and its time doesn't, so that no catalogue holds it.

    activation       None: SiLU where the MLP is gated, GELU where not
    scoring          how the router's logits become weights; `router_scale` times them
    normalise_picks  weights of the picked experts sum to 1
    rotary           share of each head that rope turns
    norms_after      two norms a layer follow attention and MLP instead of going before them
    """

    activation: str | None = None
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rotary: float = 1.0
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalise_picks: bool = True
    router_scale: float = 1.0
    norms_after: bool = False
    embedding_scale: float = 1.0


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1.0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu, "relu2": lambda x: F.relu(x).square()}


def activate(x: Tensor, gated: bool, name: str | None) -> Tensor:
    """f(gate) up of x (..., 2 F), or f(x)."""
    chosen = name or ("silu" if gated else "gelu")
    if not gated:
        return ACTIVATIONS[chosen](x)
    gate, up = x.chunk(2, dim=-1)
    if chosen == "clamped-swiglu":    # gpt-oss
        return _clamped_swiglu(gate, up)
    return ACTIVATIONS[chosen](gate) * up


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b, x (..., k), W (n, k).

    fp32 on CPU goes to oneDNN: the default BLAS takes m times as long for m rows up to 8 although
    the weights are read once (AMD Zen 3, torch 2.13: 28 ms against 10 ms at 4 rows).
    """
    if (ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32
            and not torch.compiler.is_compiling()):
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return result
    return F.linear(x, weight, bias)


class Timed(nn.Module):
    """A part that is timed under the name of its attribute."""


class Linear(Timed):
    """A matrix (n, k) and perhaps a bias (n)."""

    def __init__(self, k: int, n: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, k))
        self.bias = nn.Parameter(torch.empty(n)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """RMS norm, w x / sqrt(mean(x^2) + eps), or LayerNorm with weight and bias, weight or neither.

    groups  equal parts of the width, each with a mean of its own (RMS alone)
    """

    def __init__(self, width: int, eps: float, kind: NORMS = "rms", groups: int = 1) -> None:
        super().__init__()
        self.kind, self.width, self.eps, self.groups = kind, width, eps, groups
        self.weight = None if kind == "none" else nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.groups > 1 and self.weight is not None:
            parts = x.unflatten(-1, (self.groups, -1))
            return F.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2) * self.weight
        if self.kind == "rms":
            return F.rms_norm(x, (self.width,), self.weight, self.eps)
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)


class Mlp(nn.Module):
    """down(f(gate x) up x), or down(f(up x)) without a gate."""

    def __init__(self, hidden: int, width: int, gated: bool, bias: bool, activation: str | None,
                 name: str = "mlp") -> None:
        super().__init__()
        self.gated, self.activation = gated, activation
        self.first = f"{name}_gate_up" if gated else f"{name}_up"
        self.second = f"{name}_down"
        self.add_module(self.first, Linear(hidden, width * (2 if gated else 1), bias))
        self.add_module(self.second, Linear(width, hidden, bias))

    def forward(self, x: Tensor) -> Tensor:
        inner = activate(self.get_submodule(self.first)(x), self.gated, self.activation)
        result: Tensor = self.get_submodule(self.second)(inner)
        return result


class Greedy(Timed):
    """The likeliest token: logits (B, vocabulary) -> (B, 1)."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1, keepdim=True)


__all__ = ["Greedy", "Linear", "Mlp", "Norm", "Numerics", "Timed", "activate", "linear"]
