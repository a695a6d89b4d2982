"""Formats by role: what stays at 16 bits unless it is told, and `--format ROLE=FORMAT`."""

from __future__ import annotations

import json

import pytest

from simulator import Deployment, InputError
from simulator.cli import run
from simulator.deployment import FORMAT_ROLES, QUANTISED_ROLES
from simulator.specs.catalogue import catalogue, load_model

APART = ("embedding", "head", "norm", "router")


@pytest.mark.parametrize("name", sorted(catalogue("models")))
def test_catalogue_models(name: str) -> None:
    """Natively each role is as the checkpoint says; --weights moves the projections alone."""
    model = load_model(name)
    native = Deployment.of(name, "h100")
    asked = Deployment.of(name, "h100", weights="int4-g128")
    for role in APART:
        told = role in model.formats or model.formats["weights"] == "fp32"
        assert told or native.weight_format(role).bits == 16
        assert asked.weight_format(role) == native.weight_format(role) or not told
        assert told or asked.weight_format(role).bits == 16
    for role in QUANTISED_ROLES:
        assert asked.weight_format(role).bits == 4.125


@pytest.mark.parametrize("weights", ["fp8", "int8", "nvfp4", "q4_k", "awq", "fp8-block"])
def test_weights_leave_the_rest_alone(weights: str) -> None:
    d = Deployment.of("qwen3-30b-a3b", "h100", weights=weights)
    assert {d.weight_format(role).name for role in APART} == {"bf16"}
    assert d.activation_format.name == d.kv_format.name == "bf16"


def test_told() -> None:
    d = Deployment.of("qwen3-30b-a3b", "h100", weights="fp8", kv="fp8",
                      formats={"head": "int8", "router": "fp32"})
    assert [d.weight_format(r).name for r in ("head", "router", "embedding", "experts")] == [
        "int8", "fp32", "bf16", "fp8"]
    assert (d.kv_format.name, d.activation_format.name) == ("fp8", "bf16")


def test_flags(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["memory", "llama-3.1-8b", "h100", "--weights", "int4-g128", "--json"]
    assert run(args) == 0
    plain = json.loads(capsys.readouterr().out)
    assert run([*args, "--format", "head=int8", "--format", " Embedding = int8 "]) == 0
    told = json.loads(capsys.readouterr().out)
    table = 128256 * 4096
    assert plain["formats"]["exceptions"] == {}
    assert told["formats"]["exceptions"] == {"head": "int8", "embedding": "int8"}
    assert plain["memory"]["weights_bytes"] - told["memory"]["weights_bytes"] == 2 * table


def test_text_names_the_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "llama-3.1-8b", "h100", "--format", "head=int8"]) == 0
    assert "but head int8" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("pair", "words"), [
    ("hed=int8", "did you mean 'head'"), ("experts", "ROLE=FORMAT"), ("=int8", "ROLE=FORMAT"),
    ("head=", "ROLE=FORMAT"), ("head=int9", "--format head"), ("weights=fp8", "--weights fp8"),
    ("kv=fp8", "--kv fp8"), ("x=int8", "valid: "), ("head=int8=3", "unknown number format"),
    ("he\nad=int8", "did you mean 'head'"),
])  # fmt: skip
def test_mistakes(capsys: pytest.CaptureFixture[str], pair: str, words: str) -> None:
    assert run(["estimate", "llama-3.1-8b", "h100", "--format", pair]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "llama-3.1-8b", "h100", "--format", "head=int8", "--format",
                "head=fp8"]) == 2
    assert "twice" in capsys.readouterr().err


def test_unknown_role_in_python() -> None:
    with pytest.raises(InputError, match="did you mean 'head'"):
        Deployment.of("llama-3.1-8b", "h100", formats={"haed": "int8"})
    assert set(QUANTISED_ROLES) < set(FORMAT_ROLES)
