"""A decoder in plain torch: what the simulator predicts, as something that runs.

Tokens -> embedding -> layers of (norm, attention, norm, MLP or experts) -> norm -> logits. Weights
are random unless loaded. All sequences of a batch have the same length: there is no padding.

Two ways to decode. Eager: the filled part of the KV cache is sliced, so a step reads what it needs.
Static: shapes never change, so that a step can be compiled or captured in a CUDA graph; it reads
the whole allocated cache and masks what isn't filled.

Letters: B sequences, S new tokens, N tokens in the cache, D hidden, h query heads, K KV heads,
g = h / K query heads of a KV head, d head size, F width of an MLP, E experts, k experts a token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from simulator.executor.shape import Shape

RANDOM_BLOCK = 2**22
ONEDNN = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


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


class Linear(nn.Module):
    """A matrix (n, k) and perhaps a bias (n)."""

    def __init__(self, k: int, n: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, k))
        self.bias = nn.Parameter(torch.empty(n)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """w x / sqrt(mean(x^2) + eps) over the last axis."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class KvCache:
    """K and V of all layers, (B, K, N, d) each, allocated for `tokens`; `length` are filled."""

    def __init__(self, shape: Shape, batch: int, tokens: int, dtype: torch.dtype,
                 device: torch.device | str) -> None:
        size = (shape.layers, batch, shape.kv_heads, tokens, shape.head_dim)
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)
        self.length = 0

    @property
    def tokens(self) -> int:
        """Tokens a sequence that there is room for."""
        return self.k.shape[3]

    def reset(self, length: int = 0) -> None:
        """Forget all but the first `length` tokens."""
        self.length = length

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write S new tokens behind the filled part; all K and V up to them."""
        end = self.length + k.shape[2]
        self.k[layer, :, :, self.length:end] = k
        self.v[layer, :, :, self.length:end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def write(self, layer: int, position: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write one token at a position (1,) that lies on the device; all K and V, filled or not.
        """
        self.k[layer].index_copy_(2, position, k)
        self.v[layer].index_copy_(2, position, v)
        return self.k[layer], self.v[layer]


