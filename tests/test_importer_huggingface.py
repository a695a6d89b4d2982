"""The Hugging Face importer: every family once, and every trap of a config.json."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.formats import number_format
from simulator.importers import import_model, import_with_notes, write_yaml
from simulator.importers.families import FAMILIES, REFUSED, SAME
from simulator.importers.huggingface import Imported, import_data
from simulator.kv_cache import fixed_state_elements, kv_elements_at, kv_elements_per_token
from simulator.parameters import (
    model_tensors,
    parameters_active,
    parameters_active_no_input_embedding,
    parameters_total,
)
from simulator.specs.model import Attention, Dense, Mla, Model, Moe, parse_model
from simulator.specs.strict_yaml import load_yaml

DATA = Path(__file__).resolve().parent / "data"
CONFIGS = sorted((DATA / "configs").glob("*.json"))
TRUTH = {
    row["name"]: row
    for file in ("model_truth.csv", "config_truth.csv")
    for row in csv.DictReader((DATA / file).open(encoding="utf-8"))
}
CONTEXTS = {"kv_bytes_8k": 8192, "kv_bytes_32k": 32768, "kv_bytes_128k": 131072}

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}
MOE: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3_moe", "head_dim": 64, "num_experts": 16,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128,
}


def load(name: str) -> dict[str, Any]:
    """The configuration in a fixture."""
    data: dict[str, Any] = json.loads((DATA / "configs" / f"{name}.json").read_text("utf-8"))
    return data


def imported(data: dict[str, Any], **changes: Any) -> Imported:
    """Import a configuration with some keys changed."""
    return import_data({**data, **changes}, "config.json")


def model_of(data: dict[str, Any], **changes: Any) -> Model:
    """The model of a configuration with some keys changed."""
    return imported(data, **changes).model


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A copy without some keys."""
    return {k: v for k, v in data.items() if k not in keys}


def mixer(model: Model, group: int = 0) -> Attention:
    """The attention of a group of layers."""
    found = model.layers[group].mixer
    assert isinstance(found, Attention)
    return found


def weight_bytes(model: Model) -> float:
    """Bytes of all weights in the native formats."""
    total = 0.0
    for tensor in model_tensors(model):
        projection = tensor.role in ("attention", "ffn", "experts", "shared_experts", "ssm")
        name = model.formats.get(tensor.role, model.formats["weights"] if projection else "bf16")
        total += tensor.total * number_format(name).bytes
    return total


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_counts_and_cache_are_exact(path: Path) -> None:
    model, row = import_model(path), TRUTH[path.stem]
    told = {
        "params_total": parameters_total(model), "active": parameters_active(model),
        "active_no_input_embedding": parameters_active_no_input_embedding(model),
        "kv_bytes_per_token": 2 * kv_elements_per_token(model),
        "fixed_state_values": fixed_state_elements(model),
        **{k: 2 * kv_elements_at(model, tokens) for k, tokens in CONTEXTS.items()},
    }
    assert told == {k: float(row[k]) for k in told}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_yaml_reads_back_to_an_equal_model(path: Path, tmp_path: Path) -> None:
    model = import_model(path)
    copy = tmp_path / "model.yaml"
    copy.write_text(write_yaml(model), encoding="utf-8")
    assert parse_model(load_yaml(copy), "model.yaml") == model


def test_fixtures_cover_the_families() -> None:
    kinds = set()
    for path in CONFIGS:
        data = json.loads(path.read_text(encoding="utf-8"))
        while (inner := next((data[k] for k in ("text_config", "llm_config") if k in data), None)):
            data = {**inner, "model_type": inner.get("model_type", data.get("model_type"))}
        kinds.add(SAME.get(data.get("model_type", ""), data.get("model_type", "")))
    assert len(kinds & set(FAMILIES)) >= 50


def test_same_names_lead_to_families_and_refused_ones_do_not() -> None:
    assert set(SAME.values()) <= set(FAMILIES)
    assert not set(REFUSED) & (set(FAMILIES) | set(SAME))


# Sizes that no fixture has: the families generalise.

def test_another_size_of_a_family() -> None:
    model = model_of(LLAMA)
    layer = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1536 + 2 * 512
    assert parameters_total(model) == 4 * layer + 512 + 2 * 1000 * 512


def test_identical_layers_are_one_group() -> None:
    assert [g.count for g in model_of(LLAMA).layers] == [4]
    assert [g.count for g in import_model(DATA / "configs/gemma-2-9b.json").layers] == [21, 21]


