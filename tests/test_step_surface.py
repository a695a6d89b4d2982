"""The surface of step times against the step formula, at points that it was not built from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Deployment, Parallelism, Workload, estimate
from simulator.efficiency import Efficiency
from simulator.errors import InputError
from simulator.layers import Segment
from simulator.serving.interpolation import knots_of
from simulator.serving.surface import StepSurface, decode_time
from simulator.speculation import Speculation
from simulator.step import forward_pass

# Dense, dense on several devices, experts, latent attention, windows, a recurrent hybrid.
CASES = {
    "llama-2-7b": ("a100-sxm4-80gb", Parallelism()),
    "llama-3.1-70b": ("h100-sxm5-80gb", Parallelism(tp=4)),
    "mixtral-8x7b": ("h100-sxm5-80gb", Parallelism(tp=2)),
    "deepseek-v3": ("h200-sxm-141gb", Parallelism(tp=8)),
    "gemma-3-27b": ("h100-sxm5-80gb", Parallelism(tp=2)),
    "gpt-oss-120b": ("h100-sxm5-80gb", Parallelism(tp=2)),
}
MOST = 0.005    # what the surface may be off


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Deployment, StepSurface]:
    hardware, parallelism = CASES[request.param]
    d = Deployment.of(request.param, hardware, parallelism=parallelism)
    return d, StepSurface(d, 32_768)


def passes(d: Deployment, *segments: Segment) -> float:
    """Time of one pass by the formula, logits at one position of each sequence."""
    rows = float(sum(s.sequences for s in segments))
    efficiency = Efficiency(d.hardware, d.engine)
    return float(forward_pass(d, d.hardware, efficiency, list(segments), rows).expected)


def off_grid(seed: int, low: float, high: float, n: int) -> list[float]:
    """Random points, evenly over the octaves."""
    rng = np.random.default_rng(seed)
    return [float(x) for x in np.exp(rng.uniform(np.log(low), np.log(high), n))]


def test_decode(case: tuple[Deployment, StepSurface]) -> None:
    d, surface = case
    for B, context in zip(off_grid(1, 1, 700, 150), off_grid(2, 8, 32_768, 150), strict=True):
        n = round(B)
        wanted = float(estimate(d, Workload(n, context - 1.0, 2)).tpot.expected)
        assert decode_time(surface, n, n * context) == pytest.approx(wanted, rel=MOST)


def test_prompts(case: tuple[Deployment, StepSurface]) -> None:
    """Whole prompts, one or several of a length, and parts of them after a cached part."""
    d, surface = case
    for i, tokens in enumerate(off_grid(3, 1, 16_384, 100)):
        n = round(tokens)
        k, cached = 1 + i % 5, round(off_grid(100 + i, 1, 16_384, 1)[0])
        several = passes(d, Segment(float(k), float(n), float(n), "prefill"))
        assert surface.mixed(0, 0.0, [(n, 0)] * k) == pytest.approx(several, rel=MOST)
        part = passes(d, Segment(1.0, float(n), float(n + cached), "prefill"))
        assert surface.mixed(0, 0.0, [(n, cached)]) == pytest.approx(part, rel=MOST)


def test_prompts_beside_decode(case: tuple[Deployment, StepSurface]) -> None:
    d, surface = case
    for i, tokens in enumerate(off_grid(4, 1, 8192, 100)):
        n, B = round(tokens), round(off_grid(200 + i, 1, 400, 1)[0])
        context, cached = off_grid(300 + i, 8, 16_384, 2)
        past = round(cached) * (i % 2)
        wanted = passes(d, Segment(float(B), 1.0, context, "decode"),
                        Segment(1.0, float(n), float(n + past), "prefill"))
        assert surface.mixed(B, B * context, [(n, past)]) == pytest.approx(wanted, rel=MOST)


def test_one_prompt_is_the_estimate() -> None:
    """The table holds every length itself."""
    d = Deployment.of("llama-3.1-8b", "h100")
    surface = StepSurface(d)
    for n in (1, 7, 512, 1023, 1024, 8191, 20_000):
        e = estimate(d, Workload(1, n, 2))
        assert surface.mixed(0, 0.0, [(n, 0)]) == pytest.approx(float(e.ttft.expected), rel=1e-9)


def test_ends_of_the_range() -> None:
    """Low and high steps are those of the estimate, also where the spec itself is a range."""
    for name, hardware in (("llama-3.1-8b", "h100"), ("llama-3.1-8b", "mn-core-l1400")):
        d = Deployment.of(name, hardware)
        e = estimate(d, Workload(16, 999, 2))
        one = estimate(d, Workload(1, 1000, 2))
        for end in ("low", "high"):
            surface = StepSurface(d, 32_768, end)    # type: ignore[arg-type]
            assert decode_time(surface, 16, 16_000.0) == pytest.approx(
                float(getattr(e.tpot, end)), rel=MOST)
            assert surface.mixed(0, 0.0, [(1000, 0)]) == pytest.approx(
                float(getattr(one.ttft, end)), rel=1e-9)
            short = estimate(d, Workload(1, 200, 2))
            assert surface.mixed(0, 0.0, [(200, 0)]) == pytest.approx(
                float(getattr(short.ttft, end)), rel=1e-9)


def test_the_rest_of_a_long_prompt_is_no_short_prompt() -> None:
    d = Deployment.of("llama-3.1-8b", "h100")
    factors = Efficiency(d.hardware, d.engine).spread
    mid, high = StepSurface(d, 32_768), StepSurface(d, 32_768, "high")
    for prompts, name in (([(200, 0)], "prefill_short"), ([(200, 800)], "prefill"),
                          ([(200, 0), (900, 0)], "prefill"),
                          ([(200, 0), (300, 0)], "prefill_short")):
        assert high.mixed(0, 0.0, prompts) == pytest.approx(
            factors[name] * mid.mixed(0, 0.0, prompts), rel=1e-12)


def test_an_engine_that_cuts_prompts() -> None:
    """llama.cpp computes 512 tokens at a time."""
    d = Deployment.of("llama-2-7b", "a100", "llama.cpp")
    for n in (100, 512, 513, 2000):
        e = estimate(d, Workload(1, n, 2))
        assert StepSurface(d).mixed(0, 0.0, [(n, 0)]) == pytest.approx(
            float(e.ttft.expected), rel=MOST)


@pytest.mark.parametrize("parallelism", [Parallelism(tp=2, pp=2), Parallelism(tp=1, dp=4, ep=4)])
def test_stages_and_replicas_of_experts(parallelism: Parallelism) -> None:
    d = Deployment.of("mixtral-8x7b", "h100-sxm5-80gb", parallelism=parallelism)
    surface = StepSurface(d, 32_768)
    for B in (4, 32, 128):
        e = estimate(d, Workload(B, 2000, 2))
        assert decode_time(surface, B, B * 2001.0) == pytest.approx(float(e.tpot.expected),
                                                                    rel=MOST)
    for k in (1, parallelism.dp):
        first = float(estimate(d, Workload(k, 2000, 2)).ttft.expected)
        assert surface.mixed(0, 0.0, [(2000, 0)] * k) == pytest.approx(first, rel=MOST)
    assert surface.mixed(8, 8000.0, [(2000, 0)]) > decode_time(surface, 8, 8000.0)


def test_what_it_does_not_count() -> None:
    d = Deployment.of("llama-3.1-8b", "h100", speculation=Speculation("ngram"))
    with pytest.raises(InputError, match="speculation"):
        StepSurface(d)


@settings(max_examples=40, deadline=None)
@given(B=st.integers(1, 300), context=st.floats(8.0, 30_000.0), more=st.floats(1.0, 3.0))
def test_steps_rise_with_the_context(B: int, context: float, more: float) -> None:
    surface = SURFACE
    X = B * context
    assert decode_time(surface, B, X * more) >= decode_time(surface, B, X) * (1 - 1e-12)
    row = surface.row(B)
    for knot, (a, b), (c, d) in zip(row.knots, zip(row.a, row.b, strict=True),
                                    zip(row.a[1:], row.b[1:], strict=True), strict=False):
        assert a + b * knot == pytest.approx(c + d * knot, rel=1e-9)


SURFACE = StepSurface(Deployment.of("llama-3.1-8b", "h100"), 32_768)


def test_knots() -> None:
    """A line needs its ends; a corner is found."""
    x = np.linspace(1.0, 10.0, 19)
    assert knots_of(x, (2.0 + 3.0 * x)[None], 1e-9) == [0, 18]
    corner = np.maximum(5.0, x)[None]
    assert knots_of(x, corner, 1e-9) == [0, 8, 18]