def rope_table(shape: Shape, tokens: int, dtype: torch.dtype,
               device: torch.device | str) -> tuple[Tensor, Tensor]:
    """cos and sin (tokens, d) of position x frequency, RoFormer (2104.09864) eq. 15."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device)
    frequency = 1.0 / shape.rope_theta ** (half / shape.head_dim)
    position = torch.arange(tokens, dtype=torch.float32, device=device)
    angle = torch.outer(position, frequency).repeat(1, 2)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, heads, S, d) turned by its position; the pairs are (i, i + d/2)."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class CoreAttention(nn.Module):
    """softmax(q K^T / sqrt(d)) V of the last S of N tokens, causal."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window

    def forward(self, q: Tensor, k: Tensor, v: Tensor, position: Tensor | None = None) -> Tensor:
        """q (B, h, S, d), k and v (B, K, N, d) -> (B, h, S, d)."""
        S, N, window = q.shape[2], k.shape[2], self.window
        if position is not None:
            return self.grouped(q, k, v, self.seen(position, torch.arange(N, device=q.device)))
        if S == 1:
            first = 0 if window is None else max(N - window, 0)
            return self.grouped(q, k[:, :, first:], v[:, :, first:])
        if S == N and (window is None or window >= N):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        if window is None:
            return self.masked(q, k, v, N - S, 0)
        # A block of queries sees one window before it: all further keys need not be scored.
        blocks = []
        for start in range(0, S, window):
            stop = min(start + window, S)
            low, high = max(N - S + start - window + 1, 0), N - S + stop
            blocks.append(self.masked(q[:, :, start:stop], k[:, :, low:high], v[:, :, low:high],
                                      N - S + start, low))
        return torch.cat(blocks, dim=2)

    def seen(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the tokens at positions `query` see those at `key`: (queries, keys)."""
        back = query[:, None] - key[None, :]
        return back >= 0 if self.window is None else (back >= 0) & (back < self.window)

    def masked(self, q: Tensor, k: Tensor, v: Tensor, query: int, key: int) -> Tensor:
        """Attention of queries from position `query` on to keys from position `key` on."""
        mask = self.seen(query + torch.arange(q.shape[2], device=q.device),
                         key + torch.arange(k.shape[2], device=q.device))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    def grouped(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """One query a sequence: the g heads of a KV head stand as rows, so K and V are read once.
        """
        B, h, _, d = q.shape
        rows = q.view(B, k.shape[1], h // k.shape[1], d)
        out = F.scaled_dot_product_attention(rows, k, v, attn_mask=mask)
        return out.reshape(B, h, 1, d)


class Attention(nn.Module):
    """Grouped-query attention with its projections."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.shape, self.layer = shape, layer
        self.qkv = Linear(shape.hidden, shape.queries + 2 * shape.keys, shape.qkv_bias)
        self.attention = CoreAttention(shape.window)
        self.attention_output = Linear(shape.queries, shape.hidden, shape.output_bias)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps) if shape.qk_norm else None

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KvCache | None,
                position: Tensor | None) -> Tensor:
        s, (B, S, _) = self.shape, x.shape
        heads = self.qkv(x).view(B, S, -1, s.head_dim)
        q, k, v = heads.split((s.query_heads, s.kv_heads, s.kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if s.rope:
            q, k = rotate(q, *rope), rotate(k, *rope)
        if cache is not None:
            k, v = (cache.append(self.layer, k, v) if position is None
                    else cache.write(self.layer, position, k, v))
        out = self.attention(q, k, v, position)
        result: Tensor = self.attention_output(out.transpose(1, 2).reshape(B, S, s.queries))
        return result


class Mlp(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.mlp_gate_up = Linear(hidden, 2 * width)
        self.mlp_down = Linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.mlp_gate_up(x).chunk(2, dim=-1)
        result: Tensor = self.mlp_down(F.silu(gate) * up)
        return result


class Experts(nn.Module):
    """k of E gated MLPs a token; rows are sorted by expert, so only picked experts are read."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        E, D, width = shape.experts, shape.hidden, shape.expert_ffn
        self.count, self.picked, self.norm_topk = E, shape.active_experts, shape.norm_topk
        self.router = Linear(D, E)
        self.gate_up = nn.Parameter(torch.empty(E, 2 * width, D))
        self.down = nn.Parameter(torch.empty(E, D, width))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D); experts by softmax over all E, weights of the k picked renormalised."""
        rows = x.reshape(-1, x.shape[-1])
        weights, picks = self.router(rows).float().softmax(dim=-1).topk(self.picked, dim=-1)
        if self.norm_topk:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        order = picks.flatten().argsort(stable=True)
        source = order // self.picked
        expert = picks.flatten()[order]
        apply = self.in_one_kernel if self.one_kernel(rows) else self.one_by_one
        out = apply(rows[source], expert) * weights.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(rows).index_add_(0, source, out).view_as(x)

    def one_kernel(self, rows: Tensor) -> bool:
        """Whether torch has a grouped product for these rows (bf16 on CUDA, torch 2.10 and on)."""
        return rows.is_cuda and rows.dtype == torch.bfloat16 and hasattr(F, "grouped_mm")

    def one_by_one(self, rows: Tensor, expert: Tensor) -> Tensor:
        """Products of one expert after the other; rows sorted by expert."""
        ends = torch.bincount(expert, minlength=self.count).cumsum(0).tolist()
        parts, start = [], 0
        for index, end in enumerate(ends):
            if end > start:
                gate, up = linear(rows[start:end], self.gate_up[index]).chunk(2, dim=-1)
                parts.append(linear(F.silu(gate) * up, self.down[index]))
            start = end
        return torch.cat(parts)

    def in_one_kernel(self, rows: Tensor, expert: Tensor) -> Tensor:
        """The same without the host knowing the counts, so that a CUDA graph can hold it."""
        index = torch.arange(self.count, device=rows.device)
        ends = torch.searchsorted(expert, index, right=True).to(torch.int32)
        gate, up = F.grouped_mm(rows, self.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        return F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)


class Greedy(nn.Module):
    """The likeliest token: logits (B, vocabulary) -> (B, 1)."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1, keepdim=True)


class Layer(nn.Module):
    """x + attention(norm(x)), then + mlp(norm(x))."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.mixer = Attention(shape, layer)
        self.ffn_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.ffn = Experts(shape) if shape.experts else Mlp(shape.hidden, shape.ffn)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KvCache | None,
                position: Tensor | None) -> Tensor:
        x = x + self.mixer(self.attention_norm(x), rope, cache, position)
        result: Tensor = x + self.ffn(self.ffn_norm(x))
        return result


class Transformer(nn.Module):
    """The decoder. `prefill` a prompt, then `decode` token by token; or `forward` without a cache.

    `tokens` is the longest sequence that it will see (the length of its rope table).
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", tokens: int = 4096, seed: int = 0) -> None:
        super().__init__()
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        with torch.device("meta"):
            self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
            self.layers = nn.ModuleList(Layer(shape, i) for i in range(shape.layers))
            self.final_norm = RMSNorm(shape.hidden, shape.norm_eps)
            self.lm_head = Linear(shape.hidden, shape.vocabulary)
            self.sampling = Greedy()
        self.to(dtype).to_empty(device=self.device)
        if shape.tied:
            self.lm_head.weight = self.embedding.weight  # type: ignore[assignment]
        self.requires_grad_(False)
        self.eval()
        self.randomise(seed)
        cos, sin = rope_table(shape, tokens, dtype, self.device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def parameter_count(self) -> int:
        """Values of all tensors, a tied matrix once."""
        return sum(p.numel() for p in self.parameters())

    def randomise(self, seed: int) -> None:
        """Normal weights of variance 1 / (values in), so that activations keep their size.

        Large matrices repeat one block of random values, each from its own place on: drawing all
        of them would take longer than measuring.
        """
        generator = torch.Generator(device=self.device).manual_seed(seed)
        size = min(RANDOM_BLOCK, max(p.numel() for p in self.parameters()))
        block = torch.empty(size, dtype=torch.float32, device=self.device)
        block = block.normal_(generator=generator).to(self.dtype)
        for number, (name, p) in enumerate(self.named_parameters()):
            if p.dim() == 1:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            flat, shift = p.view(-1), (number * 7_919) % size
            own = block.roll(shift) * p.shape[-1] ** -0.5
            for start in range(0, flat.numel(), size):
                part = flat[start:start + size]
                part.copy_(own[: part.numel()])

    def cache(self, batch: int, tokens: int) -> KvCache:
        """An empty cache for `batch` sequences of `tokens`."""
        return KvCache(self.shape, batch, tokens, self.dtype, self.device)

    def forward(self, tokens: Tensor, cache: KvCache | None = None,
                position: Tensor | None = None, last: bool = False) -> Tensor:
        """tokens (B, S) -> logits (B, S, vocabulary), or of the `last` token alone (B, 1, ...).

        With `position` (1,), a tensor, one new token a sequence stands there: the static way.
        """
        if position is None:
            start = 0 if cache is None else cache.length
            end = start + tokens.shape[1]
            rope = self.cos[start:end], self.sin[start:end]
        else:
            rope = self.cos[position], self.sin[position]
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rope, cache, position)
        if cache is not None and position is None:
            cache.length += tokens.shape[1]
        logits: Tensor = self.lm_head(self.final_norm(x[:, -1:] if last else x))
        return logits

    def prefill(self, tokens: Tensor, cache: KvCache) -> Tensor:
        """Prompts (B, S) behind what the cache holds -> logits (B, vocabulary) after the last."""
        logits: Tensor = self(tokens, cache, last=True)
        return logits[:, -1]

    def decode(self, tokens: Tensor, cache: KvCache) -> Tensor:
        """One token a sequence (B, 1) -> logits (B, vocabulary) of the next."""
        logits: Tensor = self(tokens, cache)
        return logits[:, -1]

    def decode_static(self, tokens: Tensor, position: Tensor, cache: KvCache) -> Tensor:
        """The same at a `position` (1,) on the device, with shapes that never change."""
        logits: Tensor = self(tokens, cache, position)
        return logits[:, -1]

    def generate(self, prompt: Tensor, output: int) -> Tensor:
        """Greedy: prompts (B, S) -> `output` tokens (B, output)."""
        cache = self.cache(prompt.shape[0], prompt.shape[1] + output)
        token = self.sampling(self.prefill(prompt, cache))
        found = [token]
        for _ in range(output - 1):
            token = self.sampling(self.decode(token, cache))
            found.append(token)
        return torch.cat(found, dim=1)