def test_per_layer_lists() -> None:
    data = {**LLAMA, "model_type": "hunyuan_v1_moe", "num_experts": [1, 8, 8, 8],
            "moe_topk": [1, 2, 2, 2], "moe_intermediate_size": [64] * 4,
            "num_shared_expert": [1, 1, 1, 2]}
    groups = model_of(data).layers
    assert [g.count for g in groups] == [1, 2, 1]
    assert isinstance(groups[0].ffn, Dense)
    assert isinstance(groups[2].ffn, Moe)
    assert groups[2].ffn.shared_width == 128


def test_per_layer_list_of_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match=r"moe_topk: 3 entries for 4 layers"):
        model_of(LLAMA, model_type="hunyuan_v1_moe", num_experts=8, moe_topk=[2, 2, 2])


# Windows.

@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": True,
          "max_window_layers": 0}, 1024),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral", "sliding_window": 1024}, 1024),
        ({"model_type": "mistral"}, None),
        ({"model_type": "phi3", "sliding_window": 262144}, None),
        ({"model_type": "phi3", "sliding_window": 2047}, 2047),
    ],
)
def test_window(changes: dict[str, Any], window: int | None) -> None:
    assert mixer(model_of(LLAMA, **changes)).window == window


def test_window_of_qwen_only_above_max_window_layers() -> None:
    groups = model_of(LLAMA, model_type="qwen2", sliding_window=64, use_sliding_window=True,
                      max_window_layers=3).layers
    assert [(g.count, mixer_window(g.mixer)) for g in groups] == [(3, None), (1, 64)]


def mixer_window(found: Any) -> int | None:
    """Window of a mixer that must be attention."""
    assert isinstance(found, Attention)
    return found.window


@pytest.mark.parametrize(("pattern", "sliding"), [(2, 2), (4, 3), ("LLLG", 3), ("LG", 2)])
def test_pattern_as_number_or_text(pattern: int | str, sliding: int) -> None:
    model = model_of(LLAMA, model_type="exaone4", sliding_window=64,
                     sliding_window_pattern=pattern)
    assert sum(g.count for g in model.layers if mixer_window(g.mixer)) == sliding


def test_layer_types_win_over_the_pattern() -> None:
    model = model_of(LLAMA, model_type="gemma3_text", head_dim=64, sliding_window=64,
                     sliding_window_pattern=2, layer_types=["full_attention"] * 4)
    assert mixer(model).window is None


def test_no_rope_layers_is_inverted() -> None:
    model = model_of(LLAMA, model_type="smollm3", no_rope_layers=[1, 1, 1, 0])
    assert [(g.count, mixer_rope(g.mixer)) for g in model.layers] == [(3, True), (1, False)]


def mixer_rope(found: Any) -> bool:
    """RoPE of a mixer that must be attention."""
    assert isinstance(found, Attention)
    return found.rope


def test_unknown_attention_kind_is_named() -> None:
    with pytest.raises(InputError, match=r"unknown attention kind 'ring_attention'.*YAML"):
        model_of(LLAMA, model_type="qwen3", layer_types=["ring_attention"] * 4)


# Missing keys, nulls, renamed keys, nested blocks.

def test_null_is_missing() -> None:
    result = imported(LLAMA, head_dim=None, num_key_value_heads=None)
    assert mixer(result.model).kv_heads == 8
    assert mixer(result.model).head_dim == 64
    assert any("num_key_value_heads" in n and "MHA" in n for n in result.notes)


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "vocab_size"])
def test_missing_dimension_is_an_error_at_the_top(key: str) -> None:
    with pytest.raises(InputError, match=f"'{key}' is missing"):
        imported(without(LLAMA, key))


def test_missing_dimension_names_a_renamed_key() -> None:
    with pytest.raises(InputError, match=r"is 'hiden_size' meant to be 'hidden_size'"):
        imported(without(LLAMA, "hidden_size"), hiden_size=512)


def test_nested_block_relies_on_class_defaults_with_a_note() -> None:
    result = import_with_notes(DATA / "configs/gemma-3-4b.json")
    assert mixer(result.model).head_dim == 256
    text = "\n".join(result.notes)
    for key in ("num_attention_heads", "head_dim", "vocab_size"):
        assert f"{key}: not in the file" in text
    assert "Gemma3TextConfig" in text


def test_llava_with_an_empty_text_block_is_llama_7b() -> None:
    result = imported({"model_type": "llava", "text_config": {"model_type": "llama"}})
    assert parameters_total(result.model) == 6_738_415_616
    assert any("hidden_size: not in the file" in n for n in result.notes)


@pytest.mark.parametrize(
    "path", [("text_config",), ("llm_config",), ("language_config",),
             ("thinker_config", "text_config")])
