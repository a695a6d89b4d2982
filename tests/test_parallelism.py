"""docs/parallelism.md: every cell of its table, computed from operations and memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator import Deployment, Engine, InputError, Parallelism, Workload, estimate
from simulator.allocation import fixed_state_bytes, kv_bytes_per_token
from simulator.layers import Segment, pass_operations
from simulator.memory import per_replica, weight_bytes
from simulator.operations import Operation, moe
from simulator.parameters import model_tensors
from simulator.specs.model import Attention, Mla, Moe

DOC = Path(__file__).parent.parent / "docs" / "parallelism.md"
COLUMNS = ("tp", "pp", "ep", "dp", "cp")
BATCH = 64.0


def deployed(model: str, **degrees: int) -> Deployment:
    return Deployment.of(model, "h200", "ideal", weights="bf16",
                         parallelism=Parallelism(**degrees))


def operations(d: Deployment, batch: float = BATCH, new: float = 512.0) -> list[Operation]:
    """A prefill of the deployment's batch, on one device of the fullest stage."""
    local = per_replica(d, batch)
    return [o for o in pass_operations(d, [Segment(local, new, new, "prefill")], local)
            if o.alternative is None or o.alternative[1] == 0]


def total(names: tuple[str, ...], field: str) -> Callable[[Deployment], float]:
    def of(d: Deployment) -> float:
        return sum(float(getattr(o, field) * o.count * o.stage) for o in operations(d)
                   if o.name in names)

    return of


def minus(a: Callable[[Deployment], float],
          b: Callable[[Deployment], float]) -> Callable[[Deployment], float]:
    return lambda d: a(d) - b(d)


def expert_flops(d: Deployment) -> float:
    """FLOPs of the mean rank: those of the fullest over the expected imbalance."""
    found = total(("experts",), "flops")(d)
    f = next(g.ffn for g in d.model.layers if isinstance(g.ffn, Moe))
    ep = d.parallelism.ep
    return found / float(moe.imbalance(BATCH * 512.0, f.top_k, f.experts, ep)) if ep > 1 else found


def cache(d: Deployment) -> float:
    return float(kv_bytes_per_token(d)) * float(per_replica(d, BATCH))


def state(d: Deployment) -> float:
    return float(fixed_state_bytes(d)) * float(per_replica(d, BATCH))


def message(name: str) -> Callable[[Deployment], float]:
    return total((name,), "wire")


