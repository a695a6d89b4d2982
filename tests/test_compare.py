"""Ratios of a comparison and the factors that multiply to them."""

from __future__ import annotations

import math

import pytest

from simulator.compare import compare, factors, labels
from simulator.deployment import Deployment, Parallelism, Workload
from simulator.errors import InputError
from simulator.request import estimate

W = Workload(4, 512, 128)
PAIRS = [
    (("llama-3.1-8b", "a100"), ("llama-3.1-8b", "h100")),
    (("llama-3.1-8b", "h100"), ("llama-3.1-8b", "mn-core-l1400")),
    (("llama-3.1-8b", "l40s"), ("qwen3-30b-a3b", "b200")),
    (("deepseek-v2-lite", "h100"), ("llama-3.1-8b", "mi300x")),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("engine", ["vllm", "ideal"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_factors_multiply_to_the_ratio(left: tuple[str, str], right: tuple[str, str], engine: str,
                                       phase: str) -> None:
    """Product of factors = ratio of expected times, to the last bits."""
    a, b = (estimate(Deployment.of(*x, engine=engine), W) for x in (left, right))
    found = factors(a, b, phase)  # type: ignore[arg-type]
    ratio = float(getattr(b, phase).time.expected / getattr(a, phase).time.expected)
    assert math.prod(f.ratio for f in found) == pytest.approx(ratio, rel=1e-12)
    assert all(f.ratio > 0 for f in found)


@pytest.mark.parametrize("formats", [{"weights": "fp8"}, {"weights": "int4-g128", "kv": "fp8"},
                                     {"weights": "fp8", "activations": "fp8"}])
def test_formats_multiply(formats: dict[str, str]) -> None:
    """The same for formats, in both directions."""
    a = estimate(Deployment.of("llama-3.1-8b", "h100"), W)
    b = estimate(Deployment.of("llama-3.1-8b", "h100", **formats), W)
    for x, y in ((a, b), (b, a)):
        found = factors(x, y, "decode")
        assert math.prod(f.ratio for f in found) == pytest.approx(
            float(y.tpot.expected / x.tpot.expected), rel=1e-12)
        assert found[0].name == "formats: bytes"


def test_devices_and_links_multiply() -> None:
    """Several devices, links and hardware differ at once; both orders."""
    a = Deployment.of("llama-3.1-70b", "h100", parallelism=Parallelism(tp=2))
    b = Deployment.of("llama-3.1-70b", "a100", parallelism=Parallelism(tp=2, pp=2))
    c = Deployment.of("llama-3.1-8b", "l4")
    results = [estimate(d, W) for d in (a, b, c)]
    for x in results:
        for y in results:
            for phase in ("prefill", "decode"):
                ratio = float(getattr(y, phase).time.expected / getattr(x, phase).time.expected)
                product = math.prod(f.ratio for f in factors(x, y, phase))  # type: ignore[arg-type]
                assert product == pytest.approx(ratio, rel=1e-12)


def test_bandwidth_alone_is_one_factor() -> None:
    """Twice the bandwidth on an ideal engine halves a memory-bound step, by that factor alone."""
    a = Deployment.of("llama-3.1-8b", "h100", engine="ideal")
    b = a.replace(hardware=a.hardware.replace(memory_bandwidth=a.hardware.memory_bandwidth * 2))
    x, y = estimate(a, Workload(1, 64, 32)), estimate(b, Workload(1, 64, 32))
    by_name = {f.name: f.ratio for f in factors(x, y, "decode")}
    assert by_name["bandwidth"] == pytest.approx(0.5, rel=1e-3)
    assert all(r == 1.0 for name, r in by_name.items() if name != "bandwidth")


def test_flops_alone_is_one_factor() -> None:
    """Twice the FLOP/s on an ideal engine nearly halve a long prefill, whose rest is traffic."""
    a = Deployment.of("llama-3.1-8b", "h100", engine="ideal")
    h = a.hardware
    peaks = {n: getattr(h, n) * 2 for n in ("peak_bf16", "peak_fp16", "peak_fp8", "vector_fp32")
             if getattr(h, n) is not None}
    b = a.replace(hardware=h.replace(**peaks))
    found = {f.name: f.ratio for f in factors(estimate(a, Workload(8, 4096, 1)),
                                              estimate(b, Workload(8, 4096, 1)), "prefill")}
    assert 0.5 <= found["FLOP/s"] < 0.6
    assert all(r == 1.0 for name, r in found.items() if name != "FLOP/s")


def test_weights_only_format_is_its_bytes() -> None:
    """fp8 weights of an ideal engine: the time follows the bytes, no other factor moves."""
    a = estimate(Deployment.of("llama-3.1-8b", "h100", engine="ideal"), Workload(1, 64, 32))
    b = estimate(Deployment.of("llama-3.1-8b", "h100", engine="ideal", weights="fp8"),
                 Workload(1, 64, 32))
    found = factors(a, b, "decode")
    assert found[0].ratio == pytest.approx(float(b.decode.detail.bytes / a.decode.detail.bytes))
    assert all(f.ratio == pytest.approx(1.0, rel=5e-3) for f in found[1:])


def test_equal_deployments_have_no_factors() -> None:
    """Against itself: ratio 1, nothing differs."""
    d = Deployment.of("llama-3.1-8b", "h100")
    c = compare([("a", d), ("b", d)], Workload(), max_batch=16, max_context=2048)
    assert [p.ratio for p in c.against[0].phases] == [1.0, 1.0]
    assert all(p.factors == () for p in c.against[0].phases)
    assert not c.against[0].phases[0].certain


def test_what_does_not_fit_has_no_ratio() -> None:
    """70B in bf16 on one H100 does not fit: no ratio, and the order says so."""
    items = [("h100", Deployment.of("llama-3.1-70b", "h100")),
             ("mi300x", Deployment.of("llama-3.1-70b", "mi300x"))]
    c = compare(items, Workload(), max_batch=64, max_context=4096)
    assert c.against[0].phases == ()
    assert c.against[0].crossovers[0].segments[0].state == "only_other"
    forced = compare(items, Workload(), max_batch=64, max_context=4096, force=True)
    assert len(forced.against[0].phases) == 2


def test_range_of_a_ratio() -> None:
    """low <= ratio <= high; an announced chip's range is wide."""
    items = [("a", Deployment.of("llama-3.1-8b", "h100")),
             ("b", Deployment.of("llama-3.1-8b", "mn-core-l1400"))]
    for p in compare(items, Workload(), max_batch=8, max_context=2048).against[0].phases:
        assert p.low <= p.ratio <= p.high
        assert p.high / p.low > 4


def test_labels_and_counts() -> None:
    """Labels name what differs; one deployment is nothing to compare."""
    a = Deployment.of("llama-3.1-8b", "h100")
    b = Deployment.of("llama-3.1-8b", "h100", weights="fp8")
    assert labels([a, b], [None, None]) == ["bf16", "fp8"]
    assert labels([a, b], ["x", "y"]) == ["x", "y"]
    two = a.replace(parallelism=Parallelism(tp=2))
    assert labels([a, two], [None, None]) == ["h100-sxm5-80gb", "2xh100-sxm5-80gb"]
    with pytest.raises(InputError, match="needs 2 to"):
        compare([("a", a)], Workload())