def test_text_block_at_any_depth(path: tuple[str, ...]) -> None:
    data: dict[str, Any] = dict(LLAMA)
    for key in reversed(path):
        data = {"model_type": "outer", key: data, "vision_config": {"hidden_size": 9}}
    assert model_of(data).layers == model_of(LLAMA).layers


def test_nested_blocks_are_not_searched_for_keys() -> None:
    data = {**load("dbrx"), "tie_word_embeddings": None}
    data["attn_config"] = {**data["attn_config"], "tie_word_embeddings": True, "hidden_size": 3}
    assert not model_of(data).tied_embeddings


def test_tie_of_the_outer_block_counts() -> None:
    inner = without(LLAMA, "tie_word_embeddings")
    assert model_of({"text_config": inner, "tie_word_embeddings": True}).tied_embeddings


@pytest.mark.parametrize(
    ("family", "tied"), [("gemma", True), ("cohere", True), ("starcoder2", True),
                         ("minicpm", True), ("llama", False), ("mistral", False)])
def test_tie_by_class_default_is_noted(family: str, tied: bool) -> None:
    result = imported(without(LLAMA, "tie_word_embeddings"), model_type=family, head_dim=64)
    assert result.model.tied_embeddings is tied
    assert any(n.startswith("tie_word_embeddings") for n in result.notes)


@pytest.mark.parametrize(
    ("old", "new", "close"),
    [("num_key_value_heads", "n_kv_heads", "num_key_value_heads"),
     ("num_key_value_heads", "kv_heads", "num_key_value_heads"),
     ("num_key_value_heads", "num_key_value_head", "num_key_value_heads"),
     ("none", "attention_window", "sliding_window"),
     ("tie_word_embeddings", "tie_embeddings", "tie_")])
def test_renamed_key_is_refused(old: str, new: str, close: str) -> None:
    value = True if new == "tie_embeddings" else 2
    with pytest.raises(InputError, match=f"{new}.*({close}|no meaning)"):
        imported(without(LLAMA, old), **{new: value})


def test_renamed_window_is_refused() -> None:
    data = {**LLAMA, "model_type": "gemma3", "head_dim": 64, "sliding_window_attention_size": 512}
    with pytest.raises(InputError, match=r"'sliding_window_attention_size'.*'sliding_window'"):
        imported(data)


def test_unknown_key_beside_the_known_one_changes_nothing() -> None:
    assert imported(LLAMA, num_key_value_headz=3) == imported(LLAMA)


def test_model_type_by_architecture() -> None:
    result = imported(without(LLAMA, "model_type"), architectures=["LlamaForCausalLM"])
    assert any("architectures[0]" in n for n in result.notes)
    assert result.model.layers == model_of(LLAMA).layers


def test_a_complete_llama_has_no_notes() -> None:
    told = imported(LLAMA, head_dim=64, attention_bias=False, mlp_bias=False)
    assert told.notes == ()


def test_every_missing_key_is_noted() -> None:
    notes = "\n".join(imported(without(LLAMA, "tie_word_embeddings", "torch_dtype",
                                       "max_position_embeddings")).notes)
    for key in ("head_dim", "attention_bias", "mlp_bias", "tie_word_embeddings", "torch_dtype",
                "max_position_embeddings"):
        assert f"{key}: " in notes


# Keys that lie.

def test_kv_heads_that_lie() -> None:
    plamo, falcon, glm, latent = (import_model(DATA / f"configs/{name}.json") for name in (
        "plamo-13b", "falcon-40b", "chatglm2-6b", "deepseek-v3"))
    assert mixer(plamo).kv_heads == 5
    assert mixer(falcon).kv_heads == 8
    assert mixer(glm).kv_heads == 2
    assert isinstance(latent.layers[0].mixer, Mla)


@pytest.mark.parametrize(
    ("changes", "kv_heads"),
    [({}, 1), ({"multi_query": False}, 71), ({"num_kv_heads": 7}, 1),
     ({"new_decoder_architecture": True, "num_kv_heads": 71}, 71)])
def test_falcon_kv_heads(changes: dict[str, Any], kv_heads: int) -> None:
    assert mixer(model_of(load("falcon-7b"), **changes)).kv_heads == kv_heads


def test_widths_that_lie() -> None:
    qwen, lfm = (import_model(DATA / f"configs/{n}.json") for n in ("qwen-7b", "lfm2-1.2b"))
    assert isinstance(qwen.layers[0].ffn, Dense)
    assert qwen.layers[0].ffn.width == 11008
    assert isinstance(lfm.layers[0].ffn, Dense)
    assert lfm.layers[0].ffn.width == 8192


