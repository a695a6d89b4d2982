"""Files of a model's first code, before it had a `model_type`, in the keys of its later class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError

# Key of ssm_cfg -> key of the classes of transformers.
_STATE_KEYS = {"d_state": "state_size", "d_conv": "conv_kernel", "expand": "expand",
               "headdim": "head_dim", "ngroups": "n_groups", "dt_rank": "time_step_rank",
               "bias": "use_bias", "conv_bias": "use_conv_bias", "chunk_size": "chunk_size"}


def original_mamba(data: Mapping[str, Any], where: str,
                   notes: list[str]) -> dict[str, Any] | None:
    """The config.json of state-spaces/mamba (MambaConfig of mamba_ssm), or None where it is none.

    Its defaults: pad_vocab_size_multiple 8, tie_embeddings true; Mamba-2 has head size 64, one
    group and state 128.
    """
    block = data.get("ssm_cfg")
    if not isinstance(block, dict) or data.get("model_type") or "d_model" not in data:
        return None
    for key in ("attn_layer_idx", "d_intermediate"):
        if data.get(key):
            raise InputError(f"{where}: {key}: {data[key]!r}: Mamba with attention or MLP layers "
                             "is not supported")
    layer = block.get("layer", "Mamba1")
    if layer not in ("Mamba1", "Mamba2"):
        raise InputError(f"{where}: ssm_cfg.layer: {layer!r} is neither Mamba1 nor Mamba2")
    unknown = set(block) - set(_STATE_KEYS) - {"layer"}
    if unknown:
        raise InputError(f"{where}: ssm_cfg: unknown key '{min(unknown)}' "
                         f"(known: {', '.join(_STATE_KEYS)})")
    told = {_STATE_KEYS[k]: v for k, v in block.items() if k != "layer"}
    kept = {k: v for k, v in data.items()
            if k not in ("ssm_cfg", "attn_layer_idx", "attn_cfg", "d_intermediate",
                         "tie_embeddings")}
    config = {"pad_vocab_size_multiple": 8, **kept, "model_type": "mamba",
              "tie_word_embeddings": data.get("tie_embeddings", True), **told}
    if layer == "Mamba2":
        config = {"head_dim": 64, "n_groups": 1, "state_size": 128, "expand": 2, **config,
                  "model_type": "mamba2"}
        width, size = config["d_model"], config["head_dim"]
        if not all(isinstance(v, int) and v > 0 for v in (width, size, config["expand"])):
            raise InputError(f"{where}: d_model, headdim and expand are not all integers above 0")
        config["num_heads"] = config["expand"] * width // size
    notes.append(f"model_type: missing, read as the first {layer} code by 'ssm_cfg'")
    return config
