"""Layers with a state of fixed size: Mamba, Mamba-2, the gated delta rule, short convolutions.

A step reads and writes the state once, whatever the context. A prefill takes tokens in chunks:
inside of a chunk all pairs are products of matrices, between chunks the state carries on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from simulator.executor.cache import State, Step
from simulator.executor.modules import Linear, Norm, Numerics, Timed
from simulator.specs.model import GatedDelta, Mamba, Mamba2, ShortConv

CHUNK = 64


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, cache: State | None) -> Tensor:
    """Causal convolution of each channel over the last tokens: x (B, S, C), weight (C, width)."""
    before = weight.shape[1] - 1
    columns = (x.new_zeros(x.shape[0], before, x.shape[2]) if cache is None
               else cache.columns.transpose(1, 2))
    rows = torch.cat((columns, x), dim=1)
    # Shifted sums: one kernel for each of the few columns, while conv1d in 16 bits takes a CPU
    # a thousand times as long.
    out = sum(rows[:, i:i + x.shape[1]].float() * weight[:, i] for i in range(before + 1))
    assert isinstance(out, Tensor)
    if cache is not None and before:
        cache.columns.copy_(rows[:, -before:].transpose(1, 2))
    return (out if bias is None else out + bias).to(x.dtype)


def recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor,
          beta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Outputs q S and the last state of S <- e^decay S + k v^T, token after token.

    q, k (B, H, L, dk), v (B, H, L, dv), decay (B, H, L) <= 0, state (B, H, dk, dv). With `beta`
    (B, H, L) the delta rule: v less what the state already gives for k, times beta, Gated DeltaNet
    (2412.06464) eq. 10. Chunks as in Mamba-2 (2405.21060), section 6.
    """
    outputs = []
    for begin in range(0, q.shape[2], CHUNK):
        part = slice(begin, begin + CHUNK)
        a, b, u, g = q[:, :, part], k[:, :, part], v[:, :, part], decay[:, :, part].cumsum(-1)
        since = g[..., :, None] - g[..., None, :]
        kept = since.tril().exp().tril()
        if beta is not None:
            rate = beta[:, :, part, None]
            u = rate * (u - g[..., None].exp() * (b @ state))
            if b.shape[2] > 1:    # each token sees what those before it in the chunk have written
                own = torch.eye(b.shape[2], device=b.device) + (rate * kept * (b @ b.mT)).tril(-1)
                u = torch.linalg.solve_triangular(own, u, upper=False)
        outputs.append(g[..., None].exp() * (a @ state) + (kept * (a @ b.mT)) @ u)
        last = g[..., -1:]
        state = last[..., None].exp() * state + ((last - g)[..., None].exp() * b).mT @ u
    return torch.cat(outputs, dim=2), state


