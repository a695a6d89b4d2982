"""A catalogue model cut to what a machine can hold: fewer layers, smaller widths, another format.

What is predicted is the model that ran, never the one it was cut from.
"""

from __future__ import annotations

import math
from typing import Any

from simulator.errors import InputError
from simulator.specs.model import (
    Attention,
    Extra,
    FeedForward,
    GatedDelta,
    LayerGroup,
    Mamba,
    Mamba2,
    Mixer,
    Mla,
    Model,
    Moe,
    ShortConv,
)

# Widths are whole multiples of these, as those of real models are.
WIDTH_UNIT, VOCABULARY_UNIT = 16, 64
MOST_LAYERS = 10_000


def cut(model: Model, layers: int | None = None, scale: float = 1.0) -> Model:
    """The model with `layers` layers and with widths times `scale`; without its MTP layers.

    Kinds of layers keep their shares, and each keeps one layer at least while there are enough.
    Scaling keeps head sizes, the ratio of query to KV heads, windows and the number of experts.
    """
    count = model.layer_count if layers is None else layers
    if not 1 <= count <= MOST_LAYERS:
        raise InputError(f"layers: {count} is not between 1 and {MOST_LAYERS:,}")
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale: {scale:g} must be above 0 and finite")
    groups = model.layers if count == model.layer_count else _fewer(model.layers, count)
    kept: Model = model.replace(layers=groups, mtp=())
    return kept if scale == 1.0 else _scaled(kept, scale)


def at_format(model: Model, dtype: str) -> Model:
    """The model with all weights in one number format."""
    found: Model = model.replace(formats={"weights": dtype}, kv_format=None, state_format=None)
    return found


def _fewer(groups: tuple[LayerGroup, ...], count: int) -> tuple[LayerGroup, ...]:
    if count < len(groups):    # the most frequent, those before that take K and V from others
        order = sorted(range(len(groups)), key=lambda i: (_borrows(groups[i]), -groups[i].count))
        given = [int(i in order[:count]) for i in range(len(groups))]
    else:
        shares = [count * g.count / sum(g.count for g in groups) for g in groups]
        given = [max(math.floor(s), 1) for s in shares]
        while sum(given) != count:
            step = 1 if sum(given) < count else -1
            free = (i for i, n in enumerate(given) if n + step > 0)
            given[max(free, key=lambda i: step * (shares[i] - given[i]))] += step
    return tuple(g.replace(count=n, distinct=None if g.distinct is None else min(n, g.distinct))
                 for g, n in zip(groups, given, strict=True) if n > 0)


def _borrows(group: LayerGroup) -> bool:
    return isinstance(group.mixer, Attention) and group.mixer.shares_kv


def _width(value: int, scale: float, unit: int = WIDTH_UNIT) -> int:
    """A width times `scale`, in whole units; 0 and None stay what they are."""
    return max(1, round(value * scale / unit)) * unit if value else value


def _heads(heads: int, kv_heads: int, scale: float) -> tuple[int, int]:
    """Query and KV heads in their ratio; below one KV head the query heads go on shrinking."""
    fewer = max(1, round(kv_heads * scale))
    if kv_heads * scale >= 1:
        return fewer * (heads // kv_heads), fewer
    return max(1, round(heads * scale)), 1


def _mixer(m: Mixer | None, scale: float) -> Mixer | None:
    changes: dict[str, Any] = {}
    if isinstance(m, Attention):
        heads, kv_heads = _heads(m.heads, m.kv_heads, scale)
        changes = {"heads": heads, "kv_heads": kv_heads}
    elif isinstance(m, Mla):
        changes = {"heads": max(1, round(m.heads * scale)), "kv_rank": _width(m.kv_rank, scale)}
        changes |= {} if m.q_rank is None else {"q_rank": _width(m.q_rank, scale)}
    elif isinstance(m, Mamba):
        changes = {"inner": _width(m.inner, scale), "dt_rank": _width(m.dt_rank, scale)}
        if m.dt_heads is not None:    # channels of a head stay
            heads = max(1, round(m.dt_heads * scale))
            changes |= {"dt_heads": heads, "inner": heads * (m.inner // m.dt_heads)}
    elif isinstance(m, Mamba2):
        heads, groups = _heads(m.heads, m.groups, scale)
        changes = {"heads": heads, "groups": groups}
    elif isinstance(m, GatedDelta):
        values, keys = _heads(m.value_heads, m.key_heads, scale)
        changes = {"value_heads": values, "key_heads": keys}
    return m if m is None or isinstance(m, ShortConv) else m.replace(**changes)


def _ffn(f: FeedForward | None, scale: float) -> FeedForward | None:
    if f is None:
        return None
    changes: dict[str, Any] = {"width": _width(f.width, scale)}
    if isinstance(f, Moe):
        changes |= {"shared_width": _width(f.shared_width, scale),
                    "dense_width": _width(f.dense_width, scale),
                    "latent": None if f.latent is None else _width(f.latent, scale)}
    return f.replace(**changes)  # type: ignore[no-any-return]


def _extra(parts: tuple[Extra, ...], scale: float) -> tuple[Extra, ...]:
    """Tensors of unknown form, taken to be matrices: two widths shrink."""
    return tuple(x.replace(elements=max(1, round(x.elements * scale**2))) for x in parts)


def _scaled(m: Model, scale: float) -> Model:
    hidden = _hidden(m, scale)
    groups = []
    for g in m.layers:
        mixer = _mixer(g.mixer, scale)
        if isinstance(mixer, Attention) and mixer.input_width is not None:
            mixer = mixer.replace(input_width=round(mixer.input_width / m.hidden) * hidden)
        groups.append(g.replace(mixer=mixer, ffn=_ffn(g.ffn, scale), extra=_extra(g.extra, scale)))
    rows = {"vocabulary": _width(m.vocabulary, scale, VOCABULARY_UNIT)}
    if m.output_vocabulary is not None:
        rows["output_vocabulary"] = _width(m.output_vocabulary, scale, VOCABULARY_UNIT)
    if m.embedding_width is not None:
        rows["embedding_width"] = _width(m.embedding_width, scale)
    scaled: Model = m.replace(hidden=hidden, layers=tuple(groups), extra=_extra(m.extra, scale),
                              **rows)
    return scaled


def _hidden(m: Model, scale: float) -> int:
    """The hidden size: whole heads of attention where there is some."""
    sizes = [g.mixer.head_dim for g in m.layers if isinstance(g.mixer, Attention)]
    return _width(m.hidden, scale, sizes[0] if sizes else VOCABULARY_UNIT)


def cut_name(model: Model, kept: Model, scale: float = 1.0) -> str:
    """The catalogue's name, with what was cut behind it: `llama-3.2-1b layers=2 scale=0.5`."""
    cuts = [f"layers={kept.layer_count}"] if kept.layer_count != model.layer_count else []
    cuts += [f"scale={scale:g}"] if scale != 1.0 else []
    return " ".join([model.name, *cuts])


__all__ = ["at_format", "cut", "cut_name"]
