"""A decoder in plain torch: what the simulator predicts, as something that runs.

Tokens -> embedding -> layers of (norm, mixer, norm, MLP or experts) -> norm -> logits, for every
kind of layer that a model file can describe. Weights are random unless loaded. All sequences of a
batch have the same length: there is no padding.

Two ways to decode. Eager: the filled part of the KV cache is sliced, so a step reads what it needs.
Static: shapes never change, so that a step can be compiled or captured in a CUDA graph; it reads
the whole allocated cache and masks what isn't filled.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simulator.errors import InputError
from simulator.executor.attention import Attention, rope_table, rotated_width
from simulator.executor.cache import Cache, Step
from simulator.executor.experts import Experts
from simulator.executor.latent_attention import LatentAttention
from simulator.executor.modules import Greedy, Linear, Mlp, Norm, Numerics
from simulator.executor.recurrent import (
    GatedDeltaLayer,
    Mamba2Layer,
    MambaLayer,
    ShortConvLayer,
)
from simulator.specs.model import Attention as AttentionSpec
from simulator.specs.model import (
    Dense,
    Extra,
    FeedForward,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Mla,
    Model,
    Moe,
    ShortConv,
)

RANDOM_BLOCK = 2**22


def _mixer(group: LayerGroup, hidden: int, numerics: Numerics, layer: int, source: int | None,
           lends: bool) -> nn.Module | None:
    mixer = group.mixer
    if isinstance(mixer, AttentionSpec):
        return Attention(mixer, hidden, numerics, layer, source, lends)
    if isinstance(mixer, Mla):
        return LatentAttention(mixer, hidden, numerics)
    if isinstance(mixer, Mamba):
        return MambaLayer(mixer, hidden, numerics)
    if isinstance(mixer, Mamba2):
        return Mamba2Layer(mixer, hidden, numerics)
    if isinstance(mixer, GatedDelta):
        return GatedDeltaLayer(mixer, hidden, numerics)
    return ShortConvLayer(mixer, hidden, numerics) if isinstance(mixer, ShortConv) else None


def _ffn(ffn: FeedForward | None, hidden: int, numerics: Numerics) -> nn.Module | None:
    if isinstance(ffn, Dense):
        return Mlp(hidden, ffn.width, ffn.gated, ffn.bias, numerics.activation)
    return Experts(ffn, hidden, numerics) if isinstance(ffn, Moe) else None


class Layer(nn.Module):
    """x + mixer(norm(x)), then + mlp(norm(x)); or both side by side; or one of them alone.

    Norms stand before the parts, a third and fourth after them. Tensors that the model file only
    counts (`extra`) are read once a pass and change nothing: what they are for isn't known.
    """

    def __init__(self, model: Model, group: LayerGroup, numerics: Numerics, layer: int,
                 source: int | None, lends: bool) -> None:
        super().__init__()
        self.parallel = group.parallel
        self.mixer = _mixer(group, model.hidden, numerics, layer, source, lends)
        self.ffn = _ffn(group.ffn, model.hidden, numerics)
        wide = getattr(group.mixer, "input_width", None) or model.hidden
        self.copies = -(-wide // model.hidden)
        self.wide, left = wide, group.norms

        def norm(wanted: bool, width: int = model.hidden) -> Norm | None:
            nonlocal left
            if not wanted or left * model.hidden < width:
                return None
            left -= width // model.hidden
            return Norm(width, numerics.norm_eps, model.norm)

        mixes, feeds, before = group.mixer is not None, group.ffn is not None, True
        if numerics.norms_after:
            self.after_attention, self.after_ffn, before = norm(mixes), norm(feeds), False
        self.attention_norm, self.ffn_norm = norm(mixes, wide), norm(feeds)
        if before:
            self.after_attention, self.after_ffn = norm(mixes), norm(feeds)
        self.more_norms = nn.ModuleList(Norm(model.hidden, numerics.norm_eps, model.norm)
                                        for _ in range(left))
        self.extra, self.tables = _counted(group.extra, True), _counted(group.extra, False)

    def forward(self, x: Tensor, step: Step, cache: object) -> Tensor:
        """x (B, S, D) -> the same size."""
        seen, out = x, x
        if self.mixer is not None:
            seen = _normed(self.attention_norm, self.widened(x, step.embedded))
            out = x + _normed(self.after_attention, self.mixer(seen, step, cache))
        if self.ffn is not None:
            below = x if self.parallel else out
            fed = seen if self.parallel and self.ffn_norm is None else _normed(self.ffn_norm, below)
            out = out + _normed(self.after_ffn, self.ffn(fed))
        for norm in self.more_norms:
            out = norm(out)
        return _read(out, self.extra)

    def widened(self, x: Tensor, embedded: Tensor) -> Tensor:
        """x, beside what the first layer saw where attention reads both (Zamba 2)."""
        if self.copies == 1:
            return x
        return torch.cat((x, *[embedded] * (self.copies - 1)), dim=-1)[..., :self.wide]


def _counted(parts: tuple[Extra, ...], streamed: bool) -> nn.ParameterList:
    return nn.ParameterList(torch.empty(x.elements) for x in parts
                            if x.elements and x.streamed == streamed)


def _normed(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


def _read(x: Tensor, tensors: nn.ParameterList) -> Tensor:
    for tensor in tensors:
        x = x + 0.0 * tensor.mean()
    return x


def lenders(model: Model) -> list[int | None]:
    """For each layer that has no K and V of its own, the layer before that lends them."""
    mixers = [g.mixer for g in model.layers for _ in range(g.count)]
    found: list[int | None] = []
    for index, m in enumerate(mixers):
        found.append(None)
        if not (isinstance(m, AttentionSpec) and m.shares_kv):
            continue
        alike = [i for i, o in enumerate(mixers[:index]) if isinstance(o, AttentionSpec)
                 and not o.shares_kv and (o.kv_heads, o.head_dim, o.values)
                 == (m.kv_heads, m.head_dim, m.values)]
        if not alike:
            raise InputError(f"model '{model.name}': layer {index} uses the KV cache of an earlier "
                             "layer and none is like it; take more --layers")
        same = [i for i in alike if mixers[i].window == m.window]  # type: ignore[union-attr]
        found[-1] = (same or alike)[-1]
    return found


class Transformer(nn.Module):
    """The decoder. `prefill` a prompt, then `decode` token by token; or `forward` without a cache.

    `tokens` is the longest sequence that it will see (the length of its rope tables).
    """

    def __init__(self, model: Model, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu", tokens: int = 4096, seed: int = 0,
                 numerics: Numerics | None = None) -> None:
        super().__init__()
        if 0 < model.learned_positions < tokens:
            raise InputError(f"model '{model.name}' has {model.learned_positions:,} learned "
                             f"positions, input and output need {tokens:,}")
        self.model, self.dtype, self.device = model, dtype, torch.device(device)
        self.numerics = numerics or Numerics()
        with torch.device("meta"):
            self._build()
        self.to(dtype).to_empty(device=self.device)
        if model.tied_embeddings:
            self.lm_head.weight = self.embedding.weight  # type: ignore[assignment]
        self.requires_grad_(False)
        self.eval()
        self.randomise(seed)
        self.rope = {width: rope_table(width, tokens, self.numerics.rope_theta, dtype, self.device)
                     for width in self._turned()}

    def _build(self) -> None:
        m, n = self.model, self.numerics
        width = m.embedding_width or m.hidden
        self.embedding = nn.Embedding(m.vocabulary, width)
        self.positions = nn.Embedding(m.learned_positions, m.hidden) if m.learned_positions else (
            None)
        self.embedding_norm = Norm(m.hidden, n.norm_eps, m.norm) if m.embedding_norm else None
        self.embedding_up = Linear(width, m.hidden) if m.embedding_width else None
        self.embedding_down = Linear(m.hidden, width) if m.embedding_width else None
        sources = lenders(m)
        self.layers, self.kinds = nn.ModuleList(), list[int]()
        for g in m.layers:
            distinct = g.count if g.distinct is None else g.distinct
            first = len(self.layers)
            for i in range(distinct):
                index = len(self.kinds) + i
                self.layers.append(Layer(m, g, n, index, sources[index], index in sources))
            self.kinds += [first + i % distinct for i in range(g.count)]
        self.final_norm = Norm(m.hidden, n.norm_eps, m.norm) if m.final_norm else None
        self.lm_head = Linear(width, m.vocabulary if m.tied_embeddings else m.head_rows)
        self.head_bias = nn.Parameter(torch.empty(m.head_rows)) if m.head_bias else None
        self.sampling = Greedy()
        self.extra, self.tables = _counted(m.extra, True), _counted(m.extra, False)

    def _turned(self) -> set[int]:
        """Widths that rope turns in some layer."""
        found = set()
        for g in self.model.layers:
            if isinstance(g.mixer, AttentionSpec) and g.mixer.rope:
                found.add(rotated_width(g.mixer.head_dim, self.numerics.rotary))
            elif isinstance(g.mixer, Mla):
                found.add(rotated_width(g.mixer.rope_dim))
                if g.mixer.indexer is not None:
                    found.add(min(rotated_width(g.mixer.rope_dim), g.mixer.indexer.head_dim))
        return found - {0}

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
            if p.dim() == 1 or name.endswith("bias"):
                p.fill_(0.0 if name.endswith(("bias", "decay_log")) else 1.0)
                continue
            flat, shift = p.view(-1), (number * 7_919) % size
            own = block.roll(shift) * p.shape[-1] ** -0.5
            for start in range(0, flat.numel(), size):
                part = flat[start:start + size]
                part.copy_(own[: part.numel()])

    def cache(self, batch: int, tokens: int) -> Cache:
        """An empty cache for `batch` sequences of `tokens`."""
        return Cache(self.model, batch, tokens, self.dtype, self.device)

    def forward(self, tokens: Tensor, cache: Cache | None = None,
                position: Tensor | None = None, last: bool = False) -> Tensor:
        """tokens (B, S) -> logits (B, S, vocabulary), or of the `last` token alone (B, 1, ...).

        With `position` (1,), a tensor, one new token a sequence stands there: the static way.
        """
        start = 0 if cache is None else cache.length
        where: slice | Tensor = slice(start, start + tokens.shape[1])
        where = where if position is None else position
        rope = {width: (cos[where], sin[where]) for width, (cos, sin) in self.rope.items()}
        x = self.embedded(tokens, where)
        step = Step(start, position, rope, x)
        for index, kind in enumerate(self.kinds):
            x = self.layers[kind](x, step, None if cache is None else cache.layers[index])
        if cache is not None and position is None:
            cache.length += tokens.shape[1]
        return self.logits(x[:, -1:] if last else x)

    def embedded(self, tokens: Tensor, where: slice | Tensor) -> Tensor:
        """What the first layer sees: (B, S, D)."""
        x: Tensor = self.embedding(tokens)
        if self.numerics.embedding_scale != 1.0:
            x = x * self.numerics.embedding_scale
        if self.embedding_up is not None:
            x = self.embedding_up(x)
        if self.positions is not None:
            x = x + self.positions.weight[where]
        return _read(_normed(self.embedding_norm, x), self.extra)

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states (B, S, D) -> (B, S, rows of the head)."""
        x = _normed(self.final_norm, x)
        if self.embedding_down is not None:
            x = self.embedding_down(x)
        logits: Tensor = self.lm_head(x)
        return logits if self.head_bias is None else logits + self.head_bias

    def prefill(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Prompts (B, S) behind what the cache holds -> logits (B, vocabulary) after the last."""
        logits: Tensor = self(tokens, cache, last=True)
        return logits[:, -1]

    def decode(self, tokens: Tensor, cache: Cache) -> Tensor:
        """One token a sequence (B, 1) -> logits (B, vocabulary) of the next."""
        logits: Tensor = self(tokens, cache)
        return logits[:, -1]

    def decode_static(self, tokens: Tensor, position: Tensor, cache: Cache) -> Tensor:
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
