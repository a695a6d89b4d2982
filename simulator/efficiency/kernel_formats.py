"""Number formats as kernels see them: bytes a value with scales, and the unit that multiplies."""

from __future__ import annotations

from typing import NamedTuple

from simulator.arrays import Array
from simulator.errors import InputError, nearest
from simulator.formats import NumberFormat
from simulator.specs.hardware import Hardware


class KernelFormat(NamedTuple):
    """weight, activation: bytes a value; compute: precision of the matrix unit; quantised: the
    call converts its 16-bit input first."""

    weight: float
    activation: float
    compute: str
    quantised: bool = False


FORMATS = {
    "fp32": KernelFormat(4.0, 4.0, "fp32"),
    "bf16": KernelFormat(2.0, 2.0, "bf16"),
    "fp8": KernelFormat(1.0, 1.0, "fp8", True),
    "fp8-block": KernelFormat(1.0, 1.0, "fp8", True),
    "nvfp4": KernelFormat(0.5625, 0.5625, "fp4", True),
    "mxfp4": KernelFormat(0.53125, 0.53125, "fp4"),
    "int8": KernelFormat(1.0, 1.0, "int8"),
    "int8-weight": KernelFormat(1.0, 2.0, "bf16"),
    "int4-weight": KernelFormat(0.53, 2.0, "bf16"),
    "int2-weight": KernelFormat(0.28, 2.0, "bf16"),
    "mxfp4-weight": KernelFormat(0.53125, 2.0, "bf16"),
    "mxfp4-mxfp8": KernelFormat(0.53125, 1.03125, "fp8"),
    "int4-fp8": KernelFormat(0.53, 1.0, "fp8"),
}

# A unit that lacks a format multiplies at the next one that it has.
_SLOWER = {"fp4": "fp8", "fp8": "bf16", "int8": "fp8", "bf16": "fp16", "fp16": "fp32",
           "fp32": "vector"}


def kernel_format(name: str) -> KernelFormat:
    """Facts of a format; an attention format `a-kv-b` has those of its activations `a`."""
    found = FORMATS.get(name.split("-kv-", maxsplit=1)[0])
    if found is None:
        raise InputError(f"unknown kernel format '{name}'{nearest(name, FORMATS)}")
    return found


def kv_bytes(name: str) -> float:
    """Bytes of a cached value in an attention format, `bf16-kv-fp8` or `fp8`."""
    return kernel_format(name.rsplit("-kv-", maxsplit=1)[-1]).activation


def peak(hardware: Hardware, compute: str) -> Array:
    """Dense peak [FLOP/s] of a device at a precision, or at the next slower one that it has."""
    while compute != "vector":
        found = getattr(hardware, f"peak_{compute}")
        if found is not None:
            return found
        compute = _SLOWER[compute]
    return hardware.vector_fp32


def of_matrix(weights: NumberFormat, activations: NumberFormat) -> str:
    """Kernel format of weights and activations: which of the measured kernels multiplies them."""
    narrow = activations.bits < 16
    if weights.bits >= 16:
        return "fp32" if weights.bits > 16 else "bf16"
    if weights.bits > 6:
        if not narrow:
            return "int8-weight"
        return weights.name if weights.name in ("fp8-block", "int8") else "fp8"
    if not narrow:
        few = "int2-weight" if weights.bits < 3 else "int4-weight"
        return "mxfp4-weight" if weights.name == "mxfp4" else few
    if activations.bits < 8:
        return "mxfp4" if weights.name == "mxfp4" else "nvfp4"
    return "mxfp4-mxfp8" if weights.name == "mxfp4" else "int4-fp8"


def of_attention(activations: NumberFormat, kv: NumberFormat) -> str:
    """Kernel format of attention: queries and products in one format, cached values in another."""
    queries = "fp8" if activations.bits < 16 and kv.bits < 16 else "bf16"
    cached = "fp8" if kv.bits < 16 else "bf16"
    return queries if queries == cached else f"{queries}-kv-{cached}"