PROJECTIONS = ("attention_output",)
MLA_UP = ("q_up", "mla_absorb", "attention_output")
MLA_DOWN = ("qkv_down", "indexer_queries", "indexer_keys")
MLP = ("mlp_gate_up", "mlp_down")
SHARED = ("shared_experts_gate_up", "shared_experts_down")
SSM = ("ssm_input", "ssm_output", "scan")
# What each row of the table measures: quantity, models, degrees of the base it starts from.
DENSE, QWEN, MIXTRAL = "llama-3.1-70b", "qwen3-235b-a22b", "mixtral-8x7b"
DEEPSEEK, HYBRID = "deepseek-v3", "qwen3-next-80b-a3b"
ROWS: dict[str, tuple[Callable[[Deployment], float], tuple[str, ...], dict[str, int]]] = {
    "weights: Q and output projection": (total(PROJECTIONS, "weights"), (DENSE, QWEN, MIXTRAL), {}),
    "weights: K and V projection": (
        minus(total(("qkv",), "weights"), total(PROJECTIONS, "weights")), (DENSE, QWEN, MIXTRAL),
        {}),
    "weights: MLA up-projections, output": (total(MLA_UP, "weights"), (DEEPSEEK,), {}),
    "weights: MLA down-projections, indexer": (
        total(MLA_DOWN, "weights"), (DEEPSEEK, "deepseek-v3.2"), {}),
    "weights: dense MLP": (total(MLP, "weights"), (DENSE, "qwen2.5-72b"), {}),
    "weights: shared experts": (total(SHARED, "weights"), (DEEPSEEK, HYBRID), {}),
    "weights: routed experts": (total(("experts",), "weights"), (MIXTRAL, DEEPSEEK, HYBRID), {}),
    "weights: router, norms": (total(("router", "norm"), "weights"), (MIXTRAL, HYBRID), {}),
    "weights: state-space, linear attention": (total(SSM[:2], "weights"), (HYBRID,), {}),
    "weights: embedding, head": (total(("lm_head",), "weights"), (DENSE, MIXTRAL), {}),
    "KV cache: attention": (cache, (DENSE, QWEN, MIXTRAL), {}),
    "KV cache: MLA latent": (cache, (DEEPSEEK,), {}),
    "fixed state of recurrent layers": (state, (HYBRID,), {}),
    "FLOPs: Q and output projection": (total(PROJECTIONS, "flops"), (DENSE, QWEN, MIXTRAL), {}),
    "FLOPs: attention over the context": (
        total(("attention", "mla_absorbed"), "flops"), (DENSE, DEEPSEEK, HYBRID), {}),
    "FLOPs: MLA down-projections": (total(MLA_DOWN, "flops"), (DEEPSEEK,), {}),
    "FLOPs: dense MLP": (total(MLP, "flops"), (DENSE,), {}),
    "FLOPs: shared experts": (total(SHARED, "flops"), (DEEPSEEK, HYBRID), {}),
    "FLOPs: routed experts": (expert_flops, (MIXTRAL, DEEPSEEK, HYBRID), {}),
    "FLOPs: state-space, linear attention": (total(SSM, "flops"), (HYBRID,), {}),
    "FLOPs: head": (total(("lm_head",), "flops"), (DENSE, DEEPSEEK), {}),
    "bytes: attention all-reduce": (
        message("attention_all_reduce"), (DENSE, DEEPSEEK, HYBRID), {"tp": 2}),
    "bytes: MLP all-reduce": (message("mlp_all_reduce"), (DENSE, DEEPSEEK, HYBRID), {"tp": 2}),
    "bytes: gathered logits": (message("logits_all_gather"), (DENSE, DEEPSEEK), {"tp": 2}),
    "bytes: expert dispatch, combine": (
        minus(message("expert_dispatch"), lambda d: -message("expert_combine")(d)),
        (MIXTRAL, DEEPSEEK, HYBRID), {"dp": 2, "ep": 2}),
    "bytes: context exchange": (message("context_exchange"), (DENSE, DEEPSEEK), {"cp": 2}),
    "bytes: stage hand-over": (
        lambda d: max(o.wire for o in operations(d) if o.name == "stage_hand_over"),
        (DENSE, DEEPSEEK), {"pp": 2}),
}


def table() -> dict[str, list[str]]:
    lines = DOC.read_text(encoding="utf-8").split("| | tp | pp |")[1].split("\n\n")[0].split("\n")
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in cells}


def test_every_row_is_measured() -> None:
    assert list(table()) == list(ROWS)
    assert all(len(cells) == len(COLUMNS) for cells in table().values())


def changed(base: dict[str, int], column: str, n: int, exchanged: bool) -> tuple[Any, Any]:
    """Degrees without and with a factor of n in a column."""
    one = {c: base.get(c, 1) for c in COLUMNS}
    if column == "ep":    # beside dp replicas, that without it hold all experts
        return one | {"dp": n}, one | {"dp": n, "ep": n}
    many = one | {column: one[column] * n}
    if exchanged and column in ("tp", "dp"):    # experts stay whole
        many["ep"] = one["ep"] * n
    return one, many


def allowed(models: tuple[str, ...], base: dict[str, int], column: str, n: int,
            exchange: bool) -> bool:
    """Whether some model of a row allows the degrees; dense ones have no experts to spread."""
    experts = any(isinstance(g.ffn, Moe) for m in models for g in deployed(m).model.layers)
    return (experts or column != "ep") and n <= 2


