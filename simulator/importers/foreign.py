"""Keys that a file has and its family's reader never asked for.

A key with an architectural meaning in any family changes the layers of some class; where this
family does not read it, the file describes another architecture or an edited copy, and importing
it as the plain family would give wrong counts in silence.
"""

from __future__ import annotations

from typing import Any

from simulator.errors import InputError
from simulator.importers.keys import ALIASES, ARCHITECTURAL, KNOWN, nearest_known
from simulator.importers.reader import Config, short

# Keys that a class has, or that its public files carry, and that no count depends on.
_ANYWHERE = frozenset(("rotary_dim", "add_bias_linear"))
UNUSED: dict[str, frozenset[str]] = {
    # One block a layer; the rank of Mamba-1 and the count beside the shared width say nothing.
    "nemotron_h": frozenset(("intermediate_size", "time_step_rank", "n_shared_experts",
                             "mtp_hybrid_override_pattern", "mtp_layers_block_type")),
    # The head size of the rotary part or of q and k, beside the sizes of latent attention.
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
                     "glm_moe_dsa", "kimi_k2", "minicpm3"), frozenset(("head_dim",))),
    "mimo_v2_flash": frozenset(("attention_chunk_size",)),
    # Where the residual is taken: no count depends on it.
    **dict.fromkeys(("bloom", "falcon"),
                    frozenset(("apply_residual_connection_post_layernorm",))),
    "zamba2": frozenset(("hybrid_layer_ids",)),
}  # fmt: skip
# Values that only repeat what the class does anyway.
SAME_AS_CLASS: dict[str, dict[str, Any]] = {
    "minimax_m2": {"qk_norm_type": "per_layer", "use_routing_bias": True},
    **{kind: {"use_qk_norm": True} for kind in (
        "qwen3", "qwen3_moe", "hunyuan_v1_moe", "hunyuan_v1_dense", "dots1")},
}  # fmt: skip

_CANONICAL = {key: name for name, keys in ALIASES.items() for key in keys}


def _harmless(config: Config, kind: str, key: str, value: Any) -> bool:
    """Null, false, zero and empty switch a part off; a class default changes nothing."""
    if value is None or value is False or value in (0, -1, "", [], {}):
        return True
    if key == "layer_types" and isinstance(value, list):
        return {str(v) for v in value} <= {"full_attention"}
    if SAME_AS_CLASS.get(kind, {}).get(key) == value:
        return True
    default = config.defaults.get(key, config.defaults.get(_CANONICAL.get(key, key)))
    return default is not None and bool(value == default)


def refuse_foreign(config: Config, kind: str) -> None:
    """Refuse keys of other architectures, and unknown keys that seem to be renamed ones."""
    unused = _ANYWHERE | UNUSED.get(kind, frozenset())
    for key, value in config.data.items():
        if key in config.read or key in unused or _harmless(config, kind, key, value):
            continue
        if key in ARCHITECTURAL:
            raise InputError(
                f"{config.where}: {key}: {short(value)} has no meaning in the family '{kind}'; "
                "remove it, name the right model_type, or describe the model in a YAML file")
        if key not in KNOWN and not isinstance(value, dict | str):
            _refuse_renamed(config, key, value)


def _refuse_renamed(config: Config, key: str, value: Any) -> None:
    """A renamed key leaves a fact to a default: refuse it where that fact is not told."""
    close = nearest_known(key)
    if close is None or close in config.data:
        return
    name = _CANONICAL.get(close, close)
    if config.found(name) is None:
        raise InputError(f"{config.where}: unknown key '{key}' = {short(value)} looks like "
                         f"'{close}', which is missing; rename or remove it")
    config.note(f"unknown key '{key}' = {short(value)} was ignored; it looks like '{close}'")
