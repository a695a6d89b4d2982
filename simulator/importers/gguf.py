"""A GGUF file's header to a Model: dimensions from its metadata, formats from its tensors.

The metadata is translated to the keys of a configuration, so that the families are described
once; the number formats come from the types and sizes of the tensors themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simulator.errors import InputError, nearest
from simulator.formats import format_names
from simulator.importers.gguf_header import GgufHeader, GgufTensor, read_header
from simulator.importers.huggingface import Imported, import_data
from simulator.parameters import model_tensors
from simulator.specs.model import FORMAT_CLASSES, Model
from simulator.specs.sourced import Provenance

# GGUF architecture -> model_type, without and with experts.
ARCHITECTURES: dict[str, tuple[str, str | None]] = {
    "llama": ("llama", "mixtral"), "mistral": ("mistral", "mixtral"), "mixtral": ("mixtral",) * 2,
    "mistral3": ("ministral3", None), "qwen2": ("qwen2", None), "qwen3": ("qwen3", None),
    "qwen2moe": ("qwen2_moe",) * 2, "qwen3moe": ("qwen3_moe",) * 2, "gemma": ("gemma", None),
    "gemma2": ("gemma2", None), "gemma3": ("gemma3_text", None), "phi3": ("phi3", None),
    "deepseek2": ("deepseek_v3", "deepseek_v3"), "gpt-oss": ("gpt_oss",) * 2,
}  # fmt: skip

# Metadata key below the architecture -> key of a configuration.
_KEYS = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv":
    "num_key_value_heads", "attention.sliding_window": "sliding_window",
    "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_shared_count": "n_shared_experts", "leading_dense_block_count":
    "first_k_dense_replace", "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
}  # fmt: skip

_ROTARY = "rope_"
_NAMES = ((r"_norm|^output_norm|\.bias$|sinks", "norm"), (r"^token_embd\.", "embedding"),
          (r"^output\.", "head"), (r"ffn_gate_inp", "router"), (r"_exps\.", "experts"),
          (r"_shexp\.", "shared_experts"), (r"\.attn_", "attention"), (r"\.ffn_", "ffn"),
          (r"\.ssm_", "ssm"))


def class_of(name: str, tied: bool) -> str | None:
    """Class of a tensor's weights; None for tables that hold no parameters."""
    if name.startswith(_ROTARY):
        return None
    found = next((role for pattern, role in _NAMES if re.search(pattern, name)), "other")
    return "head" if found == "embedding" and tied else found


def _latent_sizes(get: Any) -> dict[str, Any]:
    """Head sizes of latent attention: newer files keep them apart from those of the latent."""
    rope = get("rope.dimension_count")
    key = get("attention.key_length_mla") or get("attention.key_length")
    value = get("attention.value_length_mla") or get("attention.value_length")
    if not isinstance(rope, int) or not isinstance(key, int):
        return {}
    return {"qk_rope_head_dim": rope, "qk_nope_head_dim": key - rope, "v_head_dim": value}


def to_config(header: GgufHeader, where: str) -> dict[str, Any]:
    """The configuration that the metadata amounts to."""
    data = header.metadata
    arch = data.get("general.architecture")
    if not isinstance(arch, str):
        raise InputError(f"{where}: 'general.architecture' is missing")
    if arch not in ARCHITECTURES:
        raise InputError(f"{where}: general.architecture: unknown architecture '{arch[:60]}'"
                         f"{nearest(arch, ARCHITECTURES)}; describe the model in a YAML file")

    def get(key: str) -> Any:
        return data.get(f"{arch}.{key}")

    names = {t.name: t for t in header.tensors}
    config = {target: get(key) for key, target in _KEYS.items() if get(key) is not None}
    dense, sparse = ARCHITECTURES[arch]
    config["model_type"] = sparse if config.get("num_experts") and sparse else dense
    if "kv_lora_rank" in config:
        config.update(_latent_sizes(get))
        config.setdefault("q_lora_rank", None)
    elif get("attention.key_length") is not None:
        config["head_dim"] = get("attention.key_length")
    table = names.get("token_embd.weight")
    rows = table.shape[1] if table is not None and len(table.shape) > 1 else get("vocab_size")
    config["vocab_size"] = rows or data.get("tokenizer.ggml.tokens#")
    if table is not None:
        config["tie_word_embeddings"] = "output.weight" not in names
    config["attention_bias"] = "blk.0.attn_q.bias" in names and arch in ("llama", "mistral")
    config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    # The window of a Llama or Qwen GGUF is given only where it is used.
    if arch in ("llama", "mistral", "mistral3", "phi3"):
        config.setdefault("sliding_window", None)
    if arch == "gpt-oss" and "moe_intermediate_size" in config:
        config["intermediate_size"] = config["moe_intermediate_size"]
    return config


