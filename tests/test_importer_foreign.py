"""Keys of other architectures, class defaults, and the facts a family's own keys carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.cli import main
from simulator.errors import InputError
from simulator.importers import import_model, import_with_notes
from simulator.importers.class_defaults import CLASS_DEFAULTS
from simulator.importers.families import FAMILIES
from simulator.importers.huggingface import Imported, import_data
from simulator.parameters import parameters_total
from simulator.specs.model import Attention, Mla, Moe

CONFIGS = Path(__file__).resolve().parent / "data/configs"
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}


def load(name: str, *gone: str, **changes: Any) -> dict[str, Any]:
    """A fixture without some keys and with others changed."""
    data: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text("utf-8"))
    return {**{k: v for k, v in data.items() if k not in gone}, **changes}


def imported(data: dict[str, Any], *gone: str, **changes: Any) -> Imported:
    """Import of a configuration without some keys and with others changed."""
    kept = {k: v for k, v in data.items() if k not in gone}
    return import_data({**kept, **changes}, "config.json")


def total(data: dict[str, Any], *gone: str, **changes: Any) -> float:
    """Parameters of a changed configuration."""
    return parameters_total(imported(data, *gone, **changes).model)


# Foreign keys.

@pytest.mark.parametrize(
    ("key", "value"),
    [("num_local_experts", 8), ("num_experts_per_tok", 2), ("n_routed_experts", 64),
     ("kv_lora_rank", 512), ("qk_rope_head_dim", 64), ("sliding_window", 4096),
     ("attn_type", "multiquery_attention"), ("num_kv_shared_layers", 2),
     ("cross_attention_layers", [1, 3]), ("hidden_size_per_layer_input", 64),
     ("word_embed_proj_dim", 128), ("full_attention_interval", 4), ("state_size", 16),
     ("use_parallel_residual", True), ("qk_layernorm", True), ("block_configs", [{}]),
     ("attn_config", {"kv_n_heads": 1}), ("hybrid_override_pattern", "M*-"),
     ("use_qk_norm", True), ("index_topk", 2048), ("shared_expert_intermediate_size", 64)])
def test_foreign_key_is_refused(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{key}: .*no meaning in the family 'llama'") as error:
        imported(LLAMA, **{key: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [None, False, 0, [], {}, ""])
@pytest.mark.parametrize("key", ["num_local_experts", "sliding_window", "use_qk_norm"])
def test_switched_off_foreign_key_is_harmless(key: str, value: Any) -> None:
    assert imported(LLAMA, **{key: value}).model == imported(LLAMA).model


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", "linear_attention"), ("llama", "conv"), ("llama", "chunked_attention"),
     ("llama", "sliding_attention"), ("qwen3", "linear_attention"), ("mistral", "conv"),
     ("gemma2", "chunked_attention")])
def test_layer_types_that_the_family_cannot_have(family: str, kind: str) -> None:
    with pytest.raises(InputError, match=rf"layer_types\[0\]: '{kind}'"):
        imported(LLAMA, model_type=family, layer_types=[kind] * 4)


def test_full_layer_types_are_harmless() -> None:
    told = imported(LLAMA, layer_types=["full_attention"] * 4).model
    assert told == imported(LLAMA).model


def test_unused_keys_of_the_own_class_are_no_error() -> None:
    imported(LLAMA, model_type="qwen2", sliding_window=64, max_window_layers=2,
             use_sliding_window=False)
    imported(load("falcon-7b"), num_kv_heads=71)


# Class defaults.

def test_defaults_are_of_known_families() -> None:
    assert set(CLASS_DEFAULTS) <= set(FAMILIES)
    assert CLASS_DEFAULTS["deepseek_v3"]["first_k_dense_replace"] == 3


@pytest.mark.parametrize(
    ("name", "key"),
    [("deepseek-v3", "first_k_dense_replace"), ("deepseek-v3", "n_shared_experts"),
     ("deepseek-v3", "v_head_dim"), ("deepseek-v3", "num_experts_per_tok"),
     ("deepseek-v3.2", "index_head_dim"),
     ("mixtral-8x7b", "num_experts_per_tok"), ("jamba-1.5-mini", "num_experts_per_tok"),
     ("qwen3-next-80b-a3b", "shared_expert_intermediate_size"), ("mpt-7b", "attn_config")])
def test_missing_key_takes_the_default_of_the_class(name: str, key: str) -> None:
    result = imported(load(name, key))
    assert result.model.layers == imported(load(name)).model.layers
    assert any(key in n and "default of" in n for n in result.notes)


def test_no_default_is_an_error_and_not_a_guess() -> None:
    for kind in ("gpt_neox", "phi"):
        with pytest.raises(InputError, match="'intermediate_size' is missing"):
            imported(LLAMA, "intermediate_size", "num_key_value_heads", model_type=kind)
    with pytest.raises(InputError, match="'num_key_value_heads' is missing"):
        imported(LLAMA, "num_key_value_heads", model_type="orion")


def test_null_shared_experts_are_none() -> None:
    model = imported(load("deepseek-v3"), n_shared_experts=None).model
    assert {g.ffn.shared_width for g in model.layers if isinstance(g.ffn, Moe)} == {0}


def test_mlp_layer_types_win() -> None:
    kinds = ["dense"] * 10 + ["sparse"] * 51
    model = imported(load("deepseek-v3"), mlp_layer_types=kinds).model
    assert sum(g.count for g in model.layers if isinstance(g.ffn, Moe)) == 51
    assert isinstance(model.layers[0].mixer, Mla)
    with pytest.raises(InputError, match="neither 'sparse' nor 'dense'"):
        imported(load("deepseek-v3"), mlp_layer_types=["x"] * 61)


# Keys of the own class; figures of transformers 5.24 on the meta device.

STABLELM: dict[str, Any] = {
    "model_type": "stablelm", "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 13824,
    "vocab_size": 100352, "max_position_embeddings": 4096, "use_qkv_bias": False,
    "use_parallel_residual": True, "qk_layernorm": True, "tie_word_embeddings": False,
}
ERNIE: dict[str, Any] = {
    "model_type": "ernie4_5_moe", "hidden_size": 2560, "num_hidden_layers": 28,
    "num_attention_heads": 20, "num_key_value_heads": 4, "intermediate_size": 12288,
    "vocab_size": 103424, "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536,
    "moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 27,
    "moe_layer_interval": 1, "head_dim": 128, "tie_word_embeddings": True, "use_bias": False,
    "max_position_embeddings": 131072,
}
MAMBA: dict[str, Any] = {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {},
                         "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True,
                         "pad_vocab_size_multiple": 8}


@pytest.mark.parametrize(
    ("data", "parameters"), [(STABLELM, 12_143_185_920), (ERNIE, 21_825_437_888),
                             (MAMBA, 129_135_360)])
def test_known_totals(data: dict[str, Any], parameters: int) -> None:
    assert total(data) == parameters


def test_first_mamba2_code() -> None:
    data = {**MAMBA, "d_model": 2560, "n_layer": 64, "ssm_cfg": {"layer": "Mamba2"},
            "pad_vocab_size_multiple": 16, "attn_layer_idx": [], "d_intermediate": 0}
    assert total(data) == 2_702_599_680
    for key, value in (("attn_layer_idx", [3]), ("d_intermediate", 64)):
        with pytest.raises(InputError, match=key):
            imported(data, **{key: value})
    with pytest.raises(InputError, match=r"ssm_cfg: unknown key 'x'"):
        imported(data, ssm_cfg={"x": 1})


@pytest.mark.parametrize(
    ("changes", "difference"),
    [({"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2,
       "attention_bias": True}, 4 * (256 + 64 + 64 + 256)),
     ({"model_type": "dots1", "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 32,
       "moe_intermediate_size": 64, "n_shared_experts": 1, "first_k_dense_replace": 1,
       "attention_bias": True}, 4 * (256 + 64 + 64 + 256)),
     ({"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
       "moe_intermediate_size": 64, "qkv_bias": True}, 4 * (256 + 64 + 64)),
     ({"model_type": "ernie4_5", "head_dim": 32, "use_bias": True},
      4 * (256 + 64 + 64 + 256 + 512 + 512 + 256))])
def test_bias_switches(changes: dict[str, Any], difference: int) -> None:
    key = next(k for k in reversed(changes) if k.endswith("bias"))
    assert total(LLAMA, **changes) - total(LLAMA, **{**changes, key: False}) == difference


def test_opt_without_affine_norms() -> None:
    data = load("opt-6.7b")
    norms = 2 * 4096 * (2 * 32 + 1)
    assert total(data) - total(data, layer_norm_elementwise_affine=False) == norms


def test_what_cannot_be_counted_is_refused() -> None:
    for name, key in (("gpt2", "add_cross_attention"), ("phi-1.5", "qk_layernorm")):
        with pytest.raises(InputError, match=key):
            imported(load(name), **{key: True})
    with pytest.raises(InputError, match="head_dim: 64"):
        imported(STABLELM, head_dim=64)


def test_lfm2_spellings() -> None:
    result = imported(load("lfm2-1.2b"), tie_embedding=False)
    assert not result.model.tied_embeddings
    assert not any("full_attn_idxs" in n for n in result.notes)


def test_smollm3_has_its_window_without_rope() -> None:
    data = {**LLAMA, "model_type": "smollm3", "use_sliding_window": True, "sliding_window": 64}
    mixers = [g.mixer for g in imported(data).model.layers]
    assert [(m.rope, m.window) for m in mixers if isinstance(m, Attention)] == [
        (True, None), (False, 64)]


# Quantisation blocks.

def grouped(*groups: tuple[list[str], int]) -> Imported:
    """A compressed-tensors block with groups of 8-bit floats or 4-bit integers."""
    form = {8: {"num_bits": 8, "type": "float", "strategy": "channel"},
            4: {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}}
    return imported(LLAMA, quantization_config={
        "quant_method": "compressed-tensors", "config_groups": {
            f"group_{i}": {"targets": targets, "weights": form[bits]}
            for i, (targets, bits) in enumerate(groups)}})


@pytest.mark.parametrize(
    ("groups", "attention", "ffn"),
    [(((["re:.*self_attn.*"], 8), (["re:.*mlp.*"], 4)), "fp8-channel", "int4-g64"),
     (((["re:.*(q|k|v|o)_proj$"], 4), (["re:.*(gate|up|down)_proj"], 8)), "int4-g64",
      "fp8-channel"),
     (((["Linear"], 4), (["re:.*self_attn.*"], 8)), "fp8-channel", "int4-g64"),
     (((["LlamaAttention"], 8), (["LlamaMLP"], 4)), "fp8-channel", "int4-g64"),
     (((["re:.*down_proj"], 8), (["Linear"], 4)), "int4-g64", "fp8-channel"),
     (((["re:.*mlp.*"], 4),), "bf16", "int4-g64"),
     (((["re:.*nothing"], 8), (["Linear"], 4)), "fp8-channel", "fp8-channel")])
def test_groups_of_compressed_tensors(groups: Any, attention: str, ffn: str) -> None:
    formats = grouped(*groups).model.formats
    assert formats.get("attention", formats["weights"]) == attention
    assert formats.get("ffn", formats["weights"]) == ffn


def test_groups_that_share_a_class_or_fit_none_are_noted() -> None:
    shared = grouped((["re:.*down_proj"], 8), (["Linear"], 4)).notes
    assert any("ffn is in groups of" in n for n in shared)
    lost = grouped((["re:.*nothing"], 8), (["Linear"], 4)).notes
    assert any("target no known part" in n for n in lost)


@pytest.mark.parametrize("block", [{}, {"bits": 4, "group_size": 64}])
def test_block_without_a_method_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"quantization_config: .*'quant_method' is missing"):
        imported(LLAMA, quantization_config=block)


def test_mlx_writes_its_block_twice() -> None:
    block = {"bits": 4, "group_size": 64}
    model = imported(LLAMA, quantization=block, quantization_config=block).model
    assert model.formats["weights"] == "int4-g64-z16"


# Files.

def test_duplicate_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA)[:-1] + ', "hidden_size": 64}')
    with pytest.raises(InputError, match="'hidden_size' stands twice"):
        import_model(path)


def test_two_text_blocks_are_refused() -> None:
    with pytest.raises(InputError, match="'text_config' and 'llm_config'"):
        import_data({"text_config": LLAMA, "llm_config": LLAMA}, "config.json")


def test_notes_go_to_stderr_in_every_command(tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    with pytest.raises(SystemExit) as stopped:
        main(["models", "show", str(path), "--json"])
    assert not stopped.value.code
    out, err = capsys.readouterr()
    json.loads(out)
    notes = import_with_notes(path).notes
    assert err.splitlines() == [f"tokline: note: {note}" for note in notes]
    assert notes
