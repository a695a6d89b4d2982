"""Effective bits a value, and the precision that multiplies it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.formats import compute_format, format_names, number_format


@pytest.mark.parametrize(("name", "bits"), [
    ("fp32", 32), ("fp16", 16), ("bf16", 16), ("fp8", 8), ("int8", 8),
    ("nvfp4", 4.5), ("mxfp4", 4.25), ("mxfp8", 8.25), ("q8_0", 8.5), ("q4_0", 4.5),
    ("q6_k", 6.5625), ("int4", 4), ("int4-g128", 4.125), ("int4-g32", 4.5),
    ("int4-g128-z4", 4.15625), ("int4-g128-z16", 4.25), ("int3-g64", 3.25),
    ("awq", 4.15625), ("gptq", 4.125), ("nf4", 4.5), ("nf4-double", 4.126953125),
])  # fmt: skip
def test_effective_bits(name: Any, bits: Any) -> None:
    found = number_format(name)
    assert found.bits == bits
    assert found.bytes == bits / 8
    assert number_format(f" {name.upper()} ") == found


def test_every_listed_name_is_found() -> None:
    assert all(number_format(name).name == name for name in format_names())


@pytest.mark.parametrize(("name", "part"), [
    ("fp9", "did you mean 'fp8'"),
    ("q4_km", "did you mean 'q4_k_m'"),
    ("int4-g0", "int4-g"),
    ("int9-g128", "int4-g128"),
    ("int4-g128-z0", "unknown"),
    ("int4-g128-z33", "unknown"),
    ("int4-g\u0663", "unknown"),
    pytest.param("int4-g" + "9" * 5000, "unknown", id="digits"),
    ("", "unknown"),
    ("a\nb", "unknown"),
    (None, "not the name"),
    (4, "not the name"),
    pytest.param(10**5000, "not the name", id="huge"),
])
def test_unknown_format(name: Any, part: str) -> None:
    with pytest.raises(InputError) as caught:
        number_format(name, "--weights")
    message = str(caught.value)
    assert message.startswith("--weights: ")
    assert message.isprintable()
    assert len(message) < 700
    assert part in message


@pytest.mark.parametrize(("weights", "activations", "compute"), [
    ("int4-g128", "bf16", "bf16"),
    ("int4-g128", "fp16", "fp16"),
    ("q8_0", "fp16", "fp16"),
    ("fp8", "bf16", "bf16"),
    ("nvfp4", "bf16", "bf16"),
    ("bf16", "bf16", "bf16"),
    ("fp8", "fp8", "fp8"),
    ("mxfp8", "fp8", "fp8"),
    ("int8", "int8", "int8"),
    ("nvfp4", "nvfp4", "fp4"),
    ("mxfp4", "fp8", "fp8"),
    ("bf16", "fp8", "bf16"),
    ("fp32", "bf16", "fp32"),
])
def test_compute_format(weights: Any, activations: Any, compute: Any) -> None:
    assert compute_format(number_format(weights), number_format(activations)) == compute


def test_storage_format_cannot_be_an_activation() -> None:
    with pytest.raises(InputError, match="only stores numbers"):
        compute_format(number_format("bf16"), number_format("int4-g128"))


@given(st.integers(2, 8), st.integers(1, 4096), st.integers(1, 32))
def test_groups(bits: Any, group: Any, zero: Any) -> None:
    plain = number_format(f"int{bits}-g{group}")
    assert plain.bits == pytest.approx(bits + 16 / group)
    assert plain.compute is None
    assert number_format(f"int{bits}-g{group}-z{zero}").bits > plain.bits