def format_name(tensors: Iterable[GgufTensor], elements: float) -> str:
    """One format where all tensors share it, else `mix-<mean bits>` over `elements` values."""
    group = list(tensors)
    types = {t.type for t in group}
    exact = sum(t.elements for t in group) == elements
    if len(types) == 1 and exact and (only := types.pop()) in format_names():
        return only
    return f"mix-{sum(t.bytes for t in group) * 8 / elements:.15g}"


def _odd_tensor(header: GgufHeader) -> str:
    """The tensor that most blocks have and one lacks, or has in another shape; as a hint."""
    blocks: dict[str, dict[str, tuple[int, ...]]] = {}
    for tensor in header.tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
        if match is not None:
            blocks.setdefault(match[1], {})[match[2]] = tensor.shape
    parts = {part for block in blocks.values() for part in block}
    for part in sorted(parts):
        shapes = Counter(block.get(part) for block in blocks.values())
        usual = shapes.most_common(1)[0][0]
        for number, block in blocks.items():
            if len(shapes) > 1 and block.get(part) != usual:
                told = "is missing" if part not in block else f"has shape {block[part]}"
                return f" (blk.{number}.{part} {told}, in other blocks {usual})"
    return ""


def formats_from(header: GgufHeader, model: Model, notes: list[str],
                 where: str) -> dict[str, str]:
    """Format of each class, such that the bytes are those of the tensors; tensors that are not
    those of the model are an error.
    """
    by_class: dict[str, list[GgufTensor]] = {}
    for tensor in header.tensors:
        role = class_of(tensor.name, model.tied_embeddings)
        if role is not None:
            by_class.setdefault(role, []).append(tensor)
    counted: dict[str, float] = {}
    for entry in model_tensors(model):
        counted[entry.role] = counted.get(entry.role, 0.0) + entry.total
    tables = [t for t in header.tensors if t.name.startswith(_ROTARY)]
    formats: dict[str, str] = {}
    for role in FORMAT_CLASSES[1:]:
        tensors, elements = by_class.get(role, []), counted.get(role, 0.0)
        held = sum(t.elements for t in tensors)
        if held != elements:
            raise InputError(
                f"{where}: the tensors contradict the metadata: {role}: {held} values in the "
                f"file, {elements:.0f} by the metadata{_odd_tensor(header)}")
        if held and role == "norm" and tables:
            notes.append("norm: the bytes of the rotary tables are counted with the norms")
            formats[role] = format_name([*tensors, *tables], elements)
        elif held:
            formats[role] = format_name(tensors, elements)
    default = formats.get("ffn") or formats.get("experts") or formats.get("attention") or "fp16"
    return {"weights": default, **{k: v for k, v in formats.items()
                                   if v != default or k in ("norm", "router", "embedding",
                                                            "head", "other")}}


def _kv_heads_by_shape(header: GgufHeader, config: dict[str, Any], where: str) -> list[str]:
    """KV heads from the key projection where the metadata has none; notes that say so."""
    key = next((t for t in header.tensors if re.fullmatch(r"blk\.\d+\.attn_k\.weight", t.name)),
               None)
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if ("num_key_value_heads" in config or key is None or len(key.shape) < 2
            or not isinstance(heads, int) or not isinstance(hidden, int) or heads < 1):
        return []
    size = config.get("head_dim") or hidden // heads
    if not isinstance(size, int) or size < 1 or key.shape[1] % size:
        raise InputError(f"{where}: attention.head_count_kv is missing, and {key.name} of shape "
                         f"{key.shape} is no multiple of the head size {size}")
    config["num_key_value_heads"] = key.shape[1] // size
    return [f"attention.head_count_kv: missing, {key.shape[1] // size} by the shape of {key.name}"]


def import_gguf(path: Path) -> Imported:
    """Model of a GGUF file's header."""
    header = read_header(path)
    parts = header.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise InputError(f"{path}: split.count: one of {parts} parts of a split file; merge them "
                         "with llama-gguf-split --merge first")
    config = to_config(header, str(path))
    if not header.tensors:
        raise InputError(f"{path}: the GGUF file lists no tensors")
    first = _kv_heads_by_shape(header, config, str(path))
    imported = import_data({**config, "dtype": "float16"}, str(path))
    notes = [*first, *imported.notes]
    title = header.metadata.get("general.name")
    model = imported.model.replace(
        name=re.sub(r"[^a-z0-9._]+", "-", path.stem.lower()).strip("-") or "model",
        title=title if isinstance(title, str) else None,
        source=Provenance(source=path.name, confidence="inferred"))
    formats = formats_from(header, model, notes, str(path))
    return Imported(model.replace(formats=formats), tuple(notes))
