"""Multi-head latent attention: one latent a token is cached, K and V of all heads come from it.

A prefill expands the latents to K and V and attends as usual. A decode step multiplies the
expansion into the queries instead (absorbs it) and attends to the latents themselves, so that it
reads the latent once for all heads: DeepSeek-V2 (2405.04434), section 2.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from simulator.executor.attention import CoreAttention, rotate, rotated_width
from simulator.executor.cache import Step, TokenCache
from simulator.executor.modules import Linear, Norm, Numerics, Timed, linear
from simulator.specs.model import Indexer, Mla

# Queries whose scores by all heads of an index are held at once.
SCORED_ROWS = 256


class Expand(Timed):
    """K (without rope) and V of all heads of latents (B, N, rank): (B, h, N, nope + value)."""

    def forward(self, latent: Tensor, weight: Tensor) -> Tensor:
        h, width, _ = weight.shape
        both: Tensor = linear(latent, weight.flatten(0, 1)).unflatten(-1, (h, width))
        return both.transpose(1, 2)


class Absorb(Timed):
    """Each head's own matrix: x (B, h, S, k), weight (h, k, n) -> (B, h, S, n)."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        B, h, S, _ = x.shape
        rows = x.transpose(0, 1).reshape(h, B * S, -1)
        return torch.bmm(rows, weight).view(h, B, S, -1).transpose(0, 1)


