"""Number formats: how many bits a value really takes, and which unit multiplies it.

Effective bits include scales and zero points, because decode streams them too: int4 in groups of
128 with a 16-bit scale is 4 + 16/128 = 4.125 bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from simulator.errors import InputError, nearest, shown


@dataclass(frozen=True)
class NumberFormat:
    """One format of stored numbers.

    name     slug, as in `--weights int4-g128`
    bits     effective bits a value, scales and zero points included
    compute  precision that multiplies it when both operands have it; `None`: only storage, so
             the matrix unit works at the precision of the activations
    source   where the layout is defined
    """

    name: str
    bits: float
    compute: str | None
    source: str

    @property
    def bytes(self) -> float:
        """Effective bytes a value."""
        return self.bits / 8.0


_GGML = "ggml block layouts (ggml-common.h)"
_MIXES = "llama.cpp's mixes of block types, bits of a whole Llama 2 7B file; a GGUF file is exact"
_OCP = "OCP Microscaling Formats v1.0"

_FORMATS = {
    f.name: f
    for f in (
        NumberFormat("fp32", 32, "fp32", "IEEE 754"),
        NumberFormat("tf32", 32, "tf32", "NVIDIA A100 whitepaper"),
        NumberFormat("fp16", 16, "fp16", "IEEE 754"),
        NumberFormat("bf16", 16, "bf16", "bfloat16"),
        NumberFormat("fp8", 8, "fp8", "OCP 8-bit floating point, scale per tensor"),
        NumberFormat("fp8-channel", 8, "fp8", "scale per output channel: below 0.01 bit"),
        NumberFormat("fp8-block", 8 + 32 / 128**2, "fp8", "fp32 scale per 128 x 128 block"),
        NumberFormat("int8", 8, "int8", "scale per channel: below 0.01 bit"),
        NumberFormat("int4", 4, None, "no scales counted"),
        NumberFormat("nvfp4", 4.5, "fp4", "fp8 scale per 16 values"),
        NumberFormat("mxfp4", 4.25, "fp4", _OCP + ": 8-bit scale per 32 values"),
        NumberFormat("mxfp6", 6.25, "fp6", _OCP + ": 8-bit scale per 32 values"),
        NumberFormat("mxfp8", 8.25, "fp8", _OCP + ": 8-bit scale per 32 values"),
        NumberFormat("nf4", 4 + 32 / 64, None, "QLoRA: fp32 scale per 64 values"),
        NumberFormat("nf4-double", 4 + 8 / 64 + 32 / (64 * 256), None, "QLoRA, scales quantised"),
        NumberFormat("q4_0", 4.5, None, _GGML),
        NumberFormat("q4_1", 5.0, None, _GGML),
        NumberFormat("q5_0", 5.5, None, _GGML),
        NumberFormat("q5_1", 6.0, None, _GGML),
        NumberFormat("q8_0", 8.5, None, _GGML),
        NumberFormat("q2_k", 2.625, None, _GGML),
        NumberFormat("q3_k", 3.4375, None, _GGML),
        NumberFormat("q4_k", 4.5, None, _GGML),
        NumberFormat("q5_k", 5.5, None, _GGML),
        NumberFormat("q6_k", 6.5625, None, _GGML),
        NumberFormat("q8_k", 9.125, None, _GGML),
        *(NumberFormat(name, bits, None, _MIXES) for name, bits in (
            ("q2_k_m", 3.35), ("q3_k_s", 3.50), ("q3_k_m", 3.91), ("q3_k_l", 4.27),
            ("q4_k_s", 4.57), ("q4_k_m", 4.84), ("q5_k_s", 5.52), ("q5_k_m", 5.68))),
        NumberFormat("iq4_nl", 4.5, None, _GGML),
        NumberFormat("iq4_xs", 4.25, None, _GGML),
        NumberFormat("iq3_s", 3.4375, None, _GGML),
        NumberFormat("iq3_xxs", 3.0625, None, _GGML),
        NumberFormat("iq2_xxs", 2.0625, None, _GGML),
        NumberFormat("iq2_xs", 2.3125, None, _GGML),
        NumberFormat("iq2_s", 2.5625, None, _GGML),
        NumberFormat("iq1_s", 1.5625, None, _GGML),
        NumberFormat("iq1_m", 1.75, None, _GGML),
    )
}

_ALIASES = {
    "float32": "fp32", "f32": "fp32", "float16": "fp16", "f16": "fp16", "half": "fp16",
    "bfloat16": "bf16", "float8": "fp8", "e4m3": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "w8a8": "int8", "fp4": "nvfp4", "awq": "int4-g128-z4", "gptq": "int4-g128",
}  # fmt: skip

_GGUF_BELOW_SIX = re.compile(r"i?q[1-5]_")
_GROUPED = re.compile(r"int([2-8])-g([1-9][0-9]{0,5})(?:-z([1-9]|[12][0-9]|3[0-2]))?")
_MIXED = re.compile(r"mix-([0-9]{1,2}(?:\.[0-9]{1,17})?)")


@lru_cache(maxsize=1024)
def number_format(name: str, where: str = "format") -> NumberFormat:
    """The format called `name`; integers in groups are `int4-g128`, with zero points `-z4`, `-z16`;
    a class of tensors in several formats is `mix-4.85`, with its mean bits a value.

    Raises InputError with the nearest name.
    """
    if not isinstance(name, str):
        raise InputError(f"{where}: {shown(name)} is not the name of a number format")
    slug = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if slug in _FORMATS:
        return _FORMATS[slug]
    match = _GROUPED.fullmatch(slug)
    if match is not None:
        bits, group, zero = int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)
        effective = bits + (16 + zero) / group
        return NumberFormat(slug, effective, None, f"16-bit scale per {group} values")
    mixed = _MIXED.fullmatch(slug)
    if mixed and 0 < float(mixed.group(1)) <= 64:
        return NumberFormat(slug, float(mixed.group(1)), None, "mean of tensors of several formats")
    raise InputError(f"{where}: unknown number format '{name}'"
                     f"{nearest(slug, [*_FORMATS, 'int4-g128', 'int4-g32', 'int4-g64'])}")


def file_head(name: str) -> str:
    """Format of the LM head and the embedding in a file whose other weights are `name`, where it
    quantises them too: GGUF files keep them at six bits at least."""
    return "q6_k" if _GGUF_BELOW_SIX.match(name) else name


def format_names() -> list[str]:
    """Every fixed format name, without the families that take a group size."""
    return list(_FORMATS)


def compute_format(weights: NumberFormat, activations: NumberFormat) -> str:
    """Precision the matrix unit works at: that of the activations, unless the weights are wider.

    Weight-only quantisation (int4 weights, bf16 activations) saves bytes, not FLOPs: the weights
    are expanded to the activation precision before they are multiplied.
    """
    if activations.compute is None:
        raise InputError(f"activations: '{activations.name}' only stores numbers, no unit "
                         "multiplies it; use bf16, fp16, fp8, int8 or nvfp4")
    if weights.compute is not None and weights.bits > activations.bits + 1:
        return weights.compute
    return activations.compute
