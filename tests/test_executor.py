"""The executor is the transformer that is predicted: same logits as transformers, same counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'tokline[torch]'")

from simulator.errors import InputError  # noqa: E402
from simulator.executor.counts import (  # noqa: E402
    TooLargeError,
    deployment_of,
    layers_that_fit,
    needed_bytes,
    total,
    work,
)
from simulator.executor.measure import DTYPES, Runner, measure_phases  # noqa: E402
from simulator.executor.shape import Shape  # noqa: E402
from simulator.executor.shapes import model_of, shape_name, shape_of  # noqa: E402
from simulator.executor.timing import (  # noqa: E402
    Stopwatch,
    Timing,
    environment,
    find_device,
    set_threads,
    settle,
    time_calls,
)
from simulator.executor.transformer import (  # noqa: E402
    CoreAttention,
    Experts,
    Transformer,
    linear,
)
from simulator.operations.moe import experts_touched  # noqa: E402
from simulator.parameters import parameters_total  # noqa: E402
from simulator.specs.catalogue import catalogue  # noqa: E402
from simulator.specs.model import Model  # noqa: E402
from simulator.step import decode, prefill  # noqa: E402

TINY = Shape(hidden=64, layers=3, query_heads=4, kv_heads=2, head_dim=16, ffn=96, vocabulary=160)
SHAPES = {
    "llama": TINY,
    "mistral": replace(TINY, window=5),
    "qwen2": replace(TINY, qkv_bias=True, tied=True),
    "qwen3": replace(TINY, qk_norm=True, tied=True, head_dim=32),
    "mixtral": replace(TINY, ffn=0, experts=6, active_experts=2, expert_ffn=48),
    "multi-query": replace(TINY, kv_heads=1),
    "multi-head": replace(TINY, kv_heads=4),
}
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


def built(shape: Shape, dtype: Any = torch.float32, device: str = "cpu", seed: int = 0
          ) -> Transformer:
    model = Transformer(shape, dtype, device, tokens=64, seed=seed)
    generator = torch.Generator(device=device).manual_seed(seed + 7)
    for p in model.parameters():    # norms of 1 and biases of 0 would hide that they are not used
        if p.dim() == 1:
            p.add_(0.3 * torch.randn(p.shape, generator=generator, device=device).to(dtype))
    return model


def prompt(shape: Shape, batch: int = 2, length: int = 19, seed: int = 3) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, shape.vocabulary, (batch, length), generator=generator)


# --- against transformers

def twin(name: str, shape: Shape) -> tuple[Transformer, Any]:
    """The executor's model and transformers' own, with the same random weights."""
    transformers = pytest.importorskip("transformers")
    common: dict[str, Any] = {
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.query_heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn or shape.expert_ffn, "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied, "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    more = {"llama": ("Llama", {}), "mistral": ("Mistral", {"sliding_window": shape.window}),
            "qwen2": ("Qwen2", {}), "qwen3": ("Qwen3", {}),
            "mixtral": ("Mixtral", {"num_local_experts": shape.experts,
                                    "num_experts_per_tok": shape.active_experts})}
    kind, rest = more[name]
    if name == "qwen2":
        common.pop("head_dim")
    config = getattr(transformers, f"{kind}Config")(**common, **rest)
    config._attn_implementation = "eager"
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    ours = built(shape)
    load(theirs, ours)
    return ours, theirs


def load(theirs: Any, ours: Transformer) -> None:
    """Put the executor's weights into transformers' model; every tensor there must be filled."""
    given = dict(ours.named_parameters())
    s = ours.shape
    found: dict[str, Any] = {"model.embed_tokens.weight": given["embedding.weight"],
                             "model.norm.weight": given["final_norm.weight"],
                             "lm_head.weight": ours.lm_head.weight}
    for i in range(s.layers):
        mine, at = f"layers.{i}.", f"model.layers.{i}."
        found[at + "input_layernorm.weight"] = given[mine + "attention_norm.weight"]
        found[at + "post_attention_layernorm.weight"] = given[mine + "ffn_norm.weight"]
        for end in ("weight", "bias"):
            if f"{mine}mixer.qkv.{end}" in given:
                parts = given[f"{mine}mixer.qkv.{end}"].split((s.queries, s.keys, s.keys))
                found |= {f"{at}self_attn.{n}_proj.{end}": p
                          for n, p in zip("qkv", parts, strict=True)}
        found[at + "self_attn.o_proj.weight"] = given[mine + "mixer.attention_output.weight"]
        if s.qk_norm:
            found |= {f"{at}self_attn.{n}_norm.weight": given[f"{mine}mixer.{n}_norm.weight"]
                      for n in "qk"}
        if s.experts:
            found[at + "mlp.gate.weight"] = given[mine + "ffn.router.weight"]
            found[at + "mlp.experts.gate_up_proj"] = given[mine + "ffn.gate_up"]
            found[at + "mlp.experts.down_proj"] = given[mine + "ffn.down"]
        else:
            gate, up = given[mine + "ffn.mlp_gate_up.weight"].chunk(2)
            found |= {at + "mlp.gate_proj.weight": gate, at + "mlp.up_proj.weight": up,
                      at + "mlp.down_proj.weight": given[mine + "ffn.mlp_down.weight"]}
    state = {k: v.detach().clone() for k, v in found.items()}
    assert set(state) == set(theirs.state_dict())
    theirs.load_state_dict(state)


FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "mixtral"]


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name: str) -> None:
    ours, theirs = twin(name, SHAPES[name])
    tokens = prompt(ours.shape)
    with torch.inference_mode():
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(name: str) -> None:
    ours, theirs = twin(name, SHAPES[name])
    tokens = prompt(ours.shape)
    with torch.inference_mode():
        expected = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                                   max_new_tokens=12, min_new_tokens=12)[:, tokens.shape[1]:]
        assert torch.equal(ours.generate(tokens, 12), expected)


def test_window_matters() -> None:
    tokens = prompt(TINY)
    wide = built(SHAPES["llama"])(tokens)
    narrow = built(SHAPES["mistral"])(tokens)
    torch.testing.assert_close(wide[:, :5], narrow[:, :5])
    assert not torch.allclose(wide[:, 8:], narrow[:, 8:], atol=1e-2)


# --- against itself

@pytest.mark.parametrize("name", SHAPES)
def test_decode_with_a_cache_equals_prefill_without(name: str) -> None:
    model, tokens = built(SHAPES[name]), prompt(SHAPES[name])
    whole, cache = model(tokens), model.cache(2, 24)
    torch.testing.assert_close(model.prefill(tokens[:, :9], cache), whole[:, 8], rtol=1e-4,
                               atol=1e-4)
    for i in range(9, tokens.shape[1]):
        torch.testing.assert_close(model.decode(tokens[:, i:i + 1], cache), whole[:, i],
                                   rtol=1e-4, atol=1e-4)
    assert cache.length == tokens.shape[1]


@pytest.mark.parametrize("name", SHAPES)
def test_prefill_in_pieces_equals_prefill_at_once(name: str) -> None:
    model, tokens = built(SHAPES[name]), prompt(SHAPES[name])
    cache = model.cache(2, 19)
    for piece in tokens.split((4, 11, 4), dim=1):
        last = model.prefill(piece, cache)
    torch.testing.assert_close(last, model(tokens)[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_fixed_shapes_decode_the_same_tokens(name: str) -> None:
    model, tokens = built(SHAPES[name]), prompt(SHAPES[name])
    cache, room = model.cache(2, 24), model.cache(2, 24)
    model.prefill(tokens[:, :9], cache)
    model.prefill(tokens[:, :9], room)
    for i in range(9, 15):
        step = model.decode_static(tokens[:, i:i + 1], torch.tensor([i]), room)
        torch.testing.assert_close(step, model.decode(tokens[:, i:i + 1], cache), rtol=1e-4,
                                   atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_a_batch_equals_its_sequences_alone(name: str) -> None:
    model, tokens = built(SHAPES[name]), prompt(SHAPES[name], batch=3)
    alone = torch.cat([model(row[None]) for row in tokens])
    torch.testing.assert_close(model(tokens), alone, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.generate(tokens, 6),
                       torch.cat([model.generate(row[None], 6) for row in tokens]))


def test_a_window_longer_than_the_prompt_changes_nothing() -> None:
    tokens = prompt(TINY)
    torch.testing.assert_close(built(TINY)(tokens), built(replace(TINY, window=19))(tokens))


@pytest.mark.parametrize(("new", "context", "window"), [(12, 12, 4), (7, 12, 4), (13, 40, 8)])
def test_blocks_of_a_window_equal_one_mask(new: int, context: int, window: int) -> None:
    q = torch.randn(2, 4, new, 8)
    k, v = torch.randn(2, 2, context, 8), torch.randn(2, 2, context, 8)
    part = CoreAttention(window)
    torch.testing.assert_close(part(q, k, v), part.masked(q, k, v, context - new, 0))


def test_nothing_later_is_seen() -> None:
    model, tokens = built(SHAPES["mixtral"]), prompt(SHAPES["mixtral"])
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % TINY.vocabulary
    torch.testing.assert_close(model(tokens)[:, :10], model(other)[:, :10])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_in_one_kernel_equal_experts_one_by_one(dtype: Any) -> None:
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped product")
    model = built(SHAPES["mixtral"], dtype)
    part = model.layers[0].ffn
    assert isinstance(part, Experts)
    rows, expert = torch.randn(20, 64).to(dtype), torch.tensor([0] * 7 + [2] * 1 + [5] * 12)
    exact = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(part.in_one_kernel(rows, expert), part.one_by_one(rows, expert),
                               rtol=exact, atol=exact)


def test_random_routing_touches_as_many_experts_as_uniform_picks() -> None:
    shape = replace(TINY, ffn=0, hidden=128, layers=1, experts=64, active_experts=4, expert_ffn=16,
                    vocabulary=4096)
    for tokens in (1, 4, 16, 64):
        touched = []
        for seed in range(12):
            part = Transformer(shape, seed=seed).layers[0].ffn
            x = torch.randn(tokens, 128, generator=torch.Generator().manual_seed(seed))
            touched.append(part.router(x).topk(4).indices.unique().numel())
        expected = float(experts_touched(64.0, 4.0, float(tokens)))
        assert sum(touched) / len(touched) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3"])
def test_every_dtype_stays_near_fp32(name: str, dtype: str) -> None:
    tokens = prompt(SHAPES[name])
    exact = built(SHAPES[name])(tokens)
    found = built(SHAPES[name], DTYPES[dtype])(tokens)
    assert found.dtype == DTYPES[dtype]
    error = (found.float() - exact).norm() / exact.norm()
    # bf16 keeps 8 bits and fp16 11; a changed pick of an expert costs more.
    assert error < {"fp32": 1e-5, "bf16": 0.08, "fp16": 0.02}[dtype] * (1 + 2 * (name == "mixtral"))


def test_activations_keep_their_size_in_depth() -> None:
    logits = Transformer(replace(TINY, layers=40), torch.float16)(prompt(TINY))
    assert torch.isfinite(logits).all()
    assert 0.3 < logits.float().std() < 3.0


def test_linear_on_cpu_is_a_product() -> None:
    for rows in (1, 3, 16):
        x, w, b = torch.randn(2, rows, 24), torch.randn(10, 24), torch.randn(10)
        torch.testing.assert_close(linear(x, w, b), x @ w.T + b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(linear(x, w), x @ w.T, rtol=1e-4, atol=1e-5)


# --- shapes

@pytest.mark.parametrize("name", SHAPES)
def test_the_simulator_counts_exactly_the_parameters_that_exist(name: str) -> None:
    assert parameters_total(model_of(SHAPES[name], name)) == Transformer(
        SHAPES[name]).parameter_count


@pytest.mark.parametrize(("name", "scale"), [
    ("llama-3.2-1b", 0.1), ("mistral-7b-v0.1", 0.03), ("qwen3-0.6b", 0.25), ("qwen2.5-0.5b", 0.2),
    ("mixtral-8x7b", 0.04), ("qwen3-30b-a3b", 0.07), ("gemma-2b", 0.1)])
def test_scaled_models_of_the_catalogue_count_exactly(name: str, scale: float) -> None:
    shape = shape_of(Model.load(name), 2, scale)
    assert parameters_total(model_of(shape, name)) == Transformer(shape).parameter_count
    assert shape.query_heads % shape.kv_heads == 0
    assert shape_of(model_of(shape, name)) == shape


def test_an_unscaled_shape_is_the_model() -> None:
    """Every model that the executor runs has the parameters that the catalogue counts."""
    found, messages = [], {}
    for name in catalogue("models"):
        model = Model.load(name)
        try:
            shape = shape_of(model)
        except InputError as error:
            messages[name] = str(error)
            continue
        found.append(name)
        assert parameters_total(model_of(shape, name)) == parameters_total(model), name
    assert {"llama-3.1-8b", "mixtral-8x7b", "mistral-7b-v0.1", "qwen3-30b-a3b"} <= set(found)
    assert all(f"'{name}' has " in text and "executor runs" in text
               for name, text in messages.items())


@pytest.mark.parametrize(("name", "words"), [
    ("deepseek-v3", "latent"), ("falcon-mamba-7b", "recurrent"), ("gpt2", "without gate"),
    ("gpt-oss-20b", "sinks"), ("gemma-2-9b", "4 norms")])
def test_what_does_not_run_is_named(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        shape_of(Model.load(name))


def test_layers_of_one_kind_run_where_the_first_are_alike() -> None:
    with pytest.raises(InputError, match="--layers 27"):
        shape_of(Model.load("smollm3-3b"))
    assert shape_of(Model.load("smollm3-3b"), 27).layers == 27


@pytest.mark.parametrize(("layers", "scale"), [(0, 1.0), (-1, 1.0), (2, 0.0), (2, float("nan"))])
def test_impossible_cuts_are_refused(layers: int, scale: float) -> None:
    with pytest.raises(InputError):
        shape_of(Model.load("llama-3.2-1b"), layers, scale)


def test_the_name_says_what_was_cut() -> None:
    model = Model.load("llama-3.2-1b")
    assert shape_name(model, shape_of(model)) == "llama-3.2-1b"
    assert shape_name(model, shape_of(model, 2, 0.5), 0.5) == "llama-3.2-1b layers=2 scale=0.5"


# --- counts

@pytest.mark.parametrize("name", SHAPES)
def test_work_is_that_of_the_simulators_own_pass(name: str) -> None:
    """Summed over operations, FLOPs and bytes equal those of step.prefill and step.decode."""
    from simulator.efficiency import Efficiency
    from simulator.specs.hardware import Hardware

    h = Hardware.load("h100")
    d = deployment_of(SHAPES[name], "bf16", hardware=h)
    ideal = Efficiency(h, d.engine)
    for w, expected in (
            (work(d, "prefill", 3, 17), prefill(d, h, ideal, 3.0, 17.0)),
            (work(d, "decode", 3, 17, 9), decode(d, h, ideal, 3.0, 18.0, 25.0))):
        assert total(w).flops == pytest.approx(float(expected.flops), rel=1e-9)
        assert total(w).bytes == pytest.approx(float(expected.bytes), rel=1e-9)


def test_flops_of_products_are_those_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    shape = SHAPES["qwen3"]
    model, tokens = built(shape, torch.bfloat16), prompt(shape)
    counter = FlopCounterMode(display=False)
    with counter:
        model.prefill(tokens, model.cache(2, 19))
    counted = sum(flops for kernel, flops in counter.get_flop_counts()["Global"].items()
                  if str(kernel) in ("aten.mm", "aten.addmm", "aten.bmm"))
    parts = work(deployment_of(shape, "bf16"), "prefill", 2, 19)
    ours = sum(parts[name].flops for name in ("qkv", "attention_output", "mlp_gate_up", "mlp_down",
                                              "lm_head"))
    assert counted == ours


def test_memory_grows_with_every_part() -> None:
    base = needed_bytes(TINY, "fp32", 2, 64, 8)
    assert needed_bytes(replace(TINY, layers=4), "fp32", 2, 64, 8) > base
    assert needed_bytes(TINY, "fp32", 4, 64, 8) > base
    assert needed_bytes(TINY, "fp32", 2, 128, 8) > base
    assert needed_bytes(TINY, "bf16", 2, 64, 8) < base


def test_layers_that_fit_do_fit_and_one_more_does_not() -> None:
    shape = shape_of(Model.load("llama-3.1-8b"))
    free = 6.0 * 2**30
    most = layers_that_fit(shape, "bf16", 2, 512, 32, free)
    assert 1 <= most < shape.layers
    assert needed_bytes(replace(shape, layers=most), "bf16", 2, 512, 32) <= free
    assert needed_bytes(replace(shape, layers=most + 1), "bf16", 2, 512, 32) > free
    assert layers_that_fit(shape, "bf16", 2, 512, 32, 1e6) == 0


def test_what_has_no_room_is_refused_before_it_is_allocated() -> None:
    shape = shape_of(Model.load("llama-3.1-405b"), None, 100.0)
    with pytest.raises(TooLargeError, match="not even one layer"):
        measure_phases(shape, "fp32", "cpu", 1, 64, 8)


# --- timing

def test_a_timing_is_median_and_deciles_of_its_runs() -> None:
    t = Timing.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (t.median, t.low, t.high, t.repeats) == (3.0, 1.4, 4.6, 5)
    assert t.per(2.0).median == 1.5
    assert Timing.joined([t, Timing.of([6.0, 7.0])]).median == 4.0


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
    assert set_threads(2) == torch.get_num_threads() == 2


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "", "cuda:x", "cuda:9999"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="--device"):
        find_device(name)


# --- measuring

@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_operations_add_up_to_what_they_are_parts_of(name: str) -> None:
    found = measure_phases(SHAPES[name], "fp32", "cpu", 2, 16, 4, repeats=3)
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
@pytest.mark.parametrize("name", SHAPES)
def test_logits_on_cuda_equal_those_on_cpu(name: str, dtype: str) -> None:
    tokens, there = prompt(SHAPES[name]), built(SHAPES[name], DTYPES[dtype], "cuda")
    here = Transformer(SHAPES[name], torch.float32, "cpu", tokens=64)
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
