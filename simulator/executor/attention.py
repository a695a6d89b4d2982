"""Softmax attention over all tokens, a window or a chunk, with grouped queries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from simulator.executor.cache import Rope, Step, TokenCache
from simulator.executor.modules import Linear, Norm, Numerics, Timed
from simulator.specs.model import Attention as Spec

# Queries whose scores are held at once where a sink keeps attention from being one kernel.
SINK_ROWS = 256


def rope_table(width: int, tokens: int, theta: float, dtype: torch.dtype,
               device: torch.device | str) -> tuple[Tensor, Tensor]:
    """cos and sin (tokens, width) of position x frequency, RoFormer (2104.09864) eq. 15."""
    half = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    position = torch.arange(tokens, dtype=torch.float32, device=device)
    angle = torch.outer(position, 1.0 / theta ** (half / width)).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated_width(head_dim: int, share: float = 1.0) -> int:
    """Values of a head that rope turns: pairs."""
    return int(head_dim * share) // 2 * 2


def rotate(x: Tensor, rope: Rope, width: int) -> Tensor:
    """The first `width` of x (B, heads, S, d) turned by position; pairs are (i, i + width/2)."""
    turned, rest = x[..., :width], x[..., width:]
    cos, sin = rope[width]
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-right, left), dim=-1) * sin
    return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)


class CoreAttention(Timed):
    """softmax(q K^T scale) V of the last S of N tokens, causal.

    window  tokens that a token sees, itself included; chunk: it sees its own chunk only
    sinks   heads whose softmax has one more logit, which takes weight and gives nothing
    """

    def __init__(self, window: int | None = None, chunk: int | None = None, sinks: int = 0,
                 scale: float | None = None) -> None:
        super().__init__()
        self.window, self.chunk, self.scale = window, chunk, scale
        self.sinks = nn.Parameter(torch.empty(sinks)) if sinks else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, position: Tensor | None = None,
                picked: Tensor | None = None) -> Tensor:
        """q (B, h, S, d), k (B, K, N, d), v (B, K, N, dv) -> (B, h, S, dv).

        picked  keys that each token attends to, (B, 1, S, N), where something has chosen them
        """
        S, N = q.shape[2], k.shape[2]
        if picked is not None:
            return (self.grouped if S == 1 else self.fused)(q, k, v, picked)
        if position is not None:
            return self.grouped(q, k, v, self.seen(position, torch.arange(N, device=q.device)))
        if S == 1:
            first = self.first_seen(N - 1)
            return self.grouped(q, k[:, :, first:], v[:, :, first:])
        if S == N and self.sinks is None and self.first_seen(N - 1) == 0:
            return self.fused(q, k, v, None)
        blocks = [self.masked(q[:, :, start:stop], k[:, :, low:N - S + stop],
                              v[:, :, low:N - S + stop], N - S + start, low)
                  for start, stop, low in self.blocks(S, N)]
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)

    def first_seen(self, query: int) -> int:
        """Position of the first token that the one at `query` sees."""
        if self.window is not None:
            return max(query - self.window + 1, 0)
        return 0 if self.chunk is None else query // self.chunk * self.chunk

    def blocks(self, S: int, N: int) -> Iterator[tuple[int, int, int]]:
        """Queries from `start` to `stop` of the new ones, and the first key any of them sees."""
        old = N - S
        length = min(self.window or S, SINK_ROWS if self.sinks is not None else S)
        start = 0
        while start < S:
            stop = min(start + length, S)
            if self.chunk is not None:    # no block reaches over the end of a chunk
                stop = min(stop, (old + start) // self.chunk * self.chunk + self.chunk - old)
            yield start, stop, self.first_seen(old + start)
            start = stop

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the tokens at positions `query` see those at `key`: (queries, keys)."""
        back = query[:, None] - key[None, :]
        seen = back >= 0
        if self.window is not None:
            seen = seen & (back < self.window)
        if self.chunk is not None:
            seen = seen & (query[:, None] // self.chunk == key[None, :] // self.chunk)
        return seen

    def masked(self, q: Tensor, k: Tensor, v: Tensor, query: int, key: int) -> Tensor:
        """Attention of queries from position `query` on to keys from position `key` on."""
        mask = self.seen(query + torch.arange(q.shape[2], device=q.device),
                         key + torch.arange(k.shape[2], device=q.device))
        if self.sinks is None:
            return self.fused(q, k, v, mask)
        B, h, S, d = q.shape
        g = h // k.shape[1]
        out = self.with_sinks(q.reshape(B, k.shape[1], g * S, d), k, v, mask.repeat(g, 1))
        return out.reshape(B, h, S, v.shape[-1])

    def fused(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """One kernel; it wants K and V of one size, so the smaller is filled up with zeros."""
        d, dv, scale = q.shape[-1], v.shape[-1], self.scale or q.shape[-1] ** -0.5
        q, k, v = (x if x.shape[-1] == max(d, dv) else F.pad(x, (0, max(d, dv) - x.shape[-1]))
                   for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None,
                                             scale=scale, enable_gqa=True)
        return out[..., :dv]

    def grouped(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """One query a sequence: the g heads of a KV head stand as rows, so K and V are read once.
        """
        B, h, _, d = q.shape
        rows = q.view(B, k.shape[1], h // k.shape[1], d)
        if self.sinks is not None:
            out = self.with_sinks(rows, k, v, mask)
        else:
            out = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=self.scale)
        return out.reshape(B, h, 1, v.shape[-1])

    def with_sinks(self, rows: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """rows (B, K, R, d), R the queries of g heads one head after the other."""
        assert self.sinks is not None
        scores = rows @ k.transpose(-1, -2) * (self.scale or rows.shape[-1] ** -0.5)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        R, g = rows.shape[2], self.sinks.numel() // k.shape[1]
        sink = self.sinks.view(k.shape[1], g, 1).expand(-1, -1, R // g).reshape(1, -1, R, 1)
        weights = torch.cat((scores, sink.expand(rows.shape[0], -1, -1, -1)), dim=-1).float()
        return weights.softmax(dim=-1)[..., :-1].to(v.dtype) @ v


class Attention(nn.Module):
    """Grouped-query attention with its projections.

    source  layer whose K and V are used, where it has none of its own
    lends   whether another layer uses its K and V
    """

    def __init__(self, spec: Spec, hidden: int, numerics: Numerics, layer: int,
                 source: int | None = None, lends: bool = False) -> None:
        super().__init__()
        self.spec, self.layer, self.source, self.lends = spec, layer, source, lends
        s, h, d = spec, spec.heads, spec.head_dim
        self.turned = rotated_width(d, numerics.rotary) if s.rope else 0
        own = 0 if s.shares_kv else s.kv_heads
        self.widths = (h * d, h * d if s.output_gate else 0, own * d,
                       0 if s.keys_are_values else own * s.values)
        self.qkv = Linear(s.input_width or hidden, sum(self.widths), s.qkv_bias)
        self.attention = CoreAttention(s.window, s.chunk, h if s.sinks else 0, d ** -0.5)
        self.attention_output = Linear(h * s.values, hidden, s.output_bias)
        q, k = (d, d) if s.qk_norm == "head" else (h * d, own * d)
        self.q_norm = Norm(q, numerics.norm_eps) if s.qk_norm else None
        self.k_norm = Norm(k, numerics.norm_eps) if s.qk_norm and own else None

    def forward(self, x: Tensor, step: Step, cache: TokenCache | None) -> Tensor:
        s = self.spec
        q, gate, k, v = self.qkv(x).split(self.widths, dim=-1)
        q = self.turn(self.heads(q, self.q_norm, s.head_dim), step)
        if self.source is not None:
            k, v = step.lent[self.source]
        else:
            v = self.heads(k if s.keys_are_values else v, None, s.values)
            k = self.turn(self.heads(k, self.k_norm, s.head_dim), step)
            if cache is not None:
                k, v = cache.put(step, k, v)
        if self.lends:
            step.lent[self.layer] = k, v
        out = (v.repeat_interleave(s.heads // s.kv_heads, dim=1) if s.cross
               else self.attention(q, k, v, step.position))
        out = out.transpose(1, 2).flatten(2)
        if s.output_gate:
            out = out * torch.sigmoid(gate)
        result: Tensor = self.attention_output(out)
        return result

    def heads(self, x: Tensor, norm: Norm | None, d: int) -> Tensor:
        """x (B, S, heads d), normed over all of it or over each head -> (B, heads, S, d)."""
        whole = norm is not None and norm.width == x.shape[-1]
        x = norm(x) if norm is not None and whole else x
        x = x.unflatten(-1, (-1, d))
        x = norm(x) if norm is not None and not whole else x
        return x.transpose(1, 2)

    def turn(self, x: Tensor, step: Step) -> Tensor:
        """Rope, where the layer has it."""
        return rotate(x, step.rope, self.turned) if self.turned else x


__all__ = ["Attention", "CoreAttention", "rope_table", "rotate", "rotated_width"]
