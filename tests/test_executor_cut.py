"""Fewer layers, smaller widths: still the model, and exactly counted."""

from __future__ import annotations

import pytest

from simulator.errors import InputError
from simulator.executor.cut import at_format, cut, cut_name
from simulator.parameters import parameters_total
from simulator.specs.catalogue import catalogue
from simulator.specs.model import Attention, Dense, Mla, Model


def counts(model: Model) -> list[int]:
    return [g.count for g in model.layers]


@pytest.mark.parametrize("name", ["llama-3.2-1b", "deepseek-v3", "jamba-1.5-mini"])
def test_uncut_is_the_model_without_its_mtp_layers(name: str) -> None:
    model = Model.load(name)
    assert cut(model) == model.replace(mtp=())
    assert parameters_total(cut(model)) == parameters_total(model)


def test_kinds_of_layers_keep_their_shares() -> None:
    deepseek = Model.load("deepseek-v3")    # 3 dense layers, 58 of experts
    assert counts(cut(deepseek, 61)) == [3, 58]
    assert counts(cut(deepseek, 20)) == [1, 19]
    assert counts(cut(deepseek, 2)) == [1, 1]
    assert counts(cut(deepseek, 1)) == [1]
    assert not isinstance(cut(deepseek, 1).layers[0].ffn, Dense)
    assert counts(cut(deepseek, 122)) == [6, 116]
    gemma = Model.load("gemma-3-27b")    # 52 layers of a window, 10 of all tokens
    assert counts(cut(gemma, 6)) == [5, 1]
    assert counts(cut(Model.load("llama-3.2-1b"), 100)) == [100]


@pytest.mark.parametrize("name", catalogue("models"))
def test_any_number_of_layers_can_be_had(name: str) -> None:
    model = Model.load(name)
    for layers in (1, 2, 3, 7, 50):
        kept = cut(model, layers)
        assert kept.layer_count == layers
        assert all(g.count >= 1 and (g.distinct or 1) <= g.count for g in kept.layers)
    few = cut(model, len(model.layers))
    assert [g.mixer for g in few.layers] == [g.mixer for g in model.layers]


def test_who_lends_keys_stays_before_who_borrows() -> None:
    for layers in (1, 2):
        kept = cut(Model.load("gemma-3n-e2b"), layers)
        assert not any(isinstance(g.mixer, Attention) and g.mixer.shares_kv for g in kept.layers)


def test_scaling_keeps_heads_their_ratio_and_the_number_of_experts() -> None:
    llama, small = (Model.load("llama-3.1-8b"), cut(Model.load("llama-3.1-8b"), 2, 0.25))
    a, ffn = small.layers[0].mixer, small.layers[0].ffn
    assert isinstance(a, Attention)
    assert isinstance(ffn, Dense)
    assert (a.heads, a.kv_heads, a.head_dim) == (8, 2, 128)
    assert (small.hidden, ffn.width, small.vocabulary) == (1024, 3584, 32064)
    assert small.positions == llama.positions
    one = cut(llama, 1, 0.05).layers[0].mixer
    assert isinstance(one, Attention)
    assert (one.heads, one.kv_heads) == (2, 1)
    moe = cut(Model.load("deepseek-v3"), 2, 0.125)
    latent, routed = moe.layers[1].mixer, moe.layers[1].ffn
    assert isinstance(latent, Mla)
    assert routed is not None
    assert not isinstance(routed, Dense)
    assert (latent.heads, latent.q_rank, latent.kv_rank, latent.rope_dim) == (16, 192, 64, 64)
    assert (routed.experts, routed.top_k, routed.width, routed.shared_width) == (256, 8, 256, 256)


def test_scaling_by_one_changes_nothing_and_twice_is_once() -> None:
    model = Model.load("qwen3-30b-a3b")
    assert cut(model, None, 1.0) == cut(model)
    half = cut(model, 4, 0.5)
    assert cut(half) == half
    assert cut(cut(model, 4, 2.0), None, 0.25) == half


@pytest.mark.parametrize(("layers", "scale"), [(0, 1.0), (-1, 1.0), (2, 0.0), (2, float("nan")),
                                               (10_001, 1.0), (2, float("inf"))])
def test_impossible_cuts_are_refused(layers: int, scale: float) -> None:
    with pytest.raises(InputError):
        cut(Model.load("llama-3.2-1b"), layers, scale)


def test_the_name_says_what_was_cut() -> None:
    model = Model.load("llama-3.2-1b")
    assert cut_name(model, cut(model)) == "llama-3.2-1b"
    assert cut_name(model, cut(model, 2, 0.5), 0.5) == "llama-3.2-1b layers=2 scale=0.5"


def test_one_format_for_all_weights() -> None:
    assert at_format(Model.load("deepseek-v3"), "fp32").formats == {"weights": "fp32"}
