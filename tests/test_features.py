"""Speculation, chunked prefill, prefix cache and expert imbalance as parts of an estimate."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Deployment, InputError, Model, Parallelism, Workload, estimate
from simulator.allocation import (
    allocated_bytes,
    cached_prefix,
    paged_occupancy,
    paged_waste,
    turns_hit_rate,
)
from simulator.cli import run as tokline
from simulator.feature_pass import chunk_steps, reread_tokens
from simulator.features import features
from simulator.memory import weight_bytes
from simulator.operations import moe
from simulator.speculation import DEFAULTS, Speculation

DRAFT = Model.load("llama-3.2-1b")
LLAMA = Deployment.of("llama-3.1-70b", "h100", parallelism=Parallelism(tp=4))
DEEPSEEK = Deployment.of("deepseek-v3", "h200", parallelism=Parallelism(tp=8))


def tpot(d: Deployment, batch: float = 1, engine: str | None = None) -> float:
    return float(estimate(d, Workload(batch)).tpot.expected)


def speculating(kind: str = "draft", length: int | None = None,
                acceptance: Any = None) -> Deployment:
    draft = DRAFT if kind == "draft" else None
    base = DEEPSEEK if kind == "mtp" else LLAMA
    return base.replace(speculation=Speculation(kind, draft, length, acceptance))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """`tokline estimate` as (exit code, stdout, stderr)."""
    def call(*words: str) -> tuple[int, str, str]:
        code = tokline(["estimate", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err
    return call


# speculation

@pytest.mark.parametrize("kind", list(DEFAULTS))
@pytest.mark.parametrize("batch", [1, 16, 256])
def test_hopeless_drafts_never_help(kind: str, batch: int) -> None:
    d = speculating(kind, acceptance=0.0)
    slow, plain = (estimate(x, Workload(batch)) for x in (d, d.replace(speculation=None)))
    for a, b in zip(slow.tpot.all, plain.tpot.all, strict=True):
        assert a >= b


@pytest.mark.parametrize("kind", list(DEFAULTS))
def test_acceptance_is_monotone(kind: str) -> None:
    times = [tpot(speculating(kind, acceptance=a), 8) for a in np.linspace(0, 1, 11)]
    assert all(a > b for a, b in pairwise(times))


@pytest.mark.parametrize("kind", list(DEFAULTS))
def test_figures_stay_in_order_and_add_up(kind: str) -> None:
    e = estimate(speculating(kind), Workload(32, 2000, 300))
    for f in (e.ttft, e.tpot, e.e2e):
        assert f.ceiling <= f.low <= f.expected <= f.high
    detail = e.decode.detail
    for field, total in (("expected", detail.expected - detail.host), ("flops", detail.flops),
                         ("bytes", detail.bytes), ("ceiling", detail.ceiling)):
        assert sum(getattr(t, field) for t in detail.operations) == pytest.approx(total, rel=1e-12)
    assert detail.compute + detail.memory + detail.network + detail.overhead == pytest.approx(
        detail.expected, rel=1e-12)


def test_a_round_by_hand() -> None:
    """n-grams: the step at g + 1 tokens a sequence over the tokens that it yields."""
    from simulator.efficiency.stacked import efficiency_of
    from simulator.step import decode

    d = speculating("ngram", 3, 0.5)
    step = decode(d, d.hardware, efficiency_of(d.hardware, d.engine), 4.0, 1028.0, 1282.0,
                  new=4.0)
    found = estimate(d, Workload(4, 1024, 256)).tpot.expected
    assert found == pytest.approx(step.expected / 1.875, rel=1e-12)


def test_leviathan_speed_up_follows_where_verification_is_free() -> None:
    """One sequence on an ideal machine: within 3 % of theorem 3.8 with c from the two models."""
    from simulator.specs.engine import load_engine
    from simulator.speculation import speed_up

    d = speculating("draft", 5, 0.7).replace(engine=load_engine("ideal"))
    assert d.draft is not None
    plain = tpot(d.replace(speculation=None))
    c = tpot(d.draft) / plain
    assert plain / tpot(d) == pytest.approx(float(speed_up(0.7, 5, c)), rel=0.03)


def test_speculation_loses_at_a_large_batch() -> None:
    f = features(estimate(speculating("draft"), Workload(8, 512, 256))).speculation
    assert f is not None
    assert f.pays_up_to is not None
    assert f.pays_up_to > 8
    assert f.speed_up > 1.5
    for batch, wins in ((f.pays_up_to, True), (f.pays_up_to + 1, False),
                        (4 * f.pays_up_to, False)):
        times = [float(estimate(x, Workload(batch, 512, 256)).tpot.expected) for x in (
            speculating("draft"), LLAMA)]
        assert (times[0] <= times[1]) == wins


def test_a_draft_needs_memory() -> None:
    d = speculating("draft")
    assert d.draft is not None
    with_it, without = (estimate(x, Workload(8)).memory for x in (d, LLAMA))
    assert with_it.weights - without.weights == pytest.approx(weight_bytes(d.draft))
    assert with_it.kv - without.kv == 8 * allocated_bytes(d.draft, 1280)
    assert with_it.max_batch < without.max_batch
    assert with_it.max_context < without.max_context
    assert with_it.pool.tokens < without.pool.tokens
    full = estimate(d, Workload(with_it.max_batch)).memory
    over = estimate(d, Workload(with_it.max_batch + 1)).memory
    assert full.fits
    assert not over.fits
    assert estimate(speculating("ngram"), Workload(8)).memory.weights == without.weights


def test_prediction_layers_share_the_embedding() -> None:
    d = speculating("mtp")
    extra = (estimate(d).memory.weights - estimate(DEEPSEEK).memory.weights) * 8
    layer = 11.5e9      # a layer of 256 experts at one byte, its norms and its projection
    assert extra == pytest.approx(layer, rel=0.2)
    assert "draft_lm_head" in {t.operation.name for t in estimate(d).decode.detail.operations}


def test_a_draft_that_tp_cannot_split_is_held_whole() -> None:
    d = Deployment.of("llama-3.1-70b", "h100", parallelism=Parallelism(tp=8),
                      speculation=Speculation("draft", Model.load("qwen2.5-0.5b")))
    assert d.draft is not None
    assert d.draft.parallelism.tp == 1


def test_vector_is_scalar() -> None:
    batch, a = np.array([1.0, 7.0, 64.0]), np.array([0.3, 0.6, 1.0])
    whole = estimate(speculating("draft", 4, a).replace(chunk=300), Workload(batch, 1000, 100))
    for i in range(3):
        alone = estimate(speculating("draft", 4, float(a[i])).replace(chunk=300),
                         Workload(batch[i], 1000, 100))
        for name in ("ttft", "tpot", "e2e"):
            for x, y in zip(getattr(whole, name).all, getattr(alone, name).all, strict=True):
                assert x[i] == pytest.approx(y, rel=1e-12)
    assert whole.memory.max_batch == alone.memory.max_batch


# chunks

@given(N=st.integers(1, 10**5), C=st.integers(1, 10**4))
def test_reread_is_the_sum(N: int, C: int) -> None:
    k = int(chunk_steps(N, C))
    assert reread_tokens(N, C) == sum(i * C for i in range(k)) if k < 500 else True
    window = 4 * C
    assert reread_tokens(N, C, window) == sum(
        min(i * C, window) for i in range(k)) if k < 500 else True


def test_reread_is_half_a_square() -> None:
    assert reread_tokens(2.0**20, 512.0) == pytest.approx(2.0**40 / 1024, rel=1e-3)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "llama-4-scout"])
@pytest.mark.parametrize("batch", [1, 5])
def test_chunks_do_the_same_arithmetic(name: str, batch: int) -> None:
    """FLOPs of all but the head are those of one pass; only bytes are read again."""
    d = Deployment.of(name, "h200", "ideal")
    one, cut = (estimate(x, Workload(batch, 10_000, 2)).prefill.detail for x in (
        d, d.replace(chunk=768)))

    def flops(p: Any) -> float:
        return float(sum(t.flops for t in p.operations if t.operation.name not in (
            "lm_head", "sampling", "final_norm")))

    assert flops(cut) == pytest.approx(flops(one), rel=1e-9)
    assert cut.bytes > one.bytes
    assert cut.ceiling >= one.ceiling * (1 - 1e-12)


def test_extra_bytes_of_chunks_are_the_cache_read_again() -> None:
    d = Deployment.of("llama-3.1-8b", "h200", "ideal", chunk=512)
    e = estimate(d, Workload(1, 8192, 2))
    cut, one = (sum(t.operation.kv * t.operation.count for t in x.prefill.detail.operations
                    if t.operation.name == "attention") for x in (
                        e, estimate(d.replace(chunk=None), e.workload)))
    f = features(e).chunked
    assert f is not None
    assert f.steps == 16
    assert cut - one == pytest.approx(f.reread, rel=1e-12)
    assert f.reread == 512 * 16 * 15 / 2 * 131_072


def test_one_chunk_is_one_pass() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    one, cut = (estimate(x, Workload(1, 1000, 100)) for x in (d, d.replace(chunk=1000)))
    assert cut.ttft == one.ttft
    assert estimate(d.replace(chunk=4096), Workload(1, 1000, 100)).ttft == one.ttft


def test_short_prompts_share_a_chunk() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    shared = estimate(d.replace(chunk=1000), Workload(8, 250, 100))
    four = estimate(d, Workload(4, 250, 100))
    assert shared.ttft.expected == pytest.approx(2 * four.ttft.expected)


def test_sarathi_overhead_and_itl() -> None:
    """Sarathi-Serve (2403.02310) figure 14: chunks of 512 cost at most 25 % (Yi-34B, 2 A100)."""
    d = Deployment.of("yi-34b", "a100-sxm4-80gb", parallelism=Parallelism(tp=2))
    before = np.inf
    for chunk in (256, 512, 1024, 2048, 8192):
        e = estimate(d.replace(chunk=chunk), Workload(32, 8192, 256))
        f = features(e).chunked
        assert f is not None
        assert 0 <= f.overhead < before
        assert f.overhead <= 0.25 or chunk < 512
        before = float(f.overhead) + 1e-12
        assert np.all(np.greater_equal(f.mixed.all, f.plain.all))
        assert f.mixed.ceiling <= f.mixed.low <= f.mixed.expected <= f.mixed.high
        assert f.beside.expected >= f.steps * f.plain.expected
        if chunk == 512:
            assert 2 < f.mixed.expected / f.plain.expected < 28.3


def test_larger_chunks_stall_longer() -> None:
    itl = [features(estimate(LLAMA.replace(chunk=c), Workload(32, 8192, 256))).chunked
           for c in (128, 512, 2048, 8192)]
    assert all(a and b and a.mixed.expected < b.mixed.expected for a, b in pairwise(itl))


def test_chunks_size_the_activations() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    small, large = (estimate(d.replace(chunk=c), Workload(1, 8192, 256)).memory
                    for c in (512, 8192))
    assert small.activations < large.activations
    assert small.max_context >= large.max_context


# prefix cache

@pytest.mark.parametrize(("prompt", "hit", "cached"), [
    (1000.0, 0.5, 496.0), (1024.0, 0.5, 512.0), (1024.0, 1.0, 1008.0), (16.0, 1.0, 0.0),
    (1000.0, 0.0, 0.0), (17.0, 1.0, 16.0), (1.0, 1.0, 0.0), (100.0, 0.15, 0.0)])
def test_hits_come_in_whole_blocks(prompt: float, hit: float, cached: float) -> None:
    assert cached_prefix(LLAMA, prompt, hit) == cached


def test_hits_of_latent_attention_come_in_its_blocks() -> None:
    assert cached_prefix(DEEPSEEK, 1000.0, 0.5) == 448.0


def test_a_hit_saves_matrices_but_not_keys() -> None:
    """FLOPs of the suffix alone; attention still reads all keys."""
    d = Deployment.of("llama-3.1-8b", "h100", "ideal", prefix_hit=0.75)
    passes = [estimate(x, Workload(1, 4096, 2)).prefill.detail.operations for x in (
        d, d.replace(prefix_hit=0.0))]
    hit, miss = ({t.operation.name: t for t in p} for p in passes)
    assert hit["qkv"].flops == miss["qkv"].flops / 4
    assert hit["attention"].operation.kv == miss["attention"].operation.kv
    pairs = 4096 * 4097 / 2
    assert hit["attention"].flops / miss["attention"].flops == pytest.approx(
        (pairs - 3072 * 3073 / 2) / pairs)


def test_hit_rate_of_chats() -> None:
    for G in range(1, 20):
        turns = np.arange(1, G + 1)
        assert turns_hit_rate(float(G)) == pytest.approx(np.sum(turns - 1) / np.sum(turns))
    assert turns_hit_rate(3.0) == 0.5


# paged memory

def test_paged_waste_is_the_mean_of_the_last_block() -> None:
    for b in (1, 16, 64, 256):
        lengths = np.arange(1, 40 * b + 1)
        waste = np.ceil(lengths / b) * b - lengths
        assert np.mean(waste) == paged_waste(float(b))


def test_paged_occupancy_of_the_paper() -> None:
    """Blocks of 16 and 330 tokens: 97.8 %; the paper measured 96.3 % (figure 2)."""
    assert paged_occupancy(330.0, 16.0) == pytest.approx(0.978, abs=5e-4)
    assert paged_occupancy(330.0, 16.0) == pytest.approx(0.963, rel=0.02)
    assert paged_occupancy(330.0, 1.0) == 1.0


# expert imbalance

@pytest.mark.parametrize(("E", "k", "R"), [(256, 8, 8), (256, 8, 32), (128, 8, 8), (8, 2, 4)])
@pytest.mark.parametrize("T", [1, 4, 16, 64, 256])
def test_imbalance_against_random_routing(E: int, k: int, R: int, T: int) -> None:
    """Never below the simulated mean by more than 5 %, and at most 25 % above it (E = 8: half)."""
    rng = np.random.default_rng(0)
    loads = [np.bincount((np.argsort(rng.random((T, E)), axis=1)[:, :k] // (E // R)).ravel(),
                         minlength=R).max() for _ in range(300 if T < 64 else 60)]
    simulated = float(np.mean(loads)) / (T * k / R)
    assert 0.95 < float(moe.imbalance(T, k, E, R)) / simulated < (1.5 if E == 8 else 1.25)


@given(T=st.integers(1, 10**6), log_ranks=st.integers(0, 8), k=st.integers(1, 8),
       skew=st.floats(1, 100))
def test_imbalance_is_possible(T: int, log_ranks: int, k: int, skew: float) -> None:
    R = 2**log_ranks
    f = float(moe.imbalance(T, k, 256, R, skew))
    assert 1 - 1e-12 <= f <= R * (1 + 1e-12)
    assert f * T * k / R <= T * min(k, 256 / R) * (1 + 1e-12)
    assert R > 1 or f == 1.0
    more = float(moe.imbalance(T + 1, k, 256, R, skew))
    assert more * (T + 1) >= f * T * (1 - 1e-12)


def test_imbalance_slows_experts_alone() -> None:
    d = Deployment.of("deepseek-v3", "h200", parallelism=Parallelism(tp=8, ep=8))
    even, skewed = (estimate(x, Workload(64)).decode.detail for x in (
        d, d.replace(expert_skew=2.0)))
    a, b = ({t.operation.name: t for t in p.operations} for p in (even, skewed))
    assert b["experts"].flops == pytest.approx(2 * a["experts"].flops)
    assert a["experts"].bytes < b["experts"].bytes < 2 * a["experts"].bytes
    assert all(a[n].expected == b[n].expected for n in a if n != "experts")
    f = features(estimate(d, Workload(64))).experts
    assert f is not None
    assert f.decode == pytest.approx(1.0 + np.sqrt(2 * np.log(8) / 64))
    assert 1 < f.prefill < f.decode


# command line

@pytest.mark.parametrize(("words", "text"), [
    (["--speculate", "magic"], "unknown kind 'magic'"),
    (["--speculate", "draft"], "needs a draft model"),
    (["--speculate", "mtp"], "no multi-token-prediction layers"),
    (["--speculate", "ngram", "--draft", "llama-3.2-1b"], "needs no draft model"),
    (["--draft", "llama-3.2-1b"], "--draft: nothing speculates"),
    (["--acceptance", "0.5"], "--acceptance: nothing speculates"),
    (["--speculate", "ngram", "--acceptance", "1.5"], "between 0 and 1"),
    (["--speculate", "ngram", "--draft-length", "0"], "between 1 and 64"),
    (["--speculate", "ngram", "--draft-length", "2.5"], "--draft-length"),
    (["--speculate", "ngram", "--pp", "2"], "pipeline stages"),
    (["--chunk", "0"], "--chunk"), (["--chunk", "many"], "--chunk"),
    (["--expert-skew", "0.5"], "--expert-skew"), (["--expert-skew", "2"], "--ep"),
])
def test_bad_flags_are_one_line(run: Any, words: list[str], text: str) -> None:
    code, out, err = run("llama-3.1-8b", "h100", *words)
    assert (code, out) == (2, "")
    assert text in err
    assert len(err.strip().splitlines()) == 1


def test_json_names_what_was_used(run: Any) -> None:
    code, out, _ = run("llama-3.1-8b", "h100", "--speculate", "draft", "--draft", "llama-3.2-1b",
                       "--chunk", "512", "--prefix-hit", "0.3", "--batch", "16", "--input", "4k",
                       "--json")
    assert code == 0
    found = json.loads(out)
    f = found["features"]
    s, c, p = f["speculation"], f["chunked_prefill"], f["prefix_cache"]
    assert f["expert_imbalance"] is None
    assert s["round_s"]["expected"] == pytest.approx(
        found["tpot_s"]["expected"] * s["tokens_per_round"])
    assert s["speed_up"] == pytest.approx(
        s["plain_tpot_s"]["expected"] / found["tpot_s"]["expected"])
    assert 0 < s["draft_s"] < s["round_s"]["expected"]
    assert (p["cached_tokens"], p["computed_tokens"]) == (1216, 2880)
    assert c["steps"] == 6
    assert c["itl_s"]["mixed"]["expected"] > c["itl_s"]["plain"]["expected"]
    assert found["decode"]["time_s"] == found["tpot_s"]
    plain = json.loads(run("llama-3.1-8b", "h100", "--json")[1])["features"]
    assert plain == dict.fromkeys(
        ("speculation", "chunked_prefill", "prefix_cache", "expert_imbalance"))


def test_text_says_what_was_used(run: Any) -> None:
    text = run("deepseek-v3", "8xh200", "--ep", "8", "--speculate", "mtp", "--chunk", "1k",
               "--prefix-hit", "0.5", "--explain")[1]
    for words in ("Speculation with the prediction layers of deepseek-v3", "Chunks of 1,024",
                  "Prefix cache", "Experts on 8 ranks", "without speculation"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 100


def test_one_output_token_has_no_speculation(run: Any) -> None:
    code, out, _ = run("llama-3.1-8b", "h100", "--speculate", "ngram", "--output", "1", "--json")
    assert code == 0
    assert json.loads(out)["features"]["speculation"] is None


@pytest.mark.parametrize("bad", [
    {"chunk": 0}, {"chunk": 2.5}, {"chunk": True}, {"expert_skew": 0.5},
    {"expert_skew": float("nan")}])
def test_bad_fields(bad: Any) -> None:
    with pytest.raises(InputError):
        LLAMA.replace(**bad)


@pytest.mark.parametrize("bad", [
    ("draft", DRAFT, 0), ("draft", DRAFT, 2.5), ("ngram", None, 4, 1.1),
    ("ngram", None, 4, float("nan")), ("draft", None), ("mtp", DRAFT), ("eagle", None)])
def test_bad_speculation(bad: Any) -> None:
    with pytest.raises(InputError):
        Speculation(*bad)
