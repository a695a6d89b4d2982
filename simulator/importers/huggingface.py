"""A Hugging Face `config.json`, or the folder that holds it, to a Model.

The text block is found first and then read; keys are never searched for in nested blocks, since
those repeat unrelated keys of the same name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from simulator.errors import InputError, nearest
from simulator.formats import number_format
from simulator.importers.families import BY_ARCHITECTURE, FAMILIES, REFUSED, SAME, Family
from simulator.importers.foreign import refuse_foreign
from simulator.importers.original import original_mamba
from simulator.importers.quantisation import (
    METHODS,
    Quantisation,
    formats_of,
    method_of,
    names_method,
    quantisation_of,
)
from simulator.importers.reader import Config, defaults_of
from simulator.importers.standard import merge
from simulator.parameters import model_tensors
from simulator.specs.model import Model, model_to_dict, parse_model
from simulator.specs.sourced import Provenance

MOST_BYTES = 64 * 1024**2
SIDE_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
TEXT_BLOCKS = ("text_config", "llm_config", "language_config", "thinker_config",
               "language_model_config")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
           "float": "fp32", "float8_e4m3fn": "fp8", "bf16": "bf16", "fp16": "fp16",
           "fp32": "fp32"}


@dataclass(frozen=True)
class Imported:
    """A model and what had to be inferred to build it."""

    model: Model
    notes: tuple[str, ...]


def _once(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping with every key once: of two values, readers would take one or the other."""
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise InputError(f"{where}: '{key[:60]}' stands twice in one mapping")
        data[key] = value
    return data


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path}: larger than {MOST_BYTES // 1024**2} MiB, not a config.json")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise InputError(f"{path}: is empty")
    try:
        data = json.loads(text, object_pairs_hook=partial(_once, str(path)))
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: is not JSON: {error.msg} in line {error.lineno}") from None
    except (RecursionError, ValueError):
        raise InputError(f"{path}: is not JSON that can be read: nested too deep, or a number "
                         "too long") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds a {type(data).__name__}, not a mapping")
    return data


def text_block(data: Mapping[str, Any], where: str) -> tuple[list[Mapping[str, Any]], str]:
    """The blocks from the outermost to the one of the language model, and its place."""
    chain: list[Mapping[str, Any]] = [data]
    place = where
    while True:
        found = [k for k in TEXT_BLOCKS if isinstance(chain[-1].get(k), dict)]
        if len(found) > 1:
            raise InputError(f"{place}: '{found[0]}' and '{found[1]}' are both there: which one "
                             "is the language model?")
        key = found[0] if found else None
        if key is None or len(chain) > 8:
            return chain, place
        chain.append(chain[-1][key])
        place = f"{place}: {key}"


def model_type_of(chain: list[Mapping[str, Any]], where: str, notes: list[str]) -> str:
    """The innermost `model_type`, else the class that `architectures[0]` names."""
    for depth, block in enumerate(reversed(chain)):
        kind = block.get("model_type")
        if isinstance(kind, str) and kind:
            if depth:
                notes.append(f"model_type: not in the text block, taken from the outer '{kind}'")
            return kind
        if kind is not None and kind != "":
            raise InputError(f"{where}: model_type: {kind!r} is not text")
        classes = block.get("architectures")
        if isinstance(classes, list) and classes and not depth:
            kind = BY_ARCHITECTURE.get(str(classes[0]))
            if kind is None:
                raise InputError(f"{where}: model_type is missing, and architectures[0] "
                                 f"'{classes[0]}' is unknown"
                                 f"{nearest(str(classes[0]), BY_ARCHITECTURE)}")
            notes.append(f"model_type: missing, '{kind}' by architectures[0] '{classes[0]}'")
            return kind
    hint = ("; this is a side file, name the config.json or its folder"
            if "quantization" in chain[0] and "producer" in chain[0] else "")
    raise InputError(f"{where}: 'model_type' is missing, and so is 'architectures'{hint}")


def family_of(kind: str, where: str, notes: list[str]) -> Family:
    """The family of a `model_type`; unknown ones are refused by name."""
    if kind in REFUSED:
        raise InputError(f"{where}: model_type '{kind}' is not supported: {REFUSED[kind]}; a YAML "
                         "file can describe the model if its layers are attention, mla, mamba, "
                         "mamba2, gated_delta or short_conv with dense or moe parts")
    name = SAME.get(kind, kind)
    if name not in FAMILIES:
        raise InputError(f"{where}: model_type: unknown architecture '{kind}'"
                         f"{nearest(kind, [*FAMILIES, *SAME])}; describe it in a YAML file with "
                         "layers of mixer kind attention, mla, mamba, mamba2, gated_delta or "
                         "short_conv and ffn kind dense or moe")
    if name != kind:
        notes.append(f"model_type '{kind}': read as '{name}'")
    return FAMILIES[name]


def _inherited(chain: list[Mapping[str, Any]], *keys: str) -> Any:
    for block in reversed(chain):
        for key in keys:
            if block.get(key) is not None:
                return block[key]
    return None


def base_format(chain: list[Mapping[str, Any]], where: str, notes: list[str]) -> str:
    """Format of the weights that are not quantised."""
    dtype = _inherited(chain, "dtype", "torch_dtype")
    if dtype is None:
        notes.append("torch_dtype: missing, taken as bfloat16 (float32 by class, but that is "
                     "usually not what is served)")
        return "bf16"
    name = _DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise InputError(f"{where}: torch_dtype: unknown type '{dtype}'"
                         f"{nearest(str(dtype), _DTYPES)}")
    return name


def side_block(folder: Path) -> tuple[Mapping[str, Any], str] | None:
    """Quantisation that only a file beside the configuration names."""
    for name in SIDE_FILES:
        path = folder / name
        if path.is_file():
            data = read_json(path)
            nested = data.get("quantization")
            return (nested if isinstance(nested, dict) else data), str(path)
    return None


def find_quantisation(chain: list[Mapping[str, Any]], folder: Path | None,
                      where: str) -> tuple[Mapping[str, Any], str] | None:
    """The quantisation block: in the text block, outside it, or in a file beside."""
    for key in ("quantization_config", "quantization", "compression_config"):
        block = _inherited(chain, key)
        if block is None:
            continue
        if not isinstance(block, dict):
            raise InputError(f"{where}: {key}: {block!r} is not a mapping")
        if key == "quantization" and block.get("bits") and not block.get("quant_method"):
            block = {**block, "quant_method": "mlx"}
        elif not names_method(block) and key != "compression_config":
            if _inherited(chain, "quantization") is not None and key == "quantization_config":
                continue
            raise InputError(f"{where}: {key}: no method is named: 'quant_method' is missing "
                             f"(valid: {', '.join(METHODS)})")
        if block:
            return block, f"{where}: {key}"
    return None if folder is None else side_block(folder)


def _expert_format(chain: list[Mapping[str, Any]], where: str) -> str | None:
    dtype = _inherited(chain, "expert_dtype")
    if dtype is None:
        return None
    return {"fp4": "mxfp4", "fp8": "fp8-block"}.get(str(dtype)) or number_format(
        str(dtype), f"{where}: expert_dtype").name


def _state_format(chain: list[Mapping[str, Any]], where: str) -> str | None:
    """Format of the recurrent state, which vLLM's configurations name."""
    dtype = _inherited(chain, "mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    if dtype is None or dtype == "auto":
        return None
    name = _DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise InputError(f"{where}: mamba_ssm_dtype: unknown type '{dtype}'"
                         f"{nearest(str(dtype), _DTYPES)}")
    return name


def apply_formats(model: Model, chain: list[Mapping[str, Any]], folder: Path | None, where: str,
                  notes: list[str]) -> Model:
    """The model with its native number formats."""
    base = base_format(chain, where, notes)
    found: Quantisation | None = None
    block = find_quantisation(chain, folder, where)
    if block is not None:
        found = quantisation_of(block[0], model.layer_count, block[1])
        notes += found.notes
        if method_of(block[0], block[1]) == "mxfp4":
            notes.append("quantisation: only the experts are quantised, as gpt-oss stores them")
        if block[1].startswith(str(folder)) and "_config.json" in block[1]:
            notes.append(f"quantisation: read from {Path(block[1]).name} beside the file")
    present = frozenset(t.role for t in model_tensors(model, mtp=True))
    formats = formats_of(found, base, present)
    experts = _expert_format(chain, where)
    if experts is not None and "experts" in present:
        formats["experts"] = experts
        notes.append(f"expert_dtype: experts as {experts}")
    return model.replace(formats=formats,  # type: ignore[no-any-return]
                         kv_format=None if found is None else found.kv,
                         state_format=_state_format(chain, where))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") or "model"


def name_of(data: Mapping[str, Any], path: Path | None, kind: str) -> str:
    """The name a file gives the model, else that of the file or its folder."""
    told = data.get("_name_or_path")
    if isinstance(told, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", told):
        return _slug(told.rpartition("/")[2])
    if path is None:
        return _slug(kind)
    return _slug(path.resolve().parent.name if path.name == "config.json" else path.stem)


def import_data(data: Mapping[str, Any], where: str, path: Path | None = None) -> Imported:
    """Model of a configuration's mapping; `where` names it in messages."""
    notes: list[str] = []
    data = original_mamba(data, where, notes) or data
    chain, place = text_block(data, where)
    kind = model_type_of(chain, place, notes)
    family = family_of(kind, place, notes)
    merged = dict(chain[-1])
    if merged.get("tie_word_embeddings") is None:
        outer = _inherited(chain, "tie_word_embeddings")
        if outer is not None:
            merged["tie_word_embeddings"] = outer
    config = Config(merged, place, notes,
                    defaults=defaults_of(SAME.get(kind, kind), family.defaults),
                    origin=family.origin, nested=len(chain) > 1)
    layers = family.layers(config)
    frame = {} if family.frame is None else family.frame(config)
    mtp = () if family.mtp is None else merge(list(family.mtp(config, layers)))
    if family.mtp is None and config.found("mtp"):
        config.note(f"{config.key('mtp')}: multi-token-prediction layers are not counted")
    head_bias = family.head_bias
    fields: dict[str, Any] = {
        "name": name_of(data, path, kind), "family": SAME.get(kind, kind),
        "source": Provenance(source=Path(where.partition(":")[0]).name, confidence="inferred"),
        "hidden": config.integer("hidden"), "vocabulary": config.integer("vocabulary"),
        "positions": config.integer("positions", 4096, "no context length in the file"),
        "tied_embeddings": config.flag("tied"), "norm": family.norm,
        "head_bias": head_bias if isinstance(head_bias, bool) else config.flag(head_bias),
        "layers": merge(layers), "mtp": mtp,
    }  # fmt: skip
    try:
        refuse_foreign(config, SAME.get(kind, kind))
        model = Model(**{**fields, **family.fixed, **frame})
        model = apply_formats(model, chain, None if path is None else path.parent, place, notes)
        model = parse_model(model_to_dict(model), where)
    except (msgspec.ValidationError, TypeError, OverflowError) as error:
        raise InputError(f"{where}: {error}") from None
    return Imported(model, tuple(notes))


def import_config(path: Path) -> Imported:
    """Model of a `config.json`."""
    return import_data(read_json(path), str(path), path)