CELLS = [(row, column, n) for row, column in itertools.product(ROWS, COLUMNS)
         for n in ((2, 4, 8) if column == "tp" else (2, 4))
         if table()[row][COLUMNS.index(column)] != "see below"]    # test_expert_exchange


@pytest.mark.parametrize(("row", "column", "n"), CELLS, ids=lambda v: str(v).replace(" ", "-"))
def test_cell(row: str, column: str, n: int) -> None:
    quantity, models, base = ROWS[row]
    cell = table()[row][COLUMNS.index(column)]
    exchange, checked = "ep" in base, 0
    for name in models:
        one, many = changed(base, column, n, exchange)
        try:
            before, after = deployed(name, **one), deployed(name, **many)
        except InputError:    # a degree that this model doesn't allow; another one does
            continue
        a, b = quantity(before), quantity(after)
        assert a > 0
        checked += 1
        if cell == "one stage":
            assert b in (0.0, pytest.approx(a, rel=1e-12))
            continue
        K = next((g.mixer.kv_heads for g in before.model.layers
                  if isinstance(g.mixer, Attention)), 1)
        low = dict.fromkeys(COLUMNS, 1) if column == "ep" else one
        ratio = (eval(cell, {"min": min, "K": K}, many)
                 / eval(cell, {"min": min, "K": K}, low))
        if cell == "pp" and before.model.layer_count % many["pp"]:
            layers = before.model.layer_count    # 61: the fullest stage, of 58 with experts
            most = a * (layers // n + 1) / max(g.count for g in before.model.layers)
            assert a * (layers // n) / layers / 1.001 <= b <= most
        elif cell == "pp" and len(before.model.layers) > 1:
            assert a / n / 1.05 <= b <= a / n * 1.2    # kinds of layers aren't dealt evenly
        else:
            assert a / b == pytest.approx(ratio, rel=1e-12), name
    assert checked or not allowed(models, base, column, n, exchange)


def test_expert_exchange() -> None:
    """Whole experts: k copies of each token. Slices: to each rank that holds one, at most once."""
    whole = deployed(DEEPSEEK, dp=8, ep=8)
    dispatch = next(o for o in operations(whole) if o.name == "expert_dispatch")
    T = BATCH / 8 * 512
    assert (dispatch.ranks, dispatch.wire) == (8, T * 8 * 7168 * 2)
    halves = next(o for o in operations(deployed(MIXTRAL, dp=8, ep=4))
                  if o.name == "expert_dispatch")
    assert (halves.ranks, halves.wire) == (8, T * 2 * 2 * 4096 * 2)    # top 2, two slices each
    eighths = next(o for o in operations(deployed(DEEPSEEK, dp=8, ep=2))
                   if o.name == "expert_dispatch")
    assert eighths.wire == T * 8 * 7168 * 2    # 8 experts x 4 slices, but only 8 ranks
    context = next(o for o in operations(deployed(MIXTRAL, dp=4, ep=4, cp=2))
                   if o.name == "expert_dispatch")
    assert (context.ranks, context.wire) == (8, 2 * T / 2 * 2 * 2 * 4096 * 2)
    assert not any(o.name.startswith("expert_d") for o in operations(deployed(MIXTRAL, tp=8, ep=8)))


def test_the_deepseek_deployment() -> None:
    """Attention data-parallel, experts spread: one device of 8 against the whole model."""
    one, eight = deployed(DEEPSEEK), deployed(DEEPSEEK, dp=8, ep=8)
    parts = {t.name: t.total * 2 for t in model_tensors(one.model)}
    experts = sum(t.total * 2 for t in model_tensors(one.model) if t.name == "experts")
    assert float(weight_bytes(one)) - float(weight_bytes(eight)) == pytest.approx(
        experts * 7 / 8, rel=1e-12)
    assert parts["shared_experts"] > 0
    assert total(SHARED, "weights")(eight) == total(SHARED, "weights")(one)
    assert cache(eight) == cache(one) / 8
    assert kv_bytes_per_token(eight) == kv_bytes_per_token(one)
    assert expert_flops(eight) == pytest.approx(expert_flops(one) / 8)
    for names in (SHARED, MLA_UP, ("lm_head",)):
        assert total(names, "flops")(eight) == pytest.approx(total(names, "flops")(one) / 8)
    wires = {o.name for o in operations(eight) if o.collective}
    assert wires == {"expert_dispatch", "expert_combine"}


SPLITS: list[dict[str, int]] = [{}, {"tp": 2}, {"tp": 8}, {"tp": 2, "cp": 2}, {"cp": 4}, {"dp": 4}]
SPREAD: list[dict[str, int]] = [{"dp": 4, "ep": 4}, {"tp": 2, "dp": 2, "ep": 4}, {"tp": 4, "ep": 2},
                                {"dp": 4, "ep": 2}, {"tp": 2, "dp": 2, "ep": 4, "cp": 2}]


@pytest.mark.parametrize("name", [DENSE, QWEN, MIXTRAL, DEEPSEEK, HYBRID, "gpt-oss-120b",
                                  "gemma-3-27b", "jamba-1.5-mini-52b"])
def test_weights_read_are_weights_held(name: str) -> None:
    """With so many tokens that all experts are touched, a pass streams what memory counts."""
    experts = any(t.name == "experts" for t in model_tensors(deployed(name).model))
    for degrees in SPLITS + (SPREAD if experts else []):
        d = deployed(name, **degrees)
        looked_up = sum(t.total for t in model_tensors(d.model) if not t.streamed) * 2.0
        ranks = d.parallelism.ranks
        read = sum(float(o.weights * o.count) for o in operations(d, 4096.0)
                   if o.name != "embedding")
        assert read + looked_up / ranks == pytest.approx(float(weight_bytes(d)), rel=2e-3), degrees


@pytest.mark.parametrize("name", [DENSE, MIXTRAL, DEEPSEEK, HYBRID])
def test_degree_one_is_the_identity(name: str) -> None:
    plain = estimate(Deployment.of(name, "h200"), Workload(4, 512, 32))
    ones = estimate(deployed(name).replace(engine=Engine.load("vllm"), weights=None), Workload(
        4, 512, 32))
    assert ones.tpot.all == plain.tpot.all
    assert ones.ttft.all == plain.ttft.all
    for e in (plain, ones):
        for phase in (e.prefill.detail, e.decode.detail):
            assert float(phase.network) == 0.0
            assert not any(t.operation.collective for t in phase.operations)


def test_latent_and_heads_are_replicated() -> None:
    latent = [float(kv_bytes_per_token(deployed(DEEPSEEK, tp=tp))) for tp in (1, 2, 8)]
    assert latent == [latent[0]] * 3
    assert float(kv_bytes_per_token(deployed(DEEPSEEK, cp=4))) == latent[0] / 4
    heads = [float(kv_bytes_per_token(deployed(QWEN, tp=tp))) for tp in (1, 4, 8)]
    assert heads == [heads[0], heads[0] / 4, heads[0] / 4]    # 4 KV heads
    assert any(isinstance(g.mixer, Mla) for g in deployed(DEEPSEEK).model.layers)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_overlap_hides_that_share_of_the_collectives(share: float) -> None:
    d = Deployment.of(DENSE, "h100", parallelism=Parallelism(tp=4))
    assert d.engine.overlap == 0.0
    hidden = d.replace(engine=d.engine.replace(overlap=share))
    w = Workload(16, 1024, 64)
    a, b = estimate(d, w).decode.detail, estimate(hidden, w).decode.detail
    assert float(b.network) == pytest.approx((1 - share) * float(a.network), abs=1e-18)
    assert float(a.expected - b.expected) == pytest.approx(share * float(a.network), rel=1e-9,
                                                           abs=1e-15)
    assert float(a.ceiling) == float(b.ceiling)