@pytest.mark.parametrize("width", [None, 2048])
def test_gpt2_width_null_is_four_times_hidden(width: int | None) -> None:
    ffn = model_of(load("gpt2"), n_inner=width).layers[0].ffn
    assert isinstance(ffn, Dense)
    assert ffn.width == (width or 3072)


def test_grok_width_by_widening_factor() -> None:
    data = without(load("grok-1"), "intermediate_size")
    assert model_of(data, widening_factor=8).layers == model_of(load("grok-1")).layers


def test_post_norm_opt_has_no_final_norm_and_narrow_embeddings() -> None:
    data = {**load("opt-6.7b"), "hidden_size": 1024, "num_attention_heads": 16, "ffn_dim": 4096,
            "num_hidden_layers": 24, "word_embed_proj_dim": 512, "do_layer_norm_before": False}
    model = model_of(data)
    assert not model.final_norm
    assert model.embedding_width == 512
    assert parameters_total(model) == 331_196_416


def test_mpt_table_only_without_alibi() -> None:
    data = load("mpt-7b")
    assert model_of(data).learned_positions == 0
    plain = {**data, "attn_config": {**data["attn_config"], "alibi": False}}
    assert model_of(plain).learned_positions == 2048


# Quantisation.

def quantised(block: dict[str, Any], base: dict[str, Any] = LLAMA) -> Model:
    """Model of a configuration with a quantisation block."""
    return model_of(base, quantization_config=block)


def scheme(**weights: Any) -> dict[str, Any]:
    """A compressed-tensors block with one group."""
    return {"quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


@pytest.mark.parametrize(
    ("block", "weights"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
         "int4-g128-z4"),
        ({"w_bit": 4, "q_group_size": 64, "zero_point": False}, "int4-g64"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4-g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False}, "int8-g32-z8"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, "int8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
        ({"quant_method": "fp8", "weight_block_size": None}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8-channel"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
         "nf4"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
         "nf4-double"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "NVFP4", "group_size": 16}, "nvfp4"),
        (scheme(num_bits=4, type="int", group_size=32, strategy="group", symmetric=True),
         "int4-g32"),
        (scheme(num_bits=8, type="float", strategy="channel"), "fp8-channel"),
        (scheme(num_bits=8, type="float", strategy="tensor"), "fp8"),
        ({**scheme(num_bits=4, type="float", group_size=32), "format": "mxfp4-pack-quantized"},
         "mxfp4"),
        ({**scheme(num_bits=4, type="float", group_size=16), "format": "nvfp4-pack-quantized"},
         "nvfp4"),
    ],
)
def test_quantisation_methods(block: dict[str, Any], weights: str) -> None:
    model = quantised(block)
    assert model.formats["weights"] == weights
    assert model.formats["head"] == model.formats["embedding"] == "bf16"


def test_mlx_quantises_embeddings_too() -> None:
    model = model_of(LLAMA, quantization={"group_size": 64, "bits": 4})
    assert model.formats["weights"] == model.formats["embedding"] == "int4-g64-z16"
    assert number_format("int4-g64-z16").bits == 4.5


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (["lm_head"], set()),
        (["model.layers.*.self_attn"], {"attention"}),
        (["re:.*self_attn.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], {"attention"}),
        ([f"model.language_model.layers.{i}.self_attn*" for i in range(4)], {"attention"}),
        (["gate", "visual", "lm_head"], set()),
        (["model.layers.*.mlp.experts"], {"experts"}),
    ],
)
def test_modules_kept_at_16_bits(patterns: list[str], kept: set[str]) -> None:
    block = {"quant_method": "fp8", "modules_to_not_convert": patterns}
    formats = quantised(block, MOE).formats
    told = {k for k in ("attention", "experts", "ffn") if formats.get(k) == "bf16"}
    assert told == kept


def test_modules_kept_in_some_layers_are_noted() -> None:
    block = {"quant_method": "fp8", "ignored_layers": ["model.layers.0.self_attn.q_proj"]}
    result = imported(LLAMA, quantization_config=block)
    assert any("attention stays at 16 bits in 1 of 4 layers" in n for n in result.notes)


@pytest.mark.parametrize(("name", "told"), [("gpt-oss-20b", 13_761_264_768),
                                            ("gpt-oss-120b", 65_248_815_744)])
def test_bytes_of_gpt_oss(name: str, told: int) -> None:
    assert weight_bytes(Model.load(name)) == told


def test_gpt_oss_quantises_experts_only() -> None:
    model = quantised({"quant_method": "mxfp4"}, load("gpt-oss-20b"))
    assert model.formats["experts"] == "mxfp4"
    assert model.formats["weights"] == "bf16"
    assert weight_bytes(model) == 13_761_264_768


