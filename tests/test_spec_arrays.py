"""Any number of a model may be an array: the estimate follows, row by row as the scalars do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator import Deployment, Model, estimate


def with_part(model: Model, index: int, part: str, field: str, value: Any) -> Model:
    """The model with one number of one layer group replaced."""
    groups = list(model.layers)
    inner = getattr(groups[index], part).replace(**{field: value})
    groups[index] = groups[index].replace(**{part: inner})
    changed: Model = model.replace(layers=tuple(groups))
    return changed


def with_count(model: Model, value: Any) -> Model:
    """The model with another number of layers in its first group."""
    first = model.layers[0].replace(count=value)
    changed: Model = model.replace(layers=(first, *model.layers[1:]))
    return changed


CASES: list[tuple[str, str, Any, list[int]]] = [
    ("llama-3.1-8b", "hidden", lambda m, x: m.replace(hidden=x), [2048, 4096]),
    ("llama-3.1-8b", "vocabulary", lambda m, x: m.replace(vocabulary=x), [32000, 128256]),
    ("llama-3.1-8b", "positions", lambda m, x: m.replace(positions=x), [4096, 131072]),
    ("gpt2", "learned", lambda m, x: m.replace(learned_positions=x), [1024, 2048]),
    ("llama-3.1-8b", "count", with_count, [16, 32]),
    ("llama-3.1-8b", "heads", lambda m, x: with_part(m, 0, "mixer", "heads", x), [32, 64]),
    ("llama-3.1-8b", "kv_heads", lambda m, x: with_part(m, 0, "mixer", "kv_heads", x), [1, 8]),
    ("llama-3.1-8b", "head_dim", lambda m, x: with_part(m, 0, "mixer", "head_dim", x), [64, 128]),
    ("llama-3.1-8b", "width", lambda m, x: with_part(m, 0, "ffn", "width", x), [8192, 14336]),
    ("mistral-7b-v0.1", "window", lambda m, x: with_part(m, 0, "mixer", "window", x), [512, 4096]),
    ("mixtral-8x7b", "experts", lambda m, x: with_part(m, 0, "ffn", "experts", x), [8, 64]),
    ("mixtral-8x7b", "top_k", lambda m, x: with_part(m, 0, "ffn", "top_k", x), [1, 2, 8]),
    ("mixtral-8x7b", "width", lambda m, x: with_part(m, 0, "ffn", "width", x), [1024, 2048]),
    ("deepseek-v3", "kv_rank", lambda m, x: with_part(m, 1, "mixer", "kv_rank", x), [256, 512]),
    ("mamba-2.8b", "state", lambda m, x: with_part(m, 0, "mixer", "state", x), [8, 16]),
]


@pytest.mark.parametrize(("name", "field", "make", "values"), CASES,
                         ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_an_array_in_a_model(name: str, field: str, make: Any, values: list[int]) -> None:
    base = Deployment.of(name, "h200")
    whole = estimate(base.replace(model=make(base.model, np.array(values))))
    for row, value in enumerate(values):
        one = estimate(base.replace(model=make(base.model, value)))
        for a, b in ((whole.ttft.expected, one.ttft.expected),
                     (whole.tpot.ceiling, one.tpot.ceiling),
                     (whole.tpot.high, one.tpot.high),
                     (whole.memory.total, one.memory.total),
                     (whole.memory.max_batch, one.memory.max_batch),
                     (whole.memory.max_context, one.memory.max_context)):
            rows = np.broadcast_to(a, (len(values),))
            assert rows[row] == pytest.approx(float(b), rel=1e-14)
