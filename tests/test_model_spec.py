"""Models: what a file may say, and that a model written out reads back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.specs.model import (
    Attention,
    Dense,
    Extra,
    GatedDelta,
    Indexer,
    LayerGroup,
    Mamba,
    Mamba2,
    Mla,
    Model,
    Moe,
    ShortConv,
    model_to_dict,
    parse_model,
    read_model,
)
from simulator.specs.sourced import Provenance

ATTENTION = {"kind": "attention", "heads": 4, "kv_heads": 2, "head_dim": 8}
DENSE = {"kind": "dense", "width": 64}
SMALL = {
    "name": "small", "hidden": 32, "vocabulary": 100, "positions": 128,
    "layers": [{"count": 2, "mixer": ATTENTION, "ffn": DENSE}],
}  # fmt: skip


def group(**fields: Any) -> dict[str, Any]:
    return {"layers": [{"count": 2, "mixer": ATTENTION, "ffn": DENSE} | fields]}


def refused(call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **more)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


def test_small() -> None:
    model = parse_model(SMALL, "f")
    assert (model.layer_count, model.head_rows) == (2, 100)
    assert model.formats == {"weights": "bf16"}
    assert model.layers[0].mixer == Attention(heads=4, kv_heads=2, head_dim=8)
    assert model.layers[0].ffn == Dense(width=64)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("""
name: m
source: {source: config.json, date: 2024, confidence: datasheet, verified: true}
hidden: 32
vocabulary: 100
positions: 128
layers:
  - count: 3
    mixer: {kind: attention, heads: 4, kv_heads: 4, head_dim: 8, window: 16}
    ffn: {kind: moe, experts: 8, top_k: 2, width: 64}
