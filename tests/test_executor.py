"""The executor is consistent with itself, and is the model that is predicted: the same counts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'tokline[torch]'")

from executor_models import ALL, TINY, built, prompt  # noqa: E402

from simulator.errors import InputError  # noqa: E402
from simulator.executor.attention import CoreAttention  # noqa: E402
from simulator.executor.comparison_shapes import dense, experts  # noqa: E402
from simulator.executor.counts import (  # noqa: E402
    TooLargeError,
    deployment_of,
    layers_that_fit,
    needed_bytes,
    total,
    work,
)
from simulator.executor.cut import cut  # noqa: E402
from simulator.executor.experts import Experts  # noqa: E402
from simulator.executor.measure import DTYPES, Runner, measure_phases  # noqa: E402
from simulator.executor.modules import linear  # noqa: E402
from simulator.executor.recurrent import recur  # noqa: E402
from simulator.executor.timing import (  # noqa: E402
    Stopwatch,
    Timing,
    environment,
    find_device,
    set_threads,
    settle,
    time_calls,
    usable_cpus,
)
from simulator.executor.transformer import Transformer, lenders  # noqa: E402
from simulator.kv_cache import (  # noqa: E402
    fixed_state_elements,
    kv_elements_per_token,
    mixer_convolution,
)
from simulator.operations.moe import experts_touched  # noqa: E402
from simulator.parameters import parameters_total  # noqa: E402
from simulator.specs.catalogue import catalogue  # noqa: E402
from simulator.specs.model import Mamba, Model, Moe  # noqa: E402
from simulator.step import decode, prefill  # noqa: E402

CPU = torch.device("cpu")
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Small matrices are faster on one thread, and other tests keep their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_window_matters() -> None:
    tokens = prompt(TINY)
    wide = built(ALL["llama"])(tokens)
    narrow = built(ALL["mistral"])(tokens)
    torch.testing.assert_close(wide[:, :5], narrow[:, :5])
    assert not torch.allclose(wide[:, 8:], narrow[:, 8:], atol=1e-2)


# --- against itself

@pytest.mark.parametrize("name", ALL)
def test_decode_with_a_cache_equals_prefill_without(name: str) -> None:
    model, tokens = built(ALL[name]), prompt(ALL[name])
    whole, cache = model(tokens), model.cache(2, 24)
    torch.testing.assert_close(model.prefill(tokens[:, :9], cache), whole[:, 8], rtol=1e-4,
                               atol=1e-4)
    for i in range(9, tokens.shape[1]):
        torch.testing.assert_close(model.decode(tokens[:, i:i + 1], cache), whole[:, i],
                                   rtol=1e-4, atol=1e-4)
    assert cache.length == tokens.shape[1]


@pytest.mark.parametrize("name", ALL)
def test_prefill_in_pieces_equals_prefill_at_once(name: str) -> None:
    model, tokens = built(ALL[name]), prompt(ALL[name])
    cache = model.cache(2, 19)
    for piece in tokens.split((4, 11, 4), dim=1):
        last = model.prefill(piece, cache)
    torch.testing.assert_close(last, model(tokens)[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_fixed_shapes_decode_the_same_tokens(name: str) -> None:
    model, tokens = built(ALL[name]), prompt(ALL[name])
    cache, room = model.cache(2, 24), model.cache(2, 24)
    model.prefill(tokens[:, :9], cache)
    model.prefill(tokens[:, :9], room)
    for i in range(9, 15):
        step = model.decode_static(tokens[:, i:i + 1], torch.tensor([i]), room)
        torch.testing.assert_close(step, model.decode(tokens[:, i:i + 1], cache), rtol=1e-4,
                                   atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_equals_its_sequences_alone(name: str) -> None:
    model, tokens = built(ALL[name]), prompt(ALL[name], batch=3)
    alone = torch.cat([model(row[None]) for row in tokens])
    torch.testing.assert_close(model(tokens), alone, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.generate(tokens, 6),
                       torch.cat([model.generate(row[None], 6) for row in tokens]))


def test_a_window_longer_than_the_prompt_changes_nothing() -> None:
    tokens = prompt(TINY)
    wide = dense("wide", 64, 3, 4, 2, 16, 96, 160, window=19)
    torch.testing.assert_close(built(TINY)(tokens), built(wide)(tokens))


@pytest.mark.parametrize(("new", "context", "window"), [(12, 12, 4), (7, 12, 4), (13, 40, 8)])
def test_blocks_of_a_window_equal_one_mask(new: int, context: int, window: int) -> None:
    q = torch.randn(2, 4, new, 8)
    k, v = torch.randn(2, 2, context, 8), torch.randn(2, 2, context, 8)
    part = CoreAttention(window)
    torch.testing.assert_close(part(q, k, v), part.masked(q, k, v, context - new, 0))


def test_nothing_later_is_seen() -> None:
    model, tokens = built(ALL["mixtral"]), prompt(ALL["mixtral"])
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % TINY.vocabulary
    torch.testing.assert_close(model(tokens)[:, :10], model(other)[:, :10])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_in_one_kernel_equal_experts_one_by_one(dtype: Any) -> None:
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped product")
    model = built(ALL["mixtral"], dtype)
    part = model.layers[0].ffn
    assert isinstance(part, Experts)
    rows, expert = torch.randn(20, 64).to(dtype), torch.tensor([0] * 7 + [2] * 1 + [5] * 12)
    exact = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(part.in_one_kernel(rows, expert), part.one_by_one(rows, expert),
                               rtol=exact, atol=exact)


def test_random_routing_touches_as_many_experts_as_uniform_picks() -> None:
    model = experts("many", 128, 1, 4, 2, 16, 64, 4, 16, 4096)
    for tokens in (1, 4, 16, 64):
        touched = []
        for seed in range(12):
            part = Transformer(model, seed=seed).layers[0].ffn
            x = torch.randn(tokens, 128, generator=torch.Generator().manual_seed(seed))
            touched.append(part.router(x).topk(4).indices.unique().numel())
        expected = float(experts_touched(64.0, 4.0, float(tokens)))
        assert sum(touched) / len(touched) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_every_dtype_stays_near_fp32(name: str, dtype: str) -> None:
    tokens = prompt(ALL[name])
    exact = built(ALL[name])(tokens)
    found = built(ALL[name], DTYPES[dtype])(tokens)
    assert found.dtype == DTYPES[dtype]
    error = (found.float() - exact).norm() / exact.norm()
    # bf16 keeps 8 bits and fp16 11; a changed pick of an expert or of a key costs more.
    layers = ALL[name].layers
    picks = max(5 * isinstance(g.ffn, Moe) + 15 * (getattr(g.mixer, "indexer", None) is not None)
                for g in layers)
    assert error < {"fp32": 1e-5, "bf16": 0.08, "fp16": 0.02}[dtype] * max(picks, 1)


def test_activations_keep_their_size_in_depth() -> None:
    logits = Transformer(cut(TINY, 40), torch.float16)(prompt(TINY))
    assert torch.isfinite(logits).all()
    assert 0.3 < logits.float().std() < 3.0


def test_linear_on_cpu_is_a_product() -> None:
    for rows in (1, 3, 16):
        x, w, b = torch.randn(2, rows, 24), torch.randn(10, 24), torch.randn(10)
        torch.testing.assert_close(linear(x, w, b), x @ w.T + b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(linear(x, w), x @ w.T, rtol=1e-4, atol=1e-5)


# --- models

@pytest.mark.parametrize("name", ALL)
def test_the_simulator_counts_exactly_the_parameters_that_exist(name: str) -> None:
    assert parameters_total(ALL[name]) == Transformer(ALL[name], tokens=64).parameter_count


def test_every_model_of_the_catalogue_runs() -> None:
    """One layer of each kind at small widths: counted to the parameter, and it makes tokens."""
    for name in catalogue("models"):
        model = Model.load(name)
        kept = cut(model, len(model.layers), min(1.0, 128 / model.hidden))
        made = Transformer(kept, tokens=16)
        assert made.parameter_count == parameters_total(kept), name
        tokens = prompt(kept, 1, 7)
        with torch.inference_mode():
            logits = made.prefill(tokens, cache := made.cache(1, 8))
            step = made.decode(tokens[:, :1], cache)
        assert logits.shape == step.shape == (1, made.lm_head.weight.shape[0]), name
        assert torch.isfinite(torch.cat((logits, step))).all(), name


def test_positions_end_where_they_were_learned() -> None:
    with pytest.raises(InputError, match="64 learned positions, input and output need 65"):
        Transformer(ALL["gpt2"], tokens=65)


def test_a_layer_without_a_lender_is_refused() -> None:
    borrower = ALL["shared-kv"].layers[2]
    with pytest.raises(InputError, match="layer 0 uses the KV cache of an earlier layer"):
        Transformer(ALL["shared-kv"].replace(layers=(borrower,)))


def test_borrowed_keys_are_those_of_the_last_layer_alike() -> None:
    assert lenders(ALL["shared-kv"]) == [None, None, 0, 0, 1]


@pytest.mark.parametrize(("chunk", "new", "context"), [(6, 19, 19), (6, 5, 16), (4, 3, 4),
                                                       (8, 9, 24), (5, 1, 6), (64, 9, 9)])
def test_a_token_sees_its_own_chunk(chunk: int, new: int, context: int) -> None:
    q = torch.randn(2, 4, new, 8)
    k, v = torch.randn(2, 2, context, 8), torch.randn(2, 2, context, 8)
    part = CoreAttention(chunk=chunk)
    torch.testing.assert_close(part(q, k, v), part.masked(q, k, v, context - new, 0))
    place = torch.arange(context)
    seen = part.seen(place[context - new:], place)
    assert [int(row.sum()) for row in seen] == [i % chunk + 1 for i in range(context - new,
                                                                             context)]


def test_a_chunked_model_forgets_the_chunk_before() -> None:
    model = ALL["chunked"].replace(layers=ALL["chunked"].layers[:1])
    tokens, made = prompt(model), built(model)
    other = tokens.clone()
    other[:, :6] = (other[:, :6] + 1) % model.vocabulary
    a, b = made(tokens), made(other)
    torch.testing.assert_close(a[:, 6:], b[:, 6:])
    assert not torch.allclose(a[:, :6], b[:, :6], atol=1e-2)


@pytest.mark.parametrize("beta", [False, True])
def test_chunks_of_a_recurrence_equal_token_after_token(beta: bool) -> None:
    """S <- e^g S + k u^T, u = v or beta (v - S k) after the decay (Gated DeltaNet, eq. 10)."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 150, n) for n in (6, 6, 5))
    k = k / k.norm(dim=-1, keepdim=True)
    decay, rate = -torch.rand(2, 3, 150), torch.rand(2, 3, 150)
    state = torch.randn(2, 3, 6, 5)
    found, last = recur(q, k, v, decay, state, rate if beta else None)
    outputs = []
    for t in range(150):
        state = decay[..., t, None, None].exp() * state
        u = v[:, :, t]
        if beta:
            u = rate[..., t, None] * (u - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t]))
        state = state + k[:, :, t, :, None] * u[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    torch.testing.assert_close(found, torch.stack(outputs, dim=2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(last, state, rtol=1e-4, atol=1e-4)


def test_a_cache_is_forgotten_whole() -> None:
    model, tokens = built(ALL["qwen3-next"]), prompt(ALL["qwen3-next"])
    cache = model.cache(2, 19)
    first = model.prefill(tokens, cache)
    cache.reset()
    torch.testing.assert_close(model.prefill(tokens, cache), first)


@pytest.mark.parametrize("name", ALL)
def test_a_cache_holds_what_the_simulator_counts(name: str) -> None:
    """But for the newest column of a convolution, which no step needs to keep."""
    model = ALL[name]
    held = sum(t.numel() for t in Transformer(model, tokens=16).cache(3, 16).tensors)
    newest = 0.0
    for g in model.layers:
        width, columns, before = mixer_convolution(g.mixer, model.hidden)
        newest += g.count * width * (columns - before)
    assert held == 3 * (16 * kv_elements_per_token(model) + fixed_state_elements(model) - newest)


# --- counts

@pytest.mark.parametrize("name", ALL)
def test_work_is_that_of_the_simulators_own_pass(name: str) -> None:
    """Summed over operations, FLOPs and bytes equal those of step.prefill and step.decode."""
    from simulator.efficiency import Efficiency
    from simulator.specs.hardware import Hardware

    h = Hardware.load("h100")
    d = deployment_of(ALL[name], "bf16", hardware=h)
    ideal = Efficiency(h, d.engine)
    for w, expected in (
            (work(d, "prefill", 3, 17), prefill(d, h, ideal, 3.0, 17.0)),
            (work(d, "decode", 3, 17, 9), decode(d, h, ideal, 3.0, 18.0, 25.0))):
        assert total(w).flops == pytest.approx(float(expected.flops), rel=1e-9)
        assert total(w).bytes == pytest.approx(float(expected.bytes), rel=1e-9)


def test_flops_of_products_are_those_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape = ALL["qwen3"]
    model, tokens = built(shape, torch.bfloat16), prompt(shape)
    counter = FlopCounterMode(display=False)
    with counter:
        model.prefill(tokens, model.cache(2, 19))
    counted = sum(flops for kernel, flops in counter.get_flop_counts()["Global"].items()
                  if str(kernel) in ("aten.mm", "aten.addmm"))
    parts = work(deployment_of(shape, "bf16"), "prefill", 2, 19)
    ours = sum(parts[name].flops for name in ("qkv", "attention_output", "mlp_gate_up", "mlp_down",
                                              "lm_head"))
    assert counted == ours


def test_memory_grows_with_every_part() -> None:
    base = needed_bytes(TINY, "fp32", 2, 64, 8)
    assert needed_bytes(cut(TINY, 4), "fp32", 2, 64, 8) > base
    assert needed_bytes(TINY, "fp32", 4, 64, 8) > base
    assert needed_bytes(TINY, "fp32", 2, 128, 8) > base
    assert needed_bytes(TINY, "bf16", 2, 64, 8) < base


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v2-lite", "zamba2-7b"])
def test_layers_that_fit_do_fit_and_one_more_does_not(name: str) -> None:
    model, free = Model.load(name), 6.0 * 2**30
    most = layers_that_fit(model, "bf16", 2, 512, 32, free)
    assert 1 <= most < model.layer_count
    assert needed_bytes(cut(model, most), "bf16", 2, 512, 32) <= free
    assert needed_bytes(cut(model, most + 1), "bf16", 2, 512, 32) > free
    assert layers_that_fit(model, "bf16", 2, 512, 32, 1e6) == 0


def test_what_has_no_room_is_refused_before_it_is_allocated() -> None:
    shape = cut(Model.load("llama-3.1-405b"), None, 100.0)
    with pytest.raises(TooLargeError, match="not even one layer"):
        measure_phases(shape, "fp32", "cpu", 1, 64, 8)


# --- timing

def test_a_timing_is_median_and_deciles_of_its_runs() -> None:
    t = Timing.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (t.median, t.low, t.high, t.repeats) == (3.0, 1.4, 4.6, 5)
    assert t.per(2.0).median == 1.5
    assert Timing.joined([t, Timing.of([6.0, 7.0])]).median == 4.0


def test_runs_far_apart_are_disturbed() -> None:
    assert not Timing.of([1.0, 1.1, 1.2, 1.3, 1.4]).disturbed
    assert Timing.of([1.0, 1.0, 1.0, 1.0, 3.0]).disturbed


def test_small_tensors_of_a_recurrent_layer_are_read_in_its_scan() -> None:
    """falcon-mamba, 2 layers: inner 816, state 16, conv 4; 3 norms of 384, one token of 3."""
    model = cut(Model.load("falcon-mamba-7b"), 2, 0.1)
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Mamba)
    parts = work(deployment_of(model, "fp32"), "decode", 3, 16, 2)
    hidden, inner = model.hidden, mixer.inner
    assert parts["norm"].bytes == 4 * (3 * 3 * hidden * 2 + 3 * hidden)
    small = inner * (mixer.state + mixer.conv + 3)    # decay, convolution, its bias, step, skip
    state = inner * (mixer.state + mixer.conv) * 2    # read and written
    moved = 3 * (inner + 2 * inner)
    assert parts["scan"].bytes == 2 * 4 * (small + 3 * state + moved)


def test_calls_are_warmed_up_prepared_and_counted() -> None:
    calls: list[str] = []
    t = time_calls(lambda: calls.append("call"), CPU, 5, 2, prepare=lambda: calls.append("prepare"))
    assert calls == ["prepare", "call"] * 7
    assert t.repeats == 5
    assert 0.0 <= t.low <= t.median <= t.high


def test_a_device_is_kept_busy_once_a_process() -> None:
    import time

    begin = time.perf_counter()
    settle(CPU, 1, 0.05)
    first = time.perf_counter() - begin
    assert first >= 0.05
    before = settle.cache_info().hits
    settle(CPU, 1, 0.05)
    assert settle.cache_info().hits == before + 1


def test_repeats_stop_at_their_budget_but_not_below_three() -> None:
    assert time_calls(lambda: None, CPU, 1000, 0, budget=0.0).repeats == 3


def test_a_stopwatch_reads_the_time_between_marks() -> None:
    import time

    watch = Stopwatch(CPU)
    watch.mark()
    time.sleep(0.02)
    watch.mark()
    watch.mark()
    first, second = watch.seconds()
    assert first >= 0.02
    assert second < first


def test_the_environment_names_the_machine() -> None:
    found = environment(CPU)
    assert found["device"] == "cpu"
    assert found["threads"] == torch.get_num_threads() == 1
    assert found["torch"] == torch.__version__
    assert found["device_name"]
    assert str(found["date"]).startswith("20")


def test_threads_are_pinned() -> None:
    count = usable_cpus()
    assert set_threads(count) == torch.get_num_threads() == count
    with pytest.raises(InputError, match=f"{count + 1} are more than the {count} CPUs"):
        set_threads(count + 1)


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "", "cuda:x", "cuda:9999"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="--device"):
        find_device(name)


# --- measuring

@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_operations_add_up_to_what_they_are_parts_of(name: str) -> None:
    found = measure_phases(ALL[name], "fp32", "cpu", 2, 16, 4, repeats=3)
    names = {"llama": {"mlp_gate_up", "mlp_down"}, "mixtral": {"router", "experts"}}[name]
    common = {"pass", "embedding", "norm", "qkv", "attention", "attention_output", "elementwise",
              "lm_head", "sampling"}
    for phase in ("prefill", "decode"):
        own = [m for m in found if m.phase == phase]
        assert {m.operation for m in own} == common | names
        whole, *parts = own
        assert whole.operation == "pass"
        assert sum(m.flops for m in parts) == pytest.approx(whole.flops)
        assert sum(m.bytes for m in parts) == pytest.approx(whole.bytes)
        assert all(m.time.median > 0 and m.time.low <= m.time.median <= m.time.high for m in own)
        assert next(m.count for m in own if m.operation == "norm") == 2 * 3 + 1
        assert whole.tokens == (32 if phase == "prefill" else 2)


def test_one_output_token_is_a_prefill_alone() -> None:
    found = measure_phases(TINY, "fp32", "cpu", 1, 8, 1, repeats=3, operations=False)
    assert [m.phase for m in found] == ["prefill"]


def test_a_decode_run_takes_every_context_once() -> None:
    """output - 1 steps from input + 1 tokens on, in each repeat and nothing left behind."""
    runner = Runner(TINY, "fp32", "cpu", 64)
    seen: list[int] = []
    handle = runner.model.register_forward_pre_hook(
        lambda module, args: seen.append(args[1].length))
    runner.decode(2, 10, 5, repeats=3)
    handle.remove()
    assert seen[3:] == [10, 11, 12, 13] * 3


def test_the_timed_step_of_fixed_shapes_decodes_the_same_tokens() -> None:
    check_static_step(Runner(TINY, "fp32", "cpu", 64))


def check_static_step(runner: Runner) -> None:
    """The steps that are timed give the tokens of an eager model."""
    tokens = prompt(TINY).to(runner.device)
    with torch.inference_mode():
        expected = runner.model.generate(tokens, 8)
        cache = runner.model.cache(2, 27)
        step = runner._static_step(cache, 2)    # its warm-up writes into the cache
        cache.reset()
        first = runner.model.sampling(runner.model.prefill(tokens, cache))
        step.token.copy_(first)
        step.restart(tokens.shape[1])
        found = [first]
        for _ in range(7):
            step.run()
            found.append(step.token.clone())
    assert torch.equal(torch.cat(found, dim=1), expected)


def test_hooks_are_taken_off() -> None:
    runner = Runner(TINY, "fp32", "cpu", 64)
    runner.operations("decode", 1, 8, 4, repeats=1)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in runner.model.modules())