class Index(nn.Module):
    """Scores of all keys by a few small heads, to attend to the best `top_k` (DeepSeek-V3.2)."""

    def __init__(self, spec: Indexer, queries: int, hidden: int, turned: int, eps: float) -> None:
        super().__init__()
        self.spec, self.turned = spec, min(turned, spec.head_dim)
        self.indexer_queries = Linear(queries, spec.heads * spec.head_dim)
        self.indexer_keys = Linear(hidden, spec.head_dim + spec.heads)
        self.norm = Norm(spec.head_dim, eps, "layer")
        self.attention = IndexScores()

    def keys(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Keys (B, 1, S, d) to cache, and the weight of each head (B, S, heads)."""
        key, weights = self.indexer_keys(x).split((self.spec.head_dim, self.spec.heads), dim=-1)
        return rotate(self.norm(key)[:, None], step.rope, self.turned), weights

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and numbers of the `top_k` keys; of equal ones always the earlier."""
        values, order = scores.sort(dim=-1, descending=True, stable=True)
        return values[..., :self.spec.top_k], order[..., :self.spec.top_k]

    def forward(self, q: Tensor, keys: Tensor, weights: Tensor, step: Step) -> Tensor:
        """Scores (B, S, N) of the keys that each token sees; -inf for those after it."""
        heads = self.indexer_queries(q).unflatten(-1, (self.spec.heads, -1)).transpose(1, 2)
        scores: Tensor = self.attention(rotate(heads, step.rope, self.turned), keys, weights)
        S, N = scores.shape[1:]
        place = torch.arange(N, device=q.device)
        query = place[N - S:] if step.position is None else step.position
        return scores.masked_fill(place > query[:, None], float("-inf"))


class IndexScores(Timed):
    """sum over heads of w relu(q k): q (B, H, S, d), keys (B, 1, N, d), w (B, S, H)."""

    def forward(self, q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
        return torch.cat([
            torch.einsum("bhsn,bsh->bsn", F.relu(rows @ keys.transpose(-1, -2)), w)
            for rows, w in zip(q.split(SCORED_ROWS, dim=2), weights.split(SCORED_ROWS, dim=1),
                               strict=True)], dim=1)


class LatentAttention(nn.Module):
    """MLA with its projections, and with an index where the model has one."""

    def __init__(self, spec: Mla, hidden: int, numerics: Numerics) -> None:
        super().__init__()
        self.spec, s, eps = spec, spec, numerics.norm_eps
        self.latent = s.kv_rank + s.rope_dim
        self.turned = rotated_width(s.rope_dim)
        queries = s.heads * (s.nope_dim + s.rope_dim)
        if s.q_rank is None:
            self.q = Linear(hidden, queries)
            self.kv_down = Linear(hidden, self.latent, s.qkv_bias)
        else:
            self.qkv_down = Linear(hidden, s.q_rank + self.latent, s.qkv_bias)
            self.q_norm = Norm(s.q_rank, eps)
            self.q_up = Linear(s.q_rank, queries)
        self.kv_norm = Norm(s.kv_rank, eps)
        self.kv_up = nn.Parameter(torch.empty(s.heads, s.nope_dim + s.value_dim, s.kv_rank))
        self.mla_expand, self.mla_absorb = Expand(), Absorb()
        self.attention = CoreAttention(scale=(s.nope_dim + s.rope_dim) ** -0.5)
        self.attention_output = Linear(s.heads * s.value_dim, hidden, s.output_bias)
        self.index = (None if s.indexer is None else
                      Index(s.indexer, s.q_rank or hidden, hidden, self.turned, eps))

    def forward(self, x: Tensor, step: Step, cache: TokenCache | None) -> Tensor:
        s = self.spec
        if s.q_rank is None:
            low, q, latent = x, self.q(x), self.kv_down(x)
        else:
            low, latent = self.qkv_down(x).split((s.q_rank, self.latent), dim=-1)
            low = self.q_norm(low)
            q = self.q_up(low)
        q = q.unflatten(-1, (s.heads, -1)).transpose(1, 2)
        q_nope, q_rope = q.split((s.nope_dim, s.rope_dim), dim=-1)
        q_rope = rotate(q_rope, step.rope, self.turned)
        c, k_rope = latent[:, None].split((s.kv_rank, s.rope_dim), dim=-1)
        latent = torch.cat((self.kv_norm(c), rotate(k_rope, step.rope, self.turned)), dim=-1)
        keys, weights = (None, None) if self.index is None else self.index.keys(x, step)
        new = [latent] if keys is None else [latent, keys]
        latent, *kept = new if cache is None else cache.put(step, *new)
        scores = None
        if self.index is not None:    # short contexts are scored as well: engines do the same
            scores = self.index(low, kept[0], weights, step)
            scores = scores if latent.shape[2] > self.index.spec.top_k else None
        attend = self.absorbed if x.shape[1] == 1 else self.expanded
        out = attend(q_nope, q_rope, latent, step, scores)
        result: Tensor = self.attention_output(out.transpose(1, 2).flatten(2))
        return result

    def expanded(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, step: Step,
                 scores: Tensor | None) -> Tensor:
        """Attention of each head to its own K and V: (B, h, S, value)."""
        s = self.spec
        c, k_rope = latent.split((s.kv_rank, s.rope_dim), dim=-1)
        k, v = self.mla_expand(c[:, 0], self.kv_up).split((s.nope_dim, s.value_dim), dim=-1)
        k = torch.cat((k, k_rope.expand(-1, s.heads, -1, -1)), dim=-1)
        picked = None
        if scores is not None and self.index is not None:
            _, best = self.index.best(scores)    # no mask by value: scores tie at 0
            picked = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
            picked = (picked & (scores > float("-inf")))[:, None]
        result: Tensor = self.attention(torch.cat((q_nope, q_rope), dim=-1), k, v, None, picked)
        return result

    def absorbed(self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, step: Step,
                 scores: Tensor | None) -> Tensor:
        """One token a sequence: all heads attend to the same latents, which are K and V in one."""
        s = self.spec
        k_up, v_up = self.kv_up.split((s.nope_dim, s.value_dim), dim=1)
        q = torch.cat((self.mla_absorb(q_nope, k_up), q_rope), dim=-1)
        picked = None
        if scores is not None and self.index is not None:
            values, best = self.index.best(scores)
            latent = latent.gather(2, best[..., None].expand(-1, -1, -1, self.latent))
            picked = (values > float("-inf"))[:, None]
        out = self.attention(q, latent, latent, step.position, picked)[..., :s.kv_rank]
        result: Tensor = self.mla_absorb(out, v_up.transpose(1, 2))
        return result


__all__ = ["LatentAttention"]