""")
    model: Any = read_model(path)
    assert model.source == Provenance(source="config.json", date="2024", confidence="datasheet",
                                      verified=True)
    assert model.layers[0].mixer.window == 16
    assert model.layers[0].ffn.top_k == 2


@pytest.mark.parametrize(("fields", "part"), [
    ({"hiden": 3}, "did you mean 'hidden'"),
    ({"name": ""}, "'name' is empty"),
    ({"name": 3}, "name: 3: expected str"),
    ({"hidden": None}, "'hidden' is missing"),
    ({"hidden": 32.0}, "expected int"),
    ({"hidden": True}, "expected int"),
    ({"hidden": "32"}, "expected int"),
    ({"hidden": 0}, "hidden: 0: expected int >= 1"),
    ({"hidden": -1}, "expected int >= 1"),
    ({"hidden": 10**29}, "expected int <="),
    ({"hidden": float("inf")}, "hidden"),
    ({"tied_embeddings": "no"}, "expected bool"),
    ({"tied_embeddings": 1}, "expected bool"),
    ({"norm": "batch"}, "unknown norm 'batch'"),
    ({"formats": {"wieghts": "fp8"}}, "did you mean 'weights'"),
    ({"formats": {"weights": "fp9"}}, "did you mean 'fp8'"),
    ({"formats": {"weights": 8}}, "formats"),
    ({"formats": {8: "fp8"}}, "formats"),
    ({"kv_format": "fp9"}, "did you mean 'fp8'"),
    ({"source": "config.json"}, "source"),
    ({"source": {"confidence": "sure"}}, "unknown confidence 'sure'"),
    ({"source": {"datum": "2024"}}, "did you mean 'date'"),
    ({"source": {"verified": "yes"}}, "expected bool"),
    ({"layers": []}, "at least one group"),
    ({"layers": {}}, "at least one group"),
    ({"layers": [3]}, "layers[0]: must be"),
    ({"layers": [{"mixer": ATTENTION}]}, "'count' is missing"),
    (group(mixer=None, ffn=None), "neither mixer nor ffn"),
    (group(count=0), "layers[0].count: 0: expected int >= 1"),
    (group(cuont=1), "did you mean 'count'"),
    (group(mixer={"kind": "attn"}), "did you mean 'attention'"),
    (group(mixer={"kind": "dense", "width": 3}), "unknown kind 'dense'"),
    (group(mixer={"kind": [1]}), "unknown kind"),
    (group(mixer={"heads": 4}), "unknown kind 'None'"),
    (group(mixer=7), "must be {kind"),
    (group(mixer=ATTENTION | {"kv_head": 2}), "did you mean 'kv_heads'"),
    (group(mixer=ATTENTION | {"kv_heads": 3}), "3 does not divide the 4 heads"),
    (group(mixer=ATTENTION | {"heads": -4}), "layers[0].mixer.heads: -4: expected int >= 1"),
    (group(mixer=ATTENTION | {"window": 8, "chunk": 8}), "both window and chunk"),
    (group(mixer=ATTENTION | {"qk_norm": "heads"}), "did you mean 'head'"),
    (group(ffn={"kind": "moe", "experts": 2, "top_k": 3, "width": 4}), "3 of only 2 experts"),
    (group(ffn=DENSE | {"widht": 3}), "did you mean 'width'"),
    (group(distinct=3), "3 of only 2 layers"),
    (group(extra=[{"name": "x", "elements": -1}]), "extra[0].elements"),
    (group(mixer={"kind": "mla", "heads": 1, "kv_rank": 1, "nope_dim": 1, "rope_dim": 1,
                  "value_dim": 1, "indexer": {"heads": 1, "head_dim": 1, "topk": 1}}),
     "did you mean 'top_k'"),
    ({"mtp": [{"count": 1}]}, "mtp[0]"),
    ({"mtp": 3}, "mtp"),
    ({"aliases": "x"}, "aliases"),
])
def test_refused(fields: Any, part: str) -> None:
    message = refused(parse_model, SMALL | fields, "file.yaml")
    assert message.startswith("file.yaml: ")
    assert part in message


def test_a_key_that_is_no_text() -> None:
    assert "unknown key '3'" in refused(parse_model, {**SMALL, 3: 4}, "f")


def test_parse_leaves_its_input_alone() -> None:
    source = {"source": "x", "date": 2024}
    parse_model(SMALL | {"source": source}, "f")
    assert source["date"] == 2024


def test_replace() -> None:
    model: Any = parse_model(SMALL, "f")
    widths = np.array([32, 64])
    assert model.replace(hidden=widths).hidden is widths
    assert model.hidden == 32
    assert model.layers[0].mixer.replace(kv_heads=4).kv_heads == 4
    assert "did you mean 'hidden'" in refused(model.replace, hiden=3)
    assert "did you mean 'kv_heads'" in refused(model.layers[0].mixer.replace, kv_head=3)


def test_parts_are_frozen() -> None:
    mixer: Any = parse_model(SMALL, "f").layers[0].mixer
    with pytest.raises(AttributeError):
        mixer.heads = 3


POSITIVE = st.integers(1, 2**20)
SWITCH = st.booleans()
MIXERS = st.one_of(
    st.tuples(st.integers(1, 64), st.integers(1, 8)).flatmap(lambda n: st.builds(
        Attention, heads=st.just(n[0] * n[1]), kv_heads=st.just(n[0]), head_dim=POSITIVE,
        window=st.none() | POSITIVE, rope=SWITCH, qk_norm=st.sampled_from([None, "head", "full"]),
        value_dim=st.none() | POSITIVE, shares_kv=SWITCH)),
    st.builds(Mla, heads=POSITIVE, kv_rank=POSITIVE, nope_dim=POSITIVE, rope_dim=POSITIVE,
              value_dim=POSITIVE, q_rank=st.none() | POSITIVE,
              indexer=st.none() | st.builds(Indexer, heads=POSITIVE, head_dim=POSITIVE,
                                            top_k=POSITIVE)),
    st.builds(Mamba, inner=POSITIVE, state=POSITIVE, conv=POSITIVE, dt_rank=POSITIVE),
    st.builds(Mamba2, heads=POSITIVE, head_dim=POSITIVE, state=POSITIVE, groups=POSITIVE,
              conv=POSITIVE, gated_norm=SWITCH),
    st.builds(GatedDelta, key_heads=POSITIVE, value_heads=POSITIVE, key_dim=POSITIVE,
              value_dim=POSITIVE, conv=POSITIVE),
    st.builds(ShortConv, conv=POSITIVE, bias=SWITCH),
)
FFNS = st.one_of(
    st.builds(Dense, width=POSITIVE, gated=SWITCH, bias=SWITCH),
    st.builds(Moe, experts=st.integers(8, 512), top_k=st.integers(1, 8), width=POSITIVE,
              shared_width=st.integers(0, 2**20), latent=st.none() | POSITIVE),
)
EXTRAS = st.lists(st.builds(Extra, name=st.text(), elements=POSITIVE, streamed=SWITCH),
                  max_size=2).map(tuple)
GROUPS = st.builds(LayerGroup, count=POSITIVE, mixer=MIXERS, ffn=st.none() | FFNS,
                   norms=st.integers(0, 4), parallel=SWITCH, extra=EXTRAS)
MODELS = st.builds(
    Model, name=st.text(min_size=1), title=st.none() | st.text(), hidden=POSITIVE,
    vocabulary=POSITIVE, output_vocabulary=st.none() | POSITIVE, positions=POSITIVE,
    tied_embeddings=SWITCH, norm=st.sampled_from(["rms", "layer", "layer-no-bias", "none"]),
    formats=st.sampled_from([{"weights": "bf16"}, {"weights": "fp8", "head": "bf16"}, {}]),
    kv_format=st.sampled_from([None, "fp8"]), aliases=st.lists(st.text(), max_size=2).map(tuple),
    source=st.none() | st.builds(Provenance, source=st.text(), confidence=st.just("measured")),
    layers=st.lists(GROUPS, min_size=1, max_size=3).map(tuple),
    mtp=st.lists(GROUPS, max_size=1).map(tuple), extra=EXTRAS,
)  # fmt: skip


@given(MODELS)
def test_round_trip(model: Any) -> None:
    assert parse_model(model_to_dict(model), "f") == model
