"""Reads the header of a GGUF file: metadata and tensor infos, never the weights.

Sizes in the file are not trusted: every read is bounded by what is left of the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from simulator.errors import InputError

MOST_ENTRIES = 1_000_000
KEPT_ARRAY = 100_000

# ggml type number -> (name, values a block, bytes a block), after ggml.h and ggml-common.h.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("fp32", 1, 4), 1: ("fp16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36),
    10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2),
    26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
}  # fmt: skip

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q",
            11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file: its name, shape, ggml type and size."""

    name: str
    shape: tuple[int, ...]
    type: str
    elements: int
    bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata (long arrays as their length only, under `key#`) and tensors."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


class _Reader:
    def __init__(self, stream: BinaryIO, size: int, where: str) -> None:
        self.stream, self.left, self.where = stream, size, where

    def take(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        if count > self.left:
            raise InputError(f"{self.where}: the GGUF header is truncated or damaged "
                             f"({count} bytes wanted, {self.left} left)")
        data = self.stream.read(count)
        if len(data) != count:
            raise InputError(f"{self.where}: the GGUF header is truncated")
        self.left -= count
        return data

    def scalar(self, form: str) -> Any:
        """One little-endian number."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, what: str) -> int:
        """A number of entries, refused where it cannot be true."""
        value: int = self.scalar("<Q")
        if value > MOST_ENTRIES:
            raise InputError(f"{self.where}: {value} {what} cannot be right; the file is damaged")
        return value

    def text(self) -> str:
        """A string with its length in front."""
        return self.take(self.scalar("<Q")).decode("utf-8", errors="replace")


def _array(reader: _Reader) -> tuple[list[Any] | None, int]:
    """(values, length); values only of arrays of numbers that are not long."""
    kind, length = reader.scalar("<I"), reader.count("array entries")
    if kind == _STRING:
        for _ in range(length):
            reader.take(reader.scalar("<Q"))
        return None, length
    form = _SCALARS.get(kind)
    if form is None:
        raise InputError(f"{reader.where}: array of unknown value type {kind} in the GGUF header")
    data = reader.take(length * struct.calcsize(form))
    if length > KEPT_ARRAY:
        return None, length
    return [v[0] for v in struct.iter_unpack(form, data)], length


def _metadata(reader: _Reader, entries: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(entries):
        key, kind = reader.text(), reader.scalar("<I")
        if kind == _ARRAY:
            values, length = _array(reader)
            found[f"{key}#"] = length
            if values is not None:
                found[key] = values
        elif kind == _STRING:
            found[key] = reader.text()
        elif kind in _SCALARS:
            found[key] = reader.scalar(_SCALARS[kind])
        else:
            raise InputError(f"{reader.where}: {key[:60]}: unknown value type {kind} in the GGUF "
                             "header")
    return found


def _tensor(reader: _Reader) -> GgufTensor:
    name, dimensions = reader.text(), reader.scalar("<I")
    if not 1 <= dimensions <= 4:
        raise InputError(f"{reader.where}: tensor '{name[:60]}' has {dimensions} dimensions; "
                         "the file is damaged")
    shape = tuple(reader.scalar("<Q") for _ in range(dimensions))
    kind, _offset = reader.scalar("<I"), reader.scalar("<Q")
    if kind not in TYPES:
        raise InputError(f"{reader.where}: tensor '{name[:60]}': unknown ggml type {kind}")
    label, block, size = TYPES[kind]
    elements = 1
    for length in shape:
        elements *= length
    if not 0 < elements < 2**50 or shape[0] % block:
        raise InputError(f"{reader.where}: tensor '{name[:60]}': shape {shape} does not fit type "
                         f"{label}")
    return GgufTensor(name, shape, label, elements, elements // block * size)


def read_header(path: Path) -> GgufHeader:
    """Metadata and tensor infos of a GGUF file, version 2 or 3."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            reader = _Reader(stream, size, str(path))
            if size < 24 or reader.take(4) != b"GGUF":
                raise InputError(f"{path}: is not a GGUF file")
            version = reader.scalar("<I")
            if version not in (2, 3):
                raise InputError(f"{path}: GGUF version {version} is not supported (valid: 2, 3)")
            tensors, entries = reader.count("tensors"), reader.count("metadata entries")
            metadata = _metadata(reader, entries)
            return GgufHeader(metadata, tuple(_tensor(reader) for _ in range(tensors)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