def test_expert_dtype_outside_the_block() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    formats = model_of(MOE, quantization_config=block, expert_dtype="fp4").formats
    assert (formats["weights"], formats["experts"]) == ("fp8-block", "mxfp4")


def test_quantisation_inside_the_text_block() -> None:
    inner = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert model_of({"text_config": inner}).formats["weights"] == "fp8"


@pytest.mark.parametrize(("told", "kv"), [("FP8", "fp8"), ("NVFP4", "nvfp4"), (None, None)])
def test_side_file_of_modelopt(tmp_path: Path, told: str | None, kv: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(
        {"producer": {"name": "modelopt"}, "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": told, "exclude_modules": ["lm_head"]}}))
    result = import_with_notes(tmp_path)
    assert result.model.formats["weights"] == "nvfp4"
    assert result.model.kv_format == kv
    assert any("hf_quant_config.json" in n for n in result.notes)


def test_side_file_of_gptq(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "quantize_config.json").write_text(json.dumps(
        {"bits": 4, "group_size": 128, "desc_act": True, "sym": False}))
    result = import_with_notes(tmp_path)
    assert result.model.formats["weights"] == "int4-g128-z4"
    assert any("desc_act" in n for n in result.notes)


@pytest.mark.parametrize(
    ("block", "message"),
    [({"quant_method": "aqlm"}, "unknown quantisation 'aqlm'"),
     ({"quant_algo": "FP2"}, "unknown algorithm 'FP2'"),
     ({"quant_method": "gptq", "bits": "4"}, "bits: '4'"),
     ({"quant_method": "gptq"}, "'bits' is missing"),
     ({"quant_method": "fp8", "weight_block_size": [7, 7]}, "weight_block_size"),
     ({"quant_method": "compressed-tensors"}, "'config_groups' is missing"),
     ({"foo": 1}, "'quant_method' is missing")])
def test_quantisation_errors(block: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        quantised(block)


@pytest.mark.parametrize(
    ("key", "dtype", "weights"),
    [("torch_dtype", "float16", "fp16"), ("dtype", "bfloat16", "bf16"),
     ("torch_dtype", "torch.bfloat16", "bf16"), ("dtype", "float32", "fp32"),
     ("dtype", None, "bf16")])
def test_dtype(key: str, dtype: str | None, weights: str) -> None:
    result = imported(without(LLAMA, "torch_dtype"), **{key: dtype})
    assert result.model.formats["weights"] == weights
    assert any("torch_dtype: missing" in n for n in result.notes) is (dtype is None)


# Refusals and bad files.

@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_model_types_say_why(kind: str) -> None:
    with pytest.raises(InputError, match=f"'{kind}' is not supported") as error:
        imported(LLAMA, model_type=kind)
    assert "\n" not in str(error.value)


def test_control_characters_stay_on_one_line() -> None:
    with pytest.raises(InputError) as error:
        imported(LLAMA, model_type="a\nb")
    assert "\n" not in str(error.value)


def test_unknown_model_type_is_named_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"unknown architecture 'lama'.*mean 'llama'.*YAML"):
        imported(LLAMA, model_type="lama")


@pytest.mark.parametrize("value", [-1, 0, 10**12, 1.5, "512", True, [512], {}, float("nan"),
                                   float("inf")])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads",
                                 "vocab_size", "intermediate_size"])
def test_bad_numbers(key: str, value: Any) -> None:
    with pytest.raises(InputError) as error:
        imported(LLAMA, **{key: value})
    assert key in str(error.value)
    assert "config.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"  \n", "is empty"), (b"{", "is not JSON"), (b"[1, 2]", "holds a list"),
     (b"\x00\xff\xfe\x80", "not a text file"), (b"null", "holds a NoneType"),
     (b"{}", "'model_type' is missing"), (b"[" * 100_000, "is not JSON")])
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        import_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no config\.json"):
        import_model(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        import_model(tmp_path / "none.json")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert import_model(tmp_path) == import_model(tmp_path / "config.json")


def test_side_file_alone_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "hf_quant_config.json"
    path.write_text(json.dumps({"producer": {}, "quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(InputError, match="side file"):
        import_model(path)


def test_text_that_looks_like_a_number_survives(tmp_path: Path) -> None:
    model = model_of(LLAMA).replace(name="1e3", title="no", aliases=("7", "null", "0x10", "a: b"))
    path = tmp_path / "model.yaml"
    path.write_text(write_yaml(model), encoding="utf-8")
    assert parse_model(load_yaml(path), "model.yaml") == model
