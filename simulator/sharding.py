"""Which degrees of parallelism a model allows, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.errors import InputError
from simulator.specs.model import (
    Attention,
    Dense,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Mla,
    Model,
    Moe,
)

# Side of the blocks that share an FP8 scale. vLLM and SGLang refuse a shard that cuts one
# ("... is not divisible by weight quantization block_n = 128").
FP8_BLOCK = 128


@dataclass(frozen=True)
class Parallelism:
    """Degrees. Devices = tp x pp x cp x dp; the ep ranks lie inside tp x dp."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    dp: int = 1

    @property
    def devices(self) -> int:
        """Devices of the whole deployment."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def ranks(self) -> int:
        """Devices that share every matrix of a stage: tp x cp.

        Context-parallel ranks hold the same heads and different tokens of the KV cache; the
        matrices around attention are split over all of them (Helix, 2507.07120).
        """
        return self.tp * self.cp


@dataclass(frozen=True)
class Degree:
    """A tensor-parallel degree; `reason`: why not, or what it replicates; empty: all divides."""

    tp: int
    valid: bool
    reason: str = ""


def _undivided(group: LayerGroup, tp: int, ep: int) -> list[str]:
    """What `tp` does not divide in a group of layers."""
    m = group.mixer
    parts: list[tuple[str, int]] = []
    if isinstance(m, Attention | Mla):
        parts.append(("heads", m.heads))
    if isinstance(m, Mamba):
        parts.append(("Mamba channels", m.inner))
    if isinstance(m, Mamba2):
        parts.append(("Mamba heads", m.heads))
    if isinstance(m, GatedDelta):
        parts += [("key heads of the linear attention", m.key_heads),
                  ("value heads of the linear attention", m.value_heads)]
    return [f"does not divide the {size} {name}" for name, size in parts if np.any(size % tp)
            ] + _undivided_widths(group, tp, ep)


def _undivided_widths(group: LayerGroup, ranks: int, ep: int) -> list[str]:
    """Which widths of the feed-forward part `ranks` does not divide."""
    f = group.ffn
    parts: list[tuple[str, int]] = []
    if isinstance(f, Dense):
        parts.append(("columns of the MLP", f.width))
    if isinstance(f, Moe):
        if ep == 1:
            parts.append(("columns of each expert", f.width))
        parts += [(name, size) for name, size in (("columns of the shared experts", f.shared_width),
                                                  ("columns of the MLP", f.dense_width))
                  if np.any(size)]
    return [f"does not divide the {size} {name}" for name, size in parts if np.any(size % ranks)]


def _kv_heads(group: LayerGroup, tp: int) -> str:
    """Why KV heads don't fit `tp`, for tp above them too."""
    m = group.mixer
    if isinstance(m, Attention) and np.any((m.kv_heads % tp != 0) & (tp % m.kv_heads != 0)):
        return f"neither divides nor is a multiple of the {m.kv_heads} KV heads"
    return ""


def _replicated(model: Model, tp: int) -> str:
    for group in model.layers:
        m = group.mixer
        if isinstance(m, Attention) and tp > m.kv_heads:
            return f"each of the {m.kv_heads} KV heads is held {tp // m.kv_heads} times"
        if isinstance(m, Mla) and tp > 1:
            return f"the latent KV cache is held {tp} times"
    return ""