def heads(x: Tensor, count: int, wanted: int) -> Tensor:
    """x (B, S, count d) as `wanted` heads in fp32, each of the `count` as often as it takes."""
    parts: Tensor = x.float().unflatten(-1, (count, -1)).transpose(1, 2)
    return parts.repeat_interleave(wanted // count, dim=1)


def carried(cache: State | None, like: Tensor, *size: int) -> Tensor:
    """The state that a pass starts from: the cache's, or zeros."""
    if cache is not None and cache.state is not None:
        return cache.state
    return torch.zeros(like.shape[0], *size, device=like.device)


def keep(cache: State | None, state: Tensor) -> None:
    """Write the state back to where it lies, as a captured step needs it."""
    if cache is not None and cache.state is not None:
        cache.state.copy_(state)


class MambaScan(Timed):
    """h <- exp(dt A) h + dt B x, y = C h + D x of each channel, Mamba (2312.00752) algorithm 2."""

    def __init__(self, spec: Mamba) -> None:
        super().__init__()
        steps = spec.inner if spec.dt_heads is None else spec.dt_heads
        self.decay_log = nn.Parameter(torch.empty(*((steps, spec.state) if spec.dt_heads is None
                                                    else (steps,))))
        self.skip = nn.Parameter(torch.empty(steps))

    def forward(self, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, cache: State | None) -> Tensor:
        """x (B, S, inner), dt (B, S, steps), b and c (B, S, state) -> (B, S, inner)."""
        channels = x.shape[-1] // dt.shape[-1]    # that share a step size
        dt = dt.float().repeat_interleave(channels, dim=-1)
        rate = -self.decay_log.float().exp()
        rate = rate if rate.dim() == 2 else rate.repeat_interleave(channels)[:, None]
        state = carried(cache, x, x.shape[-1], b.shape[-1])
        outputs = []
        for t in range(x.shape[1]):
            grown = (dt[:, t] * x[:, t])[..., None] * b[:, t, None].float()
            state = (dt[:, t, :, None] * rate).exp() * state + grown
            outputs.append((state @ c[:, t, :, None].float()).squeeze(-1))
        keep(cache, state)
        skip = self.skip.repeat_interleave(channels)
        return torch.stack(outputs, dim=1).to(x.dtype) + skip * x


class MambaLayer(nn.Module):
    """Mamba, with norms of its inner values where the model has them (Jamba, PLaMo 2)."""

    def __init__(self, spec: Mamba, hidden: int, numerics: Numerics) -> None:
        super().__init__()
        s, eps = spec, numerics.norm_eps
        self.spec = spec
        self.widths = (s.dt_rank, s.state, s.state)
        steps = s.inner if s.dt_heads is None else s.dt_heads
        self.ssm_input = Linear(hidden, 2 * s.inner, s.projection_bias)
        self.conv = nn.Parameter(torch.empty(s.inner, s.conv))
        self.conv_bias = nn.Parameter(torch.empty(s.inner)) if s.conv_bias else None
        self.ssm_x = Linear(s.inner, sum(self.widths))
        self.norms = nn.ModuleList(Norm(w, eps) for w in self.widths if s.inner_norms)
        self.ssm_dt = Linear(s.dt_rank, steps, bias=True)
        self.scan = MambaScan(spec)
        self.ssm_output = Linear(s.inner, hidden, s.projection_bias)

    def forward(self, x: Tensor, step: Step, cache: State | None) -> Tensor:
        inner, gate = self.ssm_input(x).chunk(2, dim=-1)
        inner = F.silu(convolve(inner, self.conv, self.conv_bias, cache))
        parts = self.ssm_x(inner).split(self.widths, dim=-1)
        if self.norms:
            parts = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        out = self.scan(inner, F.softplus(self.ssm_dt(parts[0])), parts[1], parts[2], cache)
        result: Tensor = self.ssm_output(out * F.silu(gate))
        return result


class Mamba2Scan(Timed):
    """The recurrence of Mamba-2 over heads: one decay a head and token."""

    def __init__(self, spec: Mamba2) -> None:
        super().__init__()
        self.spec = spec
        self.decay_log = nn.Parameter(torch.empty(spec.heads))
        self.dt_bias = nn.Parameter(torch.empty(spec.heads))
        self.skip = nn.Parameter(torch.empty(spec.heads))

    def forward(self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, cache: State | None) -> Tensor:
        """x (B, S, inner), b and c (B, S, groups state), dt (B, S, heads) -> (B, S, inner)."""
        s = self.spec

        dt = F.softplus(dt.float() + self.dt_bias).transpose(1, 2)
        decay = -dt * self.decay_log.float().exp()[:, None]
        values = heads(x, s.heads, s.heads)
        out, state = recur(
            heads(c, s.groups, s.heads), heads(b, s.groups, s.heads), dt[..., None] * values,
            decay, carried(cache, x, s.heads, s.state, s.head_dim))
        keep(cache, state)
        out = out + self.skip[:, None, None] * values
        return out.transpose(1, 2).flatten(2).to(x.dtype)


class Mamba2Layer(nn.Module):
    """Mamba-2: convolution over x, B and C, recurrence, gated norm."""

    def __init__(self, spec: Mamba2, hidden: int, numerics: Numerics) -> None:
        super().__init__()
        s = spec
        inner, shared = s.heads * s.head_dim, s.groups * s.state
        self.widths, self.parts = (inner, inner + 2 * shared, s.heads), (inner, shared, shared)
        self.ssm_input = Linear(hidden, sum(self.widths), s.projection_bias)
        self.conv = nn.Parameter(torch.empty(inner + 2 * shared, s.conv))
        self.conv_bias = nn.Parameter(torch.empty(inner + 2 * shared)) if s.conv_bias else None
        self.scan = Mamba2Scan(spec)
        self.norm = Norm(inner, numerics.norm_eps, groups=s.groups) if s.gated_norm else None
        self.ssm_output = Linear(inner, hidden, s.projection_bias)

    def forward(self, x: Tensor, step: Step, cache: State | None) -> Tensor:
        gate, inner, dt = self.ssm_input(x).split(self.widths, dim=-1)
        inner = F.silu(convolve(inner, self.conv, self.conv_bias, cache))
        out = self.scan(*inner.split(self.parts, dim=-1), dt, cache) * F.silu(gate)
        result: Tensor = self.ssm_output(out if self.norm is None else self.norm(out))
        return result


class DeltaScan(Timed):
    """The gated delta rule over heads, with q and k of length one."""

    def __init__(self, spec: GatedDelta) -> None:
        super().__init__()
        self.spec = spec
        self.decay_log = nn.Parameter(torch.empty(spec.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(spec.value_heads))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, a: Tensor,
                cache: State | None) -> Tensor:
        """q, k (B, S, keys), v (B, S, values), beta and a (B, S, value heads) -> like v."""
        s = self.spec

        def unit(part: Tensor) -> Tensor:
            part = heads(part, s.key_heads, s.value_heads)
            return part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6)

        decay = -self.decay_log.float().exp() * F.softplus(a.float() + self.dt_bias)
        out, state = recur(
            unit(q) * s.key_dim ** -0.5, unit(k), heads(v, s.value_heads, s.value_heads),
            decay.transpose(1, 2), carried(cache, v, s.value_heads, s.key_dim, s.value_dim),
            torch.sigmoid(beta.float()).transpose(1, 2))
        keep(cache, state)
        return out.transpose(1, 2).flatten(2).to(v.dtype)


