"""The GGUF importer, on headers written here."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.formats import number_format
from simulator.importers import import_with_notes, write_yaml
from simulator.importers.gguf import to_config
from simulator.importers.gguf_header import TYPES, GgufHeader, GgufTensor, read_header
from simulator.importers.huggingface import import_data
from simulator.kv_cache import kv_elements_per_token
from simulator.parameters import model_tensors, parameters_total
from simulator.specs.model import Attention, Dense, Mla, Model, Moe, parse_model
from simulator.specs.strict_yaml import load_yaml

NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}
Tensors = list[tuple[str, tuple[int, ...], str]]


def packed(text: str) -> bytes:
    """A GGUF string."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """A GGUF value with its type in front."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + packed(item)
    if item and isinstance(item[0], str):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(packed(t) for t in item)
    return struct.pack("<IIQ", 9, 5, len(item)) + struct.pack(f"<{len(item)}i", *item)


def header(metadata: dict[str, Any], tensors: Tensors, version: int = 3) -> bytes:
    """The header of a GGUF file."""
    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, item in metadata.items():
        data += packed(key) + value(item)
    for name, shape, kind in tensors:
        data += packed(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        data += struct.pack("<IQ", NUMBERS[kind], 0)
    return data


def file_bytes(tensors: Tensors) -> int:
    """Bytes of all tensors."""
    total = 0
    for _, shape, kind in tensors:
        _, block, size = TYPES[NUMBERS[kind]]
        count = 1
        for length in shape:
            count *= length
        total += count // block * size
    return total


def model_bytes(model: Model) -> float:
    """Bytes of all weights of a model in its native formats."""
    total = 0.0
    for tensor in model_tensors(model):
        projection = tensor.role in ("attention", "ffn", "experts", "shared_experts", "ssm")
        name = model.formats.get(tensor.role, model.formats["weights"] if projection else "bf16")
        total += tensor.total * number_format(name).bytes
    return total


def metadata(arch: str, **more: Any) -> dict[str, Any]:
    """Metadata of a small model: hidden 512, 2 layers, 8 heads on 2 KV heads."""
    own = {"block_count": 2, "embedding_length": 512, "feed_forward_length": 1024,
           "attention.head_count": 8, "attention.head_count_kv": 2, "context_length": 4096, **more}
    return {"general.architecture": arch, "general.name": "Small",
            **{f"{arch}.{key}": item for key, item in own.items() if item is not None},
            "tokenizer.ggml.tokens": [f"t{i}" for i in range(1000)]}


def tensors(layers: int = 2, head: bool = True, mixed: bool = True, qkv_bias: bool = False,
            qk_norm: int = 0) -> Tensors:
    """Tensors of that model, Q4_K with some Q6_K where `mixed`."""
    found: Tensors = [("token_embd.weight", (512, 1000), "q4_k"),
                      ("output_norm.weight", (512,), "fp32"),
                      ("rope_freqs.weight", (32,), "fp32")]
    if head:
        found.append(("output.weight", (512, 1000), "q6_k"))
    for i in range(layers):
        wide = "q6_k" if mixed and i == 0 else "q4_k"
        found += [(f"blk.{i}.attn_q.weight", (512, 512), "q4_k"),
                  (f"blk.{i}.attn_k.weight", (512, 128), "q4_k"),
                  (f"blk.{i}.attn_v.weight", (512, 128), wide),
                  (f"blk.{i}.attn_output.weight", (512, 512), "q4_k"),
                  (f"blk.{i}.attn_norm.weight", (512,), "fp32"),
                  (f"blk.{i}.ffn_norm.weight", (512,), "fp32"),
                  (f"blk.{i}.ffn_gate.weight", (512, 1024), "q4_k"),
                  (f"blk.{i}.ffn_up.weight", (512, 1024), "q4_k"),
                  (f"blk.{i}.ffn_down.weight", (1024, 512), wide)]
        if qkv_bias:
            found += [(f"blk.{i}.attn_q.bias", (512,), "fp32"),
                      (f"blk.{i}.attn_k.bias", (128,), "fp32"),
                      (f"blk.{i}.attn_v.bias", (128,), "fp32")]
        if qk_norm:
            found += [(f"blk.{i}.attn_q_norm.weight", (qk_norm,), "fp32"),
                      (f"blk.{i}.attn_k_norm.weight", (qk_norm,), "fp32")]
    return found


def experts(count: int, width: int, shared: int = 0) -> Tensors:
    """Tensors of the same model with experts in place of the MLP."""
    found = [t for t in tensors() if "ffn_" not in t[0] or "ffn_norm" in t[0]]
    for i in range(2):
        found += [(f"blk.{i}.ffn_gate_inp.weight", (512, count), "fp32"),
                  (f"blk.{i}.ffn_gate_exps.weight", (512, width, count), "q4_k"),
                  (f"blk.{i}.ffn_up_exps.weight", (512, width, count), "q4_k"),
                  (f"blk.{i}.ffn_down_exps.weight", (width, 512, count), "q6_k")]
        if shared:
            found += [(f"blk.{i}.ffn_gate_inp_shexp.weight", (512,), "fp32"),
                      (f"blk.{i}.ffn_gate_shexp.weight", (512, shared), "q4_k"),
                      (f"blk.{i}.ffn_up_shexp.weight", (512, shared), "q4_k"),
                      (f"blk.{i}.ffn_down_shexp.weight", (shared, 512), "q4_k")]
    return found


def load(folder: Path, data: bytes) -> Model:
    """Model of a GGUF file with this content."""
    path = folder / "small-Q4_K_M.gguf"
    path.write_bytes(data + b"\0" * 64)
    return import_with_notes(path).model


def described(metadata: dict[str, Any], held: Tensors) -> Model:
    """Model of the metadata alone."""
    sizes = tuple(GgufTensor(name, shape, kind, 0, 0) for name, shape, kind in held)
    found = {**metadata, "tokenizer.ggml.tokens#": 1000}
    return import_data({**to_config(GgufHeader(found, sizes), "a.gguf"), "dtype": "float16"},
                       "a.gguf").model


def test_llama_counts_formats_and_bytes(tmp_path: Path) -> None:
    held = tensors()
    model = load(tmp_path, header(metadata("llama"), held))
    assert (model.name, model.title, model.vocabulary) == ("small-q4_k_m", "Small", 1000)
    assert parameters_total(model) == sum(
        _count(shape) for name, shape, _ in held if not name.startswith("rope"))
    assert model.formats["embedding"] == "q4_k"
    assert model.formats["head"] == "q6_k"
    assert number_format(model.formats["norm"]).bits > 32
    assert model.formats["attention"].startswith("mix-")
    assert model_bytes(model) == pytest.approx(file_bytes(held), rel=1e-9)
    assert kv_elements_per_token(model) == 2 * 2 * 64 * 2


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def test_one_type_keeps_its_own_name(tmp_path: Path) -> None:
    model = load(tmp_path, header(metadata("llama"), tensors(mixed=False)))
    assert model.formats["weights"] == "q4_k"


def test_tied_where_there_is_no_output_tensor(tmp_path: Path) -> None:
    held = tensors(head=False)
    model = load(tmp_path, header(metadata("llama"), held))
    assert model.tied_embeddings
    assert model.formats["head"] == "q4_k"
    assert model_bytes(model) == pytest.approx(file_bytes(held), rel=1e-9)


@pytest.mark.parametrize(
    ("arch", "held", "more"),
    [
        ("qwen2", tensors(qkv_bias=True), {}),
        ("qwen3", tensors(qk_norm=64), {"attention.key_length": 64}),
        ("mistral", tensors(), {}),
        ("llama", experts(8, 1024), {"expert_count": 8, "expert_used_count": 2}),
        ("qwen3moe", [*experts(16, 256), *(t for t in tensors(qk_norm=64) if "q_norm" in t[0]
                                           or "k_norm" in t[0])],
         {"expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 256,
          "attention.key_length": 64}),
        ("qwen2moe", [*experts(16, 256, 512), *(t for t in tensors(qkv_bias=True)
                                                if t[0].endswith("bias"))],
         {"expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 256,
          "expert_shared_feed_forward_length": 512}),
    ],
)
def test_architectures_are_exact(tmp_path: Path, arch: str, held: Tensors,
                                 more: dict[str, Any]) -> None:
    model = load(tmp_path, header(metadata(arch, **more), held))
    assert parameters_total(model) == sum(
        _count(shape) for name, shape, _ in held if not name.startswith("rope"))
    assert model_bytes(model) == pytest.approx(file_bytes(held), rel=1e-9)


def test_mixtral_is_a_llama_with_experts(tmp_path: Path) -> None:
    data = metadata("llama", expert_count=8, expert_used_count=2)
    ffn = load(tmp_path, header(data, experts(8, 1024))).layers[0].ffn
    assert ffn == Moe(experts=8, top_k=2, width=1024)


def test_widths_and_kv_heads_by_layer() -> None:
    data = metadata("llama", feed_forward_length=[1024, 512], **{"attention.head_count_kv": [2, 4]})
    groups = described(data, tensors()).layers
    assert [g.ffn for g in groups] == [Dense(width=1024), Dense(width=512)]
    assert [g.mixer.kv_heads for g in groups if isinstance(g.mixer, Attention)] == [2, 4]


def test_gemma_windows() -> None:
    data = metadata("gemma3", block_count=6, **{
        "attention.key_length": 64, "attention.sliding_window": 512})
    groups = described(data, tensors(6)).layers
    told = [(g.count, g.mixer.window) for g in groups if isinstance(g.mixer, Attention)]
    assert told == [(5, 512), (1, None)]


@pytest.mark.parametrize("keys", [
    {"attention.key_length": 192, "attention.value_length": 128},
    {"attention.key_length": 576, "attention.value_length": 512,
     "attention.key_length_mla": 192, "attention.value_length_mla": 128}])
def test_latent_attention(keys: dict[str, int]) -> None:
    data = metadata("deepseek2", expert_count=16, expert_used_count=2, expert_shared_count=1,
                    expert_feed_forward_length=256, leading_dense_block_count=1,
                    **{"attention.kv_lora_rank": 512, "rope.dimension_count": 64, **keys})
    model = described(data, tensors())
    assert model.layers[0].mixer == Mla(heads=8, kv_rank=512, nope_dim=128, rope_dim=64,
                                        value_dim=128)
    assert isinstance(model.layers[0].ffn, Dense)
    assert model.layers[1].ffn == Moe(experts=16, top_k=2, width=256, shared_width=256)


def test_vocabulary_from_metadata_without_the_table() -> None:
    held = [t for t in tensors() if t[0] != "token_embd.weight"]
    assert described(metadata("llama"), held).vocabulary == 1000


def test_kv_heads_by_the_shape_of_the_keys(tmp_path: Path) -> None:
    data = metadata("llama", **{"attention.head_count_kv": None})
    path = tmp_path / "a.gguf"
    path.write_bytes(header(data, tensors()))
    result = import_with_notes(path)
    assert kv_elements_per_token(result.model) == 2 * 2 * 64 * 2
    assert any("attention.head_count_kv: missing, 2 by the shape" in n for n in result.notes)


@pytest.mark.parametrize(
    ("held", "message"),
    [([t for t in tensors() if t[0] != "blk.1.ffn_down.weight"],
      r"contradict.*ffn: .*blk\.1\.ffn_down\.weight is missing"),
     ([(n, (512, 192) if n == "blk.0.attn_k.weight" else s, k) for n, s, k in tensors()],
      r"contradict.*attention: .*attn_k\.weight has shape"),
     ([t for t in tensors() if t[0] != "token_embd.weight"], "contradict.*embedding: 0 values"),
     ([*tensors(), ("blk.0.attn_gate.weight", (512, 512), "q4_k")], "contradict.*attention"),
     ([*tensors(), ("mystery.weight", (512, 4), "fp32")], "contradict.*other")])
def test_tensors_that_contradict_the_metadata(tmp_path: Path, held: Tensors,
                                              message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path, header(metadata("llama"), held))
    assert "\n" not in str(error.value)


def test_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    data = {**metadata("llama"), "split.count": 3, "split.no": 0}
    with pytest.raises(InputError, match=r"split\.count: one of 3 parts"):
        load(tmp_path, header(data, tensors()[:5]))


def test_yaml_of_a_gguf_reads_back(tmp_path: Path) -> None:
    model = load(tmp_path, header(metadata("llama"), tensors()))
    copy = tmp_path / "copy.yaml"
    copy.write_text(write_yaml(model), encoding="utf-8")
    assert parse_model(load_yaml(copy), "copy") == model


def test_mean_format_keeps_its_digits() -> None:
    assert number_format("mix-4.85").bits == 4.85
    assert number_format("mix-4.85").compute is None
    with pytest.raises(InputError):
        number_format("mix-0")
    with pytest.raises(InputError):
        number_format("mix-")


@pytest.mark.parametrize("arch", ["clip", "rwkv6", "bert", "qwen4"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, arch: str) -> None:
    with pytest.raises(InputError, match=f"unknown architecture '{arch}'"):
        load(tmp_path, header(metadata(arch), tensors()))


GOOD = header(metadata("llama"), tensors())


@pytest.mark.parametrize("length", [0, 3, 4, 23, 24, 60, 200, 5000, len(GOOD) - 1])
def test_truncated_files(tmp_path: Path, length: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(GOOD[:length])
    with pytest.raises(InputError, match=r"cut\.gguf") as error:
        read_header(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + b"\0" * 60, "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "cannot be right"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + packed("a") + struct.pack("<I", 99),
         "unknown value type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + packed("t") + struct.pack("<I", 9),
         "9 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + packed("t")
         + struct.pack("<IQIQ", 1, 32, 250, 0), "unknown ggml type 250"),
        (header({}, tensors()), "'general.architecture' is missing"),
        (header(metadata("llama"), []), "lists no tensors"),
        (header(metadata("llama", embedding_length=None), tensors()), "'hidden_size' is missing"),
        (header(metadata("llama", block_count=0), tensors()), "num_hidden_layers: 0"),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as error:
        import_with_notes(path)
    assert "bad.gguf" in str(error.value)
    assert "\n" not in str(error.value)


def test_only_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as stream:
        stream.write(GOOD)
        stream.truncate(2**33)
    assert import_with_notes(path).model.vocabulary == 1000