def _cut_blocks(group: LayerGroup, tp: int, ep: int, blocked: frozenset[str]) -> list[str]:
    """Which shards cut an FP8 block, among the roles of weights that are quantised in blocks."""
    m, f = group.mixer, group.ffn
    parts: list[tuple[str, str, int]] = []
    if isinstance(m, Attention):
        parts += [("attention", "rows of q", m.heads * m.head_dim // tp),
                  ("attention", "rows of k", max(m.kv_heads // tp, 1) * m.head_dim),
                  ("attention", "columns of the attention output", m.heads * m.values // tp)]
    if isinstance(m, Mla):
        heads = m.heads // tp
        parts += [("attention", "rows of q", heads * (m.nope_dim + m.rope_dim)),
                  ("attention", "rows of k and v", heads * (m.nope_dim + m.value_dim)),
                  ("attention", "columns of the attention output", heads * m.value_dim)]
    if isinstance(f, Dense):
        parts.append(("ffn", "columns of the MLP", f.width // tp))
    if isinstance(f, Moe):
        if ep == 1:
            parts.append(("experts", "columns of each expert", f.width // tp))
        parts += [("shared_experts", "columns of the shared experts", f.shared_width // tp),
                  ("ffn", "columns of the MLP", f.dense_width // tp)]
    return [f"leaves a rank {size} {name}, which cut the {FP8_BLOCK} x {FP8_BLOCK} blocks of "
            "fp8-block weights" for role, name, size in parts
            if role in blocked and size % FP8_BLOCK]


def refusals(model: Model, tp: int, ep: int = 1,
             formats: Mapping[str, str] | None = None) -> list[str]:
    """Every reason why a model can't be split over `tp` ranks.

    formats   number format by role of weights, where it isn't the model's own
    """
    formats = model.formats if formats is None else formats
    default = formats.get("weights")
    blocked = frozenset(role for role in ("attention", "ffn", "experts", "shared_experts")
                        if formats.get(role, default) == "fp8-block")
    found: list[str] = []
    for group in model.layers:
        undivided = _undivided(group, tp, ep)
        kv = _kv_heads(group, tp)
        undivided += [kv] if kv else []
        found += undivided
        if tp > 1 and not undivided:
            found += _cut_blocks(group, tp, ep, blocked)
    return list(dict.fromkeys(found))


def tensor_parallel_degrees(model: Model, most: int = 16,
                            formats: Mapping[str, str] | None = None) -> list[Degree]:
    """Every degree up to `most`: valid or not, and why."""
    degrees = []
    for tp in range(1, most + 1):
        reasons = refusals(model, tp, 1, formats)
        degrees.append(Degree(tp, not reasons, "; ".join(reasons) or _replicated(model, tp)))
    return degrees


def _valid(model: Model, most: int, ep: int, formats: Mapping[str, str] | None) -> str:
    return ", ".join(str(tp) for tp in range(1, most + 1)
                     if not refusals(model, tp, ep, formats))


def check_parallelism(model: Model, p: Parallelism,
                      formats: Mapping[str, str] | None = None) -> None:
    """Refuse degrees that the model does not allow, with the reason."""
    for name in ("tp", "pp", "ep", "cp", "dp"):
        degree = getattr(p, name)
        if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
            raise InputError(f"{name}: {degree} is not a whole number of at least 1")
    if np.any(p.pp > np.asarray(model.layer_count)):
        raise InputError(f"pp: {p.pp} stages for the {model.layer_count} layers of {model.name}")
    if (p.tp * p.dp) % p.ep:
        raise InputError(f"ep: {p.ep} does not divide tp x dp = {p.tp * p.dp}")
    experts = [g.ffn.experts for g in model.layers if isinstance(g.ffn, Moe)]
    if p.ep > 1 and not experts:
        raise InputError(f"ep: {model.name} has no experts, so ep must be 1")
    for count in experts:
        if p.ep > 1 and np.any(count % p.ep):
            valid = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
            raise InputError(f"ep: {p.ep} does not divide the {count} experts of {model.name} "
                             f"(valid: {valid})")
    for group in model.layers if p.cp > 1 else ():
        undivided = _undivided_widths(group, p.ranks, p.ep)
        if undivided:
            raise InputError(f"cp: tp x cp = {p.ranks} {undivided[0]} of {model.name}")
    reasons = refusals(model, p.tp, p.ep, formats) if p.tp > 1 else []
    if reasons:
        most = max(64, min(p.tp, 256))
        raise InputError(f"tp: {p.tp} {reasons[0]} of {model.name} "
                         f"(valid: {_valid(model, most, p.ep, formats)})")
