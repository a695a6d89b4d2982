"""Routed experts, beside those that every token uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from simulator.executor.modules import Linear, Mlp, Numerics, Timed, activate, linear
from simulator.specs.model import Moe


class Experts(Timed):
    """k of E MLPs a token; rows are sorted by expert, so only picked experts are read."""

    def __init__(self, spec: Moe, hidden: int, numerics: Numerics | None = None) -> None:
        super().__init__()
        self.spec, self.numerics = spec, numerics or Numerics()
        s, inner, act = spec, spec.latent or hidden, self.numerics.activation
        first = s.width * (2 if s.gated else 1)

        def bias(*size: int) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(size)) if s.expert_bias else None

        self.router = Linear(hidden, s.experts + s.shared_gate)
        self.router_bias = nn.Parameter(torch.empty(s.experts)) if s.router_bias else None
        self.first = nn.Parameter(torch.empty(s.experts, first, inner))
        self.down = nn.Parameter(torch.empty(s.experts, inner, s.width))
        self.first_bias, self.down_bias = bias(s.experts, first), bias(s.experts, inner)
        self.latent_down = Linear(hidden, inner) if s.latent else None
        self.latent_up = Linear(inner, hidden) if s.latent else None
        self.shared = (Mlp(hidden, s.shared_width, s.gated, False, act, "shared_experts")
                       if s.shared_width else None)
        self.beside = Mlp(hidden, s.dense_width, s.gated, False, act) if s.dense_width else None

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) -> the same size."""
        rows = x.reshape(-1, x.shape[-1])
        logits = self.router(rows)
        out = self.routed(rows, logits[:, :self.spec.experts])
        if self.shared is not None:
            shared = self.shared(rows)
            out = out + (torch.sigmoid(logits[:, -1:]) * shared if self.spec.shared_gate else
                         shared)
        return (out if self.beside is None else out + self.beside(rows)).view_as(x)

    def picks(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the k experts of each row, (rows, k) each."""
        logits = logits.float() if self.router_bias is None else logits.float() + self.router_bias
        scores = (logits.sigmoid() if self.numerics.scoring == "sigmoid" else
                  logits.softmax(dim=-1))
        weights, picks = scores.topk(self.spec.top_k, dim=-1)
        if self.numerics.normalise_picks:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights * self.numerics.router_scale, picks

    def routed(self, rows: Tensor, logits: Tensor) -> Tensor:
        """What the picked experts make of the rows."""
        weights, picks = self.picks(logits)
        inner = rows if self.latent_down is None else self.latent_down(rows)
        order = picks.flatten().argsort(stable=True)
        source = order // self.spec.top_k
        expert = picks.flatten()[order]
        apply = self.in_one_kernel if self.one_kernel(rows) else self.one_by_one
        out = apply(inner[source], expert) * weights.flatten()[order, None].to(rows.dtype)
        summed = torch.zeros_like(inner).index_add_(0, source, out)
        return summed if self.latent_up is None else self.latent_up(summed)

    def one_kernel(self, rows: Tensor) -> bool:
        """Whether torch has a grouped product for these rows (bf16 on CUDA, torch 2.10 and on)."""
        return rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(F, "grouped_mm")

    def one_by_one(self, rows: Tensor, expert: Tensor) -> Tensor:
        """Products of one expert after the other; rows sorted by expert."""
        ends = torch.bincount(expert, minlength=self.spec.experts).cumsum(0).tolist()
        parts, start = [], 0
        for i, end in enumerate(ends):
            if end > start:
                inner = linear(rows[start:end], self.first[i],
                               None if self.first_bias is None else self.first_bias[i])
                parts.append(linear(self.activated(inner), self.down[i],
                                    None if self.down_bias is None else self.down_bias[i]))
            start = end
        return torch.cat(parts)

    def activated(self, inner: Tensor) -> Tensor:
        """Between the two products."""
        return activate(inner, self.spec.gated, self.numerics.activation)

    def in_one_kernel(self, rows: Tensor, expert: Tensor) -> Tensor:
        """The same without the host knowing the counts, so that a CUDA graph can hold it."""
        index = torch.arange(self.spec.experts, device=rows.device)
        ends = torch.searchsorted(expert, index, right=True).to(torch.int32)
        inner = F.grouped_mm(rows, self.first.transpose(1, 2), offs=ends)
        inner = inner if self.first_bias is None else inner + self.first_bias[expert]
        out = F.grouped_mm(self.activated(inner), self.down.transpose(1, 2), offs=ends)
        return out if self.down_bias is None else out + self.down_bias[expert]


__all__ = ["Experts"]