def test_a_cuda_graph_needs_cuda() -> None:
    with pytest.raises(InputError, match="--cuda-graph"):
        Runner(TINY, "fp32", "cpu", 64, graph=True)


def test_nothing_else_imports_torch() -> None:
    code = ("import sys, simulator.cli, simulator.validation.run, simulator.cli.measure, "
            "simulator.executor; print('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- on a GPU

@gpu
@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_logits_on_cuda_equal_those_on_cpu(name: str, dtype: str) -> None:
    tokens, there = prompt(ALL[name]), built(ALL[name], DTYPES[dtype], "cuda")
    here = Transformer(ALL[name], torch.float32, "cpu", tokens=64)
    here.load_state_dict({k: v.float().cpu() for k, v in there.state_dict().items()})
    exact, found = here(tokens), there(tokens.cuda()).float().cpu()
    assert (found - exact).norm() / exact.norm() < {"fp32": 1e-3, "bf16": 0.2, "fp16": 0.03}[dtype]


@gpu
@needs_gpu
@pytest.mark.parametrize("options", [{}, {"graph": True}, {"compiled": True},
                                     {"compiled": True, "graph": True}])
def test_every_way_of_running_is_timed_on_cuda(options: dict[str, bool]) -> None:
    found = measure_phases(TINY, "bf16", "cuda", 2, 16, 6, repeats=3, **options)
    assert {m.phase for m in found} == {"prefill", "decode"}
    assert all(m.time.median > 0 for m in found if m.operation == "pass")


@gpu
@needs_gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_step_decodes_the_same_tokens(compiled: bool) -> None:
    check_static_step(Runner(TINY, "fp32", "cuda", 64, compiled=compiled, graph=True))