class GatedDeltaLayer(nn.Module):
    """Gated delta-rule linear attention: convolution over q, k and v, recurrence, gated norm."""

    def __init__(self, spec: GatedDelta, hidden: int, numerics: Numerics) -> None:
        super().__init__()
        s, keys, values = spec, spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
        self.spec, self.parts = spec, (keys, keys, values)
        self.widths = (2 * keys + values, values, s.value_heads, s.value_heads)
        self.ssm_input = Linear(hidden, sum(self.widths))
        self.conv = nn.Parameter(torch.empty(2 * keys + values, s.conv))
        self.scan = DeltaScan(spec)
        self.norm = Norm(s.value_dim, numerics.norm_eps)
        self.ssm_output = Linear(values, hidden)

    def forward(self, x: Tensor, step: Step, cache: State | None) -> Tensor:
        inner, gate, beta, a = self.ssm_input(x).split(self.widths, dim=-1)
        inner = F.silu(convolve(inner, self.conv, None, cache))
        out = self.scan(*inner.split(self.parts, dim=-1), beta, a, cache)
        out = self.norm(out.unflatten(-1, (self.spec.value_heads, -1))).flatten(2) * F.silu(gate)
        result: Tensor = self.ssm_output(out)
        return result


class ConvScan(Timed):
    """C conv(B x): the gated short convolution."""

    def __init__(self, spec: ShortConv, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, spec.conv))
        self.bias = nn.Parameter(torch.empty(hidden)) if spec.bias else None

    def forward(self, b: Tensor, c: Tensor, x: Tensor, cache: State | None) -> Tensor:
        return c * convolve(b * x, self.weight, self.bias, cache)


class ShortConvLayer(nn.Module):
    """Gated short convolution (LFM2)."""

    def __init__(self, spec: ShortConv, hidden: int, numerics: Numerics) -> None:
        super().__init__()
        self.ssm_input = Linear(hidden, 3 * hidden, spec.bias)
        self.scan = ConvScan(spec, hidden)
        self.ssm_output = Linear(hidden, hidden, spec.bias)

    def forward(self, x: Tensor, step: Step, cache: State | None) -> Tensor:
        result: Tensor = self.ssm_output(self.scan(*self.ssm_input(x).chunk(3, dim=-1), cache))
        return result


__all__ = ["GatedDeltaLayer", "Mamba2Layer", "MambaLayer", "ShortConvLayer", "convolve", "recur"]
