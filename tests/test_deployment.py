"""Deployments: degrees that a model allows, number formats by role, refusals in one line."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import Deployment, Hardware, InputError, Model, Parallelism, Workload
from simulator.deployment import QUANTISED_ROLES, native_activations
from simulator.memory import weight_bytes
from simulator.specs.engine import load_engine


def refused(call: Any) -> str:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.isprintable()
    return message


def deployment(model: str = "llama-3.1-8b", **more: Any) -> Deployment:
    return Deployment.of(model, "h100-sxm5-80gb", **more)


def split(model: str, **degrees: int) -> Deployment:
    return deployment(model, parallelism=Parallelism(**degrees))


def test_defaults() -> None:
    d = Deployment(Model.load("llama-3.1-8b"), Hardware.load("h100-sxm5-80gb"))
    assert d.engine == load_engine("vllm")
    assert (d.activation_format.name, d.kv_format.name, d.devices) == ("bf16", "bf16", 1)
    assert (Workload().batch, Workload().input, Workload().output) == (1, 1024, 256)
    assert d == deployment()


def test_devices() -> None:
    assert Parallelism(tp=2, pp=3, cp=2, dp=5).devices == 60
    assert split("mixtral-8x7b", tp=2, ep=4, dp=2).devices == 4    # ep lies inside tp x dp


# formats by role

def test_native_formats() -> None:
    d = deployment()
    assert {d.weight_format(r).name for r in (*QUANTISED_ROLES, "head", "embedding", "norm")} == {
        "bf16"}
    assert d.compute("ffn") == "bf16"


def test_a_quantised_model_keeps_head_and_norms_at_16_bits() -> None:
    d = deployment(weights="int4-g128")
    assert d.weight_format("ffn").bits == 4.125
    assert d.weight_format("attention").bits == 4.125
    for role in ("head", "embedding", "norm", "router"):
        assert d.weight_format(role).name == "bf16"


@pytest.mark.parametrize(("weights", "activations", "compute"), [
    ("int4-g128", "bf16", "bf16"),    # weight-only: expanded before the multiplication
    ("int8", "bf16", "bf16"), ("fp8", "bf16", "bf16"), ("q4_k", "fp16", "fp16"),
    ("fp8", "fp8", "fp8"), ("int8", "int8", "int8"), ("nvfp4", "nvfp4", "fp4"),
    ("bf16", "fp8", "bf16"),          # the wider operand decides
])  # fmt: skip
def test_compute_precision(weights: Any, activations: Any, compute: Any) -> None:
    d = deployment(weights=weights, activations=activations)
    assert d.compute("ffn") == compute


@pytest.mark.parametrize(("model", "hardware", "fields", "native"), [
    ("deepseek-v3", "h200", {}, "fp8"),
    ("deepseek-v3", "a100", {}, None),                       # no fp8 unit
    ("deepseek-v3", "h200", {"activations": "fp8"}, None),   # already so
    ("deepseek-v3.1-nvfp4", "b200", {}, "nvfp4"),
    ("deepseek-v3.1-nvfp4", "h200", {}, None),               # no fp4 unit
    ("llama-3.1-8b", "h100", {}, None),
    ("llama-3.1-8b", "h100", {"weights": "fp8"}, "fp8"),
    ("llama-3.1-8b", "h100", {"weights": "fp8", "activations": "fp16"}, "fp8"),
    ("llama-3.1-8b", "a100", {"weights": "int8"}, "int8"),
    ("llama-3.1-8b", "h100", {"weights": "int4-g128"}, None),
    ("llama-3.1-8b", "h100", {"formats": {"ffn": "fp8"}}, "fp8"),
    ("gpt-oss-120b", "b200", {}, None),                      # MXFP4 runs beside bf16
])
def test_native_activations(model: str, hardware: str, fields: dict[str, Any],
                            native: str | None) -> None:
    assert native_activations(Deployment.of(model, hardware, **fields)) == native


def test_exceptions_by_role() -> None:
    d = deployment(weights="fp8", formats={"head": "int8", "attention": "bf16"})
    assert d.weight_format("head").name == "int8"
    assert d.weight_format("attention").name == "bf16"
    assert d.weight_format("ffn").name == "fp8"


def test_kv_format() -> None:
    assert deployment(activations="fp8").kv_format.name == "fp8"
    assert deployment(activations="fp8", kv="bf16").kv_format.name == "bf16"
    assert deployment(kv="int8").kv_format.name == "int8"


@pytest.mark.parametrize(("fields", "words"), [
    ({"weights": "bf61"}, "bf16"), ({"activations": "int4-g128"}, "activations"),
    ({"kv": "fp9"}, "fp8"), ({"engine": "vlm"}, "vllm"),
])  # fmt: skip
def test_wrong_formats_are_refused(fields: Any, words: Any) -> None:
    assert words in refused(lambda: deployment(**fields))


def test_a_wrong_exception_is_refused_when_built() -> None:
    assert "formats.head" in refused(lambda: deployment(formats={"head": "fp99"}))


# degrees

@pytest.mark.parametrize(("model", "degrees", "words"), [
    ("llama-3.1-8b", {"tp": 3}, "32 heads"),
    ("llama-3.1-8b", {"tp": 64}, "32 heads"),
    ("llama-3.1-8b", {"pp": 33}, "32 layers"),
    ("llama-3.1-8b", {"ep": 2, "tp": 2}, "no experts"),
    ("mixtral-8x7b", {"ep": 2}, "does not divide tp x dp"),
    ("mixtral-8x7b", {"ep": 16, "dp": 16}, "8 experts"),
    ("llama-3.1-8b", {"tp": 0}, "tp"), ("llama-3.1-8b", {"dp": -1}, "dp"),
    ("llama-3.1-8b", {"cp": 1.5}, "cp"), ("llama-3.1-8b", {"tp": True}, "tp"),
])  # fmt: skip
def test_degrees_that_a_model_does_not_allow(model: Any, degrees: Any, words: Any) -> None:
    assert words in refused(lambda: split(model, **degrees))


def test_degrees_beyond_the_kv_heads_are_allowed() -> None:
    assert split("llama-3.1-8b", tp=32).devices == 32    # 8 KV heads, each on four ranks


def test_the_valid_degrees_are_named() -> None:
    assert "1, 2, 4, 8, 16, 32" in refused(lambda: split("llama-3.1-8b", tp=3))


def test_replace_checks_again() -> None:
    assert "tp" in refused(lambda: deployment().replace(parallelism=Parallelism(tp=7)))


def test_gguf_files_quantise_head_and_embedding() -> None:
    """Llama 3.1 8B Q4_K_M is a file of 4.92 GB; gpt-fast leaves the embedding in 16 bits."""
    d = Deployment.of("llama-3.1-8b", "rtx-4090", "llama.cpp", weights="q4_k_m")
    assert {r: d.weight_format(r).name for r in ("ffn", "head", "embedding")} == {
        "ffn": "q4_k_m", "head": "q6_k", "embedding": "q6_k"}
    assert float(weight_bytes(d)) == pytest.approx(4.92e9, rel=0.05)
    fast = Deployment.of("llama-2-7b", "a100", "gpt-fast", weights="int8")
    assert {r: fast.weight_format(r).name for r in ("head", "embedding")} == {
        "head": "int8", "embedding": "bf16"}
    asked = d.replace(weights=None)
    assert asked.weight_format("head").name == "bf16"
